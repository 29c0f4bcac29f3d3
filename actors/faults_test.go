package actors

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

// crowd starts n requests of 40 tokens and returns their audiences. All have places before the first
// begins, which may bring the device down.
func (s *stage) crowd(n int) []*audience {
	s.t.Helper()
	s.admit(n)
	var as []*audience
	for i := range n {
		as = append(as, s.begin(s.ask(fmt.Sprintf("request number %d of a crowd", i), params(40))))
	}
	return as
}

func (s *stage) texts(n int) []string {
	var out []string
	for _, a := range s.crowd(n) {
		out = append(out, a.wait(s.t).Choices[0].Text)
	}
	return out
}

func TestADeviceFaultInMidGenerationChangesNoText(t *testing.T) {
	for _, how := range []string{"error", "panic"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t, nil)
			want := s.texts(12)
			if how == "error" {
				s.faults.FailAt(10)
			} else {
				s.faults.PanicAt(10)
			}
			for i, a := range s.crowd(12) {
				if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[i] {
					t.Errorf("request %d: %v, %q, want %q", i, resp.Err, resp.Choices[0].Text, want[i])
				}
			}
			if s.faults.Opens() != 2 {
				t.Errorf("%d opens, want 2", s.faults.Opens())
			}
			s.until("records", func() bool { return len(s.books.all()) == 24 })
			preempted := 0
			for _, r := range s.books.all()[12:] {
				if r.Detail.Preemptions > 0 {
					preempted++
				}
				if r.Detail.Slowed.Preemption > 0 {
					t.Errorf("a device restart was counted as preemption: %+v", r.Detail.Slowed)
				}
			}
			if preempted == 0 {
				t.Error("nobody noticed the restart")
			}
		})
	}
}

func TestADeviceThatComesBackLateStillCompletesEverything(t *testing.T) {
	s := newStage(t, nil)
	want := s.texts(5)
	s.faults.FailAt(8)
	s.faults.Away(3)
	for i, a := range s.crowd(5) {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[i] {
			t.Errorf("request %d: %v", i, resp.Err)
		}
	}
	s.record(10)
	longest := int64(0)
	for _, r := range s.books.all()[5:] {
		longest = max(longest, r.Detail.Slowed.DeviceRestart)
	}
	if longest < int64(firstBackoff) {
		t.Errorf("the restart slowed nobody for longer than %d ns", longest)
	}
}

func TestTheSequenceThatBreaksTheDeviceFailsAlone(t *testing.T) {
	s := newStage(t, nil)
	want := s.texts(9)
	bad := tok().Encode("#", false, false)
	s.faults.FailToken(bad[0])
	var as []*audience
	var culprit *audience
	for i := range 9 {
		as = append(as, s.run(s.ask(fmt.Sprintf("request number %d of a crowd", i), params(40))))
		if i == 4 {
			culprit = s.run(s.ask("this one holds the token # that breaks it", params(40)))
		}
	}
	if e := culprit.wait(t).Err; e == nil || e.Status != 500 || !strings.Contains(e.Message, "injected") {
		t.Errorf("the culprit: %+v", e)
	}
	for i, a := range as {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[i] {
			t.Errorf("request %d: %v", i, resp.Err)
		}
	}
	if ok, why := s.Health(); !ok {
		t.Errorf("unhealthy afterwards: %s", why)
	}
}

func TestWithoutADeviceRequestsFailWith503AndTheServerRecovers(t *testing.T) {
	s := newStage(t, func(s *setting) { s.cfg.ReopenLimit = 60 * time.Millisecond })
	s.faults.FailAt(3)
	s.faults.Away(-1)
	for i, a := range s.crowd(4) {
		if e := a.wait(t).Err; e == nil || e.Status != 503 {
			t.Errorf("request %d: %+v", i, e)
		}
	}
	s.until("unhealthy", func() bool { ok, _ := s.Health(); return !ok })
	if err := s.Admit(); err == nil || err.Status != 503 {
		t.Errorf("admitted without a device: %v", err)
	}
	s.faults.Clear()
	s.until("healthy again", func() bool { ok, _ := s.Health(); return ok })
	if resp := s.run(s.ask("again", params(5))).wait(t); resp.Err != nil {
		t.Error(resp.Err)
	}
}

func TestAStickyErrorIsLikeAnyOtherWhereTheDeviceOpensAgain(t *testing.T) {
	s := newStage(t, nil)
	want := s.texts(5)
	s.faults.LoseAt(8, 0)
	for i, a := range s.crowd(5) {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[i] {
			t.Errorf("request %d: %v", i, resp.Err)
		}
	}
	// What stuck is forgotten: a device that stays away later is waited for.
	s.faults.FailAt(8)
	s.faults.Away(2)
	for i, a := range s.crowd(5) {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[i] {
			t.Errorf("request %d, later: %v", i, resp.Err)
		}
	}
	select {
	case <-s.Lost():
		t.Error("the device is said to be lost")
	default:
	}
}

func TestADeviceLostToTheProcessFailsAllRequestsAtOnceAndSaysSo(t *testing.T) {
	// Either the error sticks to the next opening as well, or that fails for another reason.
	for name, lose := range map[string]func(*stage){
		"sticky": func(s *stage) { s.faults.LoseAt(3, -1) },
		"other":  func(s *stage) { s.faults.LoseAt(3, 0); s.faults.Away(-1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, func(s *setting) { s.cfg.ReopenLimit = patience })
			lose(s)
			for i, a := range s.crowd(4) {
				if e := a.wait(t).Err; e == nil || e.Status != 503 || !strings.Contains(e.Message, "injected") {
					t.Errorf("request %d: %+v", i, e)
				}
			}
			select {
			case <-s.Lost():
			case <-time.After(patience):
				t.Fatal("nobody says that the device is lost")
			}
			if ok, why := s.Health(); ok || !strings.Contains(why, "injected") {
				t.Errorf("healthy: %v, %q", ok, why)
			}
			if s.faults.Opens() != 2 {
				t.Errorf("%d opens, want 2", s.faults.Opens())
			}
		})
	}
}

func TestARequestThatComesAfterTheDeviceWasLostFailsToo(t *testing.T) {
	s := newStage(t, nil)
	s.admit(2) // one place is taken before anybody knows
	s.faults.LoseAt(1, -1)
	if e := s.begin(s.ask("first", params(5))).wait(t).Err; e == nil || e.Status != 503 {
		t.Errorf("%+v", e)
	}
	<-s.Lost()
	if e := s.begin(s.ask("second", params(5))).wait(t).Err; e == nil || e.Status != 503 {
		t.Errorf("%+v", e)
	}
	if e := s.Admit(); e == nil || e.Status != 503 {
		t.Errorf("admitted without a device: %v", e)
	}
}

func TestADeviceThatFailsEveryStepIsBlamedItself(t *testing.T) {
	s := newStage(t, nil)
	for _, id := range letters() {
		s.faults.FailToken(id)
	}
	failed := 0
	for _, a := range s.crowd(10) {
		e := a.wait(t).Err
		if e == nil {
			t.Error("a request succeeded")
			continue
		}
		if e.Status == 503 {
			failed++
		}
	}
	if failed == 0 {
		t.Error("each request alone was blamed for a broken device")
	}
}

// saboteur is a sink that panics inside the request's actor.
type saboteur struct {
	*audience
	at int
}

func (s saboteur) Delta(d *lifecycle.Delta) {
	if s.at--; s.at <= 0 {
		panic("sabotage")
	}
	s.audience.Delta(d)
}

func TestAPanicInARequestIsThatRequestsOwn(t *testing.T) {
	s := newStage(t, nil)
	want := s.texts(6)
	if err := s.Admit(); err != nil {
		t.Fatal(err)
	}
	bad := newAudience(s.Now)
	as := s.crowd(3)
	s.Start(s.ask("sabotage", params(40)), saboteur{bad, 1})
	as = append(as, s.crowd(6)...)
	if e := bad.wait(t).Err; e == nil || e.Status != 500 {
		t.Errorf("%+v", e)
	}
	for i, a := range as {
		which := i
		if i >= 3 {
			which = i - 3
		}
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[which] {
			t.Errorf("request %d: %v", i, resp.Err)
		}
	}
	s.until("all closed", func() bool { return s.Admitted() == 0 && len(s.books.all()) == 6+3+6+1 })
	st := s.Stats()
	if st.BlocksUsed != 0 || st.Running != 0 {
		t.Errorf("its blocks are still held: %+v", st)
	}
	n := 0
	for _, r := range s.books.all() {
		if r.Status == 500 {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d records with status 500, want 1", n)
	}
}

// liar is a device that once returns a result too short for its batch, at which the scheduler
// panics.
type liar struct {
	gpu.Device
	lie *atomic.Int32
}

func (l liar) Run(b *gpu.Batch, r *gpu.Result) error {
	err := l.Device.Run(b, r)
	if l.lie.Add(-1) == 0 {
		r.Tokens = r.Tokens[:0]
	}
	return err
}

func TestAPanicInTheSchedulerIsSurvivedByEveryRequest(t *testing.T) {
	var lie atomic.Int32
	s := newStage(t, func(s *setting) { s.wrap = func(d gpu.Device) gpu.Device { return liar{d, &lie} } })
	want := s.texts(8)
	before := s.Stats()
	lie.Store(15)
	as := s.crowd(8)
	for i, a := range as {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[i] {
			t.Errorf("request %d: %v, %q, want %q", i, resp.Err, resp.Choices[0].Text, want[i])
		}
	}
	after := s.Stats()
	if after.Steps < before.Steps || after.Generated < before.Generated {
		t.Errorf("counters fell: %+v, then %+v", before.Stats, after.Stats)
	}
	if ok, why := s.Health(); !ok {
		t.Error(why)
	}
	lost := 0
	s.record(16)
	for _, r := range s.books.all()[8:] {
		if r.Detail.Preemptions > 0 {
			lost++
		}
	}
	if lost == 0 {
		t.Error("nobody noticed the restart")
	}
}

func TestARequestThatAlwaysBreaksTheSchedulerFailsInTheEnd(t *testing.T) {
	bad := tok().Encode("#", false, false)[0]
	s := newStage(t, func(s *setting) { s.wrap = func(d gpu.Device) gpu.Device { return poisoned{d, bad} } })
	if e := s.run(s.ask("with a # in it", params(5))).wait(t).Err; e == nil || e.Status != 500 || e.Code != "batcher_lost" {
		t.Errorf("%+v", e)
	}
	s.until("its place is free", func() bool { return s.Admitted() == 0 })
	if resp := s.run(s.ask("without", params(5))).wait(t); resp.Err != nil {
		t.Error(resp.Err)
	}
}

// poisoned is a device whose results are too short whenever a token is in the batch.
type poisoned struct {
	gpu.Device
	token int32
}

func (p poisoned) Run(b *gpu.Batch, r *gpu.Result) error {
	err := p.Device.Run(b, r)
	for _, id := range b.Tokens {
		if id == p.token {
			r.Tokens = r.Tokens[:0]
		}
	}
	return err
}

func TestADeviceThatHangsDoesNotOutlastARequestsDeadline(t *testing.T) {
	s := newStage(t, func(s *setting) { s.gated = true }) // it hangs until the test is over
	req := s.ask("hang", params(100))
	req.Deadline = s.Now() + int64(30*time.Millisecond)
	if e := s.run(req).wait(t).Err; e == nil || e.Status != 504 {
		t.Errorf("%+v", e)
	}
}

func TestADeviceThatCannotBeOpenedAtAllIsAnError(t *testing.T) {
	_, err := New(Config{Open: func(int) (gpu.Device, error) { return nil, errors.New("no memory") }, Tokenizer: tok(), MaxContext: 10})
	if err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("got %v", err)
	}
}
