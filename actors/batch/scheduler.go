package batch

import (
	"errors"
	"fmt"

	"github.com/troupe-llm/troupe/lifecycle"
)

// Config is a scheduler's fixed properties.
type Config struct {
	BlockSize  int     // tokens per KV cache block, at least 1
	NumBlocks  int     // KV cache blocks, numbered from 0, at least 1
	MaxSeqs    int     // most sequences that run at once; slots are 0 … MaxSeqs−1
	MaxTokens  int     // most tokens in one step
	MaxContext int     // longest sequence, prompt and output, in tokens
	EOS        []int32 // the model's end tokens
	Vocab      int     // size of a logits row; 0 leaves token ids unchecked and Params.Allowed unused
	// PrefixCache lets a sequence take blocks that another, or itself before a preemption, has
	// computed. Forks within a request's prompt don't depend on it.
	PrefixCache bool
}

// Scheduler holds all sequences from their Submit to their end and plans the steps. See the
// package's documentation for how to drive it. It is not safe for concurrent use.
type Scheduler struct {
	c         Config
	pool      pool
	slots     []int32 // free ones; the last is taken next
	live      map[lifecycle.SeqID]*sequence
	owners    map[any]*sequence // head of the list of an owner's sequences
	groups    map[groupKey]*group
	keeping   []*group // those with kept blocks
	samplings map[*lifecycle.Params]*sampling
	// running and waiting hold each live sequence once, in order.
	running, waiting []*sequence
	deadlines        deadlines
	allowed          func(lifecycle.SeqID) bool
	plan             plan
	waits            waitClocks
	baseline         baseline
	steps            uint64
	stats            Stats
	events, sent     []Event
	found            []int32 // hits' result
	tokens           []int32 // extend's scratch, as hashed is
	hashed           []byte
}

// New returns an empty scheduler. The error names the field that makes no sense.
func New(c Config) (*Scheduler, error) {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{
		{"BlockSize", c.BlockSize}, {"NumBlocks", c.NumBlocks}, {"MaxSeqs", c.MaxSeqs},
		{"MaxTokens", c.MaxTokens}, {"MaxContext", c.MaxContext},
	} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("batch: Config.%s is %d, but must be at least 1", f.name, f.value))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &Scheduler{
		c:         c,
		pool:      newPool(c.NumBlocks),
		slots:     make([]int32, c.MaxSeqs),
		live:      make(map[lifecycle.SeqID]*sequence),
		owners:    make(map[any]*sequence),
		groups:    make(map[groupKey]*group),
		samplings: make(map[*lifecycle.Params]*sampling),
	}
	for i := range s.slots {
		s.slots[i] = int32(c.MaxSeqs - 1 - i)
	}
	return s, nil
}

// Submit adds a sequence. The scheduler keeps sub. owner is handed back in each Event about the
// sequence; it must be comparable. A Submit of a sequence that is there already replaces it,
// silently, when its epoch is newer, and is ignored otherwise. A sequence that can never run is
// answered with Failed; one that has all its tokens with Finished.
func (s *Scheduler) Submit(now int64, sub *lifecycle.Submit, owner any) {
	s.waits.advance(now)
	if old := s.live[sub.ID]; old != nil {
		if sub.Epoch <= old.sub.Epoch {
			return
		}
		s.remove(old)
	}
	q := &sequence{sub: sub, owner: owner, copyFrom: -1, deadlineIndex: -1}
	if err := s.check(sub); err != nil {
		s.emitLast(q, &lifecycle.Failed{Head: q.head(now), Err: err})
		return
	}
	p := sub.Params
	q.output = append(q.output, sub.Output...)
	if n := len(q.output); n > 0 && n >= p.MaxTokens || q.known() >= s.c.MaxContext && p.MaxTokens > 0 {
		s.emitLast(q, &lifecycle.Finished{Head: q.head(now), Reason: lifecycle.ReasonLength})
		return
	}
	q.scored = 1
	if len(q.output) > 0 {
		// It had finished its prefill before: the scores have been delivered.
		q.scored = len(sub.Prompt)
	}
	q.clocks, q.ahead = s.waits, place(s.waiting, q)
	q.sampling = s.useSampling(p)
	s.join(q)
	s.live[sub.ID] = q
	s.stats.Output += len(q.output)
	s.own(q)
	s.waiting = insert(s.waiting, q)
	if sub.Deadline != 0 {
		s.deadlines.push(q)
	}
}

// check says why sub can never run.
func (s *Scheduler) check(sub *lifecycle.Submit) *lifecycle.Error {
	refuse := func(param, format string, args ...any) *lifecycle.Error {
		return &lifecycle.Error{
			Status: 400, Type: "invalid_request_error", Param: param, Message: fmt.Sprintf(format, args...),
		}
	}
	n := len(sub.Prompt)
	switch {
	case sub.Params == nil:
		return refuse("", "the sequence has no sampling parameters")
	case n == 0:
		return refuse("prompt", "the prompt has no tokens; at least one is needed")
	case sub.Params.MaxTokens < 0:
		return refuse("max_tokens", "max_tokens is %d, but must not be negative", sub.Params.MaxTokens)
	case n+min(sub.Params.MaxTokens, 1) > s.c.MaxContext:
		err := refuse("prompt", "the prompt has %d tokens and at least %d must be generated, but the context holds %d; shorten the prompt",
			n, min(sub.Params.MaxTokens, 1), s.c.MaxContext)
		err.Code = "context_length_exceeded"
		return err
	}
	if need := s.c.blocksFor(s.c.longest(sub)); need > s.c.NumBlocks {
		err := refuse("max_tokens", "a context of %d tokens needs %d blocks of the KV cache, which has %d; ask for fewer tokens, or give the cache more memory",
			s.c.longest(sub), need, s.c.NumBlocks)
		err.Code = "context_length_exceeded"
		return err
	}
	if s.c.Vocab == 0 {
		return nil
	}
	// A device refuses a whole step for one id that it does not have.
	known := func(id int32) bool { return id >= 0 && int(id) < s.c.Vocab }
	for _, tokens := range [][]int32{sub.Prompt, sub.Output} {
		for _, t := range tokens {
			if !known(t) {
				return refuse("prompt", "token id %d is not in the vocabulary of %d", t, s.c.Vocab)
			}
		}
	}
	for _, b := range sub.Params.LogitBias {
		if !known(b.ID) {
			return refuse("logit_bias", "token id %d is not in the vocabulary of %d", b.ID, s.c.Vocab)
		}
	}
	if n := max(sub.Params.Logprobs, sub.Params.PromptLogprobs); n > s.c.Vocab {
		return refuse("logprobs", "%d alternatives are wanted of a vocabulary of %d", n, s.c.Vocab)
	}
	return nil
}

// Cancel ends a sequence with Finished{cancelled}, in whatever state it is, and frees what it holds
// at once. An unknown sequence, or one of another epoch, is ignored.
func (s *Scheduler) Cancel(now int64, id lifecycle.SeqID, epoch uint32) {
	if q := s.live[id]; q != nil && q.sub.Epoch == epoch {
		s.finish(now, q, lifecycle.ReasonCancelled)
	}
}

// CancelOwner drops all sequences of an owner that is no more, without a message. A step that is
// under way may be committed; their part of it is ignored.
func (s *Scheduler) CancelOwner(now int64, owner any) {
	s.waits.advance(now)
	for q := s.owners[owner]; q != nil; q = s.owners[owner] {
		s.remove(q)
	}
}

// Expire ends the sequences whose deadline has passed, with Finished{timeout}. Plan does this too.
func (s *Scheduler) Expire(now int64) {
	for len(s.deadlines) > 0 && s.deadlines[0].sub.Deadline <= now {
		s.finish(now, s.deadlines[0], lifecycle.ReasonTimeout)
	}
}

// NextDeadline returns the earliest deadline of all sequences, 0 when none has one.
func (s *Scheduler) NextDeadline() int64 {
	if len(s.deadlines) == 0 {
		return 0
	}
	return s.deadlines[0].sub.Deadline
}

// Fail ends one sequence with Failed; an unknown one is ignored.
func (s *Scheduler) Fail(now int64, id lifecycle.SeqID, err *lifecycle.Error) {
	if q := s.live[id]; q != nil {
		s.fail(now, q, err)
	}
}

// FailAll ends every sequence with Failed.
func (s *Scheduler) FailAll(now int64, err *lifecycle.Error) {
	for len(s.running) > 0 {
		s.fail(now, s.running[0], err)
	}
	for len(s.waiting) > 0 {
		s.fail(now, s.waiting[len(s.waiting)-1], err)
	}
}

// Recompute is for a device that has lost its KV cache: every running sequence goes back to its
// place among the waiting and hears Preempted{why}; the prefix cache is emptied. A plan not yet
// committed is void.
func (s *Scheduler) Recompute(now int64, why lifecycle.Why) {
	for i := len(s.running) - 1; i >= 0; i-- {
		s.preempt(now, s.running[i], why)
	}
	s.reclaim(nil)
	s.pool.forgetAll()
	// Until the next plan they wait for the device, not for a slot or blocks.
	s.waits.advance(now)
	s.waits.binding = bindNothing
}

// Restrict lets only sequences run that allowed approves of, until it is called again; nil lifts
// the restriction. Running ones that are not approved of go back to the waiting with
// Preempted{device_restart}: this is for finding, by bisection, which sequence makes the device
// fail. The caller goes on to use Plan and Commit; Plan returns 0 when no allowed sequence is left.
func (s *Scheduler) Restrict(now int64, allowed func(lifecycle.SeqID) bool) {
	s.allowed = allowed
	if allowed == nil {
		return
	}
	for i := len(s.running) - 1; i >= 0; i-- {
		if q := s.running[i]; !allowed(q.sub.ID) {
			s.preempt(now, q, lifecycle.WhyDevice)
		}
	}
}

// Len is the number of sequences in the scheduler, running and waiting.
func (s *Scheduler) Len() int { return len(s.live) }

// finish ends q without a token.
func (s *Scheduler) finish(now int64, q *sequence, why lifecycle.Reason) {
	s.waits.advance(now)
	s.remove(q)
	s.emitLast(q, &lifecycle.Finished{Head: q.head(now), Reason: why})
}

func (s *Scheduler) fail(now int64, q *sequence, err *lifecycle.Error) {
	s.waits.advance(now)
	s.remove(q)
	s.emitLast(q, &lifecycle.Failed{Head: q.head(now), Err: err})
}

// preempt takes a running sequence's place and blocks and puts it back among the waiting.
func (s *Scheduler) preempt(now int64, q *sequence, why lifecycle.Why) {
	s.running = remove(s.running, q)
	s.stop(q)
	s.waiting = insert(s.waiting, q)
	if why == lifecycle.WhyBlocks {
		s.stats.Preemptions++
	}
	s.emit(q, &lifecycle.Preempted{Head: q.head(now), Why: why})
}

// stop gives back what a running sequence holds.
func (s *Scheduler) stop(q *sequence) {
	if q.copyFrom >= 0 {
		s.pool.release(q.copyFrom)
		q.copyFrom = -1
	}
	s.pool.releaseAll(q.table)
	q.table = q.table[:0]
	s.slots = append(s.slots, q.slot)
	q.running, q.prefilled = false, false
	q.computed, q.stored, q.plan = 0, 0, 0
}

// remove takes q out of the scheduler.
func (s *Scheduler) remove(q *sequence) {
	s.stats.Output -= len(q.output)
	s.leave(q)
	if q.running {
		s.running = remove(s.running, q)
		s.stop(q)
	} else {
		s.waiting = remove(s.waiting, q)
	}
	s.deadlines.remove(q)
	s.dropSampling(q.sampling)
	delete(s.live, q.sub.ID)
	s.disown(q)
}

// own enters q in its owner's list.
func (s *Scheduler) own(q *sequence) {
	q.ownerNext = s.owners[q.owner]
	if q.ownerNext != nil {
		q.ownerNext.ownerPrev = q
	}
	s.owners[q.owner] = q
}

func (s *Scheduler) disown(q *sequence) {
	if q.ownerNext != nil {
		q.ownerNext.ownerPrev = q.ownerPrev
	}
	switch {
	case q.ownerPrev != nil:
		q.ownerPrev.ownerNext = q.ownerNext
	case q.ownerNext != nil:
		s.owners[q.owner] = q.ownerNext
	default:
		delete(s.owners, q.owner)
	}
	q.ownerNext, q.ownerPrev = nil, nil
}
