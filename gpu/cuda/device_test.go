//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

func open(t testing.TB, o tiny.Options, c gpu.Config) *Device {
	t.Helper()
	return openModel(t, tiny.Model(o), c, Options{})
}

func openModel(t testing.TB, m *model.Model, c gpu.Config, o Options) *Device {
	t.Helper()
	d, err := Open(m, c, o)
	if err != nil {
		t.Fatal(err)
	}
	return d.(*Device)
}

func TestCUDAIsADeviceWhoseKernelsRunOnTheStandIn(t *testing.T) {
	useFake(t)
	before := ask(t, liveObjects)
	for name, of := range map[string]struct {
		model *model.Model
		cache gpu.CacheType
	}{
		"dense":                   {tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0, Tied: true}), gpu.CacheAuto},
		"experts, cache of bytes": {mixtureOfOneLayer(t), gpu.CacheQ8_0},
	} {
		t.Run(name, func(t *testing.T) {
			devicetest.Run(t, func(c gpu.Config) (gpu.Device, error) {
				c.CacheType = of.cache
				return Open(of.model, c, Options{})
			}, devicetest.Options{Logits: true, Refuses: true, Width: 64, Tolerance: 0.1})
		})
	}
	noneLeft(t, before)
}
