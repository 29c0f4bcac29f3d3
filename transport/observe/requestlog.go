package observe

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/troupe-llm/troupe/lifecycle"
)

// Format is how the request log writes a request.
type Format string

// The formats.
const (
	// JSON is one object a line, with the same keys in every line: docs/request-log.md.
	JSON Format = "json"
	// Console is one short line for people. It is not meant to be parsed.
	Console Format = "console"
)

// RequestLog is a lifecycle.Observer that writes one line for each request. Observe appends the
// line to memory and returns; a goroutine writes what has gathered a few times a second, so that a
// slow disk holds up no request. All methods are safe for concurrent use.
type RequestLog struct {
	lines  *lineWriter
	json   zerolog.Logger
	format Format
}

// OpenRequestLog opens the log at path, which is appended to, or at "stdout" or "stderr". That it cannot
// be written is said on complaints (os.Stderr when nil) at the first write that fails and not again until
// one succeeds, which is said too; each is one line and one Write. It is counted as well: see Failures
// and Lost.
func OpenRequestLog(path string, format Format, complaints io.Writer) (*RequestLog, error) {
	if complaints == nil {
		complaints = os.Stderr
	}
	switch path {
	case "stdout":
		return NewRequestLog(os.Stdout, format, complaints), nil
	case "stderr":
		return NewRequestLog(os.Stderr, format, complaints), nil
	}
	f, err := openLogFile(path)
	if err != nil {
		return nil, fmt.Errorf("request log: %w", err)
	}
	w := newLineWriter(f, path, complaints)
	w.reopen = func() (io.Writer, error) { return openLogFile(path) }
	return newRequestLog(w, format), nil
}

// NewRequestLog returns a log that writes to w. Close does not close w.
func NewRequestLog(w io.Writer, format Format, complaints io.Writer) *RequestLog {
	name := "request log"
	if f, ok := w.(*os.File); ok {
		name = f.Name()
	}
	// Hides w's Close, which is the caller's.
	return newRequestLog(newLineWriter(struct{ io.Writer }{w}, name, complaints), format)
}

func newRequestLog(w *lineWriter, format Format) *RequestLog {
	return &RequestLog{lines: w, json: zerolog.New(w), format: format}
}

// Format is how the log writes.
func (l *RequestLog) Format() Format { return l.format }

// Reopen closes the log's file and opens its path anew, as after a rotation. Lines observed before
// go to the old file. When the path cannot be opened the old file stays in use. It does nothing for
// a log that is not a file.
func (l *RequestLog) Reopen() error { return l.lines.Reopen() }

// Close writes what is left and closes the file. It gives up after a few seconds when the writer
// hangs, and says how many lines were lost. Later observations are counted as lost.
func (l *RequestLog) Close() error { return l.lines.Close() }

// Lost is the number of lines that were given up. What waits in memory for a disk that is full is
// not among them yet.
func (l *RequestLog) Lost() uint64 { return l.lines.lost.Load() }

// Failures is the number of writes that failed. While there is something to write, it is tried anew a
// few times a second.
func (l *RequestLog) Failures() uint64 { return l.lines.failures.Load() }

var (
	failuresDesc = prometheus.NewDesc("troupe:request_log_write_errors_total",
		"Writes to the request log that failed; their lines wait in memory and are tried again.", nil, nil)
	lostDesc = prometheus.NewDesc("troupe:request_log_lines_lost_total",
		"Lines of the request log that were given up, since too many waited to be written.", nil, nil)
)

// Describe implements prometheus.Collector.
func (l *RequestLog) Describe(ch chan<- *prometheus.Desc) {
	ch <- failuresDesc
	ch <- lostDesc
}

// Collect implements prometheus.Collector.
func (l *RequestLog) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, float64(l.Failures()))
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(l.Lost()))
}

// Progress implements lifecycle.Observer; the log waits for the Record.
func (l *RequestLog) Progress(*lifecycle.Progress) {}

// Observe implements lifecycle.Observer.
func (l *RequestLog) Observe(r *lifecycle.Record) {
	if l.format == Console {
		var b [256]byte
		_, _ = l.lines.Write(appendConsole(b[:0], r))
		return
	}
	logRecord(l.json.Log(), r)
}

// Bounds on what a client can make a line hold. Whatever is longer is cut, and ends in "…".
const (
	maxText    = 256 // bytes of an id, a path, a model name, a stop string
	maxMessage = 1024
	maxList    = 32 // stop strings, stop token ids
)

// logRecord writes the line. docs/request-log.md describes it, and a test compares the two.
//
// A line has some eighty values, each the same few kinds, and a server writes one for each request:
// objects are put together by hand, which costs a third of what a dictionary of zerolog's does, and
// nothing is allocated.
func logRecord(e *zerolog.Event, r *lifecycle.Record) {
	var scratch [2048]byte
	buf := scratch[:0]
	q := r.Request
	e.Int("version", lifecycle.RecordVersion)
	e.RawJSON("time", appendTime(buf, r.Wall))
	e.Uint64("id", q.ID)
	text(e, "request_id", q.ExternalID)
	text(e, "client_request_id", q.ClientID)
	text(e, "endpoint", q.Endpoint)
	text(e, "method", r.Method)
	text(e, "path", r.Path)
	text(e, "model", q.Model)
	text(e, "key", q.KeyName)
	text(e, "peer", q.Peer)
	e.Bool("stream", q.Stream)
	e.Int("priority", q.Priority)
	e.Int("prompts", len(q.Prompts))
	e.Int("n", q.N)
	e.Bool("echo", q.Echo)
	e.RawJSON("deadline_ms", span(buf, "", q.Deadline != 0, q.Deadline-r.Arrival))
	e.RawJSON("params", appendParams(buf, q.Params))

	b := integer(buf, `{"prompt":`, r.Usage.Prompt)
	b = integer(b, `,"cached":`, r.Usage.Cached)
	b = integer(b, `,"computed":`, r.Detail.PrefillTokens)
	b = integer(b, `,"output":`, r.Usage.Completion)
	b = integer(b, `,"longest":`, r.Longest)
	b = integer(b, `,"reasoning":`, r.Usage.Reasoning)
	b = integer(b, `,"discarded":`, r.Discarded)
	b = integer(b, `,"drafted":`, r.Drafted)
	b = integer(b, `,"accepted":`, r.Accepted)
	e.RawJSON("tokens", append(b, '}'))

	b = stamp(buf, `{"queued":`, r, r.Queued)
	b = stamp(b, `,"scheduled":`, r, r.Scheduled)
	b = stamp(b, `,"first_token":`, r, r.FirstToken)
	b = stamp(b, `,"last_token":`, r, r.LastToken)
	b = stamp(b, `,"finished":`, r, r.Finished)
	b = stamp(b, `,"delivered":`, r, r.Delivered)
	e.RawJSON("at_ms", append(b, '}'))

	e.RawJSON("metrics", r.Metrics.AppendJSON(buf, nil))
	e.RawJSON("detail", appendDetail(buf, r))

	s := &r.Detail.Slowed
	b = span(buf, `{"queue_capacity":`, true, s.QueueCapacity)
	b = span(b, `,"queue_kv":`, true, s.QueueKV)
	b = span(b, `,"prefill_of_others":`, true, s.PrefillOfOthers)
	b = span(b, `,"preemption":`, true, s.Preemption)
	b = span(b, `,"device_restart":`, true, s.DeviceRestart)
	b = span(b, `,"slow_client":`, true, s.SlowClient)
	e.RawJSON("slowed_by_ms", append(b, '}'))
	e.RawJSON("timeline", r.Timeline.AppendJSON(buf, r.Arrival))

	e.Int("sequences", r.Sequences)
	e.Str("outcome", string(r.Outcome))
	b = quoted(buf, `{"string":`, r.StopString, maxText)
	if b = append(b, `,"token":`...); r.StopToken >= 0 {
		b = strconv.AppendInt(b, int64(r.StopToken), 10)
	} else {
		b = append(b, "null"...)
	}
	e.RawJSON("stop", append(b, '}'))
	e.Int("status", r.Status)

	failure := r.Err
	if failure == nil {
		failure = &noError
	}
	b = quoted(buf, `{"type":`, failure.Type, maxText)
	b = quoted(b, `,"code":`, failure.Code, maxText)
	b = quoted(b, `,"param":`, failure.Param, maxText)
	b = quoted(b, `,"message":`, failure.Message, maxMessage)
	e.RawJSON("error", append(b, '}'))
	e.Int64("bytes", r.BytesOut)
	e.Send()
}

var noError lifecycle.Error

// unknownParams is what there is to say of a request that was refused before it had any.
const unknownParams = `{"temperature":null,"top_k":null,"top_p":null,"min_p":null,"seed":null,"repetition_penalty":null,` +
	`"presence_penalty":null,"frequency_penalty":null,"max_tokens":null,"min_tokens":null,"logprobs":null,"prompt_logprobs":null,` +
	`"logit_bias":null,"allowed_tokens":null,"ignore_eos":null,"stop":null,"stop_token_ids":null,"include_stop":null,"skip_special_tokens":null}`

// appendParams appends the object of the sampling parameters.
func appendParams(b []byte, p *lifecycle.Params) []byte {
	if p == nil {
		return append(b, unknownParams...)
	}
	b = single(b, `{"temperature":`, p.Temperature)
	b = integer(b, `,"top_k":`, p.TopK)
	b = single(b, `,"top_p":`, p.TopP)
	b = single(b, `,"min_p":`, p.MinP)
	b = strconv.AppendUint(append(b, `,"seed":`...), p.Seed, 10)
	b = single(b, `,"repetition_penalty":`, p.RepetitionPenalty)
	b = single(b, `,"presence_penalty":`, p.PresencePenalty)
	b = single(b, `,"frequency_penalty":`, p.FrequencyPenalty)
	b = integer(b, `,"max_tokens":`, p.MaxTokens)
	b = integer(b, `,"min_tokens":`, p.MinTokens)
	b = known(b, `,"logprobs":`, p.Logprobs >= 0, p.Logprobs)
	b = known(b, `,"prompt_logprobs":`, p.PromptLogprobs >= 0, p.PromptLogprobs)
	b = integer(b, `,"logit_bias":`, len(p.LogitBias))
	b = known(b, `,"allowed_tokens":`, p.Allowed != nil, len(p.Allowed))
	b = strconv.AppendBool(append(b, `,"ignore_eos":`...), p.IgnoreEOS)
	b = append(b, `,"stop":[`...)
	for i, s := range p.Stop[:min(len(p.Stop), maxList)] {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, cut(s, maxText))
	}
	b = append(b, `],"stop_token_ids":[`...)
	for i, id := range p.StopTokenIDs[:min(len(p.StopTokenIDs), maxList)] {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	b = strconv.AppendBool(append(b, `],"include_stop":`...), p.IncludeStop)
	b = strconv.AppendBool(append(b, `,"skip_special_tokens":`...), p.SkipSpecialTokens)
	return append(b, '}')
}

// appendDetail appends the object of what the means hide.
func appendDetail(b []byte, r *lifecycle.Record) []byte {
	t := &r.Detail
	ran := r.FirstToken != 0
	b = span(b, `{"arrival_to_first_token_ms":`, ran, t.ArrivalToFirstToken)
	b = span(b, `,"e2e_ms":`, r.Finished != 0, t.EndToEnd)
	b = span(b, `,"prefill_ms":`, ran, t.Prefill)
	b = number(b, `,"prefill_tokens_per_second":`, ran && t.Prefill > 0, rate(t.PrefillTokens, t.Prefill))
	b = number(b, `,"decode_tokens_per_second":`, r.LastToken > r.FirstToken && r.Usage.Completion > 1,
		rate(r.Usage.Completion-1, r.LastToken-r.FirstToken))
	b = integer(b, `,"preemptions":`, t.Preemptions)
	b = span(b, `,"preempted_ms":`, true, t.Preempted)
	b = integer(b, `,"steps":`, t.Steps)
	b = number(b, `,"mean_batch_size":`, t.Steps > 0, float64(t.BatchSum)/float64(max(t.Steps, 1)))

	asked := t.ITLCount > 0
	b = span(b, `,"itl_ms":{"p50":`, asked, t.ITLP50)
	b = span(b, `,"p90":`, asked, t.ITLP90)
	b = span(b, `,"p99":`, asked, t.ITLP99)
	b = span(b, `,"max":`, asked, t.ITLMax)
	b = known(b, `,"count":`, asked, t.ITLCount)
	return append(b, '}', '}')
}

// text writes a string of at most maxText bytes, or null when it is empty.
func text(e *zerolog.Event, key, s string) {
	if s == "" {
		e.RawJSON(key, nullJSON)
		return
	}
	e.Str(key, cut(s, maxText))
}

var nullJSON = []byte("null")

// What follows appends what comes before a value, key and all, and the value, or null when there is
// none: integer a count, number a float, single one that is printed with its own precision (0.7, not
// 0.699999988), span a duration of d nanoseconds in milliseconds, stamp a time from the request's
// arrival, quoted a string of at most limit bytes.
func integer(b []byte, key string, v int) []byte {
	return strconv.AppendInt(append(b, key...), int64(v), 10)
}

func known(b []byte, key string, ok bool, v int) []byte {
	if !ok {
		return append(append(b, key...), "null"...)
	}
	return integer(b, key, v)
}

func number(b []byte, key string, ok bool, v float64) []byte {
	b = append(b, key...)
	if !ok {
		return append(b, "null"...)
	}
	return lifecycle.Num(v).AppendJSON(b)
}

func single(b []byte, key string, v float32) []byte {
	b = append(b, key...)
	switch {
	case v == 0:
		return append(b, '0')
	case v == 1:
		return append(b, '1')
	case math.IsNaN(float64(v)) || math.IsInf(float64(v), 0):
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, float64(v), 'g', -1, 32)
}

func span(b []byte, key string, ok bool, d int64) []byte {
	b = append(b, key...)
	if !ok {
		return append(b, "null"...)
	}
	return lifecycle.AppendMillis(b, d)
}

func stamp(b []byte, key string, r *lifecycle.Record, at int64) []byte {
	return span(b, key, at != 0, at-r.Arrival)
}

func quoted(b []byte, key, s string, limit int) []byte {
	b = append(b, key...)
	if s == "" {
		return append(b, "null"...)
	}
	return appendQuoted(b, cut(s, limit))
}

// appendQuoted appends s as a JSON string; what is not UTF-8 in it becomes U+FFFD.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0 // s[from:i] needs no change
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			b = append(append(b, s[from:i]...), "\ufffd"...)
		} else if c < ' ' || c == 0x7f {
			b = append(append(b, s[from:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		} else if c == '"' || c == '\\' {
			b = append(append(b, s[from:i]...), '\\', c)
		} else {
			i++
			continue
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// appendTime appends the wall clock of ns nanoseconds since 1970, in UTC and with all nine decimals,
// or null when it was not taken.
func appendTime(b []byte, ns int64) []byte {
	if ns == 0 {
		return append(b, "null"...)
	}
	t := time.Unix(0, ns).UTC()
	b = t.AppendFormat(append(b, '"'), time.RFC3339)
	b = append(b[:len(b)-len("Z")], ".000000000"...)
	for i, rest := len(b)-1, t.Nanosecond(); rest > 0; i-- {
		b[i] += byte(rest % 10)
		rest /= 10
	}
	return append(b, `Z"`...)
}

// cut shortens s to at most limit bytes, at a character's boundary.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const dots = "…"
	end := limit - len(dots)
	for end > 0 && s[end]&0xC0 == 0x80 { // not in the middle of a character
		end--
	}
	return s[:end] + dots
}

// rate is n per second over d nanoseconds; d must not be 0.
func rate(n int, d int64) float64 { return float64(max(n, 0)) / (float64(d) / 1e9) }
