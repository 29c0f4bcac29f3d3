//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
)

// cacheCodes is how many codes of a cache of Q8_0 have a scale.
const cacheCodes = 32

// cache is the KV cache, as kernels/cache.cuh describes it.
type cache struct {
	numbers, scales cachePart
}

// cachePart is the numbers of all layers, or their scales, on the GPU.
type cachePart struct {
	at           uint64
	block, layer int64 // bytes of a block in a layer, and of a layer
}

// ofLayer is where layer i begins.
func (p *cachePart) ofLayer(i int) uint64 { return p.at + uint64(int64(i)*p.layer) }

// cacheType is the type that t asks for.
func cacheType(t gpu.CacheType) gpu.CacheType {
	if t == gpu.CacheAuto {
		return gpu.CacheF16
	}
	return t
}

// layerBlock is the bytes of a block in a layer: of its numbers, and of their scales.
func layerBlock(c *model.Config, blockSize int, t gpu.CacheType) (numbers, scales int64) {
	heads := int64(blockSize) * 2 * int64(c.KVHeads)
	switch cacheType(t) {
	case gpu.CacheF32:
		return 4 * heads * int64(c.HeadDim), 0
	case gpu.CacheQ8_0:
		parts := ceil(int64(c.HeadDim), cacheCodes)
		return heads * parts * cacheCodes, 2 * heads * parts
	}
	return 2 * heads * int64(c.HeadDim), 0
}

// BlockBytes is the memory of one KV cache block of blockSize positions over all layers of m. With Q8_0, head
// sizes that are no multiple of 32 count as the next one.
func BlockBytes(m *model.Model, blockSize int, t gpu.CacheType) int64 {
	numbers, scales := layerBlock(&m.Config, blockSize, t)
	return int64(m.Config.Layers) * (numbers + scales)
}

// allocCache allocates a cache of blocks blocks.
func (d *Device) allocCache(blocks int) error {
	numbers, scales := layerBlock(d.model, d.config.BlockSize, d.config.CacheType)
	layers, n := int64(d.model.Layers), int64(blocks)
	p, err := d.alloc("the KV cache", layers*n*(numbers+scales))
	d.cache.numbers = cachePart{uint64(p), numbers, n * numbers}
	d.cache.scales = cachePart{uint64(p) + uint64(layers*n*numbers), scales, n * scales}
	return err
}

// copy copies a block of the KV cache in all layers.
func (d *Device) copy(c gpu.Copy) error {
	if c.From == c.To {
		return nil
	}
	for _, p := range []*cachePart{&d.cache.numbers, &d.cache.scales} {
		words := p.block / 4
		if words == 0 {
			continue
		}
		s := shape{x: int(min(64, ceil(words, 256))), y: d.model.Layers, threads: 256}
		if err := d.module.launch(d.copyBlock, s, p.at, uint64(p.layer/4), uint64(words), uint64(c.From), uint64(c.To)); err != nil {
			return err
		}
	}
	return nil
}
