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

// alternative is Alternative of kernels/sample.cuh.
type alternative struct {
	id      int32
	logprob float32
}

// answers is what a step's rows ask, and where the answers are. The device has one, for its memory.
type answers struct {
	d *Device
	b *gpu.Batch
	r *gpu.Result

	history, bias, masks int32 // where they are on the stage
	choices              []choice
	choicesAt            uint64
	wanted               []int32 // positions whose logits are wanted, in their tiles; for each row there is room
	wantedAt             uint64
	wants                int
	pools                []int32 // positions whose hidden states are wanted
	poolsAt              uint64
	pooling              int
	chunks               []chunk

	chosen         []chosen // per row
	chosenAt       uint64
	alternatives   []alternative
	alternativesAt uint64
	pooled         []float32
	pooledAt       uint64
}

// chunk is rows whose logits there is memory for at once, or pooled rows.
type chunk struct {
	from, to int // rows
	first, n int // of wanted, or of pools
	pool     bool
	host     bool // some of the rows are answered on the host
}

// begin makes room for a batch's answers, and for what its rows ask. rows are more than the batch's where a decode step
// is filled up.
func (a *answers) begin(d *Device, b *gpu.Batch, r *gpu.Result, rows int) error {
	a.d, a.b, a.r, a.wants, a.pooling, a.chunks = d, b, r, 0, 0, a.chunks[:0]
	a.choices, a.choicesAt = take[choice](&d.in, rows)
	a.wanted, a.wantedAt = take[int32](&d.in, rows)
	pools := 0
	for i := range b.Rows {
		if b.Rows[i].Kind == gpu.Pool {
			pools++
		}
	}
	tops := len(r.TopIDs)
	if err := d.out.room(d, "a batch's answers", aligned(16*rows)+aligned(8*tops)+aligned(4*pools*d.model.Width)); err != nil {
		return err
	}
	a.chosen, a.chosenAt = take[chosen](&d.out, rows)
	a.alternatives, a.alternativesAt = take[alternative](&d.out, tops)
	a.pooled, a.pooledAt = take[float32](&d.out, pools*d.model.Width)
	return nil
}

// pool stages what rows point to.
func (a *answers) pool() {
	in := &a.d.in
	after := func(at uint64) int32 { return int32(at - uint64(in.device)) }
	a.history, a.bias, a.masks = after(put(in, a.b.History)), after(put(in, a.b.Bias)), after(put(in, a.b.Masks))
	a.pools, a.poolsAt = take[int32](in, len(a.pooled)/a.d.model.Width)
}

// plan cuts a tile's rows into chunks and stages them.
func (a *answers) plan(t *tileOf) {
	d, b := a.d, a.b
	t.chunks[0] = len(a.chunks)
	pooled := a.pooling
	for i := t.from; i < t.to; {
		c := chunk{from: i, first: a.wants}
		for ; i < t.to && i-c.from < d.room; i++ {
			if i >= len(b.Rows) {
				a.choices[i] = choice{kind: askNothing}
				a.want(&c, int32(i))
				continue
			}
			row := &b.Rows[i]
			at := row.Token - int32(t.first)
			if row.Kind == gpu.Pool {
				a.choices[i] = choice{kind: askNothing}
				a.pools[a.pooling] = at
				a.pooling++
				continue
			}
			a.want(&c, at)
			c.host = c.host || row.Top > mostTop
			a.choices[i] = a.choiceOf(row, int32(c.n-1), a.r.TopFirst[i])
		}
		c.to = i
		if c.n > 0 {
			a.chunks = append(a.chunks, c)
		}
	}
	if n := a.pooling - pooled; n > 0 {
		a.chunks = append(a.chunks, chunk{pool: true, first: pooled, n: n})
	}
	t.chunks[1] = len(a.chunks)
}

// want has a chunk want a position's logits, unless the row before wants the same.
func (a *answers) want(c *chunk, at int32) {
	if c.n > 0 && a.wanted[a.wants-1] == at {
		return
	}
	a.wanted[a.wants] = at
	a.wants++
	c.n++
}

// What a row can ask of the kernel.
const (
	askSample = iota
	askScore
	askNothing
)

// choiceOf is what a row asks, of row k of the logits.
func (a *answers) choiceOf(row *gpu.Row, k, first int32) choice {
	c := choice{kind: askScore, logits: k, top: row.Top, target: row.Target, alternatives: first, mask: -1}
	if row.Top > mostTop {
		c.top = 0
	}
	if row.Kind == gpu.Score {
		return c
	}
	c.kind = askSample
	c.temperature, c.topP, c.minP, c.topK = row.Temperature, row.TopP, row.MinP, row.TopK
	c.repetition, c.presence, c.frequency = row.RepetitionPenalty, row.PresencePenalty, row.FrequencyPenalty
	if c.repetition == 0 {
		c.repetition = 1
	}
	c.seedLow, c.seedHigh, c.choice, c.draw = uint32(row.Seed), uint32(row.Seed>>32), row.Choice, row.Draw
	c.history, c.historyLength, c.historyPrompt = a.history+4*row.HistoryFirst, row.HistoryLen, row.HistoryPrompt
	c.bias, c.biasLength = a.bias+8*row.BiasFirst, row.BiasLen
	if row.Mask >= 0 {
		c.mask = a.masks + 4*int32(a.b.MaskWords)*row.Mask
	}
	return c
}

// answer has the GPU compute what the tile's rows want, from hidden.
func (a *answers) answer(t *tileOf) error {
	d, mc := a.d, a.d.model
	for i := t.chunks[0]; i < t.chunks[1]; i++ {
		c := &a.chunks[i]
		to, which, wanted := d.wanted, d.head.forms(c.n == 1), a.wantedAt+uint64(4*c.first)
		if c.pool {
			to, which, wanted = rows{a.pooledAt + uint64(4*c.first*mc.Width), mc.Width}, asFloats, a.poolsAt+uint64(4*c.first)
		}
		if err := d.gatherTo(d.hidden, wanted, which, to, c.n); err != nil {
			return err
		}
		if c.pool {
			continue
		}
		if err := d.multiply(d.head, d.wanted, d.logits, c.n, false); err != nil {
			return err
		}
		if mc.LogitSoftcap != 0 {
			s := shape{x: ceil(mc.Vocab, 256), y: c.n, threads: 256}
			if err := d.module.launch(d.cap, s, d.logits.at, uint64(mc.Vocab), uint64(d.logits.stride), bits(mc.LogitSoftcap)); err != nil {
				return err
			}
		}
		if err := a.chooseRows(c); err != nil {
			return err
		}
		for i := c.from; i < c.to && c.host; i++ {
			if row := &a.b.Rows[i]; row.Kind != gpu.Pool && row.Top > mostTop {
				if err := a.answerHere(i, int(a.choices[i].logits)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// chooseRows has the GPU answer a chunk's rows from their logits.
func (a *answers) chooseRows(c *chunk) error {
	d, vocab := a.d, a.d.model.Vocab
	return d.module.launch(d.choose, shape{x: c.to - c.from, threads: threadsFor(vocab/8, chooseThreads)}, d.logits.at, uint64(vocab), uint64(d.logits.stride),
		a.choicesAt+uint64(c.from)*uint64(unsafe.Sizeof(choice{})), uint64(d.in.device), d.work, d.seen, a.chosenAt+uint64(16*c.from), a.alternativesAt)
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
			for j := from; j < to; j++ {
				r.TopIDs[j], r.TopLogprobs[j] = a.alternatives[j].id, a.alternatives[j].logprob
			}
		}
	}
	r.Pooled = append(r.Pooled, a.pooled...)
	return nil
}
