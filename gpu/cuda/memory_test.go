//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"testing"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

func TestWhatIsLeftOfAllMemoryIsLessThanABlock(t *testing.T) {
	useFake(t)
	t.Setenv(GraphsVariable, "off") // the driver takes memory for these later
	t.Setenv("FAKE_CUDA_MEMORY", fmt.Sprint(16<<20))
	for _, m := range []*model.Model{tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0}), mixtureOfOneLayer(t)} {
		for _, kind := range []gpu.CacheType{gpu.CacheF16, gpu.CacheQ8_0} {
			c := gpu.Config{BlockSize: 1, MaxSeqs: 1000, MaxTokens: 100, MaxContext: 1000, CacheType: kind}
			d := openModel(t, m, c, Options{Utilization: 1})
			release := inContext(t, d)
			left, _, err := cu.MemInfo()
			release()
			if err != nil {
				t.Fatal(err)
			}
			// Room for a second kind of rotary positions is counted, and taken where a model has it.
			if most := d.info.BlockBytes + 8*int64(m.Config.HeadDim/2); left >= most {
				t.Errorf("%s, cache of %v: %d bytes are left, wanted less than %d", m.Name, kind, left, most)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
