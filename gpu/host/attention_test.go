package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/tiny"
)

// exactAttention computes in float64 what a query attends to among positions from first on, whose keys and
// values have dim numbers.
func exactAttention(q []float32, keys, values [][]float32, first int, a model.Attention) []float64 {
	out, sum := make([]float64, len(q)), 0.0
	for j := first; j < len(keys); j++ {
		score := 0.0
		for d, x := range q {
			score += float64(x) * float64(keys[j][d])
		}
		score *= float64(a.Scale)
		if a.Softcap != 0 {
			score = float64(a.Softcap) * math.Tanh(score/float64(a.Softcap))
		}
		p := math.Exp(score)
		sum += p
		for d := range out {
			out[d] += p * float64(values[j][d])
		}
	}
	for d := range out {
		out[d] /= sum
	}
	return out
}

func TestAttentionIsExactWithinItsWindowCapAndScaleAndReadsNothingElse(t *testing.T) {
	const context = 5*keyTile + 30
	for _, o := range []tiny.Options{
		{Seed: 5, Layers: 1, Width: 96, Heads: 6, KVHeads: 2, FFN: 32},
		{Seed: 6, Layers: 1, Width: 60, Heads: 5, KVHeads: 5, FFN: 32}, // heads of 12, filled up to 16
	} {
		m := tiny.Model(o)
		for _, kind := range []gpu.CacheType{gpu.CacheF16, gpu.CacheF32, gpu.CacheQ8_0} {
			for _, set := range availableInstructions() {
				if set == portable && kind == gpu.CacheF32 || raceEnabled && (set != avx2 || kind != gpu.CacheQ8_0 || o.Seed != 6) { // slow, and the same to the detector
					continue
				}
				t.Run(fmt.Sprintf("heads of %d/%v/%v", o.Width/o.Heads, kind, set), func(t *testing.T) {
					t.Setenv(CPUVariable, set.String())
					r := rand.New(rand.NewPCG(1, 2))
					for i, a := range []model.Attention{
						{Scale: 0.3}, {Scale: 0.3, Window: 1}, {Scale: 0.5, Window: 7, Softcap: 2}, {Scale: 0.2, Window: 100},
						{Scale: 0.3, Window: keyTile}, {Scale: 0.3, Window: keyTile + 1, Softcap: 1}, {Scale: 0.3, Window: 300}, {Softcap: 50},
					} {
						m.Config.Attention = []model.Attention{a}
						if a.Scale == 0 {
							a.Scale = float32(1 / math.Sqrt(float64(m.Config.HeadDim)))
						}
						blockSize, threads := []int{16, 5, 32, 1}[i%4], 1+i%3
						h, err := Open(m, gpu.Config{BlockSize: blockSize, MaxSeqs: 4, MaxTokens: tileRows, MaxContext: context, Threads: threads, CacheType: kind})
						if err != nil {
							t.Fatal(err)
						}
						defer h.Close()
						attendsExactly(t, h, r, a)
					}
				})
			}
		}
	}
}

// attendsExactly attends from rows of some sequences. Of these only what is to be read is in the cache.
func attendsExactly(t *testing.T, h *Host, r *rand.Rand, a model.Attention) {
	c, scratch, store := h.cache, newRunScratch(h.cache), newStoreScratch(h.cache)
	for i := range h.qkv {
		h.qkv[i] = float32(r.NormFloat64())
	}
	type sequence struct{ keys, values [][][]float32 } // head, position
	var sequences []sequence
	h.rows = h.rows[:0]
	used := 0
	for i, n := range []int{1, 70, 40, 17} {
		start := []int{r.IntN(5 * keyTile), r.IntN(3 * keyTile), 0, 2*keyTile - 9}[i]
		s := sequence{make([][][]float32, c.heads), make([][][]float32, c.heads)}
		table := make([]int32, (start+n+c.blockSize-1)/c.blockSize)
		first := 0
		if a.Window > 0 {
			first = max(0, start-a.Window+1)
		}
		for j := range table {
			if table[j] = -1; (j+1)*c.blockSize > first { // reading of block −1 would panic
				table[j] = int32(used)
				used++
				for _, l := range c.floats {
					for i := range 2 * c.half() {
						l[int(table[j])*2*c.half()+i] = nan
					}
				}
				for _, l := range c.halves {
					for i := range 2 * c.half() {
						l[int(table[j])*2*c.half()+i] = 0x7e00
					}
				}
				for _, l := range c.scales {
					for i := range 2 * c.half() / codeBlock {
						l[int(table[j])*2*c.half()/codeBlock+i] = 0x7e00
					}
				}
			}
		}
		for head := range c.heads {
			for position := range start + n {
				kv := [2][]float32{}
				for half := range kv {
					x := make([]float32, c.stride)
					for d := range c.dim {
						x[d] = float32(r.NormFloat64())
					}
					if position >= first {
						block, offset := int(table[position/c.blockSize]), position%c.blockSize
						step := 1
						if half == keys {
							step = c.lanes
						}
						at := c.at(half, block, head, offset)
						for i := range c.stride { // what fills a head up is 0
							switch {
							case c.floats != nil:
								c.floats[0][at+step*i] = 0
							case c.halves != nil:
								c.halves[0][at+step*i] = 0
							}
						}
						c.store(&store, 0, half, block, head, offset, x)
						if half == values {
							got, _ := c.values(&scratch, true, 0, head, table, position, position+1)
							x = got.floats // as they were rounded
						} else {
							got := c.keys(&scratch, true, 0, head, table, position, position+1)
							for d := range x {
								x[d] = got.floats[got.at[0]+position%keyLanes+keyLanes*d]
							}
						}
					}
					kv[half] = append([]float32{}, x...)
				}
				s.keys[head], s.values[head] = append(s.keys[head], kv[keys]), append(s.values[head], kv[values])
			}
		}
		sequences = append(sequences, s)
		for j := range n {
			h.rows = append(h.rows, row{position: int32(start + j), span: int32(i), blocks: table})
		}
	}
	h.attention.window = 0
	if err := h.attend(); err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	for i, row := range h.rows {
		s, end := &sequences[row.span], int(row.position)+1
		first := 0
		if a.Window > 0 {
			first = max(0, end-a.Window)
		}
		for head := range h.heads {
			q := h.qkv[i*h.qkvWidth+head*c.dim:][:c.dim]
			kv := head / h.attention.shared
			want := exactAttention(q, s.keys[kv][:end], s.values[kv][:end], first, a)
			for d, w := range want {
				got := float64(h.attended[(i*h.heads+head)*c.dim+d])
				if !(math.Abs(got-w) < 1e-5) {
					t.Fatalf("%+v: position %d, head %d: value %d is %v, wanted %v", a, row.position, head, d, got, w)
				}
				worst = max(worst, math.Abs(got-w))
			}
		}
	}
	t.Logf("%+v: off by %.1e at most", a, worst)
}

func TestGatesAndCapsAreTheirFormulas(t *testing.T) {
	eachVectors(t, func(t *testing.T, v *vectors, _ instructions) {
		var x, ones []float32
		for g := float32(-12); g <= 12; g += 1.0 / 128 {
			x, ones = append(x, g), append(ones, 1)
		}
		silu, gelu, capped := make([]float32, len(x)), make([]float32, len(x)), append([]float32{}, x...)
		v.swiGLU(silu, x, ones)
		v.geGLU(gelu, x, ones)
		v.softcap(capped, 5)
		for i, g := range x {
			g := float64(g)
			if want := g / (1 + math.Exp(-g)); math.Abs(float64(silu[i])-want) > 4e-7*math.Abs(want) {
				t.Fatalf("silu(%v) is %v, wanted %v", g, silu[i], want)
			}
			want := g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
			if g < -3 { // where 1 + tanh is nearly 0
				want = g / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
			}
			if math.Abs(float64(gelu[i])-want) > 4e-5*math.Abs(want)+1e-30 || g > -4 && math.Abs(float64(gelu[i])-want) > 2e-6*math.Abs(want) {
				t.Fatalf("gelu(%v) is %v, wanted %v", g, gelu[i], want)
			}
			if exact := g / 2 * (1 + math.Erf(g/math.Sqrt2)); math.Abs(float64(gelu[i])-exact) > 5e-4 {
				t.Fatalf("gelu(%v) is %v, by the distribution function %v", g, gelu[i], exact)
			}
			if want := 5 * math.Tanh(g/5); math.Abs(float64(capped[i])-want) > 1e-6 {
				t.Fatalf("%v is capped to %v, wanted %v", g, capped[i], want)
			}
		}
		extremes := []float32{infinity, -infinity, math.MaxFloat32, -math.MaxFloat32, nan, 0, 0, 0}
		v.softcap(extremes, 30)
		if err := sameBits(extremes, []float32{30, -30, 30, -30, nan, 0, 0, 0}); err != nil {
			t.Error(err)
		}
	})
}

func TestAllLogitsOfALargeVocabularyAreCapped(t *testing.T) {
	h := &Host{vocab: 2*softcapPiece + 5, logitSoftcap: 2, vectors: vectorsOf(portable), pool: newPool(3)}
	defer h.pool.close()
	h.logits = make([]float32, 3*h.vocab)
	for i := range h.logits {
		h.logits[i] = 1000
	}
	if err := h.capLogits(2); err != nil {
		t.Fatal(err)
	}
	for i, x := range h.logits {
		if want := []float32{2, 2, 1000}[i/h.vocab]; x != want {
			t.Fatalf("logit %d is %v, wanted %v", i, x, want)
		}
	}
}

func TestLogitsAreCappedAndGatesChosenAsTheModelSays(t *testing.T) {
	for _, set := range availableInstructions() {
		t.Setenv(CPUVariable, set.String())
		// logits are those of two positions after some tokens.
		logits := func(change func(*model.Config)) []float32 {
			m := tiny.Model(tiny.Options{Seed: 9, Layers: 1})
			change(&m.Config)
			d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 8, MaxContext: 8, Threads: 2})
			d.begin()
			d.span(&sequence{tokens: prompt(m, 8)}, 8)
			d.score(6, 3, 0)
			d.score(7, 3, 0)
			d.run()
			return append([]float32{}, d.device.logits[:2*m.Config.Vocab]...)
		}
		plain := logits(func(*model.Config) {})
		capped := logits(func(c *model.Config) { c.LogitSoftcap = 0.5 })
		most := 0.0
		for i, x := range plain {
			most = max(most, math.Abs(float64(x)))
			if want := 0.5 * math.Tanh(float64(x)/0.5); math.Abs(float64(capped[i])-want) > 1e-6 {
				t.Fatalf("%v: logit %d, %v, is capped to %v, wanted %v", set, i, x, capped[i], want)
			}
		}
		if most < 0.5 {
			t.Errorf("%v: logits go to %v only", set, most)
		}
		if sameBits(logits(func(c *model.Config) { c.Gate = model.GELU }), plain) == nil {
			t.Errorf("%v: another gate changes nothing", set)
		}
	}
}
