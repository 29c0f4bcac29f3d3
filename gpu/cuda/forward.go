//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/model"
)

// position is Row of kernels/layer.cuh.
type position struct{ position, table int32 }

// tileOf is a tile of a batch: its positions, and the rows that ask about them.
type tileOf struct {
	first, n       int // of Batch.Tokens
	from, to       int // of Batch.Rows
	tokens, places uint64
	work           work
}

// run computes a batch that has been checked.
func (d *Device) run(b *gpu.Batch, r *gpu.Result) error {
	for _, c := range b.Copies {
		if err := d.copy(c); err != nil {
			return err
		}
	}
	n := len(b.Tokens)
	most := cap16(4*n) + cap16(8*n) + cap16(4*len(b.Blocks)) + cap16(16*n) + // tokens, positions, tables, groups
		cap16(8*len(b.Rows)) + cap16(int(unsafe.Sizeof(choice{}))*len(b.Rows)) +
		cap16(4*len(b.History)) + cap16(8*len(b.Bias)) + cap16(4*len(b.Masks)) + 64*(n/d.tileRows()+len(b.Rows)+16)
	if err := d.in.room(d, "what a batch says", most); err != nil {
		return err
	}
	tables := put(&d.in, b.Blocks)
	tiles := d.tiles(b)
	a, err := d.newAnswers(b, r)
	if err != nil {
		return err
	}
	for i := range tiles {
		a.plan(&tiles[i])
	}
	if d.in.used > 0 {
		if err := cu.MemcpyHtoDAsync(d.in.device, unsafe.Pointer(&d.in.host[0]), int64(d.in.used), d.stream); err != nil {
			return driver.Explain(err)
		}
	}
	for i := range tiles {
		if err := d.forward(&tiles[i], tables, b.Stride); err != nil {
			return err
		}
		if err := a.answer(&tiles[i]); err != nil {
			return err
		}
	}
	return a.finish()
}

func cap16(n int) int { return (n + 15) &^ 15 }

// tileRows is the most positions of a tile.
func (d *Device) tileRows() int { return min(tileRows, d.config.MaxTokens) }

// tiles cuts a batch into tiles, and puts what the GPU needs to know of each on the stage.
func (d *Device) tiles(b *gpu.Batch) []tileOf {
	var tiles []tileOf
	span, row := 0, 0
	for first := 0; first < len(b.Tokens); {
		n := min(d.tileRows(), len(b.Tokens)-first)
		t := tileOf{first: first, n: n, from: row}
		t.tokens = put(&d.in, b.Tokens[first:][:n])
		places, at := take[position](&d.in, n)
		t.places = at
		var groups []group
		longest := 0
		for i := range places {
			for int32(first+i) >= b.Spans[span].First+b.Spans[span].Len {
				span++
			}
			p := b.Positions[first+i]
			places[i] = position{p, int32(span)}
			longest = max(longest, int(p)+1)
			if k := len(groups); k > 0 && groups[k-1].table == int32(span) && int(groups[k-1].rows) < d.attention.rows {
				groups[k-1].rows++
				continue
			}
			groups = append(groups, group{int32(i), 1, p, int32(span)})
		}
		t.work.groups, t.work.at = groups, put(&d.in, groups)
		t.work.parts, t.work.per = d.attention.split(d, n, len(groups), longest)
		for row < len(b.Rows) && int(b.Rows[row].Token) < first+n {
			row++
		}
		t.to = row
		tiles = append(tiles, t)
		first += n
	}
	return tiles
}

// norm writes x after a norm to hidden.
func (d *Device) norm(weight uint64, n int) error {
	return d.module.launch(d.normalise, shape{x: n, threads: threadsFor(d.model.Width/4, 256)}, d.x.at, weight, d.hidden.at, uint64(d.model.Width), uint64(d.x.stride), bits(d.model.NormEps))
}

// forward takes a tile through all layers: its keys and values go to the cache, and hidden gets the
// hidden states after the last norm.
func (d *Device) forward(t *tileOf, tables uint64, stride int) error {
	mc, n := d.model, t.n
	e := &d.embedding.stacks[0]
	err := d.module.launch(e.embed, shape{x: n, threads: threadsFor(rowUnits(mc.Width), 128)}, uint64(e.planes[quants]), uint64(e.planes[high]), uint64(e.planes[scales]), uint64(e.planes[supers]),
		t.tokens, d.x.at, uint64(rowUnits(mc.Width)), uint64(d.x.stride), bits(cmp.Or(mc.EmbeddingScale, 1)))
	if err != nil {
		return err
	}
	for i := range d.layers {
		l := &d.layers[i]
		if err := d.norm(l.attentionNorm, n); err != nil {
			return err
		}
		if err := d.multiply(l.qkv, d.hidden, d.qkv, n, false); err != nil {
			return err
		}
		if err := d.rotateTo(l, i, t, tables, stride); err != nil {
			return err
		}
		if err := d.attendTo(&t.work, i, n, tables, stride); err != nil {
			return err
		}
		if err := d.addTo(l.output, d.attended, l.postAttentionNorm, n); err != nil {
			return err
		}
		if err := d.norm(l.ffnNorm, n); err != nil {
			return err
		}
		if err := d.multiply(l.gateUp, d.hidden, d.gateUp, n, false); err != nil {
			return err
		}
		if err := d.module.launch(d.gate, shape{x: (mc.FFN + 255) / 256, y: n, threads: 256}, d.gateUp.at, d.gated.at, uint64(mc.FFN), uint64(d.gateUp.stride), uint64(d.gated.stride), one(mc.Gate == model.GELU)); err != nil {
			return err
		}
		if err := d.addTo(l.down, d.gated, l.postFFNNorm, n); err != nil {
			return err
		}
	}
	return d.norm(d.outputNorm, n)
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
	return d.module.launch(d.addNormalised, shape{x: n, threads: threadsFor(d.model.Width/4, 256)}, d.update.at, norm, d.x.at,
		uint64(d.model.Width), uint64(d.x.stride), bits(d.model.NormEps))
}

// rotateTo makes the tile's queries, keys and values of layer i ready.
func (d *Device) rotateTo(l *layer, i int, t *tileOf, tables uint64, stride int) error {
	mc := d.model
	turns, pairs, scale := d.turns, d.pairs, d.scale
	switch mc.AttentionOf(i).Positions {
	case model.LocalPositions:
		turns, scale = d.localTurns, 1
	case model.NoPositions:
		pairs = 0
	}
	s := shape{x: t.n, y: mc.Heads + 2*mc.KVHeads, threads: threadsFor(mc.HeadDim, 128), shared: 4 * mc.HeadDim}
	return d.module.launch(d.rotate, s, d.qkv.at, uint64(d.qkv.stride), t.places, tables, uint64(stride), l.qkvBias, l.queryNorm, l.keyNorm, bits(mc.NormEps),
		turns, uint64(pairs), one(mc.RopeHalves), bits(scale), d.cache.numbers.ofLayer(i), d.cache.scales.ofLayer(i), uint64(mc.Heads), uint64(mc.KVHeads), uint64(mc.HeadDim), uint64(d.config.BlockSize))
}
