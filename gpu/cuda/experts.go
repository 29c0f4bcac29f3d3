//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"github.com/troupe-llm/troupe/model"
)

const (
	// groupThreads is the most threads of a block that groups choices, as in kernels/experts.cuh.
	groupThreads = 256
	// mostChoices is how many choices of experts there are in a tile at most: a launch's y dimension ends there.
	mostChoices = 1<<16 - 1
)

// mixture is a layer's experts, and what chooses among them.
type mixture struct {
	// router gives a row's score of every expert, and behind these what the shared expert's gate is a logistic
	// function of, if it has one.
	router       *linear
	gateUp, down *linear // of all experts
	// The expert that all rows have besides; nil if there is none.
	sharedGateUp, sharedDown *linear
}

// linears are all of the mixture's.
func (m *mixture) linears() []*linear {
	all := []*linear{m.router, m.gateUp, m.down}
	if m.sharedDown != nil {
		all = append(all, m.sharedGateUp, m.sharedDown)
	}
	return all
}

// findMixture finds the experts of a layer, whose tensors' names name completes.
func findMixture(m *model.Model, name func(string) string) (*mixture, error) {
	e, x := &m.Config.Experts, &mixture{}
	router, gateUp := []string{name("ffn_gate_inp")}, []string{name("ffn_gate_exps"), name("ffn_up_exps")}
	if e.SharedGate {
		router = append(router, name("ffn_gate_inp_shexp"))
	}
	if m.Config.FusedGateUp {
		gateUp = []string{name("ffn_gate_up_exps")}
	}
	for _, w := range []struct {
		to       **linear
		matrices int
		names    []string
	}{
		{&x.router, 1, router}, {&x.gateUp, e.Count, gateUp}, {&x.down, e.Count, []string{name("ffn_down_exps")}},
		{&x.sharedGateUp, 1, []string{name("ffn_gate_shexp"), name("ffn_up_shexp")}}, {&x.sharedDown, 1, []string{name("ffn_down_shexp")}},
	} {
		if e.Shared == 0 && (w.to == &x.sharedGateUp || w.to == &x.sharedDown) {
			continue
		}
		var err error
		if *w.to, err = newLinears(m, w.matrices, w.names...); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// experts is how a tile's rows are divided among a layer's experts; kernels/experts.cuh says how they are grouped.
// All of it stays on the GPU: launches depend on the number of rows alone.
type experts struct {
	route, group, mix *kernel

	scores                            rows // the router's
	in, said                          rows // of choices, grouped
	sharedGateUp, sharedGated, shared rows

	chosen, weights, places, grouped uint64 // of choices
	shares                           uint64
}

// choices is how many experts n rows choose, shares how many shares of columns rows each these need at most.
func choices(c *model.Config, n int) int { return n * c.Experts.Used }
func shares(c *model.Config, n, columns int) int {
	all := choices(c, n)
	return all/columns + min(all, c.Experts.Count)
}

// expertColumns is how many columns a block takes of the products of n rows and their experts: as for the rows
// that an expert has in the mean.
func expertColumns(c *model.Config, n int) int {
	if n == 1 { // an expert has one row at most
		return 1
	}
	return columnsFor(max(2, choices(c, n)/c.Experts.Count))
}

// buffers are those that n rows need.
func (x *experts) buffers(c *model.Config, n int) []buffer {
	all := []buffer{rowsOf("experts", &x.scores, n, c.Experts.Count+1), rowsOf("experts", &x.in, choices(c, n), c.Width), rowsOf("experts", &x.said, choices(c, n), c.Width)}
	if s := c.Experts.Shared; s > 0 {
		all = append(all, rowsOf("experts", &x.sharedGateUp, n, 2*s), rowsOf("experts", &x.sharedGated, n, s), rowsOf("experts", &x.shared, n, c.Width))
	}
	return append(all, x.numbers(c, n)...)
}

// numbers are those of what is known of n rows' choices.
func (x *experts) numbers(c *model.Config, n int) []buffer {
	each := 4 * int64(choices(c, n))
	return []buffer{
		{"experts", &x.chosen, each}, {"experts", &x.weights, each}, {"experts", &x.places, each}, {"experts", &x.grouped, each},
		{"experts", &x.shares, 3 * 4 * int64(shares(c, n, 1))},
	}
}

// feedMixture adds what a layer's experts say of a tile's rows hidden to the residual stream, after a norm of its own
// if there is one.
func (d *Device) feedMixture(l *layer, t *tileOf) error {
	x, m, mc, n := &d.experts, l.mixture, d.model, t.n
	e, all, columns := &mc.Experts, choices(mc, n), expertColumns(mc, n)
	blocks := shares(mc, n, columns)
	if err := d.multiply(m.router, d.hidden, x.scores, n, false); err != nil {
		return err
	}
	if err := d.module.launch(x.route, shape{x: n, threads: 32}, x.scores.at, uint64(x.scores.stride), t.places, x.chosen, x.weights, uint64(e.Count), uint64(e.Used), one(e.Normalise)); err != nil {
		return err
	}
	if err := d.module.launch(x.group, shape{x: e.Count, threads: threadsFor(all, groupThreads)}, x.chosen, uint64(all), uint64(e.Used), x.places, x.grouped, x.shares, uint64(blocks), uint64(columns)); err != nil {
		return err
	}
	if err := d.gatherTo(d.hidden, x.grouped, m.gateUp.forms(columns == 1), x.in, all); err != nil {
		return err
	}
	if err := d.launchProducts(m.gateUp, x.in, d.gateUp, all, columns, blocks, x.shares, false); err != nil {
		return err
	}
	if err := d.gateTo(d.gateUp, m.down.forms(columns == 1), d.gated, e.FFN, all); err != nil {
		return err
	}
	if err := d.launchProducts(m.down, d.gated, x.said, all, columns, blocks, x.shares, false); err != nil {
		return err
	}
	if m.sharedDown != nil {
		if err := d.prepareFor(m.sharedGateUp, d.hidden, n); err != nil {
			return err
		}
		if err := d.multiply(m.sharedGateUp, d.hidden, x.sharedGateUp, n, false); err != nil {
			return err
		}
		if err := d.gateTo(x.sharedGateUp, m.sharedDown.forms(n == 1), x.sharedGated, e.Shared, n); err != nil {
			return err
		}
		if err := d.multiply(m.sharedDown, x.sharedGated, x.shared, n, false); err != nil {
			return err
		}
	}
	gates := uint64(0)
	if e.SharedGate {
		gates = x.scores.at + uint64(4*e.Count)
	}
	to := d.x
	if l.postFFNNorm != 0 {
		to = d.update
	}
	err := d.module.launch(x.mix, shape{x: n, threads: threadsFor(mc.Width/4, 256)}, x.said.at, uint64(x.said.stride), t.places, x.places, x.weights, uint64(e.Used),
		x.shared.at, uint64(x.shared.stride), gates, uint64(x.scores.stride), to.at, uint64(to.stride), uint64(mc.Width), one(l.postFFNNorm == 0))
	if err != nil || l.postFFNNorm == 0 {
		return err
	}
	return d.addUpdate(l.postFFNNorm, n)
}
