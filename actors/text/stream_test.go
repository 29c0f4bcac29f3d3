package text

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/model/tiny"
)

var tok = tiny.Model(tiny.Options{}).Tokenizer

// push gives a stream all tokens and returns what came out, piece by piece, and which stop ended it
// after how many tokens.
func push(s *Stream, ids []int32, min int) (pieces []string, stop string, n int) {
	for _, id := range ids {
		out, found := s.Push(nil, id, n+1 >= min)
		n++
		pieces = append(pieces, string(out))
		if found != "" {
			return pieces, found, n
		}
	}
	return append(pieces, string(s.Flush(nil))), "", n
}

// expect says the same by brute force: after each token it looks at the whole text so far.
func expect(ids []int32, stops []string, include bool) (text, stop string, n int) {
	d := tok.NewDecoder(true)
	var whole []byte
	for k, id := range ids {
		whole = d.Push(whole, id)
		// Every place where a stop string ends; the first one counts, of several the longest.
		for end := 1; end <= len(whole); end++ {
			for _, s := range stops {
				if strings.HasSuffix(string(whole[:end]), s) && len(s) > len(stop) {
					stop = s
				}
			}
			if stop == "" {
				continue
			}
			if !include {
				end -= len(stop)
			}
			return string(whole[:end]), stop, k + 1
		}
	}
	return string(d.Flush(whole)), "", len(ids)
}

func TestStreamedTextIsTheWholeTextCutAtTheFirstStop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("abAB é漢😀")), 0, 40, -1).Draw(t, "text")
		ids := tok.Encode(text, false, false)
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("abA é漢😀")), 1, 4, -1), 0, 3).Draw(t, "stops")
		include := rapid.Bool().Draw(t, "include")
		s := New(tok, NewStops(stops), include, true)
		pieces, stop, n := push(&s, ids, 0)
		wantText, wantStop, wantN := expect(ids, stops, include)
		got := strings.Join(pieces, "")
		if got != wantText || stop != wantStop || n != wantN {
			t.Fatalf("got %q, stop %q after %d tokens; want %q, %q, %d", got, stop, n, wantText, wantStop, wantN)
		}
		for _, p := range pieces {
			if !utf8.ValidString(p) {
				t.Fatalf("a piece is not UTF-8: %q", p)
			}
		}
	})
}

func TestNoPartOfAStopStringIsSentBeforeItIsCertain(t *testing.T) {
	s := New(tok, NewStops([]string{"abc"}), false, true)
	ids := tok.Encode("x", false, false)
	for _, c := range []string{"a", "b", "a", "b", "c"} {
		ids = append(ids, tok.Encode(c, false, false)...)
	}
	pieces, stop, n := push(&s, ids, 0)
	want := []string{"x", "", "", "ab", "", ""}
	if stop != "abc" || n != 6 || strings.Join(pieces, "|") != strings.Join(want, "|") {
		t.Errorf("%q, %q, %d; want %q", pieces, stop, n, want)
	}
}

func TestStopsAreNotLookedForBeforeTheMinimumLength(t *testing.T) {
	s := New(tok, NewStops([]string{"b"}), false, true)
	var ids []int32
	for _, c := range []string{"a", "b", "c", "b", "d"} {
		ids = append(ids, tok.Encode(c, false, false)...)
	}
	pieces, stop, n := push(&s, ids, 3)
	if got := strings.Join(pieces, ""); got != "abc" || stop != "b" || n != 4 {
		t.Errorf("%q, %q after %d", got, stop, n)
	}
}

func TestACutInMidCharacterIsStillUTF8(t *testing.T) {
	ids := tok.Encode("漢", false, false)
	if len(ids) < 2 {
		t.Skip("the vocabulary has the character as one token")
	}
	s := New(tok, NewStops([]string{"x"}), false, true)
	pieces, _, _ := push(&s, ids[:len(ids)-1], 0)
	if got := strings.Join(pieces, ""); got != "\uFFFD" {
		t.Errorf("%q", got)
	}
}
