package actors

import (
	"runtime"
	"sync"
	"time"
)

// crewPatience is how long nothing may be taken from the queue before one more worker comes.
const crewPatience = 20 * time.Millisecond

// crew is the dispatcher of the request actors. A step of the batcher wakes as many actors as it has
// sequences: a goroutine for each, which Proto.Actor's own dispatcher starts, would be a new stack
// to grow for a few microseconds' work. So a few workers, one per processor, take turns at the
// mailboxes and go when there are no more. Actors should not block; should one do so all the same,
// the others don't wait for it: a worker comes in its place.
type crew struct {
	mu      sync.Mutex
	queue   []func() // a ring
	head, n int
	workers int    // at work
	limit   int    // of workers, while nobody blocks
	taken   uint64 // from the queue, ever

	watch   *time.Timer // runs while there is a queue and the workers are at their limit
	watched bool
	seen    uint64 // taken, when watch was started
}

func newCrew() *crew {
	c := &crew{queue: make([]func(), 256), limit: runtime.GOMAXPROCS(0)}
	c.watch = time.AfterFunc(time.Hour, c.look)
	c.watch.Stop()
	return c
}

// Schedule implements actor.Dispatcher.
func (c *crew) Schedule(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == len(c.queue) {
		longer := make([]func(), 2*c.n)
		n := copy(longer, c.queue[c.head:])
		copy(longer[n:], c.queue[:c.head])
		c.queue, c.head = longer, 0
	}
	c.queue[(c.head+c.n)&(len(c.queue)-1)] = fn
	c.n++
	if c.workers < c.limit {
		c.workers++
		go c.work()
	} else if !c.watched {
		c.watched, c.seen = true, c.taken
		c.watch.Reset(crewPatience)
	}
}

// Throughput implements actor.Dispatcher: messages before the mailbox lets others run.
func (*crew) Throughput() int { return 300 }

// work runs mailboxes until there are none. It takes one at a time: what waits behind one that blocks
// is still in the queue.
func (c *crew) work() {
	c.mu.Lock()
	for c.n > 0 {
		fn := c.queue[c.head]
		c.queue[c.head] = nil
		c.head = (c.head + 1) & (len(c.queue) - 1)
		c.n--
		c.taken++
		c.mu.Unlock()
		fn()
		c.mu.Lock()
	}
	c.workers--
	c.mu.Unlock()
}

// look sees to it that the queue moves on.
func (c *crew) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched = c.n > 0
	if !c.watched {
		return
	}
	if c.taken == c.seen {
		c.workers++
		go c.work()
	}
	c.seen = c.taken
	c.watch.Reset(crewPatience)
}
