package host

import "math"

// octets is a block of 32 activations rounded to signed bytes, for kernels that multiply bytes: about
// value × scale each. It is as large as a cache line.
type octets struct {
	values [32]int8
	scale  float32
	sum    float32  // scale × the sum of values, which a block's minimum is multiplied by
	eights int32    // 8 × the sum of values: what Q4_0's nibbles are off by
	halves [2]int16 // the sums of the first and the last 16 values
	_      [16]byte
}

// wideOctets is what is in the place of octets for AVX-512.
type wideOctets struct {
	values [32]int8
	scale  float32
	sum    float32
	// zeros are where sums of products begin for weights that are too large by 8, 16 or 128 each, and for the
	// first and the last 16 values if they are too large by 32: as integers that are the bits of floats.
	zeros  [5]int32
	halves [2]int16
}

// magic is the bits of 1.5 × 2²³ as a float32. Adding an integer of less than 2²² to the bits adds it to the
// float.
const magic = 0x4b400000

// widen makes wideOctets of octets.
func (w *wideOctets) widen(b *octets) {
	first, last := int32(b.halves[0]), int32(b.halves[1])
	sum := first + last
	*w = wideOctets{values: b.values, scale: b.scale, sum: b.sum, halves: b.halves}
	w.zeros = [5]int32{magic - 8*sum, magic - 16*sum, magic - 128*sum, magic - 32*first, magic - 32*last}
}

// quantise rounds activations, 32 for each of q, to nearest even multiples of 1/127 of their block's
// largest. A block with an infinity or a NaN has the scale NaN, so that all products are NaN.
func quantise(q []octets, x []float32) {
	for i := range q {
		b, v := &q[i], (*[32]float32)(x[32*i:])
		var top uint32 // the bits of absolute values are in their order
		for _, f := range v {
			top = max(top, math.Float32bits(f)&0x7fffffff)
		}
		*b = octets{}
		switch {
		case top >= 0x7f800000:
			b.scale = math.Float32frombits(0x7fc00000)
			b.sum = b.scale
			continue
		case top < (127-100)<<23: // 2⁻¹⁰⁰, below which all is as good as 0
			continue
		}
		b.scale = math.Float32frombits(top) / 127
		up := 127 / math.Float32frombits(top)
		sum := int32(0)
		for j, f := range v {
			n := int32(math.RoundToEven(float64(f * up)))
			b.values[j] = int8(n)
			sum += n
			b.halves[j/16] += int16(n)
		}
		b.sum, b.eights = float32(sum)*b.scale, 8*sum
	}
}
