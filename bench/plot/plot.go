// Package plot draws charts as SVG, for pages that must be whole in one file and work without
// scripts. Colours and fonts are the page's: the elements have classes, and Style is a sheet for them
// that follows the reader's choice of dark or light.
package plot

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Kind is how a series is drawn.
type Kind int

// The kinds. A Line's points are in ascending order of X.
const (
	Line Kind = iota
	Steps
	Area // from 0 up
	Points
)

// Series is one set of values. X and Y are equally long; points that are not finite are left out, and
// break a line.
type Series struct {
	Name  string
	Kind  Kind
	X, Y  []float64
	Color int // index of a colour of Style, 0 to 5
	// Label, when not nil, is the tooltip of point i.
	Label func(i int) string
}

// Mark is a line across the chart at one value.
type Mark struct {
	Name string
	At   float64
	// Vertical marks are at a value of X, others of Y.
	Vertical bool
}

// Chart is one plot. The zero sizes are 640 × 280 pixels.
type Chart struct {
	Title, X, Y   string // title and what the axes show, with units
	LogX, LogY    bool
	ZeroX, ZeroY  bool // the axis begins at 0; not for logarithmic ones
	Series        []Series
	Marks         []Mark
	Width, Height int
}

// Style is the sheet of a page with charts: colours, dark or light as the reader has it, tables, tiles,
// a grid of figures, and the charts' own classes.
const Style = `
:root{color-scheme:light dark;--bg:#fff;--fg:#0f172a;--muted:#64748b;--line:#e2e8f0;--card:#f8fafc;--bad:#b91c1c;--good:#047857;
--c0:#1d4ed8;--c1:#c2410c;--c2:#047857;--c3:#7e22ce;--c4:#0e7490;--c5:#be123c}
@media (prefers-color-scheme:dark){:root{--bg:#0b1120;--fg:#e2e8f0;--muted:#94a3b8;--line:#1e293b;--card:#111a2e;--bad:#f87171;--good:#34d399;
--c0:#60a5fa;--c1:#fb923c;--c2:#34d399;--c3:#c084fc;--c4:#22d3ee;--c5:#fb7185}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:24px 20px 60px;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:36px 0 10px}p{margin:6px 0}
.muted{color:var(--muted)}code{font-size:13px;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:20px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.tile b{display:block;font-size:21px;font-weight:600}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
figcaption{font-weight:600;margin-bottom:4px}figure p{font-size:13px;color:var(--muted);margin:6px 0 0}
.scroll{overflow-x:auto}.grid+.scroll{margin-top:14px}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:4px 12px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}th{font-weight:600;color:var(--muted)}
td.text{text-align:left;white-space:normal}
.note{border-left:3px solid var(--c1);padding:2px 12px;margin:8px 0}
.bad{color:var(--bad)}.good{color:var(--good)}
dt{font-weight:600;margin-top:8px}dd{margin:0 0 0 0;color:var(--muted)}
.plot{width:100%;height:auto;display:block;font:11px system-ui,sans-serif}
@media (max-width:560px){.plot{font-size:15px}}
.plot text{fill:var(--muted)}.plot .grid{stroke:var(--line);stroke-width:1}
.plot .line{fill:none;stroke-width:1.6;stroke-linejoin:round}.plot .area{stroke:none;opacity:.45}
.plot .dot{opacity:.55}.plot .big{opacity:1}
.plot .mark{stroke:var(--muted);stroke-dasharray:4 3}
.plot .s0{stroke:var(--c0)}.plot .s1{stroke:var(--c1)}.plot .s2{stroke:var(--c2)}
.plot .s3{stroke:var(--c3)}.plot .s4{stroke:var(--c4)}.plot .s5{stroke:var(--c5)}
.plot .f0{fill:var(--c0)}.plot .f1{fill:var(--c1)}.plot .f2{fill:var(--c2)}
.plot .f3{fill:var(--c3)}.plot .f4{fill:var(--c4)}.plot .f5{fill:var(--c5)}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px}.legend span{white-space:nowrap}
.legend i{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:6px}
.k0{background:var(--c0)}.k1{background:var(--c1)}.k2{background:var(--c2)}.k3{background:var(--c3)}.k4{background:var(--c4)}.k5{background:var(--c5)}
`

// Drawn of a series are at most so many points: more would be drawn over each other.
const (
	maxDots = 3000
	maxLine = 1200
)

// axis maps values to pixels.
type axis struct {
	low, high float64 // values, or their logarithms
	from, to  float64 // pixels
	log       bool
}

func (a *axis) at(v float64) float64 {
	if a.log {
		v = math.Log10(v)
	}
	return a.from + (v-a.low)/(a.high-a.low)*(a.to-a.from)
}

// beyond is where no measure of ours is, and where differences begin to get lost.
const beyond = 1e15

// drawable says whether v has a place on the axis.
func (a *axis) drawable(v float64) bool {
	return math.Abs(v) <= beyond && (!a.log || v >= 1/beyond) // neither holds for NaN
}

// base is where areas begin.
func (a *axis) base() float64 {
	if a.log {
		return a.from
	}
	return a.at(0)
}

// newAxis makes an axis that holds all values.
func newAxis(values []float64, log, zero bool, from, to float64) axis {
	a := axis{log: log, from: from, to: to, low: math.Inf(1), high: math.Inf(-1)}
	for _, v := range values {
		if a.drawable(v) {
			a.low, a.high = min(a.low, v), max(a.high, v)
		}
	}
	if a.low > a.high { // nothing to draw
		a.low, a.high = 1, 10
	}
	if log {
		a.low, a.high = math.Log10(a.low), math.Log10(a.high)
		if a.high-a.low < 0.3 {
			mid := (a.low + a.high) / 2
			a.low, a.high = mid-0.15, mid+0.15
		}
		pad := (a.high - a.low) * 0.03
		a.low, a.high = a.low-pad, a.high+pad
		return a
	}
	if zero {
		a.low, a.high = min(a.low, 0), max(a.high, 0)
	}
	if a.high-a.low <= math.Abs(a.high)*1e-9 {
		room := max(math.Abs(a.high)*0.1, 0.5)
		if !zero || a.low < 0 {
			a.low -= room
		}
		a.high += room
	}
	pad := (a.high - a.low) * 0.04
	if !zero || a.low < 0 {
		a.low -= pad
	}
	a.high += pad
	return a
}

// ticks are round values within the axis, about n of them.
func (a *axis) ticks(n int) []float64 {
	if a.log {
		var all []float64
		for e := math.Floor(a.low); e <= a.high; e++ {
			for _, m := range [...]float64{1, 2, 5} {
				v := m * math.Pow(10, e)
				if l := math.Log10(v); l >= a.low && l <= a.high {
					all = append(all, v)
				}
			}
		}
		if len(all) > 2*n { // whole powers only, and of those not too many
			all = slices.DeleteFunc(all, func(v float64) bool { return !power(v) })
			every := (len(all) + n - 1) / n
			kept := all[:0]
			for i := 0; i < len(all); i += every {
				kept = append(kept, all[i])
			}
			all = kept
		}
		return all
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/float64(n))))
	for _, m := range [...]float64{1, 2, 5, 10} {
		if (a.high-a.low)/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	var all []float64
	for i := math.Ceil(a.low / step); i*step <= a.high+step*1e-9; i++ {
		all = append(all, i*step)
	}
	return all
}

// digit is the width of one in pixels, with the larger letters of a phone.
const digit = 8.5

// power says whether v is a whole power of ten.
func power(v float64) bool { l := math.Log10(v); return math.Abs(l-math.Round(l)) <= 1e-9 }

// roomFor is which of the ticks have room for their numbers side by side: of a logarithmic axis those of whole
// powers of ten before others.
func (a *axis) roomFor(ticks []float64) []float64 {
	const gap = 8 // pixels
	half := func(v float64) float64 { return float64(len(Number(v)))*digit/2 + gap/2 }
	var kept []float64
	place := func(v float64) {
		if !slices.ContainsFunc(kept, func(k float64) bool { return math.Abs(a.at(v)-a.at(k)) < half(v)+half(k) }) {
			kept = append(kept, v)
		}
	}
	for _, v := range ticks {
		if a.log && power(v) {
			place(v)
		}
	}
	for _, v := range ticks {
		if !a.log || !power(v) {
			place(v)
		}
	}
	return kept
}

// Number writes a value as people read it: three digits, k and M for thousands and millions.
func Number(v float64) string {
	abs := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case abs >= 1e9:
		return short(v/1e9) + "G"
	case abs >= 1e6:
		return short(v/1e6) + "M"
	case abs >= 1e4:
		return short(v/1e3) + "k"
	}
	return short(v)
}

func short(v float64) string {
	digits := 0
	for limit := 100.0; digits < 6 && math.Abs(v) < limit && v != math.Trunc(v); limit /= 10 {
		digits++
	}
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if s == "-0" {
		s = "0"
	}
	return s
}

// SVG draws the chart, with a legend below it.
func (c *Chart) SVG() template.HTML {
	w, h := float64(c.Width), float64(c.Height)
	if w == 0 {
		w = 640
	}
	if h == 0 {
		h = 280
	}
	const left, right, top, bottom = 62, 14, 30, 40
	var xs, ys []float64
	for i := range c.Series {
		s := &c.Series[i]
		xs, ys = append(xs, s.X...), append(ys, s.Y...)
		if s.Kind == Area {
			ys = append(ys, 0)
		}
	}
	for _, m := range c.Marks {
		if m.Vertical {
			xs = append(xs, m.At)
		} else {
			ys = append(ys, m.At)
		}
	}
	x := newAxis(xs, c.LogX, c.ZeroX, left, w-right)
	y := newAxis(ys, c.LogY, c.ZeroY, h-bottom, top)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, w, h,
		html.EscapeString(c.Title+": "+c.Y+" over "+c.X))
	ticks := x.ticks(8)
	for _, v := range ticks {
		px := x.at(v)
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%.0f"/>`, px, top, px, h-bottom)
	}
	for _, v := range x.roomFor(ticks) {
		name := Number(v)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.0f" text-anchor="middle">%s</text>`, min(x.at(v), w-float64(len(name))*digit/2), h-bottom+15, name)
	}
	for _, v := range y.ticks(5) {
		py := y.at(v)
		fmt.Fprintf(&b, `<line class="grid" x1="%d" y1="%.1f" x2="%.0f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			left, py, w-right, py, left-6, py+4, Number(v))
	}
	fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" text-anchor="end">%s</text>`, w-right, h-6, html.EscapeString(c.X))
	fmt.Fprintf(&b, `<text x="4" y="14">%s</text>`, html.EscapeString(c.Y))
	for i := range c.Series {
		c.Series[i].draw(&b, &x, &y)
	}
	for _, m := range c.Marks {
		if m.Vertical {
			px := x.at(m.At)
			if x.drawable(m.At) {
				side, anchor := px+3, "start"
				if px > w*0.75 {
					side, anchor = px-3, "end"
				}
				fmt.Fprintf(&b, `<line class="mark" x1="%.1f" y1="%d" x2="%.1f" y2="%.0f"/><text x="%.1f" y="%d" text-anchor="%s">%s</text>`,
					px, top, px, h-bottom, side, top+10, anchor, html.EscapeString(m.Name))
			}
			continue
		}
		if y.drawable(m.At) {
			py := y.at(m.At)
			fmt.Fprintf(&b, `<line class="mark" x1="%d" y1="%.1f" x2="%.0f" y2="%.1f"/><text x="%d" y="%.1f">%s</text>`,
				left, py, w-right, py, left+4, py-4, html.EscapeString(m.Name))
		}
	}
	b.WriteString("</svg>")
	c.legend(&b)
	return template.HTML(b.String()) // all that came from outside has been escaped
}

// legend names the series below the chart, as text of the page: only the reader's browser knows how wide its
// words are.
func (c *Chart) legend(b *strings.Builder) {
	var names strings.Builder
	for i := range c.Series {
		if s := &c.Series[i]; s.Name != "" {
			fmt.Fprintf(&names, `<span><i class="k%d"></i>%s</span>`, s.Color, html.EscapeString(s.Name))
		}
	}
	if names.Len() > 0 {
		b.WriteString(`<p class="legend">` + names.String() + `</p>`)
	}
}

func (s *Series) draw(b *strings.Builder, x, y *axis) {
	switch s.Kind {
	case Points:
		every := 1
		if len(s.X) > maxDots {
			every = (len(s.X) + maxDots - 1) / maxDots
		}
		for i := 0; i < len(s.X); i += every {
			if !x.drawable(s.X[i]) || !y.drawable(s.Y[i]) {
				continue
			}
			class, r := "dot", 1.8
			if s.Label != nil {
				class, r = "big", 4
			}
			fmt.Fprintf(b, `<circle class="%s f%d" cx="%.1f" cy="%.1f" r="%.1f">`, class, s.Color, x.at(s.X[i]), y.at(s.Y[i]), r)
			if s.Label != nil {
				fmt.Fprintf(b, "<title>%s</title>", html.EscapeString(s.Label(i)))
			}
			b.WriteString("</circle>")
		}
	case Area:
		for _, run := range s.runs(x, y) {
			base := y.base()
			fmt.Fprintf(b, `<path class="area f%d" d="M%.1f %.1f`, s.Color, run[0].x, base)
			for _, p := range run {
				fmt.Fprintf(b, "L%.1f %.1f", p.x, p.y)
			}
			fmt.Fprintf(b, `L%.1f %.1fZ"/>`, run[len(run)-1].x, base)
		}
		fallthrough
	default:
		for _, run := range s.runs(x, y) {
			fmt.Fprintf(b, `<path class="line s%d" d="M%.1f %.1f`, s.Color, run[0].x, run[0].y)
			for _, p := range run[1:] {
				if s.Kind == Steps {
					fmt.Fprintf(b, "H%.1fV%.1f", p.x, p.y)
				} else {
					fmt.Fprintf(b, "L%.1f %.1f", p.x, p.y)
				}
			}
			b.WriteString(`"/>`)
		}
	}
}

type pixel struct{ x, y float64 }

// runs are the stretches of drawable points. Of those that would fall on the same column, the first,
// the lowest, the highest and the last are kept, so that nothing that can be seen is lost.
func (s *Series) runs(x, y *axis) [][]pixel {
	var all [][]pixel
	var run []pixel
	flush := func() {
		if len(run) > 0 {
			all = append(all, thin(run))
			run = nil
		}
	}
	for i := range s.X {
		if !x.drawable(s.X[i]) || !y.drawable(s.Y[i]) {
			flush()
			continue
		}
		run = append(run, pixel{x.at(s.X[i]), y.at(s.Y[i])})
	}
	flush()
	return all
}

func thin(run []pixel) []pixel {
	if len(run) <= maxLine {
		return run
	}
	var out []pixel
	for i := 0; i < len(run); {
		column := math.Floor(run[i].x)
		j, low, high := i, i, i
		for ; j < len(run) && math.Floor(run[j].x) == column; j++ {
			if run[j].y < run[low].y {
				low = j
			}
			if run[j].y > run[high].y {
				high = j
			}
		}
		keep := []int{i, low, high, j - 1}
		slices.Sort(keep)
		for _, k := range slices.Compact(keep) {
			out = append(out, run[k])
		}
		i = j
	}
	return out
}

// Distribution makes the cumulative distribution of values: the share of them, in per cent, that is at
// most X. Values that are not finite are left out.
func Distribution(name string, values []float64, color int) Series {
	v := make([]float64, 0, len(values))
	for _, x := range values {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			v = append(v, x)
		}
	}
	slices.Sort(v)
	s := Series{Name: name, Kind: Steps, Color: color}
	for i, x := range v {
		if i+1 < len(v) && v[i+1] == x {
			continue
		}
		s.X, s.Y = append(s.X, x), append(s.Y, 100*float64(i+1)/float64(len(v)))
	}
	return s
}
