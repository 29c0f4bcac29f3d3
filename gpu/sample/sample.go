// Package sample turns a row of logits into a token, its log probability and its likeliest
// alternatives. It is the host device's sampler, and what other devices' samplers are tested
// against.
//
// For a row of kind gpu.Sample the steps are those of vLLM, in its order:
//
//  1. Log probabilities and ranks are of the logits as the model gave them.
//  2. The row's mask bans the tokens outside it, and biases are added, of which −Inf bans.
//  3. Penalties. Repetition, for tokens of prompt or output: a positive logit is divided by it, any
//     other multiplied. Then the frequency penalty × the token's count in the output, and the
//     presence penalty once if it is there, are subtracted.
//  4. With a temperature below 1e-5, the highest logit wins, the lowest id among equals. Else
//     logits are divided by the temperature, and from there on are weights eˣ.
//  5. MinP drops tokens that weigh less than MinP × the heaviest.
//  6. TopK keeps the k heaviest, the lowest ids among equals.
//  7. TopP keeps the fewest tokens, heaviest first and lowest ids first among equals, that weigh
//     TopP of what is left by then, but at least one.
//  8. The draw: to each logit left is added its own Gumbel noise, and the highest sum wins, which
//     is a draw from the distribution (Gumbel, 1954). The noise depends on the row's Seed, Choice
//     and Draw and on the token's id, and on nothing else (see noise), so that the same row of the
//     same request draws the same token in any batch, at any place in it, at any time.
//
// When mask and biases together ban every token, the biases' bans are lifted; when a mask itself has
// no token, the mask is too: there is always a token, since one row must not fail a whole step. (A
// request can bring this about: it allows the end token only, and a minimum length bans it.)
//
// Logits that are not finite are an error.
package sample

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/troupe-llm/troupe/gpu"
)

// Greedy is the temperature below which the highest logit wins, as in vLLM.
const Greedy = 1e-5

// Sampler is the working memory for rows of one vocabulary. It is for one goroutine at a time;
// what it returns for a row depends on the row alone.
type Sampler struct {
	vocab  int
	logits []float32 // after mask, biases and penalties
	counts []uint32  // per token: occurrences in the output ×2, +1 if it is in prompt or output

	// The candidates that filters leave, by rising id. No more than vocab.
	ids     []int32
	keys    []uint32  // order of the logits, see orderKey
	weights []float64 // for TopP
	sums    [1 << radixBits]float64
	top     []scored
}

type scored struct {
	id    int32
	logit float32
}

// New makes a Sampler for rows of vocab logits.
func New(vocab int) *Sampler {
	return &Sampler{
		vocab: vocab, logits: make([]float32, vocab), counts: make([]uint32, vocab),
		ids: make([]int32, vocab), keys: make([]uint32, vocab), weights: make([]float64, vocab),
	}
}

// Check says what is wrong with row i of b for a vocabulary of vocab tokens: ids and pool indices
// out of range, numbers that make no sense. Row relies on it.
func Check(b *gpu.Batch, i, vocab int) error {
	r := &b.Rows[i]
	within := func(first, n int32, pool int) bool {
		return first >= 0 && n >= 0 && int64(first)+int64(n) <= int64(pool)
	}
	bad := func(v, least, most float32) bool { return !(v >= least && v <= most) } // true for NaN
	switch {
	case r.Kind == gpu.Pool:
		return nil
	case r.Kind > gpu.Pool:
		return fmt.Errorf("kind %d is unknown", r.Kind)
	case r.Top < -1 || int(r.Top) > vocab:
		return fmt.Errorf("%d alternatives are wanted of a vocabulary of %d", r.Top, vocab)
	case r.Kind == gpu.Score && r.Top < 0:
		return fmt.Errorf("a score without log probability")
	case r.Kind == gpu.Score && uint32(r.Target) >= uint32(vocab):
		return fmt.Errorf("target %d is outside the vocabulary of %d", r.Target, vocab)
	case r.Kind == gpu.Score:
		return nil
	case bad(r.Temperature, 0, math.MaxFloat32) || bad(r.TopP, 0, 1) || bad(r.MinP, 0, 1) || r.TopK < 0:
		return fmt.Errorf("temperature %v, top_p %v, min_p %v, top_k %d", r.Temperature, r.TopP, r.MinP, r.TopK)
	case bad(r.RepetitionPenalty, 0, math.MaxFloat32) || bad(r.PresencePenalty, -math.MaxFloat32, math.MaxFloat32) ||
		bad(r.FrequencyPenalty, -math.MaxFloat32, math.MaxFloat32):
		return fmt.Errorf("penalties %v (repetition), %v (presence), %v (frequency)", r.RepetitionPenalty, r.PresencePenalty, r.FrequencyPenalty)
	case !within(r.HistoryFirst, r.HistoryLen, len(b.History)) || r.HistoryPrompt < 0 || r.HistoryPrompt > r.HistoryLen:
		return fmt.Errorf("history %d + %d, prompt %d, of %d tokens", r.HistoryFirst, r.HistoryLen, r.HistoryPrompt, len(b.History))
	case !within(r.BiasFirst, r.BiasLen, len(b.Bias)):
		return fmt.Errorf("biases %d + %d of %d", r.BiasFirst, r.BiasLen, len(b.Bias))
	}
	for _, t := range b.History[r.HistoryFirst : r.HistoryFirst+r.HistoryLen] {
		if uint32(t) >= uint32(vocab) {
			return fmt.Errorf("token %d in its history is outside the vocabulary of %d", t, vocab)
		}
	}
	for _, v := range b.Bias[r.BiasFirst : r.BiasFirst+r.BiasLen] {
		if uint32(v.ID) >= uint32(vocab) || !(v.Value <= math.MaxFloat32) {
			return fmt.Errorf("bias %v of token %d, in a vocabulary of %d", v.Value, v.ID, vocab)
		}
	}
	if r.Mask != -1 && (r.Mask < 0 || b.MaskWords < (vocab+31)/32 || (int64(r.Mask)+1)*int64(b.MaskWords) > int64(len(b.Masks))) {
		return fmt.Errorf("mask %d of %d words, in %d", r.Mask, b.MaskWords, len(b.Masks))
	}
	return nil
}

// Row answers row i of b, a Sample or Score row that passed Check, from its position's logits, and
// writes to r what the row asks for. Logits are only read. r must have been Reset for b.
func (s *Sampler) Row(b *gpu.Batch, i int, logits []float32, r *gpu.Result) error {
	row := &b.Rows[i]
	logits = logits[:s.vocab]
	best, top := int32(0), logits[0]
	for id, v := range logits {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return fmt.Errorf("the logit of token %d is %v: the model's weights or the computation are broken", id, v)
		}
		if v > top {
			best, top = int32(id), v
		}
	}
	token := row.Target
	if row.Kind == gpu.Sample {
		token = s.sample(b, row, logits, best)
	}
	r.Tokens[i] = token
	if row.Top < 0 {
		return nil
	}
	norm := logSumExp(logits, float64(top))
	r.Logprobs[i] = float32(float64(logits[token]) - norm)
	rank, of := int32(1), logits[token]
	for _, v := range logits {
		if v > of {
			rank++
		}
	}
	r.Ranks[i] = rank
	if row.Top > 0 {
		first := r.TopFirst[i]
		for j, t := range s.likeliest(logits, int(row.Top)) {
			r.TopIDs[int(first)+j] = t.id
			r.TopLogprobs[int(first)+j] = float32(float64(t.logit) - norm)
		}
	}
	return nil
}

// logSumExp is log Σ eˣ, summed in rising order in float64. top is the highest logit.
func logSumExp(logits []float32, top float64) float64 {
	sum := 0.0
	for _, v := range logits {
		sum += exp(float64(v) - top)
	}
	return top + math.Log(sum)
}

// likeliest gives the k highest logits, highest first, lowest ids first among equals. The slice is
// the Sampler's.
func (s *Sampler) likeliest(logits []float32, k int) []scored {
	s.ids, s.keys = s.ids[:0], s.keys[:0]
	for id, v := range logits {
		s.ids = append(s.ids, int32(id))
		s.keys = append(s.keys, orderKey(v))
	}
	s.keep(float64(k), false)
	s.top = s.top[:0]
	for _, id := range s.ids {
		s.top = append(s.top, scored{id, logits[id]})
	}
	slices.SortFunc(s.top, func(a, b scored) int {
		if a.logit != b.logit {
			return cmp.Compare(b.logit, a.logit)
		}
		return cmp.Compare(a.id, b.id)
	})
	return s.top
}

// sample chooses a token; best is the first of the highest logits.
func (s *Sampler) sample(b *gpu.Batch, row *gpu.Row, logits []float32, best int32) int32 {
	if s.process(b, row, logits) {
		logits, best = s.logits, 0
		for id, v := range logits {
			if v > logits[best] {
				best = int32(id)
			}
		}
	}
	if row.Temperature < Greedy {
		return best
	}
	d := drawer{best: -1, seed: row.Seed, choice: uint32(row.Choice), draw: uint32(row.Draw), top: float64(logits[best]), inverse: 1 / float64(row.Temperature)}
	topK := row.TopK > 0 && int(row.TopK) < s.vocab
	if !topK && row.TopP >= 1 && row.MinP <= 0 {
		for id, v := range logits {
			d.try(int32(id), v)
		}
		return d.best
	}
	s.ids, s.keys = s.ids[:0], s.keys[:0]
	least := math.Inf(-1)
	if row.MinP > 0 {
		least = math.Log(float64(row.MinP))
	}
	for id, v := range logits {
		if x := d.scaled(v); x >= least && v >= -math.MaxFloat32 {
			s.ids = append(s.ids, int32(id))
			s.keys = append(s.keys, orderKey(v))
		}
	}
	if topK {
		s.keep(float64(row.TopK), false)
	}
	if row.TopP < 1 {
		s.weights = s.weights[:len(s.ids)]
		sum := 0.0
		for i, id := range s.ids {
			s.weights[i] = exp(d.scaled(logits[id]))
			sum += s.weights[i]
		}
		s.keep(sum*float64(row.TopP), true)
	}
	for _, id := range s.ids {
		d.try(id, logits[id])
	}
	return d.best
}

// process applies mask, biases and penalties, if there are any, to a copy in s.logits, which keeps at
// least one token that isn't banned.
func (s *Sampler) process(b *gpu.Batch, row *gpu.Row, logits []float32) bool {
	repetition := row.RepetitionPenalty
	if repetition == 0 {
		repetition = 1
	}
	penalised := row.HistoryLen > 0 && (repetition != 1 || row.PresencePenalty != 0 || row.FrequencyPenalty != 0)
	if row.Mask < 0 && row.BiasLen == 0 && !penalised {
		return false
	}
	banned := float32(math.Inf(-1))
	l := s.logits
	copy(l, logits)
	if row.Mask >= 0 {
		mask := b.Masks[int(row.Mask)*b.MaskWords:][:b.MaskWords]
		some := false
		for id := range l {
			if mask[id/32]>>(id%32)&1 == 0 {
				l[id] = banned
			} else {
				some = true
			}
		}
		if !some {
			copy(l, logits)
		}
	}
	if biases := b.Bias[row.BiasFirst : row.BiasFirst+row.BiasLen]; len(biases) > 0 {
		for _, v := range biases {
			l[v.ID] = clamp(l[v.ID] + v.Value)
		}
		if !slices.ContainsFunc(l, func(v float32) bool { return v != banned }) {
			s.liftBans(b, row, logits, biases)
		}
	}
	if penalised {
		history := b.History[row.HistoryFirst : row.HistoryFirst+row.HistoryLen]
		for i, t := range history {
			s.counts[t] |= 1
			if i >= int(row.HistoryPrompt) {
				s.counts[t] += 2
			}
		}
		for _, t := range history {
			c := s.counts[t]
			s.counts[t] = 0
			if c == 0 {
				continue // done before
			}
			if l[t] > 0 {
				l[t] /= repetition
			} else {
				l[t] *= repetition
			}
			if c >>= 1; c > 0 {
				l[t] -= float32(row.FrequencyPenalty * float32(c))
				l[t] -= row.PresencePenalty
			}
			l[t] = clamp(l[t])
		}
	}
	return true
}

// liftBans undoes the bans of biases where they and the mask together leave nothing.
func (s *Sampler) liftBans(b *gpu.Batch, row *gpu.Row, logits []float32, biases []gpu.Bias) {
	for _, v := range biases {
		if math.IsInf(float64(v.Value), -1) && (row.Mask < 0 || b.Masks[int(row.Mask)*b.MaskWords+int(v.ID)/32]>>(v.ID%32)&1 != 0) {
			s.logits[v.ID] = logits[v.ID]
		}
	}
	if row.Mask >= 0 && !slices.ContainsFunc(s.logits, func(v float32) bool { return v >= -math.MaxFloat32 }) {
		// The mask has no token, and the biases ban all.
		copy(s.logits, logits)
	}
}

// clamp keeps sums and products of large numbers finite; −Inf is a ban and stays.
func clamp(v float32) float32 {
	if v > math.MaxFloat32 {
		return math.MaxFloat32
	}
	if v != v { // 0 × a banned token's −∞
		return float32(math.Inf(-1))
	}
	return v
}
