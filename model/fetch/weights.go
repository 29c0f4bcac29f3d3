package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/model/safetensors"
)

// A model in safetensors is a folder: what package hf reads of it. Of a repository these files are
// downloaded, all into one snapshot, and no others: neither pickles nor the maker's own files.

const (
	configFile    = "config.json"
	tokenizerFile = "tokenizer.json"
	maxConfig     = 16 << 20  // bytes
	maxIndex      = 256 << 20 // bytes
)

// besides are the files of a model but for its weights, in the order in which they come. The first tells
// whether the others are of any use.
var besides = []string{configFile, tokenizerFile, "tokenizer_config.json", "generation_config.json", "chat_template.jinja", safetensors.IndexName}

// modelTypes are those of hf.ModelTypes, as a test sees to; this package is below that one.
var modelTypes = []string{
	"gemma", "gemma2", "gemma3", "gemma3_text", "llama", "mistral", "mistral3", "mixtral", "phi3",
	"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3",
}

// hasFolder says whether files, none of which is GGUF, are those of a model in safetensors, and that is what
// a name means.
func hasFolder(n Name, files []file) bool {
	return n.File == "" && n.Quant == "" && len(models(files)) == 0 && slices.ContainsFunc(files, func(f file) bool { return isTop(f) && safetensors.IsWeights(f.path) })
}

// isTop says whether a file is in no folder of its repository.
func isTop(f file) bool { return !strings.Contains(f.path, "/") }

// sumOfSizes is the number of bytes of a model in safetensors, as far as the hub gives them.
func sumOfSizes(files []file) (n int64) {
	for _, f := range files {
		n += max(f.size, 0)
	}
	return n
}

// bringFolder returns the folder of a commit's model in safetensors, whose files are downloaded unless they
// are in the cache.
func (h *hub) bringFolder(ctx context.Context, n Name, l listing, progress Progress) (string, error) {
	find := func(name string) (file, bool) {
		i := slices.IndexFunc(l.files, func(f file) bool { return f.path == name && f.size != 0 })
		if i < 0 {
			return file{}, false
		}
		return l.files[i], true
	}
	for _, name := range []string{configFile, tokenizerFile} {
		if _, ok := find(name); !ok {
			return "", fmt.Errorf("%s has weights in safetensors in %s%s, but no %s, without which they are not read: look for a repository with GGUF files of it at https://huggingface.co/models?other=base_model:quantized:%s", h.host(), n.Repo, at(n), name, n.Repo)
		}
	}
	dir := h.snapshotPath(n.Repo, l.commit, "")
	fetch := func(f file) error {
		one := n
		one.File = f.path
		_, err := h.bring(ctx, one, l.commit, f, progress)
		return err
	}
	for _, name := range besides {
		f, ok := find(name)
		if _, single := find(safetensors.SingleName); !ok || single && name == safetensors.IndexName {
			continue
		}
		if err := fetch(f); err != nil {
			return "", err
		}
		if name == configFile {
			if err := checkConfig(dir, n); err != nil {
				return "", err
			}
		}
	}
	names, err := weightFiles(dir, l.files)
	if err != nil {
		return "", fmt.Errorf("%s: %w", n, err)
	}
	var weights []file
	for _, name := range names {
		f, ok := find(name)
		if !ok {
			return "", fmt.Errorf("%s: %s lists %s, which %s does not have there: see %s/tree/%s", n, safetensors.IndexName, name, h.host(), h.page(n.Repo), n.revision())
		}
		weights = append(weights, f)
	}
	if err := h.room(n, l.commit, weights); err != nil {
		return "", err
	}
	for _, f := range weights {
		if err := fetch(f); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// room says so where the disk has no room for all files together.
func (h *hub) room(n Name, commit string, files []file) error {
	var need int64
	for _, f := range files {
		if _, err := os.Stat(h.snapshotPath(n.Repo, commit, f.path)); err != nil {
			need += max(f.size, 0)
			var s incomplete // what an earlier run has left
			if b, err := os.ReadFile(h.blobPath(n.Repo, f.sum) + incompleteSuffix + ".json"); err == nil && json.Unmarshal(b, &s) == nil && s.valid(f.size) {
				need -= s.sum()
			}
		}
	}
	if free, err := freeSpace(h.repoDir(n.Repo)); err == nil && free < need {
		return fmt.Errorf("%s takes %s more, but the disk of %s has %s free: make room, or set HF_HUB_CACHE to a folder on another disk",
			n, SizeText(need), h.cache, SizeText(free))
	}
	return nil
}

// checkConfig looks at the kind of model before its weights are downloaded.
func checkConfig(dir string, n Name) error {
	kind, err := modelType(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", n, err)
	}
	if !slices.Contains(modelTypes, kind) {
		return fmt.Errorf("%s is of the model_type %q, which is %w (%s are): its weights were not downloaded", n, plain(kind, 40), errArchitecture, strings.Join(modelTypes, ", "))
	}
	return nil
}

// modelType reads model_type of a folder's config.json.
func modelType(dir string) (string, error) {
	var doc struct {
		Type string `json:"model_type"`
	}
	b, err := readSmall(filepath.Join(dir, configFile), maxConfig)
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", configFile, err)
	}
	return doc.Type, nil
}

// readSmall reads a file that must not have more than most bytes.
func readSmall(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s is no file of up to %s", filepath.Base(path), SizeText(most))
	}
	return os.ReadFile(path)
}

// weightFiles are the names of a folder's weights, by its index if it has one. there are the files that it
// has, or that it will have.
func weightFiles(dir string, there []file) ([]string, error) {
	has := func(name string) bool { return slices.ContainsFunc(there, func(f file) bool { return f.path == name }) }
	if has(safetensors.SingleName) {
		return []string{safetensors.SingleName}, nil
	}
	if has(safetensors.IndexName) {
		b, err := readSmall(filepath.Join(dir, safetensors.IndexName), maxIndex)
		if err != nil {
			return nil, err
		}
		x, err := safetensors.ParseIndex(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", safetensors.IndexName, err)
		}
		return x.Shards, nil
	}
	return nil, fmt.Errorf("there are weights in safetensors, but neither %s nor %s", safetensors.SingleName, safetensors.IndexName)
}

// folderFiles are the files of a commit's model in safetensors, if all of it is in the cache.
func (h *hub) folderFiles(repo, commit string) ([]file, error) {
	dir := h.snapshotPath(repo, commit, "")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var there, out []file
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.Mode().IsRegular() {
			there = append(there, file{path: e.Name(), size: info.Size()})
		}
	}
	kind, err := modelType(dir)
	if err != nil || !slices.Contains(modelTypes, kind) {
		return nil, errors.Join(err, errArchitecture)
	}
	names, err := weightFiles(dir, there)
	if err != nil {
		return nil, err
	}
	for _, f := range there {
		if slices.Contains(besides, f.path) {
			out = append(out, f)
		}
	}
	if !slices.ContainsFunc(out, func(f file) bool { return f.path == tokenizerFile }) {
		return nil, fmt.Errorf("%s is missing", tokenizerFile)
	}
	for _, name := range names {
		i := slices.IndexFunc(there, func(f file) bool { return f.path == name })
		if i < 0 {
			return nil, fmt.Errorf("%s is missing", name)
		}
		out = append(out, there[i])
	}
	return out, nil
}

// cachedFolder finds a model in safetensors in the cache, without the hub.
func (h *hub) cachedFolder(n Name) (dir string, ok bool) {
	commit, ok := h.commitOf(n)
	if !ok || n.File != "" || n.Quant != "" || len(models(h.snapshot(n.Repo, commit))) > 0 {
		return "", false
	}
	files, err := h.folderFiles(n.Repo, commit)
	if err != nil {
		return "", false
	}
	for _, f := range files {
		used(h.snapshotPath(n.Repo, commit, f.path))
	}
	return h.snapshotPath(n.Repo, commit, ""), true
}
