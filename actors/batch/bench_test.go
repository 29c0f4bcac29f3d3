package batch

import (
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

// BenchmarkStep is the scheduler's whole cost of a step of 256 decoding sequences, told per sequence:
// Plan, Commit and Events. Sequences that end are replaced, their submit and prefill included.
func BenchmarkStep(b *testing.B) {
	const sequences = 256
	s, err := New(Config{
		BlockSize: 16, NumBlocks: 1 << 15, MaxSeqs: sequences, MaxTokens: 8192, MaxContext: 4096,
		PrefixCache: true, EOS: []int32{2}, Vocab: 49152,
	})
	if err != nil {
		b.Fatal(err)
	}
	params := &lifecycle.Params{Temperature: 1, TopP: 1, Logprobs: -1, PromptLogprobs: -1, MaxTokens: 512, IgnoreEOS: true}
	request := uint64(0)
	submit := func(now int64) {
		request++
		prompt := make([]int32, 128)
		for i := range prompt {
			prompt[i] = int32((request*31 + uint64(i)) % 40000)
		}
		s.Submit(now, &lifecycle.Submit{
			ID: lifecycle.SeqID{Request: request}, Prompt: prompt, Params: params, Arrival: now, Group: 1,
		}, request)
	}
	var batch gpu.Batch
	var r gpu.Result
	now, decoded := int64(1), 0
	step := func() {
		for s.Len() < sequences {
			submit(now)
		}
		s.Plan(now, &batch)
		r.Reset(&batch)
		for i := range r.Tokens {
			r.Tokens[i] = int32(3 + (now+int64(i))%40000)
		}
		now++
		s.Commit(&lifecycle.Step{Start: now - 1, End: now}, &r)
		decoded += len(s.Events())
	}
	for range 64 {
		step()
	}
	b.ReportAllocs()
	b.ResetTimer()
	decoded = 0
	for b.Loop() {
		step()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/sequences, "ns/seq-step")
	if decoded < b.N*sequences {
		b.Fatalf("%d messages in %d steps", decoded, b.N)
	}
}
