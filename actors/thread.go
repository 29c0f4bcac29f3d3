package actors

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
)

// thread is the batcher's dispatcher: one goroutine on one OS thread, because a CUDA context
// belongs to the thread that made it.
type thread struct {
	work chan func()
	done chan struct{}
	once sync.Once
}

func newThread() *thread {
	t := &thread{work: make(chan func(), 16), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for {
			select {
			case f := <-t.work:
				f()
			case <-t.done:
				return
			}
		}
	}()
	return t
}

// Schedule implements actor.Dispatcher. One mailbox uses the thread, and schedules itself at most
// once at a time, so the channel never fills.
func (t *thread) Schedule(fn func()) {
	select {
	case t.work <- fn:
	case <-t.done:
	}
}

// Throughput implements actor.Dispatcher: messages before the mailbox yields.
func (t *thread) Throughput() int { return 300 }

func (t *thread) close() { t.once.Do(func() { close(t.done) }) }

// quiet passes on the actor system's log, one level lower: what it calls Info (its start, every
// recovered panic) the cast reports itself where it matters.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, l slog.Level) bool { return q.Handler.Enabled(ctx, l-4) }

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level -= 4
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(as []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(as)} }
func (q quiet) WithGroup(n string) slog.Handler       { return quiet{q.Handler.WithGroup(n)} }
