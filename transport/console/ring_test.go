package console

import (
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
)

func TestTheRingKeepsTheLastOnesInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRing()
		n := rapid.Uint64Range(0, 3*Kept).Draw(t, "put")
		for id := range n {
			r.put(&lifecycle.Record{Request: &lifecycle.Request{ID: id + 1}})
		}
		from, to := rapid.Uint64Range(0, n+10).Draw(t, "from"), rapid.Uint64Range(0, n+10).Draw(t, "to")
		got := r.read(nil, from, to)
		want := max(from, max(n, Kept)-Kept)
		for _, f := range got {
			if f.id != want+1 {
				t.Fatalf("got request %d, want %d", f.id, want+1)
			}
			want++
		}
		if end := max(from, min(to, n)); len(got) > 0 && want != end || len(got) == 0 && end > max(from, max(n, Kept)-Kept) {
			t.Fatalf("of %d, %d to %d: %d came, up to %d", n, from, to, len(got), want)
		}
		if id := rapid.Uint64Range(1, n+1).Draw(t, "id"); true {
			f, ok := r.find(id)
			if kept := id <= n && id+Kept > n; ok != kept || ok && f.id != id {
				t.Fatalf("request %d of %d: found %v", id, n, ok)
			}
		}
	})
}

func TestAKeptRequestHoldsOnToNothingLong(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	var f finished
	f.fill(&lifecycle.Record{
		Request: &lifecycle.Request{ID: 1, ExternalID: long, ClientID: long, Model: long, KeyName: long, Endpoint: long, Peer: long},
		Method:  long, Path: long, Err: &lifecycle.Error{Code: long, Message: long},
	})
	for _, s := range []string{f.external, f.client, f.model, f.key, f.endpoint, f.peer, f.method, f.path, f.code, f.message} {
		if len(s) > maxMessage+3 || !strings.HasSuffix(s, "é…") {
			t.Errorf("a text of %d bytes is kept: %.10q…", len(s), s)
		}
		if unsafe.StringData(s) == unsafe.StringData(long) {
			t.Error("the long text is kept for its beginning")
		}
	}
}

// BenchmarkKeepingAFinishedRequest is what the page costs a request when nobody looks.
func BenchmarkKeepingAFinishedRequest(b *testing.B) {
	c := New(Options{})
	rec := &lifecycle.Record{Request: &lifecycle.Request{ID: 1, ExternalID: "cmpl-1", Model: "m", Params: &lifecycle.Params{}}, Outcome: lifecycle.OutcomeStop}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			c.Observe(rec)
		}
	})
}
