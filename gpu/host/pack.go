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
	unpack func(v *[32]byte, src []byte, i int)
	// nibbles, if not 0, is where blocks of 16 bytes begin that are already as in a packed block.
	nibbles int
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
	gguf.Q4_0: {bits: 4, blocks: 1, header: 2, unpack: unpack4(2), scales: copyScales(1), nibbles: 2},
	gguf.Q4_1: {bits: 4, blocks: 1, header: 4, unpack: unpack4(4), scales: copyScales(2), nibbles: 4},
	gguf.Q5_0: {bits: 5, blocks: 1, header: 2, unpack: unpack5(2), scales: copyScales(1)},
	gguf.Q5_1: {bits: 5, blocks: 1, header: 4, unpack: unpack5(4), scales: copyScales(2)},
	gguf.Q8_0: {bits: 8, blocks: 1, header: 2, unpack: unpackQ8_0, scales: copyScales(1)},
	gguf.Q2_K: {bits: 2, blocks: 8, super: 4, header: 2, unpack: unpackQ2_K, scales: scalesQ2_K},
	gguf.Q3_K: {bits: 3, blocks: 8, super: 2, header: 2, unpack: unpackQ3_K, scales: scalesQ3_K},
	gguf.Q4_K: {bits: 4, blocks: 8, super: 4, header: 2, unpack: unpackQ4_K, scales: scalesK},
	gguf.Q5_K: {bits: 5, blocks: 8, super: 4, header: 2, unpack: unpackQ5_K, scales: scalesK},
	gguf.Q6_K: {bits: 6, blocks: 8, super: 2, header: 2, unpack: unpackQ6_K, scales: scalesQ6_K},

	gguf.IQ4_NL: {bits: 4, blocks: 1, header: 2, unpack: unpack4(2), scales: copyScales(1), nibbles: 2},
	gguf.IQ4_XS: {bits: 4, blocks: 8, super: 2, header: 1, unpack: unpack4(8), scales: scalesIQ4_XS, nibbles: 8},
	gguf.MXFP4:  {bits: 4, blocks: 1, header: 2, unpack: unpack4(1), scales: scalesMXFP4, nibbles: 1},
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
// zeros. v is the caller's memory for a block.
func (p *packing) pack(dst []byte, rows [][]byte, size int, v *[32]byte) {
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
			for i := range p.blocks {
				b := record[p.rows*(p.super+p.header)+i*block:][:4*p.rows*p.bits]
				if p.nibbles > 0 {
					q := src[p.nibbles+16*i:]
					for i := range 4 {
						copy4(b[4*(p.rows*i+row):], q[4*i:])
					}
					continue
				}
				p.unpack(v, src, i)
				p.put(b, row, v)
			}
		}
	}
}

// copy2 and copy4 copy 2 and 4 bytes, which takes copy ten times as long.
func copy2(dst, src []byte) { binary.LittleEndian.PutUint16(dst, binary.LittleEndian.Uint16(src)) }
func copy4(dst, src []byte) { binary.LittleEndian.PutUint32(dst, binary.LittleEndian.Uint32(src)) }

// put writes a block of a row into vectors.
func (p *packing) put(dst []byte, row int, v *[32]byte) {
	var words [8]uint32
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(v[4*i:])
	}
	at := 4 * row // in the next vector
	store := func(word uint32) {
		binary.LittleEndian.PutUint32(dst[at:], word)
		at += 4 * p.rows
	}
	if p.bits == 8 {
		for _, w := range words {
			store(w)
		}
		return
	}
	// pairs are two bits of four vectors from bit n on.
	pairs := func(n int, w []uint32) uint32 {
		const mask = 0x03030303
		return w[0]>>n&mask | w[1]>>n&mask<<2 | w[2]>>n&mask<<4 | w[3]>>n&mask<<6
	}
	low := 4
	if p.bits < 4 {
		low = 2
	}
	switch p.bits - low {
	case 1:
		plane := uint32(0)
		for i, w := range words {
			plane |= w >> low & 0x01010101 << i
		}
		store(plane)
	case 2:
		store(pairs(4, words[:4]))
		store(pairs(4, words[4:]))
	}
	if low == 2 {
		store(pairs(0, words[:4]))
		store(pairs(0, words[4:]))
		return
	}
	for i := range 4 {
		store(words[i]&0x0f0f0f0f | words[i+4]&0x0f0f0f0f<<4)
	}
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

func bytes8(src []byte) uint64              { return binary.LittleEndian.Uint64(src) }
func put8(v *[32]byte, j int, eight uint64) { binary.LittleEndian.PutUint64(v[j:], eight) }

// unpack4 is for types whose nibbles follow the first so many bytes, 16 bytes a block.
func unpack4(first int) func(v *[32]byte, src []byte, i int) {
	return func(v *[32]byte, src []byte, i int) {
		for j := 0; j < 16; j += 8 {
			q := bytes8(src[first+16*i+j:])
			put8(v, j, q&fifteens)
			put8(v, j+16, q>>4&fifteens)
		}
	}
}

// unpack5 is for Q5_0 and Q5_1: a word of fifth bits comes before the nibbles.
func unpack5(first int) func(v *[32]byte, src []byte, _ int) {
	return func(v *[32]byte, src []byte, _ int) {
		high := binary.LittleEndian.Uint32(src[first:])
		for j, q := range src[first+4 : first+20] {
			v[j] = q&15 | byte(high>>j&1<<4)
			v[j+16] = q>>4 | byte(high>>(j+16)&1<<4)
		}
	}
}

func unpackQ8_0(v *[32]byte, src []byte, _ int) {
	for j := 0; j < 32; j += 8 {
		put8(v, j, bytes8(src[2+j:])^0x80*ones)
	}
}

func unpackQ2_K(v *[32]byte, src []byte, i int) {
	for j := 0; j < 32; j += 8 {
		put8(v, j, bytes8(src[16+i/4*32+j:])>>(i%4*2)&threes)
	}
}

func unpackQ3_K(v *[32]byte, src []byte, i int) {
	for j := 0; j < 32; j += 8 {
		put8(v, j, bytes8(src[32+i/4*32+j:])>>(i%4*2)&threes|bytes8(src[j:])>>i&ones<<2)
	}
}

func unpackQ4_K(v *[32]byte, src []byte, i int) {
	for j := 0; j < 32; j += 8 {
		put8(v, j, bytes8(src[16+i/2*32+j:])>>(i%2*4)&fifteens)
	}
}

func unpackQ5_K(v *[32]byte, src []byte, i int) {
	for j := 0; j < 32; j += 8 {
		put8(v, j, bytes8(src[48+i/2*32+j:])>>(i%2*4)&fifteens|bytes8(src[16+j:])>>i&ones<<4)
	}
}

func unpackQ6_K(v *[32]byte, src []byte, i int) {
	half, part := i/4, i%4
	for j := 0; j < 32; j += 8 {
		q := bytes8(src[64*half+32*(part&1)+j:]) >> (4 * (part >> 1)) & fifteens
		put8(v, j, q|bytes8(src[128+32*half+j:])>>(2*part)&threes<<4)
	}
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
	for i := range 8 {
		scale, minimum := scaleMin((*[12]byte)(src[4:]), i)
		block := record[4*rows+i*size:]
		block[row], block[rows+row] = byte(scale), byte(minimum)
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

// packGroups is how many groups a task packs.
const packGroups = 16

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
			name := s.parts[0].name
			if borrowed[name] == nil && h.model != nil {
				if borrowed[name], err = h.model.Borrow(name); err != nil {
					return nil, errors.Join(err, memory.Unmap())
				}
			}
			s.packed = memory[at : at+n : at+n]
			at += n
			h.packed = s
			each := packGroups * s.packing.rows
			tasks := (s.rows + each - 1) / each
			if err := h.pool.run(h, tasks, (*Host).packTask); err != nil {
				return nil, errors.Join(err, memory.Unmap())
			}
			if left[name]--; left[name] == 0 && h.model != nil {
				borrowed[name]()
			}
		}
	}
	h.packed = nil
	return memory, nil
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
	s, w := h.packed, &h.scratch[worker]
	m, p := &s.parts[0], s.packing
	in := m.stride / s.kind.BlockBytes() * s.kind.BlockSize()
	size := p.groupBytes(in)
	each := packGroups * p.rows
	for first := task * each; first < min((task+1)*each, m.rows); first += p.rows {
		var rows [maxPackRows][]byte
		n := min(p.rows, m.rows-first)
		for r := range n {
			rows[r] = m.data[(first+r)*m.stride:][:m.stride]
		}
		p.pack(s.packed[first/p.rows*size:][:size], rows[:n], s.kind.BlockBytes(), &w.unpacked)
	}
}
