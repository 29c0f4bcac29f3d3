package model

import "math"

// RopeScaling stretches rotary positions beyond the context that a model was first trained for.
type RopeScaling struct {
	// Type is "" for none, "linear" (position interpolation), "yarn" (arXiv 2309.00071) or "longrope"
	// (arXiv 2402.13753).
	Type string
	// Factor is how many times longer the context became; 1 for none, and for longrope, which has a
	// factor for each pair.
	Factor float32
	// What follows is for yarn, and the first two for longrope: the context before stretching in tokens,
	// the factor on the angles' cosines and sines (besides the paper's, for yarn), how much of the
	// interpolation is ramped (1: as in the paper), and the numbers of turns within OriginalContext
	// between which the ramp runs.
	OriginalContext    int
	AttentionFactor    float32
	ExtFactor          float32
	BetaFast, BetaSlow float32
	// ShortFactors and LongFactors are for longrope: RopeDim/2 numbers each by which the pairs'
	// frequencies are divided, where sequences are of up to OriginalContext tokens, and where longer.
	ShortFactors, LongFactors []float32
}

// Rope gives what rotary positions need: by how many radians each of the RopeDim/2 pairs of a head
// turns per position, and a factor on the cosines and sines of all angles (1 except with yarn and
// longrope). With longrope it depends on how long sequences may be, in tokens, and not on how long one
// is: all must be served with the same factors, or what is cached of a beginning would not fit its end.
func (c *Config) Rope(context int) (frequencies []float64, magnitude float64) {
	s := &c.RopeScaling
	frequencies = make([]float64, c.RopeDim/2)
	base := float64(c.RopeBase)
	var low, high float64 // the ramp of yarn, in pairs
	magnitude = 1
	factors := c.RopeFactors
	switch s.Type {
	case "longrope":
		magnitude = float64(s.AttentionFactor)
		factors = s.ShortFactors
		if context > s.OriginalContext {
			factors = s.LongFactors
		}
	case "yarn":
		// The pair that makes the given number of turns over the original context.
		pair := func(turns float32) float64 {
			return float64(c.RopeDim) * math.Log(float64(s.OriginalContext)/(float64(turns)*2*math.Pi)) / (2 * math.Log(base))
		}
		low = max(0, math.Floor(pair(s.BetaFast)))
		high = min(float64(c.RopeDim-1), math.Ceil(pair(s.BetaSlow)))
		magnitude = float64(s.AttentionFactor)
		if s.ExtFactor != 0 {
			magnitude *= 1 + 0.1*math.Log(float64(s.Factor))
		}
	}
	for i := range frequencies {
		f := turn(base, i, c.RopeDim)
		if factors != nil {
			f /= float64(factors[i])
		}
		switch s.Type {
		case "linear":
			f /= float64(s.Factor)
		case "yarn":
			// Pairs left of the ramp keep their frequency, those right of it are interpolated.
			ramp := (float64(i) - low) / max(0.001, high-low)
			keep := (1 - min(1, max(0, ramp))) * float64(s.ExtFactor)
			f = f/float64(s.Factor)*(1-keep) + f*keep
		}
		frequencies[i] = f
	}
	return frequencies, magnitude
}

// LocalRope is Rope for layers with LocalPositions, whose magnitude is 1; nil if there are none.
func (c *Config) LocalRope() []float64 {
	if c.LocalRopeBase == 0 {
		return nil
	}
	frequencies := make([]float64, c.RopeDim/2)
	for i := range frequencies {
		frequencies[i] = turn(float64(c.LocalRopeBase), i, c.RopeDim)
	}
	return frequencies
}

// turn is by how many radians pair i turns per position.
func turn(base float64, i, dim int) float64 { return math.Pow(base, -2*float64(i)/float64(dim)) }
