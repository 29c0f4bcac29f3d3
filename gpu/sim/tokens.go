package sim

import (
	"fmt"
	"math"
	"slices"

	"github.com/troupe-llm/troupe/gpu"
)

// distribution is the pretended distribution of the next token. After token t at position p it is
// Zipf's: the token of rank r (from 1) has probability 1/(r·H), where H makes the sum over the
// vocabulary 1. Which token has which rank is a permutation keyed by t and p: the tokens to draw
// from have the first ranks, in an order of step×i modulo their number from some first one; the
// others follow in the order of their ids.
type distribution struct {
	order []int32  // all ids: those to draw from, then the others
	index []int32  // where in order an id is
	draws int      // so many ids of order may be drawn
	steps []stride // some that are coprime to draws
	logH  float64
	eos   []int32
	after func(seed uint64, choice int32) int
	logN  float64 // ln draws
}

// stride is a step from one rank to the next, and its inverse modulo draws.
type stride struct{ step, inverse int }

func newDistribution(o *Options) (distribution, error) {
	d := distribution{
		order: make([]int32, 0, o.Vocab), index: make([]int32, o.Vocab), eos: o.EOS, after: o.EOSAfter,
	}
	for i := range d.index {
		d.index[i] = -1
	}
	add := func(id int32) {
		d.index[id] = int32(len(d.order))
		d.order = append(d.order, id)
	}
	for _, id := range slices.Concat(o.Tokens, o.EOS) {
		if id < 0 || int(id) >= o.Vocab {
			return d, fmt.Errorf("sim: token id %d is not in the vocabulary of %d", id, o.Vocab)
		}
	}
	if len(o.Tokens) > 0 {
		for _, id := range o.Tokens {
			if d.index[id] < 0 && !slices.Contains(o.EOS, id) {
				add(id)
			}
		}
	} else {
		for id := range int32(o.Vocab) {
			if !slices.Contains(o.EOS, id) {
				add(id)
			}
		}
	}
	if len(d.order) == 0 {
		return d, fmt.Errorf("sim: no token to draw: all %d are end tokens", o.Vocab)
	}
	d.draws = len(d.order)
	d.logN = math.Log(float64(d.draws))
	for i := uint64(0); len(d.steps) < 64; i++ {
		if step := 1 + int(mix(i)%uint64(d.draws)); gcd(step, d.draws) == 1 {
			d.steps = append(d.steps, stride{step, inverse(step, d.draws)})
		}
	}
	for id := range int32(o.Vocab) {
		if d.index[id] < 0 {
			add(id)
		}
	}
	h := 0.0
	for r := o.Vocab; r >= 1; r-- {
		h += 1 / float64(r)
	}
	d.logH = math.Log(h)
	return d, nil
}

// ranking is the distribution after one token: rank i (from 0) below draws is
// order[(first + step×i) mod draws].
type ranking struct {
	d     *distribution
	first int
	stride
}

// ranking returns the ranking that is keyed by a token and its position.
func (d *distribution) ranking(token, position int32) ranking {
	h := mix(uint64(uint32(token))<<32 | uint64(uint32(position)))
	return ranking{d: d, first: int(h >> 32 * uint64(d.draws) >> 32), stride: d.steps[h%uint64(len(d.steps))]}
}

// at returns the id of rank i, from 0.
func (r *ranking) at(i int) int32 {
	if i < r.d.draws {
		return r.d.order[(r.first+r.step*i)%r.d.draws]
	}
	return r.d.order[i]
}

// rank returns the rank of an id, from 0.
func (r *ranking) rank(id int32) int {
	n := r.d.draws
	i := int(r.d.index[id])
	if i >= n {
		return i
	}
	return (i - r.first + n) % n * r.inverse % n
}

// logprob returns the log probability of rank i, from 0.
func (d *distribution) logprob(i int) float32 {
	return float32(-d.logH - math.Log(float64(i+1)))
}

// row fills in result row i.
func (s *Sim) row(b *gpu.Batch, r *gpu.Result, i int) error {
	row := &b.Rows[i]
	if int(row.Top) > len(s.dist.index) {
		return fmt.Errorf("sim: row %d wants %d alternatives of a vocabulary of %d", i, row.Top, len(s.dist.index))
	}
	if row.Kind == gpu.Pool {
		return fmt.Errorf("sim: row %d asks for a pooled vector, which the simulated device does not have", i)
	}
	rank := s.dist.ranking(b.Tokens[row.Token], b.Positions[row.Token])
	id := row.Target
	if row.Kind == gpu.Sample {
		id = rank.sample(b, row)
	} else if id < 0 || int(id) >= len(s.dist.index) {
		return fmt.Errorf("sim: row %d scores token %d, which is not in the vocabulary of %d", i, id, len(s.dist.index))
	}
	r.Tokens[i] = id
	if row.Top < 0 {
		return nil
	}
	k := rank.rank(id)
	r.Ranks[i] = int32(k + 1)
	r.Logprobs[i] = s.dist.logprob(k)
	for j := r.TopFirst[i]; j < r.TopFirst[i+1]; j++ {
		k := int(j - r.TopFirst[i])
		r.TopIDs[j] = rank.at(k)
		r.TopLogprobs[j] = s.dist.logprob(k)
	}
	return nil
}

// constraints are what a row lets be sampled.
type constraints struct {
	bias []gpu.Bias
	mask []uint32
}

func (c *constraints) masked(id int32) bool { return c.mask != nil && c.mask[id/32]>>(id%32)&1 == 0 }

// banned says whether a bias rules id out: −100 is OpenAI's ban.
func (c *constraints) banned(id int32) bool {
	i, found := slices.BinarySearchFunc(c.bias, id, func(b gpu.Bias, id int32) int { return int(b.ID) - int(id) })
	return found && c.bias[i].Value <= -100
}

// forced returns the token whose bias is the highest of those that leave no choice: OpenAI's 100.
func (c *constraints) forced() (id int32, ok bool) {
	best := float32(0)
	for _, b := range c.bias {
		if b.Value >= 100 && b.Value > best && !c.masked(b.ID) {
			id, best, ok = b.ID, b.Value, true
		}
	}
	return id, ok
}

// sample chooses a token. Like gpu/sample, where mask and biases leave none it lifts the biases'
// bans, then the mask.
func (r *ranking) sample(b *gpu.Batch, row *gpu.Row) int32 {
	d := r.d
	first := 0
	if row.Temperature > 0 {
		// A logarithm-uniform rank has (about) Zipf's distribution.
		u := float64(mix(mix(row.Seed^uint64(uint32(row.Choice))<<32)+uint64(uint32(row.Draw)))>>11) / (1 << 53)
		n, logN := d.draws, d.logN
		if k := int(row.TopK); k > 0 && k < n {
			n, logN = k, math.Log(float64(k))
		}
		first = min(int(math.Exp(u*logN)), n) - 1
	}
	c := constraints{bias: b.Bias[row.BiasFirst : row.BiasFirst+row.BiasLen]}
	if row.Mask >= 0 {
		c.mask = b.Masks[int(row.Mask)*b.MaskWords : (int(row.Mask)+1)*b.MaskWords]
	}
	if id, ok := c.forced(); ok {
		return id
	}
	if d.after != nil {
		n := d.after(row.Seed, row.Choice)
		if end := d.eos[0]; n >= 0 && int(row.Draw) >= n && !c.masked(end) && !c.banned(end) {
			return end
		}
	}
	if len(c.bias) == 0 && c.mask == nil {
		return r.at(first)
	}
	for _, allowed := range []func(int32) bool{
		func(id int32) bool { return !c.masked(id) && !c.banned(id) },
		func(id int32) bool { return !c.masked(id) },
	} {
		for i := range d.draws {
			if id := r.at((first + i) % d.draws); allowed(id) {
				return id
			}
		}
		for _, id := range d.order[d.draws:] {
			if allowed(id) {
				return id
			}
		}
	}
	return r.at(first)
}

// mix is the finaliser of splitmix64 (Steele, Lea and Flood 2014), after adding its increment.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// inverse returns the inverse of a modulo n, to which it is coprime.
func inverse(a, n int) int {
	x, y, r, m := 1, 0, a, n
	for m != 0 {
		q := r / m
		r, m = m, r-q*m
		x, y = y, x-q*y
	}
	return (x%n + n) % n
}
