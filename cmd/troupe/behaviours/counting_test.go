package behaviours

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
)

// Behaviour 3.
func TestACachedPromptCountsInFullAndItsPrefillRateOnlyWhatWasComputed(t *testing.T) {
	h := open(t, layout{sim: sim.Options{Fixed: time.Millisecond, PerPrefillToken: 100 * time.Microsecond, Check: true}})
	before := h.scrape()
	body := say(strings.Repeat("a prompt longer than one block of the cache; ", 4), 5).String()
	first, second := h.ask(body), h.ask(body)
	if first.Usage.Prompt <= 16 || first.Usage.Prompt != second.Usage.Prompt {
		t.Errorf("prompt tokens: %d, then %d", first.Usage.Prompt, second.Usage.Prompt)
	}
	if first.Usage.Details.Cached != 0 || second.Usage.Details.Cached == 0 || second.Usage.Details.Cached >= second.Usage.Prompt {
		t.Errorf("cached tokens: %d, then %d of %d", first.Usage.Details.Cached, second.Usage.Details.Cached, second.Usage.Prompt)
	}
	if first.Choices[0].Message.Content != second.Choices[0].Message.Content {
		t.Errorf("%q, then %q", first.Choices[0].Message.Content, second.Choices[0].Message.Content)
	}
	for i, e := range h.entries(2) {
		r := []reply{first, second}[i]
		if e.Tokens.Prompt != r.Usage.Prompt || e.Tokens.Cached != r.Usage.Details.Cached || e.Tokens.Computed != e.Tokens.Prompt-e.Tokens.Cached {
			t.Errorf("log: %+v, usage %+v", e.Tokens, r.Usage)
		}
		if want := float64(e.Tokens.Computed) / (*e.Detail.Prefill / 1e3); math.Abs(*e.Detail.PrefillRate-want) > want*1e-9 {
			t.Errorf("prefill of %d tokens (%d cached) in %v ms: %v tokens/s", e.Tokens.Prompt, e.Tokens.Cached, *e.Detail.Prefill, *e.Detail.PrefillRate)
		}
	}
	m := h.scrape().since(before)
	prompt, cached := 2*first.Usage.Prompt, second.Usage.Details.Cached
	for name, want := range map[string]int{
		"vllm:prompt_tokens_total":                      prompt,
		"vllm:prompt_tokens_cached_total":               cached,
		"vllm:request_prompt_tokens_sum":                prompt,
		"vllm:request_prefill_kv_computed_tokens_sum":   prompt - cached,
		"vllm:prefix_cache_hits_total":                  cached,
		"vllm:request_prefill_kv_computed_tokens_count": 2,
	} {
		if got := m.count(name); got != want {
			t.Errorf("%s rose by %d, want %d", name, got, want)
		}
	}
	for source, want := range map[string]int{"local_compute": prompt - cached, "local_cache_hit": cached} {
		if got := m.count("vllm:prompt_tokens_by_source_total", `source="`+source+`"`); got != want {
			t.Errorf("%d prompt tokens of source %s, want %d", got, source, want)
		}
	}
}

// Behaviour 6.
func TestContinuousUsageNeverFallsAndEndsAsTheFinalUsage(t *testing.T) {
	for _, n := range []int{1, 3} {
		h := open(t, layout{sim: sim.Options{Fixed: 200 * time.Microsecond}})
		fs := h.request(say("count", 20).with(fields{"stream": true, "n": n,
			"stream_options": fields{"include_usage": true, "continuous_usage_stats": true}})).rest()
		last := usage{}
		for _, f := range fs {
			u := f.chunk.Usage
			if u == nil {
				t.Fatalf("a frame without usage: %s", f.data)
			}
			if u.Prompt < last.Prompt || u.Completion < last.Completion || u.Total != u.Prompt+u.Completion {
				t.Errorf("n %d: usage %+v after %+v", n, *u, last)
			}
			if f.text() != "" && u.Completion == 0 {
				t.Errorf("content without a token counted: %s", f.data)
			}
			last = *u
		}
		end := *final(t, fs).Usage
		if counted := *fs[len(fs)-2].chunk.Usage; counted != end || end.Completion != 20*n {
			t.Errorf("n %d: the last chunk with a choice says %+v, the final one %+v", n, counted, end)
		}
		if e := h.entries(1)[0]; e.Tokens.Output != end.Completion || e.Tokens.Prompt != end.Prompt {
			t.Errorf("log %+v, usage %+v", e.Tokens, end)
		}
		h.close()
	}
}

// Behaviour 7.
func TestThreeChoicesAreOneRequestWithOnePrompt(t *testing.T) {
	h := open(t, layout{sim: sim.Options{Fixed: 200 * time.Microsecond, EOSAfter: func(_ uint64, choice int32) int { return 4 + 3*int(choice) }}})
	alone := say("choose", 50)
	alone["ignore_eos"], alone["temperature"] = false, 1
	prompt := h.ask(alone.String()).Usage.Prompt
	h.entries(1)
	before := h.scrape()
	for _, stream := range []bool{false, true} {
		var u usage
		var texts []string
		body := alone.with(fields{"n": 3, "seed": 7})
		if stream {
			fs := h.request(alone.with(streamed, fields{"n": 3, "seed": 7})).rest()
			u = *final(t, fs).Usage
			for i := range 3 {
				text, reason := told(fs, i)
				if reason != "stop" {
					t.Errorf("choice %d ends with %q", i, reason)
				}
				texts = append(texts, text)
			}
		} else {
			r := h.ask(body)
			u = r.Usage
			for _, c := range r.Choices {
				texts = append(texts, c.Message.Content)
			}
		}
		// 5, 8 and 11 tokens with their ends, each token but the end a letter.
		if u.Prompt != prompt || u.Completion != 5+8+11 || len(texts) != 3 || len(texts[0]) != 4 || len(texts[1]) != 7 || len(texts[2]) != 10 {
			t.Errorf("stream %v: usage %+v (prompt alone %d), texts %q", stream, u, prompt, texts)
		}
	}
	for _, e := range h.entries(3)[1:] {
		if e.N != 3 || e.Sequences != 3 || e.Tokens.Prompt != prompt || e.Tokens.Output != 24 || e.Tokens.Longest != 11 {
			t.Errorf("log: %s", e.raw)
		}
	}
	m := h.scrape().since(before)
	if n := m.ended(); n.Stop != 2 || n.Length+n.Abort+n.Error != 0 {
		t.Errorf("two requests count as %+v", n)
	}
	for name, want := range map[string]int{
		"vllm:prompt_tokens_total": 2 * prompt, "vllm:generation_tokens_total": 48, "vllm:request_params_n_sum": 6,
		"vllm:request_params_n_count": 2, "vllm:e2e_request_latency_seconds_count": 2, "vllm:time_to_first_token_seconds_count": 2,
		"vllm:request_generation_tokens_sum": 48, "vllm:request_max_num_generation_tokens_sum": 22,
	} {
		if got := m.count(name); got != want {
			t.Errorf("%s rose by %d, want %d", name, got, want)
		}
	}
}

// Behaviour 8.
func TestStreamsClosedByTheirClientsAreAbortsWithExactPartialCounts(t *testing.T) {
	h := open(t, layout{sim: sim.Options{Fixed: 2 * time.Millisecond}, device: gpu.Config{MaxContext: 1 << 20}})
	before := h.scrape()
	const n, tokens = 5, 500_000 // a quarter of an hour
	for i := range n {
		s := h.request(say("leave", tokens).with(streamed, fields{"seed": i}))
		s.content(2)
		s.conn.Close()
	}
	closed := time.Now()
	h.until("the running gauge is 0", func() bool { return h.scrape().sum("vllm:num_requests_running") == 0 })
	t.Logf("the running gauge was back to 0 %v after the last close", time.Since(closed))
	var prompt, output int
	for _, e := range h.entries(n) {
		if e.Status != 499 || e.Outcome != "abort" || e.Tokens.Output < 2 || e.Tokens.Output >= tokens || e.AtMS.Finished == nil {
			t.Errorf("log: %s", e.raw)
		}
		prompt += e.Tokens.Prompt
		output += e.Tokens.Output
	}
	m := h.scrape().since(before)
	if e := m.ended(); e.Abort != n || e.Stop+e.Length+e.Error != 0 {
		t.Errorf("ended: %+v", e)
	}
	if m.count("vllm:prompt_tokens_total") != prompt || m.count("vllm:generation_tokens_total") != output {
		t.Errorf("the counters rose by %d and %d, the lines say %d and %d",
			m.count("vllm:prompt_tokens_total"), m.count("vllm:generation_tokens_total"), prompt, output)
	}
	h.idle()
	h.close()
	h.entries(n)
}

// Behaviour 9.
func TestAClientThatLeavesAnUnstreamedAnswerStopsItWithinTwoStepsAndDelaysNobody(t *testing.T) {
	h := open(t, layout{device: gpu.Config{MaxSeqs: 1}, shut: true})
	s := h.send(say("leave", 4000).String())
	h.valve.allow(5)
	h.held()
	s.conn.Close()
	h.until("the server has closed its end", func() bool { return h.srv.Connections() == 0 })
	var ended atomic.Bool
	h.until("the request has cancelled its sequence", func() bool {
		h.rt.Survey(func(g actors.Glance) {
			if g.State == lifecycle.Ended {
				ended.Store(true)
			}
		})
		return ended.Load()
	})
	next := h.send(say("next", 1).String())
	h.in(2)
	// The step that was under way at the close may be followed by one more for the request that was
	// left; then the slot must be the other's, who needs one step.
	steps := 0
	for steps <= 3 {
		h.until("a step waits, or all is done", func() bool { held, _ := h.valve.waiting(); return held || h.rt.Admitted() == 0 })
		if h.rt.Admitted() == 0 {
			break
		}
		h.heard()
		h.valve.allow(1)
		steps++
	}
	h.valve.open()
	next.head()
	if next.http.StatusCode != 200 {
		t.Errorf("the next request: %s", next.http.Status)
	}
	if steps > 3 {
		t.Error("more than three steps ran from the close to the end of the next request, which needs one")
	}
	es := h.entries(2)
	left := es[0]
	if left.Status != 499 || left.Outcome != "abort" || left.Stream || left.Tokens.Output != 5 {
		t.Errorf("log: %s", left.raw)
	}
	if left.Tokens.Discarded > 2 {
		t.Errorf("%d tokens were made after the client had left", left.Tokens.Discarded)
	}
	if e := es[1]; e.Status != 200 || e.Tokens.Output != 1 {
		t.Errorf("log: %s", e.raw)
	}
}

// Behaviour 11.
func TestTwoRequestsOfOneClientIDAreTwoRequests(t *testing.T) {
	h := open(t, layout{shut: true})
	const id = "X-Request-Id: same"
	a, b := h.send(say("one", 20).with(streamed), id), h.send(say("two", 30).with(streamed), id)
	h.in(2)
	h.valve.open()
	for i, s := range []*stream{a, b} {
		s.head()
		if got := s.http.Header.Get("X-Request-Id"); got != "same" {
			t.Errorf("the answer's id is %q", got)
		}
		if u := final(t, s.rest()).Usage; u.Completion != 20+10*i {
			t.Errorf("usage %+v", u)
		}
	}
	es := h.entries(2)
	if es[0].ID == es[1].ID || es[0].ClientRequestID != "same" || es[1].ClientRequestID != "same" || es[0].Outcome != "length" || es[1].Outcome != "length" {
		t.Errorf("log: %s\n%s", es[0].raw, es[1].raw)
	}
	m := h.scrape() // nothing negative
	if n := m.ended(); n.Length != 2 {
		t.Errorf("ended: %+v", n)
	}
	if v := m.sum("vllm:num_requests_running"); v != 0 {
		t.Errorf("%v requests run", v)
	}

	// A megabyte of an id.
	long := "X-Request-Id: " + strings.Repeat("i", 1<<20)
	switch a, err := h.try("POST", chatPath, say("three", 5).String(), long); {
	case err != nil:
		t.Logf("an id of a megabyte: %v", err) // a reset will do
	case a.StatusCode != 400 && a.StatusCode != 431:
		t.Errorf("an id of a megabyte: %s", a.Status)
	}
	if r := h.ask(say("four", 5).String()); r.Usage.Completion != 5 {
		t.Errorf("afterwards: %+v", r)
	}
}

// Behaviour 16.
func TestRejectedNamesAndPathsMakeNoSeries(t *testing.T) {
	h := open(t, layout{})
	reject := func(i int) {
		if a := h.do("POST", chatPath, say("x", 1).with(fields{"model": fmt.Sprintf("model-%d", i)})); a.StatusCode != 404 {
			t.Errorf("model %d: %s", i, a.Status)
		}
		if a := h.do("GET", fmt.Sprintf("/v1/junk-%d", i), ""); a.StatusCode != 404 {
			t.Errorf("path %d: %s", i, a.Status)
		}
	}
	// A refusal is counted when its answer has been delivered, and so perhaps a moment after a client has it.
	counted := func(n int) (s series) {
		t.Helper()
		h.until(fmt.Sprintf("%d refused requests are counted", n), func() bool {
			s = h.scrape()
			return s.count("troupe:requests_refused_total", `status="404"`) >= n
		})
		return s
	}
	reject(0)
	before := counted(1)
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for i := 1 + part; i < 1000; i += 4 {
				reject(i)
			}
		})
	}
	wg.Wait()
	es := h.entries(1000)
	after := counted(1000)
	for k := range after {
		if _, was := before[k]; !was {
			t.Errorf("a new series: %s", k)
		}
	}
	if n := after.since(before).count("troupe:requests_refused_total", `status="404"`); n != 999 {
		t.Errorf("%d refused requests counted, want 999", n)
	}
	for _, e := range es {
		if e.Status != 404 || e.Outcome != "refused" {
			t.Errorf("log: %s", e.raw)
		}
	}
}
