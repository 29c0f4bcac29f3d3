package bench

import (
	"math"
	"math/rand/v2"
	"slices"
)

// maxKept is how many values a distribution keeps: up to so many its percentiles are exact, beyond
// that they are those of a random sample of as many. 32 MB.
const maxKept = 4 << 20

// distribution gathers values for a Summary: the mean, the deviation and the bounds of all of them,
// and the values themselves up to a limit. The zero distribution is empty. It belongs to one
// goroutine.
type distribution struct {
	kept     []float64
	limit    int // of kept; 0 is maxKept
	n        int
	mean, m2 float64 // Welford's running mean and sum of squared deviations
	min, max float64
	rng      *rand.Rand
}

// add takes a value; NaN is no value.
func (d *distribution) add(v float64) {
	if math.IsNaN(v) {
		return
	}
	if d.n == 0 || v < d.min {
		d.min = v
	}
	if d.n == 0 || v > d.max {
		d.max = v
	}
	d.n++
	delta := v - d.mean
	d.mean += delta / float64(d.n)
	d.m2 += delta * (v - d.mean)
	limit := d.limit
	if limit == 0 {
		limit = maxKept
	}
	if len(d.kept) < limit {
		d.kept = append(d.kept, v)
		return
	}
	// Algorithm R (Vitter 1985): each value so far is among the kept ones with equal chances.
	if d.rng == nil {
		d.rng = rand.New(rand.NewPCG(1, 2))
	}
	if i := d.rng.IntN(d.n); i < limit {
		d.kept[i] = v
	}
}

// summary describes the values with these percentiles. It sorts what is kept.
func (d *distribution) summary(percentiles []float64) Summary {
	s := Summary{Count: d.n, Percentiles: make([]Percentile, 0, len(percentiles))}
	if d.n == 0 {
		return s
	}
	slices.Sort(d.kept)
	s.Mean, s.Std, s.Min, s.Max = d.mean, math.Sqrt(d.m2/float64(d.n)), d.min, d.max
	s.Median, s.Sampled = percentile(d.kept, 50), d.n > len(d.kept)
	for _, p := range percentiles {
		s.Percentiles = append(s.Percentiles, Percentile{P: p, Value: percentile(d.kept, p)})
	}
	return s
}

// percentile is the p-th percentile of sorted values, at least one: linear between the neighbours of
// rank (n − 1)·p/100, Hyndman and Fan's definition 7, which is numpy's default.
func percentile(sorted []float64, p float64) float64 {
	rank := min(max(p, 0), 100) / 100 * float64(len(sorted)-1)
	i := int(rank)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (rank-float64(i))*(sorted[i+1]-sorted[i])
}

// At is the summary's p-th percentile, and false when it is not among those computed.
func (s *Summary) At(p float64) (float64, bool) {
	if s.Count == 0 {
		return 0, false
	}
	for _, e := range s.Percentiles {
		if e.P == p {
			return e.Value, true
		}
	}
	return s.Median, p == 50
}

// reservoir keeps up to limit items, each that it was offered with equal chances.
type reservoir[T any] struct {
	items []T
	limit int
	n     int
	rng   *rand.Rand
}

func (r *reservoir[T]) offer(v T) {
	r.n++
	if len(r.items) < r.limit {
		r.items = append(r.items, v)
		return
	}
	if r.rng == nil {
		r.rng = rand.New(rand.NewPCG(3, 4))
	}
	if i := r.rng.IntN(r.n); i < r.limit {
		r.items[i] = v
	}
}
