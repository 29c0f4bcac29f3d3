package bench

import (
	"context"
	"sync/atomic"
)

// Target is what a load is sent to.
type Target interface {
	// Client returns a client, which can have one request under way at a time.
	Client() Client
}

// Client sends requests, one after the other.
type Client interface {
	// Do sends a request and reads its answer into x, until the answer's end, a failure, the
	// request's own CancelAfter, or ctx's end. It returns when nothing more will happen.
	Do(ctx context.Context, r *Request, x *exchange)
	Close()
}

// exchange is one request and its answer, as it goes. It belongs to the client until Do returns.
type exchange struct {
	answer
	now  func() int64 // the run's clock, in nanoseconds
	sent int64        // when the request was sent: Do sets it
	end  int64        // when all was over
	// status is HTTP's, or what it would be; 0: there was none.
	status int
	// fail is why it failed; nil with cancelled, with cut, and for a whole answer.
	fail      *failure
	cancelled bool // CancelAfter had passed
	cut       bool // ctx had ended
	live      *live
}

// live is what others may look at while an exchange goes on.
type live struct {
	state  atomic.Int32 // 0 idle, 1 waiting for the first token, 2 running
	tokens atomic.Int64 // ever, by chunks
}

const (
	idle int32 = iota
	waiting
	running
)

func (x *exchange) reset(keep bool) {
	x.answer.reset(keep)
	x.sent, x.end, x.status, x.fail, x.cancelled, x.cut = 0, 0, 0, nil, false, false
}

// begin stamps the sending.
func (x *exchange) begin() {
	x.sent = x.now()
	x.live.state.Store(waiting)
}

// saw tells the live view of tokens that came.
func (x *exchange) saw(tokens int) {
	if tokens == 0 {
		return
	}
	if x.live.state.Load() == waiting {
		x.live.state.Store(running)
	}
	x.live.tokens.Add(int64(tokens))
}

// close stamps the end.
func (x *exchange) close() {
	x.end = x.now()
	x.live.state.Store(idle)
}
