package actors

import (
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-llm/troupe/lifecycle"
)

// Glance is what a running request says of itself when it is asked: a small value, the reader's own,
// but for Request, which never changes.
type Glance struct {
	Request *lifecycle.Request
	Wall    int64 // wall clock at arrival, nanoseconds since 1970
	// State is that of the sequence that has come furthest: Decoding when any decodes, and Ended when
	// all that is left is the delivery.
	State lifecycle.State
	// Timing is the request's as a whole; 0 where it has not come to that.
	lifecycle.Timing
	// Prefilled is how many prompt tokens have been computed or found in the prefix cache, each prompt
	// once; Cached those found.
	Prefilled, Cached int
	Preemptions       int
	Engine, Engines   int // which computes it, from 0, of so many
}

// survey asks every request for a Glance; the requests' actors call it.
type survey func(Glance)

// Survey asks all running requests how they are. Each answers by calling told, from its own actor, at
// once or as soon as it has heard what was told it before; told must be safe for concurrent use and
// must not block. A request that ends first does not answer, and each answer of a request comes before
// its Record. It costs each request about what a token does, and nobody anything when it is not called.
func (r *Runtime) Survey(told func(Glance)) { r.system.Root.Send(r.intake, survey(told)) }

// inquiry asks the request of an id for its timeline so far. It goes to all requests, and each of them
// either answers it or denies it.
type inquiry struct {
	id   uint64
	told func(arrival int64, t *lifecycle.Timeline)
	none func()
	open atomic.Int64 // requests that have not denied it yet
}

// Inquire asks the running request of an id for its arrival and its timeline so far. It calls told,
// from its own actor, with what is told's to keep: nil when the request keeps no timeline. When no such
// request runs, none is called once all that run have said so, and the Record of one that ended before
// has been observed by then. Neither may block, and at most one of them is called; it may be that
// neither is, when a request ends before it has heard the question: then ask again.
func (r *Runtime) Inquire(id uint64, told func(arrival int64, t *lifecycle.Timeline), none func()) {
	r.system.Root.Send(r.intake, &inquiry{id: id, told: told, none: none})
}

// deny is the answer of a request that is not meant, or not running any more.
func (q *inquiry) deny() {
	if q.open.Add(-1) == 0 {
		q.none()
	}
}

// inquire hands an inquiry on to the requests.
func (in *intake) inquire(ctx actor.Context, q *inquiry) {
	all := ctx.Children()
	if len(all) == 0 {
		q.none()
		return
	}
	q.open.Store(int64(len(all)))
	for _, pid := range all {
		ctx.Send(pid, q)
	}
}

// pass hands a question on to the requests.
func (in *intake) pass(ctx actor.Context, question any) {
	for _, pid := range ctx.Children() {
		ctx.Send(pid, question)
	}
}

// timeline is the request's answer to an inquiry.
func (r *request) timeline() *lifecycle.Timeline {
	t := &lifecycle.Timeline{}
	for i := range r.seqs {
		t.Events = append(t.Events, r.seqs[i].Events()...)
	}
	if len(t.Events) == 0 {
		return nil
	}
	return t
}

// glance is the request's answer.
func (r *request) glance() Glance {
	g := Glance{Request: r.req, Wall: r.wall, State: lifecycle.Ended, Timing: lifecycle.Whole(r.seqs), Engine: r.engine, Engines: len(r.rt.engines)}
	prompt := 0 // computed so far, of the prompt at hand
	for i := range r.seqs {
		s := &r.seqs[i]
		g.Preemptions += s.Preemptions
		if further(s.State, g.State) {
			g.State = s.State
		}
		// The choices of a prompt share its computation.
		if i%r.req.N == 0 {
			g.Prefilled += prompt
			g.Cached += s.Cached
			prompt = 0
		}
		prompt = max(prompt, s.Cached+s.PrefillTokens)
	}
	g.Prefilled += prompt
	return g
}

// further says whether a sequence in state a has come further than one in b, those that still run
// among themselves.
func further(a, b lifecycle.State) bool {
	order := [...]int{lifecycle.Ended: 0, lifecycle.Fresh: 1, lifecycle.Waiting: 2, lifecycle.Displaced: 3, lifecycle.Prefilling: 4, lifecycle.Decoding: 5}
	return order[a] > order[b]
}
