package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport/observe"
)

const ms = int64(1e6)

// record is an eventful life.
func record() *lifecycle.Record {
	r := &lifecycle.Record{
		Request: &lifecycle.Request{ID: 7, ExternalID: "chatcmpl-77aa", ClientID: "mine-1", Endpoint: "chat", Model: "smollm2", KeyName: "alice", Peer: "127.0.0.1:4242",
			Arrival: 1000 * ms, Prompts: [][]int32{make([]int32, 100)}, N: 1, Stream: true, Params: &lifecycle.Params{Logprobs: -1, PromptLogprobs: -1}},
		Outcome: lifecycle.OutcomeLength, Status: 200, StopToken: -1, Usage: lifecycle.Usage{Prompt: 100, Cached: 16, Completion: 44},
		Arrival: 1000 * ms, Queued: 1001 * ms, Scheduled: 1901 * ms, FirstToken: 1986 * ms, LastToken: 2542 * ms, Finished: 2542 * ms, Delivered: 2545 * ms,
		Wall: 1_790_000_000_123_456_789, BytesOut: 20480, Sequences: 1, Longest: 44,
		Detail: lifecycle.Detail{PrefillTokens: 84, Preemptions: 1, Preempted: 30 * ms, Steps: 46, BatchSum: 138,
			Slowed: lifecycle.Slowed{QueueCapacity: 812 * ms, QueueKV: 80 * ms, PrefillOfOthers: 119 * ms, Preemption: 30 * ms, SlowClient: 3 * ms}},
		Timeline: &lifecycle.Timeline{Events: []lifecycle.Event{
			{Kind: lifecycle.EventQueue, At: 1001 * ms, Dur: 900 * ms, Cached: 16, Slot: 812 * ms, Blocks: 80 * ms, Slots: 64, Ahead: 5},
			{Kind: lifecycle.EventPrefill, At: 1901 * ms, Dur: 40 * ms, Prompt: 34, Steps: 1, Busy: 40 * ms, Sequences: 12, Others: 50},
			{Kind: lifecycle.EventPrefill, At: 1941 * ms, Dur: 45 * ms, Prompt: 50, Output: 1, Steps: 1, Busy: 45 * ms, Sequences: 12},
			{Kind: lifecycle.EventDecode, At: 1986 * ms, Dur: 300 * ms, Output: 30, Steps: 30, Busy: 300 * ms, Sequences: 360},
			{Kind: lifecycle.EventStall, Cause: lifecycle.CausePrefill, At: 2286 * ms, Dur: 140 * ms, Output: 2, Steps: 2, Busy: 140 * ms, Sequences: 24, Others: 1536, Excess: 119 * ms},
			{Kind: lifecycle.EventPreempted, Cause: lifecycle.CauseBlocks, At: 2426 * ms, Dur: 30 * ms, Cached: 48},
			{Kind: lifecycle.EventRecompute, At: 2456 * ms, Dur: 20 * ms, Prompt: 60, Output: 1, Steps: 1, Busy: 20 * ms, Sequences: 12},
			{Kind: lifecycle.EventDecode, At: 2476 * ms, Dur: 66 * ms, Output: 10, Steps: 10, Busy: 66 * ms, Sequences: 10},
			{Kind: lifecycle.EventEnd, Cause: lifecycle.CauseLength, At: 2542 * ms},
			{Kind: lifecycle.EventDelivered, At: 2542 * ms, Dur: 3 * ms},
		}},
	}
	r.Metrics = lifecycle.Timing{Queued: r.Queued, Scheduled: r.Scheduled, FirstToken: r.FirstToken, LastToken: r.LastToken, Tokens: 44}.Metrics()
	return r
}

func logOf(t interface{ Fatal(...any) }, records ...*lifecycle.Record) string {
	var out bytes.Buffer
	l := observe.NewRequestLog(&out, observe.JSON, io.Discard)
	for _, r := range records {
		l.Observe(r)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func find(t *testing.T, id, log string) (*Found, error) {
	t.Helper()
	r, err := Find(context.Background(), id, []string{"-"}, strings.NewReader(log))
	if err != nil {
		return nil, err
	}
	if r.Count != 1 || len(r.Requests) != 1 {
		t.Fatalf("%d requests", r.Count)
	}
	return r.Requests[0], nil
}

func text(t *testing.T, f *Found, o Options) string {
	t.Helper()
	var b strings.Builder
	if err := f.Text(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestOfSeveralEnginesItIsSaidWhich(t *testing.T) {
	r := record()
	r.Engine, r.Engines = 1, 2
	f, err := find(t, "chatcmpl-77aa", logOf(t, r))
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, f, Options{Width: 160}); !strings.Contains(got, "streamed, engine 1\n") {
		t.Errorf("got\n%s", got)
	}
}

func TestALifeIsToldInWords(t *testing.T) {
	f, err := find(t, "chatcmpl-77aa", logOf(t, record()))
	if err != nil {
		t.Fatal(err)
	}
	want := `chatcmpl-77aa
line 1 of standard input, arrived 2026-09-21 14:13:20.123 UTC, chat, model smollm2, key alice, from
127.0.0.1:4242, the client's id mine-1, streamed
100 prompt tokens (16 of them cached), 44 tokens generated; first token after 986 ms, then 12.9 ms
each
200, ended at its token limit

·░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░▒▒▒▒▒▒▒███████████████████████████████████▓
░ queue 900 ms (58 %)   ▒ prefill 85.0 ms (6 %)   █ decode 556 ms (36 %)
▓ delivery 3.00 ms (< 1 %)

        at        took  what
      0 ms     1.00 ms  arrived; read, tokenised and handed to the scheduler
   1.00 ms      900 ms  waited 812 ms for a sequence slot: all 64 were taken, 80.0 ms for KV cache
                        blocks; 5 others waited before it; 16 prompt tokens in the cache already
    901 ms     40.0 ms  prefill of 34 tokens, among 12 sequences; the step also held 50 prompt
                        tokens of others
    941 ms     45.0 ms  prefill of 50 tokens, among 12 sequences; the first token
    986 ms      300 ms  decode: 30 tokens, 10.0 ms each, among 12 sequences
    1.29 s      140 ms  stall: 2 tokens, 119 ms later than usual: the 2 steps also held 1536 prompt
                        tokens of others
    1.43 s     30.0 ms  without a place: another sequence needed its KV cache blocks; 48 tokens had
                        stayed in the cache
    1.46 s     20.0 ms  60 tokens computed again, among 12 sequences
    1.48 s     66.0 ms  decode: 10 tokens, 6.60 ms each, alone
    1.54 s              ended at its token limit
    1.54 s     3.00 ms  delivered: 20480 bytes written

Where the time went: of 1.54 s, 812 ms (53 %) waiting for a sequence slot, 119 ms (8 %) prompts of
others in its decode steps, 80.0 ms (5 %) waiting for KV cache blocks, 30.0 ms (2 %) its place lost
to another sequence, 23.8 ms (2 %) prompts of others in the steps of its own prefill, 8.00 ms (1 %)
waiting for the next step to begin; the other 472 ms (31 %) were its own work and the steps that it
was part of.
`
	if got := text(t, f, Options{Width: 100}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestALineWithoutATimelineIsToldFromItsStamps(t *testing.T) {
	r := record()
	r.Timeline = nil
	f, err := find(t, "7", logOf(t, r))
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, f, Options{Width: 120})
	for _, want := range []string{"waited 812 ms for a sequence slot or room in a step, 80.0 ms for KV cache blocks", "(53 %) waiting for a sequence slot or for room in a step", "prefill of 84 tokens",
		"decode of 44 tokens, among 3 sequences in the mean; it lost its place 1 time, for 30.0 ms", "ended at its token limit", "20480 bytes written"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestTheVerdictNamesTheLargestCause(t *testing.T) {
	const before = `{"version":1,"id":7,"outcome":"stop","status":200,"sequences":1,"at_ms":{"queued":0,"scheduled":%[1]d,"first_token":%[2]d,"last_token":1000,"finished":1000,"delivered":1000.3},` +
		`"slowed_by_ms":{"queue_capacity":%[1]d,"queue_kv":0,"prefill_of_others":%[3]d,"preemption":0,"device_restart":0,"slow_client":0.3},"timeline":[`
	for name, c := range map[string]struct {
		scheduled, first, prefill int
		events, want              string
		not                       []string
	}{
		"the token budget": {600, 700, 0, `{"e":"queue","at":0,"ms":600,"budget_ms":590,"slot_ms":10},{"e":"prefill","at":600,"ms":100,"step_ms":100,"prompt":50,"output":1,"steps":1,"batch":1},{"e":"decode","at":700,"ms":300,"step_ms":300,"output":9,"steps":9,"batch":1},{"e":"end","at":1000}`,
			"590 ms (59 %) waiting for room in a step", []string{"delivery"}},
		"a slow device": {0, 100, 0, `{"e":"queue","at":0,"ms":0},{"e":"prefill","at":0,"ms":100,"step_ms":100,"prompt":50,"output":1,"steps":1,"batch":1},{"e":"stall","why":"slow_step","at":100,"ms":700,"excess_ms":690,"step_ms":700,"output":1,"steps":1,"batch":1},{"e":"decode","at":800,"ms":200,"step_ms":200,"output":9,"steps":9,"batch":1},{"e":"end","at":1000}`,
			"of 1.00 s, 690 ms (69 %) stalls in which the device took longer for no more work; the other", []string{"nothing held it up", "waiting"}},
		"between steps": {0, 100, 0, `{"e":"queue","at":0,"ms":0},{"e":"prefill","at":0,"ms":100,"step_ms":100,"prompt":50,"output":1,"steps":1},{"e":"stall","why":"between_steps","at":100,"ms":500,"excess_ms":490,"step_ms":5,"output":1,"steps":1},{"e":"end","at":1000}`,
			"of 1.00 s, 490 ms (49 %) stalls between steps;", nil},
		"more sequences": {0, 100, 0, `{"e":"queue","at":0,"ms":0},{"e":"prefill","at":0,"ms":100,"step_ms":100,"prompt":50,"output":1,"steps":1},{"e":"stall","why":"bigger_batch","at":100,"ms":500,"excess_ms":490,"step_ms":500,"output":9,"steps":9,"batch":99},{"e":"end","at":1000}`,
			"of 1.00 s, 490 ms (49 %) stalls because many more sequences had joined;", nil},
		"others' prefill from the first token on": {0, 60, 0, `{"e":"queue","at":0,"ms":0},{"e":"prefill","at":0,"ms":60,"step_ms":60,"prompt":60,"output":1,"steps":1,"batch":1},{"e":"decode","at":60,"ms":940,"step_ms":940,"others":500,"output":19,"steps":19,"batch":3},{"e":"end","at":1000}`,
			"of 1.00 s, 500 ms (50 %) prompts of others in its decode steps (at most);", nil},
		"others' prefill": {0, 600, 200, `{"e":"queue","at":0,"ms":0},{"e":"prefill","at":0,"ms":600,"step_ms":400,"prompt":50,"others":150,"output":1,"steps":9},{"e":"stall","why":"prefill_of_others","at":600,"ms":150,"excess_ms":140,"step_ms":150,"others":64,"output":1,"steps":1},{"e":"end","at":1000}`,
			"of 1.00 s, 300 ms (30 %) prompts of others in the steps of its own prefill, 200 ms (20 %) prompts of others in its decode steps, 200 ms (20 %) waiting between the steps of its own prefill;", nil},
	} {
		f, err := find(t, "7", fmt.Sprintf(before, c.scheduled, c.first, c.prefill)+c.events+"]}\n")
		if err != nil {
			t.Fatal(err)
		}
		got := f.Verdict()
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
		for _, s := range c.not {
			if strings.Contains(got, s) {
				t.Errorf("%s: %q in: %s", name, s, got)
			}
		}
	}
}

func TestAWaitWithoutACauseIsNotPutDownToAStep(t *testing.T) {
	f, err := find(t, "7", `{"version":1,"id":7,"outcome":"stop","status":200,"sequences":1,"at_ms":{"queued":0,"scheduled":4,"first_token":5,"last_token":1000,"finished":1000},"timeline":[`+
		`{"e":"queue","at":0,"ms":4},{"e":"prefill","at":4,"ms":1,"step_ms":1,"prompt":50,"output":1,"steps":1,"batch":1},{"e":"end","at":1000}]}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, f, Options{Width: 100}); strings.Contains(got, "under way") || !strings.Contains(got, "waited for the next step to begin") || !strings.Contains(got, "nothing held it up") {
		t.Error(got)
	}
}

func TestAllRequestsWithTheSameIdAreTold(t *testing.T) {
	var records []*lifecycle.Record
	for i := range maxCandidates + 2 {
		r := record()
		q := *r.Request
		q.ID, q.ExternalID = uint64(100+i), fmt.Sprint("chatcmpl-", i, "x")
		r.Request = &q
		records = append(records, r)
	}
	for _, n := range []int{2, maxCandidates + 2} {
		r, err := Find(context.Background(), "mine-1", []string{"-"}, strings.NewReader(logOf(t, records[:n]...)))
		if err != nil || r.Count != n || len(r.Requests) != min(n, maxCandidates) {
			t.Fatalf("%d of %d: %v", len(r.Requests), r.Count, err)
		}
		var b, j strings.Builder
		if err := errors.Join(r.Text(&b, Options{Width: 100}), r.JSON(&j)); err != nil {
			t.Fatal(err)
		}
		for i := range min(n, maxCandidates) {
			if !strings.Contains(b.String(), fmt.Sprintf("Request %d of %d with this id", i+1, n)) || !strings.Contains(b.String(), fmt.Sprint("\nchatcmpl-", i, "x\n")) {
				t.Errorf("%d is not told", i)
			}
		}
		if strings.Contains(b.String(), "the others are not told") != (n > maxCandidates) {
			t.Error(b.String())
		}
		d := json.NewDecoder(strings.NewReader(j.String()))
		for i := range min(n, maxCandidates) {
			var v struct{ Line int }
			if err := d.Decode(&v); err != nil || v.Line != i+1 {
				t.Errorf("%d: %+v, %v", i, v, err)
			}
		}
	}
}

func TestARefusedRequestIsExplained(t *testing.T) {
	r := &lifecycle.Record{Request: &lifecycle.Request{ID: 9, Arrival: ms}, Method: "POST", Path: "/v1/chat/completions", Outcome: lifecycle.OutcomeRefused, Status: 429, StopToken: -1,
		Err: &lifecycle.Error{Type: "rate_limit_error", Code: "queue_full", Message: "all 4 places for requests are taken"}, Arrival: ms, Finished: 2 * ms, Delivered: 3 * ms}
	f, err := find(t, "9", logOf(t, r))
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, f, Options{Width: 100})
	for _, want := range []string{"a request without an id", "POST /v1/chat/completions", "429, refused: all 4 places for requests are taken (queue_full)", "refused before it ran, after 2.00 ms"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	var v map[string]any
	var b bytes.Buffer
	if err := f.JSON(&b); err != nil || json.Unmarshal(b.Bytes(), &v) != nil || v["line"] != 1.0 {
		t.Errorf("%v: %s", err, b.Bytes())
	}
}

func TestCandidatesAreListedWithoutCommandsToTerminals(t *testing.T) {
	line := `{"version":1,"outcome":"stop","request_id":"a\u001b[31m%d\u202e","model":"m\u0007"}` + "\n"
	_, err := find(t, "a", fmt.Sprintf(line, 1)+fmt.Sprintf(line, 2))
	if err == nil || !strings.Contains(err.Error(), "a [31m1") || strings.ContainsAny(err.Error(), "\x1b\x07\u202e") {
		t.Errorf("%q", err)
	}
}

func TestARequestIsFoundByAnyOfItsIdsAndTheirBeginnings(t *testing.T) {
	other := record()
	q := *other.Request
	q.ID, q.ExternalID, q.ClientID = 8, "chatcmpl-77bb", "mine-2"
	other.Request = &q
	log := logOf(t, record(), other)
	for id, line := range map[string]int{"chatcmpl-77aa": 1, "mine-2": 2, "7": 1, "chatcmpl-77b": 2} {
		if f, err := find(t, id, log); err != nil || f.Place.Line != line {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := find(t, "chatcmpl-", log); err == nil || !strings.Contains(err.Error(), "begins the id of 2 requests") || !strings.Contains(err.Error(), "standard input:2  chatcmpl-77bb") {
		t.Error(err)
	}
	if _, err := find(t, "nobody", log+"broken\n"); err == nil || !strings.Contains(err.Error(), `no request is called "nobody": read 2 lines of 1 file, 1 broken`) {
		t.Error(err)
	}
	if _, err := find(t, "", log); err == nil {
		t.Error("an empty id was taken")
	}
	// The same log twice is no contradiction.
	path := filepath.Join(t.TempDir(), "a.log")
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Find(context.Background(), "chatcmpl-77aa", []string{path, path}, nil); err != nil || r.Count != 1 {
		t.Error(r, err)
	}
}

func TestThePhasesTileTheRequestsTimeAndTheTextFitsItsWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := record()
		now := r.Arrival
		pass := func(s *int64, reached bool) {
			if *s = 0; reached {
				now += rapid.Int64Range(0, 5e9).Draw(t, "pass")
				*s = now
			}
		}
		reached := rapid.IntRange(0, 4).Draw(t, "reached")
		pass(&r.Queued, reached > 0)
		pass(&r.Scheduled, reached > 1)
		pass(&r.FirstToken, reached > 2)
		pass(&r.LastToken, reached > 3)
		if r.LastToken == 0 {
			r.LastToken = r.FirstToken
		}
		pass(&r.Finished, true)
		pass(&r.Delivered, rapid.Bool().Draw(t, "delivered"))
		if rapid.Bool().Draw(t, "no timeline") {
			r.Timeline = nil
		} else {
			for i := range r.Timeline.Events {
				r.Timeline.Events[i].Kind = lifecycle.EventKind(rapid.IntRange(1, 10).Draw(t, "kind"))
				r.Timeline.Events[i].Sequence = rapid.Int32Range(0, 2).Draw(t, "choice")
			}
		}
		q := *r.Request
		q.Model, q.Peer = "m\x1b[31m \n", strings.Repeat("long", 10)
		r.Request = &q
		found, err := Find(context.Background(), "chatcmpl-77", []string{"-"}, strings.NewReader(logOf(t, r)))
		if err != nil {
			t.Fatal(err)
		}
		f := found.Requests[0]
		delays, rest := f.Delays()
		for _, d := range delays {
			rest += d.Dur
		}
		if rest != f.Total() {
			t.Fatalf("the parts of the verdict add up to %d of %d", rest, f.Total())
		}
		if got := int64(f.Total()); got != now-r.Arrival {
			t.Fatalf("the phases add up to %d of %d: %+v", got, now-r.Arrival, f.Phases())
		}
		width := rapid.IntRange(80, 120).Draw(t, "width")
		var b strings.Builder
		if err := f.Text(&b, Options{Width: width}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width || strings.ContainsRune(line, 0x1b) {
				t.Fatalf("%d columns of %d: %q", n, width, line)
			}
		}
	})
}

func TestWithoutColourThereIsNoEscapeSequenceAndWithItTheTextIsTheSame(t *testing.T) {
	f, err := find(t, "7", logOf(t, record()))
	if err != nil {
		t.Fatal(err)
	}
	plain, coloured := text(t, f, Options{Width: 90}), text(t, f, Options{Width: 90, Color: true})
	for _, s := range []style{bold, dim, red, green, yellow, blue, cyan} {
		coloured = strings.ReplaceAll(coloured, "\x1b["+string(s)+"m", "")
	}
	if got := strings.ReplaceAll(coloured, "\x1b[0m", ""); got != plain || strings.ContainsRune(plain, 0x1b) {
		t.Errorf("got\n%q\nwant\n%q", got, plain)
	}
}

func TestWhatATimelineDoesNotSayIsLeftOutAndManyEventsAreBounded(t *testing.T) {
	line := func(events string) string {
		return `{"version":1,"id":7,"outcome":"stop","status":null,"at_ms":{"queued":1,"finished":9},"timeline":[` + events + `]}` + "\n"
	}
	f, err := find(t, "7", line(`{"e":"prefill","prompt":3,"steps":1,"batch":null,"at":null,"ms":null},{"e":"decode","output":null,"steps":2,"batch":null},{"e":"stall","why":"bigger_batch","steps":2,"batch":null}`))
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, f, Options{Width: 120})
	if strings.Contains(got, "NaN") || strings.Contains(got, "among") || strings.Contains(got, "\n0, ") || !strings.Contains(got, "the 2 steps held far more sequences than before") {
		t.Error(got)
	}
	f, err = find(t, "7", line(strings.Repeat(`{"e":"decode","output":1,"steps":1,"batch":2},`, 999)+`{"e":"end"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got = text(t, f, Options{Width: 120}); strings.Count(got, "decode: ") != maxRows-1 || !strings.Contains(got, "801 further events in the log, not told here") {
		t.Error(got)
	}
	f, err = find(t, "7", `{"version":1,"id":7,"outcome":"stop","params":{x}}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.JSON(io.Discard); err == nil || !strings.Contains(err.Error(), "standard input:1: the line is not JSON") {
		t.Error(err)
	}
}
