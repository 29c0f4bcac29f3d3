package openai

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/lifecycle"
)

// checkParse is what must hold for any body: no panic, a 4xx error with an answer that is JSON, or
// a request that can be carried out and answered.
func checkParse(t *testing.T, endpoint string, b []byte) {
	e := testEnv(withMetrics)
	before := string(b)
	j, err := tryParse(e, endpoint, b)
	if string(b) != before {
		t.Fatal("parsing changed the body")
	}
	if err != nil {
		if err.Status < 400 || err.Status > 499 || err.Message == "" {
			t.Fatalf("%+v", err)
		}
		if !json.Valid(AppendError(nil, err)) {
			t.Fatalf("the error's answer is not JSON: %s", AppendError(nil, err))
		}
		return
	}
	if !json.Valid(withoutBOM(b)) {
		t.Fatalf("accepted what is not JSON: %q", b)
	}
	req, p := &j.Request, j.Request.Params
	if len(req.Prompts) == 0 || req.N < 1 || req.Sequences() > maxSequences {
		t.Fatalf("%+v", req)
	}
	for _, ids := range req.Prompts {
		if len(ids) == 0 || len(ids) > e.MaxModelLen {
			t.Fatalf("a prompt of %d tokens", len(ids))
		}
		for _, id := range ids {
			if id < 0 || int(id) >= e.Vocab {
				t.Fatalf("token %d", id)
			}
		}
	}
	least := 1
	if req.Echo {
		least = 0
	}
	if p.MaxTokens < least || p.MaxTokens > e.MaxModelLen || p.MinTokens > p.MaxTokens || !(p.Temperature >= 0 && p.Temperature <= 2) ||
		!(p.TopP > 0 && p.TopP <= 1) || !(p.MinP >= 0 && p.MinP <= 1) || p.TopK < 0 || !(p.RepetitionPenalty > 0) ||
		p.Logprobs > 20 || p.PromptLogprobs > 20 || slices.Contains(p.Stop, "") {
		t.Fatalf("%+v", p)
	}
	j.SetID("")
	var v any
	if req.Sequences() > 64 || json.Unmarshal(withoutBOM(b), &v) != nil {
		return // too many to try, or numbers like 1e999, which an answer may repeat and Go cannot hold
	}
	if req.Stream {
		stream(t, j, lifecycle.ReasonStop, "a", "")
	} else {
		body(t, j, lifecycle.ReasonStop, "a", "")
	}
}

func withoutBOM(b []byte) []byte { return []byte(strings.TrimPrefix(string(b), "\ufeff")) }

// seeds adds bodies that reach every field.
func seeds(f *testing.F, endpoint string, more ...string) {
	for _, m := range append(more,
		``,
		`"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"n":2,"logprobs":null`,
		`"temperature":0.5,"top_p":0.7,"top_k":5,"min_p":0.1,"seed":-1,"repetition_penalty":1.2,"presence_penalty":-2,"frequency_penalty":2`,
		`"logit_bias":{"5":1000,"x":-1},"allowed_token_ids":[9,3,9],"min_tokens":2,"ignore_eos":true,"stop":["x","yz"],"stop_token_ids":[8,2]`,
		`"model":"tiny","user":"\ud83d\ude00\ud83d","metadata":{"a":"b"},"cache_salt":"s","priority":-3,"request_id":"r"`,
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1,2.0,1e400]}}}],"tool_choice":"none","documents":[{"a":"b"}],"chat_template_kwargs":{"x":1}`,
		`"response_format":{"type":"text"},"modalities":["text"],"max_tokens":1e1,"max_completion_tokens":4,"truncate_prompt_tokens":-1,"truncation_side":"left"`,
	) {
		f.Add([]byte(with(endpoint, m)))
	}
	f.Add([]byte(`{"a":[[[[{"b":"\u00e9\\\"\/"}]]]],"a":-0.0e-7,"c":tru`))
	f.Add([]byte("\ufeff{}"))
}

func FuzzParseChat(f *testing.F) {
	seeds(f, "chat", `"logprobs":true,"top_logprobs":2,"prompt_logprobs":1,"return_token_ids":true,"return_prompt_text":true`,
		`"messages":[{"role":"system","content":[{"type":"text","text":"a"},"b"]},{"role":"assistant","content":null,"reasoning":"r","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"x"}]`,
		`"messages":[{"role":"assistant","content":"a b"}],"continue_final_message":true,"add_generation_prompt":false,"echo":true`,
		`"n":128,"logprobs":true,"top_logprobs":20,"truncate_prompt_tokens":1`)
	f.Fuzz(func(t *testing.T, b []byte) { checkParse(t, "chat", b) })
}

func FuzzParseCompletion(f *testing.F) {
	seeds(f, "completion", `"prompt":["a","b"],"echo":true,"logprobs":2,"max_tokens":0`, `"prompt":[[1,2],[3]],"prompt_logprobs":1`, `"prompt":[1,2,3],"best_of":1`,
		`"prompt":"\u0000","add_special_tokens":false,"return_tokens_as_token_ids":true,"logprobs":1,"suffix":""`)
	f.Fuzz(func(t *testing.T, b []byte) { checkParse(t, "completion", b) })
}

func FuzzParseResponse(f *testing.F) {
	seeds(f, "responses", `"include":["message.output_text.logprobs"],"top_logprobs":2,"instructions":"i","max_output_tokens":3,"reasoning":{"effort":"low","summary":"auto"}`,
		`"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"message","role":"assistant","status":"incomplete","content":[{"type":"output_text","text":"b"}]}],"truncation":"auto"`,
		`"text":{"format":{"type":"text"},"verbosity":"low"},"previous_response_id":"x","store":false,"max_tool_calls":2`, `"n":1,"max_tokens":3`)
	f.Fuzz(func(t *testing.T, b []byte) { checkParse(t, "responses", b) })
}

// FuzzSSE streams a text cut at arbitrary places, with whatever bytes it has, and reads it back.
func FuzzSSE(f *testing.F) {
	f.Add("Hello\n\nworld", uint16(0b1010), uint8(0))
	f.Add("data: [DONE]\r\n\r\nevent: x\u0085\u2028\u2029", uint16(0xffff), uint8(1))
	f.Add("\x00\x1f\"\\\xff\xc3é😀\ufffd</script>", uint16(0x0f0f), uint8(2))
	f.Fuzz(func(t *testing.T, text string, cuts uint16, endpoint uint8) {
		ep := endpoints[int(endpoint)%len(endpoints)]
		var texts []string
		from := 0
		for i := range text {
			if i > 0 && cuts>>(i%16)&1 == 1 {
				texts = append(texts, text[from:i])
				from = i
			}
		}
		texts = append(texts, text[from:])
		got := ""
		evs := stream(t, parse(t, testEnv(), ep, with(ep, `"stream":true`)), lifecycle.ReasonLength, texts...)
		for _, e := range evs {
			if d, ok := get(e.data, "delta").(string); ok && d != missing {
				got += d
			}
		}
		if ep != "responses" {
			got = content(evs, 0)
		}
		if want := string([]rune(text)); got != want { // each byte that is no UTF-8 is one U+FFFD
			t.Fatalf("%s: %q came back as %q", ep, want, got)
		}
	})
}
