package host

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/check"
	"github.com/troupe-llm/troupe/gpu/sample"
	"github.com/troupe-llm/troupe/model"
)

// Host is the CPU device. Run and Close are for one goroutine at a time, as gpu.Device says.
type Host struct {
	info    gpu.Info
	config  gpu.Config
	model   *model.Model
	shared  *Shared // whose the weights are
	weights *weights
	cache   *cache
	pool    *pool
	product product
	vectors *vectors
	packs   packWork  // while weights are packed
	scratch []scratch // per worker

	// The model's shape.
	width, heads, vocab int
	qkvWidth            int // a row of queries, keys and values
	eps                 float32
	embeddingScale      float32 // 0 for none
	ropes               []rope  // by model.Positions
	rotate              func(v, turns []float32)
	gate                func(y, gate, up []float32)
	logitSoftcap        float32 // what logits are capped at; 0 for none

	// Activations of a tile, row by row.
	rows     []row
	x        []float32 // the residual stream
	hidden   []float32 // x after a norm
	qkv      []float32
	attended []float32
	update   []float32 // what is to be added to x
	gateUp   []float32
	gated    []float32
	turns    []float32 // cosines and sines of each of the ropes
	turned   int       // how many of them a row has
	mix      mix

	attention attention

	// What the phase at hand needs besides.
	layer int
	norm  []float32
	// postNorm is for what attention or the feed-forward gives; nil if that has none.
	postNorm []float32
	inner    int // length of a feed-forward's inner state
	pieces   int

	// Logits, for up to logitRows distinct positions at once.
	logitRows int
	wanted    []float32 // their hidden states
	logits    []float32
	logitOf   []int32 // which logits a row of the batch uses, from firstRow on
	firstRow  int
	batch     *gpu.Batch
	result    *gpu.Result

	checker *check.Checker
	broken  error // why the device cannot be used any more
}

// scratch is a worker's own memory.
type scratch struct {
	fixed      [2]fixed
	pairTable  pairTable
	pairTables pairTables
	byteTable  byteTable
	byteTables byteTables
	acc, acc2  []float32 // sums of a tile of weight rows
	rows       []float32 // dequantised weights
	attention  attentionScratch
	store      storeScratch
	rest       [maxKernelRows * maxPackRows]float32
	touched    byte // keeps reads that fetch weights from being optimised away
	sampler    *sample.Sampler
	err        error // of the first row whose sampling failed
	errRow     int
	_          [64]byte
}

const maxThreads = 256

var errClosed = errors.New("host: the device is closed")

// Open makes a device of m's weights. Where the processor's instructions want them in another order it
// makes a copy, outside Go's heap; the embedding at least is read from m, which must stay open until the
// device is closed.
//
// The KV cache takes c.CacheBytes, or where that is 0, a quarter of the memory that is available
// (on Linux; elsewhere 1 GiB), but no more than c.MaxSeqs sequences of c.MaxContext need. It must
// hold at least one such sequence. Memory for the cache is taken from the operating system as
// blocks are first used, on Linux in large pages, where it grants them: the first block so takes one
// in each layer, and what reads many blocks is some percent faster for it.
//
// No more than 256 threads are used. The processor's instructions are chosen once, here; the
// environment variable CPUVariable may name others.
//
// Errors say which tensor has a type that isn't supported, or how much memory is wanted and how
// much there is.
func Open(m *model.Model, c gpu.Config) (*Host, error) { return Share(m, 1).Open(c) }

// OpenPortable is Open with the kernels in Go, whatever instructions the processor has: they round no
// activations, and other devices are compared with them.
func OpenPortable(m *model.Model, c gpu.Config) (*Host, error) {
	return Share(m, 1).openWith(c, portable)
}

func (s *Shared) open(c gpu.Config, cpu instructions) (*Host, error) {
	for _, v := range []struct {
		name  string
		value int
	}{{"BlockSize", c.BlockSize}, {"MaxSeqs", c.MaxSeqs}, {"MaxTokens", c.MaxTokens}, {"MaxContext", c.MaxContext}} {
		if v.value < 1 || v.value > 1<<28 {
			return nil, fmt.Errorf("%s is %d; it must be at least 1 and at most %d", v.name, v.value, 1<<28)
		}
	}
	if c.Threads < 0 || c.CacheBytes < 0 {
		return nil, fmt.Errorf("gpu.Config has Threads %d and CacheBytes %d; neither may be negative", c.Threads, c.CacheBytes)
	}
	if c.CacheType > gpu.CacheQ8_0 {
		return nil, fmt.Errorf("the CPU device has no KV cache of %v; it knows %v, %v and %v", c.CacheType, gpu.CacheF32, gpu.CacheF16, gpu.CacheQ8_0)
	}
	threads := c.Threads
	if threads == 0 {
		threads = Threads()
	}
	threads = min(threads, maxThreads)

	m := s.model
	mc := &m.Config
	h := &Host{
		config: c, model: m, shared: s, vectors: vectorsOf(cpu), pool: newPool(threads), scratch: make([]scratch, threads),
		width: mc.Width, heads: mc.Heads, vocab: mc.Vocab,
		qkvWidth: (mc.Heads + 2*mc.KVHeads) * mc.HeadDim, eps: mc.NormEps, embeddingScale: mc.EmbeddingScale,
	}
	w, err := s.take(h, packingsFor(cpu))
	if err != nil {
		h.pool.close()
		return nil, err
	}
	h.weights = w
	// The cache takes its share of what packed weights leave.
	blocks, err := numBlocks(m, c, availableMemory()/int64(s.devices))
	if err == nil {
		h.cache, err = newCache(m, blocks, c.BlockSize, c.CacheType, h.vectors)
	}
	if err != nil {
		h.pool.close()
		return nil, errors.Join(err, s.give())
	}
	h.info = gpu.Info{Kind: "host", Name: processorName(), NumBlocks: blocks, BlockBytes: BlockBytes(m, c.BlockSize, c.CacheType), CacheType: cacheType(c.CacheType).String(), Vocab: mc.Vocab}
	if h.info.Name == "" {
		h.info.Name = runtime.GOOS + "/" + runtime.GOARCH
	}
	h.setRopes(mc, c.MaxContext)
	h.logitSoftcap = mc.LogitSoftcap
	h.gate = h.vectors.swiGLU
	if mc.Gate == model.GELU {
		h.gate = h.vectors.geGLU
	}

	n := min(tileRows, c.MaxTokens)
	h.rows = make([]row, 0, n)
	h.x = make([]float32, n*h.width)
	h.hidden = make([]float32, n*h.width)
	h.update = make([]float32, n*h.width)
	h.qkv = make([]float32, n*h.qkvWidth)
	h.attended = make([]float32, n*h.heads*mc.HeadDim)
	inner := h.mix.open(mc, n)
	h.gateUp = make([]float32, 2*inner)
	h.gated = make([]float32, inner)
	h.turns = make([]float32, n*h.turned)
	h.attention = newAttention(allAttends(mc), h.cache, h.heads, n, threads, c.MaxContext)
	h.logitRows = min(n, max(8, min(2*threads, 1<<24/h.vocab))) // in at most 64 MiB, or 8 rows
	h.wanted = make([]float32, h.logitRows*h.width)
	h.logits = make([]float32, h.logitRows*h.vocab)
	h.logitOf = make([]int32, 16*h.logitRows)
	h.checker = check.New(check.Limits{Device: "host", Config: c, Blocks: blocks, Vocab: mc.Vocab})

	// What the multiplications need at most.
	widest, rows, partial, stacks, blocked := 0, 0, 0, 0, 0
	for _, l := range w.linears() {
		stacks = max(stacks, len(l.stacks))
		for i := range l.stacks {
			s := &l.stacks[i]
			switch {
			case s.takesOctets():
				blocked = max(blocked, l.in/32)
			case s.packing != nil: // takes the activations as they are
			case s.lookup:
				rows = max(rows, min(s.rows, lookupTile))
			default:
				widest = max(widest, l.in)
			}
			if s.chunks > 1 && s.rows <= minTile*threads { // it may be split
				partial = max(partial, s.chunks*l.out)
			}
		}
	}
	h.product.octets = make([]octets, n*blocked)
	h.product.plans = make([]plan, 0, stacks)
	h.product.partial = make([]float32, partial*splitRows)
	h.product.missing = make([]atomic.Int32, stacks*threads)
	for i := range h.scratch {
		s := &h.scratch[i]
		s.acc, s.acc2 = make([]float32, rows), make([]float32, rows)
		s.rows = make([]float32, dotRows*widest)
		s.attention = newAttentionScratch(h.cache, h.attention.shared)
		s.store = newStoreScratch(h.cache)
		s.sampler = sample.New(h.vocab)
	}
	return h, nil
}

// numBlocks decides how many blocks the KV cache has.
func numBlocks(m *model.Model, c gpu.Config, available int64) (int, error) {
	block := BlockBytes(m, c.BlockSize, c.CacheType)
	one := (int64(c.MaxContext) + int64(c.BlockSize) - 1) / int64(c.BlockSize)
	bytes, what := c.CacheBytes, "the memory given for the KV cache"
	if bytes == 0 {
		bytes, what = 1<<30, "the default KV cache"
		if available > 0 {
			bytes, what = available/4, "the default KV cache, a quarter of the "+bytesText(available)+" available,"
		}
		bytes = min(bytes, one*int64(c.MaxSeqs)*block)
	} else if available > 0 && bytes > available {
		return 0, fmt.Errorf("a KV cache of %s is wanted, but only %s of memory are available", bytesText(bytes), bytesText(available))
	}
	n := bytes / block
	if n < one {
		return 0, fmt.Errorf("one sequence of %d tokens needs %s of KV cache (%d blocks of %s), but %s is %s: allow shorter sequences or give more memory",
			c.MaxContext, bytesText(one*block), one, bytesText(block), what, bytesText(bytes))
	}
	return int(min(n, 1<<30)), nil
}

// Info describes the device.
func (h *Host) Info() gpu.Info { return h.info }

// Run computes a batch. A batch that names blocks, tokens or rows that don't exist is refused before
// anything is touched, and the device stays usable. Logits that are not finite, which only broken
// weights or an overflow produce, are an error that names the row; nothing is sampled from them.
func (h *Host) Run(b *gpu.Batch, r *gpu.Result) error {
	if h.broken != nil {
		return h.broken
	}
	if err := h.checker.Batch(b); err != nil {
		return err
	}
	r.Reset(b)
	if err := h.run(b, r); err != nil {
		err = fmt.Errorf("host: %w", err)
		if p := (*panicError)(nil); errors.As(err, &p) {
			h.broken = err
		}
		return err
	}
	return nil
}

func (h *Host) run(b *gpu.Batch, r *gpu.Result) error {
	for _, c := range b.Copies {
		h.cache.copy(int(c.From), int(c.To))
	}
	span, done := 0, 0
	for first := 0; first < len(b.Tokens); first += len(h.rows) {
		n := min(cap(h.rows), len(b.Tokens)-first)
		h.rows = h.rows[:n]
		for i := range h.rows {
			at := int32(first + i)
			for at >= b.Spans[span].First+b.Spans[span].Len {
				span++
			}
			h.rows[i] = row{b.Tokens[at], b.Positions[at], int32(span), b.Blocks[span*b.Stride:][:b.Stride]}
		}
		if err := h.forward(); err != nil {
			return err
		}
		from := done
		for done < len(b.Rows) && int(b.Rows[done].Token) < first+n {
			done++
		}
		if err := h.answer(b, r, first, from, done); err != nil {
			return err
		}
	}
	return nil
}

// firstFailure is the error of the first row whose sampling failed.
func (h *Host) firstFailure() error {
	var first *scratch
	for i := range h.scratch {
		if s := &h.scratch[i]; s.err != nil && (first == nil || s.errRow < first.errRow) {
			first = s
		}
	}
	if first == nil {
		return nil
	}
	err := fmt.Errorf("row %d, position %d: %w", first.errRow, h.batch.Positions[h.batch.Rows[first.errRow].Token], first.err)
	for i := range h.scratch {
		h.scratch[i].err = nil
	}
	return err
}

// Close stops the workers and frees the KV cache and packed weights. Closing twice does no harm.
func (h *Host) Close() error {
	if h.pool == nil {
		return nil
	}
	h.pool.close()
	h.pool, h.broken = nil, errClosed
	err := h.shared.give()
	h.weights = nil
	return errors.Join(err, h.cache.close())
}
