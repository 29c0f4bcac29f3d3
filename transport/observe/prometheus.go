package observe

import (
	"bytes"
	"cmp"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
)

// PrometheusOptions is what Prometheus must know of the server.
type PrometheusOptions struct {
	// Model is the served name (the first, when there are several): the value of every model_name
	// label, whatever a request calls the model, so that requests cannot make series.
	Model string
	// MaxModelLen is the longest sequence in tokens; it bounds the token-count buckets.
	MaxModelLen int
	// BlockSize, CacheType and PrefixCaching are labels of vllm:cache_config_info. CacheType is what
	// --kv-cache-dtype says; empty is auto.
	BlockSize     int
	CacheType     string
	PrefixCaching bool
	// Engines is how many there are; 1. Each has its own series, by the label engine.
	Engines int
	// Stats is read at each scrape for what each engine tells, and may be called concurrently; nil reads as
	// all zero.
	Stats func() []actors.Stats
}

// Prometheus counts requests in vLLM's metric families. It is a lifecycle.Observer and a
// prometheus.Collector; docs/prometheus.md says what each family means. All methods are safe for
// concurrent use.
//
// Token counters and inter-token latencies come from Progress alone, what concerns a request as a
// whole from its Record alone, and the rest from the batcher's Stats, so nothing is counted twice.
type Prometheus struct {
	options  PrometheusOptions
	families [numRequestFamilies]requestFamily
	desc     descriptions
	shards   [][]shard // of each engine
}

// The histograms that get at most one sample a request.
const (
	famTTFT = iota
	famE2E
	famQueue
	famPrefill
	famDecode
	famInference
	famTimePerToken
	famPromptTokens
	famGenerationTokens
	famLongest
	famComputedTokens
	famMaxTokens
	famN
	famPreemptions
	numRequestFamilies
)

type requestFamily struct {
	desc   *prometheus.Desc
	bounds bounds
}

// shard is one part of an engine's counts. A request is counted in whichever shard the dice choose, so that
// requests that end at the same moment rarely meet; a scrape adds the shards up. A plain lock
// rather than an atomic per bucket: one request touches some thirty numbers.
type shard struct {
	mu       sync.Mutex
	requests [numRequestFamilies]histogram
	finished [len(finishedReasons)]uint64
	rejected [len(rejectionReasons)]uint64
	refused  [len(refusalStatuses) + 1]uint64

	prompt, cached, generated uint64
	drafted, accepted         uint64
	itl                       histogram

	_ [64]byte // keeps neighbours' locks off one cache line
}

// finishedReasons are the values of finished_reason. The order is outcomeIndex's.
var finishedReasons = [...]lifecycle.Outcome{
	lifecycle.OutcomeStop, lifecycle.OutcomeLength, lifecycle.OutcomeAbort, lifecycle.OutcomeError,
}

func outcomeIndex(o lifecycle.Outcome) int {
	switch o {
	case lifecycle.OutcomeStop:
		return 0
	case lifecycle.OutcomeLength:
		return 1
	case lifecycle.OutcomeAbort:
		return 2
	}
	return 3
}

// rejectionReasons are the values of vllm:admission_rejections_total's reason: the first is vLLM's
// name for a full queue, the others are conditions that vLLM does not tell apart.
var rejectionReasons = [...]string{"max_num_queued_reqs", "draining", "unhealthy"}

// rejection says which reason a refused request has; −1: it was not admission that refused it.
func rejection(r *lifecycle.Record) int {
	switch {
	case r.Status == fasthttp.StatusTooManyRequests:
		return 0
	case r.Status == fasthttp.StatusServiceUnavailable && r.Err != nil && r.Err.Code == "draining":
		return 1
	case r.Status == fasthttp.StatusServiceUnavailable:
		return 2
	}
	return -1
}

// refusalStatuses are the values of troupe:requests_refused_total's status; any other status is
// counted as "other".
var refusalStatuses = [...]int{400, 401, 403, 404, 405, 408, 409, 411, 413, 414, 415, 422, 429, 431, 499, 500, 501, 503, 504}

func statusIndex(status int) int {
	for i, s := range refusalStatuses {
		if s == status {
			return i
		}
	}
	return len(refusalStatuses)
}

// itlBounds are vLLM's of vllm:inter_token_latency_seconds, and itlBucket says which of their buckets
// holds what one of lifecycle.ITLBounds' counts.
var (
	itlBounds = seconds(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
	itlBucket = func() (to [len(lifecycle.ITLBounds) + 1]int) {
		for i := range to {
			to[i] = len(itlBounds.upper)
			if i < len(lifecycle.ITLBounds) {
				to[i], _ = slices.BinarySearch(itlBounds.upper, lifecycle.ITLBounds[i])
			}
		}
		return to
	}()
)

// NewPrometheus returns the collector; register it with a prometheus.Registry (see NewRegistry).
func NewPrometheus(o PrometheusOptions) *Prometheus {
	o.Engines = max(o.Engines, 1)
	if o.Stats == nil {
		o.Stats = func() []actors.Stats { return make([]actors.Stats, o.Engines) }
	}
	p := &Prometheus{options: o, families: requestFamilies(o.MaxModelLen), desc: describe()}
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < 32 {
		n *= 2
	}
	p.shards = make([][]shard, o.Engines)
	for e := range p.shards {
		p.shards[e] = make([]shard, n)
		for i := range p.shards[e] {
			p.shards[e][i].init(&p.families)
		}
	}
	return p
}

func (s *shard) init(families *[numRequestFamilies]requestFamily) {
	for i := range s.requests {
		s.requests[i].count = make([]uint64, len(families[i].bounds.upper)+1)
	}
	s.itl.count = make([]uint64, len(itlBounds.upper)+1)
}

func (p *Prometheus) pick(engine int) *shard {
	shards := p.shards[engine]
	return &shards[rand.Uint32()&uint32(len(shards)-1)]
}

// Progress implements lifecycle.Observer.
func (p *Prometheus) Progress(g *lifecycle.Progress) {
	s := p.pick(g.Engine)
	s.mu.Lock()
	s.prompt += uint64(max(g.Prompt, 0))
	s.cached += uint64(max(g.Cached, 0))
	s.generated += uint64(max(g.Tokens, 0))
	for i, c := range g.ITL.Counts {
		s.itl.count[itlBucket[i]] += uint64(c)
	}
	s.itl.sum += g.ITL.Sum
	s.mu.Unlock()
}

// Observe implements lifecycle.Observer.
func (p *Prometheus) Observe(r *lifecycle.Record) {
	s := p.pick(r.Engine)
	s.mu.Lock()
	if r.Outcome == lifecycle.OutcomeRefused {
		s.refused[statusIndex(r.Status)]++
		if i := rejection(r); i >= 0 {
			s.rejected[i]++
		}
		s.mu.Unlock()
		return
	}
	s.finished[outcomeIndex(r.Outcome)]++
	s.drafted += uint64(max(r.Drafted, 0))
	s.accepted += uint64(max(r.Accepted, 0))
	if r.Finished != 0 {
		p.sample(s, famE2E, r.Finished-r.Arrival)
	}
	if r.Scheduled != 0 {
		p.sample(s, famQueue, r.Scheduled-r.Queued)
		p.sample(s, famComputedTokens, int64(r.Detail.PrefillTokens))
	}
	if r.FirstToken != 0 {
		p.sample(s, famTTFT, r.FirstToken-r.Arrival)
		p.sample(s, famPrefill, r.FirstToken-r.Scheduled)
		p.sample(s, famDecode, r.LastToken-r.FirstToken)
		p.sample(s, famInference, r.LastToken-r.Scheduled)
		if d, ok := timePerToken(r); ok {
			p.sample(s, famTimePerToken, d)
		}
	}
	p.sample(s, famPromptTokens, int64(r.Usage.Prompt))
	p.sample(s, famGenerationTokens, int64(r.Usage.Completion))
	p.sample(s, famLongest, int64(r.Longest))
	p.sample(s, famPreemptions, int64(r.Detail.Preemptions))
	p.sample(s, famN, int64(r.Request.N))
	if r.Request.Params != nil {
		p.sample(s, famMaxTokens, int64(r.Request.Params.MaxTokens))
	}
	s.mu.Unlock()
}

func (p *Prometheus) sample(s *shard, family int, v int64) {
	s.requests[family].observe(&p.families[family].bounds, v)
}

// timePerToken is decode / (n − 1). Of a request with several sequences, which decode side by side,
// it is the mean over all their gaps: the gaps of a sequence add up to its decode time, and it has
// one fewer than tokens.
func timePerToken(r *lifecycle.Record) (nanoseconds int64, ok bool) {
	gaps := r.Usage.Completion - max(r.Sequences, 1)
	if gaps <= 0 {
		return 0, false
	}
	if r.Sequences > 1 {
		return r.ITL.Sum / int64(gaps), true
	}
	return (r.LastToken - r.FirstToken) / int64(gaps), true
}

// requestFamilies describes the per-request histograms.
func requestFamilies(maxModelLen int) (f [numRequestFamilies]requestFamily) {
	latency := seconds(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
	tokens := tokenCounts(maxModelLen)
	set := func(i int, name, help string, b bounds) {
		f[i] = requestFamily{newDesc(name, help), b}
	}
	set(famTTFT, "vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
		seconds(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560))
	set(famE2E, "vllm:e2e_request_latency_seconds", "From a request's arrival to the end of its last sequence.", latency)
	set(famQueue, "vllm:request_queue_time_seconds", "From submission until first scheduled.", latency)
	set(famPrefill, "vllm:request_prefill_time_seconds", "From first scheduled to the first token.", latency)
	set(famDecode, "vllm:request_decode_time_seconds", "From the first token to the last.", latency)
	set(famInference, "vllm:request_inference_time_seconds", "From first scheduled to the last token.", latency)
	set(famTimePerToken, "vllm:request_time_per_output_token_seconds", "Decode time per token after the first, averaged over a request.", itlBounds)
	set(famPromptTokens, "vllm:request_prompt_tokens", "Prompt tokens of a request.", tokens)
	set(famGenerationTokens, "vllm:request_generation_tokens", "Tokens generated for a request, over all its choices.", tokens)
	set(famLongest, "vllm:request_max_num_generation_tokens", "Tokens of a request's longest choice.", tokens)
	set(famComputedTokens, "vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed, not found in the prefix cache.", tokens)
	set(famMaxTokens, "vllm:request_params_max_tokens", "The request's max_tokens.", tokens)
	set(famN, "vllm:request_params_n", "The request's n.", counts(1, 2, 5, 10, 20))
	set(famPreemptions, "vllm:request_num_preemptions", "How often a request lost its place in the batch.", counts(1, 2, 3, 4, 5, 10, 20))
	return f
}

// descriptions are the families that are not per-request histograms.
type descriptions struct {
	success, rejections, refused                              *prometheus.Desc
	prompt, promptBySource, cached, cachedBySource, generated *prometheus.Desc
	itl, iterations                                           *prometheus.Desc
	running, waiting, waitingByReason, usage, config          *prometheus.Desc
	preemptions, prefixQueries, prefixHits                    *prometheus.Desc
	drafts, draftTokens, acceptedTokens, acceptedByPosition   *prometheus.Desc
	flops, readBytes, writeBytes                              *prometheus.Desc
	healthy                                                   *prometheus.Desc
}

func newDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"model_name", "engine"}, more...), nil)
}

func describe() descriptions {
	return descriptions{
		success:    newDesc("vllm:request_success_total", "Ended requests by how they ended.", "finished_reason"),
		rejections: prometheus.NewDesc("vllm:admission_rejections_total", "Requests that were valid and found no place.", []string{"model_name", "reason"}, nil),
		refused:    prometheus.NewDesc("troupe:requests_refused_total", "Requests that were refused before they ran, by HTTP status.", []string{"model_name", "status"}, nil),

		prompt:         newDesc("vllm:prompt_tokens_total", "Prompt tokens, computed or cached."),
		promptBySource: newDesc("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their keys and values came from.", "source"),
		cached:         newDesc("vllm:prompt_tokens_cached_total", "Prompt tokens found in the prefix cache."),
		cachedBySource: newDesc("vllm:prompt_tokens_cached_by_source_total", "Prompt tokens found in a cache, by its tier.", "source"),
		generated:      newDesc("vllm:generation_tokens_total", "Tokens generated."),

		itl:        newDesc("vllm:inter_token_latency_seconds", "Time between steps that yielded tokens for a sequence, one sample per later step."),
		iterations: newDesc("vllm:iteration_tokens_total", "Tokens computed in a step of the device."),

		running:         newDesc("vllm:num_requests_running", "Sequences in the batch."),
		waiting:         newDesc("vllm:num_requests_waiting", "Sequences waiting for a place in the batch."),
		waitingByReason: newDesc("vllm:num_requests_waiting_by_reason", "Waiting sequences: for want of room (capacity), or for something else that must happen first (deferred).", "reason"),
		usage:           newDesc("vllm:kv_cache_usage_perc", "Used share of the KV cache, 0 to 1."),
		config:          prometheus.NewDesc("vllm:cache_config_info", "How the KV cache is set up.", []string{"engine", "block_size", "cache_dtype", "num_gpu_blocks", "enable_prefix_caching"}, nil),

		preemptions:   newDesc("vllm:num_preemptions_total", "Sequences that lost their place in the batch."),
		prefixQueries: newDesc("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache."),
		prefixHits:    newDesc("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache."),

		healthy: newDesc("troupe:healthy", "1 when the engine can serve requests, 0 while its device cannot be opened."),

		drafts:             newDesc("vllm:spec_decode_num_drafts_total", "Verify steps of speculative decoding."),
		draftTokens:        newDesc("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified."),
		acceptedTokens:     newDesc("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens accepted."),
		acceptedByPosition: newDesc("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Draft tokens accepted, by their position in the draft.", "position"),

		flops:      newDesc("vllm:estimated_flops_per_gpu_total", "Estimated floating-point operations; 0 where the device makes no estimate."),
		readBytes:  newDesc("vllm:estimated_read_bytes_per_gpu_total", "Estimated bytes read from memory; 0 where the device makes no estimate."),
		writeBytes: newDesc("vllm:estimated_write_bytes_per_gpu_total", "Estimated bytes written to memory; 0 where the device makes no estimate."),
	}
}

// Describe implements prometheus.Collector. It does not call Stats, which may not be ready yet.
func (p *Prometheus) Describe(ch chan<- *prometheus.Desc) {
	metrics := make(chan prometheus.Metric)
	go func() {
		p.collect(metrics, make([]actors.Stats, p.options.Engines))
		close(metrics)
	}()
	for m := range metrics {
		ch <- m.Desc()
	}
}

// Collect implements prometheus.Collector.
func (p *Prometheus) Collect(ch chan<- prometheus.Metric) {
	p.collect(ch, p.options.Stats())
}

func (p *Prometheus) collect(ch chan<- prometheus.Metric, engines []actors.Stats) {
	var refused shard
	for i := range p.shards {
		t := p.total(i)
		p.collectEngine(ch, strconv.Itoa(i), t, &engines[i])
		for j, n := range t.rejected {
			refused.rejected[j] += n
		}
		for j, n := range t.refused {
			refused.refused[j] += n
		}
	}
	// A request that was refused was on none of them.
	for i, reason := range rejectionReasons {
		ch <- prometheus.MustNewConstMetric(p.desc.rejections, prometheus.CounterValue, float64(refused.rejected[i]), p.options.Model, reason)
	}
	for i, n := range refused.refused {
		status := "other"
		if i < len(refusalStatuses) {
			status = strconv.Itoa(refusalStatuses[i])
		}
		ch <- prometheus.MustNewConstMetric(p.desc.refused, prometheus.CounterValue, float64(n), p.options.Model, status)
	}
}

// collectEngine collects what t has counted of an engine, and what that tells itself.
func (p *Prometheus) collectEngine(ch chan<- prometheus.Metric, engine string, t *shard, e *actors.Stats) {
	d := &p.desc
	labels := func(more ...string) []string { return append([]string{p.options.Model, engine}, more...) }
	counter := func(d *prometheus.Desc, v float64, more ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels(more...)...)
	}
	gauge := func(d *prometheus.Desc, v float64, more ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels(more...)...)
	}

	for i := range t.requests {
		f := &p.families[i]
		ch <- t.requests[i].metric(f.desc, &f.bounds, labels()...)
	}
	ch <- t.itl.metric(d.itl, &itlBounds, labels()...)

	for i, reason := range finishedReasons {
		counter(d.success, float64(t.finished[i]), string(reason))
	}
	counter(d.prompt, float64(t.prompt))
	// The batcher knows what was really computed: a request that left before its prefill has a
	// prompt, and computed none of it.
	counter(d.promptBySource, float64(e.PromptComputed), "local_compute")
	counter(d.promptBySource, float64(e.PromptCached), "local_cache_hit")
	counter(d.promptBySource, 0, "external_kv_transfer") // there is no cache outside this process
	counter(d.cached, float64(t.cached))
	counter(d.cachedBySource, float64(e.PromptCached), "device") // the only tier
	counter(d.generated, float64(t.generated))

	steps := histogram{count: e.Iterations[:], sum: int64(e.IterationSum)}
	ch <- steps.metric(d.iterations, &bounds{actors.IterationBounds[:], 1}, labels()...)
	healthy := 1.0
	if e.Unhealthy {
		healthy = 0
	}
	gauge(d.healthy, healthy)
	gauge(d.running, float64(e.Running))
	gauge(d.waiting, float64(e.Waiting))
	gauge(d.waitingByReason, float64(e.WaitingCapacity), "capacity")
	gauge(d.waitingByReason, float64(e.WaitingDeferred), "deferred")
	gauge(d.usage, float64(e.BlocksUsed)/float64(max(e.BlocksTotal, 1)))
	caching := "False" // Python's spelling, as vLLM's label has it
	if p.options.PrefixCaching {
		caching = "True"
	}
	ch <- prometheus.MustNewConstMetric(d.config, prometheus.GaugeValue, 1, engine,
		strconv.Itoa(p.options.BlockSize), cmp.Or(p.options.CacheType, "auto"), strconv.Itoa(e.BlocksTotal), caching)
	counter(d.preemptions, float64(e.Preemptions))
	counter(d.prefixQueries, float64(e.PrefixQueries))
	counter(d.prefixHits, float64(e.PrefixHits))

	// No device drafts or estimates yet. See docs/prometheus.md for why these are served.
	counter(d.drafts, 0)
	counter(d.draftTokens, float64(t.drafted))
	counter(d.acceptedTokens, float64(t.accepted))
	counter(d.acceptedByPosition, 0, "0")
	counter(d.flops, 0)
	counter(d.readBytes, 0)
	counter(d.writeBytes, 0)
}

// total adds an engine's shards up.
func (p *Prometheus) total(engine int) *shard {
	t := &shard{}
	t.init(&p.families)
	shards := p.shards[engine]
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		for j := range s.requests {
			t.requests[j].add(&s.requests[j])
		}
		t.itl.add(&s.itl)
		for j, n := range s.finished {
			t.finished[j] += n
		}
		for j, n := range s.rejected {
			t.rejected[j] += n
		}
		for j, n := range s.refused {
			t.refused[j] += n
		}
		t.prompt += s.prompt
		t.cached += s.cached
		t.generated += s.generated
		t.drafted += s.drafted
		t.accepted += s.accepted
		s.mu.Unlock()
	}
	return t
}

// NewRegistry returns a registry with the Go runtime's and the process's own metrics in it.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler serves what g gathers in Prometheus' text format, never compressed.
func Handler(g prometheus.Gatherer) fasthttp.RequestHandler {
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	return func(ctx *fasthttp.RequestCtx) {
		families, err := g.Gather()
		var body bytes.Buffer
		encoder := expfmt.NewEncoder(&body, format)
		for _, f := range families {
			if err != nil {
				break
			}
			err = encoder.Encode(f)
		}
		if err != nil {
			ctx.Error("metrics could not be gathered: "+err.Error(), fasthttp.StatusInternalServerError)
			return
		}
		ctx.SetContentType(string(format))
		ctx.SetBody(body.Bytes())
	}
}
