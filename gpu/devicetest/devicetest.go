// Package devicetest checks that a gpu.Device does what the interface promises, whatever computes.
// A device's own tests call Run with a small model:
//
//	func TestItIsADevice(t *testing.T) {
//		devicetest.Run(t, func(c gpu.Config) (gpu.Device, error) { … }, devicetest.Options{Logits: true, Refuses: true})
//	}
//
// Nothing here needs package testing: Tests are for a program that checks the device of the machine at hand.
//
// The heart of it is that an answer depends on the tokens before it and on the row that asks, and on
// nothing else: every sequence is computed alone in one piece, and then again in random company,
// pieces, blocks and slots.
package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/troupe-llm/troupe/gpu"
)

// Options say what can be asked of the device.
type Options struct {
	// Logits says that the device computes distributions, so that log probabilities, ranks and
	// alternatives can be checked against each other. Without, only tokens are.
	Logits bool
	// Tolerance is how far log probabilities and pooled values of the same position may differ when it
	// is computed in other company; 0 asks for the same bits. Sampled tokens are then not compared,
	// since a tie may fall either way.
	Tolerance float64
	// Width is the length of a pooled vector; 0 if the device has no Pool rows.
	Width int
	// Refuses says that a batch which contradicts itself is an error. A device that trusts its caller
	// leaves it out.
	Refuses bool
}

// Config is what devices are opened with, but for the block size, which varies: small, and yet a
// full batch is larger than what a device may compute at once.
var Config = gpu.Config{BlockSize: 16, MaxSeqs: 5, MaxTokens: 300, MaxContext: 210}

// T is what a test needs of *testing.T.
type T interface {
	Helper()
	Error(...any)
	Errorf(format string, args ...any)
	Fatal(...any)
	Fatalf(format string, args ...any)
	Skip(...any)
	Cleanup(func())
}

// Test is one of the suite's. Errors of Run, Fatal ones among them, say that the device fails it.
type Test struct {
	Name string
	Run  func(T)
}

// Run runs the whole suite by t, which is a *testing.T. open must give a device with room for MaxSeqs
// sequences of MaxContext tokens, and the same model each time.
func Run[S interface {
	T
	Run(string, func(S)) bool
}](t S, open func(gpu.Config) (gpu.Device, error), o Options) {
	for _, test := range Tests(open, o) {
		t.Run(test.Name, func(t S) { test.Run(t) })
	}
}

// Tests are the suite: see Run.
func Tests(open func(gpu.Config) (gpu.Device, error), o Options) []Test {
	s := &suite{open: open, Options: o}
	return []Test{
		{"it says what it is", s.info},
		{"an answer does not depend on company, pieces, blocks or slots", s.company},
		{"a shared prefix and a copied block are as good as computed", s.prefix},
		{"copies are made in order before anything is computed", s.copies},
		{"results have a place for each row, whatever was in them before", s.shapes},
		{"log probabilities, ranks and alternatives agree", s.distribution},
		{"greedy takes the likeliest and masks and biases are kept", s.constraints},
		{"draws differ by seed, choice and draw and are repeatable", s.draws},
		{"pooled vectors come in the order of their rows", s.pooled},
		{"a batch may have no rows, and may be full", s.extremes},
		{"a batch that contradicts itself is an error", s.refusals},
		{"a closed device computes no more", s.close},
	}
}

type suite struct {
	open func(gpu.Config) (gpu.Device, error)
	Options
}

// machine is an open device, its free blocks, and a batch in the making.
type machine struct {
	t      T
	device gpu.Device
	config gpu.Config
	vocab  int
	free   []int32
	batch  gpu.Batch
	result gpu.Result
	asked  []question // of the batch's rows
}

type question struct {
	s     *sequence
	where string
}

// sequence is what the suite computes: fixed tokens, some of them done.
type sequence struct {
	tokens  []int32
	done    int
	blocks  []int32
	slot    int32
	answers map[string]answer
}

// answer is what a Result says of a row.
type answer struct {
	token   int32
	logprob float32
	rank    int32
	ids     []int32
	tops    []float32
	pooled  []float32
}

func (s *suite) start(t T, c gpu.Config) *machine {
	t.Helper()
	d, err := s.open(c)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, device: d, config: c}
	t.Cleanup(func() { m.device.Close() })
	info := m.device.Info()
	m.vocab = info.Vocab
	for i := info.NumBlocks - 1; i >= 0; i-- {
		m.free = append(m.free, int32(i))
	}
	m.begin()
	return m
}

func (m *machine) begin() {
	m.batch.Reset()
	m.batch.Stride = (m.config.MaxContext + m.config.BlockSize - 1) / m.config.BlockSize
	m.batch.MaskWords = (m.vocab + 31) / 32
	m.asked = m.asked[:0]
}

// take takes a free block.
func (m *machine) take() int32 {
	if len(m.free) == 0 {
		m.t.Fatalf("the device has only %d blocks of %d tokens: too few for the suite", m.device.Info().NumBlocks, m.config.BlockSize)
	}
	b := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	return b
}

// add puts the next n tokens of q into the batch.
func (m *machine) add(q *sequence, n int) gpu.Span {
	b := &m.batch
	span := gpu.Span{First: int32(len(b.Tokens)), Len: int32(n), Start: int32(q.done), Slot: q.slot, Adapter: -1}
	for range n {
		b.Tokens = append(b.Tokens, q.tokens[q.done])
		b.Positions = append(b.Positions, int32(q.done))
		q.done++
	}
	for len(q.blocks)*m.config.BlockSize < q.done {
		q.blocks = append(q.blocks, m.take())
	}
	b.Spans = append(b.Spans, span)
	for i := range b.Stride {
		block := int32(-1)
		if used := (q.done + m.config.BlockSize - 1) / m.config.BlockSize; i < used {
			block = q.blocks[i]
		}
		b.Blocks = append(b.Blocks, block)
	}
	return span
}

// ask adds a row about a token of the last span, whose answer goes to q under the name where.
func (m *machine) ask(q *sequence, token int32, where string, row gpu.Row) {
	row.Token, row.Span = token, int32(len(m.batch.Spans)-1)
	m.batch.Rows = append(m.batch.Rows, row)
	m.asked = append(m.asked, question{q, where})
}

// run runs the batch, hands out the answers and begins a new one.
func (m *machine) run() {
	m.t.Helper()
	if err := m.device.Run(&m.batch, &m.result); err != nil {
		m.t.Fatal(err)
	}
	r, pooled := &m.result, 0
	for i, a := range m.asked {
		if a.s == nil {
			continue
		}
		from, to := r.TopFirst[i], r.TopFirst[i+1]
		out := answer{token: r.Tokens[i], logprob: r.Logprobs[i], rank: r.Ranks[i],
			ids: append([]int32{}, r.TopIDs[from:to]...), tops: append([]float32{}, r.TopLogprobs[from:to]...)}
		if m.batch.Rows[i].Kind == gpu.Pool {
			pools := 0
			for j := range m.batch.Rows {
				if m.batch.Rows[j].Kind == gpu.Pool {
					pools++
				}
			}
			width := len(r.Pooled) / pools
			out.pooled = append(out.pooled, r.Pooled[pooled*width:(pooled+1)*width]...)
			pooled++
		}
		if a.s.answers == nil {
			a.s.answers = map[string]answer{}
		}
		a.s.answers[a.where] = out
	}
	m.begin()
}

// sampling is a plain draw.
func sampling(temperature float32, draw int) gpu.Row {
	return gpu.Row{Kind: gpu.Sample, Top: 0, Temperature: temperature, TopP: 1, RepetitionPenalty: 1, Seed: 42, Draw: int32(draw), Mask: -1}
}

// askAll asks of every position of the span: the next token's score, a draw, a filtered draw, a
// greedy token, and if there are such rows, the hidden state.
func (s *suite) askAll(m *machine, q *sequence, span gpu.Span) {
	for i := range span.Len {
		at := int(span.Start + i)
		target := q.tokens[(at+1)%len(q.tokens)]
		m.ask(q, span.First+i, fmt.Sprintf("score %d", at), gpu.Row{Kind: gpu.Score, Target: target, Top: 3, Mask: -1})
		m.ask(q, span.First+i, fmt.Sprintf("draw %d", at), sampling(1, at))
		filtered := sampling(0.8, at)
		filtered.TopK, filtered.TopP, filtered.MinP, filtered.Top, filtered.Choice = 20, 0.9, 0.01, -1, 1
		m.ask(q, span.First+i, fmt.Sprintf("filtered draw %d", at), filtered)
		m.ask(q, span.First+i, fmt.Sprintf("greedy %d", at), sampling(0, at))
		if s.Width > 0 {
			m.ask(q, span.First+i, fmt.Sprintf("pool %d", at), gpu.Row{Kind: gpu.Pool, Top: -1, Mask: -1})
		}
	}
}

// texts makes token sequences up.
func (m *machine) texts(rng *rand.Rand, lengths ...int) []*sequence {
	out := make([]*sequence, len(lengths))
	for i, n := range lengths {
		out[i] = &sequence{slot: int32(i)}
		for range n {
			out[i].tokens = append(out[i].tokens, int32(rng.IntN(m.vocab)))
		}
	}
	return out
}

// compare checks answers against those of the same sequence elsewhere.
func (s *suite) compare(t T, what string, got, want *sequence) {
	t.Helper()
	if len(got.answers) != len(want.answers) {
		t.Fatalf("%s: %d answers, wanted %d", what, len(got.answers), len(want.answers))
	}
	for where, w := range want.answers {
		g := got.answers[where]
		if !s.same(g, w) {
			t.Fatalf("%s, %s: %+v, alone %+v", what, where, g, w)
		}
	}
}

func (s *suite) same(a, b answer) bool {
	if len(a.ids) != len(b.ids) || len(a.pooled) != len(b.pooled) {
		return false
	}
	near := func(x, y float32) bool {
		if s.Tolerance == 0 {
			return math.Float32bits(x) == math.Float32bits(y)
		}
		return math.Abs(float64(x)-float64(y)) <= s.Tolerance
	}
	if s.Tolerance > 0 && a.token != b.token {
		return true // a draw that fell the other way
	}
	if a.token != b.token || !near(a.logprob, b.logprob) || s.Tolerance == 0 && a.rank != b.rank {
		return false
	}
	for i := range a.ids {
		if s.Tolerance == 0 && a.ids[i] != b.ids[i] || !near(a.tops[i], b.tops[i]) {
			return false
		}
	}
	for i := range a.pooled {
		if !near(a.pooled[i], b.pooled[i]) {
			return false
		}
	}
	return true
}

// alone computes sequences each for itself, in one piece, on a device of its own.
func (s *suite) alone(t T, seqs []*sequence) {
	m := s.start(t, Config)
	for _, q := range seqs {
		q.slot = 0
		s.askAll(m, q, m.add(q, len(q.tokens)))
		m.run()
		m.free = append(m.free, q.blocks...)
	}
}

func copies(seqs []*sequence) []*sequence {
	out := make([]*sequence, len(seqs))
	for i, q := range seqs {
		out[i] = &sequence{tokens: q.tokens, slot: q.slot}
	}
	return out
}

func (s *suite) info(t T) {
	m := s.start(t, Config)
	i := m.device.Info()
	need := (Config.MaxContext + Config.BlockSize - 1) / Config.BlockSize
	if i.Kind == "" || i.Name == "" || i.NumBlocks < need || i.BlockBytes <= 0 || i.Vocab <= 0 {
		t.Errorf("%+v; a sequence needs %d blocks", i, need)
	}
	if again := m.device.Info(); again != i {
		t.Errorf("first %+v, then %+v", i, again)
	}
}

func (s *suite) company(t T) {
	rng := rand.New(rand.NewPCG(7, 1))
	var want []*sequence
	for trial, blockSize := range []int{16, 5, 32} {
		c := Config
		c.BlockSize = blockSize
		m := s.start(t, c)
		rng.Shuffle(len(m.free), func(i, j int) { m.free[i], m.free[j] = m.free[j], m.free[i] })
		if want == nil {
			want = m.texts(rng, 1, 17, 64, 150, Config.MaxContext)
			s.alone(t, want)
		}
		got := copies(want)
		for i, slot := range rng.Perm(len(got)) {
			got[i].slot = int32(slot)
		}
		one := trial == 1 // once, everything token by token
		for left := true; left; {
			left = false
			budget := c.MaxTokens
			for _, i := range rng.Perm(len(got)) {
				q := got[i]
				rest := min(budget, len(q.tokens)-q.done)
				if rest == 0 || rng.IntN(4) == 0 && !one {
					left = left || q.done < len(q.tokens)
					continue
				}
				n := 1
				if !one {
					n = 1 + rng.IntN(rest)
				}
				s.askAll(m, q, m.add(q, n))
				budget -= n
				left = true
			}
			if len(m.batch.Tokens) > 0 {
				m.run()
			}
		}
		for i := range got {
			s.compare(t, fmt.Sprintf("trial %d, sequence of %d tokens", trial, len(got[i].tokens)), got[i], want[i])
		}
	}
}

func (s *suite) prefix(t T) {
	rng := rand.New(rand.NewPCG(7, 2))
	m := s.start(t, Config)
	base := m.texts(rng, 75)[0]
	forks := m.texts(rng, 100, 100)
	size := Config.BlockSize
	full := 70 / size // whole blocks that all share; of the next, a copy
	for _, f := range forks {
		copy(f.tokens, base.tokens[:70])
	}
	want := copies(forks)
	s.alone(t, want)

	m.add(base, 75)
	m.run()
	for _, f := range forks {
		f.done = 70
		f.blocks = append(append(f.blocks, base.blocks[:full]...), m.take())
		m.batch.Copies = append(m.batch.Copies, gpu.Copy{From: base.blocks[full], To: f.blocks[full]})
		s.askAll(m, f, m.add(f, 10))
	}
	m.run()
	for _, f := range forks {
		s.askAll(m, f, m.add(f, 20))
	}
	m.run()
	for i, f := range forks {
		for where := range want[i].answers {
			var at int
			if _, err := fmt.Sscan(where[lastSpace(where)+1:], &at); err != nil {
				t.Fatal(err)
			}
			if at < 70 {
				delete(want[i].answers, where)
			}
		}
		s.compare(t, fmt.Sprintf("fork %d", i), f, want[i])
	}
}

func lastSpace(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == ' ' {
			return i
		}
	}
	return -1
}

func (s *suite) copies(t T) {
	rng := rand.New(rand.NewPCG(7, 3))
	m := s.start(t, Config)
	q := m.texts(rng, 2*Config.BlockSize+1)[0]
	want := copies([]*sequence{q})
	s.alone(t, want)
	m.add(q, 2*Config.BlockSize)
	m.run()
	// Swap the two blocks by way of a third, which is then given up; the sequence goes on in the same step.
	a, b, c := q.blocks[0], q.blocks[1], m.take()
	m.batch.Copies = append(m.batch.Copies, gpu.Copy{From: a, To: c}, gpu.Copy{From: b, To: a}, gpu.Copy{From: c, To: b})
	q.blocks[0], q.blocks[1] = b, a
	s.askAll(m, q, m.add(q, 1))
	m.run()
	last := fmt.Sprint(2 * Config.BlockSize)
	for where := range want[0].answers {
		if where[lastSpace(where)+1:] != last {
			delete(want[0].answers, where)
		}
	}
	s.compare(t, "after copies", q, want[0])
}

func (s *suite) shapes(t T) {
	m := s.start(t, Config)
	m.result = gpu.Result{Tokens: make([]int32, 99), TopFirst: []int32{5}, TopIDs: []int32{1, 2, 3}, Pooled: []float32{1}}
	for i := range m.result.Tokens {
		m.result.Tokens[i] = 12345678
	}
	rng := rand.New(rand.NewPCG(7, 4))
	for _, n := range []int{3, 1, 2} {
		for i, q := range m.texts(rng, 4, 5, 6)[:n] {
			span := m.add(q, len(q.tokens))
			end := span.First + span.Len - 1
			m.ask(nil, end, "", gpu.Row{Kind: gpu.Score, Target: 2, Top: int32(i), Mask: -1})
			silent := sampling(1, 0)
			silent.Top = -1
			m.ask(nil, end, "", silent)
			loud := sampling(0, 1)
			loud.Top = 4
			m.ask(nil, end, "", loud)
		}
		batch := m.batch
		if err := m.device.Run(&batch, &m.result); err != nil {
			t.Fatal(err)
		}
		r := &m.result
		if len(r.Tokens) != 3*n || len(r.Logprobs) != 3*n || len(r.Ranks) != 3*n || len(r.TopFirst) != 3*n+1 || len(r.Pooled) != 0 {
			t.Fatalf("%d rows: %d tokens, %d log probabilities, %d ranks, %d offsets, %d pooled values",
				3*n, len(r.Tokens), len(r.Logprobs), len(r.Ranks), len(r.TopFirst), len(r.Pooled))
		}
		at := int32(0)
		for i, row := range batch.Rows {
			if r.TopFirst[i] != at {
				t.Fatalf("row %d's alternatives begin at %d, wanted %d", i, r.TopFirst[i], at)
			}
			at += max(row.Top, 0)
			if r.Tokens[i] < 0 || int(r.Tokens[i]) >= m.vocab || row.Kind == gpu.Score && r.Tokens[i] != row.Target {
				t.Errorf("row %d has token %d", i, r.Tokens[i])
			}
			if (row.Top < 0) != (r.Ranks[i] == 0) || row.Top < 0 && r.Logprobs[i] != 0 || !(r.Logprobs[i] <= 0) {
				t.Errorf("row %d, which wants %d: log probability %v, rank %d", i, row.Top, r.Logprobs[i], r.Ranks[i])
			}
		}
		if r.TopFirst[3*n] != at || len(r.TopIDs) != int(at) || len(r.TopLogprobs) != int(at) {
			t.Fatalf("%d alternatives were wanted; the last offset is %d, %d ids, %d log probabilities", at, r.TopFirst[3*n], len(r.TopIDs), len(r.TopLogprobs))
		}
		for i, id := range r.TopIDs {
			if id < 0 || int(id) >= m.vocab || !(r.TopLogprobs[i] <= 0) {
				t.Errorf("alternative %d is token %d with log probability %v", i, id, r.TopLogprobs[i])
			}
		}
		m.free = m.free[:0]
		for i := m.device.Info().NumBlocks - 1; i >= 0; i-- {
			m.free = append(m.free, int32(i))
		}
		m.begin()
	}
}

func (s *suite) distribution(t T) {
	if !s.Logits {
		t.Skip("the device has no distributions")
	}
	rng := rand.New(rand.NewPCG(7, 5))
	m := s.start(t, Config)
	q := m.texts(rng, 40)[0]
	end := m.add(q, 40).First + 39
	for range 3 {
		m.ask(q, end, fmt.Sprint("score ", len(m.asked)), gpu.Row{Kind: gpu.Score, Target: int32(rng.IntN(m.vocab)), Top: int32(m.vocab), Mask: -1})
	}
	for i := range 6 {
		row := sampling(float32(i)/2, i)
		row.Top = int32(i)
		m.ask(q, end, fmt.Sprint("draw ", len(m.asked)), row)
	}
	m.run()
	all := q.answers["score 0"]
	of := make([]float64, m.vocab)
	seen := make([]bool, m.vocab)
	sum := 0.0
	for i, id := range all.ids {
		if seen[id] {
			t.Fatalf("token %d is there twice", id)
		}
		seen[id], of[id] = true, float64(all.tops[i])
		sum += math.Exp(of[id])
		if i > 0 && (all.tops[i] > all.tops[i-1] || all.tops[i] == all.tops[i-1] && s.Tolerance == 0 && id < all.ids[i-1]) {
			t.Errorf("alternative %d, token %d (%v), follows token %d (%v)", i, id, all.tops[i], all.ids[i-1], all.tops[i-1])
		}
	}
	if math.Abs(sum-1) > 1e-3 {
		t.Errorf("probabilities sum to %v", sum)
	}
	for where, a := range q.answers {
		if math.Abs(float64(a.logprob)-of[a.token]) > s.Tolerance {
			t.Errorf("%s: token %d has log probability %v, in the distribution %v", where, a.token, a.logprob, of[a.token])
		}
		// Equal log probabilities may come of different logits, so a rank has a range.
		likelier, asLikely := int32(0), int32(0)
		for _, v := range of {
			if v > of[a.token]+s.Tolerance {
				likelier++
			} else if v >= of[a.token]-s.Tolerance {
				asLikely++
			}
		}
		if a.rank < 1+likelier || a.rank > likelier+asLikely {
			t.Errorf("%s: rank %d, but %d tokens are likelier", where, a.rank, likelier)
		}
		for i, id := range a.ids {
			if math.Abs(float64(a.tops[i])-of[id]) > s.Tolerance || s.Tolerance == 0 && id != all.ids[i] {
				t.Errorf("%s: alternative %d is token %d (%v), among all it is %d (%v)", where, i, id, a.tops[i], all.ids[i], all.tops[i])
			}
		}
	}
}

func (s *suite) constraints(t T) {
	rng := rand.New(rand.NewPCG(7, 6))
	m := s.start(t, Config)
	q := m.texts(rng, 30)[0]
	span := m.add(q, 30)
	end := span.First + 29
	greedy := sampling(0, 0)
	greedy.Top = 2
	m.ask(q, end, "greedy", greedy)
	one := sampling(1.5, 0)
	one.TopK = 1
	m.ask(q, end, "top 1", one)
	m.run()
	free := q.answers["greedy"]
	if s.Logits && (free.rank != 1 || free.token != free.ids[0] || q.answers["top 1"].token != free.token) {
		t.Errorf("greedy is token %d of rank %d; the likeliest is %d; the only one left by TopK 1 is %d",
			free.token, free.rank, free.ids[0], q.answers["top 1"].token)
	}
	// The same position again, with constraints.
	q.done = 29
	span = m.add(q, 1)
	only := int32((int(free.token) + 5) % m.vocab)
	words := m.batch.MaskWords
	m.batch.Masks = make([]uint32, 2*words)
	for _, mask := range []int{0, 1} { // mask 1: one token; mask 0: that and those below 40
		m.batch.Masks[mask*words+int(only)/32] |= 1 << (only % 32)
	}
	for id := range min(40, m.vocab) {
		m.batch.Masks[id/32] |= 1 << (id % 32)
	}
	for i := range 20 {
		row := sampling(1, i)
		row.Mask = 1
		m.ask(q, span.First, fmt.Sprint("only ", i), row)
		row.Mask = 0
		m.ask(q, span.First, fmt.Sprint("few ", i), row)
	}
	m.batch.Bias = []gpu.Bias{{ID: free.token, Value: float32(math.Inf(-1))}, {ID: only, Value: 1000}}
	banned := sampling(0, 0)
	banned.BiasLen = 1
	m.ask(q, span.First, "banned", banned)
	raised := sampling(1, 0)
	raised.BiasFirst, raised.BiasLen = 1, 1
	m.ask(q, span.First, "raised", raised)
	m.run()
	for i := range 20 {
		if got := q.answers[fmt.Sprint("only ", i)].token; got != only {
			t.Errorf("a mask allows only token %d, but %d was drawn", only, got)
		}
		if got := q.answers[fmt.Sprint("few ", i)].token; got != only && got >= 40 {
			t.Errorf("token %d was drawn outside the mask", got)
		}
	}
	if got := q.answers["banned"].token; got == free.token {
		t.Errorf("token %d is banned by a bias and was sampled", got)
	}
	if got := q.answers["raised"].token; got != only {
		t.Errorf("token %d has a bias of 1000, but %d was drawn", only, got)
	}
	if raw := q.answers["raised"].logprob; s.Logits && raw > -0.001 {
		t.Errorf("the raised token has log probability %v: of the changed logits, not the model's", raw)
	}
}

func (s *suite) draws(t T) {
	rng := rand.New(rand.NewPCG(7, 7))
	m := s.start(t, Config)
	q := m.texts(rng, 12)[0]
	end := m.add(q, 12).First + 11
	const n = 40
	for i := range n {
		for _, kind := range []string{"seed", "choice", "draw", "seed again"} {
			row := sampling(2, 3)
			switch kind {
			case "choice":
				row.Choice = int32(i)
			case "draw":
				row.Draw = int32(i)
			default:
				row.Seed = uint64(i) << 33
			}
			m.ask(q, end, fmt.Sprint(kind, i), row)
		}
	}
	m.run()
	for _, kind := range []string{"seed", "choice", "draw"} {
		tokens := map[int32]bool{}
		for i := range n {
			tokens[q.answers[fmt.Sprint(kind, i)].token] = true
		}
		if len(tokens) < 2 {
			t.Errorf("%d draws that differ in %s are all the same token", n, kind)
		}
	}
	for i := range n {
		if a, b := q.answers[fmt.Sprint("seed", i)], q.answers[fmt.Sprint("seed again", i)]; a.token != b.token {
			t.Errorf("the same row gave token %d and then %d", a.token, b.token)
		}
	}
}

func (s *suite) pooled(t T) {
	if s.Width == 0 {
		t.Skip("the device has no pooled vectors")
	}
	rng := rand.New(rand.NewPCG(7, 8))
	m := s.start(t, Config)
	seqs := m.texts(rng, 9, 20, 13)
	for _, q := range seqs {
		span := m.add(q, len(q.tokens))
		m.ask(q, span.First, "score", gpu.Row{Kind: gpu.Score, Mask: -1})
		m.ask(q, span.First+span.Len-1, "pool", gpu.Row{Kind: gpu.Pool, Top: -1, Mask: -1})
	}
	m.run()
	if n := len(m.result.Pooled); n != 3*s.Width {
		t.Fatalf("%d pooled values for 3 vectors of %d", n, s.Width)
	}
	for i, q := range seqs {
		alone := &sequence{tokens: q.tokens}
		span := m.add(alone, len(q.tokens))
		m.ask(alone, span.First+span.Len-1, "pool", gpu.Row{Kind: gpu.Pool, Top: -1, Mask: -1})
		m.run()
		if m.result.Tokens[0] != -1 {
			t.Errorf("a pooled row has token %d", m.result.Tokens[0])
		}
		if !s.same(alone.answers["pool"], q.answers["pool"]) {
			t.Errorf("vector %d is not that of its sequence alone", i)
		}
	}
}

func (s *suite) extremes(t T) {
	rng := rand.New(rand.NewPCG(7, 9))
	m := s.start(t, Config)
	// Tokens that nobody asks about.
	first := m.texts(rng, 50)[0]
	m.add(first, 30)
	m.run()
	// MaxTokens tokens in MaxSeqs spans, all of them asked about.
	per := Config.MaxTokens / Config.MaxSeqs
	lengths := make([]int, Config.MaxSeqs)
	for i := range lengths {
		lengths[i] = per
	}
	m.free = append(m.free, first.blocks...)
	seqs := m.texts(rng, lengths...)
	want := copies(seqs)
	s.alone(t, want)
	for _, q := range seqs {
		s.askAll(m, q, m.add(q, per))
	}
	m.run()
	for i, q := range seqs {
		s.compare(t, fmt.Sprintf("sequence %d of a full batch", i), q, want[i])
	}
}

func (s *suite) refusals(t T) {
	if !s.Refuses {
		t.Skip("the device trusts its caller")
	}
	m := s.start(t, Config)
	blocks := slices.Clone(m.free)
	for _, test := range []struct {
		name string
		do   func(m *machine, b *gpu.Batch)
	}{
		{"a token outside the vocabulary", func(m *machine, b *gpu.Batch) { b.Tokens[3] = int32(m.vocab) }},
		{"a negative token", func(m *machine, b *gpu.Batch) { b.Tokens[3] = -1 }},
		{"a block that isn't there", func(m *machine, b *gpu.Batch) { b.Blocks[0] = int32(m.device.Info().NumBlocks) }},
		{"no block", func(m *machine, b *gpu.Batch) { b.Blocks[1] = -1 }},
		{"a table too short", func(m *machine, b *gpu.Batch) { b.Stride, b.Blocks = 1, b.Blocks[:2] }},
		{"missing tables", func(m *machine, b *gpu.Batch) { b.Blocks = b.Blocks[:len(b.Blocks)-1] }},
		{"a slot out of range", func(m *machine, b *gpu.Batch) { b.Spans[0].Slot = int32(m.config.MaxSeqs) }},
		{"a slot twice", func(m *machine, b *gpu.Batch) { b.Spans[1].Slot = b.Spans[0].Slot }},
		{"a position that doesn't follow", func(m *machine, b *gpu.Batch) { b.Positions[2]++ }},
		{"too few positions", func(m *machine, b *gpu.Batch) { b.Positions = b.Positions[:len(b.Positions)-1] }},
		{"positions beyond the longest context", func(m *machine, b *gpu.Batch) {
			b.Spans[0].Start = int32(m.config.MaxContext)
			for i := range b.Spans[0].Len {
				b.Positions[i] = b.Spans[0].Start + i
			}
		}},
		{"a negative position", func(m *machine, b *gpu.Batch) { b.Spans[0].Start, b.Positions[0] = -1, -1 }},
		{"an empty span", func(m *machine, b *gpu.Batch) { b.Spans[1].Len = 0 }},
		{"tokens in no span", func(m *machine, b *gpu.Batch) { b.Spans[1].Len-- }},
		{"a span beyond the tokens", func(m *machine, b *gpu.Batch) { b.Spans[1].Len++ }},
		{"more drafts than tokens", func(m *machine, b *gpu.Batch) { b.Spans[0].Drafts = b.Spans[0].Len }},
		{"a copy from nowhere", func(m *machine, b *gpu.Batch) { b.Copies = append(b.Copies, gpu.Copy{From: -1, To: 1}) }},
		{"a copy to nowhere", func(m *machine, b *gpu.Batch) {
			b.Copies = append(b.Copies, gpu.Copy{From: 1, To: int32(m.device.Info().NumBlocks)})
		}},
		{"a row about no token", func(m *machine, b *gpu.Batch) { b.Rows[1].Token = int32(len(b.Tokens)) }},
		{"rows out of order", func(m *machine, b *gpu.Batch) { b.Rows[0], b.Rows[1] = b.Rows[1], b.Rows[0] }},
		{"a row whose token is another span's", func(m *machine, b *gpu.Batch) { b.Rows[1].Span = 0 }},
		{"a target outside the vocabulary", func(m *machine, b *gpu.Batch) { b.Rows[0].Target = int32(m.vocab) }},
		{"too many alternatives", func(m *machine, b *gpu.Batch) { b.Rows[0].Top = int32(m.vocab) + 1 }},
		{"a mask that isn't there", func(m *machine, b *gpu.Batch) { b.Rows[1].Mask = 0 }},
		{"biases that aren't there", func(m *machine, b *gpu.Batch) { b.Rows[1].BiasLen = 1 }},
		{"a bias that is no number", func(m *machine, b *gpu.Batch) {
			b.Bias, b.Rows[1].BiasLen = append(b.Bias, gpu.Bias{ID: 1, Value: float32(math.NaN())}), 1
		}},
		{"a history that isn't there", func(m *machine, b *gpu.Batch) { b.Rows[1].HistoryLen = 1 }},
		{"a history with a token outside the vocabulary", func(m *machine, b *gpu.Batch) {
			b.History, b.Rows[1].HistoryLen = append(b.History, int32(m.vocab)), 1
		}},
		{"a temperature that is no number", func(m *machine, b *gpu.Batch) { b.Rows[1].Temperature = float32(math.NaN()) }},
	} {
		m.free = append(m.free[:0], blocks...)
		m.begin()
		rng := rand.New(rand.NewPCG(7, 10))
		for _, q := range m.texts(rng, Config.BlockSize+4, 6) {
			span := m.add(q, len(q.tokens))
			row := gpu.Row{Kind: gpu.Score, Mask: -1}
			if span.First > 0 {
				row = sampling(1, 0)
			}
			m.ask(nil, span.First+span.Len-1, "", row)
		}
		test.do(m, &m.batch)
		if err := m.device.Run(&m.batch, &m.result); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
	c := Config
	c.MaxSeqs, c.MaxTokens = 2, 10
	for _, lengths := range [][]int{{1, 1, 1}, {6, 5}} { // more sequences, or tokens, than announced
		m := s.start(t, c)
		for i, q := range m.texts(rand.New(rand.NewPCG(7, 11)), lengths...) {
			q.slot = int32(i % 2)
			m.add(q, len(q.tokens))
		}
		if err := m.device.Run(&m.batch, &m.result); err == nil {
			t.Errorf("no error for spans of %v tokens", lengths)
		}
	}
}

func (s *suite) close(t T) {
	m := s.start(t, Config)
	m.add(m.texts(rand.New(rand.NewPCG(7, 12)), 5)[0], 5)
	for range 2 {
		if err := m.device.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := m.device.Run(&m.batch, &m.result); err == nil {
		t.Error("Run after Close: no error")
	}
}
