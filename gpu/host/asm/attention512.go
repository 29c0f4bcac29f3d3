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
		k.scores512(f)
		k.weigh(f)
	}
	k.softmax512()
	k.gates()
	k.softcap()
	k.widenCache()
}

// scores512: each of the 16 lanes of a sum goes through every sixteenth product. Then lanes 8 apart are
// added, and the rest as dot.go does. That is done for 16 sums at a time: of as many queries as there are, up to
// four, and each of them with four keys or more.
func (k *vectors) scores512(f cacheFormat) {
	a := k.beginScores(f)
	codes := f.number == "int8"
	step := 16 // values of a round
	if codes {
		step = 32
	}
	block := func(label string, to, key, scale reg.GPVirtual, nq, nk int) {
		acc := make([][]reg.VecVirtual, nq)
		for i := range acc {
			acc[i] = make([]reg.VecVirtual, nk)
			for j := range acc[i] {
				acc[i][j] = k.ZMM()
				k.VXORPS(acc[i][j], acc[i][j], acc[i][j])
			}
		}
		qp, kp, kp4, left := k.GP64(), k.GP64(), k.GP64(), k.GP64() // kp4 is the fifth key
		k.MOVQ(a.q, qp)
		k.MOVQ(key, kp)
		if nk > 4 {
			k.MOVQ(key, kp4)
			k.advance(kp4, a.dim, 4*f.size)
		}
		k.MOVQ(a.dim, left)
		var sp reg.GPVirtual
		if codes {
			sp = k.GP64()
			k.MOVQ(scale, sp)
		}
		k.Label(label)
		y, x := k.ZMM(), make([]reg.VecVirtual, nq)
		for v := 0; v < step; v += 16 {
			for i := range x {
				x[i] = k.ZMM()
				k.VMOVUPS(with(rows(qp, a.dim, a.dim3, 4, i), 4*v), x[i])
			}
			for j := range nk {
				m := rows(kp, a.dim, a.dim3, f.size, j%4)
				if j >= 4 {
					m.Base = kp4
				}
				k.load(f, with(m, f.size*v), y)
				if codes {
					k.VMULPS_BCST(Mem{Base: sp, Disp: 4 * j}, y, y)
				}
				for i := range nq {
					k.VFMADD231PS(y, x[i], acc[i][j])
				}
			}
		}
		if codes {
			k.ADDQ(U32(pieceBytes), sp)
		}
		k.ADDQ(U32(4*step), qp)
		k.ADDQ(U8(f.size*step), kp)
		if nk > 4 {
			k.ADDQ(U8(f.size*step), kp4)
		}
		k.SUBQ(U8(step), left)
		k.JNZ(LabelRef(label))
		k.storeScores(to, acc)
	}
	for _, nq := range []int{4, 3, 2, 1} {
		steps := []int{4, 1}
		if nq <= 2 {
			steps = []int{8, 4, 1}
		}
		k.eachQueries(a, f, nq, steps, func(label string, to, key, scale reg.GPVirtual, nk int) {
			block(label, to, key, scale, nq, nk)
		})
	}
	k.end()
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

// storeScores adds up the lanes of each sum and writes the scores of a query, a row of sums, one after another.
func (k *vectors) storeScores(to reg.GPVirtual, sums [][]reg.VecVirtual) {
	// A group is a query and up to four of its keys. Its scores become a quarter of a register.
	type group struct {
		sums []reg.VecVirtual
		to   Mem
	}
	var groups []group
	for i, row := range sums {
		for j := 0; j < len(row); j += 4 {
			groups = append(groups, group{row[j:min(j+4, len(row))], Mem{Base: to, Disp: 4*keyTile*i + 4*j}})
		}
	}
	// add puts together what two shuffles of x and y give.
	add := func(shuffle func(imm uint8, x, y, to reg.VecVirtual), first, second uint8, x, y reg.VecVirtual) reg.VecVirtual {
		a, b := k.ZMM(), k.ZMM()
		shuffle(first, x, y, a)
		shuffle(second, x, y, b)
		k.VADDPS(b, a, a)
		return a
	}
	quarters := func(imm uint8, x, y, to reg.VecVirtual) { k.VSHUFF32X4(U8(imm), y, x, to) }
	pairs := func(imm uint8, x, y, to reg.VecVirtual) { k.VSHUFPS(U8(imm), y, x, to) }
	keys := make([]reg.VecVirtual, len(groups[0].sums))
	for j := range keys { // 4 lanes of each group's sum with its key j
		of := func(i int) reg.VecVirtual { return groups[min(i, len(groups)-1)].sums[j] }
		low := add(quarters, 0x44, 0xee, of(0), of(1))
		high := low
		if len(groups) > 2 {
			high = add(quarters, 0x44, 0xee, of(2), of(3))
		}
		keys[j] = add(quarters, 0x88, 0xdd, low, high)
	}
	of := func(j int) reg.VecVirtual { return keys[min(j, len(keys)-1)] }
	low := add(pairs, 0x88, 0xdd, of(0), of(1))
	high := low
	if len(keys) > 2 {
		high = add(pairs, 0x88, 0xdd, of(2), of(3))
	}
	all := add(pairs, 0x88, 0xdd, low, high)
	for i, g := range groups {
		x := all.AsX()
		if i > 0 {
			x = k.XMM()
			k.VEXTRACTF32X4(U8(i), all, x)
		}
		if len(g.sums) == 1 {
			k.VMOVSS(x, g.to)
		} else {
			k.VMOVUPS(x, g.to)
		}
	}
}
