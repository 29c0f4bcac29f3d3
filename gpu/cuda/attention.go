//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/model"
)

const (
	// keyTile is the keys that kernels/attention.cuh takes at once.
	keyTile = 32
	// groupQueries is about how many queries a block has: so many that reading keys costs little beside
	// multiplying them.
	groupQueries  = 16
	attendThreads = 128
	// halvesQueries is the most queries of a group where they are multiplied by tensor cores.
	halvesQueries = 64
	// leastPart is the fewest keys that are worth a block of their own, and mostParts how many blocks may
	// share a row's.
	leastPart = 2 * keyTile
	mostParts = 64
	// partialRows bounds the memory for what blocks that share keys leave: rows × parts.
	partialRows = 1024
)

// group is Group of kernels/attention.cuh: successive rows of one sequence.
type group struct{ first, rows, position, table int32 }

// attention is how a tile of positions attends.
type attention struct {
	attend, merge *kernel
	shared        int // query heads per KV head
	rows          int // most rows of a group
	bytesShared   int
	partial       uint64
}

// tensorHead is the size of heads that the kernel for tensor cores is built for, or 0 if there is none for the model
// and its cache.
func tensorHead(d *Device) int {
	switch dim := d.model.HeadDim; {
	case cacheType(d.config.CacheType) != gpu.CacheF16 || dim%16 != 0 || d.model.Heads/d.model.KVHeads > halvesQueries || dim > 128:
		return 0
	case dim <= 64:
		return 64
	}
	return 128
}

// plan decides the size of groups. most is the shared memory that a block can have.
func (a *attention) plan(d *Device, most int) error {
	mc := d.model
	a.shared = mc.Heads / mc.KVHeads
	size := func(rows int) int {
		q := rows * a.shared
		return 4 * (2*q*mc.HeadDim + keyTile*(mc.HeadDim+1) + q*keyTile + 3*q)
	}
	if tensorHead(d) > 0 {
		a.rows = halvesQueries / a.shared
		return nil
	}
	for a.rows = max(1, groupQueries/a.shared); a.rows > 1 && size(a.rows) > most; {
		a.rows--
	}
	a.bytesShared = size(a.rows)
	if a.bytesShared > most {
		return fmt.Errorf("%d heads of %d that share keys need %d bytes of a multiprocessor's shared memory; the GPU gives %d: take a GPU that has more, or --device cpu", a.shared, mc.HeadDim, a.bytesShared, most)
	}
	if a.bytesShared > 48<<10 {
		if err := driver.AllowShared(a.attend.function, a.bytesShared); err != nil {
			return fmt.Errorf("%d bytes of shared memory for attention: %w", a.bytesShared, err)
		}
	}
	return nil
}

// buffer is for what blocks leave that share a row's keys.
func (a *attention) buffer(c *model.Config) buffer {
	return buffer{"attention", &a.partial, 4 * partialRows * int64(c.Heads) * int64(c.HeadDim+2)}
}

// work is a tile's groups, and how keys are split among blocks.
type work struct {
	groups     int
	at         uint64 // of the groups, on the GPU
	parts, per int    // blocks that share a row's keys, and how many keys each takes: 0 where one takes all
}

// split decides how many blocks share the keys of a row: one, unless there are too few groups to keep the
// GPU busy. longest is the most keys that a row sees.
func (a *attention) split(d *Device, n, groups, longest int) (parts, per int) {
	busy := 2 * d.cores
	parts = min(busy/max(1, groups*d.model.KVHeads), longest/leastPart, mostParts, partialRows/n)
	if parts < 2 {
		return 1, 0
	}
	per = whole(ceil(longest, parts), keyTile)
	return ceil(longest, per), per
}

// attendTo attends from the tile's n rows in layer l.
func (d *Device) attendTo(w *work, l, n int, tables uint64) error {
	a, mc, how := &d.attention, d.model, d.model.AttentionOf(l)
	s := shape{w.groups, mc.KVHeads, w.parts, attendThreads, a.bytesShared}
	err := d.module.launch(a.attend, s, d.qkv.at, uint64(d.qkv.stride), d.attended.at, uint64(d.attended.stride), a.partial, w.at, tables,
		d.cache.numbers.ofLayer(l), d.cache.scales.ofLayer(l), uint64(mc.Heads), uint64(mc.KVHeads), uint64(mc.HeadDim), uint64(d.config.BlockSize), uint64(w.per),
		bits(how.Scale), bits(how.Softcap), uint64(how.Window))
	if err != nil || w.parts == 1 {
		return err
	}
	return d.module.launch(a.merge, shape{n, mc.Heads, 1, threadsFor(mc.HeadDim, 128), 0}, a.partial, d.attended.at, uint64(d.attended.stride), uint64(mc.Heads), uint64(mc.HeadDim), uint64(w.parts))
}
