package actors

import (
	"sync"
	"testing"

	"github.com/troupe-llm/troupe/lifecycle"
)

func TestRunningRequestsTellHowTheyAreWhenAskedAndNotOnceTheyHaveEnded(t *testing.T) {
	s := newStage(t, func(s *setting) {
		s.gated = true
		s.cfg.MaxSeqs, s.device.MaxSeqs = 2, 2
		s.cfg.Timeline = true
	})
	var mu sync.Mutex
	told := map[uint64]Glance{}
	until := func(what string, f func() bool) {
		s.until(what, func() bool {
			mu.Lock()
			clear(told)
			mu.Unlock()
			s.Survey(func(g Glance) {
				mu.Lock()
				defer mu.Unlock()
				told[g.Request.ID] = g
			})
			s.heard()
			return f()
		})
	}
	look := func(id uint64) (Glance, bool) {
		mu.Lock()
		defer mu.Unlock()
		g, ok := told[id]
		return g, ok
	}

	two := s.ask("a prompt that two choices share", params(10))
	two.N = 2
	late := s.ask("it must wait", params(3))
	first := s.run(two)
	until("the first request is being computed", func() bool {
		g, ok := look(two.ID)
		return ok && g.State == lifecycle.Prefilling
	})
	second := s.run(late)
	s.step(3)
	until("the first request decodes while the second waits", func() bool {
		g, ok := look(two.ID)
		w, both := look(late.ID)
		return ok && both && g.State == lifecycle.Decoding && g.Tokens >= 2 && w.State == lifecycle.Waiting
	})
	if g, ok := look(two.ID); ok {
		if g.Prefilled != two.PromptTokens() || g.Queued == 0 || g.Scheduled < g.Queued || g.FirstToken < g.Scheduled || g.LastToken < g.FirstToken || g.Wall == 0 {
			t.Errorf("a prompt of %d tokens: %+v", two.PromptTokens(), g)
		}
	}
	if g, ok := look(late.ID); ok && (g.Scheduled != 0 || g.Prefilled != 0 || g.Tokens != 0) {
		t.Errorf("one that waits: %+v", g)
	}
	lives := make(chan *lifecycle.Timeline, 2)
	none := make(chan uint64, 2)
	ask := func(id uint64) {
		s.Inquire(id, func(arrival int64, l *lifecycle.Timeline) {
			if arrival != two.Arrival {
				t.Errorf("it arrived at %d, and says %d", two.Arrival, arrival)
			}
			lives <- l
		}, func() { none <- id })
	}
	ask(two.ID)
	if l := <-lives; l == nil || l.Events[0].Kind != lifecycle.EventQueue || lifecycle.Sum(l.Events).Output < 2 {
		t.Errorf("the first request's timeline so far: %+v", l)
	}
	ask(late.ID + 1000)
	if id := <-none; id != late.ID+1000 || len(lives) > 0 {
		t.Errorf("it was denied that %d runs, and %d answered for a request that does not", id, len(lives))
	}
	s.release()
	first.wait(t)
	second.wait(t)
	s.record(2)
	until("nobody answers", func() bool {
		_, a := look(two.ID)
		_, b := look(late.ID)
		return !a && !b
	})
	ask(two.ID)
	if id := <-none; id != two.ID {
		t.Errorf("it was denied that %d runs", id)
	}
}
