package batch

import (
	"slices"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

// plan is what the batch of the last Plan holds, for its Commit. Its number is never 0.
type plan struct {
	num     uint64
	entries []entry
	// So many rows, and alternatives in them, will become messages.
	samples, logprobs, tops, scores, scoreTops int
	prefillTokens, decodeTokens                int
}

// entry is one sequence's part of a plan: the span of the same index.
type entry struct {
	q                  *sequence
	tokens             int
	decode             bool
	sample             int32 // the row that samples the next token, −1 for none
	firstScore, scores int32 // the rows that score prompt tokens
}

// Plan fills b with the next step and returns how many sequences it holds; 0 means that nothing can
// run now. It also ends sequences that are out of time and preempts where blocks have run out, so
// there may be Events even then. A plan before that was not committed is void.
func (s *Scheduler) Plan(now int64, b *gpu.Batch) int {
	b.Reset()
	b.MaskWords = (s.c.Vocab + 31) / 32
	clear(s.plan.entries)
	s.plan = plan{num: s.plan.num + 1, entries: s.plan.entries[:0]}
	s.waits.advance(now)
	s.Expire(now)

	budget := s.c.MaxTokens
	budget = s.planDecodes(now, b, budget)
	budget = s.planPrefills(b, budget)
	s.planWaiting(now, b, budget)
	s.fillBlocks(b)
	return len(s.plan.entries)
}

// planDecodes adds the next token of each running sequence whose prefill is done.
func (s *Scheduler) planDecodes(now int64, b *gpu.Batch, budget int) int {
	for i := 0; i < len(s.running) && budget > 0; i++ {
		q := s.running[i]
		if !q.prefilled {
			continue
		}
		if q.computed == len(q.table)*s.c.BlockSize {
			if !s.makeRoom(now, q) {
				break // q was the last in order, and has lost its place
			}
			q.table = append(q.table, s.pool.take())
		}
		s.add(b, q, 1)
		budget--
	}
	return budget
}

// makeRoom sees to it that a block is free for q, by preempting sequences from the last in order
// upwards. It says whether q itself still runs.
func (s *Scheduler) makeRoom(now int64, q *sequence) bool {
	for s.pool.free == 0 {
		if s.reclaim(nil) {
			continue
		}
		victim := s.running[len(s.running)-1]
		s.preempt(now, victim, lifecycle.WhyBlocks)
		if victim == q {
			return false
		}
	}
	return true
}

// planPrefills adds the next chunk of each running sequence whose prefill is not done.
func (s *Scheduler) planPrefills(b *gpu.Batch, budget int) int {
	for i := 0; i < len(s.running) && budget > 0; i++ {
		if q := s.running[i]; !q.prefilled {
			budget -= s.add(b, q, budget)
		}
	}
	return budget
}

// planWaiting starts waiting sequences while there are slots, blocks and budget.
func (s *Scheduler) planWaiting(now int64, b *gpu.Batch, budget int) {
	s.waits.binding = bindNothing
	s.stats.WaitingDeferred = 0
	reserve := -1
	for i := 0; i < len(s.waiting); {
		q := s.waiting[i]
		if s.allowed != nil && !s.allowed(q.sub.ID) || s.deferred(q) {
			s.stats.WaitingDeferred++
			i++
			continue
		}
		if len(s.slots) == 0 {
			s.waits.binding = bindSlot
			return
		}
		if budget == 0 {
			s.waits.binding = bindBudget
			return
		}
		if reserve < 0 {
			reserve = s.growing()
		}
		cached, ok := s.start(q, reserve)
		if !ok {
			s.waits.binding = bindBlocks
			return
		}
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.running = insert(s.running, q)
		if s.mayGrow(q) {
			reserve++
		}
		s.tellStart(now, q, cached)
		budget -= s.add(b, q, budget)
	}
}

// deferred says whether q should wait because another member of its group is computing their
// prompt.
func (s *Scheduler) deferred(q *sequence) bool {
	if q.group == nil {
		return false
	}
	n := q.shared()
	if n == 0 {
		return false
	}
	table, coming := q.group.source(n)
	return table == nil && coming
}

// growing counts the running sequences that may need another block some day.
func (s *Scheduler) growing() int {
	n := 0
	for _, q := range s.running {
		if s.mayGrow(q) {
			n++
		}
	}
	return n
}

func (s *Scheduler) mayGrow(q *sequence) bool {
	return s.c.blocksFor(s.c.longest(q.sub)) > len(q.table)
}

// start gives q a slot and blocks for all its tokens, leaving reserve others free. It returns how
// many of q's tokens the prefix cache held (of the prompt's, when q forks).
func (s *Scheduler) start(q *sequence, reserve int) (cached int, ok bool) {
	for {
		if cached, ok = s.place(q, reserve); ok {
			break
		}
		if s.reclaim(q.group) {
			continue
		}
		// When nothing runs, q must start, if need be without what its group has kept for it.
		if len(s.running) > 0 || !s.reclaim(nil) {
			return 0, false
		}
	}
	last := len(s.slots) - 1
	q.slot, s.slots = s.slots[last], s.slots[:last]
	q.running = true
	if q.group != nil {
		s.trimKept(q.group)
	}
	return cached, true
}

// place fills q's block table from its group's blocks or the prefix cache, whichever has more, and
// from free blocks.
func (s *Scheduler) place(q *sequence, reserve int) (cached int, ok bool) {
	total := s.c.blocksFor(q.known())
	found, foundFree := s.hits(q)
	if q.group != nil {
		n := q.shared()
		table, _ := q.group.source(n)
		if table != nil && n > found*s.c.BlockSize {
			whole := n / s.c.BlockSize
			if s.pool.free < total-whole+reserve {
				return 0, false
			}
			for _, b := range table[:whole] {
				s.pool.share(b)
			}
			q.table = append(q.table, table[:whole]...)
			s.takeUpTo(q, total)
			if n%s.c.BlockSize > 0 {
				q.copyFrom, q.copyTo = table[whole], q.table[whole]
				s.pool.share(q.copyFrom)
			}
			q.computed, q.stored, q.counted = n, whole, len(q.sub.Prompt)
			return max(q.group.cached, 0), true
		}
	}
	if s.pool.free < total-found+foundFree+reserve {
		return 0, false
	}
	for _, b := range s.found {
		s.pool.share(b)
	}
	q.table = append(q.table, s.found...)
	s.takeUpTo(q, total)
	q.computed, q.stored = found*s.c.BlockSize, found
	return q.computed, true
}

func (s *Scheduler) takeUpTo(q *sequence, blocks int) {
	for len(q.table) < blocks {
		q.table = append(q.table, s.pool.take())
	}
}

// tellStart emits Scheduled or Resumed and counts what the prefix cache gave.
func (s *Scheduler) tellStart(now int64, q *sequence, cached int) {
	if q.scheduled {
		s.emit(q, &lifecycle.Resumed{Head: q.head(now), Cached: q.computed})
		return
	}
	q.scheduled = true
	cached = min(cached, len(q.sub.Prompt))
	forked := q.counted > 0
	if !forked {
		if q.reads(&s.c) {
			s.stats.PrefixQueries += uint64(q.known())
			s.stats.PrefixHits += uint64(q.computed)
		}
		s.stats.PromptCached += uint64(cached)
		q.counted = cached
	}
	if g := q.group; g != nil {
		if g.cached < 0 {
			g.cached = cached
		}
		cached = min(g.cached, q.shared())
	}
	s.emit(q, &lifecycle.Scheduled{
		Head: q.head(now), Cached: cached,
		WaitedSlot: s.waits.slot - q.clocks.slot, WaitedBlocks: s.waits.blocks - q.clocks.blocks,
		WaitedBudget: s.waits.budget - q.clocks.budget, Slots: s.c.MaxSeqs, Ahead: q.ahead,
	})
}

// add appends q's next tokens, at most n, to the batch with the rows that they ask for, and returns
// how many they are.
func (s *Scheduler) add(b *gpu.Batch, q *sequence, n int) int {
	if q.copyFrom >= 0 {
		b.Copies = append(b.Copies, gpu.Copy{From: q.copyFrom, To: q.copyTo})
	}
	n = min(n, q.known()-q.computed)
	span := gpu.Span{
		First: int32(len(b.Tokens)), Len: int32(n), Start: int32(q.computed), Slot: q.slot, Adapter: -1,
	}
	b.Spans = append(b.Spans, span)
	b.Tokens = q.appendTokens(b.Tokens, q.computed, q.computed+n)
	for p := q.computed; p < q.computed+n; p++ {
		b.Positions = append(b.Positions, int32(p))
	}
	e := entry{q: q, tokens: n, decode: q.prefilled, sample: -1}
	if e.decode {
		s.plan.decodeTokens += n
	} else {
		s.plan.prefillTokens += n
		e.firstScore, e.scores = s.addScores(b, q, span)
	}
	if q.computed+n == q.known() && q.sampling.params.MaxTokens > 0 {
		e.sample = s.addSample(b, q)
	}
	s.plan.entries = append(s.plan.entries, e)
	q.plan = s.plan.num
	return n
}

// fillBlocks writes the block tables, when it is known how long the longest is.
func (s *Scheduler) fillBlocks(b *gpu.Batch) {
	used := func(i int) int { return s.c.blocksFor(int(b.Spans[i].Start + b.Spans[i].Len)) }
	b.Stride = 0
	for i := range b.Spans {
		b.Stride = max(b.Stride, used(i))
	}
	b.Blocks = slices.Grow(b.Blocks, len(b.Spans)*b.Stride)[:len(b.Spans)*b.Stride]
	for i := range b.Spans {
		row := b.Blocks[i*b.Stride : (i+1)*b.Stride]
		n := copy(row, s.plan.entries[i].q.table[:used(i)])
		for j := n; j < len(row); j++ {
			row[j] = -1
		}
	}
}

// Planned appends to dst the sequences of the last plan that are still alive and whose result still
// matters.
func (s *Scheduler) Planned(dst []lifecycle.SeqID) []lifecycle.SeqID {
	for i := range s.plan.entries {
		if q := s.plan.entries[i].q; q.plan == s.plan.num {
			dst = append(dst, q.sub.ID)
		}
	}
	return dst
}
