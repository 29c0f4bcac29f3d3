// Package bench measures Troupe: loads run on the actor system in this process, without HTTP, and
// over HTTP against a server. Comparisons alternate what they compare within one run and report
// ratios, since absolute times of a shared machine mean little.
package bench

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/openai"
)

// Load is a closed loop: Concurrency clients, each sending its next request when it has the answer
// to the last one.
type Load struct {
	Concurrency int
	Requests    int // in all
	// Body is the chat request that every client sends.
	Body []byte
}

// Result is what a load did.
type Result struct {
	Requests int
	Tokens   int64 // generated
	Chunks   int64 // frames with text that clients got
	Bytes    int64 // encoded for the clients
	Elapsed  time.Duration
	CPU      time.Duration // of the whole process, all threads; 0 where the system doesn't tell
}

// Run carries the load out on the runtime, in this process: each request is parsed, run by its
// actor and encoded as its endpoint would stream it, and the bytes are thrown away. It returns the
// first request's error, if any failed.
func (l Load) Run(rt *actors.Runtime, env *openai.Env) (Result, error) {
	var (
		left, tokens, chunks, bytes atomic.Int64
		wg                          sync.WaitGroup
		mu                          sync.Mutex
		failed                      error
	)
	left.Store(int64(l.Requests))
	start, cpu := time.Now(), processCPU()
	for range l.Concurrency {
		wg.Go(func() {
			s := &sink{done: make(chan struct{}, 1), now: rt.Now}
			for left.Add(-1) >= 0 {
				if err := s.ask(rt, env, l.Body); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
			}
			tokens.Add(s.tokens)
			chunks.Add(s.chunks)
			bytes.Add(s.bytes)
		})
	}
	wg.Wait()
	return Result{Requests: l.Requests, Tokens: tokens.Load(), Chunks: chunks.Load(), Bytes: bytes.Load(),
		Elapsed: time.Since(start), CPU: processCPU() - cpu}, failed
}

// sink is one client: it takes one request's answer after the other.
type sink struct {
	done chan struct{}
	now  func() int64

	enc                   openai.Encoder
	tell                  func(any)
	buf                   []byte
	resp                  *lifecycle.Response
	tokens, chunks, bytes int64
}

func (s *sink) ask(rt *actors.Runtime, env *openai.Env, body []byte) error {
	arrival := rt.Now()
	if err := rt.Admit(); err != nil {
		return err
	}
	job, err := env.ParseChat(body)
	if err != nil {
		rt.Release()
		return err
	}
	job.SetID("")
	job.Request.ID, job.Request.Arrival, job.Request.Endpoint = rt.NextID(), arrival, "bench"
	s.enc = job.Encoder
	rt.Start(&job.Request, s)
	<-s.done
	if s.resp.Err != nil {
		return fmt.Errorf("bench: a request failed: %w", s.resp.Err)
	}
	s.tokens += int64(s.resp.Usage.Completion)
	return nil
}

// Attach implements actors.Sink.
func (s *sink) Attach(tell func(any)) { s.tell = tell }

// Delta implements actors.Sink.
func (s *sink) Delta(d *lifecycle.Delta) {
	s.buf = s.enc.Delta(s.buf[:0], d)
	s.bytes += int64(len(s.buf))
	s.chunks++
}

// End implements actors.Sink.
func (s *sink) End(r *lifecycle.Response) {
	s.buf = s.enc.End(s.buf[:0], r)
	s.bytes += int64(len(s.buf))
	s.resp = r
	s.tell(lifecycle.Delivered{At: s.now(), Bytes: s.bytes})
	s.done <- struct{}{}
}
