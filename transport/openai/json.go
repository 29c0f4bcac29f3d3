package openai

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of objects and arrays in a body.
const maxDepth = 64

// maxMembers bounds the members of the body's own object. The API has about a hundred.
const maxMembers = 1024

// member is one member of a JSON object; raw is its value's text, already checked.
type member struct {
	name string
	raw  []byte
}

// scanner walks JSON text. Bodies are kept as text and each field is read by what wants it, so that
// a large array of token ids never becomes a tree of values.
type scanner struct {
	data []byte
	pos  int
}

// syntaxError says where JSON text is wrong.
type syntaxError struct {
	pos  int
	what string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.what, e.pos) }

func (s *scanner) fail(what string) error { return &syntaxError{s.pos, what} }

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, and 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.pos == len(s.data) {
		return 0
	}
	return s.data[s.pos]
}

// value checks one value, up to depth levels deep, and moves past it.
func (s *scanner) value(depth int) error {
	switch c := s.peek(); {
	case c == '{' || c == '[':
		if depth == 0 {
			return s.fail(fmt.Sprintf("objects and arrays are nested more than %d levels deep", maxDepth))
		}
		return s.compound(c, depth-1)
	case c == '"':
		return s.str()
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	case s.pos == len(s.data):
		return s.fail("unexpected end")
	default:
		return s.fail(fmt.Sprintf("unexpected %q where a value should be", rune(c)))
	}
}

// compound checks an object or an array; depth is what its members may nest.
func (s *scanner) compound(open byte, depth int) error {
	end := byte(']')
	if open == '{' {
		end = '}'
	}
	s.pos++
	if s.peek() == end {
		s.pos++
		return nil
	}
	for {
		if open == '{' {
			if s.peek() != '"' {
				return s.expected("a member's name in double quotes")
			}
			if err := s.str(); err != nil {
				return err
			}
			if s.peek() != ':' {
				return s.expected("a colon")
			}
			s.pos++
		}
		if err := s.value(depth); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.pos++
		case end:
			s.pos++
			return nil
		default:
			return s.expected("a comma or " + strconv.QuoteRune(rune(end)))
		}
	}
}

func (s *scanner) expected(what string) error {
	if s.pos == len(s.data) {
		return s.fail("unexpected end, where " + what + " should be")
	}
	return s.fail("expected " + what)
}

func (s *scanner) word(w string) error {
	if s.pos+len(w) > len(s.data) || string(s.data[s.pos:s.pos+len(w)]) != w {
		return s.fail("unexpected word")
	}
	s.pos += len(w)
	return nil
}

func (s *scanner) digits() bool {
	from := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > from
}

func (s *scanner) number() error {
	if s.data[s.pos] == '-' {
		s.pos++
	}
	zero := s.pos < len(s.data) && s.data[s.pos] == '0'
	from := s.pos
	if !s.digits() {
		return s.expected("a digit")
	}
	if zero && s.pos-from > 1 {
		s.pos = from
		return s.fail("a number may not begin with 0")
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		s.pos++
		if !s.digits() {
			return s.expected("a digit")
		}
	}
	if s.pos < len(s.data) && (s.data[s.pos] == 'e' || s.data[s.pos] == 'E') {
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		if !s.digits() {
			return s.expected("a digit")
		}
	}
	return nil
}

// str checks a string, its escapes and its UTF-8 included.
func (s *scanner) str() error {
	start := s.pos
	s.pos++
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return nil
		case c == '\\':
			if s.pos++; s.pos == len(s.data) {
				break
			}
			switch s.data[s.pos] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				s.pos++
			case 'u':
				if _, ok := hex4(s.data[s.pos+1:]); !ok {
					return s.fail("expected four hexadecimal digits after \\u")
				}
				s.pos += 5
			default:
				return s.fail("unknown escape in a string")
			}
		case c < ' ':
			return s.fail("control character in a string")
		case c < utf8.RuneSelf:
			s.pos++
		default:
			r, n := utf8.DecodeRune(s.data[s.pos:])
			if r == utf8.RuneError && n == 1 {
				return s.fail("invalid UTF-8 in a string")
			}
			s.pos += n
		}
	}
	s.pos = start
	return s.fail("unexpected end of the string that begins")
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// parseBody checks that body is exactly one JSON object and returns its members in order.
func parseBody(body []byte) ([]member, error) {
	s := scanner{data: body}
	if len(body) >= 3 && string(body[:3]) == "\ufeff" {
		s.pos = 3
	}
	if s.peek() == 0 && s.pos == len(body) {
		return nil, &syntaxError{0, "the body is empty"}
	}
	from := s.pos
	if err := s.value(maxDepth); err != nil {
		return nil, err
	}
	raw := body[from:s.pos]
	if s.space(); s.pos < len(body) {
		return nil, s.fail("something follows the JSON object")
	}
	if raw[0] != '{' {
		return nil, fmt.Errorf("the body must be a JSON object, got %s", kindOf(raw))
	}
	var fields []member
	for name, v := range members(raw) {
		if len(fields) == maxMembers {
			return nil, fmt.Errorf("the body has more than %d members", maxMembers)
		}
		fields = append(fields, member{name, v})
	}
	return fields, nil
}

// members yields the members of an object whose text has been checked.
func members(raw []byte) func(yield func(string, []byte) bool) {
	return func(yield func(string, []byte) bool) {
		s := scanner{data: raw, pos: 1}
		for s.peek() == '"' {
			from := s.pos
			_ = s.str()
			name := unquote(raw[from:s.pos])
			s.peek()
			s.pos++ // the colon
			s.space()
			from = s.pos
			_ = s.value(maxDepth)
			if !yield(name, raw[from:s.pos]) {
				return
			}
			s.peek()
			s.pos++ // the comma or the end
			s.space()
		}
	}
}

// elements yields the elements of an array whose text has been checked.
func elements(raw []byte) func(yield func(int, []byte) bool) {
	return func(yield func(int, []byte) bool) {
		s := scanner{data: raw, pos: 1}
		for i := 0; s.peek() != ']'; i++ {
			from := s.pos
			_ = s.value(maxDepth)
			if !yield(i, raw[from:s.pos]) {
				return
			}
			if s.peek() == ',' {
				s.pos++
			}
		}
	}
}

// unquote returns the text of a string that has been checked. Half of a surrogate pair becomes
// U+FFFD: clients that cut a string in the middle of an emoji send such.
func unquote(raw []byte) string {
	raw = raw[1 : len(raw)-1]
	i := 0
	for i < len(raw) && raw[i] != '\\' {
		i++
	}
	if i == len(raw) {
		return string(raw)
	}
	out := make([]byte, 0, len(raw))
	for {
		out = append(out, raw[:i]...)
		if raw = raw[i:]; len(raw) == 0 {
			return string(out)
		}
		switch c := raw[1]; c {
		case 'u':
			r, _ := hex4(raw[2:])
			raw = raw[6:]
			if utf16.IsSurrogate(r) {
				half := r
				r = utf8.RuneError
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					low, _ := hex4(raw[2:])
					if both := utf16.DecodeRune(half, low); both != utf8.RuneError {
						r, raw = both, raw[6:]
					}
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			switch c {
			case 'b':
				c = '\b'
			case 'f':
				c = '\f'
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case 't':
				c = '\t'
			}
			out = append(out, c)
			raw = raw[2:]
		}
		for i = 0; i < len(raw) && raw[i] != '\\'; i++ {
		}
	}
}

// kind is what a JSON value is, worded for a message.
type kind string

const (
	kindObject  kind = "an object"
	kindArray   kind = "an array"
	kindString  kind = "a string"
	kindNumber  kind = "a number"
	kindBoolean kind = "a boolean"
	kindNull    kind = "null"
)

func kindOf(raw []byte) kind {
	switch raw[0] {
	case '{':
		return kindObject
	case '[':
		return kindArray
	case '"':
		return kindString
	case 't', 'f':
		return kindBoolean
	case 'n':
		return kindNull
	}
	return kindNumber
}

// describe words a value for a message: what it is, or a number itself when it is short.
func describe(raw []byte) string {
	if k := kindOf(raw); k != kindNumber || len(raw) > 32 {
		return string(k)
	}
	return string(raw)
}

// parseInt reads a number that is whole, however it is written (8, 8.0, 8e0).
func parseInt(raw []byte) (int64, bool) {
	if kindOf(raw) != kindNumber || len(raw) > 64 {
		return 0, false
	}
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return v, true
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	// Beyond 2⁵³ a float64 no longer says which integer was meant.
	if err != nil || v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		return 0, false
	}
	return int64(v), true
}

// parseFloat reads a finite number.
func parseFloat(raw []byte) (float64, bool) {
	if kindOf(raw) != kindNumber {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	return v, err == nil
}

// appendCompact appends checked JSON text to dst without white space and with the strings escaped
// as appendString does, so that it fits into an SSE frame.
func appendCompact(dst, raw []byte) []byte {
	s := scanner{data: raw}
	for s.peek() != 0 {
		if raw[s.pos] != '"' {
			dst = append(dst, raw[s.pos])
			s.pos++
			continue
		}
		from := s.pos
		_ = s.str()
		dst = appendString(dst, unquote(raw[from:s.pos]))
	}
	return dst
}
