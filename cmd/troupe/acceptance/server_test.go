// Package acceptance tests the whole product on a real model: the binary as a user starts it, and
// the same parts wired in this process where a test must reach behind the API. Where SmolLM2 is not at
// hand (see model/modeltest), what does not depend on its texts runs on the model inside the binary.
package acceptance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/model/demo"
	"github.com/troupe-llm/troupe/model/modeltest"
)

// patience bounds what a test waits for; it says nothing about how long anything takes.
const patience = 5 * time.Minute

// binary builds the command once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "troupe-acceptance-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "troupe")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	out, err := exec.Command("go", "build", "-o", path, "github.com/troupe-llm/troupe/cmd/troupe").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the command: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if shared != nil {
		shared.stop()
	}
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// server is a running troupe serve.
type server struct {
	url, model string
	cmd        *exec.Cmd
	log        *bytes.Buffer // the request log, and what the server says besides
	mu         sync.Mutex
}

var shared *server

// realServer is the binary serving SmolLM2, or else the model inside it, with per-request metrics. It
// is started once and shared by the tests.
func realServer(t *testing.T) *server {
	t.Helper()
	path := demo.Name
	if modeltest.There() {
		path = modeltest.SmolLM2(t)
	} else if modeltest.Race || testing.Short() {
		t.Skip("-short, or the race detector: the real models are not run")
	}
	if shared != nil {
		return shared
	}
	t.Logf("the model is %s", path)
	shared = start(t, path, "--served-model-name", served, "--enable-per-request-metrics", "--max-model-len", "2048")
	return shared
}

// served is the model's name in the API, whichever it is.
const served = "real"

var listening = regexp.MustCompile(`https?://[0-9.]+:[0-9]+`)

// start runs troupe serve with the arguments on a free port and waits until it is healthy.
func start(t *testing.T, args ...string) *server {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{model: served, log: &bytes.Buffer{}}
	s.cmd = exec.Command(bin, append([]string{"serve", "--port", "0", "--log-format", "json"}, args...)...)
	pipe, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdout = writerFunc(s.write)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(pipe)
		for lines.Scan() {
			_, _ = s.write(append(lines.Bytes(), '\n'))
			if url := listening.FindString(lines.Text()); url != "" {
				select {
				case found <- url:
				default:
				}
			}
		}
		close(found)
	}()
	select {
	case url, ok := <-found:
		if !ok {
			t.Fatalf("the server ended: %s", s.said())
		}
		s.url = url
	case <-time.After(patience):
		t.Fatalf("the server never said where it listens: %s", s.said())
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(s.url + "/health")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the server never became healthy: %v\n%s", err, s.said())
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (s *server) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

func (s *server) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(os.Interrupt)
	done := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
	}
}

// post sends a body and returns the answer.
func (s *server) post(t *testing.T, path string, body any) (status int, raw []byte) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.url+path, "application/json", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, raw
}
