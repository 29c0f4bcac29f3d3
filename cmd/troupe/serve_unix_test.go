//go:build !windows

package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/model/tiny"
)

// stream begins a streamed answer and reads its first frame.
func (p *process) stream(t *testing.T, tokens string) *bufio.Reader {
	t.Helper()
	r := p.post(t, strings.NewReplacer("20", tokens, `{"model"`, `{"stream":true,"model"`).Replace(chat))
	if r.StatusCode != 200 {
		t.Fatal(r.Status)
	}
	b := bufio.NewReader(r.Body)
	if line, err := b.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Fatalf("%q, %v", line, err)
	}
	return b
}

// signal sends the process a signal and waits until it says that it has got it.
func (p *process) signal(t *testing.T, s syscall.Signal, said string) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(p.stderr.String(), said); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the server does not say %q: %s", said, p.stderr)
		}
	}
}

func TestAStreamCompletesAfterSIGTERMAndNewRequestsAreRefused(t *testing.T) {
	var p *process
	var b *bufio.Reader
	var r *http.Response
	// On a busy machine the stream may be over, and the server with it, before another request comes.
	for step := 10 * time.Millisecond; r == nil; step *= 10 {
		p = start(t, "--device=sim", "--sim-step="+step.String())
		b = p.stream(t, "60")
		p.signal(t, syscall.SIGTERM, "shutting down")
		var err error
		if r, err = http.Post(p.url+"/v1/chat/completions", "application/json", strings.NewReader(chat)); err != nil && step > time.Second {
			t.Fatal(err)
		}
	}
	defer r.Body.Close()
	if r.StatusCode != 503 || r.Header.Get("Retry-After") == "" {
		t.Errorf("a new request: %s, Retry-After %q", r.Status, r.Header.Get("Retry-After"))
	}
	rest, err := io.ReadAll(b)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") || !strings.Contains(string(rest), `"finish_reason":"length"`) {
		t.Errorf("the stream ended with %v after %q", err, rest)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
	var ended, refused int
	for _, l := range lines(t, p.stdout.String()) {
		switch l["outcome"] {
		case "length":
			ended++
			if n := l["tokens"].(map[string]any)["output"]; n != 60.0 {
				t.Errorf("%v tokens, want 60", n)
			}
		case "refused":
			refused++
		}
	}
	if ended != 1 || refused != 1 {
		t.Errorf("log: %s", &p.stdout)
	}
}

func TestASecondSIGTERMEndsRequestsAtOnceAndTheyAreLogged(t *testing.T) {
	p := start(t, "--device=sim", "--sim-step=20ms")
	b := p.stream(t, "5000") // 100 s
	p.signal(t, syscall.SIGTERM, "shutting down")
	p.signal(t, syscall.SIGTERM, "not all requests could end")
	rest, _ := io.ReadAll(b)
	if !strings.Contains(string(rest), `"error"`) {
		t.Errorf("no error in %q", rest)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
	all := lines(t, p.stdout.String())
	if len(all) != 1 || all[0]["outcome"] != "error" || all[0]["status"] != 503.0 {
		t.Errorf("log: %s", &p.stdout)
	}
}

func TestTheDrainTimeoutEndsWhatIsLeft(t *testing.T) {
	p := start(t, "--device=sim", "--sim-step=20ms", "--drain-timeout=100ms")
	b := p.stream(t, "5000")
	p.signal(t, syscall.SIGINT, "not all requests could end")
	_, _ = io.Copy(io.Discard, b)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
}

func TestAnIdleServerEndsAtOnce(t *testing.T) {
	p := start(t, "--device=sim")
	p.signal(t, syscall.SIGTERM, "stopped")
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
}

func TestSIGHUPReopensTheRequestLog(t *testing.T) {
	dir := t.TempDir()
	log, old := filepath.Join(dir, "requests.log"), filepath.Join(dir, "requests.log.1")
	p := start(t, "--device=sim", "--request-log="+log)
	ask := func() {
		r := p.post(t, chat)
		if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != 200 {
			t.Fatalf("%s, %v", r.Status, err)
		}
	}
	ask()
	if err := os.Rename(log, old); err != nil {
		t.Fatal(err)
	}
	if err := p.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(log); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the log was not reopened")
		}
	}
	ask()
	p.signal(t, syscall.SIGTERM, "stopped")
	p.wait(t)
	before, _ := os.ReadFile(old)
	after, _ := os.ReadFile(log)
	// The first request's line may have been written before or after the signal, but is one of two.
	if n := bytes.Count(before, []byte("\n")) + bytes.Count(after, []byte("\n")); n != 2 || len(after) == 0 {
		t.Errorf("%d lines; old %q, new %q", n, before, after)
	}
}

func TestSIGHUPWithoutALogEndsNothing(t *testing.T) {
	for _, args := range [][]string{{"--request-log=none"}, {"--disable-log-stats"}, {}} {
		p := start(t, append([]string{"--device=sim"}, args...)...)
		if err := p.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if r := p.post(t, chat); r.StatusCode != 200 {
			t.Errorf("%q: %s", args, r.Status)
		}
		p.signal(t, syscall.SIGTERM, "stopped")
		if code := p.wait(t); code != 0 {
			t.Errorf("%q: exit %d: %s", args, code, p.stderr)
		}
	}
}

func TestSIGHUPWhileTheModelLoadsEndsNothing(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-answer
		_, _ = w.Write(tiny.GGUF(tiny.Options{}))
	}))
	defer s.Close()
	said := &transcript{}
	cmd := command(t, t.Context(), "serve", "--port=0", "--log-format=json", "--threads=1", s.URL+"/tiny.gguf")
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	close(answer)
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for deadline := time.Now().Add(patience); !strings.Contains(said.String(), `"serving"`); time.Sleep(time.Millisecond) {
		select {
		case err := <-done:
			t.Fatalf("the server ended (%v): %s", err, said)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not serve: %s", said)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

func TestNamedPipesAreNotWaitedFor(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe.gguf")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := invoke(t, "serve", "--port=0", pipe); code != 1 || !strings.Contains(stderr, "not a regular file") {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
	if code, _, stderr := invoke(t, "serve", "--device=sim", "--port=0", "--request-log="+pipe); code != 1 || !strings.Contains(stderr, "named pipe that nobody reads") {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

func TestAReaderOfTheLogThatLeavesDoesNotEndTheServer(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{stderr: &transcript{}, done: make(chan error, 1)}
	p.start(t, w, "--device=sim")
	w.Close()
	r.Close() // nobody reads what the server logs
	for range 3 {
		if r := p.post(t, chat); r.StatusCode != 200 {
			t.Fatal(r.Status)
		}
	}
	for deadline := time.Now().Add(patience); strings.Count(p.stderr.String(), "broken pipe") != 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no complaint: %s", p.stderr)
		}
	}
	if r, err := http.Get(p.url + "/health"); err != nil || r.StatusCode != 200 {
		t.Errorf("health: %v, %v", r, err)
	}
}

func TestAFullDiskIsSaidAtOnceAndShowsInTheMetrics(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full here")
	}
	p := start(t, "--device=sim", "--request-log=/dev/full")
	p.post(t, chat)
	const said = "request log /dev/full cannot be written: no space left on device"
	for deadline := time.Now().Add(patience); !strings.Contains(p.stderr.String(), said); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the server does not say %q: %s", said, p.stderr)
		}
	}
	for _, l := range lines(t, p.stderr.String()) { // the message is one of the server's own, in their format
		if m, _ := l["message"].(string); strings.Contains(m, said) && l["level"] != "warn" {
			t.Errorf("%v", l)
		}
	}
	r, err := http.Get(p.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, _ := io.ReadAll(r.Body)
	if !strings.Contains(string(page), "\ntroupe:request_log_write_errors_total ") || strings.Contains(string(page), "\ntroupe:request_log_write_errors_total 0\n") ||
		!strings.Contains(string(page), "\ntroupe:request_log_lines_lost_total 0\n") {
		t.Errorf("%s", page)
	}
	if r, err := http.Get(p.url + "/health"); err != nil || r.StatusCode != 200 {
		t.Errorf("%v, %v", r, err)
	} else {
		r.Body.Close()
	}
	p.signal(t, syscall.SIGTERM, "stopped")
	if code := p.wait(t); code != 1 || !strings.Contains(p.stderr.String(), "the request log is not complete") {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
}

func TestTheBannerFitsATerminalAndItsCommandsWork(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	for _, args := range [][]string{
		{}, {"--device=sim"}, {"--device=sim", "--disable-log-stats"}, {"--api-key=KEY", "--enable-per-request-metrics", "--request-log=r.jsonl"},
	} {
		said := &transcript{}
		cmd := command(t, t.Context(), append([]string{"serve", "--port=0", "--log-format=console"}, args...)...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), io.Discard, said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience); !strings.Contains(said.String(), "\nstop "); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%q: no banner: %s", args, said)
			}
		}
		banner := said.String()
		if n := strings.Count(banner, "\n"); n > 20 {
			t.Errorf("%q: %d rows:\n%s", args, n, banner)
		}
		seen := map[string]bool{}
		for line := range strings.Lines(banner) {
			line = strings.TrimSuffix(line, "\n")
			if utf8.RuneCountInString(line) > 80 || line == "" || strings.HasSuffix(line, " ") || seen[line] {
				t.Errorf("%q: a row is too long, empty, or there twice: %q", args, line)
			}
			seen[line] = true
		}
		for _, want := range []string{"\nserving   http://127.0.0.1:", "\nlog  ", "\nstop      Ctrl-C"} {
			if !strings.Contains(banner, want) {
				t.Errorf("%q: no %q in\n%s", args, want, banner)
			}
		}
		_, try, _ := strings.Cut(banner, "\ntry ")
		try, _, _ = strings.Cut(try, "\nstop")
		if out, err := exec.CommandContext(t.Context(), sh, "-c", try).Output(); err != nil || !strings.Contains(string(out), `"finish_reason"`) {
			t.Errorf("%q: %v: %s", try, err, out)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%q: %v: %s", args, err, said)
		}
	}
}
