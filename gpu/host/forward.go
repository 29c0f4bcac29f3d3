package host

import (
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
)

// A batch is computed in tiles of up to tileRows positions, each through all layers before the next
// begins: activations need memory for one tile only, and since a row's bits don't depend on which
// rows are computed with it, tiles change nothing.
const tileRows = 128

// row is a position of the tile.
type row struct {
	token    int32
	position int32
	span     int32   // its sequence's in the batch
	blocks   []int32 // its sequence's block table
}

// forward computes the tile in h.rows: its keys and values go to the cache, and h.hidden gets the
// hidden states after the last norm.
func (h *Host) forward() error {
	n := len(h.rows)
	h.attention.window = 0 // there is no plan for these rows
	if err := h.pool.run(h, n, (*Host).embedTask); err != nil {
		return err
	}
	h.norm = h.weights.layers[0].attentionNorm
	if err := h.pool.run(h, n, (*Host).normTask); err != nil {
		return err
	}
	for h.layer = range h.weights.layers {
		l := &h.weights.layers[h.layer]
		if err := h.multiply(&l.qkv, h.hidden, h.qkv, n); err != nil {
			return err
		}
		some := h.rotatedRows(n)
		if err := h.pool.run(h, (n+some-1)/some, (*Host).rotateTask); err != nil {
			return err
		}
		if err := h.attend(); err != nil {
			return err
		}
		if err := h.multiply(&l.output, h.attended, h.update, n); err != nil {
			return err
		}
		h.postNorm, h.norm = l.postAttentionNorm, l.ffnNorm
		if err := h.pool.run(h, n, (*Host).addNormTask); err != nil {
			return err
		}
		if err := h.feed(l, n); err != nil {
			return err
		}
		h.postNorm, h.norm = l.postFFNNorm, h.weights.outputNorm
		if h.layer+1 < len(h.weights.layers) {
			h.norm = h.weights.layers[h.layer+1].attentionNorm
		}
		if err := h.pool.run(h, n, (*Host).addNormTask); err != nil {
			return err
		}
	}
	return nil
}

// feed computes the feed-forward part of a layer: h.update of h.hidden.
func (h *Host) feed(l *layer, n int) error {
	if l.mixture != nil {
		return h.feedMixture(l.mixture, n)
	}
	return h.feedAll(&l.feedForward, n)
}

// feedAll computes one feed-forward for all rows.
func (h *Host) feedAll(f *feedForward, n int) error {
	if err := h.multiply(&f.gateUp, h.hidden, h.gateUp, n); err != nil {
		return err
	}
	if err := h.gateRows(f.down.in, n); err != nil {
		return err
	}
	return h.multiply(&f.down, h.gated, h.update, n)
}

// gateRows computes h.gated of n rows of h.gateUp, whose halves are inner long.
func (h *Host) gateRows(inner, n int) error {
	h.inner, h.pieces = inner, (inner+h.vectors.gatePiece-1)/h.vectors.gatePiece
	return h.pool.run(h, n*h.pieces, (*Host).gateTask)
}

// embedTask begins a row: its token's embedding, and the sines and cosines of its position, which
// all layers use.
func (h *Host) embedTask(_, i int) {
	r, m := &h.rows[i], &h.weights.embedding
	at, x := int(r.token)*m.stride, h.x[i*h.width:][:h.width]
	h.weights.dequantise(x, m.data[at:at+m.stride])
	if h.embeddingScale != 0 {
		h.vectors.scale(x, x, h.embeddingScale)
	}
	turns := h.turns[i*h.turned:][:h.turned]
	for j := range h.ropes {
		turns = h.ropes[j].turns(turns, int(r.position))
	}
}

func (h *Host) normTask(_, i int) {
	h.vectors.rmsNorm(h.hidden[i*h.width:][:h.width], h.x[i*h.width:][:h.width], h.norm, h.eps)
}

// addNormTask adds the update, which may have a norm of its own, to the residual stream, and norms that
// for what comes next.
func (h *Host) addNormTask(worker, i int) {
	update := h.update[i*h.width:][:h.width]
	if h.postNorm != nil {
		h.vectors.rmsNorm(update, update, h.postNorm, h.eps)
	}
	h.vectors.add(h.x[i*h.width:][:h.width], update)
	h.normTask(worker, i)
}

// rotatedRows is how many of n rows are a task for rotateTask. Neighbours go together as far as there is work for
// all workers, since their keys lie side by side: two processors that write there would wait for each other.
func (h *Host) rotatedRows(n int) int { return max(1, min(keyLanes, n/(fewTasks*h.pool.workers))) }

// rotateTask does some successive rows.
func (h *Host) rotateTask(worker, task int) {
	n := h.rotatedRows(len(h.rows))
	for i := task * n; i < min((task+1)*n, len(h.rows)); i++ {
		h.rotateRow(&h.scratch[worker].store, i)
	}
}

// rotateRow turns a row's queries and keys to its position and writes keys and values to the cache.
func (h *Host) rotateRow(s *storeScratch, i int) {
	r, c, l := &h.rows[i], h.cache, &h.weights.layers[h.layer]
	v := h.qkv[i*h.qkvWidth:][:h.qkvWidth]
	if l.qkvBias != nil {
		h.vectors.add(v, l.qkvBias)
	}
	var turns []float32
	if l.positions != model.NoPositions {
		turns = h.ropes[l.positions].cut(h.turns[i*h.turned:])
	}
	for head := range h.heads + c.heads { // the keys follow the queries
		x := v[head*c.dim:][:c.dim]
		if l.queryNorm != nil {
			norm := l.queryNorm
			if head >= h.heads {
				norm = l.keyNorm
			}
			h.vectors.rmsNorm(x, x, norm, h.eps)
		}
		if turns != nil {
			h.rotate(x, turns)
		}
	}
	block, offset := int(r.blocks[int(r.position)/c.blockSize]), int(r.position)%c.blockSize
	for head := range c.heads {
		c.store(s, h.layer, keys, block, head, offset, v[(h.heads+head)*c.dim:])
		c.store(s, h.layer, values, block, head, offset, v[(h.heads+c.heads+head)*c.dim:])
	}
}

func (h *Host) gateTask(_, i int) {
	row, from := i/h.pieces, i%h.pieces*h.vectors.gatePiece
	to := min(from+h.vectors.gatePiece, h.inner)
	gate := h.gateUp[row*2*h.inner:][from:to]
	up := h.gateUp[(row*2+1)*h.inner:][from:to]
	h.gate(h.gated[row*h.inner:][from:to], gate, up)
}

// answer computes what is wanted of the tile's positions: rows from … to of the batch.
func (h *Host) answer(b *gpu.Batch, r *gpu.Result, first, from, to int) error {
	for from < to {
		// As many distinct positions as there is room for logits; pooled rows need none.
		n, last, end := 0, int32(-1), from
		for ; end < to; end++ {
			row := &b.Rows[end]
			at := h.hidden[(int(row.Token)-first)*h.width:][:h.width]
			if row.Kind == gpu.Pool {
				r.Pooled = append(r.Pooled, at...)
				continue
			}
			if row.Token != last {
				if n == h.logitRows {
					break
				}
				copy(h.wanted[n*h.width:], at)
				n, last = n+1, row.Token
			}
			h.logitOf[end-from] = int32(n - 1)
			if end-from+1 == len(h.logitOf) {
				end++
				break
			}
		}
		if n > 0 {
			if err := h.multiply(&h.weights.head, h.wanted, h.logits, n); err != nil {
				return err
			}
			if err := h.capLogits(n); err != nil {
				return err
			}
			h.batch, h.result, h.firstRow = b, r, from
			err := h.pool.run(h, end-from, (*Host).sampleTask)
			if err == nil {
				err = h.firstFailure()
			}
			h.batch, h.result = nil, nil
			if err != nil {
				return err
			}
		}
		from = end
	}
	return nil
}

// softcapPiece is how many logits a task caps: some ten microseconds of work.
const softcapPiece = 8192

// capLogits caps n rows of logits, if the model's are capped.
func (h *Host) capLogits(n int) error {
	if h.logitSoftcap == 0 {
		return nil
	}
	h.pieces = (h.vocab + softcapPiece - 1) / softcapPiece
	return h.pool.run(h, n*h.pieces, (*Host).softcapTask)
}

func (h *Host) softcapTask(_, i int) {
	row, from := i/h.pieces, i%h.pieces*softcapPiece
	h.vectors.softcap(h.logits[row*h.vocab:][from:min(from+softcapPiece, h.vocab)], h.logitSoftcap)
}

func (h *Host) sampleTask(worker, i int) {
	at := h.firstRow + i
	if h.batch.Rows[at].Kind == gpu.Pool {
		return
	}
	w := &h.scratch[worker]
	logits := h.logits[int(h.logitOf[i])*h.vocab:][:h.vocab]
	if err := w.sampler.Row(h.batch, at, logits, h.result); err != nil && (w.err == nil || at < w.errRow) {
		w.err, w.errRow = err, at
	}
}
