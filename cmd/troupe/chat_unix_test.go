//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// person is somebody at a terminal in which the program runs.
type person struct {
	t    *testing.T
	keys *os.File // the terminal's own end
	tty  *os.File // the program's, held open so that the terminal outlives it
	seen *transcript
	from int // what has been looked at
	cmd  *exec.Cmd
	done chan struct{}

	ended error // when done is closed
}

// sit starts `troupe chat` in a terminal.
func sit(t *testing.T, history string, args ...string) *person {
	t.Helper()
	return sitAt(t, 200, history, args...)
}

// sitAt is sit at a terminal of so many columns.
func sitAt(t *testing.T, columns uint16, history string, args ...string) *person {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p := &person{t: t, seen: &transcript{}, done: make(chan struct{})}
	p.cmd = command(t, ctx, append([]string{"chat", "--history=" + history}, args...)...)
	p.cmd.Env = append(p.cmd.Env, "NO_COLOR=1", "TERM=xterm")
	var err error
	if p.keys, p.tty, err = pty.Open(); err != nil {
		t.Skip("there are no terminals here: ", err)
	}
	if err := pty.Setsize(p.tty, &pty.Winsize{Rows: 30, Cols: columns}); err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.tty, p.tty, p.tty
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended = p.cmd.Wait(); close(p.done) }()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := p.keys.Read(buf)
			_, _ = p.seen.Write(buf[:n])
			if err != nil { // closed
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		p.tty.Close()
		p.keys.Close()
	})
	return p
}

func (p *person) types(keys string) {
	p.t.Helper()
	if _, err := p.keys.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// sees waits until the terminal shows the text, after what was looked at before.
func (p *person) sees(text string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		seen := p.seen.String()
		if i := strings.Index(seen[p.from:], text); i >= 0 {
			p.from += i + len(text)
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("the terminal does not show %q: %q", text, seen[p.from:])
		}
	}
}

// mode is what the terminal makes of keys.
func (p *person) mode() term.State {
	p.t.Helper()
	s, err := term.GetState(int(p.tty.Fd()))
	if err != nil {
		p.t.Fatal(err)
	}
	return *s
}

// leaves waits for the program's end.
func (p *person) leaves() {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the program does not end: %q", p.seen.String()[p.from:])
	}
	if p.ended != nil {
		p.t.Errorf("%v: %q", p.ended, p.seen.String())
	}
}

func TestAPersonChatsInATerminal(t *testing.T) {
	history := filepath.Join(t.TempDir(), "history")
	p := sit(t, history, "--device=sim", "--sim-step=10ms", "--metrics")
	p.sees("sim, in this process")
	p.sees(">>> ")

	// The end of an answer is far when its beginning shows, and Ctrl-C ends it.
	p.types("/params seed=1\rhello\r")
	p.sees("seed=1")
	p.sees("hello\r\n")
	before := len(p.seen.String())
	for len(p.seen.String()) < before+20 {
		time.Sleep(time.Millisecond)
	}
	p.types("\x03")
	p.sees("[first text after")
	p.sees("(stopped)")
	p.sees(">>> ")

	// The rest is short. Keys typed during an answer, arrows, a message of several lines, and one pasted.
	p.types("/params max_tokens=5\r")
	p.sees("max_tokens=5")
	p.sees(">>> ")
	p.types("wrld\x1b[D\x1b[D\x1b[Do\r")
	p.sees("answer 5 tokens]")
	p.types("\"\"\"\rline one\r")
	p.sees("... line one\r\n")
	p.types("line two\"\"\"\r")
	p.sees("answer 5 tokens]")
	p.types("\x1b[200~pasted\n\ttext\x1b[201~")
	p.sees("pasted␤␉text")
	p.types("\r")
	p.sees("answer 5 tokens]")
	p.sees(">>> ")
	p.types("\x1b[A\x1b[A")
	p.sees("line one␤line two")
	p.types("\x03") // the line, not the program
	p.sees("^C\r\n")
	p.sees(">>> ")
	p.types("/he\t\r")
	p.sees("/params KEY=VALUE")
	p.sees(">>> ")

	p.types("\x03")
	p.sees("once more")
	p.sees(">>> ")
	p.types("\x03")
	p.leaves()
	b, err := os.ReadFile(history)
	if want := "/params seed=1\nhello\n/params max_tokens=5\nworld\nline one␤line two\npasted␤␉text\n/help\n"; err != nil || string(b) != want {
		t.Errorf("%v: %q, want %q", err, b, want)
	}

	// The next time it is there.
	p = sit(t, history, "--device=sim", "--max-tokens=5")
	p.sees(">>> ")
	p.types("\x1b[A\x1b[A")
	p.sees("pasted␤␉text")
	p.types("\x15") // erase it
	p.types("\x04")
	p.leaves()
}

func TestTheTerminalIsLeftAsItWas(t *testing.T) {
	for _, how := range []string{"ctrl-d", "exit", "signal"} {
		p := sit(t, "none", "--device=sim", "--sim-step=20ms")
		p.sees(">>> ")
		editing := p.mode()
		p.types("a question\r")
		p.sees("a question\r\n")
		for p.mode() == editing { // while an answer comes, Ctrl-C is a signal
			time.Sleep(time.Millisecond)
		}
		p.types("\x03")
		p.sees("(stopped)")
		p.sees("\x1b[?2004h>>> ")
		switch how {
		case "ctrl-d":
			p.types("\x04")
		case "exit":
			p.types("/exit\r")
		case "signal":
			_ = p.cmd.Process.Signal(syscall.SIGINT) // while a line is edited, it is no key
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
		p.leaves()
		if p.mode() == editing {
			t.Errorf("%s: the terminal is left in raw mode", how)
		}
		if seen := p.seen.String(); strings.LastIndex(seen, "\x1b[?2004l") < strings.LastIndex(seen, "\x1b[?2004h") {
			t.Errorf("%s: bracketed paste is left on: %q", how, seen)
		}
	}
}

func TestLeavingAnAnswerIsSeenByTheServer(t *testing.T) {
	log := filepath.Join(t.TempDir(), "requests.log")
	server := start(t, "--device=sim", "--sim-step=10ms", "--request-log="+log)
	p := sit(t, "none", "--url="+server.url)
	p.sees("at " + server.url)
	p.sees(">>> ")
	p.types("hello\r")
	p.sees("hello\r\n")
	before := len(p.seen.String())
	for len(p.seen.String()) < before+20 {
		time.Sleep(time.Millisecond)
	}
	p.types("\x03")
	p.sees("(stopped)")
	var b []byte
	for deadline := time.Now().Add(patience); bytes.Count(b, []byte("\n")) < 1 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		b, _ = os.ReadFile(log)
	}
	if all := lines(t, string(b)); len(all) != 1 || all[0]["status"] != 499.0 {
		t.Errorf("%s", b)
	}

	// A server that is gone does not end the chat.
	p.sees(">>> ")
	p.types("and now?\r")
	p.sees("and now?\r\n")
	before = len(p.seen.String())
	for len(p.seen.String()) < before+20 {
		time.Sleep(time.Millisecond)
	}
	_ = server.Process.Kill()
	p.sees("the connection was lost")
	<-server.done // until then its listener may still take a connection
	p.sees(">>> ")
	p.types("are you there?\r")
	p.sees("no server answers")
	p.sees(">>> ")
	p.types("\x04")
	p.leaves()
}

func TestWideCharactersAreEditedWhereTheyStand(t *testing.T) {
	history := filepath.Join(t.TempDir(), "history")
	p := sitAt(t, 20, history, "--device=sim", "--max-tokens=1", "--seed=1")
	p.sees(">>> ")
	screen := func() *emulator {
		e := newEmulator(20)
		_, _ = e.Write([]byte(p.seen.String()))
		return e
	}
	// looks waits until the line with the prompt and those below look so, and the cursor is there.
	looks := func(row, column int, want ...string) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
			e := screen()
			rows := e.text()
			first := len(rows) - 1
			for first > 0 && !strings.HasPrefix(rows[first], ">>>") {
				first--
			}
			if got := rows[first:]; slices.Equal(got, want) && e.row == first+row && e.column == column {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("the terminal shows %q with the cursor at %d, %d; want %q with it at %d, %d", got, e.row-first, e.column, want, row, column)
			}
		}
	}
	p.types("日本語です。漢字") // 4 + 16 columns: a row that is full
	looks(1, 0, ">>> 日本語です。漢字", "")
	p.types("も👍🏽") // one character of two
	looks(1, 4, ">>> 日本語です。漢字", "も👍🏽")
	p.types("\x7f\x1b[D\x1b[D") // from behind the thumb to before the last character of the first row
	looks(0, 18, ">>> 日本語です。漢字", "も")
	p.types("x") // after which a wide one has no room in the first row
	looks(1, 0, ">>> 日本語です。漢x", "字も")
	p.types("\x01\x1b[3~") // the first, gone
	looks(0, 4, ">>> 本語です。漢x字", "も")
	p.types("\r")
	p.sees("\x1b[?2004h>>> ")
	p.types("\x04")
	p.leaves()
	if b, err := os.ReadFile(history); err != nil || string(b) != "本語です。漢x字も\n" {
		t.Errorf("%v: %q", err, b)
	}
}

func TestAFullContextIsToldWithWhatToDo(t *testing.T) {
	p := sit(t, "none", "--device=sim", "--max-model-len=64")
	p.sees(">>> ")
	p.types("hello\r")
	p.sees("(cut short: the context is full at 64 tokens")
	p.sees("/clear begins a new conversation")
	p.sees(">>> ")
	p.types("and on?\r") // which does not fit behind the first answer
	p.sees("maximum context length is 64 tokens")
	p.sees("(the context is full: the conversation so far and this message")
	p.sees("/clear begins a new conversation")
	p.sees(">>> ")
	p.types("/clear\rhello\r")
	p.sees("(cut short: the context is full at 64 tokens")
	p.sees(">>> ")
	p.types("\x04")
	p.leaves()
}
