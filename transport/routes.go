package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/openai"
)

// visit is one request on its way through the server.
type visit struct {
	ctx  *fasthttp.RequestCtx
	conn *conn
	// method and path as far as they are worth a log line: the path only of endpoints that have one.
	method, path string
	endpoint     string // the name of a generating endpoint; empty for the others
	id           string // the rest of the path, on routes that end in an id
	arrival      int64  // by the runtime's clock
	keyName      string
	clientID     string // X-Request-Id
	// traceParent and traceState are the headers of W3C Trace Context, when spans are made.
	traceParent, traceState string
	allow                   string // the methods for the Allow header of a 405
	conversation            int64  // bytes of input that a stored answer would keep alive
	unread                  bool   // the body has not been read
	admitted                bool   // the request holds a place in the runtime
	reply                   *reply // the request has an actor, which leaves its Record
}

// route is what may be done at a path.
type route struct {
	get, post, delete func(*visit)
	endpoint          string
}

// allow lists the methods for the Allow header.
func (r *route) allow() string {
	methods := []string{"OPTIONS"}
	if r.get != nil {
		methods = append(methods, "GET", "HEAD")
	}
	if r.post != nil {
		methods = append(methods, "POST")
	}
	if r.delete != nil {
		methods = append(methods, "DELETE")
	}
	return strings.Join(methods, ", ")
}

// Paths that end in an id are in the routes under these.
const (
	modelPath    = "/v1/models/"
	responsePath = "/v1/responses/"
	cancelPath   = "/v1/responses/*/cancel"
)

func (s *Server) routing() map[string]*route {
	routes := map[string]*route{
		"/v1/chat/completions": {post: s.generate, endpoint: "chat"},
		"/v1/completions":      {post: s.generate, endpoint: "completion"},
		"/v1/responses":        {post: s.generate, endpoint: "responses"},
		"/v1/models":           {get: s.models},
		modelPath:              {get: s.model},
		responsePath:           {get: s.response, delete: s.forget},
		cancelPath:             {post: s.cancel},
		"/tokenize":            {post: func(v *visit) { s.tokens(v, s.cfg.Env.Tokenize) }},
		"/detokenize":          {post: func(v *visit) { s.tokens(v, s.cfg.Env.Detokenize) }},
		"/health":              {get: s.health},
		"/ping":                {get: s.health, post: s.health},
		"/version":             {get: s.version},
		"/load":                {get: s.load},
	}
	if s.cfg.Metrics != nil {
		routes["/metrics"] = &route{get: func(v *visit) { s.cfg.Metrics(v.ctx) }}
	}
	if s.cfg.Console != nil {
		s.routeConsole(routes)
	}
	return routes
}

// find returns the route of a path, and the id in it where there is one.
func (s *Server) find(path string) (r *route, id string) {
	if rest, ok := strings.CutPrefix(path, modelPath); ok && rest != "" {
		return s.routes[modelPath], rest
	}
	if rest, ok := strings.CutPrefix(path, responsePath); ok && rest != "" {
		id, tail, more := strings.Cut(rest, "/")
		switch {
		case !more:
			return s.routes[responsePath], id
		case tail == "cancel":
			return s.routes[cancelPath], id
		}
		return nil, ""
	}
	switch path {
	case modelPath, responsePath, cancelPath:
		return nil, ""
	}
	return s.routes[path], ""
}

// requestID is the header with which clients name their requests and the server its answers. A
// client's may have maxClientID bytes.
const (
	requestID   = "X-Request-Id"
	maxClientID = 256
)

// What is read of a trace's headers, in bytes: W3C's version 00 has 55 for the parent, and asks for at
// least 512 of the state to be passed on.
const (
	maxTraceParent = 64
	maxTraceState  = 512
)

// handle serves one request, whose headers have been read.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	v := visit{ctx: ctx, conn: ctx.Conn().(*conn), arrival: s.cfg.Runtime.Now(), method: string(ctx.Method())}
	v.unread = ctx.Request.IsBodyStream() && ctx.Request.Header.ContentLength() != 0
	defer func() {
		if p := recover(); p != nil {
			s.panicked(&v, p)
		}
	}()
	if s.draining.Load() {
		ctx.SetConnectionClose()
	}
	if s.cfg.CORS.apply(ctx) {
		return
	}
	if s.cfg.Traced {
		// A header that is too long is as good as none.
		if h := ctx.Request.Header.Peek("traceparent"); len(h) <= maxTraceParent {
			v.traceParent = string(h)
		}
		if h := ctx.Request.Header.Peek("tracestate"); len(h) <= maxTraceState {
			v.traceState = string(h)
		}
	}
	do, e := s.vet(&v, &ctx.Request.Header, string(ctx.Path()))
	if v.clientID != "" {
		ctx.Response.Header.Set(requestID, v.clientID)
	}
	if e != nil {
		s.refuse(&v, e)
		return
	}
	do(&v)
}

// expect answers requests whose client waits for a 100 Continue before it sends the body: with that,
// or with what is wrong with the request. A refusal closes the connection, since the client may have
// sent the body without waiting.
func (s *Server) expect(ctx *fasthttp.RequestCtx) (status int) {
	v := visit{ctx: ctx, conn: ctx.Conn().(*conn), arrival: s.cfg.Runtime.Now(), method: string(ctx.Method()), unread: true}
	defer func() {
		if p := recover(); p != nil {
			s.panicked(&v, p)
			status = ctx.Response.StatusCode()
		}
	}()
	if ctx.IsOptions() {
		return fasthttp.StatusContinue // CORS may have to answer it
	}
	_, e := s.vet(&v, &ctx.Request.Header, string(ctx.Path()))
	if e == nil {
		return fasthttp.StatusContinue
	}
	s.cfg.CORS.apply(ctx)
	if v.clientID != "" {
		ctx.Response.Header.Set(requestID, v.clientID)
	}
	s.refuse(&v, e)
	return e.Status
}

// announced is called with a request's headers before fasthttp reads any of its body. It sees to it
// that a request that will be refused is refused without waiting for the body: fasthttp asks expect
// about those whose client expects a 100 Continue, so that is what this one does from now on.
func (s *Server) announced(h *fasthttp.RequestHeader) (none fasthttp.RequestConfig) {
	if e := spoken(h); e != nil {
		// There is no telling what follows, so nothing does.
		h.SetContentLength(0)
		h.SetConnectionClose()
		return none
	}
	if h.ContentLength() <= 0 || h.IsOptions() {
		return none
	}
	u := fasthttp.AcquireURI()
	defer fasthttp.ReleaseURI(u)
	if u.Parse(h.Host(), h.RequestURI()) != nil {
		return none // fasthttp refuses it
	}
	if _, e := s.vet(&visit{method: string(h.Method())}, h, string(u.Path())); e != nil {
		h.SetProtocol("HTTP/1.1") // in 1.0 there is no Expect
		h.Set(fasthttp.HeaderExpect, "100-continue")
	}
	return none
}

// spoken refuses the versions of HTTP that this server does not speak. fasthttp takes all that look
// like one. A later 1.x is served as 1.0 is, without chunks.
func spoken(h *fasthttp.RequestHeader) *lifecycle.Error {
	if strings.HasPrefix(string(h.Protocol()), "HTTP/1.") {
		return nil
	}
	return &lifecycle.Error{Status: fasthttp.StatusHTTPVersionNotSupported, Type: "invalid_request_error", Code: "http_version_not_supported",
		Message: "this version of HTTP is not spoken here: use HTTP/1.1"}
}

// vet says what is to be done for a request, or what is wrong with it: all that can be known from its
// headers. It fills in v and answers nothing.
func (s *Server) vet(v *visit, h *fasthttp.RequestHeader, path string) (do func(*visit), e *lifecycle.Error) {
	r, id := s.find(path)
	v.id = id
	if r != nil {
		v.endpoint = r.endpoint
		if v.endpoint != "" {
			v.path = path
		}
	}
	if e := spoken(h); e != nil {
		return nil, e
	}
	if clientID := h.Peek(requestID); len(clientID) > 0 {
		if !usable(clientID) {
			return nil, &lifecycle.Error{Status: 400, Type: "invalid_request_error", Param: "X-Request-Id",
				Message: fmt.Sprintf("the header X-Request-Id must have at most %d characters, all printable ASCII", maxClientID)}
		}
		v.clientID = string(clientID)
	}
	if guarded(path) {
		var ok bool
		if v.keyName, ok = s.keys.find(h.Peek(fasthttp.HeaderAuthorization)); !ok {
			return nil, &lifecycle.Error{Status: 401, Type: "authentication_error", Code: "invalid_api_key",
				Message: "the API key is missing or not known here: send it as the header Authorization: Bearer KEY"}
		}
	}
	if r == nil {
		return nil, &lifecycle.Error{Status: 404, Type: "invalid_request_error", Code: "unknown_url",
			Message: fmt.Sprintf("there is nothing at %s %s: check the path", bounded(v.method, 20), bounded(strconv.QuoteToASCII(path), 200))}
	}
	switch {
	case h.IsGet() || h.IsHead():
		do = r.get
	case h.IsPost():
		do = r.post
	case h.IsDelete():
		do = r.delete
	case h.IsOptions():
		return func(v *visit) {
			v.ctx.Response.Header.Set(fasthttp.HeaderAllow, r.allow())
			v.ctx.SetStatusCode(fasthttp.StatusNoContent)
		}, nil
	}
	if do == nil {
		v.allow = r.allow()
		return nil, &lifecycle.Error{Status: 405, Type: "invalid_request_error", Code: "method_not_allowed",
			Message: fmt.Sprintf("%s is not possible here: use one of %s", bounded(v.method, 20), v.allow)}
	}
	if enc := h.ContentEncoding(); len(enc) > 0 && string(enc) != "identity" && h.ContentLength() != 0 && h.IsPost() {
		return nil, &lifecycle.Error{Status: 415, Type: "invalid_request_error", Param: "Content-Encoding",
			Message: "compressed request bodies are not understood: send it as it is"}
	}
	if h.ContentLength() > s.cfg.Limits.MaxBody {
		return nil, tooLarge(s.cfg.Limits.MaxBody)
	}
	return do, nil
}

// usable says whether a client's own id may go into logs and responses.
func usable(id []byte) bool {
	for _, b := range id {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return len(id) <= maxClientID
}

// body reads the body of a request that vet had nothing against, into memory that is the caller's. It takes memory for what has
// arrived, not for what was announced.
func (s *Server) body(v *visit) ([]byte, *lifecycle.Error) {
	ctx, limit := v.ctx, s.cfg.Limits.MaxBody
	length := ctx.Request.Header.ContentLength() // −1: in chunks
	var b []byte
	if v.unread {
		_ = v.conn.SetReadDeadline(time.Now().Add(s.cfg.Limits.BodyTimeout))
		r := ctx.RequestBodyStream()
		b = make([]byte, 0, min(max(length, 1<<10), 64<<10))
		for {
			if len(b) == cap(b) {
				b = append(b, make([]byte, len(b))...)[:len(b)]
			}
			n, err := r.Read(b[len(b):cap(b)])
			b = b[:len(b)+n]
			switch {
			case len(b) > limit:
				return nil, tooLarge(limit)
			case err == nil:
				continue
			case err != io.EOF:
				return nil, broken(err)
			case length >= 0 && len(b) < length:
				return nil, broken(io.ErrUnexpectedEOF)
			}
			break
		}
		v.unread = false
	}
	v.arrival = s.cfg.Runtime.Now()
	return b, nil
}

func tooLarge(limit int) *lifecycle.Error {
	return &lifecycle.Error{Status: 413, Type: "invalid_request_error", Code: "request_too_large",
		Message: fmt.Sprintf("the request's body is longer than %d bytes: send less, or raise --max-request-body", limit)}
}

// broken is the error for a body that could not be read.
func broken(err error) *lifecycle.Error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &lifecycle.Error{Status: 408, Type: "invalid_request_error", Code: "request_timeout",
			Message: "the request's body did not arrive within the time it has: send it at once"}
	}
	return &lifecycle.Error{Status: 400, Type: "invalid_request_error",
		Message: "the request's body broke off or is badly framed: " + kindOf(err)}
}

// fail answers with an error in OpenAI's shape.
func (s *Server) fail(v *visit, e *lifecycle.Error) {
	ctx := v.ctx
	ctx.SetStatusCode(e.Status)
	ctx.SetContentType("application/json")
	ctx.SetBody(openai.AppendError(nil, e))
	switch e.Status {
	case fasthttp.StatusUnauthorized:
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
	case fasthttp.StatusMethodNotAllowed:
		ctx.Response.Header.Set(fasthttp.HeaderAllow, v.allow)
	case fasthttp.StatusHTTPVersionNotSupported:
		v.unread = true // whatever it is
	case fasthttp.StatusTooManyRequests:
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, "1")
	case fasthttp.StatusServiceUnavailable:
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, "5")
		if s.cfg.Runtime.Draining() {
			ctx.SetConnectionClose()
		}
	}
	if v.unread {
		// fasthttp closes the connection when much of the body is still to come.
		v.conn.linger.Store(true)
	}
}

// refuse answers with an error and, on a generating endpoint, leaves the request's Record.
func (s *Server) refuse(v *visit, e *lifecycle.Error) {
	if v.admitted {
		v.admitted = false
		s.cfg.Runtime.Release()
	}
	s.fail(v, e)
	if v.endpoint == "" || s.cfg.Observer == nil {
		return
	}
	rt := s.cfg.Runtime
	v.conn.begin(&refusal{
		s: s,
		req: &lifecycle.Request{
			ID: rt.NextID(), Endpoint: v.endpoint, KeyName: v.keyName, ClientID: v.clientID,
			Peer: v.conn.RemoteAddr().String(), Arrival: v.arrival,
			TraceParent: v.traceParent, TraceState: v.traceState,
		},
		ending: lifecycle.Ending{
			Outcome: lifecycle.OutcomeRefused, Status: e.Status, Err: e, Finished: rt.Now(),
			Wall: wall(rt, v.arrival), Method: bounded(v.method, 20), Path: v.path,
		},
	})
}

// wall is the wall clock, in nanoseconds since 1970, at a stamp of the runtime's clock.
func wall(rt *actors.Runtime, at int64) int64 { return time.Now().UnixNano() - (rt.Now() - at) }

// refusal observes the Record of a refused request when its response has left.
type refusal struct {
	s      *Server
	req    *lifecycle.Request
	ending lifecycle.Ending
}

func (r *refusal) finish(bytes int64, err error) {
	r.ending.Bytes = bytes
	if err == nil {
		r.ending.Delivered = r.s.cfg.Runtime.Now()
	}
	r.s.cfg.Observer.Observe(lifecycle.Close(r.req, nil, r.ending))
}

func (s *Server) json(v *visit, body []byte) {
	v.ctx.SetContentType("application/json")
	v.ctx.SetBody(body)
}

func (s *Server) models(v *visit) { s.json(v, s.cfg.Env.AppendModels(nil)) }

func (s *Server) model(v *visit) {
	body, e := s.cfg.Env.AppendModel(nil, v.id)
	if e != nil {
		s.refuse(v, e)
		return
	}
	s.json(v, body)
}

// tokens answers /tokenize and /detokenize.
func (s *Server) tokens(v *visit, answer func([]byte) ([]byte, *lifecycle.Error)) {
	body, e := s.body(v)
	if e == nil {
		body, e = answer(body)
	}
	if e != nil {
		s.refuse(v, e)
		return
	}
	s.json(v, body)
}

func (s *Server) response(v *visit) {
	if k := s.stored.get(v.keyName, v.id); k != nil {
		s.json(v, k.Body)
		return
	}
	s.refuse(v, noResponse(v.id))
}

func (s *Server) forget(v *visit) {
	if !s.stored.delete(v.keyName, v.id) {
		s.refuse(v, noResponse(v.id))
		return
	}
	s.json(v, fmt.Appendf(nil, `{"id":%q,"object":"response","deleted":true}`, v.id))
}

// cancel answers POST /v1/responses/{id}/cancel. Only responses that are made in the background can
// be cancelled so, and there are none of those: a client cancels by closing its connection.
func (s *Server) cancel(v *visit) {
	if s.stored.get(v.keyName, v.id) == nil {
		s.refuse(v, noResponse(v.id))
		return
	}
	s.refuse(v, &lifecycle.Error{Status: 400, Type: "invalid_request_error",
		Message: fmt.Sprintf("response %s has ended: only a response made in the background can be cancelled", bounded(v.id, 100))})
}

func noResponse(id string) *lifecycle.Error {
	return &lifecycle.Error{Status: 404, Type: "invalid_request_error", Param: "response_id",
		Message: fmt.Sprintf("there is no response %s: it was not stored, was deleted, or gave way to later ones", bounded(strconv.QuoteToASCII(id), 200))}
}

// health answers /health and /ping: 200, with a body only where some of several engines have no device, or 503
// with the reason.
func (s *Server) health(v *visit) {
	ok, why := s.cfg.Runtime.Health()
	if ok {
		if !s.draining.Load() && !s.cfg.Runtime.Draining() {
			if why != "" {
				message, _ := json.Marshal(why)
				s.json(v, fmt.Appendf(nil, `{"status":"degraded","message":%s}`, message))
			}
			return
		}
		if why != "" {
			why = ": " + why // which may be the reason
		}
		why = "the server is shutting down" + why
	}
	s.refuse(v, &lifecycle.Error{Status: 503, Type: "service_unavailable_error", Code: "unhealthy", Message: why})
}

func (s *Server) version(v *visit) { s.json(v, fmt.Appendf(nil, `{"version":%q}`, s.cfg.Version)) }

// load answers /load with the number of requests that hold a place, as vLLM names it.
func (s *Server) load(v *visit) {
	s.json(v, fmt.Appendf(nil, `{"server_load":%d}`, s.cfg.Runtime.Admitted()))
}
