package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/edsrzf/mmap-go"

	"github.com/troupe-llm/troupe/model/gguf"
)

// Packed weights are what the processor's own kernels read: the numbers of the file, not one more nor
// less, in another order. A matrix is cut into groups of as many rows as a vector has 32-bit words, a group
// into records of 32 columns, or 256 in the K types; records of a group follow each other, so that a kernel
// reads one stream.
//
// A block of 32 columns is unsigned integers of 2, 3, 4, 5, 6 or 8 bits. In memory there are first the
// scales of the rows (see the types below), then planes of higher bits, then nibbles, all in vectors with 4
// bytes a row: vector v of 8 has columns 4v … 4v+3. In the 4 vectors of nibbles, vectors v and v+4 share
// bytes; a plane has bit 4 of vectors 0 to 7, or bits 4 and 5 of four of them. Bytes are 8 vectors. Where
// there are 2 or 3 bits, 2 vectors of pairs stand for those of nibbles: vectors 0 to 3 share the bytes of
// the first, 4 to 7 those of the second, and a plane has bit 2.
//
// Types of code books are packed as 4-bit integers, which are places in the book.
//
// Floats stay as they are, and are multiplied by float activations: a record is two columns of a group.

// packing is how a type is packed, and what multiplies it.
type packing struct {
	rows   int // of a group, which the instructions' own file sets: 8 or 16
	float  int // bytes of a number of a type of floats, to which nothing else below applies but kernels
	bits   int
	blocks int // of 32 columns, in a record: 1, or 8 of a super-block
	super  int // bytes of scales a row that a super-block begins with
	header int // bytes of scales a row that each block begins with
	// unpack gives the unsigned integers of a block: block i of those in a record. What is signed in the
	// file is moved up: by 4, 8, 16, 32 or 128.
	unpack func(src []byte, i int) integers
	// scales writes the scales of row row, of those that a group has, into a record, whose blocks are size
	// bytes apart.
	scales func(record, src []byte, row, rows, size int)

	kernels []kernel // for as many activation rows as kernelRows says
	// quantise rounds activations to octets that are step apart, for types that take such.
	quantise func(q []octets, x []float32, step int)
	// panels says that octets of all rows that a kernel takes lie together: first each row's first, then
	// each row's second, and so on.
	panels bool
}

// kernel multiplies 1, 2, 4 … rows of activations, octets or float32 that begin at x and are xStride bytes
// apart, by groups of weight rows of so many records, into rows of y that are yStride bytes apart.
type kernel func(w *byte, groups, records int, x *byte, xStride int, y *float32, yStride int)

// kernelRows are the activation rows that a packing's kernels are for. A packing may lack the larger ones.
var kernelRows = [...]int{1, 2, 4, 8, 12}

const (
	maxPackRows   = 16
	maxKernelRows = 12
	floatColumns  = 2 // of a record of floats: matrices with an odd number of columns are not packed
)

// packings are those of all types that have one; kernels are added by the instructions' own file.
var packings = map[gguf.Type]packing{
	gguf.F32:  {float: 4},
	gguf.F16:  {float: 2},
	gguf.BF16: {float: 2},
	gguf.Q4_0: {bits: 4, blocks: 1, header: 2, unpack: unpack4(2), scales: copyScales(1)},
	gguf.Q4_1: {bits: 4, blocks: 1, header: 4, unpack: unpack4(4), scales: copyScales(2)},
	gguf.Q5_0: {bits: 5, blocks: 1, header: 2, unpack: unpack5(2), scales: copyScales(1)},
	gguf.Q5_1: {bits: 5, blocks: 1, header: 4, unpack: unpack5(4), scales: copyScales(2)},
	gguf.Q8_0: {bits: 8, blocks: 1, header: 2, unpack: unpackQ8_0, scales: copyScales(1)},
	gguf.Q2_K: {bits: 2, blocks: 8, super: 4, header: 2, unpack: unpackQ2_K, scales: scalesQ2_K},
	gguf.Q3_K: {bits: 3, blocks: 8, super: 2, header: 2, unpack: unpackQ3_K, scales: scalesQ3_K},
	gguf.Q4_K: {bits: 4, blocks: 8, super: 4, header: 2, unpack: unpackQ4_K, scales: scalesK},
	gguf.Q5_K: {bits: 5, blocks: 8, super: 4, header: 2, unpack: unpackQ5_K, scales: scalesK},
	gguf.Q6_K: {bits: 6, blocks: 8, super: 2, header: 2, unpack: unpackQ6_K, scales: scalesQ6_K},

	gguf.IQ4_NL: {bits: 4, blocks: 1, header: 2, unpack: unpack4(2), scales: copyScales(1)},
	gguf.IQ4_XS: {bits: 4, blocks: 8, super: 2, header: 1, unpack: unpack4(8), scales: scalesIQ4_XS},
	gguf.MXFP4:  {bits: 4, blocks: 1, header: 2, unpack: unpack4(1), scales: scalesMXFP4},
}

// blockBytes is the size of a block of 32 columns of a group, recordBytes that of a record, and groupBytes
// that of all records of a group of in columns.
func (p *packing) blockBytes() int { return p.rows * (p.header + 4*p.bits) }
func (p *packing) recordBytes() int {
	if p.float > 0 {
		return floatColumns * p.rows * p.float
	}
	return p.rows*p.super + p.blocks*p.blockBytes()
}

func (p *packing) groupBytes(in int) int { return p.records(in) * p.recordBytes() }

func (p *packing) records(in int) int {
	if p.float > 0 {
		return in / floatColumns
	}
	return in / (32 * p.blocks)
}

// kernel is the one for as many of n activation rows as there is one for, and how many these are.
func (p *packing) kernel(n int) (k kernel, rows int) {
	for i, k := range slices.Backward(p.kernels) {
		if kernelRows[i] <= n {
			return k, kernelRows[i]
		}
	}
	panic("no activations")
}

// panel says where the octets of activation row row of n begin, of blocks a row, and how far apart they are.
func (p *packing) panel(row, n, blocks int) (at, step int) {
	if !p.panels {
		return row * blocks, 1
	}
	first := 0
	for {
		_, rows := p.kernel(n - first)
		if row < first+rows {
			return first*blocks + row - first, rows
		}
		first += rows
	}
}

// pack writes a group: its rows of the file, whose blocks have size bytes. Rows that are not there become
// zeros.
func (p *packing) pack(dst []byte, rows [][]byte, size int) {
	if len(rows) < p.rows {
		clear(dst)
	}
	if n := p.float; n > 0 {
		for row, src := range rows {
			at := n * row
			switch n {
			case 2:
				for ; at < len(dst); at, src = at+2*p.rows, src[2:] {
					copy2(dst[at:], src)
				}
			case 4:
				for ; at < len(dst); at, src = at+4*p.rows, src[4:] {
					copy4(dst[at:], src)
				}
			}
		}
		return
	}
	block := p.blockBytes()
	for at := 0; len(dst) > 0; at += size {
		record := dst[:p.recordBytes()]
		dst = dst[len(record):]
		for row, src := range rows {
			src = src[at : at+size]
			p.scales(record, src, row, p.rows, block)
			b := record[p.rows*(p.super+p.header):]
			for i := range p.blocks {
				p.put(b[i*block:], 4*row, p.unpack(src, i))
			}
		}
	}
}

// copy2 and copy4 copy 2 and 4 bytes, which takes copy ten times as long.
func copy2(dst, src []byte) { binary.LittleEndian.PutUint16(dst, binary.LittleEndian.Uint16(src)) }
func copy4(dst, src []byte) { binary.LittleEndian.PutUint32(dst, binary.LittleEndian.Uint32(src)) }

// integers are those of a block, a byte each: eight to a word, the first in the lowest byte.
type integers struct{ a, b, c, d uint64 }

// put writes a block of a row into vectors, of which at is where the row begins in the first. A word of
// integers is of two vectors.
func (p *packing) put(dst []byte, at int, v integers) {
	step := 4 * p.rows
	// half writes a vector, and pair two: the lower half of a word and the upper one.
	half := func(word uint32) {
		binary.LittleEndian.PutUint32(dst[at:], word)
		at += step
	}
	pair := func(word uint64) {
		half(uint32(word))
		half(uint32(word >> 32))
	}
	// twos are four vectors' lowest two bits in one.
	twos := func(v, w uint64) uint32 {
		both := v&threes | w&threes<<4
		return uint32(both) | uint32(both>>32)<<2
	}
	// bits are all vectors' bits n in one.
	bits := func(n int) uint32 {
		all := v.a>>n&ones | v.b>>n&ones<<2 | v.c>>n&ones<<4 | v.d>>n&ones<<6
		return uint32(all) | uint32(all>>32)<<1
	}
	switch p.bits {
	case 2, 3:
		if p.bits == 3 {
			half(bits(2))
		}
		half(twos(v.a, v.b))
		half(twos(v.c, v.d))
		return
	case 8:
		pair(v.a)
		pair(v.b)
		pair(v.c)
		pair(v.d)
		return
	case 5:
		half(bits(4))
	case 6:
		half(twos(v.a>>4, v.b>>4))
		half(twos(v.c>>4, v.d>>4))
	}
	pair(v.a&fifteens | v.c&fifteens<<4)
	pair(v.b&fifteens | v.d&fifteens<<4)
}

// copyScales copies a block's n halves, the scale and perhaps the minimum: all rows' scales, then all rows'
// minima.
func copyScales(n int) func(record, src []byte, row, rows, size int) {
	return func(record, src []byte, row, rows, _ int) {
		for i := range n {
			copy2(record[2*(rows*i+row):], src[2*i:])
		}
	}
}

// Integers are unpacked eight bytes at a time: each is all of these.
const (
	ones     = 0x0101010101010101
	threes   = 0x0303030303030303
	fifteens = 0x0f0f0f0f0f0f0f0f
)

func bytes8(src []byte) uint64 { return binary.LittleEndian.Uint64(src) }

// unpack4 is for types whose nibbles follow the first so many bytes, 16 bytes a block.
func unpack4(first int) func(src []byte, i int) integers {
	return func(src []byte, i int) integers {
		src = src[first+16*i:][:16]
		q, r := bytes8(src), bytes8(src[8:])
		return integers{q & fifteens, r & fifteens, q >> 4 & fifteens, r >> 4 & fifteens}
	}
}

// unpack5 is for Q5_0 and Q5_1: a word of fifth bits comes before the nibbles.
func unpack5(first int) func(src []byte, _ int) integers {
	return func(src []byte, _ int) integers {
		src = src[first:][:20]
		high, q, r := binary.LittleEndian.Uint32(src), bytes8(src[4:]), bytes8(src[12:])
		return integers{
			q&fifteens | eachBit(high)<<4, r&fifteens | eachBit(high>>8)<<4,
			q>>4&fifteens | eachBit(high>>16)<<4, r>>4&fifteens | eachBit(high>>24)<<4,
		}
	}
}

// eachBit gives each of the lowest eight bits a byte, which is 1 or 0.
func eachBit(bits uint32) uint64 {
	// Byte i keeps bit i of its copy of all eight, and what is not 0 is then carried into the highest.
	one := uint64(bits&0xff) * ones & 0x8040201008040201
	return (one + 0x7f*ones) >> 7 & ones
}

// integers32 are 32 bytes.
func integers32(src []byte) integers {
	src = src[:32]
	return integers{bytes8(src), bytes8(src[8:]), bytes8(src[16:]), bytes8(src[24:])}
}

// bits are of each byte those from bit n on that are in mask, which has the same in all bytes.
func (v integers) bits(n int, mask uint64) integers {
	return integers{v.a >> n & mask, v.b >> n & mask, v.c >> n & mask, v.d >> n & mask}
}

// under has high's bits from bit n on, above those of v.
func (v integers) under(high integers, n int) integers {
	return integers{v.a | high.a<<n, v.b | high.b<<n, v.c | high.c<<n, v.d | high.d<<n}
}

func unpackQ8_0(src []byte, _ int) integers {
	const sign = 0x80 * ones
	v := integers32(src[2:])
	return integers{v.a ^ sign, v.b ^ sign, v.c ^ sign, v.d ^ sign}
}

func unpackQ2_K(src []byte, i int) integers {
	return integers32(src[16+i/4*32:]).bits(i%4*2, threes)
}

func unpackQ3_K(src []byte, i int) integers {
	return unpackQ2_K(src[16:], i).under(integers32(src).bits(i, ones), 2)
}

func unpackQ4_K(src []byte, i int) integers {
	return integers32(src[16+i/2*32:]).bits(i%2*4, fifteens)
}

func unpackQ5_K(src []byte, i int) integers {
	return unpackQ4_K(src[32:], i).under(integers32(src[16:]).bits(i, ones), 4)
}

func unpackQ6_K(src []byte, i int) integers {
	half, part := i/4, i%4
	low := integers32(src[64*half+32*(part&1):]).bits(4*(part>>1), fifteens)
	return low.under(integers32(src[128+32*half:]).bits(2*part, threes), 4)
}

// scalesQ2_K: a super-block begins with the scales of all rows as halves and those of the minima, with their
// sign changed; a block has two bytes a row, whose nibbles are the scale and the minimum of 16 columns.
func scalesQ2_K(record, src []byte, row, rows, size int) {
	copy(record[2*row:], src[80:82])
	binary.LittleEndian.PutUint16(record[2*(rows+row):], binary.LittleEndian.Uint16(src[82:])^0x8000)
	for i := range 8 {
		copy(record[2*(2*rows+row)+i*size:], src[2*i:2*i+2])
	}
}

// scalesQ3_K are as those of Q6_K.
func scalesQ3_K(record, src []byte, row, rows, size int) {
	copy(record[2*row:], src[108:110])
	for i := range 16 {
		record[2*(rows+row)+i/2*size+i%2] = byte(scaleQ3_K((*[12]byte)(src[96:]), i))
	}
}

// scalesK is for Q4_K and Q5_K. A super-block begins with the scales of all rows as halves and those of the
// minima, with their sign changed; a block with all rows' scales and then all rows' minima in bytes.
func scalesK(record, src []byte, row, rows, size int) {
	copy(record[2*row:], src[:2])
	binary.LittleEndian.PutUint16(record[2*(rows+row):], binary.LittleEndian.Uint16(src[2:])^0x8000)
	// Eight of six bits: the first four in bytes of their own, which have the upper two bits of the others.
	const low, four, two = 0x3f3f3f3f, 0x0f0f0f0f, 0x03030303
	le := binary.LittleEndian
	first, second, rest := le.Uint32(src[4:]), le.Uint32(src[8:]), le.Uint32(src[12:])
	scales := uint64(first&low) | uint64(rest&four|first>>6&two<<4)<<32
	minima := uint64(second&low) | uint64(rest>>4&four|second>>6&two<<4)<<32
	block := record[4*rows:]
	for i := range 8 {
		at := i*size + row
		block[at], block[at+rows] = byte(scales>>(8*i)), byte(minima>>(8*i))
	}
}

// scalesQ6_K: a super-block begins with a half, and a block with two signed bytes a row.
func scalesQ6_K(record, src []byte, row, rows, size int) {
	copy(record[2*row:], src[208:210])
	for i := range 8 {
		copy(record[2*(rows+row)+i*size:], src[192+2*i:194+2*i])
	}
}

// scalesIQ4_XS: a super-block begins with a half, and a block with a signed byte a row.
func scalesIQ4_XS(record, src []byte, row, rows, size int) {
	copy(record[2*row:], src[:2])
	for i := range 8 {
		record[2*rows+row+i*size] = byte(scaleIQ4_XS((*[136]byte)(src), i))
	}
}

// scalesMXFP4: the upper half of the scale as a float32, whose lower half is 0.
func scalesMXFP4(record, src []byte, row, _, _ int) {
	binary.LittleEndian.PutUint16(record[2*row:], uint16(math.Float32bits(halfPowerOfTwo(src[0]))>>16))
}

const (
	packGroups = 16 // that a task packs
	// passBytes, for each worker, is about how much of a tensor is packed before that leaves memory: a large one
	// should not be there twice.
	passBytes = 2 << 20
)

// packWeights packs all matrices that are to be packed, on all workers. The file's own bytes are no
// longer needed then, but for the embedding; those of a tensor that the model makes are asked for before its
// first matrix is packed, and given back after the last.
func (h *Host) packWeights(linears []*linear) (mmap.MMap, error) {
	size := 0
	left := map[string]int{} // matrices to pack, of a tensor
	for _, l := range linears {
		for i := range l.stacks {
			if n := l.stacks[i].packedBytes(l.in); n > 0 {
				size += n
				left[l.stacks[i].parts[0].name]++
			}
		}
	}
	if size == 0 {
		return nil, nil
	}
	memory, err := mmap.MapRegion(nil, size, ownMemory, mmap.ANON, 0)
	if err != nil {
		return nil, fmt.Errorf("no memory for %s of packed weights: %w", bytesText(int64(size)), err)
	}
	adviseHugePages(memory)
	borrowed := map[string]func(){} // how to give a tensor back
	at := 0
	for _, l := range linears {
		for i := range l.stacks {
			s := &l.stacks[i]
			n := s.packedBytes(l.in)
			if n == 0 {
				continue
			}
			name, whole := s.parts[0].name, false
			if borrowed[name] == nil && h.model != nil {
				if borrowed[name], err = h.model.Borrow(name); err != nil {
					return nil, errors.Join(err, memory.Unmap())
				}
				whole = left[name] == 1
			}
			s.packed = memory[at : at+n : at+n]
			at += n
			if err := h.packStack(s, whole); err != nil {
				return nil, errors.Join(err, memory.Unmap())
			}
			if left[name]--; left[name] == 0 && h.model != nil {
				borrowed[name]()
			}
		}
	}
	return memory, nil
}

// packWork is what packTask packs: a stack, from its task first on.
type packWork struct {
	stack *stack
	first int
}

// packStack packs a stack on all workers. whole says that it is all of its tensor, which h.model has; then what is
// packed leaves memory before the rest comes in.
func (h *Host) packStack(s *stack, whole bool) error {
	m := &s.parts[0]
	each := packGroups * s.packing.rows
	tasks := (s.rows + each - 1) / each
	step := max(1, passBytes*len(h.scratch)/(each*m.stride))
	for first := 0; first < tasks; first += step {
		h.packs = packWork{s, first}
		if err := h.pool.run(h, min(step, tasks-first), (*Host).packTask); err != nil {
			return err
		}
		if end := (first + step) * each; whole && end < m.rows {
			h.model.Pass(m.name, first*each*m.stride, end*m.stride)
		}
	}
	h.packs = packWork{}
	return nil
}

// packedBytes is the memory that a stack takes when it is packed, up to a whole cache line; 0 if it
// isn't to be.
func (s *stack) packedBytes(in int) int {
	if s.packing == nil {
		return 0
	}
	n := (s.rows + s.packing.rows - 1) / s.packing.rows * s.packing.groupBytes(in)
	return (n + 63) &^ 63
}

func (h *Host) packTask(worker, task int) {
	s, w := h.packs.stack, &h.scratch[worker]
	m, p := &s.parts[0], s.packing
	task += h.packs.first
	in := m.stride / s.kind.BlockBytes() * s.kind.BlockSize()
	size := p.groupBytes(in)
	each := packGroups * p.rows
	for first := task * each; first < min((task+1)*each, m.rows); first += p.rows {
		var rows [maxPackRows][]byte
		n := min(p.rows, m.rows-first)
		s.touch(w, first, first+n, 0, m.stride)
		for r := range n {
			rows[r] = m.data[(first+r)*m.stride:][:m.stride]
		}
		p.pack(s.packed[first/p.rows*size:][:size], rows[:n], s.kind.BlockBytes())
	}
}
