package tokenizer

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// tinySentencePiece is testdata/sentencepiece.json: a small vocabulary and what the reference does
// with it.
type tinySentencePiece struct {
	Tokens []string
	Scores []float32
	Types  []int32
	Cases  []struct {
		Text                   string
		Prefix, Bare, Ordinary []int32
	}
}

func sentencePieceSpec(tb testing.TB) (Spec, tinySentencePiece) {
	tb.Helper()
	var v tinySentencePiece
	readJSON(tb, "testdata/sentencepiece.json", &v)
	return Spec{
		Kind: KindSentencePiece, Tokens: v.Tokens, Scores: v.Scores, Types: v.Types,
		BOS: 1, EOS: 2, UNK: 0, PAD: -1, AddBOS: true,
	}, v
}

func sentencePiece(tb testing.TB, prefix bool) *Tokenizer {
	tb.Helper()
	s, _ := sentencePieceSpec(tb)
	s.AddSpacePrefix = prefix
	t, err := New(s)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func TestSentencePieceEncodesAsTheReference(t *testing.T) {
	_, v := sentencePieceSpec(t)
	prefix, bare := sentencePiece(t, true), sentencePiece(t, false)
	if len(v.Cases) < 150 {
		t.Fatalf("only %d cases", len(v.Cases))
	}
	for _, c := range v.Cases {
		for _, r := range []struct {
			name      string
			got, want []int32
		}{
			{"with a space prefix", prefix.Encode(c.Text, true, true), c.Prefix},
			{"without a space prefix", bare.Encode(c.Text, true, true), c.Bare},
			{"as ordinary text", prefix.Encode(c.Text, false, false), c.Ordinary},
		} {
			if !slices.Equal(r.got, r.want) {
				t.Errorf("%s: %q: got %s, want %s", r.name, c.Text, spell(prefix, r.got), spell(prefix, r.want))
			}
		}
	}
}

func TestTheSpacePrefixIsTakenOffDecodedText(t *testing.T) {
	tok := sentencePiece(t, true)
	for _, text := range []string{"the boats", " the boats", "  x", "", "é😀", "boats\n"} {
		ids := tok.Encode(text, true, false)
		if got := tok.Decode(ids, true); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	ids := tok.Encode("the boats", false, false)
	if got := tok.Decode(append([]int32{1}, ids...), false); got != "<s> the boats" {
		t.Errorf("after a control token that is shown: %q", got)
	}
	d := tok.NewDecoder(true)
	d.Continue()
	var got []byte
	for _, id := range ids {
		got = d.Push(got, id)
	}
	if string(d.Flush(got)) != " the boats" {
		t.Errorf("continued: %q", got)
	}
}

func TestTextCannotSpellAControlToken(t *testing.T) {
	s, _ := sentencePieceSpec(t)
	// Make every step towards "</s>" a token, so that merging would get there.
	for _, piece := range []string{"<", "/", "s", ">", "</", "</s"} {
		if !slices.Contains(s.Tokens, piece) {
			s.Tokens = append(s.Tokens, piece)
			s.Scores = append(s.Scores, -1)
			s.Types = append(s.Types, int32(Normal))
		}
	}
	tok, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	if ids := tok.Encode("</s>", false, false); slices.Contains(ids, 2) {
		t.Errorf("got %s", spell(tok, ids))
	}
	if ids := tok.Encode("</s>", false, true); !slices.Equal(ids, []int32{2}) {
		t.Errorf("parsed: got %s", spell(tok, ids))
	}
}

func TestAnUnusedTokenIsSpelledByItsParts(t *testing.T) {
	s, _ := sentencePieceSpec(t)
	whole, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	ids := whole.Encode("boats", false, false)
	s.Types = slices.Clone(s.Types)
	last := ids[len(ids)-1]
	s.Types[last] = int32(Unused)
	tok, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	again := tok.Encode("boats", false, false)
	if slices.Contains(again, last) || len(again) <= len(ids) || tok.Decode(again, false) != "boats" {
		t.Errorf("%s became %s", spell(tok, ids), spell(tok, again))
	}
}

func TestWithoutByteTokensAnUnknownCharacterIsUNK(t *testing.T) {
	s, _ := sentencePieceSpec(t)
	for i, ty := range s.Types {
		if TokenType(ty) == Byte {
			s.Types[i] = int32(Unused)
		}
	}
	tok, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := spell(tok, tok.Encode("a漢a", false, false)); got != "a <unk> a" {
		t.Errorf("got %s", got)
	}
	s.UNK = -1
	if tok, err = New(s); err != nil {
		t.Fatal(err)
	}
	if got := spell(tok, tok.Encode("a漢a", false, false)); got != "a a" {
		t.Errorf("without UNK: got %s", got)
	}
}

func BenchmarkEncodeSentencePiece(b *testing.B) {
	tok := sentencePiece(b, true)
	text := strings.Repeat("The river runs past the old mill, and the miller's daughter counts the boats that pass. ", 200)
	dst := make([]int32, 0, len(text))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = tok.AppendEncode(dst[:0], text, true, true)
	}
}

func TestPlacesByScoreCountTheHigherOnes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	some := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 2.5, -2.5, math.MaxFloat32, -math.MaxFloat32,
		math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, float32(math.Inf(1)), float32(math.Inf(-1))}
	scores := make([]float32, 1000)
	for i := range scores {
		scores[i] = some[r.IntN(len(some))]
		if r.IntN(2) == 0 {
			scores[i] = -float32(r.IntN(400))
		}
	}
	for id, place := range placesByScore(scores) {
		higher := uint32(0)
		for _, s := range scores {
			if s > scores[id] {
				higher++
			}
		}
		if place != higher {
			t.Fatalf("token %d with score %v: place %d, but %d have a higher one", id, scores[id], place, higher)
		}
	}
}
