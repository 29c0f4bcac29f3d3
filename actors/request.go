package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
	"unsafe"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-llm/troupe/actors/text"
	"github.com/troupe-llm/troupe/lifecycle"
)

const (
	// flushEvery is the least time between two Progress of a request.
	flushEvery = int64(250 * time.Millisecond)
	// maxLosses is how often in a row, without a token in between, a request submits again after
	// the batcher lost it: it may be what breaks the batcher.
	maxLosses = 3
	// abandonGrace is how long an abandoned sink has to say what it delivered.
	abandonGrace = time.Second
)

// abandoner is a sink that can be told that its time for delivery is over: it cuts its reader off
// and reports, by Delivered, how far it came.
type abandoner interface{ Abandon() }

// request is the actor of one request: it submits its sequences, hears what becomes of them,
// measures itself, turns tokens into text for its sink, and closes its books exactly once.
type request struct {
	rt   *Runtime
	req  *lifecycle.Request
	sink Sink
	line *line
	// engine is the one whose batcher has the sequences. It changes when its device has gone.
	engine int

	seqs    []lifecycle.Sequence
	choices []choice
	wall    int64
	running int // sequences not ended
	losses  int

	// What has been counted for Progress.
	flushed   lifecycle.Usage
	flushedAt int64
	itl       lifecycle.ITLHistogram // since the last flush
	itlTotal  lifecycle.ITLHistogram

	usage     lifecycle.Usage
	err       *lifecycle.Error
	gone      *lifecycle.Gone
	finished  int64 // when the last sequence ended; 0 while any runs
	reported  *lifecycle.Delivered
	answered  bool // the sink has had its End
	closed    bool
	panicked  bool
	abandoned bool // the sink has been told that its time is over

	timers []*time.Timer
	delta  lifecycle.Delta // what the sink gets, which may look at it during the call only
}

// choice is what the request keeps of one sequence besides its timings.
type choice struct {
	text text.Stream
	ids  []int32 // all tokens, kept ones only: also what a new Submit resumes from
	// answer is the text so far. It is only ever appended to, so that parts of it can be handed out
	// as strings: see tail.
	answer []byte
	logs   []lifecycle.TokenLogprob
	scores []lifecycle.TokenLogprob
	stop   string
	sent   bool // a delta has gone out
	last   bool // the delta with the reason has gone out
}

var errDeadline = &lifecycle.Error{Status: 504, Type: "timeout_error", Code: "deadline_exceeded",
	Message: "the request's time limit has passed"}

var errClosing = &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "shutting_down",
	Message: "the server is shutting down: retry on another server"}

// expired and undelivered are the request's own timers.
type (
	expired     struct{}
	undelivered struct{}
)

// lost tells a request that an engine's batcher has forgotten its sequences.
type lost struct{ engine int }

// move tells a request that its sequences go on with another engine, as its own has no device. suspect
// says that they were in the step in which that failed.
type move struct {
	engine  int
	suspect bool
}

func newRequest(rt *Runtime, s *start, engine int) *request {
	return &request{rt: rt, req: s.req, sink: s.sink, line: s.line, engine: engine}
}

// batcher is whom the request tells what becomes of its sequences.
func (r *request) batcher() *actor.PID { return r.rt.engines[r.engine].batcher }

// Receive implements actor.Actor.
func (r *request) Receive(ctx actor.Context) {
	defer r.noted()
	switch m := ctx.Message().(type) {
	case *actor.Started:
		r.begin(ctx)
	case lifecycle.Message:
		r.hear(ctx, m)
	case lifecycle.Gone:
		r.leave(ctx, m)
	case lifecycle.Delivered:
		if r.reported == nil {
			r.reported = &m
			if m.Err != nil && r.gone == nil {
				r.leave(ctx, lifecycle.Gone{At: m.At, Slow: m.Slow})
			}
		}
	case lost:
		if m.engine == r.engine { // else it has moved since
			r.submitAgain(ctx, true, "the scheduler")
		}
	case move:
		r.move(ctx, m)
	case survey:
		if !r.closed {
			m(r.glance())
		}
	case *inquiry:
		if !r.closed && r.req.ID == m.id {
			m.told(r.req.Arrival, r.timeline())
		} else {
			m.deny()
		}
	case expired:
		r.fail(ctx, lifecycle.ReasonTimeout, errDeadline)
	case endAll:
		r.fail(ctx, lifecycle.ReasonError, errClosing)
	case undelivered:
		if s, ok := r.sink.(abandoner); ok && r.reported == nil && !r.abandoned {
			r.abandoned = true
			s.Abandon()
			r.after(ctx, abandonGrace, undelivered{})
			break
		}
		if r.reported == nil {
			r.reported = &lifecycle.Delivered{At: r.rt.Now(), Err: errors.New("the reader never reported delivery")}
		}
		r.close(ctx)
	case *actor.Stopping:
		r.crash(ctx)
	case *actor.Stopped:
		// The actor system's lists of children keep stopped ones until others take their place: as many
		// as there once were at a time.
		*r = request{closed: true}
	}
	if r.running == 0 && r.answered && r.reported != nil && !r.closed && r.settled() {
		r.close(ctx)
	}
}

func (r *request) begin(ctx actor.Context) {
	now := r.rt.Now()
	r.wall = time.Now().UnixNano() - (now - r.req.Arrival)
	n := r.req.Sequences()
	r.seqs = make([]lifecycle.Sequence, n)
	r.choices = make([]choice, n)
	r.running = n
	p := r.req.Params
	r.flushedAt = now
	r.usage.Prompt = r.req.PromptTokens()
	stops := text.NewStops(p.Stop)
	var tracks []lifecycle.Track
	if r.rt.cfg.Timeline {
		tracks = lifecycle.NewTracks(n)
	}
	for i := range r.seqs {
		prompt := r.req.Prompts[i/r.req.N]
		var gaps *lifecycle.Gaps
		if r.rt.cfg.Detail {
			gaps = &lifecycle.Gaps{}
		}
		r.seqs[i] = lifecycle.NewSequence(lifecycle.SeqID{Request: r.req.ID, Index: int32(i)}, len(prompt), &r.itl, gaps)
		if i < len(tracks) {
			r.seqs[i].Track = &tracks[i]
		}
		r.choices[i].text = text.New(r.rt.cfg.Tokenizer, stops, p.IncludeStop, p.SkipSpecialTokens)
	}
	if r.req.Deadline > 0 {
		r.after(ctx, time.Duration(r.req.Deadline-now), expired{})
	}
	for i := range r.seqs {
		r.submit(ctx, i)
	}
	for _, m := range r.line.pickUp(ctx.Self()) {
		ctx.Send(ctx.Self(), m)
	}
}

// after sends the actor m after d; the timer dies with the request.
func (r *request) after(ctx actor.Context, d time.Duration, m any) {
	self, root := ctx.Self(), r.rt.system.Root
	r.timers = append(r.timers, time.AfterFunc(max(d, 0), func() { root.Send(self, m) }))
}

func (r *request) submit(ctx actor.Context, i int) {
	s := &r.seqs[i]
	epoch := s.Submitted(r.rt.Now())
	ctx.Request(r.batcher(), &lifecycle.Submit{
		ID: s.ID, Epoch: epoch,
		Prompt: r.req.Prompts[i/r.req.N], Output: r.choices[i].ids[:len(r.choices[i].ids):len(r.choices[i].ids)],
		Params: r.req.Params, Priority: r.req.Priority, Arrival: r.req.Arrival, Deadline: r.req.Deadline,
		Group: r.req.N, Salt: r.req.Salt,
	})
}

// submitAgain submits what has not ended, from where it is. suspect says that it may be what made the
// batcher lose it, or its device.
func (r *request) submitAgain(ctx actor.Context, suspect bool, failed string) {
	if suspect {
		r.losses++
	}
	if r.losses > maxLosses {
		r.fail(ctx, lifecycle.ReasonError, &lifecycle.Error{Status: 500, Type: "server_error", Code: "batcher_lost",
			Message: fmt.Sprintf("%s failed %d times in a row with this request in it", failed, r.losses)})
	}
	now := r.rt.Now()
	for i := range r.seqs {
		r.seqs[i].Lose(now)
		if r.seqs[i].State != lifecycle.Ended {
			r.submit(ctx, i)
		}
	}
}

// move goes on with another engine. The one before may have its device again by the time that it hears of
// it: what it says of the sequences until then is of an older epoch.
//
// A request that has ended and only has its answer delivered stays where it was computed: there it is counted.
// So is what the engine before has generated.
func (r *request) move(ctx actor.Context, m move) {
	if r.running == 0 {
		for i := range r.seqs {
			r.seqs[i].Lose(r.rt.Now()) // it may be too late for the answer to a Cancel
		}
		return
	}
	if r.rt.cfg.Observer != nil && r.usage.Completion > r.flushed.Completion {
		r.flush(r.rt.Now())
	}
	for i := range r.seqs {
		if s := &r.seqs[i]; s.State != lifecycle.Ended {
			ctx.Request(r.batcher(), &lifecycle.Cancel{ID: s.ID, Epoch: s.Epoch})
		}
	}
	r.engine = m.engine
	r.submitAgain(ctx, m.suspect, "the device")
}

// hear takes a message of the batcher.
func (r *request) hear(ctx actor.Context, m lifecycle.Message) {
	i := int(m.Header().ID.Index)
	if i < 0 || i >= len(r.seqs) || r.closed {
		return
	}
	s, c := &r.seqs[i], &r.choices[i]
	verdict, err := s.Accept(m)
	if verdict == lifecycle.Late {
		return
	}
	if err != nil {
		r.fail(ctx, lifecycle.ReasonError, &lifecycle.Error{Status: 500, Type: "server_error", Code: "message_order", Message: err.Error()})
		return
	}
	if s.State == lifecycle.Ended {
		s.Apply(m, -1)
		return
	}
	switch m := m.(type) {
	case *lifecycle.Prefilled:
		s.Apply(m, -1)
		if len(m.Scores) > 0 { // once more, if it was lost before its first token
			c.scores = append(c.scores[:min(len(c.scores), m.ScoreFrom-1)], m.Scores...)
		}
	case *lifecycle.Tokens:
		r.tokens(ctx, i, m)
	case *lifecycle.Scheduled:
		first := s.Scheduled == 0
		s.Apply(m, -1)
		if first && i%r.req.N == 0 {
			r.usage.Cached += s.Cached
		}
	case *lifecycle.Finished:
		s.Apply(m, -1)
		if m.Reason == lifecycle.ReasonTimeout {
			r.fail(ctx, lifecycle.ReasonTimeout, errDeadline)
			return
		}
		// Without a token that says so (an echo of the prompt alone), the end is a delta of its own.
		r.last(i, m.Reason)
		r.ended(ctx, m.At)
	case *lifecycle.Failed:
		s.Apply(m, -1)
		r.fail(ctx, lifecycle.ReasonError, m.Err)
	default:
		s.Apply(m, -1)
	}
}

// tokens turns a step's tokens into text, looks for the end, and tells the sink.
func (r *request) tokens(ctx actor.Context, i int, m *lifecycle.Tokens) {
	s, c, p := &r.seqs[i], &r.choices[i], r.req.Params
	r.losses = 0
	keep := len(m.IDs)
	stop, from := "", len(c.answer)
	for k, id := range m.IDs {
		// The token that ended the sequence is no text, unless asked for.
		if m.Reason == lifecycle.ReasonStop && k == len(m.IDs)-1 && !p.IncludeStop {
			break
		}
		c.answer, stop = c.text.Push(c.answer, id, s.Tokens+k+1 >= p.MinTokens)
		if stop != "" {
			keep = k + 1
			break
		}
	}
	s.Apply(m, keep)
	ended := s.State == lifecycle.Ended
	if stop != "" {
		if !ended {
			s.End(m.At, lifecycle.ReasonStop)
			ctx.Request(r.batcher(), &lifecycle.Cancel{ID: s.ID, Epoch: s.Epoch})
			ended = true
		}
		s.Reason, s.StopToken = lifecycle.ReasonStop, -1
		c.stop = stop
	}
	if ended {
		c.answer = c.text.Flush(c.answer)
	}
	r.usage.Completion += keep
	c.ids = append(c.ids, m.IDs[:keep]...)
	r.delta = lifecycle.Delta{Choice: i, Text: c.tail(from), First: !c.sent, IDs: m.IDs[:keep], StopToken: -1, Usage: r.usage}
	d := &r.delta
	if len(m.Logprobs) >= keep {
		d.Logprobs = m.Logprobs[:keep]
	}
	if ended {
		d.Reason, d.StopString, d.StopToken = s.Reason, c.stop, s.StopToken
	}
	r.deliver(d)
	if r.rt.cfg.Observer != nil && m.At-r.flushedAt >= flushEvery {
		r.flush(m.At)
	}
	if ended {
		r.ended(ctx, m.At)
	}
}

// tail is the text from the given byte on. What append leaves behind or goes on with is never
// written again, so the bytes can be shared.
func (c *choice) tail(from int) string {
	t := c.answer[from:]
	return unsafe.String(unsafe.SliceData(t), len(t))
}

// deliver hands a delta to the sink.
func (r *request) deliver(d *lifecycle.Delta) {
	c := &r.choices[d.Choice]
	if d.First {
		d.PromptScores = c.scores
	}
	c.sent = true
	c.last = d.Reason != ""
	if !r.req.Stream {
		c.logs = append(c.logs, d.Logprobs...)
	} else if c.last && r.rt.cfg.Detail && len(r.seqs) > 1 {
		m := r.seqs[d.Choice].Timing().Metrics()
		d.Metrics, d.Detail = &m, r.detail(d.Choice)
	}
	if r.gone == nil && !r.answered {
		r.sink.Delta(d)
	}
}

// detail is what the means hide of choice i, which has ended; nil unless details are asked for.
func (r *request) detail(i int) *lifecycle.Detail {
	if !r.rt.cfg.Detail {
		return nil
	}
	d := lifecycle.Details(r.req, r.seqs[i:i+1], r.seqs[i].Ended)
	return &d
}

// last sends the delta that ends a choice without a token, with the text that was held back.
func (r *request) last(i int, reason lifecycle.Reason) {
	c := &r.choices[i]
	if c.last || r.err != nil || r.gone != nil {
		return
	}
	from := len(c.answer)
	c.answer = c.text.Flush(c.answer)
	r.delta = lifecycle.Delta{Choice: i, Text: c.tail(from), First: !c.sent, Reason: reason, StopToken: -1, Usage: r.usage}
	r.deliver(&r.delta)
}

// ended notes that one more sequence has ended; the last one answers.
func (r *request) ended(ctx actor.Context, at int64) {
	r.running--
	if r.running <= 0 {
		r.running = 0
		r.answer(ctx, at)
	}
}

// leave ends everything because the client has gone, or does not read.
func (r *request) leave(ctx actor.Context, g lifecycle.Gone) {
	if r.gone != nil || r.closed {
		return
	}
	r.gone = &g
	r.cancelAll(ctx, lifecycle.ReasonAbort)
	r.answer(ctx, r.rt.Now())
}

// fail ends everything with an error for the client.
func (r *request) fail(ctx actor.Context, reason lifecycle.Reason, err *lifecycle.Error) {
	if r.answered || r.closed {
		return
	}
	if r.err == nil {
		r.err = err
	}
	r.cancelAll(ctx, reason)
	r.answer(ctx, r.rt.Now())
}

func (r *request) cancelAll(ctx actor.Context, reason lifecycle.Reason) {
	now := r.rt.Now()
	for i := range r.seqs {
		s := &r.seqs[i]
		if s.State == lifecycle.Ended {
			continue
		}
		if s.State != lifecycle.Fresh {
			ctx.Request(r.batcher(), &lifecycle.Cancel{ID: s.ID, Epoch: s.Epoch})
		}
		s.End(now, reason)
	}
	r.running = 0
}

// answer gives the sink its End, once.
func (r *request) answer(ctx actor.Context, at int64) {
	if r.answered {
		return
	}
	r.answered = true
	r.finished = at
	r.usage = lifecycle.Total(r.req, r.seqs)
	resp := &lifecycle.Response{Choices: make([]lifecycle.Choice, len(r.seqs)), Usage: r.usage, Err: r.err,
		Metrics: lifecycle.Whole(r.seqs).Metrics(), Wall: r.wall + at - r.req.Arrival}
	for i := range r.seqs {
		s, c := &r.seqs[i], &r.choices[i]
		resp.Choices[i] = lifecycle.Choice{Text: c.tail(0), IDs: c.ids, Logprobs: c.logs, PromptScores: c.scores,
			Reason: s.Reason, StopString: c.stop, StopToken: s.StopToken, Metrics: s.Timing().Metrics(), Detail: r.detail(i)}
		c.answer, c.logs = nil, nil
	}
	if r.rt.cfg.Detail {
		d := lifecycle.Details(r.req, r.seqs, at)
		resp.Detail = &d
	}
	r.after(ctx, r.rt.cfg.DeliveryTimeout, undelivered{})
	r.sink.End(resp)
}

// settled says whether the batcher has nothing more to say about any sequence.
func (r *request) settled() bool {
	for i := range r.seqs {
		if !r.seqs[i].Settled {
			return false
		}
	}
	return true
}

// flush reports what was counted since the last time.
func (r *request) flush(at int64) {
	p := lifecycle.Progress{
		Model: r.req.Model, Engine: r.engine,
		Prompt: r.usage.Prompt - r.flushed.Prompt, Cached: r.usage.Cached - r.flushed.Cached,
		Tokens: r.usage.Completion - r.flushed.Completion, ITL: r.itl,
	}
	r.itlTotal.Add(&r.itl)
	r.itl = lifecycle.ITLHistogram{}
	r.flushed, r.flushedAt = r.usage, at
	r.rt.cfg.Observer.Progress(&p)
}

// close makes the Record, hands it to the observer, gives the place back and stops the actor.
func (r *request) close(ctx actor.Context) {
	if r.closed {
		return
	}
	r.closed = true
	r.line.hangUp()
	for _, t := range r.timers {
		t.Stop()
	}
	if o := r.rt.cfg.Observer; o != nil {
		e := r.ending()
		if e.Outcome != lifecycle.OutcomeRefused {
			r.usage = lifecycle.Total(r.req, r.seqs)
			r.flush(r.rt.Now())
		}
		rec := lifecycle.Close(r.req, r.seqs, e)
		rec.ITL, rec.Engine, rec.Engines = r.itlTotal, r.engine, len(r.rt.engines)
		if len(r.choices) > 0 {
			rec.StopString = r.choices[0].stop
		}
		o.Observe(rec)
	}
	r.rt.Release()
	ctx.Poison(ctx.Self())
}

// ending says how the request ended, for its Record.
func (r *request) ending() lifecycle.Ending {
	e := lifecycle.Ending{Status: 200, Err: r.err, Finished: r.finished, Wall: r.wall}
	if d := r.reported; d != nil {
		e.Delivered, e.Bytes = d.At, d.Bytes
	}
	switch {
	case r.err != nil:
		e.Outcome, e.Status = lifecycle.OutcomeError, r.err.Status
		if r.refused() {
			e.Outcome = lifecycle.OutcomeRefused
		}
	case r.gone != nil || r.reported != nil && r.reported.Err != nil:
		e.Outcome, e.Status = lifecycle.OutcomeAbort, 499
		if r.gone != nil && r.gone.Slow {
			e.StalledSince = r.gone.Since
			e.Err = &lifecycle.Error{Status: 499, Type: "client_error", Code: "slow_client", Message: "the client did not read its answer and was cut off"}
		}
	default:
		e.Outcome = lifecycle.OutcomeStop
		for i := range r.seqs {
			if r.seqs[i].Reason == lifecycle.ReasonLength {
				e.Outcome = lifecycle.OutcomeLength
			}
		}
	}
	return e
}

// refused says whether the scheduler would not have the request: the client's mistake, found only
// there.
func (r *request) refused() bool {
	return r.err.Status < 500 && lifecycle.Whole(r.seqs).Scheduled == 0
}

// crash closes the books of a request whose actor is stopped before its time: it panicked and its
// supervisor stops it, or intake panicked, whose children end with it, or the runtime is closed. This is the
// last that the same instance hears.
func (r *request) crash(ctx actor.Context) {
	if r.closed {
		return
	}
	if r.err == nil {
		r.err = errClosing
		if !r.rt.Draining() {
			r.err = &lifecycle.Error{Status: 500, Type: "server_error", Code: "intake_panic", Message: "what starts requests failed inside the server, and all requests with it: retry"}
		}
	}
	if r.panicked {
		r.err = &lifecycle.Error{Status: 500, Type: "server_error", Code: "request_panic", Message: "the request failed inside the server; other requests are not affected"}
	}
	// The sink may be what panicked: whatever it does now, the books are closed.
	guard(r.rt.cfg.Logger, func() { r.cancelAll(ctx, lifecycle.ReasonError) })
	guard(r.rt.cfg.Logger, func() { r.answer(ctx, r.rt.Now()) })
	r.close(ctx)
}

// noted logs a panic with its stack and lets it go on to the supervisor, who knows what to do but
// not what happened.
func (r *request) noted() {
	if p := recover(); p != nil {
		r.panicked = true
		r.rt.cfg.Logger.Error("a request's actor panicked", slog.Uint64("request", r.req.ID), slog.String("external_id", r.req.ExternalID),
			slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		panic(p)
	}
}

// guard runs f and logs a panic instead of passing it on.
func guard(log *slog.Logger, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic while closing a failed request", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		}
	}()
	f()
}
