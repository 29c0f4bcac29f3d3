package bench

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// read gives an answer these events, one a millisecond.
func read(t testing.TB, events ...string) *answer {
	t.Helper()
	var a answer
	a.reset(true)
	for i, e := range events {
		if _, err := a.event([]byte(e), int64(i+1)); err != nil && !errors.Is(err, errDone) {
			t.Fatal(err)
		}
	}
	return &a
}

const (
	role   = `{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	text   = `{"choices":[{"delta":{"content":"word "},"finish_reason":null}]}`
	silent = `{"choices":[{"delta":{"content":""},"finish_reason":null}]}`
	stop   = `{"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}`
	last   = `{"choices":[{"delta":{"content":"end"},"finish_reason":"length"}]}`
)

func usage(n int) string {
	return fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}`, n)
}

func TestTokensAreSharedOutAmongChunks(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []string
		tokens int
		counts []int32 // of the chunks that brought some
		first  int64
	}{
		{"one each", []string{role, text, text, last, usage(3), "[DONE]"}, 3, []int32{1, 1, 1}, 2},
		{"the end has a chunk but no token", []string{role, text, text, stop, usage(2)}, 2, []int32{1, 1}, 2},
		{"the end has a chunk and a token", []string{role, text, text, stop, usage(3)}, 3, []int32{1, 1, 1}, 2},
		{"tokens that are no characters yet", []string{text, silent, text, usage(3)}, 3, []int32{1, 1, 1}, 1},
		{"chunks that are no tokens", []string{silent, text, silent, text, usage(2)}, 2, []int32{1, 1}, 2},
		{"several a chunk", []string{text, text, text, text, usage(8)}, 8, []int32{2, 2, 2, 2}, 1},
		{"no usage", []string{role, text, text, stop}, 2, []int32{1, 1}, 2},
		{"usage on each chunk", []string{
			`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}`,
			`{"choices":[{"delta":{"content":"abc"}}],"usage":{"completion_tokens":4}}`, usage(4)}, 4, []int32{1, 3}, 1},
		{"token ids", []string{`{"choices":[{"text":"a","token_ids":[1,2]}]}`, `{"choices":[{"text":"","token_ids":[3]}]}`, usage(3)}, 3, []int32{2, 1}, 1},
		{"log probabilities", []string{`{"choices":[{"delta":{"content":"ab"},"logprobs":{"content":[{},{}]}}]}`, stop, usage(3)}, 3, []int32{2, 1}, 1},
		{"log probabilities of completions", []string{`{"choices":[{"text":"ab","logprobs":{"tokens":["a","b"]}}]}`, usage(2)}, 2, []int32{2}, 1},
		{"reasoning", []string{role, `{"choices":[{"delta":{"reasoning_content":"hm"}}]}`, text, usage(2)}, 2, []int32{1, 1}, 2},
		{"a tool call", []string{`{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}`, stop, usage(1)}, 1, []int32{1}, 1},
		{"nothing", []string{role, stop, usage(0)}, 0, nil, 0},
	} {
		a := read(t, c.events...)
		tokens, _ := a.settle()
		var counts []int32
		for _, k := range a.chunks {
			counts = append(counts, k.tokens)
		}
		if tokens != c.tokens || fmt.Sprint(counts) != fmt.Sprint(c.counts) || len(counts) > 0 && a.chunks[0].at != c.first {
			t.Errorf("%s: %d tokens in %v from %+v, want %d in %v", c.name, tokens, counts, a.chunks, c.tokens, c.counts)
		}
	}
}

func TestChunksThatCameTogetherAreOne(t *testing.T) {
	var a answer
	a.reset(false)
	for i, at := range []int64{10, 10, 30, 30, 40} {
		if _, err := a.event([]byte(text), at); err != nil {
			t.Fatal(i, err)
		}
	}
	if n, _ := a.settle(); n != 5 || len(a.chunks) != 3 {
		t.Fatalf("%d: %+v", n, a.chunks)
	}
	gaps := tokenGaps(a.chunks, nil)
	if fmt.Sprint(gaps) != "[1e-05 1e-05 1e-05]" {
		t.Errorf("%v", gaps)
	}
}

func TestWhateverTheChunksTheirTokensAddUpToTheUsage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.SampledFrom([]string{role, text, silent, stop, last,
			`{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{}]}}]}`, `{"choices":[{"text":"` + strings.Repeat("long ", 20) + `"}]}`}), 1, 40).Draw(t, "events")
		n := rapid.IntRange(0, 200).Draw(t, "usage")
		var a answer
		a.reset(false)
		for i, e := range append(events, usage(n)) {
			if _, err := a.event([]byte(e), int64(i/3+1)); err != nil {
				t.Fatal(err)
			}
		}
		before := len(a.chunks)
		tokens, counted := a.settle()
		sum, at := 0, int64(0)
		for _, c := range a.chunks {
			if c.tokens <= 0 || c.at <= at {
				t.Errorf("%+v", a.chunks)
			}
			sum, at = sum+int(c.tokens), c.at
		}
		if tokens != n || !counted || sum != n && before > 0 {
			t.Errorf("%d tokens, %d in chunks, but the usage has %d", tokens, sum, n)
		}
	})
}

func TestServersTellWhatTheyMeasured(t *testing.T) {
	vllm := read(t, text, `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}},"metrics":{"time_to_first_token_ms":12.5,"generation_time_ms":0,"queue_time_ms":1.5,"mean_itl_ms":null}}`)
	if want := (serverTimes{"metrics", 1.5, 12.5, 0}); vllm.server != want || vllm.prompt != 7 || vllm.cached != 4 {
		t.Errorf("%+v", vllm)
	}
	llama := read(t, text, `{"choices":[{"delta":{},"finish_reason":"stop"}],"timings":{"prompt_ms":20,"predicted_ms":100}}`)
	if want := (serverTimes{"timings", -1, 20, 100}); llama.server != want {
		t.Errorf("%+v", llama)
	}
	both := read(t, `{"choices":[],"metrics":{"time_to_first_token_ms":1,"generation_time_ms":2,"queue_time_ms":3},"timings":{"prompt_ms":20,"predicted_ms":100}}`)
	if both.server.source != "metrics" || both.server.queue != 3 {
		t.Errorf("%+v", both)
	}
	if none := read(t, `{"choices":[],"metrics":null,"usage":null,"error":null}`); none.server.source != "" || none.usage {
		t.Errorf("%+v", none)
	}
}

func TestWhatIsNoChunkIsAFailure(t *testing.T) {
	for event, kind := range map[string]string{
		"nonsense": kindGarbage, "{": kindGarbage, "17": kindGarbage, `"x"`: kindGarbage, "[1]": kindGarbage,
		`{"error":{"message":"boom"}}`: kindStream, `{"error":"boom"}`: kindStream,
	} {
		var a answer
		a.reset(false)
		_, err := a.event([]byte(event), 1)
		var f *failure
		if !errors.As(err, &f) || f.kind != kind {
			t.Errorf("%s: %v, want %s", event, err, kind)
		}
	}
}

func FuzzAnEventNeverPanics(f *testing.F) {
	for _, s := range []string{role, text, stop, usage(3), `{"choices":{"delta":5}}`, `{"choices":[[{"delta":[]}]],"usage":[],"metrics":7}`, "[DONE]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var a answer
		a.reset(true)
		_, _ = a.event(data, 1)
		_, _ = a.event(data, 2)
		if n, _ := a.settle(); n < 0 {
			t.Error(n)
		}
	})
}
