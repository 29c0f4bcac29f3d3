package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tidwall/gjson"
)

// Server is an OpenAI-compatible server, reached over HTTP/1.1. Its clients keep their connections,
// and take the time at which bytes come when they are read off the socket. It is immutable once its
// first client is made.
type Server struct {
	base     *url.URL // without the endpoint's path
	endpoint string   // "chat" or "completions"
	// Header are sent with each request, besides those that are needed.
	Header http.Header
	// TLS is for https; nil is the default configuration.
	TLS *tls.Config
	// Timeout is how long a request may take; 0: 10 minutes.
	Timeout time.Duration

	address string // host and port
}

// DefaultTimeout is how long a request may take when nothing else is said.
const DefaultTimeout = 10 * time.Minute

// connectTimeout is how long a connection may take to make.
const connectTimeout = 10 * time.Second

// lingering is how long, after the end mark, a server may take to end the response, for its
// connection to be used again.
const lingering = 250 * time.Millisecond

// NewServer takes a server's URL: with or without /v1, or that of the endpoint itself. endpoint is
// "chat" or "completions".
func NewServer(address, endpoint string) (*Server, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%q is not a server's URL: write http://HOST:PORT or https://HOST:PORT", address)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q has a user, a query or a fragment, which have no meaning here: give the server's address alone, and its key with --api-key", u.Redacted())
	}
	path := strings.TrimRight(u.Path, "/")
	for _, end := range []string{"/chat/completions", "/completions", "/v1"} {
		path = strings.TrimSuffix(path, end)
	}
	s := &Server{base: &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(path, "/")}, endpoint: endpoint}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	s.address = net.JoinHostPort(u.Hostname(), port)
	return s, nil
}

// URL is the server's address without a path of the API.
func (s *Server) URL() string { return s.base.String() }

// path is the endpoint's.
func (s *Server) path() string {
	if s.endpoint == "completions" {
		return "/v1/completions"
	}
	return "/v1/chat/completions"
}

// url is the URL of a path of the API.
func (s *Server) url(path string) *url.URL { return s.base.JoinPath(path) }

// CheckHeader refuses what cannot be a header's name and value.
func CheckHeader(name, value string) error {
	valid := name != ""
	for _, c := range []byte(name) {
		valid = valid && (c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	for _, c := range []byte(value) {
		valid = valid && (c >= ' ' && c != 0x7f || c == '\t')
	}
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case "Content-Length", "Transfer-Encoding", "Connection", "Host":
		return fmt.Errorf("the header %s is the client's own affair", name)
	}
	if !valid {
		return fmt.Errorf("%q is no header: write NAME: VALUE", name)
	}
	return nil
}

// Client implements Target. The first call settles the requests' head: Header must not change any
// more.
func (s *Server) Client() Client {
	c := &httpClient{s: s}
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: troupe-bench\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n",
		strings.TrimPrefix(s.url(s.path()).EscapedPath(), "/"), s.base.Host)
	_ = s.Header.Write(&b)
	b.WriteString("Content-Length: ")
	c.head = b.Bytes()
	return c
}

// Info is what a server says of itself before a load.
type Info struct {
	Models      []string // ids at /v1/models
	MaxModelLen int      // of the model, in tokens; 0: not told
	Software    string   // its own name and version, as far as it tells
}

// refusal is an answer whose status is not 200.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// once asks the server for something besides the load. A status other than 200 is a refusal.
func (s *Server) once(ctx context.Context, method, path string, body []byte) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url(path).String(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for name, values := range s.Header {
		req.Header[name] = values
	}
	req.Header.Set("User-Agent", "troupe-bench")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	transport := &http.Transport{TLSClientConfig: s.TLS, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(true)
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return nil, nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, nil, &refusal{res.StatusCode, fmt.Sprintf("%s %s: %s: %s", method, path, res.Status, errorMessage(data))}
	}
	return data, res.Header, nil
}

// Ask asks the server what it is. model is the one that will be asked for; empty: the first. The error
// says what to do: when no server answers, or one of another kind, when it wants a key, and when it
// does not list the model. A server without a list is none, if it has the endpoint and model is given:
// then Models is empty.
func (s *Server) Ask(ctx context.Context, model string) (Info, error) {
	var info Info
	data, header, err := s.once(ctx, http.MethodGet, "/v1/models", nil)
	var refused *refusal
	const winRefused = syscall.Errno(10061) // WSAECONNREFUSED
	var certificate *tls.CertificateVerificationError
	switch {
	case err == nil:
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, winRefused):
		return info, fmt.Errorf("no server answers at %s: start one there with troupe serve, or give another --url", s.URL())
	case errors.As(err, &certificate):
		return info, fmt.Errorf("%s: %w; --ca-cert FILE trusts its certificate, --insecure any", s.URL(), err)
	case !errors.As(err, &refused):
		return info, fmt.Errorf("asking %s for its models: %w", s.URL(), err)
	case refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden:
		if s.Header.Get("Authorization") != "" {
			return info, fmt.Errorf("%s does not take the API key: %w; give another with --api-key or in TROUPE_API_KEY", s.URL(), err)
		}
		return info, fmt.Errorf("%s wants an API key: %w; give it with --api-key or in TROUPE_API_KEY", s.URL(), err)
	case refused.status == http.StatusNotFound || refused.status == http.StatusMethodNotAllowed || refused.status == http.StatusNotImplemented:
		// Perhaps it has no list. Whoever has the endpoint finds fault with an empty request.
		var none *refusal
		_, _, err := s.once(ctx, http.MethodPost, s.path(), []byte("{}"))
		if errors.As(err, &none) && (none.status == http.StatusNotFound || none.status == http.StatusMethodNotAllowed) {
			return info, fmt.Errorf("there is no OpenAI API at %s, which answers HTTP %d to %s and to %s: --url is what comes before /v1 in its address",
				s.URL(), none.status, "/v1/models", s.path())
		}
		if model == "" {
			return info, fmt.Errorf("%s has no list of its models: --model says which to ask for", s.URL())
		}
		return info, nil
	default:
		return info, fmt.Errorf("asking %s for its models: %w", s.URL(), err)
	}
	if !gjson.GetBytes(data, "data").IsArray() || !gjson.ValidBytes(data) {
		return info, fmt.Errorf("%s does not list its models as OpenAI's API does: is %s the right address?", s.URL(), s.url("/v1/models"))
	}
	owner := ""
	gjson.GetBytes(data, "data").ForEach(func(_, m gjson.Result) bool {
		id := m.Get("id").String()
		info.Models = append(info.Models, id)
		if id == model || model == "" && len(info.Models) == 1 {
			info.MaxModelLen = int(m.Get("max_model_len").Int())
			owner = m.Get("owned_by").String()
		}
		return true
	})
	switch {
	case len(info.Models) == 0 && model == "":
		return info, fmt.Errorf("%s has no model in its list: --model says which to ask for", s.URL())
	case len(info.Models) > 0 && model != "" && !slices.Contains(info.Models, model):
		return info, fmt.Errorf("%s serves no model %s, but %s", s.URL(), model, clip(strings.Join(info.Models, ", ")))
	}
	info.Software = header.Get("Server")
	if owner != "" && owner != info.Software {
		info.Software = strings.TrimSpace(owner + " " + info.Software)
	}
	if data, _, err := s.once(ctx, http.MethodGet, "/version", nil); err == nil {
		if v := gjson.GetBytes(data, "version").String(); v != "" {
			info.Software = strings.TrimSpace(info.Software + " " + clip(v))
		}
	}
	return info, nil
}

// Counter returns how the server itself counts a prompt's tokens, by /tokenize: that of vLLM and
// Troupe, or llama-server's. nil when it has none that can be used.
func (s *Server) Counter(ctx context.Context, model string) Count {
	post := func(path string, body any) (gjson.Result, error) {
		b, err := json.Marshal(body)
		if err != nil {
			return gjson.Result{}, err
		}
		data, _, err := s.once(ctx, http.MethodPost, path, b)
		return gjson.ParseBytes(data), err
	}
	type object = map[string]any
	messages := func(text string) []object { return []object{{"role": "user", "content": text}} }
	ours := func(text string) (int, error) {
		body := object{"model": model, "prompt": text}
		if s.endpoint == "chat" {
			body = object{"model": model, "messages": messages(text), "add_generation_prompt": true}
		}
		r, err := post("/tokenize", body)
		if err != nil {
			return 0, err
		}
		if n := r.Get("count").Int(); n > 0 {
			return int(n), nil
		}
		return 0, errors.New("/tokenize gives no count")
	}
	llama := func(text string) (int, error) {
		body := object{"content": text, "add_special": true}
		if s.endpoint == "chat" {
			r, err := post("/apply-template", object{"messages": messages(text)})
			if err != nil {
				return 0, err
			}
			body["content"] = r.Get("prompt").String()
		}
		r, err := post("/tokenize", body)
		if n := countElements(r.Get("tokens")); err == nil && n > 0 {
			return int(n), nil
		}
		return 0, errors.Join(err, errors.New("/tokenize gives no tokens"))
	}
	for _, count := range []Count{ours, llama} {
		if n, err := count(opening); err == nil && n > 0 {
			return count
		}
	}
	return nil
}

// Calibrate makes a Vocabulary for a server that can't be asked for token counts: two short requests
// tell by their usage what a word is on average. Without a usage, a rule of thumb stands in.
func (s *Server) Calibrate(ctx context.Context, shape Shape) (*Vocabulary, error) {
	const few, many = 40, 240
	x := exchange{live: new(live), now: func() int64 { return 1 }}
	client := s.Client()
	defer client.Close()
	ask := func(n int) (int, error) {
		text := AverageVocabulary("", 0, 1).text(n, []segment{{key: uint64(n), tokens: n}})
		x.reset(false)
		client.Do(ctx, &Request{Body: shape.body(text, nil, 1, false, nil)}, &x)
		if x.cut {
			return 0, context.Cause(ctx)
		}
		// That it was cut short at one token, or at none, is no matter here.
		if x.fail != nil && !x.usage {
			return 0, x.fail
		}
		return x.prompt, nil
	}
	a, err := ask(few)
	if err != nil {
		return nil, err
	}
	b, err := ask(many)
	if err != nil {
		return nil, err
	}
	perWord := float64(b-a) / (many - few)
	if a < 0 || b < 0 || perWord < 0.2 || perWord > 20 {
		return AverageVocabulary("a rule of thumb: the server neither counts tokens nor reports usage", 1, 1.3), nil
	}
	return AverageVocabulary("words, measured by the usage in the server's answers", float64(a)-few*perWord, perWord), nil
}

// httpClient is one client of a server, with its connection.
type httpClient struct {
	s    *Server
	head []byte
	conn *stampedConn // nil: none
	out  []byte
	buf  [64 << 10]byte
	sse  Events
}

// stampedConn notes when bytes were read off it.
type stampedConn struct {
	net.Conn // what is spoken to: the socket, or TLS above it
	socket   net.Conn
	in       *bufio.Reader // above Conn
	at       int64         // when the socket was last read
	read     bool          // anything was, since the request was written
	used     bool          // by an earlier request
	now      func() int64
}

// stamper is the socket as its connection reads it.
type stamper struct {
	net.Conn
	c *stampedConn
}

func (s stamper) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.c.at, s.c.read = s.c.now(), true
	}
	return n, err
}

func (c *httpClient) connect(ctx context.Context, now func() int64) error {
	dialer := net.Dialer{Timeout: connectTimeout}
	socket, err := dialer.DialContext(ctx, "tcp", c.s.address)
	if err != nil {
		return err
	}
	conn := &stampedConn{socket: socket, now: now}
	conn.Conn = stamper{socket, conn}
	if c.s.base.Scheme == "https" {
		cfg := c.s.TLS.Clone()
		if cfg == nil {
			cfg = &tls.Config{}
		}
		if cfg.ServerName == "" {
			cfg.ServerName = c.s.base.Hostname()
		}
		cfg.NextProtos = []string{"http/1.1"}
		secure := tls.Client(conn.Conn, cfg)
		shaking, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		if err := secure.HandshakeContext(shaking); err != nil {
			_ = socket.Close()
			return err
		}
		conn.Conn = secure
	}
	conn.in = bufio.NewReaderSize(conn.Conn, len(c.buf))
	c.conn = conn
	return nil
}

// Close implements Client.
func (c *httpClient) Close() {
	if c.conn != nil {
		_ = c.conn.socket.Close()
		c.conn = nil
	}
}

// Do implements Client.
func (c *httpClient) Do(ctx context.Context, r *Request, x *exchange) {
	x.begin()
	defer x.close()
	began := time.Now()
	limit := c.s.Timeout
	if limit <= 0 {
		limit = DefaultTimeout
	}
	patience := r.CancelAfter
	if patience > 0 {
		limit = min(limit, patience)
	}
	deadline := began.Add(limit)
	for {
		again, err := c.try(ctx, r, x, deadline)
		if err == nil {
			return
		}
		if again {
			continue
		}
		c.Close()
		var fail *failure
		switch {
		case ctx.Err() != nil:
			x.cut = true
		case patience > 0 && timedOut(err) && time.Since(began) >= patience:
			x.cancelled = true
		case timedOut(err):
			x.fail = &failure{kindTimeout, fmt.Sprintf("no whole answer within %v", limit)}
		case errors.As(err, &fail):
			x.fail = fail
		default:
			x.fail = &failure{kindCut, clip(err.Error())}
		}
		return
	}
}

func timedOut(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// try sends the request on the connection that there is, or on a new one. again says that the
// connection had been used before, and that the server had closed it meanwhile: nothing was answered.
func (c *httpClient) try(ctx context.Context, r *Request, x *exchange, deadline time.Time) (again bool, err error) {
	if c.conn == nil {
		dialing, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		if err := c.connect(dialing, x.now); err != nil {
			if dialing.Err() != nil {
				return false, errors.Join(context.DeadlineExceeded, err)
			}
			var op *net.OpError
			if errors.As(err, &op) && op.Err != nil {
				err = op.Err
			}
			return false, &failure{kindConnect, clip(err.Error())}
		}
	}
	conn := c.conn
	conn.read, conn.now = false, x.now // a run's clock is its own
	reused := conn.used
	conn.used = true
	if err := conn.socket.SetDeadline(deadline); err != nil {
		return c.stale(reused, x, err), err
	}
	// The end of ctx ends all reading and writing.
	stop := context.AfterFunc(ctx, func() { _ = conn.socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	c.out = append(c.out[:0], c.head...)
	c.out = strconv.AppendInt(c.out, int64(len(r.Body)), 10)
	c.out = append(c.out, "\r\n\r\n"...)
	c.out = append(c.out, r.Body...)
	_, writeErr := conn.Write(c.out)
	if writeErr != nil && timedOut(writeErr) {
		return false, writeErr
	}
	// A server that refuses may do so without reading everything: its answer counts.
	res, err := c.response()
	if err != nil {
		if writeErr != nil {
			err = writeErr
		}
		return c.stale(reused, x, err), err
	}
	defer res.Body.Close()
	x.status = res.StatusCode
	if res.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		message := errorMessage(body)
		if message == "" {
			message = strings.TrimSpace(res.Status + " " + clip(res.Header.Get("Location")))
		}
		x.fail = &failure{"HTTP " + strconv.Itoa(res.StatusCode), message}
		if err != nil || len(body) == 64<<10 || res.Close || writeErr != nil {
			c.Close()
		}
		return false, nil
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind != "text/event-stream" && kind != "" && kind != "application/x-ndjson" && kind != "text/plain" && kind != "application/octet-stream" {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
		return false, &failure{kindNotStream, fmt.Sprintf("the answer is of type %s, not an event stream: %s", kind, errorMessage(body))}
	}
	if err := c.stream(res.Body, x); err != nil {
		return false, err
	}
	// What may still come is only the response's end.
	_ = conn.socket.SetReadDeadline(time.Now().Add(lingering))
	n, err := res.Body.Read(c.buf[:])
	for n > 0 && err == nil {
		n, err = res.Body.Read(c.buf[:])
	}
	if !errors.Is(err, io.EOF) || res.Close || conn.in.Buffered() > 0 {
		c.Close()
	}
	return false, nil
}

// stale says that an error comes of a connection that the server had closed while nobody used it,
// and drops it.
func (c *httpClient) stale(reused bool, x *exchange, err error) bool {
	gone := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
	again := reused && !c.conn.read && gone
	c.Close()
	return again
}

// response reads the response's head, past interim ones.
func (c *httpClient) response() (*http.Response, error) {
	for range 10 {
		res, err := http.ReadResponse(c.conn.in, nil)
		if err != nil {
			if c.conn.read && !errors.Is(err, io.ErrUnexpectedEOF) && !timedOut(err) && !errors.Is(err, syscall.ECONNRESET) {
				return nil, &failure{kindGarbage, "no HTTP response: " + clip(err.Error())}
			}
			return nil, err
		}
		if res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			return res, nil
		}
	}
	return nil, &failure{kindGarbage, "no HTTP response: nothing but interim ones"}
}

// stream reads an event stream up to its end mark or its end. An error is a failure.
func (c *httpClient) stream(body io.Reader, x *exchange) error {
	c.sse = Events{line: c.sse.line[:0], data: c.sse.data[:0]}
	event := func(data []byte, at int64) error {
		n, err := x.event(data, at)
		x.saw(n)
		return err
	}
	for {
		n, err := body.Read(c.buf[:])
		if n > 0 {
			if err := c.sse.Feed(c.buf[:n], c.conn.at, event); err != nil {
				return ended(err)
			}
		}
		if err == nil {
			continue
		}
		if timedOut(err) {
			return err
		}
		if err := c.sse.End(event); err != nil {
			return ended(err)
		}
		how := ""
		if err != io.EOF {
			how = ": " + clip(err.Error())
		}
		if fail := x.whole(how); fail != nil {
			return fail
		}
		return nil
	}
}

// ended says what an error of an event means for its stream.
func ended(err error) error {
	switch {
	case errors.Is(err, errDone):
		return nil
	case errors.Is(err, ErrLongEvent):
		return &failure{kindGarbage, err.Error()}
	}
	return err
}

// errorMessage is what the body of an error says, in OpenAI's shape or any other.
func errorMessage(body []byte) string {
	if gjson.ValidBytes(body) {
		for _, path := range []string{"error.message", "message", "detail", "error"} {
			if m := gjson.GetBytes(body, path); m.Type == gjson.String && m.Str != "" {
				return clip(m.Str)
			}
		}
	}
	return clip(string(body))
}
