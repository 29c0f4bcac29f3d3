package acceptance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// case_ is one black-box case of testdata/conformance.json: a request, and predicates over paths of
// its answer.
type case_ struct {
	Name    string
	Path    string
	Method  string
	Body    json.RawMessage
	Raw     *string
	Headers map[string]string
	Expect  struct {
		Status   int
		JSON     map[string]any
		Contains []string
		Stream   *struct {
			Done   *bool
			First  map[string]any
			Last   map[string]any
			Others map[string]any
			Events []string
			Text   *string
		}
	}
}

// missing is what a path leads to when there is nothing.
type missing struct{}

// at follows a dotted path of keys and (from the end, when negative) indexes.
func at(doc any, path string) any {
	for _, part := range strings.Split(path, ".") {
		if part == "" {
			continue
		}
		switch d := doc.(type) {
		case map[string]any:
			v, ok := d[part]
			if !ok {
				return missing{}
			}
			doc = v
		case []any:
			i, err := strconv.Atoi(part)
			if i < 0 {
				i += len(d)
			}
			if err != nil || i < 0 || i >= len(d) {
				return missing{}
			}
			doc = d[i]
		default:
			return missing{}
		}
	}
	return doc
}

// holds says whether v satisfies a predicate.
func holds(predicate, v, doc any) (bool, error) {
	_, absent := v.(missing)
	num, isNum := v.(float64)
	isNum = isNum && !math.IsNaN(num) && !math.IsInf(num, 0)
	if p, ok := predicate.(map[string]any); ok {
		for op, want := range p {
			switch op {
			case "eq":
				return equal(v, want), nil
			case "in":
				return slices.ContainsFunc(want.([]any), func(w any) bool { return equal(v, w) }), nil
			}
			if absent || v == nil {
				return false, nil
			}
			m, _ := v.(map[string]any)
			switch op {
			case "len":
				n := -1
				switch x := v.(type) {
				case []any:
					n = len(x)
				case string:
					n = len([]rune(x))
				case map[string]any:
					n = len(x)
				}
				return float64(n) == want.(float64), nil
			case "keys", "has":
				for _, k := range want.([]any) {
					if _, ok := m[k.(string)]; !ok {
						return false, nil
					}
				}
				return m != nil && (op == "has" || len(m) == len(want.([]any))), nil
			case "le":
				w, ok := at(doc, want.(string)).(float64)
				return ok && isNum && num <= w, nil
			case "contains":
				s, ok := v.(string)
				return ok && strings.Contains(s, want.(string)), nil
			}
		}
		return false, fmt.Errorf("unknown predicate %v", p)
	}
	s, isString := v.(string)
	_, isBool := v.(bool)
	_, isList := v.([]any)
	_, isObject := v.(map[string]any)
	switch predicate {
	case "absent":
		return absent, nil
	case "present":
		return !absent, nil
	case "null":
		return v == nil, nil
	case "null or absent":
		return v == nil || absent, nil
	case "string":
		return isString, nil
	case "non-empty string":
		return isString && s != "", nil
	case "number":
		return isNum, nil
	case "number>=0":
		return isNum && num >= 0, nil
	case "number>0":
		return isNum && num > 0, nil
	case "int":
		return isNum && num == math.Trunc(num), nil
	case "bool":
		return isBool, nil
	case "list":
		return isList, nil
	case "object":
		return isObject, nil
	}
	return false, fmt.Errorf("unknown predicate %v", predicate)
}

func equal(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func check(t *testing.T, what string, want map[string]any, doc any) {
	t.Helper()
	for path, predicate := range want {
		v := at(doc, path)
		ok, err := holds(predicate, v, doc)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			t.Errorf("%s: %s: wanted %v, got %#v", what, path, predicate, v)
		}
	}
}

// event is one server-sent event.
type event struct {
	name string
	data any // decoded JSON, or the string "[DONE]"
}

func events(t *testing.T, raw []byte) []event {
	t.Helper()
	var out []event
	for _, block := range strings.Split(string(raw), "\n\n") {
		var e event
		seen := false
		for _, line := range strings.Split(block, "\n") {
			switch {
			case strings.HasPrefix(line, "event: "):
				e.name, seen = line[len("event: "):], true
			case line == "data: [DONE]":
				e.data, seen = "[DONE]", true
			case strings.HasPrefix(line, "data: "):
				if err := json.Unmarshal([]byte(line[len("data: "):]), &e.data); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				seen = true
			case line != "" && !strings.HasPrefix(line, ":"):
				t.Fatalf("not a line of an event stream: %q", line)
			}
		}
		if seen {
			out = append(out, e)
		}
	}
	return out
}

func (c *case_) run(t *testing.T, base string) {
	method, body := c.Method, io.Reader(nil)
	switch {
	case c.Raw != nil:
		body = strings.NewReader(*c.Raw)
	case c.Body != nil:
		body = bytes.NewReader(c.Body)
	}
	if method == "" {
		method = http.MethodGet
		if body != nil {
			method = http.MethodPost
		}
	}
	req, err := http.NewRequest(method, base+c.Path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range c.Headers {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != c.Expect.Status {
		t.Fatalf("status %d, wanted %d: %.300s", resp.StatusCode, c.Expect.Status, raw)
	}
	contentType := resp.Header.Get("Content-Type")
	switch {
	case c.Expect.Stream != nil:
		if !strings.HasPrefix(contentType, "text/event-stream") {
			t.Fatalf("content type %q", contentType)
		}
		c.checkStream(t, events(t, raw))
	case c.Expect.JSON != nil:
		if !strings.HasPrefix(contentType, "application/json") {
			t.Fatalf("content type %q", contentType)
		}
		var doc any
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatalf("%v: %.300s", err, raw)
		}
		check(t, "answer", c.Expect.JSON, doc)
	}
	for _, s := range c.Expect.Contains {
		if !strings.Contains(string(raw), s) {
			t.Errorf("lacks %q", s)
		}
	}
}

func (c *case_) checkStream(t *testing.T, evs []event) {
	s := c.Expect.Stream
	done := len(evs) > 0 && evs[len(evs)-1].data == "[DONE]"
	if want := s.Done == nil || *s.Done; done != want {
		t.Fatalf("ends with [DONE]: %v, wanted %v", done, want)
	}
	if done {
		evs = evs[:len(evs)-1]
	}
	if len(evs) == 0 {
		t.Fatal("an empty stream")
	}
	check(t, "first chunk", s.First, evs[0].data)
	check(t, "last chunk", s.Last, evs[len(evs)-1].data)
	for _, e := range evs[:len(evs)-1] {
		check(t, "earlier chunk", s.Others, e.data)
	}
	for _, name := range s.Events {
		if !slices.ContainsFunc(evs, func(e event) bool { return e.name == name }) {
			t.Errorf("no event %s", name)
		}
	}
	if s.Text != nil {
		text := ""
		for _, e := range evs {
			if v, ok := at(e.data, "choices.0.delta.content").(string); ok {
				text += v
			}
			if v, ok := at(e.data, "choices.0.text").(string); ok {
				text += v
			}
		}
		if text != *s.Text {
			t.Errorf("text %q, wanted %q", text, *s.Text)
		}
	}
}

func TestTheConformanceCasesHoldOnARealModel(t *testing.T) {
	s := realServer(t)
	raw, err := os.ReadFile("testdata/conformance.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []case_
	if err := json.Unmarshal(bytes.ReplaceAll(raw, []byte("$MODEL"), []byte(s.model)), &cases); err != nil {
		t.Fatal(err)
	}
	for i := range cases {
		t.Run(cases[i].Name, func(t *testing.T) { cases[i].run(t, s.url) })
	}
}
