package transport

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// errCut is what a write answers on a connection that the server itself gave up on.
var errCut = errors.New("transport: the connection was cut off by the server")

// longAgo is a deadline that has passed for sure: setting it wakes a blocked read.
var longAgo = time.Unix(1, 0)

// epoch is the zero of this package's own clock, which serves deadlines alone. The stamps of
// requests come from the runtime's clock.
var epoch = time.Now()

// clock returns the nanoseconds since epoch.
func clock() int64 { return int64(time.Since(epoch)) }

const (
	// maxPushBack bounds what a watch keeps for the server: pipelined requests. When a client sends
	// more than that while a request of its runs, all of it is dropped, as is what comes after, and
	// the connection ends after the response being made: keeping it would cost memory, and not reading
	// it would hide the end of file behind it. A client may send what was not answered again.
	maxPushBack = 4 << 10
	// headSize is how much of a request's beginning a connection remembers: enough for the request
	// line of each of the server's endpoints.
	headSize = 64
	// A write of more than this is split, so that each piece has its own time to make progress. On
	// TLS a piece is a record: after a timeout in mid-record the connection is beyond use.
	maxWrite    = 64 << 10
	maxWriteTLS = 16 << 10
)

// lingerTime is how long a closing connection goes on reading what the client still sends, so that the
// client gets to read the refusal instead of a reset. A variable for the tests.
var lingerTime = 2 * time.Second

// conn is a client's connection as the HTTP server sees it, above TLS where there is TLS. What it
// adds to a net.Conn is what the server could not find out otherwise:
//
//   - whether the client is still there while a request runs (Watch);
//   - how many bytes have been written, and when last;
//   - when a response has been written as a whole, or has failed (begin and idle);
//   - that a client which does not read is cut off: a write that makes no progress for the stall
//     time fails.
//
// Read, Write, Watch and Close are called by the goroutine that serves the connection; Kill and
// Close may be called by any.
//
// End of file means that the client is gone. A client that shuts down only its sending half and
// still reads is taken for gone too, as net/http does: TCP does not tell the two apart until
// something is written, and a request whose answer nobody reads costs too much to find out.
type conn struct {
	inner net.Conn // *tls.Conn, or the same as raw
	raw   net.Conn
	piece int // the longest single write to inner
	stall int64
	done  func() // gives back the connection's place; may be called again

	closed atomic.Bool // Close or Kill has been called
	linger atomic.Bool // read on for a while after the last write

	mu      sync.Mutex // guards the fields down to exchange
	stopped sync.Cond  // the background read has ended
	reading bool       // the background read is under way
	aborted bool       // it has been told to stop
	onGone  func()     // what the background read calls at an end of file; nil: nobody cares
	// back is what the background read has read, from taken on not yet read by the server. backErr
	// comes after it.
	back    []byte
	taken   int
	backErr error
	flood   bool // more came than is kept: for the server the connection has ended
	// deadline is the read deadline that the server asked for; it does not apply to the background
	// read.
	deadline time.Time
	exchange exchange // the request being answered, if it wants to know

	// The rest belongs to the serving goroutine, but for the atomics.
	written   atomic.Int64 // bytes of responses, all told
	lastWrite atomic.Int64 // when the last write that moved began, by clock(); 0: none yet
	armed     int64        // when the write deadline was last moved, by clock()
	writeErr  error        // the first error of a Write since begin
	base      int64        // written at begin
	head      [headSize]byte
	headLen   int
}

// exchange is told when its response has left the server, or cannot any more.
type exchange interface {
	// finish is called once, on the connection's goroutine, after the last byte was handed to the
	// kernel, or with the error that prevented it.
	finish(bytes int64, err error)
}

func newConn(raw, inner net.Conn, stall time.Duration, done func()) *conn {
	c := &conn{inner: inner, raw: raw, piece: maxWrite, stall: int64(stall), done: done}
	if raw != inner {
		c.piece = maxWriteTLS
	}
	c.stopped.L = &c.mu
	return c
}

// Watch reads on in the background until the server's next Read, and calls onGone, once and from
// another goroutine, when the client is gone. Bytes that come meanwhile are pipelined requests: they
// are kept for the next Read, up to maxPushBack. A Watch during a Watch replaces onGone. When the client is known to be
// gone already, onGone is called before Watch returns.
func (c *conn) Watch(onGone func()) {
	c.mu.Lock()
	if c.backErr != nil || c.closed.Load() {
		c.mu.Unlock()
		onGone()
		return
	}
	c.onGone = onGone
	if !c.reading {
		c.startLocked()
	}
	c.mu.Unlock()
}

// Unwatch forgets Watch's onGone. The background read goes on until the next Read or Close, or until
// it has read as much as may be kept: nothing is dropped any more, since a client that has its whole
// response may send the next request before the server has come to read it.
func (c *conn) Unwatch() {
	c.mu.Lock()
	c.onGone = nil
	c.mu.Unlock()
}

// flooded says whether the client has sent more than is kept while a request ran. The connection
// ends after the response.
func (c *conn) flooded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flood
}

// floodLocked drops what waits for the server, and what will come.
func (c *conn) floodLocked() {
	c.flood, c.back, c.taken = true, nil, 0
	c.linger.Store(true) // what is not read at the end must not cost the client its response
}

// startLocked starts the background read.
func (c *conn) startLocked() {
	if c.taken > 0 {
		c.back = c.back[:copy(c.back, c.back[c.taken:])]
		c.taken = 0
	}
	if len(c.back) > maxPushBack {
		c.floodLocked()
	}
	// The deadline that the server set for reading the request must not end the watch.
	_ = c.inner.SetReadDeadline(time.Time{})
	c.disarm()
	c.reading = true
	go c.watch()
}

// watch is the background read. It reads one byte at first, into no more memory than that, since
// nearly always nothing comes.
func (c *conn) watch() {
	var one [1]byte
	buf := one[:]
	for {
		n, err := c.inner.Read(buf)
		c.mu.Lock()
		if n > 0 && !c.flood {
			if c.back == nil {
				c.back = make([]byte, 0, maxPushBack+1)
			}
			c.back = append(c.back, buf[:n]...)
			if len(c.back) > maxPushBack && c.onGone != nil {
				c.floodLocked()
			}
		}
		// One byte more than is kept tells that there is more.
		if room := maxPushBack + 1 - len(c.back); err == nil && !c.aborted && room > 0 {
			c.mu.Unlock()
			if cap(buf) == len(one) {
				buf = make([]byte, maxPushBack+1)
			}
			buf = buf[:room]
			continue
		}
		var gone func()
		if err != nil && !(c.aborted && errors.Is(err, os.ErrDeadlineExceeded)) {
			c.backErr = err
			gone, c.onGone = c.onGone, nil
		}
		c.reading, c.aborted = false, false
		c.stopped.Broadcast()
		c.mu.Unlock()
		if gone != nil {
			gone()
		}
		return
	}
}

// stopLocked ends the background read and puts the server's deadline back.
func (c *conn) stopLocked() {
	if !c.reading {
		return
	}
	c.aborted = true
	_ = c.inner.SetReadDeadline(longAgo)
	for c.reading {
		c.stopped.Wait()
	}
	_ = c.inner.SetReadDeadline(c.deadline)
}

// Read reads for the server. It ends a watch.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.mu.Lock()
	c.stopLocked()
	var n int
	var err error
	switch {
	case c.flood:
		err = io.EOF
		c.mu.Unlock()
	case c.taken < len(c.back):
		n = copy(p, c.back[c.taken:])
		c.taken += n
		if c.taken == len(c.back) {
			c.back, c.taken = nil, 0
		}
		c.mu.Unlock()
	case c.backErr != nil:
		err = c.backErr
		c.mu.Unlock()
	default:
		c.mu.Unlock()
		n, err = c.inner.Read(p)
	}
	if c.headLen < headSize {
		c.headLen += copy(c.head[c.headLen:], p[:n])
	}
	return n, err
}

// requestLine returns the method and the path with which the request being read began, as far as
// they were seen; empty when they were not. They are what is known of a request that could not be
// read. The beginning of a pipelined request is not seen.
func (c *conn) requestLine() (method, path string) {
	var parts [2]string
	n, from := 0, 0
	for i, b := range c.head[:c.headLen] {
		if b == ' ' || b == '?' || b == '\r' || b == '\n' {
			parts[n] = string(c.head[from:i])
			from = i + 1
			if n++; n == len(parts) || b != ' ' {
				break
			}
		}
	}
	if n < len(parts) || len(parts[1]) == 0 || parts[1][0] != '/' {
		return "", ""
	}
	return parts[0], parts[1]
}

// Write writes all of p. The client has the stall time to take some of it, again and again.
func (c *conn) Write(p []byte) (int, error) {
	total := 0
	for {
		now := clock()
		// Moving a deadline costs more than reading the clock, so it is not moved at each write.
		// The eighth on top makes sure that no client has less than the stall time.
		if c.armed == 0 || now-c.armed > c.stall/8 {
			c.armed = now
			_ = c.inner.SetWriteDeadline(epoch.Add(time.Duration(now + c.stall + c.stall/8)))
		}
		n, err := c.inner.Write(p[:min(len(p), c.piece)])
		if n > 0 {
			total += n
			p = p[n:]
			c.written.Add(int64(n))
			c.lastWrite.Store(now)
		}
		if err != nil && n > 0 && c.inner == c.raw && errors.Is(err, os.ErrDeadlineExceeded) {
			c.armed = 0 // slow, but moving
			continue
		}
		if err != nil {
			if c.closed.Load() {
				err = errCut
			}
			if c.writeErr == nil {
				c.writeErr = err
			}
			return total, err
		}
		if len(p) == 0 {
			return total, nil
		}
	}
}

// disarm takes the write deadline away until the next Write. On TLS a read may have to write too, to
// change keys, and must not find a deadline that has passed.
func (c *conn) disarm() {
	if c.raw != c.inner {
		c.armed = 0
		_ = c.inner.SetWriteDeadline(time.Time{})
	}
}

// begin registers what is told when the response that is now being made has left.
func (c *conn) begin(x exchange) {
	c.mu.Lock()
	c.exchange = x
	c.mu.Unlock()
	c.writeErr = nil
	c.base = c.written.Load()
}

// idle says that a request has been answered: the response is with the kernel.
func (c *conn) idle() {
	c.headLen = 0
	if !c.flooded() {
		c.linger.Store(false)
	}
	c.disarm()
	c.finish(nil)
}

// finish ends the exchange, if there is one. err is what happened unless a write failed.
func (c *conn) finish(err error) {
	c.mu.Lock()
	x := c.exchange
	c.exchange, c.onGone = nil, nil
	c.mu.Unlock()
	if x == nil {
		return
	}
	if c.writeErr != nil {
		err = c.writeErr
	}
	x.finish(c.written.Load()-c.base, err)
}

// Close closes the connection, and ends the exchange if one was under way.
func (c *conn) Close() error {
	c.mu.Lock()
	busy := c.exchange != nil
	c.onGone = nil
	c.mu.Unlock()
	if busy {
		// A response that is complete closes its connection too, when the client asked for that:
		// whether it was complete is for the exchange to know.
		c.finish(nil)
	}
	if c.closed.Swap(true) {
		return nil
	}
	if c.linger.Load() {
		c.drain()
	}
	err := c.inner.Close()
	c.done()
	return err
}

// drain tells the client that nothing more comes, and reads what it still sends, for a while.
func (c *conn) drain() {
	half, ok := c.inner.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	c.mu.Lock()
	c.stopLocked()
	c.mu.Unlock()
	if c.inner.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.Copy(io.Discard, c.inner)
	}
}

// Kill cuts the connection at once, whatever it is doing: a blocked Read, Write or Close returns, and
// a watch calls its onGone. It may be called by any goroutine and does not block; the serving goroutine
// notices, and closes the connection.
func (c *conn) Kill() {
	c.closed.Store(true)
	_ = c.raw.Close()
	c.done()
	c.mu.Lock()
	gone := c.onGone
	c.onGone = nil
	c.mu.Unlock()
	if gone != nil {
		gone()
	}
}

// killDuring cuts the connection if the exchange x is under way on it, and does nothing otherwise.
func (c *conn) killDuring(x exchange) {
	c.mu.Lock()
	during := c.exchange == x
	if during {
		// Under the lock x cannot end, and the connection cannot pass to another request.
		c.closed.Store(true)
		_ = c.raw.Close()
	}
	c.mu.Unlock()
	if during {
		c.Kill()
	}
}

// SetReadDeadline bounds the server's reads, not the background read of a watch.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.reading {
		return nil
	}
	return c.inner.SetReadDeadline(t)
}

// SetWriteDeadline does nothing: the connection moves its write deadline itself.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the read deadline.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// LocalAddr returns the server's address.
func (c *conn) LocalAddr() net.Addr { return c.inner.LocalAddr() }

// RemoteAddr returns the client's address.
func (c *conn) RemoteAddr() net.Addr { return c.inner.RemoteAddr() }

// listener accepts conns: it does TLS when it has a configuration, bounds the number of open
// connections, and outlives the passing failures of accept, which would end fasthttp's loop.
type listener struct {
	inner net.Listener
	tls   *tls.Config
	max   int64
	stall time.Duration
	full  []byte // the whole response for a connection beyond the bound, written on plain TCP

	open atomic.Int64

	mu    sync.Mutex
	conns map[*conn]struct{}
	down  bool
}

// newListener wraps inner. config may be nil: plain HTTP. max is the greatest number of open connections,
// stall how long a write may make no progress, and full what a connection too many is told.
func newListener(inner net.Listener, config *tls.Config, max int, stall time.Duration, full []byte) *listener {
	return &listener{inner: inner, tls: config, max: int64(max), stall: stall, full: full, conns: map[*conn]struct{}{}}
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	pause := time.Duration(0)
	for {
		raw, err := l.inner.Accept()
		if err != nil {
			// Out of file descriptors, or the client hung up before it was accepted.
			var passing interface{ Temporary() bool }
			if errors.As(err, &passing) && passing.Temporary() && !l.isDown() {
				pause = min(max(2*pause, 5*time.Millisecond), time.Second)
				time.Sleep(pause)
				continue
			}
			return nil, err
		}
		pause = 0
		if l.open.Load() >= l.max {
			l.refuse(raw)
			continue
		}
		inner := raw
		if l.tls != nil {
			inner = tls.Server(raw, l.tls)
		}
		// The handshake writes too, before the first Write sets a deadline.
		_ = raw.SetWriteDeadline(time.Now().Add(l.stall))
		var c *conn
		c = newConn(raw, inner, l.stall, func() { l.drop(c) })
		l.mu.Lock()
		down := l.down
		if !down {
			l.conns[c] = struct{}{}
			l.open.Add(1)
		}
		l.mu.Unlock()
		if down {
			_ = raw.Close()
			return nil, net.ErrClosed
		}
		return c, nil
	}
}

// refuse answers a connection too many and closes it. Nothing has been written to it yet, so the
// few bytes fit the kernel's buffer and the accept loop does not wait.
func (l *listener) refuse(raw net.Conn) {
	if l.tls == nil {
		_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = raw.Write(l.full)
	}
	_ = raw.Close()
}

func (l *listener) drop(c *conn) {
	l.mu.Lock()
	if _, ok := l.conns[c]; ok {
		delete(l.conns, c)
		l.open.Add(-1)
	}
	l.mu.Unlock()
}

func (l *listener) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// openConns returns the number of open connections.
func (l *listener) openConns() int { return int(l.open.Load()) }

// killAll cuts all connections, and those that are accepted later.
func (l *listener) killAll() {
	l.mu.Lock()
	l.down = true
	conns := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		c.Kill()
	}
}

// Close stops accepting; open connections go on.
func (l *listener) Close() error { return l.inner.Close() }

// Addr returns the address listened on.
func (l *listener) Addr() net.Addr { return l.inner.Addr() }
