package observe

import "unicode/utf8"

// appendQuoted appends s as a JSON string; what is not UTF-8 in it becomes U+FFFD.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	if plain(s) {
		return append(append(b, s...), '"')
	}
	from := 0 // s[from:i] needs no change
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			b = append(append(b, s[from:i]...), "\ufffd"...)
		} else if c < ' ' || c == 0x7f {
			b = append(append(b, s[from:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		} else if c == '"' || c == '\\' {
			b = append(append(b, s[from:i]...), '\\', c)
		} else {
			i++
			continue
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// plain says whether s is the same in JSON: printable ASCII without quotes and backslashes. It looks at
// eight bytes at a time, the last eight perhaps twice.
func plain(s string) bool {
	if len(s) < 8 {
		for i := range len(s) {
			if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
				return false
			}
		}
		return true
	}
	odd := uint64(0) // has the top bit of a byte that is not plain
	for i := 0; ; i += 8 {
		i = min(i, len(s)-8)
		w := uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
			uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
		// Borrows and carries come only from bytes that are not plain themselves.
		odd |= w | (w + each) | (w - each*' ') | ((w ^ each*'"') - each) | ((w ^ each*'\\') - each)
		if i == len(s)-8 {
			return odd&(each*0x80) == 0
		}
	}
}

// each times a byte is eight of them.
const each = 0x0101010101010101

// cut shortens s to at most limit bytes, at a character's boundary.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const dots = "…"
	end := limit - len(dots)
	for end > 0 && s[end]&0xC0 == 0x80 { // not in the middle of a character
		end--
	}
	return s[:end] + dots
}
