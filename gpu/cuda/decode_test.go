//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// decodes is sequences that decode together.
type decodes struct {
	config  gpu.Config
	vocab   int
	lengths []int // tokens so far
	tables  [][]int32
	free    []int32
}

// newDecodes begins sequences of the given lengths, whose blocks lie here and there, and has the device compute
// all but their last tokens.
func newDecodes(t testing.TB, d gpu.Device, c gpu.Config, rng *rand.Rand, lengths ...int) *decodes {
	t.Helper()
	s := &decodes{config: c, vocab: d.Info().Vocab, lengths: lengths}
	for _, i := range rng.Perm(d.Info().NumBlocks) {
		s.free = append(s.free, int32(i))
	}
	s.tables = make([][]int32, len(lengths))
	for i, n := range lengths {
		for done := 0; done < n; {
			k := min(n-done, c.MaxTokens)
			b := gpu.Batch{Spans: []gpu.Span{{Len: int32(k), Start: int32(done), Slot: int32(i), Adapter: -1}}}
			for j := range k {
				b.Tokens, b.Positions = append(b.Tokens, int32(rng.IntN(s.vocab))), append(b.Positions, int32(done+j))
			}
			done += k
			s.table(&b, i, done)
			if err := d.Run(&b, &gpu.Result{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// table gives sequence i blocks for n positions, and adds its table to a batch, whose stride grows with it.
func (s *decodes) table(b *gpu.Batch, i, n int) {
	for len(s.tables[i])*s.config.BlockSize < n {
		s.tables[i] = append(s.tables[i], s.free[0])
		s.free = s.free[1:]
	}
	b.Blocks = append(b.Blocks, s.tables[i]...)
	for b.Stride = max(b.Stride, len(s.tables[i])); len(b.Blocks)%b.Stride != 0; {
		b.Blocks = append(b.Blocks, -1)
	}
}

// batch is a step in which some of the sequences decode.
func (s *decodes) batch(rng *rand.Rand, which ...int) *gpu.Batch {
	b := &gpu.Batch{MaskWords: (s.vocab + 31) / 32}
	for _, i := range which {
		b.Stride = max(b.Stride, s.lengths[i]/s.config.BlockSize+1)
	}
	for k, i := range which {
		b.Tokens, b.Positions = append(b.Tokens, int32(rng.IntN(s.vocab))), append(b.Positions, int32(s.lengths[i]))
		b.Spans = append(b.Spans, gpu.Span{First: int32(k), Len: 1, Start: int32(s.lengths[i]), Slot: int32(i), Adapter: -1})
		s.lengths[i]++
		s.table(b, i, s.lengths[i])
		row := gpu.Row{Kind: gpu.Score, Target: int32(rng.IntN(s.vocab)), Top: 2, Mask: -1}
		if rng.IntN(6) > 0 && s.vocab == tiny.Vocab {
			row = randomRow(rng, b)
		}
		row.Token, row.Span = int32(k), int32(k)
		b.Rows = append(b.Rows, row)
	}
	return b
}

func TestAStepOfDecodesAllocatesNothing(t *testing.T) {
	useFake(t)
	c := gpu.Config{BlockSize: 16, MaxSeqs: 8, MaxTokens: 64, MaxContext: 128}
	for _, m := range []*model.Model{tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0}), mixtureOfOneLayer(t)} {
		d := openModel(t, m, c, Options{})
		defer d.Close()
		rng := rand.New(rand.NewPCG(1, 1))
		s := newDecodes(t, d, c, rng, 3, 40, 17, 90, 1, 64)
		b := s.batch(rng, 0, 1, 2, 3, 4, 5)
		var r gpu.Result
		run := func() {
			if err := d.Run(b, &r); err != nil {
				t.Fatal(err)
			}
		}
		run()
		if n := testing.AllocsPerRun(5, run); n != 0 {
			t.Errorf("%s: a step of decodes allocates %v times", m.Name, n)
		}
	}
}

// BenchmarkDecode is a step's calls of the driver, and what it costs on the stand-in, most of which is computing.
func BenchmarkDecode(b *testing.B) {
	useFake(b)
	for _, c := range []struct {
		graphs string
		n      int
	}{{"on", 1}, {"off", 1}, {"on", 8}, {"off", 8}} {
		n := c.n
		b.Run(fmt.Sprintf("%d sequences, graphs %s", n, c.graphs), func(b *testing.B) {
			b.Setenv(GraphsVariable, c.graphs)
			c := gpu.Config{BlockSize: 16, MaxSeqs: 8, MaxTokens: 64, MaxContext: 128}
			d := open(b, tiny.Options{Layers: 2, Type: gguf.Q8_0}, c)
			defer d.Close()
			rng := rand.New(rand.NewPCG(1, 1))
			s := newDecodes(b, d, c, rng, make([]int, n)...)
			which := make([]int, n)
			for i := range which {
				which[i] = i
			}
			batch := s.batch(rng, which...)
			var r gpu.Result
			if err := d.Run(batch, &r); err != nil {
				b.Fatal(err)
			}
			before := ask(b, calls)
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Run(batch, &r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(ask(b, calls)-before)/float64(b.N), "calls/op")
		})
	}
}
