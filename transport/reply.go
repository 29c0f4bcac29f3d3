package transport

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/openai"
)

// What a reply's Delivered may say went wrong.
var (
	errGone       = errors.New("transport: the client closed the connection")
	errSlow       = errors.New("transport: the client did not read its answer and was cut off")
	errSpoiled    = errors.New("transport: the answer could not be made")
	errIncomplete = errors.New("transport: the connection ended before the answer was written")
)

// frames keeps the buffers of finished streams; none larger than maxKept.
var frames = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

const maxKept = 64 << 10

// heartbeat is what an idle stream sends: a comment in the event stream's syntax, which clients skip.
var heartbeat = []byte(": ping\n\n")

// reply is the sink of one request: it holds what the request's actor has to say until the
// connection's goroutine has written it.
//
// Two goroutines use it. The actor encodes its deltas straight into pending. The connection's
// goroutine takes all of pending at once, gives the actor an empty buffer for it, and writes without
// the lock: whatever piled up during one write leaves with the next. Neither waits for the other for
// longer than a frame takes to encode.
type reply struct {
	conn   *conn
	enc    openai.Encoder
	stream bool
	limit  int          // bytes that may wait
	beat   int64        // nanoseconds without data after which a heartbeat is due; 0: none
	now    func() int64 // the runtime's clock
	// keep is called with the whole answer before its last byte leaves.
	keep func(*lifecycle.Response)
	over func()        // called after the exchange; may be nil
	wake chan struct{} // holds one value when the connection's goroutine is to look again

	mu      sync.Mutex
	tell    func(any)
	pending []byte // frames that wait; free again is out, when it is not being written
	out     []byte
	writing int                 // bytes of out that are being written
	begun   bool                // a frame or a heartbeat has been made: the answer is a stream with status 200
	waiting bool                // the connection's goroutine waits for wake
	due     bool                // a heartbeat is due
	end     *lifecycle.Response // set once
	gone    *lifecycle.Gone     // the client has left, or was cut off: nothing more is written
	last    bool                // the last byte has been handed to the connection
	spoiled bool                // what was written is not the answer
	dropped bool                // abandoned with the last byte on its way
	done    bool                // the exchange is over
	bytes   int64               // written in it
	err     error               // why not all of it was
	started int64               // by clock()
	timer   *time.Timer
}

func newReply(c *conn, enc openai.Encoder, stream bool, limit int, beat time.Duration, now func() int64) *reply {
	r := &reply{conn: c, enc: enc, stream: stream, limit: limit, now: now, wake: make(chan struct{}, 1), started: clock()}
	if stream {
		r.pending, r.out = *frames.Get().(*[]byte), *frames.Get().(*[]byte)
		if beat > 0 {
			r.beat = int64(beat)
			r.mu.Lock()
			r.timer = time.AfterFunc(beat, r.tick)
			r.mu.Unlock()
		}
	}
	return r
}

// Attach implements actors.Sink.
func (r *reply) Attach(tell func(any)) {
	r.mu.Lock()
	r.tell = tell
	gone := r.gone
	r.mu.Unlock()
	if gone != nil {
		tell(*gone)
	}
}

// Delta implements actors.Sink.
func (r *reply) Delta(d *lifecycle.Delta) {
	if r.stream && r.encode(d) { // without a stream, End brings it all
		r.depart(true)
		r.conn.Kill()
	}
}

// encode makes d a frame, and says whether more waits than may.
func (r *reply) encode(d *lifecycle.Delta) (over bool) {
	r.mu.Lock()
	defer r.mu.Unlock() // an encoder that panics must not take the lock with it
	if r.gone != nil || r.done {
		return false
	}
	r.pending = r.enc.Delta(r.pending, d)
	if len(r.pending) > 0 {
		r.begun = true
		r.signal()
	}
	return len(r.pending)+r.writing > r.limit
}

// End implements actors.Sink.
func (r *reply) End(resp *lifecycle.Response) {
	r.mu.Lock()
	r.end = resp
	panicked := r.encodeEndLocked()
	r.signal()
	delivered := r.deliveredLocked()
	r.mu.Unlock()
	if delivered != nil {
		delivered()
	}
	if panicked != nil {
		panic(panicked) // the actor's supervisor looks after it
	}
}

// encodeEndLocked closes the stream, if the answer is one. Before the first frame an error is an
// answer of its own, with its own status.
func (r *reply) encodeEndLocked() (panicked any) {
	defer func() {
		if panicked = recover(); panicked != nil {
			r.spoiled = true
			if !r.begun {
				r.end = &lifecycle.Response{Err: internalError()}
			}
		}
	}()
	if r.stream && r.gone == nil && !r.done && (r.begun || r.end.Err == nil) {
		r.pending = r.enc.End(r.pending, r.end)
		r.begun = true
	}
	return nil
}

// signal wakes the connection's goroutine if it waits. The lock is held.
func (r *reply) signal() {
	if r.waiting {
		r.waiting = false
		r.wake <- struct{}{}
	}
}

// depart notes that the client has left, or is cut off for being slow, and tells the request's
// actor. It does nothing once the last byte is on its way: a client may close as soon as it has that.
func (r *reply) depart(slow bool) {
	r.mu.Lock()
	if r.gone != nil || r.last || r.done {
		r.mu.Unlock()
		return
	}
	r.gone = &lifecycle.Gone{At: r.now(), Slow: slow}
	if slow {
		r.gone.Since = r.gone.At - max(clock()-max(r.started, r.conn.lastWrite.Load()), 0)
	}
	r.pending = nil
	gone, tell, ended := *r.gone, r.tell, r.end != nil
	r.signal()
	r.mu.Unlock()
	// After End only Delivered is of interest; before Attach nobody can be told yet.
	if tell != nil && !ended {
		tell(gone)
	}
}

// Abandon gives up on a client that does not take its answer: it cuts the connection, and Delivered,
// with the bytes that had been written, follows as soon as the connection's goroutine has noticed. An
// answer that has left as a whole by then is reported as delivered. Abandon may be called by any
// goroutine and more than once; it does not wait, and leaves a connection alone that serves the next
// request already.
func (r *reply) Abandon() {
	r.mu.Lock()
	r.dropped = true
	r.mu.Unlock()
	r.depart(true)
	r.conn.killDuring(r)
}

// left is what the watch calls.
func (r *reply) left() { r.depart(false) }

// tick is the heartbeat's timer. It looks at when something was last written, so that a frame costs
// no timer.
func (r *reply) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done || r.gone != nil || r.end != nil {
		return
	}
	next := r.beat
	if idle := clock() - max(r.started, r.conn.lastWrite.Load()); idle < r.beat {
		next = r.beat - idle
	} else if r.waiting {
		r.due, r.begun = true, true
		r.signal()
	}
	r.timer.Reset(time.Duration(next))
}

// await blocks until there is something to write, the end or the client's departure included.
func (r *reply) await() {
	r.mu.Lock()
	r.awaitLocked()
	r.mu.Unlock()
}

func (r *reply) awaitLocked() {
	for len(r.pending) == 0 && r.end == nil && r.gone == nil && !r.due {
		r.waiting = true
		r.mu.Unlock()
		<-r.wake
		r.mu.Lock()
	}
}

// verdict says how to answer after await: not at all (the client has gone), with a stream, or with
// the whole response.
func (r *reply) verdict() (gone, stream bool, whole *lifecycle.Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone != nil, r.begun, r.end
}

// handOver says that the whole answer, not streamed, is with the connection from now on. It is
// false when the client has gone.
func (r *reply) handOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = r.gone == nil
	return r.last
}

// spoil says that something else than the answer is being written: it could not be made.
func (r *reply) spoil() {
	r.mu.Lock()
	r.spoiled = true
	r.mu.Unlock()
}

// WriteTo writes the stream to w as it comes: everything that is ready in one Write. It returns after
// the last frame, or with the error that ended the connection.
func (r *reply) WriteTo(w io.Writer) (int64, error) {
	defer func() {
		if p := recover(); p != nil {
			r.spoil()
			panic(p) // fasthttp closes the connection
		}
	}()
	total := int64(0)
	r.mu.Lock()
	for {
		r.awaitLocked()
		if r.gone != nil {
			slow := r.gone.Slow
			r.mu.Unlock()
			if slow {
				return total, errSlow
			}
			return total, errGone
		}
		batch := r.pending
		r.pending, r.out = r.out[:0], batch
		if len(batch) == 0 {
			batch = heartbeat
			if r.end != nil {
				batch = nil
			}
		}
		r.due = false
		r.writing = len(batch)
		end, spoiled := r.end, r.spoiled
		r.last = end != nil
		r.mu.Unlock()

		if end != nil {
			r.conn.Unwatch() // from the last byte on the client may send its next request
		}
		if end != nil && r.keep != nil && !spoiled {
			r.keep(end)
		}
		n, err := w.Write(batch)
		total += int64(n)
		if err != nil {
			r.depart(errors.Is(err, os.ErrDeadlineExceeded))
			return total, err
		}
		if spoiled {
			return total, errSpoiled // the stream must not end as a whole one does
		}
		if end != nil {
			return total, nil
		}
		r.mu.Lock()
		r.writing = 0
		if cap(r.out) > maxKept {
			r.out = nil // one jam should not hold its memory for the rest of the stream
		}
	}
}

// SupportsBodyWriteTo tells fasthttp to use WriteTo. It then makes one chunk of each Write and
// flushes it, with the headers before the first.
func (r *reply) SupportsBodyWriteTo() bool { return true }

// Read is the other way to read the stream. fasthttp does not use it.
func (r *reply) Read([]byte) (int, error) {
	return 0, errors.New("transport: a stream is read by WriteTo")
}

// finish implements exchange: the connection has taken, or refused, the last byte.
func (r *reply) finish(bytes int64, err error) {
	r.mu.Lock()
	if r.done {
		r.mu.Unlock()
		return
	}
	r.done, r.bytes, r.err = true, bytes, err
	switch {
	case r.gone != nil && r.gone.Slow, r.gone == nil && r.dropped && err != nil:
		r.err = errSlow
	case r.gone != nil:
		r.err = errGone
	case r.spoiled:
		r.err = errSpoiled
	case err == nil && !r.last:
		r.err = errIncomplete
	}
	var tell func(any)
	var gone lifecycle.Gone
	if r.gone == nil && r.end == nil {
		gone = lifecycle.Gone{At: r.now()}
		r.gone, tell = &gone, r.tell
	}
	for _, b := range [...][]byte{r.pending, r.out} {
		if b != nil && cap(b) <= maxKept {
			b = b[:0]
			frames.Put(&b)
		}
	}
	r.pending, r.out = nil, nil
	if r.timer != nil {
		r.timer.Stop()
	}
	delivered := r.deliveredLocked()
	r.mu.Unlock()
	if r.over != nil {
		r.over()
	}
	if tell != nil {
		tell(gone)
	}
	if delivered != nil {
		delivered()
	}
}

// deliveredLocked returns what tells the actor that the answer is delivered, once both the answer
// and the exchange are over, and nil otherwise. As each of the two calls it once, it is told once.
func (r *reply) deliveredLocked() func() {
	if !r.done || r.end == nil || r.tell == nil {
		return nil
	}
	tell, d := r.tell, lifecycle.Delivered{At: r.now(), Bytes: r.bytes, Err: r.err, Slow: errors.Is(r.err, errSlow)}
	return func() { tell(d) }
}
