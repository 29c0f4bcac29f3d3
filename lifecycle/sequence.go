package lifecycle

import (
	"errors"
	"fmt"
	"slices"
)

// State is where a sequence is in its life.
type State uint8

// The states. A sequence begins Fresh, is Waiting from its Submit, Prefilling from Scheduled or
// Resumed, Decoding from its first token, Preempted when it lost its place, and Ended once: by
// Tokens with a Reason, by Finished, by Failed, or by its own request (End).
const (
	Fresh State = iota
	Waiting
	Prefilling
	Decoding
	Displaced
	Ended
)

func (s State) String() string {
	return [...]string{"fresh", "waiting", "prefilling", "decoding", "displaced", "ended"}[s]
}

// Sequence is one choice's life as its request knows it: it applies the batcher's messages, in
// order, and keeps stamps and sums. It is the only place in the program that knows a sequence's
// timings. The zero value is not usable: see NewSequence. Not safe for concurrent use.
type Sequence struct {
	// What each token needs comes first, in two lines of a cache: with some hundred requests that take turns,
	// each line costs as much as all that is done with it.

	ID      SeqID
	Epoch   uint32
	next    uint32 // number of the next message of this epoch
	State   State
	Settled bool // the batcher has nothing more to say about the sequence

	LastToken int64 // stamp; 0: not yet
	Tokens    int   // generated and kept
	Steps     int
	BatchSum  int

	itl       *ITLHistogram
	gaps      *Gaps
	steady    steady
	Discarded int // generated and not wanted: beyond a stop string or a cancel
	Drafted   int
	Accepted  int

	// Stamps; 0: not yet. Ended is when the batcher ended it, or when its request did.
	Queued, Scheduled, FirstToken, Ended int64

	Reason    Reason
	StopToken int32 // −1 unless a stop token id ended it
	Err       *Error

	Cached        int // prompt tokens that the first Scheduled said were cached
	PrefillTokens int // prompt tokens computed; recomputation not included
	Recomputed    int // tokens computed again after preemptions
	Preemptions   int
	Preempted     int64 // nanoseconds without a place

	QueueCapacity, QueueKV, PrefillOfOthers, PreemptedBlocks, PreemptedDevice int64

	// Track makes the sequence's part of the request's Timeline; nil: none is kept.
	Track *Track

	prompt      int // prompt length
	preemptedAt int64
	why         Why
}

// NewSequence returns a Fresh sequence with a prompt of the given length. Each later step that
// yields tokens is counted in itl, and when gaps is not nil each token's share of the gap in gaps.
func NewSequence(id SeqID, prompt int, itl *ITLHistogram, gaps *Gaps) Sequence {
	return Sequence{ID: id, prompt: prompt, StopToken: -1, itl: itl, gaps: gaps}
}

// Submitted says that a Submit has been sent at the given time; it returns the Submit's epoch. A
// second Submit follows only the loss of the first (see Lose).
func (s *Sequence) Submitted(at int64) uint32 {
	s.Epoch++
	s.next = 1
	if s.Queued == 0 {
		s.Queued = at
		s.State = Waiting
		s.track().submitted(at)
	}
	return s.Epoch
}

// Lose says that the batcher forgot the sequence; it waits to be submitted again. Without effect
// once it has ended, save that nothing more will come.
func (s *Sequence) Lose(at int64) {
	if s.State == Ended {
		s.Settled = true
		return
	}
	if s.State == Prefilling || s.State == Decoding {
		s.losePlace(at, WhyBatcher)
	}
}

// End ends the sequence by its own request's will: a stop string, a cancel, the client's leaving,
// a deadline. The batcher may still send what it had made: that counts as Discarded. Settled tells
// when it has fallen silent.
func (s *Sequence) End(at int64, reason Reason) {
	if s.State == Ended {
		return
	}
	if s.State == Fresh {
		s.Settled = true
	}
	if s.State != Fresh {
		s.track().ended(at, s.State, s.why, reason)
	}
	s.endPreemption(at)
	s.State, s.Reason, s.Ended = Ended, reason, at
}

// Verdict is what Accept thinks of a message.
type Verdict uint8

// The verdicts.
const (
	Due  Verdict = iota // the next message: apply it
	Late                // of an older epoch, or seen already: ignore it
)

// ErrGap says that a message is missing: what follows can't be trusted.
var ErrGap = errors.New("a message is missing")

// Accept checks the order of a message before it is applied. An error means that one is missing,
// or that a message makes no sense in the sequence's state: the request should fail the sequence.
func (s *Sequence) Accept(m Message) (Verdict, error) {
	h := m.Header()
	if h.Epoch != s.Epoch || h.Num < s.next {
		return Late, nil
	}
	if h.Num > s.next {
		return Due, fmt.Errorf("sequence %d of request %d, message %d, wanted %d: %w", s.ID.Index, s.ID.Request, h.Num, s.next, ErrGap)
	}
	if s.State == Ended {
		return Due, nil // what the batcher had under way when the request ended it
	}
	ok := true
	switch m.(type) {
	case *Scheduled:
		ok = s.State == Waiting || s.State == Displaced
	case *Resumed:
		ok = s.State == Displaced
	case *Prefilled:
		ok = s.State == Prefilling || s.State == Decoding
	case *Tokens:
		ok = s.State == Prefilling || s.State == Decoding
	case *Preempted:
		ok = s.State == Prefilling || s.State == Decoding
	}
	if !ok || s.Settled {
		return Due, fmt.Errorf("sequence %d of request %d is %v: a %T makes no sense", s.ID.Index, s.ID.Request, s.State, m)
	}
	return Due, nil
}

// Apply takes a message that Accept found Due. Of a Tokens message only the first keep tokens are
// the request's (a stop string may end among them); keep < 0 means all.
func (s *Sequence) Apply(m Message, keep int) {
	s.next = m.Header().Num + 1
	if s.State == Ended {
		s.applyLate(m)
		return
	}
	switch m := m.(type) {
	case *Scheduled:
		if s.Scheduled == 0 {
			s.Scheduled = max(m.At, s.Queued)
			s.Cached = m.Cached
			wait := s.Scheduled - s.Queued
			s.QueueCapacity = min(max(m.WaitedSlot, 0), wait)
			s.QueueKV = min(max(m.WaitedBlocks, 0), wait-s.QueueCapacity)
			s.track().scheduled(m, s.Scheduled, s.QueueCapacity, s.QueueKV)
		}
		s.resume(m.At, m.Cached)
	case *Resumed:
		s.resume(m.At, m.Cached)
	case *Prefilled:
		again := s.again()
		s.track().prefilled(m, again)
		s.inStep(m.Step)
		room := s.prompt - s.Cached - s.PrefillTokens
		fresh := min(m.Tokens, max(room, 0))
		if again {
			fresh = 0
		}
		s.PrefillTokens += fresh
		s.Recomputed += m.Tokens - fresh
	case *Tokens:
		s.tokens(m, keep)
	case *Preempted:
		s.losePlace(m.At, m.Why)
	case *Finished:
		s.track().ended(m.At, s.State, s.why, m.Reason)
		s.endPreemption(m.At)
		s.State, s.Reason, s.Ended, s.Settled = Ended, m.Reason, m.At, true
	case *Failed:
		s.track().ended(m.At, s.State, s.why, ReasonError)
		s.endPreemption(m.At)
		s.State, s.Reason, s.Ended, s.Err, s.Settled = Ended, ReasonError, m.At, m.Err, true
	}
}

func (s *Sequence) tokens(m *Tokens, keep int) {
	if keep < 0 || keep > len(m.IDs) {
		keep = len(m.IDs)
	}
	// Without a place in between, the step that samples the first token was counted by Prefilled.
	if s.State == Decoding {
		if st := m.Step; keep > 0 && s.steady.takes(m.At-s.LastToken, st) {
			s.steady.count(st)
		} else if s.Track != nil {
			s.decoded(m, keep)
		}
		s.inStep(m.Step)
	} else {
		s.track().first(m, keep)
	}
	s.Drafted += m.Drafted
	s.Accepted += m.Accepted
	s.Discarded += len(m.IDs) - keep
	if keep > 0 {
		if s.Tokens == 0 {
			s.FirstToken = max(m.At, s.Scheduled)
			s.LastToken = s.FirstToken
		} else {
			gap := max(m.At-s.LastToken, 0)
			if s.itl != nil {
				s.itl.Observe(gap)
			}
			s.gaps.add(gap/int64(keep), keep)
			if st := m.Step; s.State == Decoding && st != nil && st.PrefillTokens > 0 && st.Baseline > 0 {
				s.PrefillOfOthers += min(max(st.End-st.Start-st.Baseline, 0), gap)
			}
		}
		s.LastToken = max(m.At, s.LastToken)
		s.Tokens += keep
	}
	s.State = Decoding
	if m.Reason != "" {
		s.track().ended(m.At, s.State, s.why, m.Reason)
		s.State, s.Reason, s.Ended, s.Settled = Ended, m.Reason, m.At, true
		s.StopToken = m.StopToken
		if m.Reason != ReasonStop {
			s.StopToken = -1
		}
	}
}

// applyLate takes what the batcher says of a sequence that its request has ended.
func (s *Sequence) applyLate(m Message) {
	switch m := m.(type) {
	case *Tokens:
		s.Discarded += len(m.IDs)
		s.Settled = s.Settled || m.Reason != ""
	case *Finished, *Failed:
		s.Settled = true
	}
}

func (s *Sequence) inStep(st *Step) {
	s.Steps++
	if st != nil {
		s.BatchSum += st.Sequences
	}
}

// again says whether what is computed now has been computed before.
func (s *Sequence) again() bool { return s.Tokens > 0 || s.Preemptions > 0 }

// resume gives the sequence a place.
func (s *Sequence) resume(at int64, cached int) {
	if s.State == Displaced {
		s.track().resumed(at, s.why, cached)
	}
	s.endPreemption(at)
	s.State = Prefilling
}

func (s *Sequence) losePlace(at int64, why Why) {
	s.track().displaced(at, s.again())
	s.State = Displaced
	s.Preemptions++
	s.preemptedAt, s.why = at, why
}

func (s *Sequence) endPreemption(at int64) {
	if s.State != Displaced {
		return
	}
	d := max(at-s.preemptedAt, 0)
	s.Preempted += d
	if s.why == WhyBlocks {
		s.PreemptedBlocks += d
	} else {
		s.PreemptedDevice += d
	}
}

// Timing returns what the metrics arithmetic needs.
func (s *Sequence) Timing() Timing {
	return Timing{Queued: s.Queued, Scheduled: s.Scheduled, FirstToken: s.FirstToken, LastToken: s.LastToken, Tokens: s.Tokens}
}

// Gaps collects a sequence's inter-token gaps weighted by tokens: k tokens of one step share its gap
// evenly. A nil *Gaps collects nothing.
type Gaps struct{ runs []gapRun }

type gapRun struct {
	gap int64
	n   int32
}

func (g *Gaps) add(gap int64, n int) {
	if g == nil || n <= 0 {
		return
	}
	g.runs = append(g.runs, gapRun{gap, int32(n)})
}

// Quantiles returns, in nanoseconds, the smallest gap that at least the share q of all gaps of all
// the sequences don't exceed, for each q (nearest rank), with the number of gaps. Without gaps all
// are 0.
func Quantiles(seqs []Sequence, qs ...float64) (values []int64, count int) {
	values = make([]int64, len(qs))
	var sorted []gapRun
	for i := range seqs {
		if g := seqs[i].gaps; g != nil {
			sorted = append(sorted, g.runs...)
		}
	}
	if len(sorted) == 0 {
		return values, 0
	}
	slices.SortFunc(sorted, func(a, b gapRun) int {
		switch {
		case a.gap < b.gap:
			return -1
		case a.gap > b.gap:
			return 1
		}
		return 0
	})
	for _, r := range sorted {
		count += int(r.n)
	}
	for i, q := range qs {
		// Nearest rank: the first value whose cumulative count reaches ⌈q·count⌉, at least 1.
		want := int(q * float64(count))
		if float64(want) < q*float64(count) {
			want++
		}
		want = min(max(want, 1), count)
		seen := 0
		for _, r := range sorted {
			seen += int(r.n)
			if seen >= want {
				values[i] = r.gap
				break
			}
		}
	}
	return values, count
}
