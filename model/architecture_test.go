package model_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// architecture opens a model with the metadata and tensors that llama.cpp's converter gives a small one of
// an architecture (package devicetest has what it computes), after changes: keys (nil removes one), and tensors
// without data to remove. With layers, it has so many, all like its first.
func architecture(t *testing.T, name string, layers int, keys map[string]any, change ...gguf.Tensor) (*model.Model, error) {
	t.Helper()
	data, err := os.ReadFile("../gpu/devicetest/architectures/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Metadata map[string]any
		Tensors  []struct {
			Name   string
			Shape  []int
			Values []float32
		}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&c); err != nil {
		t.Fatal(err)
	}
	for key, v := range c.Metadata {
		if n, ok := v.(json.Number); ok {
			if i, err := n.Int64(); err == nil {
				c.Metadata[key] = uint32(i)
			} else {
				f, _ := n.Float64()
				c.Metadata[key] = float32(f)
			}
		}
	}
	prefix := c.Metadata["general.architecture"].(string) + "."
	if layers > 0 {
		c.Metadata[prefix+"block_count"] = uint32(layers)
	}
	for key, v := range keys {
		c.Metadata[prefix+key] = v
	}
	var b gguf.Builder
	for key, v := range c.Metadata {
		if v != nil {
			b.Set(key, v)
		}
	}
	tiny.SetTokenizer(&b, tiny.Vocab)
	left := map[string]gguf.Tensor{}
	for _, x := range change {
		left[x.Name] = x
	}
	add := func(x gguf.Tensor) {
		if y, ok := left[x.Name]; ok {
			x = y
			delete(left, x.Name)
		}
		if x.Data != nil {
			b.Add(x.Name, x.Type, x.Shape, x.Data)
		}
	}
	for _, x := range c.Tensors {
		y := zeros(x.Name, gguf.F32, x.Shape...)
		if x.Values != nil {
			y.Data, _ = gguf.Encode(gguf.F32, x.Values)
		}
		rest, first := strings.CutPrefix(x.Name, "blk.0.")
		switch {
		case layers == 0 || !strings.HasPrefix(x.Name, "blk."):
			add(y)
		case first:
			for i := range layers {
				y.Name = fmt.Sprintf("blk.%d.%s", i, rest)
				add(y)
			}
		}
	}
	for _, x := range left {
		add(x)
	}
	file, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return model.Parse(file, "the file")
}

func config(t *testing.T, name string, layers int, keys map[string]any) model.Config {
	t.Helper()
	m, err := architecture(t, name, layers, keys)
	if err != nil {
		t.Fatal(name, err)
	}
	return m.Config
}

func TestEachArchitectureDiffersAsItsModelsDo(t *testing.T) {
	if c := config(t, "qwen2", 0, nil); !c.QKVBias || c.QKNorm || !c.RopeHalves || c.Attention != nil || c.Gate != model.SiLU || c.PostNorm {
		t.Errorf("qwen2: %+v", c)
	}
	if c := config(t, "qwen3", 0, nil); c.QKVBias || !c.QKNorm || c.HeadDim != 24 {
		t.Errorf("qwen3: %+v", c)
	}
	if c := config(t, "phi3", 0, nil); !c.FusedQKV || !c.FusedGateUp || c.Attention[1].Window != 40 {
		t.Errorf("phi3: %+v", c)
	}
	for i, a := range config(t, "smollm3", 9, nil).Attention {
		want := model.Attention{}
		if i == 3 || i == 7 {
			want.Positions = model.NoPositions
		}
		if a != want {
			t.Errorf("smollm3, layer %d: %+v", i, a)
		}
	}
	if c := config(t, "gemma2", 0, nil); c.EmbeddingScale != 8 || !c.PostNorm || c.Gate != model.GELU || c.LogitSoftcap != 3 ||
		fmt.Sprint(c.Attention) != "[{24 0 5 0} {0 0 5 0} {24 0 5 0}]" {
		t.Errorf("gemma2: %+v", c)
	}
	c := config(t, "gemma3", 13, map[string]any{"rope.freq_base_swa": float32(5000)})
	for i, a := range c.Attention {
		want := model.Attention{Window: 24, Positions: model.LocalPositions}
		if i == 5 || i == 11 {
			want = model.Attention{}
		}
		if a != want {
			t.Errorf("gemma3, layer %d: %+v", i, a)
		}
	}
	if f := c.LocalRope(); f[0] != 1 || math.Abs(f[8]-math.Sqrt(1./5000)) > 1e-9 {
		t.Errorf("gemma3: %v", f)
	}
	for name, want := range map[string]model.Experts{
		"mixtral":  {Count: 5, Used: 2, FFN: 96, Normalise: true},
		"qwen2moe": {Count: 6, Used: 3, FFN: 32, Shared: 64, SharedGate: true},
		"qwen3moe": {Count: 6, Used: 3, FFN: 32, Normalise: true},
	} {
		if c := config(t, name, 0, nil); c.Experts != want {
			t.Errorf("%s: %+v", name, c.Experts)
		}
	}
	if c := config(t, "qwen2moe", 0, map[string]any{"expert_weights_norm": true}); !c.Experts.Normalise {
		t.Error("a file's expert_weights_norm is not heeded")
	}
}

// Gemma 2 27B has 4608 over 32 heads of 128, and 1/√144; Gemma 3 27B 5376 over 32 of 128, and 1/√168.
func TestTheLargestGemmasScaleByTheirWidth(t *testing.T) {
	for name, layers := range map[string]int{"gemma2": 46, "gemma3": 62} {
		for _, n := range []int{layers, layers - 1} {
			c := config(t, name, n, nil) // 64 over 4 heads of 32
			want := float32(1 / math.Sqrt(32))
			if n == layers {
				want = 0.25
			}
			if got := c.AttentionOf(1).Scale; got != want {
				t.Errorf("%s of %d layers: %v, wanted %v", name, n, got, want)
			}
		}
	}
}

func TestWindowsAreThoseThatTheFileGives(t *testing.T) {
	windows := func(name string, layers int, keys map[string]any) string {
		var all []int
		for _, a := range config(t, name, layers, keys).Attention {
			all = append(all, a.Window)
		}
		return fmt.Sprint(all)
	}
	for _, test := range []struct {
		name string
		keys map[string]any
		want string
	}{
		{"mistral", nil, "[24 24 24 24 24]"},
		{"mistral", map[string]any{"attention.sliding_window": nil}, "[]"},
		{"mistral", map[string]any{"attention.sliding_window": uint32(512)}, "[]"}, // all of the context
		{"phi3-long", nil, "[]"},
		{"gemma2", map[string]any{"attention.sliding_window": nil, "context_length": uint32(8192)}, "[4096 0 4096 0 4096]"},
		{"gemma3", map[string]any{"attention.sliding_window": nil}, "[]"},
		{"gemma3", map[string]any{"attention.sliding_window_pattern": uint32(3)}, "[24 24 0 24 24]"},
		{"gemma3", map[string]any{"attention.sliding_window_pattern": uint32(1)}, "[]"},
		{"gemma3", map[string]any{"attention.sliding_window_pattern": []bool{false, true, true, false, false}}, "[0 24 24 0 0]"},
		{"gemma", nil, "[]"},
	} {
		if got := windows(test.name, 5, test.keys); got != test.want {
			t.Errorf("%s with %v: %s, wanted %s", test.name, test.keys, got, test.want)
		}
	}
}

func TestLongRopeGoesByHowLongSequencesMayBe(t *testing.T) {
	c := config(t, "phi3-long", 0, map[string]any{"rope.scaling.type": "longrope"}) // 12 of 16 values turn; original context 64
	short, magnitude := c.Rope(64)
	long, same := c.Rope(65)
	if want := math.Sqrt(1 + math.Log(8)/math.Log(64)); math.Abs(magnitude-want) > 1e-6 || same != magnitude {
		t.Errorf("magnitudes %v and %v, wanted %v", magnitude, same, want)
	}
	if f := math.Pow(10000, -10./12); len(short) != 6 || math.Abs(short[5]-f/1.3) > 1e-6 || math.Abs(long[5]-f/5) > 1e-6 {
		t.Errorf("%v and %v", short, long)
	}
}

func TestWhatAnArchitectureDoesNotHaveIsRefused(t *testing.T) {
	for _, test := range []struct {
		name string
		keys map[string]any
		want string
	}{
		{"qwen2", map[string]any{"attention.sliding_window": uint32(16)}, `"qwen2.attention.sliding_window" at byte`},
		{"qwen2", map[string]any{"attention.causal": false}, "is this an embedding model?"},
		{"qwen2", map[string]any{"attention.causal": uint32(0)}, "a bool is wanted"},
		{"qwen3", map[string]any{"expert_count": uint32(4)}, "a mixture of 4 experts is not supported with this architecture"},
		{"qwen3", map[string]any{"use_parallel_residual": true}, "side by side"},
		{"mistral", map[string]any{"logit_scale": float32(0.5)}, "0.5 is not supported: this is computed as if it were 1"},
		{"mistral", map[string]any{"residual_scale": float32(0.22)}, `"llama.residual_scale"`},
		{"mistral", map[string]any{"attention.temperature_scale": float32(0.1)}, `"llama.attention.temperature_scale"`},
		{"mistral", map[string]any{"rope.scaling.yarn_log_multiplier": float32(0.1)}, `"llama.rope.scaling.yarn_log_multiplier"`},
		{"mixtral", map[string]any{"expert_used_count": uint32(6)}, "6 is out of range: 1 to 5 make sense"},
		{"mixtral", map[string]any{"expert_shared_feed_forward_length": uint32(8)}, "a shared expert is not supported"},
		{"mixtral", map[string]any{"expert_feed_forward_length": uint32(32)}, `"blk.0.ffn_gate_exps.weight" at byte`},
		{"qwen2moe", map[string]any{"expert_count": nil}, "there must be experts"},
		{"qwen2moe", map[string]any{"expert_gating_func": uint32(2)}, "2 is not supported: experts are chosen by softmax"},
		{"qwen2moe", map[string]any{"expert_weights_scale": float32(2.5)}, "2.5 is not supported"},
		{"qwen2moe", map[string]any{"leading_dense_block_count": uint32(1)}, "1 is not supported"},
		{"phi3-long", map[string]any{"rope.scaling.type": "yarn"}, `it is "yarn", but rope_factors_long.weight is there: true`},
		{"phi3", map[string]any{"rope.scaling.type": "longrope"}, "rope_factors_long.weight is there: false"},
		{"phi3-long", map[string]any{"rope.scaling.original_context_length": nil}, `"phi3.rope.scaling.original_context_length": missing`},
		{"gemma3", map[string]any{"attention.sliding_window_pattern": []bool{true}}, "1 values for 7 layers"},
		{"gemma3", map[string]any{"attention.sliding_window_pattern": "x"}, "an unsigned integer is wanted"},
		{"gemma2", map[string]any{"attn_logit_softcapping": float32(-1)}, "-1 is out of range"},
		{"gemma2", map[string]any{"attention.scale": float32(math.NaN())}, "NaN is out of range"},
	} {
		_, err := architecture(t, test.name, 0, test.keys)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %v: %v, wanted … %s …", test.name, test.keys, err, test.want)
		}
	}
	short := zeros("rope_factors_short.weight", gguf.F32, 6)
	for name, test := range map[string]struct {
		change gguf.Tensor
		want   string
	}{
		"qwen2":     {gguf.Tensor{Name: "blk.1.attn_k.bias"}, `tensor "blk.1.attn_k.bias": missing`},
		"qwen3":     {gguf.Tensor{Name: "blk.1.attn_q_norm.weight"}, `tensor "blk.1.attn_q_norm.weight": missing`},
		"gemma2":    {gguf.Tensor{Name: "blk.2.post_ffw_norm.weight"}, `tensor "blk.2.post_ffw_norm.weight": missing`},
		"qwen2moe":  {gguf.Tensor{Name: "blk.0.ffn_gate_inp_shexp.weight"}, `tensor "blk.0.ffn_gate_inp_shexp.weight": missing`},
		"qwen3moe":  {zeros("blk.0.ffn_up_exps.weight", gguf.F32, 64, 32, 5), "its shape is [64 32 5], wanted is [64 32 6]"},
		"smollm3":   {zeros("blk.0.attn_q.bias", gguf.F32, 64), "not a tensor of a smollm3 model of 5 layers"},
		"phi3-long": {gguf.Tensor{Name: short.Name}, "but not rope_factors_short.weight"},
		"phi3":      {short, "not a tensor of a phi3 model"},
		"mixtral":   {zeros("blk.0.ffn_gate.0.weight", gguf.F32, 64, 96), "take a newer file of the model"},
	} {
		_, err := architecture(t, name, 0, nil, test.change)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, wanted … %s …", name, err, test.want)
		}
	}
}

// llama.cpp's converter has written it with one dimension and with two.
func TestASharedExpertsGateMayBeAMatrixOfOneRow(t *testing.T) {
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16} {
		m, err := architecture(t, "qwen2moe", 0, nil, zeros("blk.0.ffn_gate_inp_shexp.weight", typ, 64, 1))
		if err != nil || !m.Config.Experts.SharedGate {
			t.Error(err)
		}
	}
	if _, err := architecture(t, "qwen2moe", 0, nil, zeros("blk.0.ffn_gate_inp_shexp.weight", gguf.F32, 64, 2)); err == nil {
		t.Error("one of two rows is taken")
	}
}

func TestAnUnknownArchitectureIsNamedBesideThoseThatAreKnown(t *testing.T) {
	_, err := model.Parse(changed(t, tiny.Options{}, change{keys: map[string]any{"general.architecture": "mamba"}}), "the file")
	want := `"mamba" is not supported; supported: llama, qwen2, qwen2moe, qwen3, qwen3moe, smollm3, phi3, gemma, gemma2, gemma3`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	for _, name := range model.Architectures() {
		if model.ArchitectureModels(name) == "" {
			t.Errorf("nothing says which models are %s", name)
		}
	}
}
