package lifecycle

import (
	"math"
	"strconv"
)

// Metrics is the `metrics` object of a response before it becomes JSON: vLLM 0.32's
// --enable-per-request-metrics, with the definitions of Timing. Times are milliseconds.
type Metrics struct {
	TimeToFirstToken Number // first_token − scheduled
	GenerationTime   Number // last_token − first_token
	QueueTime        Number // scheduled − queued
	MeanITL          Number // generation time / (n − 1)
	TokensPerSecond  Number // n / (last_token − scheduled)
}

// Number is a float64 that may be null. The zero Number is null.
type Number struct {
	v  float64
	ok bool
}

// Num returns v as a Number; null when v is NaN or infinite.
func Num(v float64) Number {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Number{}
	}
	return Number{v, true}
}

// Get returns the value, and false when it is null.
func (n Number) Get() (float64, bool) { return n.v, n.ok }

// AppendJSON appends the number, or null, to dst.
func (n Number) AppendJSON(dst []byte) []byte {
	if !n.ok {
		return append(dst, "null"...)
	}
	// 'f' with the fewest digits that read back the same: JSON without an exponent. What is a whole
	// number of nanoseconds has these same digits at a fifth of the cost: no two decimals of so few
	// digits are the same float64.
	if d := int64(n.v * 1e6); n.v < 1e9 && d >= 0 {
		for _, d := range [2]int64{d, d + 1} { // the product is rounded, perhaps down
			if float64(d)/1e6 == n.v {
				return AppendMillis(dst, d)
			}
		}
	}
	return strconv.AppendFloat(dst, n.v, 'f', -1, 64)
}

// AppendRounded appends the number, or null, as AppendDecimal writes it.
func (n Number) AppendRounded(dst []byte) []byte {
	if !n.ok {
		return append(dst, "null"...)
	}
	return AppendDecimal(dst, n.v)
}

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) { return n.AppendJSON(nil), nil }

// Timing is what the arithmetic needs of one sequence, or of a request as a whole: stamps in
// nanoseconds (0: not yet) and the number of generated tokens.
type Timing struct {
	Queued, Scheduled, FirstToken, LastToken int64
	Tokens                                   int
}

// Metrics computes the metrics object. Every field is null or a finite number ≥ 0.
func (t Timing) Metrics() Metrics {
	var m Metrics
	if t.Scheduled == 0 {
		return m
	}
	m.QueueTime = Num(millis(t.Scheduled - t.Queued))
	if t.Tokens == 0 {
		return m
	}
	generation := t.LastToken - t.FirstToken
	m.TimeToFirstToken = Num(millis(t.FirstToken - t.Scheduled))
	m.GenerationTime = Num(millis(generation))
	if t.Tokens > 1 {
		m.MeanITL = Num(millis(generation) / float64(t.Tokens-1))
	}
	if whole := t.LastToken - t.Scheduled; whole > 0 {
		m.TokensPerSecond = Num(float64(t.Tokens) / (float64(whole) / 1e9))
	}
	return m
}

// AppendJSON appends the object to dst with every key present. With spec, speculative_decoding is
// what it holds (a JSON value); empty means null.
func (m *Metrics) AppendJSON(dst []byte, spec []byte) []byte {
	dst = append(dst, `{"time_to_first_token_ms":`...)
	dst = m.TimeToFirstToken.AppendJSON(dst)
	dst = append(dst, `,"generation_time_ms":`...)
	dst = m.GenerationTime.AppendJSON(dst)
	dst = append(dst, `,"queue_time_ms":`...)
	dst = m.QueueTime.AppendJSON(dst)
	dst = append(dst, `,"mean_itl_ms":`...)
	dst = m.MeanITL.AppendJSON(dst)
	dst = append(dst, `,"tokens_per_second":`...)
	dst = m.TokensPerSecond.AppendJSON(dst)
	dst = append(dst, `,"speculative_decoding":`...)
	if len(spec) == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, spec...)
	}
	return append(dst, '}')
}

// millis converts a duration in nanoseconds, taken as 0 when negative, to milliseconds.
func millis(d int64) float64 { return float64(max(d, 0)) / 1e6 }
