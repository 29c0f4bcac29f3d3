package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/troupe-llm/troupe/model/gguf"
)

// Bounds of what a configuration may say. They are far above any real model, and low enough that
// products of a few of them stay within an int64.
const (
	maxLayers  = 4096
	maxWidth   = 1 << 20
	maxHeads   = 1 << 14
	maxContext = 1 << 27
	maxExperts = 1 << 14
)

// readConfig reads and checks the metadata of a model of architecture a. The tensors are checked by
// checkTensors.
func readConfig(f *gguf.File, a *architecture) (Config, error) {
	r := configReader{file: f, prefix: a.name + "."}
	c := a.config
	c.Layers = r.int("block_count", 1, maxLayers)
	c.Width = r.int("embedding_length", 1, maxWidth)
	c.Heads = r.int("attention.head_count", 1, maxHeads)
	c.KVHeads = r.intOr("attention.head_count_kv", 1, maxHeads, c.Heads)
	c.Context = r.int("context_length", 1, maxContext)
	c.NormEps = r.float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	c.RopeBase = r.floatOr("rope.freq_base", 2, 1e30, 10000)
	c.FFN = r.int("feed_forward_length", 1, maxWidth)
	if r.err != nil {
		return c, r.err
	}
	if c.Heads%c.KVHeads != 0 {
		return c, r.errorf("attention.head_count_kv", "%d key-value heads do not divide %d heads", c.KVHeads, c.Heads)
	}
	if !r.has("attention.key_length") && c.Width%c.Heads != 0 {
		return c, r.errorf("attention.head_count", "%d heads do not divide the width %d, and there is no %sattention.key_length", c.Heads, c.Width, r.prefix)
	}
	c.HeadDim = r.intOr("attention.key_length", 1, maxWidth, c.Width/c.Heads)
	if v := r.intOr("attention.value_length", 1, maxWidth, c.HeadDim); r.err == nil && v != c.HeadDim {
		return c, r.errorf("attention.value_length", "values of %d beside keys of %d per head are not supported", v, c.HeadDim)
	}
	c.RopeDim = r.intOr("rope.dimension_count", 2, maxWidth, c.HeadDim)
	if r.err == nil && (c.RopeDim%2 != 0 || c.RopeDim > c.HeadDim) {
		return c, r.errorf("rope.dimension_count", "%d is odd or more than a head's %d", c.RopeDim, c.HeadDim)
	}
	r.decisive()
	if a.scaledEmbedding {
		c.EmbeddingScale = float32(math.Sqrt(float64(c.Width)))
	}
	c.LogitSoftcap = r.floatOr("final_logit_softcapping", 0, 1e6, 0)
	c.RopeScaling = r.ropeScaling(&c)
	c.Attention = r.attention(a, &c)
	c.Experts = r.experts(a, &c)
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
		return c, r.errorf("vocab_size", "%d tokens, but token_embd.weight has rows for %d", v, c.Vocab)
	}
	_, err = f.Tensor("output.weight")
	c.TiedOutput = err != nil
	_, err = f.Tensor("blk.0.attn_qkv.weight")
	c.FusedQKV = err == nil
	if c.Experts.Count > 0 {
		_, err = f.Tensor("blk.0.ffn_gate_up_exps.weight")
		c.FusedGateUp = err == nil
		if t, err := f.Tensor("blk.0.ffn_gate.0.weight"); err == nil {
			return c, tensorError(t, "a tensor for each expert, as files had until 2024, is not supported: take a newer file of the model")
		}
	}
	c.RopeFactors = r.factors("rope_freqs.weight", &c)
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

func (r *configReader) has(key string) bool { return r.file.Has(r.prefix + key) }

func (r *configReader) errorf(key, format string, args ...any) error {
	return r.file.Errorf(r.prefix+key, format, args...)
}

// int reads a number from least to most.
func (r *configReader) int(key string, least, most int) int {
	v, err := r.file.Uint(r.prefix + key)
	switch {
	case err != nil:
		r.fail(err)
	case v < uint64(least) || v > uint64(most):
		r.fail(r.errorf(key, "%d is out of range: %d to %d make sense", v, least, most))
	default:
		return int(v)
	}
	return least
}

func (r *configReader) intOr(key string, least, most, missing int) int {
	if !r.has(key) {
		return missing
	}
	return r.int(key, least, most)
}

// float reads a number from least to most.
func (r *configReader) float(key string, least, most float64) float32 {
	v, err := r.file.Float(r.prefix + key)
	switch {
	case err != nil:
		r.fail(err)
	case !(v >= least && v <= most): // NaN is out of any range
		r.fail(r.errorf(key, "%v is out of range: %v to %v make sense", v, least, most))
	default:
		return float32(v)
	}
	return float32(most)
}

func (r *configReader) floatOr(key string, least, most, missing float64) float32 {
	if !r.has(key) {
		return float32(missing)
	}
	return r.float(key, least, most)
}

// boolOr reads a bool.
func (r *configReader) boolOr(key string, missing bool) bool {
	if !r.has(key) {
		return missing
	}
	v, err := r.file.Bool(r.prefix + key)
	if err != nil {
		r.fail(err)
	}
	return v
}

// decisive refuses what would change the result and isn't computed here, unless it has the value that
// changes nothing: none of the architectures has it, but others that a file might be passed off as do.
func (r *configReader) decisive() {
	for _, d := range []struct {
		key     string
		neutral []float64
	}{
		{"embedding_scale", []float64{0, 1}},
		{"residual_scale", []float64{0, 1}},
		{"logit_scale", []float64{0, 1}},
		{"attention.output_scale", []float64{0, 1}},
		{"attention.value_scale", []float64{0, 1}},
		{"attention.clamp_kqv", []float64{0}},
		{"attention.max_alibi_bias", []float64{0}},
		{"attention.temperature_scale", []float64{0}},
		{"attention.relative_buckets_count", []float64{0}},
		{"router_logit_softcapping", []float64{0}},
		{"rope.scaling.yarn_log_multiplier", []float64{0}},
		{"expert_weights_scale", []float64{0, 1}},
		{"expert_group_count", []float64{0, 1}},
		{"leading_dense_block_count", []float64{0}},
		{"interleave_moe_layer_step", []float64{0, 1}},
		{"nextn_predict_layers", []float64{0}},
	} {
		if !r.has(d.key) {
			continue
		}
		v, err := r.file.Float(r.prefix + d.key)
		if err != nil {
			n, failed := r.file.Int(r.prefix + d.key)
			if failed != nil {
				r.fail(failed)
				return
			}
			v = float64(n)
		}
		if !slices.Contains(d.neutral, v) {
			r.fail(r.errorf(d.key, "%v is not supported: this is computed as if it were %v", v, d.neutral[len(d.neutral)-1]))
		}
	}
	if !r.boolOr("attention.causal", true) {
		r.fail(r.errorf("attention.causal", "attention to what follows is not supported: is this an embedding model?"))
	}
	if r.boolOr("use_parallel_residual", false) {
		r.fail(r.errorf("use_parallel_residual", "attention and feed-forward side by side are not supported"))
	}
}

// attention reads how each layer attends; nil where all do as Llama's.
func (r *configReader) attention(a *architecture, c *Config) []Attention {
	var one Attention
	one.Scale = r.floatOr("attention.scale", 0, 1e3, 0)
	if one.Scale == 0 && a.wideScale == c.Layers {
		one.Scale = float32(1 / math.Sqrt(float64(c.Width)/float64(c.Heads)))
	}
	one.Softcap = r.floatOr("attn_logit_softcapping", 0, 1e6, 0)
	window := r.intOr("attention.sliding_window", 0, math.MaxUint32, a.window)
	local := make([]bool, c.Layers)
	switch {
	case window > 0 && a.windows:
		r.windowed(local, a)
	case window > 0 && window < c.Context:
		r.fail(r.errorf("attention.sliding_window", "windows of %d tokens are not supported with this architecture", window))
	}
	if window >= c.Context { // all see all
		window = 0
	}
	if c.LocalRopeBase > 0 {
		c.LocalRopeBase = r.floatOr("rope.freq_base_swa", 2, 1e30, float64(c.LocalRopeBase))
	}
	all := make([]Attention, c.Layers)
	plain := true
	for i := range all {
		all[i] = one
		if local[i] {
			all[i].Window = window
			if c.LocalRopeBase > 0 {
				all[i].Positions = LocalPositions
			}
		}
		if n := a.noPositionsEvery; n > 0 && (i+1)%n == 0 {
			all[i].Positions = NoPositions
		}
		plain = plain && all[i] == Attention{}
	}
	if !slices.ContainsFunc(all, func(a Attention) bool { return a.Positions == LocalPositions }) {
		c.LocalRopeBase = 0
	}
	if plain {
		return nil
	}
	return all
}

// windowed marks the layers that have the window.
func (r *configReader) windowed(layers []bool, a *architecture) {
	const key = "attention.sliding_window_pattern"
	period := a.windowPeriod
	switch v, _ := r.file.Value(r.prefix + key); v := v.(type) {
	case nil:
	case []bool:
		if len(v) < len(layers) {
			r.fail(r.errorf(key, "%d values for %d layers", len(v), len(layers)))
		}
		copy(layers, v)
		return
	default:
		period = r.int(key, 1, maxLayers)
	}
	for i := range layers {
		layers[i] = period == 0 || i%period < period-1
	}
}

// experts reads expert_*.
func (r *configReader) experts(a *architecture, c *Config) Experts {
	e := c.Experts
	e.Count = r.intOr("expert_count", 0, maxExperts, 0)
	switch {
	case e.Count > 0 && a.mixture == noExperts:
		r.fail(r.errorf("expert_count", "a mixture of %d experts is not supported with this architecture", e.Count))
	case e.Count == 0 && a.mixture == alwaysExperts:
		r.fail(r.errorf("expert_count", "there must be experts"))
	}
	if e.Count == 0 || r.err != nil {
		return Experts{}
	}
	e.Used = r.int("expert_used_count", 1, e.Count)
	if r.err != nil {
		return Experts{}
	}
	missing := c.FFN
	if a.mixture == alwaysExperts {
		missing = max(1, c.FFN/e.Used)
	}
	e.FFN = r.intOr("expert_feed_forward_length", 1, maxWidth, missing)
	if e.SharedGate { // the architecture has a shared expert
		e.Shared = r.intOr("expert_shared_feed_forward_length", 1, maxWidth, c.FFN)
	} else if n := r.intOr("expert_shared_feed_forward_length", 0, maxWidth, 0); n > 0 {
		r.fail(r.errorf("expert_shared_feed_forward_length", "a shared expert is not supported with this architecture"))
	}
	e.Normalise = r.boolOr("expert_weights_norm", e.Normalise)
	if f := r.intOr("expert_gating_func", 0, math.MaxUint32, 0); f > 1 {
		r.fail(r.errorf("expert_gating_func", "%d is not supported: experts are chosen by softmax, 1", f))
	}
	return e
}

// ropeScaling reads rope.scaling.*, rope.scale_linear of older files, and longrope's factors.
func (r *configReader) ropeScaling(c *Config) RopeScaling {
	none := RopeScaling{Factor: 1}
	s := none
	s.Factor = r.floatOr("rope.scale_linear", 1e-6, 1e6, 1)
	s.Factor = r.floatOr("rope.scaling.factor", 1e-6, 1e6, float64(s.Factor))
	s.Type = "linear" // as llama.cpp assumes where the file gives a factor alone
	const long = "rope_factors_long.weight"
	_, err := r.file.Tensor(long)
	longrope := err == nil
	if longrope { // which files with its factors don't always say
		s.Type = "longrope"
	}
	if r.has("rope.scaling.type") {
		if s.Type, err = r.file.String(r.prefix + "rope.scaling.type"); err != nil {
			r.fail(err)
			return none
		}
		if types := []string{"none", "linear", "yarn", "longrope"}; !slices.Contains(types, s.Type) {
			r.fail(r.errorf("rope.scaling.type", "%q is not supported; supported: none, linear, yarn, longrope", s.Type))
			return none
		}
		if (s.Type == "longrope") != longrope {
			r.fail(r.errorf("rope.scaling.type", "it is %q, but %s is there: %v", s.Type, long, longrope))
			return none
		}
	}
	if s.Type == "longrope" {
		s.Factor = 1
		s.OriginalContext = r.int("rope.scaling.original_context_length", 1, maxContext)
		s.AttentionFactor = r.floatOr("rope.scaling.attn_factor", 1e-3, 1e3, 1)
		s.LongFactors = r.factors(long, c)
		s.ShortFactors = r.factors("rope_factors_short.weight", c)
		if s.ShortFactors == nil && r.err == nil {
			r.fail(fmt.Errorf("%s is there, but not rope_factors_short.weight", long))
		}
		return s
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

// factors reads a tensor of numbers by which the pairs' frequencies are divided; nil if there is none.
func (r *configReader) factors(name string, c *Config) []float32 {
	t, err := r.file.Tensor(name)
	if err != nil {
		return nil
	}
	if !slices.Equal(t.Shape, []int{c.RopeDim / 2}) {
		r.fail(wrongShape(t, c.RopeDim/2))
		return nil
	}
	if t.Type != gguf.F32 {
		r.fail(wrongType(t, gguf.F32))
		return nil
	}
	factors, err := gguf.Decode(t.Type, t.Data)
	if err != nil {
		r.fail(err)
		return nil
	}
	for i, v := range factors {
		if !(v > 0) || math.IsInf(float64(v), 0) {
			r.fail(tensorError(t, "value %d is %v; factors are finite and above 0", i, v))
		}
	}
	return factors
}
