package host

import (
	"encoding/binary"
	"math"
)

// Multiplying by looking up. A block of Q4 weights holds 32 values of 4 bits; byte j of it those of
// columns j and j+16. For given activations, what a byte contributes to the sum over the block is
// one of 256 numbers, so 16 tables of 256 numbers turn 32 multiplications, 32 additions and as many
// conversions into 16 additions. Filling a table takes 256 additions, which pays when several hundred
// rows share the block's columns; the tables of one block stay in the first-level cache. The idea is
// that of T-MAC (Wei et al., 2024, arXiv:2407.00088), with bytes in place of bits.
//
// The numbers are integers: the 32 activations of a block are rounded to a common fixed point, 22
// bits for 4-bit weights and 19 for 8-bit ones and IQ4_NL, whose codes stand for as large numbers, besides the
// sign, so that no sum overflows 32 bits. The
// errors, at most 2⁻²³ and 2⁻²⁰ of the block's largest activation, are of the size of float32's own
// and some ten times that. And as sums of integers have no order, one table can hold the numbers of
// two activation rows in the halves of an int64, and one addition serves both, without a bit of either
// depending on there being another.
//
// A row's sum over a block is made a float and scaled; blocks are added in order to one sum per chunk
// (see stack), and chunks in order.

const (
	pairBits = 22 // 32 × 15 × 2²² < 2³¹
	byteBits = 19 // 32 × 128 × 2¹⁹ = 2³¹, which quantise's limit stays below
)

// fixed is a block of activations in fixed point: about value × scale each.
type fixed struct {
	values [32]int32
	scale  float32 // a power of two
}

// quantise rounds a block to the nearest multiples of a power of two that make the largest less than
// 2^bits. Of a block with an infinity or NaN all products shall be NaN.
func (f *fixed) quantise(x *[32]float32, bits int) {
	var top uint32 // the bits of absolute values are in their order
	for _, v := range x {
		top = max(top, math.Float32bits(v)&0x7fffffff)
	}
	if top >= 0x7f800000 {
		*f = fixed{scale: float32(math.NaN())}
		return
	}
	// The largest is below 2^(exponent−126). Where that is below 2^−100, all is as good as 0.
	exponent := max(int(top>>23), 26)
	up := math.Float32frombits(uint32(127+bits+126-exponent) << 23)
	f.scale = math.Float32frombits(uint32(127-bits-126+exponent) << 23)
	limit := int32(1)<<bits - 1
	for i, v := range x {
		// The number added and taken off leaves no room for a fraction: a rounding to nearest even.
		const shift = 0x1.8p23
		f.values[i] = min(max(int32(float32(float32(v*up)+shift)-shift), -limit), limit)
	}
}

// sum is the sum of the block, which a block's minimum is multiplied by.
func (f *fixed) sum() float32 {
	s := int32(0)
	for _, v := range f.values {
		s += v
	}
	return float32(s) * f.scale
}

// A table holds what each byte of a block of weights contributes: pairTable a byte of two 4-bit
// weights, byteTable one of 8 bits. Those of int64 are for two activation rows: the first in the lower
// half, the second in the upper.
type (
	pairTable   [16][256]int32
	pairTables  [16][256]int64
	byteTable   [32][256]int32
	byteTables  [32][256]int64
	tableNumber interface{ int32 | int64 }
)

// The numbers that the codes of Q4_0 and Q4_1 stand for; quant.go has those of code books.
var (
	codesQ4_0 = [16]int8{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
	codesQ4_1 = [16]int8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
)

// fillPairs tabulates a·codes[n] + b·codes[m] for the nibbles n and m of a byte, low and high.
func fillPairs[T tableNumber](t *[256]T, a, b T, codes *[16]int8) {
	var low [16]T
	for n, c := range codes {
		low[n] = T(c) * a
	}
	for n, c := range codes {
		h := T(c) * b
		r := (*[16]T)(t[16*n:])
		r[0], r[1], r[2], r[3] = h+low[0], h+low[1], h+low[2], h+low[3]
		r[4], r[5], r[6], r[7] = h+low[4], h+low[5], h+low[6], h+low[7]
		r[8], r[9], r[10], r[11] = h+low[8], h+low[9], h+low[10], h+low[11]
		r[12], r[13], r[14], r[15] = h+low[12], h+low[13], h+low[14], h+low[15]
	}
}

// fillBytes tabulates a·n for the signed bytes n.
func fillBytes[T tableNumber](t *[256]T, a T) {
	up, down := T(0), -128*a
	for n := 0; n < 128; n += 4 {
		r, s := (*[4]T)(t[n:]), (*[4]T)(t[n+128:])
		r[0], r[1], r[2], r[3] = up, up+a, up+2*a, up+3*a
		s[0], s[1], s[2], s[3] = down, down+a, down+2*a, down+3*a
		up, down = up+4*a, down+4*a
	}
}

func (t *pairTable) fill(f *fixed, codes *[16]int8) {
	for j := range t {
		fillPairs(&t[j], f.values[j], f.values[j+16], codes)
	}
}

func (t *pairTables) fill(f, f2 *fixed, codes *[16]int8) {
	for j := range t {
		fillPairs(&t[j], both(f, f2, j), both(f, f2, j+16), codes)
	}
}

func (t *byteTable) fill(f *fixed) {
	for j := range t {
		fillBytes(&t[j], f.values[j])
	}
}

func (t *byteTables) fill(f, f2 *fixed) {
	for j := range t {
		fillBytes(&t[j], both(f, f2, j))
	}
}

// both puts a value of two blocks into one number, and halves takes a sum apart. The lower half, when
// negative, has borrowed from the upper.
func both(f, f2 *fixed, j int) int64 { return int64(f.values[j]) + int64(f2.values[j])<<32 }

func halves(s int64) (float32, float32) {
	low := int32(s)
	return float32(low), float32(int32((s - int64(low)) >> 32))
}

// The functions below add the products of one block column of a matrix to acc: w starts at the
// block of the first row, and the next row's block is stride bytes on. The sums are written out since
// the compiler doesn't inline functions of that size, and a call per block would cost a third of the
// speed.

// addQ4_0 and addQ4_0x2 are IQ4_NL's too.

func addQ4_0(acc []float32, w []byte, stride int, t *pairTable, f *fixed) {
	scale := f.scale
	for n := range acc {
		b := (*[18]byte)(w[n*stride:])
		s0 := t[0][b[2]] + t[4][b[6]] + t[8][b[10]] + t[12][b[14]]
		s1 := t[1][b[3]] + t[5][b[7]] + t[9][b[11]] + t[13][b[15]]
		s2 := t[2][b[4]] + t[6][b[8]] + t[10][b[12]] + t[14][b[16]]
		s3 := t[3][b[5]] + t[7][b[9]] + t[11][b[13]] + t[15][b[17]]
		acc[n] += float32(float32(half(b[:])*scale) * float32((s0+s1)+(s2+s3)))
	}
}

func addQ4_0x2(acc, acc2 []float32, w []byte, stride int, t *pairTables, f, f2 *fixed) {
	acc2 = acc2[:len(acc)]
	scale, scale2 := f.scale, f2.scale
	for n := range acc {
		b := (*[18]byte)(w[n*stride:])
		s := t[0][b[2]] + t[1][b[3]] + t[2][b[4]] + t[3][b[5]] + t[4][b[6]] + t[5][b[7]] + t[6][b[8]] + t[7][b[9]] +
			t[8][b[10]] + t[9][b[11]] + t[10][b[12]] + t[11][b[13]] + t[12][b[14]] + t[13][b[15]] + t[14][b[16]] + t[15][b[17]]
		low, high := halves(s)
		d := half(b[:])
		acc[n] += float32(float32(d*scale) * low)
		acc2[n] += float32(float32(d*scale2) * high)
	}
}

func addQ4_1(acc []float32, w []byte, stride int, t *pairTable, f *fixed) {
	scale, sum := f.scale, f.sum()
	for n := range acc {
		b := (*[20]byte)(w[n*stride:])
		s0 := t[0][b[4]] + t[4][b[8]] + t[8][b[12]] + t[12][b[16]]
		s1 := t[1][b[5]] + t[5][b[9]] + t[9][b[13]] + t[13][b[17]]
		s2 := t[2][b[6]] + t[6][b[10]] + t[10][b[14]] + t[14][b[18]]
		s3 := t[3][b[7]] + t[7][b[11]] + t[11][b[15]] + t[15][b[19]]
		d, m := half(b[:]), half(b[2:])
		acc[n] += float32(float32(d*scale)*float32((s0+s1)+(s2+s3))) + float32(m*sum)
	}
}

func addQ4_1x2(acc, acc2 []float32, w []byte, stride int, t *pairTables, f, f2 *fixed) {
	acc2 = acc2[:len(acc)]
	scale, sum, scale2, sum2 := f.scale, f.sum(), f2.scale, f2.sum()
	for n := range acc {
		b := (*[20]byte)(w[n*stride:])
		s := t[0][b[4]] + t[1][b[5]] + t[2][b[6]] + t[3][b[7]] + t[4][b[8]] + t[5][b[9]] + t[6][b[10]] + t[7][b[11]] +
			t[8][b[12]] + t[9][b[13]] + t[10][b[14]] + t[11][b[15]] + t[12][b[16]] + t[13][b[17]] + t[14][b[18]] + t[15][b[19]]
		low, high := halves(s)
		d, m := half(b[:]), half(b[2:])
		acc[n] += float32(float32(d*scale)*low) + float32(m*sum)
		acc2[n] += float32(float32(d*scale2)*high) + float32(m*sum2)
	}
}

func addMXFP4(acc []float32, w []byte, stride int, t *pairTable, f *fixed) {
	scale := f.scale
	for n := range acc {
		b := (*[17]byte)(w[n*stride:])
		s0 := t[0][b[1]] + t[4][b[5]] + t[8][b[9]] + t[12][b[13]]
		s1 := t[1][b[2]] + t[5][b[6]] + t[9][b[10]] + t[13][b[14]]
		s2 := t[2][b[3]] + t[6][b[7]] + t[10][b[11]] + t[14][b[15]]
		s3 := t[3][b[4]] + t[7][b[8]] + t[11][b[12]] + t[15][b[16]]
		acc[n] += float32(float32(halfPowerOfTwo(b[0])*scale) * float32((s0+s1)+(s2+s3)))
	}
}

func addMXFP4x2(acc, acc2 []float32, w []byte, stride int, t *pairTables, f, f2 *fixed) {
	acc2 = acc2[:len(acc)]
	scale, scale2 := f.scale, f2.scale
	for n := range acc {
		b := (*[17]byte)(w[n*stride:])
		s := t[0][b[1]] + t[1][b[2]] + t[2][b[3]] + t[3][b[4]] + t[4][b[5]] + t[5][b[6]] + t[6][b[7]] + t[7][b[8]] +
			t[8][b[9]] + t[9][b[10]] + t[10][b[11]] + t[11][b[12]] + t[12][b[13]] + t[13][b[14]] + t[14][b[15]] + t[15][b[16]]
		low, high := halves(s)
		d := halfPowerOfTwo(b[0])
		acc[n] += float32(float32(d*scale) * low)
		acc2[n] += float32(float32(d*scale2) * high)
	}
}

func addQ8_0(acc []float32, w []byte, stride int, t *byteTable, f *fixed) {
	scale := f.scale
	for n := range acc {
		b := (*[34]byte)(w[n*stride:])
		s0 := t[0][b[2]] + t[4][b[6]] + t[8][b[10]] + t[12][b[14]] + t[16][b[18]] + t[20][b[22]] + t[24][b[26]] + t[28][b[30]]
		s1 := t[1][b[3]] + t[5][b[7]] + t[9][b[11]] + t[13][b[15]] + t[17][b[19]] + t[21][b[23]] + t[25][b[27]] + t[29][b[31]]
		s2 := t[2][b[4]] + t[6][b[8]] + t[10][b[12]] + t[14][b[16]] + t[18][b[20]] + t[22][b[24]] + t[26][b[28]] + t[30][b[32]]
		s3 := t[3][b[5]] + t[7][b[9]] + t[11][b[13]] + t[15][b[17]] + t[19][b[21]] + t[23][b[25]] + t[27][b[29]] + t[31][b[33]]
		acc[n] += float32(float32(half(b[:])*scale) * float32((s0+s1)+(s2+s3)))
	}
}

func addQ8_0x2(acc, acc2 []float32, w []byte, stride int, t *byteTables, f, f2 *fixed) {
	acc2 = acc2[:len(acc)]
	scale, scale2 := f.scale, f2.scale
	for n := range acc {
		b := (*[34]byte)(w[n*stride:])
		s := t[0][b[2]] + t[1][b[3]] + t[2][b[4]] + t[3][b[5]] + t[4][b[6]] + t[5][b[7]] + t[6][b[8]] + t[7][b[9]] +
			t[8][b[10]] + t[9][b[11]] + t[10][b[12]] + t[11][b[13]] + t[12][b[14]] + t[13][b[15]] + t[14][b[16]] + t[15][b[17]] +
			t[16][b[18]] + t[17][b[19]] + t[18][b[20]] + t[19][b[21]] + t[20][b[22]] + t[21][b[23]] + t[22][b[24]] + t[23][b[25]] +
			t[24][b[26]] + t[25][b[27]] + t[26][b[28]] + t[27][b[29]] + t[28][b[30]] + t[29][b[31]] + t[30][b[32]] + t[31][b[33]]
		low, high := halves(s)
		d := half(b[:])
		acc[n] += float32(float32(d*scale) * low)
		acc2[n] += float32(float32(d*scale2) * high)
	}
}

// half is float16 in fewer instructions, for halves that are finite: an infinity, which no sane file
// has for a scale, comes out as 65536.
func half(b []byte) float32 {
	h := int32(int16(binary.LittleEndian.Uint16(b)))
	return math.Float32frombits(uint32(h)<<13&0x8fffe000) * 0x1p112
}
