package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/openai"
)

// Process is the actor system in this process, without HTTP: requests are parsed, run by their actors
// and encoded as their endpoint would stream them; what is left out is the sockets.
type Process struct {
	Runtime *actors.Runtime
	Env     *openai.Env
	// Endpoint is "chat" or "completions".
	Endpoint string
	Timeout  time.Duration // of a request; 0: 10 minutes
}

func (p *Process) parse(body []byte) (*openai.Job, *lifecycle.Error) {
	if p.Endpoint == "completions" {
		return p.Env.ParseCompletion(body)
	}
	return p.Env.ParseChat(body)
}

// CountBy counts a prompt's tokens as a server of this Env would: template and all.
func CountBy(env *openai.Env, endpoint string) Count {
	p := &Process{Env: env, Endpoint: endpoint}
	shape := Shape{Endpoint: endpoint, Model: env.Served[0]}
	return func(text string) (int, error) {
		job, err := p.parse(shape.body(text, nil, 1, false, nil))
		if err != nil {
			return 0, err
		}
		return job.Request.PromptTokens(), nil
	}
}

// Client implements Target.
func (p *Process) Client() Client { return &processClient{p: p, over: make(chan struct{}, 1)} }

// processClient is one client in this process. It is the sink of its request.
type processClient struct {
	p    *Process
	over chan struct{}
	x    *exchange
	enc  openai.Encoder
	tell func(any)
	buf  []byte
	resp *lifecycle.Response
	sent int64 // bytes encoded
}

// Close implements Client.
func (c *processClient) Close() {}

// Do implements Client.
func (c *processClient) Do(ctx context.Context, r *Request, x *exchange) {
	rt := c.p.Runtime
	x.begin()
	defer x.close()
	if ctx.Err() != nil {
		x.cut = true
		return
	}
	arrival := rt.Now()
	if err := rt.Admit(); err != nil {
		x.refused(err)
		return
	}
	job, err := c.p.parse(r.Body)
	if err != nil {
		rt.Release()
		x.refused(err)
		return
	}
	job.SetID("")
	job.Request.ID, job.Request.Arrival, job.Request.Endpoint = rt.NextID(), arrival, "bench"
	c.x, c.enc, c.resp, c.sent = x, job.Encoder, nil, 0

	limit := c.p.Timeout
	if limit <= 0 {
		limit = DefaultTimeout
	}
	patience := r.CancelAfter > 0 && r.CancelAfter < limit
	if patience {
		limit = r.CancelAfter
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	rt.Start(&job.Request, c)
	left := false
	select {
	case <-c.over:
	case <-waiting.Done():
		c.tell(lifecycle.Gone{At: rt.Now()})
		<-c.over
		// It may have ended meanwhile.
		left = c.resp.Err != nil || slices.ContainsFunc(c.resp.Choices, func(c lifecycle.Choice) bool {
			return c.Reason != lifecycle.ReasonStop && c.Reason != lifecycle.ReasonLength
		})
	}
	x.status = 200
	x.prompt, x.completion, x.cached = c.resp.Usage.Prompt, c.resp.Usage.Completion, c.resp.Usage.Cached
	x.usage, x.finished, x.done, x.data = true, true, true, true
	switch {
	case left && ctx.Err() != nil:
		x.cut = true
		return
	case left && patience:
		x.cancelled = true
		return
	case left:
		x.fail = &failure{kindTimeout, fmt.Sprintf("no whole answer within %v", limit)}
		return
	case c.resp.Err != nil:
		x.refused(c.resp.Err)
		return
	}
	m := &c.resp.Metrics
	number := func(n lifecycle.Number) float64 {
		if v, ok := n.Get(); ok {
			return v
		}
		return -1
	}
	if c.p.Env.Metrics && len(c.resp.Choices) == 1 {
		x.server = serverTimes{source: "metrics", queue: number(m.QueueTime), ttft: number(m.TimeToFirstToken), generation: number(m.GenerationTime)}
	}
}

// refused takes an error that over HTTP would have been a status.
func (x *exchange) refused(err *lifecycle.Error) {
	x.status = err.Status
	x.fail = &failure{"HTTP " + strconv.Itoa(err.Status), clip(err.Message)}
}

// Attach implements actors.Sink.
func (c *processClient) Attach(tell func(any)) { c.tell = tell }

// Delta implements actors.Sink.
func (c *processClient) Delta(d *lifecycle.Delta) {
	x := c.x
	c.buf = c.enc.Delta(c.buf[:0], d)
	c.sent += int64(len(c.buf))
	if len(d.IDs) == 0 && d.Text == "" {
		return
	}
	x.chunks = append(x.chunks, chunk{at: x.now(), tokens: int32(len(d.IDs)), text: int32(len(d.Text))})
	if x.keep {
		x.text.WriteString(d.Text)
	}
	x.saw(len(d.IDs))
}

// End implements actors.Sink.
func (c *processClient) End(r *lifecycle.Response) {
	c.buf = c.enc.End(c.buf[:0], r)
	c.sent += int64(len(c.buf))
	c.resp = r
	c.tell(lifecycle.Delivered{At: c.p.Runtime.Now(), Bytes: c.sent})
	c.over <- struct{}{}
}
