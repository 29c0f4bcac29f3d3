package hf

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/safetensors"
)

// quantisations are the names that Options.Quantization may have besides "".
var quantisations = map[string]gguf.Type{"q8_0": gguf.Q8_0, "q4_0": gguf.Q4_0, "q4_k": gguf.Q4_K}

// Quantizations lists them, sorted.
func Quantizations() []string { return slices.Sorted(maps.Keys(quantisations)) }

// source is a tensor in one of the folder's files.
type source struct {
	safetensors.Tensor
	file    string
	mapping []byte // of the file
	expert  int    // which of several experts' it is; −1 for a whole weight
}

// release tells the system that the tensor's bytes are not needed for a while, though they can still be read.
func (s *source) release() {
	page := int64(os.Getpagesize())
	begin, end := (s.Offset+page-1)/page*page, (s.Offset+int64(len(s.Data)))/page*page
	if begin < end {
		discard(s.mapping[begin:end])
	}
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
		"input_layernorm":             "attn_norm",
		"self_attn.q_proj":            "attn_q",
		"self_attn.k_proj":            "attn_k",
		"self_attn.v_proj":            "attn_v",
		"self_attn.o_proj":            "attn_output",
		"self_attn.q_norm":            "attn_q_norm",
		"self_attn.k_norm":            "attn_k_norm",
		"post_attention_layernorm":    "ffn_norm",
		"mlp.gate_proj":               "ffn_gate",
		"mlp.up_proj":                 "ffn_up",
		"mlp.down_proj":               "ffn_down",
		"block_sparse_moe.gate":       "ffn_gate_inp",
		"mlp.gate":                    "ffn_gate_inp",
		"mlp.shared_expert.gate_proj": "ffn_gate_shexp",
		"mlp.shared_expert.up_proj":   "ffn_up_shexp",
		"mlp.shared_expert.down_proj": "ffn_down_shexp",
		"mlp.shared_expert_gate":      "ffn_gate_inp_shexp",
	}
	// expertNames are those of one expert of many, which GGUF has in one tensor.
	expertNames = map[string]string{
		"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps",
		"gate_proj": "ffn_gate_exps", "down_proj": "ffn_down_exps", "up_proj": "ffn_up_exps",
	}
	layerPattern  = regexp.MustCompile(`^model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)\.(weight|bias)$`)
	expertPattern = regexp.MustCompile(`^(?:block_sparse_moe|mlp)\.experts\.(0|[1-9][0-9]{0,5})\.([a-z0-9_]+)$`)
	// shardPattern finds files that are parts of a model.
	shardPattern = regexp.MustCompile(`-[0-9]{5}-of-[0-9]{5}\.safetensors$`)
)

// ignored are tensors that nobody needs: the angles' frequencies of older checkpoints, an output that the
// embedding stands for, and the parts of a model that are for images.
func (c *config) ignored(name string) bool {
	if strings.HasSuffix(name, ".rotary_emb.inv_freq") || c.tied && name == "lm_head.weight" {
		return true
	}
	for _, part := range []string{"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."} {
		if c.parts && strings.HasPrefix(name, part) {
			return true
		}
	}
	return false
}

// plainName takes off the prefix of a model's language part.
func (c *config) plainName(name string) string {
	if !c.parts {
		return name
	}
	if rest, ok := strings.CutPrefix(name, "language_model."); ok {
		return rest
	}
	if rest, ok := strings.CutPrefix(name, "model.language_model."); ok {
		return "model." + rest
	}
	return name
}

// ggufName translates a tensor's name. expert is which of several it is in one tensor, −1 for a whole one.
func (c *config) ggufName(name string) (ours string, expert int, err error) {
	if n, ok := names[name]; ok {
		return n, -1, nil
	}
	if m := layerPattern.FindStringSubmatch(name); m != nil {
		layer, _ := strconv.Atoi(m[1])
		if layer >= c.layers {
			return "", 0, fmt.Errorf("it is of layer %d, where num_hidden_layers of %s is %d", layer, configName, c.layers)
		}
		n, ok := c.arch.renamed[m[2]]
		if !ok {
			n, ok = layerNames[m[2]]
		}
		expert = -1
		if x := expertPattern.FindStringSubmatch(m[2]); x != nil {
			expert, _ = strconv.Atoi(x[1])
			n, ok = expertNames[x[2]]
		}
		if ok {
			return fmt.Sprintf("blk.%d.%s.%s", layer, n, m[3]), expert, nil
		}
	}
	return "", 0, fmt.Errorf("not a tensor that a %s is known to have: leaving it out would change what the model says", c.arch.class)
}

// plan decides what each weight of the model is made of, in the order of the files.
func (c *config) plan(tensors []source, quantise gguf.Type, quantised bool) ([]weight, error) {
	var out []weight
	at := map[string]int{} // of a weight, in out
	for _, t := range tensors {
		plain := c.plainName(t.Name)
		if c.ignored(plain) {
			continue
		}
		wrong := func(format string, args ...any) error {
			return fmt.Errorf("%s: tensor %q at byte %d: %s", t.file, t.Name, t.Offset, fmt.Sprintf(format, args...))
		}
		name, expert, err := c.ggufName(plain)
		if err != nil {
			return nil, wrong("%v", err)
		}
		typ, ok := floatTypes[t.Dtype]
		if !ok {
			return nil, wrong("its values are %s; supported: F32, F16, BF16", t.Dtype)
		}
		if len(t.Shape) < 1 || len(t.Shape) > 2 || t.Values() == 0 {
			return nil, wrong("its shape %v is none of a weight", t.Shape)
		}
		i, there := at[name]
		if !there {
			i = len(out)
			at[name] = i
			out = append(out, c.weight(name, t.Shape, typ, quantise, quantised))
		}
		w := &out[i]
		if there && (expert < 0 || w.parts[0].expert < 0) {
			return nil, wrong("%s is the same weight", w.parts[0].Name)
		}
		if expert >= 0 && len(t.Shape) != 2 {
			return nil, wrong("its shape %v is none of an expert", t.Shape)
		}
		t.expert = expert
		w.parts = append(w.parts, t)
		if w.halves > 0 && t.Shape[0]%w.halves != 0 {
			return nil, wrong("its %d rows are no whole heads of %d", t.Shape[0], w.halves)
		}
	}
	for i := range out {
		if err := out[i].stack(); err != nil {
			return nil, err
		}
	}
	for _, f := range []struct {
		name    string
		factors []float32
	}{{"rope_freqs.weight", c.ropeFactors}, {"rope_factors_short.weight", c.shortFactors}, {"rope_factors_long.weight", c.longFactors}} {
		if f.factors == nil {
			continue
		}
		w := weight{}
		w.Name, w.Type, w.Shape, w.Offset = f.name, gguf.F32, []int{len(f.factors)}, -1
		w.Data = float32s(f.factors)
		out = append(out, w)
	}
	return out, nil
}

// weight is one without parts yet.
func (c *config) weight(name string, shape []int, typ, quantise gguf.Type, quantised bool) weight {
	w := weight{}
	w.Name, w.Offset = name, -1
	for _, d := range slices.Backward(shape) {
		w.Shape = append(w.Shape, d)
	}
	if len(w.Shape) == 2 && w.Shape[1] == 1 && !strings.Contains(name, "_exps.") { // a matrix of one row is a vector in GGUF
		w.Shape = w.Shape[:1]
	}
	if c.arch.interleaved && (strings.Contains(name, ".attn_q.") || strings.Contains(name, ".attn_k.")) {
		w.halves = c.headDim
	}
	if c.arch.oneMore && strings.Contains(name, "norm") {
		w.bias = 1
	}
	w.Type = storage(name, w.Shape, typ, quantise, quantised)
	return w
}

// stack completes the shape of a weight of several parts, once all are there.
func (w *weight) stack() error {
	slices.SortStableFunc(w.parts, func(a, b source) int { return a.expert - b.expert })
	first := &w.parts[0]
	for i := range w.parts {
		p := &w.parts[i]
		switch {
		case p.expert >= 0 && p.expert != i:
			return fmt.Errorf("%s: tensor %q at byte %d: the one of expert %d is missing, or there twice", p.file, p.Name, p.Offset, i)
		case p.Dtype != first.Dtype || !slices.Equal(p.Shape, first.Shape):
			return fmt.Errorf("%s: tensor %q at byte %d: %s with shape %v, where %q is %s with shape %v", p.file, p.Name, p.Offset, p.Dtype, p.Shape, first.Name, first.Dtype, first.Shape)
		}
	}
	if first.expert >= 0 {
		w.Shape = append(w.Shape, len(w.parts))
	}
	return nil
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
