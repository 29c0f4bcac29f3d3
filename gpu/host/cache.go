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
// Within a layer, block b has its keys, then its values, each as [KV head][position][head dim], where a
// position's dim values are filled up with zeros to stride.
//
// In a cache of Q8_0 these are codes, signed bytes. Every 32 of them have a scale, a half; code × scale is
// about the value. The scales of a block lie apart, as [KV head][stride/32][position].
type cache struct {
	blocks, blockSize  int
	heads, dim, stride int
	vectors            *vectors
	// A layer's memory, in one of the types.
	floats [][]float32
	halves [][]uint16
	codes  [][]int8
	scales [][]uint16 // of codes
	memory mmap.MMap
}

// codeBlock is how many codes have a scale.
const codeBlock = 32

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

// newCache maps memory for blocks blocks, which the operating system hands out page by page when
// they are first written.
func newCache(m *model.Model, blocks, blockSize int, t gpu.CacheType, v *vectors) (*cache, error) {
	c := &cache{blocks: blocks, blockSize: blockSize, heads: m.Config.KVHeads, dim: m.Config.HeadDim, stride: cacheStride(m, t), vectors: v}
	block := BlockBytes(m, blockSize, t)
	size := int64(blocks) * block
	if size > math.MaxInt/2 {
		return nil, fmt.Errorf("a KV cache of %s is more than this platform can address", bytesText(size))
	}
	var err error
	if c.memory, err = mmap.MapRegion(nil, int(size), mmap.RDWR, mmap.ANON, 0); err != nil {
		return nil, fmt.Errorf("no memory for a KV cache of %s (%d blocks of %s): %w",
			bytesText(size), blocks, bytesText(block), err)
	}
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

// at is where a position of a head lies in a layer. half is keys or values.
func (c *cache) at(half, block, head, offset int) int {
	return (2*block+half)*c.half() + (head*c.blockSize+offset)*c.stride
}

// scaleAt is where the scale of a position's first codes lies in a layer; those of the next are blockSize
// behind.
func (c *cache) scaleAt(half, block, head, offset int) int {
	return c.at(half, block, head, 0)/codeBlock + offset
}

// store writes the dim values of a position of a head.
func (c *cache) store(layer, half, block, head, offset int, x []float32) {
	at := c.at(half, block, head, offset)
	switch {
	case c.floats != nil:
		copy(c.floats[layer][at:at+c.dim], x)
	case c.codes != nil:
		codes, scales := c.codes[layer][at:at+c.stride], c.scales[layer][c.scaleAt(half, block, head, offset):]
		n := c.dim &^ (codeBlock - 1)
		c.vectors.quantiseCache(codes[:n], scales, x[:n], c.blockSize)
		if n < c.dim {
			var rest [codeBlock]float32
			copy(rest[:], x[n:c.dim])
			c.vectors.quantiseCache(codes[n:], scales[n/codeBlock*c.blockSize:], rest[:], c.blockSize)
		}
	default:
		c.vectors.narrow(c.halves[layer][at:at+c.dim], x[:c.dim])
	}
}

// run is successive positions of a head's keys or values: rows of stride, in one of the types.
type run struct {
	floats []float32
	halves []uint16
	codes  []int8
	scales []float32 // of codes: those of row j are scales[keyPiece·b + j], for every 32 codes b
}

// runScratch is a worker's memory for what of a run is converted, of up to keyPiece positions.
type runScratch struct{ floats, scales []float32 }

func newRunScratch(c *cache) runScratch {
	return runScratch{make([]float32, keyPiece*c.stride), make([]float32, keyPiece*c.stride/codeBlock)}
}

// run gives the positions from … to of a head, as far as they are in one block: n of them. What the kernels
// have no use for is converted into scratch, and so is what many queries are to meet: it is quicker to
// convert it once, and gives the same bits.
func (c *cache) run(scratch *runScratch, many bool, layer, half, head int, table []int32, from, to int) (r run, n int) {
	block, offset := int(table[from/c.blockSize]), from%c.blockSize
	n = min(c.blockSize-offset, to-from)
	at, size := c.at(half, block, head, offset), n*c.stride
	switch {
	case c.floats != nil:
		r.floats = c.floats[layer][at : at+size]
		return r, n
	case c.codes != nil:
		r.codes, r.scales = c.codes[layer][at:at+size], scratch.scales
		scales := c.scales[layer][c.scaleAt(half, block, head, offset):]
		for b := range c.stride / codeBlock {
			c.vectors.widen(r.scales[b*keyPiece:][:n], scales[b*c.blockSize:])
		}
		if !many && c.vectors.scoresCodes != nil {
			return r, n
		}
		c.vectors.widenCache(scratch.floats[:size], r.codes, r.scales, n, c.stride)
	default:
		r.halves = c.halves[layer][at : at+size]
		if !many && c.vectors.scoresHalves != nil {
			return r, n
		}
		c.vectors.widen(scratch.floats[:size], r.halves)
	}
	return run{floats: scratch.floats[:size]}, n
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

// prefetch asks for positions from … to of a head, as far as they are in one block: blocks lie too far apart
// for a processor to guess what comes next.
func (c *cache) prefetch(layer, half, head int, table []int32, from, to int) {
	f := c.vectors.prefetch
	if f == nil || from >= to {
		return
	}
	block, offset := int(table[from/c.blockSize]), from%c.blockSize
	n := min(c.blockSize-offset, to-from)
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
