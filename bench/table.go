package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable writes the report for people: what was asked for, what came of it, and what to know about
// it.
func (r *Report) WriteTable(w io.Writer) error {
	t := &table{tw: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	m, c := &r.Measured, &r.Config
	t.line("%s of %s at %s, %s", r.Kind, c.Model, c.Target, c.Endpoint)
	t.line("%s; prompts %s; outputs %s", c.load(), c.Prompts, c.Outputs)
	if c.Tokenizer != "" {
		t.line("prompt lengths by %s; seed %d", c.Tokenizer, c.Seed)
	}
	t.line("")
	t.row("requests", "completed %d", m.Completed)
	if m.Failed > 0 {
		t.row("", "failed %d", m.Failed)
	}
	if m.Cancelled > 0 {
		t.row("", "cancelled %d, as the trace says", m.Cancelled)
	}
	if m.Unfinished > 0 {
		t.row("", "unfinished %d, cut off at the end", m.Unfinished)
	}
	t.row("duration", "%s s", figure(m.Duration))
	cached := ""
	if m.CachedTokens > 0 {
		cached = fmt.Sprintf(", %d of them from the prefix cache", m.CachedTokens)
	}
	t.row("input tokens", "%d%s", m.InputTokens, cached)
	t.row("output tokens", "%d", m.OutputTokens)
	t.row("requests/s", "%s", figure(m.RequestRate))
	t.row("output tokens/s", "%s, at most %s in a second", figure(m.OutputRate), figure(m.PeakOutputRate))
	t.row("all tokens/s", "%s", figure(m.TotalRate))
	t.row("in flight", "at most %d", m.PeakInFlight)
	if m.Good != nil {
		t.row("goodput", "%s requests/s: %d, %.1f %%, met %s", figure(m.Good.Rate), m.Good.Requests, 100*m.Good.Share, c.SLO)
	}
	t.line("")
	t.summaries("ms", c.Percentiles, []named{
		{"TTFT", &m.TTFT}, {"TPOT", &m.TPOT}, {"ITL", &m.ITL}, {"E2E", &m.E2E},
		{"TTFT from due", &m.DueTTFT}, {"E2E from due", &m.DueE2E}, {"sent after due", &m.Lag},
	})
	if s := m.Server; s != nil {
		t.line("")
		queue := "queue"
		if s.Queue.Count == 0 {
			queue = ""
		}
		t.line("the server's own figures (%s) of %d requests, and the client's of the same", s.Source, s.Requests)
		rows := []named{{queue, &s.Queue}, {"TTFT, from scheduled", &s.TTFT}, {"  the client's, from sent", &s.ClientTTFT}, {"  difference, less queue: delivery", &s.TTFTDelivery},
			{"generation", &s.Generation}, {"  the client's", &s.ClientGeneration}, {"  difference: delivery", &s.GenerationDelivery}}
		t.summaries("ms", c.Percentiles, rows)
	}
	if len(r.Batches) > 0 {
		var d distribution
		for _, b := range r.Batches {
			d.add(b)
		}
		s := d.summary(c.Percentiles)
		t.line("")
		t.summaries("ms", c.Percentiles, []named{{"whole batch", &s}})
	}
	if s := r.Sweep; s != nil {
		t.line("")
		t.sweep(s, c.SLO)
	}
	if len(m.Errors) > 0 {
		t.line("")
		t.line("failures:")
		for _, e := range m.Errors {
			t.line("  %d × %s, such as: %s", e.Count, e.Kind, e.Example)
		}
	}
	for i, n := range r.Notes {
		if i == 0 {
			t.line("")
		}
		t.line("note: %s", n)
	}
	return t.flush()
}

// load says how requests come, in words.
func (c *Config) load() string {
	var s string
	switch c.Arrival {
	case "closed":
		s = fmt.Sprintf("%d at a time, each followed by the next", c.Concurrency)
	case "trace":
		s = "as recorded"
		if c.Speed != 1 {
			s += fmt.Sprintf(", %g times as fast", c.Speed)
		}
	case "burst":
		s = "all at once"
	case "batch":
		s = fmt.Sprintf("%d at a time, all followed by the next %d", c.Concurrency, c.Concurrency)
	case "gamma":
		s = fmt.Sprintf("%.4g requests/s, gamma with burstiness %g", c.Rate, c.Burstiness)
	default:
		s = fmt.Sprintf("%.4g requests/s, %s", c.Rate, c.Arrival)
	}
	if c.Concurrency > 0 && c.Arrival != "closed" && c.Arrival != "batch" {
		s += fmt.Sprintf(", at most %d in flight", c.Concurrency)
	}
	if c.Requests > 0 {
		s += fmt.Sprintf(", %d requests", c.Requests)
	}
	if c.Duration > 0 {
		s += fmt.Sprintf(", for %v", c.Duration)
	}
	return s
}

// String writes an objective as the command line takes it.
func (o *SLO) String() string {
	var parts []string
	for _, e := range []struct {
		name string
		v    float64
	}{{"ttft", o.TTFT}, {"tpot", o.TPOT}, {"itl", o.ITL}, {"e2e", o.E2E}} {
		if e.v > 0 {
			parts = append(parts, fmt.Sprintf("%s:%v", e.name, time.Duration(e.v*1e6)))
		}
	}
	return strings.Join(parts, " ")
}

// ParseSLO reads objectives such as ttft:200ms, tpot:30ms, itl:50ms and e2e:10s. A number without a
// unit is milliseconds, and e2el is e2e, as in vLLM.
func ParseSLO(objectives []string) (*SLO, error) {
	o := &SLO{Share: 0.95}
	for _, s := range objectives {
		name, value, _ := strings.Cut(s, ":")
		ms, err := strconv.ParseFloat(value, 64)
		if err != nil {
			var d time.Duration
			d, err = time.ParseDuration(value)
			ms = float64(d) / 1e6
		}
		field, known := map[string]*float64{"ttft": &o.TTFT, "tpot": &o.TPOT, "itl": &o.ITL, "e2e": &o.E2E, "e2el": &o.E2E}[name]
		switch {
		case !known || err != nil || !(ms > 0) || math.IsInf(ms, 0):
			return nil, fmt.Errorf("%q is no objective: write ttft:200ms, tpot:30ms, itl:50ms or e2e:10s", s)
		case *field > 0:
			return nil, fmt.Errorf("%q: %s has been given already", s, name)
		}
		*field = ms
	}
	return o, nil
}

// figure writes a number with three digits or its whole part.
func figure(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case v == 0:
		return "0"
	case math.Abs(v) >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	// Of the rounded value, since 9.999 becomes 10.0.
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 2, 64), 64)
	digits := 2 - int(math.Floor(math.Log10(math.Abs(rounded))))
	return strconv.FormatFloat(v, 'f', min(max(digits, 0), 6), 64)
}

type table struct {
	tw  *tabwriter.Writer
	err error
}

func (t *table) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t.tw, format, args...); err != nil && t.err == nil {
		t.err = err
	}
}

// line writes a line that is no row.
func (t *table) line(format string, args ...any) {
	t.endBlock()
	t.printf(format+"\n", args...)
}

// endBlock ends a block of aligned rows.
func (t *table) endBlock() {
	if err := t.tw.Flush(); err != nil && t.err == nil {
		t.err = err
	}
}

func (t *table) row(name, format string, args ...any) {
	t.printf("%s\t%s\n", name, fmt.Sprintf(format, args...))
}

func (t *table) flush() error {
	t.endBlock()
	return t.err
}

type named struct {
	name string
	s    *Summary
}

// summaries writes a block with a row for each summary that has values.
func (t *table) summaries(unit string, percentiles []float64, rows []named) {
	rows = slices.DeleteFunc(rows, func(r named) bool { return r.s.Count == 0 })
	if len(rows) == 0 {
		return
	}
	t.endBlock()
	t.printf("%s\tmean\tmedian", unit)
	for _, p := range percentiles {
		t.printf("\tp%g", p)
	}
	t.printf("\tmax\tn\n")
	for _, r := range rows {
		t.printf("%s\t%s\t%s", r.name, figure(r.s.Mean), figure(r.s.Median))
		for _, p := range percentiles {
			v, ok := r.s.At(p)
			if !ok {
				v = math.NaN()
			}
			t.printf("\t%s", figure(v))
		}
		t.printf("\t%s\t%d\n", figure(r.s.Max), r.s.Count)
	}
	t.endBlock()
}

func (t *table) sweep(s *Sweep, slo *SLO) {
	unit := "requests/s"
	if s.Of == "concurrency" {
		unit = "at a time"
	}
	t.line("loads tried, of which %.3g %% of the requests had to meet %s", 100*slo.Share, slo)
	t.printf("%s\tmet\tgood %%\trequests/s\toutput tokens/s\tTTFT median\tp99\tITL median\tp99\tE2E median\tfailed\n", unit)
	for _, p := range s.Points {
		met := "no"
		if p.Met {
			met = "yes"
		}
		if p.GaveUp {
			met += ", ended early"
		}
		at := func(s *Summary) string {
			if v, ok := s.At(99); ok {
				return figure(v)
			}
			return "–"
		}
		middle := func(s *Summary) string {
			if s.Count == 0 {
				return "–"
			}
			return figure(s.Median)
		}
		m := &p.Measured
		t.printf("%s\t%s\t%.1f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", figure(p.Load), met, 100*m.Good.Share, figure(m.RequestRate), figure(m.OutputRate),
			middle(&m.TTFT), at(&m.TTFT), middle(&m.ITL), at(&m.ITL), middle(&m.E2E), m.Failed)
	}
	switch {
	case len(s.Points) == 0:
		t.line("no load was tried to its end")
	case s.Best == 0:
		t.line("no load that was tried meets the objective")
	case s.Limit == 0:
		t.line("the highest that was tried, %s %s, meets the objective", figure(s.Best), unit)
	default:
		t.line("%s %s meet the objective, %s do not", figure(s.Best), unit, figure(s.Limit))
	}
}
