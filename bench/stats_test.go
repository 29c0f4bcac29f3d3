package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPercentilesAreNumpys(t *testing.T) {
	// numpy.percentile([1, 2, 4, 8, 16], [0, 10, 25, 50, 90, 99, 100])
	values := []float64{1, 2, 4, 8, 16}
	for p, want := range map[float64]float64{0: 1, 10: 1.4, 25: 2, 50: 4, 90: 12.8, 99: 15.68, 100: 16} {
		if got := percentile(values, p); math.Abs(got-want) > 1e-12 {
			t.Errorf("p%g is %v, want %v", p, got, want)
		}
	}
}

// A percentile by its definition: the value of the piecewise linear function through the points
// (i/(n−1), i-th smallest).
func byDefinition(sorted []float64, p float64) float64 {
	n := len(sorted)
	if n == 1 {
		return sorted[0]
	}
	for i := range n - 1 {
		lo, hi := float64(i)/float64(n-1)*100, float64(i+1)/float64(n-1)*100
		if p >= lo && p <= hi {
			return sorted[i] + (sorted[i+1]-sorted[i])*(p-lo)/(hi-lo)
		}
	}
	return sorted[n-1]
}

func TestASummaryIsWhatTheValuesSayOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 200).Draw(t, "values")
		p := rapid.Float64Range(0, 100).Draw(t, "p")
		var d distribution
		for _, v := range values {
			d.add(v)
		}
		d.add(math.NaN()) // no value
		s := d.summary([]float64{p})
		sum, squares := 0.0, 0.0
		for _, v := range values {
			sum += v
		}
		mean := sum / float64(len(values))
		for _, v := range values {
			squares += (v - mean) * (v - mean)
		}
		slices.Sort(values)
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-6*(1+math.Abs(want)) {
				t.Errorf("%s is %v, want %v", what, got, want)
			}
		}
		if s.Count != len(values) || s.Sampled {
			t.Errorf("%+v", s)
		}
		near("mean", s.Mean, mean)
		near("std", s.Std, math.Sqrt(squares/float64(len(values))))
		near("min", s.Min, values[0])
		near("max", s.Max, values[len(values)-1])
		near("median", s.Median, byDefinition(values, 50))
		near("percentile", s.Percentiles[0].Value, byDefinition(values, p))
	})
}

func TestBeyondTheLimitValuesAreKeptWithEqualChances(t *testing.T) {
	d := distribution{limit: 1000}
	for i := range 100_000 {
		d.add(float64(i))
	}
	s := d.summary([]float64{10, 90})
	if !s.Sampled || s.Count != 100_000 || math.Abs(s.Mean-49999.5) > 1e-6 || s.Min != 0 || s.Max != 99_999 {
		t.Errorf("%+v", s)
	}
	// The sample's 10th percentile deviates by √(0.1·0.9/1000) ≈ 1 % of the range.
	for _, p := range s.Percentiles {
		if math.Abs(p.Value-1000*p.P) > 4000 {
			t.Errorf("p%g is %v", p.P, p.Value)
		}
	}
}

func TestArrivalsHaveTheMeanAndTheVarianceOfTheirProcess(t *testing.T) {
	const n, rate = 200_000, 25.0
	for _, c := range []struct {
		a  Arrival
		cv float64 // the gaps' coefficient of variation
	}{
		{Arrival{Kind: "constant", Rate: rate}, 0},
		{Arrival{Kind: "poisson", Rate: rate}, 1},
		{Arrival{Kind: "gamma", Rate: rate, Burstiness: 1}, 1},
		{Arrival{Kind: "gamma", Rate: rate, Burstiness: 0.25}, 2},
		{Arrival{Kind: "gamma", Rate: rate, Burstiness: 4}, 0.5},
		{Arrival{Kind: "gamma", Rate: rate, Burstiness: 0.05}, math.Sqrt(20)},
	} {
		due := c.a.dues(42)
		last := due()
		if last != 0 {
			t.Errorf("%+v: the first is due at %v", c.a, last)
		}
		var gaps distribution
		for range n {
			at := due()
			if at < last {
				t.Fatalf("%+v: time goes back", c.a)
			}
			gaps.add((at - last).Seconds())
			last = at
		}
		// The mean of n gaps deviates by cv/√n, their deviation by about cv·√((2+6/k)/4n), k being
		// gamma's shape.
		if e := math.Abs(gaps.mean*rate - 1); e > 5*c.cv/math.Sqrt(n)+1e-6 {
			t.Errorf("%+v: the mean gap is %v times what it should be", c.a, gaps.mean*rate)
		}
		cv := math.Sqrt(gaps.m2/n) / gaps.mean
		if math.Abs(cv-c.cv) > 0.05*c.cv+1e-6 {
			t.Errorf("%+v: the coefficient of variation is %v, want %v", c.a, cv, c.cv)
		}
	}
}

func TestPoissonArrivalsCountAsPoissonDoes(t *testing.T) {
	// In windows of equal length the counts' variance is their mean.
	due := Arrival{Kind: "poisson", Rate: 50}.dues(1)
	counts := map[int64]int{}
	const windows = 4000
	for {
		w := int64(due() / (100 * time.Millisecond))
		if w >= windows {
			break
		}
		counts[w]++
	}
	var d distribution
	for w := range int64(windows) {
		d.add(float64(counts[w]))
	}
	if variance := d.m2 / float64(d.n); math.Abs(d.mean-5) > 0.2 || math.Abs(variance/d.mean-1) > 0.1 {
		t.Errorf("mean %v, variance %v, want 5 and 5", d.mean, variance)
	}
}

func TestEqualSeedsGiveEqualArrivals(t *testing.T) {
	a, b, c := Arrival{Kind: "gamma", Rate: 5, Burstiness: 0.5}.dues(7), Arrival{Kind: "gamma", Rate: 5, Burstiness: 0.5}.dues(7), Arrival{Kind: "gamma", Rate: 5, Burstiness: 0.5}.dues(8)
	_, _, _ = a(), b(), c()
	for range 10 {
		x, y, z := a(), b(), c()
		if x != y || x == z {
			t.Fatalf("%v, %v, %v", x, y, z)
		}
	}
}

func TestLengthsHaveTheirMeanAndDeviation(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		text      string
		mean, std float64
		min, max  int
	}{
		{"77", 77, 0, 77, 77},
		{"10-30", 20, math.Sqrt((21*21 - 1) / 12.0), 10, 30},
		{"lognormal:300,200", 300, 200, 1, 1 << 24},
		{"lognormal:300,100,50-1000", 300, 100, 50, 1000},
	} {
		l, err := ParseLengths(c.text)
		if err != nil {
			t.Fatal(err)
		}
		var d distribution
		for range 100_000 {
			d.add(float64(l.draw(rng)))
		}
		if std := math.Sqrt(d.m2 / float64(d.n)); math.Abs(d.mean-c.mean) > 0.02*c.mean || math.Abs(std-c.std) > 0.05*c.std || d.min < float64(c.min) || d.max > float64(c.max) {
			t.Errorf("%s: mean %v, deviation %v, within %v and %v", c.text, d.mean, std, d.min, d.max)
		}
	}
	for _, s := range []string{"", "0", "-5", "5-", "9-3", "x", "lognormal:", "lognormal:1", "lognormal:a,b", "lognormal:0,1", "lognormal:5,NaN", "lognormal:300,10,1-5", "99999999999", "1-2-3"} {
		if _, err := ParseLengths(s); err == nil {
			t.Errorf("%q is taken for a length", s)
		}
	}
}

func TestObjectivesAreRead(t *testing.T) {
	o, err := ParseSLO([]string{"ttft:200ms", "itl:50", "e2el:10s", "tpot:0.5s"})
	if err != nil || *o != (SLO{TTFT: 200, ITL: 50, E2E: 10_000, TPOT: 500, Share: 0.95}) {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range [][]string{{"ttft"}, {"ttft:"}, {"x:5"}, {"ttft:-1"}, {"ttft:0"}, {"ttft:NaN"}, {"ttft:Inf"}, {"ttft:1", "ttft:2"}, {"e2e:1", "e2el:1"}} {
		if _, err := ParseSLO(bad); err == nil {
			t.Errorf("%q are taken for objectives", bad)
		}
	}
	o = &SLO{TTFT: 100, TPOT: 10}
	for _, c := range []struct {
		ttft, tpot float64
		good       bool
	}{{100, 10, true}, {100.1, 1, false}, {1, 10.1, false}, {1, math.NaN(), true}} {
		if o.keeps(c.ttft, c.tpot, 1e9, 1e9) != c.good {
			t.Errorf("%+v", c)
		}
	}
}
