package cuda

import (
	"math"
	"testing"
)

// What NVIDIA's data sheets say of whole GPUs: bytes and halves' operations (two a multiply-add), a second.
func TestLimitsAreThoseOfDataSheets(t *testing.T) {
	for _, c := range []struct {
		p                 Properties
		bytes, operations float64
	}{
		{Properties{Name: "H200 SXM", Capability: [2]int{9, 0}, Multiprocessors: 132, ClockHz: 1830e6, MemoryClockHz: 3201e6, BusBits: 6144}, 4.8e12, 989e12},
		{Properties{Name: "A100 80GB SXM", Capability: [2]int{8, 0}, Multiprocessors: 108, ClockHz: 1410e6, MemoryClockHz: 1593e6, BusBits: 5120}, 2.039e12, 312e12},
		{Properties{Name: "L40S", Capability: [2]int{8, 9}, Multiprocessors: 142, ClockHz: 2520e6, MemoryClockHz: 9001e6, BusBits: 384}, 864e9, 362e12},
		{Properties{Name: "T4", Capability: [2]int{7, 5}, Multiprocessors: 40, ClockHz: 1590e6, MemoryClockHz: 5001e6, BusBits: 256}, 320e9, 65e12},
	} {
		rate, how := c.p.MultiplyAdds()
		if math.Abs(c.p.Bandwidth()/c.bytes-1) > 0.03 || math.Abs(2*rate/c.operations-1) > 0.03 {
			t.Errorf("%s: %.4g bytes/s, wanted %.4g; %.4g operations/s, wanted %.4g (%s)", c.p.Name, c.p.Bandwidth(), c.bytes, 2*rate, c.operations, how)
		}
	}
	if rate, how := (&Properties{Capability: [2]int{42, 0}, Multiprocessors: 1, ClockHz: 1}).MultiplyAdds(); rate != 0 || how == "" {
		t.Error(rate, how)
	}
}
