package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestTheIntervalHoldsTheTrueRatioAsOftenAsItSays(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	held := 0
	const trials, pairs = 2000, 15
	for range trials {
		a, b := make([]float64, pairs), make([]float64, pairs)
		for i := range a {
			drift := math.Exp(rng.NormFloat64()) // of the machine: the same for both of a pair
			a[i] = 1.05 * drift * math.Exp(0.1*rng.NormFloat64())
			b[i] = drift * math.Exp(0.1*rng.NormFloat64())
		}
		if r := Compare(a, b); r.Low <= 1.05 && 1.05 <= r.High {
			held++
		}
	}
	if share := float64(held) / trials; share < 0.95 || share > 0.99 {
		t.Errorf("the interval held the truth in %.1f %% of trials, want 95 to 99", 100*share)
	}
}

func TestTooFewPairsGiveTheWholeRange(t *testing.T) {
	r := Compare([]float64{1, 2, 3}, []float64{1, 1, 1})
	if r.Median != 2 || r.Low != 1 || r.High != 3 {
		t.Errorf("%+v", r)
	}
	if r := Compare(nil, nil); !math.IsNaN(r.Median) {
		t.Errorf("%+v", r)
	}
}
