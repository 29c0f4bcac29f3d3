package batch

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
)

// The simulated device, which checks what it is given, has the last word on whether batches keep to
// gpu.Batch; and whatever the cache's size and the budget, the tokens are the same.
func TestTheSimulatedDeviceAcceptsEveryBatchAndGivesTheSameTokensInAnyConfiguration(t *testing.T) {
	var want map[lifecycle.SeqID][]int32
	for i, c := range []Config{
		{BlockSize: 16, NumBlocks: 4096, MaxSeqs: 64, MaxTokens: 4096, PrefixCache: false},
		{BlockSize: 4, NumBlocks: 40, MaxSeqs: 8, MaxTokens: 24, PrefixCache: true},
		{BlockSize: 7, NumBlocks: 24, MaxSeqs: 16, MaxTokens: 17, PrefixCache: true},
		{BlockSize: 16, NumBlocks: 9, MaxSeqs: 5, MaxTokens: 64, PrefixCache: false},
	} {
		c.MaxContext, c.Vocab, c.EOS = 128, 500, []int32{0}
		got, preemptions := simulate(t, c)
		if i == 0 {
			want = got
		} else if preemptions == 0 {
			t.Errorf("configuration %d preempts nobody: it shows nothing", i)
		}
		if !maps.EqualFunc(got, want, slices.Equal[[]int32]) {
			t.Fatalf("configuration %d gives other tokens", i)
		}
	}
}

// simulate runs a fixed workload and returns the tokens of each sequence.
func simulate(t *testing.T, c Config) (map[lifecycle.SeqID][]int32, uint64) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	device, err := sim.Open(sim.Options{
		Vocab: c.Vocab, EOS: c.EOS, Check: true,
		EOSAfter: func(seed uint64, choice int32) int { return int(seed%40) + int(choice) },
	}, gpu.Config{
		BlockSize: c.BlockSize, CacheBytes: int64(c.NumBlocks*c.BlockSize) * sim.DefaultBytesPerToken,
		MaxSeqs: c.MaxSeqs, MaxTokens: c.MaxTokens, MaxContext: c.MaxContext,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	shared := make([]int32, 40)
	for i := range shared {
		shared[i] = r.Int32N(500)
	}
	for request := range uint64(60) {
		prompt := slices.Clone(shared[:r.IntN(40)])
		for range 1 + r.IntN(20) {
			prompt = append(prompt, r.Int32N(500))
		}
		p := &lifecycle.Params{
			Temperature: float32(request % 2), TopP: 1, Seed: request, Logprobs: int(request%3) - 1, PromptLogprobs: -1,
			MaxTokens: 1 + r.IntN(40), MinTokens: r.IntN(3),
		}
		if request%7 == 0 {
			p.PromptLogprobs = 1
		}
		n := 1 + int(request%4)/2*int(request%4)
		for i := range n {
			s.Submit(1, &lifecycle.Submit{
				ID: lifecycle.SeqID{Request: request, Index: int32(i)}, Prompt: prompt, Params: p, Arrival: int64(request), Group: n,
			}, request)
		}
	}
	out := make(map[lifecycle.SeqID][]int32)
	var b gpu.Batch
	var result gpu.Result
	for now := int64(1); s.Plan(now, &b) > 0; now++ {
		if err := device.Run(&b, &result); err != nil {
			t.Fatal(err)
		}
		s.Commit(&lifecycle.Step{Start: now, End: now + 1}, &result)
		for _, e := range s.Events() {
			if m, ok := e.Msg.(*lifecycle.Tokens); ok {
				out[m.ID] = append(out[m.ID], m.IDs...)
			}
		}
	}
	if s.Len() > 0 {
		t.Fatalf("%d sequences are left", s.Len())
	}
	return out, s.Stats().Preemptions
}
