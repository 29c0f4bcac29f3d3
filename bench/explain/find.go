// Package explain finds one request in request logs and tells its life: what happened when, how long
// it took, and why.
package explain

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-llm/troupe/bench/requestlog"
)

// Found is a request's line.
type Found struct {
	Entry requestlog.Entry
	Place requestlog.Place
}

// maxCandidates is how many of several candidates an error lists, and of how many requests with the same id
// the lives are told.
const maxCandidates = 10

// candidate is a line that an id may mean.
type candidate struct {
	place requestlog.Place
	raw   []byte
	name  string // what the error calls it
	id    string // its request_id: two lines with the same one are copies
}

// match collects candidates: the first few, and how many there are.
type match struct {
	list []candidate
	n    int
}

func (m *match) add(e *requestlog.Entry, at requestlog.Place) {
	for _, c := range m.list {
		if e.RequestID != "" && c.id == e.RequestID && bytes.Equal(c.raw, e.Raw) {
			return // a copy: a log that was given twice
		}
	}
	if m.n++; len(m.list) < maxCandidates {
		id := strings.Clone(e.RequestID)
		name := id
		if name == "" {
			name = "without an id"
		}
		m.list = append(m.list, candidate{at, bytes.Clone(e.Raw), fmt.Sprintf("%s  %s  %s  %s", at, printable(name), strings.Clone(e.Time), printable(e.Model)), id})
	}
}

// Result is what Find found.
type Result struct {
	// Requests are those that the id names, in the order of the logs: the first ten.
	Requests []*Found
	// Count is how many there are.
	Count   int
	Summary requestlog.Summary
}

// Find looks for the requests that id names, by their request_id, their client_request_id or their number.
// Several may have the same: a client may send an X-Request-Id again, and numbers begin anew with each
// server. If there is none, the id may be the beginning of one request's request_id or client_request_id.
// names are logs (see requestlog.Files). The error says what there is instead.
func Find(ctx context.Context, id string, names []string, stdin io.Reader) (*Result, error) {
	r := &Result{}
	if id == "" {
		return r, fmt.Errorf("the id is empty: give a request's id, or its beginning")
	}
	number, err := strconv.ParseUint(id, 10, 64)
	numeric := err == nil
	var exact, begins match
	r.Summary, err = requestlog.Each(ctx, names, stdin, func(e *requestlog.Entry, at requestlog.Place) error {
		switch {
		case e.RequestID == id || e.ClientRequestID == id || numeric && e.ID == number && e.ID != 0:
			exact.add(e, at)
		case strings.HasPrefix(e.RequestID, id) || strings.HasPrefix(e.ClientRequestID, id):
			begins.add(e, at)
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	best := &exact
	if exact.n == 0 {
		best = &begins
	}
	switch {
	case best.n == 0:
		return r, fmt.Errorf("no request is called %q: read %v", id, &r.Summary)
	case best == &begins && begins.n > 1:
		var b strings.Builder
		fmt.Fprintf(&b, "%q begins the id of %d requests: name one by its request_id, or give only its log", id, begins.n)
		for _, c := range begins.list {
			b.WriteString("\n  " + c.name)
		}
		if more := begins.n - len(begins.list); more > 0 {
			fmt.Fprintf(&b, "\n  and %d more", more)
		}
		return r, fmt.Errorf("%s", b.String())
	}
	r.Count = best.n
	for _, c := range best.list {
		f := &Found{Place: c.place}
		if err := requestlog.Scan(c.raw, &f.Entry); err != nil {
			return r, err
		}
		r.Requests = append(r.Requests, f)
	}
	return r, nil
}

// Phase is a part of a request's time.
type Phase struct {
	Name string
	Dur  requestlog.Span
}

// Phases splits the time from arrival to the last stamp into parts without gaps: reading (until it
// was queued), queue, prefill, decode, ending (from the last token to the end) and delivery. A request
// that ended early has what it did not come to as 0, and the time until its end in the part in which
// it was.
func (f *Found) Phases() []Phase {
	a := &f.Entry.At
	names := [...]string{"reading", "queue", "prefill", "decode", "ending", "delivery"}
	stamps := [...]requestlog.Span{a.Queued, a.Scheduled, a.FirstToken, a.LastToken, a.Finished, a.Delivered}
	phases := make([]Phase, len(names))
	now := requestlog.Span(0)
	over := false
	for i, at := range stamps {
		phases[i].Name = names[i]
		switch {
		case i < 4 && over:
			continue
		case i < 4 && !at.Known():
			over = true
			at = a.Finished
		}
		if at.Known() {
			phases[i].Dur = max(at-now, 0)
			now = max(at, now)
		}
	}
	return phases
}

// Total is the time from arrival to the last stamp.
func (f *Found) Total() requestlog.Span {
	total := requestlog.Span(0)
	for _, p := range f.Phases() {
		total += p.Dur
	}
	return total
}

// Delays names what the request's time went to besides its own work, most first, and what is left. They never
// add up to more than the whole. What is less than half a per cent of it is left out.
//
// With a timeline, the parts are those of the choice that ended last: what its wait was for, its stalls, and,
// of its steps of prefill, the share of others' tokens in them and the time between them. Without one they
// are slowed_by_ms.
func (f *Found) Delays() (delays []Phase, rest requestlog.Span) {
	total := f.Total()
	rest = total
	for _, p := range f.parts() {
		p.Dur = min(p.Dur, rest)
		if p.Dur*200 >= total && p.Dur > 0 {
			delays = append(delays, p)
			rest -= p.Dur
		}
	}
	slices.SortStableFunc(delays, func(a, b Phase) int { return cmp.Compare(b.Dur, a.Dur) })
	return delays, rest
}

func (f *Found) parts() []Phase {
	s := &f.Entry.SlowedBy
	delivery := Phase{"delivery to the client", s.SlowClient}
	if f.Entry.Error.Code == "slow_client" {
		delivery.Name = "the client not reading"
	}
	const capacity, blocks, prompts = "waiting for a sequence slot or for room in a step", "waiting for KV cache blocks", "prompts of others in its decode steps"
	always := []Phase{{"its place lost to another sequence", s.Preemption}, {"a restart of the device", s.DeviceRestart}, delivery}
	events := f.last()
	if len(events) == 0 {
		return append([]Phase{{capacity, s.QueueCapacity}, {blocks, s.QueueKV}, {prompts, s.PrefillOfOthers}}, always...)
	}
	var slot, budget, kv, start, beside, between, stalled, bigger, slow, outside requestlog.Span
	var computing, decoding requestlog.Span // steps of prefill, and decoding beside others' prompts
	var computed, others int                // prompt tokens in the ones and in the others
	for i := range events {
		switch v := &events[i]; v.Kind {
		case "queue":
			slot, budget, kv = slot+v.Slot, budget+v.Budget, kv+v.Blocks
			start += max(v.Dur-v.Slot-v.Budget-v.Blocks, 0)
		case "prefill", "recompute":
			busy := min(v.Busy, v.Dur)
			computing, computed = computing+busy, computed+v.Prompt+v.Others
			if v.Steps > 0 && v.Busy > 0 {
				between += v.Dur - busy
			}
			if v.Others > 0 {
				beside += requestlog.Span(float64(busy) * float64(v.Others) / float64(v.Others+v.Prompt))
			}
		case "decode", "several":
			if v.Others > 0 {
				decoding, others = decoding+v.Dur, others+v.Others
			}
		case "stall":
			switch excess := min(v.Excess, v.Dur); v.Why {
			case "prefill_of_others":
				stalled += excess
			case "bigger_batch":
				bigger += excess
			case "slow_step":
				slow += excess
			default:
				outside += excess
			}
		}
	}
	// slowed_by_ms also counts steps that were no stall, but only once it is known how long steps without
	// prompts take. Before, others' tokens took at most what a prompt token took in the request's own steps.
	decode := Phase{prompts, max(stalled, s.PrefillOfOthers)}
	if decode.Dur == 0 && others > 0 {
		decode = Phase{prompts + " (at most)", decoding}
		if computed > 0 {
			decode.Dur = min(decoding, requestlog.Span(float64(computing)/float64(computed)*float64(others)))
		}
	}
	return append([]Phase{
		{"waiting for a sequence slot", slot}, {"waiting for room in a step, whose tokens others had", budget}, {blocks, kv}, {"waiting for the next step to begin", start},
		decode, {"stalls because many more sequences had joined", bigger}, {"stalls in which the device took longer for no more work", slow}, {"stalls between steps", outside},
		{"prompts of others in the steps of its own prefill", beside}, {"waiting between the steps of its own prefill", between},
	}, always...)
}

// last are the events of the choice that ended last; nil when the line has no timeline that can be read.
func (f *Found) last() []requestlog.Event {
	events, err := f.Entry.Events()
	if err != nil {
		return nil
	}
	choice, ended := 0, requestlog.Span(-1)
	for i := range events {
		if v := &events[i]; v.Kind == "end" && v.At+v.Dur > ended {
			choice, ended = v.Seq, v.At+v.Dur
		}
	}
	return slices.DeleteFunc(events, func(v requestlog.Event) bool {
		return v.Seq != choice || v.Kind == "delivered" || v.Kind == "left_out"
	})
}
