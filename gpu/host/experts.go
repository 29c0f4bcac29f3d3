package host

import (
	"fmt"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// mixture is a layer's experts, and what chooses among them.
type mixture struct {
	router  linear
	experts []feedForward
	shared  *feedForward // the expert that all rows have besides; nil if there is none
	// sharedGate, if not nil, is what a row is multiplied by for the weight of the shared expert.
	sharedGate []float32
}

// linears appends all of the mixture's.
func (m *mixture) linears(all []*linear) []*linear {
	all = append(all, &m.router)
	for i := range m.experts {
		all = append(all, &m.experts[i].gateUp, &m.experts[i].down)
	}
	if m.shared != nil {
		all = append(all, &m.shared.gateUp, &m.shared.down)
	}
	return all
}

// mixture finds a layer's experts.
func (f *finder) mixture(e *model.Experts) *mixture {
	m := &mixture{router: f.linear("ffn_gate_inp"), experts: make([]feedForward, e.Count)}
	parts := []string{"ffn_gate_exps", "ffn_up_exps"}
	if f.m.Config.FusedGateUp {
		parts = []string{"ffn_gate_up_exps"}
	}
	gateUp, down := f.stacked(parts...), f.stacked("ffn_down_exps")
	for i := range m.experts {
		if f.err != nil {
			return nil
		}
		m.experts[i] = feedForward{f.expert(i, gateUp), f.expert(i, down)}
	}
	if e.Shared > 0 {
		m.shared = &feedForward{f.linear("ffn_gate_shexp", "ffn_up_shexp"), f.linear("ffn_down_shexp")}
	}
	if e.SharedGate {
		m.sharedGate = f.vector("ffn_gate_inp_shexp.weight")
	}
	return m
}

// stacked finds the matrices of all experts.
func (f *finder) stacked(parts ...string) []gguf.Tensor {
	all := make([]gguf.Tensor, len(parts))
	for i, part := range parts {
		var err error
		all[i], err = f.m.Peek(f.name(part + ".weight"))
		f.fail(err)
	}
	return all
}

// expert is expert i's share of stacked matrices.
func (f *finder) expert(i int, stacked []gguf.Tensor) linear {
	var l linear
	for _, t := range stacked {
		if len(t.Shape) != 3 || len(t.Data)%t.Shape[2] != 0 {
			f.fail(fmt.Errorf("tensor %q has shape %v and %d bytes, which don't fit", t.Name, t.Shape, len(t.Data)))
			return l
		}
		size := len(t.Data) / t.Shape[2]
		t.Data = t.Data[i*size : (i+1)*size]
		t.Shape = t.Shape[:2]
		f.fail(l.append(t, f.packings))
	}
	l.plan()
	f.fail(l.keep(f.m))
	return l
}

// mix is how the rows at hand are divided among experts. Rows are grouped by expert, so that each expert's
// weights are read once for all its rows; a row's result is summed in the order of its own scores, whichever
// rows there are besides.
type mix struct {
	model.Experts
	scores  []float32 // of all experts, row by row
	chosen  []int32   // Used experts a row, the highest score first
	weights []float32 // of these
	places  []int32   // where these are among the grouped
	first   []int32   // where an expert's rows begin among the grouped, and a last one
	rows    []int32   // what is grouped: numbers of rows
	in, out []float32 // what experts read and write, grouped
	shared  []float32 // what the shared expert writes

	// One multiplication of all experts at once: each has a product, which shares divide into tasks.
	products []product
	shares   []share
	octets   []octets // of grouped rows
}

// share is a stack's share of the tasks: its tiles of weight rows.
type share struct {
	product     int
	stack       *stack
	first, tile int
}

// open takes memory for n rows, and returns how long all inner states of n rows are at most.
func (x *mix) open(c *model.Config, n int) int {
	x.Experts = c.Experts
	if x.Count == 0 {
		return n * c.FFN
	}
	all := n * x.Used
	x.scores, x.first = make([]float32, n*x.Count), make([]int32, x.Count+1)
	x.chosen, x.weights, x.places, x.rows = make([]int32, all), make([]float32, all), make([]int32, all), make([]int32, all)
	x.in, x.out = make([]float32, all*c.Width), make([]float32, all*c.Width)
	if x.Shared > 0 {
		x.shared = make([]float32, n*c.Width)
	}
	most := min(all, x.Count) // experts that have rows
	x.products, x.shares = make([]product, 0, most), make([]share, 0, 2*most)
	x.octets = make([]octets, all*(max(c.Width, x.FFN)/32))
	return max(all*x.FFN, n*x.Shared)
}

// feedMixture computes h.update of h.hidden, for n rows.
func (h *Host) feedMixture(m *mixture, n int) error {
	x := &h.mix
	if err := h.multiply(&m.router, h.hidden, x.scores, n); err != nil {
		return err
	}
	if err := h.pool.run(h, n, (*Host).routeTask); err != nil {
		return err
	}
	x.group(n)
	if err := h.pool.run(h, n*x.Used, (*Host).gatherTask); err != nil {
		return err
	}
	if err := h.multiplyExperts(m, false, x.in, h.gateUp, n); err != nil {
		return err
	}
	if err := h.gateRows(x.FFN, n*x.Used); err != nil {
		return err
	}
	if err := h.multiplyExperts(m, true, h.gated, x.out, n); err != nil {
		return err
	}
	if m.shared != nil {
		if err := h.feedAll(m.shared, n); err != nil {
			return err
		}
	}
	return h.pool.run(h, n, (*Host).mixTask)
}

// multiplyExperts multiplies grouped rows by their experts' matrices: those of down, or those of gateUp. n
// rows are at hand.
func (h *Host) multiplyExperts(m *mixture, down bool, in, out []float32, n int) error {
	x := &h.mix
	x.products, x.shares = x.products[:0], x.shares[:0]
	tasks := 0
	var rounded *packing
	for i := range m.experts {
		at, k := x.of(i)
		if k == 0 {
			continue
		}
		l := &m.experts[i].gateUp
		if down {
			l = &m.experts[i].down
		}
		if !l.packed() { // such matrices are multiplied one after the other
			if err := h.multiply(l, in[at*l.in:], out[at*l.out:], k); err != nil {
				return err
			}
			continue
		}
		p := product{l: l, x: in[at*l.in:], y: out[at*l.out:], n: k, first: at}
		for j := range l.stacks {
			s := &l.stacks[j]
			if s.takesOctets() {
				p.rounded, rounded = s.packing, s.packing
				p.octets = x.octets[at*(l.in/32):][:k*(l.in/32)]
			}
			tile := l.packedTile(s, h.pool.workers, k)
			x.shares = append(x.shares, share{product: len(x.products), stack: s, first: tasks, tile: tile})
			tasks += (s.rows + tile - 1) / tile
		}
		x.products = append(x.products, p)
	}
	if rounded != nil {
		if err := h.pool.run(h, n*x.Used, (*Host).quantiseExpertTask); err != nil {
			return err
		}
	}
	return h.pool.run(h, tasks, (*Host).expertTask)
}

// packed says that the processor's own kernels multiply all of l.
func (l *linear) packed() bool {
	for i := range l.stacks {
		if l.stacks[i].packing == nil {
			return false
		}
	}
	return true
}

// quantiseExpertTask rounds a grouped row.
func (h *Host) quantiseExpertTask(_, row int) {
	all := h.mix.products
	i := len(all) - 1
	for i > 0 && all[i].first > row {
		i--
	}
	if p := &all[i]; p.rounded != nil && row >= p.first && row < p.first+p.n {
		p.quantiseRow(row - p.first)
	}
}

// expertTask multiplies some rows of an expert's matrix by all the expert's rows.
func (h *Host) expertTask(worker, task int) {
	x := &h.mix
	low, high := 0, len(x.shares) // the last share that begins at or before task is in low …
	for high-low > 1 {
		if middle := (low + high) / 2; x.shares[middle].first <= task {
			low = middle
		} else {
			high = middle
		}
	}
	s := &x.shares[low]
	from := (task - s.first) * s.tile
	x.products[s.product].packed(&h.scratch[worker], s.stack, from, min(from+s.tile, s.stack.rows))
}

// of gives where expert i's rows begin among the grouped, and how many there are.
func (x *mix) of(i int) (at, n int) { return int(x.first[i]), int(x.first[i+1] - x.first[i]) }

// group groups n rows by their experts.
func (x *mix) group(n int) {
	clear(x.first)
	chosen := x.chosen[:n*x.Used]
	for _, e := range chosen {
		x.first[e+1]++
	}
	for e := range x.Count {
		x.first[e+1] += x.first[e]
	}
	for i, e := range chosen {
		x.places[i] = x.first[e]
		x.rows[x.first[e]] = int32(i / x.Used)
		x.first[e]++
	}
	copy(x.first[1:], x.first) // each is where the next begins
	x.first[0] = 0
}

// routeTask chooses a row's experts: those of the highest scores, of equal ones the first.
func (h *Host) routeTask(_, i int) {
	x := &h.mix
	scores := x.scores[i*x.Count:][:x.Count]
	chosen, weights := x.chosen[i*x.Used:][:0], x.weights[i*x.Used:][:x.Used]
	for e := range scores {
		// A NaN is lower than all: the row's result will be NaN by its weights.
		at := len(chosen)
		for at > 0 && !(scores[e] <= scores[chosen[at-1]]) && scores[e] == scores[e] {
			at--
		}
		if at == x.Used {
			continue
		}
		if len(chosen) < x.Used {
			chosen = chosen[:len(chosen)+1]
		}
		copy(chosen[at+1:], chosen[at:])
		chosen[at] = int32(e)
	}
	top, all := scores[chosen[0]], float32(0)
	for _, s := range scores {
		all += exp(s - top)
	}
	if x.Normalise {
		all = 0
		for _, e := range chosen {
			all += exp(scores[e] - top)
		}
	}
	for j, e := range chosen {
		weights[j] = exp(scores[e]-top) / all
	}
}

// gatherTask copies a row to one of its experts.
func (h *Host) gatherTask(_, at int) {
	copy(h.mix.in[at*h.width:][:h.width], h.hidden[int(h.mix.rows[at])*h.width:])
}

// mixTask sums up what a row's experts say.
func (h *Host) mixTask(_, i int) {
	x, m := &h.mix, h.weights.layers[h.layer].mixture
	update := h.update[i*h.width:][:h.width]
	shared := x.shared
	if m.shared != nil {
		shared = x.shared[i*h.width:][:h.width]
		copy(shared, update)
	}
	clear(update)
	for j, w := range x.weights[i*x.Used:][:x.Used] {
		h.vectors.merge(update, x.out[int(x.places[i*x.Used+j])*h.width:], 1, w)
	}
	if m.shared != nil {
		w := float32(1)
		if m.sharedGate != nil {
			w = 1 / (1 + exp(-dot(m.sharedGate, h.hidden[i*h.width:][:h.width])))
		}
		h.vectors.merge(update, shared, 1, w)
	}
}
