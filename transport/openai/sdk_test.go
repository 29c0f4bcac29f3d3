package openai

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/responses"

	"github.com/troupe-llm/troupe/lifecycle"
)

// The answers, decoded by the types of OpenAI's own Go client.

// metricsOf reads the metrics object as a client of the SDK must: from the fields that it does not
// know.
func metricsOf(t *testing.T, extra map[string]respjson.Field) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(extra["metrics"].Raw()), &m); err != nil {
		t.Fatalf("metrics: %v", err)
	}
	return m
}

func TestTheSDKReadsChatCompletions(t *testing.T) {
	j := parse(t, testEnv(withMetrics), "chat", with("chat", `"logprobs":true,"top_logprobs":2`))
	_, r := play(j, lifecycle.ReasonLength, "Hello", " world")
	var c sdk.ChatCompletion
	if err := json.Unmarshal(j.Encoder.Body(r), &c); err != nil {
		t.Fatal(err)
	}
	if c.ID != "chatcmpl-id-1" || c.Created != 1234 || c.Model != "tiny" || c.Object != "chat.completion" || len(c.Choices) != 1 ||
		c.Choices[0].Message.Content != "Hello world" || c.Choices[0].Message.Role != "assistant" || c.Choices[0].FinishReason != "length" ||
		c.Usage.CompletionTokens != 2 || c.Usage.PromptTokensDetails.CachedTokens != 3 || c.Usage.TotalTokens != int64(2+len(j.Request.Prompts[0])) {
		t.Errorf("%+v", c)
	}
	l := c.Choices[0].Logprobs.Content
	if len(l) != 2 || l[0].Token != "a" || l[0].Logprob != -0.5 || l[0].Bytes[0] != 'a' || len(l[0].TopLogprobs) != 2 {
		t.Errorf("%+v", l)
	}
	if m := metricsOf(t, c.JSON.ExtraFields); m["queue_time_ms"] != 12.3 {
		t.Errorf("%v", m)
	}
}

func TestTheSDKAccumulatesChatStreams(t *testing.T) {
	j := parse(t, testEnv(withMetrics), "chat", with("chat", `"stream":true,"n":2,"stream_options":{"include_usage":true},"logprobs":true`))
	var acc sdk.ChatCompletionAccumulator
	evs := stream(t, j, lifecycle.ReasonStop, "Hello", " ", "world")
	for _, e := range evs[:len(evs)-1] {
		var chunk sdk.ChatCompletionChunk
		if err := json.Unmarshal([]byte(e.raw), &chunk); err != nil {
			t.Fatal(err)
		}
		if !acc.AddChunk(chunk) {
			t.Fatalf("the accumulator refuses %s", e.raw)
		}
	}
	if len(acc.Choices) != 2 || acc.Choices[1].Message.Content != "Hello world" || acc.Choices[0].FinishReason != "stop" ||
		acc.Usage.CompletionTokens != 6 || len(acc.Choices[0].Logprobs.Content) != 3 {
		t.Errorf("%+v", acc.ChatCompletion)
	}
	one := parse(t, testEnv(withMetrics), "chat", with("chat", `"stream":true,"stream_options":{"include_usage":true}`))
	evs = stream(t, one, lifecycle.ReasonStop, "a", "b")
	var last sdk.ChatCompletionChunk
	if err := json.Unmarshal([]byte(evs[len(evs)-2].raw), &last); err != nil {
		t.Fatal(err)
	}
	if m := metricsOf(t, last.JSON.ExtraFields); m["time_to_first_token_ms"] != 85.2 || last.Usage.CompletionTokens != 2 || len(last.Choices) != 0 {
		t.Errorf("%v %+v", m, last)
	}
}

func TestTheSDKReadsCompletions(t *testing.T) {
	j := parse(t, testEnv(withMetrics), "completion", with("completion", `"logprobs":1,"echo":true`))
	_, r := play(j, lifecycle.ReasonStop, "a", "b")
	var c sdk.Completion
	if err := json.Unmarshal(j.Encoder.Body(r), &c); err != nil {
		t.Fatal(err)
	}
	if c.Object != "text_completion" || c.Choices[0].Text != "Hiab" || c.Choices[0].FinishReason != "stop" || len(c.Choices[0].Logprobs.Tokens) != len(j.Request.Prompts[0])+2 ||
		c.Choices[0].Logprobs.TextOffset[1] != 1 || c.Choices[0].Logprobs.TokenLogprobs[1] != -0.5 {
		t.Errorf("%+v", c)
	}
	j = parse(t, testEnv(), "completion", `{"prompt":["a","b"],"stream":true}`)
	text := map[int64]string{}
	evs := stream(t, j, lifecycle.ReasonStop, "x", "y")
	for _, e := range evs[:len(evs)-1] {
		var c sdk.Completion
		if err := json.Unmarshal([]byte(e.raw), &c); err != nil {
			t.Fatal(err)
		}
		text[c.Choices[0].Index] += c.Choices[0].Text
	}
	if text[0] != "xy" || text[1] != "xy" {
		t.Errorf("%v", text)
	}
}

func TestTheSDKReadsResponses(t *testing.T) {
	j := parse(t, testEnv(withMetrics), "responses", with("responses", `"instructions":"Be brief.","metadata":{"k":"v"},"max_output_tokens":9,"temperature":0.5`))
	_, r := play(j, lifecycle.ReasonLength, "Hello", " world")
	raw := j.Encoder.Body(r)
	var resp responses.Response
	if err := json.Unmarshal(raw, &resp); err != nil {
		t.Fatal(err)
	}
	if resp.ID != "resp_id-1" || resp.OutputText() != "Hello world" || resp.Status != "incomplete" || resp.IncompleteDetails.Reason != "max_output_tokens" ||
		resp.CreatedAt != 1234 || resp.Metadata["k"] != "v" || resp.MaxOutputTokens != 9 || resp.Temperature != 0.5 || resp.TopP != 1 ||
		resp.Instructions.OfString != "Be brief." || !resp.ParallelToolCalls || resp.Usage.OutputTokens != 2 || resp.Usage.InputTokensDetails.CachedTokens != 3 ||
		resp.Text.Format.Type != "text" || resp.Truncation != "disabled" || resp.Output[0].Role != "assistant" {
		t.Errorf("%+v", resp)
	}
	// Every field that the SDK's type has must be there, but those of OpenAI's own services.
	optional := map[string]bool{"image": true, "input_transformations": true, "moderation": true, "prompt_cache_diagnostics": true,
		"prompt_cache_options": true, "tool_usage": true}
	have := decode(t, raw)
	for _, name := range jsonNames(resp) {
		if get(have, name) == missing && !optional[name] {
			t.Errorf("the response lacks %s", name)
		}
	}
	for _, name := range []string{"input_tokens", "output_tokens", "total_tokens", "input_tokens_details.cached_tokens", "input_tokens_details.cache_write_tokens", "output_tokens_details.reasoning_tokens"} {
		if _, ok := get(have, "usage."+name).(float64); !ok {
			t.Errorf("usage lacks %s", name)
		}
	}
	if m := metricsOf(t, resp.JSON.ExtraFields); m["queue_time_ms"] != 12.3 {
		t.Errorf("%v", m)
	}
}

// jsonNames are the JSON names of a struct's fields.
func jsonNames(v any) (names []string) {
	for f := range reflect.TypeOf(v).Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

func TestTheSDKReadsResponseStreams(t *testing.T) {
	j := parse(t, testEnv(withMetrics), "responses", with("responses", `"stream":true,"include":["message.output_text.logprobs"],"top_logprobs":2`))
	text, last := "", ""
	for i, e := range stream(t, j, lifecycle.ReasonStop, "Hello", " world") {
		var u responses.ResponseStreamEventUnion
		if err := json.Unmarshal([]byte(e.raw), &u); err != nil {
			t.Fatal(err)
		}
		if u.SequenceNumber != int64(i) || u.Type != e.name {
			t.Errorf("event %d: %s %d", i, u.Type, u.SequenceNumber)
		}
		last = u.Type
		switch ev := u.AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			text += ev.Delta
			if len(ev.Logprobs) != 1 || len(ev.Logprobs[0].TopLogprobs) != 2 {
				t.Errorf("%+v", ev.Logprobs)
			}
		case responses.ResponseTextDoneEvent:
			if ev.Text != text || ev.ItemID != "msg_id-1" {
				t.Errorf("%+v", ev)
			}
		case responses.ResponseOutputItemDoneEvent:
			if ev.Item.Content[0].Text != text {
				t.Errorf("%+v", ev.Item)
			}
		case responses.ResponseCompletedEvent:
			if ev.Response.OutputText() != text || ev.Response.Status != "completed" {
				t.Errorf("%+v", ev.Response)
			}
			if m := metricsOf(t, ev.Response.JSON.ExtraFields); len(m) != 6 {
				t.Errorf("%v", m)
			}
		case nil:
			t.Errorf("the SDK does not know the event %s", e.raw)
		}
	}
	if text != "Hello world" || last != "response.completed" {
		t.Errorf("%q, %s", text, last)
	}
}

func TestTheSDKReadsErrors(t *testing.T) {
	for _, c := range []struct {
		err  lifecycle.Error
		want string
	}{{lifecycle.Error{Status: 404, Type: "invalid_request_error", Param: "model", Message: "m"}, "model"}} {
		var body struct {
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(AppendError(nil, &c.err), &body); err != nil {
			t.Fatal(err)
		}
		var e sdk.Error
		if err := json.Unmarshal(body.Error, &e); err != nil {
			t.Fatal(err)
		}
		if e.Param != c.want || e.Message != "m" || e.Type != "invalid_request_error" || fmt.Sprint(e.Code) != "404" {
			t.Errorf("%+v", e)
		}
	}
}
