package sample

import (
	"math"
	"math/bits"
)

// drawer finds the token whose scaled logit and noise are highest together.
type drawer struct {
	seed         uint64
	choice, draw uint32
	top, inverse float64 // the highest logit, and 1/temperature

	best int32 // −1 before the first candidate
	sum  float64

	pair   uint32    // the ids 2·pair and 2·pair+1
	random [2]uint64 // have these random numbers
	filled bool
}

// scaled is a logit, less the highest, over the temperature: at most 0.
func (d *drawer) scaled(logit float32) float64 {
	return float64((float64(logit) - d.top) * d.inverse) // rounded, not fused with what is added to it
}

// try is called by rising id. Of equal sums, which hardly occur, the lowest id's stays.
func (d *drawer) try(id int32, logit float32) {
	if !(logit >= -math.MaxFloat32) {
		return // banned
	}
	if pair := uint32(id) / 2; pair != d.pair || !d.filled {
		d.pair, d.filled = pair, true
		d.random[0], d.random[1] = philox(d.seed, pair, d.draw, d.choice, 0)
	}
	r, x := d.random[id&1], d.scaled(logit)
	// The noise −log(−log u) is below −log(1−u), since −log u > 1−u; and 1−u is more than 2^−(n+1)
	// where the complement of r begins with n zeros. So most tokens end here, without a logarithm.
	if d.best >= 0 && x+float64(bits.LeadingZeros64(^r)+1)*math.Ln2 < d.sum {
		return
	}
	if sum := x + noise(r); d.best < 0 || sum > d.sum {
		d.best, d.sum = id, sum
	}
}

// noise turns a random number to one of the standard Gumbel distribution: −log(−log u), where u is
// the number's upper 52 bits and a half, as a fraction: never 0 or 1.
func noise(r uint64) float64 {
	u := (float64(r>>12) + 0.5) * 0x1p-52
	return -math.Log(-math.Log(u))
}

// philox is Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC11). The key is a row's seed, and the counter (half
// the id, draw, choice, 0); the 128 bits that it makes are the numbers of two ids, low words first.
func philox(key uint64, c0, c1, c2, c3 uint32) (even, odd uint64) {
	k0, k1 := uint32(key), uint32(key>>32)
	for range 10 {
		p, q := uint64(c0)*0xD2511F53, uint64(c2)*0xCD9E8D57
		c0, c1, c2, c3 = uint32(q>>32)^c1^k0, uint32(q), uint32(p>>32)^c3^k1, uint32(p)
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return uint64(c1)<<32 | uint64(c0), uint64(c3)<<32 | uint64(c2)
}

// exp is eˣ for x ≤ 0, right to about 1e−11 of itself: the Taylor polynomial of degree 9 about the
// nearest multiple of ln 2. Below −700 it is 0.
func exp(x float64) float64 {
	const shift = 0x1.8p52 // added and taken off, it rounds to an integer
	if !(x > -700) {
		return 0
	}
	k := float64(x*(1/math.Ln2)) + shift
	scale := math.Float64frombits((math.Float64bits(k) + 1023) << 52)
	r := x - float64((k-shift)*math.Ln2)
	r2 := float64(r * r)
	r4 := float64(r2 * r2)
	a := 1 + r + float64(r2*(1./2+float64(r*(1./6))))
	b := 1./24 + float64(r*(1./120)) + float64(r2*(1./720+float64(r*(1./5040))))
	c := 1./40320 + float64(r*(1./362880))
	return float64(a+float64(r4*(b+float64(r4*c)))) * scale
}
