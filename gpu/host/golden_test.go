package host

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
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

// goldens is what another implementation computes of a real model: testdata/smollm2.json by Hugging Face
// transformers, of the same weights dequantised to float32, and testdata/gemma3.json by llama.cpp.
type goldens struct {
	Cases []struct {
		Prompt         string
		Rendered       string
		PromptIDs      []int32    `json:"prompt_ids"`
		PromptLogprobs []*float64 `json:"prompt_logprobs"`
		GreedyIDs      []int32    `json:"greedy_ids"`
		GreedyText     string     `json:"greedy_text"`
		Steps          []struct {
			Token int32
			Top   [][2]float64
		}
	}
}

func readGoldens(t testing.TB, name string) goldens {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var g goldens
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	return g
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
	g := readGoldens(t, "gemma3")
	whole := g
	whole.Cases = nil
	for _, c := range g.Cases {
		// The reference is a server's answer, in which tokens that end within a character are left out.
		if m.Tokenizer.Decode(c.GreedyIDs, false) == c.GreedyText {
			whole.Cases = append(whole.Cases, c)
		}
		if ids := m.Tokenizer.Encode(c.Prompt, true, false); !slices.Equal(ids, c.PromptIDs) {
			t.Errorf("%q is %v, wanted %v", c.Prompt, ids, c.PromptIDs)
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
func agreesWithGoldens(t *testing.T, m *model.Model, g goldens, limit float64, kind gpu.CacheType) {
	d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 4, MaxTokens: 512, MaxContext: 1024, CacheType: kind})
	var chosen, prompt, places, clear, agree float64
	var worst float64
	for i, c := range g.Cases {
		ids := append(append([]int32{}, c.PromptIDs...), c.GreedyIDs...)
		s := &sequence{tokens: ids[:len(ids)-1]}
		d.begin()
		d.span(s, len(s.tokens))
		for j := 1; j < len(ids); j++ {
			d.score(int32(j-1), ids[j], 1)
		}
		r := d.run()
		for j := 1; j < len(c.PromptLogprobs); j++ {
			diff := math.Abs(float64(r.Logprobs[j-1]) - *c.PromptLogprobs[j])
			prompt += diff
			places++
			worst = max(worst, diff)
		}
		var sum float64
		for j, step := range c.Steps {
			at := len(c.PromptIDs) + j - 1
			sum += math.Abs(float64(r.Logprobs[at]) - step.Top[0][1])
			margin := step.Top[0][1] - step.Top[1][1]
			top := r.TopIDs[r.TopFirst[at]]
			if margin > 1 && top != step.Token {
				t.Errorf("case %d, step %d: %d is likeliest, wanted %d with margin %.2f", i, j, top, step.Token, margin)
			}
			if margin > 0.5 {
				clear++
				if top == step.Token {
					agree++
				}
			}
		}
		mean := sum / float64(len(c.Steps))
		chosen = max(chosen, mean)
		if mean >= limit {
			t.Errorf("case %d: log probabilities differ by %.4f in the mean; under %v is asked for", i, mean, limit)
		}
		d.free = append(d.free, s.blocks...)
	}
	if agree < 0.99*clear {
		t.Errorf("the likeliest token agrees in %v of %v places where the reference's margin exceeds 0.5", agree, clear)
	}
	if mean := prompt / max(1, places); mean >= limit {
		t.Errorf("the prompts' log probabilities differ by %.4f in the mean; under %v is asked for", mean, limit)
	}
	t.Logf("chosen tokens: at most %.5f in a case's mean; prompts: %.5f in the mean, %.4f at most; top token: %v of %v",
		chosen, prompt/max(1, places), worst, agree, clear)
}

func TestSmolLM2HasTheSameBitsTokenByTokenAsInOneChunk(t *testing.T) {
	m := realModel(t)
	onEach(t, func(t *testing.T, _ instructions) { sameBitsTokenByToken(t, m, readGoldens(t, "smollm2")) })
}

func sameBitsTokenByToken(t *testing.T, m *model.Model, g goldens) {
	c := g.Cases[0]
	ids := append(append([]int32{}, c.PromptIDs...), c.GreedyIDs...)
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
