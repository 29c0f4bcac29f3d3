package behaviours

import (
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
)

// What a thousand streams may cost: for clients to see at most twice the device's step at the median
// on two cores, the server may take three of the four steps' time that the cores have meanwhile. The
// time on the clock is only logged, as it depends on what else the machine does. And so much memory
// for one that waits for its next token.
const (
	crowdStep       = 20 * time.Millisecond
	memoryPerStream = 64 << 10
)

func TestAThousandStreamsAtOnceAreServedInTimeAndMemoryAndLeaveNothing(t *testing.T) {
	if !alone(t) {
		return
	}
	const streams = 1000
	tokens := 150
	if raceEnabled || testing.Short() {
		tokens = 50
	}
	h := open(t, layout{
		sim:    sim.Options{Fixed: crowdStep},
		device: gpu.Config{MaxSeqs: streams},
		cast:   func(c *actors.Config) { c.Detail = false },
		log:    io.Discard,
	})
	settled := func() {
		t.Helper()
		h.until("all connections are closed", func() bool { return h.srv.Connections() == 0 })
		h.idle()
	}
	prompt := uint64(h.ask(say(crowdPrompt, 3).String()).Usage.Prompt) // what is started once is started
	settled()
	goroutines := len(busy())
	fresh, freshStacks := memory()

	h.valve.shut()
	before := h.rt.Stats()
	c := gather(t, crowdTask{Addr: h.addr, Streams: streams, Tokens: tokens})
	h.in(streams)
	// Steps until each stream has its first token; there are some twenty, for so many tokens of prompt.
	for steps := 0; ; steps++ {
		h.held()
		s := h.rt.Stats()
		if s.PromptComputed+s.PromptCached-before.PromptComputed-before.PromptCached == streams*prompt {
			break
		}
		if steps == tokens-2 {
			t.Fatalf("%d steps, and not all have begun: %+v", steps, s)
		}
		h.valve.allow(1)
	}
	c.begun()
	// Without steps all of them are idle.
	idle, idleStacks := memory()
	perStream := (idle - fresh + idleStacks - freshStacks) / streams
	t.Logf("an idle stream takes %d bytes: %d of heap and %d of stack", perStream, (idle-fresh)/streams, (idleStacks-freshStacks)/streams)
	if n := h.rt.Stats().Running; n != streams {
		t.Errorf("%d sequences run, want %d", n, streams)
	}
	steps, used := h.rt.Stats().Steps, cpuTime()
	h.valve.open()
	r := c.release()
	used = cpuTime() - used
	perStep := used / time.Duration(h.rt.Stats().Steps-steps)

	for i, why := range r.Failed {
		if i < 5 {
			t.Errorf("a stream failed: %s", why)
		}
	}
	if len(r.Failed) > 0 || r.Frames != streams*tokens {
		t.Errorf("%d of %d streams failed; %d frames with content, want %d", len(r.Failed), streams, r.Frames, streams*tokens)
	}
	t.Logf("the server took %v of CPU time a step", perStep)
	t.Logf("%d gaps between frames: median %v, 99%% %v, longest %v; the streams' mean gaps: median %v, longest %v",
		r.Gaps, time.Duration(r.GapP50), time.Duration(r.GapP99), time.Duration(r.GapMax),
		time.Duration(r.MeanP50), time.Duration(r.MeanMax))
	if !raceEnabled && !testing.Short() {
		if perStream > memoryPerStream {
			t.Errorf("an idle stream takes %d bytes, more than %d", perStream, memoryPerStream)
		}
		if perStep > 3*crowdStep {
			t.Errorf("a step costs %v of CPU time, more than three times the device's step of %v", perStep, crowdStep)
		}
	}

	// What one crowd leaves behind may be kept for the next, and a later one that is handled in another
	// order may need a little more. But what leaks grows with every crowd.
	crowds := 1
	for settled(); ; crowds++ {
		before, _ := memory()
		c := gather(t, crowdTask{Addr: h.addr, Streams: streams, Tokens: 3})
		c.begun()
		again := c.release()
		if len(again.Failed) > 0 {
			t.Errorf("of a later crowd %d streams failed: %s", len(again.Failed), again.Failed[0])
		}
		settled()
		h.until("goroutines are down to what they were before", func() bool { return len(busy()) <= goroutines })
		after, _ := memory()
		t.Logf("the heap was %d KiB at first, %d KiB after %d crowds and %d KiB after another", fresh>>10, before>>10, crowds, after>>10)
		if after-before <= streams<<10 || raceEnabled {
			break
		}
		if crowds == 8 {
			t.Errorf("each of %d crowds left more than %d KiB", crowds, streams)
			break
		}
	}
	m := h.scrape()
	if n := m.ended(); n.Length != (crowds+1)*streams+1 || n.Stop+n.Abort+n.Error != 0 {
		t.Errorf("ended: %+v", n)
	}
}

// memory is what is in use: of the heap, and of goroutines' stacks.
func memory() (heap, stacks int64) {
	heap = liveHeap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap, int64(m.StackInuse)
}
