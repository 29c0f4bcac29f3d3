package observe

import "github.com/prometheus/client_golang/prometheus"

// Histograms are kept as integers, durations in nanoseconds, and become Prometheus' floats only
// when they are scraped: sums stay exact, and counting needs no conversion.

// bounds are a histogram's upper bounds, ascending, in the unit that is observed; scale turns that
// unit into the exposed one (1e9 for nanoseconds exposed as seconds, 1 for plain counts).
type bounds struct {
	upper []int64
	scale float64
}

// seconds makes bounds for durations in nanoseconds.
func seconds(upper ...float64) bounds {
	b := bounds{scale: 1e9}
	for _, s := range upper {
		b.upper = append(b.upper, int64(s*1e9+0.5))
	}
	return b
}

// counts makes bounds for plain numbers.
func counts(upper ...int64) bounds { return bounds{upper: upper, scale: 1} }

// tokenCounts makes the series 1, 2, 5, 10, 20, 50 … up to most and not beyond.
func tokenCounts(most int) bounds {
	b := counts()
	for ten := int64(1); ten <= int64(most); ten *= 10 {
		for _, m := range [...]int64{1, 2, 5} {
			if v := m * ten; v <= int64(most) {
				b.upper = append(b.upper, v)
			}
		}
	}
	if len(b.upper) == 0 {
		b.upper = []int64{1}
	}
	return b
}

// histogram counts values in buckets, one more than there are bounds.
type histogram struct {
	count []uint64
	sum   int64
}

// observe adds v, taken as 0 when negative.
func (h *histogram) observe(b *bounds, v int64) {
	v = max(v, 0)
	// Around twenty bounds: walking them is as quick as halving, and needs no luck with branches
	// for the small values that are the rule.
	i := 0
	for i < len(b.upper) && v > b.upper[i] {
		i++
	}
	h.count[i]++
	h.sum += v
}

// add adds o to h.
func (h *histogram) add(o *histogram) {
	for i, c := range o.count {
		h.count[i] += c
	}
	h.sum += o.sum
}

// metric makes what Prometheus exposes of h.
func (h *histogram) metric(d *prometheus.Desc, b *bounds, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(b.upper))
	var total uint64
	for i, u := range b.upper {
		total += h.count[i]
		buckets[float64(u)/b.scale] = total
	}
	total += h.count[len(b.upper)]
	return prometheus.MustNewConstHistogram(d, total, float64(h.sum)/b.scale, buckets, labels...)
}
