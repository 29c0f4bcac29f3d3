package logreport

import (
	_ "embed" // for the page
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	"github.com/troupe-llm/troupe/bench/plot"
)

//go:embed page.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

type page struct {
	Head, Notes []string
	Figures     []drawing
	Tables      []pageTable
	Report      *Report
	PlotStyle   template.CSS
}

type drawing struct {
	Title string
	SVG   template.HTML
}

type pageTable struct {
	Title string
	Rows  [][]string // the first one is the head
}

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	// The tables are those for people, cut at their columns.
	var text strings.Builder
	if err := r.WriteTable(&text); err != nil {
		return err
	}
	head, _, _ := strings.Cut(text.String(), "\n\n")
	p := page{Head: strings.Split(strings.TrimSpace(head), "\n"), Report: r, PlotStyle: plot.Style}
	for _, n := range r.Read.problems() {
		p.Notes = append(p.Notes, plain(n))
	}
	for _, t := range r.tables() {
		for _, row := range t.Rows {
			for i := range row {
				row[i] = plain(row[i])
			}
		}
		p.Tables = append(p.Tables, t)
	}
	for _, f := range []*plot.Chart{r.distribution(), r.overTime("Requests over time", "requests an hour"), r.overTime("TTFT over time", "ms"), r.overTime("ITL over time", "ms")} {
		if f != nil {
			p.Figures = append(p.Figures, drawing{f.Title, f.SVG()})
		}
	}
	return pageTemplate.Execute(w, &p)
}

// distribution shows how the latencies of completed requests are distributed.
func (r *Report) distribution() *plot.Chart {
	c := &plot.Chart{Title: "Latency distributions", X: "milliseconds", Y: "% of completed requests", LogX: true, ZeroY: true}
	for i, s := range []struct {
		name   string
		points []Point
	}{{"TTFT", r.curves.ttft}, {"ITL", r.curves.itl}, {"E2E", r.curves.e2e}} {
		line := plot.Series{Name: s.name, Kind: plot.Steps, Color: []int{0, 3, 2}[i]}
		for _, p := range s.points {
			line.X, line.Y = append(line.X, p.Value), append(line.Y, 100*p.Share)
		}
		if len(line.X) > 0 {
			c.Series = append(c.Series, line)
		}
	}
	if len(c.Series) == 0 {
		return nil
	}
	return c
}

// overTime shows something by hour; nil when there are not two hours.
func (r *Report) overTime(title, unit string) *plot.Chart {
	if len(r.Hours) < 2 {
		return nil
	}
	c := &plot.Chart{Title: title, X: "hours from " + r.Hours[0].Values[0] + " UTC", Y: unit, ZeroX: true, ZeroY: true}
	begin, err := time.Parse("2006-01-02T15", r.Hours[0].Values[0])
	if err != nil {
		return nil
	}
	none := (&group{}).row(nil, SLO{}) // of an hour in which nobody came
	add := func(name string, kind plot.Kind, color int, of func(*Row) float64) {
		s := plot.Series{Name: name, Kind: kind, Color: color}
		for i := range r.Hours {
			at, err := time.Parse("2006-01-02T15", r.Hours[i].Values[0])
			if err != nil {
				continue // without a time, or too many to be told apart
			}
			x := at.Sub(begin).Hours()
			if n := len(s.X); n > 0 && x > s.X[n-1]+1 {
				s.X, s.Y = append(s.X, s.X[n-1]+1), append(s.Y, of(&none))
				if x > s.X[n]+1 {
					s.X, s.Y = append(s.X, x-1), append(s.Y, of(&none))
				}
			}
			s.X, s.Y = append(s.X, x), append(s.Y, of(&r.Hours[i]))
		}
		c.Series = append(c.Series, s)
	}
	switch {
	case strings.HasPrefix(title, "Requests"):
		add("all", plot.Area, 0, func(r *Row) float64 { return float64(r.Requests) })
		add("failed", plot.Line, 5, func(r *Row) float64 { return float64(r.Failed) })
	case strings.HasPrefix(title, "TTFT"):
		add("p99", plot.Line, 5, func(r *Row) float64 { return float64(r.TTFT.P99) })
		add("median", plot.Line, 0, func(r *Row) float64 { return float64(r.TTFT.P50) })
	default:
		add("p99", plot.Line, 5, func(r *Row) float64 { return float64(r.ITL.P99) })
		add("median", plot.Line, 3, func(r *Row) float64 { return float64(r.ITL.P50) })
	}
	return c
}

// curves are the distributions that are drawn.
type curves struct{ ttft, itl, e2e []Point }

// Point says what share of the values is at most Value.
type Point struct{ Value, Share float64 }

// points are the histogram's cumulative distribution, in another unit.
func (h *histogram) points(unit float64) []Point {
	var all []Point
	seen := uint64(0)
	for i, c := range h.counts {
		if c > 0 {
			seen += uint64(c)
			all = append(all, Point{math.Min(float64(middle(h.first+i)), float64(h.max)) / unit, float64(seen) / float64(h.n)})
		}
	}
	return all
}
