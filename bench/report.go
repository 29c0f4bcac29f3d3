package bench

import (
	"fmt"
	"time"
)

// Report is what a load found out: all that the table, the JSON and a page with plots are made from.
// Whoever gets one may keep it; nothing writes to it any more.
//
// Times are milliseconds unless a field's name says otherwise. What is not known is a Summary without
// values, an empty slice or a nil pointer, never a made-up number. The definitions of the measures are
// those of Definitions.
type Report struct {
	// Kind is "serve", "latency" or "throughput".
	Kind    string      `json:"kind"`
	Started time.Time   `json:"started"`
	Config  Config      `json:"config"`
	Env     Environment `json:"environment"`
	// Measured is what the load measured; of a sweep, what its best point did, or its last when none
	// met the objective.
	Measured
	// Samples are the single requests, in the order in which they were sent: all of them up to
	// MaxSamples, beyond that as many, drawn with equal chances.
	Samples []Sample `json:"-"`
	// Gaps are the gaps that ITL is of, one for each token, in the order in which they ended, up to
	// MaxGaps of them, drawn with equal chances: what to draw ITL over time from.
	Gaps []Gap `json:"-"`
	// Timeline is the run at equal intervals, from its beginning to its end.
	Timeline []Tick `json:"timeline,omitempty"`
	// Sweep is nil unless rates or concurrencies were searched.
	Sweep *Sweep `json:"sweep,omitempty"`
	// Batches are the wall times of latency's repetitions, in order; only of that kind.
	Batches []float64 `json:"batches_ms,omitempty"`
	// Notes are what a reader must know to trust the figures: one sentence each.
	Notes []string `json:"notes,omitempty"`
}

// MaxSamples and MaxGaps bound what a Report keeps of single requests and of single gaps.
const (
	MaxSamples = 200_000
	MaxGaps    = 50_000
)

// Config is what was asked for.
type Config struct {
	// Target is "in-process" or the server's URL, without a password.
	Target   string `json:"target"`
	Endpoint string `json:"endpoint"` // "chat" or "completions"
	Model    string `json:"model"`    // as the requests name it
	// Arrival is "closed", "poisson", "constant", "gamma", "trace", "burst" or "batch".
	Arrival string `json:"arrival"`
	// Rate is in requests/s, 0 where there is none; Burstiness the shape of gamma's gaps.
	Rate       float64 `json:"request_rate,omitempty"`
	Burstiness float64 `json:"burstiness,omitempty"`
	// Concurrency is the most requests in flight; 0: no limit.
	Concurrency int `json:"max_concurrency,omitempty"`
	// Requests and Duration say when sending ends; the one that is 0 doesn't.
	Requests int           `json:"num_requests,omitempty"`
	Duration time.Duration `json:"duration_ns,omitempty"`
	Warmups  int           `json:"num_warmups"`
	// Prompts and Outputs say in words where prompts come from and how long outputs are.
	Prompts   string  `json:"prompts"`
	Outputs   string  `json:"outputs"`
	Tokenizer string  `json:"tokenizer"` // by what prompt lengths are counted, in words
	Seed      uint64  `json:"seed"`
	IgnoreEOS bool    `json:"ignore_eos"`
	SLO       *SLO    `json:"slo,omitempty"`
	Trace     string  `json:"trace,omitempty"`       // file name
	Speed     float64 `json:"trace_speed,omitempty"` // of the trace's clock
	// Percentiles are those that the Summaries have.
	Percentiles []float64 `json:"percentiles"`
	// Command is the command line, with secrets left out.
	Command string `json:"command,omitempty"`
}

// Environment is where the load ran.
type Environment struct {
	Version string `json:"version"` // Troupe's
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	CPUs    int    `json:"cpus"`
	// Server is what the server says of itself: its Server header or version; in-process the device.
	Server string `json:"server,omitempty"`
}

// Measured is what one run of a load measured.
type Measured struct {
	// Duration is from the moment the first request was due to the end of the last one, in seconds.
	Duration float64 `json:"duration"`
	// Every request that was begun is in exactly one of these four.
	Completed  int `json:"completed"`
	Failed     int `json:"failed"`
	Cancelled  int `json:"cancelled"`  // by the load itself, as the trace says
	Unfinished int `json:"unfinished"` // cut off at the end of the run

	// Tokens of all requests that had any, also of those that failed or did not finish: what the
	// server did.
	InputTokens  int64 `json:"total_input_tokens"`
	OutputTokens int64 `json:"total_output_tokens"`
	// CachedTokens are those of the input that the server said it found in its prefix cache.
	CachedTokens int64 `json:"total_cached_tokens"`
	// Uncounted is how many requests had no usage in their answers: their tokens are estimated.
	Uncounted int `json:"uncounted_requests"`

	RequestRate float64 `json:"request_throughput"`     // completed/s
	OutputRate  float64 `json:"output_throughput"`      // tokens/s
	TotalRate   float64 `json:"total_token_throughput"` // tokens/s
	// PeakOutputRate is the highest of any whole second, and no less than OutputRate; PeakInFlight the most requests at a time.
	PeakOutputRate float64 `json:"max_output_tokens_per_s"`
	PeakInFlight   int     `json:"max_concurrent_requests"`

	// Latencies of completed requests.
	TTFT Summary `json:"ttft"`
	TPOT Summary `json:"tpot"`
	ITL  Summary `json:"itl"` // over tokens, not over requests
	E2E  Summary `json:"e2el"`
	// DueTTFT and DueE2E count from when a request was due, which a client that falls behind makes
	// later than when it was sent; empty for closed loops, which have no schedule.
	DueTTFT Summary `json:"ttft_from_due"`
	DueE2E  Summary `json:"e2el_from_due"`
	// Lag is sent − due, of all requests of an open loop.
	Lag Summary `json:"send_lag"`
	// Lengths, in tokens, of completed requests.
	InputLen  Summary `json:"input_len"`
	OutputLen Summary `json:"output_len"`

	// Good is how many requests met the objective; failures, cut and unfinished ones never do. Nil
	// without an objective.
	Good *Goodput `json:"goodput,omitempty"`
	// Server is what the server measured beside what the client did; nil when it tells nothing.
	Server *ServerSide `json:"server,omitempty"`
	// Errors are the failures by kind, the commonest first.
	Errors []ErrorGroup `json:"errors_by_kind,omitempty"`
	// Interrupted says that a signal ended the run before its time.
	Interrupted bool `json:"interrupted,omitempty"`
	// GaveUp says that a sweep ended the run early, the objective being out of its reach.
	GaveUp bool `json:"gave_up,omitempty"`
}

// Begun is how many requests were begun.
func (r *Measured) Begun() int { return r.Completed + r.Failed + r.Cancelled + r.Unfinished }

// Goodput says how many requests met an objective.
type Goodput struct {
	Requests int     `json:"requests"`
	Share    float64 `json:"share"` // of those begun, the cancelled ones left out; 0 to 1
	Rate     float64 `json:"rate"`  // requests/s
}

// Summary describes a set of values. With Count 0 the rest means nothing. Std is the population's, and
// percentiles interpolate linearly, as numpy's and so vLLM's do.
type Summary struct {
	Count  int     `json:"count"`
	Mean   float64 `json:"mean"`
	Std    float64 `json:"std"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Median float64 `json:"median"`
	// Percentiles are those of Config.Percentiles, in its order.
	Percentiles []Percentile `json:"percentiles"`
	// Sampled says that there were so many values that the median and the percentiles are those of
	// a random sample of maxKept of them.
	Sampled bool `json:"sampled,omitempty"`
}

// Percentile is a value that P per cent of the values are at most.
type Percentile struct {
	P     float64 `json:"p"`
	Value float64 `json:"value"`
}

// Outcome says how a request ended, as the client saw it.
type Outcome string

// The outcomes.
const (
	Completed  Outcome = "completed"
	Failed     Outcome = "failed"
	Cancelled  Outcome = "cancelled"  // by the load, as the trace says
	Unfinished Outcome = "unfinished" // cut off at the end of the run
)

// Sample is one request. Times are milliseconds; a value that does not exist is NaN.
type Sample struct {
	Index   int // in the order in which they were due
	Outcome Outcome
	Status  int // of HTTP; 0 when there was none
	// Error is the failure's kind, and Message the server's or the system's own words.
	Error, Message string
	// Due and Sent count from the run's beginning. In a closed loop they are the same.
	Due, Sent float64
	// TTFT and E2E count from Sent; TPOT is (E2E − TTFT)/(output − 1); ITLP99 is the 99th percentile
	// of the request's own gaps, weighted by tokens; NaN below two tokens.
	TTFT, E2E, TPOT, ITLP99 float64
	// Input and Output are tokens, Cached those of the input from the prefix cache; −1: not told.
	Input, Output, Cached int
	// Good says that the request met the objective; false without one.
	Good bool
	// ServerQueue, ServerTTFT and ServerGeneration are the server's own metrics.
	ServerQueue, ServerTTFT, ServerGeneration float64
	// Gaps are the inter-token gaps, weighted by tokens: one for each token after the first chunk. Nil unless details are kept
	// (Options.Detailed).
	Gaps []float64
	// Text is the generated text. Empty unless details are kept.
	Text string
}

// Gap is one inter-token gap.
type Gap struct {
	At float64 `json:"at"` // when it ended, in ms from the run's beginning
	// Value is the gap in ms. Of a chunk of k tokens there are k, each the k-th part of the time since
	// the chunk before.
	Value float64 `json:"value"`
}

// Tick is what went on in one interval of a run, as the client saw it.
type Tick struct {
	At float64 `json:"at"` // its end, in seconds from the run's beginning
	// Waiting have been sent and have no token yet, Running have one; at the interval's end.
	Waiting int `json:"waiting"`
	Running int `json:"running"`
	// What happened within the interval.
	Sent         int   `json:"sent"`
	Completed    int   `json:"completed"`
	Failed       int   `json:"failed"`
	OutputTokens int64 `json:"output_tokens"` // streamed chunks; corrected by usage at a request's end
}

// ServerSide sets what the server measured of the completed requests that told it beside what the
// client measured of the same ones. The differences are network, HTTP and delivery; of TTFT also
// parsing, templating and tokenising, which no server counts.
type ServerSide struct {
	// Source is "metrics" (vLLM's and Troupe's per-request metrics) or "timings" (llama.cpp's).
	Source   string `json:"source"`
	Requests int    `json:"requests"`
	// Queue is from queued to scheduled; with "timings" it is not told.
	Queue Summary `json:"queue"`
	// TTFT is from scheduled to the first token.
	TTFT       Summary `json:"ttft"`
	Generation Summary `json:"generation"` // from the first token to the last
	// What the client saw of the same requests.
	ClientTTFT       Summary `json:"client_ttft"`
	ClientGeneration Summary `json:"client_generation"`
	// TTFTDelivery is client TTFT − (queue + TTFT), request by request; GenerationDelivery the same
	// of generation: negative where the first token was delayed more than the last.
	TTFTDelivery       Summary `json:"ttft_delivery"`
	GenerationDelivery Summary `json:"generation_delivery"`
}

// ErrorGroup counts failures of one kind.
type ErrorGroup struct {
	Kind    string `json:"kind"`
	Count   int    `json:"count"`
	Example string `json:"example"` // what the first one said
}

// SLO is a service level objective: what a request must keep to be good. In milliseconds; 0: anything.
type SLO struct {
	TTFT float64 `json:"ttft,omitempty"` // from when it was due
	TPOT float64 `json:"tpot,omitempty"`
	ITL  float64 `json:"itl,omitempty"`  // the request's own 99th percentile
	E2E  float64 `json:"e2el,omitempty"` // from when it was due
	// Share of the requests must be good for a rate to count as met; 0 to 1.
	Share float64 `json:"share"`
}

// Sweep is a search for the highest load that meets the objective.
type Sweep struct {
	// Of is "rate" (requests/s) or "concurrency".
	Of string `json:"of"`
	// Points are the loads that were tried, by Load.
	Points []SweepPoint `json:"points"`
	// Best is the highest load that met the objective; 0 when none did. Limit is the lowest above it
	// that did not; 0 when all that were tried met it.
	Best  float64 `json:"best"`
	Limit float64 `json:"limit,omitempty"`
	// Shown is the load that the report is of: Best, or the lowest that was tried when none met the
	// objective.
	Shown float64 `json:"shown"`
}

// SweepPoint is one load of a sweep.
type SweepPoint struct {
	Load     float64 `json:"load"`
	Met      bool    `json:"met"`
	Measured `json:"result"`
}

// Definition is how a measure is defined.
type Definition struct{ Name, Text string }

// Definitions are the measures as this package defines them, for help texts and reports.
var Definitions = []Definition{
	{"TTFT", "time to first token: from sending the request to the arrival of the first chunk with output. A chunk that only names the role has none. Where a connection has to be made, that is included."},
	{"E2E", "end to end: from sending the request to the arrival of the last chunk with output; the usage chunk and the end mark behind it don't count."},
	{"TPOT", "time per output token: (E2E − TTFT)/(n − 1) for n output tokens; none below two."},
	{"ITL", "inter-token latency: the time between chunks with output, over tokens: the gap before a chunk of k tokens is divided by k and counted k times, and chunks that arrive in one read are one."},
	{"from due", "TTFT and E2E counted from when the schedule meant the request to be sent: what a client that keeps to the schedule would have seen."},
	{"throughput", "of the time from the first request to the end of the last one. Requests count when completed; tokens always, also those of requests that failed, were cancelled or did not finish."},
	{"latencies", "of completed requests only. A failure has none, and never meets the objective."},
	{"goodput", "completed requests a second that met every objective given: TTFT and E2E from due, TPOT, and ITL as the 99th percentile of the request's own gaps."},
	{"percentiles", "exact, linear between neighbours (as numpy's default, which vLLM uses)."},
	{"delivery", "what the client measured less what the server did: network, HTTP and, in TTFT, parsing and tokenising."},
}

// lateEnough is a lag of sending behind the schedule, in ms, that is worth a word.
const lateEnough = 5

// Remarks are what a reader should know of how far these figures can be trusted.
func (r *Report) Remarks() []string {
	var notes []string
	m := &r.Measured
	if m.Interrupted {
		notes = append(notes, "the run was interrupted: this is what had been measured by then")
	}
	if m.Lag.Count > 0 {
		if late, ok := m.Lag.At(99); (ok && late > lateEnough || !ok && m.Lag.Max > lateEnough) && r.Config.Arrival != "burst" {
			why := "this client could not keep to the schedule, being out of processor time"
			if r.Config.Concurrency > 0 {
				why = "the limit on requests in flight made them wait"
			}
			notes = append(notes, fmt.Sprintf("requests were sent late, up to %s ms after they were due: %s; look at the latencies from due", figure(m.Lag.Max), why))
		}
	}
	if m.Uncounted > 0 {
		notes = append(notes, fmt.Sprintf("%d answers had no usage: their tokens were counted by chunks, and are too few where a chunk holds several", m.Uncounted))
	}
	if n := m.TTFT.Count; n > 0 && n < 100 {
		notes = append(notes, fmt.Sprintf("with %d completed requests, high percentiles hang on a few of them", n))
	}
	if m.ITL.Sampled {
		notes = append(notes, fmt.Sprintf("percentiles of ITL are of %d gaps drawn from %d", maxKept, m.ITL.Count))
	}
	return notes
}
