package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/model/gguf"
)

// Config is the shape of a decoder-only transformer of the Llama family: RMSNorm before attention and
// feed-forward, grouped-query attention with rotary positions, and a SiLU-gated feed-forward.
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
// Norms are F32; matrices have one of WeightTypes. All are there with these shapes once a Model is
// open. GGUF files of this architecture have the rows of attn_q and attn_k reordered so that rotary
// positions turn the neighbouring values 2i and 2i+1 of a head (Rope gives the i-th angle).
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
	RopeDim  int     // how many of a head's values are turned; even, at most HeadDim
	// RopeFactors, if not nil, has RopeDim/2 numbers by which the pairs' frequencies are divided
	// (rope_freqs.weight, as Llama 3.1 and later have it).
	RopeFactors []float32
	RopeScaling RopeScaling

	// TiedOutput says that there is no output.weight: token_embd.weight gives the logits too.
	TiedOutput bool
}

// RopeScaling stretches rotary positions beyond the context that a model was first trained for.
type RopeScaling struct {
	// Type is "" for none, "linear" (position interpolation) or "yarn" (arXiv 2309.00071).
	Type string
	// Factor is how many times longer the context became; 1 for none.
	Factor float32
	// What follows is for yarn: the context before stretching in tokens, how much of the
	// interpolation is ramped (1: as in the paper), the factor on the angles' cosines and sines
	// besides the paper's, and the numbers of turns within OriginalContext between which the ramp runs.
	OriginalContext    int
	ExtFactor          float32
	AttentionFactor    float32
	BetaFast, BetaSlow float32
}

// Rope gives what rotary positions need: by how many radians each of the RopeDim/2 pairs of a head
// turns per position, and a factor on the cosines and sines of all angles (1 except with yarn).
func (c *Config) Rope() (frequencies []float64, magnitude float64) {
	s := &c.RopeScaling
	frequencies = make([]float64, c.RopeDim/2)
	base := float64(c.RopeBase)
	var low, high float64 // the ramp of yarn, in pairs
	magnitude = 1
	if s.Type == "yarn" {
		// The pair that makes the given number of turns over the original context.
		pair := func(turns float32) float64 {
			return float64(c.RopeDim) * math.Log(float64(s.OriginalContext)/(float64(turns)*2*math.Pi)) / (2 * math.Log(base))
		}
		low = max(0, math.Floor(pair(s.BetaFast)))
		high = min(float64(c.RopeDim-1), math.Ceil(pair(s.BetaSlow)))
		magnitude = float64(s.AttentionFactor)
		if s.ExtFactor != 0 {
			magnitude *= 1 + 0.1*math.Log(float64(s.Factor))
		}
	}
	for i := range frequencies {
		f := math.Pow(base, -2*float64(i)/float64(c.RopeDim))
		if c.RopeFactors != nil {
			f /= float64(c.RopeFactors[i])
		}
		switch s.Type {
		case "linear":
			f /= float64(s.Factor)
		case "yarn":
			// Pairs left of the ramp keep their frequency, those right of it are interpolated.
			ramp := (float64(i) - low) / max(0.001, high-low)
			keep := (1 - min(1, max(0, ramp))) * float64(s.ExtFactor)
			f = f/float64(s.Factor)*(1-keep) + f*keep
		}
		frequencies[i] = f
	}
	return frequencies, magnitude
}

// WeightTypes are the storage types that a model's matrices may have. A device may support fewer,
// and says so when it is opened.
func WeightTypes() []gguf.Type {
	return []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0,
		gguf.Q2_K, gguf.Q3_K, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.IQ4_NL, gguf.IQ4_XS, gguf.MXFP4}
}

// Bounds of what a configuration may say. They are far above any real model, and low enough that
// products of a few of them stay within an int64.
const (
	maxLayers  = 4096
	maxWidth   = 1 << 20
	maxHeads   = 1 << 14
	maxContext = 1 << 27
)

// readConfig reads and checks the metadata. The tensors are checked by checkTensors.
func readConfig(f *gguf.File) (Config, error) {
	r := configReader{file: f, prefix: "llama."}
	var c Config
	c.Layers = r.int("block_count", 1, maxLayers)
	c.Width = r.int("embedding_length", 1, maxWidth)
	c.Heads = r.int("attention.head_count", 1, maxHeads)
	c.KVHeads = r.intOr("attention.head_count_kv", 1, maxHeads, c.Heads)
	c.FFN = r.int("feed_forward_length", 1, maxWidth)
	c.Context = r.int("context_length", 1, maxContext)
	c.NormEps = r.float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	c.RopeBase = r.floatOr("rope.freq_base", 2, 1e30, 10000)
	if r.err != nil {
		return c, r.err
	}
	if c.Heads%c.KVHeads != 0 {
		return c, f.Errorf("llama.attention.head_count_kv", "%d key-value heads do not divide %d heads", c.KVHeads, c.Heads)
	}
	if !f.Has("llama.attention.key_length") && c.Width%c.Heads != 0 {
		return c, f.Errorf("llama.attention.head_count", "%d heads do not divide the width %d, and there is no llama.attention.key_length", c.Heads, c.Width)
	}
	c.HeadDim = r.intOr("attention.key_length", 1, maxWidth, c.Width/c.Heads)
	if v := r.intOr("attention.value_length", 1, maxWidth, c.HeadDim); r.err == nil && v != c.HeadDim {
		return c, f.Errorf("llama.attention.value_length", "values of %d beside keys of %d per head are not supported", v, c.HeadDim)
	}
	c.RopeDim = r.intOr("rope.dimension_count", 2, maxWidth, c.HeadDim)
	if r.err == nil && (c.RopeDim%2 != 0 || c.RopeDim > c.HeadDim) {
		return c, f.Errorf("llama.rope.dimension_count", "%d is odd or more than a head's %d", c.RopeDim, c.HeadDim)
	}
	if n := r.intOr("expert_count", 0, math.MaxInt32, 0); n > 0 {
		return c, f.Errorf("llama.expert_count", "a mixture of %d experts is not supported", n)
	}
	c.RopeScaling = r.ropeScaling(&c)
	if r.err != nil {
		return c, r.err
	}
	embd, err := f.Tensor("token_embd.weight")
	if err != nil {
		return c, err
	}
	if len(embd.Shape) != 2 {
		return c, wrongShape(embd, c.Width, "vocabulary")
	}
	c.Vocab = embd.Shape[1]
	if v := r.intOr("vocab_size", 1, math.MaxInt32, c.Vocab); r.err == nil && v != c.Vocab {
		return c, f.Errorf("llama.vocab_size", "%d tokens, but token_embd.weight has rows for %d", v, c.Vocab)
	}
	_, err = f.Tensor("output.weight")
	c.TiedOutput = err != nil
	if t, err := f.Tensor("rope_freqs.weight"); err == nil {
		if !slices.Equal(t.Shape, []int{c.RopeDim / 2}) {
			return c, wrongShape(t, c.RopeDim/2)
		}
		if t.Type != gguf.F32 {
			return c, wrongType(t, gguf.F32)
		}
		if c.RopeFactors, err = gguf.Decode(t.Type, t.Data); err != nil {
			return c, err
		}
		for i, v := range c.RopeFactors {
			if !(v > 0) || math.IsInf(float64(v), 0) {
				return c, tensorError(t, "value %d is %v; factors are finite and above 0", i, v)
			}
		}
	}
	return c, r.err
}

// configReader reads the keys of one architecture and keeps the first error.
type configReader struct {
	file   *gguf.File
	prefix string
	err    error
}

func (r *configReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// int reads a number from least to most.
func (r *configReader) int(key string, least, most int) int {
	key = r.prefix + key
	v, err := r.file.Uint(key)
	switch {
	case err != nil:
		r.fail(err)
	case v < uint64(least) || v > uint64(most):
		r.fail(r.file.Errorf(key, "%d is out of range: %d to %d make sense", v, least, most))
	default:
		return int(v)
	}
	return least
}

func (r *configReader) intOr(key string, least, most, missing int) int {
	if !r.file.Has(r.prefix + key) {
		return missing
	}
	return r.int(key, least, most)
}

// float reads a number from least to most.
func (r *configReader) float(key string, least, most float64) float32 {
	key = r.prefix + key
	v, err := r.file.Float(key)
	switch {
	case err != nil:
		r.fail(err)
	case !(v >= least && v <= most): // NaN is out of any range
		r.fail(r.file.Errorf(key, "%v is out of range: %v to %v make sense", v, least, most))
	default:
		return float32(v)
	}
	return float32(most)
}

func (r *configReader) floatOr(key string, least, most, missing float64) float32 {
	if !r.file.Has(r.prefix + key) {
		return float32(missing)
	}
	return r.float(key, least, most)
}

// ropeScaling reads rope.scaling.*, and rope.scale_linear of older files.
func (r *configReader) ropeScaling(c *Config) RopeScaling {
	none := RopeScaling{Factor: 1}
	s := none
	s.Factor = r.floatOr("rope.scale_linear", 1e-6, 1e6, 1)
	s.Factor = r.floatOr("rope.scaling.factor", 1e-6, 1e6, float64(s.Factor))
	s.Type = "linear" // as llama.cpp assumes where the file gives a factor alone
	if key := r.prefix + "rope.scaling.type"; r.file.Has(key) {
		var err error
		if s.Type, err = r.file.String(key); err != nil {
			r.fail(err)
			return none
		}
		if s.Type != "none" && s.Type != "linear" && s.Type != "yarn" {
			r.fail(r.file.Errorf(key, "%q is not supported; supported: none, linear, yarn", s.Type))
			return none
		}
	}
	if s.Type == "none" || s.Factor == 1 {
		return none
	}
	if s.Type == "yarn" {
		s.OriginalContext = r.intOr("rope.scaling.original_context_length", 1, maxContext, c.Context)
		s.ExtFactor = r.floatOr("rope.scaling.yarn_ext_factor", 0, 1e3, 1)
		s.AttentionFactor = r.floatOr("rope.scaling.attn_factor", 1e-3, 1e3, 1)
		s.AttentionFactor = r.floatOr("rope.scaling.yarn_attn_factor", 1e-3, 1e3, float64(s.AttentionFactor))
		s.BetaFast = r.floatOr("rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32)
		s.BetaSlow = r.floatOr("rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1)
	}
	return s
}

// checkTensors finds every tensor that the configuration calls for, with its shape and a type that
// a matrix or a norm may have, and nothing besides: a tensor that this code does not know, such as
// an attention bias, would change what the model says.
func checkTensors(f *gguf.File, c *Config) error {
	known := map[string]bool{"rope_freqs.weight": true}
	check := func(name string, shape ...int) error {
		known[name] = true
		t, err := f.Tensor(name)
		if err != nil {
			return err
		}
		if !slices.Equal(t.Shape, shape) {
			return wrongShape(t, shape[0], shape[1:])
		}
		if len(shape) == 1 && t.Type != gguf.F32 {
			return wrongType(t, gguf.F32)
		}
		if !slices.Contains(WeightTypes(), t.Type) {
			return wrongType(t, WeightTypes()...)
		}
		return nil
	}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	err := errors.Join(check("token_embd.weight", c.Width, c.Vocab), check("output_norm.weight", c.Width))
	if err == nil && !c.TiedOutput {
		err = check("output.weight", c.Width, c.Vocab)
	}
	for i := 0; i < c.Layers && err == nil; i++ {
		for _, w := range []struct {
			name  string
			shape []int
		}{
			{"attn_norm", []int{c.Width}},
			{"attn_q", []int{c.Width, q}},
			{"attn_k", []int{c.Width, kv}},
			{"attn_v", []int{c.Width, kv}},
			{"attn_output", []int{q, c.Width}},
			{"ffn_norm", []int{c.Width}},
			{"ffn_gate", []int{c.Width, c.FFN}},
			{"ffn_up", []int{c.Width, c.FFN}},
			{"ffn_down", []int{c.FFN, c.Width}},
		} {
			if err = check(fmt.Sprintf("blk.%d.%s.weight", i, w.name), w.shape...); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	for _, t := range f.Tensors() {
		if !known[t.Name] {
			return tensorError(t, "not a tensor of a llama model of %d layers as supported here", c.Layers)
		}
	}
	return nil
}

func tensorError(t gguf.Tensor, format string, args ...any) error {
	return &gguf.Error{Field: fmt.Sprintf("tensor %q", t.Name), Offset: t.Offset, What: fmt.Sprintf(format, args...)}
}

// wrongShape says which shape is wanted; its parts are printed as they come.
func wrongShape(t gguf.Tensor, want ...any) error {
	parts := []string{}
	for _, w := range want {
		if list, ok := w.([]int); ok {
			for _, n := range list {
				parts = append(parts, fmt.Sprint(n))
			}
			continue
		}
		parts = append(parts, fmt.Sprint(w))
	}
	return tensorError(t, "its shape is %v, wanted is [%s]", t.Shape, strings.Join(parts, " "))
}

func wrongType(t gguf.Tensor, want ...gguf.Type) error {
	names := make([]string, len(want))
	for i, w := range want {
		names[i] = w.String()
	}
	return tensorError(t, "its type is %s; supported: %s", t.Type, strings.Join(names, ", "))
}
