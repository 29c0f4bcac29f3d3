package observe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	flushEvery = 250 * time.Millisecond // how long a line waits at most
	// Lines gather in chunks of memory that are used again, so that a burst is neither copied about nor
	// leaves a large buffer behind. One is full, and written at once, when less than chunkRest of it is left,
	// which nearly every line fits in: a write has its own price, which smaller ones would pay more often.
	chunkSize = 256 << 10
	chunkRest = 32 << 10
	maxSpare  = 2 // that are kept
	// maxHeld is how much may wait for a writer that hangs or fails; lines beyond it are lost.
	maxHeld = 16 << 20
	// closePatience is how long Close waits for a writer that hangs.
	closePatience = 5 * time.Second
)

// lineWriter gathers whole lines and writes them from a goroutine of its own, so that add never
// waits for the disk. What a failing writer does not take is kept and tried again, up to maxHeld.
type lineWriter struct {
	name       string
	complaints io.Writer
	every      time.Duration // how long a line waits at most
	lost       atomic.Uint64 // lines
	failures   atomic.Uint64 // writes that failed, or took less than they were given

	mu     sync.Mutex
	ready  [][]byte // full chunks that nobody has tried to write yet
	last   []byte   // the chunk behind them, where lines gather
	spare  [][]byte // empty chunks
	held   int      // bytes of ready and last and of what is being written
	closed bool

	wake chan struct{} // capacity 1: there is something to write
	full chan struct{} // capacity 1: a chunk is full
	quit chan struct{}
	done chan struct{} // closed when the goroutine has ended

	// What follows is for whoever holds out: the goroutine, Reopen and Close.
	out        sync.Mutex
	w          io.Writer
	reopen     func() (io.Writer, error) // nil unless w is a file that can be opened again
	unsent     [][]byte                  // chunks taken from ready and last and not yet written
	sent       int                       // bytes of the first of them that are written
	torn       bool                      // what follows these is the rest of a line that w has the beginning of
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

// add takes the line that line appends to what it is given. It never waits for the disk and never fails; see
// lost.
func (l *lineWriter) add(line func([]byte) []byte) {
	first, full, lost := l.gather(line)
	if lost {
		l.lost.Add(1)
	}
	if first {
		signal(l.wake)
	}
	if full {
		signal(l.full)
	}
}

// gather says whether it is the first line that waits, whether a chunk is full, and whether there was no room.
func (l *lineWriter) gather(line func([]byte) []byte) (first, full, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.held >= maxHeld {
		return false, false, true
	}
	b := l.last
	if b == nil {
		b = l.chunk()
	}
	n := len(b)
	b = line(b) // it may panic: nothing has changed yet
	first = l.last == nil && len(l.ready) == 0
	l.held += len(b) - n
	l.last = b
	if cap(b)-len(b) < chunkRest {
		l.ready = append(l.ready, b)
		l.last, full = nil, true
	}
	return first, full, false
}

// chunk returns an empty chunk. The caller holds mu.
func (l *lineWriter) chunk() []byte {
	if at := len(l.spare) - 1; at >= 0 {
		c := l.spare[at]
		l.spare = l.spare[:at]
		return c
	}
	return make([]byte, 0, chunkSize)
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

// Flush writes all that there is, and waits until it is written.
func (l *lineWriter) Flush() error {
	l.out.Lock()
	defer l.out.Unlock()
	return l.flush()
}

// flush is Flush for a caller that holds out.
func (l *lineWriter) flush() error {
	l.mu.Lock()
	l.unsent = append(l.unsent, l.ready...)
	l.ready = l.ready[:0]
	if len(l.last) > 0 {
		l.unsent = append(l.unsent, l.last)
		l.last = nil
	}
	l.mu.Unlock()
	if len(l.unsent) == 0 {
		return nil
	}

	var err error
	for err == nil && len(l.unsent) > 0 {
		err = l.write()
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

// write tries to write the rest of the first chunk. The caller holds out.
func (l *lineWriter) write() error {
	rest := l.unsent[0][l.sent:]
	n, err := l.w.Write(rest)
	n = min(max(n, 0), len(rest))
	if err == nil && n < len(rest) {
		err = io.ErrShortWrite
	}
	if n > 0 {
		l.torn = rest[n-1] != '\n'
		l.pass(n)
	}
	return err
}

// pass is done with the next n bytes of the first chunk. The caller holds out.
func (l *lineWriter) pass(n int) {
	l.sent += n
	c := l.unsent[0]
	done := l.sent == len(c)
	if done {
		l.sent = 0
		l.unsent = slices.Delete(l.unsent, 0, 1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held -= n
	if done && cap(c) == chunkSize && len(l.spare) < maxSpare {
		l.spare = append(l.spare, c[:0])
	}
}

// reason leaves a file's name out of an error's text, which has it already.
func reason(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// drop gives up the next n bytes of the first chunk. The caller holds out.
func (l *lineWriter) drop(n int) {
	l.lost.Add(countLines(l.unsent[0][l.sent : l.sent+n]))
	l.torn = false
	l.pass(n)
}

// finish is the last thing that run does.
func (l *lineWriter) finish() {
	l.out.Lock()
	defer l.out.Unlock()
	_ = l.flush()
	for len(l.unsent) > 0 {
		l.drop(len(l.unsent[0]) - l.sent)
	}
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
	if l.torn && len(l.unsent) > 0 {
		// The old file has the beginning of this line: it makes no sense in the new one.
		if i := bytes.IndexByte(l.unsent[0][l.sent:], '\n'); i >= 0 {
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
