package host

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestWhatMeasuresTheProcessorComputesWhatItsTwinDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	x := make([]uint64, 32*7)
	for i := range x {
		x[i] = r.Uint64()
	}
	for _, set := range availableInstructions() {
		p := probesOf(set)
		for n := 0; n <= len(x); n += 32 {
			var want uint64
			for _, v := range x[:n] {
				want += v
			}
			if got := p.read(x[:n]); got != want {
				t.Errorf("%v: the sum of %d words is %x, wanted is %x", set, n, got, want)
			}
		}
		if p.multiply == nil {
			continue
		}
		for _, rounds := range []int{0, 1, 5, 700} {
			if got, want := p.multiply(rounds), peakGo(rounds, p.products); got != want {
				t.Errorf("%v: %d rounds give %d, wanted are %d", set, rounds, got, want)
			}
		}
	}
}

func TestLimitsAreOfTheInstructionsInUse(t *testing.T) {
	for _, set := range availableInstructions() {
		t.Setenv(CPUVariable, set.String())
		l, err := MeasureLimits(2, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if l.Threads != 2 || l.Instructions != set.String() || l.Read <= 0 || (l.Multiply > 0) != (set != portable) {
			t.Errorf("%v: %+v", set, l)
		}
	}
	t.Setenv(CPUVariable, "none")
	if _, err := MeasureLimits(1, time.Millisecond); err == nil {
		t.Error("an unknown set of instructions was measured")
	}
}
