package host

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// architectureCase is a model of an architecture, with what is expected of it.
type architectureCase struct {
	made *devicetest.Architecture
	numpyCase
}

func architectureCases(t testing.TB) []*architectureCase {
	t.Helper()
	var all []*architectureCase
	for _, a := range devicetest.Architectures() {
		all = append(all, &architectureCase{a, numpyCase{Model: a.Name, Tokens: a.Tokens, Logprobs: a.Logprobs, Last: a.Last}})
	}
	return all
}

// open makes the model, its matrices stored in type typ as far as their rows allow.
func (c *architectureCase) open(t testing.TB, typ gguf.Type) *model.Model {
	t.Helper()
	m, err := c.made.Model(typ)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// file is what open opens.
func (c *architectureCase) file(t testing.TB, typ gguf.Type) []byte {
	t.Helper()
	file, err := c.made.File(typ)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestArchitecturesAgreeWithTransformers(t *testing.T) {
	known := map[string]bool{}
	for _, c := range architectureCases(t) {
		m := c.open(t, gguf.F32)
		known[m.Architecture] = true
		if raceEnabled && !strings.HasPrefix(c.Model, "qwen2moe") { // the detector has the others' code in other tests
			continue
		}
		onEach(t, func(t *testing.T, _ instructions) {
			if worst, _, _ := c.off(t, m, gpu.CacheF32); !(worst < 1.5e-4) {
				t.Errorf("%s: a log probability is off by %g", c.Model, worst)
			}
			// What a cache of halves or weights of 8 bits change can make a row choose another expert, so that
			// single numbers say little.
			if _, mean, _ := c.off(t, m, gpu.CacheF16); !(mean < 5e-3) {
				t.Errorf("%s: with a cache of halves, log probabilities are off by %g of their spread in the mean", c.Model, mean)
			}
			if _, mean, _ := c.off(t, c.open(t, gguf.Q8_0), gpu.CacheF16); !(mean < 0.2) {
				t.Errorf("%s: with weights of 8 bits, log probabilities are off by %g of their spread in the mean", c.Model, mean)
			}
		})
	}
	for _, name := range model.Architectures() {
		if !known[name] {
			t.Errorf("no case has architecture %q", name)
		}
	}
}

func TestArchitecturesHaveTheSameBitsInAnyBatch(t *testing.T) {
	for i, c := range architectureCases(t) {
		if raceEnabled && !strings.HasPrefix(c.Model, "qwen2moe") {
			continue
		}
		types := []gguf.Type{gguf.F32, gguf.Q8_0, gguf.Q4_0}
		if !strings.Contains(c.Model, "moe") { // of what has nothing of its own, one is enough
			types = types[i%3:][:1]
		}
		if raceEnabled {
			types = types[1:2]
		}
		for _, typ := range types {
			m := c.open(t, typ)
			onEach(t, func(t *testing.T, _ instructions) {
				whole := c.run(t, m, 1, nil)
				for _, other := range [][]float32{c.run(t, m, 3, []int{1, 7, 20, 15}), c.run(t, m, 2, []int{17})} {
					if !slices.Equal(whole, other) {
						t.Errorf("%s of %v: log probabilities differ", c.Model, typ)
					}
				}
			})
		}
	}
}

// run gives log probabilities of the case's tokens, computed in chunks of the given lengths and then of
// what is left; if there are any, beside two other sequences.
func (c *architectureCase) run(t *testing.T, m *model.Model, threads int, chunks []int) []float32 {
	n := len(c.Tokens)
	d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 3, MaxTokens: 2 * n, MaxContext: n, Threads: threads})
	s := &sequence{tokens: c.Tokens, slot: 1}
	var others []*sequence
	if chunks != nil {
		others = []*sequence{{tokens: c.Tokens[n/2:]}, {tokens: c.Tokens[n/3:], slot: 2}}
	}
	var logprobs, tops []float32
	for s.done < n-1 {
		k := n - 1 - s.done
		if len(chunks) > 0 {
			k, chunks = min(k, chunks[0]), chunks[1:]
		}
		d.begin()
		for i, o := range others {
			if left := len(o.tokens) - o.done; left > 0 && i == 0 {
				d.span(o, min(left, 1+k/2))
			}
		}
		first := d.span(s, k)
		for i := range k {
			d.score(first+int32(i), c.Tokens[s.done-k+i+1], 2)
		}
		for i, o := range others {
			if left := len(o.tokens) - o.done; left > 0 && i == 1 {
				d.span(o, 1)
			}
		}
		r := d.run()
		logprobs, tops = append(logprobs, r.Logprobs...), append(tops, r.TopLogprobs...)
	}
	return append(logprobs, tops...)
}

// Converters can be told to write one matrix where there are two or three.
func TestFusedMatricesHaveTheBitsOfTheirParts(t *testing.T) {
	for _, c := range architectureCases(t) {
		if raceEnabled || c.Model != "qwen2" && c.Model != "qwen2moe" && c.Model != "qwen3moe" { // nothing races that doesn't elsewhere
			continue
		}
		m, fused := c.open(t, gguf.Q8_0), c.fused(t, gguf.Q8_0)
		if !fused.Config.FusedQKV || fused.Config.FusedGateUp != (m.Config.Experts.Count > 0) {
			t.Errorf("%s: %+v", c.Model, fused.Config)
		}
		onEach(t, func(t *testing.T, _ instructions) {
			if !slices.Equal(c.run(t, m, 2, nil), c.run(t, fused, 2, nil)) {
				t.Errorf("%s: log probabilities differ", c.Model)
			}
		})
	}
}

// fused makes the model with its parts fused: rows after rows, of experts those of each.
func (c *architectureCase) fused(t *testing.T, typ gguf.Type) *model.Model {
	t.Helper()
	f, err := gguf.Parse(c.file(t, typ))
	if err != nil {
		t.Fatal(err)
	}
	var b gguf.Builder
	for _, key := range f.Keys() {
		v, _ := f.Value(key)
		b.Set(key, v)
	}
	fused := map[string][]string{"attn_qkv": {"attn_q", "attn_k", "attn_v"}, "ffn_gate_up_exps": {"ffn_gate_exps", "ffn_up_exps"}}
	for _, x := range f.Tensors() {
		name := strings.Split(x.Name, ".") // blk, N, part, ending
		for whole, parts := range fused {
			if len(name) != 4 || !slices.Contains(parts, name[2]) {
				continue
			}
			if name[2] != parts[0] {
				name = nil // is in the whole
				break
			}
			name[2] = whole
			of := []gguf.Tensor{x}
			for _, part := range parts[1:] {
				y, err := f.Tensor(strings.Replace(x.Name, parts[0], part, 1))
				if err != nil {
					t.Fatal(err)
				}
				of = append(of, y)
			}
			x = stackRows(of)
			break
		}
		if name != nil {
			b.Add(strings.Join(name, "."), x.Type, x.Shape, x.Data)
		}
	}
	file, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Parse(file, c.Model+", fused")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// stackRows puts tensors' rows, or values, after each other; if there is a third dimension, in each of its
// places.
func stackRows(of []gguf.Tensor) gguf.Tensor {
	x := of[0]
	x.Data, x.Shape = nil, slices.Clone(x.Shape)
	rows, places := min(1, len(x.Shape)-1), 1
	x.Shape[rows] = 0
	if len(x.Shape) > 2 {
		places = x.Shape[2]
	}
	for _, y := range of {
		x.Shape[rows] += y.Shape[rows]
	}
	for i := range places {
		for _, y := range of {
			size := len(y.Data) / places
			x.Data = append(x.Data, y.Data[i*size:(i+1)*size]...)
		}
	}
	return x
}

func TestAStepOfAMixtureAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the detector changes nothing about it, and takes long")
	}
	for _, c := range architectureCases(t) {
		m := c.open(t, gguf.Q8_0)
		if m.Config.Experts.Count == 0 {
			continue
		}
		d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 64, MaxContext: 64, Threads: 2})
		d.begin()
		d.span(&sequence{tokens: c.Tokens[:20]}, 20)
		d.score(19, 0, 0)
		d.run()
		if n := testing.AllocsPerRun(20, func() { d.run() }); n != 0 {
			t.Errorf("%s: %v allocations", c.Model, n)
		}
	}
}

// A mixture as Qwen 3's are, but smaller: 64 experts of which 8 are used, in 4 layers.
func BenchmarkMixture(b *testing.B) {
	var c architectureCase
	for _, x := range architectureCases(b) {
		if x.Model == "qwen3moe" {
			c = *x
		}
	}
	const width, inner, experts, layers = 512, 256, 64, 4
	c.made.Metadata = maps.Clone(c.made.Metadata)
	set := func(key string, n int) { c.made.Metadata["qwen3moe."+key] = json.Number(strconv.Itoa(n)) }
	set("block_count", layers)
	set("embedding_length", width)
	set("attention.head_count", 8)
	set("attention.key_length", 64)
	set("attention.value_length", 64)
	set("expert_count", experts)
	set("expert_used_count", 8)
	set("expert_feed_forward_length", inner)
	sizes := map[int]int{64: width, 32: inner, 6: experts}
	tensors := slices.Clone(c.made.Tensors)
	c.made.Tensors = nil
	for _, w := range tensors {
		name, first := strings.CutPrefix(w.Name, "blk.0.")
		if strings.HasPrefix(w.Name, "blk.") && !first {
			continue
		}
		w.Shape = slices.Clone(w.Shape)
		for i, n := range w.Shape {
			if m, ok := sizes[n]; ok {
				w.Shape[i] = m
			}
		}
		switch name {
		case "attn_q.weight":
			w.Shape = []int{width, 8 * 64}
		case "attn_output.weight":
			w.Shape = []int{8 * 64, width}
		case "attn_k.weight", "attn_v.weight":
			w.Shape = []int{width, 2 * 64}
		case "attn_q_norm.weight", "attn_k_norm.weight":
			w.Shape = []int{64}
		}
		w.Scale /= 3
		for i := range layers {
			if first {
				w.Name = fmt.Sprintf("blk.%d.%s", i, name)
			}
			if first || i == 0 {
				c.made.Tensors = append(c.made.Tensors, w)
			}
		}
	}
	m := c.open(b, gguf.Q4_0)
	for _, rows := range []int{1, 8, 128} {
		b.Run(strconv.Itoa(rows), func(b *testing.B) {
			d := newDriver(b, m, gpu.Config{BlockSize: 16, MaxSeqs: rows, MaxTokens: rows, MaxContext: 16})
			tokens := prompt(m, rows)
			d.begin()
			for i := range rows { // sequences of one token, so that attention costs little
				d.span(&sequence{tokens: tokens[i:], slot: int32(i)}, 1)
			}
			d.score(int32(rows-1), 0, 0)
			for b.Loop() {
				d.run()
			}
			b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
