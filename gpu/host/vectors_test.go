package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/tiny"
)

var (
	nan      = float32(math.NaN())
	infinity = float32(math.Inf(1))
)

// eachVectors runs f for the kernels of every set of instructions that this processor has.
func eachVectors(t *testing.T, f func(t *testing.T, v *vectors, set instructions)) {
	for _, set := range availableInstructions() {
		t.Run(set.String(), func(t *testing.T) { f(t, vectorsOf(set), set) })
	}
}

// floats makes n numbers up: of ordinary size, or of all sizes, or with some that are no finite numbers.
func floats(r *rand.Rand, n, kind int) []float32 {
	x := make([]float32, n)
	for i := range x {
		switch x[i] = float32(r.NormFloat64()); {
		case kind == 1:
			x[i] *= float32(math.Exp2(float64(r.IntN(270) - 145)))
		case kind == 2 && r.IntN(n) == 0:
			x[i] = []float32{nan, infinity, -infinity, 0, float32(math.Copysign(0, -1)), math.MaxFloat32, 1e-45}[r.IntN(7)]
		}
	}
	return x
}

// sameBits compares numbers; all NaNs are the same.
func sameBits(a, b []float32) error {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) && !(a[i] != a[i] && b[i] != b[i]) {
			return fmt.Errorf("value %d of %d is %v, wanted %v", i, len(a), a[i], b[i])
		}
	}
	return nil
}

func TestVectorKernelsHaveTheBitsOfTheirTwins(t *testing.T) {
	eachVectors(t, func(t *testing.T, v *vectors, _ instructions) {
		r := rand.New(rand.NewPCG(1, 2))
		for round := range 600 {
			kind, n := round%3, 1+r.IntN(75)
			if round%50 == 0 {
				n = 576
			}
			x, y, w := floats(r, n, kind), floats(r, n, kind), floats(r, n, kind)
			f, e := floats(r, 1, kind)[0], floats(r, 1, kind)[0]
			// One place more than is asked for must stay as it is.
			two := func() (got, want []float32) {
				got = append(slices.Clone(y), 77)
				return got, slices.Clone(got)
			}
			check := func(name string, got, want []float32) {
				t.Helper()
				if err := sameBits(got, want); err != nil {
					t.Fatalf("%s, round %d: %v", name, round, err)
				}
			}
			got, want := two()
			v.merge(got[:n], x, f, e)
			mergeGo(want[:n], x, f, e)
			check("merge", got, want)

			queries, width := 1+r.IntN(7), 16*(1+r.IntN(5))
			results := func(from []float32) attended { return cut(from, queries, width) }
			all, tile := floats(r, queries*(width+2), kind), floats(r, queries*(width+2), kind)
			wanted := slices.Clone(all)
			v.mergeAttended(results(all), results(tile), queries, width)
			mergeAttendedGo(results(wanted), results(tile), queries, width)
			check("mergeAttended", all, wanted)

			got, want = two()
			v.scale(got[:n], x, f)
			scaleGo(want[:n], x, f)
			check("scale", got, want)

			got, want = two()
			v.add(got[:n], x)
			add(want[:n], x)
			check("add", got, want)

			got, want = two()
			v.rmsNorm(got[:n], x, w, 1e-5)
			rmsNormGo(want[:n], x, w, 1e-5)
			check("rmsNorm", got, want)

			got, want = two()
			v.rotate(got[:n], x[:n&^1])
			rotateGo(want[:n], x[:n&^1])
			check("rotate", got, want)

			got, want = two()
			v.rotateHalves(got[:n], x[:n&^1])
			rotateHalvesGo(want[:n], x[:n&^1])
			check("rotateHalves", got, want)

			got, want = two()
			v.swiGLU(got[:n], x, w)
			swiGLUGo(want[:n], x, w)
			check("swiGLU", got, want)

			got, want = two()
			v.geGLU(got[:n], x, w)
			geGLUGo(want[:n], x, w)
			check("geGLU", got, want)

			got, want = two()
			cap := 1 + 50*r.Float32()
			v.softcap(got[:n], cap)
			softcapGo(want[:n], cap)
			check("softcap", got, want)

			halves, wantHalves := make([]uint16, n+1), make([]uint16, n+1)
			v.narrow(halves[:n], x)
			narrowGo(wantHalves[:n], x)
			for i := range halves {
				if halves[i] != wantHalves[i] {
					t.Fatalf("narrow, round %d: %v becomes %#x, wanted %#x", round, x[i], halves[i], wantHalves[i])
				}
			}

			// Scores of all sizes up to what powers of 2⁻¹⁴⁹ and less come from.
			n = 1 + r.IntN(keyTile)
			p := floats(r, n, kind)
			for i := range p {
				if p[i] *= 20; kind == 1 {
					p[i] = float32(r.NormFloat64()) * 60
				}
			}
			rows := 1 + r.IntN(5)
			got = make([]float32, rows*keyTile)
			var tops, sums [6]float32
			for i := range rows {
				copy(got[i*keyTile:], p)
				got[i*keyTile+r.IntN(n)] *= 1.5
			}
			want = slices.Clone(got)
			v.softmax(got, rows, n, tops[:], sums[:])
			for i := range rows {
				top, sum := softmaxGo(want[i*keyTile:][:n])
				check("softmax", append(slices.Clone(got[i*keyTile:][:n]), tops[i], sums[i]), append(want[i*keyTile:][:n:n], top, sum))
			}
			if tops[rows] != 0 || sums[rows] != 0 {
				t.Fatal("softmax: one row too many")
			}
		}
	})
}

func TestHalvesAreConvertedAsTheStandardSays(t *testing.T) {
	eachVectors(t, func(t *testing.T, v *vectors, _ instructions) {
		all, wide, back := make([]uint16, 1<<16), make([]float32, 1<<16), make([]uint16, 1<<16)
		for i := range all {
			all[i] = uint16(i)
		}
		v.widen(wide, all)
		v.narrow(back, wide)
		for i, h := range all {
			sign, exponent, fraction := 1-2*float64(h>>15), int(h>>10&31), float64(h&0x3ff)
			want := sign * math.Ldexp(1024+fraction, exponent-25)
			switch {
			case exponent == 0:
				want = sign * math.Ldexp(fraction, -24)
			case exponent == 31 && fraction == 0:
				want = math.Inf(int(sign))
			case exponent == 31:
				want = math.NaN()
			}
			if got := float64(wide[i]); got != want && (got == got || want == want) {
				t.Fatalf("%#x is %v, wanted %v", h, got, want)
			}
			if back[i] != h && (want == want || back[i]&0x7e00 != 0x7e00) {
				t.Fatalf("%#x becomes %#x", h, back[i])
			}
		}
		// Between two halves, and just beside the middle.
		for h := range uint16(0x7bff) {
			a, b := wide[h], wide[h+1]
			middle := (a + b) / 2
			even := h + h&1
			x := []float32{middle, math.Nextafter32(middle, a), math.Nextafter32(middle, b), -middle, 65519.996, 65520, -65520, 1e30}
			got := make([]uint16, len(x))
			v.narrow(got, x)
			if want := []uint16{even, h, h + 1, even | 0x8000, 0x7bff, 0x7c00, 0xfc00, 0x7c00}; !slices.Equal(got, want) {
				t.Fatalf("%v become %#x, wanted %#x", x, got, want)
			}
		}
	})
}

func TestCachedCodesHaveTheBitsOfTheirTwins(t *testing.T) {
	eachVectors(t, func(t *testing.T, v *vectors, _ instructions) {
		r := rand.New(rand.NewPCG(1, 2))
		for round := range 300 {
			blocks, stride := 1+r.IntN(8), 1+r.IntN(16)
			x := floats(r, codeBlock*blocks, round%3)
			if round%5 == 0 { // scales that are no normal halves
				for i := range x {
					x[i] *= float32(math.Exp2(float64(-15 - r.IntN(20))))
				}
			}
			codes, scales := make([]int8, len(x)+1), make([]uint16, blocks*stride)
			wantCodes, wantScales := slices.Clone(codes), slices.Clone(scales)
			v.quantiseCache(codes[:len(x)], scales, x, stride)
			quantiseCacheGo(wantCodes[:len(x)], wantScales, x, stride)
			if !slices.Equal(codes, wantCodes) || !slices.Equal(scales, wantScales) {
				t.Fatalf("%v:\n%v, scales %#x\nwanted\n%v, scales %#x", x, codes, scales, wantCodes, wantScales)
			}
			column, halves := make([]int8, keyLanes*blocks*codeBlock), make([]uint16, keyLanes*blocks)
			for i := range column {
				column[i] = int8(r.IntN(255) - 127)
			}
			for i := range halves {
				halves[i] = uint16(r.IntN(1 << 16))
			}
			got, want := make([]float32, len(column)+1), make([]float32, len(column)+1)
			v.widenKeys(got, column, halves, blocks*codeBlock)
			widenKeysGo(want, column, halves, blocks*codeBlock)
			if err := sameBits(got, want); err != nil {
				t.Fatal(err)
			}
			keys := 1 + r.IntN(min(keyPiece, 5))
			all := make([]int8, keys*blocks*codeBlock)
			for i := range all {
				all[i] = int8(r.IntN(255) - 127)
			}
			factors := floats(r, blocks*keyPiece, round%3)
			got, want = make([]float32, len(all)+1), make([]float32, len(all)+1)
			v.widenCache(got, all, factors, keys, blocks*codeBlock)
			widenCacheGo(want, all, factors, keys, blocks*codeBlock)
			if err := sameBits(got, want); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestCachedCodesAreWithinHalfAStepOfTheirValues(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, size := range []float64{1e-3, 1, 1e4, 8e6} {
		for range 100 {
			x, top := make([]float32, codeBlock), 0.0
			for i := range x {
				x[i] = float32((2*r.Float64() - 1) * size)
				top = max(top, math.Abs(float64(x[i])))
			}
			var codes [codeBlock]int8
			var half [1]uint16
			var scale [1]float32
			quantiseCacheGo(codes[:], half[:], x, 1)
			widenGo(scale[:], half[:])
			for i, c := range codes {
				// The scale is a half, which has 11 bits, or fewer below 2⁻¹⁴.
				most := top/127*0.5 + 127*max(top/127*0x1p-11, 0x1p-25)
				if got := float64(c) * float64(scale[0]); math.Abs(got-float64(x[i])) > most*1.001 {
					t.Fatalf("%v of at most %v becomes %v", x[i], top, got)
				}
			}
		}
	}
	for _, bad := range []float32{nan, infinity, -infinity, 1e7, -3e38} {
		var codes [codeBlock]int8
		var half [1]uint16
		x := make([]float32, codeBlock)
		x[7] = bad
		quantiseCacheGo(codes[:], half[:], x, 1)
		if half[0]&0x7c00 != 0x7c00 {
			t.Errorf("with %v, the scale is %#x, a number", bad, half[0])
		}
	}
}

// fused is x·y + z, rounded once. The product is exact in float64; the sum there is made odd where it
// isn't exact, so that rounding it again does no harm (Boldo and Melquiond, 2008).
func fused(x, y, z float32) float32 {
	p, a := float64(x)*float64(y), float64(z)
	s := p + a
	if math.IsInf(s, 0) || math.IsNaN(s) {
		return float32(s)
	}
	b := s - p
	lost := (p - (s - b)) + (a - b)
	if bits := math.Float64bits(s); lost != 0 && bits&1 == 0 {
		if lost > 0 == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}

func TestScoresAndWeightedSumsAreOfTheirOwnOperandsInAFixedOrder(t *testing.T) {
	eachVectors(t, func(t *testing.T, v *vectors, set instructions) {
		multiplyAdd := fused
		if set == portable {
			multiplyAdd = func(x, y, z float32) float32 { return float32(x*y) + z }
		}
		r := rand.New(rand.NewPCG(3, 4))
		for round := range 150 {
			kind := round % 3
			queries, dim := 1+r.IntN(13), 16*(1+r.IntN(9))
			size := keyLanes * dim
			at := r.Perm(1 + r.IntN(keyTile/keyLanes)) // columns lie in any order
			for i := range at {
				at[i] *= size
			}
			q, k := floats(r, queries*dim, kind), floats(r, len(at)*size, kind)
			scores := floats(r, queries*keyTile, 0) // those beyond the keys stay as they are
			want := slices.Clone(scores)
			for i := range queries {
				for j := range keyLanes * len(at) {
					sum := float32(0)
					for d := range dim {
						sum = multiplyAdd(q[i*dim+d], k[at[j/keyLanes]+keyLanes*d+j%keyLanes], sum)
					}
					want[i*keyTile+j] = sum
				}
			}
			before := slices.Clone(scores)
			v.scores(scores, q, k, at, queries, dim)
			if err := sameBits(scores, want); err != nil {
				t.Fatalf("scores of %d queries, %d columns of %d: %v", queries, len(at), dim, err)
			}
			keys := 1 + r.IntN(keyPiece)
			x := floats(r, keys*dim, kind)
			out := floats(r, queries*dim+1, 0)
			want = slices.Clone(out)
			for i := range queries {
				for j := range keys {
					for d := range dim {
						want[i*dim+d] = multiplyAdd(scores[i*keyTile+j], x[j*dim+d], want[i*dim+d])
					}
				}
			}
			v.weigh(out, scores, x, queries, keys, dim)
			if err := sameBits(out, want); err != nil {
				t.Fatalf("sums of %d queries, %d values of %d: %v", queries, keys, dim, err)
			}
			if v.scoresHalves == nil {
				continue
			}
			halves := make([]uint16, len(k))
			v.narrow(halves, k)
			v.widen(k, halves)
			v.scores(before, q, k, at, queries, dim)
			v.scoresHalves(scores, q, halves, at, queries, dim)
			if err := sameBits(scores, before); err != nil {
				t.Fatalf("scores of %d queries, %d columns of %d halves: %v", queries, len(at), dim, err)
			}
			halves = make([]uint16, len(x))
			v.narrow(halves, x)
			v.widen(x, halves)
			out, want = floats(r, queries*dim+1, 0), nil
			want = append(want, out...)
			v.weigh(want, scores, x, queries, keys, dim)
			v.weighHalves(out, scores, halves, queries, keys, dim)
			if err := sameBits(out, want); err != nil {
				t.Fatalf("sums of %d queries, %d halved values of %d: %v", queries, keys, dim, err)
			}
			if dim%codeBlock != 0 {
				continue
			}
			codes, halfScales := make([]int8, max(len(k), len(x))), make([]uint16, len(k)/codeBlock)
			for i := range codes {
				codes[i] = int8(r.IntN(255) - 127)
			}
			for i := range halfScales {
				halfScales[i] = uint16(r.IntN(0x7c00))
			}
			for _, at := range at {
				widenKeysGo(k[at:], codes[at:], halfScales[at/codeBlock:], dim)
			}
			v.scores(before, q, k, at, queries, dim)
			v.scoresCodes(scores, q, codes, halfScales, at, queries, dim)
			if err := sameBits(scores, before); err != nil {
				t.Fatalf("scores of %d queries, %d columns of %d codes: %v", queries, len(at), dim, err)
			}
			scales := make([]float32, dim/codeBlock*keyPiece)
			for i := range scales {
				scales[i] = float32(math.Abs(r.NormFloat64()))
			}
			widenCacheGo(x, codes, scales, keys, dim)
			out, want = floats(r, queries*dim+1, 0), nil
			want = append(want, out...)
			v.weigh(want, scores, x, queries, keys, dim)
			v.weighCodes(out, scores, codes, scales, queries, keys, dim)
			if err := sameBits(out, want); err != nil {
				t.Fatalf("sums of %d queries, %d values of %d codes: %v", queries, keys, dim, err)
			}
		}
	})
}

func TestLongContextsHaveTheSameBitsHoweverTheyAreDivided(t *testing.T) {
	const length = 3*keyTile + 21
	for _, o := range []tiny.Options{
		{Seed: 5, Layers: 2, Width: 96, Heads: 6, KVHeads: 2, FFN: 96},
		{Seed: 6, Layers: 1, Width: 60, Heads: 5, KVHeads: 1, FFN: 64}, // heads of 12, filled up to 16
	} {
		m := tiny.Model(o)
		if o.Layers > 1 {
			m.Config.Attention = []model.Attention{{Window: keyTile + 25, Softcap: 3}, {}}
		}
		for _, kind := range []gpu.CacheType{gpu.CacheF16, gpu.CacheF32, gpu.CacheQ8_0} {
			for _, set := range availableInstructions() {
				if raceEnabled && (set == portable || kind != gpu.CacheF16) || set == portable && kind == gpu.CacheF32 { // slow, and the same to the detector
					continue
				}
				t.Run(fmt.Sprintf("heads of %d/%v/%v", o.Width/o.Heads, kind, set), func(t *testing.T) {
					t.Setenv(CPUVariable, set.String())
					// run computes in the given chunks, beside another sequence, and then token by token.
					run := func(threads, blockSize int, chunks ...int) []float32 {
						d := newDriver(t, m, gpu.Config{BlockSize: blockSize, MaxSeqs: 2, MaxTokens: 2 * length, MaxContext: length, Threads: threads, CacheType: kind})
						s, other := &sequence{tokens: prompt(m, length)}, &sequence{tokens: prompt(m, length), slot: 1}
						var logprobs []float32
						for s.done < length {
							n := 1
							if len(chunks) > 0 {
								n, chunks = chunks[0], chunks[1:]
							}
							d.begin()
							first := d.span(s, n)
							for i := range n {
								d.score(first+int32(i), 5, 0)
							}
							if threads > 1 && other.done+3 < length {
								d.span(other, 3)
							}
							logprobs = append(logprobs, d.run().Logprobs...)
						}
						return logprobs
					}
					whole := run(1, 16, length)
					for i, other := range [][]float32{
						run(2, 5, 20, 1, 381), run(3, 7, keyTile-1, 2, keyTile, 146), run(1, 1, 250, 150), run(2, 24, 130, 255), run(2, 48, 33, 1, 340),
					} {
						if err := sameBits(other, whole); err != nil {
							t.Errorf("division %d: %v", i, err)
						}
					}
				})
			}
		}
	}
}

func TestWhatLiesBehindAPositionDoesNotReachIt(t *testing.T) {
	m := tiny.Model(tiny.Options{Seed: 7, Layers: 2})
	for _, set := range availableInstructions() {
		t.Setenv(CPUVariable, set.String())
		for _, kind := range []gpu.CacheType{gpu.CacheF16, gpu.CacheQ8_0} {
			d := newDriver(t, m, gpu.Config{BlockSize: 8, MaxSeqs: 1, MaxTokens: 64, MaxContext: 64, Threads: 2, CacheType: kind})
			h := d.device
			for i := range m.Config.Layers { // as if blocks had been used by a sequence that went wrong
				if kind == gpu.CacheF16 {
					for j := range h.cache.halves[i] {
						h.cache.halves[i][j] = 0x7e00
					}
					continue
				}
				for j := range h.cache.scales[i] {
					h.cache.scales[i][j] = 0x7e00
				}
			}
			d.begin()
			d.span(&sequence{tokens: prompt(m, 45)}, 45)
			d.score(44, 3, 0)
			if got := d.run().Logprobs[0]; got != got {
				t.Errorf("%v, %v: NaN", set, kind)
			}
		}
	}
}
