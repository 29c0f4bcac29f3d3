//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"math"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// off is by how much a model's log probabilities differ at most, when the tokens come in pieces of the given
// lengths, and then what is left.
func off(t testing.TB, g *devicetest.Architecture, m *model.Model, cache gpu.CacheType, pieces ...int) float64 {
	t.Helper()
	n := len(g.Tokens)
	d := openModel(t, m, gpu.Config{BlockSize: 5, MaxSeqs: 1, MaxTokens: n, MaxContext: n, CacheType: cache}, Options{})
	defer d.Close()
	b := gpu.Batch{Stride: (n + 4) / 5}
	for i := range b.Stride {
		b.Blocks = append(b.Blocks, int32(b.Stride-1-i))
	}
	worst := 0.0
	for done := 0; done < n; {
		k := n - done
		if len(pieces) > 0 {
			k, pieces = min(k, pieces[0]), pieces[1:]
		}
		b.Spans, b.Tokens, b.Positions, b.Rows = []gpu.Span{{Len: int32(k), Start: int32(done), Adapter: -1}}, g.Tokens[done:done+k], nil, nil
		for i := range k {
			b.Positions = append(b.Positions, int32(done+i))
			row := gpu.Row{Kind: gpu.Score, Token: int32(i), Mask: -1}
			if done+i+1 < n {
				row.Target = g.Tokens[done+i+1]
			} else {
				row.Top = int32(len(g.Last))
			}
			b.Rows = append(b.Rows, row)
		}
		used := (done+k-1)/5 + 1
		table := append([]int32{}, b.Blocks...)
		for i := used; i < b.Stride; i++ {
			table[i] = -1
		}
		step := b
		step.Blocks = table
		var r gpu.Result
		if err := d.Run(&step, &r); err != nil {
			t.Fatal(err)
		}
		for i := range k {
			if done+i+1 < n {
				worst = max(worst, math.Abs(float64(r.Logprobs[i])-g.Logprobs[done+i]))
			}
		}
		for i, id := range r.TopIDs {
			worst = max(worst, math.Abs(float64(r.TopLogprobs[i])-g.Last[id]))
		}
		done += k
	}
	return worst
}

func TestArchitecturesAgreeWithTransformers(t *testing.T) {
	useFake(t)
	for _, g := range devicetest.Architectures() {
		t.Run(g.Name, func(t *testing.T) {
			m, err := g.Model(gguf.F32)
			if err != nil {
				t.Fatal(err)
			}
			// In pieces, the last tokens see what is cached, and attention is split.
			if whole, pieces := off(t, g, m, gpu.CacheF32), off(t, g, m, gpu.CacheF32, len(g.Tokens)/2, 1, 1); !(whole < 1.5e-4) || !(pieces < 1.5e-4) {
				t.Errorf("a log probability is off by %g, in pieces by %g", whole, pieces)
			} else {
				t.Logf("off by %.1e at most, in pieces by %.1e", whole, pieces)
			}
			// A cache of halves is read by tensor cores, where heads are of a size for that.
			if whole, pieces := off(t, g, m, gpu.CacheF16), off(t, g, m, gpu.CacheF16, len(g.Tokens)/2, 1, 1); !(whole < 5e-2) || !(pieces < 5e-2) {
				t.Errorf("with a cache of halves, a log probability is off by %g, in pieces by %g", whole, pieces)
			} else {
				t.Logf("with a cache of halves, off by %.1e at most, in pieces by %.1e", whole, pieces)
			}
		})
	}
}
