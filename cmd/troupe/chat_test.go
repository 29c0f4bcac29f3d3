package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/alecthomas/kong"

	"github.com/troupe-llm/troupe/bench"
)

// parseChat parses a command line of chat.
func parseChat(args ...string) (*chatCmd, error) {
	var c cli
	p, err := kong.New(&c, kong.Bind(&config{}))
	if err != nil {
		return nil, err
	}
	_, err = p.Parse(append([]string{"chat"}, args...))
	return &c.Chat, err
}

// piped runs `troupe chat` with what stdin holds.
func piped(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := command(t, ctx, append([]string{"chat"}, args...)...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestAPipeGetsTheAnswerAndNothingElse(t *testing.T) {
	args := []string{"--device=sim", "--max-tokens=30", "--seed=7", "--temperature=0.5"}
	code, answer, stderr := piped(t, "Hello!\n", args...)
	if code != 0 || strings.Count(answer, "\n") != 1 || !strings.HasSuffix(answer, "\n") || len(answer) < 10 || strings.Contains(answer, "\x1b") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, answer, stderr)
	}
	if again := append(args, "--prompt=Hello!"); true {
		code, same, _ := piped(t, "not read", again...)
		if code != 0 || same != answer {
			t.Errorf("--prompt gives %q, stdin %q", same, answer)
		}
	}
	if _, _, stderr := piped(t, "Hello!", append(args, "--metrics")...); !strings.Contains(stderr, "[TTFT ") || !strings.Contains(stderr, "answer 30 tokens]") {
		t.Errorf("--metrics: %q", stderr)
	}
}

func TestAChatThatMakesNoSenseIsRefusedInOneLine(t *testing.T) {
	for _, c := range []struct {
		stdin, want string
		args        []string
	}{
		{" \n", "stdin is empty", nil},
		{"", "--prompt is empty", []string{"--prompt= "}},
		{"", "not a server's URL", []string{"--url=localhost:8000"}},
		{"", "model.gguf is for a model in this process", []string{"--url=http://127.0.0.1:1", "model.gguf"}},
		{"", "--threads is for a model in this process", []string{"--url=http://127.0.0.1:1", "--threads=3"}},
		{"", "--model is for a server", []string{"--model=x"}},
		{"", "--api-key is for a server", []string{"--api-key=x"}},
		{"", "--temperature is 3", []string{"--temperature=3"}},
		{"", "--max-tokens", []string{"--max-tokens=0"}},
		{"", "add --device sim", []string{"--sim-step=1s"}},
	} {
		code, stdout, stderr := piped(t, c.stdin, c.args...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, stderr %q, want %q", c.args, code, stderr, c.want)
		}
	}
	if code, _, stderr := piped(t, "Hello!", "--url=http://127.0.0.1:1"); code != 1 || !strings.Contains(stderr, "no server answers at http://127.0.0.1:1: start one") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestAChatWithAServerNeedsItsKeyAndOneOfItsModels(t *testing.T) {
	p := start(t, "--device=sim", "--api-key=alice:open-sesame", "--served-model-name=one,two", "--request-log=none")
	ask := func(environment string, args ...string) (string, string) {
		cmd := command(t, t.Context(), append([]string{"chat", "--url=" + p.url + "/v1/", "--prompt=Hello!", "--max-tokens=5"}, args...)...)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.Env = append(cmd.Env, "TROUPE_API_KEY="+environment)
		_ = cmd.Run()
		return out.String(), errs.String()
	}
	if out, errs := ask("bob:open-sesame,other", "--metrics"); out == "" || !strings.Contains(errs, "[first text after") || !strings.Contains(errs, "--enable-per-request-metrics") {
		t.Errorf("with the key: %q, %q", out, errs)
	}
	if out, errs := ask("wrong", "--api-key=open-sesame", "--model=two"); out == "" || strings.Contains(errs, "troupe:") {
		t.Errorf("a flag's key does not win: %q, %q", out, errs)
	}
	if out, errs := ask("wrong"); out != "" || !strings.Contains(errs, "401") || !strings.Contains(errs, "--api-key") {
		t.Errorf("with a wrong key: %q, %q", out, errs)
	}
	if out, errs := ask("open-sesame", "--model=three"); out != "" || !strings.Contains(errs, "no model three, but one, two") {
		t.Errorf("with a wrong model: %q, %q", out, errs)
	}
}

// inProcess starts the simulated device's server in this process.
func inProcess(t *testing.T, args ...string) (*chatClient, string) {
	t.Helper()
	c, err := parseChat(append([]string{"--device=sim"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	client, model, end, err := c.inProcess(t.Context(), stderrWriter{io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return client, model
}

// session is a chat whose screen is in memory.
func session(client *chatClient, model string) (s *chatSession, screenText *transcript) {
	screenText = &transcript{}
	out := &screen{w: screenText, terminal: true}
	return &chatSession{client: client, model: model, params: map[string]any{}, out: out, notes: out}, screenText
}

// script answers for a person who types these lines and then Ctrl-D.
func script(lines ...string) func(string) (string, error) {
	return func(string) (string, error) {
		if len(lines) == 0 {
			return "", io.EOF
		}
		line := lines[0]
		lines = lines[1:]
		return line, nil
	}
}

func forget(string) error { return nil }

// load is how many requests the server has.
func load(t *testing.T, c *chatClient) float64 {
	t.Helper()
	r, err := c.do(t.Context(), "GET", "load", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var answer map[string]float64
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || len(answer) == 0 {
		t.Fatalf("%v, %v", answer, err)
	}
	return answer["server_load"]
}

func TestAnInterruptStopsTheAnswerAndTheServersWorkOnIt(t *testing.T) {
	client, model := inProcess(t, "--sim-step=2ms")
	s, text := session(client, model)
	signals := make(chan os.Signal, 1)
	s.signal = signals
	s.params["ignore_eos"] = true
	before := text.String()
	go func() {
		for text.String() == before { // some of the answer is there
			time.Sleep(time.Millisecond)
		}
		signals <- os.Interrupt
	}()
	if err := s.say("Hello!"); !errors.Is(err, errStopped) {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); load(t, client) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server goes on")
		}
	}
	if len(s.messages) != 2 || s.messages[1].Content == "" || !strings.Contains(text.String(), s.messages[1].Content) {
		t.Errorf("what came of the answer is not kept: %q", s.messages)
	}
}

func TestACommandChangesWhatIsAskedNext(t *testing.T) {
	var last map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"a"},{"id":"b"}]}`)
			return
		}
		last = nil
		if err := json.NewDecoder(r.Body).Decode(&last); err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"answer %d\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", len(last["messages"].([]any)))
	}))
	defer server.Close()
	client, err := newChatClient(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	s, text := session(client, "a")
	var remembered []string
	run := func(lines ...string) string {
		t.Helper()
		before := len(text.String())
		if err := s.interactive(script(lines...), func(m string) error { remembered = append(remembered, m); return nil }); err != nil {
			t.Fatal(err)
		}
		return text.String()[before:]
	}
	asked := func() (all []string) {
		for _, m := range last["messages"].([]any) {
			all = append(all, m.(map[string]any)["role"].(string)+":"+m.(map[string]any)["content"].(string))
		}
		return all
	}
	is := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := run("one"); !strings.Contains(got, "answer 1\n") {
		t.Errorf("%q", got)
	}
	run("two")
	is(asked(), "user:one", "assistant:answer 1", "user:two")
	run("/retry")
	is(asked(), "user:one", "assistant:answer 1", "user:two")
	run("/clear", "/system be brief", "three", `"""`, "/four", ` five"""`)
	is(asked(), "system:be brief", "user:three", "assistant:answer 2", "user:/four\n five")
	run("/system -", "/clear", `six\`, "seven", "//eight")
	is(asked(), "user:six\nseven", "assistant:answer 1", "user:/eight")
	run("/params temperature=0.5 max-tokens=7 stop=END", "/model b", "nine")
	if last["temperature"] != 0.5 || last["max_tokens"] != 7.0 || last["stop"] != "END" || last["model"] != "b" || last["stream"] != true {
		t.Errorf("%v", last)
	}
	if got := run("/params temperature= stop=", "/params"); !strings.Contains(got, "max_tokens=7") || strings.Contains(got[strings.LastIndex(got, "max_tokens"):], "temperature") {
		t.Errorf("%q", got)
	}
	for line, want := range map[string]string{
		"/params top_k=many": "want a whole number", "/params speed=9": "no parameter speed", "/params fast": "KEY=VALUE",
		"/params temperature=inf": "want a number", "/model c": "no model c, but a, b", "/fly": "no command /fly", "/save": "needs the name", "/model": "* b",
		"/help": "/params KEY=VALUE", "/system": "no system message", "/metrics": "figures after each",
	} {
		if got := run(line); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	if got := run("/exit", "never"); strings.Contains(got, "answer") {
		t.Errorf("%q", got)
	}
	if !slices.Contains(remembered, `"""/four`+"\n"+` five"""`) || !slices.Contains(remembered, "six\nseven") || !slices.Contains(remembered, "//eight") {
		t.Errorf("%q", remembered)
	}

	dir := t.TempDir()
	for _, name := range []string{"talk.md", "talk.json"} {
		path := filepath.Join(dir, name)
		run("/save " + path)
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), "assistant") || !strings.Contains(string(b), "seven") || (name == "talk.json") != json.Valid(b) {
			t.Errorf("%v: %s", err, b)
		}
		if got := run("/save " + path); !strings.Contains(got, "exists") {
			t.Errorf("%q", got)
		}
	}
	if got := run("/clear", "/retry", "/save x"); !strings.Contains(got, "nothing has been asked") || !strings.Contains(got, "nothing to save") {
		t.Errorf("%q", got)
	}
}

func TestWhatAServerGetsWrongIsToldAndTheChatGoesOn(t *testing.T) {
	var answer atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer.Load().(func(http.ResponseWriter))(w)
	}))
	defer server.Close()
	client, err := newChatClient(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	s, text := session(client, "a")
	const some = "data: {\"choices\":[{\"delta\":{\"content\":\"so far\"}}]}\n\n"
	refuse := func(status int, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.WriteHeader(status); fmt.Fprint(w, body) }
	}
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter)
		want   string
		kept   bool
	}{
		{"OpenAI's error", refuse(400, `{"error":{"message":"temperature must be \u001b[31mwarm","code":"bad"}}`), "temperature must be warm (HTTP 400)", false},
		{"vLLM's", refuse(404, `{"object":"error","message":"no such model","code":404}`), "no such model (HTTP 404)", false},
		{"vLLM's nested, with a number", refuse(404, `{"error":{"message":"no such model","code":404}}`), "no such model (HTTP 404)", false},
		{"a text as error", refuse(500, `{"error":"out of luck"}`), "out of luck (HTTP 500)", false},
		{"FastAPI's", refuse(404, `{"detail":"Not Found"}`), "Not Found (HTTP 404)", false},
		{"no JSON", refuse(502, "bad gateway\n"), "bad gateway (HTTP 502)", false},
		{"a page", refuse(502, "<html>bad gateway"), "no reason (HTTP 502)", false},
		{"a redirection", func(w http.ResponseWriter) { w.Header().Set("Location", "https://other"); w.WriteHeader(301) }, "points to https://other", false},
		{"too long a conversation", refuse(400, `{"error":{"message":"too long","code":"context_length_exceeded"}}`), "too long (HTTP 400)\n(the context is full: the conversation so far and this message are longer together, and it was not sent)\n(/clear begins a new conversation; one started with a larger --max-model-len", false},
		{"an error in the stream", func(w http.ResponseWriter) {
			fmt.Fprint(w, some+"data: {\"error\":{\"message\":\"the device failed\"}}\n\n")
		}, "so far\nthe device failed\n", true},
		{"no chunk", func(w http.ResponseWriter) { fmt.Fprint(w, "data: what\n\n") }, "no chunk of an answer: what", false},
		{"an end too early", func(w http.ResponseWriter) { fmt.Fprint(w, some) }, "so far\nthe connection was lost", true},
		{"a connection that breaks", func(w http.ResponseWriter) {
			fmt.Fprint(w, some)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "so far\nthe connection was lost", true},
		{"commands for the terminal", func(w http.ResponseWriter) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\\u001b[2\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"Jb\\u0007\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		}, "ab\n", true},
		{"reasoning", func(w http.ResponseWriter) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}}]}\r\n\r\n: comment\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"42\"},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
		}, "hm\n42\n(cut short: the context is full, conversation and answer together)\n(/clear begins", true},
		{"a full context", func(w http.ResponseWriter) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"42\"},\"finish_reason\":\"length\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
		}, "42\n(cut short: the context is full at 32 tokens, ", true},
	} {
		answer.Store(c.answer)
		before, messages := len(text.String()), len(s.messages)
		if err := s.interactive(script("question"), forget); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := text.String()[before:]; !strings.Contains(got, c.want) || strings.Contains(got, "\x1b") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if kept := len(s.messages) == messages+2; kept != c.kept {
			t.Errorf("%s: kept %v", c.name, kept)
		}
	}
	server.Close()
	before := len(text.String())
	if err := s.interactive(script("question"), forget); err != nil || !strings.Contains(text.String()[before:], "no server answers at "+server.URL) {
		t.Errorf("%v: %q", err, text.String()[before:])
	}
}

func TestAnAnswerOfAsManyTokensAsWereAskedForSaysSo(t *testing.T) {
	for _, c := range []struct {
		limit int64
		once  bool
		want  string
	}{
		{2, false, "(cut short after max_tokens=2: /params max_tokens= takes the limit away)\n"},
		{2, true, "(cut short after 2 tokens, as --max-tokens says)\n"},
		{500, false, "(cut short: the context is full at 32 tokens, conversation and answer together)\n(/clear begins"},
		{500, true, "(cut short: the context is full at 32 tokens, conversation and answer together)\n(a larger --max-model-len holds more"},
	} {
		s, text := session(&chatClient{base: mustURL("http://server"), http: &http.Client{Transport: always("data: {\"choices\":[{\"delta\":{\"content\":\"42\"},\"finish_reason\":\"length\"}]," +
			"\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")}}, "m")
		s.params, s.once = map[string]any{"max_tokens": c.limit}, c.once
		if err := s.say("question"); err != nil || !strings.Contains(text.String(), c.want) {
			t.Errorf("max_tokens %d, once %v: %v, %q; want %q", c.limit, c.once, err, text, c.want)
		}
	}
}

func TestMessagesArePutTogetherFromLines(t *testing.T) {
	for _, c := range []struct {
		lines    []string
		want     string
		verbatim bool
	}{
		{[]string{"one"}, "one", false},
		{[]string{`one\`, `two\`, "three"}, "one\ntwo\nthree", false},
		{[]string{`"""one line"""`}, "one line", true},
		{[]string{`"""`, `a\`, "", "/b", `"""`}, "a\\\n\n/b", true},
		{[]string{`  """a`, `b"""  `}, "a\nb", true},
		{[]string{`"""`, `"""`}, "", true},
		{[]string{`say """ aloud`}, `say """ aloud`, false},
	} {
		var m composer
		for i, line := range c.lines {
			text, verbatim, done := m.add(line)
			last := i == len(c.lines)-1
			if done != last || m.open() == last {
				t.Fatalf("%q: done %v after line %d", c.lines, done, i)
			}
			if done && (text != c.want || verbatim != c.verbatim) {
				t.Errorf("%q: %q, %v", c.lines, text, verbatim)
			}
		}
	}
}

func TestPastedTextIsEditedAsOneLineHoweverItArrives(t *testing.T) {
	const in = "ab\x1b[A\x1b[200~x\r\ny\n\tz\x1b[3~\x03\r\x1b[201~c\rnext\x03lost"
	const want = "ab\x1b[Ax␤y␤␉z[3~␤c\r|next\x03|"
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(in), "byte by byte": iotest.OneByteReader(strings.NewReader(in)), "by halves": iotest.HalfReader(strings.NewReader(in)),
	} {
		k := &keyReader{from: r}
		k.begin(func() {})
		var got strings.Builder
		buf := make([]byte, 256)
		for {
			n, err := k.Read(buf)
			if err != nil {
				break
			}
			got.Write(buf[:n])
			if c := buf[n-1]; c == '\r' || c == ctrlC {
				got.WriteByte('|')
			}
			if k.interrupted {
				if k.typed != len(want)-len("||")-1 {
					t.Errorf("%s: %d bytes typed", name, k.typed)
				}
				break // what is lost depends on what had arrived
			}
		}
		if got.String() != want {
			t.Errorf("%s: %q, want %q", name, got.String(), want)
		}
	}
}

func TestTheHistoryIsBoundedAndPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "chat-history")
	h, err := openHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"one", "two\n\tlines", "two\n\tlines", "", strings.Repeat("x", maxHistoryEntry+1)} {
		if err := h.remember(m); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	h, err = openHistory(path)
	if err != nil || h.Len() != 2 || h.At(1) != "one" || fromMarks.Replace(h.At(0)) != "two\n\tlines" {
		t.Errorf("%v, %q", err, h.entries)
	}
	for i := range 2 * maxHistory {
		if err := h.remember(fmt.Sprint("message ", i)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // shortened, and then as it is
		h, err = openHistory(path)
		if err != nil || h.Len() != maxHistory || h.At(0) != fmt.Sprint("message ", 2*maxHistory-1) {
			t.Errorf("%v, %d entries", err, h.Len())
		}
	}
	b, _ := os.ReadFile(path)
	if info, _ := os.Stat(path); strings.Count(string(b), "\n") != maxHistory || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%d lines, %v", strings.Count(string(b), "\n"), info)
	}
	if _, err := openHistory(t.TempDir()); err == nil {
		t.Error("a folder is taken for a history")
	}
}

func TestTabCompletesCommandsAndParameters(t *testing.T) {
	for before, want := range map[string]string{
		"/he": "lp", "/m": "", "/me": "trics", "/sy": "stem ", "/params te": "mperature=", "/params temperature=0 top_": "", "/params top_k": "=",
		"hello": "", "/nothing": "", "": "", "/params p": "resence_penalty=",
	} {
		if got := completeCommand(before); got != want {
			t.Errorf("%q is completed by %q, want %q", before, got, want)
		}
	}
}

func TestAnAnswerIsTheSameHoweverItArrives(t *testing.T) {
	const stream = ": still here\r\n\r\nevent: x\ndata: {\"choices\":[{\"delta\":{\"content\":\"caf\"}}]}\n\n" +
		"data: {\"choices\":[{\"delta\":\ndata: {\"content\":\"é\"},\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]\n\n"
	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "with its end": iotest.DataErrReader,
	} {
		client := &chatClient{base: mustURL("http://server"), http: &http.Client{Transport: answering{pieces(strings.NewReader(stream))}}}
		answer, err := client.ask(t.Context(), nil, func(string, bool) {})
		if err != nil || answer.Text != "café" || answer.Reason != "stop" {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
	}
	long := io.MultiReader(strings.NewReader("data: "), iotest.DataErrReader(endless{}))
	client := &chatClient{base: mustURL("http://server"), http: &http.Client{Transport: answering{long}}}
	if _, err := client.ask(t.Context(), nil, func(string, bool) {}); !errors.Is(err, bench.ErrLongEvent) {
		t.Errorf("an event without an end: %v", err)
	}
}

// endless is a text of one letter.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func FuzzAStreamOfAnythingIsReadToItsEnd(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}],\"metrics\":{\"detail\":{\"itl_ms\":null}}}\n\ndata: [DONE]\n\n")
	f.Add(": \n\ndata:x\r\n\r\ndata")
	f.Add("data: {\"error\":{\"message\":1}}\n\n")
	f.Fuzz(func(t *testing.T, stream string) {
		client := &chatClient{base: mustURL("http://server"), http: &http.Client{Transport: always(stream)}}
		s, _ := session(client, "m")
		s.metrics = true
		err := s.say("question")
		if err == nil && !strings.Contains(stream, "[DONE]") {
			t.Errorf("%q is taken for a whole answer", stream)
		}
	})
}

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

// always is an http.RoundTripper that answers each request with this body.
type always string

func (a always) RoundTrip(r *http.Request) (*http.Response, error) {
	return answering{strings.NewReader(string(a))}.RoundTrip(r)
}

// answering is an http.RoundTripper that answers with what it reads.
type answering struct{ body io.Reader }

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: io.NopCloser(a.body), Header: http.Header{}}, nil
}
