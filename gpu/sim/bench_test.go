package sim

import (
	"testing"

	"github.com/troupe-llm/troupe/gpu"
)

// BenchmarkRun is what a device that takes no time costs all the same, for 256 decodes.
func BenchmarkRun(b *testing.B) {
	const sequences = 256
	s, err := Open(Options{}, gpu.Config{BlockSize: 16, MaxSeqs: sequences, MaxTokens: 8192, MaxContext: 4096})
	if err != nil {
		b.Fatal(err)
	}
	batch := &gpu.Batch{Stride: 1}
	for i := range int32(sequences) {
		batch.Tokens = append(batch.Tokens, i)
		batch.Positions = append(batch.Positions, 5)
		batch.Spans = append(batch.Spans, gpu.Span{First: i, Len: 1, Start: 5, Slot: i})
		batch.Blocks = append(batch.Blocks, i)
		batch.Rows = append(batch.Rows, gpu.Row{Token: i, Span: i, Top: -1, Mask: -1, Temperature: 1, Seed: uint64(i)})
	}
	var r gpu.Result
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Run(batch, &r); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/sequences, "ns/row")
}
