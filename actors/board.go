package actors

import (
	"fmt"
	"strings"
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
	// Unhealthy says that requests cannot be served: see Health. Of an engine beside others it says that
	// it has no device.
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
	away    string // not empty: why the device, which was open before, isn't now
	shutCh  chan struct{}
}

func (b *board) up(info gpu.Info) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Device, b.opened, b.why, b.away = info, true, "", ""
	if b.stats.BlocksTotal == 0 { // before the first request
		b.stats.BlocksTotal = info.NumBlocks
	}
}

// gone says that the device is not open at the moment.
func (b *board) gone(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = why
}

// hope says whether the device is open at the moment, and if not, whether it is still hoped for.
func (b *board) hope() hope {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.why != "":
		return none
	case b.away != "":
		return waiting
	}
	return present
}

// output is how many tokens have been generated for the sequences that are there.
func (b *board) output() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats.Output
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
	b.stats.Running, b.stats.Waiting, b.stats.WaitingCapacity, b.stats.WaitingDeferred, b.stats.BlocksUsed, b.stats.Output = 0, 0, 0, 0, 0, 0
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

// Stats reads the figures of all engines together: sums, and the Device of the first.
func (r *Runtime) Stats() Stats {
	sum := r.engines[0].board.read()
	for _, e := range r.engines[1:] {
		s := e.board.read()
		addCounters(&sum.Stats, &s.Stats)
		sum.Running += s.Running
		sum.Waiting += s.Waiting
		sum.WaitingCapacity += s.WaitingCapacity
		sum.WaitingDeferred += s.WaitingDeferred
		sum.WaitingBlocks = sum.WaitingBlocks || s.WaitingBlocks
		sum.Output += s.Output
		sum.BlocksUsed += s.BlocksUsed
		sum.BlocksTotal += s.BlocksTotal
		sum.IterationTokens += s.IterationTokens
		for i, n := range s.Iterations {
			sum.Iterations[i] += n
		}
		sum.IterationSum += s.IterationSum
		sum.StepTime += s.StepTime
	}
	ok, _ := r.Health()
	sum.Unhealthy = !ok
	return sum
}

// Engines reads the figures of each engine.
func (r *Runtime) Engines() []Stats {
	all := make([]Stats, len(r.engines))
	for i, e := range r.engines {
		all[i] = e.board.read()
		all[i].Unhealthy = all[i].Unhealthy || r.several() && e.board.hope() < present
	}
	return all
}

// Health says whether requests can be served, and if not, why. Of several engines one is enough; why then
// says which others have no device.
func (r *Runtime) Health() (ok bool, why string) {
	var parts []string
	for _, e := range r.engines {
		e.board.mu.Lock()
		ok = ok || e.board.why == ""
		switch {
		case !r.several():
			why = e.board.why
		case e.board.away != "":
			parts = append(parts, fmt.Sprintf("engine %d of %d has no device: %s", e.num, len(r.engines), e.board.away))
		}
		e.board.mu.Unlock()
	}
	if r.several() {
		why = strings.Join(parts, "; ")
	}
	return ok, why
}
