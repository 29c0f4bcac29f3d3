package host

import (
	"math"
	"sync"
	"unsafe"
)

// vectors are the kernels of all that is not a multiplication by weights, in one set of instructions.
// The functions of this file are the portable ones, and say what the others compute: the same bits, but
// for scores and weigh, where a processor that multiplies and adds in one instruction rounds once.
type vectors struct {
	scores func(dst, q, k []float32, at []int, queries, dim int)
	weigh  func(out, p, v []float32, queries, keys, dim int)
	// The same with keys and values that are halves, or codes with scales as columns or a run have them; nil
	// where there is nothing that converts them on the way.
	scoresHalves func(dst, q []float32, k []uint16, at []int, queries, dim int)
	weighHalves  func(out, p []float32, v []uint16, queries, keys, dim int)
	scoresCodes  func(dst, q []float32, k []int8, scales []uint16, at []int, queries, dim int)
	weighCodes   func(out, p []float32, v []int8, scales []float32, queries, keys, dim int)

	// softmax replaces rows of n scores each, which begin keyTile apart, and gives each row's top and sum.
	softmax func(p []float32, rows, n int, top, sum []float32)
	merge   func(y, x []float32, f, e float32)
	// mergeAttended adds to what queries have attended to so far, n numbers each, what they have from one more tile.
	mergeAttended func(all, tile attended, queries, n int)
	scale         func(y, x []float32, f float32)
	add           func(y, x []float32)
	rmsNorm       func(y, x, weight []float32, eps float32)
	rotate        func(v, turns []float32)
	// rotateHalves is rotate for pairs that are not neighbours.
	rotateHalves func(v, turns []float32)
	// swiGLU and geGLU are the gates of feed-forward parts.
	swiGLU func(y, gate, up []float32)
	geGLU  func(y, gate, up []float32)
	// softcap caps scores or logits.
	softcap func(x []float32, c float32)
	// gatePiece is how many values of a row are a task for a gate: some microseconds of work.
	gatePiece int
	// prefetch asks for n bytes that will be read soon; nil where there is no way to.
	prefetch func(p unsafe.Pointer, n int)
	// To the types of KV caches and back.
	widen         func(y []float32, x []uint16)
	narrow        func(y []uint16, x []float32)
	widenKeys     func(y []float32, codes []int8, scales []uint16, dim int)
	widenCache    func(y []float32, codes []int8, scales []float32, keys, dim int)
	quantiseCache func(codes []int8, scales []uint16, x []float32, stride int)
}

var negativeInfinity = float32(math.Inf(-1))

var portableVectors = vectors{
	scores: scoresGo, weigh: weighGo, softmax: softmaxRows, merge: mergeGo, mergeAttended: mergeAttendedGo, scale: scaleGo, add: add,
	rmsNorm: rmsNormGo, rotate: rotateGo, rotateHalves: rotateHalvesGo, swiGLU: swiGLUGo, geGLU: geGLUGo, softcap: softcapGo,
	gatePiece: 512, widen: widenTable, narrow: narrowGo, widenKeys: widenKeysGo, widenCache: widenCacheGo, quantiseCache: quantiseCacheGo,
}

// scoresOf is scores of keys in any type.
func (v *vectors) scoresOf(dst, q []float32, k columns, queries, dim int) {
	switch {
	case k.halves != nil:
		v.scoresHalves(dst, q, k.halves, k.at, queries, dim)
	case k.codes != nil:
		v.scoresCodes(dst, q, k.codes, k.scales, k.at, queries, dim)
	default:
		v.scores(dst, q, k.floats, k.at, queries, dim)
	}
}

// weighOf is weigh of a run in any type.
func (v *vectors) weighOf(out, p []float32, x run, queries, keys, dim int) {
	switch {
	case x.halves != nil:
		v.weighHalves(out, p, x.halves, queries, keys, dim)
	case x.codes != nil:
		v.weighCodes(out, p, x.codes, x.scales, queries, keys, dim)
	default:
		v.weigh(out, p, x.floats, queries, keys, dim)
	}
}

// scoresGo sets dst[i·keyTile + keyLanes·c + j] to the inner product of query i, which is q[i·dim:], and key j of
// column c, whose numbers are k[at[c] + j + keyLanes·d]. The products are added in order. dim is a multiple of 16.
func scoresGo(dst, q, k []float32, at []int, queries, dim int) {
	for i := range queries {
		x := q[i*dim:][:dim]
		for c, at := range at {
			for half := 0; half < keyLanes; half += 8 { // eight sums are in flight at once, which hides their latency
				k := k[at+half : at+keyLanes*dim]
				var s0, s1, s2, s3, s4, s5, s6, s7 float32
				for d, x := range x {
					k := (*[8]float32)(k[keyLanes*d:])
					s0 += float32(x * k[0])
					s1 += float32(x * k[1])
					s2 += float32(x * k[2])
					s3 += float32(x * k[3])
					s4 += float32(x * k[4])
					s5 += float32(x * k[5])
					s6 += float32(x * k[6])
					s7 += float32(x * k[7])
				}
				*(*[8]float32)(dst[i*keyTile+keyLanes*c+half:]) = [8]float32{s0, s1, s2, s3, s4, s5, s6, s7}
			}
		}
	}
}

// weighGo adds p[i·keyTile + j] × v[j·dim:] for every key j, in order, to out[i·dim:], for every query i.
func weighGo(out, p, v []float32, queries, keys, dim int) {
	for i := range queries {
		to, p, v := out[i*dim:][:dim], p[i*keyTile:][:keys], v[:keys*dim]
		for ; len(p) >= 4; p, v = p[4:], v[4*dim:] {
			p0, p1, p2, p3 := p[0], p[1], p[2], p[3]
			v0, v1, v2, v3 := v[:len(to)], v[dim:][:len(to)], v[2*dim:][:len(to)], v[3*dim:][:len(to)]
			for d := range to {
				to[d] = to[d] + float32(p0*v0[d]) + float32(p1*v1[d]) + float32(p2*v2[d]) + float32(p3*v3[d])
			}
		}
		for ; len(p) > 0; p, v = p[1:], v[dim:] {
			p0, v0 := p[0], v[:len(to)]
			for d := range to {
				to[d] = to[d] + float32(p0*v0[d])
			}
		}
	}
}

// softmaxGo replaces each score in p by exp(score − top), where top is the largest of them that is not
// NaN, and returns the sum of these powers: eight partial sums, added like those of dot. Where there is
// a NaN among the scores, sum is NaN.
func softmaxGo(p []float32) (top, sum float32) {
	top = negativeInfinity
	for _, s := range p {
		if s > top {
			top = s
		}
	}
	var sums [8]float32
	for i, s := range p {
		e := exp(s - top)
		p[i] = e
		sums[i%8] += e
	}
	return top, (sums[0] + sums[4]) + (sums[1] + sums[5]) + ((sums[2] + sums[6]) + (sums[3] + sums[7]))
}

func softmaxRows(p []float32, rows, n int, top, sum []float32) {
	for i := range rows {
		top[i], sum[i] = softmaxGo(p[i*keyTile:][:n])
	}
}

// mergeGo sets y to y·f + x·e.
func mergeGo(y, x []float32, f, e float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] = float32(y[i]*f) + float32(x[i]*e)
	}
}

func mergeAttendedGo(all, tile attended, queries, n int) {
	for q := range queries {
		top := all.top[q]
		if tile.top[q] > top {
			top = tile.top[q]
		}
		f, e := exp(all.top[q]-top), exp(tile.top[q]-top)
		mergeGo(all.out[q*n:][:n], tile.out[q*n:], f, e)
		all.top[q], all.sum[q] = top, float32(all.sum[q]*f)+float32(tile.sum[q]*e)
	}
}

// scaleGo sets y to x·f.
func scaleGo(y, x []float32, f float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] = x[i] * f
	}
}

// rmsNormGo writes x / √(mean(x²) + eps) × weight to y.
func rmsNormGo(y, x, weight []float32, eps float32) {
	y, weight = y[:len(x)], weight[:len(x)]
	var sums [8]float64
	squaresGo(&sums, x)
	normaliseGo(y, x, weight, normScale(&sums, len(x), eps))
}

// squaresGo adds up the squares of x in float64, in which each of them is exact: eight partial sums over
// every eighth value.
func squaresGo(sums *[8]float64, x []float32) {
	for ; len(x) >= 8; x = x[8:] {
		for i, v := range x[:8] {
			f := float64(v)
			sums[i] += float64(f * f)
		}
	}
	for i, v := range x {
		f := float64(v)
		sums[i] += float64(f * f)
	}
}

// normScale is what n values are multiplied by whose squares have the sums.
func normScale(s *[8]float64, n int, eps float32) float32 {
	sum := (s[0] + s[4]) + (s[1] + s[5]) + ((s[2] + s[6]) + (s[3] + s[7]))
	return float32(1 / math.Sqrt(sum/float64(n)+float64(eps)))
}

// normaliseGo sets y to x·f·weight.
func normaliseGo(y, x, weight []float32, f float32) {
	for i, v := range x {
		y[i] = float32(v*f) * weight[i]
	}
}

// rotateGo turns neighbouring values by the angles whose cosines and sines alternate in turns.
func rotateGo(v, turns []float32) {
	v = v[:len(turns)]
	for j := 0; j+1 < len(turns); j += 2 {
		a, b, cos, sin := v[j], v[j+1], turns[j], turns[j+1]
		v[j] = float32(a*cos) - float32(b*sin)
		v[j+1] = float32(a*sin) + float32(b*cos)
	}
}

// rotateHalvesGo turns value i and value i+n/2 of n, by the angles of which turns has all n/2 cosines and
// then the sines.
func rotateHalvesGo(v, turns []float32) {
	n := len(turns) / 2
	rotatePairsGo(v[:n], v[n:2*n], turns[:n], turns[n:])
}

func rotatePairsGo(a, b, cos, sin []float32) {
	b, cos, sin = b[:len(a)], cos[:len(a)], sin[:len(a)]
	for i, x := range a {
		y := b[i]
		a[i] = float32(x*cos[i]) - float32(y*sin[i])
		b[i] = float32(x*sin[i]) + float32(y*cos[i])
	}
}

// swiGLUGo sets y to silu(gate)·up, where silu(x) is x·σ(x).
func swiGLUGo(y, gate, up []float32) {
	gate, up = gate[:len(y)], up[:len(y)]
	for i, g := range gate {
		y[i] = float32(g/(1+exp(-g))) * up[i]
	}
}

// geGLUGo sets y to gelu(gate)·up, where gelu(x) is x·½(1 + tanh u) with u = √(2/π)(x + 0.044715x³), which
// approximates x·Φ(x) (Hendrycks and Gimpel, 2016, arXiv:1606.08415). ½(1 + tanh u) is σ(2u).
func geGLUGo(y, gate, up []float32) {
	const linear, cubic = float32(-geluLinear), float32(-geluCubic)
	gate, up = gate[:len(y)], up[:len(y)]
	for i, g := range gate {
		u := float32((float32(float32(g*g)*cubic) + linear) * g) // −2u
		y[i] = float32(g/(1+exp(u))) * up[i]
	}
}

// The factors of 2u in geGLUGo.
const (
	geluLinear = 2 * math.Sqrt2 / math.SqrtPi
	geluCubic  = geluLinear * 0.044715
)

// softcapGo sets x to c·tanh(x/c). It is off by less than c/2²², as for small x the sums in tanh x =
// (1 − e⁻²ˣ) / (1 + e⁻²ˣ) are.
func softcapGo(x []float32, c float32) {
	f := -2 / c
	for i, v := range x {
		e := exp(float32(math.Float32frombits(math.Float32bits(v)&^(1<<31)) * f))
		t := float32((1-e)/(1+e)) * c
		x[i] = math.Float32frombits(math.Float32bits(t) | math.Float32bits(v)&(1<<31))
	}
}

// exp is eˣ, right to within one unit in the last place. x is split into k·ln 2 + r with |r| ≤ ln 2 / 2.
// eʳ is 1 + r + r²·P(r), where P has degree 4 and the least relative error, of 2⁻²⁸, over that range.
// From 89 on it is +Inf, and down from −104 it is 0; NaN stays NaN.
func exp(x float32) float32 {
	const (
		log2e   = float32(math.Log2E)
		shift   = float32(0x1.8p23)  // added and taken off, it rounds to an integer
		ln2High = float32(0x1.63p-1) // so few bits that products with k are exact
		ln2Low  = float32(-0x1.bd0106p-13)

		c2, c3, c4 = float32(0x1.fffffcp-2), float32(0x1.555492p-3), float32(0x1.5558f2p-5)
		c5, c6     = float32(0x1.123ap-7), float32(0x1.6a23fcp-10)
	)
	if x > 89 {
		x = 89
	}
	if x < -104 {
		x = -104
	}
	t := float32(x*log2e) + shift
	n := t - shift
	r := x - float32(n*ln2High)
	r -= float32(n * ln2Low)
	r2 := float32(r * r)
	p := float32(c5*r) + c4 + float32(c6*r2)
	p = float32(p*r2) + (float32(c3*r) + c2)
	y := float32(p*r2) + r + 1
	// 2ᵏ in two factors, since k goes from −150 to 128.
	k := int32(math.Float32bits(t)) - int32(math.Float32bits(shift))
	half := k >> 1
	return float32(y*math.Float32frombits(uint32(half+127)<<23)) * math.Float32frombits(uint32(k-half+127)<<23)
}

// widenGo converts IEEE 754 halves. The exponent is moved by a multiplication, which also normalises
// subnormal halves; only infinities and NaNs need a case of their own.
func widenGo(y []float32, x []uint16) {
	x = x[:len(y)]
	for i, h := range x {
		b := uint32(h&0x8000)<<16 | uint32(h&0x7fff)<<13
		if h&0x7c00 == 0x7c00 {
			if b |= 0x7f800000; h&0x3ff != 0 {
				b |= 1 << 22 // NaNs become quiet
			}
			y[i] = math.Float32frombits(b)
			continue
		}
		y[i] = math.Float32frombits(b) * 0x1p112
	}
}

// halfTable has the value of every half.
var halfTable = sync.OnceValue(func() *[1 << 16]float32 {
	var all [1 << 16]uint16
	for i := range all {
		all[i] = uint16(i)
	}
	t := new([1 << 16]float32)
	widenGo(t[:], all[:])
	return t
})

// widenTable is widenGo, twice as fast.
func widenTable(y []float32, x []uint16) {
	t := halfTable()
	x = x[:len(y)]
	for i, h := range x {
		y[i] = t[h]
	}
}

// narrowGo rounds to IEEE 754 halves, ties to even. What is too large becomes an infinity.
func narrowGo(y []uint16, x []float32) {
	x = x[:len(y)]
	for i, v := range x {
		b := math.Float32bits(v)
		sign := uint16(b>>16) & 0x8000
		switch b &= 1<<31 - 1; {
		case b > 0x7f800000: // NaN, which becomes quiet
			y[i] = sign | 0x7e00 | uint16(b>>13)&0x1ff
		case b >= 0x477ff000: // 65520, halfway between the largest half and 65536
			y[i] = sign | 0x7c00
		case b < 0x38800000: // below 2⁻¹⁴: subnormal. The sum's last place is the smallest half, 2⁻²⁴
			y[i] = sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-0x3f000000)
		default: // the exponent's bias goes from 127 to 15
			y[i] = sign | uint16((b-112<<23+0xfff+b>>13&1)>>13)
		}
	}
}

// quantiseCacheGo rounds x, 32 values at a time, to codes and scales, which are halves and lie stride apart:
// codes go up to 127 either way, and code × scale is the value's nearest multiple of the scale. A block with an
// infinity or a NaN, or with values beyond 8 million, has a scale that is none, and then so are its products.
func quantiseCacheGo(codes []int8, scales []uint16, x []float32, stride int) {
	codes = codes[:len(x)]
	for b := range len(x) / codeBlock {
		v := x[b*codeBlock:][:codeBlock]
		var top uint32 // the bits of absolute values are in their order
		for _, f := range v {
			top = max(top, math.Float32bits(f)&^(1<<31))
		}
		scale := [1]float32{math.Float32frombits(top) / 127}
		narrowGo(scales[b*stride:][:1], scale[:])
		widenGo(scale[:], scales[b*stride:])
		up := float32(0)
		if scale[0] != 0 {
			up = 1 / scale[0]
		}
		for i, f := range v {
			f *= up
			if !(f < 127) {
				f = 127
			}
			codes[b*codeBlock+i] = int8(math.RoundToEven(float64(max(f, -127))))
		}
	}
}

// widenKeysGo writes what the codes of a column of keys stand for.
func widenKeysGo(y []float32, codes []int8, scales []uint16, dim int) {
	for b := range dim / codeBlock {
		var factors [keyLanes]float32
		widenGo(factors[:], scales[b*keyLanes:])
		y, codes := y[b*codeBlock*keyLanes:][:codeBlock*keyLanes], codes[b*codeBlock*keyLanes:]
		for i := range y {
			y[i] = float32(codes[i]) * factors[i%keyLanes]
		}
	}
}

// widenCacheGo writes what the codes of keys or values stand for, which have scales as a run has them.
func widenCacheGo(y []float32, codes []int8, scales []float32, keys, dim int) {
	for j := range keys {
		for b := range dim / codeBlock {
			at, scale := j*dim+b*codeBlock, scales[b*keyPiece+j]
			to := y[at:][:codeBlock]
			for i, c := range codes[at:][:codeBlock] {
				to[i] = float32(c) * scale
			}
		}
	}
}
