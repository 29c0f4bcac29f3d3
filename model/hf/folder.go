package hf

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edsrzf/mmap-go"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/safetensors"
	"github.com/troupe-llm/troupe/model/tokenizer"
)

// The files of a folder.
const (
	configName     = "config.json"
	generationName = "generation_config.json"
	tokenizerName  = "tokenizer.json"
	tokenizerRest  = "tokenizer_config.json"
	templateName   = "chat_template.jinja"
)

// Most bytes that are read of a file of JSON: settings, and those with one line a token or tensor.
const (
	maxSettings = 16 << 20
	maxLong     = 256 << 20
)

// Options say what to do with the weights.
type Options struct {
	// Quantization is one of Quantizations, or "" to compute with the weights as they are.
	Quantization string
	Progress     Progress // may be nil
}

// Folder is an opened folder. It is safe for concurrent use until it is closed.
type Folder struct {
	// File has the metadata and the tensors as a GGUF file of the model would have them, but for the
	// tokenizer's. The Data of a tensor may be read after Make.
	File      *gguf.File
	Tokenizer tokenizer.Spec
	EOS       []int32 // token ids that end a text besides the tokenizer's own; in no order
	Template  string  // of chats, in Jinja; "" for none
	// Names has the tensors' names in the folder's files, by GGUF's names.
	Names map[string]string

	weights  *weights
	mappings []mmap.MMap
}

// weightFiles are the safetensors files and the indexes of a folder.
func weightFiles(dir string) (found, all []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil
	}
	for _, e := range entries {
		all = append(all, e.Name())
		if safetensors.IsWeights(e.Name()) {
			found = append(found, e.Name())
		}
	}
	return found, all
}

// Open opens a folder. Weights are mapped into memory, not read; the files must not be shortened or
// overwritten while the folder is open.
func Open(dir string, o Options) (*Folder, error) {
	f := &Folder{Names: map[string]string{}}
	if err := f.open(dir, o); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Folder) open(dir string, o Options) error {
	quantise, quantised := quantisations[o.Quantization]
	if o.Quantization != "" && !quantised {
		return fmt.Errorf("the quantisation %q is not known; known are %s", o.Quantization, strings.Join(Quantizations(), ", "))
	}
	data, err := read(dir, configName, maxSettings)
	if errors.Is(err, os.ErrNotExist) {
		return f.noConfig(dir)
	}
	if err != nil {
		return err
	}
	c, err := readConfig(data)
	if err != nil {
		return err
	}
	tensors, err := f.tensors(dir)
	if err != nil {
		return err
	}
	plan, err := c.plan(tensors, quantise, quantised)
	if err != nil {
		return err
	}
	if err := c.complete(plan); err != nil {
		return err
	}
	for _, w := range plan {
		if w.parts != nil {
			f.Names[w.Name] = w.parts[0].Name
		}
	}
	if err := f.text(dir, c); err != nil {
		return err
	}
	what := "converting weights"
	if quantised {
		what = "quantising weights to " + quantise.String()
	}
	if f.weights, err = newWeights(plan, &c.meta, what, o.Progress); err != nil {
		return err
	}
	f.File, err = c.meta.File()
	return err
}

// complete checks what no later check could name as well: that there is an embedding of the right size, and
// an output unless it is tied.
func (c *config) complete(plan []weight) error {
	find := func(name string) *weight {
		if i := slices.IndexFunc(plan, func(w weight) bool { return w.Name == name }); i >= 0 {
			return &plan[i]
		}
		return nil
	}
	embedding := find("token_embd.weight")
	switch {
	case embedding == nil:
		return errors.New(`tensor "model.embed_tokens.weight" is missing: are these the weights of a whole model?`)
	case len(embedding.Shape) != 2 || embedding.Shape[0] != c.width || embedding.Shape[1] != c.vocab:
		return fmt.Errorf("tensor %q has shape %v, but %s has vocab_size %d and hidden_size %d",
			embedding.parts[0].Name, embedding.parts[0].Shape, configName, c.vocab, c.width)
	case !c.tied && find("output.weight") == nil:
		return fmt.Errorf(`tensor "lm_head.weight" is missing, and tie_word_embeddings of %s is not true, which would let the embedding stand for it`, configName)
	}
	return nil
}

// noConfig is the error of a folder without config.json.
func (f *Folder) noConfig(dir string) error {
	found, all := weightFiles(dir)
	has := func(name string) bool { return slices.Contains(all, name) }
	switch {
	case has("adapter_config.json"):
		return fmt.Errorf("%s is missing, but there is an adapter_config.json: this is an adapter, not a model; merge it into its base model (merge_and_unload of peft) and give that folder", configName)
	case has("params.json") || slices.ContainsFunc(found, func(s string) bool { return strings.HasPrefix(s, "consolidated") }):
		return fmt.Errorf("%s is missing: these are the maker's own files, not those of transformers; take the folder or the repository with %[1]s, whose weights have other names", configName)
	}
	return fmt.Errorf("%s is missing: it says what kind of model this is, and comes with the weights from where they were downloaded", configName)
}

// read reads a file of at most most bytes.
func read(dir, name string, most int64) ([]byte, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > most:
		return nil, fmt.Errorf("%s has more than %d bytes, which no model's has", name, most)
	case strings.HasPrefix(string(data[:min(len(data), 64)]), "version https://git-lfs"):
		return nil, fmt.Errorf("%s is a Git LFS pointer: fetch the file itself with git lfs pull", name)
	}
	return data, nil
}

// tensors maps the weights' files and lists what is in them, sorted as GGUF files are: by file, then by
// place.
func (f *Folder) tensors(dir string) ([]source, error) {
	files, index, err := weightNames(dir)
	if err != nil {
		return nil, err
	}
	var out []source
	seen := map[string]string{}
	for _, name := range files {
		st, err := f.mapped(dir, name)
		switch {
		case errors.Is(err, os.ErrNotExist) && index != nil:
			return nil, missingShard(name, files, index)
		case err != nil:
			return nil, err
		}
		for _, t := range st.Tensors() {
			if other, twice := seen[t.Name]; twice {
				return nil, fmt.Errorf("%s: tensor %q is in %s too", name, t.Name, other)
			}
			seen[t.Name] = name
			out = append(out, source{Tensor: t, file: name, mapping: f.mappings[len(f.mappings)-1]})
		}
	}
	if index != nil {
		for tensor, file := range index.Of {
			if seen[tensor] != file {
				return nil, fmt.Errorf("%s: it has no tensor %q, which %s says it has: is one of the files of another version?", file, tensor, safetensors.IndexName)
			}
		}
	}
	return out, nil
}

// missingShard is the error of a shard that is not there.
func missingShard(name string, files []string, index *safetensors.Index) error {
	n, first := 0, ""
	for tensor, file := range index.Of {
		if file == name {
			if n++; first == "" || tensor < first {
				first = tensor
			}
		}
	}
	return fmt.Errorf("%s is missing, one of %d files that %s lists; %d tensors are in it, such as %q: download it too", name, len(files), safetensors.IndexName, n, first)
}

// weightNames finds the weights' files, and the index if there is one.
func weightNames(dir string) ([]string, *safetensors.Index, error) {
	found, all := weightFiles(dir)
	if slices.Contains(found, safetensors.SingleName) {
		return []string{safetensors.SingleName}, nil, nil
	}
	if slices.Contains(found, safetensors.IndexName) {
		data, err := read(dir, safetensors.IndexName, maxLong)
		if err != nil {
			return nil, nil, err
		}
		index, err := safetensors.ParseIndex(data)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", safetensors.IndexName, err)
		}
		return index.Shards, index, nil
	}
	var one []string
	for _, name := range found {
		if strings.HasSuffix(name, ".safetensors") && !strings.HasPrefix(name, "consolidated") && !strings.HasPrefix(name, "adapter") {
			one = append(one, name)
		}
	}
	if len(one) == 1 && !shardPattern.MatchString(one[0]) {
		return one, nil, nil
	}
	if len(one) > 0 {
		return nil, nil, fmt.Errorf("%s is missing, which says what is in which of the %d .safetensors files: download it too", safetensors.IndexName, len(one))
	}
	for _, name := range all {
		if safetensors.IsPickle(name) {
			return nil, nil, fmt.Errorf("there are no weights in safetensors, but a pickle (%s), which is not read: a pickle is a program that runs when it is loaded. "+
				"Look for a version of the model with .safetensors or .gguf files, or convert this one where it may run: load it with transformers and call save_pretrained", name)
		}
	}
	return nil, nil, fmt.Errorf("there are no weights: neither %s nor %s", safetensors.SingleName, safetensors.IndexName)
}

// mapped maps a file of weights into memory.
func (f *Folder) mapped(dir, name string) (*safetensors.File, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path) // before it is opened: a named pipe would wait for a writer
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	case info.Size() == 0:
		return nil, fmt.Errorf("%s is empty; was its download cut off?", name)
	case info.Size() > math.MaxInt:
		return nil, fmt.Errorf("%s has %d bytes, more than this 32-bit program can map", name, info.Size())
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close() // the mapping outlives it
	mapping, err := mmap.Map(r, mmap.RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("mapping %s into memory: %w", name, err)
	}
	f.mappings = append(f.mappings, mapping)
	if strings.HasPrefix(string(mapping[:min(len(mapping), 64)]), "version https://git-lfs") {
		return nil, fmt.Errorf("%s is a Git LFS pointer: fetch the file itself with git lfs pull", name)
	}
	file, err := safetensors.Parse(mapping)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}

// Make fills in the Data of a tensor of File, which it is an error to read before: weights that are to be
// converted are so when they are first wanted.
func (f *Folder) Make(name string) error { return f.weights.keep(name) }

// Borrow is Make for a while: after done, Data must not be read any more, unless Make was called too. So
// whoever makes a copy in another form need not have both of all weights at once.
func (f *Folder) Borrow(name string) (done func(), err error) { return f.weights.borrow(name) }

// Explain says what an error about a tensor of File means in the folder: it gives the tensor the name that
// it has there.
func (f *Folder) Explain(err error) error {
	var e *gguf.Error
	if !errors.As(err, &e) {
		return err
	}
	for ours, theirs := range f.Names {
		if e.Field == fmt.Sprintf("tensor %q", ours) {
			return &gguf.Error{Field: fmt.Sprintf("tensor %q", theirs), Offset: -1, Err: e.Err,
				What: e.What + " (shapes with the row's length first)"}
		}
	}
	return err
}

// Mappings are the files' bytes, for advice to the system.
func (f *Folder) Mappings() []mmap.MMap { return f.mappings }

// Close gives all memory back. Tensors must not be touched afterwards.
func (f *Folder) Close() error {
	var errs []error
	if f.weights != nil {
		errs = append(errs, f.weights.close())
	}
	for _, m := range f.mappings {
		errs = append(errs, m.Unmap())
	}
	f.mappings = nil
	return errors.Join(errs...)
}
