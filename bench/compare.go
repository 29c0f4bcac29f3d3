package bench

import (
	"math"
	"slices"
)

// Ratio is a paired comparison's outcome: the median of the pairs' ratios, and a distribution-free
// confidence interval of that median (order statistics of the sign test) at no less than 95 %.
type Ratio struct {
	Median, Low, High float64
	Pairs             int
}

// Compare takes figures of A and B measured in turn, pair by pair, and returns how A compares to B:
// 1.02 means that A's is 2 % larger.
func Compare(a, b []float64) Ratio {
	n := min(len(a), len(b))
	r := make([]float64, n)
	for i := range r {
		r[i] = a[i] / b[i]
	}
	slices.Sort(r)
	if n == 0 {
		return Ratio{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	out := Ratio{Median: median(r), Pairs: n, Low: r[0], High: r[n-1]}
	// The k-th smallest and largest enclose the median with probability 1 − 2·P(X < k), X ~ B(n, ½).
	tail, p := 0.0, math.Pow(0.5, float64(n))
	for k := range n / 2 {
		tail += p
		if 2*tail > 0.05 {
			break
		}
		out.Low, out.High = r[k], r[n-1-k]
		p *= float64(n-k) / float64(k+1)
	}
	return out
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
