package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

func TestServedRequestsAreSpansOfTheirCallersTraces(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the server is ended by a signal, which Windows does not have")
	}
	var mu sync.Mutex
	spans := map[string]*wire.Span{} // by trace
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		var export collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &export); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, r := range export.ResourceSpans {
			for _, s := range r.ScopeSpans {
				for _, span := range s.Spans {
					spans[fmt.Sprintf("%x", span.TraceId)] = span
				}
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer receiver.Close()

	p := start(t, "--device=sim", "--otlp-traces-endpoint="+receiver.URL)
	ask := func(trace, body string) {
		t.Helper()
		q, err := http.NewRequest(http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	served, refused := "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c"
	ask(served, chat)
	ask(refused, `{"messages":[]}`)
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
	mu.Lock()
	defer mu.Unlock()
	if s := spans[served]; s == nil || s.Name != "chat sim" || len(s.Events) != 5 {
		t.Errorf("the served request's span: %v", s)
	}
	if s := spans[refused]; s == nil || s.Name != "chat" {
		t.Errorf("the refused request's span: %v", s)
	}
}

func TestACollectorThatIsNotThereHoldsNothingUp(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the server is ended by a signal, which Windows does not have")
	}
	p := start(t, "--device=sim", "--otlp-traces-endpoint=http://127.0.0.1:1")
	if r := p.post(t, chat); r.StatusCode != 200 {
		t.Errorf("%s", r.Status)
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
	t.Logf("it ended after %v", time.Since(began))
	if !strings.Contains(p.stderr.String(), "span") {
		t.Errorf("nothing is said of the spans that were lost: %s", p.stderr)
	}
}
