//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/model"
)

// gib prints a size for people.
func gib(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// reserve allocates memory of the GPU, with whatever is in it.
func (d *Device) reserve(what string, bytes int64) (cu.DevicePtr, error) {
	bytes = max(16, bytes)
	p, err := cu.MemAlloc(bytes)
	if err != nil {
		err = driver.Explain(err)
		if free, _, e := cu.MemInfo(); e == nil && errors.Is(err, driver.OutOfMemory) {
			return 0, fmt.Errorf("%s of GPU memory for %s are wanted, and %s are free: %w", gib(bytes), what, gib(free), err)
		}
		return 0, fmt.Errorf("%s of GPU memory for %s: %w", gib(bytes), what, err)
	}
	d.memory = append(d.memory, p)
	return p, nil
}

// alloc allocates memory of the GPU, filled with zeros by the time that the stream comes to what follows.
func (d *Device) alloc(what string, bytes int64) (cu.DevicePtr, error) {
	bytes = max(16, bytes)
	p, err := d.reserve(what, bytes)
	if err != nil {
		return 0, err
	}
	if err := cu.MemsetD8Async(p, 0, bytes, d.stream); err != nil {
		return 0, fmt.Errorf("clearing %s: %w", what, driver.Explain(err))
	}
	return p, nil
}

// buffer is memory that is allocated when a device is opened, and where its address goes.
type buffer struct {
	what  string
	to    *uint64
	bytes int64
}

// rowsOf is a buffer of n rows of so many floats, whose stride it sets.
func rowsOf(what string, to *rows, n, floats int) buffer {
	to.stride = stride(floats)
	return buffer{what, &to.at, 4 * int64(n) * int64(to.stride)}
}

// allocAll allocates buffers.
func (d *Device) allocAll(buffers []buffer) error {
	for _, b := range buffers {
		p, err := d.alloc(b.what, b.bytes)
		if err != nil {
			return err
		}
		*b.to = uint64(p)
	}
	return nil
}

// release gives memory back that nothing on the stream uses any more.
func (d *Device) release(p cu.DevicePtr) error {
	for i, q := range d.memory {
		if p == q {
			d.memory = append(d.memory[:i], d.memory[i+1:]...)
			return driver.Explain(cu.MemFree(p))
		}
	}
	return nil
}

// numBlocks decides how many blocks the KV cache has. fixed is what everything else takes, of which nothing
// is allocated yet.
//
// As in vLLM, the utilization's share of the GPU's memory is for weights, activations and cache together,
// and must be free when the device is opened.
func numBlocks(m *model.Model, c gpu.Config, o Options, fixed, free, total int64) (int, error) {
	block := BlockBytes(m, c.BlockSize, c.CacheType)
	one := ceil(int64(c.MaxContext), int64(c.BlockSize))
	most := one * int64(c.MaxSeqs)
	if c.CacheBytes > 0 {
		n := c.CacheBytes / block
		switch {
		case n < one:
			return 0, fmt.Errorf("one sequence of %d tokens needs %s of KV cache (%d blocks of %s), but %s are given: allow shorter sequences or give more memory",
				c.MaxContext, gib(one*block), one, gib(block), gib(c.CacheBytes))
		case fixed+n*block > free:
			return 0, fmt.Errorf("out of GPU memory: needed are %s (%s for weights and activations, %s for the KV cache), free are %s of %s: give the cache less memory, take a smaller model, or end what else uses the GPU",
				gib(fixed+n*block), gib(fixed), gib(n*block), gib(free), gib(total))
		}
		return int(min(n, 1<<30)), nil
	}
	share := int64(o.Utilization * float64(total))
	if share > free {
		if fixed+one*block > free {
			return 0, fmt.Errorf("out of GPU memory: needed are at least %s (%s for weights and activations, %s for the KV cache of one sequence of %d tokens), free are %s of %s: end what else uses the GPU, take a smaller model, or allow shorter sequences",
				gib(fixed+one*block), gib(fixed), gib(one*block), c.MaxContext, gib(free), gib(total))
		}
		return 0, fmt.Errorf("%.0f %% of the GPU's %s are %s, but only %s are free: lower --gpu-memory-utilization, or end what else uses the GPU",
			100*o.Utilization, gib(total), gib(share), gib(free))
	}
	n := (share - fixed) / block
	if share < fixed || n < one {
		return 0, fmt.Errorf("out of GPU memory: needed are at least %s (%s for weights and activations, %s for the KV cache of one sequence of %d tokens), but --gpu-memory-utilization %.2f leaves %s of %s, of which %s are free: raise it, take a smaller model, or allow shorter sequences",
			gib(fixed+one*block), gib(fixed), gib(one*block), c.MaxContext, o.Utilization, gib(share), gib(total), gib(free))
	}
	return int(min(n, most, 1<<30)), nil
}

// stage is what a batch says, put together in page-locked memory and copied to the GPU as one.
type stage struct {
	host   []byte
	device cu.DevicePtr
	used   int
}

// stageAlign is where pieces begin: kernels read up to 16 bytes at once.
const stageAlign = 16

// aligned is where a piece may begin, at n or as soon behind it as can be.
func aligned(n int) int { return whole(n, stageAlign) }

// room empties the stage and makes room for bytes. Nothing on the stream may use it.
func (s *stage) room(d *Device, what string, bytes int) error {
	s.used = 0
	if bytes <= len(s.host) {
		return nil
	}
	if s.host != nil {
		bytes += bytes / 2
		old := s.host
		s.host = nil
		if err := errors.Join(d.release(s.device), driver.FreeHost(old)); err != nil {
			return fmt.Errorf("making room for %s: %w", what, err)
		}
	}
	p, err := d.alloc(what, int64(bytes))
	if err != nil {
		return err
	}
	if s.host, err = driver.AllocHost(bytes); err != nil {
		s.host = nil
		return fmt.Errorf("%s of page-locked memory for %s: %w", gib(int64(bytes)), what, err)
	}
	s.device = p
	return nil
}

// take is the place of the next n values, and its address on the GPU.
func take[T any](s *stage, n int) ([]T, uint64) {
	var v T
	bytes := n * int(unsafe.Sizeof(v))
	at := s.used
	s.used = aligned(at + bytes)
	if n == 0 {
		return nil, uint64(s.device)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&s.host[at:][:bytes][0])), n), uint64(s.device) + uint64(at)
}

// put copies values to the stage.
func put[T any](s *stage, values []T) uint64 {
	to, at := take[T](s, len(values))
	copy(to, values)
	return at
}
