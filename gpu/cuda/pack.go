//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/troupe-llm/troupe/model/gguf"
)

// The four planes of a matrix in the GPU's memory; kernels/weights.cuh says what is in them.
const (
	quants = iota
	high
	scales
	supers
	planes
)

// unitWeights are the weights of a unit, rowWeights what a row is filled up to a multiple of.
const (
	unitWeights = 8
	rowWeights  = 32
)

// packing is how matrices of a type lie in planes.
type packing struct {
	suffix string      // of the kernels' names
	bytes  [planes]int // of a plane for every 256 weights; 0 if there is none
	// pack writes a block of the file's to its place in the planes.
	pack func(to *[planes][]byte, block []byte)
}

var packings = map[gguf.Type]packing{
	gguf.F32:    {"f32", [planes]int{1024, 0, 0, 0}, nil},
	gguf.F16:    {"f16", [planes]int{512, 0, 0, 0}, nil},
	gguf.BF16:   {"bf16", [planes]int{512, 0, 0, 0}, nil},
	gguf.Q8_0:   {"q8_0", [planes]int{256, 0, 16, 0}, packQ8_0},
	gguf.Q4_0:   {"q4_0", [planes]int{128, 0, 16, 0}, packQ4(2)},
	gguf.Q4_1:   {"q4_1", [planes]int{128, 0, 32, 0}, packQ4(4)},
	gguf.Q5_0:   {"q5_0", [planes]int{128, 32, 16, 0}, packQ5(2)},
	gguf.Q5_1:   {"q5_1", [planes]int{128, 32, 32, 0}, packQ5(4)},
	gguf.Q2_K:   {"q2_k", [planes]int{64, 0, 16, 4}, packQ2_K},
	gguf.Q3_K:   {"q3_k", [planes]int{64, 32, 16, 2}, packQ3_K},
	gguf.Q4_K:   {"q4_k", [planes]int{128, 0, 16, 4}, packQ4_K},
	gguf.Q5_K:   {"q5_k", [planes]int{128, 32, 16, 4}, packQ5_K},
	gguf.Q6_K:   {"q6_k", [planes]int{128, 64, 16, 2}, packQ6_K},
	gguf.IQ4_NL: {"iq4_nl", [planes]int{128, 0, 16, 0}, packQ4(2)},
	gguf.IQ4_XS: {"iq4_xs", [planes]int{128, 0, 8, 2}, packIQ4_XS},
	gguf.MXFP4:  {"mxfp4", [planes]int{128, 0, 8, 0}, packQ4(1)},
}

// supported lists the types, for errors.
func supported() string {
	names := []string{}
	for t := range packings {
		names = append(names, t.String())
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// rowUnits is the units of a row of in weights.
func rowUnits(in int) int { return whole(in, rowWeights) / unitWeights }

// size is the bytes of a plane for the given units.
func (p *packing) size(plane, units int) int { return p.bytes[plane] * units / (256 / unitWeights) }

// rowBytes is the bytes of all planes for the given units.
func (p *packing) rowBytes(units int) int {
	n := 0
	for plane := range planes {
		n += p.size(plane, units)
	}
	return n
}

// packRows writes rows of in weights to planes, which must have the sizes that size says.
func packRows(t gguf.Type, to [planes][]byte, data []byte, rows, in int) {
	p := packings[t]
	units, stride := rowUnits(in), t.RowBytes(in)
	for r := range rows {
		row := data[r*stride:][:stride]
		if p.pack == nil { // plain numbers
			n := copy(to[quants][:p.size(quants, units)], row)
			clear(to[quants][n:p.size(quants, units)])
		}
		rest := to
		for size := t.BlockBytes(); p.pack != nil && len(row) > 0; row = row[size:] {
			p.pack(&rest, row[:size])
			for i := range rest {
				rest[i] = rest[i][p.size(i, t.BlockSize()/unitWeights):]
			}
		}
		for i := range to {
			to[i] = to[i][p.size(i, units):]
		}
	}
}

func packQ8_0(to *[planes][]byte, b []byte) {
	copy(to[scales], b[:2])
	copy(to[quants][:32], b[2:34])
}

// nibbles writes 32 nibbles in their order, two a byte, the first of them in the lower half. In a block they
// are the lower halves of 16 bytes, and then the upper ones.
func nibbles(to, from []byte) {
	for i := range 8 {
		a, b := from[2*i], from[2*i+1]
		to[i] = a&15 | b<<4
		to[i+8] = a>>4 | b&0xf0
	}
}

// packQ4 is for blocks of n bytes, a scale and perhaps a minimum, and nibbles.
func packQ4(n int) func(*[planes][]byte, []byte) {
	return func(to *[planes][]byte, b []byte) {
		copy(to[scales], b[:n])
		nibbles(to[quants], b[n:])
	}
}

// packQ5 is for the same with fifth bits between.
func packQ5(n int) func(*[planes][]byte, []byte) {
	return func(to *[planes][]byte, b []byte) {
		copy(to[scales], b[:n])
		copy(to[high][:4], b[n:n+4]) // bit i is weight i's
		nibbles(to[quants], b[n+4:])
	}
}

// packScales unpacks the eight 6-bit scales and minima that Q4_K and Q5_K keep in 12 bytes.
func packScales(to, s []byte) {
	for i := range 8 {
		if i < 4 {
			to[2*i], to[2*i+1] = s[i]&63, s[i+4]&63
		} else {
			to[2*i], to[2*i+1] = s[i+4]&15|s[i-4]>>6<<4, s[i+4]>>4|s[i]>>6<<4
		}
	}
}

// pairs writes 64 nibbles in order: in a super-block they are the lower halves of 32 bytes, and then the
// upper ones.
func pairs(to, from []byte) {
	for i := range 16 {
		a, b := from[2*i], from[2*i+1]
		to[i] = a&15 | b<<4
		to[i+16] = a>>4 | b&0xf0
	}
}

func packQ4_K(to *[planes][]byte, b []byte) {
	copy(to[supers], b[:4])
	packScales(to[scales], b[4:16])
	for i := range 4 {
		pairs(to[quants][32*i:], b[16+32*i:][:32])
	}
}

func packQ5_K(to *[planes][]byte, b []byte) {
	copy(to[supers], b[:4])
	packScales(to[scales], b[4:16])
	for i := range 4 {
		pairs(to[quants][32*i:], b[48+32*i:][:32])
	}
	singles(to[high], b[16:48])
}

// singles writes 256 bits in order: in a super-block bit i of byte j, of 32 bytes, is weight 32·i+j's.
func singles(to, from []byte) {
	for i := range 8 {
		var bits uint32
		for j, h := range from {
			bits |= uint32(h>>i&1) << j
		}
		binary.LittleEndian.PutUint32(to[4*i:], bits)
	}
}

// quarters writes 128 pairs of bits in order, four a byte: in a super-block they are the lowest of 32 bytes,
// then the next.
func quarters(to, from []byte) {
	for i := range 32 {
		b, shift := from[i%8*4:][:4], i/8*2
		to[i] = b[0]>>shift&3 | b[1]>>shift&3<<2 | b[2]>>shift&3<<4 | b[3]>>shift&3<<6
	}
}

func packQ2_K(to *[planes][]byte, b []byte) {
	copy(to[supers], b[80:84])
	copy(to[scales][:16], b[:16])
	for half := range 2 {
		quarters(to[quants][32*half:], b[16+32*half:][:32])
	}
}

func packQ3_K(to *[planes][]byte, b []byte) {
	copy(to[supers], b[108:110])
	s := b[96:108]
	for i := range 16 { // the low four bits of scales are in eight bytes, the high two in four
		to[scales][i] = (s[i%8]>>(i/8*4)&15 | s[8+i%4]>>(i/4*2)&3<<4) - 32
	}
	for half := range 2 {
		quarters(to[quants][32*half:], b[32+32*half:][:32])
	}
	singles(to[high], b[:32])
}

func packIQ4_XS(to *[planes][]byte, b []byte) {
	copy(to[supers], b[:2])
	high := binary.LittleEndian.Uint16(b[2:])
	for i := range 8 {
		to[scales][i] = (b[4+i/2]>>(i%2*4)&15 | byte(high>>(2*i)&3)<<4) - 32
		nibbles(to[quants][16*i:], b[8+16*i:][:16])
	}
}

func packQ6_K(to *[planes][]byte, b []byte) {
	copy(to[supers], b[208:210])
	copy(to[scales][:16], b[192:208])
	clear(to[quants][:128])
	for half := range 2 {
		low := b[64*half:][:64]
		for part := range 4 { // 32 weights each
			for j := range 32 {
				at := 128*half + 32*part + j
				to[quants][at/2] |= low[j+32*(part&1)] >> (4 * (part >> 1)) & 15 << (at % 2 * 4)
			}
		}
		quarters(to[high][32*half:], b[128+32*half:][:32])
	}
}
