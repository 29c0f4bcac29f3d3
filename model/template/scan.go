package template

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// part is a piece of a template: literal text with white space control already applied, an
// expression {{ … }} or a statement {% … %}.
type part struct {
	kind   partKind
	line   int
	text   string  // partText
	tokens []token // partOutput, partStatement
}

type partKind uint8

const (
	partText partKind = iota
	partOutput
	partStatement
)

// token is a word of an expression.
type token struct {
	kind tokenKind
	text string // as the engine is to read it; of a string, its value
}

type tokenKind uint8

const (
	tokenName tokenKind = iota
	tokenNumber
	tokenString
	tokenOperator
)

func (t token) is(text string) bool {
	return t.text == text && (t.kind == tokenName || t.kind == tokenOperator)
}

// Bounds on a template's source, far above what templates have.
const (
	maxTagTokens = 8192 // words in a tag
	maxBrackets  = 64   // open brackets in a tag
	maxBlocks    = 64   // open blocks
)

// scanner cuts a template into parts, as jinja2's lexer does with trim_blocks and lstrip_blocks.
type scanner struct {
	src       string
	pos       int
	lineStart bool // what came last ended with a line break that was not kept
	parts     []part
}

func (s *scanner) errorf(pos int, format string, args ...any) error {
	return fmt.Errorf("template: line %d: %s", 1+strings.Count(s.src[:pos], "\n"), fmt.Sprintf(format, args...))
}

func scan(source string) ([]part, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	s := &scanner{src: strings.TrimSuffix(source, "\n"), lineStart: true}
	for s.pos < len(s.src) {
		if err := s.next(); err != nil {
			return nil, err
		}
	}
	return s.parts, nil
}

// next reads text up to a tag, and the tag.
func (s *scanner) next() error {
	at := s.pos
	for {
		i := strings.IndexByte(s.src[at:], '{')
		if i < 0 || at+i+1 >= len(s.src) {
			s.text(s.src[s.pos:])
			s.pos = len(s.src)
			return nil
		}
		at += i
		if c := s.src[at+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		at++
	}
	text, open := s.src[s.pos:at], at
	kind := s.src[at+1]
	at += 2
	sign := byte(0)
	if at < len(s.src) && (s.src[at] == '-' || s.src[at] == '+') {
		sign = s.src[at]
		at++
	}
	s.text(s.leading(text, sign, kind != '{'))
	if kind == '#' {
		i := strings.Index(s.src[at:], "#}")
		if i < 0 {
			return s.errorf(open, "a comment {# is not closed by #}")
		}
		sign = 0
		if i > 0 && (s.src[at+i-1] == '-' || s.src[at+i-1] == '+') {
			sign = s.src[at+i-1]
		}
		s.trailing(at+i+2, sign, true)
		return nil
	}
	if kind == '%' {
		if end, ok := s.rawBegin(at); ok {
			return s.raw(open, end)
		}
	}
	return s.tag(open, at, kind)
}

// leading takes off the white space before a tag that its sign, or lstrip_blocks, takes off.
func (s *scanner) leading(text string, sign byte, block bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case block && sign != '+':
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || s.lineStart) && strings.TrimLeftFunc(text[line:], isSpace) == "" {
			return text[:line]
		}
	}
	return text
}

// trailing goes on at pos, after a tag that ended with sign, past the white space that the sign, or
// trim_blocks, takes off.
func (s *scanner) trailing(pos int, sign byte, block bool) {
	s.pos = pos
	switch {
	case sign == '-':
		s.pos = len(s.src) - len(strings.TrimLeftFunc(s.src[pos:], isSpace))
	case block && sign != '+' && pos < len(s.src) && s.src[pos] == '\n':
		s.pos++
	}
	s.lineStart = s.src[s.pos-1] == '\n'
}

func (s *scanner) text(text string) {
	if text != "" {
		s.parts = append(s.parts, part{kind: partText, text: text})
	}
}

// word reads a tag of one word after its opening, such as raw: optional white space around it, then
// the end of the tag.
func (s *scanner) word(at int, word string) (end int, sign byte, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(s.src[at:], isSpace), word)
	if !ok {
		return 0, 0, false
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		sign, rest = rest[0], rest[1:]
	}
	if rest, ok = strings.CutPrefix(rest, "%}"); !ok {
		return 0, 0, false
	}
	return len(s.src) - len(rest), sign, true
}

func (s *scanner) rawBegin(at int) (end int, ok bool) {
	end, sign, ok := s.word(at, "raw")
	if !ok || sign == '+' {
		return 0, false
	}
	s.trailing(end, sign, false)
	return s.pos, true
}

// raw reads the text of a raw block, which begins at s.pos, and its end tag.
func (s *scanner) raw(open, from int) error {
	for at := from; ; {
		i := strings.Index(s.src[at:], "{%")
		if i < 0 {
			return s.errorf(open, "the raw block is not closed by {%% endraw %%}")
		}
		at += i
		p, sign := at+2, byte(0)
		if p < len(s.src) && (s.src[p] == '-' || s.src[p] == '+') {
			sign = s.src[p]
			p++
		}
		if end, closing, ok := s.word(p, "endraw"); ok {
			s.text(s.leading(s.src[from:at], sign, true))
			s.trailing(end, closing, true)
			return nil
		}
		at += 2
	}
}

// tag reads the words of an expression or statement from at on, and its end.
func (s *scanner) tag(open, at int, kind byte) error {
	p := part{kind: partOutput, line: 1 + strings.Count(s.src[:open], "\n")}
	closing := "}}"
	if kind == '%' {
		p.kind, closing = partStatement, "%}"
	}
	var brackets []byte
	for {
		if at >= len(s.src) {
			return s.errorf(open, "a tag is not closed by %s", closing)
		}
		rest := s.src[at:]
		if len(brackets) == 0 {
			for _, end := range []struct {
				text string
				sign byte
			}{{closing, 0}, {"-" + closing, '-'}, {"+" + closing, '+'}} {
				if strings.HasPrefix(rest, end.text) && (end.sign != '+' || kind == '%') {
					s.parts = append(s.parts, p)
					s.trailing(at+len(end.text), end.sign, kind == '%')
					return nil
				}
			}
		}
		if r, n := utf8.DecodeRuneInString(rest); isSpace(r) {
			at += n
			continue
		}
		t, n, err := s.token(at)
		if err != nil {
			return err
		}
		if t.kind == tokenOperator {
			switch t.text {
			case "(":
				brackets = append(brackets, ')')
			case "[":
				brackets = append(brackets, ']')
			case "{":
				brackets = append(brackets, '}')
			case ")", "]", "}":
				if len(brackets) == 0 || brackets[len(brackets)-1] != t.text[0] {
					return s.errorf(at, "unexpected %q", t.text)
				}
				brackets = brackets[:len(brackets)-1]
			}
		}
		last := len(p.tokens) - 1
		if t.kind == tokenString && last >= 0 && p.tokens[last].kind == tokenString {
			p.tokens[last].text += t.text // as in Python, neighbours are one string
		} else {
			p.tokens = append(p.tokens, t)
		}
		switch {
		case len(brackets) > maxBrackets:
			return s.errorf(at, "brackets are nested more than %d deep", maxBrackets)
		case len(p.tokens) > maxTagTokens:
			return s.errorf(open, "a tag has more than %d words", maxTagTokens)
		}
		at += n
	}
}

// symbols are the operators and brackets, the longer ones first.
var symbols = []string{"==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ","}

// token reads the word at s.src[at:] and its length.
func (s *scanner) token(at int) (token, int, error) {
	rest := s.src[at:]
	switch c := rest[0]; {
	case c == '\'' || c == '"':
		end := 1
		for {
			if end >= len(rest) {
				return token{}, 0, s.errorf(at, "a string is not closed")
			}
			if rest[end] == c {
				break
			}
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		return token{tokenString, unescape(rest[1:end])}, end + 1, nil
	case c >= '0' && c <= '9':
		return s.number(at)
	}
	n := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if n < 0 {
		n = len(rest)
	}
	if n > 0 {
		name := rest[:n]
		if strings.HasPrefix(name, own) {
			return token{}, 0, s.errorf(at, "names that begin with %q are reserved", own)
		}
		for i := range len(name) {
			if name[i] >= utf8.RuneSelf {
				return token{}, 0, s.errorf(at, "the name %q has letters outside ASCII, which are not supported", name)
			}
		}
		return token{tokenName, name}, n, nil
	}
	for _, op := range symbols {
		if strings.HasPrefix(rest, op) {
			return token{tokenOperator, op}, len(op), nil
		}
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return token{}, 0, s.errorf(at, "unexpected character %q", r)
}

// number reads a number in Python's notation and writes it as the engine reads it.
func (s *scanner) number(at int) (token, int, error) {
	rest := s.src[at:]
	digits := func(i int) int {
		for i < len(rest) && (rest[i] >= '0' && rest[i] <= '9' || rest[i] == '_' && i+1 < len(rest) && rest[i+1] != '_') {
			i++
		}
		return i
	}
	var n int
	if len(rest) > 2 && rest[0] == '0' && strings.ContainsRune("xXoObB", rune(rest[1])) {
		n = 2
		for n < len(rest) && (rest[n] == '_' || rest[n] >= '0' && rest[n] <= '9' || rest[n]|0x20 >= 'a' && rest[n]|0x20 <= 'f') {
			n++
		}
	} else {
		n = digits(0)
		float := false
		if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' && !(at > 0 && s.src[at-1] == '.') {
			n, float = digits(n+1), true
		}
		if n < len(rest) && rest[n]|0x20 == 'e' {
			e := n + 1
			if e < len(rest) && (rest[e] == '+' || rest[e] == '-') {
				e++
			}
			if e < len(rest) && rest[e] >= '0' && rest[e] <= '9' {
				n, float = digits(e), true
			}
		}
		if float {
			f, err := strconv.ParseFloat(strings.ReplaceAll(rest[:n], "_", ""), 64)
			if err != nil {
				return token{}, 0, s.errorf(at, "the number %.40s is out of range", rest[:n])
			}
			text := strconv.FormatFloat(f, 'f', -1, 64)
			if !strings.Contains(text, ".") {
				text += ".0"
			}
			return token{tokenNumber, text}, n, nil
		}
	}
	v, err := strconv.ParseInt(rest[:n], 0, 64)
	if err != nil {
		// Decimals may have leading zeroes only if they are all zeroes; base 0 takes more.
		v, err = strconv.ParseInt(strings.ReplaceAll(rest[:n], "_", ""), 10, 64)
	}
	if err != nil {
		return token{}, 0, s.errorf(at, "%.40s is not a number of 64 bits", rest[:n])
	}
	return token{tokenNumber, strconv.FormatInt(v, 10)}, n, nil
}

// unescape reads the escapes of a Python string.
func unescape(s string) string {
	if !strings.Contains(s, "\\") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 >= len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		hex := 0
		switch s[i] {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(s[i])
		case 'a':
			b.WriteByte('\a')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'v':
			b.WriteByte('\v')
		case 'x':
			hex = 2
		case 'u':
			hex = 4
		case 'U':
			hex = 8
		default:
			if c := s[i]; c >= '0' && c <= '7' {
				v, n := 0, 0
				for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
					v = v*8 + int(s[i+n]-'0')
					n++
				}
				b.WriteRune(rune(v))
				i += n - 1
				continue
			}
			b.WriteByte('\\')
			b.WriteByte(s[i])
		}
		if hex > 0 {
			if i+hex < len(s) {
				if v, err := strconv.ParseUint(s[i+1:i+1+hex], 16, 32); err == nil && v <= unicode.MaxRune {
					b.WriteRune(rune(v))
					i += hex
					continue
				}
			}
			b.WriteByte('\\')
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// isSpace is Python's str.isspace.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1C && r <= 0x1F
}
