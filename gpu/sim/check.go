package sim

import (
	"fmt"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sample"
)

// ProtocolError says how a batch breaks the rules of gpu.Batch.
type ProtocolError struct {
	Span   int // the span at fault, −1 when it is none in particular
	Reason string
}

func (e *ProtocolError) Error() string {
	if e.Span < 0 {
		return "sim: bad batch: " + e.Reason
	}
	return fmt.Sprintf("sim: bad batch: span %d: %s", e.Span, e.Reason)
}

// cache stands for the KV cache. For each position it holds its token and a number that depends on
// all tokens up to there, as keys and values do, so that a block in the wrong table is noticed.
type cache struct {
	blockSize int
	cells     []cell // block × blockSize + offset
	slots     map[int32]int
	writers   map[int]int // cell → span that writes it in this step
}

// cell is one position of one block. Its state is 0 until it is written.
type cell struct {
	token int32
	state uint64
}

func newCache(blocks, blockSize int) *cache {
	return &cache{
		blockSize: blockSize, cells: make([]cell, blocks*blockSize),
		slots: make(map[int32]int), writers: make(map[int]int),
	}
}

// next is the state of a position whose token is t and whose predecessor's state is before.
func next(before uint64, t int32) uint64 {
	if h := mix(before ^ mix(uint64(uint32(t))+1)); h != 0 {
		return h
	}
	return 1
}

// run does to the cache what a step does, and returns a *ProtocolError when b breaks the rules.
func (c *cache) run(b *gpu.Batch, limits *gpu.Config, vocab int) error {
	bad := func(span int, format string, args ...any) error {
		return &ProtocolError{Span: span, Reason: fmt.Sprintf(format, args...)}
	}
	blocks := len(c.cells) / c.blockSize
	switch {
	case len(b.Tokens) > limits.MaxTokens:
		return bad(-1, "it has %d tokens, but at most %d fit", len(b.Tokens), limits.MaxTokens)
	case len(b.Spans) > limits.MaxSeqs:
		return bad(-1, "it has %d spans, but at most %d fit", len(b.Spans), limits.MaxSeqs)
	case len(b.Positions) != len(b.Tokens):
		return bad(-1, "it has %d positions for %d tokens", len(b.Positions), len(b.Tokens))
	case len(b.Blocks) != len(b.Spans)*b.Stride:
		return bad(-1, "it has %d block table entries for %d spans of stride %d", len(b.Blocks), len(b.Spans), b.Stride)
	}
	for _, t := range b.Tokens {
		if t < 0 || int(t) >= vocab {
			return bad(-1, "token id %d is not in the vocabulary of %d", t, vocab)
		}
	}
	for i, p := range b.Copies {
		if p.From < 0 || int(p.From) >= blocks || p.To < 0 || int(p.To) >= blocks || p.From == p.To {
			return bad(-1, "copy %d is from block %d to %d of %d", i, p.From, p.To, blocks)
		}
		copy(c.cells[int(p.To)*c.blockSize:int(p.To+1)*c.blockSize], c.cells[int(p.From)*c.blockSize:])
	}
	clear(c.slots)
	clear(c.writers)
	tokens := int32(0)
	for i := range b.Spans {
		p := &b.Spans[i]
		end := p.Start + p.Len
		other, taken := c.slots[p.Slot]
		switch {
		case p.First != tokens || p.Len < 1 || int(p.First+p.Len) > len(b.Tokens):
			return bad(i, "its tokens are %d … %d, but should begin at %d and end by %d", p.First, p.First+p.Len-1, tokens, len(b.Tokens))
		case p.Drafts < 0 || p.Drafts >= p.Len:
			return bad(i, "%d of its %d tokens are drafts", p.Drafts, p.Len)
		case p.Adapter != -1:
			return bad(i, "it wants adapter %d, but there is none", p.Adapter)
		case p.Start < 0 || int(end) > limits.MaxContext:
			return bad(i, "its positions are %d … %d, but a context has %d", p.Start, end-1, limits.MaxContext)
		case p.Slot < 0 || int(p.Slot) >= limits.MaxSeqs:
			return bad(i, "slot %d is not below %d", p.Slot, limits.MaxSeqs)
		case taken:
			return bad(i, "slot %d is also span %d's", p.Slot, other)
		case int(end) > b.Stride*c.blockSize:
			return bad(i, "its %d positions do not fit a block table of %d", end, b.Stride)
		}
		c.slots[p.Slot] = i
		tokens += p.Len
		table := b.Blocks[i*b.Stride : (i+1)*b.Stride]
		used := (int(end) + c.blockSize - 1) / c.blockSize
		for j, block := range table {
			if j < used && (block < 0 || int(block) >= blocks) || j >= used && block != -1 {
				return bad(i, "entry %d of its block table is %d; it uses %d blocks of %d", j, block, used, blocks)
			}
		}
		for k := range p.Len {
			pos := p.Start + k
			if b.Positions[p.First+k] != pos {
				return bad(i, "position of token %d is %d, but should be %d", p.First+k, b.Positions[p.First+k], pos)
			}
			at := c.cell(table, int(pos))
			if other, taken := c.writers[at]; taken {
				return bad(i, "position %d, in block %d, is written by span %d too", pos, table[int(pos)/c.blockSize], other)
			}
			c.writers[at] = i
		}
	}
	if int(tokens) != len(b.Tokens) {
		return bad(-1, "its spans have %d tokens of %d", tokens, len(b.Tokens))
	}
	// All reads of the step see what all steps before have written.
	for i := range b.Spans {
		if err := c.span(b, i); err != nil {
			return err
		}
	}
	return c.rows(b, vocab)
}

func (c *cache) cell(table []int32, pos int) int {
	return int(table[pos/c.blockSize])*c.blockSize + pos%c.blockSize
}

// span verifies the context of span i and writes its own positions.
func (c *cache) span(b *gpu.Batch, i int) error {
	p := &b.Spans[i]
	table := b.Blocks[i*b.Stride : (i+1)*b.Stride]
	before := uint64(0)
	for pos := range int(p.Start) {
		at := c.cell(table, pos)
		bad := func(format string, args ...any) error {
			return &ProtocolError{Span: i, Reason: fmt.Sprintf("position %d, in block %d, ", pos, table[pos/c.blockSize]) +
				fmt.Sprintf(format, args...)}
		}
		if by, written := c.writers[at]; written {
			return bad("is written by span %d in the same step", by)
		}
		x := c.cells[at]
		if x.state == 0 {
			return bad("was never written")
		}
		if x.state != next(before, x.token) {
			return bad("was computed after other tokens")
		}
		before = x.state
	}
	for k := range p.Len {
		t := b.Tokens[p.First+k]
		before = next(before, t)
		c.cells[c.cell(table, int(p.Start+k))] = cell{t, before}
	}
	return nil
}

// rows checks the rows and what they point to.
func (c *cache) rows(b *gpu.Batch, vocab int) error {
	last := int32(-1)
	for i := range b.Rows {
		r := &b.Rows[i]
		bad := func(format string, args ...any) error {
			return &ProtocolError{Span: int(r.Span), Reason: fmt.Sprintf("row %d: ", i) + fmt.Sprintf(format, args...)}
		}
		if r.Token < last {
			return bad("its token is %d, after a row of token %d", r.Token, last)
		}
		last = r.Token
		if r.Span < 0 || int(r.Span) >= len(b.Spans) {
			return bad("there are %d spans", len(b.Spans))
		}
		if p := &b.Spans[r.Span]; r.Token < p.First || r.Token >= p.First+p.Len {
			return bad("token %d is not the span's", r.Token)
		}
		if err := sample.Check(b, i, vocab); err != nil {
			return bad("%v", err)
		}
		for j := r.BiasFirst + 1; j < r.BiasFirst+r.BiasLen; j++ {
			if b.Bias[j-1].ID >= b.Bias[j].ID {
				return bad("its biases are not sorted by id")
			}
		}
	}
	return nil
}
