package logreport

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-llm/troupe/bench/requestlog"
)

// Options say what a report is to tell.
type Options struct {
	// By are the dimensions of the groups, in order: see Dimensions. None: everything is one group.
	By    []string
	Where Filter
	SLO   SLO
	// Prices are by model; nil: no costs.
	Prices Prices
	// Slowest is how many of the slowest requests are listed, by the field SlowestBy ("e2e_ms" when
	// empty).
	Slowest   int
	SlowestBy string
	// Hours asks for the figures of each hour besides, for a page that shows them.
	Hours bool
}

// SLO is a service level objective, in milliseconds; 0: anything goes.
type SLO struct {
	TTFT float64 `json:"ttft_ms,omitempty"` // arrival to first token
	ITL  float64 `json:"itl_ms,omitempty"`  // the request's mean inter-token latency
	E2E  float64 `json:"e2e_ms,omitempty"`  // arrival to the end
}

// Asked says whether there is an objective.
func (s SLO) Asked() bool { return s != SLO{} }

// met says whether a request that completed kept the objective. One that did not complete never did.
func (s SLO) met(e *requestlog.Entry) bool {
	if e.Outcome != "stop" && e.Outcome != "length" {
		return false
	}
	within := func(v requestlog.Span, limit float64) bool { return limit == 0 || v.Known() && v.Millis() <= limit }
	return within(e.Detail.ArrivalToFirstToken, s.TTFT) && (!e.Metrics.MeanITL.Known() || within(e.Metrics.MeanITL, s.ITL)) && within(endToEnd(e), s.E2E)
}

// Dimensions are what lines can be grouped by.
var Dimensions = []struct{ Name, Help string }{
	{"model", "as served"},
	{"key", "name of the API key"},
	{"endpoint", "chat, completion, responses, bench"},
	{"outcome", "stop, length, abort, error, refused"},
	{"status", "HTTP status"},
	{"error", "the error's code"},
	{"stream", "streamed or not"},
	{"prompt", "prompt length, in powers of two"},
	{"hour", "of arrival, UTC"},
	{"day", "of arrival, UTC"},
}

// none stands for what a line has null for.
const none = "–"

// value is the line's place in a dimension.
func value(dimension string, e *requestlog.Entry) string {
	text := func(s string) string {
		if s == "" {
			return none
		}
		return s
	}
	part := func(n int) string { // of 2006-01-02T15:04:05…
		if len(e.Time) < 13 {
			return none
		}
		return e.Time[:n]
	}
	switch dimension {
	case "model":
		return text(e.Model)
	case "key":
		return text(e.Key)
	case "endpoint":
		return text(e.Endpoint)
	case "outcome":
		return text(e.Outcome)
	case "status":
		return strconv.Itoa(e.Status)
	case "error":
		return text(e.Error.Code)
	case "stream":
		return strconv.FormatBool(e.Stream)
	case "hour":
		return part(13)
	case "day":
		return part(10)
	}
	// Prompt lengths: 0, 1, 2–3, 4–7, …, padded to be in order as texts.
	n := e.Tokens.Prompt
	if n <= 1 {
		return fmt.Sprintf("%11d", n)
	}
	low := 1
	for low*2 <= n {
		low *= 2
	}
	return fmt.Sprintf("%11d–%d", low, 2*low-1)
}

// group is what is known of the lines that belong together.
type group struct {
	requests                                 int64
	stop, length, aborted, failed, refused   int64
	met                                      int64
	ttft, queue, prefill, itl, itl99, decode histogram // ns
	e2e, delivery                            histogram
	rate                                     histogram // 1/1000 token/s
	slowed                                   [len(causes)]cause
	completed, partial, broken               usage // by how the requests ended
	busy                                     sum   // ns from arrival to the end, of all that ran
	first, last                              string
}

type cause struct {
	ns       sum
	requests int64
}

// usage counts tokens.
type usage struct {
	Requests int64 `json:"requests"`
	Prompt   int64 `json:"prompt_tokens"`
	Cached   int64 `json:"cached_tokens"`
	Output   int64 `json:"output_tokens"`
}

func (u *usage) add(o *usage) {
	u.Requests += o.Requests
	u.Prompt += o.Prompt
	u.Cached += o.Cached
	u.Output += o.Output
}

func (g *group) add(e *requestlog.Entry, slo SLO) {
	g.requests++
	if e.Time != "" {
		if g.first == "" || moment(e.Time) < moment(g.first) {
			g.first = strings.Clone(e.Time)
		}
		if moment(e.Time) > moment(g.last) {
			g.last = strings.Clone(e.Time)
		}
	}
	to := &g.broken
	switch e.Outcome {
	case "stop":
		g.stop++
		to = &g.completed
	case "length":
		g.length++
		to = &g.completed
	case "abort":
		g.aborted++
		to = &g.partial
	case "refused":
		g.refused++
		return // it never ran: it has no times, and used nothing
	default:
		g.failed++
	}
	to.add(&usage{1, int64(e.Tokens.Prompt), int64(e.Tokens.Cached), int64(e.Tokens.Output)})
	g.busy.add(int64(max(endToEnd(e), 0)))
	if slo.met(e) {
		g.met++
	}
	for i := range causes {
		if ns := causes[i].of(e); ns > 0 {
			g.slowed[i].ns.add(int64(ns))
			g.slowed[i].requests++
		}
	}
	if to != &g.completed {
		return // half a request's times would make the others' look better
	}
	for _, m := range [...]struct {
		to *histogram
		of requestlog.Span
	}{
		{&g.ttft, e.Detail.ArrivalToFirstToken}, {&g.queue, e.Metrics.QueueTime}, {&g.prefill, e.Metrics.TimeToFirstToken},
		{&g.itl, e.Metrics.MeanITL}, {&g.itl99, e.Detail.ITLP99}, {&g.decode, e.Metrics.GenerationTime}, {&g.e2e, endToEnd(e)}, {&g.delivery, delivery(e)},
	} {
		if m.of.Known() {
			m.to.add(int64(m.of))
		}
	}
	if r := e.Metrics.TokensPerSecond; !math.IsNaN(r) && r < math.MaxInt64/2000 {
		g.rate.add(int64(r * 1000))
	}
}

func (g *group) merge(o *group) {
	g.requests += o.requests
	g.stop += o.stop
	g.length += o.length
	g.aborted += o.aborted
	g.failed += o.failed
	g.refused += o.refused
	g.met += o.met
	g.busy.merge(o.busy)
	g.completed.add(&o.completed)
	g.partial.add(&o.partial)
	g.broken.add(&o.broken)
	for i := range g.slowed {
		g.slowed[i].ns.merge(o.slowed[i].ns)
		g.slowed[i].requests += o.slowed[i].requests
	}
	for _, h := range [...][2]*histogram{
		{&g.ttft, &o.ttft}, {&g.queue, &o.queue}, {&g.prefill, &o.prefill}, {&g.itl, &o.itl}, {&g.itl99, &o.itl99},
		{&g.decode, &o.decode}, {&g.e2e, &o.e2e}, {&g.delivery, &o.delivery}, {&g.rate, &o.rate},
	} {
		h[0].merge(h[1])
	}
	if g.first == "" || o.first != "" && moment(o.first) < moment(g.first) {
		g.first = o.first
	}
	if moment(o.last) > moment(g.last) {
		g.last = o.last
	}
}

// moment is a line's time as a text of which the lesser one is the earlier, also where their fractions of a
// second are of different lengths.
func moment(t string) string { return strings.TrimSuffix(t, "Z") }

// Collector takes lines and makes a report of them. Several may work side by side, each from its own
// goroutine, and be merged: the report is the same however the lines were shared among them.
type Collector struct {
	o       Options
	slow    *field
	groups  *bounded[group] // by the dimensions of By; without any, one of all lines
	hours   *bounded[group]
	bills   *bounded[bill] // by key and model
	slowest []Slow         // the first so many sorted, the slowest first; behind them further ones, up to as many again
	sorted  int            // how many are sorted
	values  []string
}

type bill struct{ completed, partial, broken usage }

func (b *bill) merge(o *bill) {
	b.completed.add(&o.completed)
	b.partial.add(&o.partial)
	b.broken.add(&o.broken)
}

// Slow is one of the slowest requests.
type Slow struct {
	ID      string  `json:"request_id"`
	Time    string  `json:"time"`
	Model   string  `json:"model"`
	Key     string  `json:"key,omitempty"`
	Value   float64 `json:"value"`   // of the field that they are sorted by
	TTFT    Value   `json:"ttft_ms"` // null without a token, as E2E without an end
	E2E     Value   `json:"e2e_ms"`
	Prompt  int     `json:"prompt_tokens"`
	Output  int     `json:"output_tokens"`
	Cause   string  `json:"slowed_most_by,omitempty"`
	CauseMS float64 `json:"slowed_most_ms,omitempty"`
	Outcome string  `json:"outcome"`
}

// NewCollector checks the options and makes a collector.
func NewCollector(o Options) (*Collector, error) {
	for _, d := range o.By {
		if !slices.ContainsFunc(Dimensions, func(k struct{ Name, Help string }) bool { return k.Name == d }) {
			var names []string
			for _, k := range Dimensions {
				names = append(names, k.Name)
			}
			return nil, fmt.Errorf("lines cannot be grouped by %q: choose among %s", d, strings.Join(names, ", "))
		}
	}
	if o.SlowestBy == "" {
		o.SlowestBy = "e2e_ms"
	}
	c := &Collector{o: o, slow: lookup(o.SlowestBy), groups: newBounded((*group).merge, 0), hours: newBounded((*group).merge, 0), bills: newBounded((*bill).merge, 1)}
	if c.slow == nil || c.slow.number == nil {
		return nil, fmt.Errorf("requests cannot be sorted by %q: choose a field that is a number", o.SlowestBy)
	}
	return c, nil
}

// Add takes a line. Nothing of e is kept.
func (c *Collector) Add(e *requestlog.Entry) {
	if !c.o.Where.Match(e) {
		return
	}
	c.values = c.values[:0]
	for _, d := range c.o.By {
		c.values = append(c.values, value(d, e))
	}
	c.groups.at(c.values).add(e, c.o.SLO)
	if c.o.Hours {
		c.values = append(c.values[:0], value("hour", e))
		c.hours.at(c.values).add(e, c.o.SLO)
	}
	if e.Refused() {
		return
	}
	c.values = append(c.values[:0], e.Key, e.Model)
	c.bills.at(c.values).add(e)
	if c.o.Slowest > 0 {
		c.rank(e)
	}
}

func (b *bill) add(e *requestlog.Entry) {
	to := &b.broken
	switch e.Outcome {
	case "stop", "length":
		to = &b.completed
	case "abort":
		to = &b.partial
	}
	to.add(&usage{1, int64(e.Tokens.Prompt), int64(e.Tokens.Cached), int64(e.Tokens.Output)})
}

func (c *Collector) rank(e *requestlog.Entry) {
	v := c.slow.number(e)
	if math.IsNaN(v) {
		return
	}
	s := Slow{
		ID: e.RequestID, Time: e.Time, Model: e.Model, Key: e.Key, Value: v,
		TTFT: millis(e.Detail.ArrivalToFirstToken), E2E: millis(endToEnd(e)), Prompt: e.Tokens.Prompt, Output: e.Tokens.Output,
		Outcome: e.Outcome,
	}
	for i := range causes {
		if ms := max(causes[i].of(e), 0).Millis(); ms > s.CauseMS {
			s.Cause, s.CauseMS = causes[i].name, ms
		}
	}
	if c.sorted == c.o.Slowest && slower(s, c.slowest[c.sorted-1]) >= 0 {
		return
	}
	for _, text := range []*string{&s.ID, &s.Time, &s.Model, &s.Key, &s.Outcome} {
		*text = strings.Clone(*text)
	}
	// They are sorted once as many have come as there are to be, not for each one.
	if c.slowest = append(c.slowest, s); len(c.slowest) >= 2*c.o.Slowest {
		c.trim()
	}
}

// millis is a span in milliseconds, NaN when it is not known.
func millis(s requestlog.Span) Value {
	if !s.Known() {
		return Value(math.NaN())
	}
	return Value(s.Millis())
}

// slower is below 0 when a is to be listed before b. Of equally slow ones the earliest comes first, and of
// those whatever differs decides: not which came first.
func slower(a, b Slow) int {
	if a.Value != b.Value { // most often
		return cmp.Compare(b.Value, a.Value)
	}
	return cmp.Or(cmp.Compare(moment(a.Time), moment(b.Time)), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Key, b.Key),
		cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.E2E, b.E2E), cmp.Compare(a.TTFT, b.TTFT), cmp.Compare(a.Prompt, b.Prompt), cmp.Compare(a.Output, b.Output),
		cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.CauseMS, b.CauseMS))
}

// trim sorts the slowest, and drops those beyond what was asked for.
func (c *Collector) trim() {
	slices.SortFunc(c.slowest, slower)
	c.slowest = c.slowest[:min(len(c.slowest), c.o.Slowest)]
	c.sorted = len(c.slowest)
}

// Merge adds what another collector with the same options has; that one is of no use afterwards.
func (c *Collector) Merge(o *Collector) {
	c.groups.add(o.groups)
	c.hours.add(o.hours)
	c.bills.add(o.bills)
	c.slowest = append(c.slowest, o.slowest...)
	c.trim()
}

// Report is what the lines say.
type Report struct {
	By     []string `json:"by,omitempty"`
	SLO    *SLO     `json:"slo,omitempty"`
	Total  Row      `json:"total"`
	Groups []Row    `json:"groups,omitempty"`
	// Usage is by key and model; its Total is the sum of all its lines.
	Usage   Usage    `json:"usage"`
	Slowed  []Slowed `json:"slowed_by"`
	Slowest []Slow   `json:"slowest,omitempty"`
	// SlowestBy is the field that the slowest are sorted by.
	SlowestBy string `json:"slowest_by,omitempty"`
	// Hours are by the hour of arrival, when they were asked for.
	Hours []Row `json:"hours,omitempty"`
	// Read is how the lines were read.
	Read Read `json:"read"`

	curves curves
}

// Read says what was read.
type Read struct {
	Lines  int64 `json:"lines"`
	Broken int64 `json:"broken_lines"`
	Newer  int64 `json:"newer_lines"` // of a newer version of the log, not counted
	// Examples say where the first broken lines are, and what is wrong with them.
	Examples []string `json:"examples,omitempty"`
	// Cut is how many files ended before their end, so that lines of them are missing; Cuts name them.
	Cut  int64    `json:"cut_files"`
	Cuts []string `json:"cuts,omitempty"`
}

// Row is a group's figures. Latencies are of completed requests.
type Row struct {
	Values   []string `json:"values,omitempty"` // in the order of By
	Requests int64    `json:"requests"`
	// Every request is in exactly one of these.
	Stop    int64 `json:"stop"`
	Length  int64 `json:"length"`
	Aborted int64 `json:"aborted"`
	Failed  int64 `json:"failed"`
	Refused int64 `json:"refused"`

	First string `json:"first,omitempty"` // arrival of the earliest
	Last  string `json:"last,omitempty"`
	// RequestRate and OutputRate are over the time from the first arrival to the last, per second;
	// null below two arrivals.
	RequestRate Value `json:"requests_per_second"`
	OutputRate  Value `json:"output_tokens_per_second"`

	TTFT     Quantiles `json:"ttft_ms"`
	Queue    Quantiles `json:"queue_ms"`
	Prefill  Quantiles `json:"prefill_ms"`
	ITL      Quantiles `json:"itl_ms"`
	ITLP99   Quantiles `json:"itl_p99_ms"`
	Decode   Quantiles `json:"decode_ms"`
	E2E      Quantiles `json:"e2e_ms"`
	Delivery Quantiles `json:"delivery_ms"`
	Rate     Quantiles `json:"tokens_per_second"`

	// Tokens are of all requests, completed or not; Cancelled and Failed are what those of them used whose
	// clients left, and those that failed.
	Tokens    usage `json:"tokens"`
	Cancelled usage `json:"cancelled_tokens"`
	FailedUse usage `json:"failed_tokens"`
	// Met is how many requests kept the objective, Attainment their share of those that ran and were
	// not given up by their clients, and Goodput their number a second; null without an objective.
	Met        Value `json:"slo_met"`
	Attainment Value `json:"slo_attainment"`
	Goodput    Value `json:"goodput_per_second"`
}

// Value is a number, or null when it is NaN.
type Value float64

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(v), 'f', -1, 64), nil
}

// Quantiles describe the values of a group.
type Quantiles struct {
	Count uint64 `json:"count"`
	Mean  Value  `json:"mean"`
	P50   Value  `json:"p50"`
	P90   Value  `json:"p90"`
	P95   Value  `json:"p95"`
	P99   Value  `json:"p99"`
	Max   Value  `json:"max"`
}

// quantilesOf describes a histogram in another unit.
func quantilesOf(h *histogram, unit float64) Quantiles {
	q := Quantiles{Count: h.n, Mean: Value(h.mean() / unit), Max: Value(math.NaN())}
	for _, p := range [...]struct {
		to *Value
		q  float64
	}{{&q.P50, 0.5}, {&q.P90, 0.9}, {&q.P95, 0.95}, {&q.P99, 0.99}} {
		*p.to = Value(h.quantile(p.q) / unit)
	}
	if h.n > 0 {
		q.Max = Value(float64(h.max) / unit)
	}
	return q
}

// Slowed is one cause that slowed requests.
type Slowed struct {
	Cause    string `json:"cause"`
	Help     string `json:"help"`
	MS       Value  `json:"ms"`
	Requests int64  `json:"requests"`
	// Share is of the time that all requests that ran took from arrival to the end.
	Share Value `json:"share"`
}

// Report makes the report. The collector may go on afterwards.
func (c *Collector) Report(read Read) *Report {
	var total group // each line is in one of the groups
	c.trim()
	groups := c.groups.all()
	for _, g := range groups {
		total.merge(&g.of)
	}
	r := &Report{By: c.o.By, Total: total.row(nil, c.o.SLO), Usage: c.usage(), Slowest: slices.Clone(c.slowest), Read: read}
	if c.o.SLO.Asked() {
		r.SLO = &c.o.SLO
	}
	if c.o.Slowest > 0 {
		r.SlowestBy = c.slow.name
	}
	if len(c.o.By) > 0 {
		r.Groups = rows(groups, c.o.SLO)
	}
	for k := range r.Groups { // they are in order now
		g := &r.Groups[k]
		g.Values = slices.Clone(g.Values)
		for i, d := range c.o.By {
			if d == "prompt" {
				g.Values[i] = strings.TrimLeft(g.Values[i], " ")
			}
		}
	}
	r.Hours = rows(c.hours.all(), c.o.SLO)
	r.curves = curves{total.ttft.points(1e6), total.itl.points(1e6), total.e2e.points(1e6)}
	for i := range causes {
		s := &total.slowed[i]
		r.Slowed = append(r.Slowed, Slowed{Cause: causes[i].name, Help: causes[i].help, MS: Value(s.ns.float() / 1e6), Requests: s.requests,
			Share: ratio(s.ns.float(), total.busy.float())})
	}
	slices.SortStableFunc(r.Slowed, func(a, b Slowed) int { return cmp.Compare(b.MS, a.MS) })
	return r
}

// ratio is a/b, NaN when b is 0.
func ratio(a, b float64) Value {
	if b == 0 {
		return Value(math.NaN())
	}
	return Value(a / b)
}

func rows(groups []*member[group], slo SLO) []Row {
	var list []Row
	for _, g := range groups {
		list = append(list, g.of.row(g.values, slo))
	}
	return list
}

func (g *group) row(values []string, slo SLO) Row {
	const ms = 1e6
	r := Row{
		Values: values, Requests: g.requests, Stop: g.stop, Length: g.length, Aborted: g.aborted, Failed: g.failed, Refused: g.refused,
		First: g.first, Last: g.last,
		TTFT: quantilesOf(&g.ttft, ms), Queue: quantilesOf(&g.queue, ms), Prefill: quantilesOf(&g.prefill, ms), ITL: quantilesOf(&g.itl, ms),
		ITLP99: quantilesOf(&g.itl99, ms), Decode: quantilesOf(&g.decode, ms), E2E: quantilesOf(&g.e2e, ms), Delivery: quantilesOf(&g.delivery, ms),
		Rate: quantilesOf(&g.rate, 1000),
	}
	for _, u := range []*usage{&g.completed, &g.partial, &g.broken} {
		r.Tokens.add(u)
	}
	r.Cancelled, r.FailedUse = g.partial, g.broken
	seconds := math.NaN()
	if first, err := time.Parse(time.RFC3339Nano, g.first); err == nil {
		if last, err := time.Parse(time.RFC3339Nano, g.last); err == nil && last.After(first) {
			seconds = last.Sub(first).Seconds()
		}
	}
	r.RequestRate = Value(float64(g.requests) / seconds)
	r.OutputRate = Value(float64(r.Tokens.Output) / seconds)
	r.Met, r.Attainment, r.Goodput = Value(math.NaN()), Value(math.NaN()), Value(math.NaN())
	if slo.Asked() {
		r.Met, r.Goodput = Value(g.met), Value(float64(g.met)/seconds)
		r.Attainment = ratio(float64(g.met), float64(g.requests-g.aborted-g.refused))
	}
	return r
}
