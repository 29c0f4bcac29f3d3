package requestlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Follow opens a log to be read as it grows, from its beginning: at the end its Read waits for more,
// and when the file has been renamed and a new one has taken its name, as log rotation does, it goes
// on with that. When ctx is done, Read returns io.EOF. The log must be a file, and not compressed. Given to
// Each as its standard input, lines are said to be of the file.
func Follow(ctx context.Context, name string) (io.ReadCloser, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file: only a file is followed through rotation", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	var head [4]byte
	if n, _ := f.ReadAt(head[:], 0); packed(head[:n]) != "" {
		f.Close()
		return nil, fmt.Errorf("%s is packed with %s, so that it does not grow: report it without following it", name, packed(head[:n]))
	}
	return &follower{ctx: ctx, name: name, f: f}, nil
}

// lookEvery is how often a file that has no more is looked at again.
const lookEvery = 200 * time.Millisecond

type follower struct {
	ctx  context.Context
	name string
	f    *os.File
	last byte // of what was read
}

func (r *follower) Read(p []byte) (int, error) {
	for {
		n, err := r.f.Read(p)
		if n > 0 {
			r.last = p[n-1]
			return n, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if r.ctx.Err() != nil {
			return 0, io.EOF
		}
		moved, err := r.moveOn()
		if err != nil {
			return 0, err
		}
		if moved {
			// A line that was cut off at the end of the old file must not go on in the new one.
			if r.last != '\n' && r.last != 0 && len(p) > 0 {
				p[0], r.last = '\n', '\n'
				return 1, nil
			}
			continue
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(lookEvery):
		}
	}
}

// moveOn opens the file that has taken the name of the one at hand, or begins again when the one at
// hand has been truncated. The old one has been read to its end.
func (r *follower) moveOn() (bool, error) {
	there, err := os.Stat(r.name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // between the renaming and the new file
	}
	if err != nil {
		return false, err
	}
	mine, err := r.f.Stat()
	if err != nil {
		return false, err
	}
	if os.SameFile(there, mine) {
		at, err := r.f.Seek(0, io.SeekCurrent)
		if err != nil || there.Size() >= at {
			return false, err
		}
		_, err = r.f.Seek(0, io.SeekStart)
		return err == nil, err
	}
	// What was written to the old file between the last Read and the renaming comes first.
	if at, err := r.f.Seek(0, io.SeekCurrent); err != nil || mine.Size() > at {
		return false, err
	}
	f, err := os.Open(r.name)
	if err != nil {
		return false, err
	}
	err = r.f.Close()
	r.f = f
	return err == nil, err
}

// Close closes the file.
func (r *follower) Close() error { return r.f.Close() }
