package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// packed is a type of packed weights: see gpu/host/pack.go for what lies where. All of them are unsigned
// integers of bits bits, which are multiplied by signed bytes.
type packed struct {
	name string
	bits int
	// Weights are too large by 8 << offset, or with offset < 0 as they are. That is mended in integers.
	offset int
	// minimum says that what a block of weights begins at is added, as a float times the activations' sum.
	minimum bool
	// super says that blocks come in eights, with scales that are products.
	super bool
	// sixteens says that each 16 columns have a scale of their own.
	sixteens bool
}

var formats = []packed{
	{name: "Q4_0", bits: 4, offset: 0},
	{name: "Q4_1", bits: 4, offset: -1, minimum: true},
	{name: "Q5_0", bits: 5, offset: 1},
	{name: "Q5_1", bits: 5, offset: -1, minimum: true},
	{name: "Q8_0", bits: 8, offset: 4},
	{name: "Q4_K", bits: 4, offset: -1, minimum: true, super: true},
	{name: "Q5_K", bits: 5, offset: -1, minimum: true, super: true},
	{name: "Q6_K", bits: 6, offset: 2, super: true, sixteens: true},
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
			at := Mem{Base: f.w, Disp: size * i}
			switch kind {
			case "F32":
				c.VMOVUPS(at, v)
			case "F16":
				c.VCVTPH2PS(at, v)
			case "BF16":
				c.VPMOVZXWD(at, v)
				c.VPSLLD(U8(16), v, v)
			}
			for r := range rows {
				c.VBROADCASTSS(rowAt(column, f.xStride, f.xStride3, r, 4*i), t)
				c.VMULPS(v, t, t)
				c.VADDPS(t, sums[r][i], sums[r][i])
			}
		}
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
	argument := func(name string) reg.Register { return c.Load(c.Param(name), c.GP64()) }
	f := &frame{
		Context: c, rows: rows, w: argument("w"), groups: argument("groups"), records: argument("records"),
		x: argument("x"), xStride: argument("xStride"), y: argument("y"), yStride: argument("yStride"),
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
	f.VZEROUPPER()
	f.RET()
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
	header := 16
	if k.minimum && !k.super {
		header = 32
	}
	var total [4]reg.VecVirtual // of 32 bits
	for r := range k.rows {
		total[r] = k.YMM()
	}
	size := 0
	if k.bits == 8 {
		size = k.bytes(Mem{Base: k.w, Disp: header}, total)
	} else {
		size = k.nibbles(Mem{Base: k.w}, header, total)
	}
	scale, minimum := k.YMM(), k.YMM()
	switch {
	case k.sixteens:
		k.VCVTPH2PS(Mem{Base: k.scales}, scale)
	case k.super:
		t := k.YMM()
		k.VPMOVZXBD(Mem{Base: k.w}, scale)
		k.VCVTDQ2PS(scale, scale)
		k.VCVTPH2PS(Mem{Base: k.scales}, t)
		k.VMULPS(t, scale, scale)
		k.VPMOVZXBD(Mem{Base: k.w, Disp: 8}, minimum)
		k.VCVTDQ2PS(minimum, minimum)
		k.VCVTPH2PS(Mem{Base: k.scales, Disp: 16}, t)
		k.VMULPS(t, minimum, minimum)
	default:
		k.VCVTPH2PS(Mem{Base: k.w}, scale)
		if k.minimum {
			k.VCVTPH2PS(Mem{Base: k.w, Disp: 16}, minimum)
		}
	}
	t := k.YMM()
	for r := range k.rows {
		if k.offset >= 0 && !k.sixteens {
			k.VPBROADCASTD(k.activation(r, octetEights), t)
			if k.offset > 0 {
				k.VPSLLD(U8(k.offset), t, t)
			}
			k.VPSUBD(t, total[r], total[r])
		}
		// Products are rounded before they are added, as the twin does it.
		k.VCVTDQ2PS(total[r], total[r])
		k.VBROADCASTSS(k.activation(r, octetScale), t)
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

// nibbles sums the products of weights of 4, 5 or 6 bits: vectors of nibbles, after one or two with the
// higher bits.
func (k *kernel) nibbles(w Mem, header int, total [4]reg.VecVirtual) int {
	planes := k.bits - 4
	high, base := w.Offset(header), w.Offset(header+32*planes)
	var scales reg.VecVirtual // of the 16s: both, as 16-bit integers
	if k.sixteens {
		scales = k.YMM()
		k.VPMOVSXBW(w, scales)
	}
	// How many products of 2 columns fit into 16 bits: 15, 31 or 63 × 127 × 2 each.
	flush := 8 >> planes
	var acc [4]reg.VecVirtual
	// Both vectors of nibbles that share bytes follow each other, unless they have different scales.
	order := []int{0, 4, 1, 5, 2, 6, 3, 7}
	if k.sixteens {
		order = []int{0, 1, 2, 3, 4, 5, 6, 7}
	}
	v, t := k.YMM(), k.YMM()
	var shared reg.VecVirtual
	for n, i := range order {
		switch {
		case k.sixteens:
			k.VMOVDQU(base.Offset(32*(i%4)), v)
			if i >= 4 {
				k.VPSRLW(U8(4), v, v)
			}
		case i < 4:
			shared = k.YMM()
			k.VMOVDQU(base.Offset(32*i), shared)
			k.VPAND(k.low, shared, v)
		default:
			k.VPSRLW(U8(4), shared, v)
		}
		if k.sixteens || i >= 4 {
			k.VPAND(k.low, v, v)
		}
		if planes > 0 {
			k.VMOVDQU(high.Offset(32*(i/4)*(planes-1)), t)
			shift := 4 - i // of what is to get to bit 4
			mask := words(k.Context, "bit4", 0x10101010)
			if planes == 2 {
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
	if k.sixteens {
		for r := range k.rows {
			k.VPBROADCASTD(k.activation(r, octetHalves), t)
			k.VPMADDWD(scales, t, t)
			k.VPSLLD(U8(3+k.offset), t, t)
			k.VPSUBD(t, total[r], total[r])
		}
	}
	return 32*planes + 128
}

// bytes sums the products of weights of 8 bits, whose nibbles are multiplied each on its own: the
// products of whole bytes would not fit into 16 bits.
func (k *kernel) bytes(w Mem, total [4]reg.VecVirtual) int {
	sixteen := words(k.Context, "sixteen16", 0x00100010)
	var lows, highs [4]reg.VecVirtual
	low, high, t := k.YMM(), k.YMM(), k.YMM()
	for i := range 8 {
		k.VMOVDQU(w.Offset(32*i), high)
		k.VPAND(k.low, high, low)
		k.VPSRLW(U8(4), high, high)
		k.VPAND(k.low, high, high)
		for r := range k.rows {
			if i == 0 {
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
	return 256
}
