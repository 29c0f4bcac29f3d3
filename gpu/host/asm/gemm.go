package main

import (
	"math"

	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gemm generates the kernels of matrix multiplication, and of the activations' quantisation, and what measures
// how fast they can be.
func gemm(c *build.Context) {
	read(c)
	peak(c)
	quantise(c)
	for _, f := range formats {
		for _, rows := range []int{1, 2, 4} {
			multiply(c, f, rows)
		}
	}
	for _, kind := range []string{"F32", "F16", "BF16"} {
		for _, rows := range []int{1, 2, 4} {
			multiplyFloats(c, kind, rows)
		}
	}
}

// A block of quantised activations, octets in gpu/host/octets.go: 32 signed bytes, their scale, scale ×
// sum, 8 × sum as an integer, and the sums of the first and the last 16 as 16-bit integers.
const (
	octetsBytes = 64
	octetScale  = 32
	octetSum    = 36
	octetEights = 40
	octetHalves = 44
)

// quantise generates the twin of quantise in gpu/host/octets.go.
func quantise(c *build.Context) {
	function(c, "quantiseAVX2", "func(q *int8, x *float32, blocks int)",
		"quantiseAVX2 is quantise for blocks × 32 values: q points at the first of as many octets.")
	q, x, blocks := argument(c, "q"), argument(c, "x"), argument(c, "blocks")

	absolute := words(c, "absolute", 0x7fffffff)
	order := words(c, "order", 0, 4, 1, 5, 2, 6, 3, 7)
	ones8, ones16 := words(c, "ones8", 0x01010101), words(c, "ones16", 0x00010001)
	full, least := words(c, "full", math.Float32bits(127)), words(c, "least", math.Float32bits(0x1p-100))
	infinity, nan := words(c, "infinity", 0x7f800000), words(c, "nan", 0x7fc00000)

	c.Label("block")
	c.TESTQ(blocks, blocks)
	c.JZ(LabelRef("done"))

	var v, t [4]reg.VecVirtual
	for i := range v {
		v[i], t[i] = c.YMM(), c.YMM()
		c.VMOVUPS(Mem{Base: x, Disp: 32 * i}, v[i])
		c.VANDPS(absolute, v[i], t[i])
	}
	// Absolute values are in the order of their bits, and a NaN's are above infinity's.
	c.VPMAXUD(t[1], t[0], t[0])
	c.VPMAXUD(t[3], t[2], t[2])
	c.VPMAXUD(t[2], t[0], t[0])
	reduce(c, c.VPMAXUD, t[0])
	top := t[0].AsX()
	c.VUCOMISS(infinity, top)
	c.JCC(LabelRef("broken")) // the carry is set when top is less,
	c.JP(LabelRef("broken"))  // and with the parity when it is a NaN
	c.VUCOMISS(least, top)
	c.JCS(LabelRef("zero"))

	scale, up := c.XMM(), c.YMM()
	c.VDIVSS(full, top, scale)
	c.VMOVSS(full, up.AsX())
	c.VDIVSS(top, up.AsX(), up.AsX())
	c.VBROADCASTSS(up.AsX(), up)
	for i := range v {
		c.VMULPS(up, v[i], v[i])
		c.VCVTPS2DQ(v[i], v[i]) // to nearest even
	}
	c.VPACKSSDW(v[1], v[0], v[0])
	c.VPACKSSDW(v[3], v[2], v[2])
	c.VPACKSSWB(v[2], v[0], v[0])
	c.VMOVDQU(order, v[1])
	c.VPERMD(v[0], v[1], v[0])

	sum, halves := c.YMM(), c.XMM()
	c.VMOVDQU(ones8, sum)
	c.VPMADDUBSW(v[0], sum, sum) // pairs
	c.VPMADDWD(ones16, sum, sum) // fours
	c.VPHADDD(sum, sum, sum)
	c.VPHADDD(sum, sum, sum) // a half in each word of 128 bits
	c.VEXTRACTI128(U8(1), sum, halves)
	c.VPUNPCKLDQ(halves, sum.AsX(), halves)
	c.VPSRLQ(U8(32), halves, sum.AsX())
	c.VPADDD(halves, sum.AsX(), sum.AsX())
	c.VPACKSSDW(halves, halves, halves)
	f := c.XMM()
	c.VCVTDQ2PS(sum.AsX(), f)
	c.VMULSS(scale, f, f)
	c.VPSLLD(U8(3), sum.AsX(), sum.AsX())

	c.Label("store")
	c.VMOVDQU(v[0], Mem{Base: q})
	c.VMOVSS(scale, Mem{Base: q, Disp: octetScale})
	c.VMOVSS(f, Mem{Base: q, Disp: octetSum})
	c.VMOVD(sum.AsX(), Mem{Base: q, Disp: octetEights})
	c.VMOVD(halves, Mem{Base: q, Disp: octetHalves})
	c.ADDQ(U8(octetsBytes), q)
	c.ADDQ(U32(128), x)
	c.DECQ(blocks)
	c.JMP(LabelRef("block"))

	c.Label("broken")
	c.VMOVSS(nan, scale)
	c.JMP(LabelRef("empty"))
	c.Label("zero")
	c.VPXOR(scale, scale, scale)
	c.Label("empty")
	c.VPXOR(v[0], v[0], v[0])
	c.VPXOR(sum, sum, sum)
	c.VPXOR(halves, halves, halves)
	c.VMOVAPS(scale, f)
	c.JMP(LabelRef("store"))

	c.Label("done")
	end(c)
}

// reduce combines the eight 32-bit words of v into its lowest.
func reduce(c *build.Context, combine func(...Op), v reg.VecVirtual) {
	t, x := c.XMM(), v.AsX()
	c.VEXTRACTI128(U8(1), v.AsY(), t)
	combine(t, x, x)
	c.VPSHUFD(U8(0x4e), x, t)
	combine(t, x, x)
	c.VPSHUFD(U8(0xb1), x, t)
	combine(t, x, x)
}
