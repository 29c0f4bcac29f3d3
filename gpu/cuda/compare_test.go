//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// steps are devicetest's.
func steps(t testing.TB, d gpu.Device, c gpu.Config) []float32 {
	t.Helper()
	all, err := devicetest.Steps(d, c)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// modelOf is devicetest's.
func modelOf(t testing.TB, o tiny.Options, kind func(name string) gguf.Type) *model.Model {
	t.Helper()
	m, err := devicetest.TypedModel(o, kind)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEveryTypeOfWeightsAndCacheGivesWhatTheHostGives(t *testing.T) {
	useFake(t)
	ragged := tiny.Options{Layers: 1, Width: 72, Heads: 4, KVHeads: 1, FFN: 100}
	blocks := tiny.Options{Layers: 1, Width: 96, Heads: 3, KVHeads: 3, FFN: 160, Tied: true}
	super := tiny.Options{Layers: 1, Width: 256, Heads: 4, KVHeads: 2, FFN: 256}
	for _, c := range []struct {
		name  string
		shape tiny.Options
		kind  func(string) gguf.Type
	}{
		{"F32", ragged, nil}, {"F16", ragged, nil}, {"BF16", ragged, nil}, {"Q8_0", blocks, nil}, {"Q4_0", blocks, nil}, {"Q4_1", blocks, nil},
		{"Q5_0", blocks, nil}, {"Q5_1", blocks, nil}, {"Q4_K", super, nil}, {"Q5_K", super, nil}, {"Q6_K", super, nil},
		{"Q2_K", super, nil}, {"Q3_K", super, nil}, {"IQ4_NL", blocks, nil}, {"IQ4_XS", super, nil}, {"MXFP4", blocks, nil},
		{"mixed", super, func(name string) gguf.Type {
			switch {
			case strings.Contains(name, "attn_v") || strings.Contains(name, "ffn_down"):
				return gguf.Q6_K
			case strings.Contains(name, "token_embd") || strings.Contains(name, "ffn_up"):
				return gguf.Q8_0
			}
			return gguf.Q4_K
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := c.kind
			if kind == nil {
				for k := range packings {
					if k.String() == c.name {
						kind = func(string) gguf.Type { return k }
					}
				}
			}
			m := modelOf(t, c.shape, kind)
			for _, cache := range []gpu.CacheType{gpu.CacheF32, gpu.CacheF16, gpu.CacheQ8_0} {
				// Heads of mixed are 64 numbers long, those of F16 18, which is no whole number of codes.
				if cache != gpu.CacheF32 && c.name != "mixed" && (cache != gpu.CacheQ8_0 || c.name != "F16") {
					continue
				}
				usually := 0.01 // products are checked one by one in products_test.go
				switch {
				case cache == gpu.CacheQ8_0:
					usually = 0.02
				case cache == gpu.CacheF32 && c.name == "F32":
					usually = 1e-4
				}
				compare(t, m, cache, usually)
			}
		})
	}
}

// compare runs steps on the host device and on a GPU: log probabilities must differ by less than usually in
// the mean, and by less than ten times as much at most.
func compare(t *testing.T, m *model.Model, cache gpu.CacheType, usually float64) {
	t.Helper()
	config := devicetest.StepsConfig
	config.CacheType = cache
	h, err := host.OpenPortable(m, config) // the only kernels that don't round activations
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	d := openModel(t, m, config, Options{})
	want, got := steps(t, h, config), steps(t, d, config)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	worst, sum := 0.0, 0.0
	for i := range want {
		off := math.Abs(float64(want[i]) - float64(got[i]))
		worst, sum = max(worst, off), sum+off
	}
	mean := sum / float64(len(want))
	t.Logf("cache of %v: off by %.1e in the mean, %.1e at most", cache, mean, worst)
	if !(mean < usually && worst < 10*usually) || len(got) != len(want) {
		t.Errorf("cache of %v: log probabilities are off by %g in the mean, %g at most", cache, mean, worst)
	}
}

// What depends on the order in which threads run is a race: on a GPU there is none.
func TestNothingDependsOnTheOrderOfThreadsAndBlocks(t *testing.T) {
	useFake(t)
	for _, m := range []*model.Model{tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q4_1}), mixtureOfOneLayer(t)} {
		sameInOppositeOrder(t, m)
	}
}

func sameInOppositeOrder(t *testing.T, m *model.Model) {
	config := gpu.Config{BlockSize: 16, MaxSeqs: 3, MaxTokens: 128, MaxContext: 110}
	run := func() []float32 {
		d := openModel(t, m, config, Options{})
		defer d.Close()
		return steps(t, d, config)
	}
	t.Setenv("FAKE_CUDA_REVERSE", "0")
	want := run()
	t.Setenv("FAKE_CUDA_REVERSE", "1")
	if got := run(); !slices.Equal(got, want) {
		t.Errorf("%s: other log probabilities when threads and blocks run in the opposite order", m.Name)
	}
}

func TestEveryTypesWeightsAreToTheBitThoseOfTheGGUFPackage(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1}, small)
	defer d.Close()
	defer inContext(t, d)()
	seen := 0
	for _, kind := range model.WeightTypes() {
		for _, c := range devicetest.DequantisedBlocks() {
			if c.Type != kind.String() {
				continue
			}
			seen++
			in := max(32, kind.BlockSize())
			n := c.Len() / in
			l := linear{in: in, matrices: 1, stacks: []stack{{kind: kind, rows: n, parts: []gguf.Tensor{{Name: c.Type, Type: kind, Shape: []int{in, n}, Data: c.Data}}}}}
			if err := d.uploadWeights([]*linear{&l}, lend, nil); err != nil {
				t.Fatal(err)
			}
			if err := c.Same(embedded(t, d, &l)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if seen != len(model.WeightTypes()) {
		t.Errorf("%d of %d types have goldens", seen, len(model.WeightTypes()))
	}
}

func TestTypesWithoutKernelsAreRefusedByName(t *testing.T) {
	useFake(t)
	before, known := ask(t, liveObjects), packings[gguf.MXFP4]
	delete(packings, gguf.MXFP4)
	defer func() { packings[gguf.MXFP4] = known }()
	m := modelOf(t, tiny.Options{Layers: 1, Type: gguf.Q8_0}, func(name string) gguf.Type {
		if strings.Contains(name, "ffn_down") {
			return gguf.MXFP4
		}
		return gguf.Q8_0
	})
	_, err := Open(m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 16}, Options{})
	if err == nil || !strings.Contains(err.Error(), "ffn_down") || !strings.Contains(err.Error(), fmt.Sprint(gguf.MXFP4)) || !strings.Contains(err.Error(), "Q4_K") {
		t.Error(err)
	}
	noneLeft(t, before)
}

func TestHeadsOfAnySizeAttendByTensorCoresAsOnTheHost(t *testing.T) {
	useFake(t)
	for _, c := range []struct{ width, heads, kvHeads, as int }{
		{192, 2, 1, 128}, {256, 2, 2, 128}, {160, 2, 1, 128}, {96, 6, 2, 64}, {96, 3, 1, 64}, {80, 4, 2, 0},
	} {
		m := tiny.Model(tiny.Options{Layers: 1, Width: c.width, Heads: c.heads, KVHeads: c.kvHeads, Type: gguf.F16})
		if as := tensorHead(&Device{model: &m.Config}); as != c.as {
			t.Errorf("heads of %d: the kernel for %d, wanted that for %d", m.Config.HeadDim, as, c.as)
		}
		compare(t, m, gpu.CacheF16, 1e-2)
	}
}

// A block's positions behind the end of its sequence hold whatever the sequence before had there, or nothing that
// was ever written.
func TestNothingThatASequenceHasNotWrittenReachesIt(t *testing.T) {
	useFake(t)
	for _, kind := range []gpu.CacheType{gpu.CacheF16, gpu.CacheF32, gpu.CacheQ8_0} {
		for _, cores := range []int{1, 132} { // keys of a row in one block, and in several
			c := gpu.Config{BlockSize: 16, MaxSeqs: 8, MaxTokens: 128, MaxContext: 256, CacheType: kind}
			var results [2][]float32
			for i, fill := range []byte{0, 0xff} { // 0xff: every number and every scale is a NaN, every code −1
				d := open(t, tiny.Options{Layers: 1, Type: gguf.Q8_0}, c)
				d.cores = cores
				release := inContext(t, d)
				all := int64(d.info.NumBlocks) * d.info.BlockBytes
				if err := cu.MemsetD8Async(cu.DevicePtr(d.cache.numbers.at), fill, all, d.stream); err != nil {
					t.Fatal(err)
				}
				release()
				results[i] = steps(t, d, c)
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(results[0], results[1]) {
				t.Errorf("a cache of %v, %d multiprocessors: what was in the cache before changes results", kind, cores)
			}
		}
	}
}
