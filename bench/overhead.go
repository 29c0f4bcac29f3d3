package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/actors/batch"
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

// OverheadOptions say how to measure what the parts around a device cost.
type OverheadOptions struct {
	Concurrency int // requests in flight, at least 1
	Tokens      int // that each request generates, at least 1
	// Pairs is how often each part is measured with and without; 0: as often as Duration allows, and
	// at least once. Duration bounds both; 0: no bound, Pairs then decides alone.
	Pairs    int
	Duration time.Duration
	// Progress is called after each of the measurements that make up a round, with the number of
	// whole rounds so far; nil: nobody is told.
	Progress func(rounds int, part string)
}

// Rung is one part's figures. Each rung does what the one before it does, and one thing more.
type Rung struct {
	Name string // as in JSON
	What string // for people
	// CPU and Wall are a token's share, medians over the rounds; CPU is of the whole process, and 0
	// where the system does not tell.
	CPU, Wall time.Duration
	// Allocs and Bytes are allocated for a token, medians.
	Allocs, Bytes float64
	// Over compares with the rung before; without pairs for the first.
	Over Cost
}

// Cost compares the CPU time of two rungs (Wall where there is none), pair by pair.
type Cost struct {
	Ratio
	More time.Duration // for a request, the median of the pairs
}

// TokensPerSecond is by the clock on the wall.
func (r *Rung) TokensPerSecond() float64 { return 1e9 / float64(r.Wall) }

// TokensPerCPUSecond is what one core would do by itself: other programs don't lower it as they do
// TokensPerSecond. NaN when the system does not tell the CPU time.
func (r *Rung) TokensPerCPUSecond() float64 {
	if r.CPU <= 0 {
		return math.NaN()
	}
	return 1e9 / float64(r.CPU)
}

// Overhead is what was measured.
type Overhead struct {
	Options OverheadOptions
	Rungs   []Rung
	// Log compares the rung of the request log with that of the statistics: it is what the log costs with
	// all that is kept for it, the timeline too.
	Log     Cost
	Rounds  int
	Cores   int
	Elapsed time.Duration
	// Interrupted says that it was ended before its time.
	Interrupted bool
}

// The rungs, by index.
const (
	rungDevice = iota
	rungActors
	rungAPI
	rungMetrics
	rungStats
	rungTimeline
	rungLog
	rungHTTP
)

var rungNames = [...][2]string{
	rungDevice:   {"device", "scheduler and device alone"},
	rungActors:   {"actors", "+ actors: from submit to text"},
	rungAPI:      {"api", "+ API: JSON, template, tokens, frames"},
	rungMetrics:  {"metrics", "+ metrics object in responses"},
	rungStats:    {"statistics", "+ Prometheus statistics"},
	rungTimeline: {"timeline", "+ timeline kept of each request"},
	rungLog:      {"line", "+ request log's line in a file"},
	rungHTTP:     {"http", "+ HTTP over loopback"},
}

// reading is one measurement.
type reading struct{ cpu, wall, allocs, bytes float64 } // a token; nanoseconds

// MeasureOverhead measures all rungs in each round, in an order that is drawn anew: what one leaves behind (HTTP
// most of all) is found by each of the others as often. When ctx ends it returns what it has, or ctx's error
// when that is not one whole round.
func MeasureOverhead(ctx context.Context, o OverheadOptions) (*Overhead, error) {
	if o.Concurrency < 1 || o.Tokens < 1 || o.Pairs < 0 || o.Pairs == 0 && o.Duration <= 0 {
		return nil, fmt.Errorf("bench: %d requests in flight of %d tokens, %d pairs in %v: there must be at least one of each, and pairs or a duration",
			o.Concurrency, o.Tokens, o.Pairs, o.Duration)
	}
	return measureOverhead(ctx, o, max(o.Concurrency, stageTokens/o.Tokens))
}

// measureOverhead makes measurements of so many requests.
func measureOverhead(ctx context.Context, o OverheadOptions, requests int) (*Overhead, error) {
	s, err := newStage(o)
	if err != nil {
		return nil, err
	}
	s.requests = requests
	out := &Overhead{Options: o, Cores: runtime.GOMAXPROCS(0)}
	start := time.Now()
	var rounds [][len(rungNames)]reading
	for err == nil {
		var round [len(rungNames)]reading
		for _, at := range rand.Perm(len(round)) {
			if err = ctx.Err(); err != nil {
				break
			}
			if round[at], err = s.measure(at); err != nil {
				break
			}
			if o.Progress != nil {
				o.Progress(len(rounds), rungNames[at][1])
			}
		}
		if err != nil {
			break
		}
		rounds = append(rounds, round)
		spent := time.Since(start)
		if o.Pairs > 0 && len(rounds) >= o.Pairs || o.Duration > 0 && spent+spent/time.Duration(len(rounds)) > o.Duration {
			break
		}
	}
	if ctx.Err() != nil && len(rounds) > 0 {
		err, out.Interrupted = nil, true
	}
	if err != nil {
		return nil, err
	}
	out.Rounds, out.Elapsed = len(rounds), time.Since(start)
	out.compare(rounds)
	return out, nil
}

// compare makes the rungs' figures of what was measured.
func (o *Overhead) compare(rounds [][len(rungNames)]reading) {
	middle := func(of func(*[len(rungNames)]reading) float64) float64 {
		values := make([]float64, len(rounds))
		for i := range rounds {
			values[i] = of(&rounds[i])
		}
		slices.Sort(values)
		return median(values)
	}
	cost := func(r *reading) float64 { return r.cpu }
	if rounds[0][0].cpu == 0 { // the system does not tell
		cost = func(r *reading) float64 { return r.wall }
	}
	over := func(at, base int) Cost {
		a, b := make([]float64, len(rounds)), make([]float64, len(rounds))
		for i := range rounds {
			a[i], b[i] = cost(&rounds[i][at]), cost(&rounds[i][base])
		}
		more := middle(func(r *[len(rungNames)]reading) float64 { return cost(&r[at]) - cost(&r[base]) })
		return Cost{Compare(a, b), time.Duration(more * float64(o.Options.Tokens))}
	}
	o.Rungs = make([]Rung, len(rungNames))
	for i := range o.Rungs {
		r := &o.Rungs[i]
		r.Name, r.What = rungNames[i][0], rungNames[i][1]
		r.CPU = time.Duration(middle(func(r *[len(rungNames)]reading) float64 { return r[i].cpu }))
		r.Wall = time.Duration(middle(func(r *[len(rungNames)]reading) float64 { return r[i].wall }))
		r.Allocs = middle(func(r *[len(rungNames)]reading) float64 { return r[i].allocs })
		r.Bytes = middle(func(r *[len(rungNames)]reading) float64 { return r[i].bytes })
		if i > 0 {
			r.Over = over(i, i-1)
		}
	}
	o.Log = over(rungLog, rungStats)
}

// stage has what scenes are made of: the same requests, and a simulated device that takes no time.
type stage struct {
	o        OverheadOptions
	requests int // of a measurement
	model    *model.Model
	body     []byte
	template *template.Template
	device   gpu.Config

	quiet, telling *openai.Env // without and with the metrics object
	request        lifecycle.Request
}

// scene is what one rung is measured on, once: where its memory happens to lie is worth a percent or two, and
// so must be another each time.
type scene struct {
	*stage
	rung int
	env  *openai.Env
	rt   *actors.Runtime // nil for the device alone

	log    *observe.RequestLog // from rungLog on
	file   *os.File
	server *transport.Server // for rungHTTP
	served chan error
	addr   string
}

// stageTokens is about how many tokens a measurement generates: enough that how requests happen to meet on
// the cores evens out, and few enough that what is compared is measured at nearly the same time.
const stageTokens = 1 << 17

func newStage(o OverheadOptions) (*stage, error) {
	s := &stage{o: o, model: tiny.Model(tiny.Options{})}
	t := s.model.Tokenizer
	var err error
	if s.template, err = template.Parse(s.model.Template, template.Options{BOS: t.Piece(t.BOS()), EOS: t.Piece(t.EOS())}); err != nil {
		return nil, err
	}
	s.device = gpu.Config{BlockSize: 16, MaxSeqs: o.Concurrency, MaxTokens: max(2048, 2*o.Concurrency), MaxContext: o.Tokens + 256}
	s.body = fmt.Appendf(nil, `{"model":"sim","messages":[{"role":"user","content":"Say something about the weather in spring."}],`+
		`"max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`, o.Tokens)
	s.quiet, s.telling = s.env(false), s.env(true)
	job, refused := s.quiet.ParseChat(s.body)
	if refused != nil {
		return nil, refused
	}
	s.request = job.Request
	return s, nil
}

// scene makes what a rung needs.
func (s *stage) scene(rung int) (_ *scene, err error) {
	c := &scene{stage: s, rung: rung, env: s.telling}
	defer func() {
		if err != nil {
			_ = c.close()
		}
	}()
	var watching lifecycle.Observer
	if rung >= rungStats {
		watching = observe.NewPrometheus(observe.PrometheusOptions{Model: "sim", MaxModelLen: s.device.MaxContext,
			BlockSize: s.device.BlockSize, PrefixCaching: true, Stats: func() []actors.Stats { return c.rt.Engines() }})
	}
	if rung >= rungLog {
		if c.file, err = os.CreateTemp("", "troupe-overhead-*.jsonl"); err != nil {
			return nil, err
		}
		c.log = observe.NewRequestLog(c.file, observe.JSON, io.Discard)
		watching = observe.Tee(watching, c.log)
	}
	switch rung {
	case rungDevice:
		return c, nil
	case rungActors, rungAPI:
		c.env = s.quiet
	}
	c.rt, err = actors.New(actors.Config{
		Open: s.open, BlockSize: s.device.BlockSize, MaxSeqs: s.device.MaxSeqs, MaxTokens: s.device.MaxTokens,
		MaxContext: s.device.MaxContext, PrefixCaching: true, EOS: s.model.Generation.EOS, Tokenizer: s.model.Tokenizer,
		// A client may send its next request before the books of its last one are closed.
		MaxRequests: 4 * s.o.Concurrency, Observer: watching, Logger: slog.New(slog.DiscardHandler),
		Timeline: rung >= rungTimeline, // as serve does for a log
	})
	if err != nil || rung != rungHTTP {
		return c, err
	}
	c.server, err = transport.New(transport.Config{Runtime: c.rt, Env: c.env, Observer: watching, Log: zerolog.Nop()})
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c.addr, c.served = ln.Addr().String(), make(chan error, 1)
	go func() { c.served <- c.server.Serve(ln) }()
	return c, nil
}

func (s *stage) env(metrics bool) *openai.Env {
	m := s.model
	return &openai.Env{Served: []string{"sim"}, Root: "sim", MaxModelLen: s.device.MaxContext, Vocab: m.Tokenizer.Size(),
		Tokenizer: m.Tokenizer, Template: s.template, EOS: m.Generation.EOS, Metrics: metrics}
}

func (s *stage) open(int) (gpu.Device, error) {
	return sim.Open(sim.Options{Vocab: s.model.Tokenizer.Size(), EOS: s.model.Generation.EOS}, s.device)
}

// close ends everything. Its error is the first of what went wrong unnoticed.
func (c *scene) close() error {
	var errs []error
	if c.served != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		errs = append(errs, c.server.Shutdown(ctx), <-c.served)
		cancel()
	}
	if c.rt != nil {
		c.rt.Close()
	}
	if c.log != nil {
		errs = append(errs, c.log.Close())
		if n := c.log.Lost(); n > 0 {
			errs = append(errs, fmt.Errorf("%d lines of the request log could not be written to %s: its cost is not known", n, c.file.Name()))
		}
	}
	if c.file != nil {
		_ = c.file.Close()
		_ = os.Remove(c.file.Name())
	}
	return errors.Join(errs...)
}

// measure runs one rung once. As many requests as are in flight come before, unmeasured, so that pools and
// caches are as the rung leaves them itself.
func (s *stage) measure(rung int) (r reading, err error) {
	c, err := s.scene(rung)
	if err == nil {
		r, err = c.measure()
		err = errors.Join(err, c.close())
	}
	if err != nil {
		return reading{}, fmt.Errorf("bench: %s: %w", rungNames[rung][1], err)
	}
	return r, nil
}

func (c *scene) measure() (reading, error) {
	if err := c.climb(min(c.requests, c.o.Concurrency)); err != nil {
		return reading{}, err
	}
	runtime.GC() // of what came before
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start, cpu := time.Now(), processCPU()
	err := c.climb(c.requests)
	spent, elapsed := processCPU()-cpu, time.Since(start)
	runtime.ReadMemStats(&after)
	tokens := float64(c.requests * c.o.Tokens)
	return reading{
		cpu: float64(spent) / tokens, wall: float64(elapsed) / tokens,
		allocs: float64(after.Mallocs-before.Mallocs) / tokens, bytes: float64(after.TotalAlloc-before.TotalAlloc) / tokens,
	}, err
}

// climb runs so many requests.
func (c *scene) climb(requests int) error {
	var res Result
	var err error
	switch c.rung {
	case rungDevice:
		return c.drive(requests)
	case rungActors:
		return c.crowd(requests, func() (client, error) {
			return &reader{rt: c.rt, request: &c.request, done: make(chan struct{}, 1)}, nil
		})
	case rungHTTP:
		err = c.crowd(requests, func() (client, error) { return dialStream(c.addr, c.body) })
		return errors.Join(err, c.log.Flush())
	default:
		res, err = Load{Concurrency: c.o.Concurrency, Requests: requests, Body: c.body}.Run(c.rt, c.env)
	}
	if err == nil && c.rung == rungLog {
		err = c.log.Flush() // what it costs to write is part of it
	}
	if want := int64(requests * c.o.Tokens); err == nil && res.Tokens != want {
		err = fmt.Errorf("%d tokens came, want %d", res.Tokens, want)
	}
	return err
}

// drive does what the batcher does, in a loop and for nobody.
func (s *stage) drive(requests int) error {
	dev, err := s.open(0)
	if err != nil {
		return err
	}
	defer dev.Close()
	sched, err := batch.New(batch.Config{
		BlockSize: s.device.BlockSize, NumBlocks: dev.Info().NumBlocks, MaxSeqs: s.device.MaxSeqs, MaxTokens: s.device.MaxTokens,
		MaxContext: s.device.MaxContext, PrefixCache: true, EOS: s.model.Generation.EOS, Vocab: dev.Info().Vocab,
	})
	if err != nil {
		return err
	}
	base := time.Now()
	now := func() int64 { return int64(time.Since(base)) + 1 }
	submitted, tokens := 0, 0
	submit := func() {
		if submitted < requests {
			submitted++
			params := *s.request.Params
			owner := new(int)
			sched.Submit(now(), &lifecycle.Submit{ID: lifecycle.SeqID{Request: uint64(submitted)}, Epoch: 1,
				Prompt: s.request.Prompts[0], Params: &params, Arrival: int64(submitted), Group: 1}, owner)
		}
	}
	for range s.o.Concurrency {
		submit()
	}
	var in gpu.Batch
	var out gpu.Result
	for sched.Plan(now(), &in) > 0 {
		sched.Events()
		step := &lifecycle.Step{Start: now()}
		out.Reset(&in)
		if err := dev.Run(&in, &out); err != nil {
			return err
		}
		step.End = now()
		sched.Commit(step, &out)
		for _, e := range sched.Events() {
			if m, ok := e.Msg.(*lifecycle.Tokens); ok {
				tokens += len(m.IDs)
				if m.Reason != "" {
					submit()
				}
			}
		}
	}
	if want := requests * s.o.Tokens; tokens != want {
		return fmt.Errorf("%d tokens came, want %d", tokens, want)
	}
	return nil
}

// client is one of those that send requests, one after the other.
type client interface {
	ask() (tokens int, err error)
	close()
}

// crowd lets Concurrency clients send the requests.
func (s *stage) crowd(requests int, join func() (client, error)) error {
	var left, tokens atomic.Int64
	left.Store(int64(requests))
	errs := make([]error, s.o.Concurrency)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			c, err := join()
			if err != nil {
				errs[i] = err
				return
			}
			defer c.close()
			for left.Add(-1) >= 0 {
				n, err := c.ask()
				if err != nil {
					errs[i] = err
					return
				}
				tokens.Add(int64(n))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if want := int64(requests * s.o.Tokens); tokens.Load() != want {
		return fmt.Errorf("%d tokens came, want %d", tokens.Load(), want)
	}
	return nil
}

// reader submits requests that are tokenised already, and takes their text.
type reader struct {
	rt      *actors.Runtime
	request *lifecycle.Request
	done    chan struct{}
	tell    func(any)
	text    int64 // bytes
	resp    *lifecycle.Response
}

func (r *reader) ask() (int, error) {
	arrival := r.rt.Now()
	if err := r.rt.Admit(); err != nil {
		return 0, err
	}
	req, params := *r.request, *r.request.Params
	req.ID, req.Arrival, req.Endpoint, req.Params = r.rt.NextID(), arrival, "bench", &params
	r.rt.Start(&req, r)
	<-r.done
	if r.resp.Err != nil {
		return 0, r.resp.Err
	}
	return r.resp.Usage.Completion, nil
}

func (r *reader) close() {}

// Attach implements actors.Sink.
func (r *reader) Attach(tell func(any)) { r.tell = tell }

// Delta implements actors.Sink.
func (r *reader) Delta(d *lifecycle.Delta) { r.text += int64(len(d.Text)) }

// End implements actors.Sink.
func (r *reader) End(resp *lifecycle.Response) {
	r.resp = resp
	r.tell(lifecycle.Delivered{At: r.rt.Now(), Bytes: r.text})
	r.done <- struct{}{}
}

// streamer is a client on a socket that does as little as can be: its CPU time counts too.
type streamer struct {
	conn    net.Conn
	request []byte
	buf     []byte
}

func dialStream(addr string, body []byte) (client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		addr, len(body), body)
	return &streamer{conn: conn, request: request, buf: make([]byte, 0, 64<<10)}, nil
}

func (c *streamer) close() { _ = c.conn.Close() }

// lastChunk ends a chunked body.
var lastChunk = []byte("\r\n0\r\n\r\n")

// ask counts the frames with text, of which each has one token.
func (c *streamer) ask() (int, error) {
	if _, err := c.conn.Write(c.request); err != nil {
		return 0, err
	}
	const mark = `"delta":{"content":"`
	kept, tokens := 0, 0 // kept is the end of what came before, where a mark may be cut
	for begun := false; ; {
		buf := c.buf[:cap(c.buf)]
		n, err := c.conn.Read(buf[kept:])
		if err != nil {
			return 0, err
		}
		buf = buf[:kept+n]
		if !begun {
			if len(buf) < len("HTTP/1.1 200") {
				kept = len(buf)
				continue
			}
			if !bytes.HasPrefix(buf, []byte("HTTP/1.1 200")) {
				return 0, fmt.Errorf("the server answered %.300q", buf)
			}
			begun = true
		}
		tokens += bytes.Count(buf, []byte(mark))
		if bytes.HasSuffix(buf, lastChunk) {
			return tokens, nil
		}
		kept = copy(c.buf[:cap(c.buf)], buf[len(buf)-min(len(buf), len(mark)-1):])
	}
}

// micros is the time that a request takes more, in microseconds.
func (c *Cost) micros() float64 { return float64(c.More) / 1e3 }

// members are the cost as JSON has it, the names with prefix before them.
func (c *Cost) members(prefix string) []member {
	return []member{
		{prefix + "overhead_percent", number(percent(c.Median))},
		{prefix + "overhead_percent_interval", []any{number(percent(c.Low)), number(percent(c.High))}},
		{prefix + "overhead_us_per_request", number(c.micros())},
	}
}

// percent is how much more a rung costs than the one before it, in percent.
func percent(ratio float64) float64 { return 100 * (ratio - 1) }

// confidence is how surely, in percent and at least, an interval holds the median: with few pairs it is
// the whole range, outside of which the median is when all pairs fall on one side of it.
func (o *Overhead) confidence() float64 {
	return min(95, 100*(1-2*math.Pow(0.5, float64(o.Rounds))))
}

// WriteJSON writes the results as one indented object. A value that does not exist is null.
func (o *Overhead) WriteJSON(w io.Writer) error {
	actorsRung := &o.Rungs[rungActors]
	out := object{
		{"tokens_per_second", number(actorsRung.TokensPerSecond())},
		{"tokens_per_cpu_second", number(actorsRung.TokensPerCPUSecond())},
		{"allocs_per_token", number(actorsRung.Allocs)},
		{"bytes_per_token", number(actorsRung.Bytes)},
	}
	for _, i := range []int{rungMetrics, rungStats, rungTimeline, rungLog, rungHTTP} {
		out = append(out, o.Rungs[i].Over.members(o.Rungs[i].Name+"_")...)
	}
	out = append(out, o.Log.members("log_")...)
	var rungs []object
	for i := range o.Rungs {
		r := &o.Rungs[i]
		m := object{
			{"name", r.Name}, {"tokens_per_second", number(r.TokensPerSecond())}, {"tokens_per_cpu_second", number(r.TokensPerCPUSecond())},
			{"cpu_ns_per_token", r.CPU.Nanoseconds()}, {"wall_ns_per_token", r.Wall.Nanoseconds()},
			{"allocs_per_token", number(r.Allocs)}, {"bytes_per_token", number(r.Bytes)},
		}
		if i > 0 {
			m = append(m, r.Over.members("")...)
		}
		rungs = append(rungs, m)
	}
	out = append(out, object{
		{"confidence_percent", o.confidence()}, {"pairs", o.Rounds}, {"concurrency", o.Options.Concurrency}, {"tokens_per_request", o.Options.Tokens},
		{"cores", o.Cores}, {"duration_seconds", o.Elapsed.Seconds()}, {"interrupted", o.Interrupted}, {"rungs", rungs},
	}...)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// WriteTable writes the results for people.
func (o *Overhead) WriteTable(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tCPU ns/token\tcosts\t95 % interval\ta request\ttokens/s\ttokens/CPU s\tallocations/token")
	for i := range o.Rungs {
		r := &o.Rungs[i]
		costs, interval, more := "", "", ""
		if i > 0 {
			costs = fmt.Sprintf("%+.1f %%", percent(r.Over.Median))
			interval = fmt.Sprintf("%+.1f to %+.1f", percent(r.Over.Low), percent(r.Over.High))
			more = fmt.Sprintf("%+.1f µs", r.Over.micros())
		}
		perCPU := "unknown"
		if v := r.TokensPerCPUSecond(); !math.IsNaN(v) {
			perCPU = fmt.Sprintf("%.0f", v)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%.0f\t%s\t%.2f\n", r.What, r.CPU.Nanoseconds(), costs, interval, more, r.TokensPerSecond(), perCPU, r.Allocs)
	}
	_ = t.Flush() // to memory
	fmt.Fprintf(&b, "\nThe request log, its line and its timeline together, costs %+.1f %% (%+.1f to %+.1f), %+.1f µs a request.\n",
		percent(o.Log.Median), percent(o.Log.Low), percent(o.Log.High), o.Log.micros())
	fmt.Fprintf(&b, "%d requests in flight of %d tokens, %d pairs in %v on %d cores.", o.Options.Concurrency, o.Options.Tokens, o.Rounds,
		o.Elapsed.Round(time.Second), o.Cores)
	if o.Interrupted {
		b.WriteString(" Ended early.")
	}
	if o.Rounds < 6 {
		b.WriteString(" Fewer than 6 pairs: the interval is the whole range.")
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}
