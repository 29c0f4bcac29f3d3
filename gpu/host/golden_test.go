package host

import (
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/modeltest"
)

// realModel opens SmolLM2-135M-Instruct.Q4_1.gguf, or skips.
func realModel(t testing.TB) *model.Model {
	t.Helper()
	m, err := model.Open(modeltest.SmolLM2(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// readGoldens finds what another implementation computes of a real model, by its name: Hugging Face
// transformers of SmolLM2, of the same weights dequantised to float32, and llama.cpp of Gemma 3.
func readGoldens(t testing.TB, name string) *devicetest.Goldens {
	t.Helper()
	for _, g := range devicetest.KnownGoldens() {
		if strings.HasPrefix(strings.ToLower(g.Model), name) {
			return g
		}
	}
	t.Fatalf("no goldens of %s", name)
	return nil
}

func TestSmolLM2AgreesWithTransformersAlongItsOwnTokens(t *testing.T) {
	m := realModel(t)
	onEach(t, func(t *testing.T, cpu instructions) {
		limit := 0.05
		if cpu != portable {
			limit = 0.15 // activations are rounded to 8 bits
		}
		agreesWithGoldens(t, m, readGoldens(t, "smollm2"), limit, gpu.CacheAuto)
	})
}

func TestSmolLM2AgreesWithTransformersThoughItsCacheIsOfBytes(t *testing.T) {
	m := realModel(t)
	cpus := availableInstructions()
	t.Setenv(CPUVariable, cpus[len(cpus)-1].String())
	agreesWithGoldens(t, m, readGoldens(t, "smollm2"), 0.15, gpu.CacheQ8_0)
}

func TestGemma3AgreesWithLlamaCppAlongItsOwnTokens(t *testing.T) {
	m, err := model.Open(modeltest.Gemma3(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	g := readGoldens(t, "gemma-3")
	whole := &devicetest.Goldens{}
	for _, c := range g.Cases {
		// The reference is a server's answer, in which tokens that end within a character are left out.
		if m.Tokenizer.Decode(c.IDs[c.Prompt:], false) == c.Text {
			whole.Cases = append(whole.Cases, c)
		}
		if ids := m.Tokenizer.Encode(c.Question, true, false); !slices.Equal(ids, c.IDs[:c.Prompt]) {
			t.Errorf("%q is %v, wanted %v", c.Question, ids, c.IDs[:c.Prompt])
		}
	}
	if n := len(g.Cases) - len(whole.Cases); n > 1 {
		t.Errorf("the text of %d of %d cases is not that of their tokens", n, len(g.Cases))
	}
	// The reference has 8-bit activations too.
	onEach(t, func(t *testing.T, _ instructions) { agreesWithGoldens(t, m, whole, 0.15, gpu.CacheAuto) })
	t.Run("token by token", func(t *testing.T) { sameBitsTokenByToken(t, m, whole) })
}

// agreesWithGoldens fails if log probabilities differ by limit or more in the mean, or where another
// token is likeliest though the reference is sure.
func agreesWithGoldens(t *testing.T, m *model.Model, g *devicetest.Goldens, limit float64, kind gpu.CacheType) {
	t.Helper()
	open := func(c gpu.Config) (gpu.Device, error) {
		c.CacheType = kind
		return Open(m, c)
	}
	a, err := g.Compare(open)
	if err == nil {
		err = a.Within(limit)
	}
	if err != nil {
		t.Error(err)
	}
	t.Logf("generated tokens: at most %.5f in a case's mean; prompts: %.5f in the mean, %.4f at most; top token: %v of %v",
		a.Generated, a.Prompts, a.Worst, a.Agree, a.Clear)
}

func TestSmolLM2HasTheSameBitsTokenByTokenAsInOneChunk(t *testing.T) {
	m := realModel(t)
	onEach(t, func(t *testing.T, _ instructions) { sameBitsTokenByToken(t, m, readGoldens(t, "smollm2")) })
}

func sameBitsTokenByToken(t *testing.T, m *model.Model, g *devicetest.Goldens) {
	c := g.Cases[0]
	ids := c.IDs
	run := func(threads int, chunks ...int) []float32 {
		d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 128, MaxContext: 128, Threads: threads})
		s := &sequence{tokens: ids}
		var logprobs, tops []float32
		for s.done < len(ids)-1 {
			n := 1
			if len(chunks) > 0 {
				n, chunks = min(chunks[0], len(ids)-1-s.done), chunks[1:]
			}
			d.begin()
			first := d.span(s, n)
			for i := range n {
				d.score(first+int32(i), ids[s.done-n+i+1], 2)
			}
			r := d.run()
			logprobs, tops = append(logprobs, r.Logprobs...), append(tops, r.TopLogprobs...)
		}
		return append(logprobs, tops...)
	}
	whole := run(1, len(ids)-1)
	for _, other := range [][]float32{run(3), run(2, 7, 20, 15)} {
		if !slices.Equal(whole, other) {
			t.Error("log probabilities differ")
		}
	}
}
