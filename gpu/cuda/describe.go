//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu/cuda/driver"
)

// Describe says what the driver says of the GPU that o chooses.
func Describe(o Options) (*Properties, error) {
	d, capability, err := find(o.Ordinal)
	if err != nil {
		return nil, err
	}
	p := &Properties{Capability: capability}
	fail := func(what string, err error) (*Properties, error) {
		return nil, fmt.Errorf("cuda: GPU %d: %s: %w", o.Ordinal, what, driver.Explain(err))
	}
	if p.Name, err = d.Name(); err != nil {
		return fail("its name", err)
	}
	if p.MemoryBytes, err = d.TotalMem(); err != nil {
		return fail("its memory", err)
	}
	var clock, memoryClock int // in kHz
	for _, a := range []struct {
		what string
		of   cu.DeviceAttribute
		to   *int
	}{
		{"its multiprocessors", cu.MultiprocessorCount, &p.Multiprocessors}, {"its clock", cu.ClockRate, &clock},
		{"its memory's clock", cu.MemoryClockRate, &memoryClock}, {"its memory's bus", cu.GlobalMemoryBusWidth, &p.BusBits},
	} {
		if *a.to, err = d.Attribute(a.of); err != nil {
			return fail(a.what, err)
		}
	}
	p.ClockHz, p.MemoryClockHz = 1000*int64(clock), 1000*int64(memoryClock)
	return p, nil
}
