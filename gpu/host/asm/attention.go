package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand" //nolint:staticcheck // operands read as in assembly
	"github.com/mmcloughlin/avo/reg"
)

const (
	// keyTile is that of attention.go: the floats from one query's scores to the next's.
	keyTile = 128
	// keyLanes is that of cache.go: how many positions' keys lie side by side.
	keyLanes = 16
)

// attention generates the kernels of attention and of all else that is not a multiplication by weights,
// for AVX2. Lengths in values are multiples of 8, and at least 8, where nothing else is said.
func attention(c *build.Context) {
	k := vectors{Context: c, lanes: 8, suffix: "AVX2", constants: map[uint32]Mem{}}
	for _, f := range cacheFormats {
		k.scores(f)
		k.weigh(f)
	}
	k.softmax()
	k.gates()
	k.softcap()
	k.merge()
	k.mergeAttended()
	k.scale()
	k.add()
	k.rotate()
	k.rotatePairs()
	k.squares()
	k.normalise()
	k.widen()
	k.narrow()
	k.quantiseCache()
	k.widenKeys()
	k.widenCache()
	k.prefetch()
}

// cacheFormat is a type of the numbers in a KV cache.
type cacheFormat struct {
	number string // in Go
	size   int    // bytes
	name   string // in the names of kernels
}

var cacheFormats = []cacheFormat{
	{"float32", 4, ""},
	{"uint16", 2, "Halves"},
	{"int8", 1, "Codes"},
}

// describe is the documentation of a kernel for numbers of the format, which are keys or values.
func (k *vectors) describe(f cacheFormat, name, numbers string) string {
	text := fmt.Sprintf("%s%s%s is %[1]s", name, f.name, k.suffix)
	switch {
	case f.number == "float32":
		return text + "Go with products that are not rounded before they are added."
	case f.number == "uint16":
		return text + k.suffix + " for " + numbers + " that are IEEE 754 halves."
	case numbers == "keys":
		return text + k.suffix + " for keys that are codes: a column's scales are at the same place, divided by 32."
	}
	return text + k.suffix + " for values that are codes: those of scales[keyPiece·b + j] are value j's from 32·b on."
}

// vectors emits kernels for registers of 8 or 16 lanes of float32.
type vectors struct {
	*build.Context
	lanes     int
	suffix    string // of names
	constants map[uint32]Mem
}

// reg is a register of all lanes.
func (k *vectors) reg() reg.VecVirtual {
	if k.lanes == 16 {
		return k.ZMM()
	}
	return k.YMM()
}

// constant is 32 bits in memory, for all lanes.
func (k *vectors) constant(name string, bits uint32) Mem {
	m, ok := k.constants[bits]
	if !ok {
		m = k.StaticGlobal("vector_" + name)
		k.DataAttributes(attr.RODATA | attr.NOPTR)
		for range k.lanes {
			k.AppendDatum(U32(bits))
		}
		k.constants[bits] = m
	}
	return m
}

func (k *vectors) float(name string, v float32) Mem { return k.constant(name, math.Float32bits(v)) }

func (k *vectors) begin(name, signature, doc string) {
	function(k.Context, name+k.suffix, signature, doc)
}

// twin begins a kernel that computes what a portable one does.
func (k *vectors) twin(name, signature string) {
	k.begin(name, signature, name+k.suffix+" is "+name+"Go.")
}

func (k *vectors) pointer(name string) reg.GPVirtual { return argument(k.Context, name) }

func (k *vectors) end() { end(k.Context) }

// each emits a loop over the n values at some pointers, as many at a time as there are lanes; a round does so
// unroll times. body's values are at the index i and disp more.
func (k *vectors) each(label string, n reg.GPVirtual, unroll int, body func(i reg.GPVirtual, disp int)) {
	i, end := k.GP64(), k.GP64()
	k.XORQ(i, i)
	if unroll > 1 {
		k.LEAQ(Mem{Base: n, Disp: -k.lanes * (unroll - 1)}, end)
		k.JMP(LabelRef(label + "Many"))
		k.Label(label + "Round")
		for j := range unroll {
			body(i, k.lanes*j)
		}
		k.ADDQ(U8(k.lanes*unroll), i)
		k.Label(label + "Many")
		k.CMPQ(i, end)
		k.JL(LabelRef(label + "Round"))
	}
	k.JMP(LabelRef(label + "One"))
	k.Label(label)
	body(i, 0)
	k.ADDQ(U8(k.lanes), i)
	k.Label(label + "One")
	k.CMPQ(i, n)
	k.JL(LabelRef(label))
}

// at is the floats from index i and disp more on.
func at(base, i reg.GPVirtual, disp int) Mem {
	return Mem{Base: base, Index: i, Scale: 4, Disp: 4 * disp}
}

// exp replaces x by eˣ, as exp in vectors.go says.
func (k *vectors) exp(x reg.VecVirtual) {
	t := k.reg()
	k.VMOVUPS(k.float("most", 89), t)
	k.VMINPS(x, t, x) // the second source is what NaN gives, and that is x
	k.power(x)
}

// power is exp of registers whose numbers are at most 89, or NaN. They take turns, so that one's next instruction
// doesn't wait for its last.
func (k *vectors) power(all ...reg.VecVirtual) {
	shift := k.float("shift", 0x1.8p23)
	type state struct{ x, t, n, r, p, y reg.VecVirtual }
	states := make([]state, len(all))
	for i, x := range all {
		states[i] = state{x, k.reg(), k.reg(), k.reg(), k.reg(), k.reg()}
	}
	least := k.reg()
	k.VMOVUPS(k.float("least", -104), least)
	steps := []func(s *state){
		func(s *state) { k.VMAXPS(s.x, least, s.x) },
		func(s *state) { k.VMULPS(k.float("log2e", math.Log2E), s.x, s.t) },
		func(s *state) { k.VADDPS(shift, s.t, s.t) },
		func(s *state) { k.VSUBPS(shift, s.t, s.n) },
		func(s *state) { k.VFNMADD231PS(k.float("ln2High", 0x1.63p-1), s.n, s.x) }, // the product is exact
		func(s *state) { k.VMULPS(k.float("ln2Low", -0x1.bd0106p-13), s.n, s.y) },
		func(s *state) { k.VSUBPS(s.y, s.x, s.r) },
		func(s *state) { k.VMULPS(s.r, s.r, s.y) },
		func(s *state) { k.VMULPS(k.float("c5", 0x1.123ap-7), s.r, s.p) },
		func(s *state) { k.VADDPS(k.float("c4", 0x1.5558f2p-5), s.p, s.p) },
		func(s *state) { k.VMULPS(k.float("c6", 0x1.6a23fcp-10), s.y, s.x) },
		func(s *state) { k.VADDPS(s.x, s.p, s.p) },
		func(s *state) { k.VMULPS(s.y, s.p, s.p) },
		func(s *state) { k.VMULPS(k.float("c3", 0x1.555492p-3), s.r, s.x) },
		func(s *state) { k.VADDPS(k.float("c2", 0x1.fffffcp-2), s.x, s.x) },
		func(s *state) { k.VADDPS(s.x, s.p, s.p) },
		func(s *state) { k.VMULPS(s.p, s.y, s.y) },
		func(s *state) { k.VADDPS(s.r, s.y, s.y) },
		func(s *state) { k.VADDPS(k.float("one", 1), s.y, s.y) },
	}
	if k.lanes == 16 { // it rounds once, as two factors do of which the first is exact
		steps = append(steps, func(s *state) { k.VSCALEFPS(s.n, s.y, s.x) })
	} else { // 2ᵏ in two factors, since k goes from −150 to 128
		bias := k.constant("bias", 127)
		steps = append(steps,
			func(s *state) { k.VPSUBD(shift, s.t, s.t) },
			func(s *state) { k.VPSRAD(U8(1), s.t, s.n) },
			func(s *state) { k.VPSUBD(s.n, s.t, s.t) },
			func(s *state) { k.VPADDD(bias, s.n, s.n) },
			func(s *state) { k.VPSLLD(U8(23), s.n, s.n) },
			func(s *state) { k.VPADDD(bias, s.t, s.t) },
			func(s *state) { k.VPSLLD(U8(23), s.t, s.t) },
			func(s *state) { k.VMULPS(s.n, s.y, s.y) },
			func(s *state) { k.VMULPS(s.t, s.y, s.x) })
	}
	for _, step := range steps {
		for i := range states {
			step(&states[i])
		}
	}
}

// load loads as many numbers as there are lanes as float32. Codes are still to be multiplied by their scale.
func (k *vectors) load(f cacheFormat, m Mem, y reg.VecVirtual) {
	switch f.number {
	case "uint16":
		k.VCVTPH2PS(m, y)
	case "int8":
		k.VPMOVSXBD(m, y)
		k.VCVTDQ2PS(y, y)
	default:
		k.VMOVUPS(m, y)
	}
}

// pieceBytes is from the scales of values' 32 codes to those of the next 32: keyPiece floats.
const pieceBytes = 4 * 64

// sixRows addresses up to six rows of dim floats. Pointers are to the first and the fourth.
type sixRows struct{ first, fourth, dim reg.GPVirtual }

// sixRows begins n rows at first, which has from's address.
func (k *vectors) sixRows(first, from, dim reg.GPVirtual, n int) sixRows {
	r := sixRows{first, k.GP64(), dim}
	if n > 3 {
		k.LEAQ(Mem{Base: from, Index: dim, Scale: 8}, r.fourth)
		k.LEAQ(Mem{Base: r.fourth, Index: dim, Scale: 4}, r.fourth)
	}
	return r
}

// at is row i from its float n on.
func (r sixRows) at(i, n int) Mem {
	m := Mem{Base: r.first, Disp: 4 * n}
	if i >= 3 {
		m.Base = r.fourth
	}
	if i %= 3; i > 0 {
		m.Index, m.Scale = r.dim, uint8(4*i)
	}
	return m
}

// advance adds n × dim to p.
func (k *vectors) advance(p, dim reg.GPVirtual, n int) {
	for _, scale := range []int{8, 4, 2, 1} {
		for ; n >= scale; n -= scale {
			k.LEAQ(Mem{Base: p, Index: dim, Scale: uint8(scale)}, p)
		}
	}
}

// scores: a column is 16 keys side by side, of which each has a lane, that goes through the products with a query in
// order. So there are no lanes to add up, and a column's numbers are read one after another.
func (k *vectors) scores(f cacheFormat) {
	codes := f.number == "int8"
	scales := ""
	if codes {
		scales = ", scales *uint16"
	}
	k.begin("scores"+f.name, "func(dst, q *float32, k *"+f.number+scales+", at *int, queries, columns, dim int)", k.describe(f, "scores", "keys"))
	dst, q, queries, dim := k.pointer("dst"), k.pointer("q"), k.pointer("queries"), k.pointer("dim")
	for _, shape := range k.scoreShapes(codes) {
		n := fmt.Sprint(shape.queries)
		k.Label("queries" + n)
		k.CMPQ(queries, U8(shape.queries))
		k.JL(LabelRef("less" + n))
		at, to, left := k.pointer("at"), k.GP64(), k.pointer("columns")
		k.MOVQ(dst, to)
		for columns := shape.columns; columns > 0; columns /= 2 {
			label := fmt.Sprintf("columns%dx%d", shape.queries, columns)
			k.Label(label)
			k.CMPQ(left, U8(columns))
			k.JL(LabelRef(label + "less"))
			k.scoresBlock(label+"products", f, q, at, to, dim, shape.queries, columns)
			k.ADDQ(U8(8*columns), at)
			k.ADDQ(U32(4*keyLanes*columns), to)
			k.SUBQ(U8(columns), left)
			k.JMP(LabelRef(label))
			k.Label(label + "less")
		}
		k.advance(q, dim, 4*shape.queries)
		k.ADDQ(U32(4*keyTile*shape.queries), dst)
		k.SUBQ(U8(shape.queries), queries)
		k.JMP(LabelRef("queries" + n))
		k.Label("less" + n)
	}
	k.end()
}

// scoreShape is how many queries and columns of keys go together.
type scoreShape struct{ queries, columns int }

// scoreShapes are as large as there are registers for, and with few queries so that no sum waits for the one before.
func (k *vectors) scoreShapes(codes bool) []scoreShape {
	switch {
	case codes && k.lanes == 16:
		return []scoreShape{{3, 2}, {2, 2}, {1, 2}}
	case codes:
		return []scoreShape{{3, 1}, {2, 1}, {1, 2}}
	case k.lanes == 16:
		return []scoreShape{{6, 4}, {3, 4}, {2, 4}, {1, 4}}
	}
	return []scoreShape{{3, 2}, {2, 2}, {1, 4}}
}

// scoresBlock computes the scores of some queries and columns.
func (k *vectors) scoresBlock(label string, f cacheFormat, q, at, to, dim reg.GPVirtual, queries, columns int) {
	const unroll = 4
	codes := f.number == "int8"
	width := keyLanes / k.lanes // vectors of a column
	var sums [6][8]reg.VecVirtual
	for i := range queries {
		for j := range columns * width {
			sums[i][j] = k.reg()
			k.VXORPS(sums[i][j], sums[i][j], sums[i][j])
		}
	}
	qp := k.GP64()
	k.MOVQ(q, qp)
	query, left := k.sixRows(qp, q, dim, queries), k.GP64()
	keys, scales := make([]reg.GPVirtual, columns), make([]reg.GPVirtual, columns)
	for c := range keys {
		keys[c] = k.pointer("k")
		offset := k.GP64()
		k.MOVQ(Mem{Base: at, Disp: 8 * c}, offset)
		k.LEAQ(Mem{Base: keys[c], Index: offset, Scale: uint8(f.size)}, keys[c])
		if codes { // scales are as many as there are 32 codes
			scales[c] = k.pointer("scales")
			k.SHRQ(U8(5), offset)
			k.LEAQ(Mem{Base: scales[c], Index: offset, Scale: 2}, scales[c])
		}
	}
	// products multiplies unroll numbers of each key, and goes on to the next.
	products := func(factors []reg.VecVirtual) {
		for d := range unroll {
			var x [6]reg.VecVirtual
			for i := range queries {
				x[i] = k.reg()
				k.VBROADCASTSS(query.at(i, d), x[i])
			}
			y := k.reg()
			for j := range columns * width {
				k.load(f, Mem{Base: keys[j/width], Disp: f.size * (keyLanes*d + k.lanes*(j%width))}, y)
				if codes {
					k.VMULPS(factors[j], y, y)
				}
				for i := range queries {
					k.VFMADD231PS(y, x[i], sums[i][j])
				}
			}
		}
		k.ADDQ(U8(4*unroll), query.first)
		if queries > 3 {
			k.ADDQ(U8(4*unroll), query.fourth)
		}
		for c := range keys {
			k.ADDQ(U32(f.size*keyLanes*unroll), keys[c])
		}
	}
	k.MOVQ(dim, left)
	k.Label(label)
	if codes {
		factors := make([]reg.VecVirtual, columns*width)
		for j := range factors {
			factors[j] = k.reg()
			k.VCVTPH2PS(Mem{Base: scales[j/width], Disp: 2 * k.lanes * (j % width)}, factors[j])
		}
		for c := range scales {
			k.ADDQ(U8(2*keyLanes), scales[c])
		}
		some := k.GP64()
		k.MOVQ(U32(32/unroll), some)
		k.Label(label + "scaled")
		products(factors)
		k.DECQ(some)
		k.JNZ(LabelRef(label + "scaled"))
		k.SUBQ(U8(32), left)
	} else {
		products(nil)
		k.SUBQ(U8(unroll), left)
	}
	k.JNZ(LabelRef(label))
	for i := range queries {
		for j := range columns * width {
			k.VMOVUPS(sums[i][j], Mem{Base: to, Disp: 4 * (keyTile*i + k.lanes*j)})
		}
	}
}

// weigh takes nq queries at a time, and of these nv[nq] vectors of values: one of codes' are then a multiple
// of 32 values.
func (k *vectors) weigh(f cacheFormat) {
	scales := ""
	if f.number == "int8" {
		scales = ", scales *float32"
	}
	k.begin("weigh"+f.name, "func(out *float32, p *float32, v *"+f.number+scales+", queries, keys, dim int)", k.describe(f, "weigh", "values"))
	out, p, queries, dim := k.pointer("out"), k.pointer("p"), k.pointer("queries"), k.pointer("dim")
	groups, most := []int{3, 2, 1}, 4
	if k.lanes == 16 {
		groups = []int{6, 3, 2, 1}
	}
	least := 1
	if f.number == "int8" {
		least = 32 / k.lanes
	}
	for _, nq := range groups {
		n := fmt.Sprint(nq)
		k.Label("queries" + n)
		k.CMPQ(queries, U8(nq))
		k.JL(LabelRef("less" + n))
		at, from, left := k.GP64(), k.pointer("v"), k.GP64()
		k.MOVQ(out, at)
		k.MOVQ(dim, left)
		var scale reg.GPVirtual
		if f.number == "int8" {
			scale = k.pointer("scales")
		}
		many := most
		if nq == 1 && f.number != "int8" {
			many = 8
		}
		for _, nv := range slices.Compact([]int{many, least}) {
			label := fmt.Sprintf("values%dx%d", nq, nv)
			k.Label(label)
			k.CMPQ(left, U8(k.lanes*nv))
			k.JL(LabelRef(label + "less"))
			k.weighBlock(label+"keys", f, p, at, from, scale, dim, nq, nv)
			k.ADDQ(U32(4*k.lanes*nv), at)
			k.ADDQ(U32(f.size*k.lanes*nv), from)
			if scale != nil {
				k.ADDQ(U32(pieceBytes*k.lanes*nv/32), scale)
			}
			k.SUBQ(U8(k.lanes*nv), left)
			k.JMP(LabelRef(label))
			k.Label(label + "less")
		}
		k.advance(out, dim, 4*nq)
		k.ADDQ(U32(4*keyTile*nq), p)
		k.SUBQ(U8(nq), queries)
		k.JMP(LabelRef("queries" + n))
		k.Label("less" + n)
	}
	k.end()
}

// weighBlock adds to nq rows × nv vectors.
func (k *vectors) weighBlock(label string, f cacheFormat, p, at, from, scale, dim reg.GPVirtual, nq, nv int) {
	row := k.sixRows(at, at, dim, nq)
	var acc [6][8]reg.VecVirtual
	for i := range nq {
		for j := range nv {
			acc[i][j] = k.reg()
			k.VMOVUPS(row.at(i, k.lanes*j), acc[i][j])
		}
	}
	pp, vp, left := k.GP64(), k.GP64(), k.pointer("keys")
	k.MOVQ(p, pp)
	k.MOVQ(from, vp)
	var sp reg.GPVirtual
	if scale != nil {
		sp = k.GP64()
		k.MOVQ(scale, sp)
	}
	k.Label(label)
	weight := func(i int) Mem { return Mem{Base: pp, Disp: 4 * keyTile * i} }
	short := scale != nil && k.lanes == 8 && nq == 3 // of registers
	var x [6]reg.VecVirtual
	for i := range nq {
		if !short || i < 2 {
			x[i] = k.reg()
			k.VBROADCASTSS(weight(i), x[i])
		}
	}
	y := k.reg()
	for j := range nv {
		k.load(f, Mem{Base: vp, Disp: f.size * k.lanes * j}, y)
		if scale != nil {
			m := Mem{Base: sp, Disp: pieceBytes * (k.lanes * j / 32)}
			if k.lanes == 16 {
				k.VMULPS_BCST(m, y, y)
			} else {
				s := k.YMM()
				k.VBROADCASTSS(m, s)
				k.VMULPS(s, y, y)
			}
		}
		if short {
			x[2] = k.reg()
			k.VBROADCASTSS(weight(2), x[2])
		}
		for i := range nq {
			k.VFMADD231PS(y, x[i], acc[i][j])
		}
	}
	k.ADDQ(U8(4), pp)
	k.LEAQ(Mem{Base: vp, Index: dim, Scale: uint8(f.size)}, vp)
	if sp != nil {
		k.ADDQ(U8(4), sp)
	}
	k.DECQ(left)
	k.JNZ(LabelRef(label))
	for i := range nq {
		for j := range nv {
			k.VMOVUPS(acc[i][j], row.at(i, k.lanes*j))
		}
	}
}

// softmax takes some rows at a time, so that one's arithmetic fills the others' waiting: a row of a tile is short.
func (k *vectors) softmax() {
	k.begin("softmax", "func(p *float32, rows, n int, top, sum *float32)", fmt.Sprintf(
		"softmax%s is softmaxGo for rows that begin keyTile apart; rows and n are at least 1, and n is a multiple of %d.", k.suffix, k.lanes))
	p, count, n, top, sum := k.pointer("p"), k.pointer("rows"), k.pointer("n"), k.pointer("top"), k.pointer("sum")
	last := k.GP64() // what is behind a row
	k.LEAQ(Mem{Base: p, Index: n, Scale: 4}, last)
	for _, m := range []int{3, 1} {
		label := fmt.Sprintf("rows%d", m)
		k.Label(label)
		k.CMPQ(count, U8(m))
		k.JL(LabelRef(label + "less"))
		row := func(at reg.GPVirtual, i int) Mem { return Mem{Base: at, Disp: 4 * keyTile * i} }
		var tops, sums [3]reg.VecVirtual
		for i := range m {
			tops[i] = k.reg()
			k.VMOVUPS(k.float("negativeInfinity", float32(math.Inf(-1))), tops[i])
		}
		at := k.GP64()
		k.MOVQ(p, at)
		k.Label(label + "highest")
		for i := range m {
			x := k.reg()
			k.VMOVUPS(row(at, i), x)
			k.VMAXPS(tops[i], x, tops[i]) // where x is NaN, the top stays
		}
		k.ADDQ(U8(4*k.lanes), at)
		k.CMPQ(at, last)
		k.JB(LabelRef(label + "highest"))
		for i := range m {
			h, t := tops[i], k.XMM()
			if k.lanes == 16 {
				h = k.YMM()
				k.VEXTRACTF32X8(U8(1), tops[i], h)
				k.VMAXPS(h, tops[i].AsY(), h)
			}
			k.upperQuarter(h, t)
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
		powers := make([]reg.VecVirtual, m)
		for i := range powers {
			powers[i] = k.reg()
			k.VMOVUPS(row(at, i), powers[i])
			k.VSUBPS(tops[i], powers[i], powers[i])
		}
		k.power(powers...)
		for i, x := range powers {
			k.VMOVUPS(x, row(at, i))
			k.VADDPS(x.AsY(), sums[i], sums[i])
			if k.lanes == 16 {
				h := k.YMM()
				k.VEXTRACTF32X8(U8(1), x, h)
				k.VADDPS(h, sums[i], sums[i])
			}
		}
		k.ADDQ(U8(4*k.lanes), at)
		k.CMPQ(at, last)
		k.JB(LabelRef(label + "powers"))
		for i := range m { // as dot.go adds
			h, t := k.XMM(), k.XMM()
			k.upperQuarter(sums[i], h)
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

// upperQuarter is lanes 4 to 7 of y.
func (k *vectors) upperQuarter(y, x reg.VecVirtual) {
	if k.lanes == 16 { // any of 32 registers
		k.VEXTRACTF32X4(U8(1), y.AsY(), x.AsX())
		return
	}
	k.VEXTRACTF128(U8(1), y.AsY(), x.AsX())
}

// The factors of 2u in geGLUGo.
const (
	geluLinear = 2 * math.Sqrt2 / math.SqrtPi
	geluCubic  = geluLinear * 0.044715
)

func (k *vectors) gates() {
	k.gate("swiGLU", func(x, e reg.VecVirtual) {
		k.VXORPS(k.constant("sign", 1<<31), x, e)
	})
	k.gate("geGLU", func(x, e reg.VecVirtual) {
		k.VMULPS(x, x, e)
		k.VMULPS(k.float("geluCubic", -geluCubic), e, e)
		k.VADDPS(k.float("geluLinear", -geluLinear), e, e)
		k.VMULPS(x, e, e)
	})
}

// gate emits gate/(1 + eʸ)·up, where exponent computes y from the gate.
func (k *vectors) gate(name string, exponent func(gate, y reg.VecVirtual)) {
	k.twin(name, "func(y, gate, up *float32, n int)")
	y, gate, up, n := k.pointer("y"), k.pointer("gate"), k.pointer("up"), k.pointer("n")
	k.each("loop", n, 1, func(i reg.GPVirtual, j int) {
		x, e := k.reg(), k.reg()
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
	k.begin("softcap", "func(x *float32, c, f float32, n int)", "softcap"+k.suffix+" is softcapGo; f is −2/c.")
	x, c, f, n := k.pointer("x"), k.broadcast("c"), k.broadcast("f"), k.pointer("n")
	k.each("loop", n, 1, func(i reg.GPVirtual, j int) {
		sign, e, t := k.reg(), k.reg(), k.reg()
		k.VMOVUPS(at(x, i, j), e)
		k.VANDPS(k.constant("sign", 1<<31), e, sign)
		k.VXORPS(sign, e, e)
		k.VMULPS(f, e, e)
		k.exp(e)
		one := k.reg()
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
	x := k.reg()
	b, err := k.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	k.VBROADCASTSS(b.Addr, x)
	return x
}

func (k *vectors) merge() {
	k.twin("merge", "func(y, x *float32, f, e float32, n int)")
	y, x, f, e, n := k.pointer("y"), k.pointer("x"), k.broadcast("f"), k.broadcast("e"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a, b := k.reg(), k.reg()
		k.VMULPS(at(y, i, j), f, a)
		k.VMULPS(at(x, i, j), e, b)
		k.VADDPS(b, a, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) mergeAttended() {
	k.begin("mergeAttended", "func(y, top, sum, x, xTop, xSum *float32, queries, n int)",
		"mergeAttended"+k.suffix+" is mergeAttendedGo; queries are at least 1, and n is a multiple of 16.")
	y, top, sum := k.pointer("y"), k.pointer("top"), k.pointer("sum")
	x, xTop, xSum, queries, n := k.pointer("x"), k.pointer("xTop"), k.pointer("xSum"), k.pointer("queries"), k.pointer("n")
	k.Label("query")
	a, b, t := k.YMM(), k.YMM(), k.YMM()
	k.VBROADCASTSS(Mem{Base: top}, a)
	k.VBROADCASTSS(Mem{Base: xTop}, b)
	k.VMAXPS(a, b, t) // the second source, if they are equal
	k.VMOVSS(t.AsX(), Mem{Base: top})
	k.VSUBPS(t, a, a)
	k.VSUBPS(t, b, b)
	k.VUNPCKLPS(b, a, a) // both powers at once
	k.power(a)
	f, e, u := k.YMM(), k.YMM(), k.YMM()
	k.VMOVSLDUP(a, f)
	k.VMOVSHDUP(a, e)
	k.VMULSS(Mem{Base: sum}, f.AsX(), t.AsX())
	k.VMULSS(Mem{Base: xSum}, e.AsX(), u.AsX())
	k.VADDSS(u.AsX(), t.AsX(), t.AsX())
	k.VMOVSS(t.AsX(), Mem{Base: sum})
	left := k.GP64()
	k.MOVQ(n, left)
	k.Label("numbers")
	for i := range 2 {
		k.VMULPS(Mem{Base: y, Disp: 32 * i}, f, t)
		k.VMULPS(Mem{Base: x, Disp: 32 * i}, e, u)
		k.VADDPS(u, t, t)
		k.VMOVUPS(t, Mem{Base: y, Disp: 32 * i})
	}
	k.ADDQ(U8(64), y)
	k.ADDQ(U8(64), x)
	k.SUBQ(U8(16), left)
	k.JNZ(LabelRef("numbers"))
	for _, p := range []reg.GPVirtual{top, sum, xTop, xSum} {
		k.ADDQ(U8(4), p)
	}
	k.DECQ(queries)
	k.JNZ(LabelRef("query"))
	k.end()
}

func (k *vectors) scale() {
	k.twin("scale", "func(y, x *float32, f float32, n int)")
	y, x, f, n := k.pointer("y"), k.pointer("x"), k.broadcast("f"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.reg()
		k.VMULPS(at(x, i, j), f, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) add() {
	k.begin("add", "func(y, x *float32, n int)", "add"+k.suffix+" is add.")
	y, x, n := k.pointer("y"), k.pointer("x"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.reg()
		k.VMOVUPS(at(y, i, j), a)
		k.VADDPS(at(x, i, j), a, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) rotate() {
	k.twin("rotate", "func(v, turns *float32, n int)")
	v, turns, n := k.pointer("v"), k.pointer("turns"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		x, other, cos, sin := k.reg(), k.reg(), k.reg(), k.reg()
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
	k.twin("rotatePairs", "func(a, b, cos, sin *float32, n int)")
	a, b, cos, sin, n := k.pointer("a"), k.pointer("b"), k.pointer("cos"), k.pointer("sin"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		x, y, c, s := k.reg(), k.reg(), k.reg(), k.reg()
		k.VMOVUPS(at(a, i, j), x)
		k.VMOVUPS(at(b, i, j), y)
		k.VMOVUPS(at(cos, i, j), c)
		k.VMOVUPS(at(sin, i, j), s)
		xs, yc := k.reg(), k.reg()
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
	k.twin("squares", "func(sums *[8]float64, x *float32, n int)")
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
	k.twin("normalise", "func(y, x, weight *float32, f float32, n int)")
	y, x, w, f, n := k.pointer("y"), k.pointer("x"), k.pointer("weight"), k.broadcast("f"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.reg()
		k.VMULPS(at(x, i, j), f, a)
		k.VMULPS(at(w, i, j), a, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) widen() {
	k.twin("widen", "func(y *float32, x *uint16, n int)")
	y, x, n := k.pointer("y"), k.pointer("x"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.reg()
		k.VCVTPH2PS(Mem{Base: x, Index: i, Scale: 2, Disp: 2 * j}, a)
		k.VMOVUPS(a, at(y, i, j))
	})
	k.end()
}

func (k *vectors) narrow() {
	k.twin("narrow", "func(y *uint16, x *float32, n int)")
	y, x, n := k.pointer("y"), k.pointer("x"), k.pointer("n")
	k.each("loop", n, 4, func(i reg.GPVirtual, j int) {
		a := k.reg()
		k.VMOVUPS(at(x, i, j), a)
		k.VCVTPS2PH(U8(0), a, Mem{Base: y, Index: i, Scale: 2, Disp: 2 * j})
	})
	k.end()
}

func (k *vectors) prefetch() {
	k.begin("prefetch", "func(x *byte, n int)", "prefetchAVX2 asks for n bytes of memory at x, n ≥ 1.")
	x, n := k.pointer("x"), k.pointer("n")
	k.ADDQ(x, n)
	k.Label("loop")
	k.PREFETCHT0(Mem{Base: x})
	k.ADDQ(U8(64), x)
	k.CMPQ(x, n)
	k.JB(LabelRef("loop"))
	k.RET()
}
