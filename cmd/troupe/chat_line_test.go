package main

import (
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/rivo/uniseg"
	"pgregory.net/rapid"
)

// emulator is a terminal without an end at its bottom, which knows what the line editor makes use of.
type emulator struct {
	columns     int
	cells       [][]string // a wide character is followed by an empty cell
	row, column int        // the column is that of a full row until the next character comes
}

func newEmulator(columns int) *emulator { return &emulator{columns: columns, cells: [][]string{nil}} }

// Write implements io.Writer.
func (e *emulator) Write(p []byte) (int, error) {
	s := string(p)
	for s != "" {
		switch {
		case s[0] == '\r':
			e.column, s = 0, s[1:]
		case s[0] == '\n':
			e.down()
			s = s[1:]
		case strings.HasPrefix(s, "\x1b["):
			end := 2 + strings.IndexFunc(s[2:], func(r rune) bool { return r >= '@' && r <= '~' })
			e.control(s[2:end], s[end])
			s = s[end+1:]
		default:
			end := strings.IndexAny(s, "\r\n\x1b")
			if end < 0 {
				end = len(s)
			}
			for g := uniseg.NewGraphemes(s[:end]); g.Next(); {
				e.put(g.Str(), g.Width())
			}
			s = s[end:]
		}
	}
	return len(p), nil
}

func (e *emulator) down() {
	if e.row++; e.row == len(e.cells) {
		e.cells = append(e.cells, nil)
	}
}

func (e *emulator) put(cluster string, width int) {
	if e.column+width > e.columns {
		e.down()
		e.column = 0
	}
	row := e.cells[e.row]
	for len(row) < e.column+width {
		row = append(row, " ")
	}
	for i := range width {
		row[e.column+i] = ""
	}
	row[e.column] = cluster
	e.cells[e.row] = row
	e.column += width
}

func (e *emulator) control(parameters string, final byte) {
	n := 1
	if v, err := strconv.Atoi(parameters); err == nil {
		n = v
	}
	e.column = min(e.column, e.columns-1)
	switch final {
	case 'A':
		e.row = max(e.row-n, 0)
	case 'B':
		e.row = min(e.row+n, len(e.cells)-1)
	case 'C':
		e.column = min(e.column+n, e.columns-1)
	case 'J':
		e.cells = e.cells[:e.row+1]
		e.cells[e.row] = e.cells[e.row][:min(e.column, len(e.cells[e.row]))]
	}
}

// text are the rows without the spaces at their ends.
func (e *emulator) text() (rows []string) {
	for _, r := range e.cells {
		rows = append(rows, strings.TrimRight(strings.Join(r, ""), " "))
	}
	return rows
}

// cursor is where the next character of this width would be put.
func (e *emulator) cursor(width int) place {
	if e.column+width > e.columns {
		return place{row: e.row + 1}
	}
	return place{e.row, e.column}
}

func TestWhatIsOnTheScreenIsTheLineAndTheCursorStandsWhereItIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(6, 14).Draw(t, "columns")
		e := newEmulator(columns)
		d := &drawing{w: e, prompt: rapid.SampledFrom([]string{"> ", "\x1b[1m>>> \x1b[m"}).Draw(t, "prompt"), columns: columns}
		var l editLine
		for range rapid.IntRange(1, 40).Draw(t, "keys") {
			switch key := rapid.SampledFrom([]string{"type", "type", "type", "left", "right", "home", "backspace", "delete", "word"}).Draw(t, "key"); key {
			case "type":
				l.insert(rapid.SampledFrom([]string{"a", "b", " ", "日", "e\u0301", "👍🏽", "👨\u200d👩\u200d👧", "🇩🇪", "ﾊ", "long words"}).Draw(t, "character"))
			case "left":
				l.at = l.previous()
			case "right":
				l.at = l.next()
			case "home":
				l.at = 0
			case "backspace":
				l.erase(l.previous(), l.at)
			case "delete":
				l.erase(l.at, l.next())
			case "word":
				l.erase(l.wordLeft(), l.at)
			}
			d.show(l)

			// What a terminal makes of the text by itself.
			want := newEmulator(columns)
			_, _ = want.Write([]byte(d.prompt + l.text))
			rows, wanted := e.text(), want.text()
			for len(rows) > len(wanted) && rows[len(rows)-1] == "" {
				rows = rows[:len(rows)-1]
			}
			if !slices.Equal(rows, wanted) {
				t.Fatalf("%q is shown as %q, want %q", l.text, rows, wanted)
			}
			before := newEmulator(columns)
			_, _ = before.Write([]byte(d.prompt + l.text[:l.at]))
			at := before.cursor(max(1, uniseg.StringWidth(cluster(l.text[l.at:]))))
			if (place{e.row, e.column}) != at {
				t.Fatalf("%q: the cursor is at %d, %d, want %+v, before %q", l.text, e.row, e.column, at, l.text[l.at:])
			}
		}
	})
}

func TestKeysEditALine(t *testing.T) {
	h := &history{entries: []string{"older", "one\x1b[2J two"}}
	for keys, want := range map[string]string{
		"plain\r":                   "plain",
		"wrld\x1b[D\x1b[D\x1b[Do\r": "world",
		"日本\x7f語\r":                 "日語",
		"e\u0301x\x02\x7f\r":        "x",
		"👨\u200d👩\u200d👧!\x1b[D\x1b[D\x1b[3~\r": "!",
		"one two\x17three\r":                    "one three",
		"one two\x1bb\x1bb\x1bfx\r":             "one xtwo",
		"one two\x1b[1;5D\x0b\r":                "one ",
		"one two\x1b[1~\x1b[C\x15\r":            "ne two",
		"bc\x01a\x05d\r":                        "abcd",
		"ab\x1b[D\x04\r":                        "a",
		"\x1b[A\r":                              "one two",
		"\x1b[A\x1b[A\x1b[A\r":                  "older",
		"new\x1b[A\x1b[B\r":                     "new",
		"\x1b[A\x1b[A\x1b[B\x10\x0e!\r":         "one two!",
		"/h\t\r":                                "/help",
		"a\x1b[99;99~b\x1bOQc\x1b\x1b[Dd\r":     "abdc",
		"\x1b[200~pasted\nlines\x1b[201~ x\r":   "pasted␤lines x",
		"bad \xff\xe6\x97x\r":                   "bad x",
		"a\x00b\x0cc\n":                         "abc",
	} {
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(keys), "byte by byte": iotest.OneByteReader(strings.NewReader(keys))} {
			screen := newEmulator(30)
			e := &lineEditor{out: screen, keys: &keyReader{from: r}, history: h, complete: completeCommand}
			e.keys.begin(func() {})
			got, err := e.edit(&drawing{w: screen, prompt: "> ", columns: 30})
			if err != nil || got != want {
				t.Errorf("%q %s: %q, %v; want %q", keys, name, got, err, want)
			}
			if rows := strings.Join(screen.text(), ""); !strings.HasSuffix(rows, strings.TrimRight("> "+want, " ")) {
				t.Errorf("%q %s: the screen has %q", keys, name, rows)
			}
		}
	}
	for keys, want := range map[string]error{"\x04": io.EOF, "ab": io.EOF, "ab\x03": errInterrupted, "": io.EOF} {
		e := &lineEditor{out: io.Discard, keys: &keyReader{from: strings.NewReader(keys)}, history: h, complete: completeCommand}
		e.keys.begin(func() {})
		if got, err := e.edit(&drawing{w: io.Discard, columns: 30}); !errors.Is(err, want) {
			t.Errorf("%q: %q, %v; want %v", keys, got, err, want)
		}
	}
}

// A terminal that is made narrower wraps what it shows itself: from there on the line goes by the new width.
func TestALineGoesByTheNewWidthOfTheTerminal(t *testing.T) {
	d := &drawing{w: io.Discard, prompt: "> ", columns: 20}
	l := editLine{text: "日本語 text", at: len("日本語")}
	d.show(l)
	if d.here != (place{0, 8}) {
		t.Fatalf("%+v", d.here)
	}
	d.resize(5)
	if want := (place{1, 4}); d.here != want { // ">_日", "本語", " text"
		t.Errorf("%+v, want %+v", d.here, want)
	}
	d.resize(0)
	if d.columns != 5 {
		t.Errorf("a terminal of no width leaves %d columns", d.columns)
	}
}

func FuzzAnyKeysAreReadToTheirEnd(f *testing.F) {
	f.Add([]byte("\x1b[1;5Dx\x1b"))
	f.Add([]byte("\xe6\x97\xa5\xff\x1bO"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			key, n := readKey(b)
			if n < 0 || n > len(b) {
				t.Fatalf("%q: %d bytes", b, n)
			}
			if n == 0 {
				if key != keyNone || len(b) > 2+maxControl {
					t.Fatalf("%q is waited for", b)
				}
				return
			}
			b = b[n:]
		}
	})
}
