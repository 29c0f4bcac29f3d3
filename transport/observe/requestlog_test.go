package observe

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
)

// written returns what a log of the given format writes of the records.
func written(t interface {
	Fatal(...any)
}, f Format, records ...*lifecycle.Record) string {
	var out bytes.Buffer
	l := NewRequestLog(&out, f, os.Stderr)
	for _, r := range records {
		l.Observe(r)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// flatten lists an object's keys with dots for nesting. An array, and metrics.speculative_decoding,
// is one value.
func flatten(prefix string, v map[string]any, into map[string]any) {
	for k, v := range v {
		if m, ok := v.(map[string]any); ok {
			flatten(prefix+k+".", m, into)
			continue
		}
		into[prefix+k] = v
	}
}

func parseLine(t interface{ Fatalf(string, ...any) }, line string) map[string]any {
	if !utf8.ValidString(line) {
		t.Fatalf("not UTF-8: %q", line)
	}
	var v map[string]any
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	if d.More() {
		t.Fatalf("more than one value in %s", line)
	}
	flat := map[string]any{}
	flatten("", v, flat)
	return flat
}

// documentedKeys are the keys that docs/request-log.md lists, in its order.
func documentedKeys(t testing.TB) []string {
	b, err := os.ReadFile("../../docs/request-log.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(b), "## Keys\n")
	if !ok {
		t.Fatal("docs/request-log.md has no section Keys")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var keys []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\|").FindAllStringSubmatch(section, -1) {
		keys = append(keys, m[1])
	}
	return keys
}

func TestTheLineHasExactlyTheDocumentedKeysInTheirOrder(t *testing.T) {
	want := documentedKeys(t)
	for _, r := range []*lifecycle.Record{finished(), refused(404, "model_not_found")} {
		line := written(t, JSON, r)
		got := slices.Collect(maps.Keys(parseLine(t, line)))
		for _, k := range want {
			if !slices.Contains(got, k) {
				t.Errorf("%s is documented and not written", k)
			}
		}
		for _, k := range got {
			if !slices.Contains(want, k) {
				t.Errorf("%s is written and not documented", k)
			}
		}
		at := 0
		for _, k := range want {
			last := k[strings.LastIndexByte(k, '.')+1:]
			i := strings.Index(line[at:], `"`+last+`":`)
			if i < 0 {
				t.Fatalf("%s comes earlier than documented", k)
			}
			at += i
		}
	}
}

func TestAFinishedRequestsLine(t *testing.T) {
	got := parseLine(t, written(t, JSON, finished()))
	for key, want := range map[string]string{
		"version": "1", "time": `"2026-09-21T14:13:20.123456789Z"`, "id": "7", "request_id": `"chatcmpl-7"`,
		"client_request_id": "null", "endpoint": `"chat"`, "method": "null", "path": "null", "key": "null",
		"stream": "true", "prompts": "1", "n": "1", "deadline_ms": "null",
		"params.temperature": "0.7", "params.seed": "18446744073709551615", "params.logprobs": "null", "params.max_tokens": "128",
		"params.stop": `["\n\n","END"]`, "params.stop_token_ids": "[]", "params.allowed_tokens": "null", "params.logit_bias": "0",
		"tokens.prompt": "40", "tokens.cached": "16", "tokens.computed": "24", "tokens.output": "128", "tokens.discarded": "0",
		"at_ms.queued": "0.5", "at_ms.scheduled": "12.8", "at_ms.first_token": "98", "at_ms.last_token": "1338.5", "at_ms.finished": "1338.5", "at_ms.delivered": "1339.5",
		"metrics.time_to_first_token_ms": "85.2", "metrics.generation_time_ms": "1240.5", "metrics.queue_time_ms": "12.3", "metrics.speculative_decoding": "null",
		"detail.arrival_to_first_token_ms": "98", "detail.e2e_ms": "1338.5", "detail.prefill_ms": "85.2", "detail.mean_batch_size": "2", "detail.itl_ms.count": "null",
		"slowed_by_ms.queue_capacity": "0", "timeline": "null", "sequences": "1", "outcome": `"length"`, "stop.string": "null", "stop.token": "null",
		"status": "200", "error.type": "null", "error.message": "null", "bytes": "20480", "engine": "null",
	} {
		b, _ := json.Marshal(got[key])
		if string(b) != want {
			t.Errorf("%s is %s, want %s", key, b, want)
		}
	}
	// 127 gaps in 1,240.5 ms; 24 tokens in 85.2 ms.
	// Six decimals are written.
	for key, want := range map[string]float64{
		"metrics.mean_itl_ms": 1240.5 / 127, "metrics.tokens_per_second": 128 / 1.3257,
		"detail.decode_tokens_per_second": 127 / 1.2405, "detail.prefill_tokens_per_second": 24 / 0.0852,
	} {
		if v, _ := got[key].(json.Number).Float64(); math.Abs(v-want) > 5.1e-7 {
			t.Errorf("%s is %v, want %v", key, v, want)
		}
	}
}

func TestARefusedRequestsLine(t *testing.T) {
	got := parseLine(t, written(t, JSON, refused(404, "model_not_found")))
	for key, want := range map[string]string{
		"id": "0", "request_id": "null", "endpoint": "null", "method": `"POST"`, "path": `"/v1/chat/completions"`, "model": `"no-such-model"`,
		"params.temperature": "null", "params.stop": "null", "tokens.output": "0", "at_ms.queued": "null", "at_ms.finished": "0.1",
		"metrics.queue_time_ms": "null", "detail.e2e_ms": "0", "detail.mean_batch_size": "null",
		"outcome": `"refused"`, "status": "404", "error.code": `"model_not_found"`, "error.param": "null", "bytes": "0",
	} {
		b, _ := json.Marshal(got[key])
		if string(b) != want {
			t.Errorf("%s is %s, want %s", key, b, want)
		}
	}
}

func TestGapsAreWrittenWhenTheyWereCollected(t *testing.T) {
	r := finished()
	r.Detail.ITLCount, r.Detail.ITLP50, r.Detail.ITLMax = 127, 9*ms, 31*ms
	got := parseLine(t, written(t, JSON, r))
	for key, want := range map[string]json.Number{"detail.itl_ms.count": "127", "detail.itl_ms.p50": "9", "detail.itl_ms.max": "31"} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}

func TestTheKeyItselfIsNowhereInTheLine(t *testing.T) {
	r := finished()
	r.Request.KeyName = "alice"
	if got := parseLine(t, written(t, JSON, r))["key"]; got != "alice" {
		t.Errorf("key is %v, want its name", got)
	}
}

func TestAClientCannotMakeALineLong(t *testing.T) {
	r := finished()
	long := strings.Repeat("é", 1<<20)
	q := r.Request
	q.ExternalID, q.ClientID, q.Model, q.Peer, q.KeyName, q.Endpoint = long, long, long, long, long, long
	r.Method, r.Path, r.StopString = long, long, long
	r.Err = &lifecycle.Error{Type: long, Code: long, Param: long, Message: long}
	p := *q.Params
	q.Params = &p
	for range 10_000 {
		p.Stop = append(p.Stop, long)
		p.StopTokenIDs = append(p.StopTokenIDs, math.MaxInt32)
	}
	line := written(t, JSON, r)
	if len(line) > 20_000 {
		t.Errorf("the line has %d bytes", len(line))
	}
	got := parseLine(t, line)
	if s := got["client_request_id"].(string); len(s) > maxText || !strings.HasSuffix(s, "é…") {
		t.Errorf("an id of %d bytes that ends in %q", len(s), s[len(s)-8:])
	}
	if line := written(t, Console, r); len(line) > 4000 {
		t.Errorf("the console line has %d bytes", len(line))
	}
}

func TestEachRecordIsOneLineWithTheSameFiniteKeysAndTheCountersAreTheirSum(t *testing.T) {
	keys := documentedKeys(t)
	slices.Sort(keys)
	rapid.Check(t, func(t *rapid.T) {
		var out bytes.Buffer
		log := NewRequestLog(&out, JSON, io.Discard)
		prom := NewPrometheus(PrometheusOptions{Model: "tiny", MaxModelLen: 4096})
		both := Tee(log, prom)
		n := rapid.IntRange(1, 4).Draw(t, "requests")
		for range n {
			r := drawRecord(t)
			r.Engine = 0 // the others have series of their own
			if r.Outcome != lifecycle.OutcomeRefused {
				for _, g := range drawProgress(t, r) {
					both.Progress(g)
				}
			}
			both.Observe(r)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}

		lines := strings.SplitAfter(out.String(), "\n")
		if len(lines) != n+1 || lines[n] != "" {
			t.Fatalf("%d requests left %d lines", n, len(lines)-1)
		}
		sum := map[string]float64{}
		for _, line := range lines[:n] {
			got := parseLine(t, line)
			names := slices.Sorted(maps.Keys(got))
			if !slices.Equal(names, keys) {
				t.Fatalf("keys %v, want %v", names, keys)
			}
			for k, v := range got {
				number, ok := v.(json.Number)
				if !ok {
					continue
				}
				f, err := number.Float64()
				if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
					t.Fatalf("%s is %v", k, number)
				}
				if strings.Contains(k, "_ms") && f < 0 && k != "deadline_ms" {
					t.Fatalf("%s is %v", k, f)
				}
				if strings.HasPrefix(k, "tokens.") && got["outcome"] != "refused" {
					sum[k] += f
				}
			}
			sum[got["outcome"].(string)]++
		}

		r := prometheus.NewRegistry()
		r.MustRegister(prom)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			var want float64
			switch f.GetName() {
			case "vllm:prompt_tokens_total":
				want = sum["tokens.prompt"]
			case "vllm:prompt_tokens_cached_total":
				want = sum["tokens.cached"]
			case "vllm:generation_tokens_total":
				want = sum["tokens.output"]
			case "vllm:request_success_total":
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						if l.GetName() == "finished_reason" && m.GetCounter().GetValue() != sum[l.GetValue()] {
							t.Fatalf("finished_reason %s: %v, the lines have %v", l.GetValue(), m.GetCounter().GetValue(), sum[l.GetValue()])
						}
					}
				}
				continue
			default:
				continue
			}
			if got := f.GetMetric()[0].GetCounter().GetValue(); got != want {
				t.Fatalf("%s is %v, the lines add up to %v", f.GetName(), got, want)
			}
		}
	})
}

func TestTheConsoleLineIsOneLineWithoutControlCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := written(t, Console, drawRecord(t))
		if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") || !utf8.ValidString(line) {
			t.Fatalf("%q", line)
		}
		for _, c := range line[:len(line)-1] {
			if c < ' ' || c == 0x7f || c == 0x9b {
				t.Fatalf("%q", line)
			}
		}
	})
}

func TestTheConsoleLineSaysWhatHappened(t *testing.T) {
	_, rest, _ := strings.Cut(written(t, Console, finished()), " ")
	if want := "200 length 40+128 tok ttft 98ms 97 tok/s e2e 1.34s queue 12ms chatcmpl, 16 cached\n"; rest != want {
		t.Errorf("got  %swant %s", rest, want)
	}
	r := finished()
	r.Request.ExternalID, r.Request.Endpoint, r.Request.KeyName, r.Outcome = "cmpl-9f2c1d3a4b5c6d7e", "completion", "alice", lifecycle.OutcomeStop
	_, rest, _ = strings.Cut(written(t, Console, r), " ")
	if want := "200 40+128 tok ttft 98ms 97 tok/s e2e 1.34s queue 12ms 9f2c1d3a, completion, 16 cached, key alice\n"; rest != want {
		t.Errorf("got  %swant %s", rest, want)
	}
	_, rest, _ = strings.Cut(written(t, Console, refused(404, "model_not_found")), " ")
	if want := "404 POST /v1/chat/completions refused: no such model\n"; rest != want {
		t.Errorf("got  %swant %s", rest, want)
	}
}

// An ordinary request with a long prompt is one row of 80 columns, and with what often follows, of 120.
func TestAnOrdinaryRequestsConsoleLineFitsTheTerminal(t *testing.T) {
	r := finished()
	r.Request.ExternalID, r.Outcome, r.Usage.Prompt, r.Usage.Cached = "chatcmpl-9f2c1d3a4b5c6d7e8f90", lifecycle.OutcomeLength, 523, 0
	if line := written(t, Console, r); utf8.RuneCountInString(line) > 81 { // with the line feed
		t.Errorf("%d columns: %s", utf8.RuneCountInString(line)-1, line)
	}
	r.Request.Endpoint, r.Usage.Prompt, r.Usage.Cached = "completion", 1523, 1520
	if line := written(t, Console, r); utf8.RuneCountInString(line) > 121 {
		t.Errorf("%d columns: %s", utf8.RuneCountInString(line)-1, line)
	}
}

func BenchmarkRequestLogJSON(b *testing.B)    { benchmarkLog(b, JSON) }
func BenchmarkRequestLogConsole(b *testing.B) { benchmarkLog(b, Console) }

func benchmarkLog(b *testing.B, f Format) {
	l := NewRequestLog(io.Discard, f, io.Discard)
	defer l.Close()
	r := eventful()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Observe(r)
		if i%100 == 99 { // or it would be faster than the writer, and lose lines
			_ = l.Flush()
		}
	}
	if n := l.Lost(); n > 0 {
		b.Fatalf("%d lines were lost: they cost less", n)
	}
}
