package host

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// dequantiser returns the function that turns whole blocks of t into float32, or nil when t is not
// a type that this device computes with. len(dst) is a multiple of the type's block size, and src
// holds exactly those blocks. The block layouts are those of ggml-common.h in ggml-org/llama.cpp;
// products and sums are rounded in the order of the gguf Python package, whose values the tests
// hold these functions to.
func dequantiser(t gguf.Type) func(dst []float32, src []byte) {
	switch t {
	case gguf.F32:
		return dequantiseF32
	case gguf.F16:
		return dequantiseF16
	case gguf.BF16:
		return dequantiseBF16
	case gguf.Q4_0:
		return dequantiseQ4_0
	case gguf.Q4_1:
		return dequantiseQ4_1
	case gguf.Q5_0:
		return dequantiseQ5_0
	case gguf.Q5_1:
		return dequantiseQ5_1
	case gguf.Q8_0:
		return dequantiseQ8_0
	case gguf.Q2_K:
		return dequantiseQ2_K
	case gguf.Q3_K:
		return dequantiseQ3_K
	case gguf.Q4_K:
		return dequantiseQ4_K
	case gguf.Q5_K:
		return dequantiseQ5_K
	case gguf.Q6_K:
		return dequantiseQ6_K
	case gguf.IQ4_NL:
		return dequantiseIQ4_NL
	case gguf.IQ4_XS:
		return dequantiseIQ4_XS
	case gguf.MXFP4:
		return dequantiseMXFP4
	}
	return nil
}

// supported lists the types for error messages.
func supported() string {
	var names []string
	for _, t := range model.WeightTypes() {
		if dequantiser(t) != nil {
			names = append(names, t.String())
		}
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// float16 converts an IEEE 754 half. The exponent is moved by a multiplication, which also
// normalises subnormal halves; only infinities and NaNs need a case of their own.
func float16(b []byte) float32 {
	h := uint32(binary.LittleEndian.Uint16(b))
	sign := h & 0x8000 << 16
	if h&0x7c00 == 0x7c00 {
		return math.Float32frombits(sign | 0x7f800000 | h&0x3ff<<13)
	}
	return math.Float32frombits(sign|h&0x7fff<<13) * 0x1p112
}

func dequantiseF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func dequantiseF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float16(src[2*i:])
	}
}

func dequantiseBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// Blocks of 32: a scale d, for the _1 types a minimum m, and quants. Byte j of the nibbles holds
// values j (low) and j+16 (high).

func dequantiseQ4_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 18 {
		y, b := (*[32]float32)(dst), (*[18]byte)(src)
		d := float16(b[:])
		for j, q := range b[2:] {
			y[j] = d * float32(int(q&15)-8)
			y[j+16] = d * float32(int(q>>4)-8)
		}
		dst, src = dst[32:], src[18:]
	}
}

func dequantiseQ4_1(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 20 {
		y, b := (*[32]float32)(dst), (*[20]byte)(src)
		d, m := float16(b[:]), float16(b[2:])
		for j, q := range b[4:] {
			y[j] = float32(d*float32(q&15)) + m
			y[j+16] = float32(d*float32(q>>4)) + m
		}
		dst, src = dst[32:], src[20:]
	}
}

// In the Q5 types bit j of a 32-bit word is the fifth bit of value j.

func dequantiseQ5_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 22 {
		y, b := (*[32]float32)(dst), (*[22]byte)(src)
		d, high := float16(b[:]), binary.LittleEndian.Uint32(b[2:])
		for j, q := range b[6:] {
			y[j] = d * float32(int(q&15)+int(high>>j&1<<4)-16)
			y[j+16] = d * float32(int(q>>4)+int(high>>(j+16)&1<<4)-16)
		}
		dst, src = dst[32:], src[22:]
	}
}

func dequantiseQ5_1(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 24 {
		y, b := (*[32]float32)(dst), (*[24]byte)(src)
		d, m, high := float16(b[:]), float16(b[2:]), binary.LittleEndian.Uint32(b[4:])
		for j, q := range b[8:] {
			y[j] = float32(d*float32(int(q&15)+int(high>>j&1<<4))) + m
			y[j+16] = float32(d*float32(int(q>>4)+int(high>>(j+16)&1<<4))) + m
		}
		dst, src = dst[32:], src[24:]
	}
}

func dequantiseQ8_0(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 34 {
		y, b := (*[32]float32)(dst), (*[34]byte)(src)
		d := float16(b[:])
		for j, q := range b[2:] {
			y[j] = d * float32(int8(q))
		}
		dst, src = dst[32:], src[34:]
	}
}

// The types of code books store which of 16 numbers a value is. IQ4_NL's numbers lie closer together near 0,
// as weights do; MXFP4's are those of a 4-bit float, E2M1, twice as large so that they are integers.
var (
	codesIQ4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	codesMX  = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// putCodes writes 32 values whose codes are nibbles, in the order of Q4_0.
func putCodes(y *[32]float32, q *[16]byte, codes *[16]int8, d float32) {
	for j, q := range q {
		y[j] = d * float32(codes[q&15])
		y[j+16] = d * float32(codes[q>>4])
	}
}

func dequantiseIQ4_NL(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 18 {
		putCodes((*[32]float32)(dst), (*[16]byte)(src[2:]), &codesIQ4, float16(src))
		dst, src = dst[32:], src[18:]
	}
}

// halfPowerOfTwo is the scale of a block of MXFP4: half of 2^(e−127), since the codes are twice too large.
// The two smallest are subnormal; 255, which OCP's E8M0 calls NaN, goes on as a power of two, as in ggml.
func halfPowerOfTwo(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(1 << 21 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

func dequantiseMXFP4(dst []float32, src []byte) {
	for len(dst) >= 32 && len(src) >= 17 {
		putCodes((*[32]float32)(dst), (*[16]byte)(src[1:]), &codesMX, halfPowerOfTwo(src[0]))
		dst, src = dst[32:], src[17:]
	}
}

// dequantiseIQ4_XS: super-blocks of eight blocks of IQ4_NL, whose 6-bit scales are signed by an offset.
func dequantiseIQ4_XS(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 136 {
		b := (*[136]byte)(src)
		d := float16(b[:])
		for i := range 8 {
			putCodes((*[32]float32)(dst[32*i:]), (*[16]byte)(b[8+16*i:]), &codesIQ4, d*float32(scaleIQ4_XS(b, i)))
		}
		dst, src = dst[256:], src[136:]
	}
}

// scaleIQ4_XS unpacks the scale of block i: its high two bits are in a word, the low four in a nibble.
func scaleIQ4_XS(b *[136]byte, i int) int8 {
	high := binary.LittleEndian.Uint16(b[2:])
	return int8(b[4+i/2]>>(i%2*4)&15|byte(high>>(2*i)&3)<<4) - 32
}

// The K types have super-blocks of 256. Q2_K and Q3_K: sixteen sub-blocks of 16. Each half of the values is
// in 32 bytes: value 32·part+j is in bits 2·part and 2·part+1 of byte j.

// dequantiseQ2_K: scales and minima are nibbles, low and high; the halves of the super-block come last.
func dequantiseQ2_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 84 {
		b := (*[84]byte)(src)
		d, dmin := float16(b[80:]), float16(b[82:])
		for i, s := range b[:16] {
			scale, minimum := d*float32(s&15), dmin*float32(s>>4)
			half, part := i/8, i%8/2
			y, qs := (*[16]float32)(dst[16*i:]), (*[16]byte)(b[16+32*half+16*(i%2):])
			for j, q := range qs {
				y[j] = float32(scale*float32(q>>(2*part)&3)) - minimum
			}
		}
		dst, src = dst[256:], src[84:]
	}
}

// dequantiseQ3_K: bit 4·half+part of high byte j is the third bit; quants are signed by an offset.
func dequantiseQ3_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 110 {
		b := (*[110]byte)(src)
		d, scales := float16(b[108:]), (*[12]byte)(b[96:])
		for i := range 16 {
			scale := d * float32(scaleQ3_K(scales, i))
			half, part := i/8, i%8/2
			y, qs, high := (*[16]float32)(dst[16*i:]), (*[16]byte)(b[32+32*half+16*(i%2):]), (*[16]byte)(b[16*(i%2):])
			for j, q := range qs {
				y[j] = scale * float32(int(q>>(2*part)&3|high[j]>>(i/2)&1<<2)-4)
			}
		}
		dst, src = dst[256:], src[110:]
	}
}

// scaleQ3_K unpacks the scale of sub-block i, 6 bits that are signed by an offset: eight bytes have the low
// four bits, four more the high two.
func scaleQ3_K(s *[12]byte, i int) int8 {
	return int8(s[i%8]>>(i/8*4)&15|s[8+i%4]>>(i/4*2)&3<<4) - 32
}

// Q4_K and Q5_K: eight sub-blocks of 32, whose 6-bit scales
// and minima are packed into 12 bytes.

// scaleMin unpacks the 6-bit scale and minimum of sub-block i.
func scaleMin(s *[12]byte, i int) (scale, minimum float32) {
	if i < 4 {
		return float32(s[i] & 63), float32(s[i+4] & 63)
	}
	return float32(s[i+4]&15 | s[i-4]>>6<<4), float32(s[i+4]>>4 | s[i]>>6<<4)
}

func dequantiseQ4_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 144 {
		b := (*[144]byte)(src)
		d, dmin := float16(b[:]), float16(b[2:])
		scales := (*[12]byte)(b[4:])
		for i := range 4 { // 64 values: the low nibbles of 32 bytes, then the high ones
			s1, m1 := scaleMin(scales, 2*i)
			s2, m2 := scaleMin(scales, 2*i+1)
			s1, m1, s2, m2 = d*s1, dmin*m1, d*s2, dmin*m2
			y, qs := (*[64]float32)(dst[64*i:]), (*[32]byte)(b[16+32*i:])
			for j, q := range qs {
				y[j] = float32(s1*float32(q&15)) - m1
				y[j+32] = float32(s2*float32(q>>4)) - m2
			}
		}
		dst, src = dst[256:], src[144:]
	}
}

func dequantiseQ5_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 176 {
		b := (*[176]byte)(src)
		d, dmin := float16(b[:]), float16(b[2:])
		scales, high := (*[12]byte)(b[4:]), (*[32]byte)(b[16:])
		for i := range 4 { // bits 2i and 2i+1 of high byte j are the fifth bits
			s1, m1 := scaleMin(scales, 2*i)
			s2, m2 := scaleMin(scales, 2*i+1)
			s1, m1, s2, m2 = d*s1, dmin*m1, d*s2, dmin*m2
			y, qs := (*[64]float32)(dst[64*i:]), (*[32]byte)(b[48+32*i:])
			for j, q := range qs {
				y[j] = float32(s1*float32(q&15|high[j]>>(2*i)&1<<4)) - m1
				y[j+32] = float32(s2*float32(q>>4|high[j]>>(2*i+1)&1<<4)) - m2
			}
		}
		dst, src = dst[256:], src[176:]
	}
}

// dequantiseQ6_K: 16 sub-blocks of 16 with 8-bit scales. The low four bits of values are in 128
// bytes, the high two in 64; the scale of the super-block comes last.
func dequantiseQ6_K(dst []float32, src []byte) {
	for len(dst) >= 256 && len(src) >= 210 {
		b := (*[210]byte)(src)
		d := float16(b[208:])
		for half := range 2 {
			y := (*[128]float32)(dst[128*half:])
			low, high := (*[64]byte)(b[64*half:]), (*[32]byte)(b[128+32*half:])
			scales := (*[8]byte)(b[192+8*half:])
			for part := range 4 { // 32 values each
				for j := range 32 {
					q := low[j+32*(part&1)] >> (4 * (part >> 1)) & 15
					q |= high[j] >> (2 * part) & 3 << 4
					s := d * float32(int8(scales[2*part+j/16]))
					y[32*part+j] = s * float32(int(q)-32)
				}
			}
		}
		dst, src = dst[256:], src[210:]
	}
}
