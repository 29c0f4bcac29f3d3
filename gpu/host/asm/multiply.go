package main

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// packed is a type of packed weights: see gpu/host/pack.go for what lies where. All of them are unsigned
// integers of bits bits, which are multiplied by signed bytes.
type packed struct {
	name string
	bits int
	// zero is the integer that stands for 0: a power of two, at least 4, or 0. That is mended in integers.
	zero int
	// minimum says that what a block of weights begins at is added, as a float times the activations' sum.
	minimum bool
	// super says that blocks come in eights, with scales that are products.
	super bool
	// sixteens says that each 16 columns have a scale of their own, and perhaps a minimum.
	sixteens bool
	// codes are the integers that those of 4 bits stand for, if there are any: zero more than the numbers
	// in gpu/host/quant.go.
	codes []byte
	// upper says that scales are the upper halves of float32, not halves.
	upper bool
}

var (
	codesIQ4 = []byte{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}
	codesMX  = []byte{16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4}
)

var formats = []packed{
	{name: "Q4_0", bits: 4, zero: 8},
	{name: "Q4_1", bits: 4, minimum: true},
	{name: "Q5_0", bits: 5, zero: 16},
	{name: "Q5_1", bits: 5, minimum: true},
	{name: "Q8_0", bits: 8, zero: 128},
	{name: "Q2_K", bits: 2, minimum: true, super: true, sixteens: true},
	{name: "Q3_K", bits: 3, zero: 4, super: true, sixteens: true},
	{name: "Q4_K", bits: 4, minimum: true, super: true},
	{name: "Q5_K", bits: 5, minimum: true, super: true},
	{name: "Q6_K", bits: 6, zero: 32, super: true, sixteens: true},
	{name: "IQ4_NL", bits: 4, zero: 128, codes: codesIQ4},
	{name: "IQ4_XS", bits: 4, zero: 128, codes: codesIQ4, super: true},
	{name: "MXFP4", bits: 4, zero: 16, codes: codesMX, upper: true},
}

// most is the largest integer of a weight.
func (f *packed) most() int {
	if f.codes != nil {
		return int(slices.Max(f.codes))
	}
	return 1<<f.bits - 1
}

// wide says that weights have more than 6 bits, so that they are multiplied in two parts.
func (f *packed) wide() bool { return f.most() > 63 }

// header is how many bytes of scales a block of 8 rows begins with.
func (f *packed) header() int {
	switch {
	case f.minimum && !f.super:
		return 32
	case f.codes != nil && f.super:
		return 8
	}
	return 16
}

// multiply generates the product of groups × 8 weight rows and 1, 2 or 4 activation rows.
//
// A vector of weights holds 8 rows × 4 columns, so that all sums stay in lanes. VPMADDUBSW makes 16-bit
// sums of 2 products, of which some can be added before they could overflow; VPMADDWD makes 32-bit sums
// of those. What is done to an activation row doesn't depend on how many there are.
func multiply(c *build.Context, f packed, rows int) {
	k := &kernel{frame: begin(c, f.name, rows), packed: f, column: c.GP64()}
	k.low, k.ones = words(c, "low", 0x0f0f0f0f), words(c, "ones16", 0x00010001)
	n, inner := c.GP64(), c.GP64()
	k.eachGroup(func() [4]reg.VecVirtual {
		for r := range rows {
			k.sums[r] = c.YMM()
			c.VPXOR(k.sums[r], k.sums[r], k.sums[r])
		}
		c.MOVQ(k.x, k.column)
		c.MOVQ(k.records, n)
		c.Label("blocks")
		if f.super {
			k.scales = c.GP64()
			c.MOVQ(k.w, k.scales)
			size := 16
			if f.minimum {
				size = 32
			}
			c.ADDQ(U8(size), k.w)
			c.MOVQ(U32(8), inner)
			c.Label("inner")
		}
		size := k.block()
		fetchAhead(c, k.w, size, rows)
		c.ADDQ(U32(size), k.w)
		c.ADDQ(U8(octetsBytes), k.column)
		if f.super {
			c.DECQ(inner)
			c.JNZ(LabelRef("inner"))
		}
		c.DECQ(n)
		c.JNZ(LabelRef("blocks"))
		return k.sums
	})
}

// multiplyFloats generates the product of groups × 8 weight rows and 1, 2 or 4 activation rows that are
// float32. A record has two columns, whose products go to a sum each: one addition would wait for the last.
func multiplyFloats(c *build.Context, kind string, rows int) {
	f := begin(c, kind, rows)
	size := 16
	if kind == "F32" {
		size = 32
	}
	n, column := c.GP64(), c.GP64()
	f.eachGroup(func() (total [4]reg.VecVirtual) {
		var sums [4][2]reg.VecVirtual
		for r := range rows {
			for i := range 2 {
				sums[r][i] = c.YMM()
				c.VXORPS(sums[r][i], sums[r][i], sums[r][i])
			}
		}
		c.MOVQ(f.x, column)
		c.MOVQ(f.records, n)
		c.Label("record")
		for i := range 2 {
			v, t := c.YMM(), c.YMM()
			loadFloats(c, kind, Mem{Base: f.w, Disp: size * i}, v)
			for r := range rows {
				c.VBROADCASTSS(rowAt(column, f.xStride, f.xStride3, r, 4*i), t)
				c.VMULPS(v, t, t)
				c.VADDPS(t, sums[r][i], sums[r][i])
			}
		}
		fetchAhead(c, f.w, 2*size, rows)
		c.ADDQ(U8(2*size), f.w)
		c.ADDQ(U8(8), column)
		c.DECQ(n)
		c.JNZ(LabelRef("record"))
		for r := range rows {
			c.VADDPS(sums[r][1], sums[r][0], sums[r][0])
			total[r] = sums[r][0]
		}
		return total
	})
}

// loadFloats loads a column of weights, a number for each lane of v, as float32.
func loadFloats(c *build.Context, kind string, at Mem, v reg.VecVirtual) {
	switch kind {
	case "F32":
		c.VMOVUPS(at, v)
	case "F16":
		c.VCVTPH2PS(at, v)
	case "BF16":
		c.VPMOVZXWD(at, v)
		c.VPSLLD(U8(16), v, v)
	}
}

// frame is what all these kernels have in common: their arguments, and the loop over groups of weight rows.
type frame struct {
	*build.Context
	rows                 int
	w                    reg.Register // the weights at hand
	groups, records      reg.Register
	x, xStride, xStride3 reg.Register // the first activation row; three strides where there are four rows
	y, yStride, yStride3 reg.Register
}

// begin begins a kernel.
func begin(c *build.Context, kind string, rows int) *frame {
	name := fmt.Sprintf("multiply%sx%dAVX2", kind, rows)
	function(c, name, "func(w *byte, groups, records int, x *byte, xStride int, y *float32, yStride int)",
		fmt.Sprintf("%s is a kernel for %d rows of activations. Its twin is multiplyTwin.", name, rows))
	f := &frame{
		Context: c, rows: rows, w: argument(c, "w"), groups: argument(c, "groups"), records: argument(c, "records"),
		x: argument(c, "x"), xStride: argument(c, "xStride"), y: argument(c, "y"), yStride: argument(c, "yStride"),
	}
	if rows == 4 {
		xStride3, yStride3 := c.GP64(), c.GP64()
		c.LEAQ(Mem{Base: f.xStride, Index: f.xStride, Scale: 2}, xStride3)
		c.LEAQ(Mem{Base: f.yStride, Index: f.yStride, Scale: 2}, yStride3)
		f.xStride3, f.yStride3 = xStride3, yStride3
	}
	return f
}

// eachGroup generates the loop and the function's end. sums generates the sums of 8 weight rows, for each
// activation row, and leaves w behind them.
func (f *frame) eachGroup(sums func() [4]reg.VecVirtual) {
	f.Label("group")
	f.TESTQ(f.groups, f.groups)
	f.JZ(LabelRef("done"))
	total := sums()
	for r := range f.rows {
		f.VMOVUPS(total[r], rowAt(f.y, f.yStride, f.yStride3, r, 0))
	}
	f.ADDQ(U8(32), f.y)
	f.DECQ(f.groups)
	f.JMP(LabelRef("group"))
	f.Label("done")
	end(f.Context)
}

// kernel is what multiply passes around.
type kernel struct {
	*frame
	packed
	column    reg.Register // the block of the first activation row
	scales    reg.Register // the super-block's scales
	sums      [4]reg.VecVirtual
	low, ones Mem
}

// rowAt addresses row r, disp bytes in.
func rowAt(base, stride, stride3 reg.Register, r, disp int) Mem {
	switch r {
	case 0:
		return Mem{Base: base, Disp: disp}
	case 3:
		return Mem{Base: base, Index: stride3, Scale: 1, Disp: disp}
	}
	return Mem{Base: base, Index: stride, Scale: uint8(r), Disp: disp}
}

// activation addresses the block of activation row r, disp bytes in.
func (k *kernel) activation(r, disp int) Mem { return rowAt(k.column, k.xStride, k.xStride3, r, disp) }

// block adds the products of the block at w, 32 columns of 8 rows, and returns how many bytes it has.
func (k *kernel) block() int {
	header := k.header()
	var total [4]reg.VecVirtual // of 32 bits
	for r := range k.rows {
		total[r] = k.YMM()
	}
	size := 32 * k.bits
	if k.wide() {
		k.halves(Mem{Base: k.w, Disp: header}, total)
	} else {
		k.whole(Mem{Base: k.w}, header, total)
	}
	scale, minimum, minima := k.YMM(), k.YMM(), k.YMM()
	switch {
	case k.sixteens:
		k.VCVTPH2PS(Mem{Base: k.scales}, scale)
		if k.minimum {
			k.VCVTPH2PS(Mem{Base: k.scales, Disp: 16}, minimum)
			k.VPMOVZXBW(Mem{Base: k.w}, minima)
			k.VPSRLW(U8(4), minima, minima)
		}
	case k.super:
		t := k.YMM()
		if k.codes != nil {
			k.VPMOVSXBD(Mem{Base: k.w}, scale)
		} else {
			k.VPMOVZXBD(Mem{Base: k.w}, scale)
		}
		k.VCVTDQ2PS(scale, scale)
		k.VCVTPH2PS(Mem{Base: k.scales}, t)
		k.VMULPS(t, scale, scale)
		if k.minimum {
			k.VPMOVZXBD(Mem{Base: k.w, Disp: 8}, minimum)
			k.VCVTDQ2PS(minimum, minimum)
			k.VCVTPH2PS(Mem{Base: k.scales, Disp: 16}, t)
			k.VMULPS(t, minimum, minimum)
		}
	case k.upper:
		k.VPMOVZXWD(Mem{Base: k.w}, scale)
		k.VPSLLD(U8(16), scale, scale)
	default:
		k.VCVTPH2PS(Mem{Base: k.w}, scale)
		if k.minimum {
			k.VCVTPH2PS(Mem{Base: k.w, Disp: 16}, minimum)
		}
	}
	t := k.YMM()
	for r := range k.rows {
		if k.zero > 0 && !k.sixteens {
			k.VPBROADCASTD(k.activation(r, octetEights), t)
			if k.zero > 8 {
				k.VPSLLD(U8(k.shift()-3), t, t)
			}
			k.VPSUBD(t, total[r], total[r])
		}
		// Products are rounded before they are added, as the twin does it.
		k.VCVTDQ2PS(total[r], total[r])
		k.VBROADCASTSS(k.activation(r, octetScale), t)
		if k.sixteens && k.minimum {
			// The sum of both minima times their activations, times both scales.
			u := k.YMM()
			k.VMULPS(minimum, t, u)
			k.VMULPS(scale, t, t)
			k.VMULPS(t, total[r], total[r])
			k.VADDPS(total[r], k.sums[r], k.sums[r])
			k.VPBROADCASTD(k.activation(r, octetHalves), t)
			k.VPMADDWD(minima, t, t)
			k.VCVTDQ2PS(t, t)
			k.VMULPS(u, t, t)
			k.VADDPS(t, k.sums[r], k.sums[r])
			continue
		}
		k.VMULPS(scale, t, t)
		k.VMULPS(t, total[r], total[r])
		k.VADDPS(total[r], k.sums[r], k.sums[r])
		if k.minimum {
			k.VBROADCASTSS(k.activation(r, octetSum), t)
			k.VMULPS(minimum, t, t)
			k.VADDPS(t, k.sums[r], k.sums[r])
		}
	}
	return header + size
}

// shift is what multiplies by zero.
func (f *packed) shift() int { return bits.TrailingZeros(uint(f.zero)) }

// inOrder are the vectors of a block as they are; inPairs has those that share bytes of nibbles together.
var (
	inOrder = []int{0, 1, 2, 3, 4, 5, 6, 7}
	inPairs = []int{0, 4, 1, 5, 2, 6, 3, 7}
)

// whole sums the products of weights of up to 6 bits.
func (k *kernel) whole(w Mem, header int, total [4]reg.VecVirtual) {
	var scales reg.VecVirtual // of the 16s: both, as 16-bit integers
	if k.sixteens {
		scales = k.YMM()
		if k.minimum {
			k.VPMOVZXBW(w, scales)
			k.VPAND(words(k.Context, "low16", 0x000f000f), scales, scales)
		} else {
			k.VPMOVSXBW(w, scales)
		}
	}
	// Both vectors of nibbles that share bytes follow each other, unless they have different scales.
	order := inPairs
	if k.sixteens || k.bits < 4 {
		order = inOrder
	}
	// How many products of 2 columns, of weight × 127 × 2 each, fit into 16 bits; a power of two. Those of a
	// scale are 4.
	flush := 1 << (bits.Len(uint(32767/(k.most()*127*2))) - 1)
	flush = min(flush, 8)
	if k.sixteens {
		flush = min(flush, 4)
	}
	var acc [4]reg.VecVirtual
	v, t := k.YMM(), k.YMM()
	var shared reg.VecVirtual
	for n, i := range order {
		shared = k.integers(w.Offset(header), i, v, t, shared)
		if k.codes != nil {
			codes := k.YMM()
			k.VMOVDQU(table(k.Context, "codes"+k.name, k.codes), codes)
			k.VPSHUFB(v, codes, v)
		}
		for r := range k.rows {
			k.VPBROADCASTD(k.activation(r, 4*i), t)
			if n%flush == 0 {
				acc[r] = k.YMM()
				k.VPMADDUBSW(t, v, acc[r])
				continue
			}
			k.VPMADDUBSW(t, v, t)
			k.VPADDW(t, acc[r], acc[r])
		}
		if n%flush != flush-1 {
			continue
		}
		var factor Op = k.ones
		if k.sixteens {
			// The scale of this half, in both halves of its row's word.
			factor = v
			order := uint64(0xa0)
			if i >= 4 {
				order = 0xf5
			}
			k.VPSHUFLW(U8(order), scales, v)
			k.VPSHUFHW(U8(order), v, v)
		}
		for r := range k.rows {
			if n < flush {
				k.VPMADDWD(factor, acc[r], total[r])
				continue
			}
			k.VPMADDWD(factor, acc[r], acc[r])
			k.VPADDD(acc[r], total[r], total[r])
		}
	}
	if k.sixteens && k.zero > 0 {
		for r := range k.rows {
			k.VPBROADCASTD(k.activation(r, octetHalves), t)
			k.VPMADDWD(scales, t, t)
			k.VPSLLD(U8(k.shift()), t, t)
			k.VPSUBD(t, total[r], total[r])
		}
	}
}

// integers loads vector i of a block, of 2 to 6 bits, into v. Of two vectors in turn that share bytes of
// nibbles, the second is what is returned for the first.
func (k *kernel) integers(w Mem, i int, v, t, shared reg.VecVirtual) reg.VecVirtual {
	low := 4
	if k.bits < 4 {
		low = 2
	}
	planes := k.bits - low
	base := w.Offset(32 * planes)
	switch {
	case low == 2:
		k.VMOVDQU(base.Offset(32*(i/4)), v)
		if i%4 > 0 {
			k.VPSRLW(U8(2*(i%4)), v, v)
		}
		k.VPAND(words(k.Context, "pair", 0x03030303), v, v)
	case k.sixteens:
		k.VMOVDQU(base.Offset(32*(i%4)), v)
		if i >= 4 {
			k.VPSRLW(U8(4), v, v)
		}
		k.VPAND(k.low, v, v)
	case i < 4:
		shared = k.YMM()
		k.VMOVDQU(base.Offset(32*i), shared)
		k.VPAND(k.low, shared, v)
	default:
		k.VPSRLW(U8(4), shared, v)
		k.VPAND(k.low, v, v)
	}
	if planes == 0 {
		return shared
	}
	k.VMOVDQU(w.Offset(32*(i/4)*(planes-1)), t)
	shift := low - i // of what is to get to bit low
	mask := words(k.Context, "bit4", 0x10101010)
	switch {
	case low == 2:
		mask = words(k.Context, "bit2", 0x04040404)
	case planes == 2:
		shift = 4 - 2*(i%4)
		mask = words(k.Context, "bits45", 0x30303030)
	}
	if shift > 0 {
		k.VPSLLW(U8(shift), t, t)
	} else if shift < 0 {
		k.VPSRLW(U8(-shift), t, t)
	}
	k.VPAND(mask, t, t)
	k.VPOR(t, v, v)
	return shared
}

// table is a constant of 16 bytes, twice.
func table(c *build.Context, name string, b []byte) Mem {
	var w [4]uint32
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words(c, name, w[:]...)
}

// halves sums the products of weights of 8 bits, whose nibbles are multiplied each on its own: the
// products of whole bytes would not fit into 16 bits.
func (k *kernel) halves(w Mem, total [4]reg.VecVirtual) {
	sixteen := words(k.Context, "sixteen16", 0x00100010)
	var lows, highs [4]reg.VecVirtual
	low, high, t := k.YMM(), k.YMM(), k.YMM()
	order := inOrder
	if k.codes != nil {
		order = inPairs
	}
	for n, i := range order {
		if k.codes != nil {
			k.codeHalves(w, i, low, high)
		} else {
			k.VMOVDQU(w.Offset(32*i), high)
			k.VPAND(k.low, high, low)
			k.VPSRLW(U8(4), high, high)
			k.VPAND(k.low, high, high)
		}
		for r := range k.rows {
			if n == 0 {
				lows[r], highs[r] = total[r], k.YMM()
				k.VPBROADCASTD(k.activation(r, 4*i), t)
				k.VPMADDUBSW(t, low, lows[r])
				k.VPMADDUBSW(t, high, highs[r])
				continue
			}
			k.VPBROADCASTD(k.activation(r, 4*i), t)
			u := k.YMM()
			k.VPMADDUBSW(t, low, u)
			k.VPADDW(u, lows[r], lows[r])
			k.VPMADDUBSW(t, high, t)
			k.VPADDW(t, highs[r], highs[r])
		}
	}
	for r := range k.rows {
		k.VPMADDWD(k.ones, lows[r], lows[r])
		k.VPMADDWD(sixteen, highs[r], highs[r])
		k.VPADDD(highs[r], lows[r], lows[r])
	}
}

// codeHalves loads the low and the high nibbles of the numbers that vector i has the codes of.
func (k *kernel) codeHalves(w Mem, i int, low, high reg.VecVirtual) {
	var lows, highs []byte
	for _, c := range k.codes {
		lows, highs = append(lows, c&15), append(highs, c>>4)
	}
	upper := k.YMM()
	k.VMOVDQU(w.Offset(32*(i%4)), high)
	if i >= 4 {
		k.VPSRLW(U8(4), high, high)
	}
	k.VPAND(k.low, high, high)
	k.VMOVDQU(table(k.Context, "codesLow", lows), low)
	k.VPSHUFB(high, low, low)
	k.VMOVDQU(table(k.Context, "codesHigh", highs), upper)
	k.VPSHUFB(high, upper, high)
}
