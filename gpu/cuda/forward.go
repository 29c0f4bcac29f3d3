//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"fmt"
	"math"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/model"
)

// position is Row of kernels/layer.cuh.
type position struct{ position, table int32 }

// nowhere is the position of a row that only fills a step up.
const nowhere = -1

// step is a batch as the GPU gets it: what there is of each position, cut into tiles, with the block tables. The
// device has one, for its memory.
type step struct {
	// n is the positions. They are more than the batch's where those of a decode step are filled up.
	n int
	// decode says that every sequence has one position and one row, answered on the GPU. Such a step is the
	// same launches with the same parameters whenever it has the same size, the same stages, and its work is split
	// alike; all else is in memory.
	decode bool
	tables uint64
	tiles  []tileOf
}

// tileOf is a tile of a batch: its positions, and the rows that ask about them.
type tileOf struct {
	first, n       int // of the step's positions
	from, to       int // of its rows
	tokens, places uint64
	work           work
	chunks         [2]int // of the answers' chunks: from, to
}

// run computes a batch that has been checked.
func (d *Device) run(b *gpu.Batch, r *gpu.Result) error {
	for _, c := range b.Copies {
		if err := d.copy(c); err != nil {
			return err
		}
	}
	if err := d.say(b, r); err != nil {
		return err
	}
	if d.in.used > 0 {
		if err := cu.MemcpyHtoDAsync(d.in.device, unsafe.Pointer(&d.in.host[0]), int64(d.in.used), d.stream); err != nil {
			return driver.Explain(err)
		}
	}
	launch := d.launchStep
	if d.step.decode && !d.graphs.off {
		launch = d.launchDecodes
	}
	if err := launch(); err != nil {
		return err
	}
	return d.answers.finish()
}

// launchStep puts all kernels of the step on the stream.
func (d *Device) launchStep() error {
	for i := range d.step.tiles {
		t := &d.step.tiles[i]
		if err := d.forward(t, d.step.tables); err != nil {
			return err
		}
		if err := d.answers.answer(t); err != nil {
			return err
		}
	}
	return nil
}

// tileRows is the most positions of a tile.
func (d *Device) tileRows() int {
	return min(tileRows, d.config.MaxTokens, mostChoices/max(1, d.model.Experts.Used))
}

// say puts all that the GPU needs to know of a batch on the stage, and makes room for its answers. What there is
// of each position and row comes first, so that it lies at the same addresses in all steps of a size.
func (d *Device) say(b *gpu.Batch, r *gpu.Result) error {
	s, n, rows := &d.step, len(b.Tokens), len(b.Rows)
	if s.decode = d.decodes(b); s.decode {
		n = d.size(n)
		rows = n
	}
	s.n = n
	most := aligned(4*n) + aligned(8*n) + aligned(16*n) + 2*aligned(4*rows) + aligned(int(unsafe.Sizeof(choice{}))*rows) +
		aligned(4*len(b.Blocks)) + aligned(4*len(b.History)) + aligned(8*len(b.Bias)) + aligned(4*len(b.Masks))
	if most > math.MaxInt32 { // choices count bytes in 32 bits
		return fmt.Errorf("the batch says %s, of which the CUDA device takes no more than 2 GiB: let fewer sequences run together", gib(int64(most)))
	}
	in, out := d.in.device, d.out.device
	if err := d.in.room(d, "what a batch says", most); err != nil {
		return err
	}
	tokens, tokensAt := take[int32](&d.in, n)
	clear(tokens[copy(tokens, b.Tokens):])
	places, placesAt := take[position](&d.in, n)
	groups, groupsAt := take[group](&d.in, n)
	if err := d.answers.begin(d, b, r, rows); err != nil {
		return err
	}
	if d.in.device != in || d.out.device != out { // graphs know where the stages were
		if err := d.graphs.drop(); err != nil {
			return fmt.Errorf("destroying graphs: %w", err)
		}
	}
	s.tables = put(&d.in, b.Blocks)
	d.answers.pool()
	s.tiles = s.tiles[:0]
	span, row := 0, 0
	for first := 0; first < n; {
		t := tileOf{first: first, n: min(d.tileRows(), n-first), from: row}
		t.tokens, t.places, t.work.at = tokensAt+uint64(4*first), placesAt+uint64(8*first), groupsAt+uint64(16*first)
		mine := groups[first:first]
		longest := 0
		for i := range t.n {
			if first+i >= len(b.Tokens) {
				places[first+i] = position{nowhere, 0}
				mine = append(mine, group{first: int32(i)})
				continue
			}
			for int32(first+i) >= b.Spans[span].First+b.Spans[span].Len {
				span++
			}
			// Tables have no stride of their own for the kernels, since that changes from step to step.
			p, table := b.Positions[first+i], int32(span*b.Stride)
			places[first+i] = position{p, table}
			longest = max(longest, int(p)+1)
			if k := len(mine); k > 0 && mine[k-1].table == table && int(mine[k-1].rows) < d.attention.rows {
				mine[k-1].rows++
				continue
			}
			mine = append(mine, group{int32(i), 1, p, table})
		}
		if s.decode {
			longest = lengthClass(longest)
		}
		t.work.groups = len(mine)
		t.work.parts, t.work.per = d.attention.split(d, t.n, len(mine), longest)
		for row < len(b.Rows) && int(b.Rows[row].Token) < first+t.n {
			row++
		}
		if t.to = row; s.decode {
			t.to = n
		}
		d.answers.plan(&t)
		s.tiles = append(s.tiles, t)
		first += t.n
	}
	return nil
}

// usualBytes are what the stages need for batches without penalties, biases and the like: of what a batch says and
// of its answers.
func (d *Device) usualBytes() (in, out int) {
	c, n := &d.config, d.config.MaxTokens
	tables := min(c.MaxSeqs*ceil(c.MaxContext, c.BlockSize), 1<<20)
	return n*(4+8+16+2*4+int(unsafe.Sizeof(choice{}))) + 4*tables + 8*stageAlign, 16*n + 2*stageAlign
}

// decodes says whether a batch is a step of decodes alone: see step.
func (d *Device) decodes(b *gpu.Batch) bool {
	n := len(b.Tokens)
	if n == 0 || len(b.Spans) != n || len(b.Rows) != n || n > d.tileRows() {
		return false
	}
	for i := range b.Rows {
		if row := &b.Rows[i]; int(row.Token) != i || row.Kind == gpu.Pool || row.Top > mostTop {
			return false
		}
	}
	return true
}

// size is how many positions a decode step of n is filled up to: 1, 2, 4, 8, and from there on multiples of 8, of
// 16 above 64, and of 32 above 256. So there are few sizes, while at most half of a step is filling, and above 16
// at most a third, much of which products that take several columns at a time have for nothing.
func (d *Device) size(n int) int {
	unit := 1
	switch {
	case n > 256:
		unit = 32
	case n > 64:
		unit = 16
	case n > 4:
		unit = 8
	case n > 2:
		unit = 4
	}
	return min(whole(n, unit), d.tileRows())
}

// lengthClass is the power of two, or one and a half of it, that n keys of a decode step are taken for when their
// work is split: lengths grow with every step, and should not change the launches each time.
func lengthClass(n int) int {
	power := 4
	for power < n {
		power *= 2
	}
	if n <= power/4*3 {
		return power / 4 * 3
	}
	return power
}

// norm stores x after a norm in hidden, in the forms of which.
func (d *Device) norm(weight uint64, which form, n int) error {
	return d.store(d.normalise, shape{x: 1, y: n, threads: threadsFor(d.model.Width/4, 256)}, which, d.hidden, d.x.at, weight, uint64(d.model.Width), uint64(d.x.stride), bits(d.model.NormEps))
}

// forward takes a tile through all layers: its keys and values go to the cache, and hidden gets the
// hidden states after the last norm.
func (d *Device) forward(t *tileOf, tables uint64) error {
	mc, n := d.model, t.n
	e := &d.embedding.stacks[0]
	err := d.module.launchOn(e, e.embed, shape{x: n, threads: threadsFor(rowUnits(mc.Width), 128)}, t.tokens, d.x.at, uint64(rowUnits(mc.Width)), uint64(d.x.stride), bits(cmp.Or(mc.EmbeddingScale, 1)))
	if err != nil {
		return err
	}
	for i := range d.layers {
		l := &d.layers[i]
		if err := d.norm(l.attentionNorm, l.qkv.forms(n == 1), n); err != nil {
			return err
		}
		if err := d.multiply(l.qkv, d.hidden, d.qkv, n, false); err != nil {
			return err
		}
		if err := d.rotateTo(l, i, t, tables); err != nil {
			return err
		}
		if err := d.attendTo(&t.work, i, n, tables); err != nil {
			return err
		}
		if err := d.prepareFor(l.output, d.attended, n); err != nil {
			return err
		}
		if err := d.addTo(l.output, d.attended, l.postAttentionNorm, n); err != nil {
			return err
		}
		if err := d.norm(l.ffnNorm, l.fed(n), n); err != nil {
			return err
		}
		if err := d.feed(l, t); err != nil {
			return err
		}
	}
	return d.norm(d.outputNorm, asFloats, n)
}

// fed is how the feed-forward of a layer takes n rows.
func (l *layer) fed(n int) form {
	if l.mixture != nil { // they are gathered for the experts
		return l.mixture.router.forms(n == 1) | asFloats
	}
	return l.gateUp.forms(n == 1)
}

// feed adds what the feed-forward of a layer, or its experts, say of a tile's rows hidden to the residual stream.
func (d *Device) feed(l *layer, t *tileOf) error {
	if l.mixture != nil {
		return d.feedMixture(l, t)
	}
	n := t.n
	if err := d.multiply(l.gateUp, d.hidden, d.gateUp, n, false); err != nil {
		return err
	}
	if err := d.gateTo(d.gateUp, l.down.forms(n == 1), d.gated, d.model.FFN, n); err != nil {
		return err
	}
	return d.addTo(l.down, d.gated, l.postFFNNorm, n)
}

// gateTo gates n rows of x, which are inner gates and then what these gate, and stores them in y, in the forms of
// which.
func (d *Device) gateTo(x rows, which form, y rows, inner, n int) error {
	s := shape{x: ceil(inner, 256), y: n, threads: 256}
	if which&asHalves != 0 { // a row's largest value must be known
		s.x, s.threads = 1, threadsFor(inner, 512)
	}
	return d.store(d.gate, s, which, y, x.at, uint64(inner), uint64(x.stride), one(d.model.Gate == model.GELU))
}

// gatherTo stores n rows of x, of a hidden state each, in y, in the forms of which; indices on the GPU say which rows.
func (d *Device) gatherTo(x rows, indices uint64, which form, y rows, n int) error {
	return d.store(d.gather, shape{x: 1, y: n, threads: threadsFor(d.model.Width, 256)}, which, y, x.at, indices, uint64(d.model.Width), uint64(x.stride))
}

// one is 1 for true.
func one(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// addTo adds the products of l and n rows y to the residual stream, after a norm of their own if there is
// one.
func (d *Device) addTo(l *linear, y rows, norm uint64, n int) error {
	if norm == 0 {
		return d.multiply(l, y, d.x, n, true)
	}
	if err := d.multiply(l, y, d.update, n, false); err != nil {
		return err
	}
	return d.addUpdate(norm, n)
}

// addUpdate adds n rows of update, after a norm, to the residual stream.
func (d *Device) addUpdate(norm uint64, n int) error {
	return d.module.launch(d.addNormalised, shape{x: n, threads: threadsFor(d.model.Width/4, 256)}, d.update.at, norm, d.x.at,
		uint64(d.model.Width), uint64(d.x.stride), bits(d.model.NormEps))
}

// rotateTo makes the tile's queries, keys and values of layer i ready.
func (d *Device) rotateTo(l *layer, i int, t *tileOf, tables uint64) error {
	mc := d.model
	turns, pairs, scale := d.turns, d.pairs, d.scale
	switch mc.AttentionOf(i).Positions {
	case model.LocalPositions:
		turns, scale = d.localTurns, 1
	case model.NoPositions:
		pairs = 0
	}
	s := shape{x: t.n, y: mc.Heads + 2*mc.KVHeads, threads: threadsFor(mc.HeadDim, 128), shared: 4 * mc.HeadDim}
	return d.module.launch(d.rotate, s, d.qkv.at, uint64(d.qkv.stride), t.places, tables, l.qkvBias, l.queryNorm, l.keyNorm, bits(mc.NormEps),
		turns, uint64(pairs), one(mc.RopeHalves), bits(scale), d.cache.numbers.ofLayer(i), d.cache.scales.ofLayer(i), uint64(mc.Heads), uint64(mc.KVHeads), uint64(mc.HeadDim), uint64(d.config.BlockSize))
}
