package host

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// pool runs phases: many small tasks at once, and then a barrier. A step has some ten phases a
// layer, so between phases workers spin for a while before they sleep. The goroutines live as long
// as the pool; a phase starts none and allocates nothing. One goroutine at a time may call run, and
// works along as worker 0.
type pool struct {
	workers int // with the caller
	helpers []helper
	exited  sync.WaitGroup

	// The phase at hand, written by the caller before epoch changes.
	task  func(h *Host, worker, i int)
	host  *Host
	count int64

	_       [64]byte // each counter below on its own cache line: all workers write them
	epoch   atomic.Uint32
	_       [60]byte
	next    atomic.Int64 // the next task to take
	_       [56]byte
	busy    atomic.Int32 // helpers that have not finished the phase
	_       [60]byte
	waiting atomic.Bool // the caller sleeps until done
	done    chan struct{}

	failed atomic.Pointer[panicError]
}

// helper is how a sleeping worker is woken.
type helper struct {
	asleep atomic.Bool
	wake   chan struct{}
	_      [40]byte
}

// panicError is a panic of a task, as an error.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string {
	return fmt.Sprintf("panic while computing: %v\n%s", e.value, e.stack)
}

// How often a worker looks before it sleeps: some 50 µs. Going to sleep and waking costs 5 to 50 µs.
const (
	helperSpins = 4096    // with a yield now and then: there may be fewer processors than workers
	callerSpins = 1 << 15 // without: the caller is pinned to its thread, which makes yields dear
)

func newPool(workers int) *pool {
	p := &pool{workers: workers, helpers: make([]helper, workers-1), done: make(chan struct{}, 1)}
	for i := range p.helpers {
		p.helpers[i].wake = make(chan struct{}, 1)
		p.exited.Add(1)
		go p.help(i)
	}
	return p
}

// run calls task for every i below count, on all workers, and returns when all are done. After a
// panic in a task, tasks not yet begun are left out and the panic is returned.
func (p *pool) run(h *Host, count int, task func(h *Host, worker, i int)) error {
	if count <= 0 {
		return nil
	}
	p.host, p.task, p.count = h, task, int64(count)
	p.next.Store(0)
	if count > 1 && len(p.helpers) > 0 {
		p.release()
		p.work(0)
		p.join()
	} else {
		p.work(0)
	}
	if e := p.failed.Swap(nil); e != nil {
		return e
	}
	return nil
}

// close ends the helpers and waits for them.
func (p *pool) close() {
	p.host, p.task, p.count = nil, nil, 0
	p.release()
	p.exited.Wait()
}

// release starts the helpers on the phase.
func (p *pool) release() {
	p.busy.Store(int32(len(p.helpers)))
	p.epoch.Add(1)
	for i := range p.helpers {
		if h := &p.helpers[i]; h.asleep.CompareAndSwap(true, false) {
			h.wake <- struct{}{}
		}
	}
}

// join waits until the helpers have finished the phase.
func (p *pool) join() {
	for i := 0; p.busy.Load() != 0; i++ {
		if i < callerSpins {
			continue
		}
		p.waiting.Store(true)
		if p.busy.Load() != 0 || !p.waiting.CompareAndSwap(true, false) {
			<-p.done // the last helper saw waiting, or will
		}
	}
}

// help is the life of a helper.
func (p *pool) help(i int) {
	defer p.exited.Done()
	h := &p.helpers[i]
	for seen := uint32(0); ; seen++ {
		for n := 0; p.epoch.Load() == seen; n++ {
			if n < helperSpins {
				if n%64 == 63 {
					runtime.Gosched()
				}
				continue
			}
			h.asleep.Store(true)
			if p.epoch.Load() == seen || !h.asleep.CompareAndSwap(true, false) {
				<-h.wake // whoever changed epoch saw asleep, or will
			}
		}
		if p.task == nil {
			return
		}
		p.work(i + 1)
		if p.busy.Add(-1) == 0 && p.waiting.CompareAndSwap(true, false) {
			p.done <- struct{}{}
		}
	}
}

// work does tasks until there are none left.
func (p *pool) work(worker int) {
	defer func() {
		if v := recover(); v != nil {
			p.failed.CompareAndSwap(nil, &panicError{v, debug.Stack()})
			p.next.Store(p.count)
		}
	}()
	for {
		i := p.next.Add(1) - 1
		if i >= p.count {
			return
		}
		p.task(p.host, worker, int(i))
	}
}
