package behaviours

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/transport"
)

// Behaviour 1.
func TestTheTimeToTheFirstTokenIsThatOfTheTokenNotOfTheRoleOrAHeartbeat(t *testing.T) {
	h := open(t, layout{
		sim:    sim.Options{PerPrefillToken: 5 * time.Millisecond},
		limits: transport.Limits{Heartbeat: 20 * time.Millisecond},
		shut:   true,
	})
	before := h.scrape()
	// More than 60 tokens of prompt: a prefill of 300 ms at least, which begins after a heartbeat. One step may run.
	s := h.request(say(strings.Repeat("prefill ", 20), 3).with(streamed))
	f := s.frame()
	if !f.comment {
		t.Fatalf("before any step there is a frame: %s", f.data)
	}
	h.valve.allow(1)
	for ; f.comment; f = s.frame() {
	}
	if waited := f.at.Sub(s.sent); waited < 300*time.Millisecond {
		t.Errorf("the first frame came %v after the request, before the first token", waited)
	}
	if len(f.chunk.Choices) != 1 || f.chunk.Choices[0].Delta.Role != "assistant" {
		t.Errorf("the first frame is no role frame: %s", f.data)
	}
	// The second step has not run, so what comes now is of the first one.
	for f = s.frame(); f.comment; f = s.frame() {
	}
	if f.text() == "" {
		t.Errorf("the frame after the role's has no content: %s", f.data)
	}
	seen := f.at.Sub(s.sent)
	h.held()
	h.valve.open()
	m := final(t, s.rest()).Metrics
	if m == nil || m.TTFT == nil {
		t.Fatalf("metrics: %+v", m)
	}
	if ttft := time.Duration(*m.TTFT * 1e6); ttft < 300*time.Millisecond || ttft > seen {
		t.Errorf("TTFT %v; the prefill took 300 ms, and the client saw the token after %v", ttft, seen)
	}
	e := h.entries(1)[0]
	if e.Metrics.TTFT == nil || *e.Metrics.TTFT != *m.TTFT {
		t.Errorf("the log says %v, the response %v", e.Metrics.TTFT, *m.TTFT)
	}
	after := h.scrape().since(before)
	if n, sum := after.count("vllm:time_to_first_token_seconds_count"), after.sum("vllm:time_to_first_token_seconds_sum"); n != 1 || sum < 0.3 {
		t.Errorf("the histogram has %d samples with the sum %v", n, sum)
	}
	// Three tokens have two gaps: neither the role frame nor a heartbeat was one.
	if n := after.count("vllm:inter_token_latency_seconds_count"); n != 2 {
		t.Errorf("%d inter-token latencies of three tokens", n)
	}
}

// Behaviour 2.
func TestAnEndOfSequenceAsTheFirstTokenIsACountedTokenAndNoNumberBreaks(t *testing.T) {
	h := open(t, layout{sim: sim.Options{Fixed: time.Millisecond, EOSAfter: func(uint64, int32) int { return 0 }}})
	body := say("Say nothing.", 10)
	body["ignore_eos"] = false
	check := func(how string, text, reason string, u usage, m *metrics) {
		t.Helper()
		if text != "" || reason != "stop" || u.Completion != 1 || u.Total != u.Prompt+1 {
			t.Errorf("%s: text %q, finish reason %q, usage %+v", how, text, reason, u)
		}
		if m == nil || m.TTFT == nil || m.Queue == nil || m.Generation == nil || m.Rate == nil {
			t.Fatalf("%s: metrics %+v", how, m)
		}
		if !(*m.TTFT > 0) || *m.Generation != 0 || m.MeanITL != nil || !(*m.Rate > 0) || math.IsInf(*m.Rate, 0) {
			t.Errorf("%s: TTFT %v, generation %v, mean ITL %v, tokens/s %v", how, *m.TTFT, *m.Generation, m.MeanITL, *m.Rate)
		}
	}
	fs := h.request(body.with(streamed)).rest()
	text, reason := told(fs, 0)
	check("streamed", text, reason, *final(t, fs).Usage, final(t, fs).Metrics)
	r := h.ask(body.String())
	check("unstreamed", r.Choices[0].Message.Content, r.Choices[0].Reason, r.Usage, r.Metrics)

	for _, e := range h.entries(2) { // entries and scrape refuse NaN and Inf
		if e.Outcome != "stop" || e.Tokens.Output != 1 || e.Metrics.MeanITL != nil || *e.Metrics.Generation != 0 {
			t.Errorf("log: %s", e.raw)
		}
	}
	m := h.scrape()
	if n := m.ended(); n.Stop != 2 || n.Length+n.Abort+n.Error != 0 {
		t.Errorf("ended: %+v", n)
	}
	if n := m.count("vllm:generation_tokens_total"); n != 2 {
		t.Errorf("%d tokens counted", n)
	}
	h.close()
	h.entries(2)
}

// Behaviour 4.
func TestWaitingForASlotIsQueueTimeAndThePartsMakeUpTheWhole(t *testing.T) {
	h := open(t, layout{sim: sim.Options{Fixed: 2 * time.Millisecond}, device: gpu.Config{MaxSeqs: 1}, shut: true})
	var all []*stream
	for i := range 3 {
		all = append(all, h.send(say("wait", 10).String()))
		h.in(i + 1)
	}
	h.valve.open()
	for _, s := range all {
		s.head()
		if s.http.StatusCode != 200 {
			t.Error(s.http.Status)
		}
	}
	es := h.entries(3)
	slices.SortFunc(es, func(a, b entry) int { return cmp.Compare(*a.Metrics.Queue, *b.Metrics.Queue) })
	for i, e := range es {
		queue, prefill, decode := *e.Metrics.Queue, *e.Metrics.TTFT, *e.Metrics.Generation
		// Each request before it took ten steps of 2 ms, of which the device may make up half a step.
		if least := float64(i)*20 - 1; queue < least {
			t.Errorf("request %d: queue time %v ms, want at least %v", i, queue, least)
		}
		sum, whole := queue+prefill+decode, *e.AtMS.Finished-*e.AtMS.Queued
		if math.Abs(sum-whole) > 1e-3 || sum > *e.Detail.E2E+1e-3 {
			t.Errorf("request %d: queue %v + prefill %v + decode %v = %v ms; from queued to finished %v, in all %v",
				i, queue, prefill, decode, sum, whole, *e.Detail.E2E)
		}
		if wait := *e.AtMS.Delivered; wait < sum {
			t.Errorf("request %d: delivered %v ms after its arrival, before its own work was done", i, wait)
		}
	}
	m := h.scrape() // nothing negative
	if n := m.count("vllm:request_queue_time_seconds_count"); n != 3 {
		t.Errorf("%d queue times", n)
	}
}

// Behaviour 5.
func TestStreamedOrNotTheFirstTokenComesLongBeforeTheLast(t *testing.T) {
	h := open(t, layout{sim: sim.Options{Fixed: 4 * time.Millisecond}})
	before := h.scrape()
	body := say("the same", 30)
	h.request(body.with(streamed)).rest()
	h.ask(body.String())
	for _, e := range h.entries(2) {
		// 29 steps follow the one of the first token. The device may make up for half a step.
		ttft, whole := *e.Metrics.TTFT, *e.Detail.E2E
		if least := 28.5 * 4; whole-ttft < least || *e.AtMS.FirstToken > whole-least || ttft < 1.9 {
			t.Errorf("stream %v: TTFT %v ms of %v", e.Stream, ttft, whole)
		}
	}
	if n := h.scrape().since(before).count("vllm:time_to_first_token_seconds_count"); n != 2 {
		t.Errorf("the TTFT histogram's count rose by %d", n)
	}
}

// Behaviour 17.
func TestAPreemptionIsAGapInOneRequestNotASecondOneAndChangesNoText(t *testing.T) {
	const prompt, tokens, requests = "a prompt of some length, for a few blocks", 100, 3
	run := func(cache int64) (texts []string, entries []entry, m series, preemptions uint64) {
		h := open(t, layout{
			sim:    sim.Options{Fixed: 200 * time.Microsecond, PerPrefillToken: 20 * time.Microsecond, Check: true},
			device: gpu.Config{BlockSize: 4, CacheBytes: cache, MaxContext: 256},
			shut:   true,
		})
		defer h.close()
		before := h.scrape()
		var all []*stream
		for i := range requests {
			all = append(all, h.send(say(prompt, tokens).with(streamed, fields{"seed": i, "temperature": 1})))
		}
		h.in(requests)
		h.valve.open()
		for _, s := range all {
			s.head()
			fs := s.rest()
			text, reason := told(fs, 0)
			if u := final(t, fs).Usage; reason != "length" || u.Completion != tokens {
				t.Errorf("finish reason %q, usage %+v", reason, u)
			}
			texts = append(texts, text)
		}
		entries = h.entries(requests)
		return texts, entries, h.scrape().since(before), h.rt.Stats().Preemptions
	}
	roomy, _, _, none := run(0)
	if none != 0 {
		t.Fatalf("%d preemptions with room for everything", none)
	}
	// A block holds four tokens of a kibibyte; the longest request needs about 45 of them, three 135.
	tight, entries, m, preemptions := run(70 << 12)
	if preemptions == 0 {
		t.Fatal("nothing was preempted")
	}
	for i := range roomy {
		if roomy[i] != tight[i] {
			t.Errorf("request %d says %q after preemptions, %q without", i, tight[i], roomy[i])
		}
	}
	preempted, seen := 0.0, 0
	var decode float64
	for _, e := range entries {
		decode += *e.Metrics.Generation
		preempted += e.Detail.PreemptedMS
		seen += e.Detail.Preemptions
		if e.Detail.Preemptions == 0 {
			continue
		}
		// The time without a place lies between two tokens (none lost its place before its first one,
		// or the TTFT would hold it).
		if gap := e.Detail.PreemptedMS / float64(e.Detail.Preemptions); *e.Detail.ITL.Max < gap || *e.Detail.E2E < e.Detail.PreemptedMS ||
			*e.Metrics.TTFT+*e.Metrics.Generation < e.Detail.PreemptedMS {
			t.Errorf("%d preemptions took %v ms; longest gap %v, generation %v, whole %v: %s",
				e.Detail.Preemptions, e.Detail.PreemptedMS, *e.Detail.ITL.Max, *e.Metrics.Generation, *e.Detail.E2E, e.raw)
		}
		if *e.Detail.ITL.Count != tokens-1 {
			t.Errorf("%d gaps between %d tokens", *e.Detail.ITL.Count, tokens)
		}
	}
	if seen != int(preemptions) || m.count("vllm:num_preemptions_total") != seen || m.count("vllm:request_num_preemptions_sum") != seen {
		t.Errorf("%d preemptions in the log, %d of the batcher, %d in /metrics", seen, preemptions, m.count("vllm:num_preemptions_total"))
	}
	if n := m.count("vllm:time_to_first_token_seconds_count"); n != requests {
		t.Errorf("%d TTFT samples of %d requests", n, requests)
	}
	if n := m.count("vllm:inter_token_latency_seconds_count"); n != requests*(tokens-1) {
		t.Errorf("%d inter-token latencies of %d tokens in %d requests", n, requests*tokens, requests)
	}
	if sum := m.sum("vllm:inter_token_latency_seconds_sum") * 1e3; math.Abs(sum-decode) > 1e-3 || sum < preempted {
		t.Errorf("inter-token latencies add up to %v ms, generation times to %v, of which %v without a place", sum, decode, preempted)
	}
}
