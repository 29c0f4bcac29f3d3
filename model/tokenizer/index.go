package tokenizer

import "hash/maphash"

// index finds tokens by a text of theirs: open addressing over a power of two, at most half full. The texts stay
// where they are, so it takes less memory than a map of them, and is filled in a fraction of the time. It is
// filled once and then only read.
type index struct {
	texts []string // by id
	slots []uint64 // the upper half of a text's hash, and below it the id + 1; 0: free
}

// seed is random, so that nobody can make up a vocabulary whose texts all have the same place.
var seed = maphash.MakeSeed()

func newIndex(texts []string) index {
	size := 16
	for size < 2*len(texts) {
		size *= 2
	}
	return index{texts, make([]uint64, size)}
}

// slot finds the text's slot, or the free one where it belongs, with the hash that it is to have.
func (x *index) slot(text []byte) (s *uint64, hash uint64) {
	hash = maphash.Bytes(seed, text)
	for at := hash; ; at++ {
		s := &x.slots[at&uint64(len(x.slots)-1)]
		if *s == 0 || *s>>32 == hash>>32 && x.texts[uint32(*s)-1] == string(text) {
			return s, hash
		}
	}
}

// add enters a token, unless there is one with the same text already.
func (x *index) add(id int32) (added bool) {
	s, hash := x.slot([]byte(x.texts[id]))
	if *s != 0 {
		return false
	}
	*s = hash>>32<<32 | uint64(id+1)
	return true
}

// find is the token with that text.
func (x *index) find(text []byte) (id int32, ok bool) {
	s, _ := x.slot(text)
	return int32(uint32(*s) - 1), *s != 0
}
