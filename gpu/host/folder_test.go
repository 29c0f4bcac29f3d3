package host

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/safetensors"
)

// The folders of model/hf/testdata have log probabilities by transformers. Rotary positions are the trap
// here: rows of queries and keys are in another order than in GGUF files.
func TestFoldersAsTransformersSavesThemAgreeWithTransformers(t *testing.T) {
	for _, name := range []string{"llama", "mistral"} {
		dir := filepath.Join("..", "..", "model", "hf", "testdata", name)
		m, err := model.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		data, err := os.ReadFile(filepath.Join(dir, "reference.json"))
		if err != nil {
			t.Fatal(err)
		}
		c := numpyCase{Model: name}
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatal(err)
		}
		if len(c.Tokens) < 2 || len(c.Logprobs) != len(c.Tokens)-1 {
			t.Fatalf("%s: %d tokens, %d log probabilities", name, len(c.Tokens), len(c.Logprobs))
		}
		onEach(t, func(t *testing.T, cpu instructions) { agreesWithNumpy(t, m, cpu, &c, gpu.CacheF32, 1.5e-4) })
	}
}

// folderCase is config.json of a small model, the tensors that transformers saves of it, and what it computes:
// model/hf/testdata/architectures.py writes them. The weights are not in the file but drawn, there and here.
type folderCase struct {
	Config  json.RawMessage
	Tensors []struct {
		Name          string
		Shape         []int
		Scale, Offset float64
	}
	numpyCase
}

// folder writes the model as transformers saves it, with the tokenizer of another one.
func (c *folderCase) folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var tensors []safetensors.Tensor
	for _, x := range c.Tensors {
		tensor := safetensors.Tensor{Name: x.Name, Dtype: safetensors.F32, Shape: x.Shape}
		for _, v := range drawn(x.Name, tensor.Values(), x.Scale, x.Offset) {
			tensor.Data = binary.LittleEndian.AppendUint32(tensor.Data, math.Float32bits(v))
		}
		tensors = append(tensors, tensor)
	}
	weights, err := safetensors.Build(tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	words, err := os.ReadFile(filepath.Join("..", "..", "model", "hf", "testdata", "llama", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"config.json": c.Config, safetensors.SingleName: weights, "tokenizer.json": words} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFoldersOfEveryArchitectureAgreeWithTransformers(t *testing.T) {
	names, err := filepath.Glob(filepath.Join("..", "..", "model", "hf", "testdata", "architectures", "*.json"))
	if err != nil || len(names) < 14 {
		t.Fatal(names, err)
	}
	t.Setenv(CPUVariable, portable.String()) // it is about what is read: the kernels have tests of their own
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var c folderCase
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatal(name, err)
		}
		c.Model = strings.TrimSuffix(filepath.Base(name), ".json")
		m, err := model.Open(c.folder(t))
		if err != nil {
			t.Error(c.Model, err)
			continue
		}
		defer m.Close()
		agreesWithNumpy(t, m, portable, &c.numpyCase, gpu.CacheF32, 3e-4)
	}
}
