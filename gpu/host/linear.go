package host

import (
	"sync/atomic"
	"unsafe"

	"github.com/troupe-llm/troupe/model/gguf"
)

// product is the multiplication at hand: n rows of activations x by a linear, into n rows of y.
type product struct {
	l    *linear
	x, y []float32
	n    int
	// first is, of an expert's product, the number of the first row among all experts'.
	first int
	// plans says, stack by stack, how the work is cut into tasks. How it is cut changes no bit.
	plans []plan

	// Where chunks of columns are tasks of their own, their sums are in partial, as rows of l.out
	// for each chunk and activation row, and missing counts the chunks that a tile still lacks.
	partial []float32
	missing []atomic.Int32

	// octets are x for packed weights: l.in/32 for each row, where rounded's panels want them.
	octets  []octets
	rounded *packing
}

// plan is a stack's share of the tasks. With tables, those are pairs of activation rows × tiles of
// weight rows (× chunks of columns if split), else tiles of weight rows.
type plan struct {
	first int // its first task
	tile  int // weight rows per tile
	tiles int
	split bool
	group int // split: the first of its counters in product.missing
}

const (
	// A task's weights should fit in the second-level cache, and be enough rows for their tables.
	tileBytes  = 5 << 17
	minTile    = 256
	lookupTile = 8192
	splitRows  = 16 // activation rows up to which chunks may be tasks; with more there are enough
	dotTile    = 64 // weight rows of a task without tables
	dotRows    = 4  // how many of these are dequantised at once
)

// multiply computes y = x·Wᵀ for n rows of l.in activations.
func (h *Host) multiply(l *linear, x, y []float32, n int) error {
	p := &h.product
	p.l, p.x, p.y, p.n, p.plans = l, x, y, n, p.plans[:0]
	if err := h.quantiseRows(); err != nil {
		return err
	}
	workers := h.pool.workers
	tasks, groups, pairs := 0, 0, (n+1)/2
	for i := range l.stacks {
		s := &l.stacks[i]
		q := plan{first: tasks, group: groups, tile: dotTile}
		per := 1 // tasks per tile
		if s.packing != nil {
			q.tile = l.packedTile(s, workers, n)
		} else if s.lookup {
			q.tile = min(max(minTile, tileBytes/s.kind.RowBytes(l.in)), lookupTile)
			if all := (s.rows + q.tile - 1) / q.tile * pairs; all < 4*workers {
				// As many tasks as workers, or twice, thrice as many.
				all = (all + workers - 1) / workers * workers
				tiles := (all + pairs - 1) / pairs
				q.tile = max(minTile, (s.rows+tiles-1)/tiles)
			}
			per = pairs
			q.split = (s.rows+q.tile-1)/q.tile*pairs < workers && s.chunks > 1 && n <= splitRows
			if q.split {
				per = pairs * s.chunks
			}
		}
		q.tiles = (s.rows + q.tile - 1) / q.tile
		if q.split {
			for range pairs * q.tiles {
				p.missing[groups].Store(int32(s.chunks))
				groups++
			}
		}
		tasks += per * q.tiles
		p.plans = append(p.plans, q)
	}
	return h.pool.run(h, tasks, (*Host).multiplyTask)
}

func (h *Host) multiplyTask(worker, task int) {
	p, w := &h.product, &h.scratch[worker]
	i := len(p.plans) - 1
	for p.plans[i].first > task {
		i--
	}
	s, q := &p.l.stacks[i], &p.plans[i]
	task -= q.first
	if s.packing != nil {
		p.packed(w, s, task*q.tile, min(task*q.tile+q.tile, s.rows))
		return
	}
	if !s.lookup {
		p.dots(w, s, task*q.tile, min(task*q.tile+q.tile, s.rows))
		return
	}
	// All pairs of rows meet a tile of weights before the next, and workers tend to stay with a chunk:
	// weights should come from memory once.
	chunk, tile, pairs := 0, task, (p.n+1)/2
	if q.split {
		chunk, tile = task%s.chunks, task/s.chunks
	}
	row, from := tile%pairs*2, tile/pairs*q.tile
	to := min(from+q.tile, s.rows)
	rows := min(2, p.n-row)
	if !q.split {
		p.lookups(w, s, row, rows, from, to, 0, s.chunks, p.y)
		return
	}
	out := p.l.out
	p.lookups(w, s, row, rows, from, to, chunk, chunk+1, p.partial[chunk*splitRows*out:])
	if p.missing[q.group+tile].Add(-1) != 0 {
		return
	}
	for i := range s.parts {
		m := &s.parts[i]
		a, b := max(from, m.at), min(to, m.at+m.rows)
		for r := row; r < row+rows && a < b; r++ {
			at := r*out + m.first - m.at
			y := p.y[at+a : at+b]
			copy(y, p.partial[at+a:at+b])
			for c := 1; c < s.chunks; c++ {
				at := at + c*splitRows*out
				add(y, p.partial[at+a:at+b])
			}
		}
	}
}

const (
	// A task's packed weights are met by 4 activation rows at a time and should stay in the second-level
	// cache; but a task should be worth its while.
	packedMost  = 1 << 17
	packedLeast = 1 << 14
	// Activations up to which a row is rounded by the caller: waking the workers takes as long.
	quantiseAlone = 1 << 12
)

// packedTile is how many rows of s a task has: a multiple of a group's.
func (l *linear) packedTile(s *stack, workers, n int) int {
	size, rows := s.packing.groupBytes(l.in), s.packing.rows
	bytes := (l.out + rows - 1) / rows * size / (4 * workers)
	bytes = min(max(bytes, packedLeast/n), packedMost)
	return max(1, bytes/size) * rows
}

// quantiseRows rounds the activations at hand if there are weights that take them so.
func (h *Host) quantiseRows() error {
	p := &h.product
	p.rounded = nil
	for i := range p.l.stacks {
		if s := &p.l.stacks[i]; s.takesOctets() {
			p.rounded = s.packing // of the same instructions as the others'
		}
	}
	switch {
	case p.rounded == nil:
	case p.n*p.l.in > quantiseAlone:
		return h.pool.run(h, p.n, (*Host).quantiseTask)
	default:
		for r := range p.n {
			h.quantiseTask(0, r)
		}
	}
	return nil
}

func (h *Host) quantiseTask(_, row int) { h.product.quantiseRow(row) }

func (p *product) quantiseRow(row int) {
	blocks := p.l.in / 32
	at, step := p.rounded.panel(row, p.n, blocks)
	p.rounded.quantise(p.octets[at:], p.x[row*p.l.in:][:p.l.in], step)
}

// packed multiplies weight rows from … to of s, which has one matrix, by all activation rows.
func (p *product) packed(w *scratch, s *stack, from, to int) {
	const float, octet = int(unsafe.Sizeof(p.y[0])), int(unsafe.Sizeof(p.octets[0]))
	in, out, first := p.l.in, p.l.out, s.parts[0].first
	records, blocks := s.packing.records(in), in/32
	group, size := s.packing.rows, s.packing.groupBytes(in)
	whole := (to - from) / group
	weights := s.packed[from/group*size:]
	for r := 0; r < p.n; {
		kernel, rows := s.packing.kernel(p.n - r)
		var x *byte
		var stride int
		if s.takesOctets() {
			x, stride = (*byte)(unsafe.Pointer(&p.octets[r*blocks])), blocks*octet
		} else {
			x, stride = (*byte)(unsafe.Pointer(&p.x[r*in])), in*float
		}
		y := p.y[r*out+first+from : (r+rows-1)*out+first+to]
		if whole > 0 {
			kernel(&weights[0], whole, records, x, stride, &y[0], out*float)
		}
		if done := whole * group; done < to-from {
			kernel(&weights[whole*size], 1, records, x, stride, &w.rest[0], group*float)
			for j := range rows {
				copy(y[j*out+done:j*out+to-from], w.rest[j*group:])
			}
		}
		r += rows
	}
}

// dots multiplies weight rows from … to of s by all activation rows, without tables.
func (p *product) dots(w *scratch, s *stack, from, to int) {
	in, out := p.l.in, p.l.out
	for i := range s.parts {
		m := &s.parts[i]
		for a, b := max(from, m.at), min(to, m.at+m.rows); a < b; a += dotRows {
			k := min(dotRows, b-a)
			weights := w.rows[:k*in]
			s.dequantise(weights, m.data[(a-m.at)*m.stride:(a-m.at+k)*m.stride])
			for r := range p.n {
				x, y := p.x[r*in:][:in], p.y[r*out+m.first+a-m.at:][:k]
				for j := range y {
					y[j] = dot(weights[j*in:][:in], x)
				}
			}
		}
	}
}

// lookups multiplies weight rows from … to of s by one or two activation rows, by tables, over the
// given chunks of columns, into rows of l.out at dst.
func (p *product) lookups(w *scratch, s *stack, row, rows, from, to, chunk, last int, dst []float32) {
	in, out, blocks := p.l.in, p.l.out, p.l.in/32
	x, x2 := p.x[row*in:][:in], p.x[(row+rows-1)*in:][:in]
	acc, acc2 := w.acc[:to-from], w.acc2[:to-from]
	if rows == 1 {
		acc2 = nil
	}
	if p.n <= splitRows {
		size := s.kind.BlockBytes()
		s.touch(w, from, to, chunk*blocks/s.chunks*size, last*blocks/s.chunks*size)
	}
	for c := chunk; c < last; c++ {
		clear(acc)
		clear(acc2)
		for k := c * blocks / s.chunks; k < (c+1)*blocks/s.chunks; k++ {
			s.addBlock(w, k, from, to, (*[32]float32)(x[32*k:]), (*[32]float32)(x2[32*k:]), acc, acc2)
		}
		for i := range s.parts {
			m := &s.parts[i]
			a, b := max(from, m.at), min(to, m.at+m.rows)
			if a >= b {
				continue
			}
			at := row*out + m.first - m.at
			store(dst[at+a:at+b], acc[a-from:b-from], c == chunk)
			if rows == 2 {
				store(dst[at+out+a:at+out+b], acc2[a-from:b-from], c == chunk)
			}
		}
	}
}

// touch reads a byte of each cache line of weight rows from … to, in their bytes first … last. The
// kernels go through weights column by column, in strides that processors are bad at fetching ahead, and
// have few reads under way at a time; this waits for memory at memory's full speed, and then they find
// all in the cache. With many activation rows it doesn't matter.
func (s *stack) touch(w *scratch, from, to, first, last int) {
	for i := range s.parts {
		m := &s.parts[i]
		a, b := max(from, m.at)-m.at, min(to, m.at+m.rows)-m.at
		if a >= b {
			continue
		}
		if last-first == m.stride {
			w.touched += touch(m.data[a*m.stride : b*m.stride])
			continue
		}
		for r := a; r < b; r++ {
			w.touched += touch(m.data[r*m.stride+first : r*m.stride+last])
		}
	}
}

func touch(b []byte) byte {
	const line = 64
	var sum byte
	for len(b) > 8*line {
		c := (*[8 * line]byte)(b)
		sum += c[0] + c[line] + c[2*line] + c[3*line] + c[4*line] + c[5*line] + c[6*line] + c[7*line]
		b = b[8*line:]
	}
	for len(b) > line {
		sum += b[0]
		b = b[line:]
	}
	return sum + b[len(b)-1]
}

// addBlock adds the products of block column k, for weight rows from … to of s, to acc and, if it is
// not nil, those of a second activation row to acc2.
func (s *stack) addBlock(w *scratch, k, from, to int, x, x2 *[32]float32, acc, acc2 []float32) {
	bits, codes := pairBits, &codesQ4_1
	switch s.kind {
	case gguf.Q4_0:
		codes = &codesQ4_0
	case gguf.MXFP4:
		codes = &codesMX
	case gguf.IQ4_NL:
		bits, codes = byteBits, &codesIQ4
	case gguf.Q8_0:
		bits = byteBits
	}
	f, f2, two := &w.fixed[0], &w.fixed[1], acc2 != nil
	f.quantise(x, bits)
	if two {
		f2.quantise(x2, bits)
	}
	switch {
	case s.kind == gguf.Q8_0 && two:
		w.byteTables.fill(f, f2)
	case s.kind == gguf.Q8_0:
		w.byteTable.fill(f)
	case two:
		w.pairTables.fill(f, f2, codes)
	default:
		w.pairTable.fill(f, codes)
	}
	for i := range s.parts {
		m := &s.parts[i]
		a, b := max(from, m.at), min(to, m.at+m.rows)
		if a >= b {
			continue
		}
		data := m.data[(a-m.at)*m.stride+k*s.kind.BlockBytes():]
		sums := acc[a-from : b-from]
		if !two {
			switch s.kind {
			case gguf.Q4_0, gguf.IQ4_NL:
				addQ4_0(sums, data, m.stride, &w.pairTable, f)
			case gguf.Q4_1:
				addQ4_1(sums, data, m.stride, &w.pairTable, f)
			case gguf.MXFP4:
				addMXFP4(sums, data, m.stride, &w.pairTable, f)
			case gguf.Q8_0:
				addQ8_0(sums, data, m.stride, &w.byteTable, f)
			}
			continue
		}
		sums2 := acc2[a-from : b-from]
		switch s.kind {
		case gguf.Q4_0, gguf.IQ4_NL:
			addQ4_0x2(sums, sums2, data, m.stride, &w.pairTables, f, f2)
		case gguf.Q4_1:
			addQ4_1x2(sums, sums2, data, m.stride, &w.pairTables, f, f2)
		case gguf.MXFP4:
			addMXFP4x2(sums, sums2, data, m.stride, &w.pairTables, f, f2)
		case gguf.Q8_0:
			addQ8_0x2(sums, sums2, data, m.stride, &w.byteTables, f, f2)
		}
	}
}

// add adds x to y.
func add(y, x []float32) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] += v
	}
}

// store sets y to x, or adds x to it.
func store(y, x []float32, set bool) {
	if set {
		copy(y, x)
		return
	}
	add(y, x)
}
