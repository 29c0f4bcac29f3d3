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
	// Columns that a block takes, if it is not one. F32 has no medium.
	fewColumns    = 8
	mediumColumns = 32
	tileColumns   = 64

	vectorWarps = 4 // of a block where columns of floats are few
	floatsTile  = 64
	bytesRows   = 2 // rows of a warp's lanes
	bytesWarps  = 2
	bandRows    = 16
	bandWarps   = 8
	tileHeight  = 128
	tileThreads = 128
	halvesStep  = 128
)

// form is how a product takes its activations: kernels/activations.cuh says what lies where.
type form uint64

const (
	asFloats form = 1 << iota
	asBytes       // of one row
	asHalves
)

// stack is matrices of one type, one below the other, whose products lie one after another.
type stack struct {
	kind   gguf.Type
	rows   int // of each of the linear's matrices
	first  int // where its products begin among those of its linear
	planes [planes]cu.DevicePtr
	parts  []gguf.Tensor

	// Products of blocks of one column, few, medium or many.
	one, few, medium, many, embed *kernel
}

// form is how the stack takes activations, where a block takes a single row of them or several. Tensor cores multiply
// halves, and so not F32; a single row is best multiplied as bytes, where weights are.
func (s *stack) form(single bool) form {
	switch {
	case s.kind == gguf.F32 || single && (s.kind == gguf.F16 || s.kind == gguf.BF16):
		return asFloats
	case single:
		return asBytes
	}
	return asHalves
}

// linear is one or more matrices that are multiplied by the same activations; or several of these, one behind the
// other, of which each activations have one.
type linear struct {
	stacks   []stack
	in, out  int
	matrices int
}

// forms are all that l takes activations in, where a block takes a single row of them or several.
func (l *linear) forms(single bool) form {
	all := form(0)
	for i := range l.stacks {
		all |= l.stacks[i].form(single)
	}
	return all
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
func stride(n int) int { return whole(n, rowWeights) }

// preparedBytes is what m rows of n values take as halves or bytes.
func preparedBytes(m, n int) int64 {
	n = whole(n, halvesStep)
	return int64(m) * int64(2*n+4*n/rowWeights+16)
}

// store launches a kernel that stores rows in the forms of which, as floats in y.
func (d *Device) store(k *kernel, s shape, which form, y rows, parameters ...uint64) error {
	var all [16]uint64
	rest := all[copy(all[:], parameters):]
	used := len(parameters) + copy(rest, []uint64{uint64(which), y.at, uint64(y.stride), d.prepared, d.factors})
	return d.module.launch(k, s, all[:used]...)
}

// prepareFor stores n rows of floats as l takes them, if it takes others.
func (d *Device) prepareFor(l *linear, x rows, n int) error {
	which := l.forms(n == 1) &^ asFloats
	if which == 0 {
		return nil
	}
	s := shape{x: 1, y: n, threads: threadsFor(l.in, 256)}
	if which == asBytes {
		s.x = ceil(l.in, s.threads)
	}
	return d.store(d.convert, s, which, x, x.at, uint64(l.in), uint64(x.stride))
}

// columnsFor is how many columns a block takes where there are n: the fewest that are enough, or as many as can be.
func columnsFor(n int) int {
	switch {
	case n == 1:
		return 1
	case n <= fewColumns:
		return fewColumns
	case n <= mediumColumns:
		return mediumColumns
	}
	return tileColumns
}

// multiply puts the products of l and n rows into y, or adds them to it. The rows are x where l takes floats, and
// what was last stored in another form where it takes that.
func (d *Device) multiply(l *linear, x, y rows, n int, add bool) error {
	columns := columnsFor(n)
	return d.launchProducts(l, x, y, n, columns, ceil(n, columns), 0, add)
}

// launchProducts launches blocks that take columns rows x each: all n of them, or those that shares on the GPU say.
func (d *Device) launchProducts(l *linear, x, y rows, n, columns, blocks int, shares uint64, add bool) error {
	for i := range l.stacks {
		s := &l.stacks[i]
		to, units := y.at+uint64(4*s.first), rowUnits(l.in)
		columns, blocks := columns, blocks
		if columns == tileColumns && shares == 0 && s.medium != nil && 2*ceil(s.rows, tileHeight)*blocks < d.cores {
			// Tiles would leave most multiprocessors without work.
			columns, blocks = mediumColumns, ceil(n, mediumColumns)
		}
		k := s.many
		switch {
		case columns == 1:
			k = s.one
		case columns == fewColumns:
			k = s.few
		case columns == mediumColumns && s.medium != nil:
			k = s.medium
		}
		var err error
		switch s.form(columns == 1) {
		case asFloats:
			grid := shape{x: ceil(s.rows, floatsTile), y: blocks, threads: 256}
			switch columns {
			case 1:
				grid.x, grid.threads = ceil(s.rows, 4*vectorWarps), 32*vectorWarps
			case fewColumns:
				grid.x, grid.threads = ceil(s.rows, 2*vectorWarps), 32*vectorWarps
			}
			err = d.module.launchOn(s, k, grid, x.at, to, uint64(s.rows), uint64(units), uint64(x.stride), uint64(y.stride), uint64(n), one(add), shares)
		case asBytes:
			lanes := lanesFor(s.rows*blocks, units/4, d.cores)
			grid := shape{x: ceil(s.rows, bytesRows*bytesWarps*32/lanes), y: blocks, threads: 32 * bytesWarps}
			err = d.module.launchOn(s, k, grid, d.prepared, to, uint64(s.rows), uint64(units), uint64(y.stride), uint64(n), uint64(lanes), one(add), shares)
		case asHalves:
			grid, split := shape{x: ceil(s.rows, tileHeight), y: blocks, threads: tileThreads}, 1
			if k != s.many {
				// As many warps share a band of rows as it takes to keep all multiprocessors busy.
				bands := ceil(s.rows, bandRows)
				for split < bandWarps && ceil(bands*split, bandWarps)*blocks < 2*d.cores {
					split *= 2
				}
				grid.x, grid.threads = ceil(bands*split, bandWarps), 32*bandWarps
			}
			err = d.module.launchOn(s, k, grid, d.prepared, d.factors, to, uint64(s.rows), uint64(units), uint64(y.stride), uint64(n), uint64(split), one(add), shares)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ceil is n / of rounded up, whole n rounded up to a multiple of of.
func ceil[T int | int64](n, of T) T  { return (n + of - 1) / of }
func whole[T int | int64](n, of T) T { return ceil(n, of) * of }

// lanesFor is how many lanes of a warp share a row of so many blocks of 32 weights: all, unless more than a quarter
// of them would have nothing to do and there are rows enough to keep all multiprocessors busy with fewer.
func lanesFor(rows, blocks, cores int) int {
	lanes := 32
	for lanes > 4 && 4*blocks < 3*whole(blocks, lanes) && rows*lanes/2 >= 32*bytesRows*16*cores {
		lanes /= 2
	}
	return lanes
}
