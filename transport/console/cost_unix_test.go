//go:build unix

package console_test

import (
	"io"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/console"
	"github.com/troupe-llm/troupe/transport/observe"
)

// silent is a sink that wants nothing but to know when it is over.
type silent struct {
	tell func(any)
	done func()
	now  func() int64
}

func (s *silent) Attach(tell func(any)) { s.tell = tell }
func (*silent) Delta(*lifecycle.Delta)  {}
func (s *silent) End(*lifecycle.Response) {
	s.tell(lifecycle.Delivered{At: s.now(), Bytes: 1})
	s.done()
}

// cpuTime is the processor time that this process has used, which is what a busy machine does not
// change much.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTokensWithTheConsole runs requests on a device that takes no time, beside the metrics that
// a server always keeps: without the console, with one that nobody looks at, with the timelines that
// it keeps, and with somebody who looks. One operation is a request of 64 tokens, 64 of them at a time.
func BenchmarkTokensWithTheConsole(b *testing.B) {
	for _, c := range []struct {
		name                       string
		console, timeline, watched bool
	}{
		{name: "off"}, {name: "unwatched", console: true}, {name: "timelines", console: true, timeline: true},
		{name: "watched", console: true, timeline: true, watched: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := tinyModel()
			device := gpu.Config{BlockSize: 16, MaxSeqs: 64, MaxTokens: 2048, MaxContext: 2048}
			var rt *actors.Runtime
			observers := []lifecycle.Observer{observe.NewPrometheus(observe.PrometheusOptions{Model: "m", MaxModelLen: 2048})}
			var page *console.Console
			if c.console {
				page = console.New(console.Options{})
				observers = append(observers, page)
			}
			rt, err := actors.New(actors.Config{
				Open: func(int) (gpu.Device, error) {
					return sim.Open(sim.Options{Vocab: m.Tokenizer.Size(), EOS: m.Generation.EOS}, device)
				},
				BlockSize: 16, MaxSeqs: 64, MaxTokens: 2048, MaxContext: 2048, EOS: m.Generation.EOS, Tokenizer: m.Tokenizer,
				Observer: observe.Tee(observers...), Timeline: c.timeline, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			if err != nil {
				b.Fatal(err)
			}
			defer rt.Close()
			if page != nil {
				page.Follow(rt)
			}
			if c.watched {
				v, e := page.Watch(func() {})
				if e != nil {
					b.Fatal(e)
				}
				go v.WriteTo(io.Discard)
				defer v.Close()
			}
			params := &lifecycle.Params{MaxTokens: 64, TopP: 1, RepetitionPenalty: 1, Logprobs: -1, PromptLogprobs: -1, IgnoreEOS: true}
			prompt := m.Tokenizer.Encode("once upon a time", false, false)
			run := func(n int) {
				var over sync.WaitGroup
				room := make(chan struct{}, 64)
				for range n {
					room <- struct{}{}
					if e := rt.Admit(); e != nil {
						b.Fatal(e)
					}
					over.Add(1)
					s := &silent{now: rt.Now, done: func() { <-room; over.Done() }}
					rt.Start(&lifecycle.Request{ID: rt.NextID(), ExternalID: "cmpl-x", Endpoint: "bench", Model: "m", Arrival: rt.Now(), N: 1, Params: params, Prompts: [][]int32{prompt}}, s)
				}
				over.Wait()
			}
			run(64)
			b.ReportAllocs()
			before := cpuTime()
			b.ResetTimer()
			run(b.N)
			b.ReportMetric(float64(cpuTime()-before)/float64(b.N)/64, "cpu-ns/token")
		})
	}
}
