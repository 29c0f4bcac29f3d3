package actors

import (
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-llm/troupe/lifecycle"
)

// intake spawns the request actors, hands on what is meant for all of them, and is their supervisor. Where
// there are several engines it says which computes a request, and finds the requests of one that has lost
// its device another. It does nothing else and never blocks, since a child that panics stays suspended
// until its supervisor has looked at it.
type intake struct {
	rt *Runtime
	// Of several engines; nil and empty where there is one.
	router   *router
	requests map[*actor.PID]uint64
	pids     map[uint64]*actor.PID
	made     []int // scratch
}

// newIntake makes an intake for engines whose devices have been opened.
func newIntake(rt *Runtime) *intake {
	in := &intake{rt: rt}
	if !rt.several() {
		return in
	}
	c, blocks := &rt.cfg, 0
	for _, e := range rt.engines {
		info, _ := e.board.device()
		blocks += info.NumBlocks
	}
	in.router = newRouter(len(rt.engines), c.BlockSize, routerSlack*c.MaxTokens, min(blocks, routerBlocks))
	in.requests, in.pids = map[*actor.PID]uint64{}, map[uint64]*actor.PID{}
	in.made = make([]int, len(rt.engines))
	for _, e := range rt.engines { // after a panic of an intake before
		in.router.engines[e.num].hope = e.board.hope()
	}
	return in
}

const (
	// routerSlack is the router's slack in full steps of prompt tokens: that long a request may have to wait
	// for the sake of its prefix, where another engine has nothing to do.
	routerSlack = 8
	// routerBlocks is the most blocks that the router remembers, at some 120 bytes each.
	routerBlocks = 1 << 18
)

// start asks intake to run a request.
type start struct {
	req  *lifecycle.Request
	sink Sink
	line *line
}

// routed asks intake to run a request on one of several engines. chains are the keys of the prompts' blocks.
type routed struct {
	*start
	chains [][]uint64
}

// away tells intake that an engine's device failed and is not open again.
type away struct {
	engine int
	// planned are the sequences of the step that failed; nil when it is known already that the device has gone.
	planned []lifecycle.SeqID
	hope    hope // waiting or none
}

// back tells intake that an engine's device is open again, with an empty cache.
type back struct{ engine int }

// giveUp tells a batcher without a device to fail its requests: there is no hope for them at any engine.
type giveUp struct{}

// endAll tells every request to end with 503: the runtime is closing.
type endAll struct{}

// stopTheOne stops a request actor that panicked. Its instance gets Stopping, and closes its books.
var stopTheOne = actor.NewOneForOneStrategy(0, time.Second, func(any) actor.Directive { return actor.StopDirective })

// Receive implements actor.Actor.
func (in *intake) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *start:
		in.spawn(ctx, m, 0)
	case routed:
		id := m.req.ID
		pid := in.spawn(ctx, m.start, in.router.place(id, m.req.PromptTokens(), m.chains, in.output()))
		in.requests[pid], in.pids[id] = id, pid
	case *actor.Terminated:
		if in.router != nil {
			id := in.requests[m.Who]
			in.router.end(id)
			delete(in.requests, m.Who)
			delete(in.pids, id)
		}
	case away:
		in.router.leave(m.engine, m.hope)
		in.rehome(ctx, m.planned)
		if in.router.hope() == none {
			for _, e := range in.rt.engines {
				ctx.Send(e.batcher, giveUp{})
			}
		}
	case back:
		in.router.back(m.engine)
		in.rehome(ctx, nil)
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

// spawn starts a request on an engine.
func (in *intake) spawn(ctx actor.Context, m *start, engine int) *actor.PID {
	r := newRequest(in.rt, m, engine) // never made twice: what panics is stopped
	return ctx.Spawn(actor.PropsFromProducer(func() actor.Actor { return r }, actor.WithDispatcher(in.rt.crew)))
}

// output reads how much each engine has generated for the requests that it has.
func (in *intake) output() []int {
	for i, e := range in.rt.engines {
		in.made[i] = e.board.output()
	}
	return in.made
}

// rehome finds the requests of engines without a device another, where there is one. planned are the
// sequences that may be why the device failed.
func (in *intake) rehome(ctx actor.Context, planned []lifecycle.SeqID) {
	ids := in.router.stranded()
	if len(ids) == 0 {
		return
	}
	suspects := map[uint64]bool{}
	for _, id := range planned {
		suspects[id.Request] = true
	}
	in.rt.cfg.Logger.Info("requests of an engine without a device go on with another", slog.Int("requests", len(ids)))
	made := in.output()
	for _, id := range ids {
		ctx.Send(in.pids[id], move{in.router.move(id, made), suspects[id]})
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
