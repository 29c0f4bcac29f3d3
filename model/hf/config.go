package hf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/model/gguf"
)

// Bounds of what config.json may say; those of the model package are as wide.
const (
	maxLayers  = 4096
	maxWidth   = 1 << 20
	maxHeads   = 1 << 14
	maxContext = 1 << 27
	maxExperts = 1 << 14
)

// config is config.json on its way to GGUF's metadata.
type config struct {
	*settings
	arch architecture
	meta gguf.Builder
	// parts says that the language model is one part of the model, whose tensors have a prefix.
	parts bool

	layers, width, heads, kvHeads, headDim, ffn, vocab, context int
	tied                                                        bool

	ropeFactors               []float32 // of rope_freqs.weight; nil for none
	shortFactors, longFactors []float32 // of longrope; nil for none
}

// set adds metadata under a key of the architecture.
func (c *config) set(key string, value any) { c.meta.Set(c.arch.name+"."+key, value) }

func (c *config) setInt(key string, v int) { c.set(key, uint32(v)) }

// readConfig reads config.json.
func readConfig(data []byte) (*config, error) {
	s, err := parseSettings(configName, data)
	if err != nil {
		return nil, err
	}
	c := &config{settings: s}
	kind, classes, class := s.stringOr("model_type", ""), s.list("architectures"), ""
	if q := s.object("quantization_config"); q != nil {
		return nil, fmt.Errorf("%s: quantization_config: the weights are quantised already, by %q, which is not supported: take the model's original weights, or a GGUF file of it",
			configName, q.stringOr("quant_method", "?"))
	}
	if whole, ok := wholes[kind]; ok && s.err == nil {
		text := s.object("text_config")
		if text == nil {
			s.fail("text_config", "missing: an object is wanted")
			return nil, s.err
		}
		tied, given := s.values["tie_word_embeddings"]
		if _, inner := text.values["tie_word_embeddings"]; given && !inner {
			text.values["tie_word_embeddings"] = tied
		}
		c.settings, c.parts, class = text, true, whole
		kind = text.stringOr("model_type", "")
		for _, key := range []string{"bos_token_id", "eos_token_id"} { // the outer ones are for chats
			if s.has(key) {
				text.values[key] = s.values[key]
			}
		}
	}
	arch, ok := architectures[kind]
	if class == "" {
		class = arch.class
	}
	c.arch = arch
	switch {
	case s.err != nil:
		return nil, s.err
	case c.err != nil:
		return nil, c.err
	case kind == "":
		return nil, fmt.Errorf("%s: model_type: missing, so it is not known what kind of model this is; known are %s", c.where, strings.Join(ModelTypes(), ", "))
	case !ok:
		what := ""
		if s.has("auto_map") {
			what = " (it comes with code of its own, and no code of a model's is run)"
		}
		return nil, fmt.Errorf("%s: model_type: %q is not supported%s; supported: %s", c.where, kind, what, strings.Join(ModelTypes(), ", "))
	case len(classes) > 0 && !slices.Contains(classes, any(class)):
		return nil, fmt.Errorf("%s: architectures: %s is not the language model of this type, which is %s", configName, shown(classes), class)
	}
	defaults, err := parseSettings("defaults of "+kind, []byte(arch.defaults))
	if err != nil {
		return nil, err
	}
	for key, v := range defaults.values {
		if _, given := c.values[key]; !given {
			c.values[key] = v
		}
	}
	c.read()
	if c.arch.more != nil && c.err == nil {
		c.arch.more(c)
	}
	return c, c.err
}

// read reads what all architectures have.
func (c *config) read() {
	c.layers = c.int("num_hidden_layers", 1, maxLayers)
	c.width = c.int("hidden_size", 1, maxWidth)
	c.heads = c.int("num_attention_heads", 1, maxHeads)
	c.kvHeads = c.intOr("num_key_value_heads", 1, maxHeads, c.heads)
	c.ffn = c.int("intermediate_size", 1, maxWidth)
	c.vocab = c.int("vocab_size", 1, math.MaxInt32)
	c.context = c.int("max_position_embeddings", 1, maxContext)
	c.tied = c.boolOr("tie_word_embeddings", false)
	eps := c.float("rms_norm_eps", 1e-20, 1)
	key := "hidden_act"
	if c.has("hidden_activation") {
		key = "hidden_activation"
	}
	if act := c.stringOr(key, c.arch.activations[0]); !slices.Contains(c.arch.activations, act) {
		c.fail(key, "%q is not supported with this model_type; supported: %s", act, c.arch.activations[0])
	}
	if c.err == nil && c.heads%c.kvHeads != 0 {
		c.fail("num_key_value_heads", "%d do not divide %d heads", c.kvHeads, c.heads)
	}
	if c.err == nil && !c.has("head_dim") && c.width%c.heads != 0 {
		c.fail("num_attention_heads", "%d heads do not divide hidden_size %d, and there is no head_dim", c.heads, c.width)
	}
	if c.err != nil {
		return
	}
	c.headDim = c.intOr("head_dim", 2, maxWidth, c.width/c.heads)
	if c.headDim%2 != 0 {
		c.fail("head_dim", "%d is odd", c.headDim)
	}

	c.meta.Set("general.architecture", c.arch.name)
	c.meta.Set("general.type", "model")
	c.setInt("block_count", c.layers)
	c.setInt("embedding_length", c.width)
	c.setInt("attention.head_count", c.heads)
	c.setInt("attention.head_count_kv", c.kvHeads)
	c.setInt("attention.key_length", c.headDim)
	c.setInt("attention.value_length", c.headDim)
	c.setInt("feed_forward_length", c.ffn)
	c.setInt("vocab_size", c.vocab)
	c.set("attention.layer_norm_rms_epsilon", float32(eps))
	c.rope()
	c.setInt("context_length", c.context)
}

// rope reads rotary positions: rope_theta and rope_scaling, or both in rope_parameters as transformers 5
// writes them, for each kind of layer where there are several.
func (c *config) rope() {
	from, scaling := c.settings, c.object("rope_scaling")
	if r := c.object("rope_parameters"); r != nil {
		if full := r.object("full_attention"); full != nil {
			if local := r.object("sliding_attention"); local != nil {
				c.localRope(local)
			}
			c.keep(r)
			r = full
		} else if r.has("sliding_attention") {
			r.fail("full_attention", "missing beside sliding_attention: an object is wanted")
		}
		from, scaling = r, r
	}
	if c.has("rope_local_base_freq") && from == c.settings {
		c.set("rope.freq_base_swa", float32(c.float("rope_local_base_freq", 2, 1e30)))
	}
	base := from.floatOr("rope_theta", 2, 1e30, c.floatOr("rope_theta", 2, 1e30, 10000))
	partial := from.floatOr("partial_rotary_factor", 1e-6, 1, c.floatOr("partial_rotary_factor", 1e-6, 1, 1))
	c.keep(from)
	dim := int(float64(c.headDim) * partial)
	if c.err == nil && (dim < 2 || dim%2 != 0) {
		c.fail("partial_rotary_factor", "%v of a head's %d values is odd or none", partial, c.headDim)
	}
	if c.err == nil && c.arch.interleaved && dim != c.headDim {
		c.fail("partial_rotary_factor", "%v is not supported for this model_type; 1 is", partial)
	}
	c.set("rope.freq_base", float32(base))
	c.setInt("rope.dimension_count", dim)
	if scaling == nil || c.err != nil {
		return
	}
	kind := scaling.stringOr("rope_type", scaling.stringOr("type", "default"))
	switch kind {
	case "default":
	case "dynamic":
		// It changes nothing up to max_position_embeddings, and beyond that no sequence goes here.
	case "linear":
		c.set("rope.scaling.type", "linear")
		c.set("rope.scaling.factor", float32(scaling.float("factor", 1e-3, 1e6)))
	case "llama3":
		c.llama3(scaling, base, dim)
	case "yarn":
		c.yarn(scaling)
	case "longrope", "su": // its older name
		c.longrope(scaling, dim)
	default:
		scaling.fail("rope_type", "%q is not supported; supported: default, linear, dynamic, llama3, yarn, longrope", kind)
	}
	c.keep(scaling)
}

// localRope reads the positions of layers with a window, where they are not those of the others.
func (c *config) localRope(r *settings) {
	if !c.has("rope_local_base_freq") { // which the defaults of those that have such layers give
		c.fail("rope_parameters", "positions of layers with a window alone are not supported with this model_type")
	}
	if kind := r.stringOr("rope_type", "default"); kind != "default" {
		r.fail("rope_type", "%q is not supported in layers with a window; default is", kind)
	}
	c.set("rope.freq_base_swa", float32(r.floatOr("rope_theta", 2, 1e30, 10000)))
	c.keep(r)
}

// longrope reads a factor for each pair, for sequences up to the original context and for longer ones
// (arXiv 2402.13753), and makes that on sines and cosines as transformers does.
func (c *config) longrope(r *settings, dim int) {
	original := r.intOr("original_max_position_embeddings", 1, maxContext, c.intOr("original_max_position_embeddings", 1, maxContext, c.context))
	c.shortFactors, c.longFactors = r.floats("short_factor", dim/2), r.floats("long_factor", dim/2)
	factor := float64(c.context) / float64(original)
	attention := 1.0
	if factor > 1 && original > 1 {
		attention = math.Sqrt(1 + math.Log(factor)/math.Log(float64(original)))
	}
	c.set("rope.scaling.type", "longrope")
	c.setInt("rope.scaling.original_context_length", original)
	c.set("rope.scaling.attn_factor", float32(r.floatOr("attention_factor", 1e-3, 1e3, attention)))
}

// keep takes an inner object's error.
func (c *config) keep(s *settings) {
	if c.err == nil && s != nil {
		c.err = s.err
	}
}

// llama3 makes the factors by which Llama 3.1's scaling divides frequencies: 1 for those that turn more than
// high_freq_factor times in the original context, factor for those that turn less than low_freq_factor
// times, and between these a blend of the two.
func (c *config) llama3(r *settings, base float64, dim int) {
	factor := r.float("factor", 1, 1e6)
	low, high := r.float("low_freq_factor", 1e-6, 1e6), r.float("high_freq_factor", 1e-6, 1e6)
	context := r.float("original_max_position_embeddings", 1, maxContext)
	if r.err == nil && !(high > low) {
		r.fail("high_freq_factor", "%v is not above low_freq_factor %v", high, low)
	}
	if r.err != nil {
		return
	}
	c.ropeFactors = make([]float32, dim/2)
	for i := range c.ropeFactors {
		turns := context * math.Pow(base, -2*float64(i)/float64(dim)) / (2 * math.Pi)
		keep := min(1, max(0, (turns-low)/(high-low)))
		c.ropeFactors[i] = float32(1 / (keep + (1-keep)/factor))
	}
}

// yarn reads YaRN's scaling (arXiv 2309.00071). transformers multiplies sines and cosines by
// attention_factor where there is one, else by the paper's 1 + 0.1 ln factor, or by a quotient of two such
// terms with mscale and mscale_all_dim; GGUF has what comes on top of the paper's.
func (c *config) yarn(r *settings) {
	original := r.intOr("original_max_position_embeddings", 1, maxContext, c.context)
	factor := r.floatOr("factor", 1e-3, 1e6, float64(c.context)/float64(original))
	scale := func(m float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 1 + 0.1*m*math.Log(factor)
	}
	attention := scale(1)
	if r.has("mscale") && r.has("mscale_all_dim") {
		if m, all := r.float("mscale", 0, 1e3), r.float("mscale_all_dim", 0, 1e3); m != 0 && all != 0 {
			attention = scale(m) / scale(all)
		}
	}
	attention = r.floatOr("attention_factor", 1e-3, 1e3, attention)
	if factor == 1 && attention != 1 {
		r.fail("attention_factor", "%v is not supported with a factor of 1, which stretches nothing", attention)
	}
	if !r.boolOr("truncate", true) {
		r.fail("truncate", "false is not supported")
	}
	c.set("rope.scaling.type", "yarn")
	c.set("rope.scaling.factor", float32(factor))
	c.setInt("rope.scaling.original_context_length", original)
	c.set("rope.scaling.yarn_attn_factor", float32(attention/(1+0.1*math.Log(factor))))
	c.set("rope.scaling.yarn_beta_fast", float32(r.floatOr("beta_fast", 1e-6, 1e6, 32)))
	c.set("rope.scaling.yarn_beta_slow", float32(r.floatOr("beta_slow", 1e-6, 1e6, 1)))
	if r.err == nil { // max_position_embeddings is often left at what it was before stretching
		c.context = max(c.context, min(maxContext, int(float64(original)*factor)))
	}
}

// float32s is values as a tensor's bytes.
func float32s(values []float32) []byte {
	out := make([]byte, 0, 4*len(values))
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}
