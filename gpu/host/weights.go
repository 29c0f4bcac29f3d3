package host

import (
	"fmt"

	"github.com/edsrzf/mmap-go"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// matrix is a weight matrix as it lies in the file: rows outputs, each a row of quantised inputs.
type matrix struct {
	name   string // of its tensor
	data   []byte
	rows   int
	stride int // bytes of a row
	at     int // where its rows begin in its stack
	first  int // where its outputs begin in those of its linear
}

// linear is one or more matrices that are multiplied by the same activations, such as those of
// queries, keys and values; their outputs lie one after another.
type linear struct {
	stacks  []stack
	in, out int
}

// stack is the matrices of a linear that have the same type and so the same kernel.
type stack struct {
	parts      []matrix
	kind       gguf.Type
	rows       int // of all parts
	dequantise func(dst []float32, src []byte)
	// lookup says that the stack is multiplied by tables (lookup.go); then the blocks of a row are
	// summed in chunks of their own, so that threads can share one row's tables.
	lookup bool
	chunks int
	// packing is how the stack, then of one matrix, is packed for the processor's own kernels, and
	// packed the weights in that form; nil if it isn't.
	packing *packing
	packed  []byte
}

// takesOctets says that the stack is multiplied by activations that have been rounded to bytes.
func (s *stack) takesOctets() bool { return s.packing != nil && s.packing.float == 0 }

// Tables are worth filling when enough rows share them: a table of 4-bit weights takes as long as the
// sums of some 150 rows, one of 8-bit weights of some 170, and dequantising and multiplying is two to
// three times as slow as summing.
const (
	lookupRows4 = 96
	lookupRows8 = 128
	maxChunks   = 8
	chunkBlocks = 8 // blocks per chunk, at least
)

func newLinear(m *model.Model, packings map[gguf.Type]packing, names ...string) (linear, error) {
	var l linear
	for _, name := range names {
		t, err := m.Peek(name)
		if err != nil {
			return l, err
		}
		if err := l.append(t, packings); err != nil {
			return l, err
		}
	}
	l.plan()
	return l, l.keep(m)
}

// keep has those matrices made that are read where the model has them. The others are when they are packed.
func (l *linear) keep(m *model.Model) error {
	for i := range l.stacks {
		if l.stacks[i].packing != nil {
			continue
		}
		for _, part := range l.stacks[i].parts {
			if _, err := m.Tensor(part.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// append adds a matrix.
func (l *linear) append(t gguf.Tensor, packings map[gguf.Type]packing) error {
	f := dequantiser(t.Type)
	if f == nil {
		return unsupported(t)
	}
	if len(t.Shape) != 2 || l.in != 0 && t.Shape[0] != l.in || len(t.Data) != t.Type.RowBytes(t.Shape[0])*t.Shape[1] {
		return fmt.Errorf("tensor %q has shape %v and %d bytes, which don't fit", t.Name, t.Shape, len(t.Data))
	}
	l.in = t.Shape[0]
	var s *stack
	p, packed := packings[t.Type]
	packed = packed && l.in%floatColumns == 0
	for i := range l.stacks {
		if !packed && l.stacks[i].kind == t.Type {
			s = &l.stacks[i]
		}
	}
	if s == nil {
		l.stacks = append(l.stacks, stack{kind: t.Type, dequantise: f, chunks: 1})
		s = &l.stacks[len(l.stacks)-1]
	}
	if packed {
		s.packing = &p
	}
	s.parts = append(s.parts, matrix{name: t.Name, data: t.Data, rows: t.Shape[1], stride: t.Type.RowBytes(l.in), at: s.rows, first: l.out})
	s.rows += t.Shape[1]
	l.out += t.Shape[1]
	return nil
}

// plan decides, when all matrices are there, which kernels multiply them.
func (l *linear) plan() {
	for i := range l.stacks {
		s := &l.stacks[i]
		if s.packing != nil {
			continue
		}
		switch s.kind {
		case gguf.Q4_0, gguf.Q4_1, gguf.IQ4_NL, gguf.MXFP4:
			s.lookup = s.rows >= lookupRows4
		case gguf.Q8_0:
			s.lookup = s.rows >= lookupRows8
		}
		for s.lookup && s.chunks < maxChunks && l.in/32 >= 2*s.chunks*chunkBlocks {
			s.chunks *= 2
		}
	}
}

func unsupported(t gguf.Tensor) error {
	return &gpu.UnsupportedError{Err: fmt.Errorf("tensor %q is %s, which the CPU device does not compute with; it knows %s", t.Name, t.Type, supported())}
}

// newVector reads a vector, such as a norm's weights, which are few and so kept as floats.
func newVector(m *model.Model, name string) ([]float32, error) {
	t, err := m.Tensor(name)
	if err != nil {
		return nil, err
	}
	f := dequantiser(t.Type)
	if f == nil {
		return nil, unsupported(t)
	}
	v := make([]float32, t.Values())
	f(v, t.Data)
	return v, nil
}

// layer is the weights of a transformer block.
type layer struct {
	attentionNorm, ffnNorm         []float32
	postAttentionNorm, postFFNNorm []float32 // nil if there are none
	qkv, output                    linear
	qkvBias                        []float32 // nil if there is none
	queryNorm, keyNorm             []float32 // of a head; nil if there are none
	positions                      model.Positions

	feedForward
	mixture *mixture // instead of the feed-forward; nil if there is none
}

// feedForward is down(f(gate·x) × up·x). The outputs of gateUp are those of gate, then those of up.
type feedForward struct{ gateUp, down linear }

// weights is all of a model.
type weights struct {
	embedding  matrix
	dequantise func(dst []float32, src []byte)
	layers     []layer
	outputNorm []float32
	head       linear
	memory     mmap.MMap // of packed matrices
}

// linears are all that there are.
func (w *weights) linears() []*linear {
	var all []*linear
	for i := range w.layers {
		l := &w.layers[i]
		all = append(all, &l.qkv, &l.output)
		if l.mixture != nil {
			all = l.mixture.linears(all)
		} else {
			all = append(all, &l.gateUp, &l.down)
		}
	}
	return append(all, &w.head)
}

func (w *weights) close() error {
	if w.memory == nil {
		return nil
	}
	return w.memory.Unmap()
}

// newWeights finds a model's weights. Those of the types in packings are to be packed.
func newWeights(m *model.Model, packings map[gguf.Type]packing) (*weights, error) {
	w := &weights{layers: make([]layer, m.Config.Layers)}
	embedding, err := newLinear(m, nil, "token_embd.weight")
	if err != nil {
		return nil, err
	}
	w.embedding, w.dequantise = embedding.stacks[0].parts[0], embedding.stacks[0].dequantise
	for i := range w.layers {
		if err := w.layers[i].open(m, packings, i); err != nil {
			return nil, err
		}
	}
	if w.outputNorm, err = newVector(m, "output_norm.weight"); err != nil {
		return nil, err
	}
	head := "output.weight"
	if m.Config.TiedOutput {
		head = "token_embd.weight"
	}
	w.head, err = newLinear(m, packings, head)
	return w, err
}

// open finds the weights of layer i.
func (l *layer) open(m *model.Model, packings map[gguf.Type]packing, i int) error {
	c := &m.Config
	f := finder{m: m, packings: packings, layer: i}
	l.positions = c.AttentionOf(i).Positions
	l.attentionNorm, l.ffnNorm = f.vector("attn_norm.weight"), f.vector("ffn_norm.weight")
	if c.PostNorm {
		l.postAttentionNorm, l.postFFNNorm = f.vector("post_attention_norm.weight"), f.vector("post_ffw_norm.weight")
	}
	if c.QKNorm {
		l.queryNorm, l.keyNorm = f.vector("attn_q_norm.weight"), f.vector("attn_k_norm.weight")
	}
	qkv := []string{"attn_q", "attn_k", "attn_v"}
	if c.FusedQKV {
		qkv = []string{"attn_qkv"}
	}
	l.qkv = f.linear(qkv...)
	if c.QKVBias {
		for _, name := range qkv {
			l.qkvBias = append(l.qkvBias, f.vector(name+".bias")...)
		}
	}
	l.output = f.linear("attn_output")
	switch {
	case c.Experts.Count > 0:
		l.mixture = f.mixture(&c.Experts)
	case c.FusedGateUp:
		l.feedForward = feedForward{f.linear("ffn_up"), f.linear("ffn_down")}
	default:
		l.feedForward = feedForward{f.linear("ffn_gate", "ffn_up"), f.linear("ffn_down")}
	}
	return f.err
}

// finder finds the weights of a layer, by the parts of their names that follow blk.N, and keeps the first
// error.
type finder struct {
	m        *model.Model
	packings map[gguf.Type]packing
	layer    int
	err      error
}

func (f *finder) name(part string) string { return fmt.Sprintf("blk.%d.%s", f.layer, part) }

func (f *finder) vector(part string) []float32 {
	v, err := newVector(f.m, f.name(part))
	f.fail(err)
	return v
}

// linear is of matrices, whose names are given without their ending.
func (f *finder) linear(parts ...string) linear {
	names := make([]string, len(parts))
	for i, part := range parts {
		names[i] = f.name(part + ".weight")
	}
	l, err := newLinear(f.m, f.packings, names...)
	f.fail(err)
	return l
}

func (f *finder) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}
