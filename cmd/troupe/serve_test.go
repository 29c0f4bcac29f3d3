package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu/cuda"
	"github.com/troupe-llm/troupe/model/tiny"
)

// process is a running server.
type process struct {
	*exec.Cmd
	environment []string // besides command's
	url         string
	stdout      bytes.Buffer // to be read after wait
	stderr      *transcript
	done        chan error
}

// transcript collects what is written to it and may be read meanwhile.
type transcript struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.Write(p)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// start runs `troupe serve` on a free port, with its messages as JSON, and waits until it serves.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{stderr: &transcript{}, done: make(chan error, 1)}
	p.start(t, &p.stdout, args...)
	return p
}

func (p *process) start(t *testing.T, stdout io.Writer, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p.Cmd = command(t, ctx, append([]string{"serve", "--port=0", "--log-format=json"}, args...)...)
	p.Env = append(p.Env, p.environment...)
	p.Stdout, p.Stderr = stdout, p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.Wait() }()
	t.Cleanup(func() { _ = p.Process.Kill() })
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(p.stderr.String()) {
			var m struct{ URL, Message string }
			if json.Unmarshal([]byte(line), &m) == nil && m.Message == "serving" {
				p.url = m.URL
				return
			}
		}
		select {
		case err := <-p.done:
			t.Fatalf("the server ended (%v): %s", err, p.stderr)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not serve: %s", p.stderr)
		}
	}
}

// wait waits for the process to end and returns its exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("the server does not end: %s", p.stderr)
	}
	return p.ProcessState.ExitCode()
}

// post sends a chat request.
func (p *process) post(t *testing.T, body string) *http.Response {
	t.Helper()
	r, err := http.Post(p.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	return r
}

// lines are the request log's lines.
func lines(t *testing.T, log string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, m)
	}
	return all
}

const chat = `{"model":"sim","messages":[{"role":"user","content":"Hello!"}],"max_tokens":20}`

func TestAServerWhoseDeviceIsLostFailsItsRequestsAndEndsWithAStatusOf1(t *testing.T) {
	p := start(t, "--device=sim", "--sim-lost-at-step=30")
	stream := p.post(t, strings.NewReplacer("20", "60", `{"model"`, `{"stream":true,"model"`).Replace(chat))
	b, err := io.ReadAll(stream.Body)
	if err != nil || !strings.Contains(string(b), "no working device") || strings.Count(string(b), `"content"`) < 10 {
		t.Errorf("%v after %q", err, b)
	}
	if code := p.wait(t); code != 1 {
		t.Errorf("exit %d", code)
	}
	said := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	if last := said[len(said)-1]; !strings.HasPrefix(last, "troupe: the device is lost to this process, and the server must be started again: sim: ") {
		t.Errorf("the last line is %q", last)
	}
	all := lines(t, p.stdout.String())
	if len(all) != 1 || all[0]["outcome"] != "error" || all[0]["status"] != 503.0 {
		t.Errorf("log: %s", &p.stdout)
	}
}

// answers asks a server all prompts at once, and returns what it answers to each; empty where it refused.
func answers(t *testing.T, p *process, prompts []string, tokens int) (texts []string, engines map[float64]int) {
	t.Helper()
	texts = make([]string, len(prompts))
	var all sync.WaitGroup
	for i, prompt := range prompts {
		all.Go(func() {
			body, _ := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true})
			r, err := http.Post(p.url+"/v1/completions", "application/json", bytes.NewReader(body))
			if err != nil {
				return // the server has ended
			}
			defer r.Body.Close()
			var answer struct{ Choices []struct{ Text string } }
			if r.StatusCode == 503 {
				return
			}
			if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || len(answer.Choices) != 1 {
				t.Errorf("%q: %s, %v, %+v", prompt, r.Status, err, answer)
				return
			}
			texts[i] = answer.Choices[0].Text
		})
	}
	all.Wait()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		_ = p.Process.Kill() // Windows
	}
	p.wait(t)
	engines = map[float64]int{}
	for _, l := range lines(t, p.stdout.String()) {
		if e, ok := l["engine"].(float64); ok {
			engines[e]++
		}
	}
	return texts, engines
}

func TestADeviceOfTwoThatIsLostLeavesItsRequestsToTheOtherAndTheServerEnds(t *testing.T) {
	var prompts []string
	for i := range 8 {
		prompts = append(prompts, strings.Repeat(strconv.Itoa(i), 20))
	}
	want, engines := answers(t, start(t, "--device=sim"), prompts, 60)
	if len(engines) != 0 {
		t.Errorf("one device is told of as if there were others: %v", engines)
	}
	// On a busy machine the device may be lost, and the server drain, before all requests have come.
	for step := 10 * time.Millisecond; ; step *= 5 {
		p := start(t, "--device=sim", "--data-parallel-size=2", "--sim-lost-at-step=30", "--drain-timeout=10m", "--sim-step="+step.String())
		got, engines := answers(t, p, prompts, 60)
		if slices.Contains(got, "") && step < time.Second {
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%q: %q, want %q", prompts[i], got[i], want[i])
			}
		}
		if engines[1] != len(prompts) || len(engines) != 1 {
			t.Errorf("so many requests ended on the engines: %v", engines)
		}
		said := p.stderr.String()
		if p.ProcessState.ExitCode() != 1 || !strings.Contains(said, "engine 0 of 2 has no device") || !strings.Contains(said, `"requests of an engine without a device go on with another"`) {
			t.Errorf("exit %d: %s", p.ProcessState.ExitCode(), said)
		}
		return
	}
}

func TestTwoCPUDevicesAnswerAsOne(t *testing.T) {
	prompts := []string{"Hello, who are you?", "What is a token?", "Hello, what is a batch?", "Tell me about actors"}
	small := []string{"--device=cpu", "--max-model-len=128", "--max-num-seqs=4", "--kv-cache-memory-bytes=32MiB"}
	want, _ := answers(t, start(t, append(small, "--threads=1")...), prompts, 8)
	got, engines := answers(t, start(t, append(small, "--threads=3", "--data-parallel-size=2")...), prompts, 8)
	for i := range want {
		if got[i] != want[i] || got[i] == "" {
			t.Errorf("%q: %q, want %q", prompts[i], got[i], want[i])
		}
	}
	if engines[0]+engines[1] != len(prompts) {
		t.Errorf("so many requests were on the engines: %v", engines)
	}
}

func TestThePortThatIsTakenIsNamed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
	code, _, stderr := invoke(t, "serve", "--device=sim", "--port="+port)
	if code != 1 || !strings.Contains(stderr, port) || !strings.Contains(stderr, "taken") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

func TestWhatIsNoModelIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.gguf")
	if err := os.WriteFile(path, []byte("<!doctype html><title>Not found</title>"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{path: "web page", filepath.Join(t.TempDir(), "none.gguf"): "none.gguf"} {
		code, _, stderr := invoke(t, "serve", "--port=0", file)
		if code != 1 || !strings.Contains(stderr, want) || !strings.Contains(stderr, filepath.Base(file)) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, stderr %q", file, code, stderr)
		}
	}
}

func TestAnEmptyKeyInTheEnvironmentIsAWrongUse(t *testing.T) {
	cmd := command(t, t.Context(), "serve", "--device=sim", "--port=0")
	cmd.Env = append(cmd.Env, "TROUPE_API_KEY=")
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "TROUPE_API_KEY") || bytes.Count(out, []byte("\n")) != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestADownloadThatIsNoModelIsNotKept(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		if asked.Add(1) == 1 {
			_, _ = io.WriteString(w, "try again later")
			return
		}
		_, _ = w.Write(tiny.GGUF(tiny.Options{})[:1000])
	}))
	defer s.Close()
	cache := t.TempDir()
	serve := func() string {
		cmd := command(t, t.Context(), "serve", "--port=0", s.URL+"/m.gguf")
		cmd.Env = append(cmd.Env, "TROUPE_CACHE="+cache)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != 1 {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := serve(); !strings.Contains(out, `"try again later"`) || !strings.Contains(out, "not a GGUF file") {
		t.Error(out)
	}
	// What begins like a model is kept, and named.
	out := serve()
	_, rest, _ := strings.Cut(out, "troupe rm ")
	file, _, _ := strings.Cut(rest, " and start again")
	if info, err := os.Stat(file); err != nil || info.Size() != 1000 || !strings.HasPrefix(file, cache) {
		t.Errorf("%v: %s", err, out)
	}
}

// tinyModel is a model file.
func tinyModel(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := os.WriteFile(path, tiny.GGUF(tiny.Options{}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTooLittleMemoryIsToldInNumbers(t *testing.T) {
	for kind, want := range map[string]string{"auto": "2048 tokens needs 512.00 KiB", "f16": "2048 tokens needs 512.00 KiB", "f32": "2048 tokens needs 1.00 MiB", "q8_0": "2048 tokens needs 544.00 KiB"} {
		code, _, stderr := invoke(t, "serve", "--port=0", "--kv-cache-memory-bytes=100KiB", "--kv-cache-dtype="+kind, tinyModel(t))
		if code != 1 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "100.00 KiB") {
			t.Errorf("%s: exit %d, stderr %q", kind, code, stderr)
		}
	}
}

func TestAContextBeyondTheModelsIsAWrongFlag(t *testing.T) {
	code, _, stderr := invoke(t, "serve", "--port=0", "--max-model-len=4K", tinyModel(t))
	if code != 2 || !strings.Contains(stderr, "--max-model-len is 4096") || !strings.Contains(stderr, "2048") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

func TestAModelFileIsServedUnderItsNameWithMetrics(t *testing.T) {
	config := writeConfig(t, "model: "+tinyModel(t)+"\nenable-per-request-metrics: true\nthreads: 1\nmax-model-len: 256\n")
	p := start(t, "--config="+config)
	r := p.post(t, strings.Replace(chat, "sim", "tiny", 1))
	b, _ := io.ReadAll(r.Body)
	var answer struct {
		Model   string
		Metrics map[string]any
	}
	if err := json.Unmarshal(b, &answer); err != nil || r.StatusCode != 200 {
		t.Fatalf("%s: %s", r.Status, b)
	}
	if ttft, ok := answer.Metrics["time_to_first_token_ms"].(float64); answer.Model != "tiny" || !ok || ttft <= 0 {
		t.Errorf("%s", b)
	}
}

func TestASeedGivesTheSameTextsInTheSameOrder(t *testing.T) {
	model := tinyModel(t)
	text := func(seed string) string {
		p := start(t, model, "--threads=1", "--seed="+seed, "--max-model-len=256")
		defer p.Process.Kill()
		all := ""
		for range 2 {
			b, _ := io.ReadAll(p.post(t, strings.Replace(chat, "sim", "tiny", 1)).Body)
			var a struct {
				Choices []struct{ Message struct{ Content string } }
			}
			if err := json.Unmarshal(b, &a); err != nil || len(a.Choices) != 1 {
				t.Fatalf("%v: %s", err, b)
			}
			all += a.Choices[0].Message.Content + "|"
		}
		return all
	}
	first, again, other := text("1"), text("1"), text("2")
	if first != again {
		t.Errorf("the same seed gave %q and %q", first, again)
	}
	if first == other {
		t.Errorf("two seeds gave %q", first)
	}
}

func TestWithoutStatisticsThereAreNone(t *testing.T) {
	p := start(t, "--device=sim", "--disable-log-stats")
	r := p.post(t, chat)
	if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != 200 {
		t.Fatalf("%s, %v", r.Status, err)
	}
	m, err := http.Get(p.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Body.Close()
	b, _ := io.ReadAll(m.Body)
	if bytes.Contains(b, []byte("vllm:")) || !bytes.Contains(b, []byte("go_goroutines")) {
		t.Errorf("/metrics: %s", b)
	}
}

func TestAKeyIsAskedForAndOnlyItsNameLogged(t *testing.T) {
	log := filepath.Join(t.TempDir(), "requests.log")
	p := start(t, "--device=sim", "--api-key=alice:open-sesame", "--request-log="+log)
	if r := p.post(t, chat); r.StatusCode != 401 {
		t.Errorf("without a key: %s", r.Status)
	}
	req, _ := http.NewRequest("POST", p.url+"/v1/chat/completions", strings.NewReader(chat))
	req.Header.Set("Authorization", "Bearer open-sesame")
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	if r.StatusCode != 200 {
		t.Errorf("with it: %s", r.Status)
	}
	var b []byte
	for deadline := time.Now().Add(patience); bytes.Count(b, []byte("\n")) < 2 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		b, _ = os.ReadFile(log)
	}
	all := lines(t, string(b))
	slices.SortFunc(all, func(x, y map[string]any) int { return cmp.Compare(x["id"].(float64), y["id"].(float64)) }) // a line is written when its answer has been delivered
	if len(all) != 2 || all[0]["status"] != 401.0 || all[1]["key"] != "alice" || bytes.Contains(b, []byte("sesame")) {
		t.Errorf("%s", b)
	}
}

func TestAGPUThatIsNotThereIsAnErrorInOneLine(t *testing.T) {
	if cuda.Find(1) == nil {
		t.Skip("there is a GPU")
	}
	code, _, stderr := invoke(t, "serve", "--device=cuda", "--port=0")
	if code == 0 || !strings.Contains(stderr, "--device cuda: "+cuda.Find(1).Error()) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q", code, stderr)
	}
}
