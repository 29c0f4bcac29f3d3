package requestlog

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/observe"
)

const ms = int64(1e6)

func draw(t *rapid.T) *lifecycle.Record {
	str := rapid.OneOf(rapid.Just(""), rapid.StringN(0, 20, 100), rapid.SampledFrom([]string{"chat", "bad \xff bytes", "tab\t\"quote\" \\", "é", "\u2028\U0001F600"}))
	stamp := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1e9, 1e15))
	span := rapid.Int64Range(0, 1e15)
	num := rapid.IntRange(0, 100_000)
	r := &lifecycle.Record{
		Request: &lifecycle.Request{
			ID: rapid.Uint64().Draw(t, "id"), ExternalID: str.Draw(t, "external"), Endpoint: str.Draw(t, "endpoint"), Model: str.Draw(t, "model"),
			KeyName: str.Draw(t, "key"), ClientID: str.Draw(t, "client"), Peer: str.Draw(t, "peer"), Arrival: 1e9,
			Deadline: stamp.Draw(t, "deadline"), Priority: rapid.IntRange(-5, 5).Draw(t, "priority"), N: num.Draw(t, "n"),
			Stream: rapid.Bool().Draw(t, "stream"), Echo: rapid.Bool().Draw(t, "echo"),
		},
		Method: str.Draw(t, "method"), Path: str.Draw(t, "path"), Outcome: rapid.SampledFrom([]lifecycle.Outcome{"stop", "refused"}).Draw(t, "outcome"),
		Status: rapid.IntRange(100, 599).Draw(t, "status"), StopString: str.Draw(t, "stop"), StopToken: rapid.Int32Range(-1, 9).Draw(t, "token"),
		Usage:   lifecycle.Usage{Prompt: num.Draw(t, "prompt"), Cached: num.Draw(t, "cached"), Completion: num.Draw(t, "output")},
		Arrival: 1e9, Queued: stamp.Draw(t, "queued"), Scheduled: stamp.Draw(t, "scheduled"), FirstToken: stamp.Draw(t, "first"),
		LastToken: stamp.Draw(t, "last"), Finished: stamp.Draw(t, "finished"), Delivered: stamp.Draw(t, "delivered"),
		Wall: rapid.SampledFrom([]int64{0, 1_790_000_000_123_456_789}).Draw(t, "wall"), BytesOut: span.Draw(t, "bytes"), Sequences: num.Draw(t, "sequences"),
		Engine: rapid.IntRange(0, 9).Draw(t, "engine"), Engines: rapid.IntRange(1, 2).Draw(t, "engines"),
		Discarded: num.Draw(t, "discarded"), Longest: num.Draw(t, "longest"),
		Detail: lifecycle.Detail{ArrivalToFirstToken: span.Draw(t, "ttft"), EndToEnd: span.Draw(t, "e2e"), Prefill: span.Draw(t, "prefill"), PrefillTokens: num.Draw(t, "computed"),
			Steps: num.Draw(t, "steps"), BatchSum: num.Draw(t, "batch"), ITLCount: rapid.IntRange(0, 2).Draw(t, "gaps"), ITLP50: span.Draw(t, "p50"), ITLMax: span.Draw(t, "max"),
			Slowed: lifecycle.Slowed{QueueCapacity: span.Draw(t, "slot"), QueueKV: span.Draw(t, "kv"), SlowClient: span.Draw(t, "slow")}},
	}
	if rapid.Bool().Draw(t, "params") {
		r.Request.Params = &lifecycle.Params{Temperature: 0.7, Stop: []string{"}", `"]`}, Logprobs: -1}
	}
	if rapid.Bool().Draw(t, "failed") {
		r.Err = &lifecycle.Error{Type: str.Draw(t, "type"), Code: str.Draw(t, "code"), Param: str.Draw(t, "param"), Message: str.Draw(t, "message")}
	}
	if rapid.Bool().Draw(t, "timeline") {
		r.Timeline = &lifecycle.Timeline{Events: []lifecycle.Event{
			{Kind: lifecycle.EventQueue, At: 1e9, Dur: span.Draw(t, "wait"), Slots: 8, Ahead: 2, Cached: 16, Slot: span.Draw(t, "slot wait"), Blocks: 7},
			{Kind: lifecycle.EventStall, Cause: lifecycle.CausePrefill, Sequence: 1, At: 2e9, Dur: 5, Steps: 2, Sequences: 5, Others: 512, Excess: 3, Busy: 4, Output: 2},
			{Kind: lifecycle.EventLeftOut, Sequences: 9},
		}}
	}
	r.Metrics = lifecycle.Timing{Queued: r.Queued, Scheduled: r.Scheduled, FirstToken: r.FirstToken, LastToken: r.LastToken, Tokens: r.Usage.Completion}.Metrics()
	return r
}

func write(t interface{ Fatal(...any) }, records ...*lifecycle.Record) []byte {
	var out bytes.Buffer
	l := observe.NewRequestLog(&out, observe.JSON, io.Discard)
	for _, r := range records {
		l.Observe(r)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// line is a line for encoding/json.
type line struct {
	Version           int     `json:"version"`
	Time              *string `json:"time"`
	ID                uint64  `json:"id"`
	RequestID         *string `json:"request_id"`
	ClientRequestID   *string `json:"client_request_id"`
	Endpoint          *string
	Method            *string
	Path              *string
	Model             *string
	Key               *string
	Peer              *string
	Stream, Echo      bool
	Priority, Prompts int
	N                 int
	Deadline          *float64 `json:"deadline_ms"`
	Params            json.RawMessage
	Tokens            Tokens
	At                struct {
		Queued, Scheduled, Finished, Delivered *float64
		FirstToken                             *float64 `json:"first_token"`
		LastToken                              *float64 `json:"last_token"`
	} `json:"at_ms"`
	Metrics struct {
		TimeToFirstToken *float64 `json:"time_to_first_token_ms"`
		GenerationTime   *float64 `json:"generation_time_ms"`
		QueueTime        *float64 `json:"queue_time_ms"`
		MeanITL          *float64 `json:"mean_itl_ms"`
		TokensPerSecond  *float64 `json:"tokens_per_second"`
	}
	Detail struct {
		ArrivalToFirstToken *float64 `json:"arrival_to_first_token_ms"`
		EndToEnd            *float64 `json:"e2e_ms"`
		Prefill             *float64 `json:"prefill_ms"`
		Preemptions         int
		Preempted           *float64 `json:"preempted_ms"`
		Steps               int
		MeanBatch           *float64 `json:"mean_batch_size"`
		ITL                 struct {
			P50, P90, P99, Max *float64
			Count              *int
		} `json:"itl_ms"`
	}
	Slowed struct {
		QueueCapacity   float64 `json:"queue_capacity"`
		QueueKV         float64 `json:"queue_kv"`
		PrefillOfOthers float64 `json:"prefill_of_others"`
		Preemption      float64
		DeviceRestart   float64 `json:"device_restart"`
		SlowClient      float64 `json:"slow_client"`
	} `json:"slowed_by_ms"`
	Timeline  json.RawMessage
	Sequences int
	Outcome   *string
	Stop      struct {
		String *string
		Token  *int
	}
	Status int
	Error  struct{ Type, Code, Param, Message *string }
	Bytes  int64
	Engine *int
}

// fataler is a test, or one case of a property.
type fataler interface{ Fatalf(string, ...any) }

// entry is what encoding/json makes of a line.
func entry(t fataler, b []byte) Entry {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	str := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	span := func(p *float64) Span {
		if p == nil {
			return Null
		}
		return Span(math.Round(*p * 1e6))
	}
	float := func(p *float64) float64 {
		if p == nil {
			return math.NaN()
		}
		return *p
	}
	raw := func(m json.RawMessage) []byte {
		if string(m) == "null" {
			return nil
		}
		return m
	}
	e := Entry{
		Version: l.Version, Time: str(l.Time), ID: l.ID, RequestID: str(l.RequestID), ClientRequestID: str(l.ClientRequestID), Endpoint: str(l.Endpoint),
		Method: str(l.Method), Path: str(l.Path), Model: str(l.Model), Key: str(l.Key), Peer: str(l.Peer), Stream: l.Stream, Echo: l.Echo,
		Priority: l.Priority, Prompts: l.Prompts, N: l.N, Deadline: span(l.Deadline), Params: raw(l.Params), Tokens: l.Tokens,
		At: At{span(l.At.Queued), span(l.At.Scheduled), span(l.At.FirstToken), span(l.At.LastToken), span(l.At.Finished), span(l.At.Delivered)},
		Metrics: Metrics{span(l.Metrics.TimeToFirstToken), span(l.Metrics.GenerationTime), span(l.Metrics.QueueTime), span(l.Metrics.MeanITL),
			float(l.Metrics.TokensPerSecond), nil},
		Detail: Detail{ArrivalToFirstToken: span(l.Detail.ArrivalToFirstToken), EndToEnd: span(l.Detail.EndToEnd), Prefill: span(l.Detail.Prefill),
			Preempted: span(l.Detail.Preempted), MeanBatch: float(l.Detail.MeanBatch),
			Preemptions: l.Detail.Preemptions, Steps: l.Detail.Steps, ITLP50: span(l.Detail.ITL.P50), ITLP90: span(l.Detail.ITL.P90), ITLP99: span(l.Detail.ITL.P99), ITLMax: span(l.Detail.ITL.Max)},
		SlowedBy: SlowedBy{span(&l.Slowed.QueueCapacity), span(&l.Slowed.QueueKV), span(&l.Slowed.PrefillOfOthers), span(&l.Slowed.Preemption), span(&l.Slowed.DeviceRestart), span(&l.Slowed.SlowClient)},
		Timeline: raw(l.Timeline), Sequences: l.Sequences, Outcome: str(l.Outcome), StopString: str(l.Stop.String), StopToken: -1, Status: l.Status,
		Error: Error{str(l.Error.Type), str(l.Error.Code), str(l.Error.Param), str(l.Error.Message)}, Bytes: l.Bytes, Engine: -1,
	}
	if l.Engine != nil {
		e.Engine = *l.Engine
	}
	if l.Detail.ITL.Count != nil {
		e.Detail.ITLCount = *l.Detail.ITL.Count
	}
	if l.Stop.Token != nil {
		e.StopToken = *l.Stop.Token
	}
	return e
}

// same compares entries; NaN is NaN, and a nanosecond is what a float64 of so many milliseconds may
// be off.
func same(t fataler, a, b any) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		name := x.Type().Field(i).Name
		if name == "text" || name == "Raw" {
			continue
		}
		switch v, w := x.Field(i).Interface(), y.Field(i).Interface(); v := v.(type) {
		case float64:
			if w := w.(float64); v != w && !(math.IsNaN(v) && math.IsNaN(w)) {
				t.Fatalf("%s is %v, want %v", name, v, w)
			}
		case Span:
			if w := w.(Span); v.Known() != w.Known() || max(v-w, w-v) > 1 {
				t.Fatalf("%s is %v, want %v", name, v, w)
			}
		case []byte:
			var p, q bytes.Buffer
			if len(v) > 0 || len(w.([]byte)) > 0 {
				if json.Compact(&p, v) != nil || json.Compact(&q, w.([]byte)) != nil || p.String() != q.String() {
					t.Fatalf("%s is %s, want %s", name, v, w)
				}
			}
		default:
			if x.Field(i).Kind() == reflect.Struct {
				same(t, v, w)
			} else if v != w {
				t.Fatalf("%s is %v, want %v", name, v, w)
			}
		}
	}
}

func TestALineReadsAsEncodingJSONReadsIt(t *testing.T) {
	var e Entry
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		b := bytes.TrimSpace(write(t, r))
		want := entry(t, b)
		if err := Scan(b, &e); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		same(t, e, want)
		// Exactly, where float64 is not.
		if e.At.Finished.Known() && int64(e.At.Finished) != max(r.Finished-r.Arrival, 0) {
			t.Fatalf("finished at %d, want %d", e.At.Finished, r.Finished-r.Arrival)
		}
		// In another order, with white space and keys that nobody knows.
		var m map[string]any
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if err := d.Decode(&m); err != nil {
			t.Fatal(err)
		}
		m["unknown"] = map[string]any{"a": []any{1, "}", nil, true, map[string]any{}}, "b": -1.5e300}
		spaced, err := json.MarshalIndent(m, "\t", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := Scan(spaced, &e); err != nil {
			t.Fatalf("%v in %s", err, spaced)
		}
		want.Params, want.Timeline = nil, nil // their keys are in another order too
		e.Params, e.Timeline = nil, nil
		same(t, e, want)
	})
}

func TestTheTimelineReadsBackAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		var e Entry
		if err := Scan(write(t, r), &e); err != nil {
			t.Fatal(err)
		}
		events, err := e.Events()
		if err != nil {
			t.Fatal(err)
		}
		if r.Timeline == nil {
			if events != nil {
				t.Fatalf("%+v", events)
			}
			return
		}
		q := r.Timeline.Events[0]
		want := []Event{
			{Kind: "queue", Dur: Span(q.Dur), Slots: 8, Ahead: 2, Cached: 16, Slot: Span(q.Slot), Blocks: 7},
			{Kind: "stall", Why: "prefill_of_others", Seq: 1, At: 1e9, Dur: 5, Steps: 2, Batch: 2.5, Others: 512, Excess: 3, Busy: 4, Output: 2},
			{Kind: "left_out", Sequences: 9},
		}
		if !reflect.DeepEqual(events, want) {
			t.Fatalf("%+v, want %+v", events, want)
		}
	})
}

func FuzzWhatScanTakesIsJSONButForWhatItDoesNotLookIntoAndNothingMakesItPanic(f *testing.F) {
	for _, s := range []string{`{}`, `{"version":1,"id":7,"tokens":{"prompt":3},"at_ms":{"queued":0.5}}`, `{"a":[{"b":"\ud83d\ude00\u00e9"},-0.5e-7,true,null]}`,
		`{"stop":{"string":"\n"},"params":{"stop":["}"]},"timeline":[{"e":"queue"}]}`, `{"a":01}`, `{"a":1,}`, `[1]`, `{"id":1e999}`, `{"model":"\x"}`, `{"version":1} x`,
		`{"params":{a:"}\""},"metrics":{"speculative_decoding":[{]}]}}`, `{"timeline":[`, `{"timeline":["\`, `{"timeline":[}}`} {
		f.Add([]byte(s))
	}
	var e Entry
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := Scan(b, &e); err != nil {
			return
		}
		_, _ = e.Events()
		rest := bytes.Clone(b)
		for _, raw := range [][]byte{e.Params, e.Timeline, e.Metrics.Speculative} {
			if len(raw) > 0 && (raw[0] == '{' || raw[0] == '[') {
				at := cap(b) - cap(raw) // it lies in b
				copy(rest[at:], "0"+strings.Repeat(" ", len(raw)-1))
			}
		}
		if json.Valid(rest) || bytes.Contains(b, []byte(`\u`)) {
			return
		}
		for _, key := range []string{"params", "timeline", "speculative_decoding"} {
			if bytes.Count(b, []byte(key)) > 1 {
				return // a key that is there twice, of which only the last value has been taken out
			}
		}
		t.Fatalf("%q was taken", b)
	})
}

func TestWhatIsNotLookedIntoEndsWhereItsBracesDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Deferred(func() *rapid.Generator[any] { return anything(3) }).Draw(t, "value")
		b, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		var e Entry
		line := []byte(`{"version":1,"params":` + string(b) + ` , "metrics":{"speculative_decoding":` + string(b) + `},"status":7}`)
		if err := Scan(line, &e); err != nil || e.Status != 7 {
			t.Fatalf("%v: %s", err, line)
		}
		if string(b) == "null" {
			b = nil
		}
		if !bytes.Equal(e.Params, b) || !bytes.Equal(e.Metrics.Speculative, b) {
			t.Fatalf("%s and %s of %s", e.Params, e.Metrics.Speculative, line)
		}
	})
	for _, bad := range []string{`{`, `[`, `{"a":"}`, `{"a":"\"}`, `[}`, `{"a":[}`, `]`, `"a`, `{"a":"\`} {
		var e Entry
		if err := Scan([]byte(`{"version":1,"params":`+bad+`,"status":200}`), &e); err == nil || !strings.Contains(err.Error(), `"params"`) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// anything draws a JSON value, nested so deep.
func anything(depth int) *rapid.Generator[any] {
	flat := rapid.OneOf(rapid.Map(rapid.StringMatching(`[a{}\[\]"\\é,:]{0,6}`), func(s string) any { return s }), rapid.Just[any](nil), rapid.Map(rapid.Float64Range(-9, 9), func(f float64) any { return f }))
	if depth == 0 {
		return flat
	}
	below := anything(depth - 1)
	return rapid.OneOf(flat, rapid.Map(rapid.SliceOfN(below, 0, 3), func(v []any) any { return v }),
		rapid.Map(rapid.MapOfN(rapid.StringMatching(`[a{}"\\]{0,3}`), below, 0, 3), func(v map[string]any) any { return v }))
}

func TestValuesThatCannotBeMakeALineBroken(t *testing.T) {
	for line, want := range map[string]string{
		`{"at_ms":{"queued":1e300}}`:                      `"queued": a time of more than ten years`,
		`{"at_ms":{"queued":999999999999}}`:               `"queued": a time of more than ten years`,
		`{"at_ms":{"queued":999999999999.5}}`:             `"queued": a time of more than ten years`,
		`{"detail":{"e2e_ms":-0.5}}`:                      `"e2e_ms": a time below 0`,
		`{"slowed_by_ms":{"queue_kv":-3}}`:                `"queue_kv": a time below 0`,
		`{"deadline_ms":-1e300}`:                          `"deadline_ms": a time below 0`,
		`{"tokens":{"prompt":-1}}`:                        `"prompt": a number below 0`,
		`{"tokens":{"output":999999999999999999}}`:        `"output": a number that is too large`,
		`{"tokens":{"output":99999999999999999999}}`:      `"output": want a whole number`,
		`{"status":1000}`:                                 `"status": a number that is too large`,
		`{"bytes":-1}`:                                    `"bytes": a number below 0`,
		`{"n":3000000000}`:                                `"n": a number that is too large`,
		`{"stop":{"token":-2}}`:                           `"token": a number below 0`,
		`{"metrics":{"tokens_per_second":1e300}}`:         `"tokens_per_second": a number that is too large`,
		`{"metrics":{"tokens_per_second":-1}}`:            `"tokens_per_second": a number below 0`,
		`{"metrics":{"tokens_per_second":1e999}}`:         `"tokens_per_second": a number out of range`,
		`{"time":"x"}`:                                    `"time": want a time such as 2026-11-30T12:00:00Z`,
		`{"time":"2026-11-30 12:00:00Z"}`:                 `"time": want`,
		`{"time":"2026-11-30T12:00:00"}`:                  `"time": want`,
		`{"time":"2026-11-30T12:00:00+01:00"}`:            `"time": want`,
		`{"time":"2026-11-30T12:00:00.Z"}`:                `"time": want`,
		`{"time":"2026-11-30T12:00:00.1234567891Z"}`:      `"time": want`,
		`{"time":"2026-11-30T12:00:00.12x45Z"}`:           `"time": want`,
		`{"time":"2026-13-30T12:00:00Z"}`:                 `"time": want`,
		`{"time":"2026-00-30T12:00:00Z"}`:                 `"time": want`,
		`{"time":"2026-11-30T24:00:00Z"}`:                 `"time": want`,
		`{"time":"` + strings.Repeat("9", 100_000) + `"}`: `"time": want`,
	} {
		var e Entry
		if err := Scan([]byte(line), &e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", line, err, want)
		}
	}
	for _, line := range []string{
		`{"time":"2026-11-30T12:00:00Z"}`, `{"time":"2026-11-30T12:00:00.123456789Z"}`, `{"time":"2016-12-31T23:59:60.5Z"}`, `{"time":null}`, `{"priority":-5}`,
		`{"deadline_ms":315360000000}`, `{"at_ms":{"queued":-0}}`, `{"stop":{"token":null}}`, `{"detail":{"prefill_tokens_per_second":1e14}}`,
	} {
		var e Entry
		if err := Scan([]byte(line), &e); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	sum, err := Each(context.Background(), []string{"-"}, strings.NewReader(`{"version":1,"time":"x"}`), func(*Entry, Place) error { return nil })
	if err != nil || sum.Broken != 1 || sum.Lines != 0 || !strings.HasPrefix(sum.Problems[0], `standard input:1: "time": want a time`) {
		t.Errorf("%+v, %v", sum, err)
	}
}

func TestABrokenLineIsRefusedAndSaysWhere(t *testing.T) {
	for line, want := range map[string]string{
		``:                                    "not a JSON object",
		`hello`:                               "not a JSON object",
		`{"version":1,"id":"seven"}`:          `"id": want a number, at byte 19`,
		`{"version":1,"model":5}`:             `"model": want a string, at byte 22`,
		`{"version":1,"status":20.5}`:         `"status": want a whole number`,
		`{"version":1,"at_ms":{"queued":0.5`:  `"queued": cut short`,
		`{"version":1,"model":"x`:             `"model": cut short`,
		`{"version":1}{"version":1}`:          "something follows the object",
		`{"version":1 "id":2}`:                "want , or }",
		`{"version":1,"tokens":[]}`:           `"tokens": want {, or null`,
		`{"x":` + strings.Repeat("[", 100000): "nested too deeply",
	} {
		var e Entry
		if err := Scan([]byte(line), &e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", line, err, want)
		}
	}
}

func read(t *testing.T, names ...string) (ids []string, sum Summary, err error) {
	sum, err = Each(context.Background(), names, strings.NewReader(`{"outcome":"stop","version":1,"request_id":"from stdin"}`), func(e *Entry, _ Place) error {
		ids = append(ids, strings.Clone(e.RequestID))
		return nil
	})
	return ids, sum, err
}

func TestLogsAreReadWhateverTheyArePackedIn(t *testing.T) {
	dir := t.TempDir()
	plain := []byte("{\"outcome\":\"stop\",\"version\":1,\"request_id\":\"a\"}\n\n{\"outcome\":\"stop\",\"version\":1,\"request_id\":\"b\"}\r\n{\"outcome\":\"stop\",\"version\":1,\"request_id\":\"c\"}")
	var gz, zst bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, _ = g.Write(plain)
	_ = g.Close()
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = z.Write(plain)
	_ = z.Close()
	passed := append([]byte("\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"), zst.Bytes()...) // a frame to be passed over comes first
	marked := append([]byte("\xef\xbb\xbf"), plain...)                              // as some editors write it
	for name, b := range map[string][]byte{"1.log": plain, "2.log": gz.Bytes(), "3.log": zst.Bytes(), "4.log": nil, "5.log": gz.Bytes()[:gz.Len()-12], "6.log": passed, "7.log": marked} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ids, sum, err := read(t, filepath.Join(dir, "[1-467].log"), "-")
	if err != nil || strings.Join(ids, " ") != "a b c a b c a b c a b c a b c from stdin" || sum.Lines != 16 || sum.Files != 7 || len(sum.Problems) > 0 {
		t.Errorf("%v, %+v, %v", ids, sum, err)
	}
	_, sum, err = read(t, filepath.Join(dir, "5.log"))
	if err != nil || sum.Cut != 1 || !strings.Contains(sum.Cuts[0], "unexpected EOF") || !strings.HasSuffix(sum.String(), ", 1 not to the end") {
		t.Errorf("a file that is cut short: %+v, %v", sum, err)
	}
}

func TestAFileThatIsNamedTwiceIsReadOnce(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"1.log", "2.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"version":1,"outcome":"stop","request_id":"`+name+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "2.log"), filepath.Join(dir, "current.log")); err != nil {
		t.Log("no links here:", err)
	}
	ids, sum, err := read(t, filepath.Join(dir, "2.log"), "-", filepath.Join(dir, "*.log"), dir+"/./1.log", "-")
	if err != nil || strings.Join(ids, " ") != "2.log from stdin 1.log" || sum.Files != 3 {
		t.Errorf("%q, %+v, %v", ids, sum, err)
	}
}

func TestFilesThatEndEarlyAreNamedHoweverManyLinesAreBroken(t *testing.T) {
	dir := t.TempDir()
	var packed bytes.Buffer
	g := gzip.NewWriter(&packed)
	_, _ = g.Write([]byte(strings.Repeat("broken\n", 20) + "{\"outcome\":\"stop\",\"version\":1}\n"))
	_ = g.Close()
	var names []string
	for i := range maxCuts + 2 {
		b := packed.Bytes()[:packed.Len()-8] // without its checksum
		if i%2 == 1 {
			b = b[:5] // not even its head
		}
		names = append(names, filepath.Join(dir, fmt.Sprint(i, ".gz")))
		if err := os.WriteFile(names[i], b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, sum, err := read(t, names...)
	if err != nil || sum.Broken != 20*51 || len(sum.Problems) != maxProblems || sum.Lines != 51 || sum.Cut != maxCuts+2 || len(sum.Cuts) != maxCuts {
		t.Fatalf("%v: %+v", err, sum)
	}
	for i, c := range sum.Cuts {
		if !strings.HasPrefix(c, names[i]) || !strings.Contains(c, "unexpected EOF") {
			t.Errorf("%d: %s", i, c)
		}
	}
}

func TestWhatCannotBeReadIsCountedAndNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "requests.log")
	long := `{"outcome":"stop","version":1,"model":"` + strings.Repeat("x", MaxLine) + `"}`
	nearly := `{"outcome":"stop","version":1,"request_id":"big","model":"` + strings.Repeat("x", MaxLine-100) + `"}`
	text := strings.Join([]string{`{"outcome":"stop","version":1,"request_id":"a"}`, `{"version":1,`, `{"version":2}`, `{"version":3,"tokens":"many"}`, long, `{"hello":1}`, nearly,
		`{"version":1}`, `{"version":1,"outcome":"stop","tokens":{"prompt":3,"cached":4}}`, `{"outcome":"stop","version":1,"request_id":"z"}`}, "\n")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ids, sum, err := read(t, path)
	if err != nil || strings.Join(ids, " ") != "a big z" || sum.Broken != 5 || sum.Newer != 2 {
		t.Errorf("%v, %d broken, %d newer, %v", ids, sum.Broken, sum.Newer, err)
	}
	if got := sum.String(); got != "3 lines of 1 file, 5 broken, 2 of a newer version than 1" {
		t.Error(got)
	}
	for i, want := range []string{":2: ", ":3: version 2", ":5: the line is longer than 16 MiB", ":6: no version", ":8: no outcome", ":9: \"cached\": more tokens than the prompt has"} {
		if i >= len(sum.Problems) || !strings.Contains(sum.Problems[i], want) {
			t.Errorf("problems %q: want %q", sum.Problems, want)
		}
	}
}

func TestAFileThatIsNotThereIsAnError(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{
		filepath.Join(dir, "none.log"): "give a request log", filepath.Join(dir, "*.log"): "no file is called like", dir: "is a folder",
	} {
		if _, _, err := read(t, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadingEndsWhenItIsToldTo(t *testing.T) {
	stop := errors.New("enough")
	n := 0
	many := strings.NewReader(strings.Repeat("{\"outcome\":\"stop\",\"version\":1}\n", 10_000))
	if _, err := Each(context.Background(), []string{"-"}, many, func(*Entry, Place) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
		t.Errorf("%v after %d lines", err, n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	many = strings.NewReader(strings.Repeat("{\"outcome\":\"stop\",\"version\":1}\n", 10_000))
	if sum, err := Each(ctx, []string{"-"}, many, func(*Entry, Place) error { return nil }); !errors.Is(err, context.Canceled) || sum.Lines > 2000 {
		t.Errorf("%v after %d lines", err, sum.Lines)
	}
}

func TestReadingEndsThoughTheSourceHasNothingAsYet(t *testing.T) {
	stop := errors.New("enough")
	for name, c := range map[string]struct {
		lines string
		want  error
	}{"told to": {"", context.Canceled}, "an error": {`{"version":1,"outcome":"stop"}` + "\n", stop}} {
		in, out := io.Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() {
			_, err := Share(ctx, []string{"-"}, in, slices.Repeat([]Func{func(*Entry, Place) error { return stop }}, 3), nil)
			done <- err
		}()
		if _, err := io.WriteString(out, c.lines+`{"version`); err != nil { // which has been read when this returns
			t.Fatal(err)
		}
		if c.lines == "" {
			cancel()
		}
		select {
		case err := <-done:
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: it waits for more", name)
		}
		cancel()
		out.Close()
	}
}

func TestALineTakesNewMemoryForEscapesAtMostOnce(t *testing.T) {
	var line strings.Builder
	line.WriteString(`{"version":1`)
	for range 500 {
		line.WriteString(`,"\u0061é\n":1`)
	}
	line.WriteString(`,"model":"\u006d","outcome":"ö"}`)
	b := []byte(line.String())
	var e Entry
	for range 3 {
		e.text = nil
		if n := testing.AllocsPerRun(1, func() {
			if err := Scan(b, &e); err != nil || e.Model != "m" || e.Outcome != "ö" {
				t.Fatal(err, e.Model, e.Outcome)
			}
		}); n > 1 {
			t.Errorf("%v pieces of memory", n)
		}
	}
}

// typical is a line as a server writes it, of a plain request.
func typical(t interface{ Fatal(...any) }) []byte {
	r := &lifecycle.Record{
		Request: &lifecycle.Request{ID: 7, ExternalID: "chatcmpl-0123456789abcdef01234567", Endpoint: "chat", Model: "smollm2", Peer: "127.0.0.1:4242", KeyName: "alice",
			Arrival: ms, Prompts: [][]int32{make([]int32, 40)}, N: 1, Stream: true,
			Params: &lifecycle.Params{Temperature: 0.7, TopP: 0.95, Seed: math.MaxUint64, RepetitionPenalty: 1, Logprobs: -1, PromptLogprobs: -1, MaxTokens: 128}},
		Outcome: lifecycle.OutcomeLength, Status: 200, StopToken: -1, Usage: lifecycle.Usage{Prompt: 40, Cached: 16, Completion: 128},
		Arrival: ms, Queued: 2 * ms, Scheduled: 13_312_345, FirstToken: 98_523_456, LastToken: 1_339_123_456, Finished: 1_339_123_456, Delivered: 1_340_234_567,
		Wall: 1_790_000_000_123_456_789, BytesOut: 20480, Sequences: 1, Longest: 128,
		Detail: lifecycle.Detail{ArrivalToFirstToken: 98 * ms, EndToEnd: 1338_523_456, Prefill: 85_234_567, PrefillTokens: 24, Steps: 128, BatchSum: 300,
			Slowed: lifecycle.Slowed{QueueCapacity: 8_123_456, SlowClient: 1_111_111}},
		Timeline: &lifecycle.Timeline{Events: []lifecycle.Event{
			{Kind: lifecycle.EventQueue, At: 2 * ms, Dur: 11_312_345, Cached: 16, Slot: 8_123_456, Slots: 64, Ahead: 3},
			{Kind: lifecycle.EventPrefill, At: 13_312_345, Dur: 85_211_111, Prompt: 24, Output: 1, Steps: 1, Busy: 85_100_321, Sequences: 12, Others: 200},
			{Kind: lifecycle.EventDecode, At: 98_523_456, Dur: 1240_600_000, Output: 127, Steps: 127, Busy: 1230_100_321, Sequences: 1500},
			{Kind: lifecycle.EventEnd, Cause: lifecycle.CauseLength, At: 1_339_123_456},
			{Kind: lifecycle.EventDelivered, At: 1_339_123_456, Dur: 1_111_111},
		}},
	}
	r.Metrics = lifecycle.Timing{Queued: r.Queued, Scheduled: r.Scheduled, FirstToken: r.FirstToken, LastToken: r.LastToken, Tokens: 128}.Metrics()
	return write(t, r)
}

func TestScanningAllocatesNothing(t *testing.T) {
	b := typical(t)
	var e Entry
	if n := testing.AllocsPerRun(100, func() { _ = Scan(b, &e) }); n > 0 {
		t.Errorf("%v allocations a line", n)
	}
}

func BenchmarkScan(b *testing.B) {
	l := typical(b)
	var e Entry
	b.SetBytes(int64(len(l)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Scan(l, &e); err != nil {
			b.Fatal(err)
		}
	}
}

// The same with encoding/json, for the ratio.
func BenchmarkEncodingJSON(b *testing.B) {
	l := typical(b)
	b.SetBytes(int64(len(l)))
	for b.Loop() {
		var v line
		if err := json.Unmarshal(l, &v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEach(b *testing.B) {
	l := typical(b)
	all := bytes.Repeat(l, 10_000)
	b.SetBytes(int64(len(all)))
	for b.Loop() {
		sum, err := Each(context.Background(), []string{"-"}, bytes.NewReader(all), func(*Entry, Place) error { return nil })
		if err != nil || sum.Lines != 10_000 {
			b.Fatal(sum, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10_000, "ns/line")
}

func Example() {
	log := `{"outcome":"stop","version":1,"request_id":"chatcmpl-1","tokens":{"output":128},"at_ms":{"finished":1338.5}}`
	sum, err := Each(context.Background(), []string{"-"}, strings.NewReader(log), func(e *Entry, at Place) error {
		fmt.Printf("%v: %s made %d tokens in %v ms\n", at, e.RequestID, e.Tokens.Output, e.At.Finished.Millis())
		return nil
	})
	fmt.Println(&sum, err)
	// Output:
	// standard input:1: chatcmpl-1 made 128 tokens in 1338.5 ms
	// 1 line of 1 file <nil>
}

// pieces reads a text in pieces of some lengths, as a pipe gives it.
type pieces struct {
	text    string
	lengths []int
	n       int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(b[:min(len(b), p.lengths[p.n%len(p.lengths)])], p.text)
	p.text = p.text[n:]
	p.n++
	return n, nil
}

func TestTheSummaryIsTheSameHoweverManyShareTheLinesAndEachLineIsTakenOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		var want []string // ids, in the order of the lines
		for i := range rapid.IntRange(0, 60).Draw(t, "lines") {
			id := fmt.Sprint("r", i)
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				text.WriteString("broken\n")
			case 1:
				fmt.Fprintf(&text, `{"version":%d}`+"\n", rapid.IntRange(2, 3).Draw(t, "version"))
			case 2:
				text.WriteString("\n")
			default:
				fmt.Fprintf(&text, `{"outcome":"stop","version":1,"request_id":%q,"model":%q}`+"\n", id, strings.Repeat("m", rapid.IntRange(0, 300).Draw(t, "long")))
				want = append(want, id)
			}
		}
		lengths := rapid.SliceOfN(rapid.IntRange(1, 500), 1, 9).Draw(t, "lengths")
		var first Summary
		for _, n := range []int{1, 2, 7} {
			taken := make([][]string, n)
			lines := make([]int, n)
			fs := make([]Func, n)
			for i := range fs {
				fs[i] = func(e *Entry, at Place) error {
					if at.Line <= lines[i] {
						return fmt.Errorf("line %d comes after %d", at.Line, lines[i])
					}
					lines[i] = at.Line
					taken[i] = append(taken[i], strings.Clone(e.RequestID))
					return nil
				}
			}
			last := 0
			sum, err := Share(context.Background(), []string{"-"}, &pieces{text: text.String(), lengths: lengths}, fs, func(file string, lines int) {
				if file != "standard input" || lines < last {
					t.Errorf("%d lines of %s after %d", lines, file, last)
				}
				last = lines
			})
			if err != nil || last != sum.Lines {
				t.Fatal(err, last, sum.Lines)
			}
			if n == 1 {
				if first = sum; !slices.Equal(taken[0], want) {
					t.Fatalf("%q, want %q", taken[0], want)
				}
			}
			if !reflect.DeepEqual(sum, first) || sum.Cut != 1 || !strings.Contains(sum.Cuts[0], fmt.Sprintf("after line %d: unexpected EOF", strings.Count(text.String(), "\n"))) {
				t.Fatalf("%d: %+v, want %+v", n, sum, first)
			}
			all := slices.Concat(taken...)
			slices.Sort(all)
			sorted := slices.Sorted(slices.Values(want))
			if !slices.Equal(all, sorted) {
				t.Fatalf("%d: %q, want %q", n, all, sorted)
			}
		}
	})
}

func TestOneErrorEndsAllWhoShareTheLines(t *testing.T) {
	stop := errors.New("enough")
	many := strings.NewReader(strings.Repeat("{\"outcome\":\"stop\",\"version\":1}\n", 200_000)) // of several blocks
	fs := make([]Func, 3)
	for i := range fs {
		fs[i] = func(_ *Entry, at Place) error {
			if at.Line > 30_000 {
				return stop
			}
			return nil
		}
	}
	if sum, err := Share(context.Background(), []string{"-"}, many, fs, nil); !errors.Is(err, stop) || sum.Lines >= 200_000 {
		t.Errorf("%v after %d lines", err, sum.Lines)
	}
}
