package sim

import (
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
)

func TestItIsADevice(t *testing.T) {
	for name, o := range map[string]Options{
		"checking": {Vocab: 300, Check: true},
		"trusting": {Vocab: 300},
	} {
		t.Run(name, func(t *testing.T) {
			devicetest.Run(t, func(c gpu.Config) (gpu.Device, error) { return Open(o, c) }, devicetest.Options{Logits: true, Refuses: o.Check})
		})
	}
}
