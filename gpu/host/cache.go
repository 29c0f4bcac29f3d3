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
type cache struct {
	blocks, blockSize  int
	heads, dim, stride int
	vectors            *vectors
	// A layer's memory, in one of the two types.
	floats [][]float32
	halves [][]uint16
	memory mmap.MMap
}

// cacheStride is how many values a position of a head takes: kernels take eight at a time.
func cacheStride(m *model.Model) int { return (m.Config.HeadDim + 7) &^ 7 }

// cacheType is the type that t asks for.
func cacheType(t gpu.CacheType) gpu.CacheType {
	if t == gpu.CacheAuto {
		return gpu.CacheF16
	}
	return t
}

// BlockBytes is the memory of one KV cache block of blockSize positions over all layers of m: keys and
// values of every KV head in type t. Head sizes that are no multiple of 8 count as the next one.
func BlockBytes(m *model.Model, blockSize int, t gpu.CacheType) int64 {
	c := &m.Config
	n := int64(c.Layers) * int64(blockSize) * 2 * int64(c.KVHeads) * int64(cacheStride(m))
	if cacheType(t) == gpu.CacheF32 {
		return 4 * n
	}
	return 2 * n
}

// newCache maps memory for blocks blocks, which the operating system hands out page by page when
// they are first written.
func newCache(m *model.Model, blocks, blockSize int, t gpu.CacheType, v *vectors) (*cache, error) {
	c := &cache{blocks: blocks, blockSize: blockSize, heads: m.Config.KVHeads, dim: m.Config.HeadDim, stride: cacheStride(m), vectors: v}
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
	if n := m.Config.Layers; cacheType(t) == gpu.CacheF32 {
		c.floats = layersOf[float32](c.memory, n)
	} else {
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
	c.floats, c.halves = nil, nil
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

// store writes the dim values of a position of a head.
func (c *cache) store(layer, half, block, head, offset int, x []float32) {
	at := c.at(half, block, head, offset)
	if c.floats != nil {
		copy(c.floats[layer][at:at+c.dim], x)
		return
	}
	c.vectors.narrow(c.halves[layer][at:at+c.dim], x[:c.dim])
}

// run is successive positions of a head's keys or values: rows of stride, in one of the two types.
type run struct {
	floats []float32
	halves []uint16
}

// run gives the positions from … to of a head, as far as they are in one block: n of them. Halves for
// which the kernels have no use are converted into scratch.
func (c *cache) run(scratch []float32, layer, half, head int, table []int32, from, to int) (r run, n int) {
	offset := from % c.blockSize
	n = min(c.blockSize-offset, to-from)
	at := c.at(half, int(table[from/c.blockSize]), head, offset)
	size := n * c.stride
	switch {
	case c.floats != nil:
		r.floats = c.floats[layer][at : at+size]
	case c.vectors.scoresHalves != nil:
		r.halves = c.halves[layer][at : at+size]
	default:
		r.floats = scratch[:size]
		c.vectors.widen(r.floats, c.halves[layer][at:at+size])
	}
	return r, n
}

// from is r without the numbers before the one at i.
func (r run) from(i int) run {
	if r.halves != nil {
		return run{halves: r.halves[i:]}
	}
	return run{floats: r.floats[i:]}
}

// copy copies a block in all layers.
func (c *cache) copy(from, to int) {
	n := 2 * c.half()
	for _, l := range c.floats {
		copy(l[to*n:(to+1)*n], l[from*n:(from+1)*n])
	}
	for _, l := range c.halves {
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
