package host

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
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
