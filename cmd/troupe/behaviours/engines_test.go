package behaviours

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu/sim"
)

func TestADeviceOfTwoThatStaysAwayCostsAPauseAndTheServerSaysWhichItIs(t *testing.T) {
	const streams = 8
	texts := func(engines int) (all []string) {
		h := open(t, layout{sim: sim.Options{Fixed: 300 * time.Microsecond, Check: true}, shut: true, engines: engines})
		defer h.close()
		var ss []*stream
		for i := range streams {
			ss = append(ss, h.send(say(fmt.Sprint(i, " of several"), 60).with(streamed, fields{"seed": i, "temperature": 1, "n": 1 + i%2})))
		}
		h.in(streams)
		h.heard()
		if engines > 1 {
			h.faults.FailAt(15)
			h.faults.Away(-1)
		}
		h.valve.open()
		for i, s := range ss {
			s.head()
			fs := s.rest()
			for choice := range 1 + i%2 {
				text, reason := told(fs, choice)
				if reason != "length" {
					t.Errorf("%q, %s", text, reason)
				}
				all = append(all, text)
			}
			if n := final(t, fs).Usage.Completion; n != 60*(1+i%2) {
				t.Errorf("%d tokens", n)
			}
		}
		es := h.entries(streams)
		if engines == 1 {
			if es[0].Engine != nil || h.do("GET", "/health", "").text != "" {
				t.Errorf("one engine is told of as if there were others: %s", es[0].raw)
			}
			return all
		}
		moved := 0
		for _, e := range es {
			if e.Engine == nil || *e.Engine != 1 {
				t.Errorf("it ended on engine %v: %s", e.Engine, e.raw)
			}
			if e.Detail.Preemptions > 0 {
				moved++
			}
		}
		if moved == 0 || moved == streams {
			t.Errorf("%d of %d requests moved", moved, streams)
		}
		s := h.scrape()
		for name, want := range map[string][2]float64{"troupe:healthy": {0, 1}, "vllm:request_success_total": {0, streams}, "vllm:num_requests_running": {0, 0}} {
			if got := [2]float64{s.sum(name, `engine="0"`), s.sum(name, `engine="1"`)}; got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		if s.sum("vllm:iteration_tokens_total_count", `engine="0"`) != 14 {
			t.Errorf("engine 0 has %v steps, want 14", s.sum("vllm:iteration_tokens_total_count", `engine="0"`))
		}
		a := h.do("GET", "/health", "")
		if a.StatusCode != 200 || !strings.HasPrefix(a.text, `{"status":"degraded","message":"engine 0 of 2 has no device: sim: `) {
			t.Errorf("%s, %s", a.Status, a.text)
		}
		if r := h.ask(say("meanwhile", 5).String()); r.Usage.Completion != 5 {
			t.Errorf("%+v", r)
		}
		h.faults.Clear()
		h.until("all is well", func() bool { return h.do("GET", "/health", "").text == "" })
		return all
	}
	want, got := texts(1), texts(2)
	if len(want) != len(got) {
		t.Fatalf("%d texts, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("text %d: %q, want %q", i, got[i], want[i])
		}
	}
}
