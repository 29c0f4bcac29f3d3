package transport

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
)

// keyed is a world with the keys of alice and bob.
func keyed(t *testing.T, o options) *world {
	more := o.server
	o.server = func(c *Config) {
		c.Keys = []Key{{"alice", "sk-alice"}, {"bob", "sk-bob"}}
		if more != nil {
			more(c)
		}
	}
	return newWorld(t, o)
}

const (
	asAlice = "Authorization: Bearer sk-alice"
	asBob   = "Authorization: Bearer sk-bob"
)

// responseID reads the id of a response object, or of the last frame of a stream of one.
func responseID(t *testing.T, a answer, stream bool) string {
	t.Helper()
	var r struct {
		ID       string
		Response struct{ ID string }
	}
	text := a.text
	if stream {
		f := a.frames(t)
		text = f[len(f)-1]
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.ID+r.Response.ID == "" {
		t.Fatalf("no response object (%v): %s", err, a.text)
	}
	return r.ID + r.Response.ID
}

func TestAStoredResponseIsThereForItsOwnKeyAlone(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := keyed(t, options{})
		ask := func(key, input, more string) answer {
			return w.do("POST", "/v1/responses", fmt.Sprintf(`{"model":"tiny","input":%q,"max_output_tokens":4,"stream":%v%s}`, input, stream, more),
				key, "X-Request-Id: chosen")
		}
		const id = "resp_chosen"
		if got := responseID(t, ask(asAlice, "alice's", ""), stream); got != id {
			t.Fatalf("alice's response is %s", got)
		}
		alices := w.do("GET", "/v1/responses/"+id, "", asAlice)
		if alices.StatusCode != 200 {
			t.Fatalf("alice's own: %d %s", alices.StatusCode, alices.text)
		}
		unknown := w.do("GET", "/v1/responses/resp_nobodys", "", asBob)
		for _, m := range []string{"GET", "DELETE", "POST"} {
			path := "/v1/responses/" + id
			if m == "POST" {
				path += "/cancel"
			}
			a := w.do(m, path, "", asBob)
			a.isError(t, 404)
			if want := strings.ReplaceAll(unknown.text, "resp_nobodys", id); a.text != want {
				t.Errorf("%s tells bob %s, and of an unknown one %s", m, a.text, want)
			}
		}
		ask(asBob, "x", `,"previous_response_id":"`+id+`"`).isError(t, 404)
		// The same id is free for bob, and does not touch alice's.
		if got := responseID(t, ask(asBob, "bob's", ""), stream); got != id {
			t.Errorf("bob's response is %s", got)
		}
		if a := w.do("GET", "/v1/responses/"+id, "", asAlice); a.text != alices.text {
			t.Errorf("alice's response was changed to %s", a.text)
		}
		if a := w.do("DELETE", "/v1/responses/"+id, "", asBob); a.StatusCode != 200 {
			t.Errorf("bob's own: %d", a.StatusCode)
		}
		if a := w.do("GET", "/v1/responses/"+id, "", asAlice); a.text != alices.text {
			t.Errorf("bob deleted alice's response: %s", a.text)
		}
		if a := ask(asAlice, "x", `,"previous_response_id":"`+id+`"`); a.StatusCode != 200 {
			t.Errorf("alice cannot go on with her own: %s", a.text)
		}
	}
}

func TestAnIDThatIsTakenIsNotUsedAgain(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := keyed(t, options{gate: true})
		body := fmt.Sprintf(`{"model":"tiny","input":"Hello","max_output_tokens":4,"request_id":"also","stream":%v}`, stream)
		// Two at once, one of which gets the id.
		var rs [2]*bufio.Reader
		for i := range rs {
			c := w.dial()
			post(c, "/v1/responses", body, asAlice, "X-Request-Id: chosen")
			rs[i] = bufio.NewReader(c)
			wait(t, "the request is in", func() bool { return w.rt.Admitted() == i+1 })
		}
		w.release()
		ids := map[string]bool{}
		for _, r := range rs {
			a := read(t, r)
			if got := a.Header.Get("X-Request-Id"); got != "chosen" {
				t.Errorf("X-Request-Id: %s", got)
			}
			ids[responseID(t, a, stream)] = true
		}
		ids[responseID(t, w.do("POST", "/v1/responses", body, asAlice, "X-Request-Id: chosen"), stream)] = true
		if len(ids) != 3 || !ids["resp_chosen"] || ids["resp_also"] {
			t.Errorf("ids: %v", ids)
		}
		for id := range ids {
			if a := w.do("GET", "/v1/responses/"+id, "", asAlice); a.StatusCode != 200 || responseID(t, a, false) != id {
				t.Errorf("%s: %d %s", id, a.StatusCode, a.text)
			}
		}
		for i := range 3 {
			if r := w.record(i); r.Request.ClientID != "chosen" || r.Request.KeyName != "alice" {
				t.Errorf("a record names the client's id %q and the key %q", r.Request.ClientID, r.Request.KeyName)
			}
		}
		// What is deleted, or was not stored in the end, leaves its id.
		w.do("DELETE", "/v1/responses/resp_chosen", "", asAlice)
		if id := responseID(t, w.do("POST", "/v1/responses", body, asAlice, "X-Request-Id: chosen"), stream); id != "resp_chosen" {
			t.Errorf("after it was deleted, the id is not used again but %s", id)
		}
		wait(t, "no id is promised any more", func() bool {
			w.srv.stored.mu.Lock()
			defer w.srv.stored.mu.Unlock()
			return len(w.srv.stored.promised) == 0
		})
	}
}

// lockedBuffer collects a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestAKeyInAMalformedRequestIsToldToNobody(t *testing.T) {
	const key = "sk-bob"
	var log lockedBuffer
	w := keyed(t, options{server: func(c *Config) { c.Log = zerolog.New(&log).Level(zerolog.TraceLevel) }})
	for name, test := range map[string]struct{ sent, says string }{
		"space before colon": {"Authorization : Bearer " + key + "\r\n", "name"},
		"control byte":       {"Authorization: Bearer " + key + "\x01\r\n", "control character"},
		"no colon":           {"Authorization Bearer " + key + "\r\n", ""},
		"no name":            {": Bearer " + key + "\r\n", ""},
		"folded first":       {"\tBearer " + key + "\r\n", ""},
		"in the length":      {"Content-Length: " + key + "\r\n", "Content-Length"},
		"in the encoding":    {"Transfer-Encoding: " + key + "\r\n", "Transfer-Encoding"},
		"two hosts":          {"Host: " + key + "\r\n", "Host"},
		"in a trailer":       {"Authorization: Bearer " + key + "\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization : Bearer " + key + "\r\n", ""},
		"in a chunk's size":  {"Authorization: Bearer " + key + "\r\nTransfer-Encoding: chunked\r\n\r\n" + key + "\r\n", ""},
		"breaks off":         {"Authorization: Bearer " + key, "ended"},
	} {
		before := len(w.ended())
		c := w.dial()
		fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s", test.sent)
		if name == "breaks off" {
			_ = c.(*net.TCPConn).CloseWrite()
		} else {
			fmt.Fprint(c, "\r\n")
		}
		all := read(t, bufio.NewReader(c))
		all.isError(t, 400)
		if !strings.Contains(all.text, test.says) {
			t.Errorf("%s: %s", name, all.text)
		}
		c.Close()
		r := w.record(before)
		told := fmt.Sprintf("%s %v %+v %+v %+v", all.text, all.Header, r, r.Request, r.Err)
		if strings.Contains(told, key) {
			t.Errorf("%s: the key is told: %s", name, told)
		}
	}
	wait(t, "the connections are closed", func() bool { return w.srv.Connections() == 0 })
	if strings.Contains(log.String(), key) {
		t.Errorf("the key is logged: %s", log.String())
	}
	if !strings.Contains(log.String(), "error when serving connection") {
		t.Errorf("nothing was logged, so nothing was tested: %s", log.String())
	}
}

func TestWhatIsRefusedIsRefusedBeforeItsBodyIsAskedFor(t *testing.T) {
	w := keyed(t, options{server: func(c *Config) {
		c.Limits.MaxBody = 1000
		c.Limits.HeaderTimeout, c.Limits.BodyTimeout = hang, hang // waiting is to fail the test
	}})
	for _, test := range []struct {
		name, line, headers string
		status, records     int
	}{
		{"no key", "POST /v1/completions", "Content-Length: 100", 401, 1},
		{"wrong key", "POST /v1/completions", "Authorization: Bearer sk-eve\r\nContent-Length: 100", 401, 1},
		{"wrong key, in chunks", "POST /v1/completions", "Authorization: Bearer sk-eve\r\nTransfer-Encoding: chunked", 401, 1},
		{"too long", "POST /v1/completions", asBob + "\r\nContent-Length: 1001", 413, 1},
		{"unknown path", "POST /v1/nothing", asBob + "\r\nContent-Length: 100", 404, 0},
		{"open unknown path", "POST /nothing", "Content-Length: 100", 404, 0},
		{"wrong method", "PUT /v1/completions", asBob + "\r\nContent-Length: 100", 405, 1},
		{"compressed", "POST /v1/completions", asBob + "\r\nContent-Encoding: gzip\r\nContent-Length: 100", 415, 1},
		{"odd id", "POST /v1/completions", asBob + "\r\nX-Request-Id: \xff\r\nContent-Length: 100", 400, 1},
	} {
		for _, version := range []string{"1.1", "1.0"} {
			for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
				if version == "1.0" && strings.Contains(test.headers, "chunked") {
					continue // there are none in 1.0
				}
				t.Run(fmt.Sprint(test.name, " ", version, " ", expect), func(t *testing.T) {
					before := len(w.ended())
					c := w.dial()
					fmt.Fprintf(c, "%s HTTP/%s\r\nHost: x\r\n%s\r\n%s\r\n", test.line, version, test.headers, expect)
					r := bufio.NewReader(c)
					a := read(t, r) // a 100 would be read here
					a.isError(t, test.status)
					if expect != "" && version == "1.1" && !a.Close {
						t.Error("the connection stays open, and a body may follow or not")
					}
					if test.status == 401 && a.Header.Get("WWW-Authenticate") == "" || test.status == 405 && a.Header.Get("Allow") == "" {
						t.Errorf("headers: %v", a.Header)
					}
					c.Close()
					w.t = t
					if test.records == 1 {
						if rec := w.record(before); rec.Status != test.status || rec.Outcome != lifecycle.OutcomeRefused || rec.Delivered == 0 || rec.BytesOut == 0 {
							t.Errorf("record: %+v", rec)
						}
					}
					wait(t, "the connection is closed", func() bool { return w.srv.Connections() == 0 })
					if n := len(w.ended()) - before; n != test.records {
						t.Errorf("%d records", n)
					}
				})
			}
		}
	}
	w.t = t
	// And what is good is asked for.
	c := w.dial()
	body := completion(false, 3, 3)
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", asBob, len(body))
	r := bufio.NewReader(c)
	if line, _ := r.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("no continue but %q", line)
	}
	_, _ = r.ReadString('\n')
	fmt.Fprint(c, body)
	if a := read(t, r); a.StatusCode != 200 || a.Close {
		t.Errorf("status %d, close %v: %s", a.StatusCode, a.Close, a.text)
	}
}

func TestOtherVersionsOfHTTPAreRefused(t *testing.T) {
	w := newWorld(t, options{})
	for _, version := range []string{"2.0", "9.9", "0.9", "3.0"} {
		for _, more := range []string{"Content-Length: 100\r\n", "", "Expect: 100-continue\r\nContent-Length: 100\r\n"} {
			before := len(w.ended())
			c := w.dial()
			fmt.Fprintf(c, "POST /v1/completions HTTP/%s\r\nHost: x\r\n%s\r\n", version, more)
			a := read(t, bufio.NewReader(c))
			a.isError(t, 505)
			if !a.Close {
				t.Error("the connection stays open")
			}
			if r := w.record(before); r.Status != 505 {
				t.Errorf("record: status %d", r.Status)
			}
		}
	}
	c := w.dial()
	fmt.Fprint(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if line, _ := bufio.NewReader(c).ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 4") && !strings.HasPrefix(line, "HTTP/1.1 505") {
		t.Errorf("HTTP/2's preface is answered with %q", line)
	}
	for _, version := range []string{"1.0", "1.1", "1.2"} {
		c := w.dial()
		fmt.Fprintf(c, "GET /ping HTTP/%s\r\nHost: x\r\n\r\n", version)
		if a := read(t, bufio.NewReader(c)); a.StatusCode != 200 {
			t.Errorf("HTTP/%s: status %d", version, a.StatusCode)
		}
	}
}

func TestAnAbandonedReplyIsCutOffAndSaysHowFarItCame(t *testing.T) {
	for _, stream := range []bool{false, true} {
		server, client := tcpPair(t)
		c := newConn(server, server, hang, func() {})
		r := newReply(c, large{}, stream, 1<<30, 0, func() int64 { return 1 })
		l := make(chan lifecycle.Delivered, 10)
		r.Attach(func(m any) {
			if d, ok := m.(lifecycle.Delivered); ok {
				l <- d
			}
		})
		c.begin(r)
		c.Watch(r.left)
		r.Delta(&lifecycle.Delta{})
		r.End(&lifecycle.Response{})
		writing := make(chan struct{})
		go func() { // as the handler and fasthttp are
			r.await()
			close(writing)
			if _, stream, _ := r.verdict(); stream {
				_, _ = r.WriteTo(c)
			} else if r.handOver() {
				_, _ = c.Write(large{}.Body(nil))
			}
			_ = c.Close()
		}()
		<-writing
		wait(t, "the client's buffers are full", func() bool {
			n := c.written.Load()
			time.Sleep(20 * time.Millisecond)
			return n > 0 && n == c.written.Load()
		})
		var both sync.WaitGroup
		for range 2 {
			both.Go(r.Abandon)
		}
		both.Wait()
		d := await(t, "the delivery", l)
		got, _ := io.Copy(io.Discard, client)
		if d.Err == nil || !d.Slow || d.Bytes != c.written.Load() || d.Bytes == 0 || d.Bytes >= int64(len(large{}.Body(nil))) || got > d.Bytes {
			t.Errorf("stream=%v: delivered %+v; the client read %d", stream, d, got)
		}
		r.Abandon()
		if len(l) != 0 {
			t.Error("the delivery was told twice")
		}
	}
}

// large is an encoder of more than fits the kernel's buffers.
type large struct{ plain }

func (large) Delta(dst []byte, _ *lifecycle.Delta) []byte { return append(dst, large{}.Body(nil)...) }
func (large) Body(*lifecycle.Response) []byte             { return make([]byte, 32<<20) }

// tcpPair returns the two ends of a connection.
func tcpPair(t *testing.T) (server, client net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return server, client
}

func TestAbandoningADeliveredReplyLeavesTheNextRequestAlone(t *testing.T) {
	server, client := tcpPair(t)
	c := newConn(server, server, hang, func() {})
	l := make(chan lifecycle.Delivered, 10)
	var rs [2]*reply
	for i := range rs {
		r := newReply(c, plain{}, false, 1<<20, 0, func() int64 { return 1 })
		rs[i] = r
		r.Attach(func(m any) {
			if d, ok := m.(lifecycle.Delivered); ok {
				l <- d
			}
		})
		c.begin(r)
		c.Watch(r.left)
		if i == 1 {
			rs[0].Abandon()
		}
		r.End(&lifecycle.Response{})
		r.await()
		if !r.handOver() {
			t.Fatal("the client is taken for gone")
		}
		if _, err := c.Write([]byte("body")); err != nil {
			t.Fatal(err)
		}
		c.idle()
		if d := await(t, "the delivery", l); d.Err != nil || d.Bytes != 4 {
			t.Fatalf("reply %d: %+v", i, d)
		}
	}
	_ = c.Close()
	if b, err := io.ReadAll(client); string(b) != "bodybody" || err != nil {
		t.Errorf("the client got %q, %v", b, err)
	}
}

func TestAFloodOfPipelinedBytesDoesNotHideTheClientsDeparture(t *testing.T) {
	for _, overTLS := range []bool{false, true} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("TLS=%v/stream=%v", overTLS, stream), func(t *testing.T) {
				w := newWorld(t, options{gate: true, tls: overTLS, cast: func(c *actors.Config) { c.MaxSeqs = 1 }})
				c := w.dial()
				post(c, "/v1/completions", completion(stream, 10, 1000))
				w.advance("the request runs", func() bool { return w.steps.Load() > 3 })
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					t.Fatal(err)
				}
				c.Close()
				wait(t, "the server has closed its end", func() bool { return w.srv.Connections() == 0 })
				w.left()
				if n := w.advance("the request's record", func() bool { return len(w.ended()) > 0 }); n > 2 {
					t.Errorf("%d steps ran after the client had left", n)
				}
				if r := w.record(0); r.Outcome != lifecycle.OutcomeAbort || r.Status != 499 {
					t.Errorf("the record says %s, %d", r.Outcome, r.Status)
				}
			})
		}
	}
}

func TestAfterAFloodOfPipelinedBytesTheAnswerIsStillGivenAndTheConnectionEnds(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, client *tls.Config) {
		ln := listen(t, server, 10, hang)
		entered, proceed := make(chan *conn), make(chan struct{})
		serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
			c := ctx.Conn().(*conn)
			c.Watch(func() { t.Error("the client is taken for gone") })
			entered <- c
			<-proceed
			c.Unwatch()
			fmt.Fprint(ctx, strings.Repeat("x", 1<<20))
		}}, ln)
		c := dial(t, ln, client)
		fmt.Fprint(c, "GET /0 HTTP/1.1\r\nHost: x\r\n\r\n")
		on := await(t, "the request", entered)
		go func() { _, _ = c.Write(bytes.Repeat([]byte("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"), 10000)) }()
		wait(t, "the flood is noticed", on.flooded)
		close(proceed)
		r := bufio.NewReader(c)
		if got := body(t, r); len(got) != 1<<20 {
			t.Errorf("%d bytes", len(got))
		}
		if resp, err := http.ReadResponse(r, nil); err == nil {
			t.Errorf("a request that was dropped is answered with %d", resp.StatusCode)
		}
	})
}

func TestALongRequestSentAfterTheLastByteIsServedHoweverEarlyItComes(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, client *tls.Config) {
		ln := listen(t, server, 10, hang)
		entered, proceed := make(chan *conn), make(chan struct{})
		serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
			c := ctx.Conn().(*conn)
			n := len(ctx.PostBody()) // before the watch, as the server's own handler does
			c.Watch(func() { t.Error("the client is taken for gone") })
			c.Unwatch() // as when the last byte is on its way
			entered <- c
			<-proceed
			fmt.Fprint(ctx, n)
		}}, ln)
		c := dial(t, ln, client)
		fmt.Fprint(c, "GET /0 HTTP/1.1\r\nHost: x\r\n\r\n")
		on := await(t, "the request", entered)
		const n = 3 * maxPushBack
		fmt.Fprintf(c, "POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", n, strings.Repeat("x", n))
		wait(t, "the watch has read what it may", func() bool {
			on.mu.Lock()
			defer on.mu.Unlock()
			return len(on.back) > maxPushBack && !on.reading
		})
		r := bufio.NewReader(c)
		proceed <- struct{}{}
		body(t, r)
		await(t, "the next request", entered)
		proceed <- struct{}{}
		if got := body(t, r); got != fmt.Sprint(n) {
			t.Errorf("the next request's body had %s bytes", got)
		}
	})
}

func TestAnAnswerAfterAFloodSaysThatTheConnectionEnds(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newWorld(t, options{gate: true})
		c := w.dial()
		post(c, "/v1/completions", completion(stream, 10, 5))
		wait(t, "the request is in", func() bool { return w.rt.Admitted() == 1 })
		var rest bytes.Buffer
		for rest.Len() < 64<<10 {
			post(&rest, "/v1/completions", completion(false, 10, 5))
		}
		if _, err := c.Write(rest.Bytes()); err != nil {
			t.Fatal(err)
		}
		wait(t, "the flood is noticed", func() bool {
			w.srv.mu.Lock()
			defer w.srv.mu.Unlock()
			for _, l := range w.srv.listeners {
				l.mu.Lock()
				defer l.mu.Unlock()
				for c := range l.conns {
					if c.flooded() {
						return true
					}
				}
			}
			return false
		})
		w.release()
		r := bufio.NewReader(c)
		if a := read(t, r); a.StatusCode != 200 || !a.Close {
			t.Errorf("stream=%v: status %d, close %v: %s", stream, a.StatusCode, a.Close, a.text)
		}
		if b, err := io.ReadAll(r); len(b) != 0 || err != nil {
			t.Errorf("more was answered: %q, %v", b, err)
		}
		if rec := w.record(0); rec.Status != 200 || rec.Delivered == 0 {
			t.Errorf("record: status %d", rec.Status)
		}
	}
}

func TestAClientThatTakesTooLongForItsAnswerIsCutOffAndTheRecordCountsWhatItGot(t *testing.T) {
	for _, overTLS := range []bool{false, true} {
		w := newWorld(t, options{
			tls:    overTLS,
			cast:   func(c *actors.Config) { c.DeliveryTimeout = 300 * time.Millisecond },
			server: func(c *Config) { c.Limits.MaxWaiting = 1 << 30; c.Limits.StallTimeout = hang },
			listen: func(ln net.Listener) net.Listener { return smallBuffers{ln} },
		})
		c := w.dial()
		raw := c
		if s, ok := c.(*tls.Conn); ok {
			raw = s.NetConn()
		}
		_ = raw.(*net.TCPConn).SetReadBuffer(4 << 10)
		post(c, "/v1/completions", completion(true, 10, 20000))
		r := w.record(0) // the client reads nothing until then
		got, _ := io.Copy(io.Discard, c)
		if r.Status != 499 || r.BytesOut == 0 || got > r.BytesOut {
			t.Errorf("TLS=%v: status %d, %d bytes; the client read %d", overTLS, r.Status, r.BytesOut, got)
		}
		wait(t, "the connection is closed", func() bool { return w.srv.Connections() == 0 })
	}
}
