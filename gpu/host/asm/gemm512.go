package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// rows512 are the activation rows that there are kernels for: 12 take 24 of 32 registers for their sums.
var rows512 = []int{1, 2, 4, 8, 12}

// gemm512 generates the kernels of matrix multiplication for AVX-512 with VNNI, and of the activations'
// quantisation, and what measures how fast they can be.
func gemm512(c *build.Context) {
	peak512(c)
	quantise512(c)
	for _, f := range formats {
		for _, rows := range rows512 {
			multiply512(c, f, rows)
		}
	}
	for _, kind := range []string{"F32", "F16", "BF16"} {
		for _, rows := range rows512 {
			multiplyFloats512(c, kind, rows)
		}
	}
}

// In a block of activations for AVX-512, wideOctets in gpu/host/octets.go, what is behind the scale and scale ×
// sum is where sums of products begin: the bits of magic, less 8, 16 or 128 times the sum of all values, or 32
// times that of the first or the last 16; and then the sums of both halves as 16-bit integers.
const (
	octetZero8      = 40
	octetZero16     = 44
	octetZero128    = 48
	octetZeroFirst  = 52
	octetZeroLast   = 56
	octetWideHalves = 60
)

// fetchAhead asks for as many bytes of weights as are read in a round, so that they come from memory in time:
// processors that fetch ahead of themselves stop at each page, which costs a third of memory's speed and more.
// Where rows are few weights only have to come as far as the second-level cache.
func fetchAhead(c *build.Context, w reg.Register, bytes, rows int) {
	const ahead = 4096
	for at := 0; at < bytes; at += 64 {
		if m := (Mem{Base: w, Disp: ahead + at}); rows <= 4 {
			c.PREFETCHT1(m)
		} else {
			c.PREFETCHT0(m)
		}
	}
}

// kernel512 is what multiply512 passes around.
type kernel512 struct {
	*build.Context
	packed
	rows   int
	w      reg.Register // the weights at hand
	column reg.Register // the activations' blocks, panelMiddle bytes in
	sums   [12]reg.VecVirtual
	acc    [12]reg.VecVirtual // sums of a block, or of half a block, in integers: see begin
	more   [12]reg.VecVirtual // the same of its other half, where rows are few
	low    reg.VecVirtual     // the mask of a byte's bits that are not in planes,
	high   reg.VecVirtual     // and of those that are
	table  reg.VecVirtual     // of codes
	magic  reg.VecVirtual
	// Of a super-block, for each weight row.
	superScale, superMinimum reg.VecVirtual
}

// multiply512 generates the product of groups × 16 weight rows and some activation rows.
//
// A vector of weights holds 16 rows × 4 columns, so that all sums stay in lanes. VPDPBUSD multiplies them by
// four activations, which it takes from memory, and adds the sums to 32-bit integers. Those begin at what
// weights are too large by, times the activations' sum, so that nothing has to be mended later, and at the
// bits of a large float, so that nothing has to be converted. An activation row then costs two operations on
// floats, or three where there are minima, for eight of VPDPBUSD; what is done to weights alone is shared by
// all activation rows.
func multiply512(c *build.Context, f packed, rows int) {
	name := fmt.Sprintf("multiply%sx%dAVX512", f.name, rows)
	function(c, name, "func(w *byte, groups, records int, x *byte, xStride int, y *float32, yStride int)",
		fmt.Sprintf("%s is a kernel for a panel of %d rows of activations. Its twin is wideTwin.", name, rows))
	k := &kernel512{Context: c, packed: f, rows: rows, w: argument(c, "w"), column: c.GP64()}
	groups, records, x := argument(c, "groups"), argument(c, "records"), argument(c, "x")
	y, yStride := argument(c, "y"), argument(c, "yStride")
	n, inner, to := c.GP64(), c.GP64(), c.GP64()
	switch {
	case f.bits < 4:
		k.low = k.constant(fmt.Sprint("pair", f.up()), 0x03030303<<f.up())
	case f.bits < 8:
		k.low = k.constant("low", 0x0f0f0f0f)
	}
	switch f.bits {
	case 3:
		k.high = k.constant("bit5", 0x20202020)
	case 5:
		k.high = k.constant("bit4", 0x10101010)
	case 6:
		k.high = k.constant("bits45", 0x30303030)
	}
	if f.codes != nil {
		k.table = c.ZMM()
		c.VBROADCASTI32X4(table(c, "codes"+f.name, f.codes), k.table)
	}
	k.magic = k.constant("magic", magic)
	for r := range rows {
		k.sums[r], k.acc[r] = c.ZMM(), c.ZMM()
		if k.split() {
			k.more[r] = c.ZMM()
		}
	}

	c.Label("group")
	c.TESTQ(groups, groups)
	c.JZ(LabelRef("done"))
	for r := range rows {
		c.VPXORD(k.sums[r], k.sums[r], k.sums[r])
	}
	c.LEAQ(Mem{Base: x, Disp: panelMiddle}, k.column)
	c.MOVQ(records, n)
	c.Label("blocks")
	if f.super {
		k.superScale = c.ZMM()
		c.VCVTPH2PS(Mem{Base: k.w}, k.superScale)
		if up := f.up(); up > 0 {
			c.VMULPS_BCST(words(c, "down", math.Float32bits(1/float32(int(1)<<up))), k.superScale, k.superScale)
		}
		size := 32
		if f.minimum {
			k.superMinimum = c.ZMM()
			c.VCVTPH2PS(Mem{Base: k.w, Disp: 32}, k.superMinimum)
			size = 64
		}
		c.ADDQ(U8(size), k.w)
		c.MOVQ(U32(8), inner)
		c.Label("inner")
	}
	size := k.block()
	fetchAhead(c, k.w, size, rows)
	c.ADDQ(U32(size), k.w)
	c.ADDQ(U32(rows*octetsBytes), k.column)
	if f.super {
		c.DECQ(inner)
		c.JNZ(LabelRef("inner"))
	}
	c.DECQ(n)
	c.JNZ(LabelRef("blocks"))
	endGroup(c, y, yStride, to, groups, rows, func(r int) reg.VecVirtual { return k.sums[r] })
}

// endGroup stores the sums of a group of 16 weight rows, for each activation row, and generates the end of the
// loop over groups and of the function. to is a register for the way there.
func endGroup(c *build.Context, y, yStride, to, groups reg.Register, rows int, sum func(r int) reg.VecVirtual) {
	c.MOVQ(y, to)
	for r := range rows {
		c.VMOVUPS(sum(r), Mem{Base: to})
		if r < rows-1 {
			c.ADDQ(yStride, to)
		}
	}
	c.ADDQ(U8(64), y)
	c.DECQ(groups)
	c.JMP(LabelRef("group"))
	c.Label("done")
	end(c)
}

// constant is a register with value in each of its words.
func (k *kernel512) constant(name string, value uint32) reg.VecVirtual {
	v := k.ZMM()
	k.VPBROADCASTD(words(k.Context, name, value), v)
	return v
}

// activation addresses the block of activation row r, disp bytes in.
func (k *kernel512) activation(r, disp int) Mem {
	return Mem{Base: k.column, Disp: r*octetsBytes + disp - panelMiddle}
}

// panelMiddle makes the distances to all words of a panel short enough for a byte.
const panelMiddle = 384

// block adds the products of the block at w, 32 columns of 16 rows, and returns how many bytes it has.
func (k *kernel512) block() int {
	header := 2 * k.header() // which is for 8 rows
	if k.sixteens {
		k.sixteenths(header)
		return header + 64*k.bits
	}
	k.begin(map[int]int{0: -1, 8: octetZero8, 16: octetZero16, 128: octetZero128}[k.zero])
	order := inPairs
	if k.bits == 8 {
		order = inOrder
	}
	for n, i := range order {
		k.products(k.weights(header, i), n, i)
	}
	scale, minimum := k.ZMM(), k.ZMM()
	switch {
	case k.super:
		if k.codes != nil {
			k.VPMOVSXBD(Mem{Base: k.w}, scale)
		} else {
			k.VPMOVZXBD(Mem{Base: k.w}, scale)
		}
		k.times(k.superScale, scale)
		if k.minimum {
			k.VPMOVZXBD(Mem{Base: k.w, Disp: 16}, minimum)
			k.times(k.superMinimum, minimum)
		}
	case k.upper:
		k.VPMOVZXWD(Mem{Base: k.w}, scale)
		k.VPSLLD(U8(16), scale, scale)
	default:
		k.VCVTPH2PS(Mem{Base: k.w}, scale)
		if k.minimum {
			k.VCVTPH2PS(Mem{Base: k.w, Disp: 32}, minimum)
		}
	}
	k.finish(scale)
	if k.minimum {
		for r := range k.rows {
			k.VFMADD231PS_BCST(k.activation(r, octetSum), minimum, k.sums[r])
		}
	}
	return header + 64*k.bits
}

// sixteenths is block where the first and the last 16 columns have scales of their own, one after the other:
// signed bytes, or where there are minima, the lower nibbles.
func (k *kernel512) sixteenths(header int) {
	for half := range 2 {
		switch {
		case k.zero == 0:
			k.begin(-1)
		case half == 0:
			k.begin(octetZeroFirst)
		default:
			k.begin(octetZeroLast)
		}
		for i := 4 * half; i < 4*half+4; i++ {
			k.products(k.weights(header, i), i, i)
		}
		scale := k.ZMM()
		k.VPMOVZXWD(Mem{Base: k.w}, scale)
		if k.minimum {
			if half == 1 {
				k.VPSRLD(U8(8), scale, scale)
			}
			k.VPANDD_BCST(words(k.Context, "low32", 15), scale, scale)
		} else {
			k.VPSLLD(U8(24-8*uint8(half)), scale, scale)
			k.VPSRAD(U8(24), scale, scale)
		}
		k.times(k.superScale, scale)
		k.finish(scale)
	}
	if !k.minimum {
		return
	}
	// Both minima as 16-bit integers, which are multiplied by the activations' sums.
	minima, t := k.ZMM(), k.ZMM()
	k.VPMOVZXWD(Mem{Base: k.w}, minima)
	k.VPSLLD(U8(4), minima, t)
	k.VPSRLD(U8(4), minima, minima)
	k.VPANDD_BCST(words(k.Context, "low32", 15), minima, minima)
	k.VPANDD_BCST(words(k.Context, "low16High", 0x000f0000), t, t)
	k.VPORD(t, minima, minima)
	k.begin(-1)
	for r := range k.rows {
		dot(k.Context, "VPDPWSSD", k.activation(r, octetWideHalves), minima, k.acc[r])
	}
	k.finish(k.superMinimum)
}

// magic is 1.5 × 2²³ as a float. An integer of less than 2²² added to its bits is added to its value.
const magic = 0x4b400000

// begin sets the integers to the bits of magic, and what is at zero in the activations' blocks if it isn't −1.
func (k *kernel512) begin(zero int) {
	for r := range k.rows {
		if zero < 0 {
			k.VMOVDQA32(k.magic, k.acc[r])
		} else {
			k.VPBROADCASTD(k.activation(r, zero), k.acc[r])
		}
		if k.split() {
			k.VPXORD(k.more[r], k.more[r], k.more[r])
		}
	}
}

// split says that integers are summed in two parts, since the sums of so few rows would wait for each other.
func (k *kernel512) split() bool { return k.rows <= 4 }

// weights is vector i of a block.
func (k *kernel512) weights(header, i int) reg.VecVirtual {
	v := k.ZMM()
	vector := func(i int) Mem { return Mem{Base: k.w, Disp: header + 64*i} }
	if k.bits == 8 {
		k.VMOVDQU64(vector(i), v)
		return v
	}
	low := 4 // bits of those that are not in planes
	if k.bits < 4 {
		low = 2
	}
	planes := k.bits - low
	if low == 4 {
		k.shift(vector(planes+i%4), i/4*4, v)
	} else {
		k.shift(vector(planes+i/4), i%4*2-k.up(), v)
	}
	k.VPANDD(k.low, v, v)
	if planes > 0 {
		from := i // the plane's bit in its byte
		if planes == 2 {
			from = i % 4 * 2
		}
		t := k.ZMM()
		k.shift(vector(i/4*(planes-1)), from-low-k.up(), t)
		k.VPTERNLOGD(U8(0xf8), k.high, t, v) // v | t & high
	}
	if k.codes != nil {
		k.VPSHUFB(v, k.table, v)
	}
	return v
}

// shift loads a vector and shifts its bytes to the right, or with n < 0 to the left, along with bits of others.
func (k *kernel512) shift(from Mem, n int, v reg.VecVirtual) {
	k.VMOVDQU64(from, v)
	if n > 0 {
		k.VPSRLW(U8(n), v, v)
	} else if n < 0 {
		k.VPSLLW(U8(-n), v, v)
	}
}

// up is how many bits integers are moved up, and so multiplied: those of 3 bits by 8, so that 32 stands for 0
// as in 6 bits.
func (f *packed) up() int {
	if f.bits == 3 {
		return 3
	}
	return 0
}

// products adds those of vector i, which is the nth.
func (k *kernel512) products(v reg.VecVirtual, n, i int) {
	for r := range k.rows {
		acc := k.acc[r]
		if k.split() && n%2 == 1 {
			acc = k.more[r]
		}
		dot(k.Context, "VPDPBUSD", k.activation(r, 4*i), v, acc)
	}
}

// times makes integers floats and multiplies them.
func (k *kernel512) times(by, v reg.VecVirtual) {
	k.VCVTDQ2PS(v, v)
	k.VMULPS(by, v, v)
}

// finish adds the integers, times both scales, to the sums. Scales have so few bits that magic × scale is
// exact, and the difference is the product of integer and scale, rounded once.
func (k *kernel512) finish(scale reg.VecVirtual) {
	less := k.ZMM()
	k.VMULPS(k.magic, scale, less)
	for r := range k.rows {
		if k.split() {
			k.VPADDD(k.more[r], k.acc[r], k.acc[r])
		}
		k.VFMSUB132PS(scale, less, k.acc[r])
		k.VFMADD231PS_BCST(k.activation(r, octetScale), k.acc[r], k.sums[r])
	}
}

// dot is VPDPBUSD or VPDPWSSD with 32 bits from memory for all words; avo doesn't know them.
func dot(c *build.Context, name string, x Mem, w, acc reg.VecVirtual) {
	c.Instruction(&ir.Instruction{
		Opcode: name, Suffixes: []string{"BCST"}, ISA: []string{"AVX512VNNI"},
		Operands: []Op{x, w, acc}, Inputs: []Op{x, w, acc}, Outputs: []Op{acc},
	})
}

// dotRegisters is VPDPBUSD without memory, as the named extensions have it.
func dotRegisters(c *build.Context, x, w, acc reg.VecVirtual, extensions ...string) {
	c.Instruction(&ir.Instruction{
		Opcode: "VPDPBUSD", ISA: extensions,
		Operands: []Op{x, w, acc}, Inputs: []Op{x, w, acc}, Outputs: []Op{acc},
	})
}

// multiplyFloats512 generates the product of groups × 16 weight rows and some activation rows that are
// float32. A record has two columns, whose products go to a sum each: one addition would wait for the last.
func multiplyFloats512(c *build.Context, kind string, rows int) {
	name := fmt.Sprintf("multiply%sx%dAVX512", kind, rows)
	function(c, name, "func(w *byte, groups, records int, x *byte, xStride int, y *float32, yStride int)",
		fmt.Sprintf("%s is a kernel for %d rows of activations. Its twin is wideTwin.", name, rows))
	w, groups, records, x := argument(c, "w"), argument(c, "groups"), argument(c, "records"), argument(c, "x")
	stride, y, yStride := argument(c, "xStride"), argument(c, "y"), argument(c, "yStride")
	n, to, stride3 := c.GP64(), c.GP64(), c.GP64()
	c.LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, stride3)
	var bases []reg.Register // of each four rows
	for range (rows + 3) / 4 {
		bases = append(bases, c.GP64())
	}
	size := 32
	if kind == "F32" {
		size = 64
	}
	var sums [12][2]reg.VecVirtual
	for r := range rows {
		sums[r] = [2]reg.VecVirtual{c.ZMM(), c.ZMM()}
	}

	c.Label("group")
	c.TESTQ(groups, groups)
	c.JZ(LabelRef("done"))
	for r := range rows {
		for i := range 2 {
			c.VPXORD(sums[r][i], sums[r][i], sums[r][i])
		}
	}
	for i, base := range bases {
		if i == 0 {
			c.MOVQ(x, base)
		} else {
			c.LEAQ(Mem{Base: bases[i-1], Index: stride, Scale: 4}, base)
		}
	}
	c.MOVQ(records, n)
	c.Label("record")
	for i := range 2 {
		v := c.ZMM()
		loadFloats(c, kind, Mem{Base: w, Disp: size * i}, v)
		for r := range rows {
			c.VFMADD231PS_BCST(rowAt(bases[r/4], stride, stride3, r%4, 4*i), v, sums[r][i])
		}
	}
	fetchAhead(c, w, 2*size, rows)
	c.ADDQ(U8(2*size), w)
	for _, base := range bases {
		c.ADDQ(U8(8), base)
	}
	c.DECQ(n)
	c.JNZ(LabelRef("record"))
	endGroup(c, y, yStride, to, groups, rows, func(r int) reg.VecVirtual {
		c.VADDPS(sums[r][1], sums[r][0], sums[r][0])
		return sums[r][0]
	})
}

// quantise512 generates the twin of quantise in gpu/host/octets.go.
func quantise512(c *build.Context) {
	function(c, "quantiseAVX512", "func(q *int8, x *float32, blocks, step int)",
		"quantiseAVX512 is quantise for blocks × 32 values: q points at the first of as many wideOctets, which are",
		"step bytes apart.")
	q, x := argument(c, "q"), argument(c, "x")
	blocks, step := argument(c, "blocks"), argument(c, "step")

	full, least := words(c, "full", math.Float32bits(127)), words(c, "least", math.Float32bits(0x1p-100))
	infinity, nan := words(c, "infinity", 0x7f800000), words(c, "nan", 0x7fc00000)
	// What the sum, or those of the first and the last 16, are multiplied by in the words behind the bytes.
	// The first two are written over.
	minus := func(n int32) uint32 { return uint32(-n) }
	order := words(c, "sumOrHalf", 0, 0, 0, 0, 0, 2, 3, 0)
	factors := words(c, "zeros", 0, 0, minus(8), minus(16), minus(128), minus(32), minus(32), 0)

	ones, absolute, orders, times, magics := c.YMM(), c.ZMM(), c.YMM(), c.YMM(), c.YMM()
	c.VPBROADCASTD(words(c, "magic", magic), magics)
	c.VPBROADCASTD(words(c, "ones8", 0x01010101), ones)
	c.VPBROADCASTD(words(c, "absolute", 0x7fffffff), absolute)
	c.VMOVDQU(order, orders)
	c.VMOVDQU(factors, times)

	c.Label("block")
	c.TESTQ(blocks, blocks)
	c.JZ(LabelRef("done"))

	var v, t [2]reg.VecVirtual
	for i := range v {
		v[i], t[i] = c.ZMM(), c.ZMM()
		c.VMOVUPS(Mem{Base: x, Disp: 64 * i}, v[i])
		c.VPANDD(absolute, v[i], t[i])
	}
	// Absolute values are in the order of their bits, and a NaN's are above infinity's.
	c.VPMAXUD(t[1], t[0], t[0])
	c.VEXTRACTI64X4(U8(1), t[0], t[1].AsY())
	c.VPMAXUD(t[1].AsY(), t[0].AsY(), t[0].AsY())
	reduce(c, c.VPMAXUD, t[0])
	top := t[0].AsX()
	c.VUCOMISS(infinity, top)
	c.JCC(LabelRef("broken")) // the carry is set when top is less,
	c.JP(LabelRef("broken"))  // and with the parity when it is a NaN
	c.VUCOMISS(least, top)
	c.JCS(LabelRef("zero"))

	scale, up := c.XMM(), c.ZMM()
	c.VDIVSS(full, top, scale)
	c.VMOVSS(full, up.AsX())
	c.VDIVSS(top, up.AsX(), up.AsX())
	c.VBROADCASTSS(up.AsX(), up)
	for i := range v {
		c.VMULPS(up, v[i], v[i])
		c.VCVTPS2DQ(v[i], v[i]) // to nearest even
		c.VPMOVSDB(v[i], v[i].AsX())
	}
	bytes := c.YMM()
	c.VINSERTI128(U8(1), v[1].AsX(), v[0].AsY(), bytes)

	sums, s := c.YMM(), c.XMM()
	c.VPXOR(sums, sums, sums)
	dotRegisters(c, bytes, ones, sums, "AVX512VNNI", "AVX512VL") // of fours
	c.VPHADDD(sums, sums, sums)
	c.VPHADDD(sums, sums, sums) // a half in each word of 128 bits
	last, halves := c.XMM(), c.XMM()
	c.VEXTRACTI128(U8(1), sums, last)
	c.VPADDD(last, sums.AsX(), s)
	c.VPUNPCKLDQ(last, sums.AsX(), halves)
	c.VPBLENDD(U8(0xc), halves, s, s)
	zeros, f := c.YMM(), c.XMM()
	c.VPERMD(s.AsY(), orders, zeros)
	c.VPMULLD(times, zeros, zeros)
	c.VPACKSSDW(halves, halves, halves)
	c.VPADDD(magics, zeros, zeros)
	c.VCVTDQ2PS(s, f)
	c.VMULSS(scale, f, f)

	c.Label("store")
	c.VMOVDQU(bytes, Mem{Base: q})
	c.VMOVDQU(zeros, Mem{Base: q, Disp: octetScale})
	c.VMOVSS(scale, Mem{Base: q, Disp: octetScale})
	c.VMOVSS(f, Mem{Base: q, Disp: octetSum})
	c.VMOVD(halves, Mem{Base: q, Disp: octetWideHalves})
	c.ADDQ(step, q)
	c.ADDQ(U32(128), x)
	c.DECQ(blocks)
	c.JMP(LabelRef("block"))

	c.Label("broken")
	c.VMOVSS(nan, scale)
	c.JMP(LabelRef("empty"))
	c.Label("zero")
	c.VPXOR(scale, scale, scale)
	c.Label("empty")
	c.VPXOR(bytes, bytes, bytes)
	c.VMOVDQA(magics, zeros)
	c.VPXOR(halves, halves, halves)
	c.VMOVAPS(scale, f)
	c.JMP(LabelRef("store"))

	c.Label("done")
	end(c)
}
