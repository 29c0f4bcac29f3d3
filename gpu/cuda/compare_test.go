//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// blocksOf makes random blocks of a type whose values are spread about 0 by about 0.1, for types that
// package gguf does not encode: scales are chosen, all else is random bits.
func blocksOf(rng *rand.Rand, t gguf.Type, values int) []byte {
	data := make([]byte, t.RowBytes(values))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	half := func(at int, v float32) {
		b, err := gguf.Encode(gguf.F16, []float32{v})
		if err != nil {
			panic(err)
		}
		copy(data[at:], b)
	}
	for at := 0; at < len(data); at += t.BlockBytes() {
		switch t {
		case gguf.Q5_0:
			half(at, 0.01)
		case gguf.Q5_1:
			half(at, 0.01)
			half(at+2, -0.155)
		case gguf.Q2_K:
			half(at+80, 0.01)
			half(at+82, 0.015)
		case gguf.Q3_K:
			half(at+108, 0.0024)
		case gguf.Q4_K:
			half(at, 0.0003)
			half(at+2, 7.5*0.0003)
		case gguf.Q5_K:
			half(at, 0.00015)
			half(at+2, 15.5*0.00015)
		case gguf.Q6_K:
			half(at+208, 0.00006)
		case gguf.IQ4_NL:
			half(at, 0.0015)
		case gguf.IQ4_XS:
			half(at, 0.00008)
		case gguf.MXFP4:
			data[at] = 121 + data[at]&1
		}
	}
	return data
}

// modelOf makes a model whose matrices are of the types that kind gives for their names.
func modelOf(t testing.TB, o tiny.Options, kind func(name string) gguf.Type) *model.Model {
	t.Helper()
	f, err := gguf.Parse(tiny.GGUF(o))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var b gguf.Builder
	for _, key := range f.Keys() {
		v, _ := f.Value(key)
		b.Set(key, v)
	}
	for _, x := range f.Tensors() {
		if to := kind(x.Name); len(x.Shape) == 2 && to != x.Type {
			values, err := gguf.Decode(x.Type, x.Data)
			if err != nil {
				t.Fatal(err)
			}
			if x.Data, err = gguf.Encode(to, values); err != nil {
				x.Data = blocksOf(rng, to, len(values))
			}
			x.Type = to
		}
		b.Add(x.Name, x.Type, x.Shape, x.Data)
	}
	data, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Parse(data, "compared")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// steps runs some steps on a device, whose products have one column, a few, and many, and whose sequences
// lie in blocks here and there. It gives all log probabilities.
func steps(t testing.TB, d gpu.Device, c gpu.Config, vocab int) []float32 {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	var all []float32
	var r gpu.Result
	done := make([]int, 3)
	tokens := make([][]int32, 3)
	stride := (c.MaxContext + c.BlockSize - 1) / c.BlockSize
	free := rng.Perm(d.Info().NumBlocks)
	tables := make([][]int32, 3)
	for _, step := range [][]int{{70, 21, 0}, {1, 0, 0}, {1, 2, 5}, {30, 1, 1}} {
		b := gpu.Batch{Stride: stride}
		for i, n := range step {
			if n == 0 {
				continue
			}
			b.Spans = append(b.Spans, gpu.Span{First: int32(len(b.Tokens)), Len: int32(n), Start: int32(done[i]), Slot: int32(i), Adapter: -1})
			for range n {
				tokens[i] = append(tokens[i], int32(rng.IntN(vocab)))
				b.Tokens = append(b.Tokens, tokens[i][done[i]])
				b.Positions = append(b.Positions, int32(done[i]))
				done[i]++
			}
			for len(tables[i])*c.BlockSize < done[i] {
				tables[i] = append(tables[i], int32(free[0]))
				free = free[1:]
			}
			row := append(slices.Clone(tables[i]), slices.Repeat([]int32{-1}, stride-len(tables[i]))...)
			b.Blocks = append(b.Blocks, row...)
			last := int32(len(b.Tokens) - 1)
			for _, at := range []int32{max(b.Spans[len(b.Spans)-1].First, last-5), last} {
				b.Rows = append(b.Rows, gpu.Row{Kind: gpu.Score, Token: at, Span: int32(len(b.Spans) - 1), Target: int32(rng.IntN(vocab)), Top: 3, Mask: -1})
			}
		}
		if err := d.Run(&b, &r); err != nil {
			t.Fatal(err)
		}
		all = append(append(all, r.Logprobs...), r.TopLogprobs...)
	}
	return all
}

func TestEveryTypeOfWeightsAndCacheGivesWhatTheHostGives(t *testing.T) {
	useFake(t)
	t.Setenv(host.CPUVariable, "portable") // the only instructions that don't round activations
	ragged := tiny.Options{Layers: 1, Width: 72, Heads: 4, KVHeads: 1, FFN: 100}
	blocks := tiny.Options{Layers: 1, Width: 96, Heads: 3, KVHeads: 3, FFN: 160, Tied: true}
	super := tiny.Options{Layers: 1, Width: 256, Heads: 4, KVHeads: 2, FFN: 256}
	for _, c := range []struct {
		name  string
		shape tiny.Options
		kind  func(string) gguf.Type
	}{
		{"F32", ragged, nil}, {"F16", ragged, nil}, {"BF16", ragged, nil}, {"Q8_0", blocks, nil}, {"Q4_0", blocks, nil}, {"Q4_1", blocks, nil},
		{"Q5_0", blocks, nil}, {"Q5_1", blocks, nil}, {"Q4_K", super, nil}, {"Q5_K", super, nil}, {"Q6_K", super, nil},
		{"Q2_K", super, nil}, {"Q3_K", super, nil}, {"IQ4_NL", blocks, nil}, {"IQ4_XS", super, nil}, {"MXFP4", blocks, nil},
		{"mixed", super, func(name string) gguf.Type {
			switch {
			case strings.Contains(name, "attn_v") || strings.Contains(name, "ffn_down"):
				return gguf.Q6_K
			case strings.Contains(name, "token_embd") || strings.Contains(name, "ffn_up"):
				return gguf.Q8_0
			}
			return gguf.Q4_K
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := c.kind
			if kind == nil {
				for k := range packings {
					if k.String() == c.name {
						kind = func(string) gguf.Type { return k }
					}
				}
			}
			m := modelOf(t, c.shape, kind)
			for cache, most := range map[gpu.CacheType]float64{gpu.CacheF32: 1e-3, gpu.CacheF16: 2e-2, gpu.CacheQ8_0: 2e-2} {
				// Heads of mixed are 64 numbers long, those of F16 18, which is no whole number of codes.
				if cache != gpu.CacheF32 && c.name != "mixed" && (cache != gpu.CacheQ8_0 || c.name != "F16") {
					continue
				}
				config := gpu.Config{BlockSize: 7, MaxSeqs: 3, MaxTokens: 128, MaxContext: 110, CacheType: cache}
				h, err := host.Open(m, config)
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				d, err := Open(m, config, Options{})
				if err != nil {
					t.Fatal(err)
				}
				want, got := steps(t, h, config, m.Config.Vocab), steps(t, d, config, m.Config.Vocab)
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				worst := 0.0
				for i := range want {
					worst = max(worst, math.Abs(float64(want[i])-float64(got[i])))
				}
				t.Logf("cache of %v: off by %.1e at most", cache, worst)
				if !(worst < most) || len(got) != len(want) {
					t.Errorf("cache of %v: a log probability is off by %g", cache, worst)
				}
			}
		})
	}
}

// What depends on the order in which threads run is a race: on a GPU there is none.
func TestNothingDependsOnTheOrderOfThreadsAndBlocks(t *testing.T) {
	useFake(t)
	m := tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q4_1})
	config := gpu.Config{BlockSize: 16, MaxSeqs: 3, MaxTokens: 128, MaxContext: 110}
	run := func() []float32 {
		d, err := Open(m, config, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		return steps(t, d, config, m.Config.Vocab)
	}
	want := run()
	t.Setenv("FAKE_CUDA_REVERSE", "1")
	if got := run(); !slices.Equal(got, want) {
		t.Error("other log probabilities when threads and blocks run in the opposite order")
	}
}

func TestEveryTypesWeightsAreToTheBitThoseOfTheGGUFPackage(t *testing.T) {
	useFake(t)
	file, err := os.ReadFile("../host/testdata/dequantised.json") // by the gguf package of llama.cpp's authors
	if err != nil {
		t.Fatal(err)
	}
	var goldens struct {
		Cases []struct {
			Type         string
			Data, Values []byte
		}
	}
	if err := json.Unmarshal(file, &goldens); err != nil {
		t.Fatal(err)
	}
	d := open(t, tiny.Options{Layers: 1}, small)
	defer d.Close()
	seen := 0
	for _, kind := range model.WeightTypes() {
		for _, c := range goldens.Cases {
			if c.Type != kind.String() {
				continue
			}
			seen++
			in := max(32, kind.BlockSize())
			n := len(c.Values) / 4 / in
			l := linear{in: in, stacks: []stack{{kind: kind, rows: n, parts: []gguf.Tensor{{Name: c.Type, Type: kind, Shape: []int{in, n}, Data: c.Data}}}}}
			if err := d.upload(&l); err != nil {
				t.Fatal(err)
			}
			got, s, tokens := make([]float32, n*in), &l.stacks[0], make([]int32, n)
			for i := range tokens {
				tokens[i] = int32(i)
			}
			rows, err := uploadNumbers(d, "tokens", tokens)
			if err != nil {
				t.Fatal(err)
			}
			x, err := d.alloc("weights as floats", int64(4*len(got)))
			if err != nil {
				t.Fatal(err)
			}
			err = d.module.launch(s.embed, shape{x: n, threads: 32}, uint64(s.planes[quants]), uint64(s.planes[high]), uint64(s.planes[scales]), uint64(s.planes[supers]),
				rows, uint64(x), uint64(rowUnits(in)), uint64(in), bits(1))
			if err != nil {
				t.Fatal(err)
			}
			if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&got[0]), x, int64(4*len(got)), d.stream); err != nil {
				t.Fatal(err)
			}
			if err := d.wait("computing"); err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				if want := binary.LittleEndian.Uint32(c.Values[4*i:]); math.Float32bits(v) != want && v != math.Float32frombits(want) {
					t.Fatalf("%s: weight %d is %v, wanted %v", c.Type, i, v, math.Float32frombits(want))
				}
			}
		}
	}
	if seen != len(model.WeightTypes()) {
		t.Errorf("%d of %d types have goldens", seen, len(model.WeightTypes()))
	}
}

func TestTypesWithoutKernelsAreRefusedByName(t *testing.T) {
	useFake(t)
	before, known := ask(t, liveObjects), packings[gguf.MXFP4]
	delete(packings, gguf.MXFP4)
	defer func() { packings[gguf.MXFP4] = known }()
	m := modelOf(t, tiny.Options{Layers: 1, Type: gguf.Q8_0}, func(name string) gguf.Type {
		if strings.Contains(name, "ffn_down") {
			return gguf.MXFP4
		}
		return gguf.Q8_0
	})
	_, err := Open(m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 16}, Options{})
	if err == nil || !strings.Contains(err.Error(), "ffn_down") || !strings.Contains(err.Error(), fmt.Sprint(gguf.MXFP4)) || !strings.Contains(err.Error(), "Q4_K") {
		t.Error(err)
	}
	noneLeft(t, before)
}
