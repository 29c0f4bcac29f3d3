// Package transport is Troupe's HTTP side: the server on fasthttp, its routes, keys and limits, and
// the way of an answer from a request's actor to the client's socket.
//
// fasthttp reads requests and writes responses. What it leaves open is covered here: connections
// that notice that their client has left (conn), readers that do not read (conn, reply), bodies read
// after the key was checked, and errors of one shape, OpenAI's.
package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/console"
	"github.com/troupe-llm/troupe/transport/openai"
)

// Config is what a Server needs. Runtime and Env are required.
type Config struct {
	Runtime *actors.Runtime
	Env     *openai.Env
	// Observer is told of requests that were refused before the runtime had them, the same one that
	// the runtime tells of the others; nil tells nobody.
	Observer lifecycle.Observer
	// Traced says that the observer makes spans, so that clients' trace headers are wanted.
	Traced bool
	// Metrics answers GET /metrics; nil: there is no such path.
	Metrics fasthttp.RequestHandler
	// Console answers GET /console, the live page; nil: there is no such path. It follows Runtime.
	Console *console.Console
	// Keys that clients may use for what computes; none: no key is needed.
	Keys []Key
	CORS CORS
	// CertFile and KeyFile are PEM files; both or none. With them the server speaks HTTPS only.
	CertFile, KeyFile string
	Limits            Limits
	// Version is what GET /version says.
	Version string
	Log     zerolog.Logger
}

// Limits bound what clients may take. A zero field gets the default named at it.
type Limits struct {
	MaxBody   int // bytes of a request's body; 32 MiB
	MaxHeader int // bytes of a request's line and headers; 16 KiB
	MaxConns  int // open connections; 16384

	HeaderTimeout time.Duration // from a request's first byte to the end of its headers; 10 s
	BodyTimeout   time.Duration // from there to the end of its body; 60 s
	IdleTimeout   time.Duration // between requests; 120 s
	// StallTimeout is how long a client may take none of the bytes that wait for it; 30 s.
	StallTimeout time.Duration
	// MaxWaiting is how much of a stream, in bytes, may wait for a client that reads too slowly;
	// 1 MiB.
	MaxWaiting int
	// Heartbeat is how long a stream may be silent before a comment is sent; 15 s, negative: never.
	Heartbeat time.Duration
	// RequestTimeout is the time a generating request has, from its arrival; 0: no limit.
	RequestTimeout time.Duration

	StoredResponses int   // responses kept for GET /v1/responses/{id}; 1000, negative: none
	StoredBytes     int64 // and their bytes; 64 MiB
}

func (l *Limits) defaults() {
	set(&l.MaxBody, 32<<20)
	set(&l.MaxHeader, 16<<10)
	set(&l.MaxConns, 16384)
	set(&l.HeaderTimeout, 10*time.Second)
	set(&l.BodyTimeout, time.Minute)
	set(&l.IdleTimeout, 2*time.Minute)
	set(&l.StallTimeout, 30*time.Second)
	set(&l.MaxWaiting, 1<<20)
	set(&l.Heartbeat, 15*time.Second)
	set(&l.StoredResponses, 1000)
	set(&l.StoredBytes, 64<<20)
}

func set[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// serverName is the Server header of every response.
const serverName = "troupe"

// Server serves the API of one runtime. Make it with New; start it with Serve or ListenAndServe; end
// it with Shutdown.
type Server struct {
	cfg    Config
	http   *fasthttp.Server
	tls    *tls.Config
	keys   keyring
	stored *store
	routes map[string]*route

	draining atomic.Bool

	mu        sync.Mutex
	listeners []*listener
	down      bool
}

// New makes a Server. It reads the certificate, so that a wrong one is known at once.
func New(cfg Config) (*Server, error) {
	if cfg.Runtime == nil || cfg.Env == nil {
		return nil, errors.New("transport: Config needs Runtime and Env")
	}
	cfg.Limits.defaults()
	s := &Server{
		cfg:    cfg,
		keys:   newKeyring(cfg.Keys),
		stored: newStore(cfg.Limits.StoredResponses, cfg.Limits.StoredBytes),
	}
	switch {
	case cfg.CertFile != "" && cfg.KeyFile != "":
		cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("TLS certificate %s with key %s: %w", cfg.CertFile, cfg.KeyFile, err)
		}
		s.tls = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	case cfg.CertFile != "":
		return nil, fmt.Errorf("TLS certificate %s has no key: name its key file too (--ssl-keyfile)", cfg.CertFile)
	case cfg.KeyFile != "":
		return nil, fmt.Errorf("TLS key %s has no certificate: name its certificate file too (--ssl-certfile)", cfg.KeyFile)
	}
	s.routes = s.routing()
	l := &cfg.Limits
	s.http = &fasthttp.Server{
		Name:         serverName,
		Handler:      s.handle,
		ErrorHandler: s.unreadable,
		// fasthttp waits for a body's first byte before it calls the handler, and tells a client that
		// asks to go on to do so. What cannot be served is refused before either.
		HeaderReceived: s.announced,
		ExpectHandler:  s.expect,
		// What a client sent is nothing for a log; see also kindOf.
		SecureErrorLogMessage: true,
		ConnState: func(c net.Conn, state fasthttp.ConnState) {
			if c, ok := c.(*conn); ok && state == fasthttp.StateIdle {
				c.idle()
			}
		},
		Logger: discard{cfg.Log},
		// The listener bounds connections; this must never be what refuses one.
		Concurrency:    l.MaxConns + 64,
		ReadBufferSize: l.MaxHeader,
		ReadTimeout:    l.HeaderTimeout,
		IdleTimeout:    l.IdleTimeout,
		// The handler reads the body, after it has looked at path, key and size. fasthttp reads this
		// much ahead of it.
		StreamRequestBody:            true,
		MaxRequestBodySize:           1,
		DisablePreParseMultipartForm: true,
		// Idle connections hold no buffers, and no response waits for a pipelined one.
		ReduceMemoryUsage: true,
		// Nor do idle goroutines stay for long after a crowd.
		MaxIdleWorkerDuration: time.Second,
		CloseOnShutdown:       true,
	}
	return s, nil
}

// discard is fasthttp's logger: what it has to say about single connections is of no interest unless
// one debugs.
type discard struct{ log zerolog.Logger }

func (d discard) Printf(format string, args ...any) {
	if d.log.GetLevel() > zerolog.DebugLevel {
		return
	}
	for i, a := range args {
		if err, ok := a.(error); ok {
			args[i] = kindOf(err) // the text of the error may quote a header, and that a key
		}
	}
	d.log.Debug().Msgf("http: "+format, args...)
}

// Bind listens on a TCP address, host:port. Its error names the address and what to do.
func Bind(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err == nil {
		return ln, nil
	}
	host, port, splitErr := net.SplitHostPort(addr)
	if splitErr != nil {
		return nil, fmt.Errorf("%q is no address to listen on: want host:port, as in 127.0.0.1:8000", addr)
	}
	const winInUse = syscall.Errno(10048) // WSAEADDRINUSE
	switch {
	case errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, winInUse):
		return nil, fmt.Errorf("port %s on %s is taken by another program: stop that one, or choose another port with --port: %w",
			port, hostName(host), err)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("port %s on %s needs more rights than this user has: choose a port above 1023 with --port: %w",
			port, hostName(host), err)
	}
	return nil, fmt.Errorf("cannot listen on %s: check --host and --port: %w", addr, err)
}

func hostName(host string) string {
	if host == "" {
		return "all addresses"
	}
	return host
}

// ListenAndServe serves on a TCP address until Shutdown.
func (s *Server) ListenAndServe(addr string) error {
	ln, err := Bind(addr)
	if err != nil {
		return err
	}
	return s.Serve(ln)
}

// Serve serves the connections of ln, with TLS if the Server has a certificate, until Shutdown, and
// closes ln. It returns nil after Shutdown.
func (s *Server) Serve(ln net.Listener) error {
	l := newListener(ln, s.tls, s.cfg.Limits.MaxConns, s.cfg.Limits.StallTimeout, tooManyConnections())
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		_ = ln.Close()
		return nil
	}
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	if err := s.http.Serve(l); err != nil {
		_ = ln.Close()
		return fmt.Errorf("serving on %s: %w", ln.Addr(), err)
	}
	return nil
}

// tooManyConnections is the whole response that a connection beyond the limit gets.
func tooManyConnections() []byte {
	body := openai.AppendError(nil, &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "too_many_connections",
		Message: "the server has as many connections open as it may: retry later"})
	return append(fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nServer: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 1\r\nConnection: close\r\n\r\n",
		serverName, len(body)), body...)
}

// shutdownGrace is what connections have, once no request is left, to end by themselves.
const shutdownGrace = 250 * time.Millisecond

// Shutdown ends the server in order: from now on new generating requests are refused with 503 while
// those in flight go on; when the last has ended, or ctx is done and the runtime has failed what was
// left, all connections are closed. Its error is Runtime.Drain's.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	err := s.cfg.Runtime.Drain(ctx)
	if s.cfg.Console != nil {
		s.cfg.Console.Close("the server has stopped")
	}
	s.mu.Lock()
	s.down = true
	listeners := s.listeners
	s.mu.Unlock()
	grace, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	for _, l := range listeners {
		_ = l.Close()
	}
	_ = s.http.ShutdownWithContext(grace)
	for _, l := range listeners {
		l.killAll() // what did not end in time, or is just closing
	}
	return err
}

// Connections returns the number of open connections.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, l := range s.listeners {
		n += l.openConns()
	}
	return n
}

// unreadable answers a request that fasthttp could not read as far as the end of its headers. The
// connection is closed afterwards.
func (s *Server) unreadable(ctx *fasthttp.RequestCtx, err error) {
	c := ctx.Conn().(*conn)
	c.linger.Store(true)
	e := &lifecycle.Error{Status: 400, Type: "invalid_request_error",
		Message: "the request's headers could not be read: " + kindOf(err)}
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.As(err, &small):
		e = &lifecycle.Error{Status: 431, Type: "invalid_request_error", Code: "headers_too_large",
			Message: fmt.Sprintf("the request's line and headers are longer than %d bytes: shorten them", s.cfg.Limits.MaxHeader)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		e = &lifecycle.Error{Status: 408, Type: "invalid_request_error", Code: "request_timeout",
			Message: "the request did not arrive within the time it has: send it at once"}
	}
	v := visit{ctx: ctx, conn: c, arrival: s.cfg.Runtime.Now(), unread: true}
	v.method, v.path = c.requestLine()
	if r := s.routes[v.path]; r != nil {
		v.endpoint = r.endpoint
	}
	s.refuse(&v, e)
}

// kinds are the ways in which a request can be malformed: what fasthttp's error says of it, and what
// is said to others. fasthttp's own texts quote the request, which may hold an API key.
var kinds = []struct{ mark, kind string }{
	{"invalid header key", "a header's name is empty, or has a space or another odd character in it or before its colon"},
	{"invalid header name", "a header's name is empty, or has a space or another odd character in it or before its colon"},
	{"missing colon", "a header has no colon after its name"},
	{"malformed mime header", "a header is malformed"},
	{"cannot start with space", "the first header begins with a space"},
	{"invalid header value", "a header's value has a control character in it"},
	{"host header", "there must be one Host header, and only one"},
	{"duplicate content-length", "there is more than one Content-Length"},
	{"transfer-encoding", "the Transfer-Encoding is not understood: only chunked is"},
	{"trailer", "a trailer is malformed or not allowed"},
	{"content-length", "the Content-Length is no number"},
	{"http version", "the request line does not end in the version of HTTP"},
	{"http request method", "the request line does not begin with a method"},
	{"uri", "the request line has no usable path"},
	{"first line", "the request line is not a method, a path and the version of HTTP"},
	{"chunk", "a chunk of the body is badly framed"},
}

// kindOf says in fixed words, none of them the client's, what kind of an error fasthttp or the
// connection came back with.
func kindOf(err error) string {
	var (
		small  *fasthttp.ErrSmallBuffer
		number syscall.Errno
	)
	switch {
	case errors.As(err, &small):
		return "they are too long"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "time ran out"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection ended before they did"
	case errors.As(err, &number):
		return number.Error()
	}
	for _, own := range []error{errGone, errSlow, errSpoiled, errIncomplete, errCut, net.ErrClosed} {
		if errors.Is(err, own) {
			return own.Error()
		}
	}
	text, _, _ := strings.Cut(strings.ToLower(err.Error()), `"`) // what follows is quoted
	for _, k := range kinds {
		if strings.Contains(text, k.mark) {
			return k.kind
		}
	}
	return "they are not well-formed HTTP/1.1"
}

// panicked answers a request whose handler panicked.
func (s *Server) panicked(v *visit, p any) {
	s.cfg.Log.Error().Interface("panic", p).Str("path", v.path).Bytes("stack", debug.Stack()).Msg("a request's handler panicked")
	v.ctx.Response.Reset()
	v.unread = true
	e := internalError()
	if v.reply != nil {
		v.reply.spoil()
		s.fail(v, e)
		return
	}
	s.refuse(v, e)
}

func internalError() *lifecycle.Error {
	return &lifecycle.Error{Status: 500, Type: "server_error", Code: "internal_error",
		Message: "the request failed inside the server; other requests are not affected"}
}

// bounded cuts s to n bytes at most.
func bounded(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
