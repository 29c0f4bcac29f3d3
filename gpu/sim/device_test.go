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
			devicetest.Run(t, func(t *testing.T, c gpu.Config) gpu.Device {
				s, err := Open(o, c)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}, devicetest.Options{Logits: true, Refuses: o.Check})
		})
	}
}
