package openai

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model/tiny"
)

// with adds members to a minimal body of an endpoint.
func with(endpoint, members string) string {
	base := map[string]string{
		"chat":       `"messages":[{"role":"user","content":"Hi"}]`,
		"completion": `"prompt":"Hi"`,
		"responses":  `"input":"Hi"`,
	}[endpoint]
	if members != "" {
		members = "," + members
	}
	return "{" + base + members + "}"
}

var endpoints = []string{"chat", "completion", "responses"}

func TestWhatARequestLeavesOutHasTheAPIsDefaults(t *testing.T) {
	e := testEnv()
	for _, ep := range endpoints {
		j := parse(t, e, ep, with(ep, `"seed":7`))
		p := *j.Request.Params
		maxTokens := 16
		if ep != "completion" {
			maxTokens = e.MaxModelLen - len(j.Request.Prompts[0])
		}
		want := lifecycle.Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: 7, Logprobs: -1, PromptLogprobs: -1,
			MaxTokens: maxTokens, SkipSpecialTokens: true}
		if fmt.Sprint(p) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", ep, p, want)
		}
		r := j.Request
		if r.Endpoint != ep || r.Model != "tiny" || r.N != 1 || len(r.Prompts) != 1 || r.Stream || r.Salt != 0 || r.Priority != 0 || r.Echo {
			t.Errorf("%s: %+v", ep, r)
		}
	}
}

func TestTheModelsDefaultsHoldUntilTheRequestSaysOtherwise(t *testing.T) {
	f := func(v float32) *float32 { return &v }
	k := 40
	e := testEnv(func(e *Env) {
		e.Defaults = Defaults{Temperature: f(0.6), TopP: f(0.9), MinP: f(0.05), RepetitionPenalty: f(1.1), TopK: &k}
	})
	for _, ep := range endpoints {
		p := parse(t, e, ep, with(ep, "")).Request.Params
		if p.Temperature != 0.6 || p.TopP != 0.9 || p.MinP != 0.05 || p.RepetitionPenalty != 1.1 || p.TopK != 40 {
			t.Errorf("%s: %+v", ep, p)
		}
		p = parse(t, e, ep, with(ep, `"temperature":1.5,"top_p":1,"min_p":0,"repetition_penalty":1,"top_k":-1`)).Request.Params
		if p.Temperature != 1.5 || p.TopP != 1 || p.MinP != 0 || p.RepetitionPenalty != 1 || p.TopK != 0 {
			t.Errorf("%s: %+v", ep, p)
		}
	}
}

func TestEveryHonouredFieldArrives(t *testing.T) {
	const all = `"temperature":0.5,"top_p":0.7,"top_k":5,"min_p":0.1,"seed":-9223372036854775808,
		"repetition_penalty":1.2,"presence_penalty":-2,"frequency_penalty":2,
		"logit_bias":{"5":1000,"3":-1000,"4":1.5,"5":7},"allowed_token_ids":[9,3,9],"min_tokens":2,"ignore_eos":true,
		"stop":["x","yz"],"stop_token_ids":[8,2],"include_stop_str_in_output":true,"skip_special_tokens":false,
		"priority":-3,"cache_salt":"s","stream":true`
	for _, ep := range endpoints {
		j := parse(t, testEnv(), ep, with(ep, all))
		p := j.Request.Params
		if p.Temperature != 0.5 || p.TopP != 0.7 || p.TopK != 5 || p.MinP != 0.1 || p.Seed != 1<<63 ||
			p.RepetitionPenalty != 1.2 || p.PresencePenalty != -2 || p.FrequencyPenalty != 2 ||
			!slices.Equal(p.LogitBias, []lifecycle.Bias{{ID: 3, Value: -100}, {ID: 4, Value: 1.5}, {ID: 5, Value: 7}}) ||
			!slices.Equal(p.Allowed, []int32{3, 9}) || p.MinTokens != 2 || !p.IgnoreEOS ||
			!slices.Equal(p.Stop, []string{"x", "yz"}) || !slices.Equal(p.StopTokenIDs, []int32{2, 8}) ||
			!p.IncludeStop || p.SkipSpecialTokens || j.Request.Priority != -3 || j.Request.Salt == 0 || !j.Request.Stream {
			t.Errorf("%s: %+v %+v", ep, j.Request, p)
		}
	}
}

func TestGreedyRequestsFilterNothing(t *testing.T) {
	p := parse(t, testEnv(), "chat", with("chat", `"temperature":0,"top_p":0.1,"top_k":3,"min_p":0.5`)).Request.Params
	if p.Temperature != 0 || p.TopP != 1 || p.TopK != 0 || p.MinP != 0 {
		t.Errorf("%+v", p)
	}
	if p := parse(t, testEnv(), "chat", with("chat", `"temperature":1e-6`)).Request.Params; p.Temperature != minTemperature {
		t.Errorf("a tiny temperature is %v", p.Temperature)
	}
}

func TestARequestWithoutASeedGetsOneOfTheServersOrARandomOne(t *testing.T) {
	n := uint64(41)
	e := testEnv(func(e *Env) { e.Seed = func() uint64 { n++; return n } })
	for _, seed := range []string{``, `"seed":null`, `"seed":-1`} {
		before := n
		if got := parse(t, e, "chat", with("chat", seed)).Request.Params.Seed; got != before+1 {
			t.Errorf("%q: seed %d, want %d", seed, got, before+1)
		}
	}
	a := parse(t, testEnv(), "chat", with("chat", "")).Request.Params.Seed
	b := parse(t, testEnv(), "chat", with("chat", "")).Request.Params.Seed
	if a == b {
		t.Error("two requests without a seed have the same one")
	}
}

func TestNullMeansAbsentForEveryOptionalField(t *testing.T) {
	names := []string{"model", "temperature", "top_p", "top_k", "min_p", "seed", "n", "max_tokens", "max_completion_tokens", "max_output_tokens",
		"min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs",
		"echo", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "add_generation_prompt",
		"continue_final_message", "add_special_tokens", "chat_template_kwargs", "priority", "return_token_ids", "return_tokens_as_token_ids",
		"allowed_token_ids", "truncate_prompt_tokens", "truncation_side", "stream", "stream_options", "cache_salt", "request_id", "best_of",
		"documents", "tools", "tool_choice", "reasoning_effort", "reasoning", "text", "include", "instructions", "previous_response_id",
		"truncation", "return_prompt_text"}
	for _, f := range slices.Concat(refused, refusedCompletion, refusedResponse) {
		names = append(names, f.name)
	}
	for _, f := range Ignored {
		names = append(names, f.Name)
	}
	for _, ep := range endpoints {
		plain := parse(t, testEnv(), ep, with(ep, `"seed":1`))
		var members []string
		for _, n := range names {
			if ep == "completion" && n == "prompt" || ep == "chat" && n == "messages" {
				continue
			}
			members = append(members, `"`+n+`":null`)
		}
		j := parse(t, testEnv(), ep, with(ep, strings.Join(members, ",")+`,"seed":1`))
		if fmt.Sprint(*j.Request.Params) != fmt.Sprint(*plain.Request.Params) || fmt.Sprint(j.Request.Prompts) != fmt.Sprint(plain.Request.Prompts) {
			t.Errorf("%s: %+v, want %+v", ep, j.Request.Params, plain.Request.Params)
		}
	}
}

func TestIgnoredAndUnknownFieldsChangeNothing(t *testing.T) {
	values := []string{`true`, `"auto"`, `{"a":["b",{}]}`, `[1]`, `-0.5`}
	for _, ep := range endpoints {
		plain := parse(t, testEnv(), ep, with(ep, `"seed":1`))
		for _, name := range append(fieldNames(Ignored), "bogus_field") {
			for _, v := range values {
				if name == "store" && v != "true" || name == "tool_choice" && v != `"auto"` {
					continue
				}
				if ep == "responses" && slices.Contains([]string{"user", "safety_identifier", "prompt_cache_key", "metadata", "max_tool_calls", "parallel_tool_calls"}, name) {
					continue // echoed, so their types matter
				}
				j := parse(t, testEnv(), ep, with(ep, `"seed":1,"`+name+`":`+v))
				if fmt.Sprint(*j.Request.Params, j.Request.Prompts) != fmt.Sprint(*plain.Request.Params, plain.Request.Prompts) {
					t.Errorf("%s: %s = %s changes the request", ep, name, v)
				}
			}
		}
	}
}

func fieldNames(fields []IgnoredField) (names []string) {
	for _, f := range fields {
		names = append(names, f.Name)
	}
	return names
}

func TestWhatVLLMsBenchmarkSendsIsAccepted(t *testing.T) {
	parse(t, testEnv(), "completion", `{"model":"tiny","prompt":"Hi","repetition_penalty":1.0,"max_tokens":8,"logprobs":null,"stream":true,
		"stream_options":{"include_usage":true},"ignore_eos":true,"temperature":0.0}`)
	parse(t, testEnv(), "chat", `{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"max_completion_tokens":8,
		"stream":true,"stream_options":{"include_usage":true},"store":false,"ignore_eos":true,"logprobs":null}`)
}

func TestBadRequestsNameTheFieldAndWhatWasWanted(t *testing.T) {
	long := strings.Repeat("hello ", 2000)
	all, chat, completion, responses := endpoints, []string{"chat"}, []string{"completion"}, []string{"responses"}
	for _, c := range []struct {
		endpoints   []string
		members     string // added to a minimal body, or the whole body when it begins with a brace
		param, says string
		status      int
	}{
		// Types and ranges.
		{chat, `"max_tokens":"ten"`, "max_tokens", "max_tokens must be an integer, got a string", 400},
		{chat, `"max_tokens":1.5`, "max_tokens", "must be an integer, got 1.5", 400},
		{chat, `"max_tokens":true`, "max_tokens", "got a boolean", 400},
		{chat, `"max_tokens":0`, "max_tokens", "at least 1, got 0", 400},
		{chat, `"max_completion_tokens":0`, "max_completion_tokens", "at least 1", 400},
		{responses, `"max_output_tokens":0`, "max_output_tokens", "at least 1", 400},
		{completion, `"max_tokens":0`, "max_tokens", "echo", 400},
		{completion, `"max_tokens":-1`, "max_tokens", "at least 0", 400},
		{chat, `"max_tokens":10000000`, "max_tokens", "10000000", 400},
		{chat, `"max_completion_tokens":513`, "max_completion_tokens", "512", 400},
		{completion, `"max_tokens":513`, "max_tokens", "512", 400},
		{responses, `"max_output_tokens":513`, "max_output_tokens", "512", 400},
		{all, `"temperature":-1`, "temperature", "between 0 and 2, got -1", 400},
		{all, `"temperature":2.1`, "temperature", "between 0 and 2", 400},
		{all, `"temperature":1e999`, "temperature", "finite", 400},
		{all, `"temperature":"hot"`, "temperature", "must be a number, got a string", 400},
		{all, `"top_p":0`, "top_p", "above 0 and at most 1", 400},
		{all, `"top_p":2`, "top_p", "got 2", 400},
		{all, `"top_k":-2`, "top_k", "at least -1", 400},
		{all, `"min_p":1.01`, "min_p", "between 0 and 1", 400},
		{all, `"repetition_penalty":0`, "repetition_penalty", "above 0", 400},
		{all, `"presence_penalty":2.5`, "presence_penalty", "between -2 and 2", 400},
		{all, `"frequency_penalty":-3`, "frequency_penalty", "between -2 and 2", 400},
		{all, `"seed":1e30`, "seed", "integer", 400},
		{chat, `"n":0`, "n", "between 1 and 128", 400},
		{completion, `"n":129`, "n", "between 1 and 128", 400},
		{completion, `"best_of":3,"n":2`, "best_of", "best_of is 3 and n is 2", 400},
		{all, `"min_tokens":-1`, "min_tokens", "at least 0", 400},
		{all, `"min_tokens":10000`, "min_tokens", "at most", 400},
		{all, `"logit_bias":{"x":1}`, "logit_bias", `"x"`, 400},
		{all, `"logit_bias":{"99999":1}`, "logit_bias", "99999", 400},
		{all, `"logit_bias":{"1":"a"}`, "logit_bias.1", "must be a number", 400},
		{all, `"logit_bias":[1]`, "logit_bias", "an object, got an array", 400},
		{all, `"allowed_token_ids":[]`, "allowed_token_ids", "empty", 400},
		{all, `"allowed_token_ids":[-1]`, "allowed_token_ids", "-1", 400},
		{all, `"stop_token_ids":[1.5]`, "stop_token_ids[0]", "1.5", 400},
		{all, `"stop":""`, "stop", "empty", 400},
		{all, `"stop":["a",""]`, "stop", "stop[1]", 400},
		{all, `"stop":["a",7]`, "stop[1]", "must be a string", 400},
		{all, `"stop":7`, "stop", "a string or a list", 400},
		{all, `"stop":[` + strings.Repeat(`"a",`, maxStops) + `"a"]`, "stop", "more than 64", 400},
		{all, `"stop":"` + strings.Repeat("a", maxStopBytes+1) + `"`, "stop", "bytes", 400},
		{all, `"stream":"yes"`, "stream", "a boolean, got a string", 400},
		{all, `"ignore_eos":1`, "ignore_eos", "a boolean, got 1", 400},
		{all, `"cache_salt":""`, "cache_salt", "1 to 128", 400},
		{all, `"cache_salt":"a/b"`, "cache_salt", "1 to 128", 400},
		{all, `"cache_salt":"` + strings.Repeat("é", 129) + `"`, "cache_salt", "1 to 128", 400},
		{all, `"priority":"high"`, "priority", "integer", 400},
		{all, `"model":7`, "model", "a string", 400},
		{all, `"model":"no-such-model"`, "model", "no-such-model", 404},
		// Log probabilities.
		{chat, `"top_logprobs":3`, "top_logprobs", "needs logprobs", 400},
		{chat, `"logprobs":true,"top_logprobs":21`, "top_logprobs", "between 0 and 20", 400},
		{chat, `"logprobs":5`, "logprobs", "a boolean, got 5", 400},
		{completion, `"logprobs":true`, "logprobs", "an integer, got a boolean", 400},
		{completion, `"logprobs":21`, "logprobs", "between 0 and 20", 400},
		{completion, `"prompt_logprobs":1,"stream":true`, "prompt_logprobs", "stream", 400},
		{chat, `"prompt_logprobs":-1`, "prompt_logprobs", "between 0 and 20", 400},
		// Streams.
		{chat, `"stream_options":{"include_usage":true}`, "stream_options", "stream: true", 400},
		{completion, `"stream_options":{"include_usage":true},"stream":false`, "stream_options", "stream: true", 400},
		{chat, `"stream":true,"stream_options":{"include_usage":3}`, "stream_options.include_usage", "stream_options.include_usage must be a boolean", 400},
		{chat, `"stream":true,"stream_options":[]`, "stream_options", "an object", 400},
		// What would change the answer if it were dropped.
		{all, `"response_format":{"type":"json_object"}`, "response_format", "not supported", 400},
		{all, `"response_format":"text"`, "response_format", "not supported", 400},
		{all, `"structured_outputs":{"regex":"a"}`, "structured_outputs", "not supported", 400},
		{all, `"guided_json":{}`, "guided_json", "not supported", 400},
		{all, `"use_beam_search":true`, "use_beam_search", "not supported", 400},
		{all, `"logits_processors":["x"]`, "logits_processors", "not supported", 400},
		{all, `"prompt_embeds":"AAAA"`, "prompt_embeds", "not supported", 400},
		{all, `"bad_words":["x"]`, "bad_words", "not supported", 400},
		{all, `"lora_request":{}`, "lora_request", "not supported", 400},
		{all, `"modalities":["text","audio"]`, "modalities", "not supported", 400},
		{all, `"audio":{"voice":"alloy"}`, "audio", "not supported", 400},
		{all, `"chat_template":"{{ messages }}"`, "chat_template", "--chat-template", 400},
		{completion, `"suffix":"x"`, "suffix", "not supported", 400},
		{chat, `"tools":[{"type":"function","function":{"name":"f"}}]`, "tools", "tool_choice", 400},
		{chat, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`, "tools", "not supported", 400},
		{chat, `"tool_choice":"required"`, "tool_choice", "asks for a tool", 400},
		{chat, `"tool_choice":{"type":"function","function":{"name":"f"}}`, "tool_choice", "asks for a tool", 400},
		{chat, `"functions":[{"name":"f"}]`, "functions", "not supported", 400},
		{responses, `"tools":[{"type":"web_search"}]`, "tools", "not supported", 400},
		{responses, `"background":true`, "background", "not supported", 400},
		{responses, `"conversation":"c"`, "conversation", "not supported", 400},
		{responses, `"prompt":{"id":"p"}`, "prompt", "not supported", 400},
		{responses, `"text":{"format":{"type":"json_schema"}}`, "text.format", "not supported", 400},
		// Messages.
		{chat, `{}`, "messages", "missing", 400},
		{chat, `{"messages":[]}`, "messages", "empty", 400},
		{chat, `{"messages":"Hi"}`, "messages", "an array, got a string", 400},
		{chat, `{"messages":["Hi"]}`, "messages[0]", "an object", 400},
		{chat, `{"messages":[{"content":"Hi"}]}`, "messages[0].role", "missing", 400},
		{chat, `{"messages":[{"role":"wizard","content":"Hi"}]}`, "messages[0].role", "wizard", 400},
		{chat, `{"messages":[{"role":"user","content":"Hi"},{"role":"user"}]}`, "messages[1].content", "missing", 400},
		{chat, `{"messages":[{"role":"user","content":5}]}`, "messages[0].content", "a string or a list", 400},
		{chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, "messages[0].content[0].type", "image_url", 400},
		{chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text"}]}]}`, "messages[0].content[1].text", "missing", 400},
		{chat, `{"messages":[{"role":"user","content":[{"text":"a"}]}]}`, "messages[0].content[0].type", "missing", 400},
		{chat, `{"messages":[{"role":"user","content":"Hi","name":7}]}`, "messages[0].name", "messages[0].name must be a string", 400},
		{chat, `{"messages":[{"role":"assistant","content":"Hi","tool_calls":[{"type":"function"}]}]}`, "messages[0].tool_calls[0]", "function", 400},
		{chat, `{"messages":[{"role":"assistant","content":null,"audio":{"id":"a"}}]}`, "messages[0].audio", "not supported", 400},
		{chat, `{"messages":[{"role":"user","content":"` + long + `"}]}`, "messages", "512", 400},
		{chat, `"continue_final_message":true,"add_generation_prompt":true`, "continue_final_message", "both", 400},
		{chat, `{"messages":[{"role":"assistant","content":"x"}],"continue_final_message":true}`, "continue_final_message", "add_generation_prompt: false", 400},
		{chat, `"chat_template_kwargs":{"messages":[]}`, "chat_template_kwargs", "messages", 400},
		// Prompts.
		{completion, `{}`, "prompt", "missing", 400},
		{completion, `{"prompt":""}`, "prompt", "empty", 400},
		{completion, `{"prompt":[]}`, "prompt", "empty", 400},
		{completion, `{"prompt":[[]]}`, "prompt", "prompt[0] is empty", 400},
		{completion, `{"prompt":["a",""]}`, "prompt", "empty", 400},
		{completion, `{"prompt":{"a":1}}`, "prompt", "a string, a list", 400},
		{completion, `{"prompt":[true]}`, "prompt", "a string, a list", 400},
		{completion, `{"prompt":["a",1]}`, "prompt", "prompt[1] must be a string", 400},
		{completion, `{"prompt":[99999999],"max_tokens":2}`, "prompt", "99999999", 400},
		{completion, `{"prompt":[[1],[-1]]}`, "prompt", "prompt[1][0] is -1", 400},
		{completion, `{"prompt":"` + long + `"}`, "prompt", "512", 400},
		{completion, `{"prompt":[` + strings.Repeat(`"a",`, maxPrompts) + `"a"]}`, "prompt", "more than 1024", 400},
		{completion, `{"prompt":[` + strings.Repeat(`"a",`, 31) + `"a"],"n":128}`, "n", "1024", 400},
		{completion, `"truncate_prompt_tokens":0`, "truncate_prompt_tokens", "at least 1", 400},
		{completion, `"truncate_prompt_tokens":1,"truncation_side":"middle"`, "truncation_side", "left, right", 400},
		// Responses.
		{responses, `{}`, "input", "missing", 400},
		{responses, `{"input":[]}`, "input", "empty", 400},
		{responses, `{"input":7}`, "input", "a string or a list of messages, got 7", 400},
		{responses, `{"input":[{"type":"function_call_output","call_id":"c","output":"x"}]}`, "input[0].type", "function_call_output", 400},
		{responses, `{"input":[{"role":"tool","content":"x"}]}`, "input[0].role", "role", 400},
		{responses, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}`, "input[0].content[0].type", "input_image", 400},
		{responses, `{"input":[{"role":"user"}]}`, "input[0].content", "missing", 400},
		{responses, `"previous_response_id":"resp_x"`, "previous_response_id", "resp_x", 404},
		{responses, `"metadata":{"a":1}`, "metadata.a", "must be a string", 400},
		{responses, `"truncation":"sometimes"`, "truncation", "auto, disabled", 400},
		{responses, `"include":["a",1]`, "include[1]", "must be a string", 400},
		// JSON.
		{all, `{"model": "x", "messages": [`, "", "not valid JSON", 400},
		{all, `{} x`, "", "something follows", 400},
		{all, `[1]`, "", "must be a JSON object, got an array", 400},
		{all, `{"a":NaN}`, "", "not valid JSON", 400},
		{all, `{"a":"` + "\xff" + `"}`, "", "UTF-8", 400},
		{all, `{"a":"` + "\x01" + `"}`, "", "control character", 400},
		{all, `{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "", "64", 400},
		{all, `{` + strings.Repeat(`"a":1,`, maxMembers) + `"b":2}`, "", "more than 1024 members", 400},
		{all, `{"a":01}`, "", "begin with 0", 400},
		{all, `{'a':1}`, "", "double quotes", 400},
		{all, `{"a":1,}`, "", "double quotes", 400},
		{all, `{"a":"\x"}`, "", "escape", 400},
	} {
		for _, ep := range c.endpoints {
			body := c.members
			if !strings.HasPrefix(body, "{") && !strings.HasPrefix(body, "[") {
				body = with(ep, body)
			}
			_, err := tryParse(testEnv(), ep, []byte(body))
			switch {
			case err == nil:
				t.Errorf("%s %.200s: accepted", ep, body)
			case err.Status != c.status || err.Param != c.param || !strings.Contains(err.Message, c.says):
				t.Errorf("%s %.200s: %d param %q: %s; want %d, param %q, and %q said", ep, body, err.Status, err.Param, err.Message, c.status, c.param, c.says)
			case len(err.Message) > 400:
				t.Errorf("%s %.200s: the message has %d bytes", ep, body, len(err.Message))
			}
		}
	}
	for _, ep := range endpoints {
		if _, err := tryParse(testEnv(), ep, nil); err == nil || !strings.Contains(err.Message, "empty") {
			t.Errorf("%s: an empty body gives %v", ep, err)
		}
	}
}

func TestFieldsThatAskForNothingAreNotRefused(t *testing.T) {
	for _, ep := range endpoints {
		for _, m := range []string{`"response_format":{"type":"text"}`, `"use_beam_search":false`, `"logits_processors":[]`, `"bad_words":[]`,
			`"thinking_token_budget":-1`, `"lora":[]`, `"functions":[]`, `"function_call":"none"`, `"modalities":["text"]`,
			`"logprob_token_ids":[]`, `"tools":[]`, `"tool_choice":"auto"`, `"tool_choice":"none"`, `"model":""`, `"model":"tiny-alias"`,
			`"stop":[]`, `"stop_token_ids":[]`, `"logit_bias":{}`} {
			parse(t, testEnv(), ep, with(ep, m))
		}
	}
	parse(t, testEnv(), "completion", with("completion", `"suffix":"","best_of":2,"n":2,"max_tokens":8.0`))
	parse(t, testEnv(), "responses", with("responses", `"background":false,"text":{"format":{"type":"text"}},"include":["reasoning.encrypted_content"]`))
	parse(t, testEnv(), "chat", with("chat", `"stream_options":{}`))
}

func TestOfEqualMembersTheLastCounts(t *testing.T) {
	if p := parse(t, testEnv(), "chat", with("chat", `"max_tokens":"x","max_tokens":5`)).Request.Params; p.MaxTokens != 5 {
		t.Errorf("max_tokens is %d", p.MaxTokens)
	}
}

func TestMaxCompletionTokensWinsOverMaxTokens(t *testing.T) {
	if p := parse(t, testEnv(), "chat", with("chat", `"max_tokens":5,"max_completion_tokens":6`)).Request.Params; p.MaxTokens != 6 {
		t.Errorf("%d tokens", p.MaxTokens)
	}
}

func TestTokensBeyondTheContextAreCutOff(t *testing.T) {
	e := testEnv()
	for _, ep := range endpoints {
		field := map[string]string{"chat": "max_tokens", "completion": "max_tokens", "responses": "max_output_tokens"}[ep]
		j := parse(t, e, ep, with(ep, `"`+field+`":512`))
		if got, want := j.Request.Params.MaxTokens, 512-len(j.Request.Prompts[0]); got != want {
			t.Errorf("%s: %d tokens, want %d", ep, got, want)
		}
	}
	// Of several prompts the shortest sets the bound; the context ends the others.
	long := strings.Repeat("zx", 250)
	j := parse(t, e, "completion", `{"prompt":["a","`+long+`"],"max_tokens":100}`)
	if j.Request.Params.MaxTokens != 100 {
		t.Errorf("%d tokens", j.Request.Params.MaxTokens)
	}
}

func TestAPromptThatFillsTheContextCanOnlyBeScored(t *testing.T) {
	e := testEnv(func(e *Env) { e.MaxModelLen = 4 })
	if _, err := e.ParseCompletion([]byte(`{"prompt":[3,4,5,6]}`)); err == nil || err.Param != "prompt" || err.Code != "context_length_exceeded" {
		t.Errorf("got %+v", err)
	}
	j := parse(t, e, "completion", `{"prompt":[3,4,5,6],"max_tokens":0,"echo":true,"logprobs":0}`)
	if p := j.Request.Params; p.MaxTokens != 0 || p.PromptLogprobs != 0 || !j.Request.Echo {
		t.Errorf("%+v", p)
	}
}

func TestPromptsMayBeTextsOrTokenIDs(t *testing.T) {
	e := testEnv()
	enc := func(s string) []int32 { return e.Tokenizer.Encode(s, true, true) }
	for body, want := range map[string][][]int32{
		`"the world"`:             {enc("the world")},
		`["the world"]`:           {enc("the world")},
		`["the","Hello world"]`:   {enc("the"), enc("Hello world")},
		`[5,6,7]`:                 {{5, 6, 7}},
		`[[5,6],[7]]`:             {{5, 6}, {7}},
		`"<|im_start|>user"`:      {append([]int32{tiny.IMStart}, enc("user")...)},
		`"\u00e9\ud83d\ude00"`:    {enc("é😀")},
		`"cut in half: \ud83d"`:   {enc("cut in half: \ufffd")},
		`"\ud83dx\ude00\ud83d\n"`: {enc("\ufffdx\ufffd\ufffd\n")},
	} {
		j := parse(t, e, "completion", `{"prompt":`+body+`}`)
		if fmt.Sprint(j.Request.Prompts) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", body, j.Request.Prompts, want)
		}
	}
}

func TestLongPromptsAreCutWhereTheRequestWants(t *testing.T) {
	e := testEnv()
	for members, want := range map[string][]int32{
		`"truncate_prompt_tokens":2`:                           {8, 9},
		`"truncate_prompt_tokens":2,"truncation_side":"left"`:  {8, 9},
		`"truncate_prompt_tokens":2,"truncation_side":"right"`: {5, 6},
		`"truncate_prompt_tokens":9`:                           {5, 6, 7, 8, 9},
	} {
		j := parse(t, e, "completion", `{"prompt":[5,6,7,8,9],`+members+`}`)
		if !slices.Equal(j.Request.Prompts[0], want) {
			t.Errorf("%s: %v, want %v", members, j.Request.Prompts[0], want)
		}
	}
	j := parse(t, e, "chat", `{"messages":[{"role":"user","content":"`+strings.Repeat("zx", 1000)+`"}],"truncate_prompt_tokens":-1}`)
	if n := len(j.Request.Prompts[0]); n != e.MaxModelLen-1 || j.Request.Params.MaxTokens != 1 {
		t.Errorf("%d prompt tokens, %d to generate", n, j.Request.Params.MaxTokens)
	}
}

// rendered is the prompt's text of a chat or responses request.
func rendered(e *Env, j *Job) string { return e.Tokenizer.Decode(j.Request.Prompts[0], false) }

func TestMessagesReachTheTemplate(t *testing.T) {
	e := testEnv()
	turn := func(role, content string) string { return "<|im_start|>" + role + "\n" + content + "<|im_end|>\n" }
	open := "<|im_start|>assistant\n"
	for body, want := range map[string]string{
		`{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]}`:                                                                 turn("system", "Be brief.") + turn("user", "Hi") + open,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"},"c",{"type":"text","text":""}]}]}`:                  turn("user", "a\nb\nc") + open,
		`{"messages":[{"role":"assistant","content":null},{"role":"tool","tool_call_id":"c","content":"4"}]}`:                                                   turn("assistant", "") + turn("tool", "4") + open,
		`{"messages":[{"role":"developer","content":"x"}]}`:                                                                                                     turn("system", "x") + open,
		`{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}`:                                                                            turn("user", "x"),
		`{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"The world"}],"continue_final_message":true,"add_generation_prompt":false}`:   turn("user", "x") + open + "The world",
		`{"messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\": [1, 2.0]}"}}]}]}`: turn("assistant", "x") + open,
	} {
		if got := rendered(e, parse(t, e, "chat", body)); got != want {
			t.Errorf("%s:\n%q, want\n%q", body, got, want)
		}
	}
	for body, want := range map[string]string{
		`{"input":"Hi","instructions":"Be brief."}`: turn("system", "Be brief.") + turn("user", "Hi") + open,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]},{"role":"user","content":"c"}]}`: turn("user", "a") + turn("assistant", "b") + turn("user", "c") + open,
		`{"input":[{"role":"user","content":"a"},{"type":"message","role":"assistant","status":"incomplete","content":[{"type":"output_text","text":"the wor"}]}]}`:                                                   turn("user", "a") + open + "the wor",
	} {
		if got := rendered(e, parse(t, e, "responses", body)); got != want {
			t.Errorf("%s:\n%q, want\n%q", body, got, want)
		}
	}
}

func TestWithoutATemplateChatIsRefusedAndSaysWhatToDo(t *testing.T) {
	e := testEnv(func(e *Env) { e.Template = nil })
	for _, ep := range []string{"chat", "responses"} {
		_, err := tryParse(e, ep, []byte(with(ep, "")))
		if err == nil || err.Status != 400 || !strings.Contains(err.Message, "--chat-template") {
			t.Errorf("%s: %+v", ep, err)
		}
	}
	parse(t, e, "completion", with("completion", ""))
}

func TestSaltsSeparateAndAreStable(t *testing.T) {
	salt := func(s string) uint64 {
		return parse(t, testEnv(), "chat", with("chat", `"cache_salt":"`+s+`"`)).Request.Salt
	}
	a := salt("a")
	if a != salt("a") || a == salt("b") || a == 0 {
		t.Error("salts do not separate clients")
	}
}

func TestJobsAreNamedByTheClientsRequestIDWhenItIsSane(t *testing.T) {
	for _, c := range []struct{ header, body, want string }{
		{"my-id-1", "", "chatcmpl-my-id-1"},
		{"my-id-1", "other", "chatcmpl-my-id-1"},
		{"", "body-id", "chatcmpl-body-id"},
		{"", "", ""},
		{strings.Repeat("x", 129), "", ""},
		{"a b", "", ""},
		{"a\"b", "", ""},
		{"../etc", "", ""},
		{"é", "", ""},
	} {
		j, err := testEnv().ParseChat([]byte(with("chat", `"request_id":"`+c.body+`"`)))
		if err != nil {
			t.Fatal(err)
		}
		j.SetID(c.header)
		id := j.Request.ExternalID
		if c.want != "" && id != c.want {
			t.Errorf("%q, %q: %q, want %q", c.header, c.body, id, c.want)
		}
		if c.want == "" && (len(id) != len("chatcmpl-")+32) {
			t.Errorf("%q: %q", c.header, id)
		}
		if j.Created != 1700000000 {
			t.Errorf("created is %d", j.Created)
		}
	}
}

func TestStoredResponsesAreContinued(t *testing.T) {
	e := testEnv()
	first := parse(t, e, "responses", `{"input":"a","instructions":"Never carried over."}`)
	_, r := play(first, lifecycle.ReasonStop, "the ", "world")
	b := first.Encoder.Body(r)
	s := first.Stored(r)
	if s == nil || s.ID != "resp_id-1" || string(s.Body) != string(b) {
		t.Fatalf("stored %+v", s)
	}
	find := func(id string) (*Stored, bool) { return s, id == s.ID }
	for range 2 { // continuing does not change what is stored
		j, err := e.ParseResponse([]byte(`{"input":"b","previous_response_id":"resp_id-1","instructions":"New."}`), find)
		if err != nil {
			t.Fatal(err)
		}
		want := "<|im_start|>system\nNew.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nthe world<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
		if got := rendered(e, j); got != want {
			t.Errorf("%q", got)
		}
	}
	for _, body := range []string{`{"input":"a","store":false}`} {
		j := parse(t, e, "responses", body)
		_, r := play(j, lifecycle.ReasonStop, "x")
		if j.Stored(r) != nil {
			t.Error("stored though the request said no")
		}
	}
	if j, err := e.ParseResponse([]byte(`{"input":"a"}`), nil); err != nil || j.Store {
		t.Error("stored though the server stores nothing")
	}
}

func TestTruncationAutoDropsTheOldestMessages(t *testing.T) {
	e := testEnv()
	item := func(i int) string {
		return fmt.Sprintf(`{"role":"user","content":"%02d %s"}`, i, strings.Repeat("zx", 20))
	}
	var items []string
	for i := range 30 {
		items = append(items, item(i))
	}
	input := `"input":[` + strings.Join(items, ",") + `],"instructions":"Keep me."`
	if _, err := tryParse(e, "responses", []byte(`{`+input+`}`)); err == nil || err.Code != "context_length_exceeded" {
		t.Fatalf("too long a conversation: %+v", err)
	}
	j := parse(t, e, "responses", `{`+input+`,"truncation":"auto"}`)
	text := rendered(e, j)
	n := strings.Count(text, "<|im_start|>user")
	if !strings.Contains(text, "Keep me.") || !strings.Contains(text, "\n29 ") || !strings.Contains(text, fmt.Sprintf("\n%02d ", 30-n)) || n < 5 || n > 12 {
		t.Errorf("kept %d messages: %q", n, text)
	}
	if len(j.Request.Prompts[0]) >= e.MaxModelLen || len(j.Request.Prompts[0]) < e.MaxModelLen-80 {
		t.Errorf("%d prompt tokens", len(j.Request.Prompts[0]))
	}
	if _, err := tryParse(e, "responses", []byte(`{"input":[`+item(0)+`,{"role":"user","content":"`+strings.Repeat("zx", 600)+`"}],"truncation":"auto"}`)); err == nil || err.Code != "context_length_exceeded" {
		t.Errorf("a last message that is too long alone: %+v", err)
	}
}

func TestTokenizeAndDetokenizeAreInverse(t *testing.T) {
	e := testEnv()
	out, err := e.Tokenize([]byte(`{"prompt":"Hello world","return_token_strs":true}`))
	if err != nil {
		t.Fatal(err)
	}
	v := decode(t, out)
	ids := e.Tokenizer.Encode("Hello world", true, true)
	want(t, v, "count", fmt.Sprint(len(ids)), "max_model_len", "512", "tokens", strings.ReplaceAll(fmt.Sprint(ids), " ", ","))
	if strs, ok := get(v, "token_strs").([]any); !ok || len(strs) != len(ids) {
		t.Errorf("token_strs is %v", get(v, "token_strs"))
	}
	out, err = e.Detokenize([]byte(`{"tokens":` + strings.ReplaceAll(fmt.Sprint(ids), " ", ",") + `}`))
	if err != nil {
		t.Fatal(err)
	}
	want(t, decode(t, out), "prompt", `"Hello world"`)

	out, err = e.Tokenize([]byte(`{"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	j := parse(t, e, "chat", with("chat", ""))
	want(t, decode(t, out), "count", fmt.Sprint(len(j.Request.Prompts[0])), "token_strs", "null")

	for _, body := range []string{``, `{}`, `{"prompt":7}`, `{"messages":[]}`, `{"prompt":"a","model":"x"}`} {
		if _, err := e.Tokenize([]byte(body)); err == nil || err.Status < 400 || err.Status > 499 {
			t.Errorf("tokenize %s: %v", body, err)
		}
	}
	for _, body := range []string{``, `{}`, `{"tokens":"a"}`, `{"tokens":[-1]}`, `{"tokens":[99999]}`, `{"tokens":[1.5]}`} {
		if _, err := e.Detokenize([]byte(body)); err == nil || err.Status != 400 {
			t.Errorf("detokenize %s: %v", body, err)
		}
	}
}

func TestModelsAreListedWithTheirRoot(t *testing.T) {
	e := testEnv()
	want(t, decode(t, e.AppendModels(nil)), "object", `"list"`, "data.0.id", `"tiny"`, "data.1.id", `"tiny-alias"`, "data.0.object", `"model"`,
		"data.0.root", `"/models/tiny.gguf"`, "data.0.max_model_len", "512", "data.0.created", "1700000000", "data.2", missing)
	b, err := e.AppendModel(nil, "tiny-alias")
	if err != nil {
		t.Fatal(err)
	}
	want(t, decode(t, b), "id", `"tiny-alias"`)
	if _, err := e.AppendModel(nil, "x"); err == nil || err.Status != 404 {
		t.Errorf("got %v", err)
	}
}

func TestParsingKeepsNothingOfTheBody(t *testing.T) {
	for _, c := range [][2]string{
		{"chat", with("chat", `"stop":["abc"],"request_id":"rid","tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"`)},
		{"completion", with("completion", `"stop":"abc","echo":true`)},
		{"responses", with("responses", `"stop":"abc","metadata":{"k":"v"},"user":"u","instructions":"i"`)},
	} {
		body := []byte(c[1])
		j, err := tryParse(testEnv(), c[0], body)
		if err != nil {
			t.Fatal(err)
		}
		twin, _ := tryParse(testEnv(), c[0], []byte(c[1]))
		for i := range body {
			body[i] = 'X'
		}
		j.SetID("")
		twin.SetID(strings.TrimPrefix(j.Request.ExternalID, j.answer.prefix))
		_, r := play(j, lifecycle.ReasonStop, "x")
		if a, b := string(j.Encoder.Body(r)), string(twin.Encoder.Body(r)); a != b {
			t.Errorf("%s: the answer changes with the body's memory:\n%s\n%s", c[0], a, b)
		}
		if !slices.Equal(j.Request.Params.Stop, []string{"abc"}) {
			t.Errorf("%s: stop is %q", c[0], j.Request.Params.Stop)
		}
	}
}

func TestAnyInt64IsASeed(t *testing.T) {
	for _, v := range []int64{0, 1, -2, math.MaxInt64, math.MinInt64} {
		if got := parse(t, testEnv(), "chat", with("chat", fmt.Sprintf(`"seed":%d`, v))).Request.Params.Seed; got != uint64(v) {
			t.Errorf("seed %d became %d", v, got)
		}
	}
}
