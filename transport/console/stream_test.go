package console_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport"
	"github.com/troupe-llm/troupe/transport/console"
)

// frame is what these tests read of a frame.
type frame struct {
	Hello *struct {
		Model  string
		Device string
		Kept   int
		Bounds []int64 `json:"itl_bounds"`
	}
	Gauges *struct {
		Running, Generated int
		Engines            []struct{ Running int }
	}
	New     []told
	Changed [][]int64
	Gone    []uint64
	Done    []told
	Past    []told
	Missed  int
	Bye     string
}

type told struct {
	ID                              uint64
	Ext, Client, Key, Outcome, Code string
	Prompt, Tokens, Status, Cached  int
	Queued, Scheduled, First, Last  int64
	Arrival, Finished               int64
	Progress                        []int64
	ITL                             []uint32
	Engine                          *int
}

// viewer reads a stream.
type viewer struct {
	t    *testing.T
	resp *http.Response
	in   *bufio.Reader
}

func (w *world) watch(t *testing.T, key string) *viewer {
	t.Helper()
	req, err := http.NewRequest("GET", w.url+"/console/api/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return &viewer{t, resp, bufio.NewReader(resp.Body)}
}

// next returns the next frame; false at the stream's end.
func (v *viewer) next() (f frame, ok bool) {
	v.t.Helper()
	line, err := v.in.ReadString('\n')
	if err != nil {
		return f, false
	}
	data, isData := strings.CutPrefix(line, "data: ")
	empty, _ := v.in.ReadString('\n')
	if !isData || empty != "\n" {
		v.t.Fatalf("no event: %.100q, %q", line, empty)
	}
	if err := json.Unmarshal([]byte(data), &f); err != nil {
		v.t.Fatalf("%v: %.200s", err, data)
	}
	return f, true
}

// until reads frames until one is as wanted.
func (v *viewer) until(what string, is func(*frame) bool) frame {
	v.t.Helper()
	timer := time.AfterFunc(patience, func() { v.resp.Body.Close() })
	defer timer.Stop()
	for {
		f, ok := v.next()
		if !ok {
			v.t.Fatalf("the stream ended before %s", what)
		}
		if is(&f) {
			return f
		}
	}
}

func TestAViewerIsToldOfARequestFromItsBeginningToItsEnd(t *testing.T) {
	gate := make(chan struct{}, 1000)
	w := newWorld(t, func(s *setting) { lively(s); s.gate = gate })
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open) // or the world does not end
	steps := func(n int) {
		for range n {
			gate <- struct{}{}
		}
	}
	w.ask("earlier", "hello", 3, nil)
	steps(3)
	w.until("the earlier one has ended", func() bool {
		select {
		case gate <- struct{}{}:
		default:
		}
		return w.rt.Admitted() == 0 && w.rt.Stats().Generated >= 3
	})
	for len(gate) > 0 {
		<-gate
	}
	v := w.watch(t, "")
	if ct := v.resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("the stream is %s", ct)
	}
	first, _ := v.next()
	if first.Hello == nil || first.Hello.Model != "tiny" || first.Hello.Kept != console.Kept || len(first.Hello.Bounds) != len(lifecycle.ITLBounds) || first.Gauges == nil || len(first.New) != 0 {
		t.Fatalf("the first frame: %+v", first)
	}
	past := v.until("the past", func(f *frame) bool { return len(f.Past) > 0 }).Past
	if len(past) != 1 || past[0].Client != "earlier" || past[0].Tokens != 3 || past[0].Status != 200 {
		t.Errorf("the past: %+v", past)
	}

	w.ask("mine", "once upon a time", 60, nil)
	steps(10)
	begun := v.until("it is told of", func(f *frame) bool { return len(f.New) > 0 }).New[0]
	if begun.Client != "mine" || begun.Prompt == 0 || begun.Arrival == 0 || len(begun.Progress) != 10 || begun.Progress[9] != -1 {
		t.Errorf("at its beginning: %+v", begun)
	}
	// It grows, without all of it being said again.
	tokens := begun.Progress[1]
	for range 2 {
		steps(15)
		was := tokens
		v.until("it has more tokens", func(f *frame) bool {
			if len(f.New)+len(f.Done)+len(f.Gone) > 0 || len(f.Changed) > 1 || len(f.Changed) == 1 && uint64(f.Changed[0][0]) != begun.ID {
				t.Fatalf("while it has %d tokens: %+v", tokens, f)
			}
			for _, c := range f.Changed {
				now := c[1]
				if len(c) > 3 {
					now = c[2]
				}
				if now < tokens {
					t.Fatalf("after %d tokens: %v", tokens, c)
				}
				tokens = now
			}
			return tokens > was
		})
	}
	open()
	d := v.until("it has ended", func(f *frame) bool { return len(f.Done) > 0 }).Done[0]
	if d.ID != begun.ID || d.Ext != begun.Ext || d.Tokens != 60 || d.Outcome != "length" || !(d.Arrival <= d.Queued && d.Queued <= d.Scheduled && d.Scheduled < d.First && d.First < d.Last && d.Last <= d.Finished) {
		t.Errorf("at its end: %+v", d)
	}
	gaps := 0
	for i := 1; i < len(d.ITL); i += 2 {
		gaps += int(d.ITL[i])
	}
	if gaps != 59 {
		t.Errorf("%d gaps between 60 tokens", gaps)
	}
	w.until("the generated tokens", func() bool { f, _ := v.next(); return f.Gauges.Generated == 63 && f.Gauges.Running == 0 })

	// What happened to it is there for the asking.
	var life struct {
		Running  bool
		Timeline []struct {
			E      string
			Output int
		}
	}
	w.get(t, fmt.Sprintf("/console/api/timeline?id=%d", d.ID), 200, &life)
	output := 0
	for _, e := range life.Timeline {
		output += e.Output
	}
	if life.Running || len(life.Timeline) < 3 || life.Timeline[0].E != "queue" || output != 60 {
		t.Errorf("its timeline: %+v", life)
	}
	w.get(t, "/console/api/timeline?id=no", 400, nil)
	var refused struct {
		Error struct{ Message, Type, Param string }
	}
	w.get(t, "/console/api/timeline?id=123456789", 404, &refused)
	if e := refused.Error; e.Type != "invalid_request_error" || e.Param != "id" || !strings.Contains(e.Message, "123456789") {
		t.Errorf("of a request that never was: %+v", e)
	}
	w.ask("runs", "hello", endless, nil)
	runs := v.until("another runs", func(f *frame) bool { return len(f.New) > 0 }).New[0]
	w.until("its timeline has begun", func() bool {
		w.get(t, fmt.Sprintf("/console/api/timeline?id=%d", runs.ID), 200, &life)
		return life.Running && len(life.Timeline) >= 3
	})
}

func TestWhoAsksForATimelineIsAnsweredWhateverBeginsAndEndsMeanwhile(t *testing.T) {
	w := newWorld(t, nil)
	const n = 200
	var answered, found atomic.Int64
	var askers sync.WaitGroup
	stop := make(chan struct{})
	for range console.MaxInquiries {
		askers.Go(func() {
			for id := uint64(1); ; id = id%n + 1 {
				select {
				case <-stop:
					return
				default:
				}
				body, e := w.console.Timeline(id, patience)
				switch {
				case e == nil && bytes.HasPrefix(body, []byte(`{"running":`)):
					found.Add(1)
				case e == nil || e.Status != 404:
					t.Errorf("request %d: %+v, %s", id, e, body)
				}
				answered.Add(1)
			}
		})
	}
	for range n / 20 {
		for range 20 {
			w.ask("", "hello", 3, nil)
		}
		w.ended.Wait()
	}
	w.until("all are found", func() bool { return found.Load() >= n })
	close(stop)
	askers.Wait()
	t.Logf("%d answers, of which %d had a timeline", answered.Load(), found.Load())
}

func TestOnlyAFewMayWaitForARunningRequestsTimeline(t *testing.T) {
	w := newWorld(t, nil)
	leave := w.console.FillInquiries()
	resp, err := w.client.Get(w.url + "/console/api/timeline?id=123456789")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(body), "4 others wait") {
		t.Errorf("one too many: %d, Retry-After %q, %s", resp.StatusCode, resp.Header.Get("Retry-After"), body)
	}
	w.console.Observe(record(77))
	w.get(t, "/console/api/timeline?id=77", 200, nil) // it is at hand
	leave()
	w.get(t, "/console/api/timeline?id=123456789", 404, nil)
}

// get asks for JSON.
func (w *world) get(t *testing.T, path string, status int, into any) {
	t.Helper()
	resp, err := w.client.Get(w.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != status {
		t.Fatalf("%s: %d, want %d: %s", path, resp.StatusCode, status, body)
	}
	if into != nil {
		if err := json.Unmarshal(body, into); err != nil {
			t.Fatalf("%s: %v in %s", path, err, body)
		}
	}
}

func TestWhoComesLateSeesWhatRunsAndThousandsThatHaveFinished(t *testing.T) {
	w := newWorld(t, lively)
	const all = console.Kept + 1000
	for id := range uint64(all) {
		w.console.Observe(record(1_000_000 + id))
	}
	w.ask("long", "hello", endless, nil)
	other := w.watch(t, "")
	other.until("it runs", func(f *frame) bool { return len(f.New) == 1 })
	v := w.watch(t, "")
	if f, _ := v.next(); f.Hello == nil || len(f.New) != 1 || f.New[0].Client != "long" {
		t.Errorf("who comes late sees at first: %+v", f)
	}
	seen := map[uint64]bool{}
	for len(seen) < console.Kept {
		for _, d := range v.until("all of the past", func(f *frame) bool { return len(f.Past) > 0 }).Past {
			if seen[d.ID] {
				t.Fatalf("request %d is told of twice", d.ID)
			}
			seen[d.ID] = true
		}
	}
	for id := range seen {
		if id < 1_001_000 {
			t.Errorf("request %d is told of, though it is not among the last %d", id, console.Kept)
		}
	}
}

func TestManyEndingsAtOnceAreCountedIfNotTold(t *testing.T) {
	w := newWorld(t, lively)
	v := w.watch(t, "")
	v.next()
	const n = 5000 // far more than some frames tell of
	for id := range uint64(n) {
		w.console.Observe(record(1_000_000 + id))
	}
	told, missed := 0, 0
	for told+missed < n {
		f := v.until("more endings", func(f *frame) bool { return len(f.Done) > 0 })
		told += len(f.Done)
		missed += f.Missed
	}
	if told+missed != n || missed == 0 {
		t.Errorf("%d told and %d counted of %d", told, missed, n)
	}
}

func TestOfSeveralEnginesEachIsShown(t *testing.T) {
	gate := make(chan struct{})
	w := newWorld(t, func(s *setting) { lively(s); s.gate, s.engines = gate, 2 })
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	v := w.watch(t, "")
	if first, _ := v.next(); first.Hello == nil || first.Hello.Device != "2 × simulated" {
		t.Errorf("the first frame: %+v", first)
	}
	w.ask("one", strings.Repeat("some prompt ", 20), 500, nil)
	w.ask("other", strings.Repeat("quite another ", 20), 500, nil)
	on := map[string]int64{}
	for len(on) < 2 {
		for _, r := range v.until("requests run", func(f *frame) bool { return len(f.New) > 0 }).New {
			on[r.Client] = r.Progress[9]
		}
	}
	if on["one"]+on["other"] != 1 {
		t.Errorf("the requests are on engines %v", on)
	}
	v.until("both engines compute", func(f *frame) bool {
		select { // a step of either
		case gate <- struct{}{}:
		default:
		}
		return f.Gauges != nil && len(f.Gauges.Engines) == 2 && f.Gauges.Engines[0].Running == 1 && f.Gauges.Engines[1].Running == 1 && f.Gauges.Running == 2
	})
	open()
	for done := 0; done < 2; {
		for _, d := range v.until("they end", func(f *frame) bool { return len(f.Done) > 0 }).Done {
			if d.Engine == nil || int64(*d.Engine) != on[d.Client] {
				t.Errorf("request %s ended on engine %v, and ran on %d", d.Client, d.Engine, on[d.Client])
			}
			done++
		}
	}
}

func TestNothingIsAskedWhenNobodyLooks(t *testing.T) {
	w := newWorld(t, lively)
	w.ask("", "hello", endless, nil)
	w.until("it runs", func() bool { return w.rt.Stats().Running == 1 })
	runtime.GC()
	shows := func() int {
		buf := make([]byte, 1<<20)
		return strings.Count(string(buf[:runtime.Stack(buf, true)]), "console.(*show).run")
	}
	w.until("no show runs, those of earlier tests having ended", func() bool { return shows() == 0 })
	v, second := w.watch(t, ""), w.watch(t, "")
	v.next()
	second.next()
	if n := shows(); n != 1 || w.console.Viewers() != 2 {
		t.Errorf("%d shows run for %d viewers", n, w.console.Viewers())
	}
	v.resp.Body.Close()
	second.resp.Body.Close()
	w.until("nobody looks any more", func() bool { return w.console.Viewers() == 0 && shows() == 0 })
	third := w.watch(t, "")
	third.until("the show begins anew", func(f *frame) bool { return len(f.New) == 1 })
}

func TestViewersAreFewAndTheNextIsToldSo(t *testing.T) {
	w := newWorld(t, func(s *setting) { s.hurry = true })
	var all []*viewer
	for range console.MaxViewers {
		v := w.watch(t, "")
		v.next()
		all = append(all, v)
	}
	late := w.watch(t, "")
	body, _ := io.ReadAll(late.resp.Body)
	if late.resp.StatusCode != 503 || !strings.Contains(string(body), "16 viewers watch") || late.resp.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %d %s", late.resp.StatusCode, body)
	}
	all[0].resp.Body.Close()
	w.until("there is a place again", func() bool { return w.console.Viewers() < console.MaxViewers })
	if v := w.watch(t, ""); v.resp.StatusCode != 200 {
		t.Errorf("with a place free: %d", v.resp.StatusCode)
	}
}

func TestAViewerThatDoesNotReadIsCutOffAndTheOthersAreNot(t *testing.T) {
	w := newWorld(t, func(s *setting) { lively(s); s.hurry = true })
	lazy, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer lazy.Close()
	_ = lazy.(*net.TCPConn).SetReadBuffer(4096)
	fmt.Fprintf(lazy, "GET /console/api/stream HTTP/1.1\r\nHost: x\r\n\r\n")
	w.until("it watches", func() bool { return w.console.Viewers() == 1 })
	v := w.watch(t, "")
	id := uint64(1_000_000)
	w.until("who does not read is out", func() bool {
		for range 256 { // as much as a frame tells
			w.console.Observe(record(id))
			id++
		}
		v.until("the next frame", func(f *frame) bool { return len(f.Done) > 0 })
		return w.console.Viewers() == 1
	})
	v.until("the other goes on", func(f *frame) bool { return f.Gauges != nil })
}

func TestTheStreamEndsWithTheServerAndSaysSo(t *testing.T) {
	w := newWorld(t, lively)
	w.ask("long", "hello", endless, nil)
	v := w.watch(t, "")
	v.until("it runs", func(f *frame) bool { return len(f.New) == 1 })
	w.stop()
	bye := false
	for {
		f, ok := v.next()
		if !ok {
			break
		}
		bye = bye || f.Bye != ""
	}
	if !bye {
		t.Error("the stream ended without a word")
	}
	if _, err := w.console.Watch(func() {}); err == nil || err.Status != 503 {
		t.Errorf("watching after the end: %+v", err)
	}
}

func TestThePageIsOpenAndItsDataIsNot(t *testing.T) {
	w := newWorld(t, func(s *setting) { s.keys = []transport.Key{{Name: "alice", Secret: "right"}} })
	for _, path := range []string{"/console/api/stream", "/console/api/timeline?id=1", "/console/api/nothing"} {
		for _, key := range []string{"", "wrong"} {
			req, _ := http.NewRequest("GET", w.url+path, nil)
			req.Header.Set("Authorization", "Bearer "+key)
			resp, err := w.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 401 {
				t.Errorf("%s with the key %q: %d", path, key, resp.StatusCode)
			}
		}
	}
	if f, ok := w.watch(t, "right").next(); !ok || f.Hello == nil {
		t.Error("the right key opens nothing")
	}
	names := []string{""}
	for name := range console.Assets() {
		if name != console.Index {
			names = append(names, "/"+name)
		}
	}
	for _, name := range names {
		resp, err := w.client.Get(w.url + "/console" + name)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Content-Security-Policy") != console.Policy || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("ETag") == "" {
			t.Errorf("/console%s: %d %v", name, resp.StatusCode, h)
		}
		if name == "" && !bytes.Contains(body, []byte(`data-key="needed"`)) {
			t.Error("the page does not know that a key is needed")
		}
		// Nothing from elsewhere, nothing inline, and no way to make HTML of a text.
		for _, bad := range []string{"http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", " onclick="} {
			if found := bytes.Index(body, []byte(bad)); found >= 0 && !strings.HasSuffix(name, ".svg") {
				t.Errorf("/console%s has %q in it: %q", name, bad, body[found:min(found+60, len(body))])
			}
		}
		req, _ := http.NewRequest("GET", w.url+"/console"+name, nil)
		req.Header.Set("If-None-Match", h.Get("ETag"))
		if resp, err = w.client.Do(req); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 304 {
			t.Errorf("/console%s once more: %d", name, resp.StatusCode)
		}
	}
	if got := slices.Sorted(func(yield func(string) bool) {
		for n := range console.Assets() {
			if !yield(n) {
				return
			}
		}
	}); !slices.Contains(got, console.Index) {
		t.Errorf("the files are %v", got)
	}
}

func TestOlderClientsAndHeadersAloneAreServedToo(t *testing.T) {
	w := newWorld(t, func(s *setting) { s.hurry = true })
	for _, c := range []struct{ method, version, want string }{
		{"GET", "1.0", "data: {\"hello\""},
		{"HEAD", "1.1", "text/event-stream"},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "%s /console/api/stream HTTP/%s\r\nHost: x\r\n\r\n", c.method, c.version)
		var got []byte
		buf := make([]byte, 4096)
		for !strings.Contains(string(got), c.want) {
			n, err := conn.Read(buf)
			got = append(got, buf[:n]...)
			if err != nil {
				t.Fatalf("%s of HTTP/%s: %v after %q", c.method, c.version, err, got)
			}
		}
		conn.Close()
	}
	w.until("nobody watches", func() bool { return w.console.Viewers() == 0 })
}
