package actors

import (
	"sync"

	"github.com/troupe-llm/troupe/actors/batch"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

// IterationBounds are the upper bounds, in tokens a step, of Stats.Iterations: vLLM's buckets of
// vllm:iteration_tokens_total.
var IterationBounds = [13]int64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}

// Stats is what the batcher and its device can tell of themselves. Gauges are as of the last step
// or message; counters only rise.
type Stats struct {
	batch.Stats
	Device gpu.Info
	// Iterations counts steps by the tokens that they computed: entry i those of at most
	// IterationBounds[i] and more than the bound before it, the last one the rest. IterationSum is
	// the sum of their tokens.
	Iterations   [len(IterationBounds) + 1]uint64
	IterationSum uint64
	// Unhealthy says that requests cannot be served: see Health.
	Unhealthy bool
	// StepTime is the sum of the steps' durations, in nanoseconds.
	StepTime int64
}

// board is where the batcher posts what others may read.
type board struct {
	mu      sync.Mutex
	stats   Stats
	retired batch.Stats // counters of schedulers that panicked
	opened  bool
	why     string // not empty: unhealthy
	shutCh  chan struct{}
}

func (b *board) up(info gpu.Info) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Device, b.opened, b.why = info, true, ""
}

func (b *board) down(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.why = why
}

// device returns what is known of the device, if it was ever open.
func (b *board) device() (gpu.Info, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats.Device, b.opened
}

func (b *board) post(s batch.Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	addCounters(&s, &b.retired)
	b.stats.Stats = s
}

// retire keeps the counters of a scheduler that is about to go.
func (b *board) retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = b.stats.Stats
	b.stats.Running, b.stats.Waiting, b.stats.WaitingCapacity, b.stats.WaitingDeferred, b.stats.BlocksUsed = 0, 0, 0, 0, 0
}

func addCounters(s, to *batch.Stats) {
	s.Preemptions += to.Preemptions
	s.PrefixQueries += to.PrefixQueries
	s.PrefixHits += to.PrefixHits
	s.PromptComputed += to.PromptComputed
	s.PromptCached += to.PromptCached
	s.Generated += to.Generated
	s.Steps += to.Steps
}

func (b *board) stepped(s *lifecycle.Step) {
	tokens := s.PrefillTokens + s.DecodeTokens
	i := 0
	for i < len(IterationBounds) && int64(tokens) > IterationBounds[i] {
		i++
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Iterations[i]++
	b.stats.IterationSum += uint64(tokens)
	b.stats.StepTime += s.End - s.Start
}

func (b *board) read() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Unhealthy = b.why != ""
	return s
}

// shut says that the batcher has closed the device for good; closed waits for that.
func (b *board) shut() { close(b.shutCh) }

func (b *board) closed() <-chan struct{} { return b.shutCh }

// Stats reads the figures.
func (r *Runtime) Stats() Stats { return r.board.read() }

// Health says whether requests can be served, and if not, why.
func (r *Runtime) Health() (ok bool, why string) {
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	return r.board.why == "", r.board.why
}
