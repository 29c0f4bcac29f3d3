package fetch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/model/hf"
	"github.com/troupe-llm/troupe/model/safetensors"
)

func TestTheModelTypesThatAreDownloadedAreThoseThatCanBeRead(t *testing.T) {
	if !slices.Equal(modelTypes, hf.ModelTypes()) {
		t.Errorf("%q, but %q can be read", modelTypes, hf.ModelTypes())
	}
}

// putFolder puts a model in safetensors of so many shards on the hub, with other files that are not
// wanted, and returns those that are.
func putFolder(h *fakeHub, repo, commit string, shards int) map[string][]byte {
	files := map[string][]byte{
		"config.json":           []byte(`{"model_type":"llama"}`),
		"tokenizer.json":        bytes.Repeat([]byte("t"), 20_000),
		"tokenizer_config.json": []byte(`{}`),
	}
	weights := map[string]string{}
	for i := range shards {
		name := safetensors.SingleName
		if shards > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		}
		files[name] = bytes.Repeat([]byte{byte(i)}, 100_000+i)
		weights[fmt.Sprint("w", i)] = name
	}
	if shards > 1 {
		files[safetensors.IndexName], _ = json.Marshal(map[string]any{"weight_map": weights})
	}
	for name, data := range files {
		h.put(repo, commit, name, data)
	}
	for _, name := range []string{"README.md", "pytorch_model.bin", "original/consolidated.00.pth", "onnx/model.onnx", "sub/model.safetensors", "chat_template.jinja"} {
		var data []byte // an empty file is none
		if name != "chat_template.jinja" {
			data = []byte("not wanted")
		}
		h.put(repo, commit, name, data)
	}
	return files
}

func wantFolder(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(files) {
		t.Errorf("%d files in %s, want %d; %v", len(entries), dir, len(files), err)
	}
	for name, data := range files {
		wantBytes(t, filepath.Join(dir, name), data)
	}
}

func TestARepositoryWithoutGGUFFilesIsDownloadedAsAFolderOfSafetensors(t *testing.T) {
	for _, shards := range []int{1, 3} {
		h := newHub(t)
		files := putFolder(h, "org/repo", commitA, shards)
		r := resolved(t, "org/repo")
		if r.Name != "org/repo" || !r.Cached || filepath.Base(r.Path) != commitA {
			t.Errorf("%+v", r)
		}
		wantFolder(t, r.Path, files)
		if n := h.count("resolve GET"); n > 2*len(files) {
			t.Errorf("%d requests for %d files", n, len(files))
		}
		// Once it is there the hub is asked for its list alone, and without a network not even for that.
		h.reset()
		if again := resolved(t, "org/repo"); again != r || h.count("resolve") > 0 || h.count("store") > 0 {
			t.Errorf("%+v, %q", again, h.requests)
		}
		t.Setenv("HF_HUB_OFFLINE", "1")
		h.reset()
		if again := resolved(t, "org/repo"); again != r || len(h.requests) > 0 {
			t.Errorf("%+v, %q", again, h.requests)
		}
		// It is one entry, which can be removed.
		total := int64(0)
		for _, data := range files {
			total += int64(len(data))
		}
		entries, err := List()
		if err != nil || len(entries) != 1 || entries[0].Name != "org/repo" || entries[0].Quant != "safetensors" || entries[0].Size != total || entries[0].Path != r.Path {
			t.Errorf("%+v, %v; want %d bytes", entries, err, total)
		}
		removed, err := Remove("org/repo", false)
		if err != nil || len(removed) != 1 || removed[0].Freed != total || len(hubFiles(t)) > 0 {
			t.Errorf("%+v, %v; left %q", removed, err, hubFiles(t))
		}
	}
}

func TestWhatCannotBeReadOfARepositoryIsNotDownloaded(t *testing.T) {
	h := newHub(t)
	putFolder(h, "org/mamba", commitA, 1)
	h.put("org/mamba", commitA, "config.json", []byte(`{"model_type":"mamba"}`))
	_, err := Resolve(t.Context(), "org/mamba", nil)
	wantError(t, err, `org/mamba is of the model_type "mamba"`, "not supported (gemma, ", "its weights were not downloaded")
	if n := h.count("store"); n > 0 {
		t.Errorf("%d requests for weights", n)
	}
	h.put("org/bare", commitA, safetensors.SingleName, []byte("x"))
	_, err = Resolve(t.Context(), "org/bare", nil)
	wantError(t, err, "weights in safetensors in org/bare, but no config.json")
	putFolder(h, "org/gap", commitA, 3)
	delete(h.repos["org/gap"][commitA], "model-00002-of-00003.safetensors")
	_, err = Resolve(t.Context(), "org/gap", nil)
	wantError(t, err, "org/gap", safetensors.IndexName+" lists model-00002-of-00003.safetensors")
	// A GGUF file comes before safetensors.
	putFolder(h, "org/both", commitA, 1)
	h.put("org/both", commitA, "both-Q8_0.gguf", tinyFile("both"))
	wantBytes(t, resolved(t, "org/both").Path, tinyFile("both"))
}

func TestWhoNeedsSafetensorsDownloadsNoGGUFFile(t *testing.T) {
	h := newHub(t)
	putFolder(h, "org/both", commitA, 1)
	h.put("org/both", commitA, "both-Q8_0.gguf", tinyFile("both"))
	h.put("org/gguf", commitA, "gguf-Q8_0.gguf", tinyFile("gguf"))
	refused := func(name string, want ...string) {
		t.Helper()
		_, err := ResolveFolder(t.Context(), name, nil)
		wantError(t, err, want...)
		if gguf := (*GGUFError)(nil); !errors.As(err, &gguf) {
			t.Errorf("%s: %T", name, err)
		}
	}
	refused("org/gguf", "org/gguf has GGUF files")
	refused("org/both", "org/both has GGUF files", "before its safetensors")
	if n := h.count("resolve") + h.count("store"); n > 0 || len(hubFiles(t)) > 0 {
		t.Errorf("%d downloads, and in the cache %q", n, hubFiles(t))
	}
	h.reset()
	for _, name := range []string{"smollm2", "org/gguf:Q8_0", "org/gguf/gguf-Q8_0.gguf", h.store.URL + "/x.gguf", h.URL + "/org/gguf/resolve/main/gguf-Q8_0.gguf"} {
		refused(name, name+" names a GGUF file")
	}
	if len(h.requests) > 0 {
		t.Errorf("%q", h.requests)
	}

	// Not even where it is in the cache, without a network.
	file := resolved(t, "org/gguf").Path
	refused("org/gguf", "org/gguf has GGUF files")
	refused(file, file+" is a GGUF file")
	t.Setenv("HF_HUB_OFFLINE", "1")
	refused("org/gguf", "org/gguf has GGUF files")
	t.Setenv("HF_HUB_OFFLINE", "")

	// What has safetensors alone is as ever.
	files := putFolder(h, "org/repo", commitB, 3)
	r, err := ResolveFolder(t.Context(), "org/repo", nil)
	if err != nil {
		t.Fatal(err)
	}
	wantFolder(t, r.Path, files)
	if again, err := ResolveFolder(t.Context(), r.Path, nil); err != nil || again.Path != r.Path {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestAFolderWhoseDownloadEndsEarlyGoesOnFromThere(t *testing.T) {
	h := newHub(t)
	files := putFolder(h, "org/repo", commitA, 3)
	broken := true
	h.intercept(func(where string, w http.ResponseWriter, r *http.Request) bool {
		if broken && strings.Contains(r.URL.Path, "model-00003") {
			hubError(w, 403, "", "not now")
			return true
		}
		return false
	})
	if _, err := Resolve(t.Context(), "org/repo", nil); err == nil {
		t.Fatal("no error")
	}
	if entries, err := List(); err != nil || slices.ContainsFunc(entries, func(e Entry) bool { return e.Whole == 0 }) {
		t.Errorf("%+v %v: what is not whole is listed as if it were", entries, err)
	}
	h.intercept(nil)
	h.reset()
	wantFolder(t, resolved(t, "org/repo").Path, files)
	if h.count("resolve HEAD") != 1 {
		t.Errorf("%q", h.requests)
	}
}
