package lifecycle

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// life plays a batcher for one sequence: it makes random but legal messages, and keeps an account
// of its own of what the sequence should know.
type life struct {
	t     *rapid.T
	s     *Sequence
	itl   *ITLHistogram
	now   int64
	num   uint32
	given int // tokens sent that the request kept
	first int64
	last  int64
	sched int64
	waits int64 // time without a place after the first
	gaps  []int64
	lost  int64
}

func (l *life) pass() int64 {
	l.now += rapid.Int64Range(0, 5e8).Draw(l.t, "pass")
	return l.now
}

func (l *life) head() Head {
	l.num++
	return Head{ID: l.s.ID, Epoch: l.s.Epoch, Num: l.num, At: l.pass()}
}

func (l *life) say(m Message, keep int) {
	l.t.Helper()
	if v, err := l.s.Accept(m); v != Due || err != nil {
		l.t.Fatalf("%T in state %v: verdict %v, %v", m, l.s.State, v, err)
	}
	before := l.s.State
	l.s.Apply(m, keep)
	// Said twice, it is late.
	if v, _ := l.s.Accept(m); v != Late {
		l.t.Fatalf("%T said twice (state was %v) is not late", m, before)
	}
}

func (l *life) step() *Step {
	start := l.now
	l.pass()
	return &Step{Start: start, End: l.now, Sequences: rapid.IntRange(1, 64).Draw(l.t, "seqs"),
		PrefillTokens: rapid.IntRange(0, 100).Draw(l.t, "prefill"), Baseline: rapid.Int64Range(0, 1e8).Draw(l.t, "baseline")}
}

func TestEveryLegalLifeYieldsFiniteMetricsThatAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prompt := rapid.IntRange(1, 100).Draw(t, "prompt")
		var itl ITLHistogram
		var gaps Gaps
		s := NewSequence(SeqID{Request: 7}, prompt, &itl, &gaps)
		if n := rapid.SampledFrom([]int{0, 1, 8}).Draw(t, "tracks"); n > 0 {
			s.Track = &NewTracks(n)[0]
		}
		l := &life{t: t, s: &s, itl: &itl, now: 1 + rapid.Int64Range(0, 1e9).Draw(t, "start")}
		arrival := l.now
		l.pass()
		s.Submitted(l.now)
		ended := false
		for step := 0; step < 40 && !ended; step++ {
			// The batcher gives a place, perhaps after the request's end.
			if s.State == Waiting || s.State == Displaced {
				switch rapid.SampledFrom([]string{"place", "place", "place", "cancel", "timeout", "fail", "lose"}).Draw(t, "waiting") {
				case "place":
					h := l.head()
					if s.State == Displaced {
						l.waits += h.At - l.lost
						if l.num > 1 {
							l.say(&Resumed{Head: h, Cached: rapid.IntRange(0, prompt).Draw(t, "recached")}, -1)
						} else {
							l.say(&Scheduled{Head: h}, -1)
						}
					} else {
						l.sched = h.At
						wait := h.At - s.Queued
						slot := rapid.Int64Range(0, wait).Draw(t, "slot")
						l.say(&Scheduled{Head: h, Cached: rapid.IntRange(0, prompt-1).Draw(t, "cached"), WaitedSlot: slot, WaitedBlocks: rapid.Int64Range(0, wait-slot).Draw(t, "blocks")}, -1)
					}
				case "cancel":
					if s.State == Displaced {
						l.waits += l.pass() - l.lost
					}
					s.End(l.now, ReasonAbort)
					if rapid.Bool().Draw(t, "ack") {
						l.say(&Finished{Head: l.head(), Reason: ReasonCancelled}, -1)
					}
					ended = true
				case "timeout":
					h := l.head()
					if s.State == Displaced {
						l.waits += h.At - l.lost
					}
					l.say(&Finished{Head: h, Reason: ReasonTimeout}, -1)
					ended = true
				case "fail":
					h := l.head()
					if s.State == Displaced {
						l.waits += h.At - l.lost
					}
					l.say(&Failed{Head: h, Err: &Error{Status: 503}}, -1)
					ended = true
				case "lose":
					s.Lose(l.pass())
					s.Submitted(l.now)
					l.num = 0
				}
				continue
			}
			// It has a place.
			switch rapid.SampledFrom([]string{"chunk", "tokens", "tokens", "tokens", "preempt", "lose", "cancel", "stop", "end"}).Draw(t, "running") {
			case "chunk":
				if s.State == Decoding {
					continue
				}
				st := l.step()
				h := l.head()
				l.say(&Prefilled{Head: h, Step: st, Tokens: rapid.IntRange(1, 20).Draw(t, "n")}, -1)
			case "tokens", "stop", "end":
				k := rapid.IntRange(1, 5).Draw(t, "k")
				st := l.step()
				m := &Tokens{Head: l.head(), Step: st, IDs: make([]int32, k), StopToken: -1}
				m.At = st.End
				l.now = max(l.now, m.At)
				keep := -1
				kept := k
				if s.State == Prefilling {
					// The chunk that samples comes first, with the same stamp.
					l.num--
					p := &Prefilled{Head: l.head(), Step: st, Tokens: 1, Last: true}
					p.At = st.End
					l.say(p, -1)
					l.num++
					m.Num = l.num
				}
				if rapid.Bool().Draw(t, "partial") {
					keep = rapid.IntRange(1, k).Draw(t, "keep")
					kept = keep
				}
				switch {
				case keep >= 0:
					// A stop string among them: the request ends it.
				case rapid.Bool().Draw(t, "ends"):
					m.Reason = rapid.SampledFrom([]Reason{ReasonStop, ReasonLength}).Draw(t, "reason")
				}
				if l.given == 0 {
					l.first = m.At
				} else {
					for range kept {
						l.gaps = append(l.gaps, (m.At-l.last)/int64(kept))
					}
				}
				l.given += kept
				l.last = m.At
				l.say(m, keep)
				if keep >= 0 {
					s.End(m.At, ReasonStop)
					discarded := s.Discarded
					late := &Tokens{Head: l.head(), Step: st, IDs: make([]int32, 2), StopToken: -1}
					l.say(late, -1)
					if s.Discarded != discarded+2 {
						t.Fatalf("tokens after the end: %d discarded, want %d", s.Discarded, discarded+2)
					}
					ended = true
				}
				ended = ended || m.Reason != ""
			case "preempt":
				h := l.head()
				l.lost = h.At
				l.say(&Preempted{Head: h, Why: rapid.SampledFrom([]Why{WhyBlocks, WhyDevice}).Draw(t, "why")}, -1)
			case "lose":
				l.lost = l.pass()
				s.Lose(l.now)
				s.Submitted(l.now)
				l.num = 0
			case "cancel":
				s.End(l.pass(), ReasonAbort)
				ended = true
			}
		}
		l.pass()
		check(t, l, arrival)
	})
}

func check(t *rapid.T, l *life, arrival int64) {
	s := l.s
	if s.Tokens != l.given {
		t.Fatalf("%d tokens, %d were given", s.Tokens, l.given)
	}
	if s.Scheduled != l.sched || s.FirstToken != l.first || s.LastToken != l.last {
		t.Fatalf("stamps %d %d %d, want %d %d %d", s.Scheduled, s.FirstToken, s.LastToken, l.sched, l.first, l.last)
	}
	if s.State == Ended && s.Preempted != l.waits {
		t.Fatalf("%d ns without a place, want %d", s.Preempted, l.waits)
	}
	m := s.Timing().Metrics()
	for name, n := range map[string]Number{"ttft": m.TimeToFirstToken, "generation": m.GenerationTime, "queue": m.QueueTime, "itl": m.MeanITL, "rate": m.TokensPerSecond} {
		if v, ok := n.Get(); ok && (!(v >= 0) || math.IsInf(v, 0)) {
			t.Fatalf("%s is %v", name, v)
		}
	}
	queue, _ := m.QueueTime.Get()
	prefill, _ := m.TimeToFirstToken.Get()
	decode, _ := m.GenerationTime.Get()
	if sum, whole := queue+prefill+decode, float64(l.now-s.Queued)/1e6; sum > whole*(1+1e-12)+1e-9 {
		t.Fatalf("queue %v + prefill %v + decode %v exceed the whole %v", queue, prefill, decode, whole)
	}
	req := &Request{Arrival: arrival, N: 1, Prompts: [][]int32{make([]int32, s.prompt)}, Params: &Params{}}
	e := Ending{Finished: l.now}
	e.Delivered = l.pass()
	if rapid.Bool().Draw(t, "stalled") {
		e.StalledSince = rapid.Int64Range(arrival, e.Finished).Draw(t, "since")
	}
	r := Close(req, []Sequence{*s}, e)
	sl := r.Detail.Slowed
	if s.Track != nil && s.State == Ended {
		checkTimeline(t, s, r)
	}
	parts := []int64{sl.QueueCapacity, sl.QueueKV, sl.PrefillOfOthers, sl.Preemption, sl.DeviceRestart, sl.SlowClient}
	sum := int64(0)
	for _, p := range parts {
		if p < 0 {
			t.Fatalf("slowed by a negative time: %+v", sl)
		}
		sum += p
	}
	if sum > l.now-arrival {
		t.Fatalf("slowed by %d ns of %d: %+v", sum, l.now-arrival, sl)
	}
	if s.Cached+s.PrefillTokens > s.prompt {
		t.Fatalf("%d cached + %d computed of %d prompt tokens", s.Cached, s.PrefillTokens, s.prompt)
	}
	// The percentiles against a plain sort.
	slices.Sort(l.gaps)
	if r.Detail.ITLCount != len(l.gaps) {
		t.Fatalf("%d gaps, want %d", r.Detail.ITLCount, len(l.gaps))
	}
	if n := len(l.gaps); n > 0 {
		rank := func(q float64) int64 { return l.gaps[max(int(math.Ceil(q*float64(n))), 1)-1] }
		if r.Detail.ITLP50 != rank(0.5) || r.Detail.ITLP90 != rank(0.9) || r.Detail.ITLP99 != rank(0.99) || r.Detail.ITLMax != l.gaps[n-1] {
			t.Fatalf("percentiles %d %d %d %d of %v", r.Detail.ITLP50, r.Detail.ITLP90, r.Detail.ITLP99, r.Detail.ITLMax, l.gaps)
		}
	}
}

func TestAMissingMessageIsNoticed(t *testing.T) {
	s := NewSequence(SeqID{}, 1, nil, nil)
	s.Submitted(1)
	if _, err := s.Accept(&Scheduled{Head: Head{Epoch: 1, Num: 2, At: 5}}); !errors.Is(err, ErrGap) {
		t.Errorf("got %v, want ErrGap", err)
	}
	if _, err := s.Accept(&Tokens{Head: Head{Epoch: 1, Num: 1, At: 5}, IDs: []int32{1}}); err == nil {
		t.Error("a token before a place was accepted")
	}
}

func TestMessagesOfALostBatcherAreLate(t *testing.T) {
	s := NewSequence(SeqID{}, 4, nil, nil)
	s.Submitted(1)
	s.Apply(&Scheduled{Head: Head{Epoch: 1, Num: 1, At: 5}}, -1)
	s.Lose(9)
	if e := s.Submitted(10); e != 2 {
		t.Fatalf("epoch %d, want 2", e)
	}
	if v, err := s.Accept(&Tokens{Head: Head{Epoch: 1, Num: 2, At: 11}, IDs: []int32{1}}); v != Late || err != nil {
		t.Errorf("verdict %v, %v: want late", v, err)
	}
	s.Apply(&Scheduled{Head: Head{Epoch: 2, Num: 1, At: 19}}, -1)
	if s.Scheduled != 5 || s.Queued != 1 || s.PreemptedDevice != 10 {
		t.Errorf("scheduled %d, queued %d, without a place %d: want 5, 1, 10", s.Scheduled, s.Queued, s.PreemptedDevice)
	}
}

func TestSeveralTokensOfAStepShareItsGap(t *testing.T) {
	var itl ITLHistogram
	var gaps Gaps
	s := NewSequence(SeqID{}, 4, &itl, &gaps)
	s.Submitted(1)
	s.Apply(&Scheduled{Head: Head{Epoch: 1, Num: 1, At: 2}}, -1)
	s.Apply(&Tokens{Head: Head{Epoch: 1, Num: 2, At: 10}, IDs: []int32{1}}, -1)
	s.Apply(&Tokens{Head: Head{Epoch: 1, Num: 3, At: 40}, IDs: []int32{1, 2, 3}}, -1)
	q, n := Quantiles([]Sequence{s}, 0.01, 1)
	if n != 3 || q[0] != 10 || q[1] != 10 {
		t.Errorf("gaps %v, %d of them: want 3 of 10 ns", q, n)
	}
	if itl.Sum != 30 || itl.Counts[0] != 1 {
		t.Errorf("histogram %+v: want one latency of 30 ns", itl)
	}
}

func TestARefusedRequestLeavesARecordWithoutStamps(t *testing.T) {
	r := Close(&Request{Arrival: 10}, nil, Ending{Outcome: OutcomeRefused, Status: 400, Finished: 15})
	if r.Queued != 0 || r.Scheduled != 0 || r.Detail.EndToEnd != 5 || r.Detail.ArrivalToFirstToken != -1 || r.Usage != (Usage{}) {
		t.Errorf("%+v", r)
	}
}

func TestARecordTellsHowEachOfSeveralChoicesEnded(t *testing.T) {
	seqs := []Sequence{NewSequence(SeqID{}, 1, nil, nil), NewSequence(SeqID{Index: 1}, 1, nil, nil)}
	for i, reason := range []Reason{ReasonStop, ReasonLength} {
		seqs[i].Submitted(1)
		seqs[i].End(2, reason)
	}
	req := &Request{N: 2, Prompts: [][]int32{{1}}}
	if r := Close(req, seqs, Ending{}); !slices.Equal(r.Reasons, []Reason{ReasonStop, ReasonLength}) {
		t.Errorf("%q", r.Reasons)
	}
	if r := Close(req, seqs[:1], Ending{}); r.Reasons != nil {
		t.Errorf("%q of one choice, whose outcome says it", r.Reasons)
	}
}

func TestWhatSlowedARequestIsNamed(t *testing.T) {
	s := NewSequence(SeqID{}, 8, nil, nil)
	num := uint32(0)
	say := func(m Message, at int64) {
		num++
		*m.Header() = Head{Epoch: 1, Num: num, At: at}
		s.Apply(m, -1)
	}
	s.Submitted(100)
	say(&Scheduled{WaitedSlot: 30, WaitedBlocks: 20}, 160)
	step := func(start, end int64, prefill int) *Step {
		return &Step{Start: start, End: end, Sequences: 3, PrefillTokens: prefill, Baseline: 10}
	}
	say(&Prefilled{Step: step(160, 200, 8), Tokens: 8, Last: true}, 200)
	say(&Tokens{Step: step(160, 200, 8), IDs: []int32{1}}, 200)
	say(&Tokens{Step: step(200, 210, 0), IDs: []int32{1}}, 210)
	say(&Tokens{Step: step(210, 245, 64), IDs: []int32{1}}, 245) // 25 beyond the baseline, for others' prompts
	say(&Preempted{Why: WhyBlocks}, 250)
	say(&Resumed{}, 290)
	say(&Preempted{Why: WhyDevice}, 300)
	say(&Resumed{}, 307)
	say(&Prefilled{Step: step(307, 320, 11), Tokens: 11, Last: true}, 320)
	say(&Tokens{Step: step(307, 320, 11), IDs: []int32{1}, Reason: ReasonStop, StopToken: 1}, 320)
	r := Close(&Request{Arrival: 90, N: 1, Prompts: [][]int32{make([]int32, 8)}}, []Sequence{s}, Ending{Finished: 320, Delivered: 333})
	want := Slowed{QueueCapacity: 30, QueueKV: 20, PrefillOfOthers: 25, Preemption: 40, DeviceRestart: 7, SlowClient: 13}
	if r.Detail.Slowed != want {
		t.Errorf("%+v, want %+v", r.Detail.Slowed, want)
	}
	if r.Detail.Steps != 4 || r.Detail.BatchSum != 12 || r.Detail.Preemptions != 2 || r.Detail.Preempted != 47 || r.Detail.PrefillTokens != 8 {
		t.Errorf("%+v", r.Detail)
	}
	r = Close(&Request{Arrival: 90, N: 1, Prompts: [][]int32{make([]int32, 8)}}, []Sequence{s}, Ending{Finished: 320, StalledSince: 280})
	if got := r.Detail.Slowed.SlowClient; got != 40 {
		t.Errorf("a stall of 40 ns counts as %d", got)
	}
}
