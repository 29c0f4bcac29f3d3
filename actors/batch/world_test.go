package batch

import (
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

// TestMain makes the property tests repeatable: the same schedules in each run, unless flags ask
// for others.
func TestMain(m *testing.M) {
	flag.Parse()
	for name, value := range map[string]string{"rapid.seed": "1", "rapid.checks": "1000", "rapid.nofailfile": "true"} {
		set := false
		flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
		if !set {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

// tb is what *testing.T and *rapid.T have in common.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a scheduler, a device that keeps token ids where others keep keys and values, and the
// submitters, who check every message that they get.
type world struct {
	t       tb
	c       Config
	s       *Scheduler
	cells   []cell // by block × BlockSize + offset
	b       gpu.Batch
	r       gpu.Result
	now     int64
	clients []*client // in order of submit
	byID    map[lifecycle.SeqID]*client
	started []*sequence // by the last plan
	planned bool        // a plan has not been committed
	step    int
	culprit int32 // the device fails with this token in the batch; −1: none
	busy    int   // plans that held something
}

// cell is one position of one block: its token and, as keys and values do, something that depends on
// all tokens before it (and here on the salt, too).
type cell struct {
	token int32 // −1: never written
	after uint64
}

// follow returns the cell of a token after another cell.
func follow(before uint64, token int32) cell {
	return cell{token, (before ^ uint64(uint32(token))) * 1099511628211}
}

// client is a submitter of one sequence.
type client struct {
	sub       *lifecycle.Submit
	want      []int32 // the output of an undisturbed run
	wantEnd   lifecycle.Reason
	at        int64 // of the submit
	num       uint32
	state     string // "", "running", "preempted", "ended"
	ended     string // how
	out       []int32
	scores    []lifecycle.TokenLogprob
	prefilled *lifecycle.Prefilled // the last message, when it was the last chunk
	cached    int
	waits     [2]int64
	computed  int  // tokens in Prefilled messages
	placed    bool // nothing was heard since Scheduled or Resumed
	silent    bool
	last      int64
}

func newWorld(t tb, c Config) *world {
	s, err := New(c)
	if err != nil {
		t.Fatalf("%v", err)
	}
	w := &world{t: t, c: c, s: s, byID: make(map[lifecycle.SeqID]*client), now: 1, culprit: -1}
	w.wipe()
	return w
}

// wipe is what happens to a device's memory when it is opened anew.
func (w *world) wipe() {
	w.cells = slices.Repeat([]cell{{token: -1}}, w.c.NumBlocks*w.c.BlockSize)
}

// next is the model: the token that follows the given ones.
func next(tokens []int32, p *lifecycle.Params, choice, draw int32, allowed func(int32) bool, vocab int) int32 {
	h := uint64(14695981039346656037)
	for _, t := range tokens {
		h = (h ^ uint64(uint32(t))) * 1099511628211
	}
	if p.Temperature > 0 {
		h = (h ^ p.Seed ^ uint64(choice)<<16 ^ uint64(draw)<<32) * 1099511628211
	}
	h ^= h >> 29
	for k := range vocab {
		if id := int32((h + uint64(k)) % uint64(vocab)); allowed(id) {
			return id
		}
	}
	return int32(h % uint64(vocab))
}

// score is the model's log probability of a token after others.
func score(tokens []int32, target int32) float32 {
	h := uint64(target + 1)
	for _, t := range tokens {
		h = (h ^ uint64(uint32(t))) * 1099511628211
	}
	return -float32(h%1000) / 100
}

// reference computes a sequence's output as if it were alone in the world.
func reference(sub *lifecycle.Submit, c *Config) ([]int32, lifecycle.Reason) {
	p := sub.Params
	if p.MaxTokens == 0 {
		return nil, lifecycle.ReasonLength
	}
	end := func(id int32) bool { return slices.Contains(c.EOS, id) || slices.Contains(p.StopTokenIDs, id) }
	var out []int32
	for {
		all := slices.Concat(sub.Prompt, out)
		id := next(all, p, sub.ID.Index, int32(len(out)), func(id int32) bool {
			if p.Allowed != nil && !slices.Contains(p.Allowed, id) {
				return false
			}
			for _, b := range p.LogitBias {
				if b.ID == id && math.IsInf(float64(b.Value), -1) {
					return false
				}
			}
			onlyEnds := p.Allowed != nil && !slices.ContainsFunc(p.Allowed, func(id int32) bool { return !end(id) })
			return onlyEnds || len(out) >= p.MinTokens || !end(id)
		}, c.Vocab)
		out = append(out, id)
		if len(out) >= p.MinTokens {
			if slices.Contains(c.EOS, id) && !p.IgnoreEOS || slices.Contains(p.StopTokenIDs, id) {
				return out, lifecycle.ReasonStop
			}
		}
		if len(out) >= p.MaxTokens || len(sub.Prompt)+len(out) >= c.MaxContext {
			return out, lifecycle.ReasonLength
		}
	}
}

// run is the device. It returns an error when the batch has the culprit in it.
func (w *world) run() error {
	w.t.Helper()
	b, bs := &w.b, w.c.BlockSize
	w.r.Reset(b)
	if slices.Contains(b.Tokens, w.culprit) {
		w.wipe()
		return fmt.Errorf("token %d is too much", w.culprit)
	}
	for _, c := range b.Copies {
		copy(w.cells[int(c.To)*bs:int(c.To+1)*bs], w.cells[int(c.From)*bs:int(c.From+1)*bs])
	}
	for i := range b.Spans {
		p := &b.Spans[i]
		at := func(pos int) *cell { return &w.cells[int(b.Blocks[i*b.Stride+pos/bs])*bs+pos%bs] }
		before := w.s.plan.entries[i].q.sub.Salt
		if p.Start > 0 {
			before = at(int(p.Start - 1)).after
		}
		for k := range p.Len {
			*at(int(p.Start + k)) = follow(before, b.Tokens[p.First+k])
			before = at(int(p.Start + k)).after
		}
	}
	for i := range b.Rows {
		row := &b.Rows[i]
		table := b.Blocks[int(row.Span)*b.Stride : int(row.Span+1)*b.Stride]
		var context []int32
		for pos := range int(b.Positions[row.Token]) + 1 {
			context = append(context, w.cells[int(table[pos/bs])*bs+pos%bs].token)
		}
		if row.Kind == gpu.Score {
			w.r.Tokens[i], w.r.Logprobs[i], w.r.Ranks[i] = row.Target, score(context, row.Target), 1
		} else {
			p := &lifecycle.Params{Temperature: row.Temperature, Seed: row.Seed}
			w.r.Tokens[i] = next(context, p, row.Choice, row.Draw, func(id int32) bool { return w.rowAllows(row, id) }, w.c.Vocab)
			if row.Top >= 0 {
				w.r.Logprobs[i], w.r.Ranks[i] = score(context, w.r.Tokens[i]), 1
			}
		}
		for j := w.r.TopFirst[i]; j < w.r.TopFirst[i+1]; j++ {
			w.r.TopIDs[j], w.r.TopLogprobs[j] = j-w.r.TopFirst[i], score(context, j-w.r.TopFirst[i])
		}
	}
	return nil
}

func (w *world) rowAllows(row *gpu.Row, id int32) bool {
	for _, x := range w.b.Bias[row.BiasFirst : row.BiasFirst+row.BiasLen] {
		if x.ID == id && math.IsInf(float64(x.Value), -1) {
			return false
		}
	}
	return row.Mask < 0 || w.b.Masks[int(row.Mask)*w.b.MaskWords+int(id/32)]>>(id%32)&1 == 1
}

// submit adds a sequence and its client.
func (w *world) submit(sub *lifecycle.Submit) *client {
	w.t.Helper()
	c := &client{sub: sub, at: w.now, out: slices.Clone(sub.Output)}
	if len(sub.Prompt) > 0 && sub.Params != nil {
		whole := *sub
		c.want, c.wantEnd = reference(&whole, &w.c)
	}
	if w.byID[sub.ID] == nil {
		w.clients = append(w.clients, c)
	}
	w.byID[sub.ID] = c
	w.s.Submit(w.now, sub, sub.ID.Request)
	w.hear()
	return c
}

// plan plans and checks the batch. It returns the number of sequences in it.
func (w *world) plan() int {
	w.t.Helper()
	waiting := slices.Clone(w.s.waiting)
	n := w.s.Plan(w.now, &w.b)
	w.started = w.started[:0]
	for _, q := range waiting {
		if q.running {
			w.started = append(w.started, q)
		}
	}
	w.planned = n > 0
	if n > 0 {
		w.busy++
	}
	w.checkBatch(n)
	w.hear()
	w.invariants()
	if n == 0 && w.s.Len() > 0 && w.s.allowed == nil {
		w.t.Fatalf("the plan is empty though %d sequences are alive", w.s.Len())
	}
	for _, q := range w.started {
		for _, v := range w.s.waiting {
			if v.group == nil && w.s.allowed == nil && compare(v, q) < 0 {
				w.t.Fatalf("%v started though %v was before it", q.sub.ID, v.sub.ID)
			}
		}
	}
	return n
}

// commit runs the planned batch and commits it.
func (w *world) commit() error {
	w.t.Helper()
	w.step++
	step := &lifecycle.Step{Start: w.now}
	err := w.run()
	w.now += int64(1 + w.step%3)
	if err != nil {
		return err
	}
	step.End = w.now
	w.s.Commit(step, &w.r)
	w.planned = false
	w.hear()
	w.invariants()
	return nil
}

// drain runs until nothing is left, within a number of steps that depends on the work alone.
func (w *world) drain() {
	w.t.Helper()
	bound := 16
	for _, q := range w.s.live {
		// Preemption happens only to make room for an earlier sequence, so at worst each sequence runs
		// alone, after having been computed in part once for each that came before.
		n := w.c.longest(q.sub)
		bound += (n + n/min(w.c.MaxTokens, n) + 2) * (1 + len(w.s.live))
	}
	for ; w.s.Len() > 0; bound-- {
		if bound == 0 {
			w.t.Fatalf("%d sequences have not ended", w.s.Len())
		}
		if w.plan() > 0 {
			if err := w.commit(); err != nil {
				w.t.Fatalf("%v", err)
			}
		}
	}
	if used := w.s.Stats().BlocksUsed; used != 0 {
		w.t.Fatalf("%d blocks are still used", used)
	}
	for _, c := range w.clients {
		if w.byID[c.sub.ID] == c && c.state != "ended" && !c.silent {
			w.t.Fatalf("%v has heard of no end", c.sub.ID)
		}
	}
}

// hear gives each event to its client, who checks it.
func (w *world) hear() {
	w.t.Helper()
	events := w.s.Events()
	final := make(map[any]int)
	for i, e := range events {
		final[e.Owner] = i
	}
	for i, e := range events {
		h := e.Msg.Header()
		c := w.byID[h.ID]
		switch {
		case e.Owner != any(h.ID.Request):
			w.t.Fatalf("%v: the message is for %v", h.ID, e.Owner)
		case c.silent:
			w.t.Fatalf("%v: %T after its owner had gone", h.ID, e.Msg)
		case h.Epoch != c.sub.Epoch || h.Num != c.num+1:
			w.t.Fatalf("%v: message %d of epoch %d after %d of %d", h.ID, h.Num, h.Epoch, c.num, c.sub.Epoch)
		case h.At < c.last:
			w.t.Fatalf("%v: time runs backwards: %d after %d", h.ID, h.At, c.last)
		}
		c.num, c.last = h.Num, h.At
		c.hear(w, e.Msg)
		if e.Released != (i == final[e.Owner] && c.state == "ended" && !w.owns(h.ID.Request)) {
			w.t.Fatalf("%v: Released is %v", h.ID, e.Released)
		}
	}
}

func (w *world) owns(request uint64) bool {
	for id := range w.s.live {
		if id.Request == request {
			return true
		}
	}
	return false
}

func (c *client) hear(w *world, m lifecycle.Message) {
	w.t.Helper()
	id := c.sub.ID
	in := func(states ...string) {
		w.t.Helper()
		if !slices.Contains(states, c.state) {
			w.t.Fatalf("%v: %T while %q", id, m, c.state)
		}
	}
	_, isTokens := m.(*lifecycle.Tokens)
	_, isFailed := m.(*lifecycle.Failed) // the sampled token is none
	if c.prefilled != nil && c.prefilled.Last && c.sub.Params.MaxTokens > 0 && !isTokens && !isFailed {
		w.t.Fatalf("%v: %T after the last chunk", id, m)
	}
	last := c.prefilled
	c.prefilled = nil
	switch m := m.(type) {
	case *lifecycle.Scheduled:
		in("")
		c.state, c.cached, c.placed = "running", m.Cached, true
		if m.Cached < 0 || m.Cached > max(len(c.sub.Prompt)-1, 0) && len(c.sub.Output) == 0 {
			w.t.Fatalf("%v: %d of %d prompt tokens are cached", id, m.Cached, len(c.sub.Prompt))
		}
		c.waits = [2]int64{m.WaitedSlot, m.WaitedBlocks}
		if m.WaitedBudget < 0 || m.WaitedBudget > m.WaitedSlot || m.Slots != w.c.MaxSeqs || m.Ahead < 0 {
			w.t.Fatalf("%v: %+v", id, m)
		}
		if m.WaitedSlot < 0 || m.WaitedBlocks < 0 || m.WaitedSlot+m.WaitedBlocks > m.At-c.at {
			w.t.Fatalf("%v: waited %d for a slot and %d for blocks, in all %d", id, m.WaitedSlot, m.WaitedBlocks, m.At-c.at)
		}
	case *lifecycle.Resumed:
		in("preempted")
		c.state, c.placed = "running", true
	case *lifecycle.Preempted:
		in("running")
		c.state = "preempted"
	case *lifecycle.Prefilled:
		in("running")
		c.prefilled, c.placed = m, false
		c.computed += m.Tokens
		if m.Step.PrefillTokens < m.Tokens || m.Tokens < 1 || m.At != m.Step.End {
			w.t.Fatalf("%v: %+v in %+v", id, m, m.Step)
		}
		if len(m.Scores) > 0 {
			if m.ScoreFrom != len(c.scores)+1 {
				w.t.Fatalf("%v: scores from %d after %d", id, m.ScoreFrom, len(c.scores))
			}
			for i, x := range m.Scores {
				p := m.ScoreFrom + i
				if x.ID != c.sub.Prompt[p] || x.Logprob != score(c.sub.Prompt[:p], x.ID) || len(x.Top) != c.sub.Params.PromptLogprobs {
					w.t.Fatalf("%v: position %d scores %+v", id, p, x)
				}
			}
			c.scores = append(c.scores, m.Scores...)
		}
	case *lifecycle.Tokens:
		in("running")
		c.out = append(c.out, m.IDs...)
		if c.placed {
			w.t.Fatalf("%v: tokens without a prefill", id)
		}
		if m.At != m.Step.End || last != nil && (last.Step != m.Step || last.At != m.At || !last.Last) {
			w.t.Fatalf("%v: %+v after %+v", id, m, last)
		}
		if (m.Logprobs != nil) != (c.sub.Params.Logprobs >= 0) {
			w.t.Fatalf("%v: log probabilities are %v", id, m.Logprobs)
		}
		for i, x := range m.Logprobs {
			if x.ID != m.IDs[i] || len(x.Top) != c.sub.Params.Logprobs {
				w.t.Fatalf("%v: log probability %+v of token %d", id, x, m.IDs[i])
			}
		}
		if (m.StopToken >= 0) != (m.Reason == lifecycle.ReasonStop) {
			w.t.Fatalf("%v: stop token %d with reason %q", id, m.StopToken, m.Reason)
		}
		if m.Reason != "" {
			c.state, c.ended = "ended", string(m.Reason)
			if len(c.out) != len(c.want) || m.Reason != c.wantEnd {
				w.t.Fatalf("%v: ended with %d tokens (%s), not %d (%s)", id, len(c.out), m.Reason, len(c.want), c.wantEnd)
			}
		}
	case *lifecycle.Finished:
		in("", "running", "preempted")
		c.state, c.ended = "ended", string(m.Reason)
		if m.Reason == lifecycle.ReasonLength && len(c.out) != len(c.want) {
			w.t.Fatalf("%v: finished with %d tokens of %d", id, len(c.out), len(c.want))
		}
	case *lifecycle.Failed:
		in("", "running", "preempted")
		c.state, c.ended = "ended", "failed"
		if m.Err == nil || m.Err.Status < 400 || m.Err.Message == "" {
			w.t.Fatalf("%v: %+v", id, m.Err)
		}
	}
	if len(c.out) > len(c.want) || !slices.Equal(c.out, c.want[:len(c.out)]) {
		w.t.Fatalf("%v: tokens %v, but undisturbed %v", id, c.out, c.want)
	}
	if c.state == "ended" && c.sub.Params != nil && len(c.out) > 0 && len(c.sub.Output) == 0 {
		if want := max(len(c.sub.Prompt)-1, 0); c.sub.Params.PromptLogprobs >= 0 && len(c.scores) != want {
			w.t.Fatalf("%v: %d scores of %d", id, len(c.scores), want)
		}
	}
}

// checkBatch checks the batch of the last plan against the rules of gpu.Batch.
func (w *world) checkBatch(n int) {
	w.t.Helper()
	b, s := &w.b, w.s
	if n != len(b.Spans) || len(b.Tokens) > w.c.MaxTokens || n > w.c.MaxSeqs || len(b.Positions) != len(b.Tokens) {
		w.t.Fatalf("%d spans (%d told), %d tokens, %d positions", len(b.Spans), n, len(b.Tokens), len(b.Positions))
	}
	slots := make(map[int32]bool)
	first := int32(0)
	for i := range b.Spans {
		p, q := &b.Spans[i], s.plan.entries[i].q
		if p.First != first || p.Len < 1 || slots[p.Slot] || p.Slot != q.slot || int(p.Start) != q.computed {
			w.t.Fatalf("span %d: %+v of %v", i, p, q.sub.ID)
		}
		slots[p.Slot] = true
		first += p.Len
		table := b.Blocks[i*b.Stride : (i+1)*b.Stride]
		used := w.c.blocksFor(int(p.Start + p.Len))
		for j := range table {
			if j >= used && table[j] != -1 || j < used && table[j] != q.table[j] {
				w.t.Fatalf("span %d: table %v of %v", i, table, q.table)
			}
		}
		for k := range p.Len {
			pos := int(p.Start + k)
			if b.Positions[p.First+k] != int32(pos) || b.Tokens[p.First+k] != q.token(pos) {
				w.t.Fatalf("span %d: position %d", i, pos)
			}
			// Nobody else may see a block that is written, but for a fork that copies positions before.
			pins := int32(0)
			for _, f := range s.running {
				if f.copyFrom == table[pos/w.c.BlockSize] && f.computed <= pos {
					pins++
				}
			}
			if blk := &s.pool.blocks[table[pos/w.c.BlockSize]]; blk.refs != 1+pins || blk.hasName {
				w.t.Fatalf("span %d of %v writes position %d into a block with %d references (named: %v)", i, q.sub.ID, pos, blk.refs, blk.hasName)
			}
		}
		// What it reads must be what it was.
		before := q.sub.Salt
		for pos := range int(p.Start) {
			block := int(table[pos/w.c.BlockSize])
			if q.copyFrom >= 0 && block == int(q.copyTo) {
				block = int(q.copyFrom)
			}
			got, want := w.cells[block*w.c.BlockSize+pos%w.c.BlockSize], follow(before, q.token(pos))
			if got != want {
				w.t.Fatalf("span %d of %v: position %d in block %d holds %v, not %v", i, q.sub.ID, pos, block, got, want)
			}
			before = want.after
		}
	}
	last := int32(-1)
	for i, r := range b.Rows {
		if r.Token < last || int(r.Span) >= len(b.Spans) {
			w.t.Fatalf("row %d: %+v", i, r)
		}
		last = r.Token
		p := b.Spans[r.Span]
		if r.Token < p.First || r.Token >= p.First+p.Len {
			w.t.Fatalf("row %d is outside its span", i)
		}
		q := s.plan.entries[r.Span].q
		if h := b.History[r.HistoryFirst : r.HistoryFirst+r.HistoryLen]; r.Kind == gpu.Sample && q.sub.Params.Penalised() &&
			!slices.Equal(h, slices.Concat(q.sub.Prompt, q.output)) {
			w.t.Fatalf("row %d: history %v", i, h)
		}
		bias := b.Bias[r.BiasFirst : r.BiasFirst+r.BiasLen]
		if !slices.IsSortedFunc(bias, func(a, b gpu.Bias) int { return int(a.ID) - int(b.ID) }) {
			w.t.Fatalf("row %d: bias %v", i, bias)
		}
	}
}

// invariants checks that everything in the scheduler fits together.
func (w *world) invariants() {
	w.t.Helper()
	s := w.s
	refs := make(map[int32]int32)
	slots := make(map[int32]bool)
	uses := make(map[*sampling]int)
	for _, i := range s.slots {
		slots[i] = true
	}
	for _, q := range s.running {
		if !q.running || slots[q.slot] || s.live[q.sub.ID] != q || len(q.table) < w.c.blocksFor(q.computed) {
			w.t.Fatalf("running %v: slot %d", q.sub.ID, q.slot)
		}
		slots[q.slot] = true
		for _, b := range q.table {
			refs[b]++
		}
		if q.copyFrom >= 0 {
			refs[q.copyFrom]++
		}
	}
	for _, q := range s.waiting {
		if q.running || len(q.table) != 0 || q.copyFrom >= 0 || q.computed != 0 || q.plan != 0 || s.live[q.sub.ID] != q {
			w.t.Fatalf("waiting %v holds something", q.sub.ID)
		}
	}
	if len(slots) != w.c.MaxSeqs || len(s.slots)+len(s.running) != w.c.MaxSeqs {
		w.t.Fatalf("%d slots free, %d running", len(s.slots), len(s.running))
	}
	if !slices.IsSortedFunc(s.running, compare) || !slices.IsSortedFunc(s.waiting, compare) {
		w.t.Fatalf("a queue is out of order")
	}
	if len(s.running)+len(s.waiting) != len(s.live) {
		w.t.Fatalf("%d running and %d waiting of %d", len(s.running), len(s.waiting), len(s.live))
	}
	members, owned, timed := 0, 0, 0
	for _, q := range s.live {
		uses[q.sampling]++
		if q.group != nil {
			members++
		}
		if q.deadlineIndex >= 0 {
			timed++
		}
	}
	for _, g := range s.groups {
		if len(g.members) == 0 {
			w.t.Fatalf("an empty group is left")
		}
		members -= len(g.members)
		for _, b := range g.kept {
			refs[b]++
		}
		if len(g.kept) > 0 && (!g.waits() || !slices.Contains(s.keeping, g)) {
			w.t.Fatalf("a group keeps blocks for nobody")
		}
	}
	for owner, q := range s.owners {
		for ; q != nil; q = q.ownerNext {
			if q.owner != owner || s.live[q.sub.ID] != q {
				w.t.Fatalf("the owners' lists are wrong")
			}
			owned++
		}
	}
	if members != 0 || owned != len(s.live) || timed != len(s.deadlines) || len(uses) != len(s.samplings) {
		w.t.Fatalf("members off by %d; %d owned, %d live; %d deadlines of %d; %d samplings of %d",
			members, owned, len(s.live), len(s.deadlines), timed, len(s.samplings), len(uses))
	}
	output := 0
	for _, q := range s.live {
		output += len(q.output)
	}
	if got := s.Stats().Output; got != output {
		w.t.Fatalf("%d tokens of output are told of, and there are %d", got, output)
	}
	for g, n := range uses {
		if g.uses != n {
			w.t.Fatalf("a sampling counts %d uses of %d", g.uses, n)
		}
	}
	for i, q := range s.deadlines {
		if q.deadlineIndex != i || i > 0 && s.deadlines.less(i, (i-1)/2) {
			w.t.Fatalf("the deadlines are no heap")
		}
	}
	w.checkPool(refs)
}

func (w *world) checkPool(refs map[int32]int32) {
	w.t.Helper()
	p := &w.s.pool
	free, named := 0, 0
	for i := range p.blocks {
		b := &p.blocks[i]
		if b.refs != refs[int32(i)] {
			w.t.Fatalf("block %d has %d references, but %d are held", i, b.refs, refs[int32(i)])
		}
		if b.refs == 0 {
			free++
		}
		if b.hasName {
			named++
			if p.named[b.name] != int32(i) {
				w.t.Fatalf("block %d's name is another's", i)
			}
		}
	}
	listed := 0
	for i, prev := p.head, int32(-1); i >= 0; prev, i = i, p.blocks[i].next {
		if p.blocks[i].refs != 0 || p.blocks[i].prev != prev || listed > free {
			w.t.Fatalf("the free list is broken at block %d", i)
		}
		if p.blocks[i].next < 0 && p.tail != i {
			w.t.Fatalf("the free list's tail is %d, not %d", p.tail, i)
		}
		listed++
	}
	if free != p.free || listed != free || named != len(p.named) {
		w.t.Fatalf("%d free blocks, %d counted, %d listed; %d named, %d known", free, p.free, listed, named, len(p.named))
	}
}

// token returns the token at position p.
func (q *sequence) token(p int) int32 {
	if n := len(q.sub.Prompt); p >= n {
		return q.output[p-n]
	}
	return q.sub.Prompt[p]
}
