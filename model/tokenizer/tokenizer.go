// Package tokenizer turns text into token ids and back, with a vocabulary as GGUF files carry it.
//
// Two families are known: byte-level byte-pair encoding (GGUF's "gpt2": merges by rank, after a
// pre-tokenizer has cut the text into words) and SentencePiece's bigram merges by score with byte
// fallback (GGUF's "llama"). The first follows Hugging Face tokenizers, the second llama.cpp, which
// the GGUF metadata was made for.
//
// The package depends on no file format: a Spec is filled by whoever has read the file.
package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// TokenType is a token's role, numbered as in GGUF's tokenizer.ggml.token_type.
type TokenType int32

// The token types. A Spec without types has normal tokens only.
const (
	Normal      TokenType = 1
	Unknown     TokenType = 2 // stands for what the vocabulary cannot spell
	Control     TokenType = 3 // steers the model and is no text, such as <|im_start|>
	UserDefined TokenType = 4 // text that is always one token
	Unused      TokenType = 5 // never produced from text
	Byte        TokenType = 6 // <0x00> … <0xFF>
)

// Kinds of tokenizer, as in GGUF's tokenizer.ggml.model.
const (
	KindBPE           = "gpt2"
	KindSentencePiece = "llama"
)

// Spec is everything that a tokenizer is built from. Field for field it is GGUF's tokenizer.ggml.*
// metadata. New keeps Tokens; the caller must not change it afterwards.
type Spec struct {
	Kind string // KindBPE or KindSentencePiece
	// Pre names the pre-tokenizer of a KindBPE vocabulary (tokenizer.ggml.pre); see PreTokenizers.
	// Empty means "default", which is GPT-2's.
	Pre    string
	Tokens []string  // spelling by id: byte-level alphabet, or ▁ for a space
	Scores []float32 // KindSentencePiece: merge priority by id, unless ByRank; ignored elsewhere
	Types  []int32   // TokenType by id; empty: all normal
	Merges []string  // "left right", best first: for KindBPE, and with ByRank

	BOS, EOS, UNK, PAD int32 // ids, −1 for none
	// AddBOS and AddEOS say what Encode adds when it is asked to add special tokens. A file that is
	// silent about it means DefaultAddBOS, and no EOS.
	AddBOS, AddEOS bool
	// AddSpacePrefix (KindSentencePiece) puts a space before each run of text that begins the input
	// or follows a special token, and takes one from the start of decoded text.
	AddSpacePrefix bool

	// What follows only tokenizer.json says; a GGUF file leaves it at its zero value.

	// ByRank (KindSentencePiece) merges by Merges instead of by Scores, and spells user-defined tokens with ▁
	// for a space as all others.
	ByRank bool
	// IgnoreMerges (KindBPE): a word that is a token is that token, whatever the merges say. nil: as Pre has it.
	IgnoreMerges *bool
	// NFC (KindBPE) brings text into Unicode's normal form C first.
	NFC bool
	// FirstOnly adds AddSpacePrefix's space at the input's beginning only, and UnlessSpace only where the
	// text has none; SplitSpaces (KindSentencePiece) cuts text before each space, and merges never across.
	FirstOnly, UnlessSpace, SplitSpaces bool
	// LStrip and RStrip are special tokens that take white space before or after them into themselves.
	LStrip, RStrip []int32
}

// DefaultAddBOS says whether a file of that kind and pre-tokenizer wants BOS added when it has no
// tokenizer.ggml.add_bos_token; as llama.cpp decides it.
func DefaultAddBOS(kind, pre string) bool {
	switch kind {
	case KindSentencePiece:
		return true
	case KindBPE:
		return preTokenizers[pre].addBOS
	}
	return false
}

// Tokenizer encodes and decodes. It is immutable to its users and safe for concurrent use.
type Tokenizer struct {
	kind     string
	tokens   []string
	types    []TokenType // by id
	bos, eos int32
	unk, pad int32
	addBOS   bool
	addEOS   bool
	prefix   bool // AddSpacePrefix
	first    bool // FirstOnly
	unless   bool // UnlessSpace
	nfc      bool

	// strips says which special tokens take in white space around them; nil if none does.
	strips map[int32]strip

	// texts are the tokens' bytes as they stand in a text, by id: parts of one string.
	texts []string

	ids      index // by spelling; of several that share one, the first
	specials matcher

	works sync.Pool // *work: scratch memory; carries nothing from one call to the next

	bpe *bpe // KindBPE
	spm *spm // KindSentencePiece
}

// New builds a tokenizer. Its errors name the part of the specification that is wrong.
func New(s Spec) (*Tokenizer, error) {
	n := len(s.Tokens)
	switch {
	case n == 0:
		return nil, fmt.Errorf("tokenizer: the vocabulary is empty")
	case len(s.Types) != 0 && len(s.Types) != n:
		return nil, fmt.Errorf("tokenizer: %d token types for %d tokens", len(s.Types), n)
	}
	for _, id := range []struct {
		name string
		id   int32
	}{{"BOS", s.BOS}, {"EOS", s.EOS}, {"UNK", s.UNK}, {"PAD", s.PAD}} {
		if id.id < -1 || int(id.id) >= n {
			return nil, fmt.Errorf("tokenizer: %s token id %d is outside the vocabulary of %d tokens (-1 means none)", id.name, id.id, n)
		}
	}
	t := &Tokenizer{
		kind: s.Kind, tokens: s.Tokens, types: make([]TokenType, n),
		bos: s.BOS, eos: s.EOS, unk: s.UNK, pad: s.PAD,
		addBOS: s.AddBOS && s.BOS >= 0, addEOS: s.AddEOS && s.EOS >= 0,
		prefix: s.AddSpacePrefix && s.Kind == KindSentencePiece,
		first:  s.FirstOnly, unless: s.UnlessSpace, nfc: s.NFC && s.Kind == KindBPE,
	}
	for _, l := range []struct {
		ids []int32
		set func(*strip)
	}{{s.LStrip, func(x *strip) { x.left = true }}, {s.RStrip, func(x *strip) { x.right = true }}} {
		for _, id := range l.ids {
			if id < 0 || int(id) >= n {
				return nil, fmt.Errorf("tokenizer: token id %d, which is to take in white space, is outside the vocabulary of %d tokens", id, n)
			}
			if t.strips == nil {
				t.strips = make(map[int32]strip)
			}
			x := t.strips[id]
			l.set(&x)
			t.strips[id] = x
		}
	}
	for i := range t.types {
		t.types[i] = Normal
		if len(s.Types) != 0 {
			ty := TokenType(s.Types[i])
			if ty < Normal || ty > Byte {
				return nil, fmt.Errorf("tokenizer: token %d (%q) has type %d; known are %d to %d", i, s.Tokens[i], ty, Normal, Byte)
			}
			t.types[i] = ty
		}
	}
	size := 0
	for i, tok := range s.Tokens {
		size += len(tok)
		if tok != "" && (t.types[i] == Control || t.types[i] == UserDefined || t.types[i] == Unknown) {
			t.specials.add(tok, int32(i), t.types[i] == UserDefined)
		}
	}
	// A vocabulary has a quarter of a million tokens, so both halves of the work are done at a time.
	var work sync.WaitGroup
	var shared []int32 // tokens whose spelling an earlier one has
	work.Go(func() { shared = t.indexSpellings() })
	err := t.spell(&s, size)
	var words *bpe
	if err == nil && s.Kind == KindBPE {
		words, err = newBPE(t, &s)
	}
	work.Wait()
	switch {
	case err != nil:
	case words != nil:
		t.bpe = words
		words.pairs, err = newPairs(t, s.Merges, len(shared) > 0)
	default:
		t.spm, err = newSPM(t, &s, shared)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// indexSpellings fills in ids, and returns the tokens that are not in it, since an earlier one is spelled the
// same.
func (t *Tokenizer) indexSpellings() (shared []int32) {
	t.ids = newIndex(t.tokens)
	for i, tok := range t.tokens {
		if tok != "" && !t.ids.add(int32(i)) {
			shared = append(shared, int32(i))
		}
	}
	return shared
}

// spell fills in texts. size is the length of all spellings.
func (t *Tokenizer) spell(s *Spec, size int) error {
	if s.Kind != KindBPE && s.Kind != KindSentencePiece {
		return fmt.Errorf("tokenizer: kind %q is not known; known are %q (byte-level BPE) and %q (SentencePiece)", s.Kind, KindBPE, KindSentencePiece)
	}
	all, ends := make([]byte, 0, size), make([]int, len(s.Tokens))
	for i, tok := range s.Tokens {
		ty := t.types[i]
		switch verbatim := ty == Control || ty == Unknown; {
		case s.Kind == KindBPE:
			if verbatim || ty == UserDefined {
				all = append(all, tok...)
			} else {
				all = appendByteLevel(all, tok)
			}
		case ty == Byte:
			b, ok := byteToken(tok)
			if !ok {
				return fmt.Errorf("tokenizer: token %d (%q) is a byte token but not spelled <0x00> to <0xFF>", i, tok)
			}
			all = append(all, b)
		case verbatim || ty == UserDefined && !s.ByRank:
			all = append(all, tok...)
		default:
			all = appendSpaced(all, tok)
		}
		ends[i] = len(all)
	}
	t.texts = make([]string, len(ends))
	text, begin := string(all), 0
	for i, end := range ends {
		t.texts[i], begin = text[begin:end], end
	}
	return nil
}

// byteToken reads a byte token's spelling, such as <0x0A>.
func byteToken(s string) (byte, bool) {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return 0, false
	}
	v, err := strconv.ParseUint(s[3:5], 16, 8)
	return byte(v), err == nil
}

// Size is the number of tokens; ids run from 0 to Size−1. A model may have more logits than that.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// BOS is the id of the token that begins a text, −1 if there is none.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS is the id of the token that ends a text, −1 if there is none.
func (t *Tokenizer) EOS() int32 { return t.eos }

// UNK is the id of the token for what cannot be spelled, −1 if there is none.
func (t *Tokenizer) UNK() int32 { return t.unk }

// PAD is the id of the padding token, −1 if there is none.
func (t *Tokenizer) PAD() int32 { return t.pad }

// AddsBOS says whether Encode puts BOS first when it adds special tokens.
func (t *Tokenizer) AddsBOS() bool { return t.addBOS }

// Valid says whether id names a token.
func (t *Tokenizer) Valid(id int32) bool { return id >= 0 && int(id) < len(t.tokens) }

// IsSpecial says whether id is a token that skipSpecial leaves out of decoded text: a control or
// the unknown token. User-defined tokens are text, and so is every id that names no token not
// special.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return t.Valid(id) && (t.types[id] == Control || t.types[id] == Unknown)
}

// Type is the token's type; 0 if id names no token.
func (t *Tokenizer) Type(id int32) TokenType {
	if !t.Valid(id) {
		return 0
	}
	return t.types[id]
}

// Piece is the token's spelling in the vocabulary, such as "Ġthe", "▁the" or "<0x0A>"; empty if id
// names no token.
func (t *Tokenizer) Piece(id int32) string {
	if !t.Valid(id) {
		return ""
	}
	return t.tokens[id]
}

// ID finds a token by its spelling in the vocabulary (see Piece): the first one if several share it.
func (t *Tokenizer) ID(piece string) (int32, bool) {
	return t.ids.find([]byte(piece))
}

// AppendBytes appends the token's bytes as they stand in a text, which need not be valid UTF-8 on
// their own; for control and user-defined tokens their spelling. An id that names no token adds
// nothing.
func (t *Tokenizer) AppendBytes(dst []byte, id int32) []byte {
	return append(dst, t.text(id)...)
}

// text is the token as it stands in a text.
func (t *Tokenizer) text(id int32) string {
	if !t.Valid(id) {
		return ""
	}
	return t.texts[id]
}

// Encode returns the ids of text. With addSpecial, BOS and EOS are added as the vocabulary demands.
// With parseSpecial the spellings of control tokens in text become those tokens; without it they
// are ordinary text, as text from outside should be. User-defined tokens are found in either case.
// Text need not be valid UTF-8: a byte that is not part of a character is encoded as that byte.
func (t *Tokenizer) Encode(text string, addSpecial, parseSpecial bool) []int32 {
	// A token of running text has about four bytes.
	return t.AppendEncode(make([]int32, 0, len(text)/4+4), text, addSpecial, parseSpecial)
}

// AppendEncode is Encode into a slice of the caller's.
func (t *Tokenizer) AppendEncode(dst []int32, text string, addSpecial, parseSpecial bool) []int32 {
	if addSpecial && t.addBOS {
		dst = append(dst, t.bos)
	}
	w := t.scratch()
	afterSpecial := true
	for begin := true; len(text) > 0; begin = false {
		at, end, id := t.specials.find(text, parseSpecial)
		part := text[:at]
		text = text[end:]
		if s, ok := t.strips[id]; ok {
			if s.left {
				part = strings.TrimRightFunc(part, unicode.IsSpace)
			}
			if s.right {
				text = strings.TrimLeftFunc(text, unicode.IsSpace)
			}
		}
		if part != "" {
			if t.bpe != nil {
				if t.nfc {
					part = norm.NFC.String(part)
				}
				dst = t.bpe.encode(dst, part, w)
			} else {
				prefix := t.prefix && afterSpecial && (begin || !t.first) && (!t.unless || !strings.HasPrefix(part, " ") && !strings.HasPrefix(part, spaceMark))
				dst = t.spm.encode(dst, part, prefix, w)
			}
			afterSpecial = false
		}
		if id >= 0 {
			dst = append(dst, id)
			afterSpecial = true
		}
	}
	t.release(w)
	if addSpecial && t.addEOS {
		dst = append(dst, t.eos)
	}
	return dst
}

// strip says on which sides a special token takes in white space.
type strip struct{ left, right bool }

// work is the scratch memory of one Encode.
type work struct {
	sym  []symbol
	heap []candidate
	text []byte
}

// room returns empty memory for n symbols and about as many candidates. It is taken at once: growing
// step by step would take several times as much.
func (w *work) room(n int) ([]symbol, []candidate) {
	if cap(w.sym) < n {
		w.sym = make([]symbol, 0, n)
	}
	if cap(w.heap) < n {
		w.heap = make([]candidate, 0, n)
	}
	return w.sym[:0], w.heap[:0]
}

// workKeep bounds what scratch memory an idle tokenizer keeps, in elements.
const workKeep = 1 << 16

func (t *Tokenizer) scratch() *work {
	if w, ok := t.works.Get().(*work); ok {
		return w
	}
	return new(work)
}

func (t *Tokenizer) release(w *work) {
	if cap(w.sym) <= workKeep && cap(w.heap) <= workKeep && cap(w.text) <= workKeep {
		t.works.Put(w)
	}
}

// symbol is a part of a text under merging: a node in a doubly linked list laid out in a slice.
type symbol struct {
	prev, next int32 // −1 at the ends
	// is what the symbol is: byte-level BPE's token id, −1 once it was merged into its left
	// neighbour; SentencePiece's length in bytes, 0 once it was.
	is int32
	at int32 // SentencePiece: where it begins in the text, in bytes
}

// candidate is a merge that could be done, in the order in which merges are: lower key first, then
// the leftmost. The key is BPE's rank, or SentencePiece's place among the scores; the place is that
// of the left one of two symbols. What they are is not kept but looked up again: of a long word
// there are as many candidates as bytes. If the two that are there now have the same key, it is the
// same merge; if not, the candidate is stale.
type candidate uint64

func newCandidate(key uint32, left int32) candidate { return candidate(key)<<32 | candidate(left) }

func (c candidate) key() uint32 { return uint32(c >> 32) }
func (c candidate) left() int32 { return int32(uint32(c)) }

// push adds a candidate to the binary heap.
func push(h []candidate, c candidate) []candidate {
	h = append(h, c)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= c {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = c
	return h
}

// pop removes the first candidate from the heap, which must not be empty.
func pop(h []candidate) (candidate, []candidate) {
	top := h[0]
	last := h[len(h)-1]
	h = h[:len(h)-1]
	if len(h) > 0 {
		sift(h, 0, last)
	}
	return top, h
}

// sift places c at or below i.
func sift(h []candidate, i int, c candidate) {
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1] < h[down] {
			down++
		}
		if c <= h[down] {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = c
}

// heapify orders a slice of candidates as a heap.
func heapify(h []candidate) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		sift(h, i, h[i])
	}
}
