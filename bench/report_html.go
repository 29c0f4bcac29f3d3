package bench

import (
	"cmp"
	_ "embed" // for the page
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-llm/troupe/bench/plot"
)

//go:embed report.html.tmpl
var reportPage string

var reportTemplate = template.Must(template.New("report").Parse(reportPage))

// drawing is a chart with what is said of it.
type drawing struct {
	Title, Text string
	SVG         template.HTML
}

// row is a line of a table.
type row struct {
	Name, Value, More string
	Values            []string
}

// page is what the template shows.
type page struct {
	Title, Started string
	Report         *Report
	Tiles          []row
	Percentiles    []string
	Latencies      []row
	Figures        []drawing
	Sweep          *sweepSection
	Server         *serverSection
	Setup          []row
	Definitions    []Definition
	PlotStyle      template.CSS
}

type sweepSection struct {
	Verdict, Of, Shown string
	Figures            []drawing
	Rows               []sweepRow
}

type sweepRow struct {
	Load       string
	Met, Early bool
	Values     []string
}

type serverSection struct {
	Source   string
	Requests int
	Rows     []row
}

// WriteHTML writes the report as one page that needs nothing else: figures, tables, the definitions,
// and the JSON of the report in an element with the id report.
func WriteHTML(w io.Writer, r *Report) error {
	p := page{
		Title: "Load benchmark: " + r.Kind, Started: r.Started.Format("2 January 2006, 15:04:05 MST"), Report: r,
		Definitions: Definitions, PlotStyle: plot.Style, Tiles: tiles(r), Setup: setup(r),
	}
	for _, v := range r.Config.Percentiles {
		p.Percentiles = append(p.Percentiles, strconv.FormatFloat(v, 'g', -1, 64))
	}
	for _, l := range []struct {
		name string
		s    *Summary
	}{
		{"TTFT", &r.TTFT}, {"TTFT from due", &r.DueTTFT}, {"TPOT", &r.TPOT}, {"ITL", &r.ITL}, {"E2E", &r.E2E}, {"E2E from due", &r.DueE2E}, {"sent late by", &r.Lag},
	} {
		if l.s.Count > 0 {
			p.Latencies = append(p.Latencies, summaryRow(l.name, l.s, len(r.Config.Percentiles)))
		}
	}
	for _, f := range []*drawing{distributions(r), gapDistribution(r), inFlight(r), tokenRate(r), firstTokens(r), gapsOverTime(r), batches(r)} {
		if f != nil {
			p.Figures = append(p.Figures, *f)
		}
	}
	p.Sweep = sweepOf(r)
	if s := r.Server; s != nil {
		p.Server = &serverSection{Source: s.Source, Requests: s.Requests}
		for _, l := range []struct {
			name string
			s    *Summary
		}{
			{"queue (server)", &s.Queue}, {"TTFT from scheduled (server)", &s.TTFT}, {"TTFT (client)", &s.ClientTTFT}, {"difference", &s.TTFTDelivery},
			{"generation (server)", &s.Generation}, {"generation (client)", &s.ClientGeneration}, {"difference", &s.GenerationDelivery},
		} {
			if l.s.Count > 0 {
				p.Server.Rows = append(p.Server.Rows, summaryRow(l.name, l.s, len(r.Config.Percentiles)))
			}
		}
	}
	return reportTemplate.Execute(w, &p)
}

func summaryRow(name string, s *Summary, percentiles int) row {
	v := []string{strconv.Itoa(s.Count), plot.Number(s.Mean), plot.Number(s.Std), plot.Number(s.Min), plot.Number(s.Median)}
	for i := range percentiles {
		value := math.NaN()
		if i < len(s.Percentiles) {
			value = s.Percentiles[i].Value
		}
		v = append(v, plot.Number(value))
	}
	return row{Name: name, Values: append(v, plot.Number(s.Max))}
}

// known writes a value, or a dash when the summary has none.
func known(s *Summary, v float64) string {
	if s.Count == 0 {
		return "–"
	}
	return plot.Number(v)
}

// percentileOf is a percentile of a summary; NaN when it was not asked for.
func percentileOf(s *Summary, p float64) float64 {
	if v, ok := s.At(p); ok {
		return v
	}
	return math.NaN()
}

func tiles(r *Report) []row {
	m := &r.Measured
	t := []row{
		{Name: "requests", Value: strconv.Itoa(m.Completed), More: others(m)},
		{Name: "requests/s", Value: plot.Number(m.RequestRate)},
		{Name: "output tokens/s", Value: plot.Number(m.OutputRate), More: "peak " + plot.Number(m.PeakOutputRate)},
		{Name: "TTFT, median", Value: known(&m.TTFT, m.TTFT.Median) + " ms", More: "p99 " + plot.Number(percentileOf(&m.TTFT, 99)) + " ms"},
		{Name: "ITL, median", Value: known(&m.ITL, m.ITL.Median) + " ms", More: "p99 " + plot.Number(percentileOf(&m.ITL, 99)) + " ms"},
		{Name: "E2E, median", Value: known(&m.E2E, m.E2E.Median) + " ms", More: "p99 " + plot.Number(percentileOf(&m.E2E, 99)) + " ms"},
	}
	if g := m.Good; g != nil {
		t = append(t, row{Name: "goodput", Value: plot.Number(g.Rate) + "/s", More: fmt.Sprintf("%.1f %% met the objective", 100*g.Share)})
	}
	return t
}

// others says what became of the requests that did not complete.
func others(m *Measured) string {
	var parts []string
	for _, o := range []struct {
		n    int
		what string
	}{{m.Failed, "failed"}, {m.Cancelled, "cancelled"}, {m.Unfinished, "unfinished"}} {
		if o.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", o.n, o.what))
		}
	}
	if len(parts) == 0 {
		return "none failed"
	}
	return strings.Join(parts, ", ")
}

// distributions shows the requests' latencies as cumulative distributions.
func distributions(r *Report) *drawing {
	var ttft, tpot, e2e []float64
	for i := range r.Samples {
		if s := &r.Samples[i]; s.Outcome == Completed {
			ttft, tpot, e2e = append(ttft, s.TTFT), append(tpot, s.TPOT), append(e2e, s.E2E)
		}
	}
	if len(ttft) == 0 {
		return nil
	}
	c := plot.Chart{
		Title: "Latency distributions", X: "milliseconds", Y: "% of completed requests", LogX: true, ZeroY: true,
		Series: []plot.Series{plot.Distribution("TTFT", ttft, 0), plot.Distribution("TPOT", tpot, 1), plot.Distribution("E2E", e2e, 2)},
		Marks:  marks(r.Config.SLO, true, "TTFT", "TPOT", "E2E"),
	}
	return &drawing{Title: c.Title, SVG: c.SVG(), Text: "At a point of a curve, so many per cent of the requests took no longer."}
}

// marks are the lines of an objective.
func marks(o *SLO, vertical bool, names ...string) []plot.Mark {
	if o == nil {
		return nil
	}
	var all []plot.Mark
	for _, name := range names {
		limit := map[string]float64{"TTFT": o.TTFT, "TPOT": o.TPOT, "ITL": o.ITL, "E2E": o.E2E}[name]
		if limit > 0 {
			all = append(all, plot.Mark{Name: name + " objective", At: limit, Vertical: vertical})
		}
	}
	return all
}

func gapDistribution(r *Report) *drawing {
	if len(r.Gaps) == 0 {
		return nil
	}
	values := make([]float64, len(r.Gaps))
	for i, g := range r.Gaps {
		values[i] = g.Value
	}
	c := plot.Chart{
		Title: "Inter-token latency distribution", X: "milliseconds", Y: "% of tokens", LogX: true, ZeroY: true,
		Series: []plot.Series{plot.Distribution("", values, 3)}, Marks: marks(r.Config.SLO, true, "ITL"),
	}
	return &drawing{Title: c.Title, SVG: c.SVG()}
}

// inFlight shows requests that wait and run.
func inFlight(r *Report) *drawing {
	if len(r.Timeline) < 2 {
		return nil
	}
	n := len(r.Timeline)
	at, running, all := make([]float64, n), make([]float64, n), make([]float64, n)
	for i, t := range r.Timeline {
		at[i], running[i], all[i] = t.At, float64(t.Running), float64(t.Running+t.Waiting)
	}
	c := plot.Chart{
		Title: "Requests in flight", X: "seconds", Y: "requests", ZeroX: true, ZeroY: true,
		Series: []plot.Series{
			{Name: "waiting for the first token", Kind: plot.Area, X: at, Y: all, Color: 1},
			{Name: "running", Kind: plot.Area, X: at, Y: running, Color: 2},
		},
	}
	return &drawing{Title: c.Title, SVG: c.SVG(), Text: "The upper edge is all in flight; what is above the running ones waits."}
}

func tokenRate(r *Report) *drawing {
	if len(r.Timeline) < 2 {
		return nil
	}
	var at, tokens []float64
	last := 0.0
	for _, t := range r.Timeline {
		if span := t.At - last; span > 0 {
			at, tokens = append(at, t.At), append(tokens, float64(t.OutputTokens)/span)
		}
		last = t.At
	}
	c := plot.Chart{
		Title: "Output over time", X: "seconds", Y: "tokens/s", ZeroX: true, ZeroY: true,
		Series: []plot.Series{{Kind: plot.Area, X: at, Y: tokens, Color: 0}},
	}
	return &drawing{Title: c.Title, SVG: c.SVG()}
}

// firstTokens sets the time to first token against the prompt's length.
func firstTokens(r *Report) *drawing {
	fresh := plot.Series{Name: "computed", Kind: plot.Points, Color: 0}
	cached := plot.Series{Name: "mostly cached", Kind: plot.Points, Color: 2}
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.Outcome != Completed || s.Input < 0 {
			continue
		}
		to := &fresh
		if s.Cached*2 > s.Input {
			to = &cached
		}
		to.X, to.Y = append(to.X, float64(s.Input)), append(to.Y, s.TTFT)
	}
	if len(fresh.X)+len(cached.X) == 0 {
		return nil
	}
	c := plot.Chart{
		Title: "TTFT against prompt length", X: "prompt tokens", Y: "TTFT, ms", ZeroX: true, ZeroY: true,
		Series: []plot.Series{fresh, cached}, Marks: marks(r.Config.SLO, false, "TTFT"),
	}
	if len(cached.X) == 0 {
		c.Series = c.Series[:1]
		c.Series[0].Name = ""
	}
	return &drawing{Title: c.Title, SVG: c.SVG(), Text: "Each point is a request; waiting for a place counts."}
}

// gapsOverTime shows the median and the 99th percentile of the gaps in equal stretches of the run.
func gapsOverTime(r *Report) *drawing {
	if len(r.Gaps) < 20 {
		return nil
	}
	gaps := slices.Clone(r.Gaps)
	slices.SortFunc(gaps, func(a, b Gap) int { return cmp.Compare(a.At, b.At) })
	first, last := gaps[0].At, gaps[len(gaps)-1].At
	stretches := min(60, len(gaps)/10)
	p50 := plot.Series{Name: "median", Color: 3}
	p99 := plot.Series{Name: "99 %", Color: 5}
	dots := plot.Series{Kind: plot.Points, Color: 4}
	for k, from := 0, 0; k < stretches; k++ {
		end := first + (last-first)*float64(k+1)/float64(stretches)
		to := from
		for to < len(gaps) && (gaps[to].At <= end || k == stretches-1) {
			to++
		}
		if to == from {
			continue
		}
		values := make([]float64, 0, to-from)
		for _, g := range gaps[from:to] {
			values = append(values, g.Value)
		}
		slices.Sort(values)
		at := (gaps[from].At + gaps[to-1].At) / 2 / 1000
		p50.X, p50.Y = append(p50.X, at), append(p50.Y, percentile(values, 50))
		p99.X, p99.Y = append(p99.X, at), append(p99.Y, percentile(values, 99))
		from = to
	}
	for _, g := range gaps {
		dots.X, dots.Y = append(dots.X, g.At/1000), append(dots.Y, g.Value)
	}
	c := plot.Chart{
		Title: "Inter-token latency over time", X: "seconds", Y: "ms", LogY: true, ZeroX: true,
		Series: []plot.Series{dots, p99, p50}, Marks: marks(r.Config.SLO, false, "ITL"),
	}
	return &drawing{Title: c.Title, SVG: c.SVG(), Text: "Points are single gaps."}
}

func batches(r *Report) *drawing {
	if len(r.Batches) == 0 {
		return nil
	}
	at := make([]float64, len(r.Batches))
	for i := range at {
		at[i] = float64(i + 1)
	}
	c := plot.Chart{
		Title: "Repetitions", X: "repetition", Y: "ms", ZeroY: true,
		Series: []plot.Series{{Kind: plot.Points, X: at, Y: r.Batches, Label: func(i int) string { return plot.Number(r.Batches[i]) + " ms" }}},
	}
	return &drawing{Title: c.Title, SVG: c.SVG()}
}

// sweepOf shows a sweep's points: what latency each throughput costs.
func sweepOf(r *Report) *sweepSection {
	s := r.Sweep
	if s == nil || len(s.Points) == 0 {
		return nil
	}
	unit := map[string]string{"rate": "requests/s", "concurrency": "requests at a time"}[s.Of]
	out := &sweepSection{Of: unit, Shown: plot.Number(s.Shown)}
	switch {
	case s.Best == 0:
		out.Verdict = "No load that was tried met the objective."
	case s.Limit == 0:
		out.Verdict = fmt.Sprintf("All loads that were tried met the objective, up to %s %s.", plot.Number(s.Best), unit)
	default:
		out.Verdict = fmt.Sprintf("The highest load that met the objective was %s %s; %s did not.", plot.Number(s.Best), unit, plot.Number(s.Limit))
	}
	curve := func(title, y string, of func(*Measured) *Summary, o string) {
		c := plot.Chart{Title: title, X: "output tokens/s", Y: y, ZeroX: true, ZeroY: true, Marks: marks(r.Config.SLO, false, o)}
		for i, p := range []float64{50, 99} {
			line := plot.Series{Name: map[float64]string{50: "median", 99: "99 %"}[p], Kind: plot.Line, Color: 3 * i}
			points := slices.Clone(s.Points)
			slices.SortFunc(points, func(a, b SweepPoint) int { return cmp.Compare(a.OutputRate, b.OutputRate) })
			value := func(m *Measured) float64 {
				v := of(m)
				if v.Count == 0 {
					return math.NaN()
				}
				if p == 50 {
					return v.Median
				}
				return percentileOf(v, p)
			}
			for k := range points {
				line.X, line.Y = append(line.X, points[k].OutputRate), append(line.Y, value(&points[k].Measured))
			}
			dots := line
			dots.Name, dots.Kind = "", plot.Points
			dots.Label = func(k int) string {
				return fmt.Sprintf("%s %s: %s ms", plot.Number(points[k].Load), unit, plot.Number(value(&points[k].Measured)))
			}
			c.Series = append(c.Series, line, dots)
		}
		out.Figures = append(out.Figures, drawing{Title: c.Title, SVG: c.SVG()})
	}
	curve("TTFT at each throughput", "TTFT, ms", func(m *Measured) *Summary { return &m.TTFT }, "TTFT")
	curve("ITL at each throughput", "ITL, ms", func(m *Measured) *Summary { return &m.ITL }, "ITL")
	for i := range s.Points {
		p := &s.Points[i]
		good := "–"
		if p.Good != nil {
			good = fmt.Sprintf("%.1f %%", 100*p.Good.Share)
		}
		out.Rows = append(out.Rows, sweepRow{Load: plot.Number(p.Load), Met: p.Met, Early: p.GaveUp, Values: []string{
			good, plot.Number(p.RequestRate), plot.Number(p.OutputRate),
			known(&p.TTFT, p.TTFT.Median), plot.Number(percentileOf(&p.TTFT, 99)),
			known(&p.ITL, p.ITL.Median), plot.Number(percentileOf(&p.ITL, 99)), strconv.Itoa(p.Failed),
		}})
	}
	return out
}

// setup says how the load was made.
func setup(r *Report) []row {
	c, e := &r.Config, &r.Env
	var all []row
	add := func(name, value string) {
		if value != "" && value != "0" {
			all = append(all, row{Name: name, Value: value})
		}
	}
	arrival := c.Arrival
	if c.Rate > 0 {
		arrival += fmt.Sprintf(", %s requests/s", plot.Number(c.Rate))
	}
	if c.Burstiness > 0 {
		arrival += ", burstiness " + plot.Number(c.Burstiness)
	}
	add("command", c.Command)
	add("arrivals", arrival)
	if c.Concurrency > 0 {
		add("most at a time", strconv.Itoa(c.Concurrency))
	}
	add("requests", strconv.Itoa(c.Requests))
	if c.Duration > 0 {
		add("for", c.Duration.String())
	}
	add("warm-up requests", strconv.Itoa(c.Warmups))
	add("prompts", c.Prompts)
	add("outputs", c.Outputs)
	add("prompt lengths by", c.Tokenizer)
	add("trace", c.Trace)
	add("seed", strconv.FormatUint(c.Seed, 10))
	if o := c.SLO; o != nil {
		var parts []string
		for _, l := range []struct {
			name string
			v    float64
		}{{"TTFT", o.TTFT}, {"TPOT", o.TPOT}, {"ITL", o.ITL}, {"E2E", o.E2E}} {
			if l.v > 0 {
				parts = append(parts, fmt.Sprintf("%s ≤ %s ms", l.name, plot.Number(l.v)))
			}
		}
		add("objective", fmt.Sprintf("%s, for %s %% of the requests", strings.Join(parts, ", "), plot.Number(100*o.Share)))
	}
	add("duration", time.Duration(r.Duration*float64(time.Second)).Round(time.Millisecond).String())
	add("client", fmt.Sprintf("troupe %s, %s, %s/%s, %d CPUs", e.Version, e.Go, e.OS, e.Arch, e.CPUs))
	add("server", e.Server)
	return all
}
