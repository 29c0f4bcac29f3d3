package hf

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/safetensors"
)

// Quantisations are the names that Options.Quantization may have besides "".
var quantisations = map[string]gguf.Type{"q8_0": gguf.Q8_0, "q4_0": gguf.Q4_0, "q4_k": gguf.Q4_K}

// Quantizations lists them, sorted.
func Quantizations() []string { return slices.Sorted(maps.Keys(quantisations)) }

// source is a tensor in one of the folder's files.
type source struct {
	safetensors.Tensor
	file string
}

// weight is a tensor by GGUF's name, and what it is made of.
type weight struct {
	gguf.Tensor
	parts []source // whose rows follow each other; of experts, as many matrices
	// halves, if not 0, is the length of heads whose rows are interleaved: those of a head's first half
	// and of its second take turns.
	halves int
	bias   float32 // to be added to every value
}

// asIs says that the bytes of the file will do.
func (w *weight) asIs() bool {
	return len(w.parts) == 1 && w.halves == 0 && w.bias == 0 && floatTypes[w.parts[0].Dtype] == w.Type
}

// floatTypes are the types of weights that are read.
var floatTypes = map[safetensors.Dtype]gguf.Type{safetensors.F32: gguf.F32, safetensors.F16: gguf.F16, safetensors.BF16: gguf.BF16}

// Names of tensors: transformers' on the left, GGUF's on the right. Names within a layer stand for
// those of each.
var (
	names = map[string]string{
		"model.embed_tokens.weight": "token_embd.weight",
		"model.norm.weight":         "output_norm.weight",
		"lm_head.weight":            "output.weight",
	}
	layerNames = map[string]string{
		"input_layernorm":          "attn_norm",
		"self_attn.q_proj":         "attn_q",
		"self_attn.k_proj":         "attn_k",
		"self_attn.v_proj":         "attn_v",
		"self_attn.o_proj":         "attn_output",
		"post_attention_layernorm": "ffn_norm",
		"mlp.gate_proj":            "ffn_gate",
		"mlp.up_proj":              "ffn_up",
		"mlp.down_proj":            "ffn_down",
	}
	layerPattern = regexp.MustCompile(`^model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)\.(weight|bias)$`)
	// shardPattern finds files that are parts of a model.
	shardPattern = regexp.MustCompile(`-[0-9]{5}-of-[0-9]{5}\.safetensors$`)
)

// ignored are tensors that older checkpoints have and nobody needs: the angles' frequencies.
func ignored(name string) bool { return strings.HasSuffix(name, ".rotary_emb.inv_freq") }

// ggufName translates a tensor's name.
func (c *config) ggufName(name string) (string, error) {
	if n, ok := names[name]; ok {
		return n, nil
	}
	if m := layerPattern.FindStringSubmatch(name); m != nil {
		layer, _ := strconv.Atoi(m[1])
		if layer >= c.layers {
			return "", fmt.Errorf("it is of layer %d, where num_hidden_layers of %s is %d", layer, configName, c.layers)
		}
		if n, ok := layerNames[m[2]]; ok {
			return fmt.Sprintf("blk.%d.%s.%s", layer, n, m[3]), nil
		}
	}
	return "", fmt.Errorf("not a tensor that a %s is known to have: leaving it out would change what the model says", c.arch.class)
}

// plan decides what each weight of the model is made of, in the order of GGUF's names that the tensors
// give.
func (c *config) plan(tensors []source, quantise gguf.Type, quantised bool) ([]weight, error) {
	var out []weight
	for _, t := range tensors {
		if ignored(t.Name) || c.tied && t.Name == "lm_head.weight" {
			continue
		}
		wrong := func(format string, args ...any) error {
			return fmt.Errorf("%s: tensor %q at byte %d: %s", t.file, t.Name, t.Offset, fmt.Sprintf(format, args...))
		}
		name, err := c.ggufName(t.Name)
		if err != nil {
			return nil, wrong("%v", err)
		}
		typ, ok := floatTypes[t.Dtype]
		if !ok {
			return nil, wrong("its values are %s; supported: F32, F16, BF16", t.Dtype)
		}
		if len(t.Shape) < 1 || len(t.Shape) > 3 || t.Values() == 0 {
			return nil, wrong("its shape %v is none of a weight", t.Shape)
		}
		w := weight{parts: []source{t}}
		w.Name, w.Offset = name, -1
		for _, d := range slices.Backward(t.Shape) {
			w.Shape = append(w.Shape, d)
		}
		if c.arch.interleaved && (strings.Contains(name, ".attn_q.") || strings.Contains(name, ".attn_k.")) {
			w.halves = c.headDim
			if rows := t.Shape[0]; rows%w.halves != 0 {
				return nil, wrong("its %d rows are no whole heads of %d", rows, w.halves)
			}
		}
		w.Type = storage(name, w.Shape, typ, quantise, quantised)
		out = append(out, w)
	}
	if c.ropeFactors != nil {
		w := weight{}
		w.Name, w.Type, w.Shape, w.Offset = "rope_freqs.weight", gguf.F32, []int{len(c.ropeFactors)}, -1
		w.Data = float32s(c.ropeFactors)
		out = append(out, w)
	}
	return out, nil
}

// storage decides how a weight is kept. Vectors, such as norms and biases, are float32: they are few, and all
// later arithmetic depends on them. So are the weights that choose experts. Matrices stay as in the file, or
// are quantised: embedding and output to Q8_0 with every quantisation, since what 4 bits lose there is lost
// in each token. Rows that are no multiple of the 256 of a Q4_K block get Q5_0, as llama.cpp gives them,
// and those that are none of 32 stay.
func storage(name string, shape []int, typ, quantise gguf.Type, quantised bool) gguf.Type {
	if len(shape) == 1 || strings.Contains(name, "ffn_gate_inp") {
		return gguf.F32
	}
	if !quantised {
		return typ
	}
	if name == "token_embd.weight" || name == "output.weight" {
		quantise = gguf.Q8_0
	}
	if quantise == gguf.Q4_K && shape[0]%quantise.BlockSize() != 0 {
		quantise = gguf.Q5_0
	}
	if shape[0]%quantise.BlockSize() != 0 {
		return typ
	}
	return quantise
}
