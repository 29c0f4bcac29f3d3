package behaviours

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/model/tiny"
)

// Behaviour 12.
func TestAFaultThatCannotBeMendedEndsAStreamWithAnErrorFrameAndDone(t *testing.T) {
	// check wants an error frame after three tokens and then nothing more.
	check := func(t *testing.T, fs []frame) {
		t.Helper()
		text, reason := told(fs, 0)
		if len(text) != 3 || reason != "" {
			t.Errorf("text %q, finish reason %q", text, reason)
		}
		for i, f := range fs {
			if failed := f.chunk.Error != nil; failed != (i == len(fs)-1) || failed && (f.chunk.Error.Message == "" || f.chunk.Error.Type == "") {
				t.Errorf("frame %d of %d: %s", i+1, len(fs), f.data)
			}
		}
	}
	t.Run("the device does not come back", func(t *testing.T) {
		h := open(t, layout{cast: func(c *actors.Config) { c.ReopenLimit = time.Millisecond }})
		before := h.scrape()
		h.faults.FailAt(4)
		h.faults.Away(-1)
		check(t, h.request(say("fail", 50).with(streamed)).rest())
		e := h.entries(1)[0]
		if e.Outcome != "error" || e.Status != 503 || e.Error.Code == "" || e.Error.Message == "" || e.Tokens.Output != 3 || e.AtMS.Delivered == nil {
			t.Errorf("log: %s", e.raw)
		}
		m := h.scrape().since(before)
		if n := m.ended(); n.Error != 1 || n.Stop+n.Length+n.Abort != 0 {
			t.Errorf("ended: %+v", n)
		}
		if n := m.count("vllm:generation_tokens_total"); n != 3 {
			t.Errorf("%d tokens counted", n)
		}
		h.faults.Clear()
	})
	t.Run("the device cannot compute the request", func(t *testing.T) {
		h := open(t, layout{
			sim:    sim.Options{Fixed: 500 * time.Microsecond},
			script: map[uint64]script{1: bytewise("abZdefghijkl")},
		})
		others := h.ask(say("someone else", 100).String()).Choices[0].Message.Content
		h.entries(1)
		before := h.scrape()
		h.faults.FailToken(tiny.FirstByte + 'Z')
		other := h.request(say("someone else", 100).with(streamed))
		check(t, h.request(scripted(50).with(streamed)).rest())
		if text, reason := told(other.rest(), 0); text != others || reason != "length" {
			t.Errorf("another stream says %q (%s), without the fault %q", text, reason, others)
		}
		es := h.entries(3)[1:]
		if es[0].Outcome != "error" {
			es[0], es[1] = es[1], es[0]
		}
		if e := es[0]; e.Outcome != "error" || e.Status != 500 || e.Error.Code == "" || e.Tokens.Output != 3 {
			t.Errorf("log: %s", e.raw)
		}
		if e := es[1]; e.Outcome != "length" || e.Status != 200 || e.Tokens.Output != 100 {
			t.Errorf("log: %s", e.raw)
		}
		if n := h.scrape().since(before).ended(); n.Error != 1 || n.Length != 1 || n.Stop+n.Abort != 0 {
			t.Errorf("ended: %+v", n)
		}
	})
}

func TestADeviceFaultInMidGenerationIsAPauseAndTheSameTextInEveryStream(t *testing.T) {
	const streams = 8
	texts := func(faults bool) (all []string) {
		h := open(t, layout{sim: sim.Options{Fixed: 300 * time.Microsecond, Check: true}, shut: true})
		defer h.close()
		var ss []*stream
		for i := range streams {
			ss = append(ss, h.send(say("restart", 60).with(streamed, fields{"seed": i, "temperature": 1})))
		}
		h.in(streams)
		if faults {
			h.faults.FailAt(15)
			h.faults.PanicAt(40)
		}
		h.valve.open()
		for _, s := range ss {
			s.head()
			fs := s.rest()
			text, reason := told(fs, 0)
			if reason != "length" || final(t, fs).Usage.Completion != 60 {
				t.Errorf("%q, %s", text, reason)
			}
			all = append(all, text)
		}
		for _, e := range h.entries(streams) {
			if e.Outcome != "length" || faults && (e.Detail.Preemptions != 2 || !(e.Slowed["device_restart"] > 0)) {
				t.Errorf("log: %s", e.raw)
			}
		}
		if opens := h.faults.Opens(); faults && opens != 3 {
			t.Errorf("the device was opened %d times", opens)
		}
		return all
	}
	want, got := texts(false), texts(true)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("stream %d: %q with faults, %q without", i, got[i], want[i])
		}
	}
}

// Behaviour 13.
func TestAStreamOfTooLongAPromptIsRefusedWithJSONAnd400(t *testing.T) {
	h := open(t, layout{})
	before := h.scrape()
	a := h.do("POST", chatPath, say(strings.Repeat("too long ", 8192), 5).with(streamed))
	var body struct {
		Error *struct{ Message, Type string }
	}
	if err := json.Unmarshal([]byte(a.text), &body); err != nil || body.Error == nil || body.Error.Message == "" {
		t.Errorf("%v: %s", err, a.text)
	}
	if ct := a.Header.Get("Content-Type"); a.StatusCode != 400 || !strings.HasPrefix(ct, "application/json") {
		t.Errorf("%s, %s", a.Status, ct)
	}
	if e := h.entries(1)[0]; e.Status != 400 || e.Outcome != "refused" || e.Tokens.Output != 0 || e.Error.Message == "" || e.AtMS.Scheduled != nil {
		t.Errorf("log: %s", e.raw)
	}
	m := h.scrape().since(before)
	if n := m.count("troupe:requests_refused_total", `status="400"`); n != 1 || m.count("troupe:requests_refused_total") != 1 {
		t.Errorf("%d refused with 400, %d in all", n, m.count("troupe:requests_refused_total"))
	}
	if n := m.ended(); n.Stop+n.Length+n.Abort+n.Error != 0 {
		t.Errorf("ended: %+v", n)
	}
}
