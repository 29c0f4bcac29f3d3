package transport

import (
	"bytes"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/console"
)

// The live page is at consolePath and its files are below. They hold no data and are open; what is
// below consoleAPI needs a key where there are keys.
const (
	consolePath = "/console"
	consoleAPI  = "/console/api/"
)

// routeConsole adds the live page's routes.
func (s *Server) routeConsole(routes map[string]*route) {
	for name, a := range console.Assets() {
		if name == console.Index {
			if len(s.keys) > 0 {
				// So that the page asks for a key before it is refused without one.
				a.Content = bytes.Replace(a.Content, []byte(`data-key="none"`), []byte(`data-key="needed"`), 1)
				a.ETag = strings.TrimSuffix(a.ETag, `"`) + `-k"`
			}
			routes[consolePath] = &route{get: func(v *visit) { asset(v, &a) }}
			continue
		}
		routes[consolePath+"/"+name] = &route{get: func(v *visit) { asset(v, &a) }}
	}
	routes[consolePath+"/"] = &route{get: func(v *visit) {
		v.ctx.Response.Header.Set(fasthttp.HeaderLocation, "../console") // relative: a proxy may serve it elsewhere
		v.ctx.SetStatusCode(fasthttp.StatusPermanentRedirect)
	}}
	routes[consoleAPI+"stream"] = &route{get: s.watch}
	routes[consoleAPI+"timeline"] = &route{get: s.timeline}
}

func asset(v *visit, a *console.Asset) {
	h := &v.ctx.Response.Header
	h.Set(fasthttp.HeaderContentSecurityPolicy, console.Policy)
	h.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
	h.Set(fasthttp.HeaderReferrerPolicy, "no-referrer")
	h.Set(fasthttp.HeaderCacheControl, "no-cache") // ask each time whether it has changed
	h.Set(fasthttp.HeaderETag, a.ETag)
	if string(v.ctx.Request.Header.Peek(fasthttp.HeaderIfNoneMatch)) == a.ETag {
		v.ctx.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	v.ctx.SetContentType(a.Type)
	v.ctx.SetBody(a.Content)
}

// watch streams what the live page shows, until the viewer leaves or the server stops.
func (s *Server) watch(v *visit) {
	ctx, h := v.ctx, &v.ctx.Response.Header
	if ctx.IsHead() {
		ctx.SetContentType("text/event-stream")
		return
	}
	viewer, e := s.cfg.Console.Watch(v.conn.Kill)
	if e != nil {
		s.refuse(v, e)
		return
	}
	ctx.SetContentType("text/event-stream")
	h.Set(fasthttp.HeaderCacheControl, "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx would collect the frames
	if ctx.Request.Header.IsHTTP11() {
		ctx.SetBodyStream(viewer, -1)
		return
	}
	s.streamUnframed(v, viewer)
}

// timelinePatience is how long the running requests have to say which of them is meant.
const timelinePatience = 2 * time.Second

// timeline answers /console/api/timeline?id=N with what happened to a request.
func (s *Server) timeline(v *visit) {
	id, err := v.ctx.QueryArgs().GetUint("id")
	if err != nil || id < 0 {
		s.refuse(v, &lifecycle.Error{Status: 400, Type: "invalid_request_error", Param: "id",
			Message: "the query must name a request by its number, as in ?id=17"})
		return
	}
	v.ctx.Response.Header.Set(fasthttp.HeaderCacheControl, "no-store")
	body, e := s.cfg.Console.Timeline(uint64(id), timelinePatience)
	if e != nil {
		s.refuse(v, e)
		if e.Status == fasthttp.StatusServiceUnavailable {
			v.ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, "1")
		}
		return
	}
	s.json(v, body)
}
