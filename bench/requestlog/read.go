package requestlog

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// MaxLine is the longest line that is read, in bytes; a longer one counts as broken.
const MaxLine = 16 << 20

// How many lines that cannot be read a Summary names, and how many files that end early; the others
// are counted.
const (
	maxProblems = 10
	maxCuts     = 100
)

// Place says where a line is.
type Place struct {
	File string
	Line int // from 1
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// Summary is what reading logs came upon.
type Summary struct {
	Files int
	Lines int // understood; empty ones are not counted
	// Broken lines could not be read, Newer ones are of a version that this program does not know.
	Broken, Newer int
	// Problems name the first broken ones, and the first newer one.
	Problems []string
	// Cut is how many files could not be read to their end: a packed one that is cut short, a disk that
	// fails. Nobody knows how many lines are missing. Cuts name the first hundred.
	Cut  int
	Cuts []string

	newer int // where the newer one is among the Problems, if it is
}

func (s *Summary) cut(format string, args ...any) {
	if s.Cut++; len(s.Cuts) < maxCuts {
		s.Cuts = append(s.Cuts, fmt.Sprintf(format, args...))
	}
}

func (s *Summary) problem(format string, args ...any) {
	if len(s.Problems) < maxProblems {
		s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
	}
}

// add adds what was come upon further on.
func (s *Summary) add(o *Summary) {
	for i, p := range o.Problems {
		if o.Newer > 0 && i == o.newer {
			if s.Newer > 0 {
				continue
			}
			s.newer = len(s.Problems)
		}
		s.problem("%s", p)
	}
	for _, c := range o.Cuts {
		s.cut("%s", c)
	}
	s.Files += o.Files
	s.Lines += o.Lines
	s.Broken += o.Broken
	s.Newer += o.Newer
}

// String says what was read, and what was not, in one sentence.
func (s *Summary) String() string {
	out := fmt.Sprintf("%d lines of %d files", s.Lines, s.Files)
	if s.Lines == 1 {
		out = strings.Replace(out, "lines", "line", 1)
	}
	if s.Files == 1 {
		out = strings.Replace(out, "files", "file", 1)
	}
	if s.Broken > 0 {
		out += fmt.Sprintf(", %d broken", s.Broken)
	}
	if s.Newer > 0 {
		out += fmt.Sprintf(", %d of a newer version than %d", s.Newer, Version)
	}
	if s.Cut > 0 {
		out += fmt.Sprintf(", %d not to the end", s.Cut)
	}
	return out
}

// Files finds the files that the names stand for: each a file, a pattern such as logs/*.jsonl.gz, or
// - for standard input. A name that stands for nothing is an error. What is named twice, also by patterns or
// links, is there once: its lines must not be counted twice.
func Files(names []string) ([]string, error) {
	var files []string
	for _, name := range names {
		if name == "-" {
			if !slices.Contains(files, name) {
				files = append(files, name)
			}
			continue
		}
		info, err := os.Stat(name)
		switch {
		case err == nil && info.IsDir():
			return nil, fmt.Errorf("%s is a folder: name the log files in it, as in %s", name, filepath.Join(name, "*.jsonl"))
		case err == nil:
			files = append(files, name)
			continue
		case !strings.ContainsAny(name, "*?["):
			return nil, fmt.Errorf("%w: give a request log, as troupe serve --request-log FILE writes it", err)
		}
		found, err := filepath.Glob(name)
		if err != nil {
			return nil, fmt.Errorf("the pattern %s: %w", name, err)
		}
		found = slices.DeleteFunc(found, func(f string) bool {
			info, err := os.Stat(f)
			return err != nil || info.IsDir()
		})
		if len(found) == 0 {
			return nil, fmt.Errorf("no file is called like %s", name)
		}
		files = append(files, found...)
	}
	return once(files), nil
}

// once leaves out files that are there already. One that is gone by now stays, for whoever opens it to say so.
func once(files []string) []string {
	var infos []os.FileInfo
	return slices.DeleteFunc(files, func(name string) bool {
		info, err := os.Stat(name)
		if name == "-" || err != nil || !info.Mode().IsRegular() {
			return false
		}
		if slices.ContainsFunc(infos, func(i os.FileInfo) bool { return os.SameFile(i, info) }) {
			return true
		}
		infos = append(infos, info)
		return false
	})
}

// Func takes a line. The Entry is its until it returns.
type Func func(*Entry, Place) error

// Each reads the logs that the names stand for (see Files) and calls f with each line, one after the
// other, until f returns an error, which Each returns, or ctx is done. Files that are compressed with
// gzip or zstd are known by their first bytes, whatever their names. f is called from another goroutine.
//
// What cannot be read is no error, but in the Summary: broken lines, newer versions, the rest of a
// file that is cut short. It is an error when a file cannot be opened. Each returns when ctx is done even
// though a file or stdin has nothing to read as yet; stdin is then not to be used any more.
func Each(ctx context.Context, names []string, stdin io.Reader, f Func) (Summary, error) {
	return Share(ctx, names, stdin, []Func{f}, nil)
}

// Share is Each for several functions that work side by side, each in its own goroutine: it reads blocks
// of lines, and each block's go to one function, in order. The Summary is the same however many
// functions there are. progress, when it is not nil, is told from time to time which file is being read and
// how many lines have been understood.
func Share(ctx context.Context, names []string, stdin io.Reader, fs []Func, progress func(file string, lines int)) (Summary, error) {
	var sum Summary
	files, err := Files(names)
	if err != nil {
		return sum, err
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	blocks := 2*len(fs) + 2
	// No channel is ever full: there are no more blocks than fit.
	r := reader{ctx: ctx, free: make(chan *block, blocks), work: make(chan *block, blocks), order: make(chan *block, blocks)}
	for range blocks {
		r.free <- &block{done: make(chan struct{}, 1)}
	}
	go func() {
		defer close(r.order)
		defer close(r.work)
		for _, name := range files {
			if !r.file(name, stdin) {
				return
			}
		}
	}()
	var workers sync.WaitGroup
	over := make(chan struct{})
	for _, f := range fs {
		workers.Go(func() {
			var e Entry
			for {
				select {
				case b := <-r.work:
					if b == nil {
						return
					}
					if ctx.Err() == nil && b.err == nil {
						if b.err = b.scan(&e, f); b.err != nil {
							cancel()
						}
					}
					b.done <- struct{}{}
				case <-over:
					return
				}
			}
		})
	}
	for b := r.next(); b != nil; b = r.next() {
		<-b.done
		sum.add(&b.found)
		if err == nil && b.err != nil {
			err = b.err
			cancel()
		}
		if progress != nil {
			progress(b.at.File, sum.Lines)
		}
		b.found, b.err = Summary{}, nil
		r.free <- b
	}
	close(over)
	workers.Wait()
	return sum, cmp.Or(err, outer.Err())
}

// next waits for the block that comes next in order; nil when there is none, or when ctx is done and whoever
// reads has sent none: it may wait for its source for ever.
func (r *reader) next() *block {
	select {
	case b := <-r.order:
		return b
	case <-r.ctx.Done():
	}
	select {
	case b := <-r.order:
		return b
	default:
		return nil
	}
}

// blockSize is how much is read at a time. Only a block with a longer line is larger.
const blockSize = 256 << 10

// block is some lines of a file on their way: read, given to a function, and counted in the order in
// which they were read.
type block struct {
	lines []byte
	at    Place   // the first one's
	found Summary // what there is to say of them, or what came to light when they were read
	err   error   // what ends it all
	done  chan struct{}
}

// scan calls f with each line.
func (b *block) scan(e *Entry, f Func) error {
	at, found := b.at, &b.found
	for rest := b.lines; len(rest) > 0; at.Line++ {
		line := rest
		if end := bytes.IndexByte(rest, '\n') + 1; end > 0 {
			line = rest[:end]
		}
		rest = rest[len(line):]
		if len(line) > MaxLine {
			found.Broken++
			found.problem("%v: the line is longer than %d MiB", at, MaxLine>>20)
			continue
		}
		if at.Line == 1 {
			line = bytes.TrimPrefix(line, byteOrder)
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		err := Scan(line, e)
		switch v := e.Version; {
		case v > Version: // whatever Scan made of it: a newer version may have other types
			if found.Newer++; found.Newer == 1 {
				found.newer = len(found.Problems)
				found.problem("%v: version %d, while this program knows %d: use a newer one", at, v, Version)
			}
			continue
		case err != nil:
		case v < 1:
			err = errors.New("no version: not a line of a request log")
		case e.Outcome == "":
			err = errors.New("no outcome: not a line of a request log")
		case e.Tokens.Cached > e.Tokens.Prompt:
			err = errors.New(`"cached": more tokens than the prompt has`)
		}
		if err != nil {
			found.Broken++
			found.problem("%v: %v", at, err)
			continue
		}
		found.Lines++
		if err := f(e, at); err != nil {
			return err
		}
	}
	return nil
}

// byteOrder is what some editors put before the first line.
var byteOrder = []byte("\xef\xbb\xbf")

// reader makes blocks of files. Each goes to whoever takes it from work, and to order.
type reader struct {
	ctx               context.Context
	free, work, order chan *block
	rest              []byte // of the last block: the beginning of a line
}

// take waits for a block; nil when it is all over.
func (r *reader) take(at Place) *block {
	select {
	case b := <-r.free:
		if cap(b.lines) > 4*blockSize || cap(b.lines) < blockSize {
			b.lines = make([]byte, 0, blockSize)
		}
		b.lines, b.at = b.lines[:0], at
		return b
	case <-r.ctx.Done():
		return nil
	}
}

func (r *reader) send(b *block) {
	r.order <- b // first: what a worker has is in order
	r.work <- b
}

// file reads a file, and says whether there is sense in reading further ones.
func (r *reader) file(name string, stdin io.Reader) bool {
	at := Place{File: name, Line: 1}
	in := stdin
	var failed error
	if name == "-" {
		at.File = "standard input"
		if f, ok := stdin.(*follower); ok {
			at.File = f.name
		}
	} else {
		var file *os.File
		if file, failed = os.Open(name); failed == nil {
			defer file.Close()
		}
		in = file
	}
	b := r.take(at)
	if b == nil {
		return false
	}
	if failed != nil {
		b.err = failed
		r.send(b)
		return false
	}
	b.found.Files = 1
	plain, done, err := decompress(in)
	if err != nil {
		b.found.cut("%s: %v", at.File, err)
		r.send(b)
		return true
	}
	defer done()
	for {
		// So far b holds at most the beginning of a line. One that is too long for any block shall be seen
		// to be so, and no more.
		b.lines = b.lines[:min(len(b.lines), MaxLine+1)]
		if len(b.lines) == cap(b.lines) {
			b.lines = slices.Grow(b.lines, len(b.lines))
		}
		from := len(b.lines)
		n, err := plain.Read(b.lines[from:cap(b.lines)])
		b.lines = b.lines[:from+n]
		end := from + bytes.LastIndexByte(b.lines[from:], '\n') + 1
		switch {
		case err != nil:
			end = len(b.lines)
		case end == from && r.ctx.Err() != nil:
			return false
		case end == from:
			continue // no line's end yet
		}
		r.rest = append(r.rest[:0], b.lines[end:]...)
		b.lines = b.lines[:end]
		at.Line += bytes.Count(b.lines, newline)
		if err != nil && !errors.Is(err, io.EOF) {
			last := at.Line
			if bytes.HasSuffix(b.lines, newline) || end == 0 {
				last--
			}
			b.found.cut("%s, after line %d: %v", at.File, last, err)
		}
		r.send(b)
		if err != nil {
			return true
		}
		if b = r.take(at); b == nil {
			return false
		}
		b.lines = append(b.lines, r.rest...)
	}
}

var newline = []byte{'\n'}

// decompress returns what r holds, in plain. What was compressed comes in pieces as large as asked for;
// what was not comes as r has it, so that lines are not held up until there are more.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, _ := b.Peek(4)
	switch packed(head) {
	case "gzip":
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, err
		}
		return full{z}, func() { _ = z.Close() }, nil
	case "zstd":
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, nil, err
		}
		return full{z}, z.Close, nil
	}
	return b, func() {}, nil
}

// packed says with what a file is packed that begins with these four bytes; "" when it is not.
func packed(head []byte) string {
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return "gzip"
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "zstd"
	case len(head) == 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:], []byte{0x2a, 0x4d, 0x18}):
		return "zstd" // it begins with a frame to be passed over
	}
	return ""
}

// full reads as much as there is room for.
type full struct{ io.Reader }

func (f full) Read(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = f.Reader.Read(p[n:])
		n += more
	}
	return n, err
}
