package bench

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestATraceOfMooncakesKindIsRead(t *testing.T) {
	lines, skipped, err := ReadTrace("t", strings.NewReader(`{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 9]}
{"timestamp": 1000.5, "input_length": 700, "output_length": 7, "hash_ids": [1, 4]}

{"timestamp": 2000, "input_length": 7, "output_length": 0}
`))
	if err != nil || skipped != (Skipped{Empty: 1}) || len(lines) != 2 {
		t.Fatalf("%+v, %+v, %v", lines, skipped, err)
	}
	if a, b := lines[0], lines[1]; a.At != 0 || a.Input != 700 || a.Output != 7 || b.At != 1999500*time.Microsecond || len(b.Blocks) != 3 {
		t.Errorf("%+v", lines)
	}
	if lines, _, err := ReadTrace("t", strings.NewReader(`{"timestamp":"2026-01-02T03:04:05Z","input_length":1,"output_length":1}
{"timestamp":"2026-01-02T03:04:06.5Z","input_length":1,"output_length":1}`)); err != nil || lines[1].At != 1500*time.Millisecond {
		t.Errorf("%+v, %v", lines, err)
	}
}

func TestABrokenTraceIsNamedByItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "no requests", "\n\n": "no requests", "{": "line 1", "{}": "line 1", "[1]": "line 1", "7": "line 1",
		`{"timestamp":1,"input_length":1,"output_length":1}` + "\nx": "line 2",
		`{"timestamp":1,"input_length":-1,"output_length":1}`:        "line 1",
		`{"timestamp":1e300,"input_length":1,"output_length":1}`:     "timestamp",
		`{"timestamp":"noon","input_length":1,"output_length":1}`:    "timestamp",
		`{"version":99}`:                                                  "version 99",
		`{"version":1,"outcome":"refused"}`:                               "no requests",
		`{"a":"` + strings.Repeat("x", maxTraceLine) + `"}`:               "longer than",
		`{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":5}`: "line 1",
	} {
		if _, _, err := ReadTrace("file", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

func TestARequestLogIsReplayedAsItWas(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "requests.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines, skipped, err := ReadTrace("requests.jsonl", strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 3 || skipped != (Skipped{Refused: 1}) {
		t.Fatalf("%+v, %+v", lines, skipped)
	}
	rig := newStand(t, 0)
	v, err := NewVocabulary("", CountBy(rig.env, "chat"))
	if err != nil {
		t.Fatal(err)
	}
	trace := &Trace{Shape: Shape{Endpoint: "chat", Model: "sim"}, Name: "t", Lines: lines, Vocabulary: v, Speed: 2}
	var dues []time.Duration
	for i := range 3 {
		r, err := trace.Request(i)
		if err != nil {
			t.Fatal(err)
		}
		dues = append(dues, r.Due)
		job, e := rig.env.ParseChat(r.Body)
		if e != nil {
			t.Fatal(e)
		}
		p := job.Request.Params
		if job.Request.PromptTokens() != lines[i].Input || r.Input != lines[i].Input || !p.IgnoreEOS || !job.Request.Stream {
			t.Errorf("%d: %d prompt tokens, want %d: %+v", i, job.Request.PromptTokens(), lines[i].Input, p)
		}
		switch i {
		case 0:
			if p.MaxTokens != 12 || p.Temperature != 0.5 || p.TopK != 20 || p.TopP != 0.75 || p.Seed != 1<<63+5 || p.RepetitionPenalty != 1.25 {
				t.Errorf("%+v", p)
			}
		case 1: // its client left
			if p.MaxTokens != 400 || r.CancelAfter != 1234567*time.Microsecond || p.Temperature != 0 {
				t.Errorf("%+v, %v", p, r.CancelAfter)
			}
		case 2:
			if job.Request.N != 2 || p.MaxTokens != 9 {
				t.Errorf("%+v", job.Request)
			}
		}
	}
	if dues[0] != 0 || dues[1] != 250*time.Millisecond || dues[2] != 750*time.Millisecond {
		t.Errorf("due at %v", dues)
	}
	if _, err := trace.Request(3); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestEqualBlocksOfATraceAreEqualText(t *testing.T) {
	rig := newStand(t, 0)
	v, err := NewVocabulary("", CountBy(rig.env, "completions"))
	if err != nil {
		t.Fatal(err)
	}
	trace := &Trace{Shape: Shape{Endpoint: "completions"}, Vocabulary: v, Lines: []TraceLine{
		{Input: 1200, Output: 1, Blocks: []uint64{1, 2, 3}}, {Input: 1300, Output: 1, Blocks: []uint64{1, 2, 4}}, {Input: 900, Output: 1, Blocks: []uint64{5, 6}},
		{Input: 700, Output: 1, Cached: 100}}}
	var prompts []string
	ask := func(i int) {
		r, err := trace.Request(i)
		if err != nil {
			t.Fatal(err)
		}
		var body struct{ Prompt string }
		if err := json.Unmarshal(r.Body, &body); err != nil {
			t.Fatal(err)
		}
		prompts = append(prompts, body.Prompt)
	}
	for i := range trace.Lines {
		ask(i)
	}
	common := func(a, b string) int {
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return len(v.tokens(t, rig, a[:n]))
	}
	if n := common(prompts[0], prompts[1]); n < 1020 || n > 1030 {
		t.Errorf("two prompts with two equal blocks share %d tokens, want 1024", n)
	}
	if n := common(prompts[0], prompts[2]); n > 10 {
		t.Errorf("two prompts without equal blocks share %d tokens", n)
	}
	// Warming up, a server hears nothing of a prompt beforehand but what all share.
	for i := range trace.Lines {
		ask(warmupIndex + len(trace.Lines) + i)
		measured, warm := prompts[i], prompts[len(prompts)-1]
		if n := common(measured, warm); n > trace.Lines[i].Cached+10 || n < trace.Lines[i].Cached {
			t.Errorf("line %d: a warm-up prompt shares %d tokens with the trace's, want %d", i, n, trace.Lines[i].Cached)
		}
		if a, b := len(v.tokens(t, rig, measured)), len(v.tokens(t, rig, warm)); a != b {
			t.Errorf("line %d: a warm-up prompt of %d tokens, want %d", i, b, a)
		}
	}
}

func (v *Vocabulary) tokens(t *testing.T, r *stand, text string) []int32 {
	t.Helper()
	return r.env.Tokenizer.Encode(text, true, false)
}

func TestDatasetsAreRead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		n, skipped int
	}{
		{"lines", `{"prompt":"a","max_tokens":5}` + "\n" + `{"messages":[{"role":"user","content":"x"}]}` + "\n", 2, 0},
		{"ShareGPT", ` [{"id":"1","conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"ho"}]},{"conversations":[{"from":"gpt","value":"ho"}]},{"conversations":[]}]`, 1, 2},
		{"byte order mark", "\ufeff[{\"prompt\":\"a\"}]", 1, 0},
		{"empty prompt", `{"prompt":""}{"prompt":"a"}`, 1, 1},
	} {
		entries, skipped, err := ReadDataset(c.name, strings.NewReader(c.text))
		if err != nil || len(entries) != c.n || skipped != c.skipped {
			t.Errorf("%s: %+v, %d, %v", c.name, entries, skipped, err)
		}
	}
	for _, bad := range []string{"", "[]", "[", "{", `{"x":1}`, `{"prompt":5}`, `{"messages":[]}`, `{"prompt":"a","max_tokens":0}`, `[{"prompt":"a"}`, "7", `{"prompt":"a"} x`} {
		if _, _, err := ReadDataset("f", strings.NewReader(bad)); err == nil || !strings.Contains(err.Error(), "f") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	d := &Dataset{Shape: Shape{Endpoint: "chat", Extra: map[string]json.RawMessage{"temperature": json.RawMessage("0"), "stream_options": json.RawMessage("null")}},
		Entries: []Entry{{Prompt: "a \"quoted\"\nline", MaxTokens: 5}, {Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)}}}
	for i := range 4 {
		r, err := d.Request(i)
		if err != nil {
			t.Fatal(err)
		}
		var body map[string]any
		if err := json.Unmarshal(r.Body, &body); err != nil {
			t.Fatalf("%s: %v", r.Body, err)
		}
		_, options := body["stream_options"]
		_, limit := body["max_tokens"]
		if body["stream"] != true || options || body["temperature"] != 0.0 || limit != (i%2 == 0) {
			t.Errorf("%s", r.Body)
		}
	}
	d.Shape.Endpoint = "completions"
	if _, err := d.Request(1); err == nil {
		t.Error("messages are sent to /v1/completions")
	}
}

func FuzzTracesAndDatasetsNeverPanic(f *testing.F) {
	text, err := os.ReadFile(filepath.Join("testdata", "requests.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[1]}`))
	f.Add([]byte(`[{"conversations":[{"from":"human","value":"hi"}]},{"prompt":"x"},{"messages":[1]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if lines, _, err := ReadTrace("t", strings.NewReader(string(data))); err == nil && len(lines) == 0 {
			t.Error("no lines and no error")
		}
		if entries, _, err := ReadDataset("d", strings.NewReader(string(data))); err == nil && len(entries) == 0 {
			t.Error("no entries and no error")
		}
	})
}
