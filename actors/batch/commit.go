package batch

import (
	"fmt"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

// slabs are one step's messages and what they point to. Each is allocated in the size that the plan
// has counted, so that appending never moves it; tokens in pieces of slabTokens, since the runtime
// allocates small objects more cheaply, and a receiver who is slow then holds on to less.
type slabs struct {
	more      int // Tokens messages still to come, at most
	prefilled []lifecycle.Prefilled
	tokens    []lifecycle.Tokens
	ids       []int32
	logprobs  []lifecycle.TokenLogprob
	tops      []lifecycle.IDLogprob
}

const slabTokens = 64

// newTokens returns the next Tokens message, which is empty.
func (m *slabs) newTokens() *lifecycle.Tokens {
	if len(m.tokens) == cap(m.tokens) {
		m.tokens = make([]lifecycle.Tokens, 0, min(slabTokens, m.more))
	}
	m.more--
	m.tokens = m.tokens[:len(m.tokens)+1]
	return &m.tokens[len(m.tokens)-1]
}

// Commit takes in what the device made of the last plan. step comes with Start and End set; Commit
// fills in the rest and the messages share it. Sequences that have gone since the plan are passed
// over. Without a plan it does nothing.
func (s *Scheduler) Commit(step *lifecycle.Step, r *gpu.Result) {
	p := &s.plan
	if len(p.entries) == 0 {
		return
	}
	s.describe(step)
	prefills := 0
	for i := range p.entries {
		if !p.entries[i].decode {
			prefills++
		}
	}
	m := slabs{
		prefilled: make([]lifecycle.Prefilled, 0, prefills),
		more:      p.samples,
		ids:       make([]int32, 0, p.samples),
	}
	if n := p.logprobs + p.scores; n > 0 {
		m.logprobs = make([]lifecycle.TokenLogprob, 0, n)
		m.tops = make([]lifecycle.IDLogprob, 0, p.tops+p.scoreTops)
	}
	for i := range p.entries {
		e := &p.entries[i]
		if e.q.plan == p.num {
			e.q.plan = 0
			s.commit(step, r, e, &m)
		}
	}
	clear(p.entries)
	p.entries = p.entries[:0]
}

// describe fills in what the step was.
func (s *Scheduler) describe(step *lifecycle.Step) {
	s.steps++
	p := &s.plan
	step.Num = s.steps
	step.Sequences = len(p.entries)
	step.PrefillTokens, step.DecodeTokens = p.prefillTokens, p.decodeTokens
	s.stats.IterationTokens = p.prefillTokens + p.decodeTokens
	if p.decodeTokens == 0 {
		return
	}
	// A decode entry is one token while nothing is drafted.
	decodes := p.decodeTokens
	step.Baseline = s.baseline.median(decodes)
	if p.prefillTokens == 0 {
		s.baseline.add(decodes, step.End-step.Start)
	}
}

// commit takes in one sequence's part.
func (s *Scheduler) commit(step *lifecycle.Step, r *gpu.Result, e *entry, m *slabs) {
	q := e.q
	if q.copyFrom >= 0 {
		s.pool.release(q.copyFrom)
		q.copyFrom = -1
	}
	q.computed += e.tokens
	s.storeFull(q)
	if !e.decode {
		s.commitPrefill(step, r, e, m)
	}
	if q.computed < q.known() {
		return
	}
	if e.sample < 0 { // the prompt alone was wanted
		s.remove(q)
		s.emitLast(q, &lifecycle.Finished{Head: q.head(step.End), Reason: lifecycle.ReasonLength})
		return
	}
	id := r.Tokens[e.sample]
	if id < 0 || s.c.Vocab > 0 && int(id) >= s.c.Vocab {
		s.fail(step.End, q, &lifecycle.Error{
			Status: 500, Type: "server_error",
			Message: fmt.Sprintf("the device sampled token %d, which is not in the vocabulary of %d", id, s.c.Vocab),
		})
		return
	}
	q.prefilled = true
	q.output = append(q.output, id)
	s.stats.Output++
	s.stats.Generated++

	m.ids = append(m.ids, id)
	t := m.newTokens()
	t.Head, t.Step, t.StopToken = q.head(step.End), step, -1
	t.IDs = m.ids[len(m.ids)-1 : len(m.ids) : len(m.ids)]
	if top := q.sampling.row.Top; top >= 0 {
		t.Logprobs = m.addLogprobs(r, e.sample, 1, int(top))
	}
	t.Reason = s.ending(q, id)
	if t.Reason == "" {
		s.emit(q, t)
		return
	}
	if t.Reason == lifecycle.ReasonStop {
		t.StopToken = id
	}
	s.remove(q)
	s.emitLast(q, t)
}

// ending says whether the newest token, id, ends q, and how.
func (s *Scheduler) ending(q *sequence, id int32) lifecycle.Reason {
	p := q.sampling.params
	switch {
	case len(q.output) >= p.MinTokens && q.sampling.isEnd(id):
		return lifecycle.ReasonStop
	case len(q.output) >= p.MaxTokens || q.known() >= s.c.MaxContext:
		return lifecycle.ReasonLength
	}
	return ""
}

// commitPrefill tells of a chunk.
func (s *Scheduler) commitPrefill(step *lifecycle.Step, r *gpu.Result, e *entry, m *slabs) {
	q := e.q
	if n := min(q.computed, len(q.sub.Prompt)); n > q.counted {
		s.stats.PromptComputed += uint64(n - q.counted)
		q.counted = n
	}
	m.prefilled = append(m.prefilled, lifecycle.Prefilled{
		Head: q.head(step.End), Step: step, Tokens: e.tokens, Last: q.computed == q.known(),
	})
	f := &m.prefilled[len(m.prefilled)-1]
	if e.scores > 0 {
		f.ScoreFrom = q.scored
		f.Scores = m.addLogprobs(r, e.firstScore, e.scores, q.sub.Params.PromptLogprobs)
		q.scored += int(e.scores)
	}
	s.emit(q, f)
}

// addLogprobs appends what rows first … first+n−1 say, each with so many alternatives, and returns
// it.
func (m *slabs) addLogprobs(r *gpu.Result, first, n int32, top int) []lifecycle.TokenLogprob {
	from := len(m.logprobs)
	for i := first; i < first+n; i++ {
		l := lifecycle.TokenLogprob{ID: r.Tokens[i], Logprob: r.Logprobs[i], Rank: r.Ranks[i]}
		if top > 0 {
			at := len(m.tops)
			for j := r.TopFirst[i]; j < r.TopFirst[i+1]; j++ {
				m.tops = append(m.tops, lifecycle.IDLogprob{ID: r.TopIDs[j], Logprob: r.TopLogprobs[j]})
			}
			l.Top = m.tops[at:len(m.tops):len(m.tops)]
		}
		m.logprobs = append(m.logprobs, l)
	}
	return m.logprobs[from:len(m.logprobs):len(m.logprobs)]
}
