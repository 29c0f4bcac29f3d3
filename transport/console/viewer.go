package console

import (
	"errors"
	"io"
	"sync"
)

// maxBehind is how many frames may wait for a viewer: eight seconds' worth. One that is further
// behind is cut off; its page connects again and begins anew.
const maxBehind = 32

// Viewer is one who watches: the body of a response that goes on until the viewer leaves.
type Viewer struct {
	console *Console
	cut     func()
	frames  chan []byte
	over    chan struct{} // closed when the viewer is out

	// The show's own.
	greeted bool
	past    uint64 // the ring's number below which lies what the viewer has yet to be told of

	once sync.Once
}

// WriteTo writes the frames to w as they come, all that wait in one Write. It returns nil when the
// Console has ended the stream.
func (v *Viewer) WriteTo(w io.Writer) (total int64, err error) {
	defer v.Close()
	var several []byte
	for {
		var b []byte
		select {
		case b = <-v.frames:
		case <-v.over:
			select {
			case b = <-v.frames: // what was said before the end
			default:
				return total, nil
			}
		}
		if len(v.frames) > 0 {
			several = append(several[:0], b...)
			for range len(v.frames) {
				several = append(several, <-v.frames...)
			}
			b = several
		}
		n, err := w.Write(b)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

// SupportsBodyWriteTo tells fasthttp to use WriteTo, and to flush what each Write brings.
func (v *Viewer) SupportsBodyWriteTo() bool { return true }

// Read is the other way to read a body. fasthttp does not use it.
func (v *Viewer) Read([]byte) (int, error) {
	return 0, errors.New("console: a stream is read by WriteTo")
}

// Close gives the viewer's place back. It may be called again.
func (v *Viewer) Close() error {
	v.console.leave(v)
	return nil
}

// send hands the viewer a frame, without waiting. A viewer that has too many of them waiting is out.
func (v *Viewer) send(b []byte) {
	select {
	case v.frames <- b:
	default:
		if v.console.leave(v) {
			v.once.Do(v.cut)
		}
	}
}
