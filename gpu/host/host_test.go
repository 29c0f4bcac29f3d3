package host

import (
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
)

// driver runs sequences on a device, each in blocks of its own, for tests.
type driver struct {
	t      testing.TB
	device *Host
	config gpu.Config
	free   []int32
	batch  gpu.Batch
	result gpu.Result
}

// sequence is a sequence that a driver runs.
type sequence struct {
	tokens []int32 // computed and to compute
	done   int     // how many are computed
	blocks []int32
	slot   int32
}

func newDriver(t testing.TB, m *model.Model, c gpu.Config) *driver {
	t.Helper()
	h, err := Open(m, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	d := &driver{t: t, device: h, config: c}
	for i := h.Info().NumBlocks - 1; i >= 0; i-- {
		d.free = append(d.free, int32(i))
	}
	return d
}

// begin empties the batch.
func (d *driver) begin() {
	d.batch.Reset()
	d.batch.Stride = (d.config.MaxContext + d.config.BlockSize - 1) / d.config.BlockSize
}

// span adds the next n tokens of s to the batch and returns the index of the first.
func (d *driver) span(s *sequence, n int) int32 {
	b := &d.batch
	first := int32(len(b.Tokens))
	for i := range n {
		b.Tokens = append(b.Tokens, s.tokens[s.done+i])
		b.Positions = append(b.Positions, int32(s.done+i))
	}
	for len(s.blocks)*d.config.BlockSize < s.done+n {
		s.blocks = append(s.blocks, d.free[len(d.free)-1])
		d.free = d.free[:len(d.free)-1]
	}
	b.Spans = append(b.Spans, gpu.Span{First: first, Len: int32(n), Start: int32(s.done), Slot: s.slot, Adapter: -1})
	for i := range b.Stride {
		block := int32(-1)
		if i < len(s.blocks) {
			block = s.blocks[i]
		}
		b.Blocks = append(b.Blocks, block)
	}
	s.done += n
	return first
}

// score asks for the log probability of target after the given token of the last span.
func (d *driver) score(token, target, top int32) {
	d.batch.Rows = append(d.batch.Rows, gpu.Row{Kind: gpu.Score, Token: token, Span: int32(len(d.batch.Spans) - 1), Target: target, Top: top, Mask: -1})
}

func (d *driver) run() *gpu.Result {
	d.t.Helper()
	if err := d.device.Run(&d.batch, &d.result); err != nil {
		d.t.Fatal(err)
	}
	return &d.result
}
