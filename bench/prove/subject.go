package prove

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
)

// CPU is the CPU device with so many threads; 0 is one per core.
func CPU(threads int) Subject {
	return Subject{
		Kind: "cpu", Name: host.ProcessorName(),
		Open: func(m *model.Model, c gpu.Config) (gpu.Device, error) {
			c.Threads = threads
			d, err := host.Open(m, c)
			if err != nil {
				return nil, err // not a nil *host.Host in an interface
			}
			return d, nil
		},
		Break: func(d gpu.Device) error { return d.Close() }, How: "closing the device", StepTokens: 128,
		Limits: func() (Limits, error) {
			l, err := host.MeasureLimits(threads, time.Second)
			if err != nil {
				return Limits{}, err
			}
			how := fmt.Sprintf("measured, %d threads with %s", l.Threads, l.Instructions)
			out := Limits{BytesPerSecond: l.Read, BytesHow: how, MultiplyAddsPerSecond: l.Multiply, MultiplyAddsHow: how + ", of bytes"}
			if l.Multiply == 0 {
				out.MultiplyAddsHow = "not measured: portable kernels have no instruction for it"
			}
			return out, nil
		},
		Memory: host.AvailableMemory(),
	}
}

// CUDA is the GPU. The error says why there is none.
func CUDA() (Subject, error) {
	p, err := cuda.Describe(cuda.Options{})
	if err != nil {
		return Subject{}, err
	}
	return Subject{
		Kind: "cuda", Name: p.Name,
		Open: func(m *model.Model, c gpu.Config) (gpu.Device, error) {
			if c.CacheBytes == 0 { // all that can be used, and no share of a GPU that others may have theirs of
				need := c.MaxSeqs * blocks(c.MaxContext, c.BlockSize)
				c.CacheBytes = int64(need) * host.BlockBytes(m, c.BlockSize, c.CacheType)
			}
			return cuda.Open(m, c, cuda.Options{})
		},
		Break: cuda.Reset, How: "destroying the GPU's context", StepTokens: 2048,
		// Products of one column take activations of 16 bits, of several activations and weights as halves.
		Tolerance: 0.1,
		Limits: func() (Limits, error) {
			if p.Bandwidth() <= 0 {
				return Limits{}, errors.New("the driver does not say how fast the GPU's memory is")
			}
			rate, how := p.MultiplyAdds()
			return Limits{
				BytesPerSecond: p.Bandwidth(), BytesHow: fmt.Sprintf("%.3f GHz × %d bits × 2", float64(p.MemoryClockHz)/1e9, p.BusBits),
				MultiplyAddsPerSecond: rate, MultiplyAddsHow: how,
			}, nil
		},
		Memory: p.MemoryBytes,
	}, nil
}
