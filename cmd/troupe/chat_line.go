package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// editLine is a line of text that is being edited. What it goes by is the grapheme cluster, that which a
// person takes for one character: a letter with its accents, an emoji of several parts.
type editLine struct {
	text string
	at   int // where the cursor is, in bytes: at the beginning of a cluster, or the end
}

// next is the end of the cluster that begins at the cursor.
func (l *editLine) next() int { return l.at + len(cluster(l.text[l.at:])) }

// previous is the beginning of the cluster before the cursor.
func (l *editLine) previous() int {
	for i := 0; ; {
		n := i + len(cluster(l.text[i:]))
		if n >= l.at {
			return i
		}
		i = n
	}
}

// cluster is the first of a text.
func cluster(text string) string {
	first, _, _, _ := uniseg.FirstGraphemeClusterInString(text, -1)
	return first
}

func (l *editLine) insert(s string) {
	l.text, l.at = l.text[:l.at]+s+l.text[l.at:], l.at+len(s)
	if l.at < len(l.text) { // what was inserted may have joined with what follows
		end := l.at
		for l.at = 0; l.at < end; {
			l.at = l.next()
		}
	}
}

// erase removes what is between two places; the cursor is then there.
func (l *editLine) erase(from, to int) {
	l.text, l.at = l.text[:from]+l.text[to:], from
	l.insert("") // what was apart may have become one
}

// wordLeft and wordRight are the beginning of the word before the cursor, and of the next.
func (l *editLine) wordLeft() int {
	before := strings.TrimRight(l.text[:l.at], " ")
	return strings.LastIndexByte(before, ' ') + 1
}

func (l *editLine) wordRight() int {
	after := l.text[l.at:]
	space := strings.IndexByte(after, ' ')
	if space < 0 {
		return len(l.text)
	}
	return len(l.text) - len(strings.TrimLeft(after[space:], " "))
}

// place is one on the screen, from where the prompt begins.
type place struct{ row, column int }

// drawing is a line as it stands on the screen, below what was there before.
type drawing struct {
	w       io.Writer
	prompt  string
	columns int // of the terminal

	drawn editLine // what is on the screen
	begun bool     // there is any
	here  place    // of the cursor
}

// place is where the cursor is when it is at a byte of a text. A character that would not fit whole into a row
// begins the next, as terminals have it; so does the cursor after a row that is full.
func (d *drawing) place(text string, at int) place {
	p := place{column: d.promptWidth()}
	p.row, p.column = p.column/d.columns, p.column%d.columns
	state := -1
	for rest := text; ; {
		done := len(text) - len(rest)
		if rest == "" {
			if p.column >= d.columns {
				p = place{row: p.row + 1}
			}
			return p
		}
		var width int
		_, rest, width, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if width > 0 && p.column+width > d.columns {
			p = place{row: p.row + 1}
		}
		if done >= at {
			return p
		}
		p.column += width
	}
}

// promptWidth is how many columns the prompt takes, without its escape sequences.
func (d *drawing) promptWidth() int {
	return uniseg.StringWidth(string(new(plainText).appendPlain(nil, d.prompt)))
}

// show brings the screen up to date: by what is new alone, if it is letters at the end, or a move of
// the cursor; else the line is drawn anew.
func (d *drawing) show(l editLine) {
	var b bytes.Buffer
	end := d.place(l.text, len(l.text))
	more, longer := strings.CutPrefix(l.text, d.drawn.text)
	switch {
	case d.begun && l.text == d.drawn.text:
	case d.begun && longer && d.drawn.at == len(d.drawn.text) && !strings.ContainsFunc(more, func(r rune) bool { return r >= utf8.RuneSelf }):
		d.write(&b, more, end)
	default:
		if d.begun {
			b.WriteString(up(d.here.row) + "\r\x1b[J") // the end of the screen is erased from here
		}
		b.WriteString(d.prompt)
		d.write(&b, l.text, end)
	}
	to := d.place(l.text, l.at)
	if to != d.here {
		b.WriteString(up(d.here.row-to.row) + "\r")
		if to.column > 0 {
			fmt.Fprintf(&b, "\x1b[%dC", to.column)
		}
	}
	d.drawn, d.begun, d.here = l, true, to
	if b.Len() > 0 {
		_, _ = d.w.Write(b.Bytes())
	}
}

// write writes text up to the line's end. Terminals go to the next row only with the next character.
func (d *drawing) write(b *bytes.Buffer, text string, end place) {
	b.WriteString(text)
	if text != "" && end.column == 0 && end.row > 0 {
		b.WriteString("\r\n")
	}
	d.here = end
}

// resize takes the terminal's new width, to which it has wrapped what it shows.
func (d *drawing) resize(columns int) {
	if columns < 2 || columns == d.columns { // none in which a wide character has room
		return
	}
	d.columns = columns
	if d.begun {
		d.here = d.place(d.drawn.text, d.drawn.at)
	}
}

// up moves the cursor up by so many rows (ECMA-48, 8.3.22), or down (8.3.19) when they are negative.
func up(rows int) string {
	switch {
	case rows > 0:
		return fmt.Sprintf("\x1b[%dA", rows)
	case rows < 0:
		return fmt.Sprintf("\x1b[%dB", -rows)
	}
	return ""
}

// Keys that are no characters.
const (
	keyNone = -iota // something that is passed over
	keyLeft
	keyRight
	keyUp
	keyDown
	keyHome
	keyEnd
	keyBackspace
	keyDelete
	keyWordLeft
	keyWordRight
	keyEraseWord
	keyEraseBefore
	keyEraseAfter
	keyClear
	keyTab
	keyEnter
	keyInterrupt
	keyEndOfFile
)

// controls are the keys of control characters, as Emacs and GNU readline have them.
var controls = map[byte]rune{
	1: keyHome, 2: keyLeft, ctrlC: keyInterrupt, ctrlD: keyEndOfFile, 5: keyEnd, 6: keyRight, '\b': keyBackspace, '\t': keyTab, '\n': keyEnter,
	11: keyEraseAfter, 12: keyClear, '\r': keyEnter, 14: keyDown, 16: keyUp, 21: keyEraseBefore, 23: keyEraseWord, '\x7f': keyBackspace,
}

// sequences are what follows ESC [ or ESC O (xterm's control sequences, and the Linux console's).
var sequences = map[string]rune{
	"A": keyUp, "B": keyDown, "C": keyRight, "D": keyLeft, "H": keyHome, "F": keyEnd,
	"1~": keyHome, "7~": keyHome, "4~": keyEnd, "8~": keyEnd, "3~": keyDelete,
	"1;3C": keyWordRight, "1;3D": keyWordLeft, "1;5C": keyWordRight, "1;5D": keyWordLeft,
}

// readKey takes a key off what a terminal sends: a character, or one of the constants. n is how many
// bytes it is; 0: its end is still to come.
func readKey(b []byte) (key rune, n int) {
	switch {
	case len(b) == 0:
		return keyNone, 0
	case b[0] == '\x1b':
		return readSequence(b)
	case b[0] < ' ' || b[0] == '\x7f':
		return controls[b[0]], 1
	case !utf8.FullRune(b):
		return keyNone, 0
	}
	r, n := utf8.DecodeRune(b)
	if r == utf8.RuneError && n == 1 || unicode.IsControl(r) {
		return keyNone, n
	}
	return r, n
}

func readSequence(b []byte) (key rune, n int) {
	if len(b) < 2 {
		return keyNone, 0
	}
	switch b[1] {
	case 'b':
		return keyWordLeft, 2
	case 'f':
		return keyWordRight, 2
	case '\x7f', '\b':
		return keyEraseWord, 2
	case '[', 'O':
		for i, c := range b[2:min(len(b), 2+maxControl)] {
			if c >= '@' && c <= '~' { // final (ECMA-48, 5.4)
				return sequences[string(b[2:3+i])], 3 + i
			}
			if c < ' ' || c > '~' {
				return keyNone, 2 + i // broken off
			}
		}
		if len(b) >= 2+maxControl {
			return keyNone, len(b)
		}
		return keyNone, 0
	}
	return keyNone, 1 // Escape, and then another key
}

// printables drops what would command the terminal, as it may stand in a history that was not
// written here.
func printables(s string) string { return string(new(plainText).appendPlain(nil, s)) }
