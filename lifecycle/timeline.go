package lifecycle

import "slices"

// MaxEvents is the most events that a request's Timeline holds, whatever happens to the request.
const MaxEvents = 64

// Timeline is one request's life as a list of events: sequence by sequence, and of each in the order
// of time. The events of a sequence that have a duration tile its life, from the moment it was
// queued to its end: each begins where the one before it ended. So their durations add up to the
// sequence's, their Outputs to its tokens, and the queue's is the queue time of the metrics.
type Timeline struct {
	Events []Event
}

// EventKind says what happened.
type EventKind uint8

// The kinds, in the order in which a life may have them.
const (
	EventQueue     EventKind = iota + 1 // waited for its first step, or for the end
	EventPrefill                        // prompt tokens were computed; the last chunk yields the first token
	EventDecode                         // tokens came at their usual pace
	EventStall                          // tokens came clearly later than usual: Cause says why
	EventPreempted                      // without a place: Cause says why
	EventRecompute                      // what was known before was computed again after that
	EventSeveral                        // the oldest of too many events, taken together
	EventEnd                            // the end, with the time since the last token: Cause says how
	EventDelivered                      // of the request: from the end to the answer's delivery
	EventLeftOut                        // of the request: so many further Sequences have no events here
)

var eventNames = [...]string{"", "queue", "prefill", "decode", "stall", "preempted", "recompute", "several", "end", "delivered", "left_out"}

func (k EventKind) String() string { return eventNames[k] }

// Cause says why: of a stall, of a lost place, or of the end.
type Cause uint8

// The causes.
const (
	CauseNone Cause = iota
	// Of a stall. The gap between two tokens holds the device's step and what lies between steps.
	CausePrefill // the step also held prompt tokens of others (or of the same request's other choices)
	CauseBatch   // the step held many more sequences than those before
	CauseStep    // the step itself took longer, with no more in it: the device, or who shares it
	CauseBetween // the time was lost between steps
	// Of a lost place: Why.
	CauseBlocks
	CauseDevice
	CauseBatcher
	// Of the end: Reason.
	CauseStop
	CauseLength
	CauseCancelled
	CauseTimeout
	CauseAbort
	CauseError
)

var causeNames = [...]string{"", "prefill_of_others", "bigger_batch", "slow_step", "between_steps",
	string(WhyBlocks), string(WhyDevice), string(WhyBatcher),
	string(ReasonStop), string(ReasonLength), string(ReasonCancelled), string(ReasonTimeout), string(ReasonAbort), string(ReasonError)}

func (c Cause) String() string { return causeNames[c] }

// cause finds a Why or a Reason among the causes.
func cause(name string) Cause {
	for c := CauseBlocks; int(c) < len(causeNames); c++ {
		if causeNames[c] == name {
			return c
		}
	}
	return CauseNone
}

// Event is one entry of a Timeline. What does not apply is 0. Durations are nanoseconds.
type Event struct {
	Kind     EventKind
	Cause    Cause
	Sequence int32 // index in the request: prompt × n + choice
	At, Dur  int64 // when it began, and how long it took

	Steps  int32 // device steps that the sequence was part of
	Prompt int32 // tokens computed: of the prompt, or again
	Output int32 // tokens generated
	Merged int32 // further events of which this one is the sum
	Cached int32 // queue, preempted: tokens that the cache had when it was over
	// Others is the number of prompt tokens of others in those steps.
	Others int32
	// Sequences is the sum over the steps of the sequences in them; of EventLeftOut, how many.
	Sequences int64
	// Busy is the time that the steps took; the rest of Dur lies between steps, or in steps without
	// this sequence.
	Busy int64
	// Excess is the part of a stall that is beyond the usual gap.
	Excess int64

	// Of the queue: the parts of its time for want of a slot, of the step's token budget, and of KV
	// cache blocks; how many slots there are; and how many sequences waited before this one when it
	// came.
	Slot, Budget, Blocks int64
	Slots, Ahead         int32
}

// What is a stall: a gap between steps with tokens that is more than twice the usual, by more than
// stallFloor, which no reader notices.
const stallFloor = 2e6

// Track makes the events of one sequence from what its Sequence hears. A regular token costs a nanosecond, and
// no look at the Track: what a run of them did is told by what the Sequence has counted meanwhile. It allocates
// only with new events, of which there are a bounded number: when there would be more, the smaller half of the
// stalls becomes part of the decoding around them, neighbouring chunks of prefill are added up, and at last the
// oldest events.
type Track struct {
	end int64 // where the last event ends, or the regular steps behind it that the Track has seen

	others  int64  // prompt tokens of others in regular steps that are not in the last event
	settled counts // when the last event was given what had gathered
	learned counts // when the pace was learned, and
	known   int64  // when that was

	// The pace.
	usual int64 // gap, nanoseconds
	batch int64 // sequences in a step, times 256
	gaps  int64 // that it is made of

	floor  int64 // stalls with less excess are part of the decoding
	events []Event
	limit  int
	seq    int32
	run    int32 // stalls in a row that no prompt of others explains

	whole    Timeline // the request's, if this is its first sequence's
	computed bool     // the last event is the step that sampled the next token
}

// steady is what a Sequence needs to know of its Track for each token.
type steady struct {
	left int64 // regular steps until the pace is learned anew; 0 unless the last event is decoding
	late int64 // the longest gap that is no stall
	busy int64 // the time that the regular steps took that are not in the last event
}

// takes says whether a step with a token is as most are: regular, and without prompts.
func (r *steady) takes(gap int64, st *Step) bool {
	return r.left > 1 && r.regular(gap) && st != nil && st.PrefillTokens == 0
}

// regular says whether a gap is neither a stall nor negative, which as unsigned is longer than any.
func (r *steady) regular(gap int64) bool { return uint64(gap) <= uint64(r.late) }

// count takes a regular step.
func (r *steady) count(st *Step) {
	r.left--
	r.busy += st.End - st.Start
}

// counts are what a Sequence has counted.
type counts struct{ steps, sequences, tokens int64 }

func (s *Sequence) counts() counts { return counts{int64(s.Steps), int64(s.BatchSum), int64(s.Tokens)} }

func (c counts) plus(st *Step, tokens int) counts {
	return counts{c.steps + 1, c.sequences + int64(st.Sequences), c.tokens + int64(tokens)}
}

func (c counts) minus(o counts) counts {
	return counts{c.steps - o.steps, c.sequences - o.sequences, c.tokens - o.tokens}
}

// plainLife is how many events a plain life has, with the delivery.
const plainLife = 5

// single is all that a request with one sequence needs: in one piece, since most requests are that.
type single struct {
	track  [1]Track
	events [plainLife]Event
}

// NewTracks returns the tracks of a request's first sequences, as many as may have one each.
func NewTracks(sequences int) []Track {
	const own, least = 2, 7 // events that are the request's; what a plain life with one stall needs
	n := min(sequences, (MaxEvents-own)/least)
	if n < 1 {
		return nil
	}
	var tracks []Track
	var events []Event
	if n == 1 {
		s := &single{}
		tracks, events = s.track[:], s.events[:]
	} else {
		tracks, events = make([]Track, n), make([]Event, n*plainLife)
	}
	for i := range tracks {
		t := &tracks[i]
		t.seq, t.limit, t.floor = int32(i), (MaxEvents-own)/n, stallFloor
		t.events, events = events[:0:plainLife], events[plainLife:]
	}
	return tracks
}

// decoded takes the tokens of a step that decoded, and that were not steady. The sequence has not counted them
// yet.
func (s *Sequence) decoded(m *Tokens, keep int) {
	t, st, r := s.Track, m.Step, &s.steady
	if st == nil || keep <= 0 || r.left == 0 || !r.regular(m.At-s.LastToken) {
		if s.track().irregular(m, keep) == EventDecode && st != nil {
			t.settled = s.counts().plus(st, keep)
			t.pace(r, t.settled)
		}
		return
	}
	t.end = max(t.end, m.At)
	t.others += int64(st.PrefillTokens)
	if r.count(st); r.left == 0 {
		now := s.counts().plus(st, keep)
		t.learn(now)
		t.pace(r, now)
	}
}

// track is the sequence's track, nil when there is none, with what regular steps have gathered made part of
// its last event. All that can happen besides a regular step goes through it, before it is counted.
func (s *Sequence) track() *Track {
	t, r := s.Track, &s.steady
	if t == nil || r.left == 0 {
		return t
	}
	r.left = 0
	now := s.counts()
	did := now.minus(t.settled)
	if did.steps == 0 {
		return t
	}
	t.end = max(t.end, s.LastToken)
	t.learn(now)
	e := &t.events[len(t.events)-1]
	e.Dur = t.end - e.At
	e.Steps += int32(did.steps)
	e.Output += int32(did.tokens)
	e.Sequences += did.sequences
	e.Busy += max(r.busy, 0)
	e.Others += int32(t.others)
	r.busy, t.others, t.run = 0, 0, 0
	return t
}

// add appends an event from the last one's end to at and returns it.
func (t *Track) add(kind EventKind, why Cause, at int64) *Event {
	if len(t.events) >= t.limit-1 && kind != EventEnd {
		t.fold()
	}
	t.events = append(t.events, Event{Kind: kind, Cause: why, Sequence: t.seq, At: t.end})
	e := &t.events[len(t.events)-1]
	t.reach(e, at)
	return e
}

// reach makes the last event end at at.
func (t *Track) reach(e *Event, at int64) {
	at = max(at, t.end)
	e.Dur += at - t.end
	t.end = at
}

func (t *Track) submitted(at int64) {
	if t != nil && len(t.events) == 0 {
		t.end = at
	}
}

func (t *Track) scheduled(m *Scheduled, at, slot, blocks int64) {
	if t == nil {
		return
	}
	e := t.add(EventQueue, CauseNone, at)
	e.Budget = min(max(m.WaitedBudget, 0), slot)
	e.Slot, e.Blocks = slot-e.Budget, blocks
	e.Cached, e.Slots, e.Ahead = int32(m.Cached), int32(m.Slots), int32(m.Ahead)
}

// displaced says that the sequence lost its place: the step that was under way came to nothing.
func (t *Track) displaced(at int64, again bool) {
	if t == nil || at <= t.end {
		return
	}
	e := &t.events[len(t.events)-1]
	if e.Kind == EventQueue || e.Kind == EventPreempted {
		t.add(prefill(again), CauseNone, at)
		return
	}
	t.reach(e, at)
}

// resumed says that a sequence without a place has one again, or that its life ends there.
func (t *Track) resumed(at int64, why Why, cached int) {
	if t == nil {
		return
	}
	t.add(EventPreempted, cause(string(why)), at).Cached = int32(cached)
}

// prefilled takes a chunk; again says that it is computed for the second time.
func (t *Track) prefilled(m *Prefilled, again bool) {
	if t == nil {
		return
	}
	e := t.add(prefill(again), CauseNone, m.At)
	e.Prompt = int32(m.Tokens)
	e.in(m.Step, m.Tokens)
	t.computed = m.Last
}

func prefill(again bool) EventKind {
	if again {
		return EventRecompute
	}
	return EventPrefill
}

// in adds a step that the event's sequence was part of with so many tokens of a prompt.
func (e *Event) in(st *Step, prompt int) {
	e.Steps++
	if st == nil {
		return
	}
	e.Sequences += int64(st.Sequences)
	e.Busy += max(st.End-st.Start, 0)
	e.Others += int32(max(st.PrefillTokens-prompt, 0))
}

// first takes the tokens of a step that was, or should have been, told of by Prefilled.
func (t *Track) first(m *Tokens, keep int) {
	if t == nil {
		return
	}
	var e *Event
	if n := len(t.events); t.computed && n > 0 {
		e = &t.events[n-1]
		t.reach(e, m.At)
	} else {
		e = t.add(EventPrefill, CauseNone, m.At)
	}
	e.Output += int32(keep)
	t.computed = false
}

// irregular takes the tokens of a step that decoded, and was not as regular as those before it, or is the first
// of them. It says whether it was a stall or not.
func (t *Track) irregular(m *Tokens, keep int) EventKind {
	gap := max(m.At-t.end, 0)
	kind, why := EventDecode, CauseNone
	excess := gap - t.usual
	if t.gaps > 0 && excess > t.usual && excess > t.floor {
		kind, why = EventStall, t.blame(m.Step, gap, excess)
	}
	e := &t.events[len(t.events)-1]
	if e.Kind == kind && e.Cause == why {
		t.reach(e, m.At)
	} else {
		e = t.add(kind, why, m.At)
	}
	e.Output += int32(keep)
	if kind == EventStall {
		e.Excess += excess
	}
	e.in(m.Step, 0)
	st := m.Step
	if st == nil {
		return kind
	}
	switch why {
	case CausePrefill: // says nothing of the usual
	case CauseNone:
		t.run = 0
		if t.gaps == 0 && st.Baseline > 0 {
			gap = min(gap, st.Baseline) // the first one may be a stall itself
		}
		t.take(1, gap, int64(st.Sequences))
	default:
		if t.run++; t.run == newPace {
			t.run, t.gaps = 0, 0
			t.take(1, gap, int64(st.Sequences))
		}
	}
	return kind
}

const (
	newPace = 8  // so many gaps in a row, each too long, are the new pace
	memory  = 16 // of so many gaps the pace is made
)

// learn takes the regular steps since the last time into the pace. now is what the sequence has counted with
// the last of them, whose token ends what the track has seen.
func (t *Track) learn(now counts) {
	if did := now.minus(t.learned); did.steps > 0 {
		t.take(did.steps, t.end-t.known, did.sequences)
	}
}

// take takes n gaps into the pace: how long they were together, and how many sequences the steps had. On the
// average they count as twice what was usual at most: those too short to be told as stalls can be much longer.
func (t *Track) take(n, length, sequences int64) {
	if t.gaps > 0 {
		length = min(length, 2*n*t.usual)
	}
	t.usual = (t.usual*t.gaps + length) / (t.gaps + n)
	t.batch = (t.batch*t.gaps + sequences<<8) / (t.gaps + n)
	t.gaps = min(t.gaps+n, memory)
}

// pace tells r how long a gap may be from now on, until as many have come as the pace is made of.
func (t *Track) pace(r *steady, now counts) {
	t.learned, t.known = now, t.end
	r.left, r.late = t.gaps, t.usual+max(t.usual, t.floor)
}

// blame says what made a gap longer than usual.
func (t *Track) blame(st *Step, gap, excess int64) Cause {
	if st == nil || gap-(st.End-st.Start) > excess/2 {
		return CauseBetween
	}
	switch {
	case st.PrefillTokens > 0:
		return CausePrefill
	case int64(st.Sequences)<<8 > t.batch+t.batch/2:
		return CauseBatch
	}
	return CauseStep
}

// ended closes the track. state is the one before the end.
func (t *Track) ended(at int64, state State, why Why, reason Reason) {
	if t == nil {
		return
	}
	switch state {
	case Waiting:
		t.add(EventQueue, CauseNone, at)
	case Displaced:
		t.resumed(at, why, 0)
	}
	t.add(EventEnd, cause(string(reason)), at)
}

// fold makes room.
func (t *Track) fold() {
	var list [MaxEvents]int64
	stalls := list[:0]
	for i := range t.events {
		if e := &t.events[i]; e.Kind == EventStall {
			stalls = append(stalls, e.Excess)
		}
	}
	if len(stalls) > 0 {
		slices.Sort(stalls)
		t.floor = max(t.floor, stalls[(len(stalls)-1)/2])
	}
	out := t.events[:1] // the queue stays as it is
	paired := false
	for i := 1; i < len(t.events); i++ {
		e := t.events[i]
		if e.Kind == EventStall && e.Excess <= t.floor {
			e.Kind, e.Cause, e.Excess = EventDecode, CauseNone, 0
		}
		last := &out[len(out)-1]
		switch {
		case e.Kind != last.Kind:
		case e.Kind == EventDecode:
			last.merge(&e)
			continue
		case (e.Kind == EventPrefill || e.Kind == EventRecompute) && !paired:
			last.merge(&e)
			paired = true
			continue
		}
		paired = false
		out = append(out, e)
	}
	if over := len(out) - (t.limit+1)/2; len(out) > t.limit*3/4 && len(out) > 2 {
		over = min(max(over, 1), len(out)-2)
		for i := 2; i < 2+over; i++ {
			out[1].merge(&out[i])
		}
		out = append(out[:2], out[2+over:]...)
	}
	t.events = out
}

// merge adds the event that follows to e.
func (e *Event) merge(o *Event) {
	if e.Kind != o.Kind {
		e.Kind = EventSeveral
	}
	if e.Cause != o.Cause {
		e.Cause = CauseNone
	}
	e.Dur += o.Dur
	e.Steps += o.Steps
	e.Prompt += o.Prompt
	e.Output += o.Output
	e.Merged += o.Merged + 1
	e.Cached += o.Cached
	e.Others += o.Others
	e.Sequences += o.Sequences
	e.Busy += o.Busy
	e.Excess += o.Excess
}

// Totals are what the events of a sequence add up to.
type Totals struct {
	Dur       int64 // nanoseconds
	Steps     int
	Prompt    int
	Output    int
	Sequences int64
}

// Sum adds up the events of sequences; those of the request as a whole are left out.
func Sum(events []Event) Totals {
	var t Totals
	for i := range events {
		e := &events[i]
		if e.Kind == EventDelivered || e.Kind == EventLeftOut {
			continue
		}
		t.Dur += e.Dur
		t.Steps += int(e.Steps)
		t.Prompt += int(e.Prompt)
		t.Output += int(e.Output)
		t.Sequences += e.Sequences
	}
	return t
}

// timeline puts the sequences' tracks together; nil when there are none.
func timeline(seqs []Sequence, e *Ending) *Timeline {
	if len(seqs) == 0 || seqs[0].Track == nil {
		return nil
	}
	first := seqs[0].Track
	events := seqs[0].Events()
	left := 0
	for i := 1; i < len(seqs); i++ {
		if seqs[i].Track != nil {
			events = append(events[:len(events):len(events)], seqs[i].Events()...)
		} else {
			left++
		}
	}
	if left > 0 {
		events = append(events[:len(events):len(events)], Event{Kind: EventLeftOut, Sequences: int64(left)})
	}
	if e.Delivered > 0 && e.Finished > 0 {
		events = append(events, Event{Kind: EventDelivered, At: e.Finished, Dur: max(e.Delivered-e.Finished, 0)})
	}
	first.whole.Events = events
	return &first.whole
}

// Events are the sequence's events so far, the last one up to its last token; none without a Track. They are
// valid until the sequence hears the next message.
func (s *Sequence) Events() []Event {
	if t := s.track(); t != nil {
		return t.events
	}
	return nil
}

// AppendJSON appends the timeline as a JSON array, as in the request log: an object for each event,
// with e (the kind), at and ms (when it began, in milliseconds from arrival, and how long it took),
// and those others that are not 0. A nil Timeline is null.
func (t *Timeline) AppendJSON(dst []byte, arrival int64) []byte {
	if t == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, '[')
	for i := range t.Events {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = t.Events[i].appendJSON(dst, arrival)
	}
	return append(dst, ']')
}

// What an event's object begins with, by its kind, and how it goes on with a cause.
var (
	eventHeads [len(eventNames)]string
	causeParts [len(causeNames)]string
)

func init() {
	for k, name := range eventNames {
		eventHeads[k] = `{"e":"` + name + `"`
	}
	for c, name := range causeNames[1:] {
		causeParts[c+1] = `,"why":"` + name + `"`
	}
}

func (e *Event) appendJSON(dst []byte, arrival int64) []byte {
	dst = append(dst, eventHeads[e.Kind]...)
	if e.Kind == EventLeftOut {
		if e.Sequences != 0 {
			dst = AppendInt(append(dst, `,"sequences":`...), e.Sequences)
		}
		return append(dst, '}')
	}
	if e.Sequence != 0 {
		dst = AppendInt(append(dst, `,"seq":`...), int64(e.Sequence))
	}
	dst = AppendMillis(append(dst, `,"at":`...), e.At-arrival)
	dst = AppendMillis(append(dst, `,"ms":`...), e.Dur)
	dst = append(dst, causeParts[e.Cause]...)
	if e.Prompt != 0 {
		dst = AppendInt(append(dst, `,"prompt":`...), int64(e.Prompt))
	}
	if e.Output != 0 {
		dst = AppendInt(append(dst, `,"output":`...), int64(e.Output))
	}
	if e.Cached != 0 {
		dst = AppendInt(append(dst, `,"cached":`...), int64(e.Cached))
	}
	if e.Steps != 0 {
		dst = AppendInt(append(dst, `,"steps":`...), int64(e.Steps))
	}
	if e.Busy > 0 {
		dst = AppendMillis(append(dst, `,"step_ms":`...), e.Busy)
	}
	if e.Steps > 0 && e.Sequences > 0 {
		// The mean with two decimals.
		c := (e.Sequences*100 + int64(e.Steps)/2) / int64(e.Steps)
		dst = AppendMillis(append(dst, `,"batch":`...), c*1e4)
	}
	if e.Others != 0 {
		dst = AppendInt(append(dst, `,"others":`...), int64(e.Others))
	}
	if e.Excess > 0 {
		dst = AppendMillis(append(dst, `,"excess_ms":`...), e.Excess)
	}
	if e.Slot > 0 {
		dst = AppendMillis(append(dst, `,"slot_ms":`...), e.Slot)
	}
	if e.Budget > 0 {
		dst = AppendMillis(append(dst, `,"budget_ms":`...), e.Budget)
	}
	if e.Blocks > 0 {
		dst = AppendMillis(append(dst, `,"kv_ms":`...), e.Blocks)
	}
	if e.Slots != 0 {
		dst = AppendInt(append(dst, `,"slots":`...), int64(e.Slots))
	}
	if e.Ahead != 0 {
		dst = AppendInt(append(dst, `,"ahead":`...), int64(e.Ahead))
	}
	if e.Merged != 0 {
		dst = AppendInt(append(dst, `,"merged":`...), int64(e.Merged))
	}
	return append(dst, '}')
}
