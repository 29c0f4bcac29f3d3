package observe

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
)

var update = flag.Bool("update", false, "write testdata/lines.jsonl anew")

// eventful is finished with the timeline of a plain life.
func eventful() *lifecycle.Record {
	r := finished()
	r.Timeline = &lifecycle.Timeline{Events: []lifecycle.Event{
		{Kind: lifecycle.EventQueue, At: 1 * ms, Dur: 12_300_000, Cached: 16, Slot: 8_123_456, Slots: 64, Ahead: 3},
		{Kind: lifecycle.EventPrefill, At: 13_300_000, Dur: 85_200_000, Prompt: 24, Output: 1, Steps: 1, Busy: 85_100_321, Sequences: 12, Others: 200},
		{Kind: lifecycle.EventDecode, At: 98_500_000, Dur: 1240_500_000, Output: 127, Steps: 127, Busy: 1230_100_321, Sequences: 1500},
		{Kind: lifecycle.EventEnd, Cause: lifecycle.CauseLength, At: 1339 * ms},
		{Kind: lifecycle.EventDelivered, At: 1339 * ms, Dur: 1 * ms},
	}}
	return r
}

func TestALineIsToTheByteWhatItWas(t *testing.T) {
	odd := eventful()
	odd.Request.Params.RepetitionPenalty, odd.Request.Params.TopK, odd.Request.Params.Logprobs = 1.1, 40, 3
	odd.Request.ClientID, odd.Request.KeyName, odd.Request.Deadline = "trace \"é\" \x1b", "alice", 60_000*ms
	odd.Err = &lifecycle.Error{Type: "server_error", Code: "device", Message: "the device failed"}
	odd.Outcome, odd.Status, odd.StopToken, odd.Discarded = lifecycle.OutcomeError, 500, 2, 3
	odd.Detail.ITLCount, odd.Detail.ITLP50, odd.Detail.ITLMax = 127, 9*ms, 31*ms
	odd.Engine, odd.Engines = 3, 4
	odd.Detail.Slowed = lifecycle.Slowed{QueueCapacity: 8_123_456, SlowClient: 1 * ms}
	got := written(t, JSON, finished(), eventful(), odd, refused(404, "model_not_found"))
	const golden = "testdata/lines.jsonl"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// expected are a line's values by their keys, made with nothing that the line itself is made with.
func expected(r *lifecycle.Record) map[string]any {
	q := r.Request
	text := func(s string, limit int) any {
		if s == "" {
			return nil
		}
		if len(s) > limit {
			end := limit - 3
			for !utf8.RuneStart(s[end]) {
				end--
			}
			s = s[:end] + "…"
		}
		b, _ := json.Marshal(s) // makes U+FFFD of what is not UTF-8
		_ = json.Unmarshal(b, &s)
		return s
	}
	span := func(there bool, d int64) any {
		if !there {
			return nil
		}
		return float64(max(d, 0)) / 1e6
	}
	stamp := func(at int64) any { return span(at != 0, at-r.Arrival) }
	number := func(there bool, v float64) any {
		if !there || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
		return v
	}
	metric := func(n lifecycle.Number) any {
		v, ok := n.Get()
		return number(ok, v)
	}
	rate := func(there bool, n int, d int64) any { return number(there, float64(max(n, 0))*1e9/float64(d)) }
	count := func(there bool, n int) any {
		if !there {
			return nil
		}
		return float64(n)
	}
	m := map[string]any{
		"version": 1.0, "time": nil, "id": q.ID, "request_id": text(q.ExternalID, 256), "client_request_id": text(q.ClientID, 256),
		"endpoint": text(q.Endpoint, 256), "method": text(r.Method, 256), "path": text(r.Path, 256), "model": text(q.Model, 256),
		"key": text(q.KeyName, 256), "peer": text(q.Peer, 256), "stream": q.Stream, "priority": float64(q.Priority), "prompts": float64(len(q.Prompts)),
		"n": float64(q.N), "echo": q.Echo, "deadline_ms": span(q.Deadline != 0, q.Deadline-r.Arrival),
		"tokens.prompt": float64(r.Usage.Prompt), "tokens.cached": float64(r.Usage.Cached), "tokens.computed": float64(r.Detail.PrefillTokens),
		"tokens.output": float64(r.Usage.Completion), "tokens.longest": float64(r.Longest), "tokens.reasoning": float64(r.Usage.Reasoning),
		"tokens.discarded": float64(r.Discarded), "tokens.drafted": float64(r.Drafted), "tokens.accepted": float64(r.Accepted),
		"at_ms.queued": stamp(r.Queued), "at_ms.scheduled": stamp(r.Scheduled), "at_ms.first_token": stamp(r.FirstToken),
		"at_ms.last_token": stamp(r.LastToken), "at_ms.finished": stamp(r.Finished), "at_ms.delivered": stamp(r.Delivered),
		"metrics.time_to_first_token_ms": metric(r.Metrics.TimeToFirstToken), "metrics.generation_time_ms": metric(r.Metrics.GenerationTime),
		"metrics.queue_time_ms": metric(r.Metrics.QueueTime), "metrics.mean_itl_ms": metric(r.Metrics.MeanITL),
		"metrics.tokens_per_second": metric(r.Metrics.TokensPerSecond), "metrics.speculative_decoding": nil,
		"detail.arrival_to_first_token_ms": span(r.FirstToken != 0, r.Detail.ArrivalToFirstToken), "detail.e2e_ms": span(r.Finished != 0, r.Detail.EndToEnd),
		"detail.prefill_ms":                span(r.FirstToken != 0, r.Detail.Prefill),
		"detail.prefill_tokens_per_second": rate(r.FirstToken != 0 && r.Detail.Prefill > 0, r.Detail.PrefillTokens, r.Detail.Prefill),
		"detail.decode_tokens_per_second":  rate(r.LastToken > r.FirstToken && r.Usage.Completion > 1, r.Usage.Completion-1, r.LastToken-r.FirstToken),
		"detail.preemptions":               float64(r.Detail.Preemptions), "detail.preempted_ms": span(true, r.Detail.Preempted), "detail.steps": float64(r.Detail.Steps),
		"detail.mean_batch_size": number(r.Detail.Steps > 0, float64(r.Detail.BatchSum)/float64(r.Detail.Steps)),
		"detail.itl_ms.p50":      span(r.Detail.ITLCount > 0, r.Detail.ITLP50), "detail.itl_ms.p90": span(r.Detail.ITLCount > 0, r.Detail.ITLP90),
		"detail.itl_ms.p99": span(r.Detail.ITLCount > 0, r.Detail.ITLP99), "detail.itl_ms.max": span(r.Detail.ITLCount > 0, r.Detail.ITLMax),
		"detail.itl_ms.count": count(r.Detail.ITLCount > 0, r.Detail.ITLCount), "sequences": float64(r.Sequences), "outcome": text(string(r.Outcome), 256),
		"stop.string": text(r.StopString, 256), "stop.token": count(r.StopToken >= 0, int(r.StopToken)), "status": float64(r.Status),
		"error.type": nil, "error.code": nil, "error.param": nil, "error.message": nil, "bytes": float64(r.BytesOut), "timeline": nil,
		"engine": count(r.Engines > 1 && r.Sequences > 0, r.Engine),
	}
	if r.Wall != 0 {
		m["time"] = time.Unix(0, r.Wall).UTC().Format("2006-01-02T15:04:05.000000000Z")
	}
	if e := r.Err; e != nil {
		m["error.type"], m["error.code"], m["error.param"], m["error.message"] = text(e.Type, 256), text(e.Code, 256), text(e.Param, 256), text(e.Message, 1024)
	}
	s := r.Detail.Slowed
	for name, d := range map[string]int64{"queue_capacity": s.QueueCapacity, "queue_kv": s.QueueKV, "prefill_of_others": s.PrefillOfOthers,
		"preemption": s.Preemption, "device_restart": s.DeviceRestart, "slow_client": s.SlowClient} {
		m["slowed_by_ms."+name] = span(true, d)
	}
	params := map[string]any{}
	for _, name := range strings.Fields(`temperature top_k top_p min_p seed repetition_penalty presence_penalty frequency_penalty max_tokens min_tokens
		logprobs prompt_logprobs logit_bias allowed_tokens ignore_eos stop stop_token_ids include_stop skip_special_tokens`) {
		params[name] = nil
	}
	if p := q.Params; p != nil {
		single := func(v float32) any { // the float64 of the fewest digits that are this float32
			if b, err := json.Marshal(v); err == nil {
				var f float64
				_ = json.Unmarshal(b, &f)
				return f
			}
			return nil
		}
		stop, ids := []any{}, []any{}
		for _, s := range p.Stop[:min(len(p.Stop), 32)] {
			if s == "" {
				stop = append(stop, "")
				continue
			}
			stop = append(stop, text(s, 256))
		}
		for _, id := range p.StopTokenIDs[:min(len(p.StopTokenIDs), 32)] {
			ids = append(ids, float64(id))
		}
		params = map[string]any{
			"temperature": single(p.Temperature), "top_k": float64(p.TopK), "top_p": single(p.TopP), "min_p": single(p.MinP), "seed": p.Seed,
			"repetition_penalty": single(p.RepetitionPenalty), "presence_penalty": single(p.PresencePenalty), "frequency_penalty": single(p.FrequencyPenalty),
			"max_tokens": float64(p.MaxTokens), "min_tokens": float64(p.MinTokens), "logprobs": count(p.Logprobs >= 0, p.Logprobs),
			"prompt_logprobs": count(p.PromptLogprobs >= 0, p.PromptLogprobs), "logit_bias": float64(len(p.LogitBias)),
			"allowed_tokens": count(p.Allowed != nil, len(p.Allowed)), "ignore_eos": p.IgnoreEOS, "stop": stop, "stop_token_ids": ids,
			"include_stop": p.IncludeStop, "skip_special_tokens": p.SkipSpecialTokens,
		}
	}
	for name, v := range params {
		m["params."+name] = v
	}
	if r.Timeline != nil {
		events := []any{}
		for _, e := range r.Timeline.Events {
			o := map[string]any{"e": e.Kind.String()}
			known := func(name string, v int64, unit float64) {
				if v != 0 && (unit == 1 || v > 0) {
					o[name] = float64(v) / unit
				}
			}
			if e.Kind == lifecycle.EventLeftOut {
				known("sequences", e.Sequences, 1)
				events = append(events, o)
				continue
			}
			o["at"], o["ms"] = span(true, e.At-r.Arrival), span(true, e.Dur)
			if e.Cause != lifecycle.CauseNone {
				o["why"] = e.Cause.String()
			}
			for name, v := range map[string]int32{"seq": e.Sequence, "prompt": e.Prompt, "output": e.Output, "cached": e.Cached, "steps": e.Steps,
				"others": e.Others, "slots": e.Slots, "ahead": e.Ahead, "merged": e.Merged} {
				known(name, int64(v), 1)
			}
			for name, v := range map[string]int64{"step_ms": e.Busy, "excess_ms": e.Excess, "slot_ms": e.Slot, "budget_ms": e.Budget, "kv_ms": e.Blocks} {
				known(name, v, 1e6)
			}
			if e.Steps > 0 && e.Sequences > 0 {
				o["batch"] = math.Floor((float64(e.Sequences)/float64(e.Steps))*100+0.5) / 100
			}
			events = append(events, o)
		}
		m["timeline"] = events
	}
	return m
}

// alike compares what was read of a line with what is expected. A float64 has fewer digits than a large
// time in nanoseconds, and the line's own rounding is to a millionth.
func alike(got, want any) bool {
	switch want := want.(type) {
	case uint64:
		n, ok := got.(json.Number)
		b, _ := json.Marshal(want)
		return ok && string(n) == string(b)
	case float64:
		n, ok := got.(json.Number)
		f, err := n.Float64()
		return ok && err == nil && math.Abs(f-want) <= max(5.1e-7, math.Abs(want)*1e-12)
	case []any:
		list, ok := got.([]any)
		return ok && slices.EqualFunc(list, want, alike)
	case map[string]any:
		object, ok := got.(map[string]any)
		return ok && maps.EqualFunc(object, want, alike)
	}
	return got == want
}

func TestALineSaysWhatItsRecordHolds(t *testing.T) {
	check := func(t interface {
		Fatal(...any)
		Fatalf(string, ...any)
	}, r *lifecycle.Record) {
		got, want := parseLine(t, written(t, JSON, r)), expected(r)
		for name, v := range want {
			if !alike(got[name], v) {
				t.Fatalf("%s is %v, want %v", name, got[name], v)
			}
		}
		for name := range got {
			if _, ok := want[name]; !ok {
				t.Fatalf("%s is written and not expected", name)
			}
		}
	}
	for _, r := range []*lifecycle.Record{finished(), eventful(), refused(404, "x")} {
		check(t, r)
	}
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t)
		if r.Timeline != nil {
			for i := range r.Timeline.Events {
				e := &r.Timeline.Events[i]
				e.Sequences = min(e.Sequences, 1e12) // a hundred times that must fit
			}
		}
		check(t, r)
	})
}

func TestTheSecondsOfALineAreThoseOfTheCalendar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.Int64().Draw(t, "ns")
		want := `"` + time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000000000Z") + `"`
		if got := string(appendTime(nil, ns)); got != want && ns != 0 {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

func TestALineIsMadeWithoutAllocation(t *testing.T) {
	r := eventful()
	l := newStillWriter(io.Discard, io.Discard)
	defer l.Close()
	log := newRequestLog(l, JSON)
	log.Observe(r) // the first one needs memory
	if n := testing.AllocsPerRun(100, func() { log.Observe(r) }); n > 0 {
		t.Errorf("%v allocations a line", n)
	}
}

func FuzzAQuotedStringReadsBackTheSame(f *testing.F) {
	for _, s := range []string{"", "plain", "plain and long enough", `quote" and \`, "\x00\n\r\t\x1b\x7f", "caf\u00e9 \U0001F600 \u2028", "bad \xff\xfe \xe2\x82", "\xed\xa0\x80"} {
		f.Add(s)
	}
	for at := range 20 { // at each place of eight bytes and of the rest
		for _, c := range []string{`"`, `\`, "\x1f", "\x7f", "\x80", "\xff"} {
			f.Add(strings.Repeat("a", at) + c + strings.Repeat("~", 19-at))
		}
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := appendQuoted(nil, s)
		var got, want string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q became %s: %v", s, b, err)
		}
		reference, err := json.Marshal(s)
		if err != nil || json.Unmarshal(reference, &want) != nil {
			t.Fatal(err)
		}
		if got != want || bytes.ContainsFunc(b, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			t.Fatalf("%q became %s, which reads %q, want %q", s, b, got, want)
		}
	})
}

// byFields writes most of a line as zerolog is usually told of things: value by value, objects as
// dictionaries.
func byFields(e *zerolog.Event, r *lifecycle.Record) {
	q, p := r.Request, r.Request.Params
	ms := func(d int64) float64 { return float64(d) / 1e6 }
	at := func(stamp int64) float64 { return ms(stamp - r.Arrival) }
	metric := func(n lifecycle.Number) float64 {
		v, _ := n.Get()
		return v
	}
	null := []byte("null")
	e.Int("version", 1).Time("time", time.Unix(0, r.Wall)).Uint64("id", q.ID).Str("request_id", q.ExternalID).RawJSON("client_request_id", null)
	e.Str("endpoint", q.Endpoint).RawJSON("method", null).RawJSON("path", null).Str("model", q.Model).RawJSON("key", null).Str("peer", q.Peer)
	e.Bool("stream", q.Stream).Int("priority", q.Priority).Int("prompts", len(q.Prompts)).Int("n", q.N).Bool("echo", q.Echo).RawJSON("deadline_ms", null)
	e.Dict("params", zerolog.Dict().Float32("temperature", p.Temperature).Int("top_k", p.TopK).Float32("top_p", p.TopP).Float32("min_p", p.MinP).
		Uint64("seed", p.Seed).Float32("repetition_penalty", p.RepetitionPenalty).Float32("presence_penalty", p.PresencePenalty).
		Float32("frequency_penalty", p.FrequencyPenalty).Int("max_tokens", p.MaxTokens).Int("min_tokens", p.MinTokens).RawJSON("logprobs", null).
		RawJSON("prompt_logprobs", null).Int("logit_bias", 0).RawJSON("allowed_tokens", null).Bool("ignore_eos", p.IgnoreEOS).Strs("stop", p.Stop).
		Ints32("stop_token_ids", p.StopTokenIDs).Bool("include_stop", p.IncludeStop).Bool("skip_special_tokens", p.SkipSpecialTokens))
	e.Dict("tokens", zerolog.Dict().Int("prompt", r.Usage.Prompt).Int("cached", r.Usage.Cached).Int("computed", r.Detail.PrefillTokens).
		Int("output", r.Usage.Completion).Int("longest", r.Longest).Int("reasoning", r.Usage.Reasoning).Int("discarded", r.Discarded).
		Int("drafted", r.Drafted).Int("accepted", r.Accepted))
	e.Dict("at_ms", zerolog.Dict().Float64("queued", at(r.Queued)).Float64("scheduled", at(r.Scheduled)).Float64("first_token", at(r.FirstToken)).
		Float64("last_token", at(r.LastToken)).Float64("finished", at(r.Finished)).Float64("delivered", at(r.Delivered)))
	e.Dict("metrics", zerolog.Dict().Float64("time_to_first_token_ms", metric(r.Metrics.TimeToFirstToken)).
		Float64("generation_time_ms", metric(r.Metrics.GenerationTime)).Float64("queue_time_ms", metric(r.Metrics.QueueTime)).
		Float64("mean_itl_ms", metric(r.Metrics.MeanITL)).Float64("tokens_per_second", metric(r.Metrics.TokensPerSecond)).RawJSON("speculative_decoding", null))
	e.Dict("detail", zerolog.Dict().Float64("arrival_to_first_token_ms", ms(r.Detail.ArrivalToFirstToken)).Float64("e2e_ms", ms(r.Detail.EndToEnd)).
		Float64("prefill_ms", ms(r.Detail.Prefill)).Float64("prefill_tokens_per_second", rate(r.Detail.PrefillTokens, r.Detail.Prefill)).
		Float64("decode_tokens_per_second", rate(r.Usage.Completion-1, r.LastToken-r.FirstToken)).Int("preemptions", r.Detail.Preemptions).
		Float64("preempted_ms", ms(r.Detail.Preempted)).Int("steps", r.Detail.Steps).Float64("mean_batch_size", float64(r.Detail.BatchSum)/float64(r.Detail.Steps)).
		Dict("itl_ms", zerolog.Dict().RawJSON("p50", null).RawJSON("p90", null).RawJSON("p99", null).RawJSON("max", null).RawJSON("count", null)))
	s := &r.Detail.Slowed
	e.Dict("slowed_by_ms", zerolog.Dict().Float64("queue_capacity", ms(s.QueueCapacity)).Float64("queue_kv", ms(s.QueueKV)).
		Float64("prefill_of_others", ms(s.PrefillOfOthers)).Float64("preemption", ms(s.Preemption)).Float64("device_restart", ms(s.DeviceRestart)).
		Float64("slow_client", ms(s.SlowClient)))
	list := zerolog.Arr()
	for i := range r.Timeline.Events {
		v := &r.Timeline.Events[i]
		list.Dict(zerolog.Dict().Str("e", v.Kind.String()).Float64("at", at(v.At)).Float64("ms", ms(v.Dur)).Int32("prompt", v.Prompt).
			Int32("output", v.Output).Int32("steps", v.Steps).Float64("step_ms", ms(v.Busy)))
	}
	e.Array("timeline", list).Int("sequences", r.Sequences).Str("outcome", string(r.Outcome)).Dict("stop", zerolog.Dict().RawJSON("string", null).RawJSON("token", null))
	e.Int("status", r.Status).Dict("error", zerolog.Dict().RawJSON("type", null).RawJSON("code", null).RawJSON("param", null).RawJSON("message", null))
	e.Int64("bytes", r.BytesOut).RawJSON("engine", null).Send()
}

// What making a line costs beside telling zerolog of most of its values one by one, in turn in one run.
func BenchmarkLine(b *testing.B) {
	r := eventful()
	l := zerolog.New(io.Discard)
	var line []byte
	var made, told time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		line = appendLine(line[:0], r)
		middle := time.Now()
		byFields(l.Log(), r)
		made, told = made+middle.Sub(start), told+time.Since(middle)
	}
	b.ReportMetric(float64(made)/float64(b.N), "ns/line")
	b.ReportMetric(float64(told)/float64(made), "times-as-long-by-fields")
}
