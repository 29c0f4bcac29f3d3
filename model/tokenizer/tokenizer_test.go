package tokenizer

import (
	"encoding/hex"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// tinySpec is a byte-level vocabulary made by hand: all bytes, a few merges and special tokens.
func tinySpec() Spec {
	s := Spec{Kind: KindBPE, Pre: "smollm", BOS: 1, EOS: 2, UNK: -1, PAD: -1}
	add := func(ty TokenType, tokens ...string) {
		for _, tok := range tokens {
			s.Tokens = append(s.Tokens, tok)
			s.Types = append(s.Types, int32(ty))
		}
	}
	add(Control, "<|endoftext|>", "<|im_start|>", "<|im_end|>")
	add(UserDefined, "<think>", "<think", "é!")
	for b := range 256 {
		add(Normal, string(byteRune[b]))
	}
	for _, m := range []string{"h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ w", "a a", "aa aa", "aaaa aaaa", "Ã ©", "ð Ł", "ðŁ ĺ", "b a", "c b", "Ġ Ġ"} {
		s.Merges = append(s.Merges, m)
		add(Normal, strings.Replace(m, " ", "", 1))
	}
	return s
}

func tiny(tb testing.TB, change func(*Spec)) *Tokenizer {
	tb.Helper()
	s := tinySpec()
	if change != nil {
		change(&s)
	}
	t, err := New(s)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// spell shows ids by their spellings.
func spell(t *Tokenizer, ids []int32) string {
	var parts []string
	for _, id := range ids {
		parts = append(parts, t.Piece(id))
	}
	return strings.Join(parts, " ")
}

func TestByteLevelMergesGoByRank(t *testing.T) {
	tok := tiny(t, nil)
	for text, want := range map[string]string{
		"":                "",
		"hello":           "hello",
		"hello hello":     "hello Ġhello",
		"hellohello":      "hello hello",
		"a  hello":        "a Ġ Ġhello",
		"   ":             "ĠĠ Ġ",
		" 12":             "Ġ 1 2",
		"aaaaa":           "aaaa a",
		"aaaaaaaaaaaaaaa": "aaaaaaaa aaaa aa a",
		"cba":             "c ba", // "b a" ranks before "c b"
		"cb":              "cb",
		"é":               "Ã©",
		"😀":               "ðŁĺ Ģ",
		"\xff":            "ÿ",
		"he\xc3":          "he Ã",
		" world":          "Ġw o r l d",
	} {
		if got := spell(tok, tok.Encode(text, false, false)); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestSpecialTokensAreFoundLongestFirst(t *testing.T) {
	tok := tiny(t, nil)
	for _, c := range []struct {
		text  string
		parse bool
		want  string
	}{
		{"<|im_start|>hello<|im_end|>", true, "<|im_start|> hello <|im_end|>"},
		{"<|im_end|><|im_end|>", true, "<|im_end|> <|im_end|>"},
		{"<|im_end|>", false, "< | i m _ e n d | >"},
		{"<think>hello", true, "<think> hello"},
		{"<think>hello", false, "<think> hello"},
		{"<thinkhello", false, "<think hello"},
		{"<thin", true, "< t h i n"},
		{"<<think>>", true, "< <think> >"},
		{"é!é", false, "é! Ã©"},
		{"<|im_<|im_end|>", true, "< | i m _ <|im_end|>"},
	} {
		if got := spell(tok, tok.Encode(c.text, false, c.parse)); got != c.want {
			t.Errorf("%q, parsed %t: got %s, want %s", c.text, c.parse, got, c.want)
		}
	}
}

func TestBOSAndEOSAreAddedOnlyWhereTheFlagsSaySo(t *testing.T) {
	for _, c := range []struct {
		bos, eos, special bool
		want              string
	}{
		{true, true, true, "<|im_start|> hello <|im_end|>"},
		{true, false, true, "<|im_start|> hello"},
		{false, true, true, "hello <|im_end|>"},
		{false, false, true, "hello"},
		{true, true, false, "hello"},
	} {
		tok := tiny(t, func(s *Spec) { s.AddBOS, s.AddEOS = c.bos, c.eos })
		if got := spell(tok, tok.Encode("hello", c.special, false)); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
	none := tiny(t, func(s *Spec) { s.AddBOS, s.AddEOS, s.BOS, s.EOS = true, true, -1, -1 })
	if got := spell(none, none.Encode("hello", true, false)); got != "hello" {
		t.Errorf("without such tokens: got %s", got)
	}
}

func TestABadSpecificationIsRefusedByName(t *testing.T) {
	for want, change := range map[string]func(*Spec){
		"vocabulary is empty":                    func(s *Spec) { s.Tokens = nil },
		"2 token types for":                      func(s *Spec) { s.Types = s.Types[:2] },
		"EOS token id 100000 is outside":         func(s *Spec) { s.EOS = 100000 },
		"BOS token id -2 is outside":             func(s *Spec) { s.BOS = -2 },
		`token 4 ("<think") has type 9`:          func(s *Spec) { s.Types[4] = 9 },
		`kind "wordpiece" is not known`:          func(s *Spec) { s.Kind = "wordpiece" },
		`merge 1 ("ll") is not two tokens`:       func(s *Spec) { s.Merges[1] = "ll" },
		`merge 1 ("l ") is not two tokens`:       func(s *Spec) { s.Merges[1] = "l " },
		`merge 1 ("l q") needs "lq", which is`:   func(s *Spec) { s.Merges[1] = "l q" },
		"0 scores for 277 tokens":                func(s *Spec) { s.Kind = KindSentencePiece },
		`is a byte token but not spelled <0x00>`: func(s *Spec) { s.Kind, s.Types[9] = KindSentencePiece, int32(Byte) },
	} {
		s := tinySpec()
		change(&s)
		if _, err := New(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func TestTokensAreKnownByIDAndSpelling(t *testing.T) {
	tok := tiny(t, nil)
	id, ok := tok.ID("<|im_end|>")
	if !ok || id != 2 || tok.EOS() != 2 || tok.BOS() != 1 || tok.UNK() != -1 || tok.PAD() != -1 {
		t.Errorf("special tokens: %d %t", id, ok)
	}
	if _, ok := tok.ID("nothing of the kind"); ok {
		t.Error("found a token that is not there")
	}
	if id, _ := tok.ID("Ġhello"); string(tok.AppendBytes(nil, id)) != " hello" {
		t.Errorf("bytes %q", tok.AppendBytes(nil, id))
	}
	for _, id := range []int32{-1, int32(tok.Size()), 1 << 30, -1 << 31} {
		if tok.Valid(id) || tok.IsSpecial(id) || tok.Piece(id) != "" || len(tok.AppendBytes(nil, id)) != 0 || tok.Type(id) != 0 {
			t.Errorf("id %d names a token", id)
		}
	}
	if got := tok.Decode([]int32{1, id, 3, 5, -7, 1 << 20}, true); got != "<think>é!" {
		t.Errorf("decoded %q", got)
	}
	if got := tok.Decode([]int32{1, 2}, false); got != "<|im_start|><|im_end|>" {
		t.Errorf("decoded %q", got)
	}
}

func TestBytesThatTheVocabularyLacksAreLeftOut(t *testing.T) {
	tok := tiny(t, func(s *Spec) {
		at := slices.Index(s.Tokens, string(byteRune[4]))
		s.Tokens[at] = "[unused]"
	})
	if got := spell(tok, tok.Encode("he\x04llo", false, false)); got != "he ll o" {
		t.Errorf("got %s", got)
	}
	if got := tok.Encode("\x04", false, false); len(got) != 0 {
		t.Errorf("got %d", got)
	}
}

func TestInvalidUTF8DecodesAsPythonReplacesIt(t *testing.T) {
	var goldens struct{ Cases [][2]string }
	readJSON(t, "testdata/replace.json", &goldens)
	// Each case is there byte by byte, and as one token.
	whole := make([]int32, len(goldens.Cases))
	bytes := make([][]byte, len(goldens.Cases))
	tok := tiny(t, func(s *Spec) {
		for i, c := range goldens.Cases {
			b, err := hex.DecodeString(c[0])
			if err != nil {
				t.Fatal(err)
			}
			bytes[i], whole[i] = b, int32(len(s.Tokens))
			s.Tokens, s.Types = append(s.Tokens, spelling(b)), append(s.Types, int32(Unused))
		}
	})
	for i, c := range goldens.Cases {
		var ids []int32
		for _, x := range bytes[i] {
			ids = append(ids, tok.bpe.byteID[x])
		}
		if got := tok.Decode(ids, true); got != c[1] {
			t.Errorf("%s: got %q, want %q", c[0], got, c[1])
		}
		if got := tok.Decode(whole[i:i+1], true); got != c[1] {
			t.Errorf("%s in one token: got %q, want %q", c[0], got, c[1])
		}
	}
}

// spelling spells bytes in the byte-level alphabet.
func spelling(b []byte) string {
	var s strings.Builder
	for _, x := range b {
		s.WriteRune(byteRune[x])
	}
	return s.String()
}

// vocabularies are the tokenizers that properties are tested on.
func vocabularies(tb testing.TB) map[string]*Tokenizer {
	all := map[string]*Tokenizer{
		"tiny":                 tiny(tb, nil),
		"sentencepiece":        sentencePiece(tb, true),
		"sentencepiece, plain": sentencePiece(tb, false),
	}
	for _, pre := range []string{"gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken"} {
		all["tiny "+pre] = tiny(tb, func(s *Spec) { s.Pre = pre })
	}
	return all
}

// anyText draws texts that have in them what the code distinguishes.
var anyText = rapid.Custom(func(t *rapid.T) string {
	parts := rapid.SliceOfN(rapid.OneOf(
		rapid.String(),
		rapid.SampledFrom([]string{"hello", " ", "  ", "aaaa", "'s", "<|im_end|>", "<think>", "é!", "\n", "▁", "<0x41>", "12", "😀", "the boats", "<tool>", "<s>"}),
	), 0, 12).Draw(t, "parts")
	return strings.Join(parts, "")
})

func TestWhatIsEncodedDecodesToTheSame(t *testing.T) {
	for name, tok := range vocabularies(t) {
		rapid.Check(t, func(t *rapid.T) {
			text := anyText.Draw(t, "text")
			want := text
			got := tok.Decode(tok.Encode(text, false, false), false)
			if tok.kind == KindSentencePiece {
				want = strings.ReplaceAll(want, "▁", " ") // SentencePiece cannot tell them apart
			}
			if tok.prefix {
				// The part after a user-defined token has a prefix, too, which is not taken off.
				got, want = strings.ReplaceAll(got, " ", ""), strings.ReplaceAll(want, " ", "")
			}
			if got != want {
				t.Fatalf("%s: %q became %q", name, want, got)
			}
		})
	}
}

func TestAnyBytesEncodeWithoutLoss(t *testing.T) {
	for name, tok := range vocabularies(t) {
		if tok.prefix {
			continue // the prefix is a space too many
		}
		rapid.Check(t, func(t *rapid.T) {
			text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
			var got []byte
			for _, id := range tok.Encode(text, false, true) {
				got = tok.AppendBytes(got, id)
			}
			if string(got) != text {
				t.Fatalf("%s: %q became %q", name, text, got)
			}
		})
	}
}

func TestAStreamDecodesToTheSameTextAsTheWhole(t *testing.T) {
	for name, tok := range vocabularies(t) {
		rapid.Check(t, func(t *rapid.T) {
			ids := rapid.SliceOf(rapid.OneOf(
				rapid.Int32Range(-2, int32(tok.Size())+2),
				rapid.Int32Range(0, 270),
				rapid.Int32(),
			)).Draw(t, "ids")
			skip := rapid.Bool().Draw(t, "skip")
			// The whole, by another way: all bytes first, then one replacement per maximal subpart.
			var all []byte
			for _, id := range ids {
				if !skip || !tok.IsSpecial(id) {
					all = tok.AppendBytes(all, id)
				}
			}
			if tok.prefix && len(all) > 0 && all[0] == ' ' {
				all = all[1:]
			}
			want := replaceInvalid(all)
			if got := tok.Decode(ids, skip); got != want {
				t.Fatalf("%s: whole: got %q, want %q", name, got, want)
			}
			d := tok.NewDecoder(skip)
			var got []byte
			for _, id := range ids {
				before := len(got)
				got = d.Push(got, id)
				if !utf8.Valid(got[before:]) {
					t.Fatalf("%s: a frame is not UTF-8: %q", name, got[before:])
				}
				if d.Incomplete() && !strings.HasPrefix(want, string(got)) {
					t.Fatalf("%s: %q is no beginning of %q", name, got, want)
				}
			}
			got = d.Flush(got)
			if string(got) != want {
				t.Fatalf("%s: stream: got %q, want %q", name, got, want)
			}
		})
	}
}

// replaceInvalid replaces each maximal subpart of an ill-formed sequence by U+FFFD: table 3-7 of
// the Unicode standard, written out.
func replaceInvalid(b []byte) string {
	var out strings.Builder
	in := func(i int, lo, hi byte) bool { return i < len(b) && b[i] >= lo && b[i] <= hi }
	for i := 0; i < len(b); {
		lo, hi, more := byte(0x80), byte(0xBF), 0
		switch c := b[i]; {
		case c < 0x80:
		case c >= 0xC2 && c <= 0xDF:
			more = 1
		case c == 0xE0:
			lo, more = 0xA0, 2
		case c == 0xED:
			hi, more = 0x9F, 2
		case c >= 0xE1 && c <= 0xEF:
			more = 2
		case c == 0xF0:
			lo, more = 0x90, 3
		case c == 0xF4:
			hi, more = 0x8F, 3
		case c >= 0xF1 && c <= 0xF3:
			more = 3
		default:
			out.WriteString("\uFFFD")
			i++
			continue
		}
		j := i + 1
		for ; more > 0 && in(j, lo, hi); more-- {
			j++
			lo, hi = 0x80, 0xBF
		}
		if more > 0 {
			out.WriteString("\uFFFD")
		} else {
			out.Write(b[i:j])
		}
		i = j
	}
	return out.String()
}

func TestTheHeapMergesAsTheScanDoes(t *testing.T) {
	tok := tiny(t, nil)
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.RuneFrom([]rune("heloabcw é")), 1, scanLimit/2, scanLimit).Draw(t, "word")
		scan := tok.bpe.mergeScan(nil, word)
		if heap := tok.bpe.mergeHeap(nil, word, new(work)); !slices.Equal(scan, heap) {
			t.Fatalf("%q: scan %s, heap %s", word, spell(tok, scan), spell(tok, heap))
		}
	})
}

func TestALongWordTakesFewTimesItsSizeOfMemory(t *testing.T) {
	run := strings.Repeat("a", 1<<20)
	for name, tok := range map[string]*Tokenizer{"byte-level": tiny(t, nil), "SentencePiece": sentencePiece(t, false)} {
		dst := make([]int32, 0, len(run))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tok.AppendEncode(dst, run, false, false)
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / uint64(len(run)); n > 28 {
			t.Errorf("%s: %d bytes of memory for each byte of the text", name, n)
		}
	}
}

func TestALongRunOfOneLetterIsEncodedInTime(t *testing.T) {
	run := strings.Repeat("a", 1<<20)
	tok := tiny(t, nil)
	if ids := tok.Encode(run, false, false); len(ids) != len(run)/8 {
		t.Errorf("%d tokens", len(ids))
	}
	spm := sentencePiece(t, true)
	if got := spm.Decode(spm.Encode(run, false, false), false); got != run {
		t.Errorf("decoded %d bytes", len(got))
	}
	spaces := strings.Repeat(" ", 1<<20)
	if got := tok.Decode(tok.Encode(spaces, false, false), false); got != spaces {
		t.Errorf("decoded %d bytes", len(got))
	}
}

func TestATokenizerIsSharedByGoroutines(t *testing.T) {
	tok, spm := tiny(t, nil), sentencePiece(t, true)
	text := strings.Repeat("hello world aaaa, <think>the boats that pass 12 😀", 20)
	want, wantSPM := tiny(t, nil).Encode(text, true, true), sentencePiece(t, true).Encode(text, true, true)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if !slices.Equal(tok.Encode(text, true, true), want) || !slices.Equal(spm.Encode(text, true, true), wantSPM) {
					t.Error("ids differ")
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestPushingATokenDoesNotAllocate(t *testing.T) {
	tok := tiny(t, nil)
	ids := tok.Encode("hello 😀é world", false, false)
	dst := make([]byte, 0, 256)
	if n := testing.AllocsPerRun(100, func() {
		d := tok.NewDecoder(true)
		dst = dst[:0]
		for _, id := range ids {
			dst = d.Push(dst, id)
		}
		dst = d.Flush(dst)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzEncodeDecode(f *testing.F) {
	for _, s := range []string{"", "hello world", "I'm 12's  é\n\n😀", "<|im_start|><think>", "\xff\xf0\x9f\x98", " \u00a0\t\r\n x", "ſ'ſ 'LL", "ᾼǅʰ漢\u0301A"} {
		f.Add([]byte(s), uint64(len(s)))
	}
	all := vocabularies(f)
	names := slices.Sorted(maps.Keys(all))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		text := string(b)
		name := names[seed/2%uint64(len(names))]
		tok := all[name]
		for _, parse := range []bool{false, true} {
			ids := tok.Encode(text, parse, parse)
			var got []byte
			for _, id := range ids {
				got = tok.AppendBytes(got, id)
			}
			if tok.kind == KindBPE && string(got) != text {
				t.Fatalf("%s: %q became %q", name, text, got)
			}
			if tok.kind == KindBPE && utf8.Valid(b) && tok.Decode(ids, false) != text {
				t.Fatalf("%s: %q decodes to %q", name, text, tok.Decode(ids, false))
			}
		}
		// Hostile ids.
		rnd := rand.New(rand.NewPCG(seed, 1))
		ids := make([]int32, len(b))
		for i := range ids {
			ids[i] = int32(rnd.IntN(tok.Size()+8)) - 4
		}
		d := tok.NewDecoder(seed%2 == 0)
		var stream []byte
		for _, id := range ids {
			stream = d.Push(stream, id)
			if !utf8.Valid(stream) {
				t.Fatalf("%s: not UTF-8: %q", name, stream)
			}
		}
		stream = d.Flush(stream)
		if whole := tok.Decode(ids, seed%2 == 0); whole != string(stream) {
			t.Fatalf("%s: stream %q, whole %q", name, stream, whole)
		}
	})
}
