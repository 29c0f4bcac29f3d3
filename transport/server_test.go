package transport

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/template"
	"github.com/troupe-llm/troupe/model/tiny"
	"github.com/troupe-llm/troupe/transport/openai"
)

// world is a server with a runtime on the simulated device.
type world struct {
	t      testing.TB
	srv    *Server
	rt     *actors.Runtime
	addr   string
	client *tls.Config
	faults sim.Faults
	steps  atomic.Int64
	passed atomic.Int64  // steps that the gate has let through
	gate   chan struct{} // each step takes one value; nil: steps run freely
	open   sync.Once

	mu      sync.Mutex
	records []*lifecycle.Record
}

// gated is a device whose steps the test lets through one by one.
type gated struct {
	gpu.Device
	w *world
}

func (g *gated) Run(b *gpu.Batch, r *gpu.Result) error {
	g.w.steps.Add(1)
	if g.w.gate != nil {
		<-g.w.gate
	}
	g.w.passed.Add(1)
	return g.Device.Run(b, r)
}

func (w *world) Progress(*lifecycle.Progress) {}
func (w *world) Observe(r *lifecycle.Record) {
	w.mu.Lock()
	w.records = append(w.records, r)
	w.mu.Unlock()
}

var tinyModel = sync.OnceValue(func() *model.Model { return tiny.Model(tiny.Options{}) })

// options change what a world is made of.
type options struct {
	gate   bool
	tls    bool
	device sim.Options
	cast   func(*actors.Config)
	server func(*Config)
	listen func(net.Listener) net.Listener
}

func newWorld(t testing.TB, o options) *world {
	t.Helper()
	m := tinyModel()
	w := &world{t: t}
	if o.gate {
		w.gate = make(chan struct{})
	}
	o.device.Vocab = m.Tokenizer.Size()
	o.device.Faults = &w.faults
	o.device.EOS = m.Generation.EOS
	const longest = 1 << 16
	cast := actors.Config{
		MaxContext: longest, EOS: m.Generation.EOS, Tokenizer: m.Tokenizer, Observer: w, PrefixCaching: true,
		MaxSeqs: 16, MaxTokens: 256, BlockSize: 16,
	}
	if o.cast != nil {
		o.cast(&cast)
	}
	cast.Open = func(int) (gpu.Device, error) {
		d, err := sim.Open(o.device, gpu.Config{BlockSize: cast.BlockSize, MaxSeqs: cast.MaxSeqs, MaxTokens: cast.MaxTokens, MaxContext: longest})
		if err != nil {
			return nil, err
		}
		return &gated{d, w}, nil
	}
	var err error
	if w.rt, err = actors.New(cast); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Runtime: w.rt, Env: environment(m, longest), Observer: w, Version: "1.2.3", Log: zerolog.Nop()}
	if o.tls {
		_, pems := certificate()
		dir := t.TempDir()
		cfg.CertFile, cfg.KeyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		for i, name := range []string{cfg.CertFile, cfg.KeyFile} {
			if err := os.WriteFile(name, pems[i], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.client = &tls.Config{InsecureSkipVerify: true}
	}
	if o.server != nil {
		o.server(&cfg)
	}
	if w.srv, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	w.srv.http.MaxIdleWorkerDuration = 50 * time.Millisecond
	ln, err := Bind("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = ln.Addr().String()
	if o.listen != nil {
		ln = o.listen(ln)
	}
	served := make(chan error, 1)
	go func() { served <- w.srv.Serve(ln) }()
	t.Cleanup(func() {
		w.release()
		ctx, cancel := within(hang)
		defer cancel()
		if err := w.srv.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		w.rt.Close()
		if n := w.srv.Connections(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
		if n := w.rt.Admitted(); n != 0 {
			t.Errorf("%d places are left taken", n)
		}
	})
	return w
}

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func environment(m *model.Model, longest int) *openai.Env {
	return &openai.Env{
		Served: []string{"tiny"}, Root: "org/tiny", MaxModelLen: longest, Vocab: m.Tokenizer.Size(),
		Tokenizer: m.Tokenizer, Template: tinyTemplate(), EOS: m.Generation.EOS, Created: 1,
	}
}

var tinyTemplate = sync.OnceValue(func() *template.Template {
	t, err := template.Parse(tinyModel().Template, template.Options{EOS: "<|im_end|>"})
	if err != nil {
		panic(err)
	}
	return t
})

// release lets all further steps run freely.
func (w *world) release() {
	w.open.Do(func() {
		if w.gate != nil {
			close(w.gate)
		}
	})
}

// advance lets steps through one at a time, and what follows from each of them be told and heard before the
// next, until holds. It returns how many it let through.
func (w *world) advance(what string, holds func() bool) int {
	w.t.Helper()
	n := 0
	for end := time.Now().Add(hang); !holds(); {
		if time.Now().After(end) {
			w.t.Fatalf("%s: not after %v and %d steps", what, hang, n)
		}
		before := w.passed.Load()
		select {
		case w.gate <- struct{}{}:
			n++
			wait(w.t, "the step is over", func() bool {
				passed := w.passed.Load()
				s := w.rt.Stats()
				return passed > before && (w.steps.Load() > passed || s.Running+s.Waiting == 0)
			})
		case <-time.After(10 * time.Millisecond):
		}
		w.heard()
	}
	return n
}

// heard waits until every request has heard what it was told before.
func (w *world) heard() {
	w.t.Helper()
	wait(w.t, "the requests have heard", func() bool {
		all := make(chan struct{})
		w.rt.Inquire(math.MaxUint64, func(int64, *lifecycle.Timeline) {}, func() { close(all) })
		select {
		case <-all:
			return true
		case <-time.After(time.Second): // one of them ended before it had heard the question
			return false
		}
	})
}

// left waits until a request knows that its client has left, and has cancelled its sequences.
func (w *world) left() {
	w.t.Helper()
	var cancelled atomic.Bool
	wait(w.t, "the request knows that its client has left", func() bool {
		w.rt.Survey(func(g actors.Glance) {
			if g.State == lifecycle.Ended {
				cancelled.Store(true)
			}
		})
		return cancelled.Load() || len(w.ended()) > 0
	})
}

// ended returns the Records so far.
func (w *world) ended() []*lifecycle.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.records)
}

// record waits for the n-th Record, from 0.
func (w *world) record(n int) *lifecycle.Record {
	w.t.Helper()
	var r *lifecycle.Record
	wait(w.t, fmt.Sprintf("record %d", n), func() bool {
		if rs := w.ended(); len(rs) > n {
			r = rs[n]
		}
		return r != nil
	})
	return r
}

func wait(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, hang)
		}
	}
}

// dial opens a connection.
func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(hang))
	if w.client != nil {
		c = tls.Client(c, w.client)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// completion is the body of a request for tokens with a prompt of that many tokens.
func completion(stream bool, prompt, tokens int) string {
	ids := make([]int, prompt)
	for i := range ids {
		ids[i] = tiny.FirstByte + 'a' + i%26
	}
	b, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": ids, "max_tokens": tokens, "stream": stream, "ignore_eos": true, "temperature": 0})
	return string(b)
}

// post writes a request to c.
func post(c io.Writer, path, body string, headers ...string) {
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n", path, len(body))
	for _, h := range headers {
		fmt.Fprintf(c, "%s\r\n", h)
	}
	fmt.Fprintf(c, "\r\n%s", body)
}

type answer struct {
	*http.Response
	text string
}

// read reads one response whole.
func read(t testing.TB, r *bufio.Reader) answer {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("no response: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("a response broke off: %v after %q", err, b)
	}
	return answer{resp, string(b)}
}

// do sends a request on a connection of its own.
func (w *world) do(method, path, body string, headers ...string) answer {
	w.t.Helper()
	c := w.dial()
	defer c.Close()
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s",
		method, path, len(body), lines(headers), body)
	r := bufio.NewReader(c)
	req, _ := http.NewRequest(method, path, nil)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		w.t.Fatalf("%s %s: no response: %v", method, path, err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("%s %s: the response broke off: %v", method, path, err)
	}
	return answer{resp, string(b)}
}

func lines(headers []string) string {
	var b strings.Builder
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String()
}

// isError checks that an answer is an error in OpenAI's shape.
func (a answer) isError(t testing.TB, status int) {
	t.Helper()
	var body struct {
		Error *struct {
			Message, Type *string
			Code          json.RawMessage
		}
	}
	if a.StatusCode != status {
		t.Errorf("status %d, want %d: %s", a.StatusCode, status, a.text)
	}
	if err := json.Unmarshal([]byte(a.text), &body); err != nil || body.Error == nil || body.Error.Message == nil || *body.Error.Message == "" || body.Error.Type == nil {
		t.Errorf("not an error in OpenAI's shape (%v): %s", err, a.text)
	}
	if ct := a.Header.Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
		t.Errorf("an error has content type %q", ct)
	}
}

// frames returns the payloads of a stream's data lines.
func (a answer) frames(t testing.TB) []string {
	t.Helper()
	if a.StatusCode != 200 || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("no stream: status %d, %s: %s", a.StatusCode, a.Header.Get("Content-Type"), a.text)
	}
	var out []string
	for _, line := range strings.Split(a.text, "\n") {
		switch data, ok := strings.CutPrefix(line, "data: "); {
		case ok:
			out = append(out, data)
		case line != "" && !strings.HasPrefix(line, ":") && !strings.HasPrefix(line, "event: "):
			t.Fatalf("not a line of an event stream: %q", line)
		}
	}
	return out
}

func TestAClientThatLeavesStopsTheWorkWithinTwoSteps(t *testing.T) {
	for _, overTLS := range []bool{false, true} {
		for _, stream := range []bool{false, true} {
			for _, phase := range []string{"queued", "prefill", "decode"} {
				t.Run(fmt.Sprintf("TLS=%v/stream=%v/%s", overTLS, stream, phase), func(t *testing.T) {
					w := newWorld(t, options{gate: true, tls: overTLS, cast: func(c *actors.Config) { c.MaxSeqs = 1; c.MaxTokens = 64 }})
					prompt := 10
					switch phase {
					case "queued":
						other := w.dial()
						post(other, "/v1/completions", completion(true, 10, 1000))
						w.advance("the other request runs", func() bool { return w.steps.Load() > 3 })
						defer func() {
							// It must not be disturbed.
							w.release()
							if got := read(t, bufio.NewReader(other)).frames(t); len(got) < 1000 {
								t.Errorf("another request got %d frames", len(got))
							}
						}()
					case "prefill":
						prompt = 64 * 40
					}
					before := w.srv.Connections()
					c := w.dial()
					started := w.steps.Load()
					post(c, "/v1/completions", completion(stream, prompt, 1000))
					wait(t, "the request is in", func() bool { return w.rt.Admitted() == before+1 })
					if phase != "queued" {
						w.advance("the request runs", func() bool { return w.steps.Load() > started+3 })
					}
					c.Close()
					wait(t, "the server has closed its end", func() bool { return w.srv.Connections() == before })
					w.left()
					if n := w.advance("the request's record", func() bool { return len(w.ended()) > 0 }); n > 2 {
						t.Errorf("%d steps ran after the client had left", n)
					}
					r := w.record(0)
					if r.Outcome != lifecycle.OutcomeAbort || r.Status != 499 || r.Delivered == 0 {
						t.Errorf("the record says %s, %d", r.Outcome, r.Status)
					}
					switch phase {
					case "queued":
						if r.Scheduled != 0 {
							t.Error("a request that was to be queued was scheduled")
						}
					case "prefill":
						if r.Usage.Completion != 0 || r.Scheduled == 0 {
							t.Errorf("a request that was to be in prefill has %d tokens, scheduled at %d", r.Usage.Completion, r.Scheduled)
						}
					case "decode":
						if r.Usage.Completion == 0 {
							t.Error("a request that was decoding has no tokens in its record")
						}
					}
				})
			}
		}
	}
}

func TestAStreamEndsWithDoneAndItsConnectionServesTheNextRequest(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, _ *tls.Config) {
		w := newWorld(t, options{tls: server != nil})
		c := w.dial()
		count := &counter{r: c}
		r := bufio.NewReader(count)
		sizes := []int64{}
		for range 20 {
			at := count.n - int64(r.Buffered())
			post(c, "/v1/completions", completion(true, 5, 20))
			a := read(t, r)
			frames := a.frames(t)
			if frames[len(frames)-1] != "[DONE]" {
				t.Fatalf("a stream ends with %q", frames[len(frames)-1])
			}
			if a.Header.Get("Cache-Control") != "no-cache" || a.Header.Get("X-Accel-Buffering") != "no" || a.Header.Get("X-Request-Id") == "" {
				t.Errorf("a stream's headers: %v", a.Header)
			}
			post(c, "/v1/completions", completion(false, 5, 20))
			read(t, r)
			sizes = append(sizes, count.n-int64(r.Buffered())-at)
		}
		total := int64(0)
		for i := range 40 {
			rec := w.record(i)
			total += rec.BytesOut
			if rec.Status != 200 || rec.Delivered < rec.Finished {
				t.Fatalf("record: status %d, finished %d, delivered %d", rec.Status, rec.Finished, rec.Delivered)
			}
		}
		want := int64(0)
		for _, n := range sizes {
			want += n
		}
		if total != want {
			t.Errorf("the records account for %d bytes; the client read %d", total, want)
		}
		if n := len(w.ended()); n != 40 {
			t.Errorf("%d records of 40 requests", n)
		}
	})
}

func TestPipelinedGenerationsAreAnsweredInOrder(t *testing.T) {
	w := newWorld(t, options{})
	c := w.dial()
	var all bytes.Buffer
	for i := range 10 {
		post(&all, "/v1/completions", completion(i%2 == 0, 5, 10), fmt.Sprintf("X-Request-Id: number-%d", i))
	}
	go c.Write(all.Bytes())
	r := bufio.NewReader(c)
	for i := range 10 {
		a := read(t, r)
		if got, want := a.Header.Get("X-Request-Id"), fmt.Sprintf("number-%d", i); got != want || a.StatusCode != 200 {
			t.Fatalf("answer %d is to %q, status %d: %s", i, got, a.StatusCode, a.text)
		}
	}
}

func TestFramesLeaveAsSoonAsTheyAreMade(t *testing.T) {
	w := newWorld(t, options{gate: true})
	c := w.dial()
	post(c, "/v1/completions", completion(true, 5, 50))
	frames := make(chan string)
	go func() {
		s := bufio.NewScanner(c)
		for s.Scan() {
			if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
				frames <- data
			}
		}
		close(frames)
	}()
	w.gate <- struct{}{}
	for i := range 20 {
		await(t, "a frame", frames) // before the next step is allowed
		if i < 19 {
			w.gate <- struct{}{}
		}
	}
	w.release()
	last := ""
	for f := range frames {
		last = f
		if f == "[DONE]" {
			break
		}
	}
	if last != "[DONE]" {
		t.Errorf("the stream ended with %q", last)
	}
}

func TestWhatIsRefusedHasOpenAIsShapeAndLeavesOneRecord(t *testing.T) {
	keys := []Key{{"alice", "sk-alice"}, {"bob", "sk-bob"}}
	w := newWorld(t, options{server: func(c *Config) { c.Keys = keys; c.Limits.MaxBody = 1000 }})
	auth := "Authorization: Bearer sk-bob"
	small := completion(false, 3, 3)
	for _, test := range []struct {
		name, method, path, body string
		headers                  []string
		status, records          int
	}{
		{"no JSON", "POST", "/v1/completions", "{", []string{auth}, 400, 1},
		{"no body", "POST", "/v1/chat/completions", "", []string{auth}, 400, 1},
		{"unknown model", "POST", "/v1/completions", `{"model":"other","prompt":[10]}`, []string{auth}, 404, 1},
		{"no key", "POST", "/v1/completions", small, nil, 401, 1},
		{"wrong key", "POST", "/v1/responses", small, []string{"Authorization: Bearer sk-eve"}, 401, 1},
		{"wrong scheme", "POST", "/v1/completions", small, []string{"Authorization: Basic sk-bob"}, 401, 1},
		{"no key for tokenize", "POST", "/tokenize", "{}", nil, 401, 0},
		{"no key for models", "GET", "/v1/models", "", nil, 401, 0},
		{"no key and a long body", "POST", "/v1/completions", strings.Repeat("x", 1<<20), nil, 401, 1},
		{"long body", "POST", "/v1/completions", strings.Repeat("x", 1001), []string{auth}, 413, 1},
		{"very long body", "POST", "/v1/completions", strings.Repeat("x", 4<<20), []string{auth}, 413, 1},
		{"long body elsewhere", "POST", "/tokenize", strings.Repeat("x", 1001), []string{auth}, 413, 0},
		{"compressed body", "POST", "/v1/completions", small, []string{auth, "Content-Encoding: gzip"}, 415, 1},
		{"wrong method", "GET", "/v1/completions", "", []string{auth}, 405, 1},
		{"odd method", "PATCH", "/v1/chat/completions", small, []string{auth}, 405, 1},
		{"wrong method elsewhere", "POST", "/v1/models", "", []string{auth}, 405, 0},
		{"HEAD of a POST path", "HEAD", "/v1/completions", "", []string{auth}, 405, 1},
		{"unknown path", "GET", "/v1/nothing", "", []string{auth}, 404, 0},
		{"path of a route's own", "GET", "/v1/responses/*/cancel", "", []string{auth}, 405, 0},
		{"model of no name", "GET", "/v1/models/", "", []string{auth}, 404, 0},
		{"unknown model's page", "GET", "/v1/models/org/other", "", []string{auth}, 404, 0},
		{"unknown response", "GET", "/v1/responses/resp_1", "", []string{auth}, 404, 0},
		{"unknown response to forget", "DELETE", "/v1/responses/resp_1", "", []string{auth}, 404, 0},
		{"unknown response to cancel", "POST", "/v1/responses/resp_1/cancel", "", []string{auth}, 404, 0},
		{"long request id", "POST", "/v1/completions", small, []string{auth, "X-Request-Id: " + strings.Repeat("i", 257)}, 400, 1},
		{"odd request id", "POST", "/v1/completions", small, []string{auth, "X-Request-Id: caf\xc3\xa9"}, 400, 1},
		{"request id of a megabyte", "POST", "/v1/completions", small, []string{auth, "X-Request-Id: " + strings.Repeat("i", 1<<20)}, 431, 1},
		{"request id of a megabyte elsewhere", "GET", "/health", "", []string{auth, "X-Request-Id: " + strings.Repeat("i", 1<<20)}, 431, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(w.ended())
			w.t = t
			a := w.do(test.method, test.path, test.body, test.headers...)
			if test.method == "HEAD" {
				if a.StatusCode != test.status || a.text != "" {
					t.Errorf("status %d, body %q", a.StatusCode, a.text)
				}
			} else {
				a.isError(t, test.status)
			}
			if test.status == 405 && a.Header.Get("Allow") == "" {
				t.Error("a 405 without Allow")
			}
			if test.status == 401 && a.Header.Get("WWW-Authenticate") == "" {
				t.Error("a 401 without WWW-Authenticate")
			}
			if test.records == 1 {
				r := w.record(before)
				if r.Outcome != lifecycle.OutcomeRefused || r.Status != test.status || r.Err == nil || r.Request == nil ||
					r.Path != test.path || r.Method != test.method || r.Arrival == 0 || r.Wall == 0 || r.Delivered == 0 || r.BytesOut == 0 {
					t.Errorf("record: %+v", r)
				}
				if test.status != 401 && test.status != 431 && test.headers[0] == auth && r.Request.KeyName != "bob" && !strings.Contains(test.name, "request id") {
					t.Errorf("the record names the key %q", r.Request.KeyName)
				}
			}
			if a := w.do("POST", "/v1/completions", small, auth); a.StatusCode != 200 {
				t.Errorf("afterwards a good request gets status %d: %s", a.StatusCode, a.text)
			}
			w.record(before + test.records)
			if n := len(w.ended()) - before; n != test.records+1 {
				t.Errorf("%d records instead of %d", n-1, test.records)
			}
		})
	}
	w.t = t
}

func TestABodyThatIsTooLongInChunksIsRefused(t *testing.T) {
	w := newWorld(t, options{server: func(c *Config) { c.Limits.MaxBody = 10000 }})
	c := w.dial()
	go func() {
		fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range 1000 {
			if _, err := fmt.Fprintf(c, "400\r\n%s\r\n", strings.Repeat("x", 1024)); err != nil {
				return
			}
		}
	}()
	read(t, bufio.NewReader(c)).isError(t, 413)
	if r := w.record(0); r.Status != 413 || r.Path != "/v1/completions" {
		t.Errorf("record: status %d, path %s", r.Status, r.Path)
	}
}

func TestAChunkedBodyAndAnExpectedContinueAreServed(t *testing.T) {
	w := newWorld(t, options{})
	c := w.dial()
	r := bufio.NewReader(c)
	body := completion(false, 5, 5)
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n3\r\n   \r\n0\r\n\r\n", len(body), body)
	if a := read(t, r); a.StatusCode != 200 {
		t.Fatalf("chunked: status %d: %s", a.StatusCode, a.text)
	}
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	if line, _ := r.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("no continue but %q", line)
	}
	_, _ = r.ReadString('\n')
	fmt.Fprint(c, body)
	if a := read(t, r); a.StatusCode != 200 {
		t.Fatalf("continued: status %d: %s", a.StatusCode, a.text)
	}
}

func TestSlowRequestsAreTimedOut(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, _ *tls.Config) {
		// trickle sends a byte now and then, for ever.
		trickle := func(c net.Conn) {
			for {
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		// A server that was not given the processor within its time limits has not even seen the request, and
		// answers nothing: then they are too short for this machine.
		for limit := 200 * time.Millisecond; ; limit *= 10 {
			w := newWorld(t, options{tls: server != nil, server: func(c *Config) {
				c.Limits.HeaderTimeout, c.Limits.BodyTimeout = limit, limit/4
			}})
			c := w.dial()
			fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nX-Header: ")
			go trickle(c)
			r := bufio.NewReader(c)
			if _, err := r.Peek(1); err != nil && limit < hang {
				continue
			}
			read(t, r).isError(t, 408)
			if r := w.record(0); r.Status != 408 || r.Path != "/v1/completions" || r.Method != "POST" {
				t.Errorf("record: %s %s, status %d", r.Method, r.Path, r.Status)
			}
			c = w.dial()
			fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx")
			go trickle(c)
			r = bufio.NewReader(c)
			if _, err := r.Peek(1); err != nil && limit < hang {
				continue
			}
			read(t, r).isError(t, 408)
			if r := w.record(1); r.Status != 408 || r.Path != "/v1/completions" {
				t.Errorf("record: %s %s, status %d", r.Method, r.Path, r.Status)
			}
			// A connection that says nothing is closed without an answer, and leaves no record.
			c = w.dial()
			if b, err := io.ReadAll(c); len(b) != 0 || err != nil && !strings.Contains(err.Error(), "EOF") {
				t.Errorf("a silent connection was answered with %q, %v", b, err)
			}
			if n := len(w.ended()); n != 2 {
				t.Errorf("%d records", n)
			}
			return
		}
	})
}

func TestABodyThatBreaksOffIsRefused(t *testing.T) {
	w := newWorld(t, options{})
	c := w.dial()
	fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	c.(*net.TCPConn).CloseWrite()
	read(t, bufio.NewReader(c)).isError(t, 400)
	if r := w.record(0); r.Status != 400 || r.Outcome != lifecycle.OutcomeRefused {
		t.Errorf("record: %+v", r)
	}
}

func TestAFailureBeforeTheFirstTokenHasItsOwnStatusEvenOfAStream(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newWorld(t, options{gate: true, server: func(c *Config) { c.Limits.RequestTimeout = 30 * time.Millisecond }})
		c := w.dial()
		post(c, "/v1/completions", completion(stream, 5, 5))
		read(t, bufio.NewReader(c)).isError(t, 504)
		w.release()
		if r := w.record(0); r.Status != 504 || r.Outcome != lifecycle.OutcomeError {
			t.Errorf("record: %s, %d", r.Outcome, r.Status)
		}
	}
}

func TestAFailureAfterTheFirstTokenIsAnErrorFrameAndDone(t *testing.T) {
	w := newWorld(t, options{cast: func(c *actors.Config) { c.ReopenLimit = time.Millisecond }})
	w.faults.FailAt(4)
	w.faults.Away(-1)
	c := w.dial()
	post(c, "/v1/completions", completion(true, 5, 50))
	r := bufio.NewReader(c)
	frames := read(t, r).frames(t)
	if n := len(frames); n < 3 || frames[n-1] != "[DONE]" || !strings.Contains(frames[n-2], `"error"`) || strings.Contains(frames[0], `"error"`) {
		t.Errorf("frames: %q", frames)
	}
	if rec := w.record(0); rec.Outcome != lifecycle.OutcomeError || rec.Usage.Completion != 3 {
		t.Errorf("record: %s, %d tokens", rec.Outcome, rec.Usage.Completion)
	}
	// Without a device the server says so.
	a := w.do("GET", "/health", "")
	a.isError(t, 503)
	a = w.do("POST", "/v1/completions", completion(true, 5, 5))
	a.isError(t, 503)
	if a.Header.Get("Retry-After") == "" {
		t.Error("a 503 without Retry-After")
	}
	w.faults.Clear()
	wait(t, "the device is back", func() bool { return w.do("GET", "/health", "").StatusCode == 200 })
}

func TestHealthSaysThatTheDeviceIsLostWhileTheServerDrains(t *testing.T) {
	w := newWorld(t, options{})
	w.faults.LoseAt(1, -1)
	w.do("POST", "/v1/completions", completion(false, 5, 5)).isError(t, 503)
	if text := lostHealth(t, w); !strings.Contains(text, "injected") {
		t.Error(text)
	}
}

// lostHealth drains the runtime once a device is lost, and returns what /health then says.
func lostHealth(t *testing.T, w *world) string {
	t.Helper()
	<-w.rt.Lost()
	ctx, cancel := within(hang)
	defer cancel()
	if err := w.rt.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	a := w.do("GET", "/health", "")
	a.isError(t, 503)
	return a.text
}

func TestHealthSaysWhichOfSeveralDevicesIsLostWhileTheServerDrains(t *testing.T) {
	w := newWorld(t, options{cast: func(c *actors.Config) { c.Engines = 2 }})
	w.faults.LoseAt(1, -1) // whose step comes first, and no other
	if a := w.do("POST", "/v1/completions", completion(false, 5, 5)); a.StatusCode != 200 {
		t.Errorf("the other device did not answer: %s", a.text)
	}
	if text := lostHealth(t, w); !strings.Contains(text, "shutting down: engine") || !strings.Contains(text, "injected") {
		t.Error(text)
	}
}

func TestASilentStreamBeatsAndMayFailAfterwards(t *testing.T) {
	w := newWorld(t, options{gate: true, server: func(c *Config) { c.Limits.Heartbeat = 5 * time.Millisecond }})
	c := w.dial()
	r := bufio.NewReader(c)
	post(c, "/v1/completions", completion(true, 5, 5))
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	lines := bufio.NewReader(resp.Body)
	for range 3 {
		if line, err := lines.ReadString('\n'); line != ": ping\n" || err != nil {
			t.Fatalf("not a heartbeat but %q, %v", line, err)
		}
		if line, err := lines.ReadString('\n'); line != "\n" || err != nil {
			t.Fatalf("not the end of a comment but %q, %v", line, err)
		}
	}
	w.release()
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Fatalf("the stream goes on with %q, %v", rest, err)
	}

	// An unstreamed answer has no heartbeats, and an early error has none either.
	w = newWorld(t, options{gate: true, server: func(c *Config) {
		c.Limits.Heartbeat, c.Limits.RequestTimeout = 5*time.Millisecond, 200*time.Millisecond
	}})
	c = w.dial()
	post(c, "/v1/completions", completion(false, 5, 5))
	read(t, bufio.NewReader(c)).isError(t, 504)

	w = newWorld(t, options{gate: true, cast: func(c *actors.Config) { c.ReopenLimit = time.Millisecond },
		server: func(c *Config) { c.Limits.Heartbeat = 5 * time.Millisecond }})
	w.faults.FailAt(1)
	w.faults.Away(-1)
	c = w.dial()
	post(c, "/v1/completions", completion(true, 5, 5))
	if resp, err = http.ReadResponse(bufio.NewReader(c), nil); err != nil { // the head leaves with the first heartbeat
		t.Fatal(err)
	}
	w.release()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	frames := answer{resp, string(b)}.frames(t)
	if len(frames) != 2 || !strings.Contains(frames[0], `"error"`) || frames[1] != "[DONE]" {
		t.Errorf("after a heartbeat a failure gives %q", frames)
	}
}

// smallBuffers makes the kernel hold little of what is written.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		_ = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return c, err
}

func TestAClientThatDoesNotReadItsStreamIsCutOff(t *testing.T) {
	for name, limits := range map[string]Limits{
		"by bytes": {MaxWaiting: 64 << 10},
		"by time":  {StallTimeout: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, options{
				device: sim.Options{Fixed: 500 * time.Microsecond}, // half a minute for all tokens
				server: func(c *Config) { c.Limits = limits },
				listen: func(l net.Listener) net.Listener { return smallBuffers{l} },
			})
			c := w.dial()
			_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
			post(c, "/v1/completions", completion(true, 5, 60000))
			r := w.record(0)
			if r.Outcome != lifecycle.OutcomeAbort || r.Status != 499 || r.Err == nil || r.Err.Code != "slow_client" {
				t.Errorf("record: %s, %d, %v", r.Outcome, r.Status, r.Err)
			}
			if r.Usage.Completion == 0 || r.Usage.Completion == 60000 {
				t.Errorf("it made %d tokens", r.Usage.Completion)
			}
			wait(t, "the connection is closed", func() bool { return w.srv.Connections() == 0 })
		})
	}
}

func TestAFullHouseIsSaidAtOnceWithATimeToRetry(t *testing.T) {
	w := newWorld(t, options{gate: true, cast: func(c *actors.Config) { c.MaxRequests = 1 }})
	c := w.dial()
	post(c, "/v1/completions", completion(false, 5, 5))
	wait(t, "the first is in", func() bool { return w.rt.Admitted() == 1 })
	if a := w.do("GET", "/load", ""); a.text != `{"server_load":1}` {
		t.Errorf("load: %s", a.text)
	}
	a := w.do("POST", "/v1/completions", completion(true, 5, 5))
	a.isError(t, 429)
	if a.Header.Get("Retry-After") == "" {
		t.Error("a 429 without Retry-After")
	}
	if r := w.record(0); r.Status != 429 {
		t.Errorf("record: %d", r.Status)
	}
	w.release()
	if a := read(t, bufio.NewReader(c)); a.StatusCode != 200 {
		t.Errorf("the first got status %d", a.StatusCode)
	}
	w.record(1)
}

func TestADrainingServerFinishesItsStreamsAndRefusesNewRequests(t *testing.T) {
	w := newWorld(t, options{gate: true})
	streaming := w.dial()
	post(streaming, "/v1/completions", completion(true, 5, 20))
	w.advance("the stream runs", func() bool { return w.steps.Load() > 3 })
	idle, unused := w.dial(), w.dial()
	fmt.Fprint(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	idleReader := bufio.NewReader(idle)
	read(t, idleReader)

	done := make(chan error, 1)
	go func() {
		ctx, cancel := within(hang)
		defer cancel()
		done <- w.srv.Shutdown(ctx)
	}()
	wait(t, "it drains", func() bool { return w.rt.Draining() })
	post(idle, "/v1/completions", completion(true, 5, 5))
	a := read(t, idleReader)
	a.isError(t, 503)
	if a.Header.Get("Retry-After") == "" || !a.Close {
		t.Errorf("a draining server's refusal has headers %v", a.Header)
	}
	w.do("GET", "/health", "").isError(t, 503)
	select {
	case <-done:
		t.Fatal("the server did not wait for its stream")
	default:
	}
	w.release()
	frames := read(t, bufio.NewReader(streaming)).frames(t)
	if len(frames) < 20 || frames[len(frames)-1] != "[DONE]" {
		t.Errorf("the stream was cut: %d frames", len(frames))
	}
	if err := await(t, "the shutdown", done); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if _, err := io.ReadAll(unused); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a connection was left open: %v", err)
	}
	if c, err := net.Dial("tcp", w.addr); err == nil {
		c.Close()
		t.Error("the server still listens")
	}
}

func TestAShutdownThatRunsOutOfTimeFailsWhatIsLeft(t *testing.T) {
	w := newWorld(t, options{gate: true})
	c := w.dial()
	post(c, "/v1/completions", completion(true, 5, 1000))
	w.advance("the stream runs", func() bool { return w.steps.Load() > 3 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan error, 1)
	go func() { done <- w.srv.Shutdown(ctx) }()
	frames := read(t, bufio.NewReader(c)).frames(t)
	if n := len(frames); n < 3 || frames[n-1] != "[DONE]" || !strings.Contains(frames[n-2], `"error"`) {
		t.Errorf("the stream ended with %q", frames)
	}
	w.release()
	if err := await(t, "the shutdown", done); err == nil {
		t.Error("nothing is said about a request that was cut off")
	}
	if r := w.record(0); r.Status != 503 || r.Usage.Completion == 0 {
		t.Errorf("record: %d, %d tokens", r.Status, r.Usage.Completion)
	}
}

func TestAPanicInAHandlerIsAnsweredAndRecorded(t *testing.T) {
	w := newWorld(t, options{server: func(c *Config) { c.Metrics = func(*fasthttp.RequestCtx) { panic("metrics") } }})
	w.do("GET", "/metrics", "").isError(t, 500)
	w.srv.routes["/v1/completions"].post = func(v *visit) {
		if e := w.rt.Admit(); e != nil {
			t.Error(e)
		}
		v.admitted = true
		panic("handler")
	}
	w.do("POST", "/v1/completions", completion(true, 5, 5)).isError(t, 500)
	if r := w.record(0); r.Status != 500 || r.Outcome != lifecycle.OutcomeRefused {
		t.Errorf("record: %s, %d", r.Outcome, r.Status)
	}
	if n := w.rt.Admitted(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

func TestAnEncoderThatPanicsLosesNothingButItsOwnRequest(t *testing.T) {
	w := newWorld(t, options{})
	for i, test := range []struct {
		at     string
		stream bool
		broken bool // the stream breaks off
	}{{"body", false, false}, {"delta", true, false}, {"end", true, true}} {
		w.srv.routes["/v1/completions"].post = func(v *visit) {
			body, e := w.srv.body(v)
			if e != nil {
				t.Fatal(e)
			}
			job, e := w.srv.parse(v, body)
			if e != nil {
				t.Fatal(e)
			}
			job.Encoder = broke{job.Encoder, test.at}
			if e := w.rt.Admit(); e != nil {
				t.Fatal(e)
			}
			v.admitted = true
			w.srv.answer(v, job)
		}
		if test.broken {
			c := w.dial()
			post(c, "/v1/completions", completion(test.stream, 5, 5))
			if b, _ := io.ReadAll(c); !bytes.HasPrefix(b, []byte("HTTP/1.1 200 ")) || bytes.HasSuffix(b, []byte("0\r\n\r\n")) {
				t.Errorf("%s: the client took it for a whole stream: %q", test.at, b)
			}
		} else {
			w.do("POST", "/v1/completions", completion(test.stream, 5, 5)).isError(t, 500)
		}
		if r := w.record(i); r.Outcome == lifecycle.OutcomeStop || r.Outcome == lifecycle.OutcomeLength {
			t.Errorf("%s: the record says %s, %d", test.at, r.Outcome, r.Status)
		}
	}
}

// broke is an encoder that panics at one of its methods.
type broke struct {
	openai.Encoder
	at string
}

func (b broke) panics(at string) {
	if b.at == at {
		panic(at)
	}
}

func (b broke) Delta(dst []byte, d *lifecycle.Delta) []byte {
	b.panics("delta")
	return b.Encoder.Delta(dst, d)
}

func (b broke) End(dst []byte, r *lifecycle.Response) []byte {
	b.panics("end")
	return b.Encoder.End(dst, r)
}

func (b broke) Body(r *lifecycle.Response) []byte {
	b.panics("body")
	return b.Encoder.Body(r)
}

func TestAnOldClientGetsAnUnframedStream(t *testing.T) {
	w := newWorld(t, options{})
	body := completion(true, 5, 20)
	c := w.dial()
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	count := &counter{r: c}
	a := read(t, bufio.NewReader(count))
	frames := a.frames(t)
	if len(frames) < 20 || frames[len(frames)-1] != "[DONE]" || len(a.TransferEncoding) != 0 || strings.Contains(a.text, "\r\n") {
		t.Errorf("got %d frames in %q", len(frames), a.text)
	}
	if r := w.record(0); r.Status != 200 || r.BytesOut != count.n {
		t.Errorf("record: %d, %d bytes of %d", r.Status, r.BytesOut, count.n)
	}
	// And one that leaves is noticed.
	c = w.dial()
	body = completion(true, 5, 60000)
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	_, _ = c.Read(make([]byte, 100))
	c.Close()
	if r := w.record(1); r.Status != 499 {
		t.Errorf("record: %d", r.Status)
	}
}

func TestOpenPagesNeedNoKeyAndAnswerHEAD(t *testing.T) {
	w := newWorld(t, options{server: func(c *Config) {
		c.Keys = []Key{{"a", "secret"}}
		c.Metrics = func(ctx *fasthttp.RequestCtx) { ctx.WriteString("metrics here") }
	}})
	for path, want := range map[string]string{
		"/health": "", "/ping": "", "/version": `{"version":"1.2.3"}`, "/load": `{"server_load":0}`, "/metrics": "metrics here",
	} {
		if a := w.do("GET", path, ""); a.StatusCode != 200 || a.text != want {
			t.Errorf("%s: status %d, %q", path, a.StatusCode, a.text)
		}
		if a := w.do("HEAD", path, ""); a.StatusCode != 200 || a.text != "" {
			t.Errorf("HEAD %s: status %d, %q", path, a.StatusCode, a.text)
		}
	}
	if a := w.do("GET", "/v1/models", "", "Authorization: bearer secret "); a.StatusCode != 200 {
		t.Errorf("with a key: status %d", a.StatusCode)
	}
}

func TestPagesOfOtherOriginsAreLetInAsConfigured(t *testing.T) {
	anyone := CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}}
	some := CORS{Origins: []string{"https://a.example", "https://b.example"}, Methods: []string{"POST"}, Headers: []string{"X-A", "X-B"}, Credentials: true}
	preflight := []string{"Origin: https://b.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: X-Q"}
	for _, test := range []struct {
		name    string
		cors    CORS
		method  string
		headers []string
		status  int
		want    map[string]string
	}{
		{"anyone", anyone, "GET", []string{"Origin: https://x.example"}, 401, map[string]string{"Allow-Origin": "*"}},
		{"anyone's preflight", anyone, "OPTIONS", preflight, 204, map[string]string{"Allow-Origin": "*", "Allow-Headers": "X-Q", "Allow-Methods": "GET, HEAD, POST, DELETE, OPTIONS"}},
		{"anyone with credentials", CORS{Origins: []string{"*"}, Credentials: true}, "GET", []string{"Origin: https://x.example"}, 401,
			map[string]string{"Allow-Origin": "https://x.example", "Allow-Credentials": "true"}},
		{"a friend", some, "GET", preflight[:1], 401, map[string]string{"Allow-Origin": "https://b.example", "Allow-Credentials": "true"}},
		{"a friend's preflight", some, "OPTIONS", preflight, 204, map[string]string{"Allow-Origin": "https://b.example", "Allow-Methods": "POST", "Allow-Headers": "X-A, X-B"}},
		{"a stranger", some, "GET", []string{"Origin: https://x.example"}, 401, map[string]string{"Allow-Origin": "", "Allow-Credentials": ""}},
		{"nobody", CORS{}, "GET", []string{"Origin: https://x.example"}, 401, map[string]string{"Allow-Origin": ""}},
		{"no page", anyone, "GET", nil, 401, map[string]string{"Allow-Origin": ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, options{server: func(c *Config) { c.CORS = test.cors; c.Keys = []Key{{"a", "b"}} }})
			a := w.do(test.method, "/v1/models", "", test.headers...)
			if a.StatusCode != test.status {
				t.Errorf("status %d", a.StatusCode)
			}
			for h, want := range test.want {
				if got := a.Header.Get("Access-Control-" + h); got != want {
					t.Errorf("Access-Control-%s is %q, want %q", h, got, want)
				}
			}
		})
	}
}

func TestOptionsWithoutAPageListsTheMethods(t *testing.T) {
	w := newWorld(t, options{})
	if a := w.do("OPTIONS", "/v1/completions", ""); a.StatusCode != 204 || a.Header.Get("Allow") != "OPTIONS, POST" {
		t.Errorf("status %d, Allow %q", a.StatusCode, a.Header.Get("Allow"))
	}
}

func TestKeysHaveNames(t *testing.T) {
	keys, err := ParseKeys([]string{"sk-1", "alice:sk-2", "bob:sk:3"})
	want := []Key{{"key-1", "sk-1"}, {"alice", "sk-2"}, {"bob", "sk:3"}}
	if err != nil || !slices.Equal(keys, want) {
		t.Errorf("got %v, %v", keys, err)
	}
	ring := newKeyring(keys)
	for _, k := range want {
		if name, ok := ring.find([]byte("Bearer " + k.Secret)); !ok || name != k.Name {
			t.Errorf("%s is found as %q, %v", k.Secret, name, ok)
		}
	}
	for _, wrong := range []string{"", "Bearer", "Bearer ", "Bearer sk", "sk-1", "Bearer sk-1x", "Basic sk-1"} {
		if name, ok := ring.find([]byte(wrong)); ok {
			t.Errorf("%q is let in as %s", wrong, name)
		}
	}
	for _, bad := range [][]string{{""}, {"a:"}, {":b"}, {"a:x", "b:x"}, {"a:x", "a:y"}, {"with space"}, {"caf\xc3\xa9"}} {
		if _, err := ParseKeys(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		} else if strings.Contains(err.Error(), "sp ce") {
			t.Errorf("the error tells the key: %v", err)
		}
	}
}

func TestATakenPortIsNamedWithWhatToDo(t *testing.T) {
	ln, err := Bind("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	_, err = Bind(ln.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "port "+port) || !strings.Contains(err.Error(), "--port") {
		t.Errorf("the error says: %v", err)
	}
	if _, err := Bind("nowhere"); err == nil || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("the error says: %v", err)
	}
}

func TestAWrongCertificateIsKnownAtOnce(t *testing.T) {
	w := newWorld(t, options{})
	for _, files := range [][2]string{{"cert.pem", ""}, {"", "key.pem"}, {"no-such-cert.pem", "no-such-key.pem"}} {
		_, err := New(Config{Runtime: w.rt, Env: w.srv.cfg.Env, CertFile: files[0], KeyFile: files[1]})
		if err == nil || !strings.Contains(err.Error(), files[0]) || !strings.Contains(err.Error(), files[1]) {
			t.Errorf("%v: %v", files, err)
		}
	}
}

func TestAStoreKeepsWhatWasUsedLast(t *testing.T) {
	put := func(st *store, ids ...string) {
		for _, id := range ids {
			st.put("o", &openai.Stored{ID: id, Body: make([]byte, 100)}, 10)
		}
	}
	have := func(st *store) (ids string) {
		for _, id := range []string{"a", "b", "c", "d"} {
			if st.byID[storedID{"o", id}] != nil {
				ids += id
			}
		}
		return ids
	}
	st := newStore(3, 1<<20)
	put(st, "a", "b", "c")
	st.get("o", "a")
	put(st, "d")
	if got := have(st); got != "acd" {
		t.Errorf("by count: %s", got)
	}
	if !st.delete("o", "c") || st.delete("o", "c") || have(st) != "ad" {
		t.Error("deleting")
	}
	st = newStore(100, 2*(1+100+10+keptOverhead))
	put(st, "a", "b", "c", "c")
	if got := have(st); got != "bc" || st.bytes != 2*(1+100+10+keptOverhead) {
		t.Errorf("by bytes: %s, %d bytes", got, st.bytes)
	}
	st.put("o", &openai.Stored{ID: "d", Body: make([]byte, 100)}, 10000)
	if got := have(st); got != "bc" {
		t.Errorf("after one that is too large: %s", got)
	}
	st = newStore(-1, 100)
	put(st, "a")
	if have(st) != "" {
		t.Error("a store of none keeps one")
	}
}

func TestAStoredResponseIsReadContinuedAndDeleted(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newWorld(t, options{})
		ask := func(more string) (id, object string) {
			a := w.do("POST", "/v1/responses", fmt.Sprintf(`{"model":"tiny","input":"Hello","max_output_tokens":4,"stream":%v%s}`, stream, more))
			if a.StatusCode != 200 {
				t.Fatalf("status %d: %s", a.StatusCode, a.text)
			}
			object = a.text
			if stream {
				frames := a.frames(t)
				var last struct{ Response json.RawMessage }
				if err := json.Unmarshal([]byte(frames[len(frames)-1]), &last); err != nil {
					t.Fatal(err)
				}
				object = string(last.Response)
			}
			var r struct{ ID string }
			if err := json.Unmarshal([]byte(object), &r); err != nil || r.ID == "" {
				t.Fatalf("no response object (%v): %s", err, object)
			}
			return r.ID, object
		}
		id, object := ask("")
		// It is there as soon as the client has its last byte.
		if a := w.do("GET", "/v1/responses/"+id, ""); a.StatusCode != 200 || !sameJSON(a.text, object) {
			t.Errorf("GET: status %d, %s\nwant %s", a.StatusCode, a.text, object)
		}
		first := w.srv.stored.bytes
		next, _ := ask(`,"previous_response_id":"` + id + `"`)
		if grown := w.srv.stored.bytes - first; grown < first {
			t.Errorf("a conversation's second response counts %d bytes, its first %d", grown, first)
		}
		w.do("POST", "/v1/responses/"+next+"/cancel", "").isError(t, 400)
		if a := w.do("DELETE", "/v1/responses/"+id, ""); a.StatusCode != 200 || a.text != `{"id":"`+id+`","object":"response","deleted":true}` {
			t.Errorf("DELETE: status %d, %s", a.StatusCode, a.text)
		}
		w.do("GET", "/v1/responses/"+id, "").isError(t, 404)
		w.do("POST", "/v1/responses", `{"model":"tiny","input":"x","previous_response_id":"`+id+`"}`).isError(t, 404)
		unstored, _ := ask(`,"store":false`)
		w.do("GET", "/v1/responses/"+unstored, "").isError(t, 404)
	}
}

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}

func TestTheSmallPagesAnswer(t *testing.T) {
	w := newWorld(t, options{server: func(c *Config) { c.Env.Served = []string{"org/tiny:latest", "tiny"} }})
	for _, test := range []struct{ method, path, body, want string }{
		{"GET", "/v1/models", "", `"object":"list"`},
		{"GET", "/v1/models/org/tiny:latest", "", `"id":"org/tiny:latest"`},
		{"GET", "/v1/models/org%2Ftiny%3Alatest", "", `"id":"org/tiny:latest"`},
		{"POST", "/tokenize", `{"model":"tiny","prompt":"abc"}`, `"tokens"`},
		{"POST", "/detokenize", `{"model":"tiny","tokens":[100,101]}`, `"prompt"`},
		{"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3}`, `"chat.completion"`},
	} {
		a := w.do(test.method, test.path, test.body)
		if a.StatusCode != 200 || !strings.Contains(a.text, test.want) || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: status %d, %s: %s", test.method, test.path, a.StatusCode, a.Header.Get("Content-Type"), a.text)
		}
	}
	w.record(0)
	if n := len(w.ended()); n != 1 {
		t.Errorf("%d records of one generating request", n)
	}
}

func TestCancelsAtRandomPointsLeaveNothingBehind(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, _ *tls.Config) {
		w := newWorld(t, options{
			tls: server != nil, device: sim.Options{Fixed: 500 * time.Microsecond},
			cast: func(c *actors.Config) { c.MaxSeqs = 4; c.MaxRequests = 20 },
		})
		if a := w.do("POST", "/v1/completions", completion(true, 5, 5)); a.StatusCode != 200 {
			t.Fatal(a.StatusCode)
		}
		eventually(t, "the first request is over", func() bool { return w.srv.Connections() == 0 && w.rt.Admitted() == 0 })
		// Idle workers of fasthttp go away too, so what is left now is at most what is left later.
		before := runtime.NumGoroutine()
		const n, at = 200, 40
		rng := rand.New(rand.NewPCG(1, 2))
		var all sync.WaitGroup
		slots := make(chan struct{}, at)
		for i := range n {
			slots <- struct{}{}
			pause, stream := time.Duration(rng.IntN(4000))*time.Microsecond, rng.IntN(2) == 0
			c := w.dial()
			all.Go(func() {
				defer func() { <-slots }()
				body := completion(stream, 1+i, 60000) // half a minute at least
				request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				if i%10 == 0 {
					request = request[:len(request)-i%7-1] // it leaves before its request is whole
				}
				_, _ = io.WriteString(c, request)
				time.Sleep(pause)
				c.Close()
			})
		}
		all.Wait()
		eventually(t, "all places are free", func() bool { return w.rt.Admitted() == 0 })
		eventually(t, "all connections are closed", func() bool { return w.srv.Connections() == 0 })
		eventually(t, "no sequence is left", func() bool { return w.rt.Stats().Running == 0 && w.rt.Stats().Waiting == 0 })
		eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
		ids := map[uint64]bool{}
		for _, r := range w.ended() {
			if ids[r.Request.ID] {
				t.Errorf("request %d has two records", r.Request.ID)
			}
			ids[r.Request.ID] = true
			if r.Status == 200 && r.Usage.Completion > 5 {
				t.Errorf("a request that was left has status 200 with %d tokens", r.Usage.Completion)
			}
		}
	})
}
