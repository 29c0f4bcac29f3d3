package batch

import (
	"cmp"
	"slices"

	"github.com/troupe-llm/troupe/lifecycle"
)

// sequence is one sequence from its Submit to its end.
type sequence struct {
	sub    *lifecycle.Submit
	owner  any
	num    uint32  // messages sent in this epoch
	output []int32 // what the submitter knew, and what was sampled since

	running   bool
	scheduled bool // Scheduled was sent
	prefilled bool // all tokens but the newest are computed: each step is a decode
	slot      int32
	// table is the sequence's blocks: position p lies in table[p/BlockSize]. computed positions of
	// it hold valid keys and values (those that await copyFrom included).
	table    []int32
	computed int
	// copyFrom, when not −1, is the block whose content block copyTo needs before the sequence's
	// next step. The sequence holds a reference to it until that step is committed.
	copyFrom, copyTo int32

	chain   chain
	stored  int // so many of the first blocks have been offered to the prefix cache
	scored  int // prompt log probabilities of positions below this have been delivered
	counted int // prompt positions that the statistics have counted

	// The scheduler's clocks of waiting (see waiting.go) when the sequence was submitted.
	clocks waitClocks
	ahead  int // sequences that waited before it then

	sampling *sampling
	group    *group // nil when it shares its prompt with nobody
	plan     uint64 // the plan that it is part of; 0 when none, or when its result no longer matters

	deadlineIndex        int // in Scheduler.deadlines, −1 when it has none
	ownerNext, ownerPrev *sequence
}

// known is the number of tokens so far.
func (q *sequence) known() int { return len(q.sub.Prompt) + len(q.output) }

// appendTokens appends the tokens of positions from … to−1.
func (q *sequence) appendTokens(dst []int32, from, to int) []int32 {
	n := len(q.sub.Prompt)
	if from < n {
		dst = append(dst, q.sub.Prompt[from:min(to, n)]...)
	}
	if to > n {
		dst = append(dst, q.output[max(from, n)-n:to-n]...)
	}
	return dst
}

// longest is the most positions that the sequence can ever have in the cache. The last token of a
// sequence needs none: nothing follows it.
func (c *Config) longest(sub *lifecycle.Submit) int {
	n := len(sub.Prompt)
	return max(n, n+min(sub.Params.MaxTokens, c.MaxContext-n)-1)
}

// blocksFor is the number of blocks that hold n positions.
func (c *Config) blocksFor(n int) int { return (n + c.BlockSize - 1) / c.BlockSize }

// compare orders sequences: the one to run earlier is less.
func compare(a, b *sequence) int {
	return cmp.Or(
		cmp.Compare(a.sub.Priority, b.sub.Priority),
		cmp.Compare(a.sub.Arrival, b.sub.Arrival),
		cmp.Compare(a.sub.ID.Request, b.sub.ID.Request),
		cmp.Compare(a.sub.ID.Index, b.sub.ID.Index),
	)
}

// place is where q belongs in the list: behind so many.
func place(list []*sequence, q *sequence) int {
	i, _ := slices.BinarySearchFunc(list, q, compare)
	return i
}

// insert puts q in its place.
func insert(list []*sequence, q *sequence) []*sequence { return slices.Insert(list, place(list, q), q) }

// remove takes q out.
func remove(list []*sequence, q *sequence) []*sequence {
	i := place(list, q)
	return slices.Delete(list, i, i+1)
}
