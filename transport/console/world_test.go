package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
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
	"github.com/troupe-llm/troupe/model/tiny"
	"github.com/troupe-llm/troupe/transport"
	"github.com/troupe-llm/troupe/transport/console"
	"github.com/troupe-llm/troupe/transport/openai"
)

// patience bounds what a test waits for; it says nothing about how long anything takes.
const patience = 4 * time.Minute

var tinyModel = sync.OnceValue(func() *model.Model { return tiny.Model(tiny.Options{}) })

// endless is how many tokens a request asks for that is to run for as long as a test does.
const endless = 100_000

// world is a server on the simulated device, with its console.
type world struct {
	t       testing.TB
	rt      *actors.Runtime
	console *console.Console
	server  *transport.Server
	faults  sim.Faults
	url     string
	client  *http.Client
	ended   sync.WaitGroup
}

type setting struct {
	sim    sim.Options
	device gpu.Config
	model  string
	keys   []transport.Key
	gate   chan struct{} // where there is one, each step of the device waits for an entry of it
	hurry  bool          // frames come ten times as often
	// engines are how many there are; 1.
	engines int
}

// gated is a device whose steps a test lets through.
type gated struct {
	gpu.Device
	gate <-chan struct{}
}

func (d gated) Run(b *gpu.Batch, r *gpu.Result) error {
	<-d.gate
	return d.Device.Run(b, r)
}

func newWorld(t testing.TB, adjust func(*setting)) *world {
	t.Helper()
	m := tinyModel()
	w := &world{t: t}
	s := setting{
		sim:    sim.Options{Vocab: m.Tokenizer.Size(), EOS: m.Generation.EOS, Faults: &w.faults},
		device: gpu.Config{BlockSize: 16, MaxSeqs: 64, MaxTokens: 512, MaxContext: 2 * endless},
		model:  "tiny",
	}
	if adjust != nil {
		adjust(&s)
	}
	w.console = console.New(console.Options{Version: "1.2.3", Model: s.model, MaxSeqs: s.device.MaxSeqs})
	if s.hurry {
		w.console.Hurry()
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	var err error
	w.rt, err = actors.New(actors.Config{
		Engines: s.engines,
		Open: func(int) (gpu.Device, error) {
			d, err := sim.Open(s.sim, s.device)
			if err != nil || s.gate == nil {
				return d, err
			}
			return gated{d, s.gate}, nil
		},
		BlockSize: s.device.BlockSize, MaxSeqs: s.device.MaxSeqs, MaxTokens: s.device.MaxTokens, MaxContext: s.device.MaxContext,
		PrefixCaching: true, EOS: m.Generation.EOS, Tokenizer: m.Tokenizer, Observer: w.console, MaxRequests: 4096, Timeline: true, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.console.Follow(w.rt)
	w.server, err = transport.New(transport.Config{
		Runtime: w.rt, Console: w.console, Observer: w.console, Keys: s.keys, Version: "1.2.3", Log: zerolog.Nop(),
		Env: &openai.Env{Served: []string{s.model}, MaxModelLen: s.device.MaxContext, Vocab: m.Tokenizer.Size(), Tokenizer: m.Tokenizer, EOS: m.Generation.EOS},
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := transport.Bind("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + ln.Addr().String()
	w.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(ln) }()
	t.Cleanup(func() {
		w.stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		w.ended.Wait()
		w.rt.Close()
		w.client.CloseIdleConnections()
	})
	return w
}

// stop shuts the server down: what still runs is cut off.
func (w *world) stop() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = w.server.Shutdown(now)
}

// ask sends a request and reads its answer to the end, in the background. change may add fields.
func (w *world) ask(id, prompt string, tokens int, change map[string]any, header ...string) {
	body := map[string]any{"prompt": prompt, "max_tokens": tokens, "stream": true, "ignore_eos": true}
	for k, v := range change {
		body[k] = v
	}
	b, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	req, err := http.NewRequest("POST", w.url+"/v1/completions", strings.NewReader(string(b)))
	if err != nil {
		w.t.Fatal(err)
	}
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w.ended.Go(func() {
		resp, err := w.client.Do(req)
		if err != nil {
			return // the server was stopped
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
	})
}

// crowd sends n requests of many shapes.
func (w *world) crowd(n, tokens int) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		prompt := fmt.Sprintf("request %d: %s", i, strings.Repeat("all work and no play ", 1+r.IntN(60)))
		w.ask("", prompt, tokens/2+r.IntN(tokens), map[string]any{"n": 1 + r.IntN(20)/18})
	}
}

func (w *world) until(what string, f func() bool) {
	w.t.Helper()
	until(w.t, what, f)
}

func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to this: %s", what)
		}
	}
}

// record is a Record such as a request leaves.
func record(id uint64) *lifecycle.Record {
	const ms = int64(1e6)
	at := int64(id) * ms
	r := &lifecycle.Record{
		Request: &lifecycle.Request{ID: id, ExternalID: fmt.Sprintf("cmpl-%d", id), Endpoint: "completion", Model: "tiny", KeyName: "alice",
			Arrival: at, N: 1, Params: &lifecycle.Params{MaxTokens: 100}, Stream: true, Prompts: [][]int32{make([]int32, 100)}},
		Outcome: lifecycle.OutcomeStop, Status: 200, Usage: lifecycle.Usage{Prompt: 100, Completion: 50},
		Arrival: at, Queued: at, Scheduled: at + ms, FirstToken: at + 20*ms, LastToken: at + 500*ms, Finished: at + 500*ms, Delivered: at + 501*ms,
		Wall: time.Now().UnixNano(), BytesOut: 9999, Sequences: 1, Longest: 50,
	}
	for range 49 {
		r.ITL.Observe(480 * ms / 49)
	}
	return r
}
