package batch

import (
	"cmp"
	"math"
	"slices"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

// sampling is what the sequences of one request make of their Params, computed once: the part of
// their rows that never changes, and what goes into the batch's pools.
type sampling struct {
	params *lifecycle.Params
	uses   int // sequences

	row        gpu.Row
	penalised  bool
	ends       []int32 // ids that end a sequence, sorted
	bias       []gpu.Bias
	biasNoEnds []gpu.Bias // bias, and every end banned: while MinTokens is not reached
	mask       []uint32

	// Where the plan's batch already holds bias, biasNoEnds and mask; −1 where it does not yet.
	plan                                  uint64
	biasFirst, biasNoEndsFirst, maskFirst int32
}

// useSampling returns the sampling of p for one more sequence.
func (s *Scheduler) useSampling(p *lifecycle.Params) *sampling {
	g := s.samplings[p]
	if g == nil {
		g = newSampling(p, &s.c)
		s.samplings[p] = g
	}
	g.uses++
	return g
}

func (s *Scheduler) dropSampling(g *sampling) {
	if g.uses--; g.uses == 0 {
		delete(s.samplings, g.params)
	}
}

func newSampling(p *lifecycle.Params, c *Config) *sampling {
	g := &sampling{params: p, penalised: p.Penalised()}
	g.row = gpu.Row{
		Kind: gpu.Sample, Top: int32(max(p.Logprobs, -1)), Target: -1, Mask: -1,
		Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: int32(p.TopK),
		RepetitionPenalty: p.RepetitionPenalty, PresencePenalty: p.PresencePenalty,
		FrequencyPenalty: p.FrequencyPenalty, Seed: p.Seed,
	}
	if g.row.RepetitionPenalty == 0 {
		g.row.RepetitionPenalty = 1 // Params lets 0 mean off too
	}
	if !p.IgnoreEOS {
		g.ends = append(g.ends, c.EOS...)
	}
	g.ends = append(g.ends, p.StopTokenIDs...)
	slices.Sort(g.ends)
	g.ends = slices.Compact(g.ends)

	for _, b := range p.LogitBias {
		g.bias = append(g.bias, gpu.Bias(b))
	}
	byID := func(a, b gpu.Bias) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortStableFunc(g.bias, byID)
	if p.MinTokens > 0 {
		g.biasNoEnds = banEnds(g.bias, p, c)
		slices.SortStableFunc(g.biasNoEnds, byID)
	}
	if p.Allowed != nil && c.Vocab > 0 {
		g.mask = make([]uint32, (c.Vocab+31)/32)
		for _, id := range p.Allowed {
			if id >= 0 && int(id) < c.Vocab {
				g.mask[id/32] |= 1 << (id % 32)
			}
		}
	}
	return g
}

// banEnds returns bias with −Inf for each of the model's end tokens and p's stop tokens. Where p
// allows nothing but those, banning them would leave nothing to sample, and bias stays as it is.
func banEnds(bias []gpu.Bias, p *lifecycle.Params, c *Config) []gpu.Bias {
	ids := slices.Concat(c.EOS, p.StopTokenIDs)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	banned := func(id int32) bool { _, found := slices.BinarySearch(ids, id); return found }
	if p.Allowed != nil && !slices.ContainsFunc(p.Allowed, func(id int32) bool { return !banned(id) }) {
		return bias
	}
	var out []gpu.Bias
	for _, b := range bias {
		if !banned(b.ID) {
			out = append(out, b)
		}
	}
	for _, id := range ids {
		if id >= 0 && (c.Vocab == 0 || int(id) < c.Vocab) {
			out = append(out, gpu.Bias{ID: id, Value: float32(math.Inf(-1))})
		}
	}
	return out
}

// ends says whether id ends a sequence.
func (g *sampling) isEnd(id int32) bool {
	_, found := slices.BinarySearch(g.ends, id)
	return found
}

// addSample appends the row that samples q's next token from the output of the batch's newest
// token.
func (s *Scheduler) addSample(b *gpu.Batch, q *sequence) int32 {
	g := q.sampling
	if g.plan != s.plan.num {
		g.plan = s.plan.num
		g.biasFirst, g.biasNoEndsFirst, g.maskFirst = -1, -1, -1
	}
	b.Rows = append(b.Rows, g.row)
	r := &b.Rows[len(b.Rows)-1]
	r.Token = int32(len(b.Tokens) - 1)
	r.Span = int32(len(b.Spans) - 1)
	r.Choice = q.sub.ID.Index
	r.Draw = int32(len(q.output))
	if g.penalised {
		r.HistoryFirst = int32(len(b.History))
		r.HistoryLen = int32(q.known())
		r.HistoryPrompt = int32(len(q.sub.Prompt))
		b.History = q.appendTokens(b.History, 0, q.known())
	}
	if len(q.output) < g.params.MinTokens {
		r.BiasFirst, r.BiasLen = pooled(&b.Bias, g.biasNoEnds, &g.biasNoEndsFirst), int32(len(g.biasNoEnds))
	} else {
		r.BiasFirst, r.BiasLen = pooled(&b.Bias, g.bias, &g.biasFirst), int32(len(g.bias))
	}
	if g.mask != nil {
		r.Mask = pooled(&b.Masks, g.mask, &g.maskFirst) / int32(b.MaskWords)
	}
	if g.row.Top >= 0 {
		s.plan.logprobs++
		s.plan.tops += int(g.row.Top)
	}
	s.plan.samples++
	return int32(len(b.Rows) - 1)
}

// pooled returns where in the pool the values lie, appending them when first is still −1.
func pooled[T any](pool *[]T, values []T, first *int32) int32 {
	if len(values) == 0 {
		return 0
	}
	if *first < 0 {
		*first = int32(len(*pool))
		*pool = append(*pool, values...)
	}
	return *first
}

// addScores appends the rows that score the prompt tokens that follow positions from … to−1, as
// far as they are wanted and not delivered yet. It returns the first row and how many there are.
func (s *Scheduler) addScores(b *gpu.Batch, q *sequence, span gpu.Span) (first, n int32) {
	first = int32(len(b.Rows))
	top := q.sub.Params.PromptLogprobs
	if top < 0 {
		return first, 0
	}
	for i := range span.Len {
		target := int(span.Start+i) + 1
		if target < q.scored || target >= len(q.sub.Prompt) {
			continue
		}
		b.Rows = append(b.Rows, gpu.Row{
			Kind: gpu.Score, Token: span.First + i, Span: int32(len(b.Spans) - 1),
			Top: int32(top), Target: q.sub.Prompt[target], Mask: -1,
		})
		n++
	}
	s.plan.scores += int(n)
	s.plan.scoreTops += int(n) * top
	return first, n
}
