package tokenizer

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestAnIndexFindsTheFirstTokenOfEachTextAsAMapDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{1, 3, 8, 200, 5000} {
		texts := make([]string, n)
		first := map[string]int32{}
		for i := range texts {
			b := make([]byte, 1+r.IntN(3)) // few, so that many are there several times
			for j := range b {
				b[j] = byte('a' + r.IntN(12))
			}
			texts[i] = string(b)
		}
		x := newIndex(texts)
		for i, text := range texts {
			_, twice := first[text]
			if !twice {
				first[text] = int32(i)
			}
			if added := x.add(int32(i)); added == twice {
				t.Fatalf("token %d (%q): added is %v, and in the map it is %v", i, text, added, twice)
			}
		}
		for _, a := range "abcdefghijklm" {
			for _, b := range "abcdefghijklm" {
				for _, text := range []string{string(a), string([]rune{a, b}), string([]rune{a, b, 'a'})} {
					want, there := first[text]
					got, ok := x.find([]byte(text))
					if ok != there || ok && got != want {
						t.Fatalf("%q of %d tokens: %d, %v; the map has %d, %v", text, n, got, ok, want, there)
					}
				}
			}
		}
	}
}

// Files have the same spelling twice: as a control token, which text may not become, and as text.
func TestATokenIsFoundBehindAControlTokenOfTheSameSpelling(t *testing.T) {
	s, _ := sentencePieceSpec(t)
	plain, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	const text = "the cat"
	want := plain.Encode(text, false, false)
	// All tokens of the text are there once more, before themselves, as control tokens.
	var tokens []string
	var types []int32
	var scores []float32
	for _, id := range want {
		tokens, types, scores = append(tokens, s.Tokens[id]), append(types, int32(Control)), append(scores, 0)
	}
	n := int32(len(tokens))
	s.Tokens, s.Types, s.Scores = append(tokens, s.Tokens...), append(types, s.Types...), append(scores, s.Scores...)
	s.BOS, s.EOS, s.UNK = s.BOS+n, s.EOS+n, s.UNK+n
	both, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	got := both.Encode(text, false, false)
	for i := range want {
		want[i] += n
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q is %s with control tokens of the same spelling, without %s", text, spell(both, got), spell(both, want))
	}
	if id, ok := both.ID(tokens[0]); !ok || id != 0 {
		t.Errorf("ID(%q) is %d, %v; the first is 0", tokens[0], id, ok)
	}
}

func TestAMergeMeansTheFirstTokenOfASpelling(t *testing.T) {
	no := false
	for _, c := range []struct {
		tokens []string
		want   []int32
	}{
		{[]string{"a", "b", "c", "ab", "abc"}, []int32{4}},
		{[]string{"a", "b", "c", "ab", "abc", "abc", "ab"}, []int32{4}},
		{[]string{"abc", "a", "b", "c", "ab", "abc"}, []int32{0}}, // behind "ab" is the second
	} {
		tok, err := New(Spec{Kind: KindBPE, Tokens: c.tokens, Merges: []string{"a b", "ab c"}, IgnoreMerges: &no, BOS: -1, EOS: -1, UNK: -1, PAD: -1})
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode("abc", false, false); !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, want %v", c.tokens, got, c.want)
		}
	}
}
