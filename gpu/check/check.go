// Package check refuses batches that contradict themselves, for the devices that compute.
package check

import (
	"fmt"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sample"
)

// Limits are what a device announced when it was opened, and what it was announced.
type Limits struct {
	Device        string // as errors call it: "host"
	Config        gpu.Config
	Blocks, Vocab int
}

// Checker is the working memory for batches of one device. It is for one goroutine at a time.
type Checker struct {
	Limits
	slots []bool // of the batch at hand
}

// New makes a Checker.
func New(l Limits) *Checker {
	return &Checker{Limits: l, slots: make([]bool, l.Config.MaxSeqs)}
}

// Batch says what is wrong with a batch that would make the device touch what isn't there, or whose rows
// sample.Check refuses.
func (k *Checker) Batch(b *gpu.Batch) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf(k.Device+": bad batch: "+format, args...)
	}
	c := &k.Config
	n := len(b.Tokens)
	switch {
	case n > c.MaxTokens:
		return bad("%d tokens; at most %d were announced", n, c.MaxTokens)
	case len(b.Positions) != n:
		return bad("%d tokens but %d positions", n, len(b.Positions))
	case len(b.Spans) > c.MaxSeqs:
		return bad("%d sequences; at most %d were announced", len(b.Spans), c.MaxSeqs)
	case b.Stride < 0 || len(b.Blocks) < len(b.Spans)*b.Stride:
		return bad("%d block table entries for %d sequences of %d", len(b.Blocks), len(b.Spans), b.Stride)
	}
	for i, t := range b.Tokens {
		if uint32(t) >= uint32(k.Vocab) {
			return bad("token %d is %d; the vocabulary has %d", i, t, k.Vocab)
		}
	}
	for i, p := range b.Copies {
		if uint32(p.From) >= uint32(k.Blocks) || uint32(p.To) >= uint32(k.Blocks) {
			return bad("copy %d goes from block %d to %d; there are %d", i, p.From, p.To, k.Blocks)
		}
	}
	clear(k.slots)
	next := 0
	for i := range b.Spans {
		s := &b.Spans[i]
		switch {
		case int(s.First) != next || s.Len < 1 || int(s.Len) > n-next:
			return bad("span %d has tokens %d to %d of %d; the span before ends at %d", i, s.First, int64(s.First)+int64(s.Len), n, next)
		case s.Start < 0 || int(s.Start)+int(s.Len) > c.MaxContext:
			return bad("span %d has positions %d to %d; sequences of up to %d were announced", i, s.Start, int64(s.Start)+int64(s.Len), c.MaxContext)
		case uint32(s.Slot) >= uint32(c.MaxSeqs) || k.slots[s.Slot]:
			return bad("span %d has slot %d, taken or not among %d", i, s.Slot, c.MaxSeqs)
		case s.Adapter != -1:
			return bad("span %d wants adapter %d; the device has none", i, s.Adapter)
		case s.Drafts < 0 || s.Drafts >= s.Len:
			return bad("span %d has %d drafts among %d tokens", i, s.Drafts, s.Len)
		}
		k.slots[s.Slot] = true
		for j := range s.Len {
			if b.Positions[next+int(j)] != s.Start+j {
				return bad("token %d of span %d has position %d; the span begins at %d", j, i, b.Positions[next+int(j)], s.Start)
			}
		}
		used := (int(s.Start)+int(s.Len)-1)/c.BlockSize + 1
		if used > b.Stride {
			return bad("span %d needs %d blocks; its table has %d", i, used, b.Stride)
		}
		for j, block := range b.Blocks[i*b.Stride:][:used] {
			if uint32(block) >= uint32(k.Blocks) {
				return bad("block %d of span %d is %d; there are %d", j, i, block, k.Blocks)
			}
		}
		next += int(s.Len)
	}
	if next != n {
		return bad("%d tokens, of which spans cover %d", n, next)
	}
	last := int32(0)
	for i := range b.Rows {
		r := &b.Rows[i]
		switch {
		case r.Token < last || int(r.Token) >= n:
			return bad("row %d wants token %d of %d; the row before wants %d", i, r.Token, n, last)
		case uint32(r.Span) >= uint32(len(b.Spans)) || r.Token < b.Spans[r.Span].First || r.Token >= b.Spans[r.Span].First+b.Spans[r.Span].Len:
			return bad("row %d wants token %d of span %d, where it isn't", i, r.Token, r.Span)
		}
		last = r.Token
		if err := sample.Check(b, i, k.Vocab); err != nil {
			return bad("row %d: %w", i, err)
		}
	}
	return nil
}
