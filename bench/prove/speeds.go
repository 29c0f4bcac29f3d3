package prove

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
)

const (
	speedBlock = 16
	// decodeContext is how many tokens a sequence has before the first that is decoded, and decodeSpan how many
	// follow before it begins there again.
	decodeContext, decodeSpan = 128, 128
	maxDecode, maxPrefill     = 256, 4096
)

// Steps that are measured, what matters most first: time may run out.
var (
	decodes  = []int{1, 256, 32, 8, 64, 2, 4, 16, 128}
	prefills = []int{128, 512, 4096, 1024, 2048, 256}
)

// serveTime is how long each serving load lasts, and serveReserve what all of that part may take.
func (p *prover) serveTime() time.Duration {
	if p.Quick {
		return time.Second
	}
	return min(6*time.Second, p.Budget/40)
}

func (p *prover) serveReserve() time.Duration { return 6*p.serveTime() + 5*time.Second }

// speeds measures the model, and one that is made up.
func (p *prover) speeds() {
	budget := p.left() - p.serveReserve()
	big := !p.Quick
	switch need := bigMemory(); {
	case p.Quick:
		p.leaveOut("speeds of %s: --quick", BigModel)
	case p.Subject.Memory > 0 && p.Subject.Memory < need, host.AvailableMemory() > 0 && host.AvailableMemory() < need:
		p.leaveOut("speeds of %s: %.1f GB of memory are needed, of the device and of the machine", BigModel, float64(need)/1e9)
		big = false
	}
	if big {
		budget = budget * 2 / 5
	}
	p.measure(p.Model, p.Name, budget)
	if !big || p.ctx.Err() != nil {
		return
	}
	if p.left()-p.serveReserve() < 5*time.Second {
		p.leaveOut("speeds of %s: no time is left", BigModel)
		return
	}
	p.say("speeds: making up %s", BigModel)
	m, err := bigModel()
	if err != nil {
		p.leaveOut("speeds of %s: %v", BigModel, err)
		return
	}
	p.measure(m, BigModel, p.left()-p.serveReserve())
}

// measure measures a model for about the given time.
func (p *prover) measure(m *model.Model, name string, budget time.Duration) {
	deadline := time.Now().Add(budget)
	most, longest := maxDecode, min(maxPrefill, m.Config.Context)
	if p.Quick {
		most, longest = 8, min(256, longest)
	}
	if need := decodeContext + decodeSpan; m.Config.Context < need {
		p.leaveOut("speeds of %s: its context is %d tokens, and %d are needed", name, m.Config.Context, need)
		return
	}
	longest = max(longest, decodeContext+decodeSpan)
	c := gpu.Config{BlockSize: speedBlock, MaxSeqs: most, MaxTokens: max(longest, most), MaxContext: longest, CacheType: gpu.CacheF16}
	need := most*blocks(decodeContext+decodeSpan, speedBlock) + blocks(longest, speedBlock)
	c.CacheBytes = int64(need) * host.BlockBytes(m, speedBlock, c.CacheType)
	p.say("speeds: opening the device with %s", name)
	began := time.Now()
	d, err := p.Subject.Open(m, c)
	if err != nil {
		p.leaveOut("speeds of %s: %v", name, err)
		return
	}
	defer d.Close()
	s := Speeds{Model: name, Parameters: m.Parameters, OpenSeconds: time.Since(began).Seconds(), smolLM2: isSmolLM2(m)}
	b := &bencher{ctx: p.ctx, d: d, c: c, cost: costOf(m), limits: p.report.Limits}
	s.WeightBytes = int64(b.cost.bytes)
	kinds := []struct {
		name  string
		sizes []int // to come
		most  int
		run   func(n int, slot time.Duration) (Speed, error)
		to    *[]Speed
		late  []int // for which there was no time
	}{{"decode", decodes, most, b.decode, &s.Decode, nil}, {"prefill", prefills, longest, b.prefill, &s.Prefill, nil}}
	points, failed := 0, false
	for i := range kinds {
		k := &kinds[i]
		k.sizes = slices.DeleteFunc(slices.Clone(k.sizes), func(n int) bool { return n > k.most })
		points += len(k.sizes)
	}
	for i := range points { // in turn, so that both kinds have what matters most
		which := i % 2
		if len(kinds[which].sizes) == 0 {
			which = 1 - which
		}
		k := &kinds[which]
		n := k.sizes[0]
		k.sizes = k.sizes[1:]
		left := time.Until(deadline)
		if p.ctx.Err() != nil {
			break
		}
		if left <= 0 || 2*b.expected(k.name, n) > left {
			k.late = append(k.late, n)
			continue
		}
		slot := left / time.Duration(points-i)
		slot = min(slot, 3*time.Second)
		if p.Quick {
			slot = min(slot, 200*time.Millisecond)
		}
		v, err := k.run(n, slot)
		if err != nil {
			if p.ctx.Err() == nil {
				p.leaveOut("%s of %d, %s: %v", k.name, n, name, err)
				failed = true
			}
			break
		}
		*k.to = append(*k.to, v)
		p.say("speeds: %s of %d: %.1f tokens/s, %.3f ms a step", k.name, n, v.TokensPerSecond, v.StepMilliseconds)
	}
	for i := range kinds {
		k := &kinds[i]
		if len(k.late) > 0 {
			p.leaveOut("%s of %s, %s: no time is left", k.name, list(k.late), name)
		}
		if failed && len(k.sizes) > 0 {
			p.leaveOut("%s of %s, %s: not after that error", k.name, list(k.sizes), name)
		}
	}
	order := func(a, b Speed) int { return a.Tokens - b.Tokens }
	slices.SortFunc(s.Decode, order)
	slices.SortFunc(s.Prefill, order)
	p.report.Speeds = append(p.report.Speeds, s)
}

// list writes sizes.
func list(sizes []int) string {
	var out []string
	for _, n := range sizes {
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ", ")
}

// blocks is how many blocks of the KV cache so many tokens take.
func blocks(tokens, size int) int { return (tokens + size - 1) / size }

// isSmolLM2 says whether a model is SmolLM2-135M, by its shape, whatever its file is called.
func isSmolLM2(m *model.Model) bool {
	c := &m.Config
	return m.Architecture == "llama" && c.Layers == 30 && c.Width == 576 && c.Heads == 9 && c.Vocab == 49152
}

// cost is what a step of a model takes.
type cost struct {
	model *model.Model
	bytes float64 // of weights, in a step of one sequence; of a mixture, those of the experts that one token uses
	dense float64 // of these, what no expert has
	// experts is what all of them have together, and used which part of it a token uses.
	experts, used float64
	// multiplyAdds of a token are those of all matrices but the last, and head those of that.
	multiplyAdds, head float64
	position           float64 // bytes of the KV cache, of a layer
}

// costOf reads a model's shape.
func costOf(m *model.Model) cost {
	mc := &m.Config
	k := cost{model: m, used: 1, position: float64(2 * 2 * mc.KVHeads * mc.HeadDim)}
	k.head = float64(mc.Width) * float64(mc.Vocab)
	matrices := float64(m.Parameters) - k.head // the embedding's
	if !mc.TiedOutput {
		matrices -= k.head
	}
	k.dense = float64(m.WeightBytes)
	if t, err := m.Peek("token_embd.weight"); err == nil && !mc.TiedOutput {
		k.dense -= float64(len(t.Data)) // of which a token takes a row
	}
	if e := mc.Experts; e.Count > 0 {
		k.used = float64(e.Used) / float64(e.Count)
		values := 0.0
		for i := range mc.Layers {
			for _, part := range []string{"gate", "up", "gate_up", "down"} {
				if t, err := m.Peek(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", i, part)); err == nil {
					k.experts += float64(len(t.Data))
					values += float64(t.Values())
				}
			}
		}
		k.dense -= k.experts
		matrices -= values * (1 - k.used)
	}
	k.bytes = k.dense + k.experts*k.used
	k.multiplyAdds = matrices
	return k
}

// read is how many bytes a step of tokens at these positions reads: weights once, of experts those that some token
// is expected to use, and of each sequence the keys and values that its last token sees.
func (k *cost) read(tokens int, lasts []int) float64 {
	unused := math.Pow(1-k.used, float64(tokens))
	sum := k.dense + k.experts*(1-unused)
	for _, last := range lasts {
		sum += k.position * k.seen(last)
	}
	return sum
}

// seen is how many positions of all layers a token sees.
func (k *cost) seen(position int) float64 {
	sum := 0
	for i := range k.model.Config.Layers {
		n := position + 1
		if w := k.model.Config.AttentionOf(i).Window; w > 0 {
			n = min(n, w)
		}
		sum += n
	}
	return float64(sum)
}

// attention is how many multiply-adds a token's takes.
func (k *cost) attention(position int) float64 {
	return 2 * float64(k.model.Config.Heads) * float64(k.model.Config.HeadDim) * k.seen(position)
}

// bencher measures steps on an open device.
type bencher struct {
	ctx    context.Context
	d      gpu.Device
	c      gpu.Config
	cost   cost
	limits Limits

	batch  gpu.Batch
	result gpu.Result
	// What a step may be expected to take: the shortest times so far that a token took in steps of many, and a
	// step of one.
	perToken, perStep time.Duration
}

// expected is about how long a step of n will take at most; 0 is unknown.
func (b *bencher) expected(kind string, n int) time.Duration {
	if kind == "prefill" {
		return time.Duration(n) * b.perToken
	}
	return max(b.perStep, time.Duration(n)*min(b.perToken, b.perStep))
}

// span adds the next n tokens of a sequence that has start before them, in the blocks from first on.
func (b *bencher) span(slot, start, n, first int, token func(i int) int32) {
	s := &b.batch
	at := int32(len(s.Tokens))
	s.Spans = append(s.Spans, gpu.Span{First: at, Len: int32(n), Start: int32(start), Slot: int32(slot), Adapter: -1})
	for i := range n {
		s.Tokens = append(s.Tokens, token(i))
		s.Positions = append(s.Positions, int32(start+i))
	}
	for i := range s.Stride {
		block := int32(-1)
		if i*speedBlock < start+n {
			block = int32(first + i)
		}
		s.Blocks = append(s.Blocks, block)
	}
	s.Rows = append(s.Rows, gpu.Row{Kind: gpu.Sample, Token: at + int32(n) - 1, Span: int32(len(s.Spans) - 1), Top: -1, TopP: 1, RepetitionPenalty: 1, Mask: -1})
}

func (b *bencher) begin(tokens int) {
	b.batch.Reset()
	b.batch.Stride = blocks(tokens, speedBlock)
}

// word is a token of made-up text.
func (b *bencher) word(i int) int32 { return int32((i*7919 + 11) % b.cost.model.Config.Vocab) }

// repeat runs steps for about slot, at least two, of which the first is not measured.
func (b *bencher) repeat(slot time.Duration, prepare func(step int), tokens int) (s Speed, err error) {
	var times []time.Duration
	var total, waits time.Duration
	reads, adds := 0.0, 0.0
	self := waited(b.d) < 0
	for step := 0; step < 2 || total < slot; step++ {
		if b.ctx.Err() != nil {
			return s, b.ctx.Err()
		}
		prepare(step)
		before, began := waited(b.d), time.Now()
		if err := b.d.Run(&b.batch, &b.result); err != nil {
			return s, err
		}
		took := time.Since(began)
		if step == 0 { // code and caches are cold
			continue
		}
		total += took
		times = append(times, took)
		if !self {
			waits += waited(b.d) - before
		}
		lasts := make([]int, 0, len(b.batch.Spans))
		for _, sp := range b.batch.Spans {
			lasts = append(lasts, int(sp.Start+sp.Len)-1)
			for i := range sp.Len {
				adds += b.cost.attention(int(sp.Start + i))
			}
		}
		reads += b.cost.read(len(b.batch.Tokens), lasts)
		adds += float64(len(b.batch.Tokens))*b.cost.multiplyAdds + float64(len(b.batch.Rows))*b.cost.head
	}
	slices.Sort(times)
	s.Steps, s.Tokens = len(times), tokens
	s.StepMilliseconds = float64(times[len(times)/2]) / 1e6
	s.TokensPerSecond = float64(tokens*len(times)) / total.Seconds()
	share := func(done, limit float64) *float64 {
		if limit <= 0 {
			return nil
		}
		v := done / total.Seconds() / limit
		return &v
	}
	s.BandwidthShare, s.ArithmeticShare = share(reads, b.limits.BytesPerSecond), share(adds, b.limits.MultiplyAddsPerSecond)
	if !self {
		v := 1 - float64(waits)/float64(total)
		s.HostShare = &v
	}
	switch per := total / time.Duration(len(times)*tokens); {
	case tokens == 1:
		b.perStep = per
	case b.perToken == 0 || per < b.perToken:
		b.perToken = per
	}
	return s, nil
}

// prefill measures the first n tokens of one sequence, in one step.
func (b *bencher) prefill(n int, slot time.Duration) (Speed, error) {
	return b.repeat(slot, func(step int) {
		b.begin(n)
		b.span(0, 0, n, 0, func(i int) int32 { return b.word(i + step) })
	}, n)
}

// decode measures n sequences of which each gets a token in a step, which is the next one's.
func (b *bencher) decode(n int, slot time.Duration) (Speed, error) {
	const per = (decodeContext + decodeSpan) / speedBlock
	b.begin(decodeContext)
	b.span(0, 0, decodeContext, 0, b.word)
	if err := b.d.Run(&b.batch, &b.result); err != nil {
		return Speed{}, err
	}
	next := make([]int32, n)
	for i := range next {
		next[i] = b.word(i)
	}
	contexts, counted := 0, 0
	s, err := b.repeat(slot, func(step int) {
		if step > 0 {
			copy(next, b.result.Tokens)
			contexts += decodeContext + step%decodeSpan
			counted++
		}
		b.begin(decodeContext + decodeSpan)
		for i := range n {
			b.span(i, decodeContext+step%decodeSpan, 1, i*per, func(int) int32 { return next[i] })
			if step > 0 || i == 0 {
				continue
			}
			for k := range decodeContext / speedBlock { // all begin alike, in blocks of their own
				b.batch.Copies = append(b.batch.Copies, gpu.Copy{From: int32(k), To: int32(i*per + k)})
			}
		}
	}, n)
	s.Sequences, s.Context = n, contexts/max(1, counted)
	return s, err
}
