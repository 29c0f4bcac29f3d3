package console

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
)

const (
	// MaxViewers is how many may watch at a time.
	MaxViewers = 16
	// MaxInquiries is how many may wait at a time for a running request's timeline, which all running
	// requests are asked for.
	MaxInquiries = 4
	// askAgain is after how long without an answer the requests are asked again: one that ended when it
	// was asked may have said nothing.
	askAgain = 100 * time.Millisecond
)

// Options are what the page says of the server.
type Options struct {
	Version string
	Model   string // as served
	MaxSeqs int    // sequences in one step at most, over all engines
}

// Console is the page of one runtime, and the lifecycle.Observer that remembers what has finished.
// Make it with New before the runtime, give it the runtime with Follow, and end its streams with Close.
type Console struct {
	options Options
	ring    *ring
	rt      atomic.Pointer[actors.Runtime]
	asking  chan struct{} // holds an entry for each Timeline that waits for an answer
	// interval is the time between two frames, and settle how much of it the requests have to say how
	// they are. Answers that come later are in the next frame.
	interval, settle time.Duration

	mu      sync.Mutex
	viewers map[*Viewer]struct{}
	closed  bool
	stop    chan struct{} // ends the show; nil when there is none, since nobody watches
}

// New makes a Console.
func New(o Options) *Console {
	return &Console{options: o, ring: newRing(), asking: make(chan struct{}, MaxInquiries), interval: frameInterval, settle: frameSettle, viewers: map[*Viewer]struct{}{}}
}

// Follow says which runtime it is that the Console observes.
func (c *Console) Follow(rt *actors.Runtime) { c.rt.Store(rt) }

// Progress implements lifecycle.Observer. The page asks the requests itself, when somebody looks.
func (c *Console) Progress(*lifecycle.Progress) {}

// Observe implements lifecycle.Observer.
func (c *Console) Observe(r *lifecycle.Record) { c.ring.put(r) }

// Watch admits a viewer, whose stream must then be written with its WriteTo, and whose place is given
// back by Close. cut is called, once at most and from another goroutine, to break a connection that
// does not take what it is sent; it must not block.
func (c *Console) Watch(cut func()) (*Viewer, *lifecycle.Error) {
	rt := c.rt.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || rt == nil:
		return nil, &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "shutting_down",
			Message: "the server is shutting down: there is nothing more to watch"}
	case len(c.viewers) >= MaxViewers:
		return nil, &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "too_many_viewers",
			Message: fmt.Sprintf("%d viewers watch the console already, and no more may: close one of their pages", MaxViewers)}
	}
	v := &Viewer{console: c, cut: cut, frames: make(chan []byte, maxBehind), over: make(chan struct{})}
	c.viewers[v] = struct{}{}
	if c.stop == nil {
		c.stop = make(chan struct{})
		go newShow(c, rt).run(c.stop)
	}
	return v, nil
}

// Timeline returns, as JSON, what happened to a request so far: an object with running, and timeline,
// which is as in the request log, or null where none is kept. A finished request's is at hand. For any
// other it waits until that request has answered, or all that run have denied it, up to the time given.
// The error has status 404 when the request neither runs nor is remembered, and 503 when MaxInquiries
// wait already or not all have answered in time.
func (c *Console) Timeline(id uint64, patience time.Duration) ([]byte, *lifecycle.Error) {
	if f, ok := c.ring.find(id); ok {
		return f.life(), nil
	}
	rt := c.rt.Load()
	if rt == nil {
		return nil, unknown(id)
	}
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	default:
		return nil, &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "too_many_inquiries",
			Message: fmt.Sprintf("%d others wait for the timeline of a running request, and no more may: ask again in a second", MaxInquiries)}
	}
	return c.inquire(id, patience, rt.Inquire)
}

// inquire is Timeline for a request that is not among the finished. ask is Runtime.Inquire.
func (c *Console) inquire(id uint64, patience time.Duration, ask func(uint64, func(int64, *lifecycle.Timeline), func())) ([]byte, *lifecycle.Error) {
	type answer struct {
		running bool
		arrival int64
		events  *lifecycle.Timeline
	}
	answers := make(chan answer, 1)
	tell := func(a answer) {
		select {
		case answers <- a:
		default: // asked twice, it answers twice
		}
	}
	limit, again := time.NewTimer(patience), time.NewTicker(askAgain)
	defer limit.Stop()
	defer again.Stop()
	for {
		ask(id, func(arrival int64, t *lifecycle.Timeline) { tell(answer{true, arrival, t}) }, func() { tell(answer{}) })
		select {
		case a := <-answers:
			if a.running {
				return append(a.events.AppendJSON([]byte(`{"running":true,"timeline":`), a.arrival), '}'), nil
			}
			if f, ok := c.ring.find(id); ok { // it has ended meanwhile
				return f.life(), nil
			}
			return nil, unknown(id)
		case <-again.C:
			if f, ok := c.ring.find(id); ok {
				return f.life(), nil
			}
		case <-limit.C:
			return nil, &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "no_answer",
				Message: fmt.Sprintf("the running requests did not all answer within %v, so that it is not known whether %d is among them: ask again", patience, id)}
		}
	}
}

func unknown(id uint64) *lifecycle.Error {
	return &lifecycle.Error{Status: 404, Type: "invalid_request_error", Code: "request_not_found", Param: "id",
		Message: fmt.Sprintf("no request %d runs, and it is not among the last %d that have finished: take the number from /console/api/stream", id, Kept)}
}

// life is what Timeline returns for a finished request.
func (f *finished) life() []byte {
	return append(f.timeline.AppendJSON([]byte(`{"running":false,"timeline":`), f.arrival), '}')
}

// Viewers is how many watch.
func (c *Console) Viewers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.viewers)
}

// leave takes a viewer out, and says whether it was in. The last one ends the show.
func (c *Console) leave(v *Viewer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, in := c.viewers[v]; !in {
		return false
	}
	c.leaveLocked(v)
	return true
}

func (c *Console) leaveLocked(v *Viewer) {
	delete(c.viewers, v)
	close(v.over)
	if len(c.viewers) == 0 && c.stop != nil {
		close(c.stop)
		c.stop = nil
	}
}

// Close ends all streams, after a last frame that says why, and admits no more viewers. What finishes
// is remembered still.
func (c *Console) Close(why string) {
	bye := (&frame{Bye: why}).event()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for v := range c.viewers {
		select {
		case v.frames <- bye:
		default:
		}
		c.leaveLocked(v)
	}
}
