package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/model/gguf"
)

// wanted is a tensor that a configuration calls for.
type wanted struct {
	name  string
	shape []int
}

// tensors are those of a model, but for rope_freqs and its like.
func (c *Config) tensors() []wanted {
	all := []wanted{{"token_embd.weight", []int{c.Width, c.Vocab}}, {"output_norm.weight", []int{c.Width}}}
	if !c.TiedOutput {
		all = append(all, wanted{"output.weight", []int{c.Width, c.Vocab}})
	}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	for i := range c.Layers {
		add := func(name string, shape ...int) {
			all = append(all, wanted{fmt.Sprintf("blk.%d.%s", i, name), shape})
		}
		add("attn_norm.weight", c.Width)
		if c.FusedQKV {
			add("attn_qkv.weight", c.Width, q+2*kv)
		} else {
			add("attn_q.weight", c.Width, q)
			add("attn_k.weight", c.Width, kv)
			add("attn_v.weight", c.Width, kv)
		}
		switch {
		case c.QKVBias && c.FusedQKV:
			add("attn_qkv.bias", q+2*kv)
		case c.QKVBias:
			add("attn_q.bias", q)
			add("attn_k.bias", kv)
			add("attn_v.bias", kv)
		}
		if c.QKNorm {
			add("attn_q_norm.weight", c.HeadDim)
			add("attn_k_norm.weight", c.HeadDim)
		}
		add("attn_output.weight", q, c.Width)
		add("ffn_norm.weight", c.Width)
		if c.PostNorm {
			add("post_attention_norm.weight", c.Width)
			add("post_ffw_norm.weight", c.Width)
		}
		if e := &c.Experts; e.Count > 0 {
			add("ffn_gate_inp.weight", c.Width, e.Count)
			if c.FusedGateUp {
				add("ffn_gate_up_exps.weight", c.Width, 2*e.FFN, e.Count)
			} else {
				add("ffn_gate_exps.weight", c.Width, e.FFN, e.Count)
				add("ffn_up_exps.weight", c.Width, e.FFN, e.Count)
			}
			add("ffn_down_exps.weight", e.FFN, c.Width, e.Count)
			if e.Shared > 0 {
				add("ffn_gate_shexp.weight", c.Width, e.Shared)
				add("ffn_up_shexp.weight", c.Width, e.Shared)
				add("ffn_down_shexp.weight", e.Shared, c.Width)
			}
			if e.SharedGate {
				add("ffn_gate_inp_shexp.weight", c.Width)
			}
			continue
		}
		if c.FusedGateUp {
			add("ffn_up.weight", c.Width, 2*c.FFN)
		} else {
			add("ffn_gate.weight", c.Width, c.FFN)
			add("ffn_up.weight", c.Width, c.FFN)
		}
		add("ffn_down.weight", c.FFN, c.Width)
	}
	return all
}

// checkTensors finds every tensor that the configuration calls for, with its shape and a type that
// a matrix or a vector may have, and nothing besides: a tensor that this code does not know, such as
// another bias, would change what the model says.
func checkTensors(f *gguf.File, c *Config, architecture string) error {
	known := map[string]bool{"rope_freqs.weight": true}
	if c.RopeScaling.Type == "longrope" {
		known = map[string]bool{"rope_factors_long.weight": true, "rope_factors_short.weight": true}
	}
	for _, w := range c.tensors() {
		known[w.name] = true
		t, err := f.Tensor(w.name)
		if err != nil {
			return err
		}
		// A vector that was a matrix of one row may have kept its second dimension, and a matrix's type.
		if !slices.Equal(t.Shape, w.shape) && !(len(w.shape) == 1 && slices.Equal(t.Shape, append(w.shape[:1:1], 1))) {
			return wrongShape(t, w.shape)
		}
		if len(t.Shape) == 1 && t.Type != gguf.F32 {
			return wrongType(t, gguf.F32)
		}
		if !slices.Contains(WeightTypes(), t.Type) {
			return fmt.Errorf("%w: take the model in another quantisation, such as Q4_K_M", wrongType(t, WeightTypes()...))
		}
	}
	for _, t := range f.Tensors() {
		if !known[t.Name] {
			return tensorError(t, "not a tensor of a %s model of %d layers as supported here", architecture, c.Layers)
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
