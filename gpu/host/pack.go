package host

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/edsrzf/mmap-go"

	"github.com/troupe-llm/troupe/model/gguf"
)

// Packed weights are what the processor's own kernels read: the numbers of the file, not one more nor
// less, in another order. A matrix is cut into groups of 8 rows, a group into records of 32 columns, or
// 256 in the K types; records of a group follow each other, so that a kernel reads one stream.
//
// A block of 32 columns is unsigned integers of 4, 5, 6 or 8 bits. In memory there are first the scales of
// the 8 rows (see the types below), then planes of higher bits, then nibbles, all in vectors of 32 bytes
// with 4 bytes a row: vector v of 8 has columns 4v … 4v+3. In the 4 vectors of nibbles, vectors v and v+4
// share bytes; a plane has bit 4 of vectors 0 to 7, or bits 4 and 5 of four of them. Bytes are 8 vectors.
//
// Floats stay as they are, and are multiplied by float activations: a record is two columns of 8 rows.

// packing is how a type is packed, and what multiplies it.
type packing struct {
	float  int // bytes of a number of a type of floats, to which nothing else below applies but kernels
	bits   int
	blocks int // of 32 columns, in a record: 1, or 8 of a super-block
	super  int // bytes of scales that a super-block begins with
	header int // bytes of scales that each block begins with
	// unpack gives the unsigned integers of a block: block i of those in a record. What is signed in the
	// file is moved up: by 8, 16, 32 or 128.
	unpack func(v *[32]byte, src []byte, i int)
	// nibbles, if not 0, is where a block of 16 bytes begins that are already as in a packed block.
	nibbles int
	// scales writes a row's scales into a record, whose blocks are size bytes apart.
	scales func(record, src []byte, row, size int)

	kernels [3]kernel // for 1, 2 and 4 activation rows
}

// kernel multiplies 1, 2 or 4 rows of activations, octets or float32 that begin at x and are xStride bytes
// apart, by groups × 8 weight rows of so many records, into rows of y that are yStride bytes apart.
type kernel func(w *byte, groups, records int, x *byte, xStride int, y *float32, yStride int)

const (
	packRows     = 8
	floatColumns = 2 // of a record of floats: matrices with an odd number of columns are not packed
)

// packings are those of all types that have one; kernels are added by the instructions' own file.
var packings = map[gguf.Type]packing{
	gguf.F32:  {float: 4},
	gguf.F16:  {float: 2},
	gguf.BF16: {float: 2},
	gguf.Q4_0: {bits: 4, blocks: 1, header: 16, unpack: unpack4(2), scales: copyScales(1), nibbles: 2},
	gguf.Q4_1: {bits: 4, blocks: 1, header: 32, unpack: unpack4(4), scales: copyScales(2), nibbles: 4},
	gguf.Q5_0: {bits: 5, blocks: 1, header: 16, unpack: unpack5(2), scales: copyScales(1)},
	gguf.Q5_1: {bits: 5, blocks: 1, header: 32, unpack: unpack5(4), scales: copyScales(2)},
	gguf.Q8_0: {bits: 8, blocks: 1, header: 16, unpack: unpackQ8_0, scales: copyScales(1)},
	gguf.Q4_K: {bits: 4, blocks: 8, super: 32, header: 16, unpack: unpackQ4_K, scales: scalesK},
	gguf.Q5_K: {bits: 5, blocks: 8, super: 32, header: 16, unpack: unpackQ5_K, scales: scalesK},
	gguf.Q6_K: {bits: 6, blocks: 8, super: 16, header: 16, unpack: unpackQ6_K, scales: scalesQ6_K},
}

// blockBytes is the size of a block of 32 columns × 8 rows, recordBytes that of a record, and groupBytes
// that of all records of 8 rows of in columns.
func (p *packing) blockBytes() int { return p.header + 32*p.bits }
func (p *packing) recordBytes() int {
	if p.float > 0 {
		return floatColumns * packRows * p.float
	}
	return p.super + p.blocks*p.blockBytes()
}

func (p *packing) groupBytes(in int) int { return p.records(in) * p.recordBytes() }

func (p *packing) records(in int) int {
	if p.float > 0 {
		return in / floatColumns
	}
	return in / (32 * p.blocks)
}

// pack writes a group: up to 8 rows of the file, whose blocks have size bytes. Rows that are not there
// become zeros. v is the caller's memory for a block.
func (p *packing) pack(dst []byte, rows [][]byte, size int, v *[32]byte) {
	if p.bits == 5 || p.bits == 6 || len(rows) < packRows { // bits are added to what is there
		clear(dst)
	}
	if n := p.float; n > 0 {
		for row, src := range rows {
			for at := n * row; at < len(dst); at += n * packRows {
				copy(dst[at:at+n], src)
				src = src[n:]
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
			p.scales(record, src, row, block)
			for i := range p.blocks {
				b := record[p.super+i*block+p.header:][:32*p.bits]
				if n := p.nibbles; n > 0 {
					for i := range 4 {
						copy(b[32*i+4*row:][:4], src[n+4*i:])
					}
					continue
				}
				p.unpack(v, src, i)
				p.put(b, row, v)
			}
		}
	}
}

// put writes a block of a row into vectors.
func (p *packing) put(dst []byte, row int, v *[32]byte) {
	if p.bits == 8 {
		for i := range 8 {
			copy(dst[32*i+4*row:], v[4*i:4*i+4])
		}
		return
	}
	planes := p.bits - 4
	for c := range 4 {
		high := dst[4*row+c:]
		switch planes {
		case 1:
			for i := range 8 {
				high[0] |= v[4*i+c] >> 4 << i
			}
		case 2:
			for i := range 4 {
				high[0] |= v[4*i+c] >> 4 << (2 * i)
				high[32] |= v[16+4*i+c] >> 4 << (2 * i)
			}
		}
		for i := range 4 {
			high[32*planes+32*i] = v[4*i+c]&15 | v[16+4*i+c]<<4
		}
	}
}

// copyScales copies a block's n halves, the scale and perhaps the minimum: 8 rows' scales, then 8 rows'
// minima.
func copyScales(n int) func(record, src []byte, row, size int) {
	return func(record, src []byte, row, _ int) {
		for i := range n {
			copy(record[16*i+2*row:], src[2*i:2*i+2])
		}
	}
}

// unpack4 is for Q4_0 and Q4_1, whose nibbles follow the first so many bytes.
func unpack4(first int) func(v *[32]byte, src []byte, _ int) {
	return func(v *[32]byte, src []byte, _ int) {
		for j, q := range src[first : first+16] {
			v[j], v[j+16] = q&15, q>>4
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
	for j, q := range src[2:34] {
		v[j] = q ^ 0x80
	}
}

func unpackQ4_K(v *[32]byte, src []byte, i int) {
	for j, q := range src[16+i/2*32:][:32] {
		v[j] = q >> (i % 2 * 4) & 15
	}
}

func unpackQ5_K(v *[32]byte, src []byte, i int) {
	for j, q := range src[48+i/2*32:][:32] {
		v[j] = q>>(i%2*4)&15 | src[16+j]>>i&1<<4
	}
}

func unpackQ6_K(v *[32]byte, src []byte, i int) {
	half, part := i/4, i%4
	for j := range v {
		q := src[64*half+j+32*(part&1)] >> (4 * (part >> 1)) & 15
		v[j] = q | src[128+32*half+j]>>(2*part)&3<<4
	}
}

// scalesK is for Q4_K and Q5_K. A super-block begins with the scales of 8 rows as halves and those of the
// minima, with their sign changed; a block with 8 scales and 8 minima in bytes.
func scalesK(record, src []byte, row, size int) {
	copy(record[2*row:], src[:2])
	binary.LittleEndian.PutUint16(record[16+2*row:], binary.LittleEndian.Uint16(src[2:])^0x8000)
	for i := range 8 {
		scale, minimum := scaleMin((*[12]byte)(src[4:]), i)
		record[32+i*size+row], record[32+i*size+8+row] = byte(scale), byte(minimum)
	}
}

// scalesQ6_K: a super-block begins with 8 halves, and a block with two signed bytes a row.
func scalesQ6_K(record, src []byte, row, size int) {
	copy(record[2*row:], src[208:210])
	for i := range 8 {
		copy(record[16+i*size+2*row:], src[192+2*i:194+2*i])
	}
}

// packGroups is how many groups a task packs.
const packGroups = 16

// packWeights packs all matrices that are to be packed, on all workers. The file's own bytes are no
// longer needed then, but for the embedding.
func (h *Host) packWeights(linears []*linear) (mmap.MMap, error) {
	size := 0
	for _, l := range linears {
		for i := range l.stacks {
			size += l.stacks[i].packedBytes(l.in)
		}
	}
	if size == 0 {
		return nil, nil
	}
	memory, err := mmap.MapRegion(nil, size, mmap.RDWR, mmap.ANON, 0)
	if err != nil {
		return nil, fmt.Errorf("no memory for %s of packed weights: %w", bytesText(int64(size)), err)
	}
	adviseHugePages(memory)
	at := 0
	for _, l := range linears {
		for i := range l.stacks {
			s := &l.stacks[i]
			n := s.packedBytes(l.in)
			if n == 0 {
				continue
			}
			s.packed = memory[at : at+n : at+n]
			at += n
			h.packed = s
			tasks := (s.rows + packGroups*packRows - 1) / (packGroups * packRows)
			if err := h.pool.run(h, tasks, (*Host).packTask); err != nil {
				return nil, errors.Join(err, memory.Unmap())
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
	n := (s.rows + packRows - 1) / packRows * s.packing.groupBytes(in)
	return (n + 63) &^ 63
}

func (h *Host) packTask(worker, task int) {
	s, w := h.packed, &h.scratch[worker]
	m, p := &s.parts[0], s.packing
	in := m.stride / s.kind.BlockBytes() * s.kind.BlockSize()
	size := p.groupBytes(in)
	for first := task * packGroups * packRows; first < min((task+1)*packGroups*packRows, m.rows); first += packRows {
		var rows [packRows][]byte
		n := min(packRows, m.rows-first)
		for r := range n {
			rows[r] = m.data[(first+r)*m.stride:][:m.stride]
		}
		p.pack(s.packed[first/packRows*size:][:size], rows[:n], s.kind.BlockBytes(), &w.unpacked)
	}
}
