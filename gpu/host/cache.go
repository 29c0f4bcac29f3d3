package host

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/edsrzf/mmap-go"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
)

// cache is the paged KV cache. A block holds blockSize positions in every layer; layers lie apart.
// Within a layer, block b has its keys, then its values. Values are [KV head][position][head dim], where a
// position's dim values are filled up with zeros to stride. Keys lie side by side in columns of lanes
// positions, so that kernels have a key in each lane: [KV head][column][head dim][position], filled up alike.
//
// In a cache of Q8_0 these are codes, signed bytes. Every 32 of a position have a scale, a half; code × scale
// is about the value. The scales of a block lie apart, those of values as [KV head][stride/32][position], and
// those of keys as [KV head][column][stride/32][position].
type cache struct {
	blocks, blockSize  int
	heads, dim, stride int
	lanes              int // keyLanes, or where blocks are not made up of so many positions, blockSize
	vectors            *vectors
	// A layer's memory, in one of the types.
	floats [][]float32
	halves [][]uint16
	codes  [][]int8
	scales [][]uint16 // of codes
	memory mmap.MMap
}

const (
	// codeBlock is how many codes have a scale.
	codeBlock = 32
	// keyLanes is how many positions' keys lie side by side for the kernels.
	keyLanes = 16
)

// cacheStride is how many values a position of a head takes in a cache of type t: as many as kernels take at
// once.
func cacheStride(m *model.Model, t gpu.CacheType) int {
	if cacheType(t) == gpu.CacheQ8_0 {
		return (m.Config.HeadDim + codeBlock - 1) &^ (codeBlock - 1)
	}
	return (m.Config.HeadDim + 15) &^ 15
}

// cacheType is the type that t asks for.
func cacheType(t gpu.CacheType) gpu.CacheType {
	if t == gpu.CacheAuto {
		return gpu.CacheF16
	}
	return t
}

// BlockBytes is the memory of one KV cache block of blockSize positions over all layers of m: keys and
// values of every KV head in type t. Head sizes that are no multiple of 16, or with Q8_0 of 32, count as the
// next one.
func BlockBytes(m *model.Model, blockSize int, t gpu.CacheType) int64 {
	c := &m.Config
	n := int64(c.Layers) * int64(blockSize) * 2 * int64(c.KVHeads) * int64(cacheStride(m, t))
	switch cacheType(t) {
	case gpu.CacheF32:
		return 4 * n
	case gpu.CacheQ8_0:
		return n + n/codeBlock*2
	}
	return 2 * n
}

// newCache maps memory for blocks blocks, which the operating system hands out page by page, large ones where it
// can, when they are first written.
func newCache(m *model.Model, blocks, blockSize int, t gpu.CacheType, v *vectors) (*cache, error) {
	c := &cache{blocks: blocks, blockSize: blockSize, heads: m.Config.KVHeads, dim: m.Config.HeadDim, stride: cacheStride(m, t), vectors: v}
	if c.lanes = keyLanes; blockSize%keyLanes != 0 {
		c.lanes = blockSize
	}
	block := BlockBytes(m, blockSize, t)
	size := int64(blocks) * block
	if size > math.MaxInt/2 {
		return nil, fmt.Errorf("a KV cache of %s is more than this platform can address", bytesText(size))
	}
	var err error
	if c.memory, err = mmap.MapRegion(nil, int(size), ownMemory, mmap.ANON, 0); err != nil {
		return nil, fmt.Errorf("no memory for a KV cache of %s (%d blocks of %s): %w",
			bytesText(size), blocks, bytesText(block), err)
	}
	adviseHugePages(c.memory)
	// Maps begin at a page, so the numbers are aligned.
	switch n := m.Config.Layers; cacheType(t) {
	case gpu.CacheF32:
		c.floats = layersOf[float32](c.memory, n)
	case gpu.CacheQ8_0:
		codes := len(c.memory) / (codeBlock + 2) * codeBlock
		c.codes, c.scales = layersOf[int8](c.memory[:codes], n), layersOf[uint16](c.memory[codes:], n)
	default:
		c.halves = layersOf[uint16](c.memory, n)
	}
	return c, nil
}

// layersOf is memory as n equal parts.
func layersOf[T any](memory []byte, n int) [][]T {
	var v T
	all := unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), len(memory)/int(unsafe.Sizeof(v)))
	layers := make([][]T, n)
	for i := range layers {
		layers[i] = all[len(all)/n*i : len(all)/n*(i+1) : len(all)/n*(i+1)]
	}
	return layers
}

func (c *cache) close() error {
	if c.memory == nil {
		return nil
	}
	c.floats, c.halves, c.codes, c.scales = nil, nil, nil, nil
	return c.memory.Unmap()
}

// half is the length of a block's keys, or values, in a layer.
func (c *cache) half() int { return c.heads * c.blockSize * c.stride }

// keys and values are the two halves of a block.
const (
	keys = iota
	values
)

// at is where a position of a head lies in a layer: its value's numbers, one after another, or the first of its
// key's, which are lanes apart. half is keys or values.
func (c *cache) at(half, block, head, offset int) int {
	at := (2*block+half)*c.half() + head*c.blockSize*c.stride
	if half == keys {
		return at + offset/c.lanes*c.lanes*c.stride + offset%c.lanes
	}
	return at + offset*c.stride
}

// scaleAt is where the scale of a position's first codes lies in a layer; the next is blockSize behind, or for
// keys, lanes.
func (c *cache) scaleAt(half, block, head, offset int) int {
	if half == keys {
		return c.at(keys, block, head, offset-offset%c.lanes)/codeBlock + offset%c.lanes
	}
	return c.at(values, block, head, 0)/codeBlock + offset
}

// storeScratch is a worker's memory for a position's numbers in the cache's type, before they are spread over a
// column of keys.
type storeScratch struct {
	halves []uint16
	codes  []int8
	rest   [codeBlock]float32
}

func newStoreScratch(c *cache) storeScratch {
	return storeScratch{halves: make([]uint16, c.stride), codes: make([]int8, c.stride)}
}

// store writes the dim numbers of a position of a head.
func (c *cache) store(s *storeScratch, layer, half, block, head, offset int, x []float32) {
	at, x := c.at(half, block, head, offset), x[:c.dim]
	switch {
	case c.floats != nil && half == keys:
		spread(c.floats[layer][at:], x, c.lanes)
	case c.floats != nil:
		copy(c.floats[layer][at:], x)
	case c.codes != nil && half == keys:
		c.quantise(s, s.codes, c.scales[layer][c.scaleAt(keys, block, head, offset):], x, c.lanes)
		spread(c.codes[layer][at:], s.codes, c.lanes)
	case c.codes != nil:
		c.quantise(s, c.codes[layer][at:at+c.stride], c.scales[layer][c.scaleAt(values, block, head, offset):], x, c.blockSize)
	case half == keys:
		c.vectors.narrow(s.halves[:c.dim], x)
		spread(c.halves[layer][at:], s.halves[:c.dim], c.lanes)
	default:
		c.vectors.narrow(c.halves[layer][at:at+c.dim], x)
	}
}

// spread writes numbers step apart.
func spread[T any](to, numbers []T, step int) {
	to = to[:(len(numbers)-1)*step+1]
	for i, v := range numbers {
		to[i*step] = v
	}
}

// quantise writes stride codes, and scales that are step apart.
func (c *cache) quantise(s *storeScratch, codes []int8, scales []uint16, x []float32, step int) {
	n := len(x) &^ (codeBlock - 1)
	c.vectors.quantiseCache(codes[:n], scales, x[:n], step)
	if n < len(x) {
		clear(s.rest[copy(s.rest[:], x[n:]):])
		c.vectors.quantiseCache(codes[n:], scales[n/codeBlock*step:], s.rest[:], step)
	}
}

// columns is successive positions of a head's keys, side by side: key keyLanes·i + j has its first number at
// at[i] + j in one of the types, and the next keyLanes further.
type columns struct {
	at     []int
	floats []float32
	halves []uint16
	codes  []int8
	scales []uint16 // of codes: those of column i begin at at[i]/codeBlock
}

// run is successive positions of a head's values: rows of stride, in one of the types.
type run struct {
	floats []float32
	halves []uint16
	codes  []int8
	scales []float32 // of codes: those of row j are scales[keyPiece·b + j], for every 32 codes b
}

// runScratch is a worker's memory for what of keys or values is put together or converted, of up to keyPiece
// positions.
type runScratch struct {
	at             []int
	floats, scales []float32
	columns        columns // where blocks have no columns of keyLanes
}

func newRunScratch(c *cache) runScratch {
	n := keyPiece * c.stride
	s := runScratch{at: make([]int, keyPiece/keyLanes), floats: make([]float32, n), scales: make([]float32, n/codeBlock)}
	if c.lanes == keyLanes {
		return s
	}
	switch {
	case c.floats != nil:
		s.columns.floats = make([]float32, n)
	case c.codes != nil:
		s.columns.codes, s.columns.scales = make([]int8, n), make([]uint16, n/codeBlock)
	default:
		s.columns.halves = make([]uint16, n)
	}
	return s
}

// keys gives the keys of positions from … to of a head, up to keyPiece of them, in columns of which the first has
// the position from. What is in them beside these positions is anything. What the kernels have no use for is
// converted into scratch, and so is what many queries are to meet: it is quicker to convert it once, and gives
// the same bits.
func (c *cache) keys(s *runScratch, many bool, layer, head int, table []int32, from, to int) columns {
	var k columns
	if c.lanes == keyLanes {
		k = c.storedKeys(s, layer, head, table, from, to)
	} else {
		k = c.gatheredKeys(s, layer, head, table, from, to)
	}
	size := keyLanes * c.stride
	switch {
	case k.halves != nil && (many || c.vectors.scoresHalves == nil):
		for i, at := range k.at {
			c.vectors.widen(s.floats[i*size:][:size], k.halves[at:])
			k.at[i] = i * size
		}
	case k.codes != nil && (many || c.vectors.scoresCodes == nil):
		for i, at := range k.at {
			c.vectors.widenKeys(s.floats[i*size:][:size], k.codes[at:], k.scales[at/codeBlock:], c.stride)
			k.at[i] = i * size
		}
	default:
		return k
	}
	return columns{at: k.at, floats: s.floats}
}

// storedKeys gives the columns as they lie in a cache whose columns are of keyLanes.
func (c *cache) storedKeys(s *runScratch, layer, head int, table []int32, from, to int) columns {
	k := columns{at: s.at[:0]}
	for at := from - from%keyLanes; at < to; at += keyLanes {
		k.at = append(k.at, c.at(keys, int(table[at/c.blockSize]), head, at%c.blockSize))
	}
	switch {
	case c.floats != nil:
		k.floats = c.floats[layer]
	case c.codes != nil:
		k.codes, k.scales = c.codes[layer], c.scales[layer]
	default:
		k.halves = c.halves[layer]
	}
	return k
}

// gatheredKeys puts the columns together in scratch.
func (c *cache) gatheredKeys(s *runScratch, layer, head int, table []int32, from, to int) columns {
	k, first := s.columns, from-from%keyLanes
	k.at = s.at[:0]
	for i := 0; i < to-first; i += keyLanes {
		k.at = append(k.at, i*c.stride)
	}
	for at := from; at < to; {
		block, offset := int(table[at/c.blockSize]), at%c.blockSize
		column, lane := (at-first)/keyLanes, at%keyLanes
		n := min(c.blockSize-offset, keyLanes-lane, to-at)
		in, out := c.at(keys, block, head, offset), k.at[column]+lane
		switch {
		case c.floats != nil:
			gather(k.floats[out:], c.floats[layer][in:], c.stride, n, c.lanes)
		case c.codes != nil:
			gather(k.codes[out:], c.codes[layer][in:], c.stride, n, c.lanes)
			gather(k.scales[k.at[column]/codeBlock+lane:], c.scales[layer][c.scaleAt(keys, block, head, offset):], c.stride/codeBlock, n, c.lanes)
		default:
			gather(k.halves[out:], c.halves[layer][in:], c.stride, n, c.lanes)
		}
		at += n
	}
	return k
}

// gather copies rows of n numbers, which are step apart, to where they are keyLanes apart.
func gather[T any](to, from []T, rows, n, step int) {
	for i := range rows {
		copy(to[i*keyLanes:][:n], from[i*step:])
	}
}

// values gives the values of positions from … to of a head as far as there are keyPiece of them or, unless they are
// converted, they are in one block: n of them. As with keys, some are converted.
func (c *cache) values(s *runScratch, many bool, layer, head int, table []int32, from, to int) (r run, n int) {
	block, offset := int(table[from/c.blockSize]), from%c.blockSize
	n = min(c.blockSize-offset, to-from, keyPiece)
	at := c.at(values, block, head, offset)
	switch {
	case c.floats != nil:
		r.floats = c.floats[layer][at : at+n*c.stride]
		return r, n
	case c.codes != nil && !many && c.vectors.weighCodes != nil:
		r.codes, r.scales = c.codes[layer][at:at+n*c.stride], s.scales
		c.widenScales(s, layer, block, head, offset, n)
		return r, n
	case c.halves != nil && !many && c.vectors.weighHalves != nil:
		r.halves = c.halves[layer][at : at+n*c.stride]
		return r, n
	}
	r.floats = s.floats
	for n = 0; n < min(to-from, keyPiece); {
		block, offset := int(table[(from+n)/c.blockSize]), (from+n)%c.blockSize
		some := min(c.blockSize-offset, to-from-n, keyPiece-n)
		at, y := c.at(values, block, head, offset), r.floats[n*c.stride:][:some*c.stride]
		if c.codes != nil {
			c.widenScales(s, layer, block, head, offset, some)
			c.vectors.widenCache(y, c.codes[layer][at:], s.scales, some, c.stride)
		} else {
			c.vectors.widen(y, c.halves[layer][at:])
		}
		n += some
	}
	return r, n
}

// widenScales converts the scales of n positions' values as a run has them.
func (c *cache) widenScales(s *runScratch, layer, block, head, offset, n int) {
	scales := c.scales[layer][c.scaleAt(values, block, head, offset):]
	for b := range c.stride / codeBlock {
		c.vectors.widen(s.scales[b*keyPiece:][:n], scales[b*c.blockSize:])
	}
}

// from is r without the first i rows of stride.
func (r run) from(i, stride int) run {
	switch {
	case i == 0:
		return r
	case r.halves != nil:
		return run{halves: r.halves[i*stride:]}
	case r.codes != nil:
		return run{codes: r.codes[i*stride:], scales: r.scales[i:]}
	}
	return run{floats: r.floats[i*stride:]}
}

// prefetch asks for positions from … to of a head: blocks lie too far apart for a processor to guess what comes
// next.
func (c *cache) prefetch(layer, half, head int, table []int32, from, to int) {
	f := c.vectors.prefetch
	if f == nil {
		return
	}
	for from < to {
		block, offset := int(table[from/c.blockSize]), from%c.blockSize
		n := min(c.blockSize-offset, to-from)
		if half == keys { // whole columns
			offset -= offset % c.lanes
		}
		at, size := c.at(half, block, head, offset), n*c.stride
		switch {
		case c.floats != nil:
			f(unsafe.Pointer(&c.floats[layer][at]), 4*size)
		case c.codes != nil:
			f(unsafe.Pointer(&c.codes[layer][at]), size)
			f(unsafe.Pointer(&c.scales[layer][c.scaleAt(half, block, head, 0)]), 2*c.blockSize*c.stride/codeBlock)
		default:
			f(unsafe.Pointer(&c.halves[layer][at]), 2*size)
		}
		from += n
	}
}

// copy copies a block in all layers.
func (c *cache) copy(from, to int) {
	n := 2 * c.half()
	copyBlock(c.floats, from, to, n)
	copyBlock(c.halves, from, to, n)
	copyBlock(c.codes, from, to, n)
	copyBlock(c.scales, from, to, n/codeBlock)
}

// copyBlock copies a block of n numbers in the layers that there are.
func copyBlock[T any](layers [][]T, from, to, n int) {
	for _, l := range layers {
		copy(l[to*n:(to+1)*n], l[from*n:(from+1)*n])
	}
}

// bytesText prints a size for people.
func bytesText(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.2f %ciB", v, units[i])
}
