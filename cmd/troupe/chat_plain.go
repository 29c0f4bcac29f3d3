package main

import (
	"strings"
	"unicode/utf8"
)

// plainText lets through what is text, and drops what would command a terminal: control characters
// other than line feed and tab, escape sequences as a whole, and the marks that turn the direction of
// writing around. A model's text may hold them by accident, or because somebody put them into its
// prompt. The zero plainText is ready; it carries a sequence that is cut by the end of one piece over
// to the next.
type plainText struct {
	state plainState
	n     int // characters of the sequence so far
}

type plainState uint8

const (
	inText          plainState = iota
	inEscape                   // after ESC
	inControl                  // after ESC [, up to a final letter (ECMA-48, 5.4)
	inString                   // after ESC ], ESC P and the like, up to ST (ECMA-48, 5.6) or, as terminals take it, BEL
	inStringsEscape            // after an ESC in a string: its end if a backslash follows
)

// Longest sequences that are believed to be such. What is longer is shown as text from there on, so
// that a string which never ends does not swallow the rest of an answer.
const (
	maxControl = 64
	maxString  = 4096
)

// appendPlain appends what remains of s.
func (p *plainText) appendPlain(dst []byte, s string) []byte {
	for _, r := range s {
		if p.take(r) {
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// take says whether r is text.
func (p *plainText) take(r rune) bool {
	p.n++
	switch p.state {
	case inEscape:
		switch {
		case r >= ' ' && r <= '/': // intermediate
			if p.n <= maxControl {
				return false
			}
		case r == '[':
			return p.enter(inControl)
		case r == ']' || r == 'P' || r == 'X' || r == '^' || r == '_':
			return p.enter(inString)
		case r >= '0' && r <= '~': // final
			return p.enter(inText)
		}
	case inControl:
		switch {
		case r >= ' ' && r <= '?' && p.n <= maxControl:
			return false
		case r >= '@' && r <= '~':
			return p.enter(inText)
		}
	case inString:
		switch {
		case r == '\a' || r == '\u009c':
			return p.enter(inText)
		case r == '\x1b':
			p.state = inStringsEscape
			return false
		case r != '\n' && p.n <= maxString:
			return false
		}
	case inStringsEscape:
		if r == '\\' {
			return p.enter(inText)
		}
		p.enter(inEscape) // the string was broken off by another sequence
		return p.take(r)
	}
	// In text, or where a sequence was broken off.
	p.enter(inText)
	switch {
	case r == '\n' || r == '\t':
		return true
	case r == '\x1b':
		return p.enter(inEscape)
	case r == '\u009b': // the same of one character, as are the next
		return p.enter(inControl)
	case r == '\u0090' || r == '\u0098' || r >= '\u009d' && r <= '\u009f':
		return p.enter(inString)
	case r < ' ' || r >= '\x7f' && r <= '\u009f':
		return false
	case r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069': // bidirectional embeddings and isolates
		return false
	}
	return true
}

// enter changes the state; it returns false, which is what take then says.
func (p *plainText) enter(s plainState) bool {
	p.state, p.n = s, 0
	return false
}

// printable makes a text from a server fit for one line of a message.
func printable(s string) string {
	const most = 500
	var p plainText
	s = strings.Join(strings.Fields(string(p.appendPlain(nil, s))), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
