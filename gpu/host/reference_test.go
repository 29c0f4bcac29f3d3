package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

var writeModels = flag.String("write-models", "", "folder to write the models of the numpy reference to, for _generate/reference.py")

// rebuild writes a model file again with metadata and tensors changed.
func rebuild(t testing.TB, file []byte, values map[string]any, change func(gguf.Tensor) gguf.Tensor, more ...gguf.Tensor) []byte {
	t.Helper()
	f, err := gguf.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	var b gguf.Builder
	for _, key := range f.Keys() {
		v, _ := f.Value(key)
		b.Set(key, v)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		b.Set(key, values[key])
	}
	for _, tensor := range append(f.Tensors(), more...) {
		if change != nil {
			tensor = change(tensor)
		}
		b.Add(tensor.Name, tensor.Type, tensor.Shape, tensor.Data)
	}
	out, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// referenceModels are small models that between them use every path of the device: dot products and
// tables, tied and separate output, positions stretched and with factors, heads in groups of 1 to 3,
// part of a head turned.
func referenceModels(t testing.TB) map[string][]byte {
	factors, err := gguf.Encode(gguf.F32, []float32{1, 1, 1.5, 2, 4, 8, 8, 8})
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"plain": tiny.GGUF(tiny.Options{Seed: 1, Layers: 3}),
		"tables": rebuild(t, tiny.GGUF(tiny.Options{Seed: 2, Width: 192, Heads: 6, KVHeads: 2, FFN: 544, Type: gguf.Q4_1}),
			map[string]any{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(4), "llama.rope.freq_base": float32(50000)}, nil),
		"tied": rebuild(t, tiny.GGUF(tiny.Options{Seed: 3, Width: 128, Heads: 4, KVHeads: 4, FFN: 384, Type: gguf.Q4_0, Tied: true}),
			map[string]any{"llama.rope.dimension_count": uint32(16)}, nil,
			gguf.Tensor{Name: "rope_freqs.weight", Type: gguf.F32, Shape: []int{8}, Data: factors}),
		"bytes": tiny.GGUF(tiny.Options{Seed: 4, Width: 96, Heads: 2, KVHeads: 1, FFN: 160, Type: gguf.Q8_0}),
	}
}

func TestLogProbabilitiesAgreeWithNumpyInFloat64(t *testing.T) {
	models := referenceModels(t)
	if *writeModels != "" {
		for name, file := range models {
			if err := os.WriteFile(filepath.Join(*writeModels, name+".gguf"), file, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Skip("models written")
	}
	data, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ Cases []numpyCase }
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) != len(models) {
		t.Errorf("%d cases for %d models", len(golden.Cases), len(models))
	}
	for _, c := range golden.Cases {
		if sum := sha256.Sum256(models[c.Model]); hex.EncodeToString(sum[:]) != c.SHA256 {
			t.Errorf("model %q is not the one that testdata/reference.json was made for: see _generate/reference.py", c.Model)
			continue
		}
		m, err := model.Parse(models[c.Model], c.Model)
		if err != nil {
			t.Fatal(err)
		}
		onEach(t, func(t *testing.T, cpu instructions) {
			// A cache of halves keeps 11 bits, one of codes 8 of a block's largest, and random weights make much of small differences.
			for kind, most := range map[gpu.CacheType]float64{gpu.CacheF32: 1.5e-4, gpu.CacheF16: 0.06, gpu.CacheQ8_0: 1} {
				agreesWithNumpy(t, m, cpu, &c, kind, most)
			}
		})
	}
}

// numpyCase is what numpy computes of a model.
type numpyCase struct {
	Model, SHA256 string
	Tokens        []int32
	Logprobs      []float64 // of token i+1 after the tokens to i
	Last          []float64 // of every token after the last
}

// agreesWithNumpy fails if a log probability is off by more than most, where activations are floats.
func agreesWithNumpy(t *testing.T, m *model.Model, cpu instructions, c *numpyCase, kind gpu.CacheType, most float64) {
	t.Helper()
	worst, off, rounded := c.off(t, m, kind)
	// As bytes, activations are off by some 0.4 % in every multiplication.
	if !rounded && !(worst < most) || rounded && !(off < 0.1) {
		t.Errorf("model %q, cache of %v: a log probability is off by %g, in the mean they are by %g of their spread", c.Model, kind, worst, off)
	}
	if rounded && cpu == portable {
		t.Error("portable Go has rounded activations to bytes")
	}
}

// off says by how much a log probability is off at most, and by what part of their spread they are in the
// mean; and whether activations were rounded to bytes.
func (c *numpyCase) off(t *testing.T, m *model.Model, kind gpu.CacheType) (worst, mean float64, rounded bool) {
	n := len(c.Tokens)
	d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: n, MaxContext: n, Threads: 2, CacheType: kind})
	d.begin()
	d.span(&sequence{tokens: c.Tokens}, n)
	for i := 1; i < n; i++ {
		d.score(int32(i-1), c.Tokens[i], 0)
	}
	d.score(int32(n-1), 0, int32(m.Config.Vocab))
	r := d.run()
	sum, middle, square := 0.0, 0.0, 0.0
	for i, want := range c.Logprobs {
		diff := math.Abs(float64(r.Logprobs[i]) - want)
		worst, sum = max(worst, diff), sum+diff
	}
	for i, id := range r.TopIDs {
		diff := math.Abs(float64(r.TopLogprobs[i]) - c.Last[id])
		worst, sum = max(worst, diff), sum+diff
	}
	for _, v := range c.Last {
		middle, square = middle+v/float64(len(c.Last)), square+v*v/float64(len(c.Last))
	}
	mean = sum / float64(len(c.Logprobs)+len(r.TopIDs)) / math.Sqrt(square-middle*middle)
	t.Logf("model %q, cache of %v: off by %.1e at most, in the mean by %.1e of the spread", c.Model, kind, worst, mean)
	return worst, mean, len(d.device.product.octets) > 0
}
