//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/check"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/gpu/sample"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// Built says whether this program has the device in it.
const Built = true

// tileRows is the most positions that go through the layers at once: activations need memory for so many.
const tileRows = 1024

// Device is a GPU with a model in its memory. Run and Close are for one goroutine at a time, on any
// thread: each makes the context the thread's own, which costs nothing where it is already.
type Device struct {
	info    gpu.Info
	config  gpu.Config
	model   *model.Config
	checker *check.Checker
	broken  error // why it cannot be used any more
	waited  time.Duration

	context cu.CUContext
	stream  cu.Stream
	module  module
	memory  []cu.DevicePtr // all that is allocated
	cores   int            // multiprocessors

	embedding  *linear
	layers     []layer
	outputNorm uint64
	head       *linear
	cache      cache

	// Activations of a tile of positions.
	x        rows // the residual stream
	hidden   rows // x after a norm
	qkv      rows
	attended rows
	gateUp   rows
	gated    rows
	update   rows // what is to be added to x, where that has a norm of its own

	// What the next product multiplies, as bytes or halves, and the halves' factors: see kernels/activations.cuh.
	prepared, factors uint64

	attention attention
	experts   experts

	wanted rows // hidden states of those whose logits are wanted
	logits rows
	room   int    // how many of them there is memory for
	work   uint64 // for the sampling kernel: a row of logits and one of zeros for each of room
	seen   uint64

	turns      uint64 // radians a position, of each pair
	localTurns uint64 // of layers with local positions
	pairs      int
	scale      float32 // factor on sines and cosines

	in, out stage // what goes to the GPU in a step, and comes from it
	step    step
	answers answers
	graphs  graphs
	logger  *slog.Logger
	raw     []byte // a row of logits in page-locked memory, if one was ever needed
	sampler *sample.Sampler

	convert, normalise, addNormalised, gate, cap, gather, rotate, copyBlock, choose *kernel
}

// layer is the weights of a transformer block.
type layer struct {
	attentionNorm, ffnNorm         uint64
	postAttentionNorm, postFFNNorm uint64 // 0 where there is none, as those below
	queryNorm, keyNorm             uint64
	qkvBias                        uint64
	qkv, output                    *linear
	gateUp, down                   *linear
	mixture                        *mixture // instead of these; nil if there is none
}

// Find says why there are not n GPUs to compute on, those that the driver counts first, or nil where there are.
func Find(n int) error {
	for i := range n {
		if _, _, err := find(i); err != nil {
			return err
		}
	}
	return nil
}

// find initialises the driver and looks for a GPU that the kernels run on. Its compute capability is major and minor.
func find(ordinal int) (device cu.Device, capability [2]int, err error) {
	if err := driver.Load(); err != nil {
		return 0, capability, err
	}
	n, err := cu.NumDevices()
	if err = driver.Explain(err); err != nil && !errors.Is(err, driver.NoDevice) {
		return 0, capability, fmt.Errorf("counting GPUs: %w", err)
	}
	if n == 0 || err != nil {
		return 0, capability, driver.ErrNoGPU
	}
	if ordinal < 0 || ordinal >= n {
		return 0, capability, fmt.Errorf("there is no GPU %d: CUDA's driver finds %d, counted from 0", ordinal, n)
	}
	if device, err = cu.GetDevice(ordinal); err != nil {
		return 0, capability, fmt.Errorf("GPU %d: %w", ordinal, driver.Explain(err))
	}
	for i, a := range []cu.DeviceAttribute{cu.ComputeCapabilityMajor, cu.ComputeCapabilityMinor} {
		if capability[i], err = device.Attribute(a); err != nil {
			return 0, capability, fmt.Errorf("GPU %d: its compute capability: %w", ordinal, driver.Explain(err))
		}
	}
	if 10*capability[0]+capability[1] < 75 {
		return 0, capability, fmt.Errorf("GPU %d has compute capability %d.%d; 7.5 is needed, which the Turing generation of 2018 and later ones have", ordinal, capability[0], capability[1])
	}
	return device, capability, nil
}

// Open makes a device of m's weights on a GPU. They are copied; m may be closed.
//
// The KV cache takes c.CacheBytes, or where that is 0, what o.Utilization of the GPU's memory leaves beside
// weights and activations, but no more than c.MaxSeqs sequences of c.MaxContext need. It must hold at least
// one such sequence.
//
// Errors say why there is no GPU, which tensor has a type that isn't supported, or how much memory is needed
// and how much is free. Whatever the error, all memory is given back.
// Where it may stick to the process it is a gpu.StickyError.
func Open(m *model.Model, c gpu.Config, o Options) (gpu.Device, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d := &Device{config: c, model: &m.Config, logger: cmp.Or(o.Logger, slog.Default()), graphs: graphs{off: graphsOff(), most: mostGraphs}}
	if err := d.open(m, o); err != nil {
		failed, sticky := blame(err)
		err = errors.Join(fmt.Errorf("cuda: model %s: %w", m.Name, err), d.free(failed))
		if sticky {
			err = &gpu.StickyError{Err: err}
		}
		return nil, err
	}
	return d, nil
}

func (d *Device) open(m *model.Model, o Options) error {
	c, mc := &d.config, &m.Config
	for _, v := range []struct {
		name  string
		value int
	}{{"BlockSize", c.BlockSize}, {"MaxSeqs", c.MaxSeqs}, {"MaxTokens", c.MaxTokens}, {"MaxContext", c.MaxContext}} {
		if v.value < 1 || v.value > 1<<28 {
			return fmt.Errorf("%s is %d; it must be at least 1 and at most %d", v.name, v.value, 1<<28)
		}
	}
	if o.Utilization == 0 {
		o.Utilization = DefaultUtilization
	}
	if !(o.Utilization > 0 && o.Utilization <= 1) || c.CacheBytes < 0 {
		return fmt.Errorf("a share %v of the GPU's memory and a KV cache of %d bytes are wanted; the former must be above 0 and at most 1, the latter not negative", o.Utilization, c.CacheBytes)
	}
	gpuDevice, capability, err := find(o.Ordinal)
	if err != nil {
		return err
	}
	name, err := gpuDevice.Name()
	if err != nil {
		return fmt.Errorf("the GPU's name: %w", driver.Explain(err))
	}
	if d.cores, err = gpuDevice.Attribute(cu.MultiprocessorCount); err != nil {
		return fmt.Errorf("the GPU's multiprocessors: %w", driver.Explain(err))
	}
	most, err := gpuDevice.Attribute(driver.MaxSharedMemory)
	if err != nil {
		return fmt.Errorf("the GPU's shared memory: %w", driver.Explain(err))
	}
	context, err := gpuDevice.MakeContext(cu.SchedAuto)
	if err != nil {
		return fmt.Errorf("opening the GPU %s: %w", name, driver.Explain(err))
	}
	d.context = context
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return fmt.Errorf("making a stream: %w", driver.Explain(err))
	}
	d.stream = stream
	if err := d.module.load(d.stream, capability[0]); err != nil {
		return err
	}
	if err := d.findKernels(); err != nil {
		return err
	}
	norms, err := d.findWeights(m)
	if err != nil {
		return err
	}
	n := d.tileRows()
	if err := d.attention.plan(d, most); err != nil {
		return err
	}

	d.room = max(8, min(n, 16<<20/mc.Vocab)) // logits in 64 MiB, or 8 rows
	q, kv := mc.Heads*mc.HeadDim, mc.KVHeads*mc.HeadDim
	feeds, inner := n, mc.FFN
	if mc.Experts.Count > 0 {
		feeds, inner = choices(mc, n), mc.Experts.FFN
	}
	preparedRows, logits := max(n, d.room, choices(mc, n)), 4*int64(d.room)*int64(mc.Vocab)
	buffers := []buffer{
		rowsOf("activations", &d.x, n, mc.Width), rowsOf("activations", &d.hidden, n, mc.Width), rowsOf("activations", &d.qkv, n, q+2*kv),
		rowsOf("activations", &d.attended, n, q), rowsOf("activations", &d.gateUp, feeds, 2*inner), rowsOf("activations", &d.gated, feeds, inner),
		rowsOf("activations", &d.update, n, mc.Width),
		rowsOf("logits", &d.wanted, d.room, mc.Width), rowsOf("logits", &d.logits, d.room, mc.Vocab),
		{"logits", &d.work, logits}, {"logits", &d.seen, logits},
		{"activations", &d.prepared, preparedBytes(preparedRows, max(mc.Width, q, mc.FFN, mc.Experts.FFN, mc.Experts.Shared))}, {"activations", &d.factors, 4 * int64(preparedRows)},
		d.attention.buffer(mc),
	}
	if mc.Experts.Count > 0 {
		buffers = append(buffers, d.experts.buffers(mc, n)...)
	}
	usualIn, usualOut := d.usualBytes()
	fixed := int64(usualIn+usualOut) + d.graphBytes()
	for _, b := range buffers {
		fixed += b.bytes
	}
	for _, l := range d.linears() {
		fixed += l.bytes()
	}
	for _, v := range norms {
		n, err := v.bytes(m)
		if err != nil {
			return err
		}
		fixed += n
	}
	fixed += 2 * 8 * int64(mc.HeadDim/2) // rotary positions
	free, total, err := cu.MemInfo()
	if err != nil {
		return fmt.Errorf("the GPU's memory: %w", driver.Explain(err))
	}
	blocks, err := numBlocks(m, *c, o, fixed, free, total)
	if err != nil {
		return err
	}

	if err := d.uploadWeights(d.linears(), m.Borrow, o.Progress); err != nil {
		return err
	}
	for _, v := range norms {
		if err := d.uploadVector(m, v); err != nil {
			return err
		}
	}
	if err := d.allocAll(buffers); err != nil {
		return err
	}
	if err := d.allocCache(blocks); err != nil {
		return err
	}
	if err := errors.Join(d.in.room(d, "what a batch says", usualIn), d.out.room(d, "a batch's answers", usualOut)); err != nil {
		return err
	}
	frequencies, magnitude := mc.Rope(c.MaxContext)
	if d.turns, err = uploadNumbers(d, "rotary positions", frequencies); err != nil {
		return err
	}
	d.pairs, d.scale = len(frequencies), float32(magnitude)
	if local := mc.LocalRope(); local != nil {
		if d.localTurns, err = uploadNumbers(d, "rotary positions", local); err != nil {
			return err
		}
	}
	d.sampler = sample.New(mc.Vocab)
	d.checker = check.New(check.Limits{Device: "cuda", Config: *c, Blocks: blocks, Vocab: mc.Vocab})
	d.info = gpu.Info{Kind: "cuda", Name: name, NumBlocks: blocks, BlockBytes: BlockBytes(m, c.BlockSize, c.CacheType), CacheType: cacheType(c.CacheType).String(), Vocab: mc.Vocab}
	return nil
}

// findKernels finds those that are not of a type of weights.
func (d *Device) findKernels() error {
	suffix := cacheType(d.config.CacheType).String()
	attend := "attend_" + suffix
	if dim := tensorHead(d); dim > 0 {
		attend = fmt.Sprint("attend_", dim)
	}
	all := []namedKernel{
		{&d.convert, "convert"}, {&d.normalise, "normalise"}, {&d.addNormalised, "add_normalised"}, {&d.gate, "gate"}, {&d.cap, "cap"}, {&d.gather, "gather"}, {&d.copyBlock, "copy_block"}, {&d.choose, "choose"},
		{&d.rotate, "rotate_" + suffix}, {&d.attention.attend, attend}, {&d.attention.merge, "merge"},
	}
	if x := &d.experts; d.model.Experts.Count > 0 {
		all = append(all, namedKernel{&x.route, "route"}, namedKernel{&x.group, "group"}, namedKernel{&x.mix, "mix"})
	}
	return d.module.find(all)
}

// vector is the weights of a norm, or biases one after the other, and where their address goes.
type vector struct {
	to    *uint64
	names []string
}

// bytes is the GPU memory that it takes.
func (v *vector) bytes(m *model.Model) (int64, error) {
	n := int64(0)
	for _, name := range v.names {
		t, err := m.Tensor(name)
		if err != nil {
			return 0, err
		}
		n += 4 * int64(t.Values())
	}
	return max(16, n), nil
}

// findWeights finds a model's weights; nothing is allocated yet.
func (d *Device) findWeights(m *model.Model) (norms []vector, err error) {
	if d.embedding, err = newLinear(m, "token_embd.weight"); err != nil {
		return nil, err
	}
	d.layers = make([]layer, m.Config.Layers)
	for i := range d.layers {
		l := &d.layers[i]
		name := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", i, s) }
		qkv, gateUp := []string{"attn_q", "attn_k", "attn_v"}, []string{"ffn_gate", "ffn_up"}
		if m.Config.FusedQKV {
			qkv = []string{"attn_qkv"}
		}
		if m.Config.FusedGateUp {
			gateUp = []string{"ffn_up"}
		}
		norms = append(norms, vector{&l.attentionNorm, []string{name("attn_norm")}}, vector{&l.ffnNorm, []string{name("ffn_norm")}})
		if m.Config.PostNorm {
			norms = append(norms, vector{&l.postAttentionNorm, []string{name("post_attention_norm")}}, vector{&l.postFFNNorm, []string{name("post_ffw_norm")}})
		}
		if m.Config.QKNorm {
			norms = append(norms, vector{&l.queryNorm, []string{name("attn_q_norm")}}, vector{&l.keyNorm, []string{name("attn_k_norm")}})
		}
		if m.Config.QKVBias {
			bias := vector{to: &l.qkvBias}
			for _, n := range qkv {
				bias.names = append(bias.names, fmt.Sprintf("blk.%d.%s.bias", i, n))
			}
			norms = append(norms, bias)
		}
		type named struct {
			to    **linear
			names []string
		}
		all := []named{{&l.qkv, qkv}, {&l.output, []string{"attn_output"}}}
		if m.Config.Experts.Count > 0 {
			if l.mixture, err = findMixture(m, name); err != nil {
				return nil, err
			}
		} else {
			all = append(all, named{&l.gateUp, gateUp}, named{&l.down, []string{"ffn_down"}})
		}
		for _, w := range all {
			for i, n := range w.names {
				w.names[i] = name(n)
			}
			if *w.to, err = newLinear(m, w.names...); err != nil {
				return nil, err
			}
		}
	}
	norms = append(norms, vector{&d.outputNorm, []string{"output_norm.weight"}})
	if d.head = d.embedding; !m.Config.TiedOutput {
		d.head, err = newLinear(m, "output.weight")
	}
	return norms, err
}

// linears are all that there are, each once.
func (d *Device) linears() []*linear {
	all := []*linear{d.embedding}
	for i := range d.layers {
		l := &d.layers[i]
		all = append(all, l.qkv, l.output)
		if l.mixture != nil {
			all = append(all, l.mixture.linears()...)
		} else {
			all = append(all, l.gateUp, l.down)
		}
	}
	if d.head != d.embedding {
		all = append(all, d.head)
	}
	return all
}

// uploadVector copies a vector.
func (d *Device) uploadVector(m *model.Model, v vector) error {
	var values []float32
	for _, name := range v.names {
		t, err := m.Tensor(name)
		if err != nil {
			return err
		}
		part, err := gguf.Decode(t.Type, t.Data)
		if err != nil {
			return err
		}
		values = append(values, part...)
	}
	var err error
	if *v.to, err = uploadNumbers(d, v.names[0], values); err != nil {
		return fmt.Errorf("tensor %q: %w", v.names[0], err)
	}
	return nil
}

// uploadNumbers copies numbers to memory of their own.
func uploadNumbers[T any](d *Device, what string, values []T) (uint64, error) {
	bytes := int64(len(values)) * int64(unsafe.Sizeof(values[0]))
	p, err := d.alloc(what, bytes)
	if err != nil {
		return 0, err
	}
	// By the stream: a copy of its own may still be on its way to the GPU when the call returns.
	if err := cu.MemcpyHtoDAsync(p, unsafe.Pointer(&values[0]), bytes, d.stream); err != nil {
		return 0, fmt.Errorf("copying %s: %w", what, driver.Explain(err))
	}
	err = d.wait("copying " + what)
	runtime.KeepAlive(values)
	return uint64(p), err
}

// wait waits until the stream is done.
func (d *Device) wait(what string) error {
	began := time.Now()
	err := d.stream.Synchronize()
	d.waited += time.Since(began)
	if err != nil {
		return fmt.Errorf("%s: %w", what, driver.Explain(err))
	}
	return nil
}

// Waited is how long the device has waited for the GPU since it was opened: of a Run, what is left is the
// processor's part.
func (d *Device) Waited() time.Duration { return d.waited }

// noContext is what the driver says to a thread without a context, as one has whose device was reset.
func noContext() error {
	p, err := cu.MemAlloc(stageAlign)
	if err == nil {
		return errors.Join(errors.New("the driver gives memory without a context"), driver.Explain(cu.MemFree(p)))
	}
	return fmt.Errorf("the device was reset: %w", driver.Explain(err))
}

// Reset destroys the context under a device, as a reset of the GPU would: all that it had there is gone, and its
// next Run fails with an error of the driver. It is for proving that what runs on a device survives that.
func Reset(device gpu.Device) error {
	d, ok := device.(*Device)
	if !ok || d.broken != nil || d.context == (cu.CUContext{}) {
		return errors.New("cuda: only an open CUDA device can be reset")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.context.Destroy(); err != nil {
		return fmt.Errorf("cuda: destroying the context: %w", driver.Explain(err))
	}
	// Its memory, page-locked as well, went with it, and no handle of it may be passed to the driver any more.
	d.context, d.memory, d.raw = cu.CUContext{}, nil, nil
	d.in, d.out, d.graphs.made = stage{}, stage{}, nil
	return nil
}

// blame says whether an error is the driver's, after which nothing of the device may work, and whether it may
// stick to the process.
func blame(err error) (failed, sticky bool) {
	code := driver.Error(0)
	failed = errors.As(err, &code)
	return failed, failed && code.Sticky()
}

// Info describes the device.
func (d *Device) Info() gpu.Info { return d.info }

var errClosed = errors.New("cuda: the device is closed")

// Run computes a batch. A batch that names blocks, tokens or rows that don't exist is refused before
// anything is touched, and the device stays usable. Logits that are not finite, which only broken weights
// or an overflow produce, are an error that names the row. After an error of the driver the device can
// only be closed; one that may stick to the process is a gpu.StickyError.
func (d *Device) Run(b *gpu.Batch, r *gpu.Result) error {
	if d.broken != nil {
		return d.broken
	}
	if err := d.checker.Batch(b); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r.Reset(b)
	err := driver.Explain(cu.SetCurrentContext(d.context))
	if err == nil && d.context == (cu.CUContext{}) {
		err = noContext()
	}
	if err == nil {
		err = d.run(b, r)
	}
	if err != nil {
		err = fmt.Errorf("cuda: %w", err)
		failed, sticky := blame(err)
		if sticky {
			err = &gpu.StickyError{Err: err}
		}
		if failed {
			d.broken = err
		}
	}
	return err
}

// Close gives all memory back. Closing twice does no harm.
func (d *Device) Close() error {
	if errors.Is(d.broken, errClosed) {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	failed := d.broken != nil
	d.broken = errClosed
	return d.free(failed)
}

// free gives all back. Where the device has failed, so may every call but the last: destroying the context
// takes all with it, and that alone is an error to report.
func (d *Device) free(failed bool) error {
	if d.context == (cu.CUContext{}) {
		return nil
	}
	var errs []error
	keep := func(err error) {
		if err != nil && !failed {
			errs = append(errs, driver.Explain(err))
		}
	}
	keep(cu.SetCurrentContext(d.context))
	keep(d.graphs.drop())
	for _, p := range d.memory {
		keep(cu.MemFree(p))
	}
	for _, s := range []*stage{&d.in, &d.out} {
		if s.host != nil {
			keep(driver.FreeHost(s.host))
			s.host = nil
		}
	}
	if d.raw != nil {
		keep(driver.FreeHost(d.raw))
	}
	d.memory, d.raw = nil, nil
	if d.stream != (cu.Stream{}) {
		keep(d.stream.Destroy())
	}
	if d.module.loaded {
		keep(d.module.handle.Unload())
	}
	if err := d.context.Destroy(); err != nil {
		errs = append(errs, driver.Explain(err))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cuda: giving the GPU back: %w", err)
	}
	return nil
}

// bits are a float's, as a kernel's parameter.
func bits(f float32) uint64 { return uint64(math.Float32bits(f)) }
