package host

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/troupe-llm/troupe/model/gguf"
)

// multiplyTwin is what the kernels of packed weights compute with AVX2, from a row as it is in the file: block
// by block of 32 columns, the exact sum of integers, times the product of both scales, and then the minimum
// times the activations' sum, or in Q2_K the exact sum of minima times activations, times the product of both
// scales; all products are rounded, and added in order. Types of floats have a sum of the even columns and one
// of the odd.
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
	for i := range x {
		b := readBlock(kind, row, i)
		sum, least := int32(0), int32(0)
		for j, n := range b.values {
			sum += n * int32(x[i].values[j]) * b.factors[j/16]
			least += int32(x[i].values[j]) * b.minima16[j/16]
		}
		acc += float32(float32(sum) * float32(b.scale*x[i].scale))
		if kind == gguf.Q2_K {
			acc += float32(float32(least) * float32(b.minimum*x[i].scale))
		}
		if b.minima {
			acc += float32(b.minimum * x[i].sum)
		}
	}
	return acc
}

// wideTwin is multiplyTwin for AVX-512. The sum of integers is multiplied by the weights' scale, rounded, and
// then by the activations', in one operation with the addition; so is the minimum by the activations' sum.
// Halves of a block that have scales of their own are added one after the other. The first product is that of
// a float which is too large by magic, less what that makes: with an infinite scale it is no number.
func wideTwin(kind gguf.Type, row []byte, floats []float32, x []octets) float32 {
	if packings[kind].float > 0 {
		w, sums := make([]float32, len(floats)), [2]float32{}
		dequantiser(kind)(w, row)
		for i, v := range floats {
			sums[i%2] = fused(v, w[i], sums[i%2])
		}
		return sums[0] + sums[1]
	}
	acc, large := float32(0), math.Float32frombits(magic)
	product := func(sum int32, scale float32) float32 {
		return fused(large+float32(sum), scale, -float32(large*scale))
	}
	for i := range x {
		b := readBlock(kind, row, i)
		sums, least := [2]int32{}, int32(0)
		for j, n := range b.values {
			sums[j/16] += n * int32(x[i].values[j])
			least += int32(x[i].values[j]) * b.minima16[j/16]
		}
		if b.halves {
			for j, sum := range sums {
				acc = fused(product(sum, float32(b.factors[j])*b.scale), x[i].scale, acc)
			}
		} else {
			acc = fused(product(sums[0]+sums[1], b.scale), x[i].scale, acc)
		}
		if kind == gguf.Q2_K {
			acc = fused(product(least, b.minimum), x[i].scale, acc)
		}
		if b.minima {
			acc = fused(b.minimum, x[i].sum, acc)
		}
	}
	return acc
}

// weightBlock is 32 columns of a row of weights: value × scale + minimum, if there are minima. With halves,
// each half's values are multiplied by a factor besides, and the minimum by what is in minima16.
type weightBlock struct {
	values         [32]int32
	factors        [2]int32
	minima16       [2]int32
	halves, minima bool
	scale, minimum float32
}

// readBlock is block i of a row as it is in the file.
func readBlock(kind gguf.Type, row []byte, i int) weightBlock {
	p, size := packings[kind], kind.BlockBytes()
	src := row[i/p.blocks*size:][:size]
	u := p.unpack(src, i%p.blocks)
	var v []byte
	for _, eight := range []uint64{u.a, u.b, u.c, u.d} {
		v = binary.LittleEndian.AppendUint64(v, eight)
	}
	b := weightBlock{factors: [2]int32{1, 1}, scale: float16(src)}
	zero := int32(0)
	switch kind {
	case gguf.Q4_0:
		zero = 8
	case gguf.Q5_0:
		zero = 16
	case gguf.Q8_0:
		zero = 128
	case gguf.Q4_1, gguf.Q5_1:
		b.minimum, b.minima = float16(src[2:]), true
	case gguf.Q2_K:
		b.scale, b.minimum, b.halves = float16(src[80:]), -float16(src[82:]), true
		for h := range 2 {
			s := src[i%8*2+h]
			b.factors[h], b.minima16[h] = int32(s&15), int32(s>>4)
		}
	case gguf.Q3_K:
		zero, b.scale, b.halves = 4, float16(src[108:]), true
		for h := range 2 {
			b.factors[h] = int32(scaleQ3_K((*[12]byte)(src[96:]), i%8*2+h))
		}
	case gguf.Q4_K, gguf.Q5_K:
		s, m := scaleMin((*[12]byte)(src[4:]), i%8)
		b.scale, b.minimum, b.minima = s*b.scale, -float16(src[2:])*m, true
	case gguf.Q6_K:
		zero, b.scale, b.halves = 32, float16(src[208:]), true
		b.factors = [2]int32{int32(int8(src[192+i%8*2])), int32(int8(src[193+i%8*2]))}
	case gguf.IQ4_XS:
		b.scale *= float32(scaleIQ4_XS((*[136]byte)(src), i%8))
	case gguf.MXFP4:
		b.scale = halfPowerOfTwo(src[0])
	}
	for j, n := range v {
		switch kind {
		case gguf.IQ4_NL, gguf.IQ4_XS:
			b.values[j] = int32(codesIQ4[n])
		case gguf.MXFP4:
			b.values[j] = int32(codesMX[n])
		default:
			b.values[j] = int32(n) - zero
		}
	}
	return b
}

// twinOf is what the kernels of cpu compute.
func twinOf(cpu instructions) func(kind gguf.Type, row []byte, floats []float32, x []octets) float32 {
	if cpu == avx512 {
		return wideTwin
	}
	return multiplyTwin
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
		const n = 14 // the largest panel, and a smaller one
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
			if kind == gguf.Q8_0 {
				for i := range data {
					data[i] = 0x80
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
		for _, batch := range []int{1, 2, 3, 4, 7, 11, 14} {
			y := make([]float32, batch*rows)
			if err := h.multiply(&l, x, y, batch); err != nil {
				t.Fatal(err)
			}
			for i, got := range y {
				a, row := i/rows, i%rows
				want := twinOf(cpu)(kind, data[row*stride:(row+1)*stride], x[a*in:(a+1)*in], q[a*in/32:(a+1)*in/32])
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
