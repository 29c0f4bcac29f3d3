package bench

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport"
)

// records keeps what the runtime says of each request.
type records struct {
	mu  sync.Mutex
	all []lifecycle.Record
}

func (*records) Progress(*lifecycle.Progress) {}

func (r *records) Observe(rec *lifecycle.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, *rec)
}

// serve listens with the stand's runtime and returns the address.
func (r *stand) serve(t *testing.T) string {
	t.Helper()
	server, err := transport.New(transport.Config{Runtime: r.rt, Env: r.env, Log: zerolog.Nop(), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(server.Shutdown(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

// A client's clock stands around the server's: it starts before the request has arrived and stops after a
// token has been sent. So each of a thousand requests, more than there are places for, took its client at
// least as long as its metrics say, and what is longer is delivery. A request's causes of slowness are
// parts of the time that it took.
func TestAThousandClientsFindTheServersMetricsWithinTheirOwn(t *testing.T) {
	books := &records{}
	// Blocks for fewer sequences than there are places, so that some lose theirs.
	rig := newStandOf(t, time.Millisecond, gpu.Config{BlockSize: 16, MaxSeqs: 64, MaxTokens: 512, MaxContext: 2048,
		CacheBytes: 160 * 16 * sim.DefaultBytesPerToken}, books)
	s, err := NewServer(rig.serve(t), "chat")
	if err != nil {
		t.Fatal(err)
	}
	const requests = 1000
	r, err := Run(context.Background(), Options{Target: s, Workload: synthetic(t, rig.env, "chat"), Concurrency: 128, Requests: requests,
		Percentiles: []float64{99}, Detailed: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Completed != requests || r.Server == nil || r.Server.Requests != requests {
		t.Fatalf("%d of %d completed, %+v: %+v", r.Completed, requests, r.Server, r.Errors)
	}
	var first, last []float64
	for _, x := range r.Samples {
		// Stamps are whole nanoseconds on both sides, kept as milliseconds.
		const rounding = 1e-5
		d := x.TTFT - x.ServerQueue - x.ServerTTFT
		e := x.E2E - x.ServerQueue - x.ServerTTFT - x.ServerGeneration
		if d < -rounding || e < -rounding || math.IsNaN(d+e) {
			t.Errorf("request %d: its client waited %v ms for the first token and %v in all; the server says %v in the queue, %v to the first token, %v of generation",
				x.Index, x.TTFT, x.E2E, x.ServerQueue, x.ServerTTFT, x.ServerGeneration)
		}
		first, last = append(first, d), append(last, e)
	}
	slices.Sort(first)
	slices.Sort(last)
	t.Logf("delivery of the first token: %.2f ms in the median, %.2f in the 99th percentile; of all: %.2f, %.2f; client's TTFT %.1f ms, E2E %.1f ms in the mean",
		first[requests/2], first[requests*99/100], last[requests/2], last[requests*99/100], r.TTFT.Mean, r.E2E.Mean)

	if err := rig.rt.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	books.mu.Lock()
	defer books.mu.Unlock()
	waited := 0
	for i := range books.all {
		x := &books.all[i]
		s := &x.Detail.Slowed
		sum := s.QueueCapacity + s.QueueKV + s.PrefillOfOthers + s.Preemption + s.DeviceRestart + s.SlowClient
		if wall := max(x.Finished, x.Delivered) - x.Arrival; sum > wall {
			t.Errorf("request %d: %+v is more than the %v that it took", x.Request.ID, *s, time.Duration(wall))
		}
		if s.QueueCapacity+s.QueueKV+s.Preemption > 0 {
			waited++
		}
	}
	if len(books.all) < requests || waited == 0 {
		t.Errorf("%d records; %d waited for places or blocks: this load should have made some", len(books.all), waited)
	}
}
