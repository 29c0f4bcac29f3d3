package behaviours

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/model/tiny"
)

// scripted is a request for what the script of seed 1 says.
func scripted(tokens int) fields {
	f := say("read it out", tokens)
	f["seed"], f["ignore_eos"] = 1, false
	return f
}

// bothWays asks for the same streamed and not, wants the same text and reason, and returns them with
// the number of tokens.
func (h *house) bothWays(f fields) (text, reason string, tokens int) {
	h.t.Helper()
	r := h.ask(f.String())
	text, reason = r.Choices[0].Message.Content, r.Choices[0].Reason
	fs := h.request(f.with(streamed)).rest()
	for _, f := range fs {
		if s := f.text(); !utf8.ValidString(s) {
			h.t.Errorf("a frame that is not UTF-8: %q", s)
		}
	}
	stext, sreason := told(fs, 0)
	if stext != text || sreason != reason || final(h.t, fs).Usage.Completion != r.Usage.Completion {
		h.t.Errorf("streamed %q (%s, %d tokens), unstreamed %q (%s, %d tokens)",
			stext, sreason, final(h.t, fs).Usage.Completion, text, reason, r.Usage.Completion)
	}
	return text, reason, r.Usage.Completion
}

// Behaviour 14.
func TestNoPartOfAStopStringIsSentAndAHalfOneIsDeliveredAtTheEnd(t *testing.T) {
	// Tokens of several letters, so that stop strings begin and end within tokens.
	say := tinyModel().Tokenizer.Encode("Hello the world: for you STOP and on", false, false)
	if len(say) > 24 {
		t.Fatalf("%d tokens: hardly any is longer than a letter", len(say))
	}
	h := open(t, layout{script: map[uint64]script{1: say}})
	for _, c := range []struct {
		stop []string
		want string
	}{
		{[]string{"STOP"}, "Hello the world: for you "},                   // spans tokens
		{[]string{"llo the wor"}, "He"},                                   // begins and ends within tokens
		{[]string{"never", "world: for"}, "Hello the "},                   // the second of two
		{[]string{" on!"}, "Hello the world: for you STOP and on"},        // only its beginning occurs, at the very end
		{[]string{"you STOP or"}, "Hello the world: for you STOP and on"}, // and in the middle
	} {
		f := scripted(100)
		f["stop"] = c.stop
		text, reason, _ := h.bothWays(f)
		if text != c.want || reason != "stop" {
			t.Errorf("stop %q: %q, %s; want %q", c.stop, text, reason, c.want)
		}
	}
	// No frame has a part of it, whatever comes later.
	f := scripted(100)
	f["stop"] = []string{"STOP"}
	sent := ""
	for _, fr := range h.request(f.with(streamed)).rest() {
		sent += fr.text()
		if strings.ContainsAny(sent, "STOP") {
			t.Fatalf("a part of the stop string was sent: %q", sent)
		}
	}
	// Cut by max_tokens with the beginning of a stop string held back.
	n := len(tinyModel().Tokenizer.Encode("Hello the world: for you ST", false, false))
	f = scripted(n)
	f["stop"] = []string{"STOP"}
	if text, reason, tokens := h.bothWays(f); text != "Hello the world: for you ST" || reason != "length" || tokens != n {
		t.Errorf("cut before the stop string was whole: %q, %s, %d tokens", text, reason, tokens)
	}
}

// Behaviour 15.
func TestCharactersSplitOverTokensArriveWholeAndACutInOneDoesNoHarm(t *testing.T) {
	const text = "h\u00e9llo 你好，世界 👩‍👩‍👧 🎉 ok"
	bytes := bytewise(text)
	h := open(t, layout{script: map[uint64]script{1: bytes, 2: {tiny.FirstByte + 0xf0, tiny.FirstByte + 0x9f, tiny.FirstByte + 'a', tiny.FirstByte + 0xff}}})
	whole, reason, tokens := h.bothWays(scripted(len(bytes) + 10))
	if whole != text || reason != "stop" || tokens != len(bytes)+1 {
		t.Errorf("%q, %s, %d tokens", whole, reason, tokens)
	}
	for _, f := range h.request(scripted(len(bytes) + 10).with(streamed)).rest() {
		if strings.ContainsRune(f.data, utf8.RuneError) || strings.Contains(strings.ToLower(f.data), `\ufffd`) {
			t.Errorf("a frame with U+FFFD: %s", f.data)
		}
	}
	for n := 1; n < len(bytes); n++ {
		cut, reason, tokens := h.bothWays(scripted(n))
		whole := strings.TrimSuffix(cut, "\ufffd") // what was begun may show as such
		if !strings.HasPrefix(text, whole) || len(whole) < n-3 || reason != "length" || tokens != n {
			t.Errorf("cut after %d bytes: %q, %s, %d tokens", n, cut, reason, tokens)
		}
	}
	// Bytes that can never become a character.
	f := scripted(10)
	f["seed"] = 2
	if text, _, tokens := h.bothWays(f); !strings.Contains(text, "a") || !utf8.ValidString(text) || tokens != 5 {
		t.Errorf("%q, %d tokens", text, tokens)
	}
}
