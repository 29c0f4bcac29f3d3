package tokenizer

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// spaceMark stands for a space in SentencePiece's spellings.
const spaceMark = "▁"

// spm is SentencePiece's merging: a text is a row of characters, and neighbours whose union is a
// token are merged, always the one with the highest score (the leftmost first). Or, where merges are given,
// neighbours that are a merge's pair, in the order of ranks. What is no token in the end is spelled byte
// by byte.
type spm struct {
	t       *Tokenizer
	hidden  map[string]int32 // tokens that merging may make, but an earlier one with the same spelling may not be
	order   []uint32         // by id: 0 for the highest score, equal for equal scores
	pairs   *pairTable       // merges by rank; nil where scores are given
	cut     bool             // at each space
	longest int              // bytes of the longest piece
	byteID  [256]int32       // −1: the vocabulary has none
}

// newSPM makes what merges. shared are the tokens whose spelling an earlier one has.
func newSPM(t *Tokenizer, s *Spec, shared []int32) (*spm, error) {
	if !s.ByRank && len(s.Scores) != len(s.Tokens) {
		return nil, fmt.Errorf("tokenizer: %d scores for %d tokens", len(s.Scores), len(s.Tokens))
	}
	m := &spm{t: t, cut: s.SplitSpaces}
	for i := range m.byteID {
		m.byteID[i] = -1
	}
	for i, tok := range s.Tokens {
		if !s.ByRank && math.IsNaN(float64(s.Scores[i])) {
			return nil, fmt.Errorf("tokenizer: token %d (%q) has a score that is not a number", i, tok)
		}
		if t.types[i] == Byte {
			if b, _ := byteToken(tok); m.byteID[b] < 0 {
				m.byteID[b] = int32(i)
			}
		} else if m.makes(int32(i)) {
			m.longest = max(m.longest, len(tok))
		}
	}
	for _, id := range shared {
		tok := t.tokens[id]
		first, _ := t.ids.find([]byte(tok))
		if _, twice := m.hidden[tok]; m.makes(id) && !m.makes(first) && !twice {
			if m.hidden == nil {
				m.hidden = make(map[string]int32)
			}
			m.hidden[tok] = id
		}
	}
	if s.ByRank {
		pairs, err := newPairs(t, s.Merges, len(shared) > 0)
		m.pairs = &pairs
		return m, err
	}
	m.order = placesByScore(s.Scores)
	return m, nil
}

// makes says whether merging may make the token. Control tokens it may not, so that text can't spell one.
func (m *spm) makes(id int32) bool {
	switch m.t.types[id] {
	case Normal, UserDefined, Unused:
		return true
	}
	return false
}

// piece is the token that merging makes of a text.
func (m *spm) piece(text []byte) (id int32, ok bool) {
	id, ok = m.t.ids.find(text)
	if ok && !m.makes(id) {
		id, ok = m.hidden[string(text)]
	}
	return id, ok
}

// placesByScore is by id the place among all scores: 0 for the highest, equal for equal ones. None is NaN.
func placesByScore(scores []float32) []uint32 {
	// Numbers that are in the order of scores, the highest first, and below each the id.
	keys := make([]uint64, len(scores))
	for id, score := range scores {
		bits := math.Float32bits(score + 0) // -0 is 0
		if bits>>31 == 0 {
			bits ^= 1<<31 - 1
		}
		keys[id] = uint64(bits)<<32 | uint64(id)
	}
	slices.Sort(keys)
	places := make([]uint32, len(scores))
	place := 0
	for i, key := range keys {
		if i > 0 && key>>32 != keys[i-1]>>32 {
			place = i
		}
		places[uint32(key)] = uint32(place)
	}
	return places
}

// appendSpaced appends a spelling with spaces for their marks.
func appendSpaced(dst []byte, s string) []byte {
	for {
		before, after, found := strings.Cut(s, spaceMark)
		dst = append(dst, before...)
		if !found {
			return dst
		}
		dst = append(dst, ' ')
		s = after
	}
}

// encode appends the ids of text, which has no special tokens in it, with a space before it if
// prefix is set.
func (m *spm) encode(dst []int32, text string, prefix bool, w *work) []int32 {
	b := w.text[:0]
	if n := len(text) + len(spaceMark) + (len(spaceMark)-1)*strings.Count(text, " "); n > cap(b) {
		b = make([]byte, 0, n)
	}
	if prefix {
		b = append(b, spaceMark...)
	}
	for i := range len(text) {
		if text[i] == ' ' {
			b = append(b, spaceMark...)
		} else {
			b = append(b, text[i])
		}
	}
	w.text = b
	for m.cut {
		n := bytes.Index(b[min(len(b), len(spaceMark)):], []byte(spaceMark)) + len(spaceMark)
		if n < len(spaceMark) {
			break
		}
		dst = m.merge(dst, b[:n], w)
		b = b[n:]
	}
	// Symbols are numbered by int32; a longer text is encoded in parts of whole characters.
	for len(b) > maxSPMText {
		n := maxSPMText
		for n > maxSPMText-utf8.UTFMax && !utf8.RuneStart(b[n]) {
			n--
		}
		dst = m.merge(dst, b[:n], w)
		b = b[n:]
	}
	return m.merge(dst, b, w)
}

// maxSPMText is the number of bytes that are merged as one text.
const maxSPMText = math.MaxInt32 / 2

func (m *spm) merge(dst []int32, text []byte, w *work) []int32 {
	sym, heap := w.room(utf8.RuneCount(text))
	for at := 0; at < len(text); {
		_, n := utf8.DecodeRune(text[at:])
		i := int32(len(sym))
		sym = append(sym, symbol{prev: i - 1, next: i + 1, at: int32(at), is: int32(n)})
		at += n
	}
	if len(sym) == 0 {
		w.sym, w.heap = sym, heap
		return dst
	}
	sym[len(sym)-1].next = -1
	for i := 0; i+1 < len(sym); i++ {
		if _, key, ok := m.union(text, sym, int32(i), int32(i+1)); ok {
			heap = append(heap, newCandidate(key, int32(i)))
		}
	}
	heapify(heap)
	// unused remembers how a token that must not be produced was put together.
	var unused map[int32][2]string
	for len(heap) > 0 {
		var c candidate
		c, heap = pop(heap)
		left := c.left()
		l := &sym[left]
		if l.is == 0 || l.next < 0 {
			continue
		}
		id, key, ok := m.union(text, sym, left, l.next)
		if !ok || key != c.key() {
			continue // one of the two has been merged since
		}
		r := &sym[l.next]
		if m.t.types[id] == Unused {
			if unused == nil {
				unused = make(map[int32][2]string)
			}
			unused[id] = [2]string{string(text[l.at : l.at+l.is]), string(text[r.at : r.at+r.is])}
		}
		l.is += r.is
		l.next = r.next
		r.is = 0
		if l.next >= 0 {
			sym[l.next].prev = left
			if _, key, ok := m.union(text, sym, left, l.next); ok {
				heap = push(heap, newCandidate(key, left))
			}
		}
		if l.prev >= 0 {
			if _, key, ok := m.union(text, sym, l.prev, left); ok {
				heap = push(heap, newCandidate(key, l.prev))
			}
		}
	}
	for i := int32(0); i >= 0; i = sym[i].next {
		s := text[sym[i].at : sym[i].at+sym[i].is]
		if id, ok := m.piece(s); ok && m.t.types[id] != Unused {
			dst = append(dst, id)
		} else {
			dst = m.spell(dst, string(s), unused)
		}
	}
	w.sym, w.heap = sym, heap
	return dst
}

// union finds the token that two neighbours make together, and its place in the order of merging.
func (m *spm) union(text []byte, sym []symbol, left, right int32) (id int32, key uint32, ok bool) {
	l, r := &sym[left], &sym[right]
	if int(l.is)+int(r.is) > m.longest {
		return 0, 0, false
	}
	if m.pairs == nil {
		if id, ok = m.piece(text[l.at : r.at+r.is]); ok {
			key = m.order[id]
		}
		return id, key, ok
	}
	first, ok1 := m.piece(text[l.at:r.at])
	second, ok2 := m.piece(text[r.at : r.at+r.is])
	if !ok1 || !ok2 {
		return 0, 0, false
	}
	key, id = m.pairs.find(first, second)
	return id, key, key != noRank
}

// spell appends the token whose spelling is s, or what s is made of: the parts of an unused token,
// or the bytes of a single character.
func (m *spm) spell(dst []int32, s string, unused map[int32][2]string) []int32 {
	if id, ok := m.piece([]byte(s)); ok {
		if m.t.types[id] != Unused {
			return append(dst, id)
		}
		if parts, ok := unused[id]; ok {
			dst = m.spell(dst, parts[0], unused)
			return m.spell(dst, parts[1], unused)
		}
	}
	known := true
	for i := range len(s) {
		known = known && m.byteID[s[i]] >= 0
	}
	if !known {
		if m.t.unk >= 0 {
			dst = append(dst, m.t.unk)
		}
		return dst
	}
	for i := range len(s) {
		dst = append(dst, m.byteID[s[i]])
	}
	return dst
}
