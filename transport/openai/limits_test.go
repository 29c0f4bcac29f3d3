package openai

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
)

// prose is text of words, numbers, punctuation and characters of several bytes.
func prose(words int) string {
	some := []string{"the", " river", " 2024", ",", " naïve", "\n\n", " 世界", "  ", " can't", " 😀", ".", "zx", "<|im_end|>", " Q"}
	var b strings.Builder
	for i, x := 0, uint32(7); i < words; i++ {
		x = x*1664525 + 1013904223
		b.WriteString(some[x>>16%uint32(len(some))])
	}
	return b.String()
}

func TestTruncationKeepsTheSameTokensThoughTheTextIsCutBefore(t *testing.T) {
	e := testEnv()
	text := prose(60000)
	all := e.Tokenizer.Encode(text, true, true)
	for _, keep := range []int{1, 10, 100, 511} {
		for _, side := range []string{"left", "right"} {
			want := all[len(all)-keep:]
			if side == "right" {
				want = all[:keep]
			}
			body := fmt.Sprintf(`{"prompt":%s,"truncate_prompt_tokens":%d,"truncation_side":%q,"echo":true,"max_tokens":1}`, appendString(nil, text), keep, side)
			j := parse(t, e, "completion", body)
			if !slices.Equal(j.Request.Prompts[0], want) {
				t.Errorf("%s, %d kept: %v, want %v", side, keep, j.Request.Prompts[0], want)
			}
			if got, want := j.Encoder.(*completionEncoder).echoes[0], strings.ToValidUTF8(e.Tokenizer.Decode(want, false), "\ufffd"); got != want {
				t.Errorf("%s, %d kept: the echo is %q, want %q", side, keep, got, want)
			}
		}
	}
	chat := parse(t, e, "chat", fmt.Sprintf(`{"messages":[{"role":"user","content":%s}],"truncate_prompt_tokens":-1}`, appendString(nil, text)))
	whole := e.Tokenizer.Encode("<|im_start|>user\n"+text+"<|im_end|>\n<|im_start|>assistant\n", false, true)
	if !slices.Equal(chat.Request.Prompts[0], whole[len(whole)-511:]) {
		t.Error("a chat's prompt that is cut differs from the whole one's end")
	}
}

func TestTextIsCutAtACharacterWithinItsBound(t *testing.T) {
	e := testEnv()
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.StringN(1, 5, -1).Draw(t, "unit")
		text := strings.Repeat(unit, rapid.IntRange(1, 3000).Draw(t, "times"))
		c := cut{keep: rapid.IntRange(1, 511).Draw(t, "keep"), right: rapid.Bool().Draw(t, "right")}
		got := e.shorten(text, c)
		most := (c.keep + cutMargin) * e.longestToken()
		switch {
		case len(text) <= most && got != text:
			t.Fatal("cut though it is short")
		case len(got) > most || len(text) > most && len(got) < most-utf8.UTFMax:
			t.Fatalf("%d bytes of %d are left; the bound is %d", len(got), len(text), most)
		case c.right && !strings.HasPrefix(text, got), !c.right && !strings.HasSuffix(text, got), utf8.ValidString(text) != utf8.ValidString(got):
			t.Fatal("not an end of the text in whole characters")
		}
		if len(got) < len(text) {
			if ids := e.Tokenizer.Encode(got, false, true); len(ids) < c.keep+cutMargin-1 {
				t.Fatalf("what is left has %d tokens, to keep %d", len(ids), c.keep)
			}
		}
	})
}

func TestWhatIsNotCutIsKeptWhole(t *testing.T) {
	e := testEnv()
	text := strings.Repeat("zx", 200)
	j := parse(t, e, "completion", `{"prompt":"`+text+`","truncate_prompt_tokens":511,"echo":true,"max_tokens":1}`)
	if c := j.Encoder.(*completionEncoder); c.echoes[0] != text || !slices.Equal(j.Request.Prompts[0], e.Tokenizer.Encode(text, true, true)) {
		t.Errorf("%q, %v", c.echoes[0], j.Request.Prompts[0])
	}
}

// refusedFor checks that a body is refused with a 400 that names a field and says things.
func refusedFor(t *testing.T, e *Env, endpoint, body, param string, says ...string) {
	t.Helper()
	_, err := tryParse(e, endpoint, []byte(body))
	if err == nil {
		t.Errorf("%s %.200s: accepted", endpoint, body)
		return
	}
	if err.Status != 400 || err.Param != param || len(err.Message) > 500 {
		t.Errorf("%s %.200s: %d, param %q: %s", endpoint, body, err.Status, err.Param, err.Message)
	}
	for _, s := range says {
		if !strings.Contains(err.Message, s) {
			t.Errorf("%s %.200s: %q does not say %q", endpoint, body, err.Message, s)
		}
	}
}

func TestAnswersThatCouldBeHugeAreRefused(t *testing.T) {
	e := testEnv(func(e *Env) { e.MaxModelLen = 8192 })
	ids := func(n, prompts int) string {
		one := "[" + strings.Repeat("100,", n-1) + "100]"
		return "[" + strings.Repeat(one+",", prompts-1) + one + "]"
	}
	refusedFor(t, e, "completion", `{"prompt":`+ids(8191, 8)+`,"n":128,"max_tokens":0,"echo":true,"logprobs":20}`, "logprobs",
		fmt.Sprint(8191*8*128*21), "1024 choices", fmt.Sprint(maxEntries), "max_tokens")
	refusedFor(t, e, "completion", `{"prompt":`+ids(8000, 1)+`,"n":30,"prompt_logprobs":20}`, "prompt_logprobs", fmt.Sprint(8000*30*21))
	refusedFor(t, e, "completion", `{"prompt":`+ids(8000, 8)+`,"n":128,"return_token_ids":true}`, "return_token_ids", fmt.Sprint(8000*8*128))
	refusedFor(t, e, "completion", `{"prompt":`+ids(10, 2)+`,"n":100,"logprobs":5,"max_tokens":8000}`, "logprobs", fmt.Sprint(2*100*8000*6), "fewer")
	refusedFor(t, e, "chat", with("chat", `"logprobs":true,"top_logprobs":20,"n":128`), "top_logprobs", "max_tokens")
	refusedFor(t, e, "chat", with("chat", `"logprobs":true,"top_logprobs":20,"n":128,"max_completion_tokens":4000`), "top_logprobs", fmt.Sprint(4000*128*21), "max_completion_tokens")
	// What is within the bound passes: the whole context with every alternative, many short choices.
	parse(t, e, "completion", `{"prompt":`+ids(8191, 8)+`,"max_tokens":1,"echo":true,"logprobs":20}`)
	parse(t, e, "completion", `{"prompt":`+ids(4, 8)+`,"n":128,"max_tokens":100,"echo":true,"logprobs":20}`)
	parse(t, e, "completion", `{"prompt":`+ids(8000, 8)+`,"n":128,"max_tokens":192}`)
	parse(t, e, "chat", with("chat", `"logprobs":true,"top_logprobs":20,"n":128,"max_tokens":1000`))
	parse(t, e, "responses", with("responses", `"include":["message.output_text.logprobs"],"top_logprobs":20`))
	big := testEnv(func(e *Env) { e.MaxModelLen = 1 << 20 })
	refusedFor(t, big, "responses", with("responses", `"include":["message.output_text.logprobs"],"top_logprobs":20`), "top_logprobs", "max_output_tokens")
}

func TestTheBoundOnEntriesIsExact(t *testing.T) {
	e := testEnv(func(e *Env) { e.MaxModelLen = 1 << 20 })
	req := &lifecycle.Request{Prompts: [][]int32{make([]int32, 1<<10), make([]int32, 3<<10)}, N: 8,
		Params: &lifecycle.Params{MaxTokens: 1 << 17, Logprobs: 0, PromptLogprobs: -1}}
	if err := e.weigh(req, weight{}); err == nil && 2*8<<17 > maxEntries {
		t.Error("accepted")
	}
	req.Params.MaxTokens = maxEntries / 16
	if err := e.weigh(req, weight{}); err != nil {
		t.Error(err)
	}
	req.Params.MaxTokens++
	if err := e.weigh(req, weight{logprobs: "logprobs"}); err == nil || err.Param != "logprobs" {
		t.Errorf("%v", err)
	}
	req.Params.Logprobs, req.Params.PromptLogprobs = -1, maxEntries/(32<<10)-2
	if err := e.weigh(req, weight{returnIDs: true}); err != nil {
		t.Error(err)
	}
	req.Params.PromptLogprobs++
	if err := e.weigh(req, weight{promptLogprobs: "prompt_logprobs", returnIDs: true}); err == nil || err.Param != "prompt_logprobs" {
		t.Errorf("%v", err)
	}
}

func TestRepeatedPromptTextIsBounded(t *testing.T) {
	e := testEnv(func(e *Env) { e.MaxModelLen = 1 << 20 })
	text := strings.Repeat("zx ", maxRepeated/128/3+1)
	refusedFor(t, e, "completion", `{"prompt":"`+text+`","n":128,"echo":true}`, "echo", fmt.Sprint(len(text)*128), fmt.Sprint(maxRepeated))
	refusedFor(t, e, "chat", `{"messages":[{"role":"user","content":"`+text+`"}],"n":128,"return_prompt_text":true}`, "return_prompt_text", "bytes of prompt text")
	refusedFor(t, e, "chat", `{"messages":[{"role":"assistant","content":"`+text+`"}],"n":128,"echo":true,"continue_final_message":true,"add_generation_prompt":false}`, "echo", "bytes of prompt text")
	parse(t, e, "completion", `{"prompt":"`+text+`","n":127,"echo":true}`)
	parse(t, e, "completion", `{"prompt":"`+text+`","n":128}`)
}

func TestTheTextOfAllPromptsIsBounded(t *testing.T) {
	e := testEnv(func(e *Env) { e.MaxModelLen = 1 << 20 })
	text := strings.Repeat(" the", 64<<10)
	refusedFor(t, testEnv(), "completion", `{"prompt":"`+strings.Repeat("a", 1<<20)+`"}`, "prompt", "1048576 bytes")
	list := func(n int) string { return `{"prompt":["` + strings.Repeat(text+`","`, n-1) + text + `"]}` }
	most := max(maxText, e.mostText())
	refusedFor(t, e, "completion", list(most/len(text)+1), "prompt", fmt.Sprint(most), "send several")
}

func TestALongListOfTokensIsRefusedByItsLength(t *testing.T) {
	refusedFor(t, testEnv(), "completion", `{"prompt":[`+strings.Repeat("1,", 999)+`1]}`, "prompt", "512 tokens", "1000 tokens")
	j := parse(t, testEnv(), "completion", `{"prompt":[7,`+strings.Repeat("1,", 999)+`9],"truncate_prompt_tokens":2}`)
	if !slices.Equal(j.Request.Prompts[0], []int32{1, 9}) {
		t.Errorf("%v", j.Request.Prompts[0])
	}
}

func TestListsOfTokensAreNoLongerThanTheVocabulary(t *testing.T) {
	e := testEnv()
	list := func(n int) string { return "[" + strings.Repeat("1,", n-1) + "2]" }
	pairs := func(n int) string { return "{" + strings.Repeat(`"1":1,`, n-1) + `"2":1}` }
	for _, ep := range endpoints {
		for _, name := range []string{"stop_token_ids", "allowed_token_ids"} {
			refusedFor(t, e, ep, with(ep, `"`+name+`":`+list(e.Vocab+1)), name, fmt.Sprint(e.Vocab+1))
			parse(t, e, ep, with(ep, `"`+name+`":`+list(e.Vocab)))
		}
		refusedFor(t, e, ep, with(ep, `"logit_bias":`+pairs(e.Vocab+1)), "logit_bias", fmt.Sprint(e.Vocab))
		if p := parse(t, e, ep, with(ep, `"logit_bias":`+pairs(e.Vocab))).Request.Params; len(p.LogitBias) != 2 {
			t.Errorf("%s: %v", ep, p.LogitBias)
		}
	}
	refusedFor(t, e, "completion", `{"prompt":`+list(maxIDs+1)+`,"truncate_prompt_tokens":2}`, "prompt", fmt.Sprint(maxIDs+1))
	parse(t, e, "completion", `{"prompt":`+list(maxIDs)+`,"truncate_prompt_tokens":2}`)
}

func TestTokenizeAndDetokenizeBoundTheText(t *testing.T) {
	e := testEnv()
	if most := max(maxCounted, e.mostText()); most != maxCounted {
		t.Fatalf("the test expects a short context, not %d bytes", most)
	}
	for body, param := range map[string]string{
		`{"prompt":"` + strings.Repeat("a", maxCounted+1) + `"}`:                             "prompt",
		`{"messages":[{"role":"user","content":"` + strings.Repeat("a", maxCounted) + `"}]}`: "messages",
	} {
		if _, err := e.Tokenize([]byte(body)); err == nil || err.Status != 400 || err.Param != param || !strings.Contains(err.Message, fmt.Sprint(maxCounted)) {
			t.Errorf("%v", err)
		}
	}
	text := strings.Repeat("the world ", 10000) // many times the context
	out, err := e.Tokenize([]byte(`{"prompt":"` + text + `","add_special_tokens":false}`))
	if err != nil {
		t.Fatal(err)
	}
	want(t, decode(t, out), "count", fmt.Sprint(len(e.Tokenizer.Encode(text, false, true))))

	id, longest := int32(-1), 0
	for i := range int32(e.Tokenizer.Size()) {
		if n := len(e.Tokenizer.AppendBytes(nil, i)); n > longest {
			id, longest = i, n
		}
	}
	list := func(id int32, n int) []byte {
		return []byte(`{"tokens":[` + strings.Repeat(fmt.Sprint(id)+",", n-1) + fmt.Sprint(id) + `]}`)
	}
	if _, err := e.Detokenize(list(id, maxCounted/longest+1)); err == nil || err.Status != 400 || err.Param != "tokens" {
		t.Errorf("%v", err)
	}
	if _, err := e.Detokenize(list(0, maxCounted+2)); err == nil || err.Status != 400 || err.Param != "tokens" {
		t.Errorf("%v", err)
	}
	if _, err := e.Detokenize(list(id, maxCounted/longest)); err != nil {
		t.Error(err)
	}
}

func TestFieldsOfOtherEndpointsAreNotDroppedByResponses(t *testing.T) {
	for members, says := range map[string]string{
		`"n":2`:                         "n is not supported here",
		`"n":"2"`:                       "n is not supported here",
		`"best_of":2`:                   "best_of",
		`"max_tokens":8`:                "max_output_tokens",
		`"max_completion_tokens":8`:     "max_output_tokens",
		`"logprobs":true`:               "message.output_text.logprobs",
		`"logprobs":3`:                  "message.output_text.logprobs",
		`"prompt_logprobs":0`:           "prompt_logprobs",
		`"echo":true`:                   "echo",
		`"suffix":"x"`:                  "suffix",
		`"messages":[]`:                 "use input",
		`"truncate_prompt_tokens":5`:    "truncation",
		`"add_generation_prompt":false`: "add_generation_prompt",
		`"continue_final_message":true`: "incomplete",
		`"add_special_tokens":true`:     "add_special_tokens",
		`"return_token_ids":true`:       "return_token_ids",
		`"return_prompt_text":true`:     "return_prompt_text",
	} {
		param, _, _ := strings.Cut(members[1:], `"`)
		refusedFor(t, testEnv(), "responses", with("responses", members), param, says)
	}
	parse(t, testEnv(), "responses", with("responses", `"n":1,"best_of":1,"logprobs":false,"echo":false,"suffix":"","add_generation_prompt":true,
		"continue_final_message":false,"add_special_tokens":false,"return_token_ids":false,"return_prompt_text":false,"max_tokens":null`))
	// Stop strings are honoured there too.
	if p := parse(t, testEnv(), "responses", with("responses", `"stop":"x"`)).Request.Params; !slices.Equal(p.Stop, []string{"x"}) {
		t.Errorf("stop is %q", p.Stop)
	}
}

func TestTheClientsOwnIDIsKeptAsItWasSent(t *testing.T) {
	long := strings.Repeat("x", maxClientID)
	for sent, want := range map[string]string{
		"": "", "id-1": "id-1", "a b": "a b", `a"b`: `a"b`, "a/b,c": "a/b,c", long[:129]: long[:129], long: long, long + "y": long,
	} {
		j, err := testEnv().ParseChat([]byte(with("chat", "")))
		if err != nil {
			t.Fatal(err)
		}
		j.SetID(sent)
		if j.Request.ClientID != want {
			t.Errorf("%q became %q", sent, j.Request.ClientID)
		}
		if saneID(sent) != (j.Request.ExternalID == "chatcmpl-"+sent) {
			t.Errorf("%q is named %q", sent, j.Request.ExternalID)
		}
	}
}
