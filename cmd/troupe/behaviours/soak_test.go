package behaviours

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
)

func TestAfterAThousandMixedRequestsTheTotalsAreTheSumsOverTheLogLines(t *testing.T) {
	const n, clients = 1000, 32
	h := open(t, layout{
		sim: sim.Options{Fixed: 20 * time.Microsecond, Check: true,
			EOSAfter: func(seed uint64, choice int32) int {
				if seed%3 == 0 {
					return int(seed%40) + int(choice)
				}
				return -1
			}},
		device: gpu.Config{MaxSeqs: 12, MaxTokens: 128, MaxContext: 512, CacheBytes: 64 << 14},
		cast:   func(c *actors.Config) { c.MaxRequests = clients - 2 },
	})
	var mu sync.Mutex
	seen := map[string]outcome{}
	var wg sync.WaitGroup
	for part := range clients {
		wg.Go(func() {
			for i := part; i < n; i += clients {
				id := fmt.Sprintf("soak-%d", i)
				o := mixed(t, h.addr, id, i, rand.New(rand.NewPCG(3, uint64(i))))
				mu.Lock()
				seen[id] = o
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	h.idle()
	lines := h.entries(n)
	m := h.scrape()

	var total sums
	outcomes, statuses := map[string]int{}, map[int]int{}
	for _, e := range lines {
		o, known := seen[e.ClientRequestID]
		if !known {
			t.Fatalf("a line of a request that nobody made, or two of one: %s", e.raw)
		}
		delete(seen, e.ClientRequestID)
		// What the client saw is what its line says.
		if o.status != 0 && o.status != e.Status || o.whole && (o.usage.Completion != e.Tokens.Output || o.usage.Prompt != e.Tokens.Prompt || o.usage.Details.Cached != e.Tokens.Cached) {
			t.Errorf("the client saw %+v, the line says %s", o, e.raw)
		}
		outcomes[e.Outcome]++
		statuses[e.Status]++
		total.add(&e)
	}
	if len(seen) != 0 {
		t.Errorf("no lines of %v", seen)
	}
	t.Logf("outcomes %v, statuses %v, %d preemptions, %d+%d prompt tokens computed and cached, %d tokens out, %d discarded",
		outcomes, statuses, total.preemptions, total.computed, total.cached, total.output, total.discarded)
	for _, o := range []string{"stop", "length", "abort", "refused"} {
		if outcomes[o] == 0 {
			t.Errorf("no request ended with %q: the mix is too poor", o)
		}
	}
	if total.preemptions == 0 || total.cached == 0 || total.discarded == 0 {
		t.Errorf("the mix is too poor: %+v", total)
	}

	for _, reason := range []string{"stop", "length", "abort", "error"} {
		if got := m.count("vllm:request_success_total", `finished_reason="`+reason+`"`); got != outcomes[reason] {
			t.Errorf("finished_reason %s: %d counted, %d lines", reason, got, outcomes[reason])
		}
	}
	if got := m.count("troupe:requests_refused_total"); got != outcomes["refused"] {
		t.Errorf("%d refused counted, %d lines", got, outcomes["refused"])
	}
	if got := m.count("vllm:admission_rejections_total", `reason="max_num_queued_reqs"`); got != statuses[429] {
		t.Errorf("%d found no place, %d lines with 429", got, statuses[429])
	}
	if total.ran != n-outcomes["refused"] {
		t.Errorf("%d lines of requests that ran, %d of %d refused", total.ran, outcomes["refused"], n)
	}
	for name, want := range map[string]int{
		"vllm:prompt_tokens_total":                      total.prompt,
		"vllm:prompt_tokens_cached_total":               total.cached,
		"vllm:generation_tokens_total":                  total.output,
		"vllm:request_prompt_tokens_sum":                total.prompt,
		"vllm:request_prompt_tokens_count":              total.ran,
		"vllm:request_generation_tokens_sum":            total.output,
		"vllm:request_generation_tokens_count":          total.ran,
		"vllm:request_max_num_generation_tokens_sum":    total.longest,
		"vllm:request_prefill_kv_computed_tokens_sum":   total.computed,
		"vllm:request_prefill_kv_computed_tokens_count": total.scheduled,
		"vllm:request_params_n_sum":                     total.choices,
		"vllm:request_params_max_tokens_sum":            total.maxTokens,
		"vllm:request_num_preemptions_sum":              total.preemptions,
		"vllm:inter_token_latency_seconds_count":        total.gaps,
		"vllm:time_to_first_token_seconds_count":        total.begun,
		"vllm:request_prefill_time_seconds_count":       total.begun,
		"vllm:request_decode_time_seconds_count":        total.begun,
		"vllm:request_inference_time_seconds_count":     total.begun,
		"vllm:request_queue_time_seconds_count":         total.scheduled,
		"vllm:e2e_request_latency_seconds_count":        total.ran,
		"vllm:num_requests_running":                     0,
		"vllm:num_requests_waiting":                     0,
		"troupe:request_log_lines_lost_total":           0,
	} {
		if got := m.count(name); got != want {
			t.Errorf("%s is %d, the lines add up to %d", name, got, want)
		}
	}
	// The batcher may take the place of a sequence that its request has just ended: that is in no line.
	if got := m.count("vllm:num_preemptions_total"); got < total.preemptions || got > total.preemptions+2*outcomes["abort"] {
		t.Errorf("the batcher counts %d preemptions, the lines add up to %d", got, total.preemptions)
	}
	// To the nanosecond.
	for name, want := range map[string]int64{
		"vllm:time_to_first_token_seconds_sum":  total.ttft,
		"vllm:request_prefill_time_seconds_sum": total.prefill,
		"vllm:request_decode_time_seconds_sum":  total.decode,
		"vllm:request_queue_time_seconds_sum":   total.queue,
		"vllm:e2e_request_latency_seconds_sum":  total.e2e,
	} {
		if got := int64(math.Round(m.sum(name) * 1e9)); got != want {
			t.Errorf("%s is %d ns, the lines add up to %d", name, got, want)
		}
	}
	if made := int(h.rt.Stats().Generated); made != total.output+total.discarded {
		t.Errorf("the batcher made %d tokens, the lines account for %d and %d discarded", made, total.output, total.discarded)
	}
}

// sums add up log lines; times in nanoseconds.
type sums struct {
	ran, scheduled, begun                                             int
	prompt, cached, computed, output, longest, discarded, preemptions int
	choices, maxTokens, gaps                                          int
	ttft, prefill, decode, queue, e2e                                 int64
}

func (s *sums) add(e *entry) {
	if e.Outcome == "refused" {
		return
	}
	ns := func(ms *float64) int64 {
		if ms == nil {
			return 0
		}
		return int64(math.Round(*ms * 1e6))
	}
	s.ran++
	s.prompt += e.Tokens.Prompt
	s.cached += e.Tokens.Cached
	s.computed += e.Tokens.Computed
	s.output += e.Tokens.Output
	s.longest += e.Tokens.Longest
	s.discarded += e.Tokens.Discarded
	s.preemptions += e.Detail.Preemptions
	s.choices += e.N
	s.maxTokens += *e.Params.MaxTokens
	if e.AtMS.Scheduled != nil {
		s.scheduled++
	}
	if e.AtMS.FirstToken != nil {
		s.begun++
	}
	if e.Detail.ITL.Count != nil {
		s.gaps += *e.Detail.ITL.Count
	}
	s.ttft += ns(e.AtMS.FirstToken)
	s.prefill += ns(e.Metrics.TTFT)
	s.decode += ns(e.Metrics.Generation)
	s.queue += ns(e.Metrics.Queue)
	s.e2e += ns(e.Detail.E2E)
}

// outcome is what a client saw: the status (0: it left before it came), and when it has read all, the
// usage.
type outcome struct {
	status int
	whole  bool
	usage  usage
}

// mixed makes the i-th request of the soak.
func mixed(t *testing.T, addr, id string, i int, r *rand.Rand) outcome {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return outcome{}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	f := say(fmt.Sprintf("one of several prompts, number %d, %0*d", r.IntN(6), r.IntN(150), 0), 1+r.IntN(80))
	f["ignore_eos"], f["temperature"], f["seed"], f["n"] = false, 1, r.IntN(100), 1+r.IntN(2)
	path, leave := chatPath, -1
	if i%2 == 0 {
		maps.Copy(f, streamed)
	}
	switch r.IntN(10) {
	case 0: // completions, of several prompts
		path = "/v1/completions"
		delete(f, "messages")
		f["prompt"] = []string{"first prompt", "second prompt, longer than a block of the cache"}
	case 1: // responses
		path = "/v1/responses"
		f = fields{"model": "sim", "input": f["messages"], "max_output_tokens": f["max_tokens"], "stream": f["stream"] == true}
	case 2: // a stop string that is a letter comes soon
		f["stop"] = []string{"e", "q"}
	case 3, 4: // left in the middle
		f["max_tokens"] = 400
		leave = r.IntN(2500)
	case 5: // left at once
		leave = 0
	case 6: // bad in several ways
		switch r.IntN(4) {
		case 0:
			f["model"] = "another"
		case 1:
			f["temperature"] = "warm"
		case 2:
			f["messages"] = []fields{{"role": "user", "content": strings.Repeat("long ", 600)}}
		case 3:
			path = "/v1/completions" // has no prompt
		}
	}
	if err := post(c, path, f.String(), "X-Request-Id: "+id, "Connection: close"); err != nil {
		t.Error(err)
		return outcome{}
	}
	if leave >= 0 {
		_, _ = io.ReadFull(c, make([]byte, leave))
		return outcome{}
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("%s: %v", id, err)
		return outcome{}
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s: %v after %s", id, err, b)
	}
	o := outcome{status: resp.StatusCode}
	if o.status != 200 {
		return o
	}
	o.usage, o.whole = usageOf(b), true
	return o
}

// usageOf reads the usage of an answer of any of the endpoints, streamed or not: the last one in it.
func usageOf(b []byte) (u usage) {
	at := strings.LastIndex(string(b), `"usage":{`)
	if at < 0 {
		return usage{Completion: -1}
	}
	var any struct {
		usage
		Input        int `json:"input_tokens"`
		Output       int `json:"output_tokens"`
		InputDetails struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	if err := json.NewDecoder(strings.NewReader(string(b[at+len(`"usage":`):]))).Decode(&any); err != nil {
		return usage{Completion: -1}
	}
	u = any.usage
	u.Prompt += any.Input
	u.Completion += any.Output
	u.Details.Cached += any.InputDetails.Cached
	return u
}
