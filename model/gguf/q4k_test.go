package gguf

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// plainQ4K is appendQ4K part by part and value by value, as simple as can be; products are rounded as there.
func plainQ4K(out []byte, x []float32) []byte {
	const parts = kSize / 32
	var scales, minima [parts]float32
	var mostScale, mostMinimum float32
	for j := range parts {
		scales[j], minima[j] = plainFit((*[32]float32)(x[32*j:]))
		mostScale, mostMinimum = max(mostScale, scales[j]), max(mostMinimum, minima[j])
	}
	d, dmin := float16(mostScale/63), float16(mostMinimum/63)
	sixBits := func(v, most float32) byte {
		if most == 0 {
			return 0
		}
		return byte(min(63, int(63/most*v+0.5)))
	}
	// The first four parts have their six bits in bytes of their own, whose upper two bits are those of
	// the last four; the lower four bits of these share the last four bytes.
	var packed [12]byte
	var codes [kSize]byte
	for j := range parts {
		scale, minimum := sixBits(scales[j], mostScale), sixBits(minima[j], mostMinimum)
		if j < 4 {
			packed[j] |= scale
			packed[j+4] |= minimum
		} else {
			packed[j+4] = scale&15 | minimum&15<<4
			packed[j-4] |= scale >> 4 << 6
			packed[j] |= minimum >> 4 << 6
		}
		step := float32(float32of16(d) * float32(scale))
		if step == 0 {
			continue
		}
		least := float32(float32of16(dmin) * float32(minimum))
		for i, v := range x[32*j:][:32] {
			codes[32*j+i] = byte(max(0, min(15, math.RoundToEven(float64((v+least)/step)))))
		}
	}
	out = binary.LittleEndian.AppendUint16(out, d)
	out = binary.LittleEndian.AppendUint16(out, dmin)
	out = append(out, packed[:]...)
	for j := 0; j < kSize; j += 64 {
		for i := range 32 {
			out = append(out, codes[j+i]|codes[j+32+i]<<4)
		}
	}
	return out
}

// plainFit is fit for one part.
func plainFit(x *[32]float32) (scale, minimum float32) {
	least, most := x[0], x[0]
	var sumX2 float32
	for _, v := range x {
		least, most = min(least, v), max(most, v)
		sumX2 += float32(v * v)
	}
	least = min(least, 0) // a minimum is only ever taken away
	if !(most > least) {
		return 0, -least
	}
	mean := float32(math.Sqrt(float64(sumX2 / 32)))
	var w, wx [32]float32
	var sumW, sumWX, sumWX2 float32
	for i, v := range x {
		w[i] = mean + float32(math.Abs(float64(v)))
		wx[i] = float32(w[i] * v)
		sumW += w[i]
		sumWX += wx[i]
		sumWX2 += float32(wx[i] * v)
	}
	const top = 15
	width := most - least
	best := math.Inf(1)
	// solve finds codes by a scale and what is to be code 0, and the best scale and minimum for these codes.
	solve := func(inverse, zero float32, plain bool) {
		var l, l2, xl float32 // sums of w·code, w·code² and w·x·code
		for i, v := range x {
			code := float32(max(0, min(top, int32(float32((v-zero)*inverse)+0.5))))
			wl := float32(w[i] * code)
			l += wl
			l2 += float32(wl * code)
			xl += float32(wx[i] * code)
		}
		// The error is Σ w(s·code + m − x)², multiplied out.
		try := func(s, m float64) {
			e := float64(s*(float64(s*float64(l2))+2*(float64(m*float64(l))-float64(xl)))) + float64(m*(float64(m*float64(sumW))-2*float64(sumWX))) + float64(sumWX2)
			if e < best {
				best, scale, minimum = e, float32(s), float32(-m)
			}
		}
		if plain { // as it is, so that there always is one
			try(float64(width/top), float64(least))
		}
		det := float64(float64(sumW)*float64(l2)) - float64(float64(l)*float64(l))
		if det <= 0 {
			return
		}
		s := (float64(float64(sumW)*float64(xl)) - float64(float64(sumWX)*float64(l))) / det
		m := (float64(float64(l2)*float64(sumWX)) - float64(float64(l)*float64(xl))) / det
		if m > 0 {
			s, m = float64(xl/l2), 0
		}
		if s > 0 {
			try(s, m)
		}
	}
	for trial := range 21 {
		solve((top-1+0.1*float32(trial))/width, least, trial == 10)
	}
	for range 3 { // the best one's own codes may be others than those that it was solved for
		if before := best; scale > 0 {
			if solve(1/scale, -minimum, false); best >= before {
				break
			}
		}
	}
	return scale, minimum
}

// blocksToQuantise are blocks of 256 values: as models have them, and with parts that are empty, even, of one
// sign, tiny, huge or with outliers.
func blocksToQuantise(n int) []float32 {
	r := rand.New(rand.NewPCG(9, 10))
	x := make([]float32, n*kSize)
	for part := range n * kParts {
		scale := math.Pow(2, float64(r.IntN(12)-8))
		kind := r.IntN(16)
		for i := range 32 {
			v := r.NormFloat64() * scale
			switch kind {
			case 0:
				v = 0
			case 1:
				v = scale
			case 2:
				v = -scale
			case 3:
				v = math.Abs(v)
			case 4:
				v = -math.Abs(v)
			case 5:
				v = float64(r.IntN(16)) * scale // steps that fit
			case 6:
				v *= 0x1p-120
			case 7:
				v = 65504 * (2*r.Float64() - 1)
			case 8:
				if i == part%32 {
					v *= 100
				}
			case 9:
				v *= 0x1p-140 // subnormal
			case 10:
				v = scale * (1 + 1e-6*r.Float64())
			}
			x[32*part+i] = float32(v)
		}
	}
	return x
}

func TestQ4KHasTheBytesOfThePlainReading(t *testing.T) {
	x := slices.Concat(blocksToQuantise(400), quantiserValues())
	for b := 0; b < len(x); b += kSize {
		want, got := plainQ4K(nil, x[b:b+kSize]), appendQ4K(nil, x[b:b+kSize])
		if !bytes.Equal(got, want) {
			t.Fatalf("block %d: % x\nand plainly % x", b/kSize, got, want)
		}
	}
}

func TestTheProcessorsOwnLoopsHaveTheBitsOfTheirTwins(t *testing.T) {
	x := blocksToQuantise(200)
	r := rand.New(rand.NewPCG(11, 12))
	for b := 0; b < len(x); b += kSize {
		block := (*[kSize]float32)(x[b:])
		var ours, twin struct {
			values partValues
			totals partTotals
			sums   codeSums
			codes  [kSize / 2]byte
		}
		for i := range ours.values {
			for j := range kParts {
				ours.values[i].x[j] = block[32*j+i]
			}
		}
		twin.values = ours.values
		weigh(&ours.totals, &ours.values)
		weighGo(&twin.totals, &twin.values)
		var inverse, least, step [kParts]float32
		for j := range kParts {
			least[j] = min(twin.totals.least[j], 0)
			step[j] = (twin.totals.most[j] - least[j]) / float32(10+r.IntN(10))
			if step[j] == 0 || j == b/kSize%20 {
				step[j] = float32(math.Inf(1))
			}
			inverse[j] = 1 / step[j]
		}
		sumCodes(&ours.sums, &ours.values, &inverse, &least)
		sumCodesGo(&twin.sums, &twin.values, &inverse, &least)
		for j := range least {
			least[j] = -least[j]
		}
		roundCodes(&ours.codes, block, &least, &step)
		roundCodesGo(&twin.codes, block, &least, &step)
		if ours != twin {
			t.Fatalf("block %d: %v\nand the twins %v", b/kSize, ours, twin)
		}
	}
}
