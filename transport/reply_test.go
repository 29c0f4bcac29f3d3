package transport

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
)

// plain is an encoder whose frames can be counted.
type plain struct{}

func (plain) Delta(dst []byte, d *lifecycle.Delta) []byte {
	return append(append(append(dst, "data: "...), d.Text...), "\n\n"...)
}
func (plain) End(dst []byte, r *lifecycle.Response) []byte { return append(dst, "data: end\n\n"...) }
func (plain) Body(*lifecycle.Response) []byte              { return []byte("body") }
func (plain) ContentType() string                          { return "text/event-stream" }

// pipe returns a connection without a server around it, and the client's end.
func pipe(t testing.TB) (*conn, net.Conn) {
	server, client := net.Pipe()
	t.Cleanup(func() { server.Close(); client.Close() })
	return newConn(server, server, time.Minute, func() {}), client
}

// told collects what a sink tells.
type told struct {
	mu        sync.Mutex
	gone      []lifecycle.Gone
	delivered []lifecycle.Delivered
	ended     bool
	late      bool // Gone after End
}

func (l *told) tell(m any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch m := m.(type) {
	case lifecycle.Gone:
		l.gone = append(l.gone, m)
	case lifecycle.Delivered:
		if !l.ended {
			l.late = true
		}
		l.delivered = append(l.delivered, m)
	}
}

func TestDeliveryIsToldOnceInWhateverOrderThingsEnd(t *testing.T) {
	var clock atomic.Int64
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c, client := pipe(t)
		reads := rng.IntN(3)
		go func() {
			if reads > 0 {
				_, _ = io.CopyN(io.Discard, client, int64(rng.IntN(200))) // rng is the main goroutine's no longer
			}
			if reads == 2 {
				_, _ = io.Copy(io.Discard, client)
			}
			client.Close()
		}()
		stream, deltas := seed%3 != 0, int(seed%7)
		failed := seed%5 == 0
		attachLate := seed%11 == 0
		beat := time.Duration(seed%2) * time.Microsecond
		limit := 1 << 20
		if seed%13 == 0 {
			limit = 5
		}
		r := newReply(c, plain{}, stream, limit, beat, func() int64 { return clock.Add(1) })
		l := &told{}
		c.begin(r)
		c.Watch(r.left)
		var both sync.WaitGroup
		both.Go(func() { // the request's actor
			if attachLate {
				runtime.Gosched()
			}
			r.Attach(l.tell)
			for i := range deltas {
				r.Delta(&lifecycle.Delta{Text: fmt.Sprint("frame ", i)})
				if seed%4 == 0 {
					runtime.Gosched()
				}
			}
			resp := &lifecycle.Response{}
			if failed {
				resp.Err = &lifecycle.Error{Status: 500, Message: "failed"}
			}
			l.mu.Lock()
			l.ended = true
			l.mu.Unlock()
			r.End(resp)
		})
		both.Go(func() { // the connection's goroutine, as the handler and fasthttp are
			r.await()
			gone, streams, _ := r.verdict()
			var err error
			switch {
			case gone:
				c.Kill()
			case streams:
				_, err = r.WriteTo(c)
			case r.handOver():
				_, err = c.Write([]byte("body"))
			}
			if err == nil && seed%2 == 0 {
				c.idle()
			}
			c.Close()
		})
		both.Wait()
		l.mu.Lock()
		if len(l.delivered) != 1 || l.late || len(l.gone) > 1 {
			t.Fatalf("seed %d: delivered %v (before End: %v), gone %v", seed, l.delivered, l.late, l.gone)
		}
		d := l.delivered[0]
		if len(l.gone) == 1 && d.Err == nil {
			t.Fatalf("seed %d: the client had gone and yet has it all", seed)
		}
		if d.Err == nil && reads == 0 && d.Bytes > 0 {
			t.Fatalf("seed %d: %d bytes were delivered to a client that read none", seed, d.Bytes)
		}
		l.mu.Unlock()
		if r.pending != nil || r.out != nil {
			t.Fatalf("seed %d: frames are kept", seed)
		}
	}
}

func TestWhatIsReadyLeavesInOneWriteAndEachFrameOnce(t *testing.T) {
	c, _ := pipe(t)
	r := newReply(c, plain{}, true, 1<<20, 0, func() int64 { return 1 })
	r.Attach(func(any) {})
	var want strings.Builder
	w := &writes{}
	for i := range 5 {
		fmt.Fprintf(&want, "data: %d\n\n", i)
		r.Delta(&lifecycle.Delta{Text: fmt.Sprint(i)})
	}
	w.then = func() { // while the first write is under way
		for i := 5; i < 9; i++ {
			r.Delta(&lifecycle.Delta{Text: fmt.Sprint(i)})
		}
		r.End(&lifecycle.Response{})
	}
	first := want.String()
	want.Reset()
	for i := 5; i < 9; i++ {
		fmt.Fprintf(&want, "data: %d\n\n", i)
	}
	want.WriteString("data: end\n\n")
	if _, err := r.WriteTo(w); err != nil {
		t.Fatal(err)
	}
	if len(w.all) != 2 || w.all[0] != first || w.all[1] != want.String() {
		t.Errorf("writes: %q", w.all)
	}
}

type writes struct {
	all  []string
	then func()
}

func (w *writes) Write(p []byte) (int, error) {
	w.all = append(w.all, string(p))
	if f := w.then; f != nil {
		w.then = nil
		f()
	}
	return len(p), nil
}

func TestASlowStreamsMemoryIsGivenBackAtTheCut(t *testing.T) {
	c, _ := pipe(t)
	r := newReply(c, plain{}, true, 10000, 0, func() int64 { return 7 })
	var gone *lifecycle.Gone
	r.Attach(func(m any) {
		if g, ok := m.(lifecycle.Gone); ok {
			gone = &g
		}
	})
	c.begin(r)
	text := strings.Repeat("x", 1000)
	for range 20 {
		r.Delta(&lifecycle.Delta{Text: text})
	}
	if gone == nil || !gone.Slow || gone.At != 7 {
		t.Fatalf("the actor was told %v", gone)
	}
	if len(r.pending) != 0 {
		t.Errorf("%d bytes still wait", len(r.pending))
	}
	if _, err := r.WriteTo(io.Discard); !errors.Is(err, errSlow) {
		t.Errorf("the connection's goroutine was told %v", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, errCut) {
		t.Errorf("the connection still takes bytes: %v", err)
	}
}

func TestAFrameCostsNoAllocation(t *testing.T) {
	c, _ := pipe(t)
	r := newReply(c, plain{}, true, 1<<20, time.Minute, func() int64 { return 1 })
	r.Attach(func(any) {})
	wrote := make(chan struct{})
	go r.WriteTo(signalling{wrote})
	d := &lifecycle.Delta{Text: "some text"}
	frame := func() {
		r.Delta(d)
		<-wrote
	}
	frame()
	if n := leastAllocs(1000, frame); n > 0 {
		t.Errorf("%v allocations a frame", n)
	}
	r.End(&lifecycle.Response{})
	<-wrote
}

// leastAllocs is testing.AllocsPerRun in the best of several tries: what goroutines of earlier tests still
// allocate counts too.
func leastAllocs(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for try := 0; try < 5 && least > 0; try++ {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

type signalling struct{ c chan struct{} }

func (s signalling) Write(p []byte) (int, error) {
	s.c <- struct{}{}
	return len(p), nil
}

func FuzzTheServerOutlivesWhateverItIsSent(f *testing.F) {
	for _, s := range []string{
		"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /tokenize HTTP/1.0\r\nContent-Length: 3\r\n\r\n{}",
		"POST /v1/responses HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\nX-Request-Id: \x01\r\n\r\n{}",
		"DELETE /v1/responses/a/b HTTP/1.1\r\n\r\nOPTIONS * HTTP/1.1\r\nOrigin: x\r\nAccess-Control-Request-Method: y\r\n\r\n",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + fmt.Sprint(len(completion(true, 3, 3))) + "\r\n\r\n" + completion(true, 3, 3),
		"\x16\x03\x01\x00\x01",
	} {
		f.Add([]byte(s))
	}
	w := newWorld(f, options{server: func(c *Config) {
		c.CORS = CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}}
		c.Limits.MaxBody = 1 << 16
	}})
	f.Fuzz(func(t *testing.T, sent []byte) {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(hang))
		go func() {
			_, _ = c.Write(sent)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		got, _ := io.ReadAll(c)
		c.Close()
		if len(got) > 0 && !bytes.HasPrefix(got, []byte("HTTP/1.1 ")) {
			t.Errorf("answered with %q", got)
		}
		wait(t, "the places are free again", func() bool { return w.rt.Admitted() == 0 })
		h, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		_ = h.SetDeadline(time.Now().Add(hang))
		fmt.Fprint(h, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		if a := read(t, bufio.NewReader(h)); a.StatusCode != 200 {
			t.Errorf("afterwards /health answers %d", a.StatusCode)
		}
	})
}

// BenchmarkStreams measures chunks over real sockets, on a device that takes no time (what piles up
// leaves together) and on one whose steps take a millisecond (each chunk leaves by itself, and the
// most possible is 64,000 a second). The clients read and count, and do nothing else.
func BenchmarkStreams(b *testing.B) {
	for _, run := range []struct {
		name    string
		clients int
		step    time.Duration
	}{{"1", 1, 0}, {"64", 64, 0}, {"64/1ms", 64, time.Millisecond}} {
		b.Run(run.name, func(b *testing.B) {
			clients := run.clients
			w := newWorld(b, options{device: sim.Options{Fixed: run.step}, cast: func(c *actors.Config) { c.MaxSeqs = clients }})
			const tokens = 256
			var left, chunks, wrote atomic.Int64
			left.Store(int64(b.N))
			body := completion(true, 16, tokens)
			request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			b.ReportAllocs()
			b.ResetTimer()
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					c, err := net.Dial("tcp", w.addr)
					if err != nil {
						b.Error(err)
						return
					}
					defer c.Close()
					buf := make([]byte, 64<<10)
					end := []byte("\r\n0\r\n\r\n")
					for left.Add(-tokens) > -tokens {
						_, _ = io.WriteString(c, request)
						var tail []byte
						for {
							n, err := c.Read(buf)
							if err != nil {
								b.Error(err)
								return
							}
							wrote.Add(1)
							chunks.Add(int64(bytes.Count(buf[:n], []byte("data: "))))
							tail = append(tail, buf[:n]...)
							if len(tail) > len(end) {
								tail = tail[len(tail)-len(end):]
							}
							if bytes.Equal(tail, end) {
								break
							}
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			b.ReportMetric(float64(chunks.Load())/b.Elapsed().Seconds(), "chunks/s")
			b.ReportMetric(float64(chunks.Load())/float64(wrote.Load()), "chunks/read")
		})
	}
}

// BenchmarkMemory measures what a running stream takes, all goroutines and the request's actor
// included, the client excluded.
func BenchmarkMemory(b *testing.B) {
	const streams = 1000
	w := newWorld(b, options{
		device: sim.Options{Fixed: 20 * time.Millisecond},
		cast:   func(c *actors.Config) { c.MaxSeqs, c.MaxTokens, c.MaxRequests = streams, 4096, 2*streams },
	})
	conns := make([]net.Conn, streams)
	for i := range conns {
		conns[i] = w.dial()
	}
	used := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := used()
	for _, c := range conns {
		post(c, "/v1/completions", completion(true, 16, 2000))
	}
	wait(b, "all streams run", func() bool { return w.rt.Stats().Running == streams })
	for from := w.steps.Load(); w.steps.Load() < from+20; {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64(used()-before)/streams, "bytes/stream")
	b.ReportMetric(0, "ns/op")
	for _, c := range conns {
		c.Close()
	}
	wait(b, "all streams have ended", func() bool { return w.rt.Admitted() == 0 })
}
