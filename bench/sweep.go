package bench

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
)

// SweepOptions say how to search.
type SweepOptions struct {
	// Of is "rate" or "concurrency".
	Of string
	// Start is the first load that is tried; each that meets the objective is followed by its double,
	// up to Most (0: no bound), and each that doesn't, before any has, by its half, down to Least.
	// Concurrencies are whole.
	Start, Least, Most float64
	// Precision is how near to each other the highest load that meets the objective and the lowest
	// that doesn't shall be, as a part of the former; 0: 0.05.
	Precision float64
	// MaxPoints bounds how many loads are tried; 0: 20.
	MaxPoints int
	// SLO is the objective. A load meets it when SLO.Share of its requests do.
	SLO *SLO
	// Try runs a load.
	Try func(ctx context.Context, load float64) (*Report, error)
}

// RunSweep finds the highest load that meets the objective: by doubling or halving until there are one
// that does and one that doesn't, then by halving what is between them. The report is that of the best
// load, or of the lowest that was tried when none met the objective. An interrupt ends the search with
// what it has.
func RunSweep(ctx context.Context, o SweepOptions) (*Report, error) {
	precision, points := o.Precision, o.MaxPoints
	if precision <= 0 {
		precision = 0.05
	}
	if points <= 0 {
		points = 20
	}
	whole := func(load float64) float64 {
		if o.Of == "concurrency" {
			load = max(math.Round(load), 1)
		} else { // three digits are enough, and can be read
			load, _ = strconv.ParseFloat(strconv.FormatFloat(load, 'g', 3, 64), 64)
		}
		if o.Most > 0 {
			load = min(load, o.Most)
		}
		return load
	}
	sweep := &Sweep{Of: o.Of}
	var best, lowest *Report
	var least float64 // the load of lowest
	interrupted := false
	load := whole(o.Start)
	for len(sweep.Points) < points {
		r, err := o.Try(ctx, load)
		if err != nil {
			if len(sweep.Points) == 0 {
				return nil, err
			}
			if best == nil {
				best = lowest
			}
			best.Notes = append(best.Notes, "the sweep ended before its time: "+err.Error())
			interrupted = true
			break
		}
		if r.Interrupted { // what was measured of this one decides nothing
			interrupted = true
			if lowest == nil {
				lowest, least = r, load
			}
			break
		}
		met := !r.GaveUp && r.Good != nil && r.Good.Requests > 0 && r.Good.Share >= o.SLO.Share
		sweep.Points = append(sweep.Points, SweepPoint{Load: load, Met: met, Measured: r.Measured})
		if lowest == nil || load < least {
			lowest, least = r, load
		}
		if met && load > sweep.Best {
			sweep.Best, best = load, r
		}
		if !met && (sweep.Limit == 0 || load < sweep.Limit) {
			sweep.Limit = load
		}
		next := 0.0
		switch {
		case sweep.Limit == 0:
			if next = whole(2 * load); next <= load {
				next = 0 // at Most
			}
		case sweep.Best == 0:
			if next = whole(load / 2); next >= load || next < min(o.Least, o.Start) {
				next = 0
			}
		case sweep.Best >= sweep.Limit:
			// A higher one met it than one that didn't: the noise is larger than the difference.
		case sweep.Limit-sweep.Best > precision*sweep.Best:
			// Halfway of the ratio, since loads were doubled.
			if next = whole(math.Sqrt(sweep.Best * sweep.Limit)); next <= sweep.Best || next >= sweep.Limit {
				next = 0
			}
		}
		if next == 0 {
			break
		}
		load = next
	}
	slices.SortFunc(sweep.Points, byLoad)
	sweep.Shown = sweep.Best
	if sweep.Best == 0 {
		best, sweep.Shown = lowest, least
	}
	best.Sweep = sweep
	best.Interrupted = best.Interrupted || interrupted
	return best, nil
}

func byLoad(a, b SweepPoint) int { return cmp.Compare(a.Load, b.Load) }
