package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// patience bounds what a test waits for; it says nothing about how long anything takes.
const patience = 4 * time.Minute

// fixed is a workload of equal requests.
type fixed struct{ cancelAfter time.Duration }

func (f fixed) Request(i int) (*Request, error) {
	shape := Shape{Endpoint: "chat", Model: "m"}
	return &Request{Index: i, Input: 10, CancelAfter: f.cancelAfter, Body: shape.body("hello", nil, 4, false, nil)}, nil
}

func (fixed) Describe() (prompts, outputs string) { return "fixed", "fixed" }

// fake is a server that answers as handle does.
func fake(t *testing.T, handle http.HandlerFunc) *Server {
	t.Helper()
	srv := httptest.NewServer(handle)
	t.Cleanup(srv.Close)
	s, err := NewServer(srv.URL+"/v1", "chat")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// write sends events, each in a write of its own.
func write(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		fmt.Fprintf(w, "data: %s\n\n", e)
		w.(http.Flusher).Flush()
	}
}

var wholeAnswer = []string{role, text, text, last, usage(3), "[DONE]"}

func TestAServerAndThisProcessGiveTheSameTokens(t *testing.T) {
	for _, endpoint := range []string{"chat", "completions"} {
		t.Run(endpoint, func(t *testing.T) {
			rig := newStand(t, 0)
			s, err := NewServer(rig.serve(t), endpoint)
			if err != nil {
				t.Fatal(err)
			}
			info, err := s.Ask(context.Background(), "")
			if err != nil || !slices.Equal(info.Models, []string{"sim"}) || info.MaxModelLen != 4096 || strings.Count(info.Software, "troupe") != 1 {
				t.Fatalf("%+v, %v", info, err)
			}
			count := s.Counter(context.Background(), "sim")
			if count == nil {
				t.Fatal("the server's /tokenize is not found")
			}
			for _, text := range []string{opening, "The old man. And, the sea"} {
				theirs, err := count(text)
				ours, err2 := CountBy(rig.env, endpoint)(text)
				if err != nil || err2 != nil || theirs != ours {
					t.Errorf("%q is %d tokens to the server, %d in this process: %v, %v", text, theirs, ours, err, err2)
				}
			}
			var reports []*Report
			for _, target := range []Target{rig.process(endpoint), s} {
				r, err := Run(context.Background(), Options{Target: target, Workload: synthetic(t, rig.env, endpoint), Concurrency: 8, Requests: 80,
					Percentiles: []float64{99}, Detailed: true, SLO: &SLO{E2E: 1e9}})
				if err != nil {
					t.Fatal(err)
				}
				reports = append(reports, r)
			}
			a, b := reports[0], reports[1]
			if a.Completed != 80 || b.Completed != 80 || a.InputTokens != b.InputTokens || a.OutputTokens != b.OutputTokens || a.Uncounted+b.Uncounted > 0 {
				t.Errorf("in this process %+v, over HTTP %+v", a.Measured, b.Measured)
			}
			if b.Server == nil || b.Server.Requests != 80 || b.Server.Source != "metrics" || b.Server.TTFTDelivery.Min < 0 {
				t.Errorf("%+v", b.Server)
			}
			byIndex := func(x, y Sample) int { return x.Index - y.Index }
			slices.SortFunc(a.Samples, byIndex)
			slices.SortFunc(b.Samples, byIndex)
			for i := range a.Samples {
				x, y := &a.Samples[i], &b.Samples[i]
				if x.Input != y.Input || x.Output != y.Output || !x.Good || !y.Good || y.Text == "" || y.TTFT > y.E2E {
					t.Errorf("request %d: %+v in this process, %+v over HTTP", i, x, y)
				}
			}
			ticks := int64(0)
			for _, k := range b.Timeline {
				ticks += k.OutputTokens
			}
			if end := b.Timeline[len(b.Timeline)-1]; ticks != b.OutputTokens || end.Running != 0 || end.Waiting != 0 {
				t.Errorf("the timeline has %d tokens, and ends with %+v", ticks, end)
			}
		})
	}
}

func TestWhatMisbehavesIsCountedAndNeverHangs(t *testing.T) {
	hang := make(chan struct{})
	for _, c := range []struct {
		name   string
		handle http.HandlerFunc
		kind   string // of all requests' failure; empty: they are completed
		tokens int64  // of one request
		odd    func(*Report) bool
	}{
		{name: "a whole answer", handle: func(w http.ResponseWriter, _ *http.Request) { write(w, wholeAnswer...) }, tokens: 3},
		{name: "no end mark", handle: func(w http.ResponseWriter, _ *http.Request) { write(w, role, text, last, usage(2)) }, tokens: 2},
		{name: "no usage", handle: func(w http.ResponseWriter, _ *http.Request) { write(w, role, text, text, stop, "[DONE]") }, tokens: 2,
			odd: func(r *Report) bool { return r.Uncounted != r.Completed }},
		{name: "500", handle: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"message":"out of memory"}}`, 500)
		}, kind: "HTTP 500", odd: func(r *Report) bool { return r.Errors[0].Example != "out of memory" }},
		{name: "429", handle: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"detail":"busy"}`, http.StatusTooManyRequests)
		}, kind: "HTTP 429"},
		{name: "redirect", handle: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) }, kind: "HTTP 302"},
		{name: "cut off", handle: func(w http.ResponseWriter, _ *http.Request) {
			write(w, role, text, text)
			panic(http.ErrAbortHandler)
		}, kind: kindCut, tokens: 2},
		{name: "ended early", handle: func(w http.ResponseWriter, _ *http.Request) { write(w, role, text) }, kind: kindCut, tokens: 1},
		{name: "empty", handle: func(w http.ResponseWriter, _ *http.Request) { write(w) }, kind: kindCut},
		{name: "closed without an answer", handle: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, kind: kindCut},
		{name: "garbage", handle: func(w http.ResponseWriter, _ *http.Request) { write(w, role, text, "{nonsense") }, kind: kindGarbage, tokens: 1},
		{name: "an error in the stream", handle: func(w http.ResponseWriter, _ *http.Request) {
			write(w, role, text, `{"error":{"message":"the device failed"}}`, "[DONE]")
		}, kind: kindStream, tokens: 1},
		{name: "no output", handle: func(w http.ResponseWriter, _ *http.Request) { write(w, role, stop, usage(0), "[DONE]") }, kind: kindNoOutput},
		{name: "not streamed", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"choices":[{"message":{"content":"hello"}}]}`)
		}, kind: kindNotStream},
		{name: "no response to be read", handle: func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n")
			c.Close()
		}, kind: kindGarbage},
		{name: "a stream that hangs", handle: func(w http.ResponseWriter, r *http.Request) {
			write(w, role, text)
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}, kind: kindTimeout, tokens: 1},
		{name: "the end does not end", handle: func(w http.ResponseWriter, r *http.Request) {
			write(w, wholeAnswer...)
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}, tokens: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := fake(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				c.handle(w, r)
			})
			s.Timeout = patience
			if c.kind == kindTimeout {
				s.Timeout = 700 * time.Millisecond
			}
			measure := func() *Report {
				r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Concurrency: 3, Requests: 7, Percentiles: []float64{50}, SLO: &SLO{Share: 1}})
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			r := measure()
			for c.kind == kindTimeout && r.OutputTokens < 7*c.tokens && s.Timeout < patience {
				s.Timeout *= 10 // so busy a machine that the time was over before a token came
				r = measure()
			}
			if c.kind == "" {
				if r.Completed != 7 || r.Failed != 0 || r.Good.Requests != 7 || r.TTFT.Count != 7 {
					t.Errorf("%+v", r.Measured)
				}
			} else if r.Failed != 7 || r.Completed != 0 || len(r.Errors) != 1 || r.Errors[0].Kind != c.kind || r.Errors[0].Count != 7 ||
				r.Errors[0].Example == "" || r.TTFT.Count+r.E2E.Count != 0 || r.Good.Requests != 0 || r.Good.Share != 0 {
				t.Errorf("%+v, want failures of the kind %q", r.Measured, c.kind)
			}
			if r.OutputTokens != 7*c.tokens {
				t.Errorf("%d tokens, want %d", r.OutputTokens, 7*c.tokens)
			}
			if c.odd != nil && c.odd(r) {
				t.Errorf("%+v", r.Measured)
			}
			var out bytes.Buffer
			if err := errors.Join(r.WriteTable(&out), r.WriteJSON(&out, true)); err != nil {
				t.Error(err)
			}
		})
	}
	close(hang)
}

func TestNobodyListening(t *testing.T) {
	s, err := NewServer("http://127.0.0.1:1", "chat")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Concurrency: 2, Requests: 4})
	if err != nil || r.Failed != 4 || r.Errors[0].Kind != kindConnect || !strings.Contains(r.Errors[0].Example, "refused") {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.Ask(context.Background(), ""); err == nil {
		t.Error("a server that is not there answers")
	}
}

func TestMixedFortunesAreAccountedOneByOne(t *testing.T) {
	var n atomic.Int64
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) % 3 {
		case 0:
			write(w, wholeAnswer...)
		case 1:
			http.Error(w, "busy", http.StatusServiceUnavailable)
		case 2:
			write(w, role, text)
		}
	})
	r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Concurrency: 4, Requests: 30, SLO: &SLO{E2E: 1e9, Share: 0.5}})
	if err != nil || r.Completed != 10 || r.Failed != 20 || r.OutputTokens != 10*3+10 || r.Good.Requests != 10 || len(r.Errors) != 2 || r.Errors[0].Count != 10 {
		t.Errorf("%+v, %v", r.Measured, err)
	}
	if share := r.Good.Share; share < 0.33 || share > 0.34 {
		t.Errorf("a share of %v is good", share)
	}
}

func TestConnectionsAreKept(t *testing.T) {
	var mu sync.Mutex
	peers := map[string]int{}
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		peers[r.RemoteAddr]++
		mu.Unlock()
		write(w, wholeAnswer...)
	})
	if r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Concurrency: 5, Requests: 100, Warmups: 10}); err != nil || r.Completed != 100 {
		t.Fatalf("%+v, %v", r, err)
	}
	if len(peers) > 5 {
		t.Errorf("%d connections for 5 clients", len(peers))
	}
}

func TestAConnectionThatTheServerClosedIsMadeAnew(t *testing.T) {
	// A server that ends each connection after one answer without a word of warning.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				req, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				var body bytes.Buffer
				for _, e := range wholeAnswer {
					fmt.Fprintf(&body, "data: %s\n\n", e)
				}
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s", body.Len(), body.Bytes())
			}()
		}
	}()
	s, err := NewServer("http://"+ln.Addr().String(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Concurrency: 2, Requests: 20}); err != nil || r.Completed != 20 {
		t.Errorf("%+v, %v", r.Measured, err)
	}
}

func TestTLSHeadersAndKeysReachTheServer(t *testing.T) {
	var bad atomic.Pointer[string]
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Stream  bool `json:"stream"`
			Options struct {
				Usage bool `json:"include_usage"`
			} `json:"stream_options"`
			Messages []struct{ Role, Content string }
		}
		data, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(data, &body); err != nil || !body.Stream || !body.Options.Usage || len(body.Messages) != 1 ||
			r.Header.Get("Authorization") != "Bearer k" || r.Header.Get("X-Tenant") != "a b" || r.URL.Path != "/base/v1/chat/completions" || r.Method != http.MethodPost {
			s := fmt.Sprintf("%s %s %v %s", r.Method, r.URL, r.Header, data)
			bad.Store(&s)
		}
		write(w, wholeAnswer...)
	}))
	defer srv.Close()
	s, err := NewServer(srv.URL+"/base/v1/", "chat")
	if err != nil {
		t.Fatal(err)
	}
	s.Header = http.Header{"Authorization": {"Bearer k"}, "X-Tenant": {"a b"}}
	run := func() *Report {
		r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Concurrency: 2, Requests: 6})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := run(); r.Failed != 6 || r.Errors[0].Kind != kindConnect {
		t.Errorf("a certificate that nobody trusts: %+v", r.Measured)
	}
	s.TLS = srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	s.TLS.ServerName = "example.com" // the certificate's
	if r := run(); r.Completed != 6 {
		t.Errorf("%+v", r.Measured)
	}
	if b := bad.Load(); b != nil {
		t.Errorf("the server got %s", *b)
	}
	for _, h := range [][2]string{{"", "x"}, {"A B", "x"}, {"A", "x\r\nB: y"}, {"Content-Length", "5"}, {"host", "x"}} {
		if CheckHeader(h[0], h[1]) == nil {
			t.Errorf("%q is taken for a header", h)
		}
	}
	for _, u := range []string{"", "localhost:8000", "ftp://x", "http://", "http://u:p@x", "http://x?y=1"} {
		if _, err := NewServer(u, "chat"); err == nil {
			t.Errorf("%q is taken for a server", u)
		}
	}
}

func TestClientsLeaveWhenTheTraceSaysSo(t *testing.T) {
	var begun, gone atomic.Int64
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		begun.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		write(w, role, text)
		<-r.Context().Done()
		gone.Add(1)
	})
	// On a busy machine a client may leave before it has read its token: then it stays longer.
	for stay := 100 * time.Millisecond; ; stay *= 10 {
		before := gone.Load()
		r, err := Run(context.Background(), Options{Target: s, Workload: fixed{cancelAfter: stay}, Concurrency: 3, Requests: 6, SLO: &SLO{E2E: 1e9}})
		if err != nil || r.Cancelled != 6 || r.Failed != 0 || r.TTFT.Count != 0 || r.Good.Requests != 0 {
			t.Fatalf("%+v, %v", r.Measured, err)
		}
		for end := time.Now().Add(patience); begun.Load() > gone.Load() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		}
		if b, g := begun.Load(), gone.Load(); b != g {
			t.Errorf("the server saw %d of %d clients leave", g, b)
		}
		if r.OutputTokens == 6 && gone.Load() == before+6 {
			break
		}
		if stay > patience {
			t.Fatalf("%d tokens of 6 clients", r.OutputTokens)
		}
	}

	rig := newStand(t, 3*time.Millisecond)
	for stay := 150 * time.Millisecond; ; stay *= 4 {
		r, err := Run(context.Background(), Options{Target: rig.process("chat"), Concurrency: 2, Requests: 4,
			Workload: leaving{synthetic(t, rig.env, "chat"), stay}})
		if err != nil || r.Cancelled != 4 || r.Failed+r.Completed != 0 {
			t.Fatalf("in this process: %+v, %v", r.Measured, err)
		}
		if r.OutputTokens > 0 {
			break
		}
		if stay > 5*time.Second {
			t.Fatal("in this process: no tokens")
		}
	}
}

func TestAnInterruptShowsWhatWasMeasured(t *testing.T) {
	var n atomic.Int64
	interrupt := make(chan struct{})
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if k := n.Add(1); k <= 20 {
			write(w, wholeAnswer...)
			return
		} else if k == 24 { // all clients hang
			close(interrupt)
		}
		write(w, role, text)
		<-r.Context().Done()
	})
	r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Concurrency: 4, Duration: time.Hour, Interrupt: interrupt, InterruptGrace: 50 * time.Millisecond})
	if err != nil || !r.Interrupted || r.Completed != 20 || r.Unfinished != 4 || r.Failed != 0 || r.OutputTokens < 60 || r.OutputTokens > 64 {
		t.Errorf("%+v, %v", r.Measured, err)
	}
}

func TestAnOpenLoopSendsWhatIsDueWhateverTheServerDoes(t *testing.T) {
	release := make(chan struct{})
	var n atomic.Int64
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if n.Add(1) == 30 { // only when all are there does the first get its answer
			close(release)
		}
		<-release
		write(w, wholeAnswer...)
	})
	r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Arrival: &Arrival{Kind: "poisson", Rate: 1000}, Requests: 30, Grace: time.Minute, Seed: 3, Percentiles: []float64{99}})
	if err != nil || r.Completed != 30 || r.PeakInFlight != 30 || r.Lag.Count != 30 || r.DueTTFT.Count != 30 {
		t.Fatalf("%+v, %v", r.Measured, err)
	}
	due := Arrival{Kind: "poisson", Rate: 1000}.dues(3)
	for _, k := range r.Samples {
		if want := millis(int64(due())); k.Due != want || k.Sent < k.Due {
			t.Errorf("request %d was due at %v and sent at %v, want %v", k.Index, k.Due, k.Sent, want)
		}
	}
	if r.DueE2E.Mean < r.E2E.Mean || r.DueTTFT.Max < r.TTFT.Min {
		t.Errorf("from due %+v, from sent %+v", r.DueE2E, r.E2E)
	}
}

func TestALimitInFlightDelaysButDoesNotHide(t *testing.T) {
	var in, most atomic.Int64
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		k := in.Add(1)
		for top := most.Load(); k > top && !most.CompareAndSwap(top, k); top = most.Load() {
		}
		time.Sleep(5 * time.Millisecond)
		in.Add(-1)
		write(w, wholeAnswer...)
	})
	r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Arrival: &Arrival{}, Concurrency: 3, Requests: 30, Grace: time.Minute})
	if err != nil || r.Completed != 30 || r.PeakInFlight > 3 || most.Load() > 3 {
		t.Fatalf("%+v, %v: %d at a time", r.Measured, err, most.Load())
	}
	// All were due at the beginning: the last one waited for nine others to be answered.
	if r.Lag.Max < 9*5 || r.DueE2E.Max < r.Lag.Max {
		t.Errorf("sent at most %v ms late, %+v", r.Lag.Max, r.DueE2E)
	}
}

func TestAServerWithoutTokenizerIsMeasuredByItsUsage(t *testing.T) {
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			http.NotFound(w, r)
			return
		}
		var body struct{ Messages []struct{ Content string } }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		n := 17 + 2*len(strings.Fields(body.Messages[0].Content))
		write(w, role, last, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":1}}`, n), "[DONE]")
	})
	if s.Counter(context.Background(), "m") != nil {
		t.Fatal("it has no /tokenize")
	}
	shape := Shape{Endpoint: "chat", Model: "m"}
	v, err := s.Calibrate(context.Background(), shape)
	if err != nil || v.Exact || v.perWord != 2 || v.base != 19 {
		t.Fatalf("%+v, %v", v, err)
	}
	in, _ := ParseLengths("101")
	r, err := Run(context.Background(), Options{Target: s, Concurrency: 1, Requests: 3, Workload: &Synthetic{Shape: shape, Vocabulary: v, Input: in, Output: Lengths{Min: 1}}})
	if err != nil || r.InputTokens != 3*101 {
		t.Errorf("%+v, %v", r.Measured, err)
	}
}

// The gaps that a report draws are those that its ITL is of: of completed requests, one for each token.
func TestTheGapsThatAreDrawnAreThoseOfTheITL(t *testing.T) {
	const three = `{"choices":[{"delta":{"content":"abc"},"token_ids":[1,2,3]}]}`
	var n atomic.Int64
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		pause := func() { time.Sleep(20 * time.Millisecond) } // so that chunks come one by one
		if n.Add(1)%2 == 0 {
			write(w, role, text)
			pause()
			write(w, text)
			panic(http.ErrAbortHandler)
		}
		write(w, `{"choices":[{"delta":{"content":"a"},"token_ids":[1]}]}`)
		pause()
		write(w, three)
		pause()
		write(w, three, `{"choices":[{"delta":{},"finish_reason":"length"}]}`, usage(7), "[DONE]")
	})
	r, err := Run(context.Background(), Options{Target: s, Workload: fixed{}, Concurrency: 1, Requests: 20, Detailed: true})
	if err != nil || r.Completed != 10 || r.Failed != 10 {
		t.Fatalf("%+v, %v", r.Measured, err)
	}
	var drawn, all []float64
	for _, g := range r.Gaps {
		drawn = append(drawn, g.Value)
	}
	for _, x := range r.Samples {
		if x.Outcome == Completed {
			all = append(all, x.Gaps...)
		}
	}
	slices.Sort(drawn)
	slices.Sort(all)
	if len(all) == 0 || r.ITL.Count != len(all) || !slices.Equal(drawn, all) {
		t.Errorf("ITL is of %d gaps; drawn are %d: %v; those of the requests are %d: %v", r.ITL.Count, len(drawn), drawn, len(all), all)
	}
}
