package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model/template"
	"github.com/troupe-llm/troupe/model/tiny"
)

var tinyModel = sync.OnceValue(func() *Env {
	m := tiny.Model(tiny.Options{})
	t, err := template.Parse(m.Template, template.Options{})
	if err != nil {
		panic(err)
	}
	return &Env{Served: []string{"tiny", "tiny-alias"}, Root: "/models/tiny.gguf", MaxModelLen: 512, Vocab: m.Tokenizer.Size(),
		Tokenizer: m.Tokenizer, Template: t, EOS: []int32{tiny.IMEnd}, Created: 1700000000}
})

// testEnv is the tiny model's environment, changed as the test wants it.
func testEnv(change ...func(*Env)) *Env {
	m := tinyModel()
	e := &Env{Served: m.Served, Root: m.Root, MaxModelLen: m.MaxModelLen, Vocab: m.Vocab, Tokenizer: m.Tokenizer,
		Template: m.Template, EOS: m.EOS, Created: m.Created}
	for _, c := range change {
		c(e)
	}
	return e
}

func withMetrics(e *Env) { e.Metrics = true }

// parse parses a body for an endpoint ("chat", "completion", "responses") and names the job.
func parse(t testing.TB, e *Env, endpoint, body string) *Job {
	t.Helper()
	j, err := tryParse(e, endpoint, []byte(body))
	if err != nil {
		t.Fatalf("%s %s: %d %s (param %q)", endpoint, body, err.Status, err.Message, err.Param)
	}
	j.Created = 1234
	j.SetID("id-1")
	return j
}

func tryParse(e *Env, endpoint string, body []byte) (*Job, *lifecycle.Error) {
	switch endpoint {
	case "chat":
		return e.ParseChat(body)
	case "completion":
		return e.ParseCompletion(body)
	case "responses":
		return e.ParseResponse(body, func(string) (*Stored, bool) { return nil, false })
	}
	panic(endpoint)
}

// play acts a request out as its actor would: each choice yields the texts, one token a text, and
// ends by reason. It returns the frames of a stream, each as Delta or End returned it, and the
// response.
func play(j *Job, reason lifecycle.Reason, texts ...string) (frames [][]byte, r *lifecycle.Response) {
	req := &j.Request
	n := req.Sequences()
	r = &lifecycle.Response{Choices: make([]lifecycle.Choice, n), Usage: lifecycle.Usage{Prompt: req.PromptTokens(), Cached: 3}}
	logprob := func(id int32) lifecycle.TokenLogprob {
		l := lifecycle.TokenLogprob{ID: id, Logprob: -0.5, Rank: 2}
		for k := range max(req.Params.Logprobs, req.Params.PromptLogprobs, 0) {
			l.Top = append(l.Top, lifecycle.IDLogprob{ID: int32(20 + k), Logprob: -float32(k)})
		}
		return l
	}
	for i := range r.Choices {
		c := &r.Choices[i]
		c.StopToken = -1
		if req.Params.PromptLogprobs >= 0 {
			for _, id := range req.Prompts[i/req.N] {
				c.PromptScores = append(c.PromptScores, logprob(id))
			}
		}
	}
	for k, text := range texts {
		for i := range r.Choices {
			c := &r.Choices[i]
			d := lifecycle.Delta{Choice: i, First: k == 0, Text: text, IDs: []int32{int32(100 + k)}, StopToken: -1}
			if req.Params.Logprobs >= 0 {
				d.Logprobs = []lifecycle.TokenLogprob{logprob(int32(100 + k))}
			}
			if k == 0 {
				d.PromptScores = c.PromptScores
			}
			if k == len(texts)-1 {
				d.Reason = reason
				m := timing(i, len(texts)).Metrics()
				d.Metrics, d.Detail = &m, details(i) // more than an actor gives: the encoder must not show it unasked
			}
			r.Usage.Completion++
			d.Usage = r.Usage
			c.Text += text
			c.IDs = append(c.IDs, d.IDs...)
			c.Logprobs = append(c.Logprobs, d.Logprobs...)
			c.Reason = d.Reason
			frames = append(frames, j.Encoder.Delta(nil, &d))
		}
	}
	r.Metrics = timing(0, len(texts)).Metrics()
	for i := range r.Choices {
		r.Choices[i].Metrics = timing(i, len(texts)).Metrics()
		if j.answer.env.MetricsDetail {
			r.Choices[i].Detail = details(i)
		}
	}
	return frames, r
}

// timing is the spec's example; later choices are queued earlier, a millisecond each.
func timing(choice, tokens int) lifecycle.Timing {
	return lifecycle.Timing{Queued: 1e6 - int64(choice)*1e6, Scheduled: 13.3e6, FirstToken: 98.5e6, LastToken: 1339e6, Tokens: tokens}
}

// details are a choice's.
func details(choice int) *lifecycle.Detail {
	return &lifecycle.Detail{EndToEnd: 2e9, Prefill: 50e6, PrefillTokens: 10, Steps: 4 + choice, BatchSum: 10}
}

// stream plays a streamed request and returns its events.
func stream(t testing.TB, j *Job, reason lifecycle.Reason, texts ...string) []event {
	t.Helper()
	frames, r := play(j, reason, texts...)
	return events(t, append(bytes.Join(frames, nil), j.Encoder.End(nil, r)...))
}

// body plays an unstreamed request and returns its answer.
func body(t testing.TB, j *Job, reason lifecycle.Reason, texts ...string) any {
	t.Helper()
	_, r := play(j, reason, texts...)
	return decode(t, j.Encoder.Body(r))
}

func decode(t testing.TB, data []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("not JSON: %v: %s", err, data)
	}
	return v
}

// get walks into decoded JSON: "choices.0.delta". A path that leads nowhere gives missing.
func get(v any, path string) any {
	for _, p := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			var ok bool
			if v, ok = x[p]; !ok {
				return missing
			}
		case []any:
			var i int
			if _, err := fmt.Sscan(p, &i); err != nil || i >= len(x) {
				return missing
			}
			v = x[i]
		default:
			return missing
		}
	}
	return v
}

const missing = "(missing)"

// want checks the values at paths, each given as JSON; "(missing)" for a path that must not exist.
func want(t testing.TB, v any, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		got := get(v, pairs[i])
		if pairs[i+1] == missing {
			if got != missing {
				t.Errorf("%s is %v, want nothing there", pairs[i], got)
			}
			continue
		}
		b, _ := json.Marshal(got)
		if string(b) != pairs[i+1] {
			t.Errorf("%s is %s, want %s", pairs[i], b, pairs[i+1])
		}
	}
}

// event is a server-sent event as a client reads it.
type event struct {
	name string
	raw  string
	data any // decoded, nil for [DONE]
}

// events reads an event stream by the rules of the HTML standard, independently of the encoder: a
// line ends at CR LF, LF or CR, an event at an empty line; data lines are joined by newlines.
func events(t testing.TB, body []byte) []event {
	t.Helper()
	text := strings.ReplaceAll(strings.ReplaceAll(string(body), "\r\n", "\n"), "\r", "\n")
	var list []event
	var e event
	var data []string
	for _, line := range strings.SplitAfter(text, "\n") {
		if !strings.HasSuffix(line, "\n") {
			if line != "" {
				t.Fatalf("the stream ends within a line: %q", line)
			}
			break
		}
		line = line[:len(line)-1]
		if line == "" {
			if data != nil {
				e.raw = strings.Join(data, "\n")
				if e.raw != "[DONE]" {
					e.data = decode(t, []byte(e.raw))
				}
				list = append(list, e)
			}
			e, data = event{}, nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			e.name = value
		case "data":
			data = append(data, value)
		default:
			t.Fatalf("unknown field in the stream: %q", line)
		}
	}
	if data != nil {
		t.Fatal("the stream ends within an event")
	}
	return list
}
