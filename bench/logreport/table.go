package logreport

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// WriteTable writes the report for people, in plain text.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	t := &r.Total
	if t.First != "" {
		fmt.Fprintf(&b, "%s to %s\n", short(t.First), short(t.Last))
	}
	requests := "requests"
	if t.Requests == 1 {
		requests = "request"
	}
	fmt.Fprintf(&b, "%s %s: %s\n", thousands(t.Requests), requests, t.endings())
	if !math.IsNaN(float64(t.RequestRate)) {
		fmt.Fprintf(&b, "%s requests/s, %s output tokens/s\n", t.RequestRate, t.OutputRate)
	}
	if r.SLO != nil {
		fmt.Fprintf(&b, "objective %s: met by %s (%s of %s), goodput %s/s\n", r.SLO, percent(t.Attainment),
			thousands(int64(t.Met)), thousands(t.Requests-t.Aborted-t.Refused), t.Goodput)
	}
	for _, t := range r.tables() {
		fmt.Fprintf(&b, "\n%s\n", t.Title)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, row := range t.Rows {
			cells := make([]string, len(row))
			for i, c := range row {
				cells[i] = plain(c)
			}
			fmt.Fprintln(w, strings.Join(cells, "\t"))
		}
		_ = w.Flush() // a Builder takes everything
	}
	if len(r.Usage.Unpriced) > 0 {
		fmt.Fprintf(&b, "not in the costs, for want of a price: %s\n", plain(strings.Join(r.Usage.Unpriced, ", ")))
	}
	for _, p := range r.Read.problems() {
		fmt.Fprintf(&b, "\n%s", plain(p))
	}
	if len(r.Read.problems()) > 0 {
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tables are the report's, without those that would be empty.
func (r *Report) tables() []pageTable {
	var all []pageTable
	add := func(title string, rows [][]string) {
		if len(rows) > 1 {
			all = append(all, pageTable{title, rows})
		}
	}
	measures := [][]string{{"", "count", "mean", "p50", "p90", "p95", "p99", "max"}}
	for _, m := range r.Total.quantiles() {
		if q := m.q; q.Count > 0 {
			measures = append(measures, []string{m.title, thousands(int64(q.Count)), q.Mean.String(), q.P50.String(), q.P90.String(), q.P95.String(), q.P99.String(), q.Max.String()})
		}
	}
	add("Completed requests, in milliseconds", measures)
	add("By "+strings.Join(r.By, ", "), r.groupTable())
	add("Usage by key", r.usageTable())
	slowed := [][]string{{"cause", "time", "of all time", "requests"}}
	for _, s := range r.Slowed {
		if s.Requests > 0 {
			slowed = append(slowed, []string{causeLabel(s.Cause) + " (" + s.Help + ")", duration(float64(s.MS)), percent(s.Share), thousands(s.Requests)})
		}
	}
	add("What slowed requests", slowed)
	// The column that they are sorted by is not there twice.
	own := r.SlowestBy != "e2e_ms" && r.SlowestBy != "ttft_ms"
	head := []string{"request", "time", "model"}
	if own {
		head = append(head, r.SlowestBy)
	}
	slowest := [][]string{append(head, "E2E ms", "TTFT ms", "prompt", "output", "outcome", "slowed most by")}
	for i := range r.Slowest {
		s := &r.Slowest[i]
		cause := none
		if !(s.CauseMS <= float64(s.E2E)/100) { // also when the end is not known
			cause = fmt.Sprintf("%s, %s ms", causeLabel(s.Cause), Value(s.CauseMS))
		}
		row := []string{s.ID, short(s.Time), s.Model}
		if own {
			row = append(row, Value(s.Value).String())
		}
		slowest = append(slowest, append(row, s.E2E.String(), s.TTFT.String(), strconv.Itoa(s.Prompt), strconv.Itoa(s.Output), s.Outcome, cause))
	}
	add("Slowest by "+r.SlowestBy, slowest)
	return all
}

func (r *Report) groupTable() [][]string {
	if len(r.By) == 0 {
		return nil
	}
	head := append(slices.Clone(r.By), "requests", "failed", "TTFT p50", "p99", "ITL p50", "p99", "E2E p50", "p99", "prompt", "output tokens", "tokens/s p50")
	if r.SLO != nil {
		head = append(head, "met")
	}
	rows := [][]string{head}
	for i := range r.Groups {
		g := &r.Groups[i]
		row := append(slices.Clone(g.Values), thousands(g.Requests), thousands(g.Failed), g.TTFT.P50.String(), g.TTFT.P99.String(), g.ITL.P50.String(), g.ITL.P99.String(),
			g.E2E.P50.String(), g.E2E.P99.String(), thousands(g.Tokens.Prompt), thousands(g.Tokens.Output), g.Rate.P50.String())
		if r.SLO != nil {
			row = append(row, percent(g.Attainment))
		}
		rows = append(rows, row)
	}
	return rows
}

func (r *Report) usageTable() [][]string {
	u := &r.Usage
	head := []string{"key", "model", "ended", "requests", "prompt tokens", "of them cached", "output tokens"}
	priced := u.Total.Completed.Cost != "" || u.Total.Cancelled.Cost != "" || u.Total.Failed.Cost != ""
	if priced {
		head = append(head, "cost")
	}
	rows := [][]string{head}
	total := u.Total
	total.Key = "all"
	for _, l := range append(slices.Clone(u.Lines), total) {
		for _, part := range []struct {
			ended string
			c     *Cost
		}{{"completed", &l.Completed}, {"cancelled", &l.Cancelled}, {"failed", &l.Failed}} {
			c := part.c
			if c.Requests == 0 {
				continue
			}
			row := []string{l.Key, l.Model, part.ended, thousands(c.Requests), thousands(c.Prompt), thousands(c.Cached), thousands(c.Output)}
			if priced {
				row = append(row, cmp.Or(c.Cost, "no price"))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

type titled struct {
	name, title string
	q           *Quantiles
}

// quantiles are a row's measures by their names in CSV and in tables.
func (r *Row) quantiles() []titled {
	return []titled{
		{"ttft_ms", "TTFT, from arrival", &r.TTFT}, {"queue_ms", "queue", &r.Queue}, {"prefill_ms", "prefill", &r.Prefill},
		{"itl_ms", "ITL, a request's mean", &r.ITL}, {"itl_p99_ms", "ITL, a request's p99", &r.ITLP99}, {"decode_ms", "decode", &r.Decode},
		{"e2e_ms", "end to end", &r.E2E}, {"delivery_ms", "delivery", &r.Delivery}, {"tokens_per_second", "tokens/s", &r.Rate},
	}
}

func (r *Row) endings() string {
	var parts []string
	for _, p := range []struct {
		n    int64
		name string
	}{{r.Stop, "stop"}, {r.Length, "length"}, {r.Aborted, "aborted"}, {r.Failed, "failed"}, {r.Refused, "refused"}} {
		if p.n > 0 {
			parts = append(parts, thousands(p.n)+" "+p.name)
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// problems are what could not be read, in words.
func (r *Read) problems() []string {
	var all []string
	if r.Broken > 0 {
		all = append(all, lines(r.Broken, "could not be read, and %s not counted:"))
	}
	if r.Newer > 0 {
		all = append(all, lines(r.Newer, "of a newer version of the log %s not counted:"))
	}
	for _, e := range r.Examples {
		all = append(all, "  "+e)
	}
	if r.Cut > 0 {
		all = append(all, "Data is missing: "+r.cutFiles()+" not be read to the end:")
	}
	for _, c := range r.Cuts {
		all = append(all, "  "+c)
	}
	return all
}

func lines(n int64, text string) string {
	if n == 1 {
		return "1 line " + fmt.Sprintf(text, "is")
	}
	return thousands(n) + " lines " + fmt.Sprintf(text, "are")
}

func (r *Read) cutFiles() string {
	if r.Cut == 1 {
		return "1 file could"
	}
	return thousands(r.Cut) + " files could"
}

func (s *SLO) String() string {
	var parts []string
	for _, l := range []struct {
		name string
		v    float64
	}{{"TTFT", s.TTFT}, {"ITL", s.ITL}, {"E2E", s.E2E}} {
		if l.v > 0 {
			parts = append(parts, fmt.Sprintf("%s ≤ %s ms", l.name, Value(l.v)))
		}
	}
	return strings.Join(parts, ", ")
}

// String writes a value with three digits or more; a dash for none.
func (v Value) String() string {
	f := float64(v)
	switch abs := math.Abs(f); {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return none
	case abs >= 100 || f == math.Trunc(f):
		return strconv.FormatFloat(f, 'f', 0, 64)
	case abs >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case abs >= 1:
		return strconv.FormatFloat(f, 'f', 2, 64)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}

func percent(v Value) string {
	if math.IsNaN(float64(v)) {
		return none
	}
	return strconv.FormatFloat(100*float64(v), 'f', 1, 64) + " %"
}

// duration writes milliseconds as people say them.
func duration(ms float64) string {
	switch {
	case ms >= 3600e3:
		return Value(ms/3600e3).String() + " h"
	case ms >= 60e3:
		return Value(ms/60e3).String() + " min"
	case ms >= 1000:
		return Value(ms/1000).String() + " s"
	}
	return Value(ms).String() + " ms"
}

// thousands writes a number with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short is a log's time to the second.
func short(t string) string {
	if len(t) < 19 {
		return plain(t)
	}
	return t[:10] + " " + t[11:19]
}

// plain is text that came from clients without what a terminal would take for commands, and without what
// cannot be seen or turns the order of letters round.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// WriteJSON writes the report as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// formula is a text that a spreadsheet must not take for a formula: clients choose some of them. What
// begins like one gets an apostrophe, which spreadsheets take for the sign of a text.
func formula(s string) string {
	if s != "" && strings.IndexByte("=+-@\t\r\n", s[0]) >= 0 {
		s = "'" + s
	}
	return plain(s)
}

// WriteCSV writes the groups, or the total where there are none, one row each. Texts have no control
// characters, and a ' before what a spreadsheet would take for a formula.
func (r *Report) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	for i, row := range r.rows() {
		columns := row.columns(r.By)
		if i == 0 {
			head := make([]string, len(columns))
			for k, c := range columns {
				head[k] = c.name
			}
			if err := out.Write(head); err != nil {
				return err
			}
		}
		line := make([]string, len(columns))
		for k, c := range columns {
			if line[k] = c.text; c.isText {
				line[k] = formula(c.text)
			}
		}
		if err := out.Write(line); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func (r *Report) rows() []*Row {
	if len(r.By) == 0 {
		return []*Row{&r.Total}
	}
	rows := make([]*Row, len(r.Groups))
	for i := range r.Groups {
		rows[i] = &r.Groups[i]
	}
	return rows
}

// column is a cell of a flat row: a text, or a number, which may be missing.
type column struct {
	name, text string
	number     float64
	isText     bool
	whole      bool
}

// columns are a row's cells, flat, in the same order for every row.
func (r *Row) columns(by []string) []column {
	var all []column
	for i, name := range by {
		all = append(all, column{name: name, text: r.Values[i], isText: true})
	}
	number := func(name string, v Value) {
		c := column{name: name, number: float64(v)}
		if !math.IsNaN(c.number) && !math.IsInf(c.number, 0) {
			c.text = strconv.FormatFloat(c.number, 'f', -1, 64)
		}
		all = append(all, c)
	}
	whole := func(name string, v int64) {
		all = append(all, column{name: name, text: strconv.FormatInt(v, 10), number: float64(v), whole: true})
	}
	whole("requests", r.Requests)
	whole("stop", r.Stop)
	whole("length", r.Length)
	whole("aborted", r.Aborted)
	whole("failed", r.Failed)
	whole("refused", r.Refused)
	all = append(all, column{name: "first", text: r.First, isText: true}, column{name: "last", text: r.Last, isText: true})
	number("requests_per_second", r.RequestRate)
	number("output_tokens_per_second", r.OutputRate)
	whole("prompt_tokens", r.Tokens.Prompt)
	whole("cached_tokens", r.Tokens.Cached)
	whole("output_tokens", r.Tokens.Output)
	whole("cancelled_prompt_tokens", r.Cancelled.Prompt)
	whole("cancelled_cached_tokens", r.Cancelled.Cached)
	whole("cancelled_output_tokens", r.Cancelled.Output)
	whole("failed_prompt_tokens", r.FailedUse.Prompt)
	whole("failed_cached_tokens", r.FailedUse.Cached)
	whole("failed_output_tokens", r.FailedUse.Output)
	number("slo_met", r.Met)
	number("slo_attainment", r.Attainment)
	number("goodput_per_second", r.Goodput)
	for _, q := range r.quantiles() {
		number(q.name+"_mean", q.q.Mean)
		number(q.name+"_p50", q.q.P50)
		number(q.name+"_p90", q.q.P90)
		number(q.name+"_p95", q.q.P95)
		number(q.name+"_p99", q.q.P99)
		number(q.name+"_max", q.q.Max)
	}
	return all
}
