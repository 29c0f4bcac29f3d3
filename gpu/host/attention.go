package host

import (
	"math"
	"sync/atomic"
)

const (
	// keyTile is how many positions attention takes at once. Tiles begin at multiples of it whatever the
	// cache's block size. Each row's softmax over a tile is computed on its own, and then they are put
	// together in order, as online softmax does (Milakov and Gimelshein, 2018, arXiv:1805.02867). So a
	// position's output has the same bits however its keys are stored, whatever chunk it came in, and
	// whether one thread went over all tiles or each had its own.
	keyTile = 128
	// keyPiece is how many of a tile's keys or values all queries meet before the next: few enough to
	// stay in the first-level cache.
	keyPiece = 32
	// keysAhead is how many keys or values before it is needed memory is asked for.
	keysAhead = 32
	// groupQueries is how many queries one task has, at most: so many that reading keys from memory costs
	// little beside multiplying them, and few enough that their scores stay in the second-level cache.
	groupQueries = 48
	// fewTasks is the tasks per worker below which the tiles of long sequences become tasks.
	fewTasks = 4
	// smallWork is the multiplications up to which one thread computes alone: a microsecond or two of
	// them, while others take as long to hear of work, and much longer to wake up.
	smallWork = 1 << 16
	// partialFloats bounds the memory for tiles' results; one sequence's have room in any case.
	partialFloats = 4 << 20
)

// attention is softmax(q·K/√dim)·V, over the positions up to each row's own, for a tile of rows.
type attention struct {
	shared    int // query heads per KV head
	groupRows int // most rows of a group
	groups    []group
	jobs      []job
	small     bool // all tasks together are too little to be worth a second thread
	// Where tiles are tasks of their own, their results are in partial, and missing counts the tiles that
	// a group's KV head still lacks.
	partial []float32
	missing []atomic.Int32
}

// group is successive rows of one sequence. One task attends from all of them, by all the query heads
// that share a KV head.
type group struct {
	first, rows int
	position    int // of the first row
	tiles       int // of keys that the last row sees
	partial     int // where tiles' results begin, if they are tasks of their own
}

// job is a group's tile of keys, or with tile −1, all of them. With a KV head it makes a task.
type job struct{ group, tile int }

// attended is what a group's queries have gathered from tiles of keys: sum is that of exp(score − top),
// and out that of exp(score − top)·value.
type attended struct {
	out, top, sum []float32
}

// attentionScratch is a worker's own memory.
type attentionScratch struct {
	queries []float32
	piece   []float32 // keyPiece keys or values, where they are converted
	scores  []float32
	all     attended // from tiles so far
	tile    attended // from the tile at hand
}

func newAttention(c *cache, heads, rows, workers, maxContext int) attention {
	a := attention{shared: heads / c.heads}
	a.groupRows = max(1, groupQueries/a.shared)
	a.groups = make([]group, 0, rows)
	tiles := (maxContext + keyTile - 1) / keyTile
	few := fewTasks * workers // split groups × KV heads are fewer than this
	a.jobs = make([]job, 0, rows+few*tiles)
	if workers > 1 && tiles > 1 {
		one := tiles * a.shared * (c.stride + 2)
		a.partial = make([]float32, max(c.heads*one, min(few*one, partialFloats)))
		a.missing = make([]atomic.Int32, few)
	}
	return a
}

func newAttentionScratch(c *cache, shared int) attentionScratch {
	n := max(shared, groupQueries)
	make2 := func() attended { return cut(make([]float32, n*(c.stride+2)), n, c.stride) }
	return attentionScratch{
		queries: make([]float32, n*c.stride), piece: make([]float32, keyPiece*c.stride),
		scores: make([]float32, n*keyTile), all: make2(), tile: make2(),
	}
}

// cut takes the room for n queries of stride values off memory.
func cut(memory []float32, n, stride int) attended {
	return attended{memory[:n*stride], memory[n*stride:][:n], memory[n*(stride+1):][:n]}
}

// planAttention divides h.rows into groups and tasks, which are the same in all layers. How is a matter
// of speed alone.
func (h *Host) planAttention() {
	a, c := &h.attention, h.cache
	a.groups, a.jobs = a.groups[:0], a.jobs[:0]
	few := fewTasks * h.pool.workers
	work := 0
	most := min(max(1, len(h.rows)*c.heads/few), a.groupRows)
	for i := 0; i < len(h.rows); {
		first, n := &h.rows[i], 1
		for n < most && i+n < len(h.rows) && h.rows[i+n].span == first.span {
			n++
		}
		position := int(first.position)
		a.groups = append(a.groups, group{first: i, rows: n, position: position, tiles: (position+n-1)/keyTile + 1})
		work += n * (position + n) * h.heads * c.stride * 2
		i += n
	}
	a.small = work <= smallWork
	split, used := len(a.groups)*c.heads < few && len(a.partial) > 0, 0
	for i := len(a.groups) - 1; i >= 0; i-- { // the later rows of a prompt, which see more, come first
		g := &a.groups[i]
		need := c.heads * g.tiles * g.rows * a.shared * (c.stride + 2)
		if !split || g.tiles == 1 || used+need > len(a.partial) {
			a.jobs = append(a.jobs, job{i, -1})
			continue
		}
		g.partial = used
		used += need
		for tile := range g.tiles {
			a.jobs = append(a.jobs, job{i, tile})
		}
		for head := range c.heads {
			a.missing[i*c.heads+head].Store(int32(g.tiles))
		}
	}
}

func (h *Host) attend() error {
	if h.attention.small {
		return h.pool.run(h, 1, (*Host).attendAlone)
	}
	return h.pool.run(h, len(h.attention.jobs)*h.cache.heads, (*Host).attentionTask)
}

// attendAlone does all tasks.
func (h *Host) attendAlone(worker, _ int) {
	for task := range len(h.attention.jobs) * h.cache.heads {
		h.attentionTask(worker, task)
	}
}

func (h *Host) attentionTask(worker, task int) {
	a, c, s := &h.attention, h.cache, &h.scratch[worker].attention
	j, head := a.jobs[task/c.heads], task%c.heads
	g := &a.groups[j.group]
	h.loadQueries(s, g, head)
	if j.tile < 0 {
		h.attendTile(s, g, head, 0, s.all)
		for tile := 1; tile < g.tiles; tile++ {
			h.attendTile(s, g, head, tile, s.tile)
			h.mergeTile(g, tile, s.all, s.tile)
		}
		h.finishAttention(g, head, s.all)
		return
	}
	queries := g.rows * a.shared
	size := queries * (c.stride + 2)
	partial := func(tile int) attended {
		return cut(a.partial[g.partial+(head*g.tiles+tile)*size:][:size], queries, c.stride)
	}
	h.attendTile(s, g, head, j.tile, partial(j.tile))
	missing := &a.missing[j.group*c.heads+head]
	if missing.Add(-1) != 0 {
		return
	}
	missing.Store(int32(g.tiles)) // for the next layer
	all := partial(0)
	for tile := 1; tile < g.tiles; tile++ {
		h.mergeTile(g, tile, all, partial(tile))
	}
	h.finishAttention(g, head, all)
}

// loadQueries copies the group's queries of the heads that share KV head head, row by row, scaled.
func (h *Host) loadQueries(s *attentionScratch, g *group, head int) {
	shared, c := h.attention.shared, h.cache
	scale := float32(1 / math.Sqrt(float64(c.dim)))
	for r := range g.rows {
		from := h.qkv[(g.first+r)*h.qkvWidth+head*shared*c.dim:]
		for i := range shared {
			h.vectors.scale(s.queries[(r*shared+i)*c.stride:][:c.dim], from[i*c.dim:][:c.dim], scale)
		}
	}
}

// firstRow is the first row of the group that sees a key at position at.
func (g *group) firstRow(at int) int { return max(0, at-g.position) }

// attendTile attends from the group's rows, as far as they see any of it, to a tile of keys. No row's
// result depends on what lies beyond it, be it NaN.
func (h *Host) attendTile(s *attentionScratch, g *group, head, tile int, to attended) {
	shared, c, v := h.attention.shared, h.cache, h.vectors
	table := h.rows[g.first].blocks
	from := tile * keyTile
	end := min(from+keyTile, g.position+g.rows)
	for at := from; at < end; {
		k, n := c.run(s.piece, h.layer, keys, head, table, at, min(at+keyPiece, end))
		if ahead := at + keysAhead; ahead < end {
			h.prefetch(table, head, keys, ahead, min(ahead+n, end))
		} else {
			h.prefetch(table, head, values, ahead-end+from, min(ahead+n-end+from, end))
		}
		r := g.firstRow(at)
		for ; g.position+r < at+n-1; r++ { // sees some of them
			v.scoresOf(s.scores[r*shared*keyTile+at-from:], s.queries[r*shared*c.stride:], k, shared, g.position+r+1-at, c.stride)
		}
		v.scoresOf(s.scores[r*shared*keyTile+at-from:], s.queries[r*shared*c.stride:], k, (g.rows-r)*shared, n, c.stride)
		at += n
	}
	first := g.firstRow(from) * shared
	for q := first; q < g.rows*shared; q++ {
		n := min(end, g.position+q/shared+1) - from
		to.top[q], to.sum[q] = v.softmax(s.scores[q*keyTile:][:n])
	}
	clear(to.out[first*c.stride : g.rows*shared*c.stride])
	for at := from; at < end; {
		x, n := c.run(s.piece, h.layer, values, head, table, at, min(at+keyPiece, end))
		if ahead := at + keysAhead; ahead < end {
			h.prefetch(table, head, values, ahead, min(ahead+n, end))
		} else {
			h.prefetch(table, head, keys, ahead, min(ahead+n, g.position+1))
		}
		r := g.firstRow(at)
		for ; g.position+r < at+n-1; r++ {
			v.weighOf(to.out[r*shared*c.stride:], s.scores[r*shared*keyTile+at-from:], x, shared, g.position+r+1-at, c.stride)
		}
		v.weighOf(to.out[r*shared*c.stride:], s.scores[r*shared*keyTile+at-from:], x, (g.rows-r)*shared, n, c.stride)
		at += n
	}
}

// prefetch asks for keys or values from … to, as far as they are in one block: blocks lie too far apart for
// a processor to guess what comes next.
func (h *Host) prefetch(table []int32, head, half, from, to int) {
	if f := h.vectors.prefetch; f != nil && from < to {
		r, _ := h.cache.run(nil, h.layer, half, head, table, from, to)
		f(r)
	}
}

// mergeTile adds what the group's rows have from a tile to what they have from those before.
func (h *Host) mergeTile(g *group, tile int, all, t attended) {
	shared, stride := h.attention.shared, h.cache.stride
	for q := g.firstRow(tile*keyTile) * shared; q < g.rows*shared; q++ {
		top := all.top[q]
		if t.top[q] > top {
			top = t.top[q]
		}
		f, e := exp(all.top[q]-top), exp(t.top[q]-top)
		h.vectors.merge(all.out[q*stride:][:stride], t.out[q*stride:][:stride], f, e)
		all.top[q], all.sum[q] = top, float32(all.sum[q]*f)+float32(t.sum[q]*e)
	}
}

// finishAttention divides by the sums.
func (h *Host) finishAttention(g *group, head int, all attended) {
	shared, c := h.attention.shared, h.cache
	for r := range g.rows {
		to := h.attended[((g.first+r)*h.heads+head*shared)*c.dim:]
		for i := range shared {
			q := r*shared + i
			h.vectors.scale(to[i*c.dim:][:c.dim], all.out[q*c.stride:][:c.dim], 1/all.sum[q])
		}
	}
}
