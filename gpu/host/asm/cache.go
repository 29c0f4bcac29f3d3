package main

import (
	"math"

	. "github.com/mmcloughlin/avo/operand" //nolint:staticcheck // operands read as in assembly
	"github.com/mmcloughlin/avo/reg"
)

// quantiseCache emits the twin of quantiseCacheGo, for blocks × 32 values. It takes 8 lanes in any case.
func (k *vectors) quantiseCache() {
	k.begin("quantiseCache", "func(codes *int8, scales *uint16, x *float32, blocks, stride int)",
		"quantiseCache"+k.suffix+" is quantiseCacheGo, for blocks × 32 values.")
	codes, scales, x, blocks, stride := k.pointer("codes"), k.pointer("scales"), k.pointer("x"), k.pointer("blocks"), k.pointer("stride")
	word := func(name string, bits uint32) reg.VecVirtual {
		x := k.YMM()
		k.VMOVUPS(k.constant(name, bits), x)
		return x
	}
	absolute, full, least := word("absolute", 1<<31-1), word("full", math.Float32bits(127)), word("minusFull", math.Float32bits(-127))
	order := k.YMM()
	k.VMOVDQU(words(k.Context, "cacheOrder", 0, 4, 1, 5, 2, 6, 3, 7), order)
	k.Label("block")
	k.TESTQ(blocks, blocks)
	k.JZ(LabelRef("done"))
	var v [4]reg.VecVirtual
	top, t := k.YMM(), k.YMM()
	for i := range v {
		v[i] = k.YMM()
		k.VMOVUPS(Mem{Base: x, Disp: 32 * i}, v[i])
		if i == 0 {
			k.VANDPS(absolute, v[i], top)
			continue
		}
		k.VANDPS(absolute, v[i], t)
		k.VPMAXUD(t, top, top) // absolute values are in the order of their bits, and NaNs above all
	}
	h := k.XMM()
	k.VEXTRACTI128(U8(1), top, h)
	k.VPMAXUD(h, top.AsX(), h)
	k.VPSHUFD(U8(0x4e), h, t.AsX())
	k.VPMAXUD(t.AsX(), h, h)
	k.VPSHUFD(U8(0xb1), h, t.AsX())
	k.VPMAXUD(t.AsX(), h, h)
	k.VDIVSS(full.AsX(), h, h)
	k.VCVTPS2PH(U8(0), h, h)
	k.VPEXTRW(U8(0), h, Mem{Base: scales})
	k.VCVTPH2PS(h, h)
	// 1/scale, or 0 where that is 0.
	one, zero := k.XMM(), k.XMM()
	k.VMOVUPS(k.float("one", 1), one)
	k.VDIVSS(h, one, one)
	k.VXORPS(zero, zero, zero)
	k.VCMPSS(U8(0), zero, h, zero)
	k.VANDNPS(one, zero, one)
	k.VBROADCASTSS(one, t)
	for i := range v {
		k.VMULPS(t, v[i], v[i])
		k.VMINPS(full, v[i], v[i]) // NaN becomes 127
		k.VMAXPS(least, v[i], v[i])
		k.VCVTPS2DQ(v[i], v[i])
	}
	k.VPACKSSDW(v[1], v[0], v[0])
	k.VPACKSSDW(v[3], v[2], v[2])
	k.VPACKSSWB(v[2], v[0], v[0])
	k.VPERMD(v[0], order, v[0])
	k.VMOVDQU(v[0], Mem{Base: codes})
	k.ADDQ(U8(128), x)
	k.ADDQ(U8(32), codes)
	k.LEAQ(Mem{Base: scales, Index: stride, Scale: 2}, scales)
	k.DECQ(blocks)
	k.JMP(LabelRef("block"))
	k.Label("done")
	k.end()
}

// widenKeys emits the twin of widenKeysGo.
func (k *vectors) widenKeys() {
	k.twin("widenKeys", "func(y *float32, codes *int8, scales *uint16, dim int)")
	y, codes, scales, dim := k.pointer("y"), k.pointer("codes"), k.pointer("scales"), k.pointer("dim")
	k.Label("block")
	factors := make([]reg.VecVirtual, keyLanes/k.lanes)
	for j := range factors {
		factors[j] = k.reg()
		k.VCVTPH2PS(Mem{Base: scales, Disp: 2 * k.lanes * j}, factors[j])
	}
	for d := range 32 {
		for j, factor := range factors {
			v, i := k.reg(), keyLanes*d+k.lanes*j
			k.load(cacheFormats[2], Mem{Base: codes, Disp: i}, v)
			k.VMULPS(factor, v, v)
			k.VMOVUPS(v, Mem{Base: y, Disp: 4 * i})
		}
	}
	k.ADDQ(U8(2*keyLanes), scales)
	k.ADDQ(U32(32*keyLanes), codes)
	k.ADDQ(U32(4*32*keyLanes), y)
	k.SUBQ(U8(32), dim)
	k.JNZ(LabelRef("block"))
	k.end()
}

// widenCache emits the twin of widenCacheGo.
func (k *vectors) widenCache() {
	k.twin("widenCache", "func(y *float32, codes *int8, scales *float32, keys, dim int)")
	y, codes, scales, keys, dim := k.pointer("y"), k.pointer("codes"), k.pointer("scales"), k.pointer("keys"), k.pointer("dim")
	s := k.reg()
	k.Label("key")
	k.TESTQ(keys, keys)
	k.JZ(LabelRef("done"))
	sp, left := k.GP64(), k.GP64()
	k.MOVQ(scales, sp)
	k.MOVQ(dim, left)
	k.Label("block")
	k.VBROADCASTSS(Mem{Base: sp}, s)
	for i := range 32 / k.lanes {
		v := k.reg()
		k.load(cacheFormats[2], Mem{Base: codes, Disp: k.lanes * i}, v)
		k.VMULPS(s, v, v)
		k.VMOVUPS(v, Mem{Base: y, Disp: 4 * k.lanes * i})
	}
	k.ADDQ(U32(pieceBytes), sp)
	k.ADDQ(U8(32), codes)
	k.ADDQ(U32(128), y)
	k.SUBQ(U8(32), left)
	k.JNZ(LabelRef("block"))
	k.ADDQ(U8(4), scales)
	k.DECQ(keys)
	k.JMP(LabelRef("key"))
	k.Label("done")
	k.end()
}
