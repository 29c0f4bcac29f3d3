package hf

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// small is a config.json of a model_type, with the fields that come after it.
func small(kind, fields string) []byte {
	return fmt.Appendf(nil, `{"model_type":%q,"num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":96,"vocab_size":416%s}`, kind, fields)
}

func TestOddSettingsAreRefusedRatherThanPassedOver(t *testing.T) {
	for _, c := range []struct{ kind, fields, want string }{
		{"gemma2", `,"sliding_window":null`, "sliding_window: missing"},
		{"gemma3_text", `,"sliding_window":0`, "sliding_window: 0 is out of range"},
		{"gemma3_text", `,"rope_parameters":{"full_attention":{"rope_theta":1e6},"sliding_attention":{"rope_type":"linear","factor":2}}`, `sliding_attention: rope_type: "linear" is not supported in layers with a window`},
		{"gemma3_text", `,"rope_parameters":{"sliding_attention":{"rope_theta":1e4}}`, "rope_parameters: full_attention: missing"},
		{"gemma3_text", `,"rope_parameters":{"full_attention":{"rope_theta":1e6},"sliding_attention":[]}`, "sliding_attention: an object is wanted"},
		{"llama", `,"rope_parameters":{"full_attention":{"rope_theta":1e6},"sliding_attention":{"rope_theta":1e4}}`, "rope_parameters: positions of layers with a window alone are not supported"},
		{"llama", `,"rope_scaling":{"type":"yarn","factor":1,"attention_factor":1.5}`, "attention_factor: 1.5 is not supported with a factor of 1"},
		{"smollm3", `,"no_rope_layers":[]`, "no_rope_layers: 0 values for 2 layers"},
		{"smollm3", `,"no_rope_layers":[1,0]`, "no_rope_layers: layer 1 has 0"},
		{"mistral", `,"layer_types":["sliding_attention"]`, "layer_types: 1 types for 2 layers"},
	} {
		if _, err := readConfig(small(c.kind, c.fields)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s%s: %v, want … %s …", c.kind, c.fields, err, c.want)
		}
		if _, err := readConfig(small(c.kind, "")); err != nil {
			t.Errorf("%s: %v", c.kind, err)
		}
	}
}

// A file that is silent stands for the architecture's own window, which Gemma 2 has in every other layer.
func TestLayersWithoutAWindowAreSaidToHaveNone(t *testing.T) {
	for layers, want := range map[string]struct {
		window  uint64
		pattern []bool
	}{
		`["full_attention","full_attention"]`:    {0, []bool{false, false}},
		`["full_attention","sliding_attention"]`: {24, []bool{false, true}},
	} {
		c, err := readConfig(small("gemma2", `,"sliding_window":24,"layer_types":`+layers))
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.meta.File()
		if err != nil {
			t.Fatal(err)
		}
		n, err := f.Uint("gemma2.attention.sliding_window")
		pattern, _ := f.Value("gemma2.attention.sliding_window_pattern")
		if got, ok := pattern.([]bool); err != nil || n != want.window || !ok || !slices.Equal(got, want.pattern) {
			t.Errorf("%s: %d, %v, %v", layers, n, pattern, err)
		}
	}
}

// Rows of a fused matrix would not be put in the order that GGUF's llama has.
func TestFusedMatricesAreThoseOfPhiAlone(t *testing.T) {
	for kind, ok := range map[string]bool{"phi3": true, "llama": false, "qwen2": false} {
		c := &config{arch: architectures[kind], layers: 1}
		if name, _, err := c.ggufName("model.layers.0.self_attn.qkv_proj.weight"); (err == nil) != ok || ok && name != "blk.0.attn_qkv.weight" {
			t.Errorf("%s: %q, %v", kind, name, err)
		}
	}
}

func TestNestedSequencesOfATokenizerHaveABound(t *testing.T) {
	deep := func(n int) []byte {
		return []byte(`{"model":{"type":"BPE","vocab":{},"merges":[]},"normalizer":` +
			strings.Repeat(`{"type":"Sequence","normalizers":[`, n) + `{"type":"Strip","x":"\\\"[[[["}` + strings.Repeat(`]}`, n) + `}`)
	}
	const bound = "levels of brackets"
	if _, err := readTokenizer(deep(4), 1); err == nil || strings.Contains(err.Error(), bound) {
		t.Error(err)
	}
	for _, n := range []int{40, 4000} {
		if _, err := readTokenizer(deep(n), 1); err == nil || !strings.Contains(err.Error(), bound) {
			t.Error(err)
		}
	}
}
