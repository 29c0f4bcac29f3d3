package host

import (
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

func TestHostIsADeviceBitForBitWhateverTheModelAndThreads(t *testing.T) {
	models := referenceModels(t)
	for _, c := range architectureCases(t) {
		if c.Model == "gemma3" || c.Model == "qwen2moe" { // windows, and experts
			models[c.Model] = c.file(t, gguf.Q8_0)
		}
	}
	if raceEnabled { // what differs between these is arithmetic, which the detector makes slow
		models = map[string][]byte{"one layer": tiny.GGUF(tiny.Options{Layers: 1})}
	}
	for name, file := range models {
		t.Run(name, func(t *testing.T) {
			m, err := model.Parse(file, name)
			if err != nil {
				t.Fatal(err)
			}
			count, kind := 0, gpu.CacheAuto
			if name == "bytes" {
				kind = gpu.CacheQ8_0
			}
			devicetest.Run(t, func(c gpu.Config) (gpu.Device, error) {
				// Devices differ in threads, too, so that the suite compares these.
				c.CacheType = kind
				c.Threads = []int{1, 2, 5}[count%3]
				count++
				return Open(m, c)
			}, devicetest.Options{Logits: true, Width: m.Config.Width, Refuses: true})
		})
	}
}
