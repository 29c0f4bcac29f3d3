package actors

import (
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-llm/troupe/lifecycle"
)

// intake spawns the request actors, hands on what is meant for all of them, and is their supervisor.
// It does nothing else and never blocks, since a child that panics stays suspended until its
// supervisor has looked at it.
type intake struct{ rt *Runtime }

// start asks intake to run a request.
type start struct {
	req  *lifecycle.Request
	sink Sink
	line *line
}

// endAll tells every request to end with 503: the runtime is closing.
type endAll struct{}

// stopTheOne stops a request actor that panicked. Its instance gets Stopping, and closes its books.
var stopTheOne = actor.NewOneForOneStrategy(0, time.Second, func(any) actor.Directive { return actor.StopDirective })

// Receive implements actor.Actor.
func (in *intake) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *start:
		r := newRequest(in.rt, m) // never made twice: what panics is stopped
		ctx.Spawn(actor.PropsFromProducer(func() actor.Actor { return r }, actor.WithDispatcher(in.rt.crew)))
	case survey:
		in.pass(ctx, m)
	case *inquiry:
		in.inquire(ctx, m)
	case endAll:
		for _, pid := range ctx.Children() {
			ctx.Send(pid, m)
		}
	}
}

// line carries what a sink tells its request's actor. The actor picks it up when it has started:
// before that it has no address, and what is told waits here. The zero line with rt is ready.
type line struct {
	rt     *Runtime
	mu     sync.Mutex
	pid    *actor.PID
	early  []any
	closed bool
}

func (l *line) tell(m any) {
	l.mu.Lock()
	pid := l.pid
	if pid == nil && !l.closed {
		l.early = append(l.early, m)
	}
	closed := l.closed
	l.mu.Unlock()
	if pid != nil && !closed {
		l.rt.system.Root.Send(pid, m)
	}
}

// pickUp connects the line and returns what was told so far.
func (l *line) pickUp(pid *actor.PID) []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pid = pid
	early := l.early
	l.early = nil
	return early
}

func (l *line) hangUp() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
}
