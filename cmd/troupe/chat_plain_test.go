package main

import (
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

func TestWhatWouldCommandATerminalIsDropped(t *testing.T) {
	for text, want := range map[string]string{
		"plain, with\ttab and\nline":                "plain, with\ttab and\nline",
		"é 漢字 🙂 a\u200db":                           "é 漢字 🙂 a\u200db",
		"\x1b[31mred\x1b[0m":                        "red",
		"\x1b[2J\x1b[1;1Hgone":                      "gone",
		"\x1b]0;title\x07text":                      "text",
		"\x1b]52;c;c2VjcmV0\x1b\\text":              "text",
		"\x1bP1$r0m\x1b\\text":                      "text",
		"\x1b(0lqk\x1bc":                            "lqk",
		"\u009b31mred":                              "red",
		"\u009d0;title\u009ctext":                   "text",
		"over\rwritten\b\b\x7f\x00":                 "overwritten",
		"\x1b]never ended\nbut the next line is":    "\nbut the next line is",
		"\x1b]0;a\x1b[31mb":                         "b",
		"abc\u202edcb\u2066x":                       "abcdcbx",
		"\x1b\x1b[1mx":                              "x",
		"\x1b" + strings.Repeat(" ", 200) + "x":     strings.Repeat(" ", 200-maxControl) + "x",
		"\x1b]" + strings.Repeat("y", 5000) + "end": strings.Repeat("y", 5000-maxString) + "end",
	} {
		var p plainText
		if got := string(p.appendPlain(nil, text)); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestWhatIsLeftIsTextHoweverItIsCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
			"\x1b", "[", "]", "31m", "\a", "\\", "\u009b", "\u009d", "\u009c", "\n", "P", "text", "\x1b[", "\x1b]0;",
		}))).Draw(t, "parts")
		var whole, cut plainText
		once := string(whole.appendPlain(nil, strings.Join(parts, "")))
		var pieces []byte
		for _, s := range parts {
			pieces = cut.appendPlain(pieces, s)
		}
		if once != string(pieces) {
			t.Fatalf("at once %q, in pieces %q", once, pieces)
		}
		for _, r := range once {
			if unicode.IsControl(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q is left in %q", r, once)
			}
		}
		var again plainText
		if got := string(again.appendPlain(nil, once)); got != once {
			t.Fatalf("%q is not left alone: %q", once, got)
		}
	})
}
