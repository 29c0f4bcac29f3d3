package logreport

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestAQuantileIsWithinHalfAPercentOfTheExactOne(t *testing.T) {
	value := rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, 1e9), rapid.Int64Range(0, math.MaxInt64))
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(value, 1, 200).Draw(t, "values")
		cut := rapid.IntRange(0, len(values)).Draw(t, "cut")
		var h, other histogram
		for i, v := range values {
			if i < cut {
				h.add(v)
			} else {
				other.add(v)
			}
		}
		h.merge(&other)
		slices.Sort(values)
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 1} {
			rank := min(max(int(math.Ceil(q*float64(len(values)))), 1), len(values))
			exact, got := float64(values[rank-1]), h.quantile(q)
			if math.Abs(got-exact) > 0.005*exact {
				t.Fatalf("quantile %v is %v, want %v", q, got, exact)
			}
		}
		if h.n != uint64(len(values)) || h.min != values[0] || h.max != values[len(values)-1] {
			t.Fatalf("%d values from %d to %d", h.n, h.min, h.max)
		}
	})
}

func TestBucketsAreInOrderAndHoldTheirMiddle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Int64Range(0, math.MaxInt64).Draw(t, "a")
		b := rapid.Int64Range(0, a).Draw(t, "b")
		if bucket(b) > bucket(a) {
			t.Fatalf("%d is in bucket %d, %d in %d", a, bucket(a), b, bucket(b))
		}
		if m := middle(bucket(a)); bucket(m) != bucket(a) {
			t.Fatalf("%d is in bucket %d, whose middle %d is in %d", a, bucket(a), m, bucket(m))
		}
	})
}
