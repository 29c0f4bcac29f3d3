package hf

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/edsrzf/mmap-go"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/safetensors"
)

// Progress hears how far the conversion of weights has come: done of total bytes of the result, and what is
// going on. Calls come one after another, and must return at once.
type Progress func(done, total int64, what string)

// weights are what a folder's tensors become, each when it is first wanted.
type weights struct {
	progress Progress
	what     string // for progress
	total    int64  // bytes of all that is to be made

	mu   sync.Mutex
	made map[string]*conversion // by GGUF's name
	asIs map[string]*source     // those that stay in the files
	done int64                  // bytes that have been made for the first time
}

// conversion is a weight that is to be made. Its memory is reserved at once, and taken from the system when
// it is written to.
type conversion struct {
	weight
	memory   mmap.MMap
	ready    bool // it is there
	once     bool // it has been there
	kept     bool // it is to stay
	borrowed int  // by how many who will give it back
}

// newWeights adds all tensors to the builder, and reserves memory for those that must be made.
func newWeights(plan []weight, b *gguf.Builder, what string, progress Progress) (*weights, error) {
	ws := &weights{progress: progress, what: what, made: map[string]*conversion{}, asIs: map[string]*source{}}
	for _, w := range plan {
		switch {
		case w.parts == nil: // made already
		case w.asIs():
			w.Data = w.parts[0].Data
			ws.asIs[w.Name] = &w.parts[0]
		case len(w.Shape) == 1: // small, and wanted by everyone: made now
			w.Data = make([]byte, w.Type.RowBytes(w.Values()))
			c := conversion{weight: w}
			if err := c.convert(0, 1, nil); err != nil {
				_ = ws.close()
				return nil, err
			}
		default:
			n := w.Type.RowBytes(w.Values())
			memory, err := mmap.MapRegion(nil, n, ownMemory, mmap.ANON, 0)
			if err != nil {
				_ = ws.close()
				return nil, fmt.Errorf("no memory for the %d bytes of %s: %w", n, w.parts[0].Name, err)
			}
			w.Data = memory[:n:n]
			ws.made[w.Name] = &conversion{weight: w, memory: memory}
			ws.total += int64(n)
		}
		b.Add(w.Name, w.Type, w.Shape, w.Data)
	}
	return ws, nil
}

func (ws *weights) close() error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var first error
	for _, c := range ws.made {
		if err := c.memory.Unmap(); first == nil {
			first = err
		}
	}
	ws.made = nil
	return first
}

// keep makes a weight that is to stay.
func (ws *weights) keep(name string) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	c := ws.made[name]
	if c == nil {
		return nil
	}
	c.kept = true
	return ws.make(c)
}

// borrow makes a weight for a while: done gives its memory back, unless someone else has it. One that stays in
// its file leaves memory, and is read again when it is touched.
func (ws *weights) borrow(name string) (done func(), err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	c := ws.made[name]
	if c == nil {
		return func() {
			ws.mu.Lock()
			defer ws.mu.Unlock()
			if s := ws.asIs[name]; s != nil && ws.made != nil { // still mapped
				s.release()
			}
		}, nil
	}
	if err := ws.make(c); err != nil {
		return nil, err
	}
	c.borrowed++
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		c.borrowed--
		if c.borrowed == 0 && !c.kept && ws.made != nil && discard(c.memory) {
			c.ready = false
		}
	}, nil
}

// make fills in a weight, unless it is there.
func (ws *weights) make(c *conversion) error {
	if c.ready {
		return nil
	}
	err := c.run(func(n int) {
		if ws.progress != nil && !c.once {
			ws.progress(ws.done+int64(n), ws.total, ws.what)
		}
	})
	if err != nil {
		return err
	}
	c.ready = true
	if !c.once {
		c.once = true
		ws.done += int64(len(c.Data))
	}
	return nil
}

// chunkValues is about how many values are converted at a time.
const chunkValues = 1 << 16

// run converts all rows on all processors. report hears how many bytes are made.
func (c *conversion) run(report func(bytes int)) error {
	width := c.Shape[0]
	rows := c.Values() / width
	step := max(1, chunkValues/width)
	chunks := (rows + step - 1) / step
	var next, finished atomic.Int64
	var failed atomic.Pointer[error]
	work := func(reports bool) {
		values := make([]float32, 0, step*width)
		for failed.Load() == nil {
			i := int(next.Add(1)) - 1
			if i >= chunks {
				return
			}
			from, to := i*step, min(rows, (i+1)*step)
			if err := c.convert(from, to, values[:0]); err != nil {
				failed.CompareAndSwap(nil, &err)
				return
			}
			n := finished.Add(int64(to - from))
			if reports {
				report(c.Type.RowBytes(width) * int(n))
			}
		}
	}
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), chunks) - 1 {
		wait.Go(func() { work(false) })
	}
	work(true)
	wait.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	for i := range c.parts {
		c.parts[i].release()
	}
	report(len(c.Data))
	return nil
}

// maxQuantised is the largest value that is quantised: scales are float16, and this is the largest of these.
const maxQuantised = 65504

// convert makes rows from to to. values is memory for them.
func (c *conversion) convert(from, to int, values []float32) error {
	width, size := c.Shape[0], c.Type.RowBytes(c.Shape[0])
	dst := c.Data[from*size : to*size : to*size]
	same := floatTypes[c.parts[0].Dtype] == c.Type && c.bias == 0
	if same { // rows are only moved
		for row := from; row < to; row++ {
			src, _ := c.row(row)
			copy(dst[(row-from)*size:][:size], src)
		}
		return nil
	}
	for row := from; row < to; row++ {
		src, part := c.row(row)
		values = appendFloats(values, part.Dtype, src)
		last := values[len(values)-width:]
		sum, most := float32(0), float32(0)
		for i := range last {
			last[i] += c.bias
			sum += last[i] - last[i] // NaN of NaN and of infinities, else 0
			if v := float32(math.Abs(float64(last[i]))); v > most {
				most = v
			}
		}
		if sum != 0 {
			return fmt.Errorf("%s: tensor %q at byte %d: row %d has a value that is not finite", part.file, part.Name, part.Offset, row)
		}
		if most > maxQuantised && c.Type.BlockSize() > 1 {
			return fmt.Errorf("%s: tensor %q at byte %d: row %d has a value of size %g, and those above %d are not quantised: open it without", part.file, part.Name, part.Offset, row, most, maxQuantised)
		}
	}
	_, err := gguf.AppendEncode(dst[:0], c.Type, values)
	return err
}

// row finds where a row of the result is in the files.
func (c *conversion) row(row int) ([]byte, *source) {
	perPart := c.Values() / c.Shape[0] / len(c.parts)
	p := &c.parts[row/perPart]
	row %= perPart
	if n := c.halves; n > 0 {
		head, i := row/n*n, row%n
		row = head + i%2*(n/2) + i/2
	}
	size := c.Shape[0] * p.Dtype.Size()
	return p.Data[row*size:][:size], p
}

// appendFloats appends values of one of floatTypes.
func appendFloats(dst []float32, t safetensors.Dtype, src []byte) []float32 {
	le := binary.LittleEndian
	switch t {
	case safetensors.F32:
		for ; len(src) >= 4; src = src[4:] {
			dst = append(dst, math.Float32frombits(le.Uint32(src)))
		}
	case safetensors.BF16:
		for ; len(src) >= 2; src = src[2:] {
			dst = append(dst, math.Float32frombits(uint32(le.Uint16(src))<<16))
		}
	case safetensors.F16:
		for ; len(src) >= 2; src = src[2:] {
			dst = append(dst, gguf.Float16(le.Uint16(src)))
		}
	}
	return dst
}
