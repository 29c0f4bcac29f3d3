package bench

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options say how a load is carried out.
type Options struct {
	Target   Target
	Workload Workload
	// Arrival is when requests are due. Nil is a closed loop: each of Concurrency clients sends its
	// next request when it has the answer to the last one.
	Arrival *Arrival
	// Timed takes the times of Workload's requests instead of Arrival's.
	Timed bool
	// Concurrency is the most requests in flight; required of a closed loop. 0: no limit.
	Concurrency int
	// Batch sends so many requests at once, waits for all, and sends the next ones: Requests in all.
	Batch int
	// Requests and Duration end the sending, whichever is first; of a Timed load, the workload's end
	// does too. One of them must be given otherwise.
	Requests int
	Duration time.Duration
	// First is the Workload's index of the first request: runs that follow each other on one server
	// must not repeat prompts, which it would find in its prefix cache.
	First int
	// Warmups are sent before, as many at a time as Concurrency allows, and are not measured.
	Warmups int
	// Grace is how long requests may go on after sending has ended for any reason but an interrupt,
	// InterruptGrace after that; 0: at once. What goes on beyond is cut off, and unfinished.
	Grace, InterruptGrace time.Duration
	// Interrupt ends the sending when it is closed. Cancelling Run's context ends everything.
	Interrupt   <-chan struct{}
	SLO         *SLO
	GiveUp      bool // end the run when SLO's share is out of reach
	Seed        uint64
	Percentiles []float64
	// Detailed keeps the gaps and the text of each sample.
	Detailed bool
	// Progress is called some four times a second from a goroutine of its own, never twice at once.
	Progress func(Progress)
}

// Progress is how a run goes on.
type Progress struct {
	// Phase is "warming up", "running", or "finishing" when nothing is sent any more.
	Phase   string
	Elapsed time.Duration // of the phase; of the run when finishing
	// Total requests and Limit on the time; 0 where there is none.
	Total                     int
	Limit                     time.Duration
	Sent, Completed, Failed   int
	Waiting, Running          int
	RequestRate, OutputRate   float64 // since the last call, a second
	MeanRequestRate, MeanRate float64 // since the beginning
	OutputTokens              int64   // by chunks
	// Medians and 99th percentiles, in ms, of the last few hundred requests; NaN: none.
	TTFT50, TTFT99, TPOT50, TPOT99 float64
}

// Run carries a load out. What it returns is what was measured, also when it was interrupted; an error
// means that nothing could be.
func Run(ctx context.Context, o Options) (*Report, error) {
	switch {
	case o.Arrival == nil && !o.Timed && o.Batch <= 0 && o.Concurrency <= 0:
		return nil, errors.New("bench: a closed loop needs a concurrency")
	case o.Requests <= 0 && o.Duration <= 0 && !o.Timed:
		return nil, errors.New("bench: a load needs a number of requests or a duration")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := newPool(o.Target)
	defer clients.close()
	if o.Warmups > 0 {
		if err := newRun(o, clients).warmUp(ctx); err != nil {
			return nil, err
		}
	}
	r := newRun(o, clients)
	watched := r.watch("running")
	err := r.load(ctx, cancel)
	close(r.quit)
	<-watched
	if err != nil {
		return nil, err
	}
	return r.report(), nil
}

// run is a load under way.
type run struct {
	o       Options
	clients *pool
	base    time.Time

	sending  atomic.Bool
	began    atomic.Int64 // requests, ever
	inFlight atomic.Int64
	peak     atomic.Int64
	quit     chan struct{} // the watcher's

	stopOnce sync.Once
	stopping chan struct{} // closed: send no more
	hopeless atomic.Bool   // SLO's share is out of reach
	failed   atomic.Pointer[error]

	interrupted bool
	collector
}

// newRun starts a run's clock.
func newRun(o Options, clients *pool) *run {
	r := &run{o: o, clients: clients, base: time.Now(), quit: make(chan struct{}), stopping: make(chan struct{})}
	r.sending.Store(true)
	r.collector.init(&r.o)
	return r
}

func (r *run) now() int64 { return int64(time.Since(r.base)) }

// stop ends the sending.
func (r *run) stop() {
	r.stopOnce.Do(func() {
		r.sending.Store(false)
		close(r.stopping)
	})
}

// pool are the clients that there are: as many as were ever needed at a time, the last one used first,
// so that the fewest connections are kept.
type pool struct {
	target Target
	mu     sync.Mutex
	free   []*worker
	all    []*worker
}

// worker is a client with what it needs at each request.
type worker struct {
	client Client
	x      exchange
	live   live
}

func newPool(t Target) *pool { return &pool{target: t} }

func (p *pool) get() *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		w := p.free[n-1]
		p.free = p.free[:n-1]
		return w
	}
	w := &worker{client: p.target.Client()}
	w.x.live = &w.live
	p.all = append(p.all, w)
	return w
}

func (p *pool) put(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, w)
}

// look adds up what the clients are doing.
func (p *pool) look() (waits, runs int, tokens int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.all {
		switch w.live.state.Load() {
		case waiting:
			waits++
		case running:
			runs++
		}
		tokens += w.live.tokens.Load()
	}
	return waits, runs, tokens
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.all {
		w.client.Close()
	}
}

// warmUp sends requests that don't count.
func (r *run) warmUp(ctx context.Context) error {
	watched := r.watch("warming up")
	defer func() {
		close(r.quit)
		<-watched
	}()
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	parallel := r.o.Concurrency
	if parallel == 0 {
		parallel = 8
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(parallel, r.o.Warmups) {
		wg.Go(func() {
			w := r.clients.get()
			defer r.clients.put(w)
			for {
				i := int(next.Add(1)) - 1
				if i >= r.o.Warmups || !r.sending.Load() || ctx.Err() != nil {
					return
				}
				// Prompts that the load itself won't have, or the prefix cache would know them.
				req, err := r.o.Workload.Request(warmupIndex + r.o.First + i)
				if err != nil {
					r.fail(err)
					return
				}
				req.CancelAfter = 0
				r.exchange(ctx, w, req, time.Duration(r.now()))
			}
		})
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-r.o.Interrupt:
		cut()
		<-done
		return errInterrupted
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// warmupIndex is the first index of warm-up requests.
const warmupIndex = 1 << 40

var errInterrupted = errors.New("interrupted while warming up: nothing was measured")

func (r *run) fail(err error) {
	r.failed.CompareAndSwap(nil, &err)
	r.stop()
}

// load sends the requests and waits for their ends. cut ends them all.
func (r *run) load(ctx context.Context, cut context.CancelFunc) error {
	o := &r.o
	if o.Duration > 0 {
		t := time.AfterFunc(o.Duration, r.stop)
		defer t.Stop()
	}
	done := make(chan struct{})
	go func() {
		switch {
		case o.Batch > 0:
			r.batch(ctx)
		case o.Arrival != nil || o.Timed:
			r.open(ctx)
		default:
			r.closed(ctx)
		}
		r.stop()
		close(done)
	}()
	grace := o.Grace
	select {
	case <-done:
	case <-r.stopping:
		if r.hopeless.Load() {
			grace = 0
		}
	case <-o.Interrupt:
		r.interrupted = true
		grace = o.InterruptGrace
	case <-ctx.Done():
		r.interrupted = true
	}
	r.stop()
	r.await(done, grace, ctx)
	cut()
	<-done
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// await waits until all is done, at most so long; an interrupt in the meantime shortens it.
func (r *run) await(done <-chan struct{}, grace time.Duration, ctx context.Context) {
	late := time.After(grace)
	interrupt := r.o.Interrupt
	if r.interrupted {
		interrupt = nil // that was it already
	}
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-late:
			return
		case <-interrupt:
			r.interrupted = true
			late, interrupt = time.After(r.o.InterruptGrace), nil
		}
	}
}

// closed is a closed loop.
func (r *run) closed(ctx context.Context) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range r.o.Concurrency {
		if !r.sending.Load() {
			break
		}
		wg.Go(func() {
			w := r.clients.get()
			defer r.clients.put(w)
			for r.sending.Load() {
				i := int(next.Add(1)) - 1
				if r.o.Requests > 0 && i >= r.o.Requests {
					return
				}
				req, err := r.o.Workload.Request(r.o.First + i)
				if err != nil {
					if !errors.Is(err, io.EOF) {
						r.fail(err)
					}
					return
				}
				if !r.sending.Load() {
					return
				}
				r.exchange(ctx, w, req, -1)
			}
		})
	}
	wg.Wait()
}

// batch sends batch after batch.
func (r *run) batch(ctx context.Context) {
	for i := 0; r.sending.Load() && (r.o.Requests == 0 || i+r.o.Batch <= r.o.Requests); i += r.o.Batch {
		var reqs []*Request
		for k := range r.o.Batch {
			req, err := r.o.Workload.Request(r.o.First + i + k)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					r.fail(err)
				}
				return
			}
			reqs = append(reqs, req)
		}
		began := r.now()
		var wg sync.WaitGroup
		for _, req := range reqs {
			w := r.clients.get()
			wg.Go(func() {
				r.exchange(ctx, w, req, -1)
				r.clients.put(w)
			})
		}
		wg.Wait()
		r.batched(millis(r.now() - began))
	}
}

// batched takes in the time of a batch, if all its requests were completed.
func (c *collector) batched(ms float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.measured.Completed-c.batchFrom == c.o.Batch {
		c.batches = append(c.batches, ms)
	}
	c.batchFrom = c.measured.Completed
}

// open sends requests when they are due, whatever the server does: only the limit on those in flight,
// if there is one, can make one late.
func (r *run) open(ctx context.Context) {
	o := &r.o
	// What is to be sent is made beforehand, so that making it makes nothing late.
	ready := make(chan *Request, 64)
	go func() {
		defer close(ready)
		var due func() time.Duration
		if !o.Timed {
			due = o.Arrival.dues(o.Seed)
		}
		for i := 0; o.Requests == 0 || i < o.Requests; i++ {
			req, err := o.Workload.Request(o.First + i)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					r.fail(err)
				}
				return
			}
			if due != nil {
				req.Due = due()
			}
			if o.Duration > 0 && req.Due >= o.Duration {
				return
			}
			select {
			case ready <- req:
			case <-r.stopping:
				return
			}
		}
	}()
	var places chan struct{}
	if o.Concurrency > 0 {
		places = make(chan struct{}, o.Concurrency)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for req := range ready {
		if early := req.Due - time.Since(r.base); early > 0 {
			timer.Reset(early)
			select {
			case <-timer.C:
			case <-r.stopping:
				return
			}
		}
		if places != nil {
			select {
			case places <- struct{}{}:
			case <-r.stopping:
				return
			}
		}
		if !r.sending.Load() {
			return
		}
		w := r.clients.get()
		wg.Go(func() {
			r.exchange(ctx, w, req, req.Due)
			r.clients.put(w)
			if places != nil {
				<-places
			}
		})
	}
}

// exchange sends one request, and collects what came of it. due is negative in a closed loop.
func (r *run) exchange(ctx context.Context, w *worker, req *Request, due time.Duration) {
	r.began.Add(1)
	n := r.inFlight.Add(1)
	for {
		top := r.peak.Load()
		if n <= top || r.peak.CompareAndSwap(top, n) {
			break
		}
	}
	w.x.now = r.now
	w.x.reset(r.o.Detailed)
	w.client.Do(ctx, req, &w.x)
	r.inFlight.Add(-1)
	if r.collect(req, due, &w.x) {
		r.hopeless.Store(true)
		r.stop()
	}
}

// watch tells Options.Progress how it goes on, until quit is closed.
func (r *run) watch(phase string) <-chan struct{} {
	over := make(chan struct{})
	if r.o.Progress == nil {
		close(over)
		return over
	}
	go func() {
		defer close(over)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		_, _, baseTokens := r.clients.look()
		last, lastDone, lastTokens := time.Now(), 0, baseTokens
		for {
			select {
			case <-tick.C:
			case <-r.quit:
				return
			}
			p := Progress{Phase: phase, Elapsed: time.Since(r.base), Total: r.o.Requests, Limit: r.o.Duration}
			if phase == "warming up" {
				p.Total, p.Limit = r.o.Warmups, 0
			} else if !r.sending.Load() {
				p.Phase = "finishing"
			}
			p.Sent = int(r.began.Load())
			var tokens int64
			p.Waiting, p.Running, tokens = r.clients.look()
			p.OutputTokens = tokens - baseTokens
			r.recent(&p)
			now := time.Now()
			if d := now.Sub(last).Seconds(); d > 0 {
				p.RequestRate = float64(p.Completed-lastDone) / d
				p.OutputRate = float64(tokens-lastTokens) / d
			}
			if d := p.Elapsed.Seconds(); d > 0 {
				p.MeanRequestRate, p.MeanRate = float64(p.Completed)/d, float64(p.OutputTokens)/d
			}
			last, lastDone, lastTokens = now, p.Completed, tokens
			r.o.Progress(p)
		}
	}()
	return over
}

// recentKept is of how many last requests the live view shows percentiles.
const recentKept = 512

// collector takes in what came of requests.
type collector struct {
	mu sync.Mutex
	o  *Options

	measured Measured
	samples  reservoir[Sample]
	gaps     reservoir[Gap]
	buckets  []bucket
	seconds  []int64 // output tokens in each second
	good     int
	bad      int
	last     int64 // when the last request ended

	batches   []float64 // in ms
	batchFrom int       // how many had been completed before the batch at hand

	ttft, tpot, itl, e2e, dueTTFT, dueE2E, lag, inputs, outputs distribution
	server                                                      serverSide
	errors                                                      map[string]*ErrorGroup

	ttfts, tpots []float64 // rings of the live view
	ringTTFT     int
	ringTPOT     int
}

// serverSide gathers a ServerSide.
type serverSide struct {
	source                                                                    string
	n                                                                         int
	queue, ttft, generation, clientTTFT, clientGeneration, ttftD, generationD distribution
}

// bucket is what went on in a tenth of a second.
type bucket struct {
	waiting, running        int32 // changes
	sent, completed, failed int32
	tokens                  int64
}

const bucketWidth = int64(100 * time.Millisecond)

func (c *collector) init(o *Options) {
	c.o, c.errors = o, map[string]*ErrorGroup{}
	c.samples.limit, c.gaps.limit = MaxSamples, MaxGaps
}

func (c *collector) bucket(at int64) *bucket {
	i := int(max(at, 0) / bucketWidth)
	for len(c.buckets) <= i {
		c.buckets = append(c.buckets, bucket{})
	}
	return &c.buckets[i]
}

func millis(ns int64) float64 { return float64(ns) / 1e6 }

// collect takes in an exchange that is over. It returns true when the objective can't be met any
// more, and that is to end the run.
func (c *collector) collect(req *Request, due time.Duration, x *exchange) (hopeless bool) {
	tokens, counted := x.settle()
	open := due >= 0
	s := Sample{
		Index: req.Index - c.o.First, Outcome: Completed, Status: x.status, Sent: millis(x.sent), Due: millis(x.sent),
		TTFT: math.NaN(), E2E: math.NaN(), TPOT: math.NaN(), ITLP99: math.NaN(),
		Input: x.prompt, Output: tokens, Cached: x.cached,
		ServerQueue: math.NaN(), ServerTTFT: math.NaN(), ServerGeneration: math.NaN(),
	}
	if open {
		s.Due = millis(int64(due))
	}
	if s.Input < 0 {
		s.Input = req.Input
	}
	fail := x.fail
	first, last := int64(0), int64(0)
	if n := len(x.chunks); n > 0 {
		first, last = x.chunks[0].at, x.chunks[n-1].at
	} else if fail == nil && !x.cut && !x.cancelled {
		fail = &failure{kindNoOutput, "the answer had no token"}
	}
	switch {
	case fail != nil:
		s.Outcome, s.Error, s.Message = Failed, fail.kind, fail.message
	case x.cut:
		s.Outcome = Unfinished
	case x.cancelled:
		s.Outcome = Cancelled
	}
	var gaps []float64 // one for each token but the first; the reader's own
	if first > 0 {
		s.TTFT = millis(first - x.sent)
		s.E2E = millis(last - x.sent)
		if tokens > 1 {
			s.TPOT = (s.E2E - s.TTFT) / float64(tokens-1)
			gaps = tokenGaps(x.chunks, make([]float64, 0, tokens-1))
		}
		if len(gaps) > 0 {
			sorted := slices.Sorted(slices.Values(gaps))
			s.ITLP99 = percentile(sorted, 99)
		}
	}
	if t := &x.server; t.source != "" {
		told := func(v float64) float64 {
			if v < 0 {
				return math.NaN()
			}
			return v
		}
		s.ServerQueue, s.ServerTTFT, s.ServerGeneration = told(t.queue), told(t.ttft), told(t.generation)
	}
	if slo := c.o.SLO; slo != nil && s.Outcome == Completed {
		lag := s.Sent - s.Due
		s.Good = slo.keeps(s.TTFT+lag, s.TPOT, s.ITLP99, s.E2E+lag)
	}
	if c.o.Detailed {
		s.Gaps, s.Text = gaps, x.text.String()
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.measured
	c.last = max(c.last, x.end)
	sent := c.bucket(x.sent)
	sent.sent++
	sent.waiting++
	end := c.bucket(x.end)
	if first > 0 {
		b := c.bucket(first)
		b.waiting--
		b.running++
		end.running--
		m.InputTokens += int64(max(s.Input, 0))
		m.CachedTokens += int64(max(s.Cached, 0))
	} else {
		end.waiting--
	}
	m.OutputTokens += int64(tokens)
	for _, k := range x.chunks {
		c.bucket(k.at).tokens += int64(k.tokens)
		second := int(k.at / int64(time.Second))
		for len(c.seconds) <= second {
			c.seconds = append(c.seconds, 0)
		}
		c.seconds[second] += int64(k.tokens)
	}
	if open {
		c.lag.add(s.Sent - s.Due)
	}
	switch s.Outcome {
	case Failed:
		m.Failed++
		end.failed++
		g := c.errors[s.Error]
		if g == nil {
			g = &ErrorGroup{Kind: s.Error, Example: s.Message}
			c.errors[s.Error] = g
		}
		g.Count++
	case Cancelled:
		m.Cancelled++
	case Unfinished:
		m.Unfinished++
	case Completed:
		m.Completed++
		end.completed++
		if !counted {
			m.Uncounted++
		}
		c.ttft.add(s.TTFT)
		c.e2e.add(s.E2E)
		c.tpot.add(s.TPOT)
		for _, g := range gaps {
			c.itl.add(g)
		}
		for i := 1; i < len(x.chunks); i++ {
			k := x.chunks[i]
			for range k.tokens {
				c.gaps.offer(Gap{At: millis(k.at), Value: millis(k.at-x.chunks[i-1].at) / float64(k.tokens)})
			}
		}
		if open {
			c.dueTTFT.add(s.TTFT + s.Sent - s.Due)
			c.dueE2E.add(s.E2E + s.Sent - s.Due)
		}
		if s.Input >= 0 {
			c.inputs.add(float64(s.Input))
		}
		c.outputs.add(float64(s.Output))
		c.server.add(&s, x.server.source)
		c.ringTTFT = ring(&c.ttfts, c.ringTTFT, s.TTFT)
		if !math.IsNaN(s.TPOT) {
			c.ringTPOT = ring(&c.tpots, c.ringTPOT, s.TPOT)
		}
	}
	switch {
	case s.Good:
		c.good++
	case s.Outcome != Cancelled:
		c.bad++
	}
	c.samples.offer(s)
	// With so many bad ones out of all there can be, the share is out of reach.
	o := c.o
	return o.GiveUp && o.SLO != nil && o.Requests > 0 && float64(c.bad) > (1-o.SLO.Share)*float64(o.Requests)+1e-9
}

// tokenGaps appends the gaps before each token but the first: that before a chunk of k tokens, divided
// by k and counted k times. Of tokens that came with the first there is no gap.
func tokenGaps(chunks []chunk, gaps []float64) []float64 {
	for i := 1; i < len(chunks); i++ {
		k := chunks[i].tokens
		gap := millis(chunks[i].at-chunks[i-1].at) / float64(k)
		for range k {
			gaps = append(gaps, gap)
		}
	}
	return gaps
}

func ring(values *[]float64, at int, v float64) int {
	if len(*values) < recentKept {
		*values = append(*values, v)
		return 0
	}
	(*values)[at] = v
	return (at + 1) % recentKept
}

// keeps says whether a request's latencies are within the objective; NaN, which is of a request with
// too few tokens to have one, is.
func (o *SLO) keeps(ttft, tpot, itl, e2e float64) bool {
	within := func(limit, v float64) bool { return limit == 0 || !(v > limit) }
	return within(o.TTFT, ttft) && within(o.TPOT, tpot) && within(o.ITL, itl) && within(o.E2E, e2e)
}

func (s *serverSide) add(r *Sample, source string) {
	if source == "" || math.IsNaN(r.ServerTTFT) {
		return
	}
	s.source = source
	s.n++
	client := r.E2E - r.TTFT
	s.queue.add(r.ServerQueue)
	s.ttft.add(r.ServerTTFT)
	s.generation.add(r.ServerGeneration)
	s.clientTTFT.add(r.TTFT)
	s.clientGeneration.add(client)
	queue := r.ServerQueue
	if math.IsNaN(queue) {
		queue = 0
	}
	s.ttftD.add(r.TTFT - queue - r.ServerTTFT)
	s.generationD.add(client - r.ServerGeneration)
}

// recent fills in what the live view shows of the last requests.
func (c *collector) recent(p *Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.Completed, p.Failed = c.measured.Completed, c.measured.Failed
	p.TTFT50, p.TTFT99 = middleAndTail(c.ttfts)
	p.TPOT50, p.TPOT99 = middleAndTail(c.tpots)
}

func middleAndTail(values []float64) (p50, p99 float64) {
	if len(values) == 0 {
		return math.NaN(), math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return percentile(sorted, 50), percentile(sorted, 99)
}

// maxTicks is how many ticks a timeline has at most.
const maxTicks = 600

// report makes the report. All requests have ended.
func (r *run) report() *Report {
	c := &r.collector
	c.mu.Lock()
	defer c.mu.Unlock()
	m, p := c.measured, r.o.Percentiles
	m.Interrupted, m.GaveUp = r.interrupted, r.hopeless.Load()
	m.Duration = float64(c.last) / 1e9
	m.PeakInFlight = int(r.peak.Load())
	if m.Duration > 0 {
		m.RequestRate = float64(m.Completed) / m.Duration
		m.OutputRate = float64(m.OutputTokens) / m.Duration
		m.TotalRate = float64(m.InputTokens+m.OutputTokens) / m.Duration
	}
	m.PeakOutputRate = m.OutputRate // of a run that has no whole second
	for _, n := range c.seconds {
		m.PeakOutputRate = max(m.PeakOutputRate, float64(n))
	}
	m.TTFT, m.TPOT, m.ITL, m.E2E = c.ttft.summary(p), c.tpot.summary(p), c.itl.summary(p), c.e2e.summary(p)
	m.DueTTFT, m.DueE2E, m.Lag = c.dueTTFT.summary(p), c.dueE2E.summary(p), c.lag.summary(p)
	m.InputLen, m.OutputLen = c.inputs.summary(p), c.outputs.summary(p)
	if r.o.SLO != nil {
		m.Good = &Goodput{Requests: c.good}
		if n := c.good + c.bad; n > 0 {
			m.Good.Share = float64(c.good) / float64(n)
		}
		if m.Duration > 0 {
			m.Good.Rate = float64(c.good) / m.Duration
		}
	}
	if s := &c.server; s.n > 0 {
		m.Server = &ServerSide{Source: s.source, Requests: s.n, Queue: s.queue.summary(p), TTFT: s.ttft.summary(p), Generation: s.generation.summary(p),
			ClientTTFT: s.clientTTFT.summary(p), ClientGeneration: s.clientGeneration.summary(p),
			TTFTDelivery: s.ttftD.summary(p), GenerationDelivery: s.generationD.summary(p)}
	}
	for _, g := range c.errors {
		m.Errors = append(m.Errors, *g)
	}
	slices.SortFunc(m.Errors, func(a, b ErrorGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind))
	})
	slices.SortFunc(c.samples.items, func(a, b Sample) int { return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Index, b.Index)) })
	slices.SortFunc(c.gaps.items, func(a, b Gap) int { return cmp.Compare(a.At, b.At) })
	return &Report{Kind: "serve", Started: r.base, Measured: m, Samples: c.samples.items, Gaps: c.gaps.items, Timeline: timeline(c.buckets), Batches: c.batches}
}

// timeline makes ticks of buckets, several of one where there are many.
func timeline(buckets []bucket) []Tick {
	per := 1
	for (len(buckets)+per-1)/per > maxTicks {
		per *= 2
	}
	var ticks []Tick
	var waits, runs int32
	for i := 0; i < len(buckets); i += per {
		t := Tick{At: float64(int64(i+per)*bucketWidth) / 1e9}
		for _, b := range buckets[i:min(i+per, len(buckets))] {
			waits += b.waiting
			runs += b.running
			t.Sent += int(b.sent)
			t.Completed += int(b.completed)
			t.Failed += int(b.failed)
			t.OutputTokens += b.tokens
		}
		t.Waiting, t.Running = int(waits), int(runs)
		ticks = append(ticks, t)
	}
	return ticks
}
