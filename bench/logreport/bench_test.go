package logreport

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/bench/requestlog"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/observe"
)

// generated makes n lines of a request log as the server writes them, and their times to first token
// in milliseconds.
func generated(b *testing.B, n int) (log string, ttft []float64) {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	requests := observe.NewRequestLog(&text, observe.JSON, io.Discard)
	for i := range n {
		if i%5000 == 4999 { // before more wait than the log keeps
			if err := requests.Close(); err != nil || requests.Lost() > 0 {
				b.Fatal(err, requests.Lost())
			}
			requests = observe.NewRequestLog(&text, observe.JSON, io.Discard)
		}
		ns := func(mean float64) int64 { return int64(mean * 1e6 * math.Exp(rng.NormFloat64())) }
		arrival := int64(1e9)
		queued := arrival + ns(0.2)
		scheduled := queued + ns(20)
		first := scheduled + ns(150)
		tokens := 2 + rng.IntN(300)
		last := first + int64(tokens-1)*ns(20)
		r := &lifecycle.Record{
			Request: &lifecycle.Request{
				ID: uint64(i), ExternalID: fmt.Sprintf("chatcmpl-%032x", rng.Uint64()), Endpoint: "chat", Model: fmt.Sprint("model-", rng.IntN(3)),
				KeyName: fmt.Sprint("key-", rng.IntN(20)), Peer: "10.0.0.1:4242", Arrival: arrival, Prompts: [][]int32{make([]int32, 1+rng.IntN(4000))}, N: 1, Stream: true,
				Params: &lifecycle.Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: rng.Uint64(), MaxTokens: 512, Logprobs: -1, PromptLogprobs: -1},
			},
			Outcome: lifecycle.OutcomeStop, Status: 200, StopToken: -1, Sequences: 1, Longest: tokens,
			Arrival: arrival, Queued: queued, Scheduled: scheduled, FirstToken: first, LastToken: last, Finished: last, Delivered: last + ns(0.1),
			Wall: 1_790_000_000e9 + int64(i)*86400e9/int64(n), BytesOut: int64(tokens) * 200,
		}
		r.Usage = lifecycle.Usage{Prompt: len(r.Request.Prompts[0]), Completion: tokens}
		r.Metrics = lifecycle.Timing{Queued: queued, Scheduled: scheduled, FirstToken: first, LastToken: last, Tokens: tokens}.Metrics()
		r.Detail = lifecycle.Detail{ArrivalToFirstToken: first - arrival, EndToEnd: last - arrival, Prefill: first - scheduled, PrefillTokens: r.Usage.Prompt,
			Steps: tokens, BatchSum: tokens * 8, Slowed: lifecycle.Slowed{QueueCapacity: scheduled - queued}}
		requests.Observe(r)
		ttft = append(ttft, float64(first-arrival)/1e6)
	}
	if err := requests.Close(); err != nil {
		b.Fatal(err)
	}
	return text.String(), ttft
}

// repeated reads a text again and again, n times.
type repeated struct {
	text string
	n    int
	r    *strings.Reader
}

func (r *repeated) Read(p []byte) (int, error) {
	for {
		if r.r != nil {
			if n, err := r.r.Read(p); err == nil {
				return n, nil
			}
		}
		if r.n == 0 {
			return 0, io.EOF
		}
		r.n--
		r.r = strings.NewReader(r.text)
	}
}

// BenchmarkFiveMillionLines reports a log of five million lines, of which 50,000 are different, by
// model and hour, with as many workers as there are cores. It says how many lines a second that is, what
// memory it takes besides the lines, and how far the percentiles are from exact ones.
func BenchmarkFiveMillionLines(b *testing.B) {
	const different, times = 50_000, 100
	log, ttft := generated(b, different)
	slices.Sort(ttft)
	debug.FreeOSMemory()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	for range b.N {
		all := make([]*Collector, runtime.GOMAXPROCS(0))
		takers := make([]requestlog.Func, len(all))
		for i := range all {
			c, err := NewCollector(Options{By: []string{"model", "hour"}, Slowest: 10, SLO: SLO{TTFT: 500}})
			if err != nil {
				b.Fatal(err)
			}
			all[i] = c
			takers[i] = func(e *requestlog.Entry, _ requestlog.Place) error {
				c.Add(e)
				return nil
			}
		}
		began := time.Now()
		sum, err := requestlog.Share(context.Background(), []string{"-"}, &repeated{text: log, n: times}, takers, nil)
		if err != nil || sum.Lines != different*times || sum.Broken > 0 {
			b.Fatalf("%+v, %v", sum, err)
		}
		for _, c := range all[1:] {
			all[0].Merge(c)
		}
		r := all[0].Report(Read{})
		b.ReportMetric(float64(sum.Lines)/time.Since(began).Seconds(), "lines/s")
		var after runtime.MemStats
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.Sys-after.HeapReleased-before.Sys+before.HeapReleased)/(1<<20), "MiB")
		worst := 0.0
		for _, p := range []struct {
			q   float64
			got Value
		}{{0.5, r.Total.TTFT.P50}, {0.9, r.Total.TTFT.P90}, {0.99, r.Total.TTFT.P99}} {
			exact := ttft[int(math.Ceil(p.q*different))-1]
			worst = max(worst, 100*math.Abs(float64(p.got)-exact)/exact)
		}
		b.ReportMetric(worst, "%-off")
	}
}
