package observe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// faulty fails while broken, after having taken take bytes of each write.
type faulty struct {
	mu     sync.Mutex
	broken bool
	take   int
	got    bytes.Buffer
}

func (f *faulty) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken {
		n := min(f.take, len(p))
		f.got.Write(p[:n])
		return n, errors.New("no space left on device")
	}
	return f.got.Write(p)
}

func (f *faulty) set(broken bool) {
	f.mu.Lock()
	f.broken = broken
	f.mu.Unlock()
}

// Write adds a line, for fmt.
func (l *lineWriter) Write(line []byte) (int, error) {
	l.add(func(b []byte) []byte { return append(b, line...) })
	return len(line), nil
}

// newStillWriter is a lineWriter whose goroutine does nothing before the close.
func newStillWriter(w io.Writer, complaints io.Writer) *lineWriter {
	l := newLineWriter(w, "requests.log", complaints)
	l.every = 24 * time.Hour // it looks at this when there is a first line
	return l
}

func TestNothingIsLostOnACleanClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "requests.log")
	l, err := OpenRequestLog(path, JSON, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				l.Observe(finished())
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	if n := bytes.Count(b, []byte("\n")); n != 4000 || l.Lost() != 0 {
		t.Errorf("%d lines and %d lost, want 4000 and none", n, l.Lost())
	}
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, `{"version":1,`) || !strings.HasSuffix(line, "}\n") {
			t.Fatalf("torn line %q", line)
		}
	}
}

func TestTheFileIsAppendedToAndATornLastLineIsEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "requests.log")
	if err := os.WriteFile(path, []byte("{\"version\":1}\n{\"vers"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := OpenRequestLog(path, JSON, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l.Observe(finished())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	lines := strings.Split(string(b), "\n")
	if len(lines) != 4 || lines[1] != `{"vers` || !strings.HasPrefix(lines[2], `{"version":1,`) {
		t.Errorf("%q", b)
	}
}

func TestReopenGoesOnInANewFileAndKeepsEveryLine(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be renamed there, nor is there a SIGHUP")
	}
	dir := t.TempDir()
	path, old := filepath.Join(dir, "requests.log"), filepath.Join(dir, "requests.log.1")
	l, err := OpenRequestLog(path, JSON, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l.Observe(finished())
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	l.Observe(finished()) // not told yet: belongs to the old file
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Observe(finished())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{old: 2, path: 1} {
		b, _ := os.ReadFile(name)
		if n := bytes.Count(b, []byte("\n")); n != want {
			t.Errorf("%s has %d lines, want %d", filepath.Base(name), n, want)
		}
	}
}

func TestAFailedReopenKeepsTheOldFile(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "logs")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(sub, "requests.log")
	l, err := OpenRequestLog(path, JSON, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l.lines.reopen = func() (io.Writer, error) { return nil, os.ErrPermission }
	if err := l.Reopen(); !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v", err)
	}
	l.Observe(finished())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); bytes.Count(b, []byte("\n")) != 1 {
		t.Errorf("%q", b)
	}
}

func TestAFailingWriterIsComplainedOfOnceAndGetsItsLinesLater(t *testing.T) {
	w, complaints := &faulty{broken: true, take: 3}, &bytes.Buffer{}
	l := newStillWriter(w, complaints)
	for i := range 3 {
		fmt.Fprintf(l, "line %d\n", i)
		if l.Flush() == nil {
			t.Fatal("no error")
		}
	}
	w.set(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := w.got.String(); got != "line 0\nline 1\nline 2\n" {
		t.Errorf("%q", got)
	}
	if got := strings.SplitAfter(complaints.String(), "\n"); len(got) != 3 ||
		!strings.Contains(got[0], "requests.log cannot be written: no space left on device; ") || !strings.Contains(got[1], "requests.log is written again; 0 lines") {
		t.Errorf("complaints: %q", complaints)
	}
	if n := l.lost.Load(); n != 0 {
		t.Errorf("%d lines lost", n)
	}
	if n := l.failures.Load(); n != 3 {
		t.Errorf("%d writes failed, want 3", n)
	}
}

func TestASecondFailureIsSaidAnew(t *testing.T) {
	w, complaints := &faulty{}, &bytes.Buffer{}
	l := newStillWriter(w, complaints)
	for range 2 {
		w.set(true)
		fmt.Fprintln(l, "line")
		_ = l.Flush()
		w.set(false)
		_ = l.Flush()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if failed, again := strings.Count(complaints.String(), "cannot be written"), strings.Count(complaints.String(), "written again"); failed != 2 || again != 2 {
		t.Errorf("complaints: %q", complaints)
	}
}

// The goroutine that writes is nobody's but the log's own here: what it did shows in the metric while
// no line is lost.
func TestAFailureShowsInTheMetricsBeforeALineIsLost(t *testing.T) {
	said := make(chan string, 1)
	l := NewRequestLog(&faulty{broken: true}, JSON, writerFunc(func(p []byte) (int, error) { said <- string(p); return len(p), nil }))
	l.Observe(finished())
	if got := <-said; !strings.Contains(got, "no space left on device") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
	registry := NewRegistry()
	registry.MustRegister(l)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
	}
	if errs, lost := values["troupe:request_log_write_errors_total"], values["troupe:request_log_lines_lost_total"]; errs < 1 || lost != 0 {
		t.Errorf("%v writes failed and %v lines are lost, want some and none", errs, lost)
	}
	if err := l.Close(); err == nil || l.Lost() != 1 {
		t.Errorf("%v, %d lines lost", err, l.Lost())
	}
}

// writerFunc is a function that is a writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestLinesThatNeverWentOutAreCountedAtTheClose(t *testing.T) {
	l := newLineWriter(&faulty{broken: true}, "requests.log", io.Discard)
	fmt.Fprintln(l, "one")
	fmt.Fprintln(l, "two")
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "last 2 lines") {
		t.Errorf("got %v", err)
	}
	fmt.Fprintln(l, "three")
	if n := l.lost.Load(); n != 3 {
		t.Errorf("%d lines lost, want 3", n)
	}
}

func TestALineTornByAFailureIsNotContinuedInANewFile(t *testing.T) {
	old, next := &faulty{broken: true, take: 2}, &faulty{}
	l := newStillWriter(old, io.Discard)
	l.reopen = func() (io.Writer, error) { return next, nil }
	fmt.Fprint(l, "one\ntwo\n")
	_ = l.Flush()
	old.mu.Lock()
	old.take = 0
	old.mu.Unlock()
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := next.got.String(); got != "two\n" || l.lost.Load() != 1 {
		t.Errorf("the new file has %q and %d lines are lost, want the second line alone and 1", got, l.lost.Load())
	}
}

// hung takes nothing until it is released.
type hung struct{ release chan struct{} }

func (h hung) Write(p []byte) (int, error) { <-h.release; return len(p), nil }

func TestAHungWriterHoldsNobodyUpAndCostsBoundedMemory(t *testing.T) {
	h := hung{make(chan struct{})}
	l := newLineWriter(h, "requests.log", io.Discard)
	line := append(bytes.Repeat([]byte("x"), 1<<20-1), '\n')
	for range 40 { // would never return if add waited
		_, _ = l.Write(line)
	}
	if n := l.lost.Load(); n != 40-maxHeld>>20 {
		t.Errorf("%d lines lost, want %d", n, 40-maxHeld>>20)
	}
	close(h.release)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestALineThatCannotBeMadeSilencesNoOther(t *testing.T) {
	wrote := make(chan string, 100)
	l := newLineWriter(writerFunc(func(p []byte) (int, error) { wrote <- string(p); return len(p), nil }), "requests.log", io.Discard)
	defer l.Close()
	func() {
		defer func() { _ = recover() }()
		l.add(func(b []byte) []byte { _ = append(b, "half"...); panic("a bug") })
	}()
	fmt.Fprintln(l, "one")
	if got := <-wrote; got != "one\n" { // without a Flush
		t.Errorf("%q", got)
	}
}

func TestALogThatCannotBeOpenedSaysWhich(t *testing.T) {
	path := filepath.Join(t.TempDir(), "no", "such", "dir.log")
	_, err := OpenRequestLog(path, JSON, io.Discard)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}
