package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"testing"

	"github.com/troupe-llm/troupe/model/modeltest"
)

func TestALoadInThisProcessCountsWhatItGets(t *testing.T) {
	s, err := newTestStage(t, OverheadOptions{Concurrency: 256, Tokens: 3840, Pairs: 1}).scene(rungLog)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	body := []byte(`{"model":"sim","messages":[{"role":"user","content":"Say something."}],"max_tokens":30,"ignore_eos":true,"stream":true}`)
	res, err := Load{Concurrency: 4, Requests: 20, Body: body}.Run(s.rt, s.env)
	if err != nil {
		t.Fatal(err)
	}
	if res.Requests != 20 || res.Tokens != 600 || res.Chunks != 600 || res.Bytes < 600*100 {
		t.Errorf("%+v", res)
	}
}

func newTestStage(tb testing.TB, o OverheadOptions) *stage {
	tb.Helper()
	s, err := newStage(o)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// What is allocated does not depend on how fast the machine is: a token costs no more than the two
// small objects that Proto.Actor makes for a message, all that a request takes shared among its tokens.
func TestATokenCostsNoMoreAllocationsThanTwo(t *testing.T) {
	if modeltest.Race {
		t.Skip("the race detector lets pools forget what they hold")
	}
	s := newTestStage(t, OverheadOptions{Concurrency: 64, Tokens: 128, Pairs: 1})
	s.requests = 256
	for _, c := range []struct {
		rung int
		most float64
	}{
		{rungActors, 1.2}, {rungAPI, 2}, {rungLog, 2}, {rungHTTP, 3}, // with its client
	} {
		// The first one fills what is reused, and what else this process does counts too: so the least is taken.
		r := reading{allocs: math.Inf(1)}
		for round := 0; round < 2 || r.allocs > c.most && round < 6; round++ {
			now, err := s.measure(c.rung)
			if err != nil {
				t.Fatal(err)
			}
			if now.allocs < r.allocs {
				r = now
			}
		}
		if r.allocs > c.most {
			t.Errorf("%s: %.2f allocations a token, want at most %v", rungNames[c.rung][1], r.allocs, c.most)
		}
		t.Logf("%s: %.2f allocations, %.0f bytes a token", rungNames[c.rung][1], r.allocs, r.bytes)
	}
}

func TestOverheadTellsEachPartsFiguresAsJSONAndAsATable(t *testing.T) {
	var told int
	s := OverheadOptions{Concurrency: 8, Tokens: 16, Pairs: 2, Progress: func(int, string) { told++ }}
	o, err := measureOverhead(t.Context(), s, 64)
	if err != nil {
		t.Fatal(err)
	}
	if o.Rounds != 2 || o.Interrupted || told != 2*len(rungNames) {
		t.Errorf("%d rounds, interrupted %v, told %d times", o.Rounds, o.Interrupted, told)
	}
	var b bytes.Buffer
	if err := o.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tokens_per_second", "metrics_overhead_percent", "log_overhead_percent", "http_overhead_percent",
		"statistics_overhead_percent", "timeline_overhead_percent", "line_overhead_percent", "allocs_per_token", "pairs", "concurrency"} {
		v, ok := got[name].(float64)
		if !ok || math.IsInf(v, 0) || math.IsNaN(v) {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	if v := got["tokens_per_second"].(float64); v <= 0 {
		t.Errorf("%v tokens a second", v)
	}
	interval := got["metrics_overhead_percent_interval"].([]any)
	if low, high, mid := interval[0].(float64), interval[1].(float64), got["metrics_overhead_percent"].(float64); low > mid || mid > high {
		t.Errorf("%v is not within %v and %v", mid, low, high)
	}
	if n := len(got["rungs"].([]any)); n != len(rungNames) {
		t.Errorf("%d rungs", n)
	}
	b.Reset()
	if err := o.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, name := range rungNames {
		if !bytes.Contains(b.Bytes(), []byte(name[1])) {
			t.Errorf("no %q in\n%s", name[1], b.String())
		}
	}
}

func TestOverheadThatIsInterruptedTellsWhatItHas(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o, err := measureOverhead(ctx, OverheadOptions{Concurrency: 4, Tokens: 8, Pairs: 1000, Progress: func(rounds int, _ string) {
		if rounds == 1 {
			cancel()
		}
	}}, 16)
	if err != nil || o.Rounds != 1 || !o.Interrupted {
		t.Fatalf("%+v, %v", o, err)
	}
	if o, err := MeasureOverhead(ctx, OverheadOptions{Concurrency: 4, Tokens: 8, Pairs: 1}); err == nil {
		t.Errorf("nothing was measured, but got %+v", o)
	}
}

func TestOverheadOfNothingIsRefused(t *testing.T) {
	for _, o := range []OverheadOptions{{}, {Concurrency: 1, Tokens: 1}, {Concurrency: -1, Tokens: 1, Pairs: 1}} {
		if _, err := MeasureOverhead(t.Context(), o); err == nil {
			t.Errorf("%+v was measured", o)
		}
	}
}

// What the request log costs a request, its timeline and its line apart, in CPU time: medians of pairs
// measured in turn, as in bench overhead.
func BenchmarkRequestLog(b *testing.B) {
	s := newTestStage(b, OverheadOptions{Concurrency: 256, Tokens: 128, Pairs: 1})
	s.requests = 1024
	var cpu [len(rungNames)][]float64
	for b.Loop() {
		for _, rung := range []int{rungStats, rungTimeline, rungLog, rungLog, rungTimeline, rungStats} {
			r, err := s.measure(rung)
			if err != nil {
				b.Fatal(err)
			}
			cpu[rung] = append(cpu[rung], r.cpu)
		}
	}
	timeline, log := Compare(cpu[rungTimeline], cpu[rungStats]), Compare(cpu[rungLog], cpu[rungStats])
	b.ReportMetric(percent(timeline.Median), "timeline-%")
	b.ReportMetric(percent(log.Median), "log-%")
	b.ReportMetric(percent(log.Low), "log-low-%")
	b.ReportMetric(percent(log.High), "log-high-%")
}
