package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand" //nolint:staticcheck // operands read as in assembly
	"github.com/mmcloughlin/avo/reg"
)

// attention512 generates those of attention's kernels that gain by registers of 16 lanes: what waits for
// memory anyway, or is of few instructions, is left to AVX2. Lengths in values are multiples of 16.
func attention512(c *build.Context) {
	k := vectors{Context: c, lanes: 16, suffix: "AVX512", constants: map[uint32]Mem{}}
	for _, f := range cacheFormats {
		k.scores(f)
		k.weigh(f)
	}
	k.softmax512()
	k.gates()
	k.softcap()
	k.widenKeys()
	k.widenCache()
}

// softmax512 takes two rows at a time, so that one's arithmetic fills the other's waiting: a row of a tile is
// short.
func (k *vectors) softmax512() {
	k.begin("softmax", "func(p *float32, rows, n int, top, sum *float32)",
		"softmaxAVX512 is softmaxGo for rows that begin keyTile apart; rows and n are at least 1, and n is a multiple of 16.")
	p, count, n, top, sum := k.pointer("p"), k.pointer("rows"), k.pointer("n"), k.pointer("top"), k.pointer("sum")
	last := k.GP64() // what is behind a row
	k.LEAQ(Mem{Base: p, Index: n, Scale: 4}, last)
	negativeInfinity := k.ZMM()
	k.VMOVUPS(k.float("negativeInfinity", float32(math.Inf(-1))), negativeInfinity)
	for _, m := range []int{2, 1} {
		label := fmt.Sprintf("rows%d", m)
		k.Label(label)
		k.CMPQ(count, U8(m))
		k.JL(LabelRef(label + "less"))
		row := func(at reg.GPVirtual, i int) Mem { return Mem{Base: at, Disp: 4 * keyTile * i} }
		var tops, sums [2]reg.VecVirtual
		for i := range m {
			tops[i] = k.ZMM()
			k.VMOVAPS(negativeInfinity, tops[i])
		}
		at := k.GP64()
		k.MOVQ(p, at)
		k.Label(label + "highest")
		for i := range m {
			x := k.ZMM()
			k.VMOVUPS(row(at, i), x)
			k.VMAXPS(tops[i], x, tops[i]) // where x is NaN, the top stays
		}
		k.ADDQ(U8(64), at)
		k.CMPQ(at, last)
		k.JB(LabelRef(label + "highest"))
		for i := range m {
			h, t := k.YMM(), k.XMM()
			k.VEXTRACTF32X8(U8(1), tops[i], h)
			k.VMAXPS(h, tops[i].AsY(), h)
			k.VEXTRACTF32X4(U8(1), h, t)
			k.VMAXPS(t, h.AsX(), t)
			u := k.XMM()
			k.VPERMILPS(U8(0x4e), t, u)
			k.VMAXPS(u, t, t)
			k.VPERMILPS(U8(0xb1), t, u)
			k.VMAXPS(u, t, t)
			k.VMOVSS(t, Mem{Base: top, Disp: 4 * i})
			k.VBROADCASTSS(t, tops[i])
			sums[i] = k.YMM() // eight partial sums
			k.VXORPS(sums[i], sums[i], sums[i])
		}
		k.MOVQ(p, at)
		k.Label(label + "powers")
		for i := range m {
			x := k.ZMM()
			k.VMOVUPS(row(at, i), x)
			k.VSUBPS(tops[i], x, x)
			k.exp(x)
			k.VMOVUPS(x, row(at, i))
			k.VADDPS(x.AsY(), sums[i], sums[i])
			h := k.YMM()
			k.VEXTRACTF32X8(U8(1), x, h)
			k.VADDPS(h, sums[i], sums[i])
		}
		k.ADDQ(U8(64), at)
		k.CMPQ(at, last)
		k.JB(LabelRef(label + "powers"))
		for i := range m { // as dot.go adds
			h, t := k.XMM(), k.XMM()
			k.VEXTRACTF32X4(U8(1), sums[i], h)
			k.VADDPS(h, sums[i].AsX(), h)
			k.VPERMILPS(U8(0xb1), h, t)
			k.VADDPS(t, h, h)
			k.VPERMILPS(U8(0x4e), h, t)
			k.VADDPS(t, h, h)
			k.VMOVSS(h, Mem{Base: sum, Disp: 4 * i})
		}
		k.ADDQ(U32(4*keyTile*m), p)
		k.ADDQ(U32(4*keyTile*m), last)
		k.ADDQ(U8(4*m), top)
		k.ADDQ(U8(4*m), sum)
		k.SUBQ(U8(m), count)
		k.JMP(LabelRef(label))
		k.Label(label + "less")
	}
	k.end()
}
