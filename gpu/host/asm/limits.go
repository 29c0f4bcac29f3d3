package main

import (
	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand" //nolint:staticcheck // operands read as in assembly
	"github.com/mmcloughlin/avo/reg"
)

// peakSums is that of limits.go in gpu/host: how many vectors of sums peak and peak512 add to in a round, enough that
// none waits for the operation before.
const peakSums = 12

// read generates the sum of words in memory. It asks for them a page ahead, as the kernels do for weights.
func read(c *build.Context) {
	function(c, "readAVX2", "func(x *uint64, n int) uint64", "readAVX2 is readGo for a multiple of 32 words.")
	x, n, sum := argument(c, "x"), argument(c, "n"), c.GP64()
	var sums [8]reg.VecVirtual
	for i := range sums {
		sums[i] = c.YMM()
		c.VPXOR(sums[i], sums[i], sums[i])
	}
	c.Label("words")
	c.TESTQ(n, n)
	c.JZ(LabelRef("done"))
	for i := range sums {
		if i%2 == 0 {
			c.PREFETCHT0(Mem{Base: x, Disp: 4096 + 32*i})
		}
		c.VPADDQ(Mem{Base: x, Disp: 32 * i}, sums[i], sums[i])
	}
	c.ADDQ(U32(32*len(sums)), x)
	c.SUBQ(U8(4*len(sums)), n)
	c.JMP(LabelRef("words"))
	c.Label("done")
	addUp(c.VPADDQ, sums[:])
	half := c.XMM()
	c.VEXTRACTI128(U8(1), sums[0], half)
	c.VPADDQ(half, sums[0].AsX(), half)
	c.VPSHUFD(U8(0x4e), half, sums[0].AsX())
	c.VPADDQ(half, sums[0].AsX(), half)
	c.VMOVQ(half, sum)
	endWith(c, sum)
}

// addUp adds all sums to the first.
func addUp(add func(...Op), sums []reg.VecVirtual) {
	for _, s := range sums[1:] {
		add(s, sums[0], sums[0])
	}
}

// endWith ends a function that returns r.
func endWith(c *build.Context, r reg.Register) {
	c.VZEROUPPER()
	c.Store(r, c.ReturnIndex(0))
	c.RET()
}

// peakRounds generates the rounds, in which multiply adds products to each of the sums, and adds the sums up.
func peakRounds(c *build.Context, rounds reg.GPVirtual, sums []reg.VecVirtual, add func(...Op), multiply func(i int, sum reg.VecVirtual)) {
	c.Label("round")
	c.TESTQ(rounds, rounds)
	c.JZ(LabelRef("done"))
	for i, s := range sums {
		multiply(i, s)
	}
	c.DECQ(rounds)
	c.JMP(LabelRef("round"))
	c.Label("done")
	addUp(add, sums)
}

// peak generates what multiplies bytes and adds them up as fast as AVX2 can, out of registers: VPMADDUBSW, and
// the addition of its sums to 16-bit integers.
func peak(c *build.Context) {
	function(c, "peakAVX2", "func(rounds int) int32", "peakAVX2 is peakGo: 32 × peakSums multiplications a round, in sums of 16 bits.")
	rounds := argument(c, "rounds")
	ones := c.YMM()
	c.VMOVDQU(words(c, "peakOnes", 0x01010101), ones)
	var sums [peakSums]reg.VecVirtual
	var products [2]reg.VecVirtual
	for i := range sums {
		sums[i] = c.YMM()
		c.VPXOR(sums[i], sums[i], sums[i])
	}
	for i := range products {
		products[i] = c.YMM()
	}
	peakRounds(c, rounds, sums[:], c.VPADDW, func(i int, sum reg.VecVirtual) {
		p := products[i%len(products)]
		c.VPMADDUBSW(ones, ones, p)
		c.VPADDW(p, sum, sum)
	})
	total := c.GP32()
	c.VPEXTRW(U8(0), sums[0].AsX(), total)
	endWith(c, total)
}

// peak512 is peak for AVX-512 with VNNI: VPDPBUSD alone.
func peak512(c *build.Context) {
	function(c, "peakAVX512", "func(rounds int) int32", "peakAVX512 is peakGo: 64 × peakSums multiplications a round, in sums of 32 bits.")
	rounds := argument(c, "rounds")
	ones := c.ZMM()
	c.VPBROADCASTD(words(c, "peakOnes", 0x01010101), ones)
	var sums [peakSums]reg.VecVirtual
	for i := range sums {
		sums[i] = c.ZMM()
		c.VPXORD(sums[i], sums[i], sums[i])
	}
	peakRounds(c, rounds, sums[:], c.VPADDD, func(_ int, sum reg.VecVirtual) {
		dotRegisters(c, ones, ones, sum, "AVX512VNNI")
	})
	total := c.GP32()
	c.VMOVD(sums[0].AsX(), total)
	endWith(c, total)
}
