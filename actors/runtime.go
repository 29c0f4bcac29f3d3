// Package actors is Troupe's cast: intake, which spawns one request actor per request; the request
// actors, which measure themselves; and the batcher, which owns the device. Runtime starts them
// and is what the rest of the program talks to.
package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-llm/troupe/actors/batch"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model/tokenizer"
)

// Config says what a Runtime runs and within which limits. Zero durations and counts get the
// default named at the field.
type Config struct {
	// Engines are the devices, each with a batcher of its own behind the same intake; 1. At most 64.
	Engines int
	// Open opens the device of an engine, which are counted from 0: at start, and again after it failed.
	// It is called on the OS thread of the engine's batcher, as all of the device's methods are, and for
	// several engines concurrently.
	Open func(engine int) (gpu.Device, error)

	BlockSize  int // tokens per KV cache block: the one that Open configures the device with; 16
	MaxSeqs    int // sequences in one step; 256
	MaxTokens  int // tokens computed in one step; 2048
	MaxContext int // longest sequence in tokens; required
	// PrefixCaching shares the blocks of equal prompt beginnings among requests.
	PrefixCaching bool
	// EOS are the model's end tokens.
	EOS       []int32
	Tokenizer *tokenizer.Tokenizer // required

	// MaxRequests may be admitted and not yet closed; more are refused with 429. 1024.
	MaxRequests int
	// DeliveryTimeout is how long a finished request waits for its sink to report delivery; 60 s.
	DeliveryTimeout time.Duration
	// ReopenLimit is how long a failed device may stay away before the waiting requests are failed
	// with 503 and Health says unhealthy; 30 s. The batcher goes on trying. Where another engine has its
	// device, requests go there at once instead.
	ReopenLimit time.Duration

	// Observer is told of every request's progress and end; nil tells nobody.
	Observer lifecycle.Observer
	// Detail keeps what metrics.detail needs of each request: its inter-token gaps.
	Detail bool
	// Timeline keeps what happened to each request and why, for its Record.
	Timeline bool
	Logger   *slog.Logger // nil: slog.Default()
}

func (c *Config) defaults() error {
	if c.Open == nil || c.Tokenizer == nil || c.MaxContext <= 0 {
		return errors.New("actors: Config needs Open, Tokenizer and MaxContext")
	}
	set := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	set(&c.Engines, 1)
	if c.Engines > MaxEngines {
		return fmt.Errorf("actors: Config.Engines is %d, but must be at most %d", c.Engines, MaxEngines)
	}
	set(&c.BlockSize, 16)
	set(&c.MaxSeqs, 256)
	set(&c.MaxTokens, 2048)
	set(&c.MaxRequests, 1024)
	if c.DeliveryTimeout <= 0 {
		c.DeliveryTimeout = time.Minute
	}
	if c.ReopenLimit <= 0 {
		c.ReopenLimit = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Runtime is a running cast. Make it with New, end it with Close. Its methods are safe for
// concurrent use.
type Runtime struct {
	cfg     Config
	system  *actor.ActorSystem
	intake  *actor.PID
	engines []*engine
	crew    *crew

	base     time.Time // the zero of the monotonic clock, less one nanosecond
	ids      atomic.Uint64
	admitted atomic.Int64
	draining atomic.Bool
	lost     chan struct{} // closed when a device is lost to this process
	losing   sync.Once
	idle     chan struct{} // gets a value whenever a request was closed while draining
}

// engine is a batcher with what belongs to it.
type engine struct {
	num     int
	batcher *actor.PID
	thread  *thread
	board   board
}

// several says whether there is more than one engine, so that there is something to choose.
func (r *Runtime) several() bool { return len(r.engines) > 1 }

// guardian supervises the actors without a parent. Whatever panics in the batcher, it is
// restarted: it has no state that its requests cannot give it again. One strategy for all
// runtimes, since the actor system keeps each that it was ever given.
var guardian = actor.NewOneForOneStrategy(1<<30, time.Second, func(any) actor.Directive { return actor.RestartDirective })

// New starts the cast and opens the devices. It returns when all are open, or with the errors that Open
// returned.
func New(cfg Config) (*Runtime, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	r := &Runtime{cfg: cfg, base: time.Now().Add(-time.Nanosecond), lost: make(chan struct{}), idle: make(chan struct{}, 1)}
	r.system = actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(quiet{cfg.Logger.Handler()})
	}))
	r.crew = newCrew()
	for i := range cfg.Engines {
		r.engines = append(r.engines, &engine{num: i, thread: newThread(), board: board{shutCh: make(chan struct{})}})
	}
	if err := r.open(); err != nil {
		r.Close()
		return nil, err
	}
	r.intake = r.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return newIntake(r) },
		actor.WithSupervisor(stopTheOne), actor.WithGuardian(guardian)))
	return r, nil
}

// open starts the batchers and waits until all have opened their devices, or failed to.
func (r *Runtime) open() error {
	opened := make([]chan error, len(r.engines))
	for i, e := range r.engines {
		opened[i] = make(chan error, 1)
		var once sync.Once
		report := func(err error) { once.Do(func() { opened[i] <- err }) }
		e.batcher = r.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return newBatcher(r, e, report) },
			actor.WithDispatcher(e.thread), actor.WithGuardian(guardian)))
	}
	var errs []error
	for i, c := range opened {
		err := <-c
		switch {
		case err == nil:
		case r.several():
			errs = append(errs, fmt.Errorf("opening device %d of %d, counted from 0: %w", i, len(r.engines), err))
		default:
			errs = append(errs, fmt.Errorf("opening the device: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Now reads the monotonic clock of all stamps, in nanoseconds; it is never 0.
func (r *Runtime) Now() int64 { return int64(time.Since(r.base)) }

// NextID returns a number for a request, unique in this Runtime.
func (r *Runtime) NextID() uint64 { return r.ids.Add(1) }

// Admit takes a place for a request, or says why there is none: 429 when the limit is reached, 503
// when the runtime is draining or has no device. A place is given back by the request's end, or by
// Release when Start is not called.
func (r *Runtime) Admit() *lifecycle.Error {
	if r.draining.Load() {
		return &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "draining",
			Message: "the server is shutting down and takes no new requests: retry on another server"}
	}
	if ok, why := r.Health(); !ok {
		return errNoDevice(why)
	}
	for {
		n := r.admitted.Load()
		if n >= int64(r.cfg.MaxRequests) {
			return &lifecycle.Error{Status: 429, Type: "rate_limit_error", Code: "queue_full",
				Message: fmt.Sprintf("all %d places for requests are taken: retry later", r.cfg.MaxRequests)}
		}
		if r.admitted.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

// Release gives back a place taken by Admit.
func (r *Runtime) Release() {
	if r.admitted.Add(-1) == 0 && r.draining.Load() {
		select {
		case r.idle <- struct{}{}:
		default:
		}
	}
}

// Start runs a request for which Admit has given a place. req must not change afterwards.
func (r *Runtime) Start(req *lifecycle.Request, sink Sink) {
	line := &line{rt: r}
	sink.Attach(line.tell)
	s := &start{req: req, sink: sink, line: line}
	if r.several() {
		r.system.Root.Send(r.intake, routed{s, r.chains(req)})
		return
	}
	r.system.Root.Send(r.intake, s)
}

// chains are the keys of the blocks of a request's prompts; nil where none are shared. They are made on the
// caller's goroutine, as there is only one intake.
func (r *Runtime) chains(req *lifecycle.Request) [][]uint64 {
	if !r.cfg.PrefixCaching {
		return nil
	}
	chains := make([][]uint64, len(req.Prompts))
	for i, p := range req.Prompts {
		chains[i] = batch.Keys(p, req.Salt, r.cfg.BlockSize)
	}
	return chains
}

// Admitted is the number of requests that hold a place.
func (r *Runtime) Admitted() int { return int(r.admitted.Load()) }

// Draining says whether Drain has been called.
func (r *Runtime) Draining() bool { return r.draining.Load() }

// Lost is closed when a device had an error after which it could not be opened again, and which only another
// process is free of: a gpu.StickyError. All requests fail from then on, unless other engines can take them, and
// Health says why. The program should drain and end, for its service manager to start it again.
func (r *Runtime) Lost() <-chan struct{} { return r.lost }

func (r *Runtime) lose() { r.losing.Do(func() { close(r.lost) }) }

// Drain refuses new requests from now on and returns when those in flight have ended, or, when ctx
// is done first, after telling the rest to end with 503; its error then says how many there were.
func (r *Runtime) Drain(ctx context.Context) error {
	r.draining.Store(true)
	for r.admitted.Load() > 0 {
		select {
		case <-r.idle:
		case <-time.After(50 * time.Millisecond): // a place was given back between the load and the flag
		case <-ctx.Done():
			n := r.admitted.Load()
			if n == 0 {
				return nil
			}
			r.system.Root.Send(r.intake, endAll{})
			r.awaitIdle(5 * time.Second)
			return fmt.Errorf("%d requests were cut off: %w", n, ctx.Err())
		}
	}
	return nil
}

func (r *Runtime) awaitIdle(limit time.Duration) {
	for end := time.Now().Add(limit); r.admitted.Load() > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

// Close ends everything at once: requests still running are failed with 503. The device is closed
// when it returns.
func (r *Runtime) Close() {
	r.draining.Store(true)
	if r.intake != nil {
		r.system.Root.Send(r.intake, endAll{})
		r.awaitIdle(5 * time.Second)
		_ = r.system.Root.StopFuture(r.intake).Wait()
	}
	// A device may be in a long step: wait for it, since it can't be freed under its own feet.
	for _, e := range r.engines {
		_ = r.system.Root.StopFuture(e.batcher).Wait()
		<-e.board.closed()
		e.thread.close()
	}
	r.system.Shutdown()
}
