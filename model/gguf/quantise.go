package gguf

import (
	"encoding/binary"
	"math"
)

// appendQ50 appends a Q5_0 block: a float16 scale, a word with the fifth bits of the 32 codes, and the lower
// four laid out as in Q4_0; value = scale × (code − 16).
func appendQ50(out []byte, x []float32) []byte {
	var far float32
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(float64(far)) {
			far = v
		}
	}
	d := far / -16
	id := inverse(d)
	out = binary.LittleEndian.AppendUint16(out, float16(d))
	var codes [32]byte
	var high uint32
	for i, v := range x[:32] {
		codes[i] = byte(min(31, int(float32(v*id)+16.5)))
		high |= uint32(codes[i]>>4) << i
	}
	out = binary.LittleEndian.AppendUint32(out, high)
	for i := range 16 {
		out = append(out, codes[i]&15|codes[i+16]<<4)
	}
	return out
}

// kSize is the number of values in a block of a K type.
const kSize = 256

// appendQ4K appends a Q4_K block: eight parts of 32 values, in each of which
//
//	value = d × scale × code − dmin × minimum
//
// with codes of 4 bits, scales and minima of 6 bits, and float16 d and dmin for the whole block. Scales and
// minima come first as the best for each part by itself; they are then rounded, and the codes chosen anew.
func appendQ4K(out []byte, x []float32) []byte {
	var f fit
	f.parts((*[kSize]float32)(x))
	var mostScale, mostMinimum float32
	for j := range kParts {
		mostScale, mostMinimum = max(mostScale, f.scale[j]), max(mostMinimum, f.minimum[j])
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
	var step, least [kParts]float32
	for j := range kParts {
		scale, minimum := sixBits(f.scale[j], mostScale), sixBits(f.minimum[j], mostMinimum)
		if j < 4 {
			packed[j] |= scale
			packed[j+4] |= minimum
		} else {
			packed[j+4] = scale&15 | minimum&15<<4
			packed[j-4] |= scale >> 4 << 6
			packed[j] |= minimum >> 4 << 6
		}
		step[j], least[j] = float32(float32of16(d)*float32(scale)), float32(float32of16(dmin)*float32(minimum))
		if step[j] == 0 {
			step[j] = float32(math.Inf(1)) // all codes are 0
		}
	}
	out = binary.LittleEndian.AppendUint16(out, d)
	out = binary.LittleEndian.AppendUint16(out, dmin)
	out = append(out, packed[:]...)
	at := len(out)
	out = append(out, make([]byte, kSize/2)...)
	roundCodes((*[kSize / 2]byte)(out[at:]), (*[kSize]float32)(x), &least, &step)
	return out
}

// kParts is how many parts of a block of a K type have a scale and a minimum of their own.
const kParts = kSize / 32

// fit finds the scales and minima of a block's parts, all of them at a time: what is an array of kParts is of
// each part.
type fit struct {
	scale, minimum [kParts]float32 // the best so far
	err            [kParts]float64 // with these

	values partValues
	totals partTotals
	sums   codeSums
}

// partValues are of each part's 32 values the value, its weight, and their product.
type partValues [32]struct{ x, w, wx [kParts]float32 }

// partTotals are of each part the least and the largest value, and the sums of w, w·x and w·x².
type partTotals struct{ least, most, w, wx, wx2 [kParts]float32 }

// codeSums are sums over the values of each part: of w·code, w·code² and w·x·code.
type codeSums struct{ l, l2, xl [kParts]float32 }

// parts finds scales and minima, neither negative, with which 16 equal steps come nearest to 32 values: values
// ≈ scale × code − minimum. Errors count by the square, weighted by the value's size and the part's root mean
// square, so that large weights are kept best (as ggml's make_qkx2_quants weighs them). For each of 21 trial
// scales around the plain one, the codes that it gives are held and scale and minimum are solved for by least
// squares; the best of all is taken.
func (f *fit) parts(x *[kSize]float32) {
	const top = 15
	for i := range f.values {
		v := &f.values[i].x
		for j := range kParts {
			v[j] = x[32*j+i]
		}
	}
	weigh(&f.totals, &f.values)
	t := &f.totals
	var width, inverse, zero [kParts]float32
	var open [kParts]bool // whether there is something to find
	for j := range kParts {
		t.least[j] = min(t.least[j], 0) // a minimum is only ever taken away
		width[j], open[j], f.err[j] = t.most[j]-t.least[j], t.most[j] > t.least[j], math.Inf(1)
		if !open[j] {
			f.minimum[j] = -t.least[j]
		}
	}
	for trial := range 21 {
		for j := range kParts {
			inverse[j] = (top - 1 + 0.1*float32(trial)) / width[j]
		}
		sumCodes(&f.sums, &f.values, &inverse, &t.least)
		if trial == 10 { // as it is, so that there always is one
			for j := range kParts {
				if e := f.error(j, float64(width[j]/top), float64(t.least[j])); open[j] && e < f.err[j] {
					f.err[j], f.scale[j], f.minimum[j] = e, width[j]/top, -t.least[j]
				}
			}
		}
		f.solve(&open)
	}
	for range 3 { // the best one's own codes may be others than those that it was solved for
		some := false
		before := f.err
		for j := range kParts {
			open[j] = open[j] && f.scale[j] > 0
			some = some || open[j]
			inverse[j], zero[j] = 1/f.scale[j], -f.minimum[j]
		}
		if !some {
			return
		}
		sumCodes(&f.sums, &f.values, &inverse, &zero)
		f.solve(&open)
		for j := range kParts {
			open[j] = open[j] && f.err[j] < before[j]
		}
	}
}

// solve finds, for the parts that are open, the best scale and minimum for the codes that sums are of, and takes
// them if they err less than what there is.
func (f *fit) solve(open *[kParts]bool) {
	t, sums := &f.totals, &f.sums
	for j := range kParts {
		w, wx := float64(t.w[j]), float64(t.wx[j])
		l, l2, xl := float64(sums.l[j]), float64(sums.l2[j]), float64(sums.xl[j])
		det := float64(w*l2) - float64(l*l)
		if !open[j] || det <= 0 {
			continue
		}
		s, m := (float64(w*xl)-float64(wx*l))/det, (float64(l2*wx)-float64(l*xl))/det
		if m > 0 {
			s, m = float64(sums.xl[j]/sums.l2[j]), 0
		}
		if e := f.error(j, s, m); s > 0 && e < f.err[j] {
			f.err[j], f.scale[j], f.minimum[j] = e, float32(s), float32(-m)
		}
	}
}

// error is that of a scale s, and m to be added, with the codes that sums are of: Σ w(s·code + m − x)²,
// multiplied out.
func (f *fit) error(j int, s, m float64) float64 {
	w, wx, wx2 := float64(f.totals.w[j]), float64(f.totals.wx[j]), float64(f.totals.wx2[j])
	l, l2, xl := float64(f.sums.l[j]), float64(f.sums.l2[j]), float64(f.sums.xl[j])
	return float64(s*(float64(s*l2)+2*(float64(m*l)-xl))) + float64(m*(float64(m*w)-2*wx)) + wx2
}

// The inner loops have twins of the processor's own instructions (codes_amd64.s), with the same bits: each
// part's values are added in order. Conversions of products keep Go from adding before they are rounded, which it
// does on some processors: a model has the same bytes on all.

// weighGo finds of x in values the weights and products, and what these have in all.
func weighGo(t *partTotals, values *partValues) {
	for j := range kParts {
		least, most, sumX2 := values[0].x[j], values[0].x[j], float32(0)
		for i := range values {
			x := values[i].x[j]
			least, most = min(least, x), max(most, x)
			sumX2 += float32(x * x)
		}
		mean := float32(math.Sqrt(float64(sumX2 / 32)))
		var sumW, sumWX, sumWX2 float32
		for i := range values {
			v := &values[i]
			x := v.x[j]
			w := mean + float32(math.Abs(float64(x)))
			wx := float32(w * x)
			v.w[j], v.wx[j] = w, wx
			sumW += w
			sumWX += wx
			sumWX2 += float32(wx * x)
		}
		t.least[j], t.most[j], t.w[j], t.wx[j], t.wx2[j] = least, most, sumW, sumWX, sumWX2
	}
}

// sumCodesGo finds the sums for the codes that a scale, of which inverse is 1 by it, and what is to be code 0
// give.
func sumCodesGo(sums *codeSums, values *partValues, inverse, zero *[kParts]float32) {
	for j := range kParts {
		var l, l2, xl float32
		for i := range values {
			v := &values[i]
			code := float32(max(0, min(15, int32(float32((v.x[j]-zero[j])*inverse[j])+0.5))))
			wl := float32(v.w[j] * code)
			l += wl
			l2 += float32(wl * code)
			xl += float32(v.wx[j] * code)
		}
		sums.l[j], sums.l2[j], sums.xl[j] = l, l2, xl
	}
}

// roundCodesGo writes the codes of a block, two parts to 32 bytes. A part's least is what its code 0 lies below
// 0.
func roundCodesGo(codes *[kSize / 2]byte, x *[kSize]float32, least, step *[kParts]float32) {
	for j := range kParts {
		for i := range 32 {
			code := byte(max(0, min(15, math.RoundToEven(float64((x[32*j+i]+least[j])/step[j])))))
			codes[j/2*32+i] |= code << (j % 2 * 4)
		}
	}
}
