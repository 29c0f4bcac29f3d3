//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
)

const (
	// mostTop is up to how many alternatives the kernel looks for, one after the other. Rows that want more
	// are answered on the host, by package sample, from the row of logits.
	mostTop = 64
	// chooseThreads is the most threads that a block of the sampling kernel can have.
	chooseThreads = 512
)

// choice is Choice of kernels/sample.cuh.
type choice struct {
	kind, logits                          int32
	top, target                           int32
	temperature, topP, minP               float32
	topK                                  int32
	repetition, presence, frequency       float32
	seedLow, seedHigh                     uint32
	choice, draw                          int32
	history, historyLength, historyPrompt int32
	bias, biasLength, mask                int32
	alternatives                          int32
}

// chosen is Chosen of kernels/sample.cuh.
type chosen struct {
	token   int32
	logprob float32
	rank    int32
	wrong   int32
}

// answers is what a batch's rows ask, and where the answers are.
type answers struct {
	d *Device
	b *gpu.Batch
	r *gpu.Result

	history, bias, masks uint64
	plans                []chunk
	next                 int // plan

	chosen   []chosen // per row
	chosenAt uint64
	ids      []int32
	idsAt    uint64
	tops     []float32
	topsAt   uint64
	pooled   []float32
	pooledAt uint64
	pools    int // pooled so far
}

// chunk is rows whose logits there is memory for at once, or pooled rows.
type chunk struct {
	tile     *tileOf
	from, to int    // rows of the batch
	wanted   uint64 // which positions of the tile: n of them
	n        int
	pool     bool
	choices  uint64
	host     []int32 // rows that are answered on the host, and
	logits   []int32 // their rows of logits
}

// newAnswers makes room for a batch's answers, and stages what rows point to.
func (d *Device) newAnswers(b *gpu.Batch, r *gpu.Result) (*answers, error) {
	a := &answers{d: d, b: b, r: r}
	a.history, a.bias, a.masks = put(&d.in, b.History), put(&d.in, b.Bias), put(&d.in, b.Masks)
	pools := 0
	for i := range b.Rows {
		if b.Rows[i].Kind == gpu.Pool {
			pools++
		}
	}
	n, tops := len(b.Rows), len(r.TopIDs)
	if err := d.out.room(d, "a batch's answers", cap16(16*n)+2*cap16(4*tops)+cap16(4*pools*d.model.Width)+64); err != nil {
		return nil, err
	}
	a.chosen, a.chosenAt = take[chosen](&d.out, n)
	a.ids, a.idsAt = take[int32](&d.out, tops)
	a.tops, a.topsAt = take[float32](&d.out, tops)
	a.pooled, a.pooledAt = take[float32](&d.out, pools*d.model.Width)
	return a, nil
}

// plan cuts a tile's rows into chunks and stages them.
func (a *answers) plan(t *tileOf) {
	d, b := a.d, a.b
	var pools []int32
	for i := t.from; i < t.to; {
		c := chunk{tile: t, from: i}
		var positions []int32
		var choices []choice
		for ; i < t.to && i-c.from < d.room; i++ {
			row := &b.Rows[i]
			at := row.Token - int32(t.first)
			if row.Kind == gpu.Pool {
				pools = append(pools, at)
				choices = append(choices, choice{kind: 1, top: -1, mask: -1}) // its answer is not looked at
				continue
			}
			if len(positions) == 0 || positions[len(positions)-1] != at {
				positions = append(positions, at)
			}
			k := int32(len(positions) - 1)
			if row.Top > mostTop {
				c.host, c.logits = append(c.host, int32(i)), append(c.logits, k)
			}
			choices = append(choices, choiceOf(row, k, a.r.TopFirst[i]))
		}
		c.to, c.n = i, len(positions)
		if c.n > 0 {
			c.wanted, c.choices = put(&d.in, positions), put(&d.in, choices)
			a.plans = append(a.plans, c)
		}
	}
	if len(pools) > 0 {
		a.plans = append(a.plans, chunk{tile: t, pool: true, n: len(pools), wanted: put(&d.in, pools)})
	}
}

// choiceOf is what a row asks, of row k of the logits.
func choiceOf(row *gpu.Row, k, first int32) choice {
	c := choice{kind: 1, logits: k, top: row.Top, target: row.Target, alternatives: first, mask: -1}
	if row.Top > mostTop {
		c.top = 0
	}
	if row.Kind == gpu.Score {
		return c
	}
	c.kind = 0
	c.temperature, c.topP, c.minP, c.topK = row.Temperature, row.TopP, row.MinP, row.TopK
	c.repetition, c.presence, c.frequency = row.RepetitionPenalty, row.PresencePenalty, row.FrequencyPenalty
	if c.repetition == 0 {
		c.repetition = 1
	}
	c.seedLow, c.seedHigh, c.choice, c.draw = uint32(row.Seed), uint32(row.Seed>>32), row.Choice, row.Draw
	c.history, c.historyLength, c.historyPrompt = row.HistoryFirst, row.HistoryLen, row.HistoryPrompt
	c.bias, c.biasLength, c.mask = row.BiasFirst, row.BiasLen, row.Mask
	return c
}

// answer has the GPU compute what the tile's rows want, from hidden.
func (a *answers) answer(t *tileOf) error {
	d, mc := a.d, a.d.model
	for ; a.next < len(a.plans) && a.plans[a.next].tile == t; a.next++ {
		c := &a.plans[a.next]
		to := d.wanted
		if c.pool {
			to = rows{a.pooledAt + uint64(4*a.pools*mc.Width), mc.Width}
			a.pools += c.n
		}
		err := d.module.launch(d.gather, shape{x: c.n, threads: threadsFor(mc.Width, 128)}, d.hidden.at, c.wanted, to.at, uint64(mc.Width), uint64(d.hidden.stride), uint64(to.stride))
		if err != nil {
			return err
		}
		if c.pool {
			continue
		}
		if err := d.multiply(d.head, d.wanted, d.logits, c.n, false); err != nil {
			return err
		}
		if mc.LogitSoftcap != 0 {
			s := shape{x: (mc.Vocab + 255) / 256, y: c.n, threads: 256}
			if err := d.module.launch(d.cap, s, d.logits.at, uint64(mc.Vocab), uint64(d.logits.stride), bits(mc.LogitSoftcap)); err != nil {
				return err
			}
		}
		if err := a.chooseRows(c); err != nil {
			return err
		}
		for i, row := range c.host {
			if err := a.answerHere(int(row), int(c.logits[i])); err != nil {
				return err
			}
		}
	}
	return nil
}

// chooseRows has the GPU answer a chunk's rows from their logits.
func (a *answers) chooseRows(c *chunk) error {
	d, vocab := a.d, a.d.model.Vocab
	return d.module.launch(d.choose, shape{x: c.to - c.from, threads: threadsFor(vocab/8, chooseThreads)}, d.logits.at, uint64(vocab), uint64(d.logits.stride), c.choices,
		a.history, a.bias, a.masks, uint64(a.b.MaskWords), d.work, d.seen, a.chosenAt+uint64(16*c.from), a.idsAt, a.topsAt)
}

// answerHere answers a row on the host, from row k of the logits.
func (a *answers) answerHere(row, k int) error {
	d, n := a.d, 4*a.d.model.Vocab
	if d.raw == nil {
		memory, err := driver.AllocHost(n)
		if err != nil {
			return fmt.Errorf("page-locked memory for a row of logits: %w", err)
		}
		d.raw = memory
		d.pinned = append(d.pinned, memory)
	}
	if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&d.raw[0]), cu.DevicePtr(d.logits.row(k).at), int64(n), d.stream); err != nil {
		return driver.Explain(err)
	}
	if err := d.wait("computing"); err != nil {
		return err
	}
	logits := unsafe.Slice((*float32)(unsafe.Pointer(&d.raw[0])), d.model.Vocab)
	if err := d.sampler.Row(a.b, row, logits, a.r); err != nil {
		return a.errorOf(row, err)
	}
	return nil
}

func (a *answers) errorOf(row int, err error) error {
	return fmt.Errorf("row %d, position %d: %w", row, a.b.Positions[a.b.Rows[row].Token], err)
}

// finish waits for the GPU and hands its answers out.
func (a *answers) finish() error {
	d, r := a.d, a.r
	if d.out.used > 0 {
		if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&d.out.host[0]), d.out.device, int64(d.out.used), d.stream); err != nil {
			return driver.Explain(err)
		}
	}
	if err := d.wait("computing"); err != nil {
		return err
	}
	for i := range a.b.Rows {
		row := &a.b.Rows[i]
		switch c := &a.chosen[i]; {
		case row.Kind == gpu.Pool || row.Top > mostTop:
		case c.wrong >= 0:
			return a.errorOf(i, fmt.Errorf("the logit of token %d is no finite number: the model's weights or the computation are broken", c.wrong))
		default:
			r.Tokens[i], r.Logprobs[i], r.Ranks[i] = c.token, c.logprob, c.rank
			from, to := r.TopFirst[i], r.TopFirst[i+1]
			copy(r.TopIDs[from:to], a.ids[from:to])
			copy(r.TopLogprobs[from:to], a.tops[from:to])
		}
	}
	r.Pooled = append(r.Pooled, a.pooled...)
	return nil
}
