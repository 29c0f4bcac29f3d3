package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Arrival is a process by which requests become due. The zero Arrival has all of them due at once.
type Arrival struct {
	// Kind is "poisson", "constant", "gamma" or "".
	Kind string
	// Rate is the mean number of requests a second; above 0 unless Kind is "".
	Rate float64
	// Burstiness is the shape of gamma's gaps, as in vLLM's benchmark: 1 is Poisson, less comes in
	// bursts, more is more even. The gaps' coefficient of variation is 1/√Burstiness.
	Burstiness float64
}

// dues returns a function whose calls return, one after the other, when requests are due, from the
// run's beginning: the first at 0, as in vLLM's and most other clients' loads. Equal seeds give equal
// schedules.
func (a Arrival) dues(seed uint64) func() time.Duration {
	rng := rand.New(rand.NewPCG(seed, 0xa441))
	at := 0.0 // seconds
	first := true
	return func() time.Duration {
		if first {
			first = false
			return 0
		}
		switch a.Kind {
		case "poisson":
			at += rng.ExpFloat64() / a.Rate
		case "constant":
			at += 1 / a.Rate
		case "gamma":
			at += gamma(rng, a.Burstiness) / (a.Burstiness * a.Rate)
		}
		return seconds(at)
	}
}

// seconds is v seconds, at most the longest time there is.
func seconds(v float64) time.Duration {
	if v >= float64(math.MaxInt64)/1e9 {
		return math.MaxInt64
	}
	return time.Duration(v * 1e9)
}

// gamma draws from the gamma distribution of this shape and scale 1: Marsaglia and Tsang, "A simple
// method for generating gamma variables", 2000, with their boost below shape 1.
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape < 1 {
		// 1 − Float64 is never 0.
		return gamma(rng, shape+1) * math.Pow(1-rng.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if u := 1 - rng.Float64(); math.Log(u) < x*x/2+d*(1-v+math.Log(v)) {
			return d * v
		}
	}
}

// Lengths is a distribution of lengths in tokens.
type Lengths struct {
	Kind      string // "fixed", "uniform" or "lognormal"
	Min, Max  int    // bounds, both included; fixed has Min = Max
	Mean, Std float64
}

// maxLength bounds lengths in tokens, so that a slip of the pen does not fill the memory.
const maxLength = 1 << 24

// ParseLengths reads a distribution: 128 (fixed), 64-512 (uniform, bounds included),
// lognormal:MEAN,STD or lognormal:MEAN,STD,MIN-MAX (drawn again until within the bounds; without
// them, those are 1 and ten deviations above the mean).
func ParseLengths(s string) (Lengths, error) {
	bad := func() (Lengths, error) {
		return Lengths{}, fmt.Errorf("%q is no length in tokens: write 128, a range such as 64-512, or lognormal:MEAN,STD, with bounds lognormal:300,200,16-2048", s)
	}
	span := func(s string) (lo, hi int, ok bool) {
		a, b, two := strings.Cut(s, "-")
		if !two {
			b = a
		}
		lo, err1 := strconv.Atoi(a)
		hi, err2 := strconv.Atoi(b)
		return lo, hi, err1 == nil && err2 == nil && 1 <= lo && lo <= hi && hi <= maxLength
	}
	rest, logNormal := strings.CutPrefix(s, "lognormal:")
	if !logNormal {
		lo, hi, ok := span(s)
		switch {
		case !ok:
			return bad()
		case lo == hi:
			return Lengths{Kind: "fixed", Min: lo, Max: hi, Mean: float64(lo)}, nil
		}
		return Lengths{Kind: "uniform", Min: lo, Max: hi, Mean: float64(lo+hi) / 2}, nil
	}
	parts := strings.Split(rest, ",")
	if len(parts) != 2 && len(parts) != 3 {
		return bad()
	}
	l := Lengths{Kind: "lognormal"}
	var err1, err2 error
	l.Mean, err1 = strconv.ParseFloat(parts[0], 64)
	l.Std, err2 = strconv.ParseFloat(parts[1], 64)
	if err1 != nil || err2 != nil || !(l.Mean >= 1) || !(l.Std >= 0) || l.Mean > maxLength || l.Std > maxLength {
		return bad()
	}
	l.Min, l.Max = 1, int(min(l.Mean+10*l.Std, maxLength))+1
	if len(parts) == 3 {
		var ok bool
		if l.Min, l.Max, ok = span(parts[2]); !ok {
			return bad()
		}
		if float64(l.Max) < l.Mean/2 || float64(l.Min) > 2*l.Mean {
			return Lengths{}, fmt.Errorf("%q: the bounds %d-%d are far from the mean %g, so that hardly any length would be within them", s, l.Min, l.Max, l.Mean)
		}
	}
	return l, nil
}

// String says what the lengths are, in words.
func (l Lengths) String() string {
	switch l.Kind {
	case "uniform":
		return fmt.Sprintf("%d to %d tokens, uniform", l.Min, l.Max)
	case "lognormal":
		return fmt.Sprintf("%g tokens in the mean, log-normal with deviation %g, within %d and %d", l.Mean, l.Std, l.Min, l.Max)
	}
	return fmt.Sprintf("%d tokens", l.Min)
}

// draw returns a length.
func (l Lengths) draw(rng *rand.Rand) int {
	switch l.Kind {
	case "uniform":
		return l.Min + rng.IntN(l.Max-l.Min+1)
	case "lognormal":
		// If X is normal with mean μ and variance σ², e^X has mean e^(μ+σ²/2) and variance
		// (e^σ² − 1)·mean²: solved for μ and σ².
		variance := math.Log1p(l.Std * l.Std / (l.Mean * l.Mean))
		mu := math.Log(l.Mean) - variance/2
		v := 0.0
		for range 1000 {
			v = math.Round(math.Exp(mu + math.Sqrt(variance)*rng.NormFloat64()))
			if v >= float64(l.Min) && v <= float64(l.Max) {
				return int(v)
			}
		}
		return int(min(max(v, float64(l.Min)), float64(l.Max)))
	}
	return l.Min
}
