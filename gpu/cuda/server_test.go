//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// patience bounds what a test waits for; it says nothing about how long anything takes.
const patience = 4 * time.Minute

// The whole server over the stand-in: its GPU is lost to the process in the middle of an answer.
func TestAServerWhoseGPUIsLostFailsItsRequestsAndEndsWithAStatusOf1(t *testing.T) {
	useFake(t)
	if testing.Short() {
		t.Skip("runs without -short only: it builds the program")
	}
	folder := t.TempDir()
	program, file, log := filepath.Join(folder, "troupe"), filepath.Join(folder, "tiny.gguf"), filepath.Join(folder, "log")
	if out, err := exec.Command("go", "build", "-tags", "cuda", "-o", program, "../../cmd/troupe").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(file, tiny.GGUF(tiny.Options{Layers: 1, Type: gguf.Q8_0}), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := exec.CommandContext(ctx, program, "serve", file, "--device=cuda", "--port=0", "--log-format=json", "--request-log=none", "--max-num-seqs=2", "--max-model-len=256")
	server.Env = append(os.Environ(), "LD_LIBRARY_PATH="+fake.folder, "FAKE_CUDA_ILLEGAL=150")
	server.Stderr = said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Wait() }()
	url := ""
	for url == "" {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var m struct{ URL, Message string }
			if json.Unmarshal(line, &m) == nil && m.Message == "serving" {
				url = m.URL
			}
		}
		select {
		case err := <-done:
			t.Fatalf("the server ended with %v: %s", err, text)
		case <-time.After(5 * time.Millisecond):
		}
	}
	r, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"tiny","prompt":"Hello","max_tokens":100,"stream":true,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	frames, err := io.ReadAll(r.Body)
	if err != nil || !strings.Contains(string(frames), "no working device") || strings.Count(string(frames), `"text"`) < 3 {
		t.Fatalf("%v after %s", err, frames)
	}
	<-done
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; server.ProcessState.ExitCode() != 1 || !strings.HasPrefix(last, "troupe: the device is lost to this process") || !strings.Contains(last, "(CUDA error 700)") {
		t.Errorf("%v: %s", server.ProcessState, text)
	}
}
