package explain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/bench/requestlog"
)

// Options say how the text is to look.
type Options struct {
	Width int // columns; between 60 and 160
	Color bool
}

// page is the text being written.
type page struct {
	b strings.Builder
	Options
}

// Text writes the request's life for people to read.
func (f *Found) Text(w io.Writer, o Options) error {
	o.Width = min(max(o.Width, 60), 160)
	p := &page{Options: o}
	p.header(f)
	if f.Total() > 0 && !f.Entry.Refused() {
		p.bar(f)
	}
	rows, err := f.rows()
	if err != nil {
		return fmt.Errorf("%v: %w", f.Place, err)
	}
	p.table(rows)
	p.para("", f.Verdict())
	_, err = io.WriteString(w, p.b.String())
	return err
}

// Text writes the lives of all requests that were found, one below the other; of several it says how many
// there are.
func (r *Result) Text(w io.Writer, o Options) error {
	for i, f := range r.Requests {
		if r.Count > 1 {
			about := fmt.Sprintf("Request %d of %d with this id", i+1, r.Count)
			if i+1 == len(r.Requests) && r.Count > len(r.Requests) {
				about += "; the others are not told"
			}
			if i > 0 {
				about = "\n" + about
			}
			if _, err := fmt.Fprintf(w, "%s:\n\n", about); err != nil {
				return err
			}
		}
		if err := f.Text(w, o); err != nil {
			return err
		}
	}
	return nil
}

// JSON writes an object for each request that was found.
func (r *Result) JSON(w io.Writer) error {
	for _, f := range r.Requests {
		if err := f.JSON(w); err != nil {
			return err
		}
	}
	return nil
}

// JSON writes the request's line with what explain works out from it.
func (f *Found) JSON(w io.Writer) error {
	phases := map[string]float64{}
	for _, p := range f.Phases() {
		phases[p.Name] = p.Dur.Millis()
	}
	rows, err := f.rows()
	if err != nil {
		return fmt.Errorf("%v: %w", f.Place, err)
	}
	type event struct {
		At     float64 `json:"at_ms"`
		Dur    float64 `json:"ms"`
		Choice int     `json:"choice"`
		What   string  `json:"what"`
	}
	events := make([]event, len(rows))
	for i, r := range rows {
		events[i] = event{r.at.Millis(), r.dur.Millis(), r.choice, r.text}
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err = e.Encode(struct {
		File    string             `json:"file"`
		Line    int                `json:"line"`
		Verdict string             `json:"verdict"`
		Phases  map[string]float64 `json:"phases_ms"`
		Events  []event            `json:"events"`
		Request json.RawMessage    `json:"request"`
	}{f.Place.File, f.Place.Line, f.Verdict(), phases, events, f.Entry.Raw})
	if bad := (*json.MarshalerError)(nil); errors.As(err, &bad) {
		return fmt.Errorf("%v: the line is not JSON: %w", f.Place, bad.Err)
	}
	return err
}

// style is an escape sequence of a terminal, by what it marks.
type style string

const (
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	blue   style = "34"
	cyan   style = "36"
)

func (p *page) paint(s style, text string) string {
	if !p.Color || s == "" || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// para writes words, broken at the page's width, each further line behind indent.
func (p *page) para(indent, text string) {
	p.words(0, indent, text, "")
}

// words writes text, the first line of which goes on in the given column.
func (p *page) words(column int, indent, text string, s style) {
	line := ""
	used := column
	flush := func() {
		p.b.WriteString(p.paint(s, line))
		p.b.WriteByte('\n')
		line = ""
	}
	for _, w := range strings.Fields(text) {
		n := utf8.RuneCountInString(w)
		switch {
		case line == "":
		case used+1+n > p.Width:
			flush()
			p.b.WriteString(indent)
			used = utf8.RuneCountInString(indent)
		default:
			line += " "
			used++
		}
		line += w
		used += n
	}
	flush()
}

func (p *page) header(f *Found) {
	e := &f.Entry
	title := printable(e.RequestID)
	if title == "" {
		title = "a request without an id"
	}
	p.b.WriteString(p.paint(bold, title) + "\n")
	facts := []string{fmt.Sprintf("line %d of %s", f.Place.Line, f.Place.File)}
	if t, ok := e.Wall(); ok {
		facts = append(facts, "arrived "+t.Format("2006-01-02 15:04:05.000 MST"))
	}
	for _, s := range []struct{ name, value string }{
		{"", e.Endpoint}, {"", strings.TrimSpace(e.Method + " " + e.Path)}, {"model ", e.Model}, {"key ", e.Key}, {"from ", e.Peer}, {"the client's id ", e.ClientRequestID},
	} {
		if s.value != "" {
			facts = append(facts, s.name+printable(s.value))
		}
	}
	if e.Stream {
		facts = append(facts, "streamed")
	}
	if e.N > 1 {
		facts = append(facts, fmt.Sprintf("n %d", e.N))
	}
	if e.Engine >= 0 {
		facts = append(facts, fmt.Sprintf("engine %d", e.Engine))
	}
	if e.Priority != 0 {
		facts = append(facts, fmt.Sprintf("priority %d", e.Priority))
	}
	p.para("", strings.Join(facts, ", "))
	if !e.Refused() {
		t := &e.Tokens
		text := plural(t.Prompt, "prompt token")
		if t.Cached > 0 {
			text += fmt.Sprintf(" (%d of them cached)", t.Cached)
		}
		text += ", " + plural(t.Output, "token") + " generated"
		if t.Discarded > 0 {
			text += fmt.Sprintf(", %d discarded", t.Discarded)
		}
		if e.Metrics.MeanITL.Known() {
			text += fmt.Sprintf("; first token after %s, then %s each", long(e.At.FirstToken), long(e.Metrics.MeanITL))
		} else if e.At.FirstToken.Known() {
			text += "; first token after " + long(e.At.FirstToken)
		}
		p.para("", text)
	}
	s := green
	switch {
	case e.Status >= 500:
		s = red
	case e.Status >= 400:
		s = yellow
	}
	text := outcome(e)
	if e.Status > 0 {
		text = fmt.Sprintf("%d, %s", e.Status, text)
	}
	p.words(0, "", text, s)
	p.b.WriteByte('\n')
}

// outcome says how the request ended.
func outcome(e *requestlog.Entry) string {
	text := map[string]string{"stop": "ended by itself", "length": "ended at its token limit", "abort": "the client left before the end", "error": "failed", "refused": "refused"}[e.Outcome]
	if text == "" {
		text = printable(e.Outcome)
	}
	switch {
	case e.Error.Message != "":
		text += ": " + printable(e.Error.Message)
	case e.Outcome == "stop" && e.StopString != "":
		text = "ended at the stop string " + strconv.Quote(e.StopString)
	case e.Outcome == "stop" && e.StopToken >= 0:
		text = fmt.Sprintf("ended by itself, with token %d", e.StopToken)
	}
	if e.Error.Code != "" {
		text += " (" + printable(e.Error.Code) + ")"
	}
	return text
}

// bar draws the phases in proportion, each with at least one column.
func (p *page) bar(f *Found) {
	looks := map[string]struct {
		cell rune
		s    style
	}{"reading": {'·', dim}, "queue": {'░', yellow}, "prefill": {'▒', blue}, "decode": {'█', green}, "ending": {'·', dim}, "delivery": {'▓', cyan}}
	total := f.Total()
	type item struct {
		cell rune
		s    style
		text string
	}
	var legend []item
	cells, used := 0, 0
	phases := f.Phases()
	for _, ph := range phases {
		if ph.Dur > 0 {
			cells++
		}
	}
	room := p.Width - cells
	before := requestlog.Span(0)
	for _, ph := range phases {
		if ph.Dur == 0 {
			continue
		}
		before += ph.Dur
		look := looks[ph.Name]
		end := int(float64(room)*float64(before)/float64(total) + 0.5)
		p.b.WriteString(p.paint(look.s, strings.Repeat(string(look.cell), 1+end-used)))
		used = end
		if ph.Name != "reading" && ph.Name != "ending" || ph.Dur*20 > total {
			legend = append(legend, item{look.cell, look.s, fmt.Sprintf(" %s %s (%s)", ph.Name, long(ph.Dur), share(ph.Dur, total))})
		}
	}
	p.b.WriteByte('\n')
	column := 0
	for i, l := range legend {
		n := 1 + utf8.RuneCountInString(l.text)
		switch {
		case i == 0:
		case column+3+n > p.Width:
			p.b.WriteByte('\n')
			column = 0
		default:
			p.b.WriteString("   ")
			column += 3
		}
		p.b.WriteString(p.paint(l.s, string(l.cell)) + l.text)
		column += n
	}
	p.b.WriteString("\n\n")
}

// row is one line of the timeline.
type row struct {
	at, dur requestlog.Span
	choice  int // −1: of the whole request
	text    string
	s       style
}

func (p *page) table(rows []row) {
	const left, indent = 24, "                        "
	p.b.WriteString(p.paint(dim, "        at        took  what") + "\n")
	choice := -1
	several := false
	for _, r := range rows {
		several = several || r.choice > 0
	}
	for _, r := range rows {
		if several && r.choice >= 0 && r.choice != choice {
			choice = r.choice
			p.b.WriteString(p.paint(bold, indent+"choice "+strconv.Itoa(choice)) + "\n")
		}
		took := ""
		if r.dur > 0 {
			took = long(r.dur)
		}
		fmt.Fprintf(&p.b, "%10s  %10s  ", long(r.at), took)
		p.words(left, indent, r.text, r.s)
	}
	p.b.WriteByte('\n')
}

// maxRows bounds the lines of a timeline: a server writes at most 64 events, but a log may have come
// from anywhere.
const maxRows = 200

// rows are the lines of the timeline; without one in the log, what the stamps alone tell.
func (f *Found) rows() ([]row, error) {
	e := &f.Entry
	events, err := e.Events()
	if err != nil {
		return nil, err
	}
	var rows []row
	whole := func(at, dur requestlog.Span, text string, s style) { rows = append(rows, row{at, dur, -1, text, s}) }
	if e.At.Queued.Known() {
		whole(0, e.At.Queued, "arrived; read, tokenised and handed to the scheduler", "")
	}
	for i := range events {
		if len(rows) >= maxRows {
			whole(max(e.At.Finished, 0), 0, plural(len(events)-i, "further event")+" in the log, not told here", "")
			break
		}
		v := &events[i]
		ended := i+1 < len(events) && events[i+1].Kind == "end"
		if r, ok := f.row(v, ended); ok {
			rows = append(rows, r)
		}
	}
	if len(events) == 0 {
		f.stamps(whole)
	}
	return rows, nil
}

// stamps tells what there is to tell without a timeline.
func (f *Found) stamps(whole func(at, dur requestlog.Span, text string, s style)) {
	e, at := &f.Entry, &f.Entry.At
	now := requestlog.Span(0)
	for _, ph := range f.Phases() {
		text, s := "", style("")
		switch ph.Name {
		case "queue":
			if at.Queued.Known() {
				q := requestlog.Event{Dur: ph.Dur, Slot: max(e.SlowedBy.QueueCapacity, 0), Blocks: max(e.SlowedBy.QueueKV, 0), Cached: e.Tokens.Cached}
				text, s = queue(&q, "a sequence slot or room in a step", !at.Scheduled.Known()), yellow
			}
		case "prefill":
			if at.Scheduled.Known() {
				text, s = "prefill of "+plural(e.Tokens.Computed, "token"), blue
			}
		case "decode":
			if at.LastToken.Known() {
				text = fmt.Sprintf("decode of %s", plural(e.Tokens.Output, "token"))
				if e.Detail.MeanBatch > 0 {
					text += fmt.Sprintf(", among %s in the mean", decimal(e.Detail.MeanBatch, "sequence"))
				}
				if e.Detail.Preemptions > 0 {
					text += fmt.Sprintf("; it lost its place %s, for %s", plural(e.Detail.Preemptions, "time"), long(e.Detail.Preempted))
				}
			}
		case "ending":
			if at.Finished.Known() {
				whole(now, ph.Dur, outcome(e), "")
			}
		case "delivery":
			if at.Delivered.Known() {
				text, s = delivered(e), cyan
			}
		}
		if text != "" {
			whole(now, ph.Dur, text, s)
		}
		now += ph.Dur
	}
}

// row puts an event into words; ended says that the sequence's end follows.
func (f *Found) row(v *requestlog.Event, ended bool) (row, bool) {
	r := row{at: v.At, dur: v.Dur, choice: v.Seq}
	others := func() string {
		if v.Others == 0 {
			return ""
		}
		return fmt.Sprintf("; %s also held %s of others", step(v.Steps), plural(v.Others, "prompt token"))
	}
	among := func() string {
		switch {
		case math.IsNaN(v.Batch):
			return "" // the log does not say
		case v.Batch <= 1:
			return ", alone"
		}
		return ", among " + decimal(v.Batch, "sequence")
	}
	switch v.Kind {
	case "queue":
		r.text, r.s = queue(v, "a sequence slot", ended), yellow
	case "prefill", "recompute":
		r.s = blue
		r.text = "prefill of " + plural(v.Prompt, "token")
		if v.Kind == "recompute" {
			r.text = plural(v.Prompt, "token") + " computed again"
		}
		switch {
		case v.Steps == 0:
			r.text = "a step that came to nothing"
		case v.Merged > 0:
			r.text += fmt.Sprintf(" in %d chunks", v.Merged+1)
		}
		if v.Steps > 0 {
			r.text += among() + others()
		}
		if v.Steps > 0 && v.Dur > 2*v.Busy && v.Dur-v.Busy > 1e6 {
			r.text += fmt.Sprintf("; %s took %s, before it others had the device", step(v.Steps), long(v.Busy))
		}
		if v.Output > 0 && v.Kind == "prefill" {
			r.text += "; the first token"
		}
	case "decode":
		r.s = green
		r.text = "decode: " + plural(v.Output, "token")
		if v.Output > 0 {
			r.text += fmt.Sprintf(", %s each", long(v.Dur/requestlog.Span(v.Output)))
		}
		r.text += among() + others()
		if v.Merged > 0 {
			r.text += fmt.Sprintf("; with %s that are told no more", plural((v.Merged+1)/2, "short stall"))
		}
	case "stall":
		r.s = red
		r.text = "stall: " + plural(v.Output, "token") + ", " + long(v.Excess) + " later than usual: " + stall(v)
	case "preempted":
		r.s = red
		r.text = map[string]string{"kv_blocks": "without a place: another sequence needed its KV cache blocks", "device_restart": "without a place: the device failed and was opened again",
			"batcher_lost": "without a place: the scheduler failed, and the request was submitted again"}[v.Why]
		if r.text == "" {
			r.text = "without a place: " + printable(v.Why)
		}
		if v.Cached > 0 {
			r.text += fmt.Sprintf("; %s had stayed in the cache", plural(v.Cached, "token"))
		}
	case "several":
		r.text = fmt.Sprintf("%d events taken together: %s computed, %s generated in %s", v.Merged+1, plural(v.Prompt, "token"), plural(v.Output, "token"), plural(v.Steps, "step")) + others()
	case "end":
		r.text = "the end: " + map[string]string{"stop": "the model's own, or a stop", "length": "the token limit", "cancelled": "cancelled", "timeout": "its time was up",
			"abort": "the client left", "error": "it failed"}[v.Why]
		if f.Entry.Sequences == 1 {
			r.text = outcome(&f.Entry)
		}
		if v.Dur > 0 {
			r.text += ", in the middle of a step"
		}
	case "delivered":
		r.choice, r.text, r.s = -1, delivered(&f.Entry), cyan
	case "left_out":
		r.choice, r.at, r.text = -1, f.Entry.At.Finished, plural(v.Sequences, "further choice")+" of this request, not told here"
	default:
		return r, false
	}
	return r, true
}

// queue says what a wait was for; slot is what Slot counts.
func queue(v *requestlog.Event, slot string, ended bool) string {
	var parts []string
	if v.Slot > 0 {
		s := long(v.Slot) + " for " + slot
		if v.Slots > 0 {
			s += fmt.Sprintf(": all %d were taken", v.Slots)
		}
		parts = append(parts, s)
	}
	if v.Budget > 0 {
		parts = append(parts, long(v.Budget)+" for room in a step, whose tokens others had")
	}
	if v.Blocks > 0 {
		parts = append(parts, long(v.Blocks)+" for KV cache blocks")
	}
	text := "waited " + strings.Join(parts, ", ")
	rest := v.Dur - v.Slot - v.Budget - v.Blocks
	switch {
	case len(parts) == 0 && ended:
		text = "waited for its first step, which never came"
	case len(parts) == 0 && v.Dur < 1e6:
		text = "scheduled at once"
	case len(parts) == 0:
		// Whether one was under way, the log does not say.
		text = "waited for the next step to begin"
	case rest > v.Dur/20 && !ended:
		text += ", " + long(rest) + " for the next step to begin"
	}
	if v.Seq > 0 && !ended && rest > v.Dur/20 && v.Dur >= 1e6 {
		text += ", or for another choice to compute the prompt that they share"
	}
	if v.Ahead > 0 {
		text += fmt.Sprintf("; %s waited before it", plural(v.Ahead, "other"))
	}
	if v.Cached > 0 {
		text += fmt.Sprintf("; %s in the cache already", plural(v.Cached, "prompt token"))
	}
	return text
}

func stall(v *requestlog.Event) string {
	switch v.Why {
	case "prefill_of_others":
		return fmt.Sprintf("%s also held %s of others", step(v.Steps), plural(v.Others, "prompt token"))
	case "bigger_batch":
		if math.IsNaN(v.Batch) {
			return step(v.Steps) + " held far more sequences than before"
		}
		return fmt.Sprintf("%s held %s, far more than before", step(v.Steps), decimal(v.Batch, "sequence"))
	case "slow_step":
		return fmt.Sprintf("the device took %s for %s with no more in it", long(v.Busy), step(v.Steps))
	case "between_steps":
		return fmt.Sprintf("%s of it lay between steps", long(max(v.Dur-v.Busy, 0)))
	}
	return printable(v.Why)
}

func delivered(e *requestlog.Entry) string {
	if e.Outcome == "abort" {
		return fmt.Sprintf("given up: %d bytes had been written", e.Bytes)
	}
	return fmt.Sprintf("delivered: %d bytes written", e.Bytes)
}

// Verdict says in a sentence where the time went, and what most of what was not its own work was.
func (f *Found) Verdict() string {
	total := f.Total()
	delays, rest := f.Delays()
	switch {
	case f.Entry.Refused():
		return "It was refused before it ran, after " + long(total) + "."
	case total == 0:
		return "The line does not say how long it took."
	case len(delays) == 0:
		return "Where the time went: all " + long(total) + " were its own work; nothing held it up."
	}
	var parts []string
	for _, d := range delays {
		parts = append(parts, fmt.Sprintf("%s (%s) %s", long(d.Dur), share(d.Dur, total), d.Name))
	}
	return fmt.Sprintf("Where the time went: of %s, %s; the other %s (%s) were its own work and the steps that it was part of.", long(total), strings.Join(parts, ", "), long(rest), share(rest, total))
}

// long writes a duration with three digits and its unit.
func long(d requestlog.Span) string {
	ms := d.Millis()
	switch {
	case d <= 0:
		return "0 ms"
	case ms < 0.0995:
		return strconv.FormatFloat(ms*1000, 'f', 0, 64) + " µs"
	case ms < 9.995:
		return strconv.FormatFloat(ms, 'f', 2, 64) + " ms"
	case ms < 99.95:
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	case ms < 999.5:
		return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
	case ms < 9_995:
		return strconv.FormatFloat(ms/1000, 'f', 2, 64) + " s"
	case ms < 99_950:
		return strconv.FormatFloat(ms/1000, 'f', 1, 64) + " s"
	}
	s := int64(ms/1000 + 0.5)
	if s < 3600 {
		return fmt.Sprintf("%d m %02d s", s/60, s%60)
	}
	return fmt.Sprintf("%d h %02d m", s/3600, s/60%60)
}

func share(part, whole requestlog.Span) string {
	pc := 100 * float64(part) / float64(max(whole, 1))
	if pc > 0 && pc < 0.5 {
		return "< 1 %"
	}
	return strconv.FormatFloat(pc, 'f', 0, 64) + " %"
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// decimal is plural for a mean.
func decimal(v float64, what string) string {
	s := strconv.FormatFloat(v, 'f', 1, 64)
	s = strings.TrimSuffix(s, ".0")
	if s != "1" {
		what += "s"
	}
	return s + " " + what
}

func step(n int) string {
	if n == 1 {
		return "the step"
	}
	return fmt.Sprintf("the %d steps", n)
}

// printable is s without what a terminal would act upon: it may come from a client.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}
