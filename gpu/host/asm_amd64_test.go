package host

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/troupe-llm/troupe/model/gguf"
)

func TestQuantiseHasTheBitsOfItsTwin(t *testing.T) {
	for _, cpu := range availableInstructions() {
		if cpu == portable {
			continue
		}
		t.Run(cpu.String(), func(t *testing.T) {
			p := packingsFor(cpu)[gguf.Q4_0]
			r := rand.New(rand.NewPCG(1, 2))
			for round := range 300 {
				x := activations(r, 32*15)
				if round%3 == 0 {
					bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.Float32frombits(0xff800001)}
					x[r.IntN(len(x))] = bad[r.IntN(len(bad))]
				}
				at, step := p.panel(round%5, 5, 15)
				got, want := make([]octets, 5*15+1), make([]octets, 15)
				quantise(want, x)
				p.quantise(got[at:], x, step)
				for i := range got {
					var w octets
					if j := i - at; j >= 0 && j%step == 0 && j/step < 15 {
						w = want[j/step]
						if cpu == avx512 {
							(*wideOctets)(unsafe.Pointer(&w)).widen(&want[j/step])
						}
					}
					if *(*[64]byte)(unsafe.Pointer(&got[i])) != *(*[64]byte)(unsafe.Pointer(&w)) {
						t.Fatalf("block %d from %d on, %d apart:\n%v\nwanted\n%v", i, at, step, got[i], w)
					}
				}
			}
		})
	}
}
