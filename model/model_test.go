package model_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// change is what to do to a file: keys to set (nil removes one) and tensors to replace (no Data
// removes one).
type change struct {
	keys    map[string]any
	tensors []gguf.Tensor
}

// changed writes a tiny model anew with changes.
func changed(t testing.TB, o tiny.Options, c change) []byte {
	t.Helper()
	f, err := gguf.Parse(tiny.GGUF(o))
	if err != nil {
		t.Fatal(err)
	}
	var b gguf.Builder
	for _, key := range f.Keys() {
		v, _ := f.Value(key)
		if w, ok := c.keys[key]; ok {
			v = w
		}
		if v != nil {
			b.Set(key, v)
		}
	}
	for key, v := range c.keys {
		if v != nil {
			b.Set(key, v)
		}
	}
	left := slices.Clone(c.tensors)
	for _, x := range f.Tensors() {
		if i := slices.IndexFunc(left, func(y gguf.Tensor) bool { return y.Name == x.Name }); i >= 0 {
			x = left[i]
			left = slices.Delete(left, i, i+1)
		}
		if x.Data != nil {
			b.Add(x.Name, x.Type, x.Shape, x.Data)
		}
	}
	for _, x := range left {
		b.Add(x.Name, x.Type, x.Shape, x.Data)
	}
	data, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func zeros(name string, typ gguf.Type, shape ...int) gguf.Tensor {
	x := gguf.Tensor{Name: name, Type: typ, Shape: shape}
	x.Data = make([]byte, typ.RowBytes(x.Values()))
	return x
}

func TestAModelIsOpenedFromItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "some-model.gguf")
	data := changed(t, tiny.Options{}, change{keys: map[string]any{"general.name": nil}})
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "some-model" || m.Path != path || m.Architecture != "llama" || m.Template != tiny.Template {
		t.Errorf("%q %q %q", m.Name, m.Path, m.Architecture)
	}
	want := "{Layers:2 Width:64 Heads:4 KVHeads:2 HeadDim:16 FFN:128 Vocab:320 Context:2048 NormEps:1e-05 RopeBase:10000 RopeDim:16 " +
		"RopeFactors:[] RopeScaling:{Type: Factor:1 OriginalContext:0 AttentionFactor:0 ExtFactor:0 BetaFast:0 BetaSlow:0 ShortFactors:[] LongFactors:[]} " +
		"RopeHalves:false LocalRopeBase:0 TiedOutput:false Attention:[] LogitSoftcap:0 Gate:0 EmbeddingScale:0 QKVBias:false QKNorm:false PostNorm:false " +
		"FusedQKV:false FusedGateUp:false Experts:{Count:0 Used:0 FFN:0 Normalise:false Shared:0 SharedGate:false}}"
	if got := fmt.Sprintf("%+v", m.Config); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if m.Parameters != 115_008 || m.Quantization != gguf.F32 || m.WeightBytes != 4*m.Parameters {
		t.Errorf("%d parameters, %d bytes, %s", m.Parameters, m.WeightBytes, m.Quantization)
	}
	x, err := m.Tensor("blk.1.ffn_down.weight")
	if err != nil || !slices.Equal(x.Shape, []int{128, 64}) || len(x.Data) != 128*64*4 {
		t.Errorf("%v %v", x.Shape, err)
	}
	before := slices.Clone(x.Data)
	m.Release()
	if !slices.Equal(x.Data, before) {
		t.Error("weights are others after their pages were released")
	}
	_, err = m.Tensor("blk.2.ffn_down.weight")
	if !errors.Is(err, gguf.ErrMissing) || !strings.Contains(err.Error(), "blk.2.ffn_down.weight") || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}

func TestReleasingAModelInMemoryDoesNotTouchIt(t *testing.T) {
	data := tiny.GGUF(tiny.Options{})
	before := slices.Clone(data)
	m, err := model.Parse(data, "memory")
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	if !slices.Equal(data, before) {
		t.Error("it is changed")
	}
}

func TestWhatIsNoModelIsToldApart(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "absent"):        "absent",
		dir:                                 "config.json is missing",
		file("empty", ""):                   "is empty",
		file("text", "Hello, this is text"): `magic at byte 0: not a GGUF file: it begins with "Hell"`,
		file("lfs", "version https://git-lfs.github.com"):                           "Git LFS pointer",
		file("page", "\n<!DOCTYPE html><html>"):                                     "web page",
		file("zip", "PK\x03\x04rest"):                                               "zip archive",
		file("safe", "\x40\x00\x00\x00\x00\x00\x00\x00{\"__metadata__\":{}}"):       "safetensors",
		file("safe2", "\x40\x00\x00\x00\x00\x00\x00\x00{\"w\":{\"dtype\":\"F32\"}"): "safetensors",
		file("cut", string(tiny.GGUF(tiny.Options{})[:5000])):                       "truncated",
	} {
		_, err := model.Open(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want … %s …", path, err, want)
		}
	}
}

func TestAConfigurationThatMakesNoSenseIsRefused(t *testing.T) {
	set := func(key string, v any) change { return change{keys: map[string]any{key: v}} }
	with := func(x ...gguf.Tensor) change { return change{tensors: x} }
	q, _ := gguf.Encode(gguf.F32, []float32{1, 1, 1, 0, 1, 1, 1, 1})
	for name, c := range map[string]struct {
		change change
		want   string
	}{
		"architecture":        {set("general.architecture", "gpt-j"), `metadata "general.architecture" at byte 56: "gpt-j" is not supported; supported: llama`},
		"no architecture":     {set("general.architecture", nil), `"general.architecture": missing (a string is wanted)`},
		"adapter":             {set("general.type", "adapter"), `a model's "adapter", not a whole model`},
		"split":               {set("split.count", uint16(3)), "split over 3 files"},
		"no layers":           {set("llama.block_count", uint32(0)), `"llama.block_count"`},
		"many layers":         {set("llama.block_count", uint32(1<<31)), "2147483648 is out of range: 1 to 4096 make sense"},
		"layers of text":      {set("llama.block_count", "two"), "an unsigned integer is wanted, it holds a string"},
		"negative":            {set("llama.block_count", int32(-1)), "-1"},
		"heads":               {set("llama.attention.head_count", uint32(5)), "5 heads"},
		"heads array":         {set("llama.attention.head_count", []int32{4, 4}), "it holds an array of int32"},
		"kv heads":            {set("llama.attention.head_count_kv", uint32(3)), "3 key-value heads do not divide 4 heads"},
		"head length":         {set("llama.attention.key_length", uint32(32)), `tensor "blk.0.attn_q.weight"`},
		"value length":        {set("llama.attention.value_length", uint32(8)), "values of 8 beside keys of 16"},
		"context":             {set("llama.context_length", nil), `"llama.context_length": missing`},
		"eps":                 {set("llama.attention.layer_norm_rms_epsilon", float32(0)), "out of range"},
		"eps NaN":             {set("llama.attention.layer_norm_rms_epsilon", float32(math.NaN())), "NaN is out of range"},
		"theta":               {set("llama.rope.freq_base", math.Inf(1)), "+Inf is out of range"},
		"rope odd":            {set("llama.rope.dimension_count", uint32(7)), "7 is odd or more than a head's 16"},
		"rope long":           {set("llama.rope.dimension_count", uint32(18)), "18 is odd or more than a head's 16"},
		"rope type":           {set("llama.rope.scaling.type", "dynamic"), `"dynamic" is not supported; supported: none, linear, yarn, longrope`},
		"rope factor":         {set("llama.rope.scaling.factor", float32(-2)), "-2 is out of range"},
		"experts":             {set("llama.expert_count", uint32(8)), `"llama.expert_used_count": missing`},
		"vocabulary":          {set("llama.vocab_size", uint32(321)), "321 tokens, but token_embd.weight has rows for 320"},
		"FFN":                 {set("llama.feed_forward_length", uint32(96)), `its shape is [64 128], wanted is [64 96]`},
		"embedding":           {with(gguf.Tensor{Name: "token_embd.weight"}), `tensor "token_embd.weight": missing`},
		"embedding shape":     {with(zeros("token_embd.weight", gguf.F32, 64)), "its shape is [64], wanted is [64 vocabulary]"},
		"a layer's tensor":    {with(gguf.Tensor{Name: "blk.1.ffn_up.weight"}), `tensor "blk.1.ffn_up.weight": missing`},
		"matrix shape":        {with(zeros("blk.1.attn_k.weight", gguf.F32, 64, 64)), `tensor "blk.1.attn_k.weight" at byte`},
		"matrix type":         {with(zeros("blk.1.attn_k.weight", gguf.I32, 64, 32)), "its type is I32; supported: F32, F16,"},
		"activation type":     {with(zeros("blk.1.attn_k.weight", gguf.Q8_1, 64, 32)), "its type is Q8_1"},
		"norm type":           {with(zeros("output_norm.weight", gguf.F16, 64)), "its type is F16; supported: F32"},
		"unknown tensor":      {with(zeros("blk.0.attn_q.bias", gguf.F32, 64)), `tensor "blk.0.attn_q.bias" at byte`},
		"another layer":       {set("llama.block_count", uint32(1)), "not a tensor of a llama model of 1 layers"},
		"rope factors shape":  {with(zeros("rope_freqs.weight", gguf.F32, 4)), "its shape is [4], wanted is [8]"},
		"rope factors zero":   {with(gguf.Tensor{Name: "rope_freqs.weight", Type: gguf.F32, Shape: []int{8}, Data: q}), "value 3 is 0"},
		"rope factors type":   {with(zeros("rope_freqs.weight", gguf.F16, 8)), "its type is F16"},
		"tokenizer":           {set("tokenizer.ggml.model", "rwkv"), `tokenizer "rwkv" is not supported; supported: gpt2`},
		"no tokenizer":        {set("tokenizer.ggml.model", nil), `"tokenizer.ggml.model": missing`},
		"pre-tokenizer":       {set("tokenizer.ggml.pre", "no-such"), `"no-such"`},
		"pre-tokenizer type":  {set("tokenizer.ggml.pre", uint32(1)), "a string is wanted"},
		"tokens":              {set("tokenizer.ggml.tokens", []string{"a"}), ""},
		"no tokens":           {set("tokenizer.ggml.tokens", []string{}), "0 tokens"},
		"token types":         {set("tokenizer.ggml.token_type", []int32{1}), "1 types for 320 tokens"},
		"scores":              {set("tokenizer.ggml.scores", []float32{1}), "1 scores for 320 tokens"},
		"no merges":           {set("tokenizer.ggml.merges", nil), `"tokenizer.ggml.merges": missing`},
		"EOS":                 {set("tokenizer.ggml.eos_token_id", uint32(320)), "token id 320 is outside the vocabulary of 320 tokens"},
		"EOT":                 {set("tokenizer.ggml.eot_token_id", int32(-2)), "token id -2 is outside"},
		"BOS type":            {set("tokenizer.ggml.bos_token_id", "x"), "an integer is wanted"},
		"add BOS":             {set("tokenizer.ggml.add_bos_token", uint32(1)), "a bool is wanted"},
		"template":            {set("tokenizer.chat_template", []string{"x"}), "a string is wanted, it holds an array of string"},
		"temperature":         {set("general.sampling.temp", float32(-1)), "-1 is out of range"},
		"temperature type":    {set("general.sampling.temp", "warm"), "a float is wanted"},
		"top_k":               {set("general.sampling.top_k", int64(1<<40)), "out of range"},
		"SentencePiece alone": {set("tokenizer.ggml.model", "llama"), `"tokenizer.ggml.scores": missing`},
	} {
		_, err := model.Parse(changed(t, tiny.Options{}, c.change), "the file")
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "model: the file: ") {
			t.Errorf("%s: %v, want … %s …", name, err, c.want)
		}
	}
}

func parse(t *testing.T, o tiny.Options, keys map[string]any, x ...gguf.Tensor) *model.Model {
	t.Helper()
	m, err := model.Parse(changed(t, o, change{keys, x}), "test")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWhatAFileLeavesOutHasLlamaCppsDefaults(t *testing.T) {
	m := parse(t, tiny.Options{KVHeads: 4}, map[string]any{
		"llama.attention.head_count_kv": nil, "llama.rope.freq_base": nil, "llama.rope.dimension_count": nil, "llama.vocab_size": nil,
		"tokenizer.ggml.pre": nil, "tokenizer.ggml.token_type": nil, "tokenizer.ggml.bos_token_id": nil, "tokenizer.ggml.eos_token_id": nil,
		"tokenizer.ggml.padding_token_id": uint32(99999), "tokenizer.ggml.unknown_token_id": uint32(math.MaxUint32),
		"tokenizer.ggml.add_bos_token": nil, "tokenizer.chat_template": nil, "general.name": nil,
	})
	c := m.Config
	if c.KVHeads != 4 || c.RopeBase != 10000 || c.RopeDim != 16 || c.Vocab != 320 || m.Template != "" || m.Name != "test" {
		t.Errorf("%+v %q %q", c, m.Template, m.Name)
	}
	if g := m.Generation; g.BOS != -1 || g.AddBOS || fmt.Sprint(g.EOS) != "[0 2]" || m.Tokenizer.BOS() != -1 {
		t.Errorf("%+v", g)
	}
	if !m.Tokenizer.IsSpecial(tiny.IMEnd) {
		t.Error("a well known end marker without a type is no control token")
	}
}

func TestASentencePieceFileHasItsOwnDefaults(t *testing.T) {
	tokens := []string{"<unk>", "<s>", "</s>"}
	types := []int32{2, 3, 3}
	for b := range 256 {
		tokens, types = append(tokens, fmt.Sprintf("<0x%02X>", b)), append(types, 6)
	}
	tokens, types = append(tokens, "▁"), append(types, 1)
	for len(tokens) < 320 {
		tokens, types = append(tokens, fmt.Sprintf("▁w%d", len(tokens))), append(types, 0) // 0: undefined
	}
	m := parse(t, tiny.Options{}, map[string]any{
		"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": nil, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
		"tokenizer.ggml.scores": make([]float32, 320), "tokenizer.ggml.merges": nil, "tokenizer.ggml.add_bos_token": nil,
		"tokenizer.ggml.add_space_prefix": nil, "tokenizer.ggml.bos_token_id": nil, "tokenizer.ggml.eos_token_id": nil,
		"tokenizer.ggml.unknown_token_id": nil, "tokenizer.ggml.padding_token_id": nil,
	})
	if g := m.Generation; g.BOS != 1 || !g.AddBOS || g.AddEOS || fmt.Sprint(g.EOS) != "[2]" {
		t.Errorf("%+v", g)
	}
	if ids := m.Tokenizer.Encode("hi", true, false); ids[0] != 1 || m.Tokenizer.Decode(ids, true) != "hi" {
		t.Errorf("%v %q", ids, m.Tokenizer.Decode(ids, true))
	}
}

func TestEndTokensComeFromIDsAndFromWellKnownTexts(t *testing.T) {
	f, _ := gguf.Parse(tiny.GGUF(tiny.Options{}))
	tokens, _ := f.Strings("tokenizer.ggml.tokens")
	tokens = slices.Clone(tokens)
	tokens[200], tokens[201] = "<|eot_id|>", "<end_of_turn>" // typed normal in this file
	m := parse(t, tiny.Options{}, map[string]any{
		"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": uint32(50),
		"tokenizer.ggml.eot_token_id": uint32(60), "tokenizer.ggml.eom_token_id": uint32(70), "tokenizer.ggml.add_eos_token": true,
	})
	if g := m.Generation; fmt.Sprint(g.EOS) != "[0 2 50 60 70 200 201]" || !g.AddEOS {
		t.Errorf("%+v", g)
	}
	if !m.Tokenizer.IsSpecial(200) || m.Tokenizer.IsSpecial(50) {
		t.Error("an end marker shows up in text, or an ordinary token does not")
	}
}

func TestSamplingDefaultsAreTakenFromTheFileOrLeftOpen(t *testing.T) {
	g := parse(t, tiny.Options{}, nil).Generation
	if g.Temperature != nil || g.TopP != nil || g.MinP != nil || g.RepetitionPenalty != nil || g.TopK != nil {
		t.Errorf("%+v", g)
	}
	g = parse(t, tiny.Options{}, map[string]any{
		"general.sampling.temp": float32(0.5), "general.sampling.top_p": float32(0.25), "general.sampling.min_p": float32(0),
		"general.sampling.top_k": int32(-1), "general.sampling.penalty_repeat": float32(1.5),
	}).Generation
	if *g.Temperature != 0.5 || *g.TopP != 0.25 || *g.MinP != 0 || *g.TopK != 0 || *g.RepetitionPenalty != 1.5 {
		t.Errorf("%+v", g)
	}
}

func TestATiedModelHasNoOutputTensor(t *testing.T) {
	m := parse(t, tiny.Options{Tied: true}, nil)
	if !m.Config.TiedOutput {
		t.Error("not tied")
	}
	if _, err := m.Tensor("output.weight"); !errors.Is(err, gguf.ErrMissing) {
		t.Error(err)
	}
}

// Expectations by hand, for heads of 16 with base 10000: pair i turns 10^(−i/2) per position.
func TestRopeFrequenciesAreScaledAsTheFileSays(t *testing.T) {
	rope := func(keys map[string]any, x ...gguf.Tensor) []float64 {
		c := parse(t, tiny.Options{}, keys, x...).Config
		f, m := c.Rope(c.Context)
		return append(f, m)
	}
	near := func(what string, got []float64, want ...float64) {
		t.Helper()
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-9 {
				t.Errorf("%s: %v, want %v", what, got, want)
				return
			}
		}
	}
	r := math.Sqrt(10)
	near("plain", rope(nil), 1, 1/r, 0.1, 0.1/r, 0.01, 0.01/r, 0.001, 0.001/r, 1)
	for _, keys := range []map[string]any{
		{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(4)},
		{"llama.rope.scaling.factor": float32(4)},
		{"llama.rope.scale_linear": float32(4)},
	} {
		near("linear", rope(keys), 0.25, 0.25/r, 0.025)
	}
	near("none", rope(map[string]any{"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": float32(4)}), 1, 1/r)
	factors, _ := gguf.Encode(gguf.F32, []float32{1, 2, 4, 8, 16, 32, 64, 128})
	near("factors", rope(nil, gguf.Tensor{Name: "rope_freqs.weight", Type: gguf.F32, Shape: []int{8}, Data: factors}), 1, 0.5/r, 0.025, 0.0125/r)

	// YaRN over 512 positions: pair i makes 512·10^(−i/2)/2π turns, 32 of them for i = 0.81, 1 for i = 3.8.
	// So the ramp runs from 0 to 4, in quarters.
	yarn := map[string]any{"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": float32(4), "llama.rope.scaling.original_context_length": uint32(512)}
	mix := func(f, keep float64) float64 { return f*keep + f/4*(1-keep) }
	near("yarn", rope(yarn), 1, mix(1/r, 0.75), mix(0.1, 0.5), mix(0.1/r, 0.25), 0.01/4, 0.01/r/4, 0.001/4, 0.001/r/4, 1+0.1*math.Log(4))
	yarn["llama.rope.scaling.attn_factor"] = float32(0.5)
	near("yarn's attention factor", rope(yarn)[8:], 0.5*(1+0.1*math.Log(4)))
	yarn["llama.rope.scaling.yarn_ext_factor"] = float32(0)
	near("yarn without ramp", rope(yarn), 0.25, 0.25/r)
	near("and its magnitude", rope(yarn)[8:], 0.5)
}

func FuzzOpen(f *testing.F) {
	// As small as can be: most of it is the vocabulary.
	o := tiny.Options{Layers: 1, Width: 2, Heads: 1, KVHeads: 1, FFN: 1, Tied: true}
	f.Add(changed(f, o, change{}))
	f.Add(changed(f, o, change{keys: map[string]any{"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": float32(2)}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := model.Parse(data, "fuzz")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "model: fuzz") {
				t.Fatal(err)
			}
			return
		}
		for _, v := range m.Generation.EOS {
			if !m.Tokenizer.Valid(v) {
				t.Fatalf("end token %d", v)
			}
		}
		f, scale := m.Config.Rope(m.Config.Context)
		for _, v := range append(f, scale) {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("rope %v, %v of %+v", f, scale, m.Config)
			}
		}
		m.Tokenizer.Decode(m.Tokenizer.Encode("Hello, world!", true, true), false)
	})
}
