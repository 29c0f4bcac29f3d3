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
	const parts = kSize / 32
	var scales, minima [parts]float32
	var mostScale, mostMinimum float32
	for j := range parts {
		scales[j], minima[j] = fitPart((*[32]float32)(x[32*j:]))
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
		step := float32of16(d) * float32(scale)
		if step == 0 {
			continue
		}
		least := float32of16(dmin) * float32(minimum)
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

// fitPart finds the scale and the minimum, neither negative, with which 16 equal steps come nearest to 32
// values: values ≈ scale × code − minimum. Errors count by the square, weighted by the value's size and
// the part's root mean square, so that large weights are kept best (as ggml's make_qkx2_quants weighs
// them). For each of 21 trial scales around the plain one, the codes that it gives are held and scale and
// minimum are solved for by least squares; the best of all is taken.
func fitPart(x *[32]float32) (scale, minimum float32) {
	least, most := x[0], x[0]
	var sumX2 float32
	for _, v := range x {
		least, most = min(least, v), max(most, v)
		sumX2 += v * v
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
		wx[i] = w[i] * v
		sumW += w[i]
		sumWX += wx[i]
		sumWX2 += wx[i] * v
	}
	const top = 15
	width := most - least
	best := math.Inf(1)
	// solve finds codes by a scale and what is to be code 0, and the best scale and minimum for these codes.
	solve := func(inverse, zero float32, plain bool) {
		var l, l2, xl float32 // sums of w·code, w·code² and w·x·code
		for i, v := range x {
			code := float32(max(0, min(top, int32((v-zero)*inverse+0.5))))
			wl := w[i] * code
			l += wl
			l2 += wl * code
			xl += wx[i] * code
		}
		// The error is Σ w(s·code + m − x)², multiplied out.
		try := func(s, m float64) {
			e := s*(s*float64(l2)+2*(m*float64(l)-float64(xl))) + m*(m*float64(sumW)-2*float64(sumWX)) + float64(sumWX2)
			if e < best {
				best, scale, minimum = e, float32(s), float32(-m)
			}
		}
		if plain { // as it is, so that there always is one
			try(float64(width/top), float64(least))
		}
		det := float64(sumW)*float64(l2) - float64(l)*float64(l)
		if det <= 0 {
			return
		}
		s := (float64(sumW)*float64(xl) - float64(sumWX)*float64(l)) / det
		m := (float64(l2)*float64(sumWX) - float64(l)*float64(xl)) / det
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
