package main

import (
	"math"

	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand" //nolint:staticcheck // operands read as in assembly
	"github.com/mmcloughlin/avo/reg"
)

// codes emits what package gguf quantises with. A lane is a part of a block, whose values lie apart: of the 32
// in turn, eight parts' x, their weights w and the products wx.
func codes(c *build.Context) {
	k := codesKernels{c}
	k.weigh()
	k.sumCodes()
	k.roundCodes()
}

type codesKernels struct{ *build.Context }

// Where a value has its weights and products, and how far apart values are, in bytes.
const (
	atW     = 32
	atWX    = 64
	perPart = 96
	inPart  = 32
)

func (k codesKernels) pointer(name string) reg.GPVirtual { return argument(k.Context, name) }

// zeros are n vectors of zeros.
func (k codesKernels) zeros(n int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for i := range v {
		v[i] = k.YMM()
		k.VXORPS(v[i], v[i], v[i])
	}
	return v
}

// word is a vector of equal words.
func (k codesKernels) word(name string, bits uint32) reg.VecVirtual {
	v := k.YMM()
	k.VMOVUPS(words(k.Context, name, bits), v)
	return v
}

// eachValue goes through values.
func (k codesKernels) eachValue(label string, values reg.GPVirtual, emit func(at reg.GPVirtual)) {
	at, left := k.GP64(), k.GP64()
	k.MOVQ(values, at)
	k.MOVQ(U32(inPart), left)
	k.Label(label)
	emit(at)
	k.ADDQ(U8(perPart), at)
	k.DECQ(left)
	k.JNZ(LabelRef(label))
}

// add adds v to sum.
func (k codesKernels) add(v, sum reg.VecVirtual) { k.VADDPS(v, sum, sum) }

func (k codesKernels) end() { end(k.Context) }

// finish stores results and ends the function.
func (k codesKernels) finish(to reg.GPVirtual, results []reg.VecVirtual) {
	for i, v := range results {
		k.VMOVUPS(v, Mem{Base: to, Disp: 32 * i})
	}
	k.end()
}

// weigh emits the twin of weighGo.
func (k codesKernels) weigh() {
	function(k.Context, "weighAVX2", "func(totals, values *float32)",
		"weighAVX2 is weighGo: values are 32 times eight of x, w and wx, and totals eight of each.")
	totals, values := k.pointer("totals"), k.pointer("values")
	least, most := k.YMM(), k.YMM()
	k.VMOVUPS(Mem{Base: values}, least)
	k.VMOVUPS(Mem{Base: values}, most)
	mean := k.zeros(1)[0]
	k.eachValue("measure", values, func(at reg.GPVirtual) {
		x := k.YMM()
		k.VMOVUPS(Mem{Base: at}, x)
		k.VMINPS(x, least, least)
		k.VMAXPS(x, most, most)
		k.VMULPS(x, x, x)
		k.add(x, mean)
	})
	k.VMULPS(k.word("thirtySecond", math.Float32bits(1./32)), mean, mean)
	k.VSQRTPS(mean, mean)
	absolute, sums := k.word("absolute", 1<<31-1), k.zeros(3)
	k.eachValue("weigh", values, func(at reg.GPVirtual) {
		x, w, wx := k.YMM(), k.YMM(), k.YMM()
		k.VMOVUPS(Mem{Base: at}, x)
		k.VANDPS(absolute, x, w)
		k.add(mean, w)
		k.VMULPS(x, w, wx)
		k.VMOVUPS(w, Mem{Base: at, Disp: atW})
		k.VMOVUPS(wx, Mem{Base: at, Disp: atWX})
		k.add(w, sums[0])
		k.add(wx, sums[1])
		k.VMULPS(x, wx, wx)
		k.add(wx, sums[2])
	})
	k.finish(totals, append([]reg.VecVirtual{least, most}, sums...))
}

// sumCodes emits the twin of sumCodesGo.
func (k codesKernels) sumCodes() {
	function(k.Context, "sumCodesAVX2", "func(sums, values, inverse, zero *float32)",
		"sumCodesAVX2 is sumCodesGo: values are 32 times eight of x, w and wx, and sums eight of each.")
	sums, values := k.pointer("sums"), k.pointer("values")
	inverse, zero := k.YMM(), k.YMM()
	k.VMOVUPS(Mem{Base: k.pointer("inverse")}, inverse)
	k.VMOVUPS(Mem{Base: k.pointer("zero")}, zero)
	half, top, sum := k.word("half", math.Float32bits(0.5)), k.word("top", 15), k.zeros(3)
	none := k.zeros(1)[0]
	k.eachValue("value", values, func(at reg.GPVirtual) {
		code, wl := k.YMM(), k.YMM()
		k.VMOVUPS(Mem{Base: at}, code)
		k.VSUBPS(zero, code, code)
		k.VMULPS(inverse, code, code)
		k.add(half, code)
		k.VCVTTPS2DQ(code, code)
		k.VPMAXSD(none, code, code)
		k.VPMINSD(top, code, code)
		k.VCVTDQ2PS(code, code)
		k.VMULPS(Mem{Base: at, Disp: atW}, code, wl)
		k.add(wl, sum[0])
		k.VMULPS(code, wl, wl)
		k.add(wl, sum[1])
		k.VMULPS(Mem{Base: at, Disp: atWX}, code, wl)
		k.add(wl, sum[2])
	})
	k.finish(sums, sum)
}

// roundCodes emits the twin of roundCodesGo.
func (k codesKernels) roundCodes() {
	function(k.Context, "roundCodesAVX2", "func(codes *byte, x, least, step *float32)",
		"roundCodesAVX2 is roundCodesGo, for eight parts of 32 values.")
	codes, x, least, step := k.pointer("codes"), k.pointer("x"), k.pointer("least"), k.pointer("step")
	top, none := k.word("most", math.Float32bits(15)), k.zeros(1)[0]
	order := k.YMM()
	k.VMOVDQU(words(k.Context, "order", 0, 4, 1, 5, 2, 6, 3, 7), order)
	pairs := k.GP64()
	k.MOVQ(U32(4), pairs)
	k.Label("pair")
	var low [2]reg.VecVirtual // of both parts
	var size [2]reg.VecVirtual
	for i := range low {
		low[i], size[i] = k.YMM(), k.YMM()
		k.VBROADCASTSS(Mem{Base: least, Disp: 4 * i}, low[i])
		k.VBROADCASTSS(Mem{Base: step, Disp: 4 * i}, size[i])
	}
	var v [4]reg.VecVirtual
	for i := range v {
		var both [2]reg.VecVirtual
		for j := range both {
			both[j] = k.YMM()
			k.VADDPS(Mem{Base: x, Disp: 128*j + 32*i}, low[j], both[j])
			k.VDIVPS(size[j], both[j], both[j])
			k.VMINPS(top, both[j], both[j])
			k.VMAXPS(none, both[j], both[j])
			k.VCVTPS2DQ(both[j], both[j])
		}
		k.VPSLLD(U8(4), both[1], both[1])
		k.VPOR(both[0], both[1], both[0])
		v[i] = both[0]
	}
	k.VPACKUSDW(v[1], v[0], v[0])
	k.VPACKUSDW(v[3], v[2], v[2])
	k.VPACKUSWB(v[2], v[0], v[0])
	k.VPERMD(v[0], order, v[0])
	k.VMOVDQU(v[0], Mem{Base: codes})
	k.ADDQ(U8(32), codes)
	k.ADDQ(U32(256), x)
	k.ADDQ(U8(8), least)
	k.ADDQ(U8(8), step)
	k.DECQ(pairs)
	k.JNZ(LabelRef("pair"))
	k.end()
}
