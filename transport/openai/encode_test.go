package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model/tiny"
)

const metricKeys = "generation_time_ms mean_itl_ms queue_time_ms speculative_decoding time_to_first_token_ms tokens_per_second"

func keys(v any) string {
	m, _ := v.(map[string]any)
	var names []string
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// content is the text that a client puts together from a stream of chat or completions.
func content(evs []event, choice int) string {
	var text strings.Builder
	for _, e := range evs {
		list, _ := get(e.data, "choices").([]any)
		for _, c := range list {
			if get(c, "index") != float64(choice) {
				continue
			}
			for _, path := range []string{"delta.content", "text"} {
				if s, ok := get(c, path).(string); ok && s != missing {
					text.WriteString(s)
				}
			}
		}
	}
	return text.String()
}

func TestTheRoleLeavesWithTheFirstTokenInAChunkOfItsOwn(t *testing.T) {
	j := parse(t, testEnv(), "chat", with("chat", `"stream":true,"n":2,"return_token_ids":true`))
	frames, r := play(j, lifecycle.ReasonLength, "a", "b")
	for i, f := range frames {
		evs := events(t, f)
		choice := fmt.Sprint(i % 2)
		if i < 2 {
			if len(evs) != 2 {
				t.Fatalf("the first delta of choice %s made %d chunks", choice, len(evs))
			}
			want(t, evs[0].data, "id", `"chatcmpl-id-1"`, "object", `"chat.completion.chunk"`, "created", "1234", "model", `"tiny"`,
				"choices.0.index", choice, "choices.0.delta.role", `"assistant"`, "choices.0.delta.content", `""`,
				"choices.0.finish_reason", "null", "choices.0.logprobs", "null", "choices.1", missing, "usage", missing,
				"prompt_token_ids", strings.ReplaceAll(fmt.Sprint(j.Request.Prompts[0]), " ", ","))
			want(t, evs[1].data, "choices.0.index", choice, "choices.0.delta.role", missing, "choices.0.delta.content", `"a"`,
				"choices.0.finish_reason", "null", "choices.0.token_ids", "[100]", "prompt_token_ids", missing)
			continue
		}
		if len(evs) != 1 {
			t.Fatalf("a delta made %d chunks", len(evs))
		}
		want(t, evs[0].data, "choices.0.delta.content", `"b"`, "choices.0.finish_reason", `"length"`, "choices.0.stop_reason", "null")
	}
	end := events(t, j.Encoder.End(nil, r))
	if len(end) != 1 || end[0].raw != "[DONE]" {
		t.Errorf("the stream ends with %+v", end)
	}
	if j.Encoder.ContentType() != "text/event-stream; charset=utf-8" {
		t.Error(j.Encoder.ContentType())
	}
}

func TestAnEmptyDeltaIsStillAChunk(t *testing.T) {
	for _, ep := range endpoints {
		j := parse(t, testEnv(), ep, with(ep, `"stream":true`))
		frames, r := play(j, lifecycle.ReasonStop, "", "", "x", "")
		for i, f := range frames {
			n := 1
			if i == 0 && ep == "chat" {
				n = 2
			}
			if i == 0 && ep == "responses" {
				n = 5
			}
			if evs := events(t, f); len(evs) != n {
				t.Errorf("%s: delta %d made %d events", ep, i, len(evs))
			}
		}
		j.Encoder.End(nil, r)
	}
}

func TestMetricsRideOnTheUsageChunkAlone(t *testing.T) {
	for _, ep := range []string{"chat", "completion"} {
		j := parse(t, testEnv(withMetrics), ep, with(ep, `"stream":true,"stream_options":{"include_usage":true}`))
		evs := stream(t, j, lifecycle.ReasonStop, "a", "b", "c")
		last := evs[len(evs)-2]
		want(t, last.data, "choices", "[]", "usage.completion_tokens", "3", "usage.total_tokens", fmt.Sprint(3+len(j.Request.Prompts[0])),
			"usage.prompt_tokens_details.cached_tokens", "3", "metrics.time_to_first_token_ms", "85.2", "metrics.queue_time_ms", "12.3",
			"metrics.generation_time_ms", "1240.5", "metrics.mean_itl_ms", "620.25", "metrics.speculative_decoding", "null", "metrics.detail", missing)
		if k := keys(get(last.data, "metrics")); k != metricKeys {
			t.Errorf("metrics has %s", k)
		}
		for _, e := range evs[:len(evs)-2] {
			want(t, e.data, "metrics", missing, "usage", missing, "choices.1", missing)
		}
		if evs[len(evs)-1].raw != "[DONE]" {
			t.Error("no [DONE]")
		}
	}
}

// TestWhereUsageAndMetricsAppear goes through the contract's table of switches and requests.
func TestWhereUsageAndMetricsAppear(t *testing.T) {
	force := func(e *Env) { e.ForceUsage = true }
	noStats := func(e *Env) { e.DisableStats = true }
	for _, c := range []struct {
		name    string
		env     []func(*Env)
		members string
		usage   string // on the last chunk: "end", "every" or ""
		metrics bool
	}{
		{"nothing asked for", []func(*Env){withMetrics}, ``, "", false},
		{"usage", []func(*Env){withMetrics}, `,"stream_options":{"include_usage":true}`, "end", true},
		{"usage denied", []func(*Env){withMetrics}, `,"stream_options":{"include_usage":false,"continuous_usage_stats":true}`, "", false},
		{"usage, continuous", []func(*Env){withMetrics}, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, "every", true},
		{"forced", []func(*Env){withMetrics, force}, ``, "end", true},
		{"forced against the request", []func(*Env){withMetrics, force}, `,"stream_options":{"include_usage":false}`, "end", true},
		{"metrics off", nil, `,"stream_options":{"include_usage":true}`, "end", false},
		{"no statistics", []func(*Env){withMetrics, noStats}, `,"stream_options":{"include_usage":true}`, "end", false},
		{"two choices", []func(*Env){withMetrics}, `,"n":2,"stream_options":{"include_usage":true}`, "end", false},
	} {
		for _, ep := range []string{"chat", "completion"} {
			evs := stream(t, parse(t, testEnv(c.env...), ep, with(ep, `"stream":true`+c.members)), lifecycle.ReasonStop, "a", "b")
			evs = evs[:len(evs)-1]
			for i, e := range evs {
				last := i == len(evs)-1
				usage := c.usage == "every" || c.usage == "end" && last
				if (get(e.data, "usage") != missing) != usage {
					t.Errorf("%s, %s: chunk %d has the usage %v", c.name, ep, i, get(e.data, "usage"))
				}
				if (get(e.data, "metrics") != missing) != (c.metrics && last) {
					t.Errorf("%s, %s: chunk %d has the metrics %v", c.name, ep, i, get(e.data, "metrics"))
				}
			}
		}
	}
	for _, c := range []struct {
		ep, members string
		env         []func(*Env)
		null        bool
	}{
		{"chat", ``, []func(*Env){withMetrics}, false},
		{"chat", `"n":2`, []func(*Env){withMetrics}, true},
		{"chat", ``, nil, true},
		{"chat", ``, []func(*Env){withMetrics, noStats}, true},
		{"completion", `"prompt":["a"]`, []func(*Env){withMetrics}, false},
		{"completion", `"prompt":["a","b"]`, []func(*Env){withMetrics}, true},
		{"completion", ``, nil, true},
		{"responses", ``, []func(*Env){withMetrics}, false},
		{"responses", ``, nil, true},
	} {
		v := body(t, parse(t, testEnv(c.env...), c.ep, with(c.ep, c.members)), lifecycle.ReasonStop, "a", "b")
		m := get(v, "metrics")
		if m == missing || (m == nil) != c.null {
			t.Errorf("%s %s: metrics is %v", c.ep, c.members, m)
		}
		if get(v, "choices.0.metrics") != missing || get(v, "timings") != missing {
			t.Errorf("%s %s: more than was asked for: %v", c.ep, c.members, v)
		}
	}
}

func TestContinuousUsageNeverFallsAndEndsAtTheFinalUsage(t *testing.T) {
	for _, ep := range []string{"chat", "completion"} {
		evs := stream(t, parse(t, testEnv(), ep, with(ep, `"stream":true,"n":3,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`)), lifecycle.ReasonStop, "a", "b")
		evs = evs[:len(evs)-1]
		before := -1.0
		for i, e := range evs {
			n, ok := get(e.data, "usage.completion_tokens").(float64)
			if !ok || n < before || get(e.data, "usage.prompt_tokens") != get(evs[0].data, "usage.prompt_tokens") {
				t.Errorf("%s: chunk %d has %v after %v", ep, i, get(e.data, "usage"), before)
			}
			before = n
		}
		if before != 6 {
			t.Errorf("%s: the last count is %v", ep, before)
		}
	}
}

func TestDetailHasEveryKeyOfTheContract(t *testing.T) {
	detailed := func(e *Env) { e.Metrics, e.MetricsDetail = true, true }
	d := &lifecycle.Detail{ArrivalToFirstToken: 100e6, EndToEnd: 2e9, Prefill: 50e6, PrefillTokens: 10, Cached: 16, Preemptions: 1, Preempted: 5e6,
		Steps: 4, BatchSum: 10, ITLP50: 10e6, ITLP90: 11e6, ITLP99: 12e6, ITLMax: 13e6, ITLCount: 3,
		Slowed: lifecycle.Slowed{QueueCapacity: 1e6, QueueKV: 2e6, PrefillOfOthers: 3e6, Preemption: 4e6, DeviceRestart: 5e6, SlowClient: 6e6}}
	for _, ep := range []string{"chat", "completion", "responses"} {
		j := parse(t, testEnv(detailed), ep, with(ep, ``))
		_, r := play(j, lifecycle.ReasonStop, "a", "b")
		r.Detail = d
		v := decode(t, j.Encoder.Body(r))
		want(t, v, "metrics.detail.itl_ms", `{"count":3,"max":13,"p50":10,"p90":11,"p99":12}`, "metrics.detail.arrival_to_first_token_ms", "100",
			"metrics.detail.e2e_ms", "2000", "metrics.detail.prefill_ms", "50", "metrics.detail.prefill_tokens", "10", "metrics.detail.cached_tokens", "16",
			"metrics.detail.prefill_tokens_per_second", "200", "metrics.detail.decode_tokens_per_second", fmt.Sprint(1/1.2405),
			"metrics.detail.preemptions", "1", "metrics.detail.preempted_ms", "5", "metrics.detail.steps", "4", "metrics.detail.mean_batch_size", "2.5",
			"metrics.detail.slowed_by_ms", `{"device_restart":5,"preemption":4,"prefill_of_others":3,"queue_capacity":1,"queue_kv":2,"slow_client":6}`)
		if k := keys(get(v, "metrics")); k != "detail "+metricKeys {
			t.Errorf("%s: metrics has %s", ep, k)
		}
		// Without a token nothing is infinite.
		r.Detail = &lifecycle.Detail{ArrivalToFirstToken: -1, Prefill: -1}
		r.Metrics = lifecycle.Metrics{}
		want(t, decode(t, j.Encoder.Body(r)), "metrics.detail.itl_ms", `{"count":0,"max":null,"p50":null,"p90":null,"p99":null}`,
			"metrics.detail.arrival_to_first_token_ms", "null", "metrics.detail.prefill_ms", "null", "metrics.detail.prefill_tokens_per_second", "null",
			"metrics.detail.decode_tokens_per_second", "null", "metrics.detail.mean_batch_size", "null", "metrics.time_to_first_token_ms", "null")
	}
	// Several choices: each has its own, the whole has none.
	j := parse(t, testEnv(detailed), "chat", with("chat", `"n":2`))
	_, r := play(j, lifecycle.ReasonStop, "a", "b")
	r.Choices[0].Detail, r.Choices[1].Detail = nil, d
	v := decode(t, j.Encoder.Body(r))
	want(t, v, "metrics", "null", "choices.0.metrics.queue_time_ms", "12.3", "choices.0.metrics.detail", "null", "choices.1.metrics.detail.steps", "4")
}

// Streamed, a choice's own metrics are on the chunk that ends it, and are those of the unstreamed answer.
func TestAStreamedChoiceEndsWithTheMetricsOfItsOwn(t *testing.T) {
	metrics := func(on, detail, off bool) func(*Env) {
		return func(e *Env) { e.Metrics, e.MetricsDetail, e.DisableStats, e.LlamaTimings = on, detail, off, true }
	}
	const several = `"prompt":["a","b"]`
	for _, c := range []struct {
		ep, members string
		env         func(*Env)
		own         bool
	}{
		{"chat", `"n":2`, metrics(true, true, false), true},
		{"chat", `"n":2,"return_token_ids":true,"logprobs":true`, metrics(true, true, false), true},
		{"completion", `"n":2`, metrics(true, true, false), true},
		{"completion", several, metrics(true, true, false), true},
		{"completion", several + `,"n":3,"return_token_ids":true`, metrics(true, true, false), true},
		{"chat", `"n":1`, metrics(true, true, false), false},
		{"completion", `"n":1`, metrics(true, true, false), false},
		{"chat", `"n":2`, metrics(true, false, false), false},
		{"completion", several, metrics(true, false, false), false},
		{"chat", `"n":2`, metrics(false, true, false), false},
		{"chat", `"n":2`, metrics(true, true, true), false},
	} {
		whole := body(t, parse(t, testEnv(c.env), c.ep, with(c.ep, c.members)), lifecycle.ReasonStop, "a", "b")
		for _, usage := range []string{"", `,"stream_options":{"include_usage":true}`, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`} {
			j := parse(t, testEnv(c.env), c.ep, with(c.ep, c.members+`,"stream":true`+usage))
			evs := stream(t, j, lifecycle.ReasonStop, "a", "b")
			ended := 0
			for i, e := range evs[:len(evs)-1] {
				if last := i == len(evs)-2; !last || j.Request.Sequences() > 1 {
					want(t, e.data, "metrics", missing)
				}
				choice := get(e.data, "choices.0")
				if choice == missing { // the usage chunk
					continue
				}
				got := get(choice, "metrics")
				end := get(choice, "finish_reason") != nil
				if end {
					ended++
				}
				if (got != missing) != (c.own && end) {
					t.Errorf("%s %s%s: chunk %d has %v", c.ep, c.members, usage, i, choice)
				}
				if c.own && end {
					if k := keys(got); k != "detail "+metricKeys {
						t.Errorf("%s %s%s: a choice's metrics have %s", c.ep, c.members, usage, k)
					}
					at := fmt.Sprintf("choices.%v.metrics", get(choice, "index"))
					if o := get(whole, at); !reflect.DeepEqual(got, o) {
						t.Errorf("%s %s%s: streamed %v, else %v", c.ep, c.members, usage, got, o)
					}
				}
			}
			if ended != j.Request.Sequences() {
				t.Errorf("%s %s%s: %d choices ended", c.ep, c.members, usage, ended)
			}
		}
	}
}

// So are those of a choice that never had a delta.
func TestAChoiceThatIsSaidAtTheEndHasItsMetrics(t *testing.T) {
	detailed := func(e *Env) { e.Metrics, e.MetricsDetail = true, true }
	for _, ep := range []string{"chat", "completion"} {
		j := parse(t, testEnv(detailed), ep, with(ep, `"n":2,"stream":true`))
		r := &lifecycle.Response{Choices: make([]lifecycle.Choice, 2)}
		for i := range r.Choices {
			r.Choices[i] = lifecycle.Choice{Reason: lifecycle.ReasonLength, StopToken: -1, Metrics: timing(i, 0).Metrics(), Detail: details(i)}
		}
		ended := 0
		for _, e := range events(t, j.Encoder.End(nil, r)) {
			if reason := get(e.data, "choices.0.finish_reason"); reason == "length" {
				want(t, e.data, "choices.0.metrics.detail.steps", fmt.Sprint(4+ended), "choices.0.index", fmt.Sprint(ended), "metrics", missing)
				ended++
			}
		}
		if ended != 2 {
			t.Errorf("%s: %d choices ended", ep, ended)
		}
	}
}

func TestLlamaTimingsAreOnTheLastChunk(t *testing.T) {
	llama := func(e *Env) { e.LlamaTimings = true }
	check := func(v any, prompt int) {
		t.Helper()
		want(t, v, "timings.cache_n", "3", "timings.prompt_n", fmt.Sprint(prompt-3), "timings.prompt_ms", "85.2", "timings.predicted_n", "2",
			"timings.predicted_ms", "1240.5", "timings.predicted_per_token_ms", "620.25")
		if k := keys(get(v, "timings")); k != "cache_n predicted_ms predicted_n predicted_per_second predicted_per_token_ms prompt_ms prompt_n prompt_per_second prompt_per_token_ms" {
			t.Errorf("timings has %s", k)
		}
	}
	for _, ep := range []string{"chat", "completion"} {
		for _, options := range []string{``, `,"stream_options":{"include_usage":true}`} {
			j := parse(t, testEnv(llama), ep, `{"prompt":"Hello world","messages":[{"role":"user","content":"Hi"}],"stream":true`+options+`}`)
			evs := stream(t, j, lifecycle.ReasonStop, "a", "b")
			check(evs[len(evs)-2].data, len(j.Request.Prompts[0]))
			for _, e := range evs[:len(evs)-2] {
				want(t, e.data, "timings", missing)
			}
			if content(evs, 0) != "ab" {
				t.Errorf("the text is %q", content(evs, 0))
			}
		}
		j := parse(t, testEnv(llama), ep, `{"prompt":"Hello world","messages":[{"role":"user","content":"Hi"}]}`)
		check(body(t, j, lifecycle.ReasonStop, "a", "b"), len(j.Request.Prompts[0]))
		// A failure after the last token must not swallow its chunk.
		j = parse(t, testEnv(llama), ep, with(ep, `"stream":true`))
		frames, r := play(j, lifecycle.ReasonStop, "a", "b")
		r.Err = &lifecycle.Error{Status: 500, Message: "x"}
		evs := events(t, append(slices.Concat(frames...), j.Encoder.End(nil, r)...))
		if content(evs, 0) != "ab" || get(evs[len(evs)-2].data, "error.code") != 500.0 {
			t.Errorf("%s: %+v", ep, evs)
		}
	}
	// No token at all: zeros, not NaN.
	j := parse(t, testEnv(llama), "completion", `{"prompt":"Hello world"}`)
	want(t, decode(t, j.Encoder.Body(&lifecycle.Response{Choices: make([]lifecycle.Choice, 1)})), "timings.prompt_per_second", "0",
		"timings.predicted_per_second", "0", "timings.predicted_per_token_ms", "0")
}

func TestAFailureInMidStreamIsAnErrorFrameThenDone(t *testing.T) {
	failure := &lifecycle.Error{Status: 503, Type: "server_error", Message: "the device is gone"}
	for _, ep := range []string{"chat", "completion"} {
		j := parse(t, testEnv(withMetrics), ep, with(ep, `"stream":true,"stream_options":{"include_usage":true}`))
		frames, r := play(j, "", "a", "b", "c")
		r.Err = failure
		evs := events(t, append(slices.Concat(frames...), j.Encoder.End(nil, r)...))
		n := len(evs)
		want(t, evs[n-2].data, "error.message", `"the device is gone"`, "error.type", `"server_error"`, "error.code", "503", "error.param", "null", "choices", missing, "metrics", missing)
		if evs[n-1].raw != "[DONE]" || content(evs, 0) != "abc" {
			t.Errorf("%s: %+v", ep, evs)
		}
		for _, e := range evs[:n-2] {
			want(t, e.data, "choices.0.finish_reason", "null", "usage", missing)
		}
	}
	j := parse(t, testEnv(withMetrics), "responses", with("responses", `"stream":true`))
	frames, r := play(j, "", "a", "b", "c")
	r.Err = failure
	evs := events(t, append(slices.Concat(frames...), j.Encoder.End(nil, r)...))
	last := evs[len(evs)-1]
	want(t, last.data, "type", `"response.failed"`, "response.status", `"failed"`, "response.error.code", `"server_error"`,
		"response.error.message", `"the device is gone"`, "response.metrics", missing, "response.output.0.content.0.text", `"abc"`, "response.output.0.status", `"incomplete"`)
	if last.name != "response.failed" {
		t.Errorf("the last event is %s", last.name)
	}
	// A failure before any token still opens the stream in order.
	j = parse(t, testEnv(), "responses", with("responses", `"stream":true`))
	evs = events(t, j.Encoder.End(nil, &lifecycle.Response{Err: failure}))
	if len(evs) != 3 || evs[0].name != "response.created" || evs[1].name != "response.in_progress" || evs[2].name != "response.failed" {
		t.Errorf("%+v", evs)
	}
}

func TestErrorsHaveOpenAIsShapeWithTheStatusAsCode(t *testing.T) {
	v := decode(t, AppendError(nil, &lifecycle.Error{Status: 400, Type: "invalid_request_error", Code: "x", Param: `a"b`, Message: "no\nway"}))
	want(t, v, "error", `{"code":400,"message":"no\nway","param":"a\"b","type":"invalid_request_error"}`)
	want(t, decode(t, AppendError(nil, &lifecycle.Error{Status: 404})), "error", `{"code":404,"message":"","param":null,"type":"invalid_request_error"}`)
	want(t, decode(t, AppendError(nil, &lifecycle.Error{Status: 500})), "error.type", `"server_error"`)
}

func TestStopReasonSaysWhichStopItWas(t *testing.T) {
	for _, c := range []struct {
		members string
		reason  lifecycle.Reason
		stop    string
		token   int32
		want    [2]string
	}{
		{``, lifecycle.ReasonStop, "", tiny.IMEnd, [2]string{`"stop"`, "null"}},
		{`"ignore_eos":true,"stop_token_ids":[2]`, lifecycle.ReasonStop, "", tiny.IMEnd, [2]string{`"stop"`, "2"}},
		{`"stop_token_ids":[9]`, lifecycle.ReasonStop, "", 9, [2]string{`"stop"`, "9"}},
		{`"stop":"\"x"`, lifecycle.ReasonStop, `"x`, -1, [2]string{`"stop"`, `"\"x"`}},
		{``, lifecycle.ReasonLength, "", -1, [2]string{`"length"`, "null"}},
		{``, lifecycle.ReasonCancelled, "", -1, [2]string{`"abort"`, "null"}},
	} {
		for _, ep := range []string{"chat", "completion"} {
			j := parse(t, testEnv(), ep, with(ep, c.members))
			_, r := play(j, c.reason, "a")
			r.Choices[0].StopString, r.Choices[0].StopToken = c.stop, c.token
			want(t, decode(t, j.Encoder.Body(r)), "choices.0.finish_reason", c.want[0], "choices.0.stop_reason", c.want[1])
			j = parse(t, testEnv(), ep, with(ep, `"stream":true,`+strings.TrimPrefix(c.members+`,"x":1`, ",")))
			d := lifecycle.Delta{Text: "a", Reason: c.reason, StopString: c.stop, StopToken: c.token}
			evs := events(t, j.Encoder.Delta(nil, &d))
			want(t, evs[len(evs)-1].data, "choices.0.finish_reason", c.want[0], "choices.0.stop_reason", c.want[1])
		}
	}
}

func TestChatLogprobsShowTokensAndTheirBytes(t *testing.T) {
	j := parse(t, testEnv(), "chat", with("chat", `"logprobs":true,"top_logprobs":2,"stream":true`))
	half := int32(tiny.FirstByte + 0xc3) // the first byte of é
	d := lifecycle.Delta{Text: "", IDs: []int32{half}, StopToken: -1, Logprobs: []lifecycle.TokenLogprob{{ID: half, Logprob: -1.5, Rank: 1,
		Top: []lifecycle.IDLogprob{{ID: half, Logprob: -1.5}, {ID: tiny.IMEnd, Logprob: float32(math.Inf(-1))}, {ID: 5, Logprob: -9}}}}}
	evs := events(t, j.Encoder.Delta(nil, &d))
	want(t, evs[1].data, "choices.0.logprobs.content.0", `{"bytes":[195],"logprob":-1.5,"token":"�","top_logprobs":[`+
		`{"bytes":[195],"logprob":-1.5,"token":"�"},{"bytes":[60,124,105,109,95,101,110,100,124,62],"logprob":-9999,"token":"\u003c|im_end|\u003e"}]}`)

	j = parse(t, testEnv(), "chat", with("chat", `"logprobs":true,"return_tokens_as_token_ids":true`))
	want(t, body(t, j, lifecycle.ReasonStop, "a", "b"), "choices.0.logprobs.content.0.token", `"token_id:100"`, "choices.0.logprobs.content.1.top_logprobs", "[]")
	want(t, body(t, parse(t, testEnv(), "chat", with("chat", "")), lifecycle.ReasonStop, "a"), "choices.0.logprobs", "null")
}

func TestPromptLogprobsAreAsVLLMHasThem(t *testing.T) {
	j := parse(t, testEnv(), "completion", `{"prompt":[5,20,7],"prompt_logprobs":2}`)
	v := body(t, j, lifecycle.ReasonStop, "a")
	want(t, v, "choices.0.prompt_logprobs.0", "null", "choices.0.prompt_logprobs.1.20.rank", "2", "choices.0.prompt_logprobs.1.21.rank", "2",
		"choices.0.prompt_logprobs.2.7.logprob", "-0.5", "choices.0.prompt_logprobs.2.20.rank", "1", "choices.0.prompt_logprobs.3", missing, "choices.0.logprobs", "null")
	j = parse(t, testEnv(), "chat", with("chat", `"prompt_logprobs":0`))
	v = body(t, j, lifecycle.ReasonStop, "a")
	if l, ok := get(v, "prompt_logprobs").([]any); !ok || len(l) != len(j.Request.Prompts[0]) {
		t.Errorf("prompt_logprobs is %v", get(v, "prompt_logprobs"))
	}
	want(t, body(t, parse(t, testEnv(), "chat", with("chat", "")), lifecycle.ReasonStop, "a"), "prompt_logprobs", "null")
}

func TestEchoedPromptsHaveLogprobsAndOffsets(t *testing.T) {
	e := testEnv()
	for _, prompt := range []string{"Hello world é😀", "<|im_start|>user"} {
		q, _ := json.Marshal(prompt)
		for _, streamed := range []bool{false, true} {
			j := parse(t, e, "completion", fmt.Sprintf(`{"prompt":%s,"echo":true,"logprobs":1,"stream":%v}`, q, streamed))
			var text string
			var tokens, offsets, logs, tops []any
			collect := func(c any) {
				text += get(c, "text").(string)
				tokens = append(tokens, get(c, "logprobs.tokens").([]any)...)
				offsets = append(offsets, get(c, "logprobs.text_offset").([]any)...)
				logs = append(logs, get(c, "logprobs.token_logprobs").([]any)...)
				tops = append(tops, get(c, "logprobs.top_logprobs").([]any)...)
			}
			// The texts of tokens 100 and 101 are a and b.
			if streamed {
				for _, ev := range stream(t, j, lifecycle.ReasonStop, "a", "b") {
					if ev.data != nil {
						collect(get(ev.data, "choices.0"))
					}
				}
			} else {
				collect(get(body(t, j, lifecycle.ReasonStop, "a", "b"), "choices.0"))
			}
			if text != prompt+"ab" {
				t.Errorf("the text is %q", text)
			}
			n := len(j.Request.Prompts[0]) + 2
			if len(tokens) != n || len(offsets) != n || len(logs) != n || len(tops) != n {
				t.Fatalf("lists of %d, %d, %d, %d entries for %d tokens", len(tokens), len(offsets), len(logs), len(tops), n)
			}
			if logs[0] != nil || tops[0] != nil || logs[1] != -0.5 {
				t.Errorf("log probabilities %v %v", logs, tops)
			}
			// A token that is whole characters is found in the text at its offset.
			runes := []rune(text)
			for i, tok := range tokens {
				if s := tok.(string); !strings.Contains(s, "\ufffd") && !strings.HasPrefix(string(runes[int(offsets[i].(float64)):]), s) {
					t.Errorf("token %d %q is not at %v in %q", i, s, offsets[i], text)
				}
			}
		}
	}
}

func TestScoresBelongToThePromptsLastTokens(t *testing.T) {
	for _, scores := range [][]lifecycle.TokenLogprob{
		{{ID: 6, Logprob: -6}, {ID: 7, Logprob: -7}},
		{{}, {ID: 6, Logprob: -6}, {ID: 7, Logprob: -7}},
		{{ID: 5}, {ID: 6, Logprob: -6}, {ID: 7, Logprob: -7}},
	} {
		j := parse(t, testEnv(), "completion", `{"prompt":[5,6,7],"echo":true,"logprobs":0,"max_tokens":0,"prompt_logprobs":0}`)
		r := &lifecycle.Response{Choices: []lifecycle.Choice{{Reason: lifecycle.ReasonLength, StopToken: -1, PromptScores: scores}}}
		want(t, decode(t, j.Encoder.Body(r)), "choices.0.logprobs.token_logprobs", "[null,-6,-7]",
			"choices.0.prompt_logprobs.0", "null", "choices.0.prompt_logprobs.1.6.logprob", "-6", "choices.0.prompt_logprobs.2.7.logprob", "-7")
	}
}

func TestAnEchoAloneIsAnswered(t *testing.T) {
	for _, streamed := range []bool{false, true} {
		j := parse(t, testEnv(), "completion", fmt.Sprintf(`{"prompt":[5,6],"echo":true,"logprobs":0,"max_tokens":0,"stream":%v}`, streamed))
		r := &lifecycle.Response{Usage: lifecycle.Usage{Prompt: 2}, Choices: []lifecycle.Choice{{Reason: lifecycle.ReasonLength, StopToken: -1,
			PromptScores: []lifecycle.TokenLogprob{{}, {ID: j.Request.Prompts[0][1], Logprob: -2}}}}}
		var v any
		if streamed {
			evs := events(t, j.Encoder.End(nil, r))
			if len(evs) != 2 {
				t.Fatalf("%+v", evs)
			}
			v = evs[0].data
		} else {
			v = decode(t, j.Encoder.Body(r))
		}
		want(t, v, "choices.0.text", `"\u0002\u0003"`, "choices.0.finish_reason", `"length"`, "choices.0.logprobs.token_logprobs.0", "null", "choices.0.logprobs.token_logprobs.1", "-2")
	}
}

func TestDifferentTokensOfTheSameTextAreOneKey(t *testing.T) {
	j := parse(t, testEnv(), "completion", with("completion", `"logprobs":3`))
	a, b := int32(tiny.FirstByte+0xc3), int32(tiny.FirstByte+0xc4) // both show as U+FFFD
	r := &lifecycle.Response{Choices: []lifecycle.Choice{{Reason: lifecycle.ReasonStop, StopToken: -1, Logprobs: []lifecycle.TokenLogprob{
		{ID: a, Logprob: -1, Top: []lifecycle.IDLogprob{{ID: b, Logprob: -0.5}, {ID: a, Logprob: -1}, {ID: 100, Logprob: -3}}}}}}}
	raw := string(j.Encoder.Body(r))
	if !strings.Contains(raw, `"top_logprobs":[{"\ufffd":-1,"a":-3}]`) {
		t.Error(raw)
	}
}

func TestChatEchoRepeatsTheMessageThatIsContinued(t *testing.T) {
	const b = `{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"Once "}],"continue_final_message":true,"add_generation_prompt":false,"echo":true`
	want(t, body(t, parse(t, testEnv(), "chat", b+`}`), lifecycle.ReasonStop, "upon"), "choices.0.message.content", `"Once upon"`)
	evs := stream(t, parse(t, testEnv(), "chat", b+`,"stream":true}`), lifecycle.ReasonStop, "upon")
	if content(evs, 0) != "Once upon" || len(evs) != 4 {
		t.Errorf("%+v", evs)
	}
}

func TestReturnPromptTextShowsWhatTheTemplateMade(t *testing.T) {
	const text = `"\u003c|im_start|\u003euser\nHi\u003c|im_end|\u003e\n\u003c|im_start|\u003eassistant\n"`
	want(t, body(t, parse(t, testEnv(), "chat", with("chat", `"return_prompt_text":true`)), lifecycle.ReasonStop, "a"), "prompt_text", text)
	evs := stream(t, parse(t, testEnv(), "chat", with("chat", `"return_prompt_text":true,"stream":true`)), lifecycle.ReasonStop, "a")
	want(t, evs[0].data, "prompt_text", text)
	want(t, evs[1].data, "prompt_text", missing)
}

func TestReturnTokenIDsOnCompletions(t *testing.T) {
	v := body(t, parse(t, testEnv(), "completion", `{"prompt":[[5,6],[7]],"n":2,"return_token_ids":true}`), lifecycle.ReasonStop, "a", "b")
	want(t, v, "choices.0.prompt_token_ids", "[5,6]", "choices.1.prompt_token_ids", "[5,6]", "choices.2.prompt_token_ids", "[7]", "choices.3.token_ids", "[100,101]", "choices.3.index", "3")
	evs := stream(t, parse(t, testEnv(), "completion", `{"prompt":[[5,6],[7]],"return_token_ids":true,"stream":true}`), lifecycle.ReasonStop, "a", "b")
	want(t, evs[1].data, "choices.0.index", "1", "choices.0.prompt_token_ids", "[7]", "choices.0.token_ids", "[100]")
	want(t, evs[2].data, "choices.0.prompt_token_ids", missing, "choices.0.token_ids", "[101]")
}

func TestResponsesStreamInOrder(t *testing.T) {
	for _, c := range []struct {
		reason             lifecycle.Reason
		status, incomplete string
	}{
		{lifecycle.ReasonStop, "completed", "null"},
		{lifecycle.ReasonLength, "incomplete", `{"reason":"max_output_tokens"}`},
	} {
		j := parse(t, testEnv(withMetrics), "responses", with("responses", `"stream":true,"metadata":{"k": "v\nw"},"user":"u"`))
		evs := stream(t, j, c.reason, "a\n", "", "b")
		names := []string{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
			"response.output_text.delta", "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
			"response.content_part.done", "response.output_item.done", "response.completed"}
		if len(evs) != len(names) {
			t.Fatalf("%d events", len(evs))
		}
		text := ""
		for i, e := range evs {
			want(t, e.data, "type", `"`+names[i]+`"`, "sequence_number", fmt.Sprint(i), "metrics", missing)
			if e.name != names[i] {
				t.Errorf("event %d is %s", i, e.name)
			}
			if i < len(evs)-1 {
				want(t, e.data, "response.metrics", missing)
			}
			if d, ok := get(e.data, "delta").(string); ok && d != missing {
				text += d
			}
		}
		want(t, evs[0].data, "response.status", `"in_progress"`, "response.output", "[]", "response.usage", "null", "response.id", `"resp_id-1"`, "response.metadata", `{"k":"v\nw"}`)
		want(t, evs[2].data, "item.id", `"msg_id-1"`, "item.status", `"in_progress"`, "output_index", "0")
		want(t, evs[3].data, "part.text", `""`, "item_id", `"msg_id-1"`, "content_index", "0")
		want(t, evs[7].data, "text", `"a\nb"`)
		want(t, evs[8].data, "part.text", `"a\nb"`, "part.type", `"output_text"`)
		want(t, evs[9].data, "item.content.0.text", `"a\nb"`, "item.status", `"`+c.status+`"`)
		want(t, evs[10].data, "response.status", `"`+c.status+`"`, "response.incomplete_details", c.incomplete, "response.output.0.content.0.text", `"a\nb"`,
			"response.output.0.role", `"assistant"`, "response.metrics.queue_time_ms", "12.3", "response.user", `"u"`,
			"response.usage.output_tokens", "3", "response.usage.input_tokens_details.cached_tokens", "3", "response.usage.output_tokens_details.reasoning_tokens", "0")
		if text != "a\nb" {
			t.Errorf("the deltas are %q", text)
		}
	}
}

func TestResponsesLogprobsAreIncludedOnRequest(t *testing.T) {
	const include = `"include":["message.output_text.logprobs"],"top_logprobs":1`
	v := body(t, parse(t, testEnv(), "responses", with("responses", include)), lifecycle.ReasonStop, "a", "b")
	want(t, v, "output.0.content.0.logprobs.1.token", `"b"`, "output.0.content.0.logprobs.1.top_logprobs.0.logprob", "0", "top_logprobs", "1")
	evs := stream(t, parse(t, testEnv(), "responses", with("responses", include+`,"stream":true`)), lifecycle.ReasonStop, "a", "b")
	want(t, evs[4].data, "logprobs.0.token", `"a"`)
	want(t, evs[6].data, "logprobs.1.token", `"b"`)
	want(t, evs[9].data, "response.output.0.content.0.logprobs.1.token", `"b"`)
	want(t, body(t, parse(t, testEnv(), "responses", with("responses", `"top_logprobs":1`)), lifecycle.ReasonStop, "a"), "output.0.content.0.logprobs", "[]")
}

func TestStreamedAndUnstreamedTextsAreEqual(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ep := rapid.SampledFrom(endpoints).Draw(rt, "endpoint")
		texts := rapid.SliceOfN(rapid.String(), 1, 8).Draw(rt, "texts")
		whole := strings.Join(texts, "")
		got := ""
		evs := stream(t, parse(t, testEnv(), ep, with(ep, `"stream":true`)), lifecycle.ReasonStop, texts...)
		for _, e := range evs {
			if strings.ContainsAny(e.raw, "\u0085\u2028\u2029\n\r") {
				rt.Fatalf("a line end within an event: %q", e.raw)
			}
			if d, ok := get(e.data, "delta").(string); ok && d != missing {
				got += d
			}
		}
		if ep != "responses" {
			got = content(evs, 0)
		}
		if got != whole {
			rt.Fatalf("streamed %q, want %q", got, whole)
		}
		path := map[string]string{"chat": "choices.0.message.content", "completion": "choices.0.text", "responses": "output.0.content.0.text"}[ep]
		if v := get(body(t, parse(t, testEnv(), ep, with(ep, "")), lifecycle.ReasonStop, texts...), path); v != whole {
			rt.Fatalf("unstreamed %q, want %q", v, whole)
		}
	})
}

func TestStringsRoundTripThroughJSON(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(rt, "bytes")) + rapid.String().Draw(rt, "string")
		var got string
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil || got != strings.ToValidUTF8(s, "\ufffd") && got != string([]rune(s)) {
			rt.Fatalf("%q became %q (%v)", s, got, err)
		}
		if quoted := appendString(nil, s); unquote(quoted) != got {
			rt.Fatalf("unquote(%s) = %q", quoted, unquote(quoted))
		}
	})
}

func TestLogprobsAreFiniteNumbers(t *testing.T) {
	for v, want := range map[float32]string{0: "0", -0.5: "-0.5", float32(math.Inf(-1)): "-9999", float32(math.Inf(1)): "-9999", -1e9: "-9999"} {
		if got := string(appendLogprob(nil, v)); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
	if got := string(appendLogprob(nil, float32(math.NaN()))); got != "-9999" {
		t.Error(got)
	}
	if got := string(appendLogprob(nil, float32(math.Copysign(0, -1)))); got != "0" {
		t.Error(got)
	}
}
