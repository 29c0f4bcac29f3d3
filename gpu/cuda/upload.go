//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/model/gguf"
)

// uploadBytes is about how much of a matrix is packed at a time.
const uploadBytes = 32 << 20

// upload copies weights to the GPU by two page-locked buffers and a stream of its own: while one buffer is copied,
// all cores pack what comes next into the other.
type upload struct {
	d       *Device
	stream  cu.Stream
	buffers [2]uploadBuffer
	turn    int // the buffer to be filled next

	done, total int64 // bytes
	report      func(done, total int64, what string)
}

type uploadBuffer struct {
	memory []byte
	copied cu.Event // when the GPU has all that was put in last
	made   bool
}

// newUpload makes what copying the linears takes. Close gives it back.
func (d *Device) newUpload(linears []*linear, report func(done, total int64, what string)) (*upload, error) {
	u := &upload{d: d, report: report}
	size := 0
	for _, l := range linears {
		u.total += l.bytes()
		for i := range l.stacks {
			s := &l.stacks[i]
			p := packings[s.kind]
			row := p.rowBytes(rowUnits(l.in))
			size = max(size, row, min(uploadBytes, row*s.rows))
		}
	}
	size += planes * stageAlign
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return nil, fmt.Errorf("making a stream for weights: %w", driver.Explain(err))
	}
	u.stream = stream
	for i := range u.buffers {
		b := &u.buffers[i]
		if b.memory, err = driver.AllocHost(size); err != nil {
			return nil, errors.Join(fmt.Errorf("%s of page-locked memory for weights: %w", gib(int64(size)), err), u.close())
		}
		if b.copied, err = cu.MakeEvent(cu.DisableTiming); err != nil {
			return nil, errors.Join(fmt.Errorf("making an event for weights: %w", driver.Explain(err)), u.close())
		}
		b.made = true
	}
	return u, nil
}

// close waits until all is copied, and gives back what it was copied by.
func (u *upload) close() error {
	if err := u.stream.Synchronize(); err != nil {
		return errors.Join(fmt.Errorf("copying weights: %w", driver.Explain(err)), u.release())
	}
	return u.release()
}

func (u *upload) release() error {
	var errs []error
	for i := range u.buffers {
		b := &u.buffers[i]
		if b.made {
			errs = append(errs, driver.Explain(cu.DestroyEvent(&b.copied)))
		}
		if b.memory != nil {
			errs = append(errs, driver.FreeHost(b.memory))
		}
	}
	errs = append(errs, driver.Explain(u.stream.Destroy()))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("giving back what weights were copied by: %w", err)
	}
	return nil
}

// borrowing lets a weight's bytes be read until done is called.
type borrowing func(name string) (done func(), err error)

// uploadWeights allocates the memory of linears and copies their weights there.
func (d *Device) uploadWeights(linears []*linear, borrow borrowing, report func(done, total int64, what string)) error {
	u, err := d.newUpload(linears, report)
	if err != nil {
		return err
	}
	for _, l := range linears {
		if err := u.linear(l, borrow); err != nil {
			return errors.Join(err, u.close())
		}
	}
	return u.close()
}

// linear allocates the memory of l and copies its weights there.
func (u *upload) linear(l *linear, borrow borrowing) error {
	d := u.d
	for i := range l.stacks {
		s := &l.stacks[i]
		p := packings[s.kind]
		kernels := []namedKernel{{&s.embed, "embed_" + p.suffix}, {&s.one, "multiply_1_" + p.suffix}, {&s.few, "multiply_8_" + p.suffix}, {&s.many, "multiply_64_" + p.suffix}}
		if s.kind != gguf.F32 {
			kernels = append(kernels, namedKernel{&s.medium, "multiply_32_" + p.suffix})
		}
		err := d.module.find(kernels)
		if err != nil {
			return err
		}
		units := rowUnits(l.in)
		for plane := range planes {
			if n := p.size(plane, units); n > 0 {
				if s.planes[plane], err = d.reserve("weights", int64(n)*int64(s.rows)*int64(l.matrices)); err != nil {
					return err
				}
			}
		}
		if err := u.stack(l, s, borrow); err != nil {
			return err
		}
	}
	return nil
}

// stack copies a stack's weights, matrix by matrix.
func (u *upload) stack(l *linear, s *stack, borrow borrowing) error {
	for _, t := range s.parts {
		done, err := borrow(t.Name)
		if err != nil {
			return err
		}
		defer done()
	}
	from := 0
	for i := range l.matrices {
		for _, t := range s.parts {
			size := len(t.Data) / l.matrices
			t.Data = t.Data[i*size:][:size]
			if err := u.matrix(s, t, from); err != nil {
				return fmt.Errorf("tensor %q: %w", t.Name, err)
			}
			from += t.Shape[1]
		}
	}
	return nil
}

// matrix copies a matrix to rows from … of the stack's planes.
func (u *upload) matrix(s *stack, t gguf.Tensor, from int) error {
	p := packings[s.kind]
	in, stride := t.Shape[0], s.kind.RowBytes(t.Shape[0])
	units := rowUnits(in)
	row := p.rowBytes(units)
	for r := 0; r < t.Shape[1]; {
		b := &u.buffers[u.turn]
		u.turn = 1 - u.turn
		if err := b.copied.Synchronize(); err != nil { // at once where nothing was put in yet
			return driver.Explain(err)
		}
		n := min((len(b.memory)-planes*stageAlign)/row, t.Shape[1]-r)
		var packed [planes][]byte
		at := 0
		for plane := range planes {
			size := p.size(plane, units) * n
			packed[plane] = b.memory[at:][:size]
			at += aligned(size)
		}
		packAll(s.kind, packed, t.Data[r*stride:][:n*stride], n, in)
		for plane := range planes {
			size := p.size(plane, units)
			if size == 0 {
				continue
			}
			to := s.planes[plane] + cu.DevicePtr((from+r)*size)
			if err := cu.MemcpyHtoDAsync(to, unsafe.Pointer(&packed[plane][0]), int64(n*size), u.stream); err != nil {
				return driver.Explain(err)
			}
		}
		if err := b.copied.Record(u.stream); err != nil {
			return driver.Explain(err)
		}
		r += n
		if u.done += int64(n * row); u.report != nil {
			u.report(u.done, u.total, "weights to the GPU")
		}
	}
	return nil
}

// packAll is packRows by all cores.
func packAll(t gguf.Type, to [planes][]byte, data []byte, rows, in int) {
	p, stride := packings[t], t.RowBytes(in)
	step := max(64, ceil(rows, runtime.GOMAXPROCS(0)))
	var wait sync.WaitGroup
	for r := 0; r < rows; r += step {
		n := min(step, rows-r)
		var part [planes][]byte
		for plane := range planes {
			part[plane] = to[plane][r*p.size(plane, rowUnits(in)):]
		}
		wait.Go(func() { packRows(t, part, data[r*stride:][:n*stride], n, in) })
	}
	wait.Wait()
}
