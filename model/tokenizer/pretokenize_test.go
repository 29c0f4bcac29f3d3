package tokenizer

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// words cuts s and returns the words' lengths in characters.
func (p *pre) words(s string) []int {
	lens := []int{}
	for at := 0; at < len(s); {
		end := p.next(classTable(), s, at)
		lens = append(lens, utf8.RuneCountInString(s[at:end]))
		at = end
	}
	return lens
}

func TestPreTokenizersCutAsTheReferenceRegularExpressions(t *testing.T) {
	var goldens struct {
		Texts []string
		Words map[string][][]int
	}
	readJSON(t, "testdata/splits.json", &goldens)
	if len(goldens.Words) < 6 {
		t.Fatalf("only %d pre-tokenizers", len(goldens.Words))
	}
	for name, all := range goldens.Words {
		p, err := preTokenizer(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range all {
			if got := p.words(goldens.Texts[i]); !slices.Equal(got, want) {
				t.Errorf("%s: %q: words of %d characters, want %d", name, goldens.Texts[i], got, want)
			}
		}
	}
}

func TestCharactersHaveTheClassesOfTheReference(t *testing.T) {
	var goldens struct{ Classes map[string]string }
	readJSON(t, "testdata/classes.json", &goldens)
	classes := map[string]class{"mark": mark, "upper": upper, "lower": lower, "letter": letter, "number": number, "space": space}
	if len(goldens.Classes) != len(classes) {
		t.Fatalf("%d classes", len(goldens.Classes))
	}
	want := make(map[rune]class)
	for name, ranges := range goldens.Classes {
		for _, r := range strings.Fields(ranges) {
			first, length, many := strings.Cut(r, "+")
			lo, err := strconv.ParseInt(first, 16, 32)
			n := int64(1)
			if err == nil && many {
				n, err = strconv.ParseInt(length, 16, 32)
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				want[rune(lo+i)] = classes[name]
			}
		}
	}
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xD800 && r < 0xE000 {
			continue
		}
		got, _ := classTable().at(string(r), 0)
		// A newer Unicode may give a class to what the reference takes for unassigned.
		if w, assigned := want[r]; got != w && (assigned || r < 0x250) {
			t.Errorf("%U: class %d, want %d", r, got, w)
		}
	}
}

func TestAnUnknownPreTokenizerIsRefusedWithTheNamesThatAreKnown(t *testing.T) {
	s := tinySpec()
	s.Pre = "made-up"
	_, err := New(s)
	if err == nil || !strings.Contains(err.Error(), `"made-up"`) || !strings.Contains(err.Error(), "qwen2, refact, smaug-bpe, smollm") {
		t.Errorf("got %v", err)
	}
}
