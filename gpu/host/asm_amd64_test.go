package host

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// needAVX2 skips where the processor can't run the kernels.
func needAVX2(t testing.TB) {
	if !slices.Contains(availableInstructions(), avx2) {
		t.Skip("this processor has no AVX2")
	}
}

func TestQuantiseAVX2HasTheBitsOfItsTwin(t *testing.T) {
	needAVX2(t)
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		x := activations(r, 32*16)
		if round%3 == 0 {
			bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.Float32frombits(0xff800001)}
			x[r.IntN(len(x))] = bad[r.IntN(len(bad))]
		}
		got, want := make([]octets, 16), make([]octets, 16)
		quantise(want, x)
		quantiseAVX2(&got[0].values[0], &x[0], 15)
		if got[15] != (octets{}) {
			t.Fatal("one too many")
		}
		for i := range got[:15] {
			g, w := &got[i], &want[i]
			if g.values != w.values || math.Float32bits(g.scale) != math.Float32bits(w.scale) ||
				math.Float32bits(g.sum) != math.Float32bits(w.sum) || g.eights != w.eights || g.halves != w.halves {
				t.Fatalf("%v:\n%v\nwanted\n%v", x[32*i:][:32], *g, *w)
			}
		}
	}
}
