//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// matrix makes up a matrix on the GPU, and gives its weights as floats, too, as embed does, which is tested apart.
func matrix(t testing.TB, d *Device, rng *rand.Rand, kind gguf.Type, rows, in int) (*linear, []float32) {
	t.Helper()
	values := make([]float32, rows*in)
	for i := range values {
		values[i] = float32(rng.NormFloat64() / 10)
	}
	data, err := gguf.Encode(kind, values)
	if err != nil {
		data = devicetest.BlocksOf(rng, kind, len(values))
	}
	l := &linear{in: in, out: rows, matrices: 1, stacks: []stack{{kind: kind, rows: rows, parts: []gguf.Tensor{{Name: kind.String(), Type: kind, Shape: []int{in, rows, 1}, Data: data}}}}}
	if err := d.uploadWeights([]*linear{l}, lend, nil); err != nil {
		t.Fatal(err)
	}
	return l, embedded(t, d, l)
}

// embedded are a matrix's weights as floats, as embed writes them.
func embedded(t testing.TB, d *Device, l *linear) []float32 {
	t.Helper()
	s := &l.stacks[0]
	tokens := make([]int32, s.rows)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	at, err := uploadNumbers(d, "tokens", tokens)
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, s.rows*l.in)
	to := toGPU(t, d, values, l.in, 0, 0)
	if err := d.module.launchOn(s, s.embed, shape{x: s.rows, threads: 32}, at, to.at, uint64(rowUnits(l.in)), uint64(to.stride), bits(1)); err != nil {
		t.Fatal(err)
	}
	padded := fromGPU(t, d, to, s.rows)
	for i := range s.rows {
		copy(values[i*l.in:][:l.in], padded[i*to.stride:])
	}
	return values
}

// toGPU puts rows of floats into memory of their own, between them what pad says.
func toGPU(t testing.TB, d *Device, values []float32, width, pad int, padding float32) rows {
	t.Helper()
	r := rows{stride: stride(width) + pad}
	all := slices.Repeat([]float32{padding}, (len(values)/width+1)*r.stride)
	for i := range len(values) / width {
		copy(all[i*r.stride:], values[i*width:][:width])
	}
	var err error
	if r.at, err = uploadNumbers(d, "rows", all); err != nil {
		t.Fatal(err)
	}
	return r
}

// fromGPU reads n rows and the one behind them, whole.
func fromGPU(t testing.TB, d *Device, r rows, n int) []float32 {
	t.Helper()
	return read[float32](t, d, r.at, (n+1)*r.stride)
}

// bytesOf rounds a row as products of bytes take it.
func bytesOf(x []float32) []float32 {
	y := make([]float32, len(x))
	for i := 0; i < len(x); i += 32 {
		part := x[i:min(i+32, len(x))]
		most := float32(0)
		for _, v := range part {
			most = max(most, float32(math.Abs(float64(v))))
		}
		for j, v := range part {
			y[i+j] = float32(math.RoundToEven(float64(v*(32512/most)))) * (most / 32512)
		}
	}
	return y
}

// checkProduct multiplies n rows on the GPU and in float64.
func checkProduct(t *testing.T, d *Device, rng *rand.Rand, l *linear, weights []float32, n int) {
	t.Helper()
	in, out, kind := l.in, l.out, l.stacks[0].kind
	x, y := make([]float32, n*in), make([]float32, n*out)
	for c := range n {
		size := math.Pow(10, []float64{0, 6, -6, 2}[c%4]) // beyond what halves can hold, above and below
		for i := range in {
			x[c*in+i] = float32(rng.NormFloat64() * size)
		}
		for r := range out {
			y[c*out+r] = float32(rng.NormFloat64() * size)
		}
	}
	const unwritten = -12345
	from, to := toGPU(t, d, x, in, 0, 0), toGPU(t, d, y, out, 5, unwritten)
	if err := d.prepareFor(l, from, n); err != nil {
		t.Fatal(err)
	}
	add := n%2 == 0
	if err := d.multiply(l, from, to, n, add); err != nil {
		t.Fatal(err)
	}
	form, got := l.forms(n == 1), fromGPU(t, d, to, n)
	worst := 0.0
	for c := range n {
		row := x[c*in:][:in]
		if form == asBytes {
			row = bytesOf(row)
		}
		for r := range out {
			sum, size := 0.0, 0.0
			for i, v := range row {
				p := float64(weights[r*in+i]) * float64(v)
				sum, size = sum+p, size+math.Abs(p)
			}
			if add {
				sum += float64(y[c*out+r])
			}
			worst = max(worst, math.Abs(sum-float64(got[c*to.stride+r]))/size)
		}
		for i := out; i < to.stride; i++ {
			if got[c*to.stride+i] != unwritten {
				t.Fatalf("%v, %d × %d, %d rows: what lies behind row %d is written to", kind, out, in, n, c)
			}
		}
	}
	if slices.IndexFunc(got[n*to.stride:], func(v float32) bool { return v != unwritten }) >= 0 {
		t.Fatalf("%v, %d × %d, %d rows: what lies behind the last row is written to", kind, out, in, n)
	}
	// Of the size of all terms together: a rounding of weights and of activations to 11 bits as halves.
	most := 1e-6
	if form == asHalves {
		most = 4e-4
	}
	if !(worst < most) {
		t.Errorf("%v, %d × %d, %d rows: off by %.1e of the terms' size", kind, out, in, n, worst)
	}
}

func TestProductsOfEveryTypeAreThoseOfFloat64(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1, FFN: 1000}, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 96, MaxContext: 32})
	defer d.Close()
	for kind := range packings {
		t.Run(kind.String(), func(t *testing.T) {
			defer inContext(t, d)()
			rng := rand.New(rand.NewPCG(7, uint64(kind)))
			in := 32 * 5 // a step of 128, and a part of one
			if kind.BlockSize() == 256 {
				in = 768
			} else if kind.BlockSize() == 1 {
				in = 203
			}
			l, weights := matrix(t, d, rng, kind, 37, in)
			for _, n := range []int{1, 2, 9, 35} {
				d.cores = 1
				checkProduct(t, d, rng, l, weights, n)
			}
		})
	}
}

func TestProductsOfAnyShapeAreThoseOfFloat64(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1, FFN: 1000}, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 96, MaxContext: 32})
	defer d.Close()
	rng := rand.New(rand.NewPCG(8, 8))
	for i, c := range []struct {
		rows, in int
		cores    int // with few, tiles are used and few warps share a band of rows; with many, many do
		columns  []int
	}{
		{1, 32, 1, []int{1, 8, 64}}, {16, 32, 64, []int{3, 32}}, {129, 96, 1, []int{1, 5, 33}}, {130, 352, 4, []int{1, 7, 31, 70}}, {50, 992, 200, []int{1, 4, 17, 66}},
	} {
		t.Run(fmt.Sprintf("%d×%d", c.rows, c.in), func(t *testing.T) {
			defer inContext(t, d)()
			d.cores = c.cores
			l, weights := matrix(t, d, rng, []gguf.Type{gguf.Q8_0, gguf.Q4_1, gguf.BF16}[i%3], c.rows, c.in)
			for _, n := range c.columns {
				checkProduct(t, d, rng, l, weights, n)
			}
		})
	}
	defer inContext(t, d)()
	// Rows shared by 4, 8, 16 and 32 lanes.
	d.cores = 1
	for _, blocks := range []int{4, 8, 11, 18} {
		l, weights := matrix(t, d, rng, gguf.Q5_1, 600, 32*blocks)
		checkProduct(t, d, rng, l, weights, 1)
		t.Logf("%d blocks a row: %d lanes", blocks, lanesFor(600, blocks, 1))
	}
}

// A value that is none must not vanish on its way to a product.
func TestANaNOfActivationsReachesEveryProduct(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1}, small)
	defer d.Close()
	defer inContext(t, d)()
	rng := rand.New(rand.NewPCG(1, 1))
	l, _ := matrix(t, d, rng, gguf.Q4_0, 40, 64)
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		for _, n := range []int{1, 2, 12} {
			x := make([]float32, 64*n)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			x[64*n-10] = bad
			from, to := toGPU(t, d, x, 64, 0, 0), toGPU(t, d, make([]float32, 40*n), 40, 0, 0)
			if err := d.prepareFor(l, from, n); err != nil {
				t.Fatal(err)
			}
			if err := d.multiply(l, from, to, n, false); err != nil {
				t.Fatal(err)
			}
			for r, v := range fromGPU(t, d, to, n)[(n-1)*to.stride:][:40] {
				if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
					t.Fatalf("%d rows, of which the last has %v: product %d is %v", n, bad, r, v)
				}
			}
		}
	}
}
