package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Encode stores values as t: F32, F16, BF16, Q8_0, Q4_0, Q4_1 or Q5_0 with the same rounding as ggml's
// reference quantisers (quantize_row_*_ref in ggml-quants.c), or Q4_K with errors as small as theirs. The
// number of values must be a multiple of t's block size. NaN and infinities give no sensible blocks.
func Encode(t Type, values []float32) ([]byte, error) {
	return AppendEncode(make([]byte, 0, t.RowBytes(len(values))), t, values)
}

// AppendEncode is Encode into a slice of the caller's.
func AppendEncode(out []byte, t Type, values []float32) ([]byte, error) {
	if n := t.BlockSize(); n == 0 || len(values)%n != 0 {
		return nil, fmt.Errorf("gguf: %d values cannot be stored as %s in blocks of %d", len(values), t, n)
	}
	le := binary.LittleEndian
	switch t {
	case F32:
		for _, v := range values {
			out = le.AppendUint32(out, math.Float32bits(v))
		}
		return out, nil
	case F16:
		for _, v := range values {
			out = le.AppendUint16(out, float16(v))
		}
		return out, nil
	case BF16:
		for _, v := range values {
			out = le.AppendUint16(out, bfloat16(v))
		}
		return out, nil
	case Q8_0:
		for b := values; len(b) > 0; b = b[32:] {
			out = appendQ8(out, b[:32])
		}
		return out, nil
	case Q4_0:
		for b := values; len(b) > 0; b = b[32:] {
			out = appendQ40(out, b[:32])
		}
		return out, nil
	case Q4_1:
		for b := values; len(b) > 0; b = b[32:] {
			out = appendQ41(out, b[:32])
		}
		return out, nil
	case Q5_0:
		for b := values; len(b) > 0; b = b[32:] {
			out = appendQ50(out, b[:32])
		}
		return out, nil
	case Q4_K:
		for b := values; len(b) > 0; b = b[kSize:] {
			out = appendQ4K(out, b[:kSize])
		}
		return out, nil
	}
	return nil, fmt.Errorf("gguf: %s cannot be encoded", t)
}

// Decode turns bytes of type t back into values, for the types that Encode takes. It is the plain
// reading of the formats, for small tensors and to test kernels against.
func Decode(t Type, data []byte) ([]float32, error) {
	if n := t.BlockBytes(); n == 0 || len(data)%n != 0 {
		return nil, fmt.Errorf("gguf: %d bytes are no whole blocks of %s", len(data), t)
	}
	le := binary.LittleEndian
	out := make([]float32, 0, len(data)/t.BlockBytes()*t.BlockSize())
	half := func(b []byte) float32 { return float32of16(le.Uint16(b)) }
	for b := data; len(b) > 0; b = b[t.BlockBytes():] {
		switch t {
		case F32:
			out = append(out, math.Float32frombits(le.Uint32(b)))
		case F16:
			out = append(out, half(b))
		case BF16:
			out = append(out, math.Float32frombits(uint32(le.Uint16(b))<<16))
		case Q8_0:
			d := half(b)
			for _, q := range b[2:34] {
				out = append(out, d*float32(int8(q)))
			}
		case Q4_0:
			d := half(b)
			for _, q := range b[2:18] {
				out = append(out, d*float32(int(q&15)-8))
			}
			for _, q := range b[2:18] {
				out = append(out, d*float32(int(q>>4)-8))
			}
		case Q4_1:
			d, m := half(b), half(b[2:])
			for _, q := range b[4:20] {
				out = append(out, float32(d*float32(q&15))+m)
			}
			for _, q := range b[4:20] {
				out = append(out, float32(d*float32(q>>4))+m)
			}
		default:
			return nil, fmt.Errorf("gguf: %s cannot be decoded", t)
		}
	}
	return out, nil
}

// inverse is 1/d, or 0 where d is 0 or so near to it that there is none: such a block has all codes 0.
func inverse(d float32) float32 {
	id := 1 / d
	if math.IsInf(float64(id), 0) {
		return 0
	}
	return id
}

// appendQ8 appends a Q8_0 block: a float16 scale, then 32 signed bytes; value = scale × byte.
func appendQ8(out []byte, x []float32) []byte {
	var most float32
	for _, v := range x {
		if v := float32(math.Abs(float64(v))); v > most {
			most = v
		}
	}
	d := most / 127
	id := inverse(d)
	out = binary.LittleEndian.AppendUint16(out, float16(d))
	for _, v := range x {
		// To nearest, ties away from 0: adding a half to a float32 is exact in a float64.
		f := float64(v * id)
		out = append(out, byte(int8(int32(f+math.Copysign(0.5, f)))))
	}
	return out
}

// appendQ40 appends a Q4_0 block: a float16 scale, then 16 bytes whose low halves are the codes of
// the first 16 values and whose high halves those of the last 16; value = scale × (code − 8). The
// value furthest from 0 gets code 0, so the scale has the opposite of its sign.
func appendQ40(out []byte, x []float32) []byte {
	var far float32
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(float64(far)) {
			far = v
		}
	}
	d := far / -8
	id := inverse(d)
	out = binary.LittleEndian.AppendUint16(out, float16(d))
	code := func(v float32) byte { return byte(min(15, int(float32(v*id)+8.5))) }
	for i := range 16 {
		out = append(out, code(x[i])|code(x[i+16])<<4)
	}
	return out
}

// appendQ41 appends a Q4_1 block: float16 scale and float16 least value, then codes laid out as in
// Q4_0; value = scale × code + least.
func appendQ41(out []byte, x []float32) []byte {
	least, most := x[0], x[0]
	for _, v := range x {
		least, most = min(least, v), max(most, v)
	}
	d := (most - least) / 15
	id := inverse(d)
	out = binary.LittleEndian.AppendUint16(out, float16(d))
	out = binary.LittleEndian.AppendUint16(out, float16(least))
	code := func(v float32) byte { return byte(min(15, int(float32((v-least)*id)+0.5))) }
	for i := range 16 {
		out = append(out, code(x[i])|code(x[i+16])<<4)
	}
	return out
}

// float16 rounds to IEEE 754 binary16, to nearest, ties to even; what is too large becomes infinite.
func float16(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	exp := int(bits>>23&0xff) - 127
	frac := bits & 0x7fffff
	switch {
	case exp == 128 && frac != 0:
		return sign | 0x7e00 // NaN
	case exp > 15:
		return sign | 0x7c00
	case exp < -25:
		return sign
	}
	// The significand as an integer, and how many of its low bits binary16 has no room for. Below
	// the exponent −14 the numbers are subnormal and lose one bit more each.
	m, drop := frac|0x800000, 13
	if exp < -14 {
		drop += -14 - exp
	}
	kept := m >> drop
	rest, halfway := m&(1<<drop-1), uint32(1)<<(drop-1)
	if rest > halfway || rest == halfway && kept&1 == 1 {
		kept++
	}
	if exp < -14 {
		return sign | uint16(kept) // a carry makes the least normal number, as it should
	}
	// kept has the implicit bit, which adds 1 to the exponent; a carry adds 1 more.
	return sign | uint16(uint32(exp+14)<<10+kept)
}

// Float16 is the value of an IEEE 754 binary16 number, exactly.
func Float16(h uint16) float32 { return float32of16(h) }

// float32of16 is the value of an IEEE 754 binary16 number, exactly.
func float32of16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		v := float32(frac) * 0x1p-24
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// bfloat16 keeps the upper half of a float32, rounded to nearest, ties to even.
func bfloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > 0x7f800000 {
		return uint16(bits>>16) | 0x40 // a NaN stays one
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}
