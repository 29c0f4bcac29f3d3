package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

// errInterrupted is Ctrl-C in place of a line; errNothing, its kind where nothing had been typed.
var (
	errInterrupted = errors.New("interrupted")
	errNothing     = fmt.Errorf("%w before anything was typed", errInterrupted)
)

// Within a line being edited these stand for what a line cannot hold, as it comes with pasted text
// and from the history.
const (
	newlineMark = "␤"
	tabMark     = "␉"
)

var (
	toMarks   = strings.NewReplacer("\r\n", newlineMark, "\n", newlineMark, "\r", newlineMark, "\t", tabMark)
	fromMarks = strings.NewReplacer(newlineMark, "\n", tabMark, "\t")
)

// lineEditor reads lines from a terminal, with editing and history. In between lines the terminal is as
// it was, so that Ctrl-C is a signal and output is plain.
type lineEditor struct {
	in      *os.File
	out     io.Writer
	keys    *keyReader
	history *history

	mu  sync.Mutex
	was *term.State // of the terminal, while a line is edited

	// complete returns what a line that begins with before could go on with, for the Tab key.
	complete func(before string) string
}

func newLineEditor(in *os.File, out io.Writer, h *history, complete func(string) string) *lineEditor {
	return &lineEditor{in: in, out: out, keys: &keyReader{from: in}, history: h, complete: complete}
}

// readLine shows the prompt and returns the next line: what was pasted may hold line feeds and tabs.
// The error is io.EOF at Ctrl-D in an empty line and when the terminal is gone.
func (e *lineEditor) readLine(prompt string) (string, error) {
	fd := int(e.in.Fd())
	was, err := term.MakeRaw(fd)
	if err != nil {
		return "", fmt.Errorf("the terminal cannot be set up for editing: %w", err)
	}
	e.mu.Lock()
	e.was = was
	e.mu.Unlock()
	defer e.restore()
	fmt.Fprint(e.out, "\x1b[?2004h") // bracketed paste (xterm's control sequences)

	d := &drawing{w: e.out, prompt: prompt, columns: 80}
	resize := func() {
		if width, _, err := term.GetSize(fd); err == nil {
			d.resize(width)
		}
	}
	resize()
	e.keys.begin(resize)
	line, err := e.edit(d)
	switch {
	case err == nil:
		fmt.Fprint(e.out, "\r\n")
		return fromMarks.Replace(line), nil
	case errors.Is(err, errInterrupted) && e.keys.typed == 0:
		fmt.Fprint(e.out, "\r\n")
		return "", errNothing
	case errors.Is(err, errInterrupted):
		fmt.Fprint(e.out, "^C\r\n")
		return "", errInterrupted
	}
	fmt.Fprint(e.out, "\r\n")
	return "", io.EOF
}

// edit follows the keys to the line's end. The error is errInterrupted at Ctrl-C, and io.EOF.
func (e *lineEditor) edit(d *drawing) (string, error) {
	var l editLine
	recalled, draft := -1, "" // which entry of the history is being edited, and what was before
	recall := func(i int) {
		if i < -1 || i >= e.history.Len() {
			return
		}
		if recalled < 0 {
			draft = l.text
		}
		if recalled, l.text = i, draft; i >= 0 {
			l.text = printables(e.history.At(i))
		}
		l.at = len(l.text)
	}
	var keys []byte
	var buf [1024]byte
	for {
		d.show(l)
		n, err := e.keys.Read(buf[:])
		keys = append(keys, buf[:n]...)
		for key, n := readKey(keys); n > 0; key, n = readKey(keys) {
			keys = keys[n:]
			switch key {
			case keyNone:
			case keyLeft:
				l.at = l.previous()
			case keyRight:
				l.at = l.next()
			case keyHome:
				l.at = 0
			case keyEnd:
				l.at = len(l.text)
			case keyWordLeft:
				l.at = l.wordLeft()
			case keyWordRight:
				l.at = l.wordRight()
			case keyBackspace:
				l.erase(l.previous(), l.at)
			case keyDelete:
				l.erase(l.at, l.next())
			case keyEraseWord:
				l.erase(l.wordLeft(), l.at)
			case keyEraseBefore:
				l.erase(0, l.at)
			case keyEraseAfter:
				l.erase(l.at, len(l.text))
			case keyUp:
				recall(recalled + 1)
			case keyDown:
				recall(recalled - 1)
			case keyTab:
				l.insert(e.complete(l.text[:l.at]))
			case keyClear:
				fmt.Fprint(e.out, "\x1b[H\x1b[2J")
				d.begun = false
			case keyEnter:
				l.at = len(l.text)
				d.show(l)
				return l.text, nil
			case keyInterrupt:
				l.at = len(l.text)
				d.show(l)
				return "", errInterrupted
			case keyEndOfFile:
				if l.text == "" {
					return "", io.EOF
				}
				l.erase(l.at, l.next())
			default:
				l.insert(string(key))
			}
		}
		if err != nil {
			return "", err
		}
	}
}

// restore makes the terminal what it was before a line was edited. It may be called in mid-line by another
// goroutine, when the program ends.
func (e *lineEditor) restore() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.was != nil {
		fmt.Fprint(e.out, "\x1b[?2004l")
		_ = term.Restore(int(e.in.Fd()), e.was)
		e.was = nil
	}
}

// keyReader is a terminal's input on its way to the line editor. It hands on no more than one line at a
// time, so that none is lost between the editors of two lines, and turns pasted text, which
// a terminal puts in brackets, into something that is edited like a line and does not send itself off.
type keyReader struct {
	from io.Reader

	read   []byte // from the terminal, not yet looked at
	ready  []byte // for the editor
	paste  bool   // within a paste
	cr     bool   // the last character of the paste was a carriage return
	before func() // called before each read

	typed       int  // bytes handed on since begin
	interrupted bool // a Ctrl-C was handed on since begin
}

var pasteBegin, pasteEnd = []byte("\x1b[200~"), []byte("\x1b[201~")

const (
	ctrlC = 3
	ctrlD = 4
)

// begin is called at the beginning of a line.
func (k *keyReader) begin(before func()) { k.typed, k.interrupted, k.before = 0, false, before }

// Read implements io.Reader.
func (k *keyReader) Read(p []byte) (int, error) {
	k.before()
	for len(k.ready) == 0 {
		if k.look() {
			break
		}
		var buf [1024]byte
		n, err := k.from.Read(buf[:])
		k.read = append(k.read, buf[:n]...)
		if err != nil && n == 0 {
			return 0, err
		}
	}
	n := copy(p, k.ready)
	k.ready = k.ready[n:]
	k.typed += n
	if k.interrupted = p[n-1] == ctrlC; k.interrupted {
		k.typed--
		k.read = nil // what was typed ahead was for what has been broken off
	}
	return n, nil
}

// look moves what can be handed on from read to ready, and says whether there is any.
func (k *keyReader) look() bool {
	for len(k.read) > 0 {
		bracket := pasteBegin
		if k.paste {
			bracket = pasteEnd
		}
		switch {
		case bytes.HasPrefix(k.read, bracket):
			k.read, k.paste, k.cr = k.read[len(bracket):], !k.paste, false
			continue
		case bytes.HasPrefix(bracket, k.read):
			return len(k.ready) > 0 // the rest is still to come
		}
		c := k.read[0]
		k.read = k.read[1:]
		if !k.paste {
			k.ready = append(k.ready, c)
			if c == '\r' || c == '\n' || c == ctrlC || c == ctrlD {
				break
			}
			continue
		}
		switch {
		case c == '\n' && k.cr: // of a carriage return and line feed
		case c == '\n' || c == '\r' || c == '\t':
			k.ready = append(k.ready, toMarks.Replace(string(c))...)
		case c >= ' ' && c != '\x7f':
			k.ready = append(k.ready, c)
		}
		k.cr = c == '\r'
	}
	return len(k.ready) > 0
}

// composer puts messages together from lines: one that ends in a backslash goes on in the next, and
// three quotes begin and end a block of several.
type composer struct {
	lines []string
	block bool
}

const quotes = `"""`

// add takes a line. done says that text is a message; verbatim, that it was in quotes and is no command.
func (c *composer) add(line string) (text string, verbatim, done bool) {
	switch {
	case c.block:
		rest, ended := strings.CutSuffix(strings.TrimRight(line, " "), quotes)
		if !ended {
			c.lines = append(c.lines, line)
			return "", false, false
		}
		if rest != "" {
			c.lines = append(c.lines, rest)
		}
	case len(c.lines) == 0 && strings.HasPrefix(strings.TrimLeft(line, " "), quotes):
		c.block = true
		if rest := strings.TrimLeft(line, " ")[len(quotes):]; rest != "" {
			return c.add(rest)
		}
		return "", false, false
	case strings.HasSuffix(line, `\`):
		c.lines = append(c.lines, strings.TrimSuffix(line, `\`))
		return "", false, false
	default:
		c.lines = append(c.lines, line)
	}
	text, verbatim = strings.Join(c.lines, "\n"), c.block
	*c = composer{}
	return text, verbatim, true
}

// open says whether a message has been begun.
func (c *composer) open() bool { return c.block || len(c.lines) > 0 }

// history are the messages sent before, kept in a file: one a line, with marks for line feeds and tabs.
type history struct {
	path    string // empty: no file
	entries []string
}

const (
	maxHistory      = 1000
	maxHistoryEntry = 16 << 10
)

// openHistory reads the file, if there is one, and shortens it when it has grown too long. An empty
// path keeps nothing on disk.
func openHistory(path string) (*history, error) {
	h := &history{path: path}
	if path == "" {
		return h, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return h, nil
	}
	if err != nil {
		return h, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4*maxHistoryEntry)
	n := 0
	for lines.Scan() {
		n++
		if utf8.ValidString(lines.Text()) {
			h.entries = append(h.entries, lines.Text())
		}
		if len(h.entries) > 2*maxHistory {
			h.bound()
		}
	}
	h.bound()
	if err := lines.Err(); err != nil {
		return h, fmt.Errorf("%s is no history of chats: %w", path, err)
	}
	if n < 2*maxHistory {
		return h, nil
	}
	return h, h.rewrite()
}

func (h *history) bound() {
	if over := len(h.entries) - maxHistory; over > 0 {
		h.entries = slices.Delete(h.entries, 0, over)
	}
}

// rewrite replaces the file by what is remembered.
func (h *history) rewrite() error {
	f, err := os.CreateTemp(filepath.Dir(h.path), ".chat-history-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(h.entries, "\n") + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), h.path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// remember adds a message, here and to the file.
func (h *history) remember(text string) error {
	entry := toMarks.Replace(text)
	if entry == "" || len(entry) > maxHistoryEntry || len(h.entries) > 0 && h.entries[len(h.entries)-1] == entry {
		return nil
	}
	h.entries = append(h.entries, entry)
	h.bound()
	if h.path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(h.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(h.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(entry + "\n")
	return errors.Join(err, f.Close())
}

// Len is how many messages there are.
func (h *history) Len() int { return len(h.entries) }

// At is the i-th message, 0 being the latest.
func (h *history) At(i int) string { return h.entries[len(h.entries)-1-i] }

// historyPath is where a user's history is kept; empty where there is no such place.
func historyPath() string {
	var dir string
	var err error
	switch runtime.GOOS {
	case "windows":
		dir, err = os.UserCacheDir() // %LocalAppData%
	case "darwin", "ios":
		dir, err = os.UserConfigDir()
	default: // https://specifications.freedesktop.org/basedir-spec: what outlives a restart, but is not configuration
		if dir = os.Getenv("XDG_STATE_HOME"); !filepath.IsAbs(dir) {
			if dir, err = os.UserHomeDir(); err == nil {
				dir = filepath.Join(dir, ".local", "state")
			}
		}
	}
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "troupe", "chat-history")
}
