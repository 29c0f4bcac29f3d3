package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model/template"
	"github.com/troupe-llm/troupe/model/tiny"
	"github.com/troupe-llm/troupe/transport/openai"
)

// stand is a runtime on a simulated device whose steps take that long.
type stand struct {
	rt  *actors.Runtime
	env *openai.Env
}

func newStand(tb testing.TB, step time.Duration) *stand {
	tb.Helper()
	return newStandOf(tb, step, gpu.Config{BlockSize: 16, MaxSeqs: 64, MaxTokens: 2048, MaxContext: 4096}, nil)
}

// newStandOf is a stand of a device of one's own choice, whose requests an observer may be told of.
func newStandOf(tb testing.TB, step time.Duration, dc gpu.Config, observer lifecycle.Observer) *stand {
	tb.Helper()
	m := tiny.Model(tiny.Options{})
	tmpl, err := template.Parse(m.Template, template.Options{BOS: m.Tokenizer.Piece(m.Tokenizer.BOS()), EOS: m.Tokenizer.Piece(m.Tokenizer.EOS())})
	if err != nil {
		tb.Fatal(err)
	}
	rt, err := actors.New(actors.Config{
		Open: func(int) (gpu.Device, error) {
			return sim.Open(sim.Options{Fixed: step, Vocab: m.Tokenizer.Size(), EOS: m.Generation.EOS}, dc)
		},
		BlockSize: dc.BlockSize, MaxSeqs: dc.MaxSeqs, MaxTokens: dc.MaxTokens, MaxContext: dc.MaxContext,
		EOS: m.Generation.EOS, Tokenizer: m.Tokenizer, Logger: slog.New(slog.DiscardHandler), Observer: observer,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(rt.Close)
	return &stand{rt: rt, env: &openai.Env{Served: []string{"sim"}, Root: "sim", MaxModelLen: dc.MaxContext, Vocab: m.Tokenizer.Size(),
		Tokenizer: m.Tokenizer, Template: tmpl, EOS: m.Generation.EOS, Metrics: true}}
}

// process is the stand as a target.
func (r *stand) process(endpoint string) *Process {
	return &Process{Runtime: r.rt, Env: r.env, Endpoint: endpoint}
}

// synthetic is a workload for an Env.
func synthetic(t testing.TB, env *openai.Env, endpoint string) *Synthetic {
	t.Helper()
	v, err := NewVocabulary("the model's tokenizer", CountBy(env, endpoint))
	if err != nil {
		t.Fatal(err)
	}
	if !v.Exact {
		t.Fatalf("%+v", v)
	}
	in, _ := ParseLengths("40-90")
	out, _ := ParseLengths("5-30")
	return &Synthetic{Shape: Shape{Endpoint: endpoint, Model: "sim", IgnoreEOS: true}, Vocabulary: v, Input: in, Output: out, Seed: 7}
}

func TestInThisProcessEveryTokenIsCounted(t *testing.T) {
	for _, endpoint := range []string{"chat", "completions"} {
		rig := newStand(t, 0)
		w := synthetic(t, rig.env, endpoint)
		rep, err := Run(context.Background(), Options{Target: rig.process(endpoint), Workload: w, Concurrency: 8, Requests: 60, Percentiles: []float64{50, 99}, Warmups: 4})
		if err != nil {
			t.Fatal(err)
		}
		var in, out int64
		for i := range 60 {
			a, b := w.lengths(i)
			in, out = in+int64(a), out+int64(b)
		}
		if rep.Completed != 60 || rep.InputTokens != in || rep.OutputTokens != out || rep.Server == nil || rep.Server.Requests != 60 {
			t.Errorf("%s: %+v, want %d and %d tokens", endpoint, rep.Measured, in, out)
		}
	}
}

// leaving are requests whose clients leave after a while.
type leaving struct {
	Workload
	stay time.Duration
}

func (l leaving) Request(i int) (*Request, error) {
	r, err := l.Workload.Request(i)
	if err == nil {
		r.Body = bytes.Replace(r.Body, []byte(`"max_tokens":`), []byte(`"max_tokens":3900,"unused":`), 1)
		r.CancelAfter = l.stay
	}
	return r, err
}

func TestAnObjectiveOutOfReachEndsTheRun(t *testing.T) {
	rig := newStand(t, time.Millisecond)
	o := Options{Target: rig.process("chat"), Workload: synthetic(t, rig.env, "chat"), Concurrency: 4, Requests: 1000, GiveUp: true,
		SLO: &SLO{TTFT: 1e-6, Share: 0.99}}
	r, err := Run(context.Background(), o)
	if err != nil || !r.GaveUp || r.Begun() > 100 || r.Good.Requests != 0 {
		t.Errorf("%+v, %v", r.Measured, err)
	}
}

func TestBatchesFollowEachOther(t *testing.T) {
	rig := newStand(t, time.Millisecond)
	r, err := Run(context.Background(), Options{Target: rig.process("chat"), Workload: synthetic(t, rig.env, "chat"), Batch: 6, Requests: 24, Warmups: 6})
	if err != nil || len(r.Batches) != 4 || r.Completed != 24 || r.PeakInFlight > 6 {
		t.Errorf("%+v, %v, %v", r.Measured, r.Batches, err)
	}
	// A server that answers none before all of a batch have asked.
	var n atomic.Int64
	var whole [4]chan struct{}
	for i := range whole {
		whole[i] = make(chan struct{})
	}
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		k := n.Add(1) - 1
		if k%6 == 5 {
			close(whole[k/6])
		}
		<-whole[k/6]
		write(w, wholeAnswer...)
	})
	r, err = Run(context.Background(), Options{Target: s, Workload: fixed{}, Batch: 6, Requests: 24})
	if err != nil || len(r.Batches) != 4 || r.Completed != 24 || r.PeakInFlight != 6 {
		t.Errorf("%+v, %v, %v", r.Measured, r.Batches, err)
	}
}

func TestPromptsShareTheirBeginningAsFarAsAsked(t *testing.T) {
	rig := newStand(t, 0)
	w := synthetic(t, rig.env, "completions")
	w.PrefixShare, w.Input = 0.5, Lengths{Kind: "fixed", Min: 200, Max: 200}
	var prompts [2][]int32
	for i := range prompts {
		r, err := w.Request(i)
		if err != nil {
			t.Fatal(err)
		}
		job, e := rig.env.ParseCompletion(r.Body)
		if e != nil {
			t.Fatal(e)
		}
		prompts[i] = job.Request.Prompts[0]
	}
	n := 0
	for n < 200 && prompts[0][n] == prompts[1][n] {
		n++
	}
	if len(prompts[0]) != 200 || n < 95 || n > 110 {
		t.Errorf("of %d tokens the first %d are shared, want 100 of 200", len(prompts[0]), n)
	}
	again, err := w.Request(1)
	if other, err2 := w.Request(1); err != nil || err2 != nil || !bytes.Equal(again.Body, other.Body) {
		t.Error("the same request is another the second time")
	}
}

func TestASweepFindsWhereTheObjectiveEnds(t *testing.T) {
	for _, c := range []struct {
		of                string
		start, most, edge float64
		best, limit       float64 // bounds of what may be found
		none              bool
	}{
		{of: "rate", start: 1, edge: 37.3, best: 35, limit: 40},
		{of: "rate", start: 500, edge: 37.3, best: 35, limit: 40},
		{of: "concurrency", start: 1, edge: 37.3, best: 37, limit: 38},
		{of: "concurrency", start: 64, edge: 1.5, best: 1, limit: 2},
		{of: "rate", start: 1, most: 16, edge: 37.3, best: 16},
		{of: "rate", start: 4, edge: 0.001, none: true},
		{of: "concurrency", start: 4, edge: 0.5, none: true},
	} {
		r, err := RunSweep(context.Background(), SweepOptions{Of: c.of, Start: c.start, Least: 0.3, Most: c.most, SLO: &SLO{Share: 0.9},
			Try: func(_ context.Context, load float64) (*Report, error) {
				if c.of == "concurrency" && load != math.Trunc(load) {
					t.Errorf("%v at a time", load)
				}
				r := &Report{}
				r.Good = &Goodput{Requests: 95, Share: 0.95}
				if load > c.edge {
					r.Good.Share = 0.85
				}
				r.Config.Rate = load
				return r, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		s := r.Sweep
		switch {
		case r.Config.Rate != s.Shown:
			t.Errorf("%+v: the report of %v is said to be of %v", c, r.Config.Rate, s.Shown)
		case c.none && (s.Best != 0 || s.Shown != s.Points[0].Load):
			t.Errorf("%+v: %+v", c, s)
		case !c.none && (s.Best < c.best || s.Best > c.edge || s.Shown != s.Best || c.limit > 0 && (s.Limit > c.limit || s.Limit <= c.edge) || c.limit == 0 && s.Limit != 0):
			t.Errorf("%+v: found %v and %v", c, s.Best, s.Limit)
		}
		if len(s.Points) > 16 {
			t.Errorf("%+v: %d points", c, len(s.Points))
		}
	}
}

func TestASweepThatIsInterruptedKeepsWhatItHas(t *testing.T) {
	n := 0
	r, err := RunSweep(context.Background(), SweepOptions{Of: "rate", Start: 1, SLO: &SLO{Share: 0.9}, Try: func(context.Context, float64) (*Report, error) {
		n++
		r := &Report{}
		r.Good = &Goodput{Requests: 1, Share: 1}
		r.Interrupted = n == 3
		return r, nil
	}})
	if err != nil || !r.Interrupted || len(r.Sweep.Points) != 2 || r.Sweep.Best != 2 || r.Sweep.Shown != 2 {
		t.Errorf("%+v, %v", r.Sweep, err)
	}
	// Interrupted in its first load it has tried none, and shows what there is of that one.
	r, err = RunSweep(context.Background(), SweepOptions{Of: "rate", Start: 3, SLO: &SLO{Share: 0.9}, Try: func(context.Context, float64) (*Report, error) {
		return &Report{Measured: Measured{Interrupted: true}}, nil
	}})
	if err != nil || !r.Interrupted || len(r.Sweep.Points) != 0 || r.Sweep.Best != 0 || r.Sweep.Shown != 3 {
		t.Fatalf("%+v, %v", r.Sweep, err)
	}
	r.Config.SLO = &SLO{}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "no load was tried to its end") || strings.Contains(table.String(), "meets the objective") {
		t.Errorf("%s, %v", table.String(), err)
	}
}

func TestTheLiveViewFitsTheTerminalAndIsRemoved(t *testing.T) {
	var out bytes.Buffer
	l := NewLive(&out, true)
	p := Progress{Phase: "running", Total: 1000, Limit: time.Hour, Elapsed: time.Minute, Completed: 123456, Failed: 99999, RequestRate: 123456, OutputRate: 1e9, MeanRate: 1e9, Waiting: 9999, Running: 9999, TTFT50: 1, TTFT99: 2, TPOT50: math.NaN()}
	l.Title("rate 1234567")
	l.Show(p)
	l.Show(p)
	for line := range strings.SplitSeq(out.String(), "\n") {
		if n := len([]rune(strings.TrimPrefix(strings.TrimPrefix(line, "\x1b[3A\r"), "\x1b[2K"))); n > liveWidth {
			t.Errorf("%q has %d characters", line, n)
		}
	}
	out.Reset()
	l.Clear()
	if out.String() != "\x1b[3A\r\x1b[J" {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	l.Clear()
	plain := NewLive(&out, false)
	plain.Show(p)
	plain.Show(p) // not so soon
	if strings.Count(out.String(), "\n") != 1 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q", out.String())
	}
}

func TestTheJSONHasTheNamesOfVLLMsBenchmark(t *testing.T) {
	rig := newStand(t, 0)
	r, err := Run(context.Background(), Options{Target: rig.process("chat"), Workload: synthetic(t, rig.env, "chat"), Concurrency: 4, Requests: 20,
		Percentiles: []float64{50, 99, 99.9}, Detailed: true})
	if err != nil {
		t.Fatal(err)
	}
	r.Config.Percentiles, r.Config.Endpoint = []float64{50, 99, 99.9}, "chat"
	var out bytes.Buffer
	if err := r.WriteJSON(&out, true); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(`date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration completed failed
		total_input_tokens total_output_tokens request_throughput request_goodput output_throughput total_token_throughput max_output_tokens_per_s
		max_concurrent_requests input_lens output_lens ttfts itls e2els start_times queue_times generated_texts errors`)
	for _, m := range []string{"ttft", "tpot", "itl", "e2el"} {
		for _, s := range []string{"mean", "median", "std", "p50", "p99", "p99.9"} {
			names = append(names, s+"_"+m+"_ms")
		}
	}
	for _, n := range names {
		if _, ok := got[n]; !ok {
			t.Errorf("no %s", n)
		}
	}
	for _, n := range []string{"input_lens", "itls", "errors", "ttfts"} {
		if len(got[n].([]any)) != 20 {
			t.Errorf("%s has %d entries", n, len(got[n].([]any)))
		}
	}
	// What vLLM's own definitions make of the lists is what is reported.
	var sum float64
	for _, v := range got["ttfts"].([]any) {
		sum += v.(float64) * 1e3 / 20
	}
	if math.Abs(sum-got["mean_ttft_ms"].(float64)) > 1e-6 {
		t.Errorf("the mean of ttfts is %v, mean_ttft_ms %v", sum, got["mean_ttft_ms"])
	}
}

func TestTheDetailsOfALatencyRunLeaveItsOwnFiguresAlone(t *testing.T) {
	r := &Report{Kind: "latency", Batches: []float64{50, 70}, Samples: []Sample{{TTFT: 5, E2E: 40}, {TTFT: 6, E2E: 45}, {TTFT: 7, E2E: 60}, {TTFT: 8, E2E: 65}}}
	var out bytes.Buffer
	if err := r.WriteJSON(&out, true); err != nil {
		t.Fatal(err)
	}
	in := json.NewDecoder(&out)
	if _, err := in.Token(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			t.Fatal(err)
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			t.Fatal(err)
		}
		if _, twice := got[name.(string)]; twice {
			t.Errorf("%s is there twice", name)
		}
		var short bytes.Buffer
		if err := json.Compact(&short, value); err != nil {
			t.Fatal(err)
		}
		got[name.(string)] = short.String()
	}
	// vLLM's latency benchmark has the batches there, in seconds.
	if got["latencies"] != "[0.05,0.07]" || got["e2els"] != "[0.04,0.045,0.06,0.065]" {
		t.Errorf("latencies %s, e2els %s", got["latencies"], got["e2els"])
	}
}
