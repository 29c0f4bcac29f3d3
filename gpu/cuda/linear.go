//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// What kernels/linear.cuh is built for.
const (
	vectorRows    = 2 // rows of a warp where columns are few
	vectorWarps   = 4
	vectorColumns = 4
	fewColumns    = 16 // from here on, products go by tiles
	tile          = 64
	tileThreads   = 256
)

// stack is matrices of one type, one below the other, whose products lie one after another.
type stack struct {
	kind   gguf.Type
	rows   int // of each of the linear's matrices
	first  int // where its products begin among those of its linear
	planes [planes]cu.DevicePtr
	parts  []gguf.Tensor

	one, few, many, embed *kernel
}

// linear is one or more matrices that are multiplied by the same activations; or several of these, one behind the
// other, of which each activations have one.
type linear struct {
	stacks   []stack
	in, out  int
	matrices int
}

// newLinear finds matrices of a model; nothing is allocated yet. A vector is a matrix of one row.
func newLinear(m *model.Model, names ...string) (*linear, error) { return newLinears(m, 1, names...) }

// newLinears finds matrices that are there matrices times, as the last dimension says.
func newLinears(m *model.Model, matrices int, names ...string) (*linear, error) {
	l := &linear{matrices: matrices}
	for _, name := range names {
		t, err := m.Peek(name)
		if err != nil {
			return nil, err
		}
		if _, ok := packings[t.Type]; !ok {
			return nil, &gpu.UnsupportedError{Err: fmt.Errorf("tensor %q is %s, which the CUDA device does not compute with; it knows %s", t.Name, t.Type, supported())}
		}
		shape := append(t.Shape[:len(t.Shape):len(t.Shape)], 1, 1)[:3] // dimensions that are not there are 1
		if len(t.Shape) > 3 || shape[2] != matrices || l.in != 0 && shape[0] != l.in || len(t.Data) != t.Type.RowBytes(shape[0])*shape[1]*matrices {
			return nil, fmt.Errorf("tensor %q has shape %v and %d bytes, which don't fit", t.Name, t.Shape, len(t.Data))
		}
		l.in, t.Shape = shape[0], shape
		if n := len(l.stacks); n == 0 || l.stacks[n-1].kind != t.Type {
			l.stacks = append(l.stacks, stack{kind: t.Type, first: l.out})
		}
		s := &l.stacks[len(l.stacks)-1]
		s.parts = append(s.parts, t)
		s.rows += t.Shape[1]
		l.out += t.Shape[1]
	}
	return l, nil
}

// bytes is the GPU memory that it takes.
func (l *linear) bytes() int64 {
	n := int64(0)
	for i := range l.stacks {
		s := &l.stacks[i]
		p := packings[s.kind]
		n += int64(p.rowBytes(rowUnits(l.in))) * int64(s.rows) * int64(l.matrices)
	}
	return n
}

// rows is activations in the GPU's memory: rows of stride floats.
type rows struct {
	at     uint64
	stride int
}

// row is the rows from i on.
func (r rows) row(i int) rows { return rows{r.at + uint64(4*i*r.stride), r.stride} }

// stride is that of rows of n floats.
func stride(n int) int { return (n + rowWeights - 1) / rowWeights * rowWeights }

// columnsFor is how many columns a block takes where there are n.
func columnsFor(n int) int {
	switch {
	case n == 1:
		return 1
	case n < fewColumns:
		return vectorColumns
	}
	return tile
}

// multiply puts the products of l and n rows x into y, or adds them to it.
func (d *Device) multiply(l *linear, x, y rows, n int, add bool) error {
	columns := columnsFor(n)
	return d.launchProducts(l, x, y, n, columns, (n+columns-1)/columns, 0, add)
}

// launchProducts launches blocks that take columns rows x each: all n of them, or those that shares on the GPU say.
func (d *Device) launchProducts(l *linear, x, y rows, n, columns, blocks int, shares uint64, add bool) error {
	for i := range l.stacks {
		s := &l.stacks[i]
		k, rows, threads := s.many, tile, tileThreads
		switch columns {
		case 1:
			k, rows, threads = s.one, vectorRows*vectorWarps, 32*vectorWarps
		case vectorColumns:
			k, rows, threads = s.few, vectorRows*vectorWarps, 32*vectorWarps
		}
		err := d.module.launch(k, shape{x: (s.rows + rows - 1) / rows, y: blocks, threads: threads},
			uint64(s.planes[quants]), uint64(s.planes[high]), uint64(s.planes[scales]), uint64(s.planes[supers]),
			x.at, y.at+uint64(4*s.first), uint64(s.rows), uint64(rowUnits(l.in)), uint64(x.stride), uint64(y.stride), uint64(n), one(add), shares)
		if err != nil {
			return err
		}
	}
	return nil
}
