package host

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
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
	prefix string // that Tensors' names have lost
}

// folder writes the model as transformers saves it, with the tokenizer of another one. With a prefix its tensors
// are those of a part of a model, which has another part too.
func (c *folderCase) folder(t *testing.T, prefix string) string {
	t.Helper()
	dir := t.TempDir()
	var tensors []safetensors.Tensor
	for _, x := range c.Tensors {
		tensor := safetensors.Tensor{Name: prefix + x.Name, Dtype: safetensors.F32, Shape: x.Shape}
		for _, v := range devicetest.Drawn(c.prefix+x.Name, tensor.Values(), x.Scale, x.Offset) {
			tensor.Data = binary.LittleEndian.AppendUint32(tensor.Data, math.Float32bits(v))
		}
		tensors = append(tensors, tensor)
	}
	if prefix != "" {
		image := strings.TrimSuffix(prefix, "language_model.") + "vision_tower.patch.weight"
		tensors = append(tensors, safetensors.Tensor{Name: image, Dtype: safetensors.U8, Shape: []int{1}, Data: []byte{1}})
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
		c.agrees(t, "")
		if c.Model == "gemma3_text" { // also as a part of a model that sees, under both names that there are for it
			text := c.Config
			c.Config = fmt.Appendf(nil, `{"model_type":"gemma3","architectures":["Gemma3ForConditionalGeneration"],"vision_config":{},"text_config":%s}`, text)
			c.agrees(t, "language_model.")
			for i := range c.Tensors {
				c.Tensors[i].Name = strings.TrimPrefix(c.Tensors[i].Name, "model.")
			}
			c.prefix = "model."
			c.agrees(t, "model.language_model.")
		}
	}
}

// agrees fails unless the model's folder, in which tensors' names have a prefix, gives what transformers computes.
func (c *folderCase) agrees(t *testing.T, prefix string) {
	t.Helper()
	m, err := model.Open(c.folder(t, prefix))
	if err != nil {
		t.Error(c.Model, err)
		return
	}
	defer m.Close()
	agreesWithNumpy(t, m, portable, &c.numpyCase, gpu.CacheF32, 3e-4)
}
