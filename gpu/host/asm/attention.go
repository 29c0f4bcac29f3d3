package main

import (
	"math"

	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand" //nolint:staticcheck // operands read as in assembly
	"github.com/mmcloughlin/avo/reg"
)

// keyTile is that of attention.go: the floats from one query's scores to the next's.
const keyTile = 128

// attention generates the kernels of attention and of all else that is not a multiplication by weights.
// Lengths in values are multiples of 8, and at least 8, where nothing else is said.
func attention(c *build.Context) {
	k := vectors{Context: c, constants: map[uint32]Mem{}}
	k.scores("scoresAVX2", "float32", "scoresAVX2 is scoresGo with products that are not rounded before they are added.")
	k.scores("scoresHalvesAVX2", "uint16", "scoresHalvesAVX2 is scoresAVX2 for keys that are IEEE 754 halves.")
	k.weigh("weighAVX2", "float32", "weighAVX2 is weighGo with products that are not rounded before they are added.")
	k.weigh("weighHalvesAVX2", "uint16", "weighHalvesAVX2 is weighAVX2 for values that are IEEE 754 halves.")
	k.softmax()
	k.gate("swiGLUAVX2", "swiGLUAVX2 is swiGLUGo.", func(x, e reg.VecVirtual) {
		k.VXORPS(k.constant("sign", 1<<31), x, e)
	})
	k.gate("geGLUAVX2", "geGLUAVX2 is geGLUGo.", func(x, e reg.VecVirtual) {
		k.VMULPS(x, x, e)
		k.VMULPS(k.float("geluCubic", -geluCubic), e, e)
		k.VADDPS(k.float("geluLinear", -geluLinear), e, e)
		k.VMULPS(x, e, e)
	})
	k.softcap()
	k.merge()
	k.scale()
	k.add()
	k.rotate()
	k.rotatePairs()
	k.squares()
	k.normalise()
	k.widen()
	k.narrow()
	k.prefetch()
}

// vectors emits AVX2. Kernels for AVX-512 would come beside: these functions with registers of 64 bytes,
// but for scores, whose eight partial sums belong to the definition.
type vectors struct {
	*build.Context
	constants map[uint32]Mem
}

// constant is eight copies of 32 bits in memory.
func (k *vectors) constant(name string, bits uint32) Mem {
	m, ok := k.constants[bits]
	if !ok {
		m = words(k.Context, "vector_"+name, bits)
		k.constants[bits] = m
	}
	return m
}

func (k *vectors) float(name string, v float32) Mem { return k.constant(name, math.Float32bits(v)) }

func (k *vectors) begin(name, signature, doc string) { function(k.Context, name, signature, doc) }

func (k *vectors) pointer(name string) reg.GPVirtual {
	r := k.GP64()
	k.Load(k.Param(name), r)
	return r
}

func (k *vectors) end() {
	k.VZEROUPPER()
	k.RET()
}

// each emits a loop over the n values at some pointers, eight at a time; a round does so for unroll eights.
// body's eight are at the index i and disp more.
func (k *vectors) each(label string, n reg.GPVirtual, unroll int, body func(i reg.GPVirtual, disp int)) {
	i, end := k.GP64(), k.GP64()
	k.XORQ(i, i)
	if unroll > 1 {
		k.LEAQ(Mem{Base: n, Disp: -8 * (unroll - 1)}, end)
		k.JMP(LabelRef(label + "Many"))
		k.Label(label + "Round")
		for j := range unroll {
			body(i, 8*j)
		}
		k.ADDQ(U8(8*unroll), i)
		k.Label(label + "Many")
		k.CMPQ(i, end)
		k.JL(LabelRef(label + "Round"))
	}
	k.JMP(LabelRef(label + "One"))
	k.Label(label)
	body(i, 0)
	k.ADDQ(U8(8), i)
	k.Label(label + "One")
	k.CMPQ(i, n)
	k.JL(LabelRef(label))
}

// at is eight floats.
func at(base, i reg.GPVirtual, disp int) Mem {
	return Mem{Base: base, Index: i, Scale: 4, Disp: 4 * disp}
}

// exp replaces x by eˣ, as exp in vectors.go says.
func (k *vectors) exp(x reg.VecVirtual) {
	t, n, r, p, y := k.YMM(), k.YMM(), k.YMM(), k.YMM(), k.YMM()
	k.VMOVUPS(k.float("most", 89), t)
	k.VMINPS(x, t, x) // the second source is what NaN gives, and that is x
	k.VMOVUPS(k.float("least", -104), t)
	k.VMAXPS(x, t, x)
	shift := k.float("shift", 0x1.8p23)
	k.VMULPS(k.float("log2e", math.Log2E), x, t)
	k.VADDPS(shift, t, t)
	k.VSUBPS(shift, t, n)
	k.VMULPS(k.float("ln2High", 0x1.63p-1), n, y)
	k.VSUBPS(y, x, r)
	k.VMULPS(k.float("ln2Low", -0x1.bd0106p-13), n, y)
	k.VSUBPS(y, r, r)
	k.VMULPS(r, r, y)
	k.VMULPS(k.float("c5", 0x1.123ap-7), r, p)
	k.VADDPS(k.float("c4", 0x1.5558f2p-5), p, p)
	k.VMULPS(k.float("c6", 0x1.6a23fcp-10), y, n)
	k.VADDPS(n, p, p)
	k.VMULPS(y, p, p)
	k.VMULPS(k.float("c3", 0x1.555492p-3), r, n)
	k.VADDPS(k.float("c2", 0x1.fffffcp-2), n, n)
	k.VADDPS(n, p, p)
	k.VMULPS(p, y, y)
	k.VADDPS(r, y, y)
	k.VADDPS(k.float("one", 1), y, y)
	// 2ᵏ in two factors, since k goes from −150 to 128.
	k.VPSUBD(shift, t, t)
	k.VPSRAD(U8(1), t, n)
	k.VPSUBD(n, t, t)
	bias := k.constant("bias", 127)
	k.VPADDD(bias, n, n)
	k.VPSLLD(U8(23), n, n)
	k.VPADDD(bias, t, t)
	k.VPSLLD(U8(23), t, t)
	k.VMULPS(n, y, y)
	k.VMULPS(t, y, x)
}

// eight is the bytes of eight numbers of a type.
var eight = map[string]int{"float32": 32, "uint16": 16}

// load loads eight numbers as float32.
func (k *vectors) load(number string, m Mem, y reg.VecVirtual) {
	if number == "uint16" {
		k.VCVTPH2PS(m, y)
		return
	}
	k.VMOVUPS(m, y)
}

// scores: each of the 8 lanes of a sum goes through every eighth product, and the lanes are added as
// dot.go does.
func (k *vectors) scores(name, number, doc string) {
	k.begin(name, "func(dst *float32, q *float32, k *"+number+", queries, keys, dim int)", doc)
	dst, q, keys0 := k.pointer("dst"), k.pointer("q"), k.pointer("k")
	queries, keys, stride := k.pointer("queries"), k.pointer("keys"), k.pointer("dim")
	k.SHLQ(U8(2), stride)
	stride3 := func(stride reg.GPVirtual) reg.GPVirtual {
		r := k.GP64()
		k.LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, r)
		return r
	}
	threeQueries, keyStride := stride3(stride), stride
	if number == "uint16" {
		keyStride = k.GP64()
		k.MOVQ(stride, keyStride)
		k.SHRQ(U8(1), keyStride)
	}
	threeKeys := stride3(keyStride)
	row := func(base, stride, stride3 reg.GPVirtual, i int) Mem { // i rows after base
		switch i {
		case 0:
			return Mem{Base: base}
		case 1:
			return Mem{Base: base, Index: stride, Scale: 1}
		case 2:
			return Mem{Base: base, Index: stride, Scale: 2}
		}
		return Mem{Base: base, Index: stride3, Scale: 1}
	}
	// block computes nq × nk scores.
	block := func(label string, to, q, key reg.GPVirtual, nq, nk int) {
		var acc [3][4]reg.VecVirtual
		for i := range nq {
			for j := range nk {
				acc[i][j] = k.YMM()
				k.VXORPS(acc[i][j], acc[i][j], acc[i][j])
			}
		}
		qp, kp, left := k.GP64(), k.GP64(), k.GP64()
		k.MOVQ(q, qp)
		k.MOVQ(key, kp)
		k.MOVQ(stride, left)
		k.Label(label)
		var x [3]reg.VecVirtual
		for i := range nq {
			x[i] = k.YMM()
			k.VMOVUPS(row(qp, stride, threeQueries, i), x[i])
		}
		y := k.YMM()
		for j := range nk {
			k.load(number, row(kp, keyStride, threeKeys, j), y)
			for i := range nq {
				k.VFMADD231PS(y, x[i], acc[i][j])
			}
		}
		k.ADDQ(U8(32), qp)
		k.ADDQ(U8(eight[number]), kp)
		k.SUBQ(U8(32), left)
		k.JNZ(LabelRef(label))
		for i := range nq {
			a := acc[i]
			out := Mem{Base: to, Disp: 4 * keyTile * i}
			if nk == 1 {
				h := k.XMM()
				k.VEXTRACTF128(U8(1), a[0], h)
				k.VADDPS(h, a[0].AsX(), h)
				k.VHADDPS(h, h, h)
				k.VHADDPS(h, h, h)
				k.VMOVSS(h, out)
				continue
			}
			t := k.YMM()
			for j := 0; j < 4; j += 2 { // [lanes of a[j] | lanes of a[j+1]], halves added
				k.VPERM2F128(U8(0x31), a[j+1], a[j], t)
				k.VINSERTF128(U8(1), a[j+1].AsX(), a[j], a[j])
				k.VADDPS(t, a[j], a[j])
			}
			k.VHADDPS(a[2], a[0], a[0])
			k.VHADDPS(a[0], a[0], a[0]) // sums of 0, 2 | 1, 3
			k.VEXTRACTF128(U8(1), a[0], t.AsX())
			k.VUNPCKLPS(t.AsX(), a[0].AsX(), t.AsX())
			k.VMOVUPS(t.AsX(), out)
		}
	}
	for _, nq := range []int{3, 2, 1} {
		n := string(rune('0' + nq))
		k.Label("queries" + n)
		k.CMPQ(queries, U8(nq))
		k.JL(LabelRef("less" + n))
		to, key, left := k.GP64(), k.GP64(), k.GP64()
		k.MOVQ(dst, to)
		k.MOVQ(keys0, key)
		k.MOVQ(keys, left)
		k.Label("keys" + n)
		k.CMPQ(left, U8(4))
		k.JL(LabelRef("last" + n))
		block("four"+n, to, q, key, nq, 4)
		k.LEAQ(Mem{Base: key, Index: keyStride, Scale: 4}, key)
		k.ADDQ(U8(16), to)
		k.SUBQ(U8(4), left)
		k.JMP(LabelRef("keys" + n))
		k.Label("last" + n)
		k.TESTQ(left, left)
		k.JZ(LabelRef("done" + n))
		block("one"+n, to, q, key, nq, 1)
		k.ADDQ(keyStride, key)
		k.ADDQ(U8(4), to)
		k.DECQ(left)
		k.JMP(LabelRef("last" + n))
		k.Label("done" + n)
		if nq == 3 {
			k.ADDQ(threeQueries, q)
		} else {
			for range nq {
				k.ADDQ(stride, q)
			}
		}
		k.ADDQ(U32(4*keyTile*nq), dst)
		k.SUBQ(U8(nq), queries)
		k.JMP(LabelRef("queries" + n))
		k.Label("less" + n)
	}
	k.end()
}

func (k *vectors) weigh(name, number, doc string) {
	k.begin(name, "func(out *float32, p *float32, v *"+number+", queries, keys, dim int)", doc)
	out, p, v := k.pointer("out"), k.pointer("p"), k.pointer("v")
	queries, keys, stride := k.pointer("queries"), k.pointer("keys"), k.pointer("dim")
	k.SHLQ(U8(2), stride)
	valueStride := stride
	if number == "uint16" {
		valueStride = k.GP64()
		k.MOVQ(stride, valueStride)
		k.SHRQ(U8(1), valueStride)
	}
	row := func(base reg.GPVirtual, i, disp int) Mem {
		switch i {
		case 0:
			return Mem{Base: base, Disp: disp}
		case 1:
			return Mem{Base: base, Index: stride, Scale: 1, Disp: disp}
		}
		return Mem{Base: base, Index: stride, Scale: 2, Disp: disp}
	}
	// block adds to nq rows × nv × 8 values.
	block := func(label string, at, from reg.GPVirtual, nq, nv int) {
		var acc [3][8]reg.VecVirtual
		for i := range nq {
			for j := range nv {
				acc[i][j] = k.YMM()
				k.VMOVUPS(row(at, i, 32*j), acc[i][j])
			}
		}
		pp, vp, left := k.GP64(), k.GP64(), k.GP64()
		k.MOVQ(p, pp)
		k.MOVQ(from, vp)
		k.MOVQ(keys, left)
		k.Label(label)
		var x [3]reg.VecVirtual
		for i := range nq {
			x[i] = k.YMM()
			k.VBROADCASTSS(Mem{Base: pp, Disp: 4 * keyTile * i}, x[i])
		}
		y := k.YMM()
		for j := range nv {
			k.load(number, Mem{Base: vp, Disp: eight[number] * j}, y)
			for i := range nq {
				k.VFMADD231PS(y, x[i], acc[i][j])
			}
		}
		k.ADDQ(U8(4), pp)
		k.ADDQ(valueStride, vp)
		k.DECQ(left)
		k.JNZ(LabelRef(label))
		for i := range nq {
			for j := range nv {
				k.VMOVUPS(acc[i][j], row(at, i, 32*j))
			}
		}
	}
	for _, nq := range []int{3, 2, 1} {
		n := string(rune('0' + nq))
		k.Label("queries" + n)
		k.CMPQ(queries, U8(nq))
		k.JL(LabelRef("less" + n))
		at, from, left := k.GP64(), k.GP64(), k.GP64()
		k.MOVQ(out, at)
		k.MOVQ(v, from)
		k.MOVQ(stride, left)
		nv := 4
		if nq == 1 {
			nv = 8
		}
		k.Label("values" + n)
		k.CMPQ(left, U32(32*nv))
		k.JL(LabelRef("last" + n))
		block("many"+n, at, from, nq, nv)
		k.ADDQ(U32(32*nv), at)
		k.ADDQ(U32(eight[number]*nv), from)
		k.SUBQ(U32(32*nv), left)
		k.JMP(LabelRef("values" + n))
		k.Label("last" + n)
		k.TESTQ(left, left)
		k.JZ(LabelRef("done" + n))
		block("eight"+n, at, from, nq, 1)
		k.ADDQ(U8(32), at)
		k.ADDQ(U8(eight[number]), from)
		k.SUBQ(U8(32), left)
		k.JMP(LabelRef("last" + n))
		k.Label("done" + n)
		for range nq {
			k.ADDQ(stride, out)
		}
		k.ADDQ(U32(4*keyTile*nq), p)
		k.SUBQ(U8(nq), queries)
		k.JMP(LabelRef("queries" + n))
		k.Label("less" + n)
	}
	k.end()
}

func (k *vectors) softmax() {
	k.begin("softmaxAVX2", "func(p *float32, n int) (top, sum float32)", "softmaxAVX2 is softmaxGo; n is a multiple of 8.")
	p, n := k.pointer("p"), k.pointer("n")
	top := k.YMM()
	k.VMOVUPS(k.float("negativeInfinity", float32(math.Inf(-1))), top)
	k.each("highest", n, 4, func(i reg.GPVirtual, j int) {
		x := k.YMM()
		k.VMOVUPS(at(p, i, j), x)
		k.VMAXPS(top, x, top) // where x is NaN, top stays
	})
	h := k.XMM()
	k.VEXTRACTF128(U8(1), top, h)
	k.VMAXPS(h, top.AsX(), h)
	t := k.XMM()
	k.VMOVHLPS(h, h, t)
	k.VMAXPS(t, h, h)
	k.VMOVSHDUP(h, t)
	k.VMAXSS(t, h, h)
	k.result("top", h)
	k.VBROADCASTSS(h, top)
	sum := k.YMM()
	k.VXORPS(sum, sum, sum)
	k.each("powers", n, 1, func(i reg.GPVirtual, j int) {
		x := k.YMM()
		k.VMOVUPS(at(p, i, j), x)
		k.VSUBPS(top, x, x)
		k.exp(x)
		k.VMOVUPS(x, at(p, i, j))
		k.VADDPS(x, sum, sum)
	})
	k.VEXTRACTF128(U8(1), sum, h)
	k.VADDPS(h, sum.AsX(), h)
	k.VHADDPS(h, h, h)
	k.VHADDPS(h, h, h)
	k.result("sum", h)
	k.end()
}

// The factors of 2u in geGLUGo.
const (
	geluLinear = 2 * math.Sqrt2 / math.SqrtPi
	geluCubic  = geluLinear * 0.044715
)

// gate emits gate/(1 + eʸ)·up, where exponent computes y from the gate.
func (k *vectors) gate(name, doc string, exponent func(gate, y reg.VecVirtual)) {
	k.begin(name, "func(y, gate, up *float32, n int)", doc)
	y, gate, up, n := k.pointer("y"), k.pointer("gate"), k.pointer("up"), k.pointer("n")
	k.each("loop", n, 1, func(i reg.GPVirtual, j int) {
		x, e := k.YMM(), k.YMM()
		k.VMOVUPS(at(gate, i, j), x)
		exponent(x, e)
		k.exp(e)
		k.VADDPS(k.float("one", 1), e, e)
		k.VDIVPS(e, x, x)
		k.VMULPS(at(up, i, j), x, x)
		k.VMOVUPS(x, at(y, i, j))
	})
	k.end()
}

func (k *vectors) softcap() {
	k.begin("softcapAVX2", "func(x *float32, c, f float32, n int)", "softcapAVX2 is softcapGo; f is −2/c.")
	x, c, f, n := k.pointer("x"), k.broadcast("c"), k.broadcast("f"), k.pointer("n")
	k.each("loop", n, 1, func(i reg.GPVirtual, j int) {
		sign, e, t := k.YMM(), k.YMM(), k.YMM()
		k.VMOVUPS(at(x, i, j), e)
		k.VANDPS(k.constant("sign", 1<<31), e, sign)
		k.VXORPS(sign, e, e)
		k.VMULPS(f, e, e)
		k.exp(e)
		one := k.YMM()
		k.VMOVUPS(k.float("one", 1), one)
		k.VSUBPS(e, one, t)
		k.VADDPS(one, e, e)
		k.VDIVPS(e, t, t)
		k.VMULPS(c, t, t)
		k.VORPS(sign, t, t)
		k.VMOVUPS(t, at(x, i, j))
	})
	k.end()
}

// broadcast loads an argument into all lanes.
func (k *vectors) broadcast(name string) reg.VecVirtual {
	x := k.YMM()
	b, err := k.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	k.VBROADCASTSS(b.Addr, x)
	return x
}

// result stores the lowest lane as a result.
func (k *vectors) result(name string, x reg.VecVirtual) {
	b, err := k.Return(name).Resolve()
	if err != nil {
		panic(err)
	}
	k.VMOVSS(x, b.Addr)
}

func (k *vectors) merge() {
	k.begin("mergeAVX2", "func(y, x *float32, f, e float32, n int)", "mergeAVX2 is mergeGo.")
	y, x, f, e, n := k.pointer("y"), k.pointer("x"), k.broadcast("f"), k.broadcast("e"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a, b := k.YMM(), k.YMM()
		k.VMULPS(at(y, i, j), f, a)
		k.VMULPS(at(x, i, j), e, b)
		k.VADDPS(b, a, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) scale() {
	k.begin("scaleAVX2", "func(y, x *float32, f float32, n int)", "scaleAVX2 is scaleGo.")
	y, x, f, n := k.pointer("y"), k.pointer("x"), k.broadcast("f"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.YMM()
		k.VMULPS(at(x, i, j), f, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) add() {
	k.begin("addAVX2", "func(y, x *float32, n int)", "addAVX2 is add.")
	y, x, n := k.pointer("y"), k.pointer("x"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.YMM()
		k.VMOVUPS(at(y, i, j), a)
		k.VADDPS(at(x, i, j), a, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) rotate() {
	k.begin("rotateAVX2", "func(v, turns *float32, n int)", "rotateAVX2 is rotateGo.")
	v, turns, n := k.pointer("v"), k.pointer("turns"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		x, other, cos, sin := k.YMM(), k.YMM(), k.YMM(), k.YMM()
		k.VMOVUPS(at(v, i, j), x)
		k.VMOVSLDUP(at(turns, i, j), cos)
		k.VMOVSHDUP(at(turns, i, j), sin)
		k.VPERMILPS(U8(0xb1), x, other) // b a
		k.VMULPS(cos, x, x)
		k.VMULPS(sin, other, other)
		k.VADDSUBPS(other, x, x) // a·cos − b·sin, b·cos + a·sin
		k.VMOVUPS(x, at(v, i, j))
	})
	k.end()
}

func (k *vectors) rotatePairs() {
	k.begin("rotatePairsAVX2", "func(a, b, cos, sin *float32, n int)", "rotatePairsAVX2 is rotatePairsGo.")
	a, b, cos, sin, n := k.pointer("a"), k.pointer("b"), k.pointer("cos"), k.pointer("sin"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		x, y, c, s := k.YMM(), k.YMM(), k.YMM(), k.YMM()
		k.VMOVUPS(at(a, i, j), x)
		k.VMOVUPS(at(b, i, j), y)
		k.VMOVUPS(at(cos, i, j), c)
		k.VMOVUPS(at(sin, i, j), s)
		xs, yc := k.YMM(), k.YMM()
		k.VMULPS(s, x, xs)
		k.VMULPS(c, y, yc)
		k.VMULPS(c, x, x)
		k.VMULPS(s, y, y)
		k.VSUBPS(y, x, x)
		k.VADDPS(yc, xs, xs)
		k.VMOVUPS(x, at(a, i, j))
		k.VMOVUPS(xs, at(b, i, j))
	})
	k.end()
}

func (k *vectors) squares() {
	k.begin("squaresAVX2", "func(sums *[8]float64, x *float32, n int)", "squaresAVX2 is squaresGo.")
	sums, x, n := k.pointer("sums"), k.pointer("x"), k.pointer("n")
	low, high := k.YMM(), k.YMM()
	k.VXORPD(low, low, low)
	k.VXORPD(high, high, high)
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a, b := k.YMM(), k.YMM()
		k.VCVTPS2PD(at(x, i, j), a)
		k.VCVTPS2PD(at(x, i, j+4), b)
		k.VMULPD(a, a, a)
		k.VMULPD(b, b, b)
		k.VADDPD(a, low, low)
		k.VADDPD(b, high, high)
	})
	k.VMOVUPD(low, Mem{Base: sums})
	k.VMOVUPD(high, Mem{Base: sums, Disp: 32})
	k.end()
}

func (k *vectors) normalise() {
	k.begin("normaliseAVX2", "func(y, x, weight *float32, f float32, n int)", "normaliseAVX2 is normaliseGo.")
	y, x, w, f, n := k.pointer("y"), k.pointer("x"), k.pointer("weight"), k.broadcast("f"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.YMM()
		k.VMULPS(at(x, i, j), f, a)
		k.VMULPS(at(w, i, j), a, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) widen() {
	k.begin("widenAVX2", "func(y *float32, x *uint16, n int)", "widenAVX2 is widenGo.")
	y, x, n := k.pointer("y"), k.pointer("x"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.YMM()
		k.VCVTPH2PS(Mem{Base: x, Index: i, Scale: 2, Disp: 2 * j}, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) narrow() {
	k.begin("narrowAVX2", "func(y *uint16, x *float32, n int)", "narrowAVX2 is narrowGo.")
	y, x, n := k.pointer("y"), k.pointer("x"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.YMM()
		k.VMOVUPS(at(x, i, j), a)
		k.VCVTPS2PH(U8(0), a, Mem{Base: y, Index: i, Scale: 2, Disp: 2 * j})
	})
	k.end()
}

func (k *vectors) prefetch() {
	k.begin("prefetchAVX2", "func(x *uint16, n int)", "prefetchAVX2 asks for n bytes of memory at x, n ≥ 1.")
	x, n := k.pointer("x"), k.pointer("n")
	k.ADDQ(x, n)
	k.Label("loop")
	k.PREFETCHT0(Mem{Base: x})
	k.ADDQ(U8(64), x)
	k.CMPQ(x, n)
	k.JB(LabelRef("loop"))
	k.RET()
}
