//go:build !windows

package observe

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestAPipeWithoutAReaderIsRefusedAndOneWithAReaderIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRequestLog(path, JSON, io.Discard); err == nil || !strings.Contains(err.Error(), path+" is a named pipe that nobody reads") {
		t.Fatal(err)
	}
	// Opening a pipe to read and write never waits.
	r, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l, err := OpenRequestLog(path, JSON, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l.Observe(finished())
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(line, `"chatcmpl-7"`) {
		t.Errorf("%q, %v", line, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestReopeningAsAPipeWithoutAReaderKeepsTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "requests.log")
	l, err := OpenRequestLog(path, JSON, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	old := path + ".1"
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil || !strings.Contains(err.Error(), "nobody reads") || !strings.Contains(err.Error(), "going on with the old file") {
		t.Error(err)
	}
	l.Observe(finished())
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(old); err != nil || strings.Count(string(b), "\n") != 1 {
		t.Errorf("%q, %v", b, err)
	}
}

func TestASocketIsNoLogAndADeviceOfCharactersIsOne(t *testing.T) {
	t.Chdir(t.TempDir())
	const socket = "socket" // whose path must be short, wherever the folder is
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := OpenRequestLog(socket, JSON, io.Discard); err == nil || !strings.Contains(err.Error(), "is a socket") {
		t.Error(err)
	}
	l, err := OpenRequestLog(os.DevNull, JSON, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l.Observe(finished())
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		return
	}
	said := make(chan string, 1)
	if l, err = OpenRequestLog("/dev/full", JSON, writerFunc(func(p []byte) (int, error) { said <- string(p); return len(p), nil })); err != nil {
		t.Fatal(err)
	}
	l.Observe(finished())
	if got := <-said; !strings.Contains(got, "request log /dev/full cannot be written: no space left on device; ") || l.Lost() != 0 {
		t.Errorf("a full disk: %q, %d lines lost", got, l.Lost())
	}
	if err := l.Close(); err == nil || l.Lost() != 1 {
		t.Errorf("a full disk: %v, %d lines lost", err, l.Lost())
	}
}
