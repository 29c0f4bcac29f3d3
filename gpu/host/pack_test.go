package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/troupe-llm/troupe/model/gguf"
)

// multiplyTwin is what the kernels of packed weights compute, from a row as it is in the file: block by
// block of 32 columns, the exact sum of integers, times the product of both scales, and then the minimum
// times the activations' sum, or in Q2_K the exact sum of minima times activations, times the product of
// both scales; all products are rounded, and added in order. Types of floats have a sum of
// the even columns and one of the odd.
func multiplyTwin(kind gguf.Type, row []byte, floats []float32, x []octets) float32 {
	if packings[kind].float > 0 {
		w, sums := make([]float32, len(floats)), [2]float32{}
		dequantiser(kind)(w, row)
		for i, v := range floats {
			sums[i%2] += float32(v * w[i])
		}
		return sums[0] + sums[1]
	}
	acc := float32(0)
	p, size := packings[kind], kind.BlockBytes()
	for i := range x {
		src := row[i/p.blocks*size:][:size]
		var v [32]byte
		p.unpack(&v, src, i%p.blocks)
		zero, factors, minima16 := int32(0), [2]int32{1, 1}, [2]int32{}
		scale, minimum, minima := float16(src), float32(0), false
		switch kind {
		case gguf.Q4_0:
			zero = 8
		case gguf.Q5_0:
			zero = 16
		case gguf.Q8_0:
			zero = 128
		case gguf.Q4_1, gguf.Q5_1:
			minimum, minima = float16(src[2:]), true
		case gguf.Q2_K:
			scale, minimum = float16(src[80:]), -float16(src[82:])
			for h := range 2 {
				s := src[i%8*2+h]
				factors[h], minima16[h] = int32(s&15), int32(s>>4)
			}
		case gguf.Q3_K:
			zero, scale = 4, float16(src[108:])
			for h := range 2 {
				factors[h] = int32(scaleQ3_K((*[12]byte)(src[96:]), i%8*2+h))
			}
		case gguf.Q4_K, gguf.Q5_K:
			s, m := scaleMin((*[12]byte)(src[4:]), i%8)
			scale, minimum, minima = s*scale, -float16(src[2:])*m, true
		case gguf.Q6_K:
			zero, scale = 32, float16(src[208:])
			factors = [2]int32{int32(int8(src[192+i%8*2])), int32(int8(src[193+i%8*2]))}
		case gguf.IQ4_XS:
			scale *= float32(scaleIQ4_XS((*[136]byte)(src), i%8))
		case gguf.MXFP4:
			scale = halfPowerOfTwo(src[0])
		}
		sum, least := int32(0), int32(0)
		for j, n := range v {
			weight := int32(n) - zero
			switch kind {
			case gguf.IQ4_NL, gguf.IQ4_XS:
				weight = int32(codesIQ4[n])
			case gguf.MXFP4:
				weight = int32(codesMX[n])
			}
			sum += weight * int32(x[i].values[j]) * factors[j/16]
			least += int32(x[i].values[j]) * minima16[j/16]
		}
		acc += float32(float32(sum) * float32(scale*x[i].scale))
		if kind == gguf.Q2_K {
			acc += float32(float32(least) * float32(minimum*x[i].scale))
		}
		if minima {
			acc += float32(minimum * x[i].sum)
		}
	}
	return acc
}

// equalFloats compares floats, all NaNs being equal.
func equalFloats(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// activations makes n values up whose blocks are of all sizes: some with values that are all equal, tiny,
// huge, or halfway between two steps.
func activations(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		switch i / 32 % 8 {
		case 0:
			x[i] = 0
		case 1:
			x[i] = float32(r.NormFloat64()) * 0x1p-99
		case 2:
			x[i] = float32(r.NormFloat64()) * 0x1p125
		case 3:
			x[i] = 3.5
		case 4:
			x[i] = float32(r.IntN(509)-254) / 2
		case 5:
			x[i] = float32(r.NormFloat64()) * 0x1p-140
		default:
			x[i] = float32(r.NormFloat64())
		}
	}
	return x
}

func TestPackedProductsHaveTheBitsOfTheirTwin(t *testing.T) {
	for _, cpu := range availableInstructions() {
		for kind := range packingsFor(cpu) {
			t.Run(fmt.Sprintf("%s %s", cpu, kind), func(t *testing.T) { testTwin(t, cpu, kind) })
		}
	}
}

func testTwin(t *testing.T, cpu instructions, kind gguf.Type) {
	r := rand.New(rand.NewPCG(3, uint64(kind)))
	for round := range 12 {
		in, rows := 256*(1+r.IntN(3)), 1+r.IntN(40)
		stride := kind.RowBytes(in)
		data := fillBlocks(kind, in*rows, r.Uint64())
		const n = 9
		x := activations(r, n*in)
		switch round {
		case 1, 2: // all weights have all bits, and activations that make the largest sums
			for i := range data {
				data[i] = 0xff
			}
			setScales(kind, data, 0x3c00)
			for i := range x {
				x[i] = float32(3 - 2*round)
			}
		case 3: // the least weights
			for i := range data {
				data[i] = 0
			}
			if least := map[gguf.Type]byte{gguf.Q8_0: 0x80, gguf.MXFP4: 0x77}[kind]; least > 0 {
				for i := range data {
					data[i] = least // in MXFP4 the largest: all bits are the least
				}
			}
			setScales(kind, data, 0xbc00)
			for i := range x {
				x[i] = -1
			}
		case 4:
			setScales(kind, data, 0)
		case 5: // the largest and the smallest halves, infinity and NaN
			for i, s := range []uint16{0x7bff, 0x0001, 0x8000, 0x7c00, 0x7e00} {
				if i < rows {
					setScales(kind, data[i*stride:(i+1)*stride], s)
				}
			}
		case 6:
			x[r.IntN(len(x))] = float32(math.NaN())
			x[r.IntN(len(x))] = float32(math.Inf(-1))
		}
		q := make([]octets, n*in/32)
		quantise(q, x)
		l := newTestLinear(cpu, in, []gguf.Type{kind}, []int{rows}, [][]byte{data})
		h := newTestHost(t, 1+r.IntN(3), &l)
		for batch := 1; batch <= n; batch++ {
			y := make([]float32, batch*rows)
			if err := h.multiply(&l, x, y, batch); err != nil {
				t.Fatal(err)
			}
			for i, got := range y {
				a, row := i/rows, i%rows
				want := multiplyTwin(kind, data[row*stride:(row+1)*stride], x[a*in:(a+1)*in], q[a*in/32:(a+1)*in/32])
				if !equalFloats(got, want) {
					t.Fatalf("round %d, %d of %d activations, row %d of %d, %d columns: %v, the twin has %v", round, a, batch, row, rows, in, got, want)
				}
			}
		}
	}
}

// setScales sets the halves of all blocks.
func setScales(kind gguf.Type, data []byte, half uint16) {
	for b := 0; b < len(data); b += kind.BlockBytes() {
		for _, s := range scalesAt[kind] {
			data[b+s], data[b+s+1] = byte(half), byte(half>>8)
		}
		if kind == gguf.MXFP4 {
			data[b] = byte(half >> 7) // of the same order, from 0 to 252
		}
	}
}

func TestAMatrixOfEveryPackedTypeHasKernelsForThisProcessorOrNone(t *testing.T) {
	for _, cpu := range availableInstructions() {
		p := packingsFor(cpu)
		if cpu == portable {
			if len(p) != 0 {
				t.Errorf("portable Go has %d kernels of packed weights", len(p))
			}
			continue
		}
		for _, kind := range computed {
			if len(p[kind].kernels) == 0 {
				t.Errorf("%s: %s has no kernel", cpu, kind)
			}
			for i, k := range p[kind].kernels {
				if k == nil {
					t.Errorf("%s: %s has no kernel for %d rows", cpu, kind, kernelRows[i])
				}
			}
		}
	}
}

func BenchmarkMultiply(b *testing.B) {
	const in, rows = 576, 1536
	for _, cpu := range availableInstructions() {
		for _, kind := range computed {
			for _, n := range []int{1, 8, 64} {
				in := in
				if kind.BlockSize() == 256 {
					in = 512
				}
				b.Run(fmt.Sprintf("%s/%s/%d", cpu, kind, n), func(b *testing.B) {
					data := fillBlocks(kind, in*rows, 1)
					l := newTestLinear(cpu, in, []gguf.Type{kind}, []int{rows}, [][]byte{data})
					h := newTestHost(b, 1, &l)
					x, y := activations(rand.New(rand.NewPCG(1, 1)), n*in), make([]float32, n*rows)
					for i := range x {
						x[i] = float32(i%13) - 6
					}
					for b.Loop() {
						if err := h.multiply(&l, x, y, n); err != nil {
							b.Fatal(err)
						}
					}
					seconds := b.Elapsed().Seconds() / float64(b.N)
					b.ReportMetric(float64(n*in*rows)/seconds/1e9, "GMAC/s")
					b.ReportMetric(float64(kind.RowBytes(in)*rows)/seconds/1e9, "GB/s")
				})
			}
		}
	}
}
