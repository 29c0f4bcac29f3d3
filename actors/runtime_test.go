package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/lifecycle"
)

func TestARequestMeasuresItself(t *testing.T) {
	s := newStage(t, func(s *setting) { s.sim.Fixed = 2 * time.Millisecond; s.cfg.Detail = true })
	a := s.run(s.ask("hello there", params(10)))
	resp := a.wait(t)
	if resp.Err != nil || resp.Usage.Completion != 10 || len(a.deltas) != 10 || len(a.text[0]) != 10 || resp.Choices[0].Text != a.text[0] {
		t.Fatalf("%+v, %d deltas, text %q", resp, len(a.deltas), a.text)
	}
	if last := a.deltas[9]; last.Reason != lifecycle.ReasonLength || a.deltas[8].Reason != "" || !a.deltas[0].First || a.deltas[1].First {
		t.Errorf("reason %q on the last delta, %q before", last.Reason, a.deltas[8].Reason)
	}
	m := resp.Metrics
	gen, _ := m.GenerationTime.Get()
	itl, _ := m.MeanITL.Get()
	ttft, _ := m.TimeToFirstToken.Get()
	if gen < 9*2*0.9 || ttft < 2*0.9 || itl*9 < gen*0.999 || itl*9 > gen*1.001 {
		t.Errorf("generation %v ms, mean ITL %v, TTFT %v with steps of 2 ms", gen, itl, ttft)
	}
	r := s.record(1)
	if r.Outcome != lifecycle.OutcomeLength || r.Status != 200 || r.Usage != resp.Usage || r.Delivered == 0 || r.Detail.Steps != 10 || r.Detail.ITLCount != 9 {
		t.Errorf("record %+v", r)
	}
	if !(r.Arrival <= r.Queued && r.Queued <= r.Scheduled && r.Scheduled <= r.FirstToken && r.FirstToken <= r.LastToken && r.LastToken <= r.Finished && r.Finished <= r.Delivered) {
		t.Errorf("stamps out of order: %+v", r)
	}
	if p := s.books.progress; p.Tokens != 10 || p.Prompt != r.Usage.Prompt || p.ITL != r.ITL {
		t.Errorf("progress %+v, record %+v", p, r.Usage)
	}
}

func TestTextIsTheSameAloneAndInACrowdAndAgain(t *testing.T) {
	s := newStage(t, nil)
	alone := map[int]string{}
	for i := range 20 {
		alone[i] = s.run(s.ask(fmt.Sprintf("prompt number %d", i), params(40))).wait(t).Choices[0].Text
	}
	var crowd []*audience
	for i := range 20 {
		crowd = append(crowd, s.run(s.ask(fmt.Sprintf("prompt number %d", i), params(40))))
	}
	for i, a := range crowd {
		if got := a.wait(t).Choices[0].Text; got != alone[i] {
			t.Errorf("request %d: %q in a crowd, %q alone", i, got, alone[i])
		}
	}
}

func TestSeveralChoicesCountThePromptOnceAndAllTheirTokens(t *testing.T) {
	s := newStage(t, nil)
	req := s.ask("a prompt that is longer than a cache block, so that its choices share whole blocks", params(7))
	req.N = 3
	p := *req.Params
	p.Temperature = 1
	req.Params = &p
	a := s.run(req)
	resp := a.wait(t)
	if resp.Usage.Prompt != len(req.Prompts[0]) || resp.Usage.Completion != 21 || len(resp.Choices) != 3 {
		t.Fatalf("%+v", resp.Usage)
	}
	if resp.Choices[0].Text == resp.Choices[1].Text {
		t.Errorf("two choices of one seed are the same: %q", resp.Choices[0].Text)
	}
	if r := s.record(1); r.Sequences != 3 || r.Usage != resp.Usage {
		t.Errorf("%+v", r)
	}
	if len(s.books.all()) != 1 {
		t.Errorf("%d records", len(s.books.all()))
	}
}

func TestAStopStringEndsTheSequenceThereAndTheRestIsDiscarded(t *testing.T) {
	s := newStage(t, nil)
	whole := s.run(s.ask("stop me", params(60))).wait(t).Choices[0].Text
	stop := whole[20:23]
	want := whole[:strings.Index(whole, stop)]
	p := params(60)
	p.Stop = []string{"never", stop}
	a := s.run(s.ask("stop me", p))
	resp := a.wait(t)
	if resp.Choices[0].Text != want || resp.Choices[0].Reason != lifecycle.ReasonStop || resp.Choices[0].StopString != stop {
		t.Errorf("%q, %q; want %q, stopped by %q", resp.Choices[0].Text, resp.Choices[0].StopString, want, stop)
	}
	if n := len(want) + len(stop); resp.Usage.Completion != n || len(a.deltas) != n {
		t.Errorf("%d tokens, %d deltas, want %d: up to and including the one that completed the stop", resp.Usage.Completion, len(a.deltas), n)
	}
	r := s.record(2)
	if r.Usage.Completion != resp.Usage.Completion || r.Outcome != lifecycle.OutcomeStop || r.StopString != stop {
		t.Errorf("%+v", r)
	}
	s.until("everything is free", func() bool { st := s.Stats(); return st.Running == 0 && st.BlocksUsed == 0 })
}

func TestHeldBackTextIsDeliveredAtTheEnd(t *testing.T) {
	s := newStage(t, nil)
	whole := s.run(s.ask("hold", params(30))).wait(t).Choices[0].Text
	p := params(30)
	p.Stop = []string{whole[28:30] + "never"}
	a := s.run(s.ask("hold", p))
	if got := a.wait(t).Choices[0].Text; got != whole || a.text[0] != whole {
		t.Errorf("%q (streamed %q), want %q", got, a.text[0], whole)
	}
}

func TestAClientThatLeavesFreesItsPlaceWithExactPartialCounts(t *testing.T) {
	s := newStage(t, func(s *setting) { s.gated = true })
	a := s.run(s.ask("leave", params(1000)), func(x *audience) {
		x.onTok = func(n int) {
			if n == 5 {
				x.tell(lifecycle.Gone{At: s.Now()})
			}
		}
	})
	s.step(5)
	resp := a.wait(t) // the sixth step may have been planned by then
	s.release()
	r := s.record(1)
	if r.Status != 499 || r.Outcome != lifecycle.OutcomeAbort || r.Usage.Completion < 5 || r.Usage.Completion != resp.Usage.Completion {
		t.Errorf("%+v", r)
	}
	if made := int(s.Stats().Generated); made > r.Usage.Completion+2 || made != r.Usage.Completion+r.Discarded {
		t.Errorf("%d tokens made, %d counted, %d discarded: decoding went on", made, r.Usage.Completion, r.Discarded)
	}
	s.until("everything is free", func() bool { st := s.Stats(); return st.Running == 0 && st.BlocksUsed == 0 && s.Admitted() == 0 })
}

func TestLeavingBeforeTheStartWorksToo(t *testing.T) {
	s := newStage(t, nil)
	for range 50 {
		if err := s.Admit(); err != nil {
			t.Fatal(err)
		}
		a := newAudience(s.Now)
		s.Start(s.ask("early", params(500)), a)
		a.tell(lifecycle.Gone{At: s.Now()})
		a.wait(t)
	}
	s.until("all closed", func() bool { return len(s.books.all()) == 50 && s.Admitted() == 0 })
}

func TestDeadlinesEndQueuedAndRunningRequestsWith504(t *testing.T) {
	for limit := 100 * time.Millisecond; ; limit *= 10 {
		s := newStage(t, func(s *setting) { s.gated = true; s.device.MaxSeqs = 1 })
		first := s.ask("first", params(1000))
		first.Deadline = s.Now() + int64(limit)
		begun := make(chan struct{})
		a := s.run(first, func(x *audience) {
			x.onTok = func(n int) {
				if n == 1 {
					close(begun)
				}
			}
		})
		select {
		case s.gate <- struct{}{}:
		case <-a.done:
		}
		select {
		case <-begun:
		case <-a.done:
		}
		// The next step never ends: the first keeps the only slot until its time is over.
		second := s.ask("second", params(10))
		second.Deadline = s.Now() + int64(20*time.Millisecond)
		if e := s.run(second).wait(t).Err; e == nil || e.Status != 504 {
			t.Errorf("queued: %+v", e)
		}
		resp := a.wait(t)
		if resp.Err == nil || resp.Err.Status != 504 {
			t.Errorf("running: %+v", resp)
		}
		s.release()
		for n := 1; n <= 2; n++ {
			if r := s.record(n); r.Status != 504 || r.Outcome != lifecycle.OutcomeError {
				t.Errorf("%+v", r)
			}
		}
		if resp.Usage.Completion > 0 {
			return
		}
		if limit > time.Minute {
			t.Fatalf("a running request had no token after %v", limit)
		}
	}
}

func TestTooManyRequestsAreRefusedWithoutAnActor(t *testing.T) {
	s := newStage(t, func(s *setting) { s.cfg.MaxRequests = 2 })
	for range 2 {
		if err := s.Admit(); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Admit()
	if err == nil || err.Status != 429 {
		t.Fatalf("got %v, want 429", err)
	}
	s.Release()
	if err := s.Admit(); err != nil {
		t.Errorf("after a release: %v", err)
	}
	s.Release()
	s.Release()
}

func TestDrainingLetsRequestsFinishAndRefusesNewOnes(t *testing.T) {
	s := newStage(t, func(s *setting) { s.sim.Fixed = 2 * time.Millisecond })
	a := s.run(s.ask("drain", params(50)))
	done := make(chan error)
	go func() { done <- s.Drain(context.Background()) }()
	s.until("draining", s.Draining)
	if err := s.Admit(); err == nil || err.Status != 503 {
		t.Errorf("got %v, want 503", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if resp := a.wait(t); resp.Err != nil || resp.Usage.Completion != 50 {
		t.Errorf("%+v", resp)
	}
}

func TestADrainThatTakesTooLongCutsOffTheRest(t *testing.T) {
	s := newStage(t, func(s *setting) { s.sim.Fixed = 50 * time.Millisecond })
	a := s.run(s.ask("drain", params(2000))) // 100 s
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := s.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if resp := a.wait(t); resp.Err == nil || resp.Err.Status != 503 {
		t.Errorf("%+v", resp.Err)
	}
	if r := s.record(1); r.Status != 503 || r.Outcome != lifecycle.OutcomeError {
		t.Errorf("%+v", r)
	}
}

func TestASinkThatNeverReportsDeliveryIsGivenUp(t *testing.T) {
	s := newStage(t, func(s *setting) { s.cfg.DeliveryTimeout = 20 * time.Millisecond })
	s.run(s.ask("silent", params(3)), func(a *audience) { a.silent = true }).wait(t)
	if r := s.record(1); r.Status != 499 || r.Usage.Completion != 3 {
		t.Errorf("%+v", r)
	}
	s.until("the place is free", func() bool { return s.Admitted() == 0 })
}

func TestAnEchoOfThePromptAloneEndsWithADelta(t *testing.T) {
	s := newStage(t, nil)
	p := params(0)
	p.PromptLogprobs = 2
	req := s.ask("only the prompt", p)
	a := s.run(req)
	resp := a.wait(t)
	if resp.Err != nil || len(a.deltas) != 1 || a.deltas[0].Reason != lifecycle.ReasonLength || resp.Usage.Completion != 0 {
		t.Fatalf("%+v %+v", resp, a.deltas)
	}
	if n := len(resp.Choices[0].PromptScores); n != len(req.Prompts[0])-1 {
		t.Errorf("%d scores for a prompt of %d tokens", n, len(req.Prompts[0]))
	}
}

func TestInAStreamOfSeveralEachChoiceEndsWithItsOwnMetrics(t *testing.T) {
	whole := newStage(t, nil)
	stop := whole.run(whole.ask("stop me", params(60))).wait(t).Choices[0].Text[20:23]
	for _, c := range []struct {
		name            string
		detail, stream  bool
		n, prompts, max int
		want            bool
	}{
		{"two choices", true, true, 2, 1, 9, true},
		{"several prompts", true, true, 1, 3, 9, true},
		{"both", true, true, 2, 2, 9, true},
		{"ended by a stop string", true, true, 1, 2, 60, true},
		{"an echo of the prompts alone", true, true, 1, 2, 0, true},
		{"one choice: its metrics are the answer's", true, true, 1, 1, 9, false},
		{"not streamed: they are in the response", true, false, 2, 1, 9, false},
		{"no details", false, true, 2, 1, 9, false},
	} {
		s := newStage(t, func(s *setting) { s.cfg.Detail = c.detail; s.sim.Fixed = 100 * time.Microsecond })
		p := params(c.max)
		p.Temperature = 1
		if c.max > 9 {
			p.Temperature, p.Stop = 0, []string{stop}
		}
		req := s.ask("stop me", p)
		req.N, req.Stream = c.n, c.stream
		for k := 1; k < c.prompts; k++ {
			req.Prompts = append(req.Prompts, tok().Encode(fmt.Sprintf("prompt %d of another length", k), false, false))
		}
		a := s.run(req)
		resp := a.wait(t)
		if resp.Err != nil || c.max > 9 && resp.Choices[0].StopString != stop {
			t.Fatalf("%s: %+v", c.name, resp)
		}
		with := 0
		for _, d := range a.deltas {
			if (d.Metrics != nil) != (d.Detail != nil) || (d.Metrics != nil) != (c.want && d.Reason != "") {
				t.Errorf("%s: a delta of choice %d with reason %q has metrics %+v and details %+v", c.name, d.Choice, d.Reason, d.Metrics, d.Detail)
			}
			if d.Metrics == nil {
				continue
			}
			with++
			if o := &resp.Choices[d.Choice]; *d.Metrics != o.Metrics || *d.Detail != *o.Detail {
				t.Errorf("%s: choice %d ends with %+v, %+v; the response has %+v, %+v", c.name, d.Choice, *d.Metrics, *d.Detail, o.Metrics, *o.Detail)
			}
		}
		if c.want && with != len(resp.Choices) {
			t.Errorf("%s: %d of %d choices have metrics of their own", c.name, with, len(resp.Choices))
		}
	}
}

func TestNothingIsLeftAfterManyRequestsCancelledAtRandomPoints(t *testing.T) {
	s := newStage(t, func(s *setting) { s.sim.PerDecode = 20 * time.Microsecond; s.device.MaxSeqs = 8 })
	s.run(s.ask("warm up", params(3))).wait(t)
	s.until("closed", func() bool { return s.Admitted() == 0 })
	runtime.GC()
	goroutines := runtime.NumGoroutine()
	const n = 500
	var as []*audience
	for i := range n {
		k := i % 23
		as = append(as, s.run(s.ask(fmt.Sprintf("request %d", i%7), params(1+i%40)), func(a *audience) {
			a.onTok = func(n int) {
				if n == k {
					a.tell(lifecycle.Gone{At: s.Now()})
				}
			}
		}))
		if k == 0 {
			as[i].tell(lifecycle.Gone{At: s.Now()})
		}
		if len(as) > 100 {
			as[len(as)-100].wait(t)
		}
	}
	for _, a := range as {
		a.wait(t)
	}
	s.until("all closed", func() bool { return len(s.books.all()) == n+1 && s.Admitted() == 0 })
	s.until("blocks are free", func() bool { st := s.Stats(); return st.Running+st.Waiting == 0 && st.BlocksUsed == 0 })
	s.until("goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	sum := lifecycle.Usage{}
	for _, r := range s.books.all() {
		sum.Completion += r.Usage.Completion
		sum.Prompt += r.Usage.Prompt
	}
	if p := s.books.progress; p.Tokens != sum.Completion || p.Prompt != sum.Prompt {
		t.Errorf("progress %d/%d tokens, records %d/%d", p.Prompt, p.Tokens, sum.Prompt, sum.Completion)
	}
}

// laggard is a sink that never finishes delivery by itself.
type laggard struct{ *audience }

func (l laggard) Abandon() {
	l.tell(lifecycle.Delivered{At: l.now(), Bytes: 7, Err: errors.New("too slow"), Slow: true})
}

func TestASinkThatIsTooLateIsToldSoAndReportsHowFarItCame(t *testing.T) {
	s := newStage(t, func(s *setting) { s.cfg.DeliveryTimeout = 20 * time.Millisecond })
	if err := s.Admit(); err != nil {
		t.Fatal(err)
	}
	a := newAudience(s.Now)
	a.silent = true
	s.Start(s.ask("late", params(3)), laggard{a})
	a.wait(t)
	r := s.record(1)
	if r.Status != 499 || r.BytesOut != 7 || r.Err == nil || r.Err.Code != "slow_client" || r.Usage.Completion != 3 {
		t.Errorf("%+v", r)
	}
	if r.Detail.Slowed.SlowClient < int64(20*time.Millisecond) {
		t.Errorf("the wait for the client counts as %d ns", r.Detail.Slowed.SlowClient)
	}
}

func TestAHostileStopStringCostsNoMoreThanAnother(t *testing.T) {
	// What this guards against is a matcher of quadratic cost: the test would not end.
	s := newStage(t, func(s *setting) { s.device.MaxContext = 8192 })
	p := params(5000)
	p.LogitBias = []lifecycle.Bias{{ID: tok().Encode("a", false, false)[0], Value: 100}}
	for i := range 64 {
		p.Stop = append(p.Stop, strings.Repeat("a", 4096+i)+"b")
	}
	if resp := s.run(s.ask("a", p)).wait(t); resp.Err != nil || resp.Usage.Completion != 5000 || len(resp.Choices[0].Text) != 5000 {
		t.Errorf("%+v, %d tokens", resp.Err, resp.Usage.Completion)
	}
}
