package tokenizer

import (
	"fmt"
	"math"
	"strings"
	"sync/atomic"
)

// bpe is byte-level byte-pair encoding: a text is cut into words, each word is a row of bytes, and
// neighbours are merged, always the pair of the lowest rank (the leftmost first), until no merge is
// left.
type bpe struct {
	pre     pre
	classes *classes
	byteID  [256]int32 // the token of a single byte, −1: the vocabulary has none
	pairs   pairTable
	words   index // by bytes, of the tokens that text may become
	longest int   // bytes of the longest of them
	// direct remembers by id whether merging the token's bytes gives just that token, in which case
	// a word that is a token needs no merging: 0 not yet known, 1 yes, 2 no. Atomic.
	direct []atomic.Uint32
}

// newBPE makes all but the pairs.
func newBPE(t *Tokenizer, s *Spec) (*bpe, error) {
	p, err := preTokenizer(s.Pre)
	if err != nil {
		return nil, err
	}
	if s.IgnoreMerges != nil {
		p.wholeWords = *s.IgnoreMerges
	}
	b := &bpe{pre: p, classes: classTable(), direct: make([]atomic.Uint32, len(s.Tokens))}
	b.words = newIndex(t.texts)
	for i := range b.byteID {
		b.byteID[i] = -1
	}
	for i := range s.Tokens {
		id := int32(i)
		if t.types[i] == Control || t.types[i] == Unknown || t.types[i] == Unused {
			continue // never made from text
		}
		text := t.texts[id]
		if text == "" || !b.words.add(id) {
			continue
		}
		b.longest = max(b.longest, len(text))
		if len(text) == 1 {
			b.byteID[text[0]] = id
		}
	}
	return b, nil
}

// newPairs makes the table of merges, which are pairs of tokens by their spelling. shared says that tokens
// share spellings; then the first one of a spelling is meant.
func newPairs(t *Tokenizer, merges []string, shared bool) (pairTable, error) {
	pairs := newPairTable(len(merges))
	next := int32(0)  // what a merge makes is most often the token behind what the last one made
	var joined []byte // a merge without its separator
	for rank, m := range merges {
		// The separator is a space; a token spelled in the byte-level alphabet has none, but one
		// that begins with a space is let pass.
		at := -1
		if len(m) > 1 {
			at = strings.IndexByte(m[1:], ' ') + 1
		}
		if at < 1 || at+1 >= len(m) {
			return pairs, fmt.Errorf("tokenizer: merge %d (%q) is not two tokens separated by a space", rank, m)
		}
		left, right := m[:at], m[at+1:]
		joined = append(append(joined[:0], left...), right...)
		var id [3]int32
		for i, piece := range [3][]byte{joined[:at], joined[at:], joined} {
			var ok bool
			if i == 2 && !shared && int(next) < len(t.tokens) && t.tokens[next] == string(joined) {
				id[i] = next
			} else if id[i], ok = t.ids.find(piece); !ok {
				return pairs, fmt.Errorf("tokenizer: merge %d (%q) needs %q, which is not in the vocabulary", rank, m, piece)
			}
		}
		next = id[2] + 1
		pairs.add(id[0], id[1], uint32(rank), id[2])
	}
	return pairs, nil
}

// encode appends the ids of text, which has no special tokens in it.
func (b *bpe) encode(dst []int32, text string, w *work) []int32 {
	for at := 0; at < len(text); {
		end := b.pre.next(b.classes, text, at)
		dst = b.word(dst, text[at:end], w)
		at = end
	}
	return dst
}

// word appends the ids of one word.
func (b *bpe) word(dst []int32, word string, w *work) []int32 {
	if len(word) <= b.longest {
		if id, ok := b.words.find([]byte(word)); ok {
			if b.pre.wholeWords {
				return append(dst, id)
			}
			switch b.direct[id].Load() {
			case 1:
				return append(dst, id)
			case 0:
				from := len(dst)
				dst = b.merge(dst, word, w)
				state := uint32(2)
				if len(dst) == from+1 && dst[from] == id {
					state = 1
				}
				b.direct[id].Store(state)
				return dst
			}
		}
	}
	return b.merge(dst, word, w)
}

// scanLimit is the length in bytes up to which looking for the best pair by scanning beats a heap.
const scanLimit = 64

// maxWord is the number of bytes that are merged as one word: places in it are numbered by int32.
const maxWord = math.MaxInt32

// merge appends the ids that merging gives for word.
func (b *bpe) merge(dst []int32, word string, w *work) []int32 {
	if len(word) <= scanLimit {
		return b.mergeScan(dst, word)
	}
	for len(word) > maxWord {
		dst = b.mergeHeap(dst, word[:maxWord], w)
		word = word[maxWord:]
	}
	return b.mergeHeap(dst, word, w)
}

// mergeScan merges in place in a small array, looking at all pairs for the best one each time.
func (b *bpe) mergeScan(dst []int32, word string) []int32 {
	type part struct {
		id   int32
		into int32  // what merging with the next part makes
		rank uint32 // of that merge; noRank: none
	}
	var parts [scanLimit]part
	n := 0
	for i := range len(word) {
		// A byte that the vocabulary cannot spell is left out, as the reference does.
		if id := b.byteID[word[i]]; id >= 0 {
			parts[n].id = id
			n++
		}
	}
	if n == 0 {
		return dst
	}
	for i := 0; i+1 < n; i++ {
		parts[i].rank, parts[i].into = b.pairs.find(parts[i].id, parts[i+1].id)
	}
	parts[n-1].rank = noRank
	for n > 1 {
		best := 0
		for i := 1; i+1 < n; i++ {
			if parts[i].rank < parts[best].rank {
				best = i
			}
		}
		if parts[best].rank == noRank {
			break
		}
		parts[best].id = parts[best].into
		copy(parts[best+1:n-1], parts[best+2:n])
		n--
		if best > 0 {
			parts[best-1].rank, parts[best-1].into = b.pairs.find(parts[best-1].id, parts[best].id)
		}
		parts[best].rank = noRank
		if best+1 < n {
			parts[best].rank, parts[best].into = b.pairs.find(parts[best].id, parts[best+1].id)
		}
	}
	for i := range n {
		dst = append(dst, parts[i].id)
	}
	return dst
}

// mergeHeap merges with a heap of candidates over a linked list, so that a long word costs
// n log n.
func (b *bpe) mergeHeap(dst []int32, word string, w *work) []int32 {
	sym, heap := w.room(len(word))
	for i := range len(word) {
		if id := b.byteID[word[i]]; id >= 0 {
			n := int32(len(sym))
			sym = append(sym, symbol{prev: n - 1, next: n + 1, is: id})
		}
	}
	if len(sym) == 0 {
		w.sym, w.heap = sym, heap
		return dst
	}
	sym[len(sym)-1].next = -1
	for i := 0; i+1 < len(sym); i++ {
		if rank, _ := b.pairs.find(sym[i].is, sym[i+1].is); rank != noRank {
			heap = append(heap, newCandidate(rank, int32(i)))
		}
	}
	heapify(heap)
	for len(heap) > 0 {
		var c candidate
		c, heap = pop(heap)
		left := c.left()
		l := &sym[left]
		if l.is == dead || l.next < 0 {
			continue
		}
		r := &sym[l.next]
		rank, into := b.pairs.find(l.is, r.is)
		if rank != c.key() {
			continue // one of the two has been merged since
		}
		l.is, l.next = into, r.next
		r.is = dead
		if l.next >= 0 {
			next := &sym[l.next]
			next.prev = left
			if rank, _ := b.pairs.find(l.is, next.is); rank != noRank {
				heap = push(heap, newCandidate(rank, left))
			}
		}
		if l.prev >= 0 {
			if rank, _ := b.pairs.find(sym[l.prev].is, l.is); rank != noRank {
				heap = push(heap, newCandidate(rank, l.prev))
			}
		}
	}
	for i := int32(0); i >= 0; i = sym[i].next {
		dst = append(dst, sym[i].is)
	}
	w.sym, w.heap = sym, heap
	return dst
}

// dead marks a symbol that was merged into its left neighbour.
const dead = -1

// noRank is the rank of a pair that does not merge.
const noRank = ^uint32(0)

// pairTable maps a pair of ids to its merge: open addressing over a power of two, at most half
// full. It is filled once and then only read.
type pairTable struct {
	slots []pairSlot
	shift uint
}

type pairSlot struct {
	key  uint64 // left<<32 | right
	next uint32 // the rank + 1; 0: the slot is free
	into int32
}

func newPairTable(n int) pairTable {
	bits := uint(4)
	for 1<<bits < 2*n {
		bits++
	}
	return pairTable{slots: make([]pairSlot, 1<<bits), shift: 64 - bits}
}

// slot finds the pair's slot, or the free one where it belongs.
func (t *pairTable) slot(key uint64) *pairSlot {
	// Fibonacci hashing: the multiplier is 2⁶⁴ divided by the golden ratio.
	i := (key ^ key>>29) * 0x9E3779B97F4A7C15 >> t.shift
	for {
		s := &t.slots[i]
		if s.key == key || s.next == 0 {
			return s
		}
		i = (i + 1) & uint64(len(t.slots)-1)
	}
}

// add enters a merge; of two for the same pair the first counts.
func (t *pairTable) add(left, right int32, rank uint32, into int32) {
	key := uint64(uint32(left))<<32 | uint64(uint32(right))
	if s := t.slot(key); s.next == 0 {
		*s = pairSlot{key: key, next: rank + 1, into: into}
	}
}

func (t *pairTable) find(left, right int32) (rank uint32, into int32) {
	s := t.slot(uint64(uint32(left))<<32 | uint64(uint32(right)))
	return s.next - 1, s.into // of a free slot, noRank
}

// byteRune spells each byte by a printable character, as GPT-2 does: printable Latin-1 stands for
// itself, the other bytes in order for U+0100 and up.
var byteRune = func() (t [256]rune) {
	next := rune(256)
	for i := range t {
		if b := rune(i); b >= '!' && b <= '~' || b >= '¡' && b <= '¬' || b >= '®' {
			t[i] = b
		} else {
			t[i] = next
			next++
		}
	}
	return t
}()

// runeByte is byteRune's inverse: the byte + 1, or 0 where the character stands for none.
var runeByte = func() (t [324]uint16) {
	for b, r := range byteRune {
		t[r] = uint16(b) + 1
	}
	return t
}()

// appendByteLevel appends the bytes that a token's spelling stands for. A spelling with a character
// outside the alphabet stands for itself.
func appendByteLevel(dst []byte, s string) []byte {
	from := len(dst)
	for _, r := range s {
		if r < 0 || int(r) >= len(runeByte) || runeByte[r] == 0 {
			return append(dst[:from], s...)
		}
		dst = append(dst, byte(runeByte[r]-1))
	}
	return dst
}
