//go:build !windows

package behaviours

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Behaviour 18. That the stream completes, that new requests get 503 with Retry-After, the exit code
// and the log are in cmd/troupe's own tests; here is when the process exits.
func TestAfterSIGTERMTheProcessExitsAsSoonAsTheLastRequestHasEnded(t *testing.T) {
	bin := binary(t)
	cmd := exec.Command(bin, "serve", "--device=sim", "--sim-step=5ms", "--port=0", "--log-format=json", "--drain-timeout=1h")
	var log, requests lockedBuffer
	cmd.Stderr, cmd.Stdout = &log, &requests
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	addr := ""
	until(t, "it serves", func() bool {
		for line := range strings.Lines(log.String()) {
			var m struct{ URL, Message string }
			if json.Unmarshal([]byte(line), &m) == nil && m.Message == "serving" {
				addr = strings.TrimPrefix(m.URL, "http://")
			}
		}
		return addr != ""
	})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	// One connection that has served and is kept, one that never said anything, one half-sent request.
	kept, _, half := dial(), dial(), dial()
	fmt.Fprint(kept, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	if r, err := http.ReadResponse(bufio.NewReader(kept), nil); err != nil || r.StatusCode != 200 {
		t.Fatalf("%v, %v", r, err)
	}
	fmt.Fprint(half, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le")

	streaming, whole := dial(), dial()
	if err := post(streaming, chatPath, say("go on", 60).with(streamed)); err != nil {
		t.Fatal(err)
	}
	if err := post(whole, chatPath, say("go on", 80).String()); err != nil {
		t.Fatal(err)
	}
	sr := bufio.NewReader(streaming)
	if line, err := sr.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 200") {
		t.Fatalf("%q, %v", line, err)
	}
	until(t, "both run", func() bool {
		r, err := http.Get("http://" + addr + "/load")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return string(b) == `{"server_load":2}` || strings.Contains(requests.String(), "length")
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(sr)
	if err != nil || !strings.Contains(string(rest), "data: [DONE]") {
		t.Errorf("the stream ended with %v after %q", err, rest)
	}
	if a, err := readAnswer(whole, nil); err != nil || a.StatusCode != 200 {
		t.Errorf("the unstreamed answer: %v, %v", a.Response, err)
	}
	select {
	case err := <-exited: // an hour before the drain's timeout
		if err != nil {
			t.Errorf("exit: %v: %s", err, log.String())
		}
	case <-time.After(patience):
		t.Fatalf("the idle process does not exit: %s", log.String())
	}
	ended := 0
	for line := range strings.Lines(requests.String()) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if e.Outcome == "length" && e.Status == 200 {
			ended++
		}
	}
	if ended != 2 {
		t.Errorf("log: %s", requests.String())
	}
}
