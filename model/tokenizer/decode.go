package tokenizer

import (
	"unicode/utf8"
	"unsafe"
)

// Decode returns the text of ids. With skipSpecial, control tokens are left out. Bytes that are not
// UTF-8 become U+FFFD, one for each maximal subpart (Unicode 3.9, as Python's errors="replace" and
// Rust's from_utf8_lossy do). Ids that name no token are left out. A SentencePiece vocabulary with
// a space prefix loses one space at the start of the text.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	d := t.NewDecoder(skipSpecial)
	dst := make([]byte, 0, 4*len(ids)+utf8.UTFMax)
	for _, id := range ids {
		dst = d.Push(dst, id)
	}
	dst = d.Flush(dst)
	return unsafe.String(unsafe.SliceData(dst), len(dst)) // dst is not written to again
}

// Decoder turns ids into text as they come. It is a small value owned by one text; a copy goes on
// independently from where it was copied. What Push and Flush append, taken together, is what Decode
// gives for all the ids.
type Decoder struct {
	t    *Tokenizer
	skip bool
	trim bool    // a space that comes first is still to be dropped
	n    uint8   // bytes in tail
	tail [3]byte // the beginning of a character whose rest has not come yet
}

// NewDecoder begins a text.
func (t *Tokenizer) NewDecoder(skipSpecial bool) Decoder {
	return Decoder{t: t, skip: skipSpecial, trim: t.prefix}
}

// Continue says that what follows continues a text, such as a prompt: no space is dropped from its
// start.
func (d *Decoder) Continue() { d.trim = false }

// Push appends to dst the characters that id completes, and returns it. An incomplete character at
// the end is kept back.
func (d *Decoder) Push(dst []byte, id int32) []byte {
	if d.skip && d.t.IsSpecial(id) {
		return dst
	}
	b := d.t.text(id)
	if len(b) == 0 {
		return dst
	}
	if d.trim {
		d.trim = false
		if b[0] == ' ' {
			b = b[1:]
		}
	}
	for d.n > 0 && len(b) > 0 {
		// Complete the character that the last token left open, byte by byte.
		var c [utf8.UTFMax]byte
		n := copy(c[:], d.tail[:d.n])
		c[n] = b[0]
		if !utf8.FullRune(c[:n+1]) {
			d.tail[d.n] = b[0]
			d.n++
			b = b[1:]
			continue
		}
		if _, size := utf8.DecodeRune(c[:n+1]); size == n+1 {
			dst = append(dst, c[:n+1]...)
			b = b[1:]
		} else {
			dst = append(dst, replacement...)
		}
		d.n = 0
	}
	for len(b) > 0 {
		if b[0] < utf8.RuneSelf {
			dst = append(dst, b[0])
			b = b[1:]
			continue
		}
		r, size := utf8.DecodeRuneInString(b)
		if r != utf8.RuneError || size > 1 {
			dst = append(dst, b[:size]...)
			b = b[size:]
			continue
		}
		if !utf8.FullRuneInString(b) {
			d.n = uint8(copy(d.tail[:], b))
			break
		}
		// Not UTF-8: drop the longest beginning that could have become a character, or one byte.
		size = 1
		if !utf8.FullRuneInString(b[:1]) {
			for !utf8.FullRuneInString(b[:size+1]) { // ends: b as a whole is full
				size++
			}
		}
		dst = append(dst, replacement...)
		b = b[size:]
	}
	return dst
}

// Flush ends the text: an incomplete character becomes U+FFFD. The decoder then stands at the
// beginning of a continued text.
func (d *Decoder) Flush(dst []byte) []byte {
	if d.n > 0 {
		dst = append(dst, replacement...)
		d.n = 0
	}
	d.trim = false
	return dst
}

// Incomplete says whether an incomplete character is kept back.
func (d *Decoder) Incomplete() bool { return d.n > 0 }

const replacement = "\uFFFD"
