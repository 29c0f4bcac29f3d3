package lifecycle

// RecordVersion is the version of the Record and of the log line made from it. It rises when a
// field changes its meaning or goes away; new fields alone don't raise it.
const RecordVersion = 1

// Outcome says how a request ended, for Prometheus' finished_reason.
type Outcome string

// The outcomes. Each ended request is exactly one; a refused request never ran and counts as
// OutcomeRefused, which is not a finished_reason.
const (
	OutcomeStop    Outcome = "stop"
	OutcomeLength  Outcome = "length"
	OutcomeAbort   Outcome = "abort"
	OutcomeError   Outcome = "error"
	OutcomeRefused Outcome = "refused"
)

// Record is all that is known of a request once it is over. Every ending of every request leaves
// exactly one, also those refused before there was an actor. It is immutable once observed.
type Record struct {
	Request *Request // what was asked; never nil, but nearly empty for a refused request
	// Refusal-time facts: for a request that could not even be parsed these are all there is.
	Method, Path string

	Outcome Outcome
	Status  int    // HTTP status: 499 when the client left, 504 on a deadline
	Err     *Error // nil unless refused or failed
	// StopString and StopToken say which stop ended the first choice; "" and −1 otherwise.
	StopString string
	StopToken  int32

	Usage     Usage
	Discarded int // tokens the batch had made beyond a stop string or a cancel
	Drafted   int
	Accepted  int

	// Stamps, on the monotonic clock; 0 where it never came to that.
	Arrival, Queued, Scheduled, FirstToken, LastToken, Finished, Delivered int64
	// Wall is the wall clock, in nanoseconds since 1970, at arrival.
	Wall int64
	// BytesOut were written to the client.
	BytesOut int64

	Metrics Metrics
	Detail  Detail
	// Sequences is how many choices ran.
	Sequences int
	// Engine is the one that computed them, from 0, of so many Engines; the last one, where they moved.
	// Without meaning when Sequences is 0.
	Engine, Engines int
	// Reasons say how each choice ended, where there are several; nil otherwise, since Outcome says it.
	Reasons []Reason
	// Longest is the number of tokens of the choice that generated the most.
	Longest int
	// ITL counts, per later step of a sequence that yielded tokens, the time since the one before,
	// in the buckets of ITLBounds, over all sequences. What Progress has reported is included.
	ITL ITLHistogram
	// Timeline is what happened when, and why; nil unless it was kept.
	Timeline *Timeline
}

// ComputedBy is the number of the engine that computed the request. It is not ok where there is but one, or
// where none computed it.
func (r *Record) ComputedBy() (engine int, ok bool) {
	return r.Engine, r.Engines > 1 && r.Sequences > 0
}

// Detail is what the mean hides, computed by the request actor from the same messages.
// Times are nanoseconds.
type Detail struct {
	ArrivalToFirstToken int64 // −1 when there was no token
	EndToEnd            int64
	Prefill             int64 // first token − scheduled; −1 when there was no token
	PrefillTokens       int   // computed, not cached; recomputation after a preemption not included
	Cached              int
	Preemptions         int
	Preempted           int64 // time between losing the place and having it again
	Steps               int   // steps that the request's sequences were part of
	BatchSum            int   // sum over those steps of the sequences in them: mean batch = BatchSum/Steps
	// Gaps between steps that yielded tokens, weighted by tokens; nanoseconds; empty unless asked
	// for.
	ITLP50, ITLP90, ITLP99, ITLMax int64
	ITLCount                       int
	Slowed                         Slowed
}

// Slowed says where a request's time went beyond its own work; nanoseconds. The parts add up to no
// more than the request's wall time.
type Slowed struct {
	QueueCapacity   int64 // no sequence slot
	QueueKV         int64 // no cache blocks
	PrefillOfOthers int64 // decode steps that also held other requests' prefill, beyond their median
	Preemption      int64
	DeviceRestart   int64
	// SlowClient is the time from the end to the answer's delivery, and, for a client that was cut
	// off because it did not read, how long it had not.
	SlowClient int64
}

// Progress is what a running request adds to the counters between its start and its Record.
type Progress struct {
	Model  string
	Engine int // see Record
	Prompt int // prompt tokens newly accounted for
	Cached int // of those, from the cache
	Tokens int // tokens newly generated
	ITL    ITLHistogram
}

// Observer is told of requests. Its methods are called from request actors, concurrently, and must
// not block.
type Observer interface {
	// Progress is called at most four times a second for a request, and once before its Record, so
	// that the sum of all Progress of a request equals its Record's token counts.
	Progress(*Progress)
	// Observe is called exactly once for each request.
	Observe(*Record)
}

// ITLBounds are the upper bounds, in nanoseconds, of the inter-token latency histogram's buckets.
// Those of vLLM's vllm:inter_token_latency_seconds, which begin at 10 ms, are all among them, so
// that what Prometheus is given is exact; the rest is for a device that is faster, and to tell apart
// what one of vLLM's buckets takes together.
var ITLBounds = [30]int64{100e3, 250e3, 500e3, 1e6, 2.5e6, 5e6, 7.5e6,
	10e6, 15e6, 20e6, 25e6, 30e6, 40e6, 50e6, 75e6, 100e6, 150e6, 200e6, 300e6, 400e6, 500e6, 750e6,
	1e9, 2.5e9, 5e9, 7.5e9, 10e9, 20e9, 40e9, 80e9}

// ITLHistogram counts inter-token latencies: Counts[i] those ≤ ITLBounds[i] and above the bound
// before it, the last one those above all bounds.
type ITLHistogram struct {
	Counts [len(ITLBounds) + 1]uint32
	Sum    int64 // nanoseconds
}

// Observe adds one latency.
func (h *ITLHistogram) Observe(d int64) {
	i := 0
	for i < len(ITLBounds) && d > ITLBounds[i] {
		i++
	}
	h.Counts[i]++
	h.Sum += d
}

// Add adds o's counts to h.
func (h *ITLHistogram) Add(o *ITLHistogram) {
	for i, c := range o.Counts {
		h.Counts[i] += c
	}
	h.Sum += o.Sum
}
