package host

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// benchModels runs f on a tiny model, and on the real one where there is one.
func benchModels(b *testing.B, f func(b *testing.B, m *model.Model)) {
	b.Run("tiny", func(b *testing.B) {
		f(b, tiny.Model(tiny.Options{Layers: 4, Width: 256, Heads: 4, KVHeads: 2, FFN: 512, Type: gguf.Q4_1}))
	})
	b.Run("SmolLM2", func(b *testing.B) { f(b, realModel(b)) })
}

// report gives tokens per second, and the arithmetic in the weights that this is, 2 per weight: of
// all layers for each token, and of the output matrix for each row of logits.
func report(b *testing.B, m *model.Model, tokens, rows int) {
	c := &m.Config
	perLayer := c.Width*(c.Heads+2*c.KVHeads)*c.HeadDim + c.Heads*c.HeadDim*c.Width + 3*c.Width*c.FFN
	flop := 2 * (float64(tokens)*float64(c.Layers*perLayer) + float64(rows)*float64(c.Width*c.Vocab))
	seconds := b.Elapsed().Seconds() / float64(b.N)
	b.ReportMetric(float64(tokens)/seconds, "tokens/s")
	b.ReportMetric(flop/seconds/1e9, "GFLOP/s")
}

// prompt makes n tokens up.
func prompt(m *model.Model, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*7919 + 13) % m.Config.Vocab)
	}
	return ids
}

func BenchmarkDecode(b *testing.B) {
	for _, shape := range []struct {
		name       string
		n, context int
	}{{"1 sequence", 1, 128}, {"8 sequences", 8, 128}, {"32 sequences", 32, 128}, {"1 sequence at 2000", 1, 2000}} {
		b.Run(shape.name, func(b *testing.B) {
			benchModels(b, func(b *testing.B, m *model.Model) {
				d := newDriver(b, m, gpu.Config{BlockSize: 16, MaxSeqs: shape.n, MaxTokens: 1024, MaxContext: shape.context + 1})
				// The positions before are made up, and written, so that each page has memory of its own.
				for _, layer := range d.device.cache.halves {
					for i := range layer {
						layer[i] = uint16(i % 0x3800) // up to 0.5
					}
				}
				d.begin()
				for i := range shape.n {
					s := &sequence{tokens: prompt(m, shape.context+1), slot: int32(i), done: shape.context}
					token := d.span(s, 1)
					d.batch.Rows = append(d.batch.Rows, gpu.Row{Kind: gpu.Sample, Token: token, Span: int32(i), Top: -1, TopP: 1, Mask: -1})
				}
				b.ReportAllocs()
				for b.Loop() {
					d.run()
				}
				report(b, m, shape.n, shape.n)
			})
		})
	}
}

func BenchmarkPrefill(b *testing.B) {
	for _, context := range []int{512, 2048} {
		b.Run(fmt.Sprint(context, " tokens"), func(b *testing.B) {
			benchModels(b, func(b *testing.B, m *model.Model) {
				d := newDriver(b, m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: context, MaxContext: context})
				d.begin()
				d.span(&sequence{tokens: prompt(m, context)}, context)
				d.batch.Rows = append(d.batch.Rows, gpu.Row{Kind: gpu.Sample, Token: int32(context - 1), Top: -1, TopP: 1, Mask: -1})
				for b.Loop() {
					d.run()
				}
				report(b, m, context, 1)
			})
		})
	}
}

// BenchmarkPrefillBesideDecodes is what 8 sequences that decode notice of a prompt of 2,000 tokens. Steps of up
// to so many tokens hold all 8 and as much of the prompt as there is room for, as the batcher plans them: ms/gap
// is the time from one of their tokens to the next meanwhile, and ms/prompt that of the whole prompt.
func BenchmarkPrefillBesideDecodes(b *testing.B) {
	const decodes, context, length = 8, 128, 2000
	for _, most := range []int{64, 128, 256, 512, decodes + length} {
		b.Run(fmt.Sprintf("%d tokens a step", most), func(b *testing.B) {
			benchModels(b, func(b *testing.B, m *model.Model) {
				d := newDriver(b, m, gpu.Config{BlockSize: 16, MaxSeqs: decodes + 1, MaxTokens: most, MaxContext: length})
				prompted := &sequence{tokens: prompt(m, length), slot: decodes}
				var others [decodes]*sequence
				for i := range others {
					others[i] = &sequence{tokens: prompt(m, context+1), slot: int32(i)}
				}
				sample := func(token int32) {
					d.batch.Rows = append(d.batch.Rows, gpu.Row{Kind: gpu.Sample, Token: token, Span: int32(len(d.batch.Spans) - 1), Top: -1, TopP: 1, Mask: -1})
				}
				// step decodes and computes n tokens of the prompt.
				step := func(n int) {
					d.begin()
					for _, s := range others {
						s.done = context
						sample(d.span(s, 1))
					}
					if n > 0 {
						d.span(prompted, n)
						if prompted.done == length {
							sample(int32(len(d.batch.Tokens) - 1))
						}
					}
					d.run()
				}
				for _, s := range others {
					for s.done < context {
						d.begin()
						d.span(s, min(context-s.done, most))
						d.run()
					}
				}
				steps := 0
				for b.Loop() {
					for prompted.done = 0; prompted.done < length; steps++ {
						step(min(most-decodes, length-prompted.done))
					}
				}
				elapsed := b.Elapsed()
				alone, from := 0, time.Now()
				for ; alone < 20 || time.Since(from) < 200*time.Millisecond; alone++ {
					step(0)
				}
				gap := elapsed.Seconds() / float64(steps)
				b.ReportMetric(1e3*gap, "ms/gap")
				b.ReportMetric(1e3*elapsed.Seconds()/float64(b.N), "ms/prompt")
				b.ReportMetric(gap/(time.Since(from).Seconds()/float64(alone)), "×alone")
			})
		})
	}
}

// BenchmarkAttention is attention alone, in all layers of a model of SmolLM2's shape whose cache is
// larger than the processor's: with every set of instructions and type of cache, so that one run
// compares them. Keys and values are read once a step, which is the GB/s.
func BenchmarkAttention(b *testing.B) {
	portableTime := map[string]float64{}
	m := tiny.Model(tiny.Options{Layers: 30, Width: 576, Heads: 9, KVHeads: 3, FFN: 32, Type: gguf.Q8_0})
	for _, shape := range []struct {
		name        string
		seqs        int
		depth, rows int // positions before the first row, and rows of each sequence
	}{
		{"decode at 0", 1, 0, 1}, {"decode at 2000", 1, 2000, 1}, {"decode 8 at 2000", 8, 2000, 1}, {"prefill 2048", 1, 0, 2048},
	} {
		for _, kind := range []gpu.CacheType{gpu.CacheF16, gpu.CacheF32, gpu.CacheQ8_0} {
			for _, set := range availableInstructions() {
				b.Run(fmt.Sprintf("%s/%v/%v", shape.name, kind, set), func(b *testing.B) {
					b.Setenv(CPUVariable, set.String())
					context, layers := shape.depth+shape.rows, m.Config.Layers
					if shape.rows > 1 {
						layers = 2
					}
					h, err := Open(m, gpu.Config{BlockSize: 16, MaxSeqs: shape.seqs, MaxTokens: 2048, MaxContext: context, CacheType: kind})
					if err != nil {
						b.Fatal(err)
					}
					defer h.Close()
					r := rand.New(rand.NewPCG(1, 1))
					for i := range h.qkv {
						h.qkv[i] = float32(r.NormFloat64())
					}
					blocks, store := make([]int32, (context+15)/16), newStoreScratch(h.cache)
					var tiles [][]row
					for s := range shape.seqs {
						table := make([]int32, len(blocks))
						for i := range table {
							table[i] = int32(s*len(table) + i)
							for j := range 16 * h.cache.heads * layers {
								head, layer := j/16%h.cache.heads, j/16/h.cache.heads
								h.cache.store(&store, layer, keys, int(table[i]), head, j%16, h.qkv[r.IntN(len(h.qkv)-64):])
								h.cache.store(&store, layer, values, int(table[i]), head, j%16, h.qkv[r.IntN(len(h.qkv)-64):])
							}
						}
						for i := range shape.rows {
							if s == 0 && i%tileRows == 0 {
								tiles = append(tiles, nil)
							}
							t := &tiles[i/tileRows]
							*t = append(*t, row{position: int32(shape.depth + i), span: int32(s), blocks: table})
						}
					}
					for b.Loop() {
						for _, t := range tiles {
							h.rows = append(h.rows[:0], t...)
							h.attention.window = 0 // new rows need a new plan
							for h.layer = range layers {
								if err := h.attend(); err != nil {
									b.Fatal(err)
								}
							}
						}
					}
					pairs := shape.seqs * (shape.rows*shape.depth + shape.rows*(shape.rows+1)/2) // of queries and keys
					step := b.Elapsed().Seconds() / float64(b.N)
					b.ReportMetric(float64(pairs*h.heads*h.cache.dim*4*layers)/step/1e9, "GFLOP/s")
					b.ReportMetric(float64(int64(shape.seqs*context)*h.info.BlockBytes/16)*float64(layers)/float64(m.Config.Layers)/step/1e9, "GB/s")
					if key := fmt.Sprint(shape.name, kind); set == portable {
						portableTime[key] = step
					} else if portableTime[key] > 0 {
						b.ReportMetric(portableTime[key]/step, "×portable")
					}
				})
			}
		}
	}
}
