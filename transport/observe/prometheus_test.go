package observe

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/valyala/fasthttp"
	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/actors/batch"
	"github.com/troupe-llm/troupe/lifecycle"
)

// newTest returns a collector in a registry of its own.
func newTest(t testing.TB, o PrometheusOptions) (*Prometheus, *prometheus.Registry) {
	t.Helper()
	if o.MaxModelLen == 0 {
		o.MaxModelLen = 4096
	}
	o.Model = "tiny"
	p := NewPrometheus(o)
	r := prometheus.NewRegistry()
	r.MustRegister(p)
	return p, r
}

// scraped is a scrape: families by name.
type scraped map[string]*dto.MetricFamily

func scrape(t testing.TB, g prometheus.Gatherer) scraped {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	s := scraped{}
	for _, f := range families {
		s[f.GetName()] = f
	}
	return s
}

// find returns the series of a family whose labels include all the given ones, as name=value.
func (s scraped) find(t testing.TB, name string, labels ...string) *dto.Metric {
	t.Helper()
	for _, m := range s[name].GetMetric() {
		if !slices.ContainsFunc(labels, func(l string) bool {
			key, value, _ := strings.Cut(l, "=")
			return !slices.ContainsFunc(m.GetLabel(), func(p *dto.LabelPair) bool { return p.GetName() == key && p.GetValue() == value })
		}) {
			return m
		}
	}
	t.Fatalf("no series %s with %v", name, labels)
	return nil
}

func (s scraped) counter(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	return s.find(t, name, labels...).GetCounter().GetValue()
}

func (s scraped) gauge(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	return s.find(t, name, labels...).GetGauge().GetValue()
}

func (s scraped) histogram(t testing.TB, name string, labels ...string) (count uint64, sum float64) {
	t.Helper()
	h := s.find(t, name, labels...).GetHistogram()
	return h.GetSampleCount(), h.GetSampleSum()
}

func (s scraped) series() int {
	n := 0
	for _, f := range s {
		n += len(f.GetMetric())
	}
	return n
}

func TestEveryFamilyOfVLLMIsServedWithItsTypeLabelsAndBuckets(t *testing.T) {
	var spec struct {
		Families []struct {
			Name, Type string
			Labels     []string
			Buckets    []float64
		}
	}
	b, err := os.ReadFile("testdata/prometheus.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		t.Fatal(err)
	}

	p, r := newTest(t, PrometheusOptions{})
	// What is served must not depend on what has happened, so look before and after.
	for _, when := range []string{"at the start", "after some requests"} {
		got := scrape(t, r)
		for _, want := range spec.Families {
			f := got[want.Name]
			if f == nil {
				t.Errorf("%s: %s is not served", when, want.Name)
				continue
			}
			delete(got, want.Name)
			if typ := strings.ToLower(f.GetType().String()); typ != want.Type {
				t.Errorf("%s is a %s, want a %s", want.Name, typ, want.Type)
			}
			slices.Sort(want.Labels)
			for _, m := range f.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetName())
				}
				slices.Sort(labels)
				if !slices.Equal(labels, want.Labels) {
					t.Errorf("%s has labels %v, want %v", want.Name, labels, want.Labels)
				}
				var buckets []float64
				for _, b := range m.GetHistogram().GetBucket() {
					buckets = append(buckets, b.GetUpperBound())
				}
				if !slices.Equal(buckets, want.Buckets) {
					t.Errorf("%s has buckets %v, want %v", want.Name, buckets, want.Buckets)
				}
			}
		}
		for name := range got {
			if !strings.HasPrefix(name, "troupe:") {
				t.Errorf("%s: %s is served and not vLLM's", when, name)
			}
		}
		p.Progress(progress(finished()))
		p.Observe(finished())
		p.Observe(refused(404, "model_not_found"))
	}
}

func TestEveryServedFamilyIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/prometheus.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:vllm|troupe):[a-z0-9_]+)").FindAllStringSubmatch(string(b), -1) {
		documented[m[1]] = true
	}
	_, r := newTest(t, PrometheusOptions{})
	log := NewRequestLog(&bytes.Buffer{}, JSON, os.Stderr)
	defer log.Close()
	r.MustRegister(log)
	for name := range scrape(t, r) {
		if !documented[name] {
			t.Errorf("docs/prometheus.md does not mention %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/prometheus.md mentions %s, which is not served", name)
	}
}

func TestTokenBucketsAreAOneTwoFiveSeriesUpToTheContext(t *testing.T) {
	for most, want := range map[int][]int64{
		1: {1}, 4: {1, 2}, 50: {1, 2, 5, 10, 20, 50}, 0: {1}, 999: {1, 2, 5, 10, 20, 50, 100, 200, 500},
	} {
		if got := tokenCounts(most).upper; !slices.Equal(got, want) {
			t.Errorf("up to %d: %v, want %v", most, got, want)
		}
	}
}

func TestAFinishedRequestIsOneSampleOfEachOfItsTimes(t *testing.T) {
	p, r := newTest(t, PrometheusOptions{})
	p.Progress(progress(finished()))
	p.Observe(finished())
	s := scrape(t, r)
	for name, want := range map[string]float64{
		"vllm:time_to_first_token_seconds":           0.098,
		"vllm:e2e_request_latency_seconds":           1.3385,
		"vllm:request_queue_time_seconds":            0.0123,
		"vllm:request_prefill_time_seconds":          0.0852,
		"vllm:request_decode_time_seconds":           1.2405,
		"vllm:request_inference_time_seconds":        1.3257,
		"vllm:request_time_per_output_token_seconds": 1.2405 / 127,
		"vllm:request_prompt_tokens":                 40,
		"vllm:request_generation_tokens":             128,
		"vllm:request_max_num_generation_tokens":     128,
		"vllm:request_prefill_kv_computed_tokens":    24,
		"vllm:request_params_max_tokens":             128,
		"vllm:request_params_n":                      1,
		"vllm:request_num_preemptions":               0,
	} {
		count, sum := s.histogram(t, name)
		if count != 1 || math.Abs(sum-want) > 1e-8 {
			t.Errorf("%s: %d samples with sum %v, want 1 with %v", name, count, sum, want)
		}
	}
	if count, sum := s.histogram(t, "vllm:inter_token_latency_seconds"); count != 127 || math.Abs(sum-1.2405) > 1e-6 {
		t.Errorf("inter-token latency: %d samples with sum %v, want 127 with 1.2405", count, sum)
	}
	for reason, want := range map[string]float64{"stop": 0, "length": 1, "abort": 0, "error": 0} {
		if got := s.counter(t, "vllm:request_success_total", "finished_reason="+reason); got != want {
			t.Errorf("finished_reason %s: %v, want %v", reason, got, want)
		}
	}
	for name, want := range map[string]float64{
		"vllm:prompt_tokens_total": 40, "vllm:prompt_tokens_cached_total": 16, "vllm:generation_tokens_total": 128,
	} {
		if got := s.counter(t, name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestALatencyOnABoundBelongsToThatBucket(t *testing.T) {
	p, r := newTest(t, PrometheusOptions{})
	rec := finished()
	rec.FirstToken = rec.Arrival + 100*ms // the bound of 0.1 s, to the nanosecond
	p.Observe(rec)
	rec = finished()
	rec.FirstToken = rec.Arrival + 100*ms + 1
	p.Observe(rec)
	for _, b := range scrape(t, r).find(t, "vllm:time_to_first_token_seconds").GetHistogram().GetBucket() {
		want := uint64(0)
		switch {
		case b.GetUpperBound() == 0.1:
			want = 1
		case b.GetUpperBound() > 0.1:
			want = 2
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("le=%v: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
}

func TestARequestOfThreeChoicesIsOneSample(t *testing.T) {
	p, r := newTest(t, PrometheusOptions{})
	rec := finished()
	rec.Request.N, rec.Sequences = 3, 3
	rec.Usage.Completion, rec.Longest = 12, 6
	rec.ITL = lifecycle.ITLHistogram{}
	for range 9 { // 12 tokens, 3 of them a sequence's first
		rec.ITL.Observe(20 * ms)
	}
	p.Observe(rec)
	s := scrape(t, r)
	for _, name := range []string{"vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds"} {
		if count, _ := s.histogram(t, name); count != 1 {
			t.Errorf("%s: %d samples, want 1", name, count)
		}
	}
	if _, sum := s.histogram(t, "vllm:request_time_per_output_token_seconds"); sum != 0.020 {
		t.Errorf("time per output token %v, want 0.02: the mean over the choices' own gaps", sum)
	}
	if _, sum := s.histogram(t, "vllm:request_max_num_generation_tokens"); sum != 6 {
		t.Errorf("longest choice %v, want 6", sum)
	}
	total := 0.0
	for _, reason := range finishedReasons {
		total += s.counter(t, "vllm:request_success_total", "finished_reason="+string(reason))
	}
	if total != 1 {
		t.Errorf("ended requests %v, want 1", total)
	}
}

func TestGapsAreCountedInVLLMsBucketsExactly(t *testing.T) {
	for _, b := range itlBounds.upper {
		if !slices.Contains(lifecycle.ITLBounds[:], b) {
			t.Errorf("%d ns is a bound of vLLM's and none of lifecycle.ITLBounds: what lies about it is counted on the wrong side", b)
		}
	}
	var want histogram
	want.count = make([]uint64, len(itlBounds.upper)+1)
	var g lifecycle.Progress
	for d := int64(1000); d < 200e9; d += d/7 + 1 {
		g.ITL.Observe(d)
		want.observe(&itlBounds, d)
	}
	for _, d := range itlBounds.upper { // on the bound, and beyond it
		for _, d := range [...]int64{d, d + 1} {
			g.ITL.Observe(d)
			want.observe(&itlBounds, d)
		}
	}
	p, _ := newTest(t, PrometheusOptions{})
	p.Progress(&g)
	if got := p.total(0).itl; !slices.Equal(got.count, want.count) || got.sum != want.sum {
		t.Errorf("%v\nwant %v", got, want)
	}
}

func TestARequestThatNeverRanHasNoTimes(t *testing.T) {
	p, r := newTest(t, PrometheusOptions{})
	rec := finished()
	rec.Outcome, rec.Status = lifecycle.OutcomeAbort, 499
	rec.Scheduled, rec.FirstToken, rec.LastToken, rec.Usage.Completion = 0, 0, 0, 0
	p.Observe(rec)
	s := scrape(t, r)
	for _, name := range []string{"vllm:time_to_first_token_seconds", "vllm:request_queue_time_seconds", "vllm:request_decode_time_seconds"} {
		if count, _ := s.histogram(t, name); count != 0 {
			t.Errorf("%s: %d samples, want none", name, count)
		}
	}
	if count, _ := s.histogram(t, "vllm:e2e_request_latency_seconds"); count != 1 {
		t.Errorf("end to end: %d samples, want 1", count)
	}
	if got := s.counter(t, "vllm:request_success_total", "finished_reason=abort"); got != 1 {
		t.Errorf("aborted requests: %v, want 1", got)
	}
}

func TestAThousandRefusedModelNamesMakeNoSeries(t *testing.T) {
	p, r := newTest(t, PrometheusOptions{})
	before := scrape(t, r).series()
	for i := range 1000 {
		rec := refused(404, "model_not_found")
		rec.Request.Model = strings.Repeat("x", i)
		rec.Path = "/junk/" + strings.Repeat("y", i)
		rec.Status = 100 + i
		p.Observe(rec)
	}
	s := scrape(t, r)
	if after := s.series(); after != before {
		t.Errorf("%d series became %d", before, after)
	}
	for _, f := range s {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "model_name" && l.GetValue() != "tiny" {
					t.Errorf("%s has model_name %q", f.GetName(), l.GetValue())
				}
			}
		}
	}
}

func TestARefusedRequestIsCountedByStatusAndNotAsEnded(t *testing.T) {
	p, r := newTest(t, PrometheusOptions{})
	p.Observe(refused(400, "context_length_exceeded"))
	p.Observe(refused(418, ""))
	p.Observe(refused(429, "queue_full"))
	p.Observe(refused(503, "draining"))
	p.Observe(refused(503, "unhealthy"))
	s := scrape(t, r)
	for status, want := range map[string]float64{"400": 1, "404": 0, "429": 1, "503": 2, "other": 1} {
		if got := s.counter(t, "troupe:requests_refused_total", "status="+status); got != want {
			t.Errorf("refused with %s: %v, want %v", status, got, want)
		}
	}
	for reason, want := range map[string]float64{"max_num_queued_reqs": 1, "draining": 1, "unhealthy": 1} {
		if got := s.counter(t, "vllm:admission_rejections_total", "reason="+reason); got != want {
			t.Errorf("rejected for %s: %v, want %v", reason, got, want)
		}
	}
	for _, reason := range finishedReasons {
		if got := s.counter(t, "vllm:request_success_total", "finished_reason="+string(reason)); got != 0 {
			t.Errorf("finished_reason %s: %v, want 0", reason, got)
		}
	}
	if count, _ := s.histogram(t, "vllm:request_prompt_tokens"); count != 0 {
		t.Errorf("refused requests left %d samples of prompt tokens", count)
	}
}

func TestEachEngineHasItsOwnSeries(t *testing.T) {
	engines := make([]actors.Stats, 3)
	for i := range engines {
		engines[i].Running, engines[i].BlocksTotal, engines[i].PrefixHits = i+1, 10*(i+1), uint64(100*i)
	}
	engines[2].Unhealthy = true
	p, r := newTest(t, PrometheusOptions{Engines: 3, Stats: func() []actors.Stats { return engines }})
	rec := finished()
	for range 2 {
		rec.Engine = 1
		p.Observe(rec)
	}
	rec = finished()
	rec.Engine = 2
	p.Observe(rec)
	p.Progress(&lifecycle.Progress{Engine: 2, Prompt: 7, Tokens: 5})
	p.Observe(&lifecycle.Record{Request: &lifecycle.Request{}, Outcome: lifecycle.OutcomeRefused, Status: 429})
	s := scrape(t, r)
	for name, want := range map[string][3]float64{
		"vllm:num_requests_running": {1, 2, 3}, "troupe:healthy": {1, 1, 0},
	} {
		for i, v := range want {
			if got := s.gauge(t, name, "engine="+strconv.Itoa(i)); got != v {
				t.Errorf("%s of engine %d: %v, want %v", name, i, got, v)
			}
		}
	}
	for name, want := range map[string][3]float64{
		"vllm:prefix_cache_hits_total": {0, 100, 200}, "vllm:generation_tokens_total": {0, 0, 5}, "vllm:prompt_tokens_total": {0, 0, 7},
	} {
		for i, v := range want {
			if got := s.counter(t, name, "engine="+strconv.Itoa(i)); got != v {
				t.Errorf("%s of engine %d: %v, want %v", name, i, got, v)
			}
		}
	}
	for i, want := range []uint64{0, 2, 1} {
		if count, _ := s.histogram(t, "vllm:request_prompt_tokens", "engine="+strconv.Itoa(i)); count != want {
			t.Errorf("engine %d has %d requests, want %d", i, count, want)
		}
	}
	// What is of no engine is there once.
	if n := len(s["vllm:admission_rejections_total"].GetMetric()); n != len(rejectionReasons) {
		t.Errorf("%d series of rejections, want %d", n, len(rejectionReasons))
	}
	if got := s.counter(t, "vllm:admission_rejections_total", "reason=max_num_queued_reqs"); got != 1 {
		t.Errorf("%v rejections, want 1", got)
	}
	s.find(t, "vllm:cache_config_info", "engine=2", "num_gpu_blocks=30")
}

func TestTheBatchersFiguresAreReadAtEachScrape(t *testing.T) {
	var e actors.Stats
	_, r := newTest(t, PrometheusOptions{BlockSize: 16, CacheType: "f16", PrefixCaching: true, Stats: func() []actors.Stats { return []actors.Stats{e} }})
	if got := scrape(t, r).gauge(t, "troupe:healthy"); got != 1 {
		t.Errorf("troupe:healthy is %v at first, want 1", got)
	}
	e.Unhealthy = true
	e.Stats = batch.Stats{
		Running: 3, Waiting: 3, WaitingCapacity: 2, WaitingDeferred: 1, BlocksUsed: 32, BlocksTotal: 128,
		Preemptions: 4, PrefixQueries: 100, PrefixHits: 48, PromptComputed: 52, PromptCached: 47,
	}
	e.Iterations[0], e.Iterations[2], e.Iterations[13], e.IterationSum = 1, 1, 1, 100_010
	s := scrape(t, r)
	for name, want := range map[string]float64{
		"vllm:num_requests_running": 3, "vllm:num_requests_waiting": 3, "vllm:kv_cache_usage_perc": 0.25, "vllm:cache_config_info": 1,
		"troupe:healthy": 0,
	} {
		if got := s.gauge(t, name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := s.gauge(t, "vllm:num_requests_waiting_by_reason", "reason=deferred"); got != 1 {
		t.Errorf("deferred: %v, want 1", got)
	}
	for name, want := range map[string]float64{
		"vllm:num_preemptions_total": 4, "vllm:prefix_cache_queries_total": 100, "vllm:prefix_cache_hits_total": 48,
	} {
		if got := s.counter(t, name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	for source, want := range map[string]float64{"local_compute": 52, "local_cache_hit": 47, "external_kv_transfer": 0} {
		if got := s.counter(t, "vllm:prompt_tokens_by_source_total", "source="+source); got != want {
			t.Errorf("prompt tokens from %s: %v, want %v", source, got, want)
		}
	}
	if got := s.counter(t, "vllm:prompt_tokens_cached_by_source_total", "source=device"); got != 47 {
		t.Errorf("cached on the device: %v, want 47", got)
	}
	if count, sum := s.histogram(t, "vllm:iteration_tokens_total"); count != 3 || sum != 100_010 {
		t.Errorf("steps: %d with %v tokens, want 3 with 100010", count, sum)
	}
	s.find(t, "vllm:cache_config_info", "block_size=16", "cache_dtype=f16", "num_gpu_blocks=128", "enable_prefix_caching=True", "engine=0")
}

func TestTheHandlerServesTheTextFormatWithProcessMetrics(t *testing.T) {
	r := NewRegistry()
	p := NewPrometheus(PrometheusOptions{Model: "tiny \"quoted\"", MaxModelLen: 4096})
	r.MustRegister(p)
	p.Observe(finished())
	var ctx fasthttp.RequestCtx
	ctx.Request.Header.Set("Accept-Encoding", "gzip")
	Handler(r)(&ctx)
	if ctx.Response.StatusCode() != 200 || !strings.HasPrefix(string(ctx.Response.Header.ContentType()), "text/plain; version=0.0.4") {
		t.Fatalf("%d %s", ctx.Response.StatusCode(), ctx.Response.Header.ContentType())
	}
	if e := ctx.Response.Header.ContentEncoding(); len(e) != 0 {
		t.Errorf("content encoding %q", e)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(ctx.Response.Body()))
	if err != nil {
		t.Fatal(err)
	}
	s := scraped(families)
	if got := s.counter(t, "vllm:request_success_total", "finished_reason=length", "model_name=tiny \"quoted\""); got != 1 {
		t.Errorf("length: %v, want 1", got)
	}
	if s["go_goroutines"] == nil {
		t.Error("no metrics of the Go runtime")
	}
}

func TestConcurrentRequestsAreAllCounted(t *testing.T) {
	p, r := newTest(t, PrometheusOptions{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				p.Progress(progress(finished()))
				p.Observe(finished())
			}
		})
	}
	for range 5 {
		scrape(t, r)
	}
	wg.Wait()
	s := scrape(t, r)
	if got := s.counter(t, "vllm:request_success_total", "finished_reason=length"); got != 1600 {
		t.Errorf("%v requests, want 1600", got)
	}
	if got := s.counter(t, "vllm:generation_tokens_total"); got != 1600*128 {
		t.Errorf("%v tokens, want %d", got, 1600*128)
	}
	if count, _ := s.histogram(t, "vllm:inter_token_latency_seconds"); count != 1600*127 {
		t.Errorf("%d gaps, want %d", count, 1600*127)
	}
}

func TestWhateverIsObservedEveryNumberServedIsFiniteAndNeverFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPrometheus(PrometheusOptions{Model: "tiny", MaxModelLen: 4096})
		r := prometheus.NewRegistry()
		r.MustRegister(p)
		before := map[string]uint64{}
		for range rapid.IntRange(1, 4).Draw(t, "requests") {
			rec := drawRecord(t)
			rec.Engine = 0 // the others have tests of their own
			for _, g := range drawProgress(t, rec) {
				p.Progress(g)
			}
			p.Observe(rec)
			families, err := r.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					for _, v := range []float64{m.GetCounter().GetValue(), m.GetGauge().GetValue(), m.GetHistogram().GetSampleSum()} {
						if math.IsNaN(v) || math.IsInf(v, 0) {
							t.Fatalf("%s is %v", f.GetName(), v)
						}
					}
					if h := m.GetHistogram(); h != nil {
						if h.GetSampleCount() < before[f.GetName()] {
							t.Fatalf("%s fell", f.GetName())
						}
						before[f.GetName()] = h.GetSampleCount()
					}
				}
			}
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	p, _ := newTest(b, PrometheusOptions{})
	r := finished()
	b.ReportAllocs()
	for b.Loop() {
		p.Observe(r)
	}
}

func BenchmarkObserveParallel(b *testing.B) {
	p, _ := newTest(b, PrometheusOptions{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := finished()
		for pb.Next() {
			p.Observe(r)
		}
	})
}

func BenchmarkProgress(b *testing.B) {
	p, _ := newTest(b, PrometheusOptions{})
	g := progress(finished())
	b.ReportAllocs()
	for b.Loop() {
		p.Progress(g)
	}
}

func BenchmarkScrape(b *testing.B) {
	_, r := newTest(b, PrometheusOptions{})
	h := Handler(r)
	b.ReportAllocs()
	for b.Loop() {
		var ctx fasthttp.RequestCtx
		h(&ctx)
	}
}
