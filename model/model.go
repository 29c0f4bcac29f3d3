// Package model is what a model's files bring: its configuration, its weights, its tokenizer, its chat
// template and its defaults for generation. Sub-packages read the file formats (gguf; hf and safetensors for
// folders as transformers saves them), tokenize (tokenizer), render conversations (template), make tiny
// models up for tests (tiny) and fetch a first real one (fetch).
package model

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edsrzf/mmap-go"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/hf"
	"github.com/troupe-llm/troupe/model/tokenizer"
)

// Model is an opened model. It is read-only and safe for concurrent use until it is closed.
type Model struct {
	Name         string // general.name, or else the file's name without its ending, or the folder's
	Path         string // where the file or the folder is; "" for a model parsed from memory
	Description  string // general.description: what the model is, in its makers' words; may be empty
	Architecture string // one of Architectures
	Config       Config
	Tokenizer    *tokenizer.Tokenizer
	Template     string // source of the chat template (Jinja); "" if the file has none
	Generation   Generation

	// Parameters is the number of weights, WeightBytes what they take in the file, or when they are
	// quantised, and Quantization the storage type that most of those bytes have.
	Parameters   int64
	WeightBytes  int64
	Quantization gguf.Type

	file    *gguf.File
	mapping mmap.MMap  // nil for a model parsed from memory, and for a folder
	folder  *hf.Folder // nil for a GGUF file
}

// Options say how a model is opened.
type Options struct {
	// Quantization is what the weights of a folder of safetensors are quantised to as they are loaded: one of
	// hf.Quantizations, or "" to keep them as they are. A GGUF file's are as they are in any case.
	Quantization string
	// Progress hears how far that has come; nil is allowed.
	Progress hf.Progress
}

// Open opens a model with its weights as they are: see OpenWith.
func Open(path string) (*Model, error) { return OpenWith(path, Options{}) }

// OpenWith opens a GGUF file, or a folder as Hugging Face's transformers saves it (see package hf). Files
// are mapped into memory, not read: weights are paged in as they are touched, and processes that serve the
// same file share them. Files must be regular ones, and must not be shortened or overwritten while the
// model is open: that would end the process or change its weights. Put a new file in its place by renaming.
// Errors name the file and, within it, field and offset.
func OpenWith(path string, o Options) (*Model, error) {
	// Looked at before it is opened: a named pipe would wait for a writer, and a device do who knows what.
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("model: %w", err)
	case info.IsDir():
		return openFolder(path, o)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("model: %s is not a regular file; give the path of a GGUF file", path)
	case o.Quantization != "":
		return nil, fmt.Errorf("model: %s is a file, whose weights are computed with as they are: only those of a folder of safetensors are quantised at load", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	defer f.Close() // the mapping outlives it
	switch info, err = f.Stat(); {
	case err != nil:
		return nil, fmt.Errorf("model: %w", err)
	case info.Size() == 0:
		return nil, fmt.Errorf("model: %s is empty; was its download cut off?", path)
	case info.Size() > math.MaxInt:
		return nil, fmt.Errorf("model: %s has %d bytes, more than this 32-bit program can map", path, info.Size())
	}
	mapping, err := mmap.Map(f, mmap.RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("model: mapping %s into memory: %w", path, err)
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	m, err := parse(mapping, path, name)
	if err != nil {
		_ = mapping.Unmap()
		return nil, err
	}
	m.Path = path
	m.mapping = mapping
	return m, nil
}

// Parse is Open for a file that is already in memory, which must stay unchanged while the model is in
// use. The name stands for the file in errors, and for the model where the file gives it no name.
func Parse(data []byte, name string) (*Model, error) { return parse(data, name, name) }

func parse(data []byte, path, name string) (*Model, error) {
	file, err := gguf.Parse(data)
	if err != nil {
		if hint := notGGUF(data); hint != "" {
			return nil, fmt.Errorf("model: %s is not a GGUF file but %s", path, hint)
		}
		return nil, fmt.Errorf("model: %s: %w", path, err)
	}
	m := &Model{Name: name, file: file}
	if err := m.load(); err != nil {
		return nil, fmt.Errorf("model: %s: %w", path, err)
	}
	return m, nil
}

func openFolder(path string, o Options) (*Model, error) {
	folder, err := hf.Open(path, hf.Options{Quantization: o.Quantization, Progress: o.Progress})
	if err != nil {
		return nil, fmt.Errorf("model: %s: %w", path, err)
	}
	m := &Model{Name: "model", Path: path, file: folder.File, folder: folder}
	if abs, err := filepath.Abs(path); err == nil && filepath.Dir(abs) != abs {
		m.Name = filepath.Base(abs)
	}
	if err := m.load(); err != nil {
		_ = folder.Close()
		return nil, fmt.Errorf("model: %s: %w", path, folder.Explain(err))
	}
	return m, nil
}

// notGGUF recognises what people most often pass instead of a GGUF file, "" for anything else.
func notGGUF(data []byte) string {
	head := data[:min(len(data), 512)]
	switch {
	case bytes.HasPrefix(head, []byte("GGUF")):
		return ""
	case bytes.HasPrefix(head, []byte("version https://git-lfs")):
		return "a Git LFS pointer: fetch the file itself with git lfs pull"
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return "a zip archive (a PyTorch checkpoint or a wheel?)"
	case len(head) > 9 && head[8] == '{' && bytes.Contains(head, []byte(`"dtype"`)),
		len(head) > 9 && bytes.HasPrefix(head[8:], []byte(`{"__metadata__"`)):
		return "a safetensors file: give the path of the folder that it is in, with config.json and tokenizer.json"
	case bytes.HasPrefix(bytes.ToLower(bytes.TrimSpace(head)), []byte("<!doctype html")),
		bytes.HasPrefix(bytes.ToLower(bytes.TrimSpace(head)), []byte("<html")):
		return "a web page: was the download address that of the file itself?"
	}
	return ""
}

// Close gives the mapping back. Tensors of the model must not be touched afterwards: they may be no
// memory any more. Closing twice does no harm.
func (m *Model) Close() error {
	if m.folder != nil {
		return m.folder.Close()
	}
	if m.mapping == nil {
		return nil
	}
	err := m.mapping.Unmap()
	m.mapping = nil
	return err
}

// Release tells the system that most of the file's bytes are not needed for a while, as when a device has
// its own copy of the weights: it need not keep them in memory for this process. All stay readable, and
// are read from the file again when they are touched. It does nothing for a model parsed from memory.
func (m *Model) Release() {
	if m.mapping != nil {
		release(m.mapping)
	}
	if m.folder != nil {
		for _, mapping := range m.folder.Mappings() {
			release(mapping)
		}
	}
}

// Tensor finds a weight by its name in a GGUF file, such as "blk.0.attn_q.weight". Its bytes stay valid
// until Close. A weight that is to be quantised or put in another order is so at the first call, which takes
// its time. The error names file and tensor; of one that is not there it wraps gguf.ErrMissing.
func (m *Model) Tensor(name string) (gguf.Tensor, error) {
	t, err := m.Peek(name)
	if err == nil && m.folder != nil {
		err = m.explained(m.folder.Make(name))
	}
	return t, err
}

// Peek is Tensor, but the bytes of a weight that is to be quantised or put in another order are not made: they
// may be read after Tensor, or between Borrow and its done.
func (m *Model) Peek(name string) (gguf.Tensor, error) {
	t, err := m.file.Tensor(name)
	return t, m.explained(err)
}

// Borrow lets the bytes of a weight that Peek found be read until done is called. One that is to be quantised or
// put in another order takes memory no longer than that, unless Tensor was called for it; one that is as it is in
// the file leaves memory, and is read again when it is touched.
func (m *Model) Borrow(name string) (done func(), err error) {
	if m.folder == nil {
		return func() { m.Pass(name, 0, math.MaxInt) }, nil
	}
	done, err = m.folder.Borrow(name)
	return done, m.explained(err)
}

// Pass says that the bytes from … to of a borrowed weight have been read, and are not needed before done: those of a
// GGUF file leave memory at once.
func (m *Model) Pass(name string, from, to int) {
	t, err := m.file.Tensor(name)
	if err != nil || m.mapping == nil {
		return
	}
	page := int64(os.Getpagesize())
	begin, end := (t.Offset+int64(from)+page-1)/page*page, (t.Offset+int64(min(to, len(t.Data))))/page*page
	if begin < end {
		release(m.mapping[begin:end])
	}
}

func (m *Model) explained(err error) error {
	if err != nil {
		return fmt.Errorf("model: %s: %w", m.where(), err)
	}
	return nil
}

// where names the model's file in errors.
func (m *Model) where() string {
	if m.Path != "" {
		return m.Path
	}
	return m.Name
}

func (m *Model) load() error {
	f := m.file
	var err error
	if m.Architecture, err = f.String("general.architecture"); err != nil {
		return err
	}
	if kind, err := f.String("general.type"); err == nil && kind != "model" {
		return f.Errorf("general.type", "the file holds a model's %q, not a whole model", kind)
	}
	if n, err := f.Uint("split.count"); err == nil && n > 1 {
		return f.Errorf("split.count", "the model is split over %d files; merge them with llama-gguf-split --merge", n)
	}
	a := findArchitecture(m.Architecture)
	if a == nil {
		return f.Errorf("general.architecture", "%s", unknownArchitecture(m.Architecture))
	}
	if name, err := f.String("general.name"); err == nil && name != "" {
		m.Name = name
	}
	if text, err := f.String("general.description"); err == nil {
		m.Description = text
	}
	if m.Config, err = readConfig(f, a); err != nil {
		return err
	}
	if err := checkTensors(f, &m.Config, a.name); err != nil {
		return err
	}
	var spec tokenizer.Spec
	if m.folder != nil {
		spec = m.folder.Tokenizer
		markEnds(&spec)
	} else if spec, err = readTokenizer(f); err != nil {
		return err
	}
	if n := len(spec.Tokens); n != m.Config.Vocab {
		return f.Errorf("tokenizer.ggml.tokens", "%d tokens, but token_embd.weight has rows for %d", n, m.Config.Vocab)
	}
	if m.Generation, err = readGeneration(f, &spec); err != nil {
		return err
	}
	if m.Tokenizer, err = tokenizer.New(spec); err != nil {
		return err
	}
	if m.folder != nil {
		m.Template = m.folder.Template
		m.Generation.EOS = slices.Compact(slices.Sorted(slices.Values(append(m.Generation.EOS, m.folder.EOS...))))
	} else if m.Template, err = f.String("tokenizer.chat_template"); ignoreMissing(&err) != nil {
		return err
	}
	bytesOf := map[gguf.Type]int64{}
	for _, t := range f.Tensors() {
		m.Parameters += int64(t.Values())
		m.WeightBytes += int64(len(t.Data))
		bytesOf[t.Type] += int64(len(t.Data))
		if bytesOf[t.Type] > bytesOf[m.Quantization] || bytesOf[t.Type] == bytesOf[m.Quantization] && t.Type < m.Quantization {
			m.Quantization = t.Type
		}
	}
	return nil
}
