package sim

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
)

func TestCheckAcceptsASequenceThatIsComputedInOrder(t *testing.T) {
	s := open(t, Options{Check: true})
	run(t, s, prefill(1, 2, 3, 4, 5, 6))
	run(t, s, decode(6, 7))
	b := decode(7, 8)
	b.Copies = []gpu.Copy{{From: 1, To: 5}} // the same in another block
	b.Blocks[1] = 5
	run(t, s, b)
	b = decode(4, 9) // another sequence that shares the first block
	b.Blocks[1] = 7
	run(t, s, b)
}

func TestCheckNoticesABlockThatHoldsOtherTokens(t *testing.T) {
	s := open(t, Options{Check: true})
	b := prefill(9, 9, 9, 9)
	run(t, s, b)
	b.Blocks[0] = 3
	run(t, s, b)                      // the same tokens in block 3
	run(t, s, prefill(1, 2, 3, 4, 5)) // blocks 0 and 1
	x := decode(5, 6)
	x.Blocks[0] = 3 // not what block 1's were computed after
	err := s.Run(x, &gpu.Result{})
	var p *ProtocolError
	if !errors.As(err, &p) || p.Span != 0 || !strings.Contains(p.Reason, "position 4, in block 1, was computed after other tokens") {
		t.Fatalf("%v", err)
	}
}

func TestCheckNamesWhatBreaksTheRules(t *testing.T) {
	for name, x := range map[string]struct {
		spoil func(*gpu.Batch)
		says  string
	}{
		"never written":       {func(b *gpu.Batch) { b.Blocks[0] = 9 }, "never written"},
		"too many tokens":     {func(b *gpu.Batch) { b.Tokens = make([]int32, 17) }, "17 tokens"},
		"too many spans":      {func(b *gpu.Batch) { b.Spans = make([]gpu.Span, 5) }, "5 spans"},
		"positions":           {func(b *gpu.Batch) { b.Positions = nil }, "0 positions"},
		"wrong position":      {func(b *gpu.Batch) { b.Positions[0]++ }, "should be 5"},
		"table":               {func(b *gpu.Batch) { b.Blocks = b.Blocks[1:] }, "block table entries"},
		"table entry":         {func(b *gpu.Batch) { b.Blocks[1] = -1 }, "entry 1"},
		"entry past the end":  {func(b *gpu.Batch) { b.Blocks, b.Stride = append(b.Blocks, 3), 3 }, "entry 2"},
		"no room":             {func(b *gpu.Batch) { b.Blocks, b.Stride = b.Blocks[:1], 1 }, "do not fit"},
		"block out of range":  {func(b *gpu.Batch) { b.Blocks[1] = 1 << 20 }, "entry 1"},
		"token":               {func(b *gpu.Batch) { b.Tokens[0] = DefaultVocab }, "token id"},
		"copy":                {func(b *gpu.Batch) { b.Copies = []gpu.Copy{{From: 0, To: -1}} }, "copy 0"},
		"slot":                {func(b *gpu.Batch) { b.Spans[0].Slot = 4 }, "slot 4"},
		"first":               {func(b *gpu.Batch) { b.Spans[0].First = 1 }, "should begin at 0"},
		"length":              {func(b *gpu.Batch) { b.Spans[0].Len = 0 }, "its tokens"},
		"context":             {func(b *gpu.Batch) { b.Spans[0].Start = 32 }, "a context has 32"},
		"tokens of no span":   {func(b *gpu.Batch) { b.Tokens, b.Positions = []int32{7, 8}, []int32{5, 6} }, "1 tokens of 2"},
		"slot twice":          {func(b *gpu.Batch) { second(b, 0) }, "also span 0's"},
		"written twice":       {func(b *gpu.Batch) { second(b, 1) }, "is written by span 0 too"},
		"read while written":  {func(b *gpu.Batch) { second(b, 1); b.Positions[1], b.Spans[1].Start = 6, 6 }, "in the same step"},
		"row order":           {func(b *gpu.Batch) { b.Rows = append(b.Rows, b.Rows[0]); b.Rows[1].Token = -1 }, "after a row"},
		"row's span":          {func(b *gpu.Batch) { b.Rows[0].Span = 1 }, "there are 1 spans"},
		"row's token":         {func(b *gpu.Batch) { b.Rows[0].Token = 1 }, "not the span's"},
		"target":              {func(b *gpu.Batch) { b.Rows[0].Kind, b.Rows[0].Top, b.Rows[0].Target = gpu.Score, 0, -1 }, "target"},
		"score without a top": {func(b *gpu.Batch) { b.Rows[0].Kind = gpu.Score }, "without log probability"},
		"bias":                {func(b *gpu.Batch) { b.Rows[0].BiasLen = 1 }, "biases"},
		"drafts":              {func(b *gpu.Batch) { b.Spans[0].Drafts = 1 }, "drafts"},
		"adapter":             {func(b *gpu.Batch) { b.Spans[0].Adapter = 0 }, "adapter 0"},
		"bias order": {func(b *gpu.Batch) {
			b.Bias = []gpu.Bias{{ID: 2, Value: 1}, {ID: 1, Value: float32(math.Inf(-1))}}
			b.Rows[0].BiasLen = 2
		}, "not sorted"},
		"history": {func(b *gpu.Batch) { b.Rows[0].HistoryLen = 1 }, "history"},
		"mask":    {func(b *gpu.Batch) { b.Rows[0].Mask = 0 }, "mask 0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{Check: true})
			run(t, s, prefill(1, 2, 3, 4, 5))
			b := decode(5, 6)
			x.spoil(b)
			err := s.Run(b, &gpu.Result{})
			var p *ProtocolError
			if !errors.As(err, &p) || !strings.Contains(p.Error(), x.says) {
				t.Fatalf("%v", err)
			}
		})
	}
}

// second adds the same span once more, with another slot.
func second(b *gpu.Batch, slot int32) {
	b.Tokens = append(b.Tokens, b.Tokens[0])
	b.Positions = append(b.Positions, b.Positions[0])
	b.Blocks = append(b.Blocks, b.Blocks...)
	b.Spans = append(b.Spans, b.Spans[0])
	b.Spans[1].First, b.Spans[1].Slot = 1, slot
}
