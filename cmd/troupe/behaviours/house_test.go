package behaviours

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/template"
	"github.com/troupe-llm/troupe/model/tiny"
	"github.com/troupe-llm/troupe/transport"
	"github.com/troupe-llm/troupe/transport/observe"
	"github.com/troupe-llm/troupe/transport/openai"
)

// patience bounds what a test waits for; it says nothing about how long anything takes.
const patience = 4 * time.Minute

func TestMain(m *testing.M) {
	if role := os.Getenv(crowdRole); role != "" {
		os.Exit(crowd(role))
	}
	code := m.Run()
	removeBinary()
	os.Exit(code)
}

// layout says what a house differs in from the usual one. Zero fields are the usual.
type layout struct {
	sim    sim.Options
	device gpu.Config
	cast   func(*actors.Config)
	limits transport.Limits
	shut   bool              // steps wait for the valve from the start
	script map[uint64]script // what sequences of a seed say, in place of the simulated device's tokens
	log    io.Writer         // where the request log goes; nil: where the house reads it
	// engines are how many devices there are; 1. The first alone has the house's faults.
	engines int
}

// script is the output of a sequence, token by token. After it comes an end of sequence.
type script []int32

// house is the whole server in this process, wired as `troupe serve --device sim` does.
type house struct {
	t      testing.TB
	rt     *actors.Runtime
	srv    *transport.Server
	addr   string
	faults *sim.Faults
	valve  *valve
	log    *lockedBuffer
	end    sync.Once
	stop   func()
}

var tinyModel = sync.OnceValue(func() *model.Model { return tiny.Model(tiny.Options{}) })

var tinyTemplate = sync.OnceValue(func() *template.Template {
	m := tinyModel()
	t, err := template.Parse(m.Template, template.Options{BOS: m.Tokenizer.Piece(m.Tokenizer.BOS()), EOS: m.Tokenizer.Piece(m.Tokenizer.EOS())})
	if err != nil {
		panic(err)
	}
	return t
})

func open(t testing.TB, l layout) *house {
	t.Helper()
	m := tinyModel()
	h := &house{t: t, faults: &sim.Faults{}, valve: newValve(l.shut), log: &lockedBuffer{}}
	l.sim.Vocab, l.sim.EOS, l.sim.Faults = m.Tokenizer.Size(), m.Generation.EOS, h.faults
	if l.sim.Tokens == nil {
		l.sim.Tokens = letters()
	}
	usual(&l.device.BlockSize, 16)
	usual(&l.device.MaxSeqs, 64)
	usual(&l.device.MaxTokens, 2048)
	usual(&l.device.MaxContext, 8192)

	registry := observe.NewRegistry()
	prom := observe.NewPrometheus(observe.PrometheusOptions{
		Model: "sim", MaxModelLen: l.device.MaxContext, BlockSize: l.device.BlockSize, PrefixCaching: true,
		Engines: l.engines, Stats: func() []actors.Stats { return h.rt.Engines() },
	})
	registry.MustRegister(prom)
	var log io.Writer = h.log
	if l.log != nil {
		log = l.log
	}
	requests := observe.NewRequestLog(log, observe.JSON, io.Discard)
	registry.MustRegister(requests)
	observer := observe.Tee(prom, requests)

	cast := actors.Config{
		Engines: l.engines,
		Open: func(engine int) (gpu.Device, error) {
			o := l.sim
			if engine > 0 {
				o.Faults = nil
			}
			d, err := sim.Open(o, l.device)
			if err != nil {
				return nil, err
			}
			return &device{Device: d, valve: h.valve, script: l.script, eos: m.Generation.EOS[0]}, nil
		},
		BlockSize: l.device.BlockSize, MaxSeqs: l.device.MaxSeqs, MaxTokens: l.device.MaxTokens, MaxContext: l.device.MaxContext,
		PrefixCaching: true, EOS: m.Generation.EOS, Tokenizer: m.Tokenizer, Observer: observer, Detail: true,
		Logger: slog.New(slog.DiscardHandler),
	}
	if l.cast != nil {
		l.cast(&cast)
	}
	var err error
	if h.rt, err = actors.New(cast); err != nil {
		t.Fatal(err)
	}
	env := &openai.Env{
		Served: []string{"sim"}, Root: "sim", MaxModelLen: l.device.MaxContext, Vocab: m.Tokenizer.Size(),
		Tokenizer: m.Tokenizer, Template: tinyTemplate(), EOS: m.Generation.EOS,
		Metrics: true, MetricsDetail: cast.Detail, Created: 1,
	}
	h.srv, err = transport.New(transport.Config{
		Runtime: h.rt, Env: env, Observer: observer, Metrics: observe.Handler(registry), Limits: l.limits, Version: "test", Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := transport.Bind("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- h.srv.Serve(ln) }()
	h.stop = func() {
		h.valve.open()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := h.srv.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		h.rt.Close()
		if err := requests.Close(); err != nil {
			t.Errorf("the request log: %v", err)
		}
		if n := h.srv.Connections(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
		if n := h.rt.Admitted(); n != 0 {
			t.Errorf("%d places are left taken", n)
		}
	}
	t.Cleanup(h.close)
	return h
}

func usual(p *int, v int) {
	if *p == 0 {
		*p = v
	}
}

// close ends the server; the log is complete afterwards.
func (h *house) close() { h.end.Do(h.stop) }

// letters are the tokens of a to z: what the simulated device says.
func letters() []int32 {
	var ids []int32
	for c := 'a'; c <= 'z'; c++ {
		ids = append(ids, tiny.FirstByte+c)
	}
	return ids
}

// bytewise spells a text with one token a byte.
func bytewise(text string) script {
	var s script
	for _, b := range []byte(text) {
		s = append(s, tiny.FirstByte+int32(b))
	}
	return s
}

// device is the simulated one behind a valve, with sequences that say what a script tells them to.
type device struct {
	gpu.Device
	valve  *valve
	script map[uint64]script
	eos    int32
}

// Run implements gpu.Device.
func (d *device) Run(b *gpu.Batch, r *gpu.Result) error {
	d.valve.pass()
	if err := d.Device.Run(b, r); err != nil {
		return err
	}
	for i := range b.Rows {
		row := &b.Rows[i]
		s, scripted := d.script[row.Seed]
		if !scripted || row.Kind != gpu.Sample {
			continue
		}
		if r.Tokens[i] = d.eos; int(row.Draw) < len(s) {
			r.Tokens[i] = s[row.Draw]
		}
	}
	return nil
}

// valve lets the device's steps through: all of them, or as many as a test allows.
type valve struct {
	mu      sync.Mutex
	changed sync.Cond
	free    bool
	allowed int
	begun   int  // steps that have come as far as the valve
	held    bool // a step waits at the valve
}

func newValve(shut bool) *valve {
	v := &valve{free: !shut}
	v.changed.L = &v.mu
	return v
}

// pass is called by each step.
func (v *valve) pass() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begun++
	v.held = true
	v.changed.Broadcast()
	for !v.free && v.allowed == 0 {
		v.changed.Wait()
	}
	if !v.free {
		v.allowed--
	}
	v.held = false
}

// open lets all steps through from now on, shut none.
func (v *valve) open() { v.set(true) }
func (v *valve) shut() { v.set(false) }

func (v *valve) set(free bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.free, v.allowed = free, 0
	v.changed.Broadcast()
}

// allow lets n more steps through.
func (v *valve) allow(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.allowed += n
	v.changed.Broadcast()
}

// waiting says whether a step waits, and how many have come to the valve so far.
func (v *valve) waiting() (held bool, begun int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held && v.allowed == 0, v.begun
}

// held waits until a step waits at the shut valve: all steps before it are done.
func (h *house) held() {
	h.t.Helper()
	h.until("a step waits", func() bool { held, _ := h.valve.waiting(); return held })
}

// until waits for what must come to hold.
func (h *house) until(what string, holds func() bool) {
	h.t.Helper()
	until(h.t, what, holds)
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// in waits until n requests are with the batcher, or, where it waits at the valve, will be before its next
// step: each has answered a question that comes behind what made it ask for its place.
func (h *house) in(n int) {
	h.t.Helper()
	var mu sync.Mutex
	seen := map[uint64]bool{}
	h.until(fmt.Sprintf("%d requests are in", n), func() bool {
		h.rt.Survey(func(g actors.Glance) {
			mu.Lock()
			defer mu.Unlock()
			seen[g.Request.ID] = true
		})
		mu.Lock()
		defer mu.Unlock()
		return len(seen) >= n
	})
}

// heard waits until every request has heard what it was told before.
func (h *house) heard() {
	h.t.Helper()
	h.until("the requests have heard", func() bool {
		all := make(chan struct{})
		h.rt.Inquire(math.MaxUint64, func(int64, *lifecycle.Timeline) {}, func() { close(all) })
		select {
		case <-all:
			return true
		case <-time.After(time.Second): // one of them ended before it had heard the question
			return false
		}
	})
}

// idle waits until no request holds a place, a slot or a block.
func (h *house) idle() {
	h.t.Helper()
	h.until("the house is idle", func() bool {
		s := h.rt.Stats()
		return h.rt.Admitted() == 0 && s.Running+s.Waiting == 0 && s.BlocksUsed == 0
	})
}

// lockedBuffer is a buffer that one goroutine writes and others read.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// entry is a line of the request log, as far as the tests read it. raw is the whole of it.
type entry struct {
	raw string

	ID              uint64
	RequestID       string `json:"request_id"`
	ClientRequestID string `json:"client_request_id"`
	Endpoint, Model string
	Stream          bool
	N               int
	Params          struct {
		MaxTokens *int `json:"max_tokens"`
	}
	Tokens struct {
		Prompt, Cached, Computed, Output, Longest, Discarded int
	}
	AtMS struct {
		Queued     *float64
		Scheduled  *float64
		FirstToken *float64 `json:"first_token"`
		LastToken  *float64 `json:"last_token"`
		Finished   *float64
		Delivered  *float64
	} `json:"at_ms"`
	Metrics metrics
	Detail  struct {
		E2E         *float64 `json:"e2e_ms"`
		Prefill     *float64 `json:"prefill_ms"`
		PrefillRate *float64 `json:"prefill_tokens_per_second"`
		Preemptions int
		PreemptedMS float64 `json:"preempted_ms"`
		Steps       int
		ITL         struct {
			Max   *float64
			Count *int
		} `json:"itl_ms"`
	}
	Slowed    map[string]float64 `json:"slowed_by_ms"`
	Sequences int
	Outcome   string
	Status    int
	Error     struct{ Type, Code, Message string }
	Bytes     int64
	Engine    *int
}

// metrics is a response's metrics object.
type metrics struct {
	TTFT       *float64 `json:"time_to_first_token_ms"`
	Generation *float64 `json:"generation_time_ms"`
	Queue      *float64 `json:"queue_time_ms"`
	MeanITL    *float64 `json:"mean_itl_ms"`
	Rate       *float64 `json:"tokens_per_second"`
}

// entries waits until the log has n lines and returns them. Each must be one JSON object with
// nothing negative in it.
func (h *house) entries(n int) []entry {
	h.t.Helper()
	h.until(fmt.Sprintf("%d lines in the request log", n), func() bool { return strings.Count(h.log.String(), "\n") >= n })
	es := h.parseLog()
	if len(es) != n {
		h.t.Fatalf("%d lines in the request log, want %d", len(es), n)
	}
	return es
}

// parseLog reads the lines that are in the log so far.
func (h *house) parseLog() []entry {
	h.t.Helper()
	var es []entry
	for line := range strings.Lines(h.log.String()) {
		e := entry{raw: strings.TrimSuffix(line, "\n")}
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		var all any
		if err := d.Decode(&all); err != nil {
			h.t.Fatalf("not a JSON line: %v in %q", err, line)
		}
		if where := negative("", all); where != "" {
			h.t.Errorf("%s is negative in the log line %s", where, line)
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			h.t.Fatalf("%v in %q", err, line)
		}
		es = append(es, e)
	}
	return es
}

// negative returns where in a decoded JSON value there is a negative number; "" where there is none.
// JSON itself has neither NaN nor Inf.
func negative(path string, v any) string {
	switch v := v.(type) {
	case json.Number:
		if strings.HasPrefix(v.String(), "-") {
			return path
		}
	case map[string]any:
		for k, x := range v {
			if k == "params" {
				continue // what the client asked for
			}
			if where := negative(path+"."+k, x); where != "" {
				return where
			}
		}
	case []any:
		for i, x := range v {
			if where := negative(fmt.Sprintf("%s[%d]", path, i), x); where != "" {
				return where
			}
		}
	}
	return ""
}

// series are the samples of a scrape by name and labels, as they stand in the text.
type series map[string]float64

// scrape reads /metrics. Nothing in it may be negative, NaN or infinite.
func (h *house) scrape() series {
	h.t.Helper()
	a := h.do("GET", "/metrics", "")
	if a.StatusCode != 200 {
		h.t.Fatalf("/metrics: %s", a.Status)
	}
	return parseMetrics(h.t, a.text)
}

func parseMetrics(t testing.TB, text string) series {
	t.Helper()
	s := series{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("/metrics: %q", line)
		}
		if !(v >= 0 && v < 1e300) && !strings.HasPrefix(line, "process_") && !strings.HasPrefix(line, "go_") {
			t.Errorf("/metrics says %s", line)
		}
		s[line[:i]] = v
	}
	return s
}

// sum adds up the samples of a name whose labels contain all of those given, such as `status="400"`.
func (s series) sum(name string, labels ...string) (total float64) {
	found := false
next:
	for k, v := range s {
		n, rest, _ := strings.Cut(k, "{")
		if n != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}
		found = true
		total += v
	}
	if !found {
		panic(fmt.Sprintf("no series %s%q", name, labels))
	}
	return total
}

// count is sum of what can only be a whole number.
func (s series) count(name string, labels ...string) int { return int(s.sum(name, labels...)) }

// since subtracts an earlier scrape.
func (s series) since(before series) series {
	d := series{}
	for k, v := range s {
		d[k] = v - before[k]
	}
	return d
}

// ended are the ended requests by how they ended.
func (s series) ended() (e struct{ Stop, Length, Abort, Error int }) {
	of := func(reason string) int { return s.count("vllm:request_success_total", `finished_reason="`+reason+`"`) }
	e.Stop, e.Length, e.Abort, e.Error = of("stop"), of("length"), of("abort"), of("error")
	return e
}

// fields are a JSON object's.
type fields map[string]any

// with is the object with more fields, as JSON.
func (f fields) with(more ...fields) string {
	all := maps.Clone(f)
	for _, m := range more {
		maps.Copy(all, m)
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (f fields) String() string { return f.with() }

// say makes a chat request for exactly so many tokens.
func say(text string, tokens int) fields {
	return fields{"model": "sim", "messages": []fields{{"role": "user", "content": text}}, "max_tokens": tokens, "temperature": 0, "ignore_eos": true}
}

// streamed are the fields that make it a stream with usage at its end.
var streamed = fields{"stream": true, "stream_options": fields{"include_usage": true}}

const chatPath = "/v1/chat/completions"

// dial opens a connection.
func (h *house) dial() net.Conn {
	h.t.Helper()
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	h.t.Cleanup(func() { c.Close() })
	return c
}

// post writes a request.
func post(w io.Writer, path, body string, headers ...string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(body))
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("\r\n" + body)
	_, err := w.Write(b.Bytes())
	return err
}

type answer struct {
	*http.Response
	text string
}

// do sends a request on a connection of its own and reads the whole answer.
func (h *house) do(method, path, body string, headers ...string) answer {
	h.t.Helper()
	a, err := h.try(method, path, body, headers...)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (h *house) try(method, path, body string, headers ...string) (answer, error) {
	req, err := http.NewRequest(method, "http://"+h.addr+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Close = true
	for _, x := range headers {
		k, v, _ := strings.Cut(x, ": ")
		req.Header.Set(k, v)
	}
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	written := make(chan struct{})
	go func() { defer close(written); _ = req.Write(c) }()
	defer func() { c.Close(); <-written }()
	return readAnswer(c, req)
}

// reply is an unstreamed chat answer.
type reply struct {
	ID      string
	Choices []struct {
		Message struct{ Content string }
		Reason  string   `json:"finish_reason"`
		Metrics *metrics // with details, each choice has its own
	}
	Usage   usage
	Metrics *metrics
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// ask sends a chat request and wants a 200.
func (h *house) ask(body string, headers ...string) reply {
	h.t.Helper()
	a := h.do("POST", chatPath, body, headers...)
	if a.StatusCode != 200 {
		h.t.Fatalf("%s: %s", a.Status, a.text)
	}
	var r reply
	if err := json.Unmarshal([]byte(a.text), &r); err != nil {
		h.t.Fatalf("%v in %s", err, a.text)
	}
	return r
}
