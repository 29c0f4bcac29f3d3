package devicetest

import (
	"math/rand/v2"
	"slices"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// BlocksOf makes random blocks of a type whose values are spread about 0 by about 0.1, for types that
// package gguf does not encode: scales are chosen, all else is random bits.
func BlocksOf(rng *rand.Rand, t gguf.Type, values int) []byte {
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

// TypedModel makes a model whose matrices are of the types that kind gives for their names: the weights of o, or
// where package gguf does not encode the type, random ones. It needs no Close.
func TypedModel(o tiny.Options, kind func(name string) gguf.Type) (*model.Model, error) {
	return Retyped(tiny.GGUF(o), kind)
}

// Retyped is TypedModel of a file, whose matrices package gguf decodes.
func Retyped(file []byte, kind func(name string) gguf.Type) (*model.Model, error) {
	f, err := gguf.Parse(file)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var b gguf.Builder
	for _, key := range f.Keys() {
		v, _ := f.Value(key)
		b.Set(key, v)
	}
	for _, x := range f.Tensors() {
		if to := kind(x.Name); len(x.Shape) > 1 && to != x.Type {
			values, err := gguf.Decode(x.Type, x.Data)
			if err != nil {
				return nil, err
			}
			if x.Data, err = gguf.Encode(to, values); err != nil {
				x.Data = BlocksOf(rng, to, len(values))
			}
			x.Type = to
		}
		b.Add(x.Name, x.Type, x.Shape, x.Data)
	}
	data, err := b.Bytes()
	if err != nil {
		return nil, err
	}
	return model.Parse(data, "compared")
}

// StepsConfig is a Config that Steps has room in.
var StepsConfig = gpu.Config{BlockSize: 7, MaxSeqs: 3, MaxTokens: 128, MaxContext: 110}

// Steps runs some steps on a device, whose products have one column, a few, and many, and whose sequences
// lie in blocks here and there. It gives all log probabilities. The device must have been opened with c, which
// must allow three sequences of up to 110 tokens.
func Steps(d gpu.Device, c gpu.Config) ([]float32, error) {
	vocab := d.Info().Vocab
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
			return nil, err
		}
		all = append(append(all, r.Logprobs...), r.TopLogprobs...)
	}
	return all, nil
}
