package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
)

func TestHealthIsZeroOnlyWhenTheServerIsWell(t *testing.T) {
	p := start(t, "--device=sim", "--api-key=alice:secret")
	for _, url := range []string{p.url, p.url + "/", p.url + "/health"} {
		if code, stdout, stderr := invoke(t, "health", url); code != 0 || stdout != "healthy\n" || stderr != "" {
			t.Errorf("%s: exit %d, %q, %q", url, code, stdout, stderr)
		}
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Skip(err) // Windows has no such signal
	}
	p.wait(t)
	if code, stdout, stderr := invoke(t, "health", p.url); code != 1 || stdout != "" || !strings.Contains(stderr, "/health cannot be asked: dial tcp") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("a server that is gone: exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestHealthSaysWhatIsWrong(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"is unhealthy: the device is gone": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error":{"message":"the device is gone"}}`))
		},
		"answered 404 Not Found":      http.NotFound,
		"answered 302 Found":          func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
		"did not answer within 100ms": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
	for want, answer := range answers {
		timeout := "--timeout=1m"
		if strings.Contains(want, "100ms") {
			timeout = "--timeout=100ms"
		}
		s := httptest.NewServer(answer)
		if code, stdout, stderr := invoke(t, "health", timeout, s.URL); code != 1 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("exit %d, %q, %q; want %q", code, stdout, stderr, want)
		}
		s.Close()
	}
}

func TestHealthSaysWhichDeviceOfSeveralHasGone(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"status":"degraded","message":"engine 1 of 2 has no device: gone"}`))
	}))
	defer s.Close()
	if code, stdout, stderr := invoke(t, "health", s.URL); code != 0 || stdout != "healthy, but for a part: engine 1 of 2 has no device: gone\n" {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestHealthTakesACertificateOfAnotherNameOnlyWhenToldTo(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	if code, _, stderr := invoke(t, "health", s.URL); code != 1 || !strings.Contains(stderr, "certificate") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	if code, stdout, stderr := invoke(t, "health", "--insecure", s.URL); code != 0 || stdout != "healthy\n" {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestHealthRefusesWhatIsNoServersURL(t *testing.T) {
	for _, args := range [][]string{{"127.0.0.1:8000"}, {"localhost"}, {"ftp://localhost"}, {"http://"}, {"http://[::1"}, {"--timeout=0s"}, {"--timeout=-1s"}} {
		if code, _, stderr := invoke(t, append([]string{"health"}, args...)...); code != 2 || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, %q", args, code, stderr)
		}
	}
}
