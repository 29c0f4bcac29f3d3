package observe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	flushEvery = 250 * time.Millisecond // how long a line waits at most
	flushSize  = 256 << 10              // and how much gathers before it is written at once
	// maxHeld is how much may wait for a writer that hangs or fails; lines beyond it are lost.
	maxHeld = 16 << 20
	// closePatience is how long Close waits for a writer that hangs.
	closePatience = 5 * time.Second
)

// lineWriter gathers whole lines and writes them from a goroutine of its own, so that Write never
// waits for the disk. What a failing writer does not take is kept and tried again, up to maxHeld.
type lineWriter struct {
	name       string
	complaints io.Writer
	every      time.Duration // how long a line waits at most
	lost       atomic.Uint64 // lines
	failures   atomic.Uint64 // writes that failed, or took less than they were given

	mu     sync.Mutex
	buf    []byte // lines nobody has tried to write yet
	held   int    // bytes of buf and of what is being written
	closed bool

	wake chan struct{} // capacity 1: there is something to write
	full chan struct{} // capacity 1: there is much to write
	quit chan struct{}
	done chan struct{} // closed when the goroutine has ended

	// What follows is for whoever holds out: the goroutine, Reopen and Close.
	out        sync.Mutex
	w          io.Writer
	reopen     func() (io.Writer, error) // nil unless w is a file that can be opened again
	unsent     []byte                    // taken from buf and not yet written
	torn       bool                      // unsent begins in the middle of a line, the rest of which w has
	complained bool
}

func newLineWriter(w io.Writer, name string, complaints io.Writer) *lineWriter {
	l := &lineWriter{
		name: name, complaints: complaints, every: flushEvery, w: w,
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1),
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run()
	return l
}

// Write takes one or more whole lines. It never blocks and never fails; see lost.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	if l.closed || l.held+len(p) > maxHeld {
		l.mu.Unlock()
		l.lost.Add(countLines(p))
		return len(p), nil
	}
	first := len(l.buf) == 0
	l.buf = append(l.buf, p...)
	l.held += len(p)
	much := len(l.buf) >= flushSize
	l.mu.Unlock()
	if first {
		signal(l.wake)
	}
	if much {
		signal(l.full)
	}
	return len(p), nil
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func countLines(p []byte) uint64 { return uint64(bytes.Count(p, []byte{'\n'})) }

// run writes what has gathered, a little after the first line of it.
func (l *lineWriter) run() {
	defer close(l.done)
	timer := time.NewTimer(0)
	<-timer.C
	for {
		select {
		case <-l.wake:
		case <-l.quit:
			l.finish()
			return
		}
		timer.Reset(l.every)
		select {
		case <-timer.C:
		case <-l.full:
		case <-l.quit:
			l.finish()
			return
		}
		timer.Stop()
		l.out.Lock()
		if l.flush() != nil {
			signal(l.wake) // try again
		}
		l.out.Unlock()
	}
}

// flush writes all that there is. The caller holds out.
func (l *lineWriter) flush() error {
	l.mu.Lock()
	if len(l.unsent) == 0 {
		l.unsent, l.buf = l.buf, l.unsent[:0]
	} else {
		l.unsent = append(l.unsent, l.buf...)
		l.buf = l.buf[:0]
	}
	l.mu.Unlock()
	if len(l.unsent) == 0 {
		return nil
	}

	n, err := l.w.Write(l.unsent)
	n = min(max(n, 0), len(l.unsent))
	if err == nil && n < len(l.unsent) {
		err = io.ErrShortWrite
	}
	if n > 0 {
		l.torn = l.unsent[n-1] != '\n'
		l.unsent = l.unsent[:copy(l.unsent, l.unsent[n:])]
		l.mu.Lock()
		l.held -= n
		l.mu.Unlock()
	}
	if len(l.unsent) == 0 && cap(l.unsent) > 4*flushSize {
		l.unsent = nil // a burst's memory is not kept
	}
	switch {
	case err != nil:
		l.failures.Add(1)
		if !l.complained {
			l.complained = true
			fmt.Fprintf(l.complaints, "request log %s cannot be written: %v; lines wait in memory, up to %d MiB, beyond that they are lost and counted\n",
				l.name, reason(err), maxHeld>>20)
		}
	case l.complained:
		l.complained = false
		fmt.Fprintf(l.complaints, "request log %s is written again; %d lines of it were lost\n", l.name, l.lost.Load())
	}
	return err
}

// reason leaves a file's name out of an error's text, which has it already.
func reason(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// drop gives up the first n bytes of unsent. The caller holds out.
func (l *lineWriter) drop(n int) {
	l.lost.Add(countLines(l.unsent[:n]))
	l.unsent = l.unsent[:copy(l.unsent, l.unsent[n:])]
	l.torn = false
	l.mu.Lock()
	l.held -= n
	l.mu.Unlock()
}

// finish is the last thing that run does.
func (l *lineWriter) finish() {
	l.out.Lock()
	defer l.out.Unlock()
	_ = l.flush()
	l.drop(len(l.unsent))
	if c, ok := l.w.(io.Closer); ok {
		_ = c.Close()
	}
}

// Reopen writes what there is to the old file and goes on with a new one.
func (l *lineWriter) Reopen() error {
	if l.reopen == nil {
		return nil
	}
	l.out.Lock()
	defer l.out.Unlock()
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return nil
	}
	w, err := l.reopen()
	if err != nil {
		return fmt.Errorf("request log: reopen: %w; going on with the old file", err)
	}
	_ = l.flush()
	if l.torn {
		// The old file has the beginning of this line: it makes no sense in the new one.
		if i := bytes.IndexByte(l.unsent, '\n'); i >= 0 {
			l.drop(i + 1)
		}
	}
	if c, ok := l.w.(io.Closer); ok {
		_ = c.Close()
	}
	l.w, l.complained = w, false
	if len(l.unsent) > 0 {
		signal(l.wake)
	}
	return nil
}

// Close writes what is left and ends the goroutine.
func (l *lineWriter) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	before := l.lost.Load()
	close(l.quit)
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-l.done:
	case <-patience.C:
		return fmt.Errorf("request log %s: does not take what is left: giving up", l.name)
	}
	if n := l.lost.Load() - before; n > 0 {
		return fmt.Errorf("request log %s: the last %d lines could not be written", l.name, n)
	}
	return nil
}

// openLogFile opens path for appending. A last line without its end, left by a crash, is ended, so
// that it cannot run into the next. It never waits: of a named pipe a reader must be there already.
func openLogFile(path string) (io.Writer, error) {
	flags := os.O_APPEND | os.O_CREATE | os.O_WRONLY
	pipe := false
	if info, err := os.Stat(path); err == nil {
		switch mode := info.Mode(); {
		case mode&os.ModeNamedPipe != 0:
			pipe = true
			flags |= syscall.O_NONBLOCK // else opening would wait for a reader, perhaps for ever
		case mode&os.ModeSocket != 0:
			return nil, fmt.Errorf("%s is a socket: give a file", path)
		case mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0:
			return nil, fmt.Errorf("%s is a disk: give a file", path)
		}
	}
	f, err := os.OpenFile(path, flags, 0o640)
	if pipe && errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("%s is a named pipe that nobody reads: start its reader first, or give a file", path)
	}
	if err != nil {
		return nil, err
	}
	if err := endLastLine(f, path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func endLastLine(f *os.File, path string) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return err
	}
	r, err := os.Open(path)
	if err != nil {
		return nil // may be written but not read: then this cannot be known
	}
	defer r.Close()
	var last [1]byte
	if _, err := r.ReadAt(last[:], info.Size()-1); err != nil || last[0] == '\n' {
		return nil
	}
	_, err = f.Write([]byte{'\n'})
	return err
}
