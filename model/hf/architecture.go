package hf

import (
	"maps"
	"math"
	"slices"
)

// architecture is what is particular to a model_type of config.json.
type architecture struct {
	name string // in GGUF: general.architecture
	// class is the only one of config.json's architectures that is a language model of this type.
	class string
	// interleaved says that the GGUF architecture turns the neighbours 2i and 2i+1 of a head, where
	// transformers turns i and i + half a head: rows of queries and keys are reordered for it.
	interleaved bool
	activations []string // of the feed-forward's gate: those that mean what the GGUF architecture does
	// oneMore says that a norm's factor is its weight plus 1.
	oneMore bool
	// renamed has what a layer's tensors are called otherwise than in layerNames.
	renamed map[string]string
	// defaults are those of transformers' class, as JSON: config.json often leaves them out.
	defaults string
	// more reads what only this architecture has.
	more func(c *config)
}

var (
	silu = []string{"silu"}
	gelu = []string{"gelu_pytorch_tanh"}
	// postNorms are the norms of Gemma 2 and 3, of which Llama's name for one means another.
	postNorms = map[string]string{
		"post_attention_layernorm":   "post_attention_norm",
		"pre_feedforward_layernorm":  "ffn_norm",
		"post_feedforward_layernorm": "post_ffw_norm",
	}
	// fused are Phi 3's matrices. Of the others some would need rows put in another order within them.
	fused = map[string]string{"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
)

// architectures are those that are known, by model_type.
var architectures = map[string]architecture{
	"llama": {
		name: "llama", class: "LlamaForCausalLM", interleaved: true, activations: silu,
		defaults: `{"max_position_embeddings":2048,"rms_norm_eps":1e-6,"rope_theta":10000}`,
	},
	"mistral": {
		name: "llama", class: "MistralForCausalLM", interleaved: true, activations: silu,
		defaults: `{"num_key_value_heads":8,"max_position_embeddings":131072,"rms_norm_eps":1e-6,"rope_theta":10000,"sliding_window":4096}`,
		more:     (*config).window,
	},
	"mixtral": {
		name: "llama", class: "MixtralForCausalLM", interleaved: true, activations: silu,
		defaults: `{"num_key_value_heads":8,"max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":1000000,"num_experts_per_tok":2}`,
		more: func(c *config) {
			c.window()
			c.setInt("expert_count", c.expertCount(8))
			c.setInt("expert_used_count", c.int("num_experts_per_tok", 1, maxExperts))
		},
	},
	"qwen2": {
		name: "qwen2", class: "Qwen2ForCausalLM", activations: silu,
		defaults: `{"num_key_value_heads":32,"max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":10000}`,
		more:     (*config).qwenWindow,
	},
	"qwen2_moe": {
		name: "qwen2moe", class: "Qwen2MoeForCausalLM", activations: silu,
		defaults: `{"num_key_value_heads":16,"max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":10000,"intermediate_size":5632,
			"num_experts_per_tok":4,"moe_intermediate_size":1408,"shared_expert_intermediate_size":5632}`,
		more: func(c *config) {
			c.qwenWindow()
			c.qwenExperts(60)
			c.setInt("expert_shared_feed_forward_length", c.int("shared_expert_intermediate_size", 1, maxWidth))
		},
	},
	"qwen3": {
		name: "qwen3", class: "Qwen3ForCausalLM", activations: silu,
		defaults: `{"num_key_value_heads":32,"head_dim":128,"max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":10000}`,
		more:     (*config).qwenWindow,
	},
	"qwen3_moe": {
		name: "qwen3moe", class: "Qwen3MoeForCausalLM", activations: silu,
		defaults: `{"num_key_value_heads":4,"max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":10000,"intermediate_size":6144,
			"num_experts_per_tok":8,"moe_intermediate_size":768}`,
		more: func(c *config) {
			c.qwenWindow()
			c.qwenExperts(128)
		},
	},
	"smollm3": {
		name: "smollm3", class: "SmolLM3ForCausalLM", interleaved: true, activations: silu,
		defaults: `{"num_key_value_heads":4,"max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":2000000,"tie_word_embeddings":true}`,
		more: func(c *config) {
			c.qwenWindow()
			c.noPositions(4)
		},
	},
	"phi3": {
		name: "phi3", class: "Phi3ForCausalLM", activations: silu, renamed: fused,
		defaults: `{"max_position_embeddings":4096,"rms_norm_eps":1e-5,"rope_theta":10000,"original_max_position_embeddings":4096}`,
		more:     (*config).window,
	},
	"gemma": {
		name: "gemma", class: "GemmaForCausalLM", oneMore: true,
		activations: []string{"gelu_pytorch_tanh", "gelu"}, // the latter is a slip in older files, which transformers corrects too
		defaults: `{"num_key_value_heads":16,"head_dim":256,"max_position_embeddings":8192,"rms_norm_eps":1e-6,"rope_theta":10000,
			"hidden_act":"gelu_pytorch_tanh","tie_word_embeddings":true}`,
	},
	"gemma2": {
		name: "gemma2", class: "Gemma2ForCausalLM", oneMore: true, activations: gelu, renamed: postNorms,
		defaults: `{"num_key_value_heads":4,"head_dim":256,"max_position_embeddings":8192,"rms_norm_eps":1e-6,"rope_theta":10000,
			"hidden_activation":"gelu_pytorch_tanh","tie_word_embeddings":true,"sliding_window":4096,"query_pre_attn_scalar":256,
			"attn_logit_softcapping":50,"final_logit_softcapping":30}`,
		more: (*config).gemma,
	},
	"gemma3_text": {
		name: "gemma3", class: "Gemma3ForCausalLM", oneMore: true, activations: gelu, renamed: postNorms,
		defaults: `{"vocab_size":262208,"hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,"num_attention_heads":8,
			"num_key_value_heads":4,"head_dim":256,"max_position_embeddings":131072,"rms_norm_eps":1e-6,"rope_theta":1000000,
			"rope_local_base_freq":10000,"hidden_activation":"gelu_pytorch_tanh","tie_word_embeddings":true,"sliding_window":4096,
			"query_pre_attn_scalar":256}`,
		more: (*config).gemma,
	},
}

// wholes are model types of which one part is a language model of a known type, in text_config. The other
// parts, for images, are left out: what is served is the language model.
var wholes = map[string]string{
	"gemma3":   "Gemma3ForConditionalGeneration",
	"mistral3": "Mistral3ForConditionalGeneration",
}

// ModelTypes lists the values of model_type that are known, sorted.
func ModelTypes() []string {
	types := append(slices.Collect(maps.Keys(architectures)), slices.Collect(maps.Keys(wholes))...)
	slices.Sort(types)
	return types
}

// window reads a sliding window of all layers, or of those that layer_types names.
func (c *config) window() {
	n := c.intOr("sliding_window", 0, math.MaxInt32, 0)
	types := c.list("layer_types")
	if n == 0 || c.err != nil {
		return
	}
	if types == nil {
		c.setInt("attention.sliding_window", n)
		return
	}
	if len(types) != c.layers {
		c.fail("layer_types", "%d types for %d layers", len(types), c.layers)
		return
	}
	windows := make([]bool, c.layers)
	for i, t := range types {
		switch t {
		case "sliding_attention":
			windows[i] = true
		case "full_attention":
		default:
			c.fail("layer_types", "%s is not supported; supported: full_attention, sliding_attention", shown(t))
			return
		}
	}
	if !slices.Contains(windows, true) {
		n = 0 // said, since a silent file may stand for a window
	}
	c.setInt("attention.sliding_window", n)
	c.set("attention.sliding_window_pattern", windows)
}

// qwenWindow reads a window that is there only if use_sliding_window says so, and then not from the first
// layer on.
func (c *config) qwenWindow() {
	if !c.boolOr("use_sliding_window", false) {
		return
	}
	if c.has("layer_types") {
		c.window()
	} else if n := c.intOr("sliding_window", 0, math.MaxInt32, 0); n > 0 && n < c.context {
		c.fail("use_sliding_window", "windows of %d tokens in some layers are not supported with this model_type", n)
	}
}

// expertCount reads the number of experts, for which transformers has two names.
func (c *config) expertCount(missing int) int {
	return c.intOr("num_local_experts", 1, maxExperts, c.intOr("num_experts", 1, maxExperts, missing))
}

// qwenExperts reads the mixtures of Qwen 2 and 3, which here are in every layer.
func (c *config) qwenExperts(missing int) {
	c.setInt("expert_count", c.expertCount(missing))
	c.setInt("expert_used_count", c.int("num_experts_per_tok", 1, maxExperts))
	c.setInt("expert_feed_forward_length", c.int("moe_intermediate_size", 1, maxWidth))
	c.set("expert_weights_norm", c.boolOr("norm_topk_prob", false))
	if n := c.intOr("decoder_sparse_step", 0, maxLayers, 1); n != 1 {
		c.fail("decoder_sparse_step", "%d is not supported; 1 is: experts in every layer", n)
	}
	if l := c.list("mlp_only_layers"); len(l) > 0 {
		c.fail("mlp_only_layers", "layers without experts are not supported")
	}
}

// noPositions checks that of every so many layers the last has no positions, and no other.
func (c *config) noPositions(every int) {
	if !c.has("no_rope_layers") {
		if n := c.intOr("no_rope_layer_interval", 1, maxLayers, every); n != every {
			c.fail("no_rope_layer_interval", "%d is not supported; %d is", n, every)
		}
		return
	}
	layers := c.list("no_rope_layers")
	if c.err == nil && len(layers) != c.layers {
		c.fail("no_rope_layers", "%d values for %d layers", len(layers), c.layers)
	}
	for i, v := range layers {
		without := shown(v) == "0" // 1 says that a layer has positions, in spite of the name
		if without != ((i+1)%every == 0) {
			c.fail("no_rope_layers", "layer %d has %s; only that every %dth layer is without positions is supported", i, shown(v), every)
			return
		}
	}
}

// gemma reads what Gemma 2 and 3 have besides.
func (c *config) gemma() {
	c.int("sliding_window", 1, math.MaxInt32) // null would leave open what its local layers see
	c.window()
	if n := c.intOr("sliding_window_pattern", 1, maxLayers, 0); n > 0 && !c.has("layer_types") {
		c.setInt("attention.sliding_window_pattern", n)
	}
	c.set("attention.scale", float32(1/math.Sqrt(c.float("query_pre_attn_scalar", 1, maxWidth))))
	c.set("attn_logit_softcapping", float32(c.floatOr("attn_logit_softcapping", 0, 1e6, 0)))
	c.set("final_logit_softcapping", float32(c.floatOr("final_logit_softcapping", 0, 1e6, 0)))
	if c.boolOr("use_bidirectional_attention", false) {
		c.fail("use_bidirectional_attention", "attention to what follows is not supported: is this an embedding model?")
	}
}
