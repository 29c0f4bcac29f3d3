package transport

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/openai"
)

// generate serves the three endpoints that make tokens. The connection's own goroutine waits for the
// answer, and writes it.
func (s *Server) generate(v *visit) {
	body, e := s.body(v)
	if e != nil {
		s.refuse(v, e)
		return
	}
	// The place comes before the parsing, so that a crowd costs no more than it must.
	if e = s.cfg.Runtime.Admit(); e != nil {
		s.refuse(v, e)
		return
	}
	v.admitted = true
	job, e := s.parse(v, body)
	if e != nil {
		s.refuse(v, e)
		return
	}
	s.answer(v, job)
}

func (s *Server) parse(v *visit, body []byte) (*openai.Job, *lifecycle.Error) {
	env := s.cfg.Env
	switch v.endpoint {
	case "chat":
		return env.ParseChat(body)
	case "completion":
		return env.ParseCompletion(body)
	}
	if s.cfg.Limits.StoredResponses < 0 {
		return env.ParseResponse(body, nil)
	}
	v.conversation = int64(len(body))
	return env.ParseResponse(body, func(id string) (*openai.Stored, bool) {
		k := s.stored.get(v.keyName, id)
		if k == nil {
			return nil, false
		}
		v.conversation += k.size
		return k.Stored, true
	})
}

// answer runs a job and answers with what comes of it.
func (s *Server) answer(v *visit, job *openai.Job) {
	ctx, c, rt := v.ctx, v.conn, s.cfg.Runtime
	job.Created = wall(rt, v.arrival) / int64(time.Second)
	req := &job.Request
	s.name(v, job)
	req.ID = rt.NextID()
	req.Endpoint = v.endpoint
	req.KeyName = v.keyName
	req.Peer = c.RemoteAddr().String()
	req.Arrival = v.arrival
	req.TraceParent, req.TraceState = v.traceParent, v.traceState
	if d := int64(s.cfg.Limits.RequestTimeout); d > 0 {
		req.Deadline = v.arrival + d
	}
	if v.clientID == "" {
		ctx.Response.Header.Set(requestID, req.ExternalID)
	}

	r := newReply(c, job.Encoder, req.Stream, s.cfg.Limits.MaxWaiting, s.cfg.Limits.Heartbeat, rt.Now)
	if job.Store {
		conversation, owner, id := v.conversation, v.keyName, req.ExternalID
		r.keep = func(resp *lifecycle.Response) {
			if resp.Err != nil {
				return
			}
			if k := job.Stored(resp); k != nil {
				s.stored.put(owner, k, conversation)
			}
		}
		r.over = func() { s.stored.release(owner, id) }
	}
	v.reply = r
	c.begin(r)
	c.Watch(r.left)
	v.admitted = false // the actor gives the place back
	rt.Start(req, r)
	r.await()

	if c.flooded() {
		ctx.SetConnectionClose() // the requests that follow were dropped
	}
	gone, stream, whole := r.verdict()
	switch {
	case gone:
		c.Kill() // nobody must take an empty answer for one
	case stream:
		ctx.SetContentType(job.Encoder.ContentType())
		ctx.Response.Header.Set(fasthttp.HeaderCacheControl, "no-cache")
		ctx.Response.Header.Set("X-Accel-Buffering", "no") // nginx would collect the frames
		if ctx.Request.Header.IsHTTP11() {
			ctx.SetBodyStream(r, -1)
			return
		}
		s.streamUnframed(v, r)
	default:
		if !r.handOver() {
			c.Kill()
			return
		}
		c.Unwatch() // from the last byte on the client may send its next request
		if whole.Err != nil {
			s.fail(v, whole.Err)
			return
		}
		ctx.SetContentType(job.Encoder.ContentType())
		ctx.Response.SetBodyRaw(job.Encoder.Body(whole))
		if r.keep != nil {
			r.keep(whole)
		}
	}
}

// name gives a job its id, after the client's own where there is one. An id under which the client's
// key has a stored response already, or is getting one, is not used again: the new response is given
// a random id, which its body tells, so that neither replaces the other. It is no error, since what
// hands on X-Request-Id, or tries again, does not mean the stored response by it.
func (s *Server) name(v *visit, job *openai.Job) {
	job.SetID(v.clientID)
	clientID := job.Request.ClientID
	for job.Store && !s.stored.promise(v.keyName, job.Request.ExternalID) {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		job.SetID(hex.EncodeToString(b[:]))
		job.Request.ClientID = clientID
	}
}

// streamUnframed streams to a client of HTTP/1.0, as some proxies are: without chunks, up to the
// connection's end. fasthttp has no such streams, so the response is written past it.
func (s *Server) streamUnframed(v *visit, r io.WriterTo) {
	ctx := v.ctx
	ctx.Response.Header.SetContentLength(-2) // up to the end
	ctx.SetConnectionClose()
	w := bufio.NewWriter(v.conn)
	_, err := w.Write(ctx.Response.Header.Header())
	if err == nil {
		_, err = r.WriteTo(flusher{w})
	}
	if err != nil {
		s.cfg.Log.Debug().Err(err).Msg("http: a stream broke off")
	}
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(net.Conn) {}) // fasthttp closes it
}

// flusher writes at once what it is given, and what waits before it.
type flusher struct{ *bufio.Writer }

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	if err == nil {
		err = f.Flush()
	}
	return n, err
}
