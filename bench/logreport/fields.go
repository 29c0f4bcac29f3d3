package logreport

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-llm/troupe/bench/requestlog"
)

// field is something of a line that can be filtered and sorted by. Exactly one of the functions is
// set.
type field struct {
	name string
	// number is NaN where the line has null.
	number func(*requestlog.Entry) float64
	// text is empty where the line has null.
	text func(*requestlog.Entry) string
	help string
}

func span(f func(*requestlog.Entry) requestlog.Span) func(*requestlog.Entry) float64 {
	return func(e *requestlog.Entry) float64 {
		if s := f(e); s.Known() {
			return s.Millis()
		}
		return math.NaN()
	}
}

func count(f func(*requestlog.Entry) int) func(*requestlog.Entry) float64 {
	return func(e *requestlog.Entry) float64 { return float64(f(e)) }
}

// endToEnd is arrival to finished.
func endToEnd(e *requestlog.Entry) requestlog.Span {
	if e.Detail.EndToEnd.Known() {
		return e.Detail.EndToEnd
	}
	return e.At.Finished
}

// fields are all of them, by name. The short names are for people; those with dots are the log's.
var fields = []field{
	{"id", nil, func(e *requestlog.Entry) string { return e.RequestID }, "request_id"},
	{"client_id", nil, func(e *requestlog.Entry) string { return e.ClientRequestID }, "the client's own X-Request-Id"},
	{"model", nil, func(e *requestlog.Entry) string { return e.Model }, "as served"},
	{"key", nil, func(e *requestlog.Entry) string { return e.Key }, "name of the API key"},
	{"endpoint", nil, func(e *requestlog.Entry) string { return e.Endpoint }, "chat, completion, responses, bench"},
	{"engine", nil, func(e *requestlog.Entry) string {
		if e.Engine < 0 {
			return ""
		}
		return strconv.Itoa(e.Engine)
	}, "which of several devices computed it, from 0"},
	{"peer", nil, func(e *requestlog.Entry) string { return e.Peer }, "the client's address"},
	{"outcome", nil, func(e *requestlog.Entry) string { return e.Outcome }, "stop, length, abort, error, refused"},
	{"error", nil, func(e *requestlog.Entry) string { return e.Error.Code }, "the error's code"},
	{"error.type", nil, func(e *requestlog.Entry) string { return e.Error.Type }, "the error's type"},
	{"error.message", nil, func(e *requestlog.Entry) string { return e.Error.Message }, "the error's text"},
	{"time", nil, func(e *requestlog.Entry) string { return e.Time }, "RFC 3339 in UTC; a beginning is all that it begins: time<=2026-11-30 has that day"},
	{"stream", nil, func(e *requestlog.Entry) string { return strconv.FormatBool(e.Stream) }, "true or false"},
	{"status", count(func(e *requestlog.Entry) int { return e.Status }), nil, "HTTP status"},
	{"n", count(func(e *requestlog.Entry) int { return e.N }), nil, "choices per prompt"},
	{"priority", count(func(e *requestlog.Entry) int { return e.Priority }), nil, ""},
	{"prompt_tokens", count(func(e *requestlog.Entry) int { return e.Tokens.Prompt }), nil, ""},
	{"cached_tokens", count(func(e *requestlog.Entry) int { return e.Tokens.Cached }), nil, "of the prompt, from the prefix cache"},
	{"output_tokens", count(func(e *requestlog.Entry) int { return e.Tokens.Output }), nil, ""},
	{"discarded_tokens", count(func(e *requestlog.Entry) int { return e.Tokens.Discarded }), nil, "made beyond a stop string or a cancel"},
	{"ttft_ms", span(func(e *requestlog.Entry) requestlog.Span { return e.Detail.ArrivalToFirstToken }), nil, "arrival to first token: what the client waited"},
	{"queue_ms", span(func(e *requestlog.Entry) requestlog.Span { return e.Metrics.QueueTime }), nil, "queued to scheduled"},
	{"prefill_ms", span(func(e *requestlog.Entry) requestlog.Span { return e.Metrics.TimeToFirstToken }), nil, "scheduled to first token: the metrics object's time_to_first_token_ms"},
	{"decode_ms", span(func(e *requestlog.Entry) requestlog.Span { return e.Metrics.GenerationTime }), nil, "first token to last"},
	{"itl_ms", span(func(e *requestlog.Entry) requestlog.Span { return e.Metrics.MeanITL }), nil, "the request's mean inter-token latency"},
	{"itl_p99_ms", span(func(e *requestlog.Entry) requestlog.Span { return e.Detail.ITLP99 }), nil, "the request's 99th percentile; only with detailed metrics"},
	{"e2e_ms", span(endToEnd), nil, "arrival to the end"},
	{"delivery_ms", span(delivery), nil, "the end to the last byte written"},
	{"tokens_per_second", func(e *requestlog.Entry) float64 { return e.Metrics.TokensPerSecond }, nil, ""},
	{"batch", func(e *requestlog.Entry) float64 { return e.Detail.MeanBatch }, nil, "mean number of sequences in its steps"},
	{"preemptions", count(func(e *requestlog.Entry) int { return e.Detail.Preemptions }), nil, ""},
	{"slowed_ms", span(slowed), nil, "the sum of slowed_by_ms"},
	{"bytes", func(e *requestlog.Entry) float64 { return float64(e.Bytes) }, nil, "written to the client"},
}

func init() {
	for _, c := range causes {
		fields = append(fields, field{"slowed_by." + c.name, span(c.of), nil, c.help})
	}
}

// delivery is from the end to the last byte.
func delivery(e *requestlog.Entry) requestlog.Span {
	if !e.At.Delivered.Known() || !e.At.Finished.Known() {
		return requestlog.Null
	}
	return max(e.At.Delivered-e.At.Finished, 0)
}

// causes are what slows a request.
var causes = [...]struct {
	name string
	of   func(*requestlog.Entry) requestlog.Span
	help string
}{
	{"queue_capacity", func(e *requestlog.Entry) requestlog.Span { return e.SlowedBy.QueueCapacity }, "waited for a sequence slot, or for room in a step"},
	{"queue_kv", func(e *requestlog.Entry) requestlog.Span { return e.SlowedBy.QueueKV }, "waited for KV cache blocks"},
	{"prefill_of_others", func(e *requestlog.Entry) requestlog.Span { return e.SlowedBy.PrefillOfOthers }, "decoded beside others' prefill"},
	{"preemption", func(e *requestlog.Entry) requestlog.Span { return e.SlowedBy.Preemption }, "lost its place to another"},
	{"device_restart", func(e *requestlog.Entry) requestlog.Span { return e.SlowedBy.DeviceRestart }, "the device had failed"},
	{"slow_client", func(e *requestlog.Entry) requestlog.Span { return e.SlowedBy.SlowClient }, "from the end until the answer was delivered, to a slow client or not; and how long one that was cut off had not read"},
}

// causeLabel is a cause's name for people: slow_client counts any delivery.
func causeLabel(name string) string {
	if name == "slow_client" {
		return "delivery"
	}
	return strings.ReplaceAll(name, "_", " ")
}

func slowed(e *requestlog.Entry) requestlog.Span {
	var sum requestlog.Span
	for i := range causes {
		sum += max(causes[i].of(e), 0)
	}
	return sum
}

// aliases are the log's own names of fields that have shorter ones, and other ways to say them.
var aliases = map[string]string{
	"request_id": "id", "client_request_id": "client_id", "error.code": "error",
	"tokens.prompt": "prompt_tokens", "tokens.cached": "cached_tokens", "tokens.output": "output_tokens", "tokens.discarded": "discarded_tokens",
	"detail.arrival_to_first_token_ms": "ttft_ms", "metrics.queue_time_ms": "queue_ms", "queue_time_ms": "queue_ms",
	"metrics.time_to_first_token_ms": "prefill_ms", "time_to_first_token_ms": "prefill_ms", "metrics.generation_time_ms": "decode_ms",
	"generation_time_ms": "decode_ms", "metrics.mean_itl_ms": "itl_ms", "mean_itl_ms": "itl_ms", "detail.e2e_ms": "e2e_ms",
	"metrics.tokens_per_second": "tokens_per_second", "detail.preemptions": "preemptions", "detail.mean_batch_size": "batch",
	"detail.itl_ms.p99": "itl_p99_ms",
}

// lookup finds a field by any of its names.
func lookup(name string) *field {
	name = strings.ToLower(name)
	if a, ok := aliases[name]; ok {
		name = a
	}
	name = strings.Replace(name, "slowed_by_ms.", "slowed_by.", 1)
	i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return &fields[i]
}

// fieldNames are the names of all fields, in a row.
func fieldNames() string {
	names := make([]string, len(fields))
	for i := range fields {
		names[i] = fields[i].name
	}
	return strings.Join(names, ", ")
}

// FieldHelp lists the fields that filters and sorting know, one a line.
func FieldHelp() string {
	var b strings.Builder
	for i := range fields {
		f := &fields[i]
		b.WriteString(strings.TrimRight(f.name+strings.Repeat(" ", max(26-len(f.name), 1))+f.help, " ") + "\n")
	}
	return b.String()
}
