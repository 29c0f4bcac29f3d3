package actors

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/lifecycle"
)

func TestWaitingForASlotOrForBlocksIsToldApart(t *testing.T) {
	for _, c := range []struct {
		name   string
		adjust func(*setting)
		part   func(lifecycle.Slowed) (waited, other int64)
	}{
		{"one slot", func(s *setting) { s.device.MaxSeqs = 1 },
			func(s lifecycle.Slowed) (int64, int64) { return s.QueueCapacity, s.QueueKV }},
		{"blocks for one", func(s *setting) { s.device.MaxContext = 128; s.device.CacheBytes = 128 * 1024 },
			func(s lifecycle.Slowed) (int64, int64) { return s.QueueKV, s.QueueCapacity }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, func(s *setting) {
				s.gated = true
				s.sim.Fixed = 2 * time.Millisecond
				s.cfg.PrefixCaching = false
				s.cfg.Timeline = true
				c.adjust(s)
			})
			// The first fills what there is: 100 tokens and 20 more of at most 128.
			req := s.ask("x", params(20))
			req.Prompts = [][]int32{make([]int32, 100)}
			for i := range req.Prompts[0] {
				req.Prompts[0][i] = letters()[i%26]
			}
			first := s.run(req)
			s.step(1)
			s.until("the first runs", func() bool { return s.Stats().Running == 1 })
			again := *req
			again.ID, again.Arrival = s.NextID(), s.Now()
			second := s.run(&again)
			s.heard() // before any of the first's other steps
			s.release()
			first.wait(t)
			second.wait(t)
			s.record(2)
			for _, r := range s.books.all() {
				if r.Request.ID != again.ID {
					continue
				}
				waited, other := c.part(r.Detail.Slowed)
				if waited <= 0 || other != 0 || waited > r.Scheduled-r.Queued {
					t.Errorf("%+v of a queue time of %d ns", r.Detail.Slowed, r.Scheduled-r.Queued)
				}
				queue := r.Timeline.Events[0]
				if queue.Slot+queue.Budget != r.Detail.Slowed.QueueCapacity || queue.Budget != 0 || queue.Blocks != r.Detail.Slowed.QueueKV || queue.Slots < 1 {
					t.Errorf("the timeline begins with %+v", queue)
				}
				if got := lifecycle.Sum(r.Timeline.Events); got.Output != r.Usage.Completion || got.Prompt != r.Detail.PrefillTokens || got.Steps != r.Detail.Steps || got.Dur != r.Finished-r.Queued {
					t.Errorf("the events add up to %+v", got)
				}
				if r.Queued < r.Arrival || r.Scheduled-r.Queued < int64(10*time.Millisecond) {
					t.Errorf("queued at %d, scheduled at %d: it did not wait for the other's steps", r.Queued, r.Scheduled)
				}
			}
		})
	}
}

// counting is an observer that counts how often it hears of progress.
type counting struct {
	books
	calls atomic.Int64
}

func (c *counting) Progress(p *lifecycle.Progress) {
	c.calls.Add(1)
	c.books.Progress(p)
}

func TestProgressIsToldFourTimesASecondAtMost(t *testing.T) {
	var c counting
	s := newStage(t, func(s *setting) { s.sim.Fixed = time.Millisecond; s.observer = &c })
	s.run(s.ask("count", params(600))).wait(t)
	s.until("the record is there", func() bool { return len(c.all()) == 1 })
	r := c.all()[0]
	most := (r.LastToken-r.Queued)/flushEvery + 1 // and once before the record
	if n := c.calls.Load(); n > most || n < 2 || c.progress.Tokens != 600 {
		t.Errorf("%d calls in %d ms, at most %d wanted; %d tokens", n, (r.LastToken-r.Queued)/1e6, most, c.progress.Tokens)
	}
}
