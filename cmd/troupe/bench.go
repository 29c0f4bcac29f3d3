package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/bench"
)

// benchCmd are the benchmarks.
type benchCmd struct {
	Serve      benchServeCmd      `cmd:"" help:"A load as of many users: by rate, by concurrency or from a trace; finds the highest that meets an objective."`
	Latency    benchLatencyCmd    `cmd:"" help:"How long one batch of equal requests takes, over and over."`
	Throughput benchThroughputCmd `cmd:"" help:"How many requests and tokens a second, all requests being there from the start."`
	Overhead   benchOverheadCmd   `cmd:"" help:"What the actors, the metrics, the log and HTTP each cost, on a device that takes no time."`
	Perplexity benchPerplexityCmd `cmd:"" help:"How well a model foretells a text: tells quantisations of one model apart."`
	Machine    benchMachineCmd    `cmd:"" help:"How fast this machine reads memory and multiplies bytes: what limits the CPU device."`
}

// benchFlags are what the benchmarks have in common.
type benchFlags struct {
	engineFlags

	URL            string        `name:"url" placeholder:"URL" help:"Measure the OpenAI-compatible server there, over HTTP, instead of a model in this process." group:"Server"`
	Name           string        `name:"model" placeholder:"NAME" help:"With --url, which of the server's models. Default: its first." group:"Server"`
	Endpoint       string        `default:"chat" enum:"chat,completions" placeholder:"chat|completions" help:"/v1/chat/completions or /v1/completions. Default: ${default}." group:"Server"`
	APIKey         string        `name:"api-key" placeholder:"KEY" help:"With --url, the server's key. Default: the first one in the environment variable TROUPE_API_KEY, or else VLLM_API_KEY." group:"Server"`
	Header         []string      `sep:"none" placeholder:"NAME:VALUE" help:"Send this header with each request. Repeatable." group:"Server"`
	ExtraBody      string        `placeholder:"JSON" help:"Members to add to each request's body, as in {\"temperature\":0}; one that is null leaves that member out." group:"Server"`
	Insecure       bool          `help:"Take any certificate." group:"Server"`
	CACert         string        `name:"ca-cert" placeholder:"FILE" help:"Trust the certificates in this PEM file." group:"Server"`
	RequestTimeout time.Duration `default:"10m" placeholder:"DURATION" help:"Most time a request may take; then it has failed. Default: ${default}." group:"Server"`

	InputLen    string  `aliases:"random-input-len" default:"128" placeholder:"TOKENS" help:"Length of made-up prompts, with what the chat template adds: 128, 64-512 (uniform), or lognormal:MEAN,STD with bounds as in lognormal:300,200,16-2048. Default: ${default}." group:"Requests"`
	OutputLen   string  `aliases:"random-output-len" default:"128" placeholder:"TOKENS" help:"max_tokens, in the same ways. Default: ${default}." group:"Requests"`
	PrefixShare float64 `placeholder:"PART" help:"Part of each made-up prompt, 0 to 1, that is the same for all, for the prefix cache. Default: 0." group:"Requests"`
	Dataset     string  `aliases:"dataset-path" placeholder:"FILE" help:"Take prompts from here: a ShareGPT dump (JSON), or lines {\"prompt\":…} or {\"messages\":[…]}, with max_tokens or without; - is stdin." group:"Requests"`
	Tokenizer   string  `placeholder:"GGUF|server|words" help:"What counts made-up prompts' tokens, with --url: a model file, the server's /tokenize, or words, measured by the usage of two answers. Default: server if it can, else words." group:"Requests"`
	IgnoreEOS   bool    `name:"ignore-eos" help:"Ask the server to go on to max_tokens, past the model's own end (vLLM's, Troupe's and llama.cpp's ignore_eos)." group:"Requests"`

	JSON              string     `name:"json" placeholder:"FILE" help:"Write the results there as JSON, with the names of vLLM's benchmark; - is stdout, the table then goes to stderr." group:"Results"`
	HTML              string     `name:"html" placeholder:"FILE" help:"Write a report with plots there, one page that needs nothing else." group:"Results"`
	SaveDetailed      bool       `help:"Add each request's own figures and text to the JSON." group:"Results"`
	MetricPercentiles []string   `default:"90,95,99" placeholder:"P" help:"Percentiles to compute. Default: ${default}." group:"Results"`
	Goodput           objectives `placeholder:"NAME:TIME …" help:"What a request must keep to be good: one or more of ttft:200ms tpot:30ms itl:50ms e2e:10s." group:"Results"`
}

// objectives are those of --goodput. As in vLLM, several may follow the one flag.
type objectives []string

// Decode implements kong.MapperValue.
func (o *objectives) Decode(ctx *kong.DecodeContext) error {
	var s string
	if err := ctx.Scan.PopValueInto("objective", &s); err != nil {
		return err
	}
	*o = append(*o, strings.Fields(s)...)
	for {
		// A model's name may have a colon too: only what is one is taken.
		next, ok := ctx.Scan.Peek().Value.(string)
		if !ok || !isObjective(next) {
			return nil
		}
		*o = append(*o, next)
		ctx.Scan.Pop()
	}
}

func isObjective(s string) bool {
	_, err := bench.ParseSLO([]string{s})
	return err == nil
}

// benchServeCmd are the flags of bench serve.
type benchServeCmd struct {
	benchFlags

	Concurrency int           `aliases:"max-concurrency" placeholder:"N" help:"Without a rate: N users, each sending the next request when it has the answer to the last. With one: most requests in flight. Default without a rate: 8." group:"Load"`
	RequestRate string        `placeholder:"R" help:"Requests a second, whatever the server does; inf sends all at once." group:"Load"`
	Arrival     string        `enum:",poisson,constant,gamma" default:"" placeholder:"poisson|constant|gamma" help:"How requests at a rate arrive. Default: poisson, or gamma with --burstiness." group:"Load"`
	Burstiness  float64       `placeholder:"X" help:"Shape of gamma's gaps, as in vLLM: 1 is poisson, less comes in bursts, more is more even." group:"Load"`
	Trace       string        `placeholder:"FILE" help:"Replay recorded requests: times, lengths, sampling and departures of Troupe's request log, or lines {\"timestamp\":MS,\"input_length\":…,\"output_length\":…}; - is stdin." group:"Load"`
	TraceSpeed  float64       `default:"1" placeholder:"X" help:"Replay X times as fast. Default: ${default}." group:"Load"`
	NumRequests count         `aliases:"num-prompts" placeholder:"N" help:"Send N requests. Default: 100, or four for each of --concurrency, unless there is a duration or a trace." group:"Load"`
	Duration    time.Duration `placeholder:"DURATION" help:"Send for so long, as in 60s." group:"Load"`
	NumWarmups  int           `placeholder:"N" help:"Requests to send before, which are not measured. Default: 0." group:"Load"`
	Grace       time.Duration `default:"60s" placeholder:"DURATION" help:"How long requests may go on when no more are sent; then they are cut off. Default: ${default}." group:"Load"`

	Sweep          bool    `help:"Find the highest rate (or with --concurrency alone, concurrency) that meets --goodput." group:"Sweep"`
	SLOShare       float64 `name:"slo-share" default:"95" placeholder:"PERCENT" help:"Part of the requests that must be good. Default: ${default}." group:"Sweep"`
	SweepMax       float64 `placeholder:"LOAD" help:"Highest load to try. Default: none." group:"Sweep"`
	SweepPrecision float64 `default:"5" placeholder:"PERCENT" help:"How near to find it. Default: ${default}." group:"Sweep"`
}

// benchLatencyCmd are the flags of bench latency.
type benchLatencyCmd struct {
	benchFlags

	BatchSize      int `default:"8" placeholder:"N" help:"Requests at a time. Default: ${default}." group:"Load"`
	NumIters       int `default:"30" placeholder:"N" help:"Batches. Default: ${default}." group:"Load"`
	NumItersWarmup int `default:"3" placeholder:"N" help:"Batches before, which are not measured. Default: ${default}." group:"Load"`
}

// benchThroughputCmd are the flags of bench throughput.
type benchThroughputCmd struct {
	benchFlags

	NumRequests count `aliases:"num-prompts" default:"500" placeholder:"N" help:"Requests, all sent at once. Default: ${default}." group:"Load"`
	Concurrency int   `aliases:"max-concurrency" placeholder:"N" help:"Most requests in flight; the others wait in the client. Default: all." group:"Load"`
	NumWarmups  int   `placeholder:"N" help:"Requests to send before, which are not measured. Default: 0." group:"Load"`
}

// definitions are the measures, for help texts.
func definitions() string {
	var b strings.Builder
	b.WriteString("\nDefinitions:\n")
	for _, d := range bench.Definitions {
		fmt.Fprintf(&b, "\n%s: %s\n", d.Name, d.Text)
	}
	return b.String()
}

const benchExits = `
Ctrl-C ends the sending, waits five seconds for what is in flight, and shows what was measured; once
more cuts it off at once.

Exit status: 0 when all requests were completed (or cancelled as the trace says), also after Ctrl-C; 1 when
any failed or was cut off for its time, the results being shown all the same, when nothing could be
measured, and of a sweep when no load met the objective (failures of its single loads don't count); 2 when
the flags make no sense.
`

// Help implements kong.HelpProvider.
func (*benchServeCmd) Help() string {
	return `Measures the model in this process, without HTTP, or with --url any OpenAI-compatible server, with one
set of definitions. Examples:

  troupe bench serve --device sim --sim-step 10ms --concurrency 64
  troupe bench serve --url http://127.0.0.1:8000 --request-rate 5 --duration 60s
  troupe bench serve --url http://127.0.0.1:8000 --trace requests.jsonl --trace-speed 2
  troupe bench serve --url http://127.0.0.1:8000 --goodput ttft:200ms itl:50ms --sweep

Requests at a rate or from a trace are sent when they are due, however long the server takes; latencies
from when a request was due are shown beside those from when it was sent, so that a client or a limit in
flight that falls behind hides nothing. --seed makes prompts, lengths and arrivals the same
again; without it they differ each time, since a server has earlier prompts in its prefix cache.
` + benchExits + definitions()
}

// Help implements kong.HelpProvider.
func (*benchLatencyCmd) Help() string {
	return `Sends a batch of equal requests at once, waits for all answers, and begins again. Examples:

  troupe bench latency model.gguf --batch-size 4 --input-len 512 --output-len 64 --ignore-eos
  troupe bench latency --url http://127.0.0.1:8000 --batch-size 1
` + benchExits + definitions()
}

// Help implements kong.HelpProvider.
func (*benchThroughputCmd) Help() string {
	return `Sends all requests at once and waits for all answers. Examples:

  troupe bench throughput model.gguf --num-requests 64 --input-len 64-256 --ignore-eos
  troupe bench throughput --url http://127.0.0.1:8000 --dataset prompts.jsonl
` + benchExits + definitions()
}

// validateLoad refuses what makes no sense together.
func (f *benchFlags) validateLoad(given *kong.Context) error {
	if f.URL == "" {
		if err := f.validate(); err != nil {
			return err
		}
		if f.Name != "" {
			return modelFlag(given, f.Name)
		}
		for _, o := range []struct {
			name string
			on   bool
		}{{"--api-key", f.APIKey != ""}, {"--header", len(f.Header) > 0}, {"--insecure", f.Insecure},
			{"--ca-cert", f.CACert != ""}, {"--tokenizer", f.Tokenizer != ""}} {
			if o.on {
				return fmt.Errorf("%s is for a server: add --url, or remove it", o.name)
			}
		}
	} else {
		if _, err := bench.NewServer(f.URL, f.Endpoint); err != nil {
			return fmt.Errorf("--url: %w", err)
		}
		if err := forServer(given, f.Model); err != nil {
			return err
		}
	}
	for _, h := range f.Header {
		name, value, _ := strings.Cut(h, ":")
		if err := bench.CheckHeader(name, strings.TrimSpace(value)); err != nil {
			return fmt.Errorf("--header: %w", err)
		}
	}
	if _, err := f.extra(); err != nil {
		return err
	}
	if _, err := bench.ParseLengths(f.InputLen); err != nil {
		return fmt.Errorf("--input-len: %w", err)
	}
	if _, err := bench.ParseLengths(f.OutputLen); err != nil {
		return fmt.Errorf("--output-len: %w", err)
	}
	if !(f.PrefixShare >= 0 && f.PrefixShare <= 1) {
		return fmt.Errorf("--prefix-share is %v, but must be within 0 and 1", f.PrefixShare)
	}
	if f.Dataset != "" {
		for _, name := range []string{"input-len", "prefix-share", "tokenizer"} {
			if isGiven(given, name) {
				return fmt.Errorf("--%s is for made-up prompts, but --dataset has prompts: remove one", name)
			}
		}
	}
	if f.SaveDetailed && f.JSON == "" {
		return errors.New("--save-detailed adds to the JSON: give --json too")
	}
	if _, err := f.percentiles(); err != nil {
		return err
	}
	if _, err := bench.ParseSLO(f.Goodput); err != nil {
		return fmt.Errorf("--goodput: %w", err)
	}
	return durationWithin("--request-timeout", f.RequestTimeout, longest)
}

// isGiven says whether a flag was given.
func isGiven(given *kong.Context, name string) bool {
	return slices.ContainsFunc(given.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == name })
}

// slo is the objective; nil when there is none.
func (f *benchFlags) slo(share float64) *bench.SLO {
	o, err := bench.ParseSLO(f.Goodput)
	if err != nil || len(f.Goodput) == 0 {
		return nil
	}
	o.Share = share
	return o
}

func (f *benchFlags) percentiles() ([]float64, error) {
	var all []float64
	for _, s := range f.MetricPercentiles {
		p, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return nil, fmt.Errorf("--metric-percentiles: %q is not a number within 0 and 100", s)
		}
		all = append(all, p)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// extra are the members of --extra-body.
func (f *benchFlags) extra() (map[string]json.RawMessage, error) {
	if f.ExtraBody == "" {
		return nil, nil
	}
	shape := bench.Shape{}
	if err := json.Unmarshal([]byte(f.ExtraBody), &shape.Extra); err != nil {
		return nil, fmt.Errorf("--extra-body is no JSON object: %w", err)
	}
	if err := shape.CheckExtra(); err != nil {
		return nil, fmt.Errorf("--extra-body: %w", err)
	}
	return shape.Extra, nil
}

// Validate implements kong's interface.
func (c *benchServeCmd) Validate(given *kong.Context) error {
	if err := c.validateLoad(given); err != nil {
		return err
	}
	if _, err := c.rate(); err != nil {
		return err
	}
	both := func(a string, onA bool, b string, onB bool, why string) error {
		if onA && onB {
			return fmt.Errorf("%s and %s don't go together: %s", a, b, why)
		}
		return nil
	}
	rate, trace, arrival := c.RequestRate != "", c.Trace != "", c.Arrival != "" || c.Burstiness != 0
	if arrival && !rate && !c.Sweep {
		return errors.New("--arrival and --burstiness are about requests at a rate: give --request-rate too")
	}
	needs := func(what string, is, wants bool, needed string) error {
		if is && !wants {
			return fmt.Errorf("%s needs %s: give it too", what, needed)
		}
		return nil
	}
	if err := errors.Join(
		both("--trace", trace, "--request-rate", rate, "the trace has its own times (--trace-speed changes them)"),
		both("--trace", trace, "--dataset", c.Dataset != "", "the trace's prompts are made up in the lengths that they had"),
		both("--trace", trace, "--sweep", c.Sweep, "a sweep searches for a rate or a concurrency"),
		both("--trace", trace, "--prefix-share", c.PrefixShare != 0, "the trace says what was shared"),
		both("--trace", trace, "--input-len", isGiven(given, "input-len"), "the trace's prompts have the lengths that were recorded"),
		both("--trace", trace, "--output-len", isGiven(given, "output-len"), "the trace's outputs have the lengths that were recorded"),
		both("--burstiness", c.Burstiness != 0 && c.Burstiness != 1, "--arrival "+c.Arrival, c.Arrival == "poisson" || c.Arrival == "constant", "it is gamma's"),
		both("--sweep", c.Sweep, "--request-rate inf", c.RequestRate == "inf", "a sweep begins at a rate"),
		needs("--sweep", c.Sweep, len(c.Goodput) > 0, "an objective, --goodput"),
		needs("--trace-speed", isGiven(given, "trace-speed"), trace, "--trace"),
		needs("--sweep-max", isGiven(given, "sweep-max"), c.Sweep, "--sweep"),
		needs("--sweep-precision", isGiven(given, "sweep-precision"), c.Sweep, "--sweep"),
		needs("--slo-share", isGiven(given, "slo-share"), len(c.Goodput) > 0, "an objective, --goodput"),
		needs("--arrival gamma", c.Arrival == "gamma", c.Burstiness > 0, "--burstiness"),
	); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return errors.New(first)
	}
	for _, f := range []struct {
		name      string
		v         float64
		low, high float64
	}{
		{"--burstiness", c.Burstiness, 0, 1e6}, {"--trace-speed", c.TraceSpeed, 1e-6, 1e6}, {"--slo-share", c.SLOShare, 0, 100},
		{"--sweep-max", c.SweepMax, 0, 1e9}, {"--sweep-precision", c.SweepPrecision, 0.1, 100},
		{"--concurrency", float64(c.Concurrency), 0, 1 << 20}, {"--num-warmups", float64(c.NumWarmups), 0, 1 << 30},
	} {
		if !(f.v >= f.low && f.v <= f.high) {
			return fmt.Errorf("%s is %v, but must be within %v and %v", f.name, f.v, f.low, f.high)
		}
	}
	if err := durationWithin("--duration", c.Duration, longest); err != nil {
		return err
	}
	return durationWithin("--grace", c.Grace, longest)
}

// rate is --request-rate: infinite for inf, 0 when there is none.
func (c *benchServeCmd) rate() (float64, error) {
	if c.RequestRate == "" {
		return 0, nil
	}
	v, err := strconv.ParseFloat(c.RequestRate, 64)
	if err != nil || !(v > 0) || v < math.Inf(1) && v > 1e9 {
		return 0, fmt.Errorf("--request-rate is %q, but must be a number of requests a second above 0, or inf", c.RequestRate)
	}
	return v, nil
}

// Validate implements kong's interface.
func (c *benchLatencyCmd) Validate(given *kong.Context) error {
	return errors.Join(c.validateLoad(given), numberWithin("--batch-size", c.BatchSize, 1, 1<<20), numberWithin("--num-iters", c.NumIters, 1, 1<<30),
		numberWithin("--num-iters-warmup", c.NumItersWarmup, 0, 1<<30))
}

// Validate implements kong's interface.
func (c *benchThroughputCmd) Validate(given *kong.Context) error {
	return errors.Join(c.validateLoad(given), numberWithin("--num-warmups", c.NumWarmups, 0, 1<<30), numberWithin("--concurrency", c.Concurrency, 0, 1<<20))
}

// bencher is a load in preparation: what it is sent to, and what it is made of.
type bencher struct {
	f         *benchFlags
	ctx       context.Context // cancelled by the second signal
	interrupt chan struct{}   // closed by the first
	stdout    io.Writer
	stderr    stderrWriter
	live      *bench.Live
	shape     bench.Shape
	options   bench.Options
	config    bench.Config
	env       bench.Environment
	notes     []string
	room      int
	count     func() (*bench.Vocabulary, error)
	opening   context.Context // cancelled by the first signal: what comes before the load ends with it
	closers   []func()
}

// errEarly is the error of a load that was interrupted before it began.
var errEarly = errors.New("interrupted before anything was measured")

// interruptGrace is how long requests in flight may go on after Ctrl-C.
const interruptGrace = 5 * time.Second

// prepare opens the model or finds the server. atOnce is how many requests may be in flight at most,
// 0 where nothing bounds them. The caller closes the bencher, also after an error.
func (f *benchFlags) prepare(kctx *kong.Context, stdout io.Writer, stderr stderrWriter, atOnce int) (*bencher, error) {
	b := &bencher{f: f, interrupt: make(chan struct{}), stdout: stdout, stderr: stderr, live: bench.NewLive(stderr.Writer, terminal(stderr))}
	survivePipes()
	if err := b.checkOutput(); err != nil {
		return b, err
	}
	var cancel context.CancelFunc
	b.ctx, cancel = context.WithCancel(context.Background())
	var opened context.CancelFunc
	b.opening, opened = context.WithCancel(b.ctx)
	b.closers = append(b.closers, cancel, opened)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	over := make(chan struct{})
	go func() {
		defer signal.Stop(signals) // one more kills
		select {
		case <-signals:
			b.live.Say("sending no more; waiting up to %v for what is in flight, Ctrl-C again cuts it off", interruptGrace)
			close(b.interrupt)
			opened() // whatever is being opened
		case <-over:
			return
		}
		select {
		case <-signals:
			cancel()
		case <-over:
		}
	}()
	b.closers = append(b.closers, func() { close(over) })

	percentiles, err := f.percentiles()
	if err != nil {
		return b, err
	}
	extra, err := f.extra()
	if err != nil {
		return b, err
	}
	// A server remembers the prompts of an earlier load in its prefix cache: only who asks for it gets
	// the same ones again.
	seed := uint64(rand.Uint32())
	if f.Seed != nil {
		seed = *f.Seed
	}
	b.shape = bench.Shape{Endpoint: f.Endpoint, IgnoreEOS: f.IgnoreEOS, Extra: extra}
	b.options = bench.Options{Seed: seed, Percentiles: percentiles, Detailed: f.SaveDetailed, Interrupt: b.interrupt,
		InterruptGrace: interruptGrace, Progress: b.live.Show}
	b.config = bench.Config{Endpoint: f.Endpoint, Seed: seed, IgnoreEOS: f.IgnoreEOS, Percentiles: percentiles, Command: redacted(kctx.Args)}
	b.env = bench.Environment{Version: thisBuild().Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0)}
	if f.URL != "" {
		err = b.reach()
	} else {
		err = b.open(atOnce)
	}
	if b.opening.Err() != nil {
		err = errEarly
	}
	if err != nil {
		return b, err
	}
	b.config.Model = b.shape.Model
	b.env.Server = strings.TrimSpace(b.env.Server)
	return b, nil
}

// close ends what prepare began, last things first.
func (b *bencher) close() {
	for _, c := range slices.Backward(b.closers) {
		c()
	}
}

// open opens the model in this process.
func (b *bencher) open(atOnce int) error {
	f := b.f
	// A closed loop never has more in flight than it means to: its own limit must not refuse any.
	f.MaxNumQueuedReqs = max(f.MaxNumQueuedReqs, atOnce)
	e, err := f.open(b.opening, b.stderr)
	if err != nil {
		return err
	}
	b.closers = append(b.closers, e.Close)
	if e.template == nil && f.Endpoint == "chat" {
		return usageError{errors.New("the model has no chat template: use --endpoint completions, or give one with --chat-template")}
	}
	rt, err := e.start(actors.Config{Logger: slog.New(slog.NewTextHandler(b.stderr.Writer, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, rt.Close)
	env := e.env([]string{f.name()})
	env.Metrics = true
	b.options.Target = &bench.Process{Runtime: rt, Env: env, Endpoint: f.Endpoint, Timeout: f.RequestTimeout}
	b.shape.Model, b.config.Target, b.room = f.name(), "in-process", e.maxLen
	info := rt.Stats().Device
	b.env.Server = info.Kind + " " + info.Name
	if f.DataParallelSize > 1 {
		b.env.Server = fmt.Sprintf("%d × %s", f.DataParallelSize, b.env.Server)
	}
	b.count = func() (*bench.Vocabulary, error) {
		return bench.NewVocabulary("the model's tokenizer", bench.CountBy(env, f.Endpoint))
	}
	return nil
}

// reach finds the server.
func (b *bencher) reach() error {
	f := b.f
	s, err := bench.NewServer(f.URL, f.Endpoint)
	if err != nil {
		return usageError{err}
	}
	s.Header = http.Header{}
	key := f.APIKey
	if key == "" {
		keys, err := keysFromEnvironment()
		if err != nil {
			return usageError{err}
		}
		if len(keys) > 0 {
			key = keys[0]
		}
	}
	if key != "" {
		if err := bench.CheckHeader("Authorization", key); err != nil {
			return usageError{errors.New("the API key has characters that no header may have")}
		}
		s.Header.Set("Authorization", "Bearer "+key)
	}
	for _, h := range f.Header {
		name, value, _ := strings.Cut(h, ":")
		s.Header.Add(name, strings.TrimSpace(value))
	}
	s.Timeout = f.RequestTimeout
	s.TLS = &tls.Config{InsecureSkipVerify: f.Insecure}
	if f.CACert != "" {
		pem, err := os.ReadFile(f.CACert)
		if err != nil {
			return fmt.Errorf("--ca-cert: %w", err)
		}
		s.TLS.RootCAs = x509.NewCertPool()
		if !s.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("--ca-cert: %s has no certificate in PEM", f.CACert)
		}
	}
	info, err := s.Ask(b.opening, f.Name)
	if err != nil {
		return err
	}
	name := f.Name
	switch {
	case len(info.Models) == 0:
		b.notes = append(b.notes, "the server has no list of models")
	case name == "":
		name = info.Models[0]
	}
	b.shape.Model, b.config.Target, b.room, b.env.Server = name, s.URL(), info.MaxModelLen, info.Software
	b.options.Target = s
	b.count = func() (*bench.Vocabulary, error) { return b.counted(s) }
	return nil
}

// counted finds out how to make prompts of given lengths for a server.
func (b *bencher) counted(s *bench.Server) (*bench.Vocabulary, error) {
	f, ctx := b.f, b.opening
	if f.Tokenizer == "" || f.Tokenizer == "server" {
		if count := s.Counter(ctx, b.shape.Model); count != nil {
			return bench.NewVocabulary("the server's /tokenize", count)
		}
		if f.Tokenizer == "server" {
			return nil, fmt.Errorf("%s has no /tokenize that can be used: leave --tokenizer out, or give a model file", s.URL())
		}
	}
	if f.Tokenizer == "" || f.Tokenizer == "words" {
		v, err := s.Calibrate(ctx, b.shape)
		if err != nil {
			return nil, fmt.Errorf("trying the server: %w", err)
		}
		return v, nil
	}
	flags := engineFlags{Model: f.Tokenizer, Device: "sim"}
	e, err := flags.open(ctx, b.stderr)
	if err != nil {
		return nil, fmt.Errorf("--tokenizer: %w", err)
	}
	b.closers = append(b.closers, e.Close)
	endpoint := f.Endpoint
	if e.template == nil {
		endpoint = "completions"
		if f.Endpoint == "chat" {
			b.notes = append(b.notes, "the tokenizer's file has no chat template, so that prompts are longer by what the server's adds")
		}
	}
	return bench.NewVocabulary(filepath.Base(f.Tokenizer), bench.CountBy(e.env([]string{"model"}), endpoint))
}

// workload makes the prompts: from the dataset, or up.
func (b *bencher) workload() (bench.Workload, error) {
	f := b.f
	output, err := bench.ParseLengths(f.OutputLen)
	if err != nil {
		return nil, usageError{err}
	}
	if f.Dataset != "" {
		var entries []bench.Entry
		skipped := 0
		if err := readInput(f.Dataset, func(r io.Reader) (err error) {
			entries, skipped, err = bench.ReadDataset(f.Dataset, r)
			return err
		}); err != nil {
			return nil, fmt.Errorf("--dataset: %w", err)
		}
		if skipped > 0 {
			b.notes = append(b.notes, fmt.Sprintf("%d entries of %s without a first turn of the user were left out", skipped, f.Dataset))
		}
		d := &bench.Dataset{Shape: b.shape, Name: f.Dataset, Entries: entries, Output: &output, Seed: b.options.Seed}
		d.Shuffle()
		b.config.Tokenizer = "the usage in the answers"
		b.options.Workload = d
		b.config.Prompts, b.config.Outputs = d.Describe()
		return d, nil
	}
	input, err := bench.ParseLengths(f.InputLen)
	if err != nil {
		return nil, usageError{err}
	}
	v, err := b.vocabulary()
	if err != nil {
		return nil, err
	}
	w := &bench.Synthetic{Shape: b.shape, Vocabulary: v, Input: input, Output: output, PrefixShare: f.PrefixShare, Seed: b.options.Seed, Room: b.room}
	if b.room > 0 && b.room <= v.Least() {
		return nil, fmt.Errorf("the model's context is %d tokens, but the shortest prompt has %d", b.room, v.Least())
	}
	b.options.Workload = w
	b.config.Prompts, b.config.Outputs = w.Describe()
	return w, nil
}

func (b *bencher) vocabulary() (*bench.Vocabulary, error) {
	v, err := b.count()
	if b.opening.Err() != nil {
		err = errEarly
	}
	if err != nil {
		return nil, err
	}
	b.config.Tokenizer = v.Describe()
	return v, nil
}

// trace makes the requests that were recorded.
func (b *bencher) trace(name string, speed float64) (*bench.Trace, error) {
	var lines []bench.TraceLine
	var skipped bench.Skipped
	if err := readInput(name, func(r io.Reader) (err error) {
		lines, skipped, err = bench.ReadTrace(name, r)
		return err
	}); err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	if skipped.Refused > 0 {
		b.notes = append(b.notes, fmt.Sprintf("%d requests of the trace were refused before they ran, and are not replayed", skipped.Refused))
	}
	if skipped.Empty > 0 {
		b.notes = append(b.notes, fmt.Sprintf("%d requests of the trace generated nothing, and are not replayed", skipped.Empty))
	}
	v, err := b.vocabulary()
	if err != nil {
		return nil, err
	}
	t := &bench.Trace{Shape: b.shape, Name: name, Lines: lines, Vocabulary: v, Seed: b.options.Seed, Speed: speed, Room: b.room}
	b.options.Workload, b.options.Timed = t, true
	b.config.Prompts, b.config.Outputs = t.Describe()
	b.config.Arrival, b.config.Trace, b.config.Speed = "trace", name, speed
	return t, nil
}

// readInput reads a file, or with - stdin.
func readInput(name string, read func(io.Reader) error) error {
	if name == "-" {
		return read(os.Stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	return read(file)
}

// checkOutput says now, and not after the load, that the results can't be written.
func (b *bencher) checkOutput() error {
	for flag, name := range map[string]string{"--json": b.f.JSON, "--html": b.f.HTML} {
		if name == "" || name == "-" && flag == "--json" {
			continue
		}
		if err := writableFile(flag, name); err != nil {
			return err
		}
	}
	return nil
}

// writableFile says whether the file that a flag names can be written, and makes it if it is not there.
func writableFile(flag, name string) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o666)
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

// save writes a file once all of it is there to be written.
func save(name string, write func(io.Writer) error) error {
	var out bytes.Buffer
	if err := write(&out); err != nil {
		return err
	}
	return os.WriteFile(name, out.Bytes(), 0o666)
}

// Run implements the command.
func (c *benchServeCmd) Run(kctx *kong.Context, stdout io.Writer, stderr stderrWriter) error {
	rate, err := c.rate()
	if err != nil {
		return usageError{err}
	}
	concurrency, requests := c.Concurrency, int(c.NumRequests)
	closed := rate == 0 && c.Trace == "" && (!c.Sweep || concurrency > 0)
	if closed && concurrency == 0 {
		concurrency = 8
	}
	if requests == 0 && c.Duration == 0 && c.Trace == "" {
		requests = 100
		if closed {
			requests = max(requests, 4*concurrency)
		}
	}
	atOnce := concurrency
	if closed && c.Sweep {
		atOnce = max(concurrency, 1<<16)
	}
	b, err := c.prepare(kctx, stdout, stderr, atOnce)
	defer b.close()
	if err != nil {
		return err
	}
	if c.Trace != "" {
		_, err = b.trace(c.Trace, c.TraceSpeed)
	} else {
		_, err = b.workload()
	}
	if err != nil {
		return err
	}
	o, conf := &b.options, &b.config
	o.Concurrency, o.Requests, o.Duration, o.Warmups, o.Grace = concurrency, requests, c.Duration, c.NumWarmups, c.Grace
	o.SLO = c.slo(c.SLOShare / 100)
	switch {
	case closed:
		conf.Arrival = "closed"
	case c.Trace != "":
	case math.IsInf(rate, 1):
		conf.Arrival, o.Arrival = "burst", &bench.Arrival{}
	default:
		a := &bench.Arrival{Kind: c.Arrival, Rate: rate, Burstiness: c.Burstiness}
		if a.Kind == "" {
			a.Kind = "poisson"
			if a.Burstiness > 0 && a.Burstiness != 1 {
				a.Kind = "gamma"
			}
		}
		conf.Arrival, conf.Rate, o.Arrival = a.Kind, rate, a
		if a.Kind == "gamma" {
			conf.Burstiness = a.Burstiness
		}
	}
	if c.Sweep {
		return c.sweep(b, closed)
	}
	r, err := bench.Run(b.ctx, *o)
	if err != nil {
		return b.failed(err)
	}
	return b.finish("serve", r)
}

// sweepDuration is how long a sweep's single loads last when nothing else is said.
const sweepDuration = 15 * time.Second

// sweep searches for the highest load that meets the objective.
func (c *benchServeCmd) sweep(b *bencher, closed bool) error {
	so := bench.SweepOptions{Of: "rate", Start: b.config.Rate, Most: c.SweepMax, Precision: c.SweepPrecision / 100, SLO: b.options.SLO}
	if so.Start == 0 {
		so.Start = 1
	}
	if closed {
		so.Of, so.Start, so.Least = "concurrency", float64(b.options.Concurrency), 1
	}
	duration := c.Duration
	if duration == 0 && c.NumRequests == 0 {
		duration = sweepDuration
	}
	// So few requests that hardly one is due within the time tell nothing.
	if !closed {
		if so.Least = so.Start / 32; duration > 0 {
			so.Least = max(so.Least, 1/duration.Seconds())
		}
	}
	base, first, tried := b.options, 0, 0
	so.Try = func(ctx context.Context, load float64) (*bench.Report, error) {
		o := base
		o.First, o.GiveUp = first, true
		o.Requests, o.Duration = int(c.NumRequests), duration
		if tried > 0 {
			o.Warmups = 0
		}
		tried++
		if closed {
			o.Concurrency = int(load)
			b.live.Title(fmt.Sprintf("%d at a time", o.Concurrency))
		} else {
			o.Arrival = &bench.Arrival{Kind: base.Arrival.Kind, Rate: load, Burstiness: base.Arrival.Burstiness}
			b.live.Title(fmt.Sprintf("%.4g requests/s", load))
			if o.Requests == 0 {
				// As many as the time holds, so that it can be told when too many have missed.
				o.Requests, o.Duration = max(int(math.Ceil(load*duration.Seconds())), 3), 0
			}
		}
		r, err := bench.Run(ctx, o)
		if err != nil {
			return nil, err
		}
		first += r.Begun()
		verdict := "misses the objective"
		if r.Good.Share >= o.SLO.Share && !r.GaveUp {
			verdict = "meets the objective"
		}
		b.live.Say("%s %.4g: %s, %.1f %% of %d requests good, %.4g tokens/s", so.Of, load, verdict, 100*r.Good.Share, r.Begun(), r.OutputRate)
		return r, nil
	}
	r, err := bench.RunSweep(b.ctx, so)
	if err != nil {
		return b.failed(err)
	}
	b.config.Requests, b.config.Duration = int(c.NumRequests), duration
	b.options.Requests, b.options.Duration = int(c.NumRequests), duration
	if so.Of == "concurrency" {
		b.options.Concurrency = int(r.Sweep.Shown)
	} else {
		b.config.Rate = r.Sweep.Shown
	}
	return b.finish("serve", r)
}

// Run implements the command.
func (c *benchLatencyCmd) Run(kctx *kong.Context, stdout io.Writer, stderr stderrWriter) error {
	b, err := c.prepare(kctx, stdout, stderr, c.BatchSize)
	defer b.close()
	if err != nil {
		return err
	}
	if _, err := b.workload(); err != nil {
		return err
	}
	o := &b.options
	o.Batch, o.Concurrency, o.Requests, o.Warmups, o.SLO = c.BatchSize, c.BatchSize, c.BatchSize*c.NumIters, c.BatchSize*c.NumItersWarmup, c.slo(0.95)
	b.config.Arrival = "batch"
	r, err := bench.Run(b.ctx, *o)
	if err != nil {
		return b.failed(err)
	}
	return b.finish("latency", r)
}

// Run implements the command.
func (c *benchThroughputCmd) Run(kctx *kong.Context, stdout io.Writer, stderr stderrWriter) error {
	n := int(c.NumRequests)
	atOnce := n
	if c.Concurrency > 0 {
		atOnce = min(n, c.Concurrency)
	}
	b, err := c.prepare(kctx, stdout, stderr, atOnce)
	defer b.close()
	if err != nil {
		return err
	}
	if _, err := b.workload(); err != nil {
		return err
	}
	o := &b.options
	o.Arrival, o.Concurrency, o.Requests, o.Warmups, o.SLO = &bench.Arrival{}, c.Concurrency, n, c.NumWarmups, c.slo(0.95)
	o.Grace = c.RequestTimeout + time.Minute // all has been sent: each request's own limit ends it
	b.config.Arrival = "burst"
	r, err := bench.Run(b.ctx, *o)
	if err != nil {
		return b.failed(err)
	}
	return b.finish("throughput", r)
}

// failed is the error of a load of which there is nothing to show.
func (b *bencher) failed(err error) error {
	b.live.Clear()
	return err
}

// finish completes the report, writes it, and says by its error whether requests failed.
func (b *bencher) finish(kind string, r *bench.Report) error {
	b.live.Clear()
	o := &b.options
	r.Kind, r.Env = kind, b.env
	b.config.Concurrency, b.config.Requests, b.config.Duration, b.config.Warmups, b.config.SLO = o.Concurrency, o.Requests, o.Duration, o.Warmups, o.SLO
	r.Config = b.config
	r.Notes = append(append(b.notes, r.Remarks()...), r.Notes...)
	table := b.stdout
	asJSON := func(w io.Writer) error { return r.WriteJSON(w, b.f.SaveDetailed) }
	var errs []error
	switch b.f.JSON {
	case "":
	case "-":
		table = b.stderr.Writer
		errs = append(errs, asJSON(b.stdout))
	default:
		errs = append(errs, save(b.f.JSON, asJSON))
	}
	if b.f.HTML != "" {
		errs = append(errs, save(b.f.HTML, func(w io.Writer) error { return bench.WriteHTML(w, r) }))
	}
	// The table last: whatever else fails, it is seen.
	if err := errors.Join(append(errs, r.WriteTable(table))...); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	switch {
	case r.Sweep != nil:
		if r.Sweep.Best == 0 && !r.Interrupted {
			return errors.New("no load that was tried meets the objective")
		}
	case r.Failed > 0:
		return fmt.Errorf("%d of %d requests failed", r.Failed, r.Begun())
	case r.Unfinished > 0 && !r.Interrupted:
		return fmt.Errorf("%d of %d requests were cut off, not having ended within --grace", r.Unfinished, r.Begun())
	}
	return nil
}

// redacted writes the arguments down without secrets.
func redacted(args []string) string {
	out := []string{"troupe"}
	hide := false
	for _, a := range args {
		name, _, given := strings.Cut(a, "=")
		secret := name == "--api-key" || name == "--header"
		switch {
		case hide:
			a, hide = "***", false
		case secret && given:
			a = name + "=***"
		case secret:
			hide = true
		}
		if strings.ContainsAny(a, " \t\"'{}$*") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out = append(out, a)
	}
	return strings.Join(out, " ")
}
