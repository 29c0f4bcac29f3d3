package tiny_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

func TestTheSameOptionsGiveTheSameBytes(t *testing.T) {
	a, b := tiny.GGUF(tiny.Options{Seed: 7}), tiny.GGUF(tiny.Options{Seed: 7})
	if !bytes.Equal(a, b) {
		t.Error("two builds differ")
	}
	if bytes.Equal(a, tiny.GGUF(tiny.Options{Seed: 8})) {
		t.Error("the seed has no effect")
	}
	const sum = "2c1aabdb88c30f13a43ba5ac5e86f3de9ef092015839c3d075b9a2df3dbd7ad5" // of the default model: tests elsewhere have expectations of it
	if got := fmt.Sprintf("%x", sha256.Sum256(tiny.GGUF(tiny.Options{}))); got != sum {
		t.Errorf("the default model's sha256 is %s", got)
	}
	if len(a) > 600<<10 {
		t.Errorf("%d bytes", len(a))
	}
}

func TestEveryWeightTypeOpens(t *testing.T) {
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1} {
		m := tiny.Model(tiny.Options{Type: typ, Layers: 1, Name: "x"})
		w, err := m.Tensor("blk.0.ffn_down.weight")
		if err != nil || w.Type != typ || m.Name != "x" || m.Config.Layers != 1 || m.Config.Vocab != tiny.Vocab {
			t.Errorf("%s: %v %v %+v", typ, w.Type, err, m.Config)
		}
	}
	if m := tiny.Model(tiny.Options{Tied: true}); !m.Config.TiedOutput {
		t.Error("tied: output.weight is there")
	}
}

func TestTheTokenizerKnowsWordsBytesAndSpecials(t *testing.T) {
	m := tiny.Model(tiny.Options{})
	tok := m.Tokenizer
	for _, text := range []string{"Hello world", "The cat is on the mat.\n\nYes", "naïve 日本語 😀", "\x00\xff"} {
		ids := tok.Encode(text, false, false)
		if got := tok.Decode(ids, false); got != strings.ToValidUTF8(text, "\uFFFD") {
			t.Errorf("%q came back as %q", text, got)
		}
	}
	if n := len(tok.Encode("Hello world", false, false)); n != 2 {
		t.Errorf("Hello world takes %d tokens", n)
	}
	for b := range 256 {
		if got := tok.AppendBytes(nil, int32(tiny.FirstByte+b)); len(got) != 1 || got[0] != byte(b) {
			t.Errorf("byte %d: %q", b, got)
		}
	}
	ids := tok.Encode("<|im_start|>user\nhi<|im_end|>", true, true)
	if ids[0] != tiny.IMStart || ids[len(ids)-1] != tiny.IMEnd {
		t.Errorf("%v", ids)
	}
	if g := m.Generation; fmt.Sprint(g.EOS) != "[0 2]" || g.BOS != tiny.IMStart || g.AddBOS {
		t.Errorf("%+v", g)
	}
	if tok.Size() != 320 || tiny.Vocab != 320 || m.Template != tiny.Template {
		t.Errorf("%d tokens, template %q", tok.Size(), m.Template)
	}
}

func TestGreedyTextWandersAndLogitsVary(t *testing.T) {
	for _, typ := range []gguf.Type{gguf.F32, gguf.Q4_1} {
		for seed := range uint64(2) {
			m := tiny.Model(tiny.Options{Seed: seed, Type: typ})
			for _, prompt := range []string{"Hello world", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "a"} {
				l := newLlama(t, m)
				var logits []float64
				for _, id := range m.Tokenizer.Encode(prompt, false, true) {
					logits = l.step(id)
				}
				distinct, least := map[int32]bool{}, math.Inf(1)
				var out []int32
				for range 48 {
					best := argmax(logits)
					least = min(least, deviation(logits))
					distinct[best] = true
					out = append(out, best)
					logits = l.step(best)
				}
				text := m.Tokenizer.Decode(out, false)
				if len(distinct) < 24 || least < 1 {
					t.Errorf("%s, seed %d, %q: %d distinct tokens of 48, logits' deviation from %.2f: %q", typ, seed, prompt, len(distinct), least, text)
				}
				for _, id := range m.Generation.EOS {
					if distinct[id] {
						t.Errorf("%s, seed %d, %q: ends on its own: %q", typ, seed, prompt, text)
					}
				}
				if n := strings.Count(text, "\uFFFD"); n > 8 || !utf8.ValidString(text) {
					t.Errorf("%s, seed %d, %q: %d broken characters: %q", typ, seed, prompt, n, text)
				}
				t.Logf("%s %d %q: %d, %.2f, %q", typ, seed, prompt, len(distinct), least, text)
			}
		}
	}
}

// The prompt must matter beyond its last token, or tests of caches and preemption would prove nothing.
func TestLogitsDependOnTheWholePrompt(t *testing.T) {
	m := tiny.Model(tiny.Options{})
	run := func(first byte) []float64 {
		l := newLlama(t, m)
		l.step(tiny.FirstByte + int32(first))
		var logits []float64
		for range 40 {
			logits = l.step(tiny.FirstByte + 'x')
		}
		return logits
	}
	a, b := run('a'), run('b')
	most := 0.0
	for i := range a {
		most = max(most, math.Abs(a[i]-b[i]))
	}
	if most < 0.01 {
		t.Errorf("another token 40 positions before changes no logit by more than %g", most)
	}
}

func TestContradictingOptionsPanic(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "KV heads") {
			t.Errorf("%v", r)
		}
	}()
	tiny.GGUF(tiny.Options{Heads: 4, KVHeads: 3})
}

func argmax(x []float64) int32 {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return int32(best)
}

func deviation(x []float64) float64 {
	var sum, squares float64
	for _, v := range x {
		sum, squares = sum+v, squares+v*v
	}
	n := float64(len(x))
	return math.Sqrt(squares/n - sum/n*sum/n)
}

// llama computes the model as plainly as can be, in float64, one token at a time.
type llama struct {
	c       model.Config
	t       *testing.T
	m       *model.Model
	weights map[string][]float64
	k, v    [][][]float64 // by layer and position
	rope    []float64
}

func newLlama(t *testing.T, m *model.Model) *llama {
	l := &llama{c: m.Config, t: t, m: m, weights: map[string][]float64{}}
	l.k, l.v = make([][][]float64, l.c.Layers), make([][][]float64, l.c.Layers)
	l.rope, _ = l.c.Rope(l.c.Context)
	return l
}

func (l *llama) weight(name string) []float64 {
	if w, ok := l.weights[name]; ok {
		return w
	}
	x, err := l.m.Tensor(name)
	if err != nil {
		l.t.Fatal(err)
	}
	values, err := gguf.Decode(x.Type, x.Data)
	if err != nil {
		l.t.Fatal(err)
	}
	w := make([]float64, len(values))
	for i, v := range values {
		w[i] = float64(v)
	}
	l.weights[name] = w
	return w
}

func (l *llama) apply(name string, x []float64) []float64 {
	w := l.weight(name)
	out := make([]float64, len(w)/len(x))
	for i := range out {
		for j, v := range x {
			out[i] += w[i*len(x)+j] * v
		}
	}
	return out
}

func (l *llama) norm(name string, x []float64) []float64 {
	w, sum := l.weight(name), 0.0
	for _, v := range x {
		sum += v * v
	}
	scale := 1 / math.Sqrt(sum/float64(len(x))+float64(l.c.NormEps))
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * scale * w[i]
	}
	return out
}

func (l *llama) turn(x []float64, pos int) {
	for h := 0; h < len(x); h += l.c.HeadDim {
		for i, f := range l.rope {
			sin, cos := math.Sincos(f * float64(pos))
			a, b := x[h+2*i], x[h+2*i+1]
			x[h+2*i], x[h+2*i+1] = a*cos-b*sin, a*sin+b*cos
		}
	}
}

// step computes the next position and returns its logits.
func (l *llama) step(id int32) []float64 {
	c := l.c
	pos := len(l.k[0])
	x := append([]float64(nil), l.weight("token_embd.weight")[int(id)*c.Width:(int(id)+1)*c.Width]...)
	for n := range c.Layers {
		blk := fmt.Sprintf("blk.%d.", n)
		h := l.norm(blk+"attn_norm.weight", x)
		q, k := l.apply(blk+"attn_q.weight", h), l.apply(blk+"attn_k.weight", h)
		l.turn(q, pos)
		l.turn(k, pos)
		l.k[n], l.v[n] = append(l.k[n], k), append(l.v[n], l.apply(blk+"attn_v.weight", h))
		attn := make([]float64, len(q))
		for head := range c.Heads {
			at, kv := head*c.HeadDim, head/(c.Heads/c.KVHeads)*c.HeadDim
			scores, total := make([]float64, pos+1), 0.0
			for p := range scores {
				for i := range c.HeadDim {
					scores[p] += q[at+i] * l.k[n][p][kv+i]
				}
				scores[p] = math.Exp(scores[p] / math.Sqrt(float64(c.HeadDim)))
				total += scores[p]
			}
			for p, s := range scores {
				for i := range c.HeadDim {
					attn[at+i] += s / total * l.v[n][p][kv+i]
				}
			}
		}
		for i, v := range l.apply(blk+"attn_output.weight", attn) {
			x[i] += v
		}
		h = l.norm(blk+"ffn_norm.weight", x)
		gate, up := l.apply(blk+"ffn_gate.weight", h), l.apply(blk+"ffn_up.weight", h)
		for i, g := range gate {
			up[i] *= g / (1 + math.Exp(-g))
		}
		for i, v := range l.apply(blk+"ffn_down.weight", up) {
			x[i] += v
		}
	}
	out := "output.weight"
	if c.TiedOutput {
		out = "token_embd.weight"
	}
	return l.apply(out, l.norm("output_norm.weight", x))
}

func BenchmarkGGUF(b *testing.B) {
	for b.Loop() {
		tiny.GGUF(tiny.Options{Type: gguf.Q4_0})
	}
}

func BenchmarkModel(b *testing.B) {
	for b.Loop() {
		tiny.Model(tiny.Options{})
	}
}
