package host

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// likeWeights makes blocks of a type up whose values are about as large as those of a matrix of 256 columns:
// one power of two is the scale of all.
func likeWeights(kind gguf.Type, values int, seed uint64) []byte {
	data := fillBlocks(kind, values, seed)
	setScales(kind, data, 0x3c00) // 1
	floats := make([]float32, values)
	dequantiser(kind)(floats, data)
	squares := 0.0
	for _, v := range floats {
		squares += float64(v) * float64(v)
	}
	down := int(math.Round(math.Log2(16 * math.Sqrt(squares/float64(values)))))
	if kind == gguf.MXFP4 {
		for b := 0; b < len(data); b += kind.BlockBytes() {
			data[b] -= byte(down)
		}
		return data
	}
	half := uint16(1) << max(0, 24-down) // a subnormal
	if down < 15 {
		half = uint16(15-down) << 10
	}
	setScales(kind, data, half)
	return data
}

// asFloats are the values as F32.
func asFloats(kind gguf.Type, data []byte, values int) []byte {
	floats := make([]float32, values)
	dequantiser(kind)(floats, data)
	out := make([]byte, 0, 4*values)
	for _, v := range floats {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

func TestAModelOfEveryTypeSaysWhatTheSameModelInFloatsSays(t *testing.T) {
	plain := tiny.GGUF(tiny.Options{Seed: 9, Layers: 1, Width: 256, Heads: 4, KVHeads: 2, FFN: 256})
	tokens := make([]int32, 24)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % tiny.Vocab)
	}
	logprobs := func(t *testing.T, file []byte) []float32 {
		m, err := model.Parse(file, "m")
		if err != nil {
			t.Fatal(err)
		}
		d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: len(tokens), MaxContext: len(tokens), Threads: 1})
		d.begin()
		d.span(&sequence{tokens: tokens}, len(tokens)-1)
		for i := range len(tokens) - 1 {
			d.score(int32(i), tokens[i+1], 0)
		}
		return d.run().Logprobs
	}
	for _, kind := range computed {
		if kind.BlockSize() == 1 {
			continue
		}
		t.Run(kind.String(), func(t *testing.T) {
			file := func(floats bool) []byte {
				r := rand.New(rand.NewPCG(5, uint64(kind)))
				return rebuild(t, plain, nil, func(x gguf.Tensor) gguf.Tensor {
					if len(x.Shape) != 2 {
						return x
					}
					n := x.Values()
					x.Type, x.Data = kind, likeWeights(kind, n, r.Uint64())
					if floats {
						x.Type, x.Data = gguf.F32, asFloats(kind, x.Data, n)
					}
					return x
				})
			}
			onEach(t, func(t *testing.T, cpu instructions) {
				want, got := logprobs(t, file(true)), logprobs(t, file(false))
				limit := 0.05 // activations are rounded to 8 bits
				if cpu == portable {
					limit = 1e-4
				}
				far, sum := 0.0, 0.0
				for i, v := range got {
					far += math.Abs(float64(v-want[i])) / float64(len(got))
					sum += float64(want[i]) / float64(len(got))
				}
				t.Logf("log probabilities of %.2f in the mean differ by %.6f", sum, far)
				if !(far < limit) {
					t.Errorf("log probabilities differ by %v in the mean; under %v is asked for", far, limit)
				}
			})
		})
	}
}

// FuzzPackedProducts multiplies blocks of any bytes: scales that are infinite or no numbers, all codes.
func FuzzPackedProducts(f *testing.F) {
	for i := range computed {
		f.Add(uint8(i), []byte{0xff, 0x7b, 0x01, 0xfe, 0x80, 0x13}, uint64(i))
	}
	f.Fuzz(func(t *testing.T, which uint8, bytes []byte, seed uint64) {
		kind := computed[int(which)%len(computed)]
		const in, rows, n = 256, 17, 5
		data := fillBlocks(kind, in*rows, seed)
		copy(data[int(seed%uint64(len(data))):], bytes)
		x := activations(rand.New(rand.NewPCG(seed, 1)), n*in)
		q := make([]octets, n*in/32)
		quantise(q, x)
		for _, cpu := range availableInstructions() {
			l := newTestLinear(cpu, in, []gguf.Type{kind}, []int{rows}, [][]byte{data})
			h := newTestHost(t, 1, &l)
			y := make([]float32, n*rows)
			if err := h.multiply(&l, x, y, n); err != nil {
				t.Fatal(err)
			}
			if cpu == portable {
				continue // tables and floats are compared with what is exact, elsewhere
			}
			stride := kind.RowBytes(in)
			for i, got := range y {
				a, row := i/rows, i%rows
				want := twinOf(cpu)(kind, data[row*stride:][:stride], x[a*in:][:in], q[a*in/32:][:in/32])
				if !equalFloats(got, want) {
					t.Fatalf("%s, %s: activations %d, row %d: %v, the twin has %v", cpu, kind, a, row, got, want)
				}
			}
		}
	})
}
