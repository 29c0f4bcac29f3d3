package transport

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// hang is how long a test waits for what must come; it is a guard, not a measurement.
const hang = 4 * time.Minute

// A client that has lost its turn on the processor is not to find a reset in place of an answer.
func TestMain(m *testing.M) {
	lingerTime = hang
	os.Exit(m.Run())
}

// certificate returns a certificate for localhost, made once, as PEM and ready for use.
var certificate = sync.OnceValues(func() (cert tls.Certificate, pems [2][]byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		panic(err)
	}
	pems[0] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pems[1] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	cert, err = tls.X509KeyPair(pems[0], pems[1])
	if err != nil {
		panic(err)
	}
	return cert, pems
})

// overPlainAndTLS runs f on a plain and on a TLS connection.
func overPlainAndTLS(t *testing.T, f func(t *testing.T, server, client *tls.Config)) {
	t.Run("plain", func(t *testing.T) { f(t, nil, nil) })
	t.Run("TLS", func(t *testing.T) {
		cert, _ := certificate()
		f(t, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}},
			&tls.Config{InsecureSkipVerify: true})
	})
}

// listen opens a listener on a free port.
func listen(t *testing.T, config *tls.Config, max int, stall time.Duration) *listener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newListener(inner, config, max, stall, []byte("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
}

// serve runs s on ln until the test ends, and checks that no goroutine and no connection is left.
func serve(t *testing.T, s *fasthttp.Server, ln *listener) {
	t.Helper()
	_ = new(fasthttp.Response).String() // starts fasthttp's clock, which never ends
	before := runtime.NumGoroutine()
	s.ReduceMemoryUsage, s.StreamRequestBody, s.MaxRequestBodySize = true, true, 1
	s.MaxIdleWorkerDuration = 10 * time.Millisecond
	s.ConnState = func(c net.Conn, state fasthttp.ConnState) {
		if state == fasthttp.StateIdle {
			c.(*conn).idle()
		}
	}
	s.Logger = quiet{}
	go s.Serve(ln)
	t.Cleanup(func() {
		ln.killAll()
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
		eventually(t, "all connections are closed", func() bool { return ln.openConns() == 0 })
		eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
	})
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// eventually waits until what holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, hang)
		}
	}
}

// dial connects to ln.
func dial(t *testing.T, ln net.Listener, config *tls.Config) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(hang))
	if config != nil {
		c = tls.Client(c, config)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// await fails the test when c does not deliver.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(hang):
		t.Fatalf("%s: not after %v", what, hang)
		panic("unreachable")
	}
}

func TestTenThousandWatchedRequestsOnOneConnectionAreServedInOrder(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, client *tls.Config) {
		ln := listen(t, server, 10, time.Second)
		var gone atomic.Int64
		serve(t, &fasthttp.Server{
			ReadTimeout: time.Minute, IdleTimeout: time.Minute,
			Handler: func(ctx *fasthttp.RequestCtx) {
				c := ctx.Conn().(*conn)
				c.Watch(func() { gone.Add(1) })
				c.begin(ended(func(int64, error) { c.Unwatch() }))
				ctx.Write(ctx.Path())
			},
		}, ln)
		c := dial(t, ln, client)
		r := bufio.NewReader(c)
		n := 10000
		if testing.Short() {
			n = 1000
		}
		for i := range n {
			fmt.Fprintf(c, "GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i)
			if got, want := body(t, r), fmt.Sprintf("/%d", i); got != want {
				t.Fatalf("request %d was answered with %q", i, got)
			}
		}
		if gone.Load() != 0 {
			t.Errorf("%d requests were told that their client had gone", gone.Load())
		}
	})
}

// ended is an exchange made of a function.
type ended func(int64, error)

func (f ended) finish(bytes int64, err error) { f(bytes, err) }

// body reads one response and returns its body.
func body(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("no response: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("a response broke off: %v", err)
	}
	return string(b)
}

func TestPipelinedRequestsArePushedBackAndServedNext(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, client *tls.Config) {
		ln := listen(t, server, 10, time.Second)
		var gone atomic.Int64
		entered, proceed := make(chan struct{}), make(chan struct{})
		serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
			c := ctx.Conn().(*conn)
			c.Watch(func() { gone.Add(1) })
			entered <- struct{}{}
			<-proceed
			fmt.Fprintf(ctx, "%s %d", ctx.Path(), len(ctx.PostBody()))
		}}, ln)
		c := dial(t, ln, client)
		// While the first request runs, the others arrive, and are just within what the watch may hold:
		// in two portions, so that the watch sees a first byte alone and the rest later.
		fmt.Fprint(c, "GET /0 HTTP/1.1\r\nHost: x\r\n\r\n")
		await(t, "the first request", entered)
		var rest bytes.Buffer
		const more = 15
		for i := 1; i <= more; i++ {
			fmt.Fprintf(&rest, "POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", i, i*20, strings.Repeat("x", i*20))
		}
		rest.WriteByte('\n') // a stray newline between requests is allowed for
		if rest.Len() > maxPushBack || rest.Len() < maxPushBack*3/4 {
			t.Fatalf("%d bytes are pipelined", rest.Len())
		}
		go func() {
			c.Write(rest.Bytes()[:1])
			proceed <- struct{}{}
			c.Write(rest.Bytes()[1:])
			for range more {
				<-entered
				proceed <- struct{}{}
			}
		}()
		r := bufio.NewReader(c)
		for i := range more + 1 {
			if got, want := body(t, r), fmt.Sprintf("/%d %d", i, i*20); got != want {
				t.Fatalf("answer %d is %q, want %q", i, got, want)
			}
		}
		if gone.Load() != 0 {
			t.Error("a pipelining client was taken for gone")
		}
	})
}

func TestAPipelinedRequestDoesNotHideTheClientsDeparture(t *testing.T) {
	ln := listen(t, nil, 10, time.Second)
	entered, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.Conn().(*conn).Watch(func() { gone <- struct{}{} })
		entered <- struct{}{}
		<-gone
		gone <- struct{}{}
	}}, ln)
	c := dial(t, ln, nil)
	fmt.Fprint(c, "GET /0 HTTP/1.1\r\nHost: x\r\n\r\n")
	await(t, "the first request", entered)
	fmt.Fprint(c, "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
	c.Close()
	await(t, "the departure", gone)
}

func TestACloseIsSeenWhileARequestRuns(t *testing.T) {
	for name, leave := range map[string]func(c net.Conn){
		"close": func(c net.Conn) { c.Close() },
		"reset": func(c net.Conn) {
			tcp, ok := c.(*net.TCPConn)
			if !ok {
				tcp = c.(*tls.Conn).NetConn().(*net.TCPConn)
			}
			tcp.SetLinger(0)
			tcp.Close()
		},
		"half-close": func(c net.Conn) { c.(interface{ CloseWrite() error }).CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			overPlainAndTLS(t, func(t *testing.T, server, client *tls.Config) {
				ln := listen(t, server, 10, time.Second)
				entered, gone, finished := make(chan struct{}), make(chan struct{}), make(chan error, 1)
				serve(t, &fasthttp.Server{
					ReadTimeout: time.Minute, IdleTimeout: time.Minute,
					Handler: func(ctx *fasthttp.RequestCtx) {
						c := ctx.Conn().(*conn)
						c.Watch(func() { close(gone) })
						c.begin(ended(func(_ int64, err error) { finished <- err }))
						close(entered)
						<-gone
					},
				}, ln)
				c := dial(t, ln, client)
				fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
				await(t, "the request", entered)
				leave(c)
				await(t, "the departure", gone)
				await(t, "the end of the exchange", finished)
			})
		})
	}
}

func TestTheServersReadDeadlineDoesNotEndAWatchAndHoldsAgainAfterIt(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, client *tls.Config) {
		ln := listen(t, server, 10, time.Second)
		var gone atomic.Bool
		serve(t, &fasthttp.Server{
			ReadTimeout: time.Minute, IdleTimeout: 30 * time.Millisecond,
			HeaderReceived: func(*fasthttp.RequestHeader) fasthttp.RequestConfig {
				return fasthttp.RequestConfig{ReadTimeout: time.Millisecond}
			},
			Handler: func(ctx *fasthttp.RequestCtx) {
				ctx.Conn().(*conn).Watch(func() { gone.Store(true) })
				time.Sleep(60 * time.Millisecond) // well past the deadline of the read
				if gone.Load() {
					ctx.SetStatusCode(500)
				}
			},
		}, ln)
		c := dial(t, ln, client)
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		r := bufio.NewReader(c)
		if b := body(t, r); b != "" || gone.Load() {
			t.Fatalf("the read deadline was taken for a departure")
		}
		// Now the idle timeout must close the connection.
		if _, err := r.ReadByte(); err != io.EOF {
			t.Fatalf("an idle connection was not closed: %v", err)
		}
	})
}

func TestAnExchangeEndsWithTheBytesThatWereWritten(t *testing.T) {
	ln := listen(t, nil, 10, time.Second)
	type end struct {
		bytes int64
		err   error
	}
	ends := make(chan end, 2)
	serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.Conn().(*conn).begin(ended(func(n int64, err error) { ends <- end{n, err} }))
		ctx.Write(bytes.Repeat([]byte("x"), 100000))
	}}, ln)
	c := dial(t, ln, nil)
	for range 2 {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		count := &counter{r: c}
		body(t, bufio.NewReader(count))
		if e := await(t, "the end", ends); e.err != nil || e.bytes != count.n {
			t.Errorf("the exchange ended with %d bytes and error %v; the client read %d", e.bytes, e.err, count.n)
		}
	}
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// unread is more than the kernel's buffers hold.
const unread = 16 << 20

// answerUnread serves one client more than fits the kernel's buffers, with the stall time given.
func answerUnread(t *testing.T, server, client *tls.Config, stall time.Duration) (c net.Conn, ends <-chan error) {
	ln := listen(t, server, 10, stall)
	told := make(chan error, 1)
	serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.Conn().(*conn).begin(ended(func(n int64, err error) { told <- err }))
		ctx.Response.SetBodyRaw(make([]byte, unread))
	}}, ln)
	c = dial(t, ln, client)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	return c, told
}

func TestAClientThatDoesNotReadIsCutOffAndOneThatReadsSlowlyIsNot(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, client *tls.Config) {
		_, ends := answerUnread(t, server, client, 50*time.Millisecond)
		if err := await(t, "the cut", ends); err == nil {
			t.Error("a client that reads nothing was not cut off")
		}
		for stall := 500 * time.Millisecond; ; stall *= 4 {
			c, ends := answerUnread(t, server, client, stall)
			// Pauses shorter than the stall time, but in all much longer than it.
			buf := make([]byte, unread/16)
			var err error
			longest, last := time.Duration(0), time.Now()
			for read := 0; read < unread && err == nil; {
				var n int
				n, err = io.ReadAtLeast(c, buf, min(len(buf), unread-read))
				read += n
				time.Sleep(stall / 10)
				now := time.Now()
				longest, last = max(longest, now.Sub(last)), now
			}
			cut := await(t, "the end", ends)
			if err == nil && cut == nil {
				return
			}
			// On a busy machine a pause may be longer than was meant: then it shows nothing.
			if longest < stall/2 || stall > time.Minute {
				t.Fatalf("a reader whose longest pause was %v was cut off after %v: %v, %v", longest, stall, err, cut)
			}
		}
	})
}

func TestAKilledConnectionWakesItsHandler(t *testing.T) {
	overPlainAndTLS(t, func(t *testing.T, server, client *tls.Config) {
		ln := listen(t, server, 10, time.Second)
		gone, finished, conns := make(chan struct{}), make(chan error, 1), make(chan *conn, 1)
		serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
			c := ctx.Conn().(*conn)
			c.Watch(func() { close(gone) })
			c.begin(ended(func(_ int64, err error) { finished <- err }))
			conns <- c
			<-gone
		}}, ln)
		c := dial(t, ln, client)
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		await(t, "the request", conns).Kill()
		await(t, "the wake-up", gone)
		if err := await(t, "the end", finished); !errors.Is(err, errCut) {
			t.Errorf("a killed connection's exchange ended with %v", err)
		}
	})
}

func TestConnectionsBeyondTheLimitAreToldSoAndTheirPlacesComeBack(t *testing.T) {
	ln := listen(t, nil, 2, time.Second)
	serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {}}, ln)
	get := func(c net.Conn) int {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	a, b := dial(t, ln, nil), dial(t, ln, nil)
	if s := get(a); s != 200 {
		t.Fatalf("status %d", s)
	}
	if s := get(b); s != 200 {
		t.Fatalf("status %d", s)
	}
	third, err := io.ReadAll(dial(t, ln, nil))
	if err != nil || !strings.HasPrefix(string(third), "HTTP/1.1 503 ") {
		t.Fatalf("the third connection got %q, %v", third, err)
	}
	a.Close()
	eventually(t, "a place is free", func() bool { return ln.openConns() < 2 })
	if s := get(dial(t, ln, nil)); s != 200 {
		t.Fatalf("status %d", s)
	}
}

// failing is a listener whose first Accepts fail as they do when file descriptors run out.
type failing struct {
	net.Listener
	left int
}

type outOfFiles struct{}

func (outOfFiles) Error() string   { return "too many open files" }
func (outOfFiles) Timeout() bool   { return false }
func (outOfFiles) Temporary() bool { return true }

func (f *failing) Accept() (net.Conn, error) {
	if f.left > 0 {
		f.left--
		return nil, outOfFiles{}
	}
	return f.Listener.Accept()
}

func TestRunningOutOfFileDescriptorsDoesNotEndTheServer(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := newListener(&failing{inner, 3}, nil, 10, time.Second, nil)
	serve(t, &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) { ctx.WriteString("served") }}, ln)
	c := dial(t, ln, nil)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if b := body(t, bufio.NewReader(c)); b != "served" {
		t.Errorf("got %q", b)
	}
}

func TestTheRequestLineOfAnUnreadableRequestIsKnown(t *testing.T) {
	for read, want := range map[string][2]string{
		"POST /v1/chat/completions HTTP/1.1\r\nX: ": {"POST", "/v1/chat/completions"},
		"GET /health?verbose=1 HTTP/1.1\r\n":        {"GET", "/health"},
		"GET /health\r\n":                           {"GET", "/health"},
		"POST /v1/chat/comp":                        {"", ""},
		"\x16\x03\x01\x02\x00 / x":                  {"\x16\x03\x01\x02\x00", "/"},
		"":                                          {"", ""},
		"{\"a\": \"b\", \"c\": 1}":                  {"", ""},
		"GET /" + strings.Repeat("x", 200) + " ":    {"", ""},
	} {
		var c conn
		c.headLen = copy(c.head[:], read)
		if m, p := c.requestLine(); m != want[0] || p != want[1] {
			t.Errorf("%q gives %q %q", read, m, p)
		}
	}
}
