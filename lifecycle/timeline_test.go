package lifecycle

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// checkTimeline checks the timeline of a request with one ended sequence against what the sequence
// itself has counted.
func checkTimeline(t *rapid.T, s *Sequence, r *Record) {
	t.Helper()
	events := r.Timeline.Events
	if len(events) > MaxEvents {
		t.Fatalf("%d events, at most %d may be", len(events), MaxEvents)
	}
	if got, want := Sum(events), (Totals{
		Dur: s.Ended - s.Queued, Steps: s.Steps, Prompt: s.PrefillTokens + s.Recomputed, Output: s.Tokens, Sequences: int64(s.BatchSum),
	}); got != want {
		t.Fatalf("the events add up to %+v, the sequence to %+v:\n%s", got, want, r.Timeline.AppendJSON(nil, r.Arrival))
	}
	at, preempted, several := s.Queued, int64(0), false
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case EventDelivered:
			if i != len(events)-1 || e.At != r.Finished || e.Dur != r.Delivered-r.Finished {
				t.Fatalf("delivered %d+%d, of a request that finished at %d and was delivered at %d", e.At, e.Dur, r.Finished, r.Delivered)
			}
			continue
		case EventQueue:
			end := s.Scheduled
			if end == 0 {
				end = s.Ended
			}
			if i != 0 || e.Dur != end-s.Queued || e.Slot+e.Budget != s.QueueCapacity || e.Blocks != s.QueueKV || e.Slot < 0 || e.Budget < 0 {
				t.Fatalf("queue %+v of %+v", e, s)
			}
		case EventPreempted:
			preempted += e.Dur
		case EventSeveral:
			several = true
		case EventStall:
			if e.Excess <= stallFloor || e.Excess > e.Dur || e.Cause == CauseNone {
				t.Fatalf("a stall of %+v", e)
			}
		case EventEnd:
			if e.At+e.Dur != s.Ended || e.Cause.String() != string(s.Reason) {
				t.Fatalf("ends %+v, with %s at %d", e, s.Reason, s.Ended)
			}
		}
		if e.At != at {
			t.Fatalf("event %d begins at %d, the one before ends at %d:\n%s", i, e.At, at, r.Timeline.AppendJSON(nil, r.Arrival))
		}
		at += e.Dur
	}
	if at != s.Ended {
		t.Fatalf("the last event ends at %d, the sequence at %d", at, s.Ended)
	}
	if preempted != s.Preempted && !several {
		t.Fatalf("%d ns without a place, want %d", preempted, s.Preempted)
	}
	var list []map[string]any
	if b := r.Timeline.AppendJSON(nil, r.Arrival); json.Unmarshal(b, &list) != nil || len(list) != len(events) {
		t.Fatalf("not a list of %d: %s", len(events), b)
	}
}

// play tells a sequence of steps; times are milliseconds.
type play struct {
	s   Sequence
	num uint32
	now int64
}

func newPlay(track *Track) *play {
	p := &play{s: NewSequence(SeqID{}, 100, nil, nil), now: 1e6}
	p.s.Track = track
	p.s.Submitted(p.now)
	return p
}

func (p *play) say(m Message, after int64) {
	p.num++
	p.now += after
	*m.Header() = Head{Epoch: 1, Num: p.num, At: p.now}
	p.s.Apply(m, -1)
}

func (p *play) step(ms int64, sequences, prompt int) *Step {
	return &Step{Start: p.now, End: p.now + ms*1e6, Sequences: sequences, PrefillTokens: prompt, DecodeTokens: sequences}
}

func (p *play) token(ms int64, sequences, prompt int) {
	st := p.step(ms, sequences, prompt)
	p.say(&Tokens{Step: st, IDs: []int32{1}}, ms*1e6)
}

func TestAnyLongLifeFitsIntoABoundedTimelineThatAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPlay(&NewTracks(rapid.IntRange(1, 20).Draw(t, "choices"))[0])
		p.say(&Scheduled{WaitedSlot: 5, WaitedBudget: 2}, 8)
		for range rapid.IntRange(0, 1000).Draw(t, "length") {
			ms := rapid.SampledFrom([]int64{1, 9, 10, 10, 11, 12, 25, 60, 300}).Draw(t, "ms")
			if p.s.State == Decoding && rapid.IntRange(0, 9).Draw(t, "tokens") > 0 {
				p.token(ms, rapid.IntRange(1, 40).Draw(t, "batch"), rapid.SampledFrom([]int{0, 0, 0, 512}).Draw(t, "others"))
				continue
			}
			switch rapid.SampledFrom([]string{"chunk", "last", "preempt"}).Draw(t, "other") {
			case "preempt":
				p.say(&Preempted{Why: WhyBlocks}, ms*1e6)
				p.say(&Resumed{Cached: 16}, ms*1e6)
			case "chunk":
				p.say(&Prefilled{Step: p.step(ms, 3, 60), Tokens: 50}, ms*1e6)
			case "last":
				if p.s.State == Prefilling {
					st := p.step(ms, 3, 60)
					p.say(&Prefilled{Step: st, Tokens: 50, Last: true}, ms*1e6)
					p.say(&Tokens{Step: st, IDs: []int32{1}}, 0)
				}
			}
		}
		p.s.End(p.now+5, ReasonAbort)
		p.now += 5
		r := Close(&Request{Arrival: 1, N: 1, Prompts: [][]int32{make([]int32, 100)}}, []Sequence{p.s}, Ending{Finished: p.now, Delivered: p.now + 9})
		checkTimeline(t, &p.s, r)
		if n := len(p.s.Events()); n > p.s.Track.limit {
			t.Fatalf("%d events, at most %d may be", n, p.s.Track.limit)
		}
	})
}

// No clock of one process goes back; if one did, a log must not have negative times.
func TestStampsThatGoBackMakeNoNegativeTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPlay(&NewTracks(1)[0])
		p.now += 1e9
		p.say(&Scheduled{}, 8)
		for range rapid.IntRange(1, 100).Draw(t, "length") {
			ms := rapid.SampledFrom([]int64{10, 10, 10, 11, 60, -5, -70}).Draw(t, "ms")
			switch {
			case p.s.State == Decoding && rapid.IntRange(0, 9).Draw(t, "preempt") == 0:
				p.say(&Preempted{Why: WhyBlocks}, ms*1e6)
				p.say(&Resumed{}, ms*1e6)
			default:
				p.token(ms, 2, 0)
			}
		}
		p.s.End(p.now, ReasonAbort)
		r := Close(&Request{N: 1, Prompts: [][]int32{make([]int32, 100)}}, []Sequence{p.s}, Ending{Finished: p.now, Delivered: p.now})
		for i := range r.Timeline.Events {
			if e := &r.Timeline.Events[i]; e.Dur < 0 || e.Busy < 0 || e.Excess < 0 {
				t.Fatalf("event %d: %+v", i, e)
			}
		}
		if got, want := Sum(r.Timeline.Events), p.s; got.Steps != want.Steps || got.Output != want.Tokens {
			t.Fatalf("%+v of %d steps, %d tokens", got, want.Steps, want.Tokens)
		}
	})
}

func TestStallsAreToldApartByWhatTheStepHeld(t *testing.T) {
	p := newPlay(&NewTracks(1)[0])
	p.say(&Scheduled{Cached: 16, WaitedSlot: 30e6, WaitedBlocks: 20e6, Slots: 4, Ahead: 2}, 60e6)
	st := p.step(40, 3, 84)
	p.say(&Prefilled{Step: st, Tokens: 34}, 40e6)
	st = p.step(45, 3, 50)
	p.say(&Prefilled{Step: st, Tokens: 50, Last: true}, 45e6)
	p.say(&Tokens{Step: st, IDs: []int32{1}}, 0)
	for range 10 {
		p.token(10, 3, 0)
	}
	p.token(14, 3, 64)   // no stall: not twice as long
	p.token(60, 3, 512)  // others' prompt
	p.token(80, 3, 1024) // and again
	p.token(10, 3, 0)
	p.token(70, 3, 0) // the device alone
	p.token(50, 9, 0) // a bigger batch
	late := p.step(10, 3, 0)
	p.say(&Tokens{Step: late, IDs: []int32{1}}, 90e6) // nothing of it in the step
	p.token(10, 3, 0)
	p.say(&Preempted{Why: WhyBlocks}, 2e6)
	p.say(&Resumed{Cached: 48}, 30e6)
	st = p.step(20, 3, 60)
	p.say(&Prefilled{Step: st, Tokens: 60, Last: true}, 20e6)
	p.say(&Tokens{Step: st, IDs: []int32{1}}, 0)
	p.token(10, 3, 0)
	p.say(&Tokens{Step: p.step(10, 3, 0), IDs: []int32{1}, Reason: ReasonLength}, 10e6)
	r := Close(&Request{N: 1, Prompts: [][]int32{make([]int32, 100)}}, []Sequence{p.s}, Ending{Finished: p.now, Delivered: p.now + 3e6})

	var got strings.Builder
	for _, line := range strings.SplitAfter(string(r.Timeline.AppendJSON(nil, r.Arrival)), "},") {
		got.WriteString(line + "\n")
	}
	want := `[{"e":"queue","at":1,"ms":60,"cached":16,"slot_ms":30,"kv_ms":20,"slots":4,"ahead":2},
{"e":"prefill","at":61,"ms":40,"prompt":34,"steps":1,"step_ms":40,"batch":3,"others":50},
{"e":"prefill","at":101,"ms":45,"prompt":50,"output":1,"steps":1,"step_ms":45,"batch":3},
{"e":"decode","at":146,"ms":114,"output":11,"steps":11,"step_ms":114,"batch":3,"others":64},
{"e":"stall","at":260,"ms":140,"why":"prefill_of_others","output":2,"steps":2,"step_ms":140,"batch":3,"others":1536,"excess_ms":119.272728},
{"e":"decode","at":400,"ms":10,"output":1,"steps":1,"step_ms":10,"batch":3},
{"e":"stall","at":410,"ms":70,"why":"slow_step","output":1,"steps":1,"step_ms":70,"batch":3,"excess_ms":59.666667},
{"e":"stall","at":480,"ms":50,"why":"bigger_batch","output":1,"steps":1,"step_ms":50,"batch":9,"excess_ms":39.666667},
{"e":"stall","at":530,"ms":90,"why":"between_steps","output":1,"steps":1,"step_ms":10,"batch":3,"excess_ms":79.666667},
{"e":"decode","at":620,"ms":12,"output":1,"steps":1,"step_ms":10,"batch":3},
{"e":"preempted","at":632,"ms":30,"why":"kv_blocks","cached":48},
{"e":"recompute","at":662,"ms":20,"prompt":60,"output":1,"steps":1,"step_ms":20,"batch":3},
{"e":"decode","at":682,"ms":20,"output":2,"steps":2,"step_ms":20,"batch":3},
{"e":"end","at":702,"ms":0,"why":"length"},
{"e":"delivered","at":702,"ms":3}]
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

func TestAPaceThatChangesSlowlyIsNoStall(t *testing.T) {
	p := newPlay(&NewTracks(1)[0])
	p.say(&Scheduled{}, 1e6)
	p.say(&Tokens{Step: p.step(10, 1, 0), IDs: []int32{1}}, 10e6)
	tokens, length := 0, int64(0)
	for ms := int64(10); ms < 200; ms++ { // the context grows, and each step takes longer
		for range 8 {
			p.token(ms, 1, 0)
			tokens, length = tokens+1, length+ms*1e6
		}
	}
	for range 100 { // and then it is as fast as at first
		p.token(10, 1, 0)
		tokens, length = tokens+1, length+10e6
	}
	p.say(&Tokens{IDs: []int32{1}}, 10e6) // of a step that nothing is known of
	p.token(21, 1, 0)
	events := p.s.Events()
	last := events[len(events)-1]
	if len(events) != 3 || last.Kind != EventDecode || int(last.Output) != tokens+2 || int(last.Steps) != tokens+2 || last.Dur != length+31e6 || last.Busy != length+21e6 {
		t.Errorf("want decoding alone, of %d tokens in %d ns:\n%s", tokens+2, length+31e6, (&Timeline{events}).AppendJSON(nil, 0))
	}
	p.token(43, 1, 0) // twice 21 and a little more; but the usual is 10
	if events = p.s.Events(); events[len(events)-1].Kind != EventStall {
		t.Errorf("a gap of 43 ms where 10 are usual is no stall:\n%s", (&Timeline{events}).AppendJSON(nil, 0))
	}
}

func TestANewPaceIsNotAStallForEver(t *testing.T) {
	p := newPlay(&NewTracks(1)[0])
	p.say(&Scheduled{}, 1e6)
	p.say(&Tokens{Step: p.step(10, 1, 0), IDs: []int32{1}}, 10e6)
	for range 20 {
		p.token(10, 1, 0)
	}
	for range 100 {
		p.token(50, 30, 0)
	}
	last := p.s.Events()[len(p.s.Events())-1]
	if last.Kind != EventDecode || last.Output != 100-newPace || len(p.s.Events()) != 5 {
		t.Errorf("%+v", p.s.Events())
	}
}

func TestTheLargestStallsAreKept(t *testing.T) {
	p := newPlay(&NewTracks(1)[0])
	p.say(&Scheduled{}, 1e6)
	p.say(&Tokens{Step: p.step(10, 1, 0), IDs: []int32{1}}, 10e6)
	for i := range 2000 {
		ms := int64(10)
		switch {
		case i%500 == 250:
			ms = 900
		case i%10 == 9:
			ms = 30 + int64(i%7)
		}
		p.token(ms, 1, 0)
	}
	large := 0
	for _, e := range p.s.Events() {
		if e.Kind == EventStall && e.Dur >= 900e6 {
			large++
		}
	}
	if large != 4 {
		t.Errorf("%d of the 4 stalls of 900 ms are there:\n%s", large, (&Timeline{p.s.Events()}).AppendJSON(nil, 0))
	}
}

func TestChoicesShareTheTimelinesBound(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8, 100} {
		tracks := NewTracks(n)
		seqs := make([]Sequence, n)
		for i := range seqs {
			var track *Track
			if i < len(tracks) {
				track = &tracks[i]
			}
			p := newPlay(track)
			p.say(&Scheduled{}, 1e6)
			p.say(&Tokens{Step: p.step(10, 1, 0), IDs: []int32{1}}, 10e6)
			for k := range 500 {
				p.token(10+20*int64(k%3), 1, 0)
			}
			p.s.End(p.now, ReasonStop)
			seqs[i] = p.s
		}
		r := Close(&Request{N: n, Prompts: [][]int32{make([]int32, 100)}}, seqs, Ending{Finished: 1e9, Delivered: 2e9})
		events := r.Timeline.Events
		told := map[int32]int{}
		left := 0
		for _, e := range events {
			switch e.Kind {
			case EventLeftOut:
				left = int(e.Sequences)
			case EventDelivered:
			default:
				told[e.Sequence]++
			}
		}
		if len(events) > MaxEvents || len(told)+left != n || len(told) < min(n, 8) {
			t.Errorf("%d choices: %d events, %d sequences told of, %d left out", n, len(events), len(told), left)
		}
	}
	if NewTracks(0) != nil {
		t.Error("tracks for no sequence")
	}
}

func TestWithoutATrackThereIsNoTimeline(t *testing.T) {
	r := Close(&Request{}, []Sequence{NewSequence(SeqID{}, 1, nil, nil)}, Ending{})
	if got := string(r.Timeline.AppendJSON(nil, 0)); r.Timeline != nil || got != "null" {
		t.Errorf("%s", got)
	}
}

// What a timeline costs a request of 128 tokens among 256: lives in turn with and without one, each step's
// tokens for all of them one after the other.
func BenchmarkLives(b *testing.B) {
	const together, tokens = 256, 128
	var now int64
	req := &Request{N: 1, Prompts: [][]int32{make([]int32, 20)}}
	ids := []int32{1}
	live := func(kept bool) {
		type life struct {
			seq Sequence
			itl ITLHistogram
		}
		lives := make([]*life, together)
		heads := make([]Tokens, together)
		step := func() *Step {
			now += 100e3
			return &Step{Start: now - 90e3, End: now, Sequences: together, DecodeTokens: together}
		}
		for i := range lives {
			l := &life{}
			l.seq = NewSequence(SeqID{Request: uint64(i)}, 20, &l.itl, nil)
			if kept {
				l.seq.Track = &NewTracks(1)[0]
			}
			l.seq.Submitted(now)
			l.seq.Apply(&Scheduled{Head: Head{Epoch: 1, Num: 1, At: now + 10}}, -1)
			lives[i] = l
		}
		st := step()
		for i, l := range lives {
			l.seq.Apply(&Prefilled{Head: Head{Epoch: 1, Num: 2, At: now}, Step: st, Tokens: 20, Last: true}, -1)
			heads[i] = Tokens{Head: Head{ID: l.seq.ID, Epoch: 1, Num: 3, At: now}, Step: st, IDs: ids}
			l.seq.Apply(&heads[i], -1)
		}
		for k := range tokens - 1 {
			st = step()
			for i, l := range lives {
				m := &heads[i]
				m.Num, m.At, m.Step = uint32(4+k), now, st
				if k == tokens-2 {
					m.Reason = ReasonLength
				}
				if _, err := l.seq.Accept(m); err != nil {
					b.Fatal(err)
				}
				l.seq.Apply(m, -1)
			}
		}
		for _, l := range lives {
			if r := Close(req, []Sequence{l.seq}, Ending{Finished: now, Delivered: now + 5}); kept != (r.Timeline != nil) {
				b.Fatal("no timeline")
			}
		}
	}
	var with, without time.Duration
	for b.Loop() {
		start := time.Now()
		live(true)
		middle := time.Now()
		live(false)
		with, without = with+middle.Sub(start), without+time.Since(middle)
	}
	n := float64(b.N * together)
	b.ReportMetric(float64(without)/n, "ns/request")
	b.ReportMetric(float64(with-without)/n, "ns/timeline")
}

// What a token costs with and without a track.
func BenchmarkToken(b *testing.B) {
	for _, c := range []struct {
		name  string
		track *Track
	}{{"NoTrack", nil}, {"Track", &NewTracks(1)[0]}} {
		b.Run(c.name, func(b *testing.B) {
			p := newPlay(c.track)
			p.say(&Scheduled{}, 1e6)
			p.say(&Tokens{Step: p.step(10, 1, 0), IDs: []int32{1}}, 10e6)
			m := &Tokens{Step: p.step(10, 1, 0), IDs: []int32{1}}
			b.ReportAllocs()
			for b.Loop() {
				p.say(m, 10e6)
			}
		})
	}
}
