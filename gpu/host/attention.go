package host

import (
	"sync/atomic"

	"github.com/troupe-llm/troupe/model"
)

const (
	// keyTile is how many positions attention takes at once. Tiles begin at multiples of it whatever the
	// cache's block size. Each row's softmax over a tile is computed on its own, and then they are put
	// together in order, as online softmax does (Milakov and Gimelshein, 2018, arXiv:1805.02867). So a
	// position's output has the same bits however its keys are stored, whatever chunk it came in, and
	// whether one thread went over all tiles or each had its own.
	keyTile = 128
	// keyPiece is how many of a tile's keys or values all queries meet before the next, at most: few enough to
	// stay in the first-level cache.
	keyPiece = 64
	// keysAhead is how many keys or values before it is needed memory is asked for.
	keysAhead = 32
	// manyQueries is how many queries make it worth while to convert keys and values once for all of them.
	manyQueries = 8
	// groupQueries is how many queries one task has, at most: so many that reading keys from memory costs
	// little beside multiplying them, and few enough that their scores stay in the second-level cache.
	groupQueries = 96
	// fewTasks is the tasks per worker below which the tiles of long sequences become tasks.
	fewTasks = 4
	// smallWork is the multiplications up to which one thread computes alone: a microsecond or two of
	// them, while others take as long to hear of work, and much longer to wake up.
	smallWork = 1 << 16
	// wholeWindow is longer than any context.
	wholeWindow = 1 << 29
	// partialFloats bounds the memory for tiles' results; one sequence's have room in any case.
	partialFloats = 4 << 20
)

// attends is how a layer attends. No number of it is 0 for something else.
type attends struct {
	window  int     // how many positions a row sees, its own and those before it
	scale   float32 // on the products of queries and keys
	softcap float32 // what scores are capped at by softcap·tanh(score/softcap); 0 for none
}

// allAttends is how each of a model's layers attends.
func allAttends(c *model.Config) []attends {
	layers := make([]attends, c.Layers)
	for i := range layers {
		a := c.AttentionOf(i)
		if a.Window == 0 {
			a.Window = wholeWindow
		}
		layers[i] = attends{a.Window, a.Scale, a.Softcap}
	}
	return layers
}

// first is the first position that the one at position sees.
func (a *attends) first(position int) int { return max(0, position-a.window+1) }

// attention is softmax(cap(q·K·scale))·V, over the positions up to each row's own that its window holds,
// for a tile of rows.
type attention struct {
	layers    []attends
	layer     *attends // the one at hand
	window    int      // for which there is a plan; 0 for none
	shared    int      // query heads per KV head
	groupRows int      // most rows of a group
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
	row, rows   int // the first, and how many
	position    int // of the first row
	first       int // the first position that the first row sees
	tile, tiles int // the tiles of keys that any row sees: from tile to before tiles
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
	run     runScratch
	scores  []float32
	parts   []part
	all     attended // from tiles so far
	tile    attended // from the tile at hand
}

func newAttention(layers []attends, c *cache, heads, rows, workers, maxContext int) attention {
	a := attention{layers: layers, shared: heads / c.heads}
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
		queries: make([]float32, n*c.stride), run: newRunScratch(c),
		scores: make([]float32, n*keyTile), parts: make([]part, 0, n), all: make2(), tile: make2(),
	}
}

// cut takes the room for n queries of stride values off memory.
func cut(memory []float32, n, stride int) attended {
	return attended{memory[:n*stride], memory[n*stride:][:n], memory[n*(stride+1):][:n]}
}

// planAttention divides h.rows into groups and tasks, which are the same in all layers whose windows are
// as long as the one's at hand. How is a matter of speed alone.
func (h *Host) planAttention() {
	a, c := &h.attention, h.cache
	a.window = a.layer.window
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
		g := group{row: i, rows: n, position: position, first: a.layer.first(position), tiles: (position+n-1)/keyTile + 1}
		g.tile = g.first / keyTile
		a.groups = append(a.groups, g)
		work += n * (position + n - g.first) * h.heads * c.stride * 2
		i += n
	}
	a.small = work <= smallWork
	split, used := len(a.groups)*c.heads < few && len(a.partial) > 0, 0
	for i := len(a.groups) - 1; i >= 0; i-- { // the later rows of a prompt, which see more, come first
		g := &a.groups[i]
		tiles := g.tiles - g.tile
		need := c.heads * tiles * g.rows * a.shared * (c.stride + 2)
		if !split || tiles == 1 || used+need > len(a.partial) {
			a.jobs = append(a.jobs, job{i, -1})
			continue
		}
		g.partial = used
		used += need
		for tile := g.tile; tile < g.tiles; tile++ {
			a.jobs = append(a.jobs, job{i, tile})
		}
		for head := range c.heads {
			a.missing[i*c.heads+head].Store(int32(tiles))
		}
	}
}

// attend computes h.attended of h.layer.
func (h *Host) attend() error {
	h.attention.layer = &h.attention.layers[h.layer]
	if h.attention.window != h.attention.layer.window {
		h.planAttention()
	}
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
		h.attendTile(s, g, head, g.tile, s.all)
		for tile := g.tile + 1; tile < g.tiles; tile++ {
			h.attendTile(s, g, head, tile, s.tile)
			h.mergeTile(g, tile, s.all, s.tile)
		}
		h.finishAttention(g, head, s.all)
		return
	}
	queries := g.rows * a.shared
	size := queries * (c.stride + 2)
	partial := func(tile int) attended {
		return cut(a.partial[g.partial+(head*(g.tiles-g.tile)+tile-g.tile)*size:][:size], queries, c.stride)
	}
	h.attendTile(s, g, head, j.tile, partial(j.tile))
	missing := &a.missing[j.group*c.heads+head]
	if missing.Add(-1) != 0 {
		return
	}
	missing.Store(int32(g.tiles - g.tile)) // for the next layer
	all := partial(g.tile)
	for tile := g.tile + 1; tile < g.tiles; tile++ {
		h.mergeTile(g, tile, all, partial(tile))
	}
	h.finishAttention(g, head, all)
}

// loadQueries copies the group's queries of the heads that share KV head head, row by row, scaled.
func (h *Host) loadQueries(s *attentionScratch, g *group, head int) {
	shared, c, scale := h.attention.shared, h.cache, h.attention.layer.scale
	for r := range g.rows {
		from := h.qkv[(g.row+r)*h.qkvWidth+head*shared*c.dim:]
		for i := range shared {
			h.vectors.scale(s.queries[(r*shared+i)*c.stride:][:c.dim], from[i*c.dim:][:c.dim], scale)
		}
	}
}

// part is successive rows of a group, and successive positions that all of them see.
type part struct{ row, rows, at, n int }

// parts appends to list what the group's rows see of the n positions from at on: those that see all of them
// are one part.
func (g *group) parts(list []part, window, at, n int) []part {
	from, to := g.seeing(window, at, n)
	all, allTo := at+n-1-g.position, at+window-g.position // rows that see all
	for r := from; r < to; {
		p := part{r, 1, at, n}
		if r >= all && r < allTo {
			p.rows = min(to, allTo) - r
		} else {
			p.at = max(at, g.position+r-window+1)
			p.n = min(at+n, g.position+r+1) - p.at
		}
		list = append(list, p)
		r += p.rows
	}
	return list
}

// attendTile attends from the group's rows, as far as they see any of it, to a tile of keys. No row's
// result depends on what it doesn't see, be it NaN.
func (h *Host) attendTile(s *attentionScratch, g *group, head, tile int, to attended) {
	shared, c, v, l := h.attention.shared, h.cache, h.vectors, h.attention.layer
	table, many := h.rows[g.row].blocks, g.rows*shared >= manyQueries
	start := tile * keyTile
	from, end := max(start, g.first), min(start+keyTile, g.position+g.rows)
	piece := keyPiece
	if !many {
		piece = keysAhead
	}
	for at := from &^ (keyLanes - 1); at < end; at += piece {
		to := min(at+piece, end)
		k := c.keys(&s.run, many, h.layer, head, table, max(at, from), to)
		if to < end {
			c.prefetch(h.layer, keys, head, table, to, min(to+piece, end))
		} else {
			c.prefetch(h.layer, values, head, table, from, min(from+piece, end))
		}
		first, last := g.seeing(l.window, at, to-at)
		v.scoresOf(s.scores[first*shared*keyTile+at-start:], s.queries[first*shared*c.stride:], k, (last-first)*shared, c.stride)
	}
	first, last := g.seeing(l.window, start, keyTile)
	for r := first; r < last; {
		// Rows that see the same of the tile, such as all of it, go together.
		skip, n := max(0, l.first(g.position+r)-start), min(end, g.position+r+1)-start
		next := r + 1
		for next < last && n == min(end, g.position+next+1)-start && skip == max(0, l.first(g.position+next)-start) {
			next++
		}
		h.softmax(s.scores[r*shared*keyTile:], (next-r)*shared, skip, n, to.top[r*shared:], to.sum[r*shared:])
		r = next
	}
	clear(to.out[first*shared*c.stride : last*shared*c.stride])
	for at := from; at < end; {
		x, n := c.values(&s.run, many, h.layer, head, table, at, end)
		if ahead := at + max(keysAhead, n); ahead < end {
			c.prefetch(h.layer, values, head, table, ahead, min(ahead+n, end))
		} else {
			c.prefetch(h.layer, keys, head, table, ahead, min(ahead+n, g.position+1))
		}
		s.parts = g.parts(s.parts[:0], l.window, at, n)
		for _, p := range s.parts {
			v.weighOf(to.out[p.row*shared*c.stride:], s.scores[p.row*shared*keyTile+p.at-start:], x.from(p.at-at, c.stride), p.rows*shared, p.n, c.stride)
		}
		at += n
	}
}

// softmax caps and powers a tile's scores, those from skip to before n, of some queries.
func (h *Host) softmax(scores []float32, queries, skip, n int, top, sum []float32) {
	// Kernels take sixteens: of the first of them, some may be before the window.
	from, whole := skip&^15, (n+15)&^15
	c := h.attention.layer.softcap
	for q := range queries {
		p := scores[q*keyTile:][:keyTile]
		if c != 0 {
			h.vectors.softcap(p[from:whole], c)
		}
		for i := from; i < skip; i++ { // adds nothing to the sum
			p[i] = negativeInfinity
		}
	}
	h.vectors.softmax(scores[from:], queries, n-from, top, sum)
}

// seeing gives the rows, from first to before last, that see any of the n positions from at on.
func (g *group) seeing(window, at, n int) (first, last int) {
	return max(0, at-g.position), min(g.rows, at+n-1+window-g.position)
}

// mergeTile adds what the group's rows have from a tile to what they have from those before.
func (h *Host) mergeTile(g *group, tile int, all, t attended) {
	a, stride, start := &h.attention, h.cache.stride, tile*keyTile
	first, last := g.seeing(a.layer.window, start, keyTile)
	// The windows of some of the last begin here.
	begin := min(max(first, start+a.layer.window-1-g.position), last)
	h.vectors.mergeAttended(all.from(first*a.shared, stride), t.from(first*a.shared, stride), (begin-first)*a.shared, stride)
	from, to := begin*a.shared, last*a.shared
	copy(all.out[from*stride:to*stride], t.out[from*stride:])
	copy(all.top[from:to], t.top[from:])
	copy(all.sum[from:to], t.sum[from:])
}

// from is a without the first q queries of stride values.
func (a attended) from(q, stride int) attended {
	return attended{a.out[q*stride:], a.top[q:], a.sum[q:]}
}

// finishAttention divides by the sums.
func (h *Host) finishAttention(g *group, head int, all attended) {
	shared, c := h.attention.shared, h.cache
	for r := range g.rows {
		to := h.attended[((g.row+r)*h.heads+head*shared)*c.dim:]
		for i := range shared {
			q := r*shared + i
			h.vectors.scale(to[i*c.dim:][:c.dim], all.out[q*c.stride:][:c.dim], 1/all.sum[q])
		}
	}
}
