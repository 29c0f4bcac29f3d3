package model

import (
	"math"

	"github.com/troupe-llm/troupe/model/gguf"
)

// Config is the shape of a decoder-only transformer: RMSNorm, grouped-query attention with rotary
// positions, and a gated feed-forward or a mixture of them. The first fields are its size; the others say
// in what it differs from Llama, whose values for them are zero. What an architecture always does is in
// the table in architecture.go, and what a device must do is all here: no code asks for a model's name.
//
// The tensors of a model, each with Shape {inputs, outputs}, are
//
//	token_embd.weight          {Width, Vocab}
//	blk.N.attn_norm.weight     {Width}
//	blk.N.attn_q.weight        {Width, Heads×HeadDim}
//	blk.N.attn_k.weight        {Width, KVHeads×HeadDim}
//	blk.N.attn_v.weight        {Width, KVHeads×HeadDim}
//	blk.N.attn_output.weight   {Heads×HeadDim, Width}
//	blk.N.ffn_norm.weight      {Width}
//	blk.N.ffn_gate.weight      {Width, FFN}
//	blk.N.ffn_up.weight        {Width, FFN}
//	blk.N.ffn_down.weight      {FFN, Width}
//	output_norm.weight         {Width}
//	output.weight              {Width, Vocab}, absent when TiedOutput
//
// with, instead of these or besides,
//
//	FusedQKV     blk.N.attn_qkv.weight {Width, (Heads+2×KVHeads)×HeadDim}: queries, then keys, then values
//	FusedGateUp  blk.N.ffn_up.weight {Width, 2×FFN}: gates, then what they gate; with Experts,
//	             blk.N.ffn_gate_up_exps.weight {Width, 2×FFN, Count}
//	QKVBias      blk.N.attn_q.bias {Heads×HeadDim}, .attn_k.bias, .attn_v.bias {KVHeads×HeadDim};
//	             with FusedQKV, attn_qkv.bias
//	QKNorm       blk.N.attn_q_norm.weight, .attn_k_norm.weight {HeadDim}
//	PostNorm     blk.N.post_attention_norm.weight, .post_ffw_norm.weight {Width}
//	Experts      blk.N.ffn_gate_inp.weight {Width, Count}; blk.N.ffn_gate_exps.weight and
//	             .ffn_up_exps.weight {Width, FFN, Count}, .ffn_down_exps.weight {FFN, Width, Count},
//	             instead of the feed-forward's three; with Shared, ffn_gate_shexp, ffn_up_shexp
//	             {Width, Shared} and ffn_down_shexp {Shared, Width}; with SharedGate,
//	             ffn_gate_inp_shexp.weight {Width} or {Width, 1}
//
// What has one dimension is F32; matrices have one of WeightTypes. All are there with
// these shapes once a Model is open. A norm's weight is the whole factor: where a model adds 1 to it, as
// Gemma does, the file has the sum.
type Config struct {
	Layers  int // transformer blocks
	Width   int // length of the hidden state
	Heads   int // query heads
	KVHeads int // key and value heads; divides Heads
	HeadDim int // length of a head's query, key and value
	FFN     int // length of the feed-forward's inner state
	Vocab   int // tokens, and length of a logits row
	Context int // longest sequence that the model was trained for, in tokens

	NormEps  float32 // added to the mean square under RMSNorm's root
	RopeBase float32 // theta: pair i of a head turns by position × RopeBase^(−2i/RopeDim)
	RopeDim  int     // how many of a head's values are turned, the first; even, at most HeadDim
	// RopeFactors, if not nil, has RopeDim/2 numbers by which the pairs' frequencies are divided
	// (rope_freqs.weight, as Llama 3.1 and later have it).
	RopeFactors []float32
	RopeScaling RopeScaling
	// RopeHalves says that pair i is values i and i+RopeDim/2 of a head, as Hugging Face has all models.
	// Without it, it is the neighbours 2i and 2i+1: GGUF has the rows of attn_q and attn_k of some
	// architectures, Llama's among them, reordered for that.
	RopeHalves bool
	// LocalRopeBase is the theta of layers with LocalPositions, which are never stretched.
	LocalRopeBase float32

	// TiedOutput says that there is no output.weight: token_embd.weight gives the logits too.
	TiedOutput bool

	// Attention is how each of the Layers attends; nil where all do as Llama's: the zero Attention.
	Attention []Attention
	// LogitSoftcap, if not 0, is the c of c·tanh(x/c), which the logits become before they are used
	// (Gemma 2, arXiv 2408.00118).
	LogitSoftcap float32
	// Gate is the function of the feed-forward's gate.
	Gate Gate

	// EmbeddingScale, if not 0, is a factor on token embeddings, though not where they give the logits.
	EmbeddingScale float32
	QKVBias        bool // queries, keys and values have a bias, added before anything else
	QKNorm         bool // each head's query and key goes through an RMSNorm before it is turned
	// PostNorm says that what attention and the feed-forward give goes through an RMSNorm, besides that
	// before them, before it is added to the hidden state.
	PostNorm    bool
	FusedQKV    bool // one matrix has the rows of queries, keys and values
	FusedGateUp bool // one matrix has the rows of the feed-forward's gate and up
	// Experts, if its Count is not 0, take the place of every layer's feed-forward.
	Experts Experts
}

// Attention is how a layer attends: with weights softmax(cap(Scale × q·k)).
type Attention struct {
	// Window is how many positions a position sees, its own and those before it; 0 for all.
	Window int
	// Scale is the factor on the products of queries and keys; 0 stands for 1/√HeadDim.
	Scale float32
	// Softcap, if not 0, is the c of c·tanh(x/c), which scores become (Gemma 2, arXiv 2408.00118).
	Softcap float32
	// Positions is how the layer's queries and keys know where they are.
	Positions Positions
}

// Positions is what a layer's queries and keys are turned by.
type Positions uint8

// The kinds of positions.
const (
	GlobalPositions Positions = iota // rotary, of RopeBase, stretched as RopeScaling says
	LocalPositions                   // rotary, of LocalRopeBase, not stretched (Gemma 3, arXiv 2503.19786)
	NoPositions                      // not turned: the order is known from the other layers (NoPE, arXiv 2501.18795)
)

// Gate is the activation function f of a feed-forward of the form down(f(gate(x)) × up(x)).
type Gate uint8

// The functions of gates (Shazeer, 2020, arXiv 2002.05202).
const (
	SiLU Gate = iota // x·σ(x): SwiGLU
	GELU             // x·½(1 + tanh(√(2/π)(x + 0.044715x³))): GeGLU, by tanh as all Gemmas have it
)

// Experts is a mixture of feed-forwards: of Count experts, each position has the Used ones that a
// router, ffn_gate_inp, gives the highest scores, and gets the sum of what they say, weighted by the
// softmax over all scores.
type Experts struct {
	Count, Used int // of which there are at most Count; 0 for none
	FFN         int // length of an expert's inner state
	// Normalise divides the weights of the chosen by their sum. That is the same as a softmax over the
	// scores of the chosen alone, which is how Mixtral puts it (arXiv 2401.04088).
	Normalise bool
	// Shared is the length of the inner state of an expert that all positions have besides; 0 for none.
	Shared int
	// SharedGate says that what it gives is multiplied by σ(x·ffn_gate_inp_shexp).
	SharedGate bool
}

// AttentionOf is how layer i attends, with its scale written out.
func (c *Config) AttentionOf(i int) Attention {
	var a Attention
	if c.Attention != nil {
		a = c.Attention[i]
	}
	if a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(float64(c.HeadDim)))
	}
	return a
}

// WeightTypes are the storage types that a model's matrices may have. A device may support fewer,
// and says so when it is opened.
func WeightTypes() []gguf.Type {
	return []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0,
		gguf.Q2_K, gguf.Q3_K, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.IQ4_NL, gguf.IQ4_XS, gguf.MXFP4}
}
