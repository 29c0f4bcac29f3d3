package host

import (
	"fmt"
	"math"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/model/gguf"
)

// newTestLinear makes a linear of matrices that lie in memory, for the given instructions.
func newTestLinear(cpu instructions, in int, kinds []gguf.Type, rows []int, data [][]byte) linear {
	var l linear
	for i, kind := range kinds {
		l.append(gguf.Tensor{Name: fmt.Sprint(i), Type: kind, Shape: []int{in, rows[i]}, Data: data[i]}, packingsFor(cpu))
	}
	l.plan()
	return l
}

// newTestHost is a Host that can only multiply, up to 64 rows.
func newTestHost(t interface {
	Cleanup(func())
	Fatal(...any)
}, workers int, l *linear) *Host {
	h := &Host{pool: newPool(workers), scratch: make([]scratch, workers)}
	t.Cleanup(h.pool.close)
	for i := range h.scratch {
		h.scratch[i].acc = make([]float32, lookupTile)
		h.scratch[i].acc2 = make([]float32, lookupTile)
		h.scratch[i].rows = make([]float32, dotRows*l.in)
	}
	h.product.partial = make([]float32, maxChunks*splitRows*l.out)
	h.product.missing = make([]atomic.Int32, len(l.stacks)*workers)
	h.product.octets = make([]octets, 64*l.in/32)
	memory, err := h.packWeights([]*linear{l})
	if err != nil {
		t.Fatal(err)
	}
	if memory != nil {
		t.Cleanup(func() { memory.Unmap() })
	}
	return h
}

// naive is what a linear computes, in float64, and the sums of the terms' absolute values, which
// rounding errors are in proportion to.
func naive(kinds []gguf.Type, rows []int, data [][]byte, in int, x []float32) (out, size []float64) {
	w := make([]float32, in)
	for i, kind := range kinds {
		stride := kind.RowBytes(in)
		for r := range rows[i] {
			dequantiser(kind)(w, data[i][r*stride:][:stride])
			var sum, abs float64
			for k := range w {
				sum += float64(w[k]) * float64(x[k])
				abs += math.Abs(float64(w[k]) * float64(x[k]))
			}
			out, size = append(out, sum), append(size, abs)
		}
	}
	return out, size
}

func TestAProductIsThatOfTheDequantisedWeightsAndDoesNotDependOnItsCompany(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Widths of one block up to several chunks; heights below and above what tables are for.
		in := rapid.SampledFrom([]int{256, 512, 1280}).Draw(t, "in")
		n := rapid.IntRange(1, 3).Draw(t, "matrices")
		kinds, rows, data := make([]gguf.Type, n), make([]int, n), make([][]byte, n)
		for i := range n {
			kinds[i] = rapid.SampledFrom(computed).Draw(t, "type")
			rows[i] = rapid.SampledFrom([]int{1, 7, 64, 100, 300}).Draw(t, "rows")
			if kinds[i] == gguf.Q4_1 && !raceEnabled && rapid.IntRange(0, 9).Draw(t, "tall") == 0 {
				rows[i] = lookupTile + 5
			}
			if kinds[i].BlockSize() == 1 {
				rows[i] = min(rows[i], 7)
			}
			data[i] = randomBlocks(t, kinds[i], in*rows[i])
		}
		cpu := rapid.SampledFrom(availableInstructions()).Draw(t, "instructions")
		l := newTestLinear(cpu, in, kinds, rows, data)
		batch := rapid.SampledFrom([]int{1, 2, 3, 5, 17, 33}).Draw(t, "batch")
		x := make([]float32, batch*in)
		seed := rapid.Uint32().Draw(t, "x")
		for i := range x {
			seed = seed*1664525 + 1013904223
			x[i] = float32(int32(seed)) / (1 << 31)
		}
		h := newTestHost(t, rapid.IntRange(1, 5).Draw(t, "workers"), &l)
		y := make([]float32, batch*l.out)
		if err := h.multiply(&l, x, y, batch); err != nil {
			t.Fatal(err)
		}
		again := newTestLinear(cpu, in, kinds, rows, data)
		one := newTestHost(t, 1, &again)
		alone := make([]float32, l.out)
		for r := range batch {
			if err := one.multiply(&again, x[r*in:][:in], alone, 1); err != nil {
				t.Fatal(err)
			}
			for j, v := range alone {
				if math.Float32bits(v) != math.Float32bits(y[r*l.out+j]) {
					t.Fatalf("row %d, output %d: %v in a batch of %d, %v alone", r, j, y[r*l.out+j], batch, v)
				}
			}
		}
		wanted, size := naive(kinds, rows, data, in, x[:in])
		rounded, _ := naive(kinds, rows, data, in, roundTrip(x[:in]))
		for j, want := range wanted {
			if l.roundsFor(j) {
				want = rounded[j] // in these, activations are bytes
			}
			// Float32 rounds to 2⁻²⁴ of a value; a block's scale and minimum may cancel each other.
			if got := float64(y[j]); !(math.Abs(got-want) < 4e-6*size[j]) {
				t.Fatalf("output %d is %v, wanted %v (%v × %v, in %d, %s)", j, got, want, kinds, rows, in, cpu)
			}
		}
	})
}

// roundsFor says whether output j is computed of activations as bytes.
func (l *linear) roundsFor(j int) bool {
	for i := range l.stacks {
		for _, m := range l.stacks[i].parts {
			if j >= m.first && j < m.first+m.rows {
				return l.stacks[i].packing != nil && l.stacks[i].packing.float == 0
			}
		}
	}
	panic("no such output")
}

// roundTrip is what activations become as bytes.
func roundTrip(x []float32) []float32 {
	q, out := make([]octets, len(x)/32), make([]float32, len(x))
	quantise(q, x)
	for i := range out {
		out[i] = float32(q[i/32].values[i%32]) * q[i/32].scale
	}
	return out
}

func TestExpIsRightToOneUnitInTheLastPlace(t *testing.T) {
	check := func(x float32) {
		want := float64(float32(math.Exp(float64(x))))
		got := float64(exp(x))
		ulp := math.Max(math.Abs(want)*0x1p-23, 0x1p-149)
		if got != want && math.Abs(got-want) > ulp {
			t.Fatalf("exp(%v) is %v, wanted %v", x, got, want)
		}
	}
	for i := range 400_000 {
		check(float32(i)*5e-4 - 110)
	}
	for _, x := range []float32{0, float32(math.Copysign(0, -1)), 88.7, -87.4, -103.9, 1e-30, -1e-30} {
		check(x)
	}
	inf := float32(math.Inf(1))
	if exp(-inf) != 0 || exp(inf) != inf || exp(1000) != inf || exp(-1000) != 0 || exp(float32(math.NaN())) == exp(float32(math.NaN())) {
		t.Error("infinities, overflow or NaN")
	}
}
