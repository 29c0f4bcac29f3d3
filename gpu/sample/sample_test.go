package sample

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/gpu"
)

// neutral is a Sample row that changes nothing.
func neutral() gpu.Row {
	return gpu.Row{Kind: gpu.Sample, Temperature: 1, TopP: 1, RepetitionPenalty: 1, Mask: -1}
}

// one runs a single row.
func one(t interface{ Fatal(...any) }, s *Sampler, b *gpu.Batch, row gpu.Row, logits []float32) *gpu.Result {
	b.Rows = []gpu.Row{row}
	if err := Check(b, 0, len(logits)); err != nil {
		t.Fatal(err)
	}
	var r gpu.Result
	r.Reset(b)
	if err := s.Row(b, 0, logits, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// reference is the package's comment, written out: slowly, with a full sort, in float64 after the
// penalties. It returns the probability of each token, and how near the TopP and MinP filters came
// to deciding otherwise.
func reference(b *gpu.Batch, row *gpu.Row, logits []float32) (p []float64, margin float64) {
	n := len(logits)
	l := slices.Clone(logits)
	inf := float32(math.Inf(1))
	allowed := func(id int) bool {
		return row.Mask < 0 || b.Masks[int(row.Mask)*b.MaskWords+id/32]>>(id%32)&1 == 1
	}
	some := false
	for id := range l {
		some = some || allowed(id)
	}
	for id := range l {
		if some && !allowed(id) {
			l[id] = -inf
		}
	}
	before := slices.Clone(l)
	biases := b.Bias[row.BiasFirst : row.BiasFirst+row.BiasLen]
	for _, v := range biases {
		l[v.ID] += v.Value
	}
	if slices.Max(l) == -inf {
		for _, v := range biases {
			if v.Value == -inf {
				l[v.ID] = before[v.ID]
			}
		}
	}
	history := b.History[row.HistoryFirst : row.HistoryFirst+row.HistoryLen]
	for id := range l {
		in, out := 0, 0
		for i, h := range history {
			if h == int32(id) && i < int(row.HistoryPrompt) {
				in++
			} else if h == int32(id) {
				out++
			}
		}
		if in+out > 0 && row.RepetitionPenalty != 0 {
			if l[id] > 0 {
				l[id] /= row.RepetitionPenalty
			} else {
				l[id] *= row.RepetitionPenalty
			}
		}
		if out > 0 {
			l[id] -= float32(row.FrequencyPenalty * float32(out))
			l[id] -= row.PresencePenalty
		}
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if l[a] != l[b] {
			return cmp.Compare(l[b], l[a])
		}
		return cmp.Compare(a, b)
	})
	p = make([]float64, n)
	margin = 1
	if row.Temperature < Greedy {
		p[order[0]] = 1
		return p, margin
	}
	weight := func(id int) float64 {
		return math.Exp((float64(l[id]) - float64(l[order[0]])) / float64(row.Temperature))
	}
	kept := slices.DeleteFunc(slices.Clone(order), func(id int) bool {
		if row.MinP > 0 {
			margin = min(margin, math.Abs(weight(id)-float64(row.MinP)))
		}
		return l[id] == -inf || weight(id) < float64(row.MinP) && weight(id) < 1
	})
	if row.TopK > 0 && int(row.TopK) < len(kept) {
		kept = kept[:row.TopK]
	}
	sum := 0.0
	for _, id := range kept {
		sum += weight(id)
	}
	if row.TopP < 1 {
		had := 0.0
		for i, id := range kept {
			had += weight(id)
			margin = min(margin, math.Abs(had/sum-float64(row.TopP)))
			if had >= sum*float64(row.TopP) {
				kept = kept[:i+1]
				break
			}
		}
		sum = had
	}
	for _, id := range kept {
		p[id] = weight(id) / sum
	}
	return p, margin
}

// randomRow draws a vocabulary's logits and a row with any mix of parameters.
func randomRow(t *rapid.T) (*gpu.Batch, gpu.Row, []float32) {
	n := rapid.SampledFrom([]int{1, 2, 5, 40, 300}).Draw(t, "vocab")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "logits"), 0))
	spread := rapid.SampledFrom([]float64{0.1, 1, 5, 30}).Draw(t, "spread")
	ties := rapid.Bool().Draw(t, "ties")
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * spread)
		if ties {
			logits[i] = float32(math.Round(float64(logits[i])))
		}
	}
	id := func() int32 { return int32(rng.IntN(n)) }
	b := &gpu.Batch{MaskWords: (n + 31) / 32}
	row := neutral()
	row.Temperature = rapid.SampledFrom([]float32{0, 1e-6, 2e-5, 0.1, 0.7, 1, 1.5, 100}).Draw(t, "temperature")
	row.TopP = rapid.SampledFrom([]float32{0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1}).Draw(t, "top_p")
	row.MinP = rapid.SampledFrom([]float32{0, 0, 1e-4, 0.05, 0.5, 1}).Draw(t, "min_p")
	row.TopK = rapid.SampledFrom([]int32{0, 0, 1, 2, 7, 50, 1000}).Draw(t, "top_k")
	row.Seed = rapid.Uint64().Draw(t, "seed")
	row.Choice = rapid.Int32Range(0, 3).Draw(t, "choice")
	row.Draw = rapid.Int32Range(0, 1000).Draw(t, "draw")
	row.Top = rapid.Int32Range(-1, int32(min(n, 20))).Draw(t, "top")
	row.RepetitionPenalty = rapid.SampledFrom([]float32{0, 1, 1, 1.3, 0.7}).Draw(t, "repetition")
	row.PresencePenalty = rapid.SampledFrom([]float32{0, 0, 0.5, -2}).Draw(t, "presence")
	row.FrequencyPenalty = rapid.SampledFrom([]float32{0, 0, 0.25, -0.1}).Draw(t, "frequency")
	b.History = append(b.History, 0, 0)
	row.HistoryFirst = 2
	row.HistoryLen = rapid.Int32Range(0, 30).Draw(t, "history")
	row.HistoryPrompt = rapid.Int32Range(0, row.HistoryLen).Draw(t, "prompt")
	for range row.HistoryLen {
		b.History = append(b.History, id())
	}
	b.Bias = append(b.Bias, gpu.Bias{ID: 0, Value: 99})
	row.BiasFirst = 1
	seen := map[int32]bool{}
	for range rapid.SampledFrom([]int{0, 0, 1, 4, 2 * n}).Draw(t, "biases") {
		v := gpu.Bias{ID: id(), Value: rapid.SampledFrom([]float32{1, -1, 5, float32(math.Inf(-1))}).Draw(t, "bias")}
		if !seen[v.ID] {
			seen[v.ID] = true
			b.Bias = append(b.Bias, v)
		}
	}
	slices.SortFunc(b.Bias[1:], func(x, y gpu.Bias) int { return cmp.Compare(x.ID, y.ID) })
	row.BiasLen = int32(len(b.Bias) - 1)
	if density := rapid.SampledFrom([]float64{-1, -1, 0, 0.05, 0.5}).Draw(t, "mask"); density >= 0 {
		b.Masks = make([]uint32, 2*b.MaskWords)
		row.Mask = 1
		for i := range n {
			if rng.Float64() < density {
				b.Masks[b.MaskWords+i/32] |= 1 << (i % 32)
			}
		}
	}
	return b, row, logits
}

func TestATokenIsTheReferenceDistributionsUnderItsNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, row, logits := randomRow(t)
		before := slices.Clone(logits)
		s := New(len(logits))
		r := one(t, s, b, row, logits)
		if !slices.Equal(before, logits) {
			t.Fatal("the logits were changed")
		}
		p, margin := reference(b, &row, logits)
		if margin < 1e-9 {
			t.Skip("a filter's edge, where rounding decides")
		}
		best, highest := -1, math.Inf(-1)
		for id, q := range p {
			if q == 0 {
				continue
			}
			even, odd := philox(row.Seed, uint32(id/2), uint32(row.Draw), uint32(row.Choice), 0)
			if sum := math.Log(q) + noise([]uint64{even, odd}[id%2]); row.Temperature < Greedy || sum > highest {
				best, highest = id, sum
			}
		}
		// Underflow: a weight of 0 is a token that is never drawn.
		if got := r.Tokens[0]; int(got) != best {
			t.Fatalf("token %d (probability %v), wanted %d (%v)", got, p[got], best, p[best])
		}
		// The same sampler, after other rows.
		other := neutral()
		other.TopP, other.TopK = 0.5, 3
		one(t, s, &gpu.Batch{}, other, logits)
		if again := one(t, s, b, row, logits); again.Tokens[0] != r.Tokens[0] {
			t.Fatalf("token %d, and the second time %d", r.Tokens[0], again.Tokens[0])
		}
	})
}

func TestLogProbabilitiesRanksAndAlternativesAreOfTheRawLogits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, row, logits := randomRow(t)
		if rapid.Bool().Draw(t, "score") {
			row = gpu.Row{Kind: gpu.Score, Target: int32(rapid.IntRange(0, len(logits)-1).Draw(t, "target")), Top: max(row.Top, 0), Mask: -1}
		}
		r := one(t, New(len(logits)), b, row, logits)
		token := r.Tokens[0]
		if row.Kind == gpu.Score && token != row.Target {
			t.Fatalf("token %d, target %d", token, row.Target)
		}
		if row.Top < 0 {
			if r.Logprobs[0] != 0 || r.Ranks[0] != 0 {
				t.Fatalf("log probability %v, rank %d", r.Logprobs[0], r.Ranks[0])
			}
			return
		}
		sum, rank := 0.0, int32(1)
		order := make([]int32, len(logits))
		for i, v := range logits {
			sum += math.Exp(float64(v))
			order[i] = int32(i)
			if v > logits[token] {
				rank++
			}
		}
		logprob := func(id int32) float64 { return float64(logits[id]) - math.Log(sum) }
		if math.Abs(float64(r.Logprobs[0])-logprob(token)) > 1e-5 || r.Ranks[0] != rank {
			t.Fatalf("log probability %v, wanted %v; rank %d, wanted %d", r.Logprobs[0], logprob(token), r.Ranks[0], rank)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(logits[b], logits[a]) })
		if !slices.Equal(r.TopIDs, order[:row.Top]) {
			t.Fatalf("alternatives %v, wanted %v", r.TopIDs, order[:row.Top])
		}
		for i, id := range r.TopIDs {
			if math.Abs(float64(r.TopLogprobs[i])-logprob(id)) > 1e-5 {
				t.Fatalf("alternative %d: %v, wanted %v", i, r.TopLogprobs[i], logprob(id))
			}
		}
	})
}

// chiSquare checks that draws follow the probabilities. Counts below 5 are put together.
func chiSquare(t *testing.T, counts []int, p []float64, n int) {
	t.Helper()
	var sum, restP float64
	rest, free := 0, -1
	for id, q := range p {
		if q == 0 && counts[id] > 0 {
			t.Fatalf("token %d was drawn %d times, but has probability 0", id, counts[id])
		}
		if expected := q * float64(n); expected < 5 {
			rest, restP = rest+counts[id], restP+q
		} else {
			sum += math.Pow(float64(counts[id])-expected, 2) / expected
			free++
		}
	}
	if expected := restP * float64(n); expected >= 5 {
		sum += math.Pow(float64(rest)-expected, 2) / expected
		free++
	}
	// Wilson and Hilferty's approximation: a standard normal deviate.
	if free == 0 {
		return
	}
	k := float64(free)
	z := (math.Cbrt(sum/k) - (1 - 2/(9*k))) / math.Sqrt(2/(9*k))
	if math.Abs(z) > 4 {
		t.Errorf("χ² is %.1f with %d degrees of freedom: %.1f standard deviations off", sum, free, z)
	}
}

func TestDrawsFollowTheDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	logits := make([]float32, 101)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 2)
	}
	rows := map[string]gpu.Row{"plain": neutral()}
	hot, nucleus, few := neutral(), neutral(), neutral()
	hot.Temperature = 2.5
	nucleus.TopP, nucleus.Temperature = 0.9, 0.8
	few.TopK, few.MinP = 10, 0.02
	rows["hot"], rows["nucleus"], rows["few"] = hot, nucleus, few
	const n = 20_000
	for name, row := range rows {
		for _, vary := range []string{"draw", "seed", "choice"} {
			t.Run(name+", by "+vary, func(t *testing.T) {
				s, b := New(len(logits)), &gpu.Batch{}
				counts := make([]int, len(logits))
				row.Seed, row.Draw, row.Choice = 11, 3, 0
				for i := range n {
					switch vary {
					case "draw":
						row.Draw = int32(i)
					case "seed":
						row.Seed = uint64(i)
					case "choice":
						row.Choice = int32(i)
					}
					counts[draw(s, b, row, logits)]++
				}
				p, _ := reference(b, &row, logits)
				chiSquare(t, counts, p, n)
			})
		}
	}
}

func TestDrawsOfNeighbouringTokensAreIndependent(t *testing.T) {
	// Pairs of successive draws from an even distribution are evenly distributed over all pairs.
	logits := make([]float32, 16)
	counts, p := make([]int, 256), make([]float64, 256)
	for i := range p {
		p[i] = 1. / 256
	}
	s, b, row := New(16), &gpu.Batch{}, neutral()
	last := int32(0)
	const n = 100_000
	for i := range n + 1 {
		row.Draw = int32(i)
		token := draw(s, b, row, logits)
		if i > 0 {
			counts[last*16+token]++
		}
		last = token
	}
	chiSquare(t, counts, p, n)
}

// draw is a row's token alone.
func draw(s *Sampler, b *gpu.Batch, row gpu.Row, logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return s.sample(b, &row, logits, int32(best))
}

// support lists the tokens that a thousand draws give.
func support(t *testing.T, b *gpu.Batch, row gpu.Row, logits []float32) []int32 {
	t.Helper()
	s := New(len(logits))
	var got []int32
	for i := range 1000 {
		row.Draw = int32(i)
		b.Rows = []gpu.Row{row}
		if err := Check(b, 0, len(logits)); err != nil {
			t.Fatal(err)
		}
		if id := draw(s, b, row, logits); !slices.Contains(got, id) {
			got = append(got, id)
		}
	}
	slices.Sort(got)
	return got
}

func log(p ...float64) []float32 {
	out := make([]float32, len(p))
	for i, q := range p {
		out[i] = float32(math.Log(q))
	}
	return out
}

func TestFiltersKeepWhatTheirNamesSay(t *testing.T) {
	halves := log(0.25, 0.5, 0.125, 0.125)
	equal := make([]float32, 8)
	for _, test := range []struct {
		name   string
		logits []float32
		set    func(*gpu.Row)
		want   []int32
	}{
		{"top_p that the likeliest just reaches keeps it alone", halves, func(r *gpu.Row) { r.TopP = 0.4999999 }, []int32{1}},
		{"top_p beyond the first two takes the third, of equals the lowest id", halves, func(r *gpu.Row) { r.TopP = 0.76 }, []int32{0, 1, 2}},
		{"a tiny top_p keeps one", halves, func(r *gpu.Row) { r.TopP = 1e-30 }, []int32{1}},
		{"top_p 0 keeps one", halves, func(r *gpu.Row) { r.TopP = 0 }, []int32{1}},
		{"top_p among equals keeps the lowest ids", equal, func(r *gpu.Row) { r.TopP = 0.5 }, []int32{0, 1, 2, 3}},
		{"top_p of an exact quarter keeps two of eight", equal, func(r *gpu.Row) { r.TopP = 0.25 }, []int32{0, 1}},
		{"top_k among equals keeps the lowest ids", equal, func(r *gpu.Row) { r.TopK = 3 }, []int32{0, 1, 2}},
		{"top_k beyond the vocabulary keeps all", equal, func(r *gpu.Row) { r.TopK = 100 }, []int32{0, 1, 2, 3, 4, 5, 6, 7}},
		{"min_p 1 keeps the likeliest and its equals", log(0.3, 0.4, 0.4), func(r *gpu.Row) { r.MinP = 1 }, []int32{1, 2}},
		{"min_p is relative to the likeliest", log(0.5, 0.24, 0.26), func(r *gpu.Row) { r.MinP = 0.5 }, []int32{0, 2}},
		{"min_p is taken after the temperature", log(0.5, 0.24, 0.26), func(r *gpu.Row) { r.MinP, r.Temperature = 0.6, 2 }, []int32{0, 1, 2}},
		{"top_p is of what top_k leaves", log(0.4, 0.3, 0.2, 0.1), func(r *gpu.Row) { r.TopK, r.TopP = 2, 0.57 }, []int32{0}},
		{"min_p drops before top_p counts", log(0.5, 0.3, 0.1, 0.1), func(r *gpu.Row) { r.MinP, r.TopP = 0.5, 0.62 }, []int32{0}},
		{"a temperature of nearly 0 takes the likeliest", log(0.499, 0.501), func(r *gpu.Row) { r.Temperature = 2e-5 }, []int32{1}},
	} {
		row := neutral()
		test.set(&row)
		if got := support(t, &gpu.Batch{}, row, test.logits); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, wanted %v", test.name, got, test.want)
		}
	}
}

func TestGreedyTakesTheLowestIDAmongEquals(t *testing.T) {
	row := neutral()
	for _, temperature := range []float32{0, 9e-6} {
		row.Temperature = temperature
		if got := one(t, New(6), &gpu.Batch{}, row, []float32{1, 3, 2, 3, 3, 0}).Tokens[0]; got != 1 {
			t.Errorf("temperature %v: token %d, wanted 1", temperature, got)
		}
	}
	if got := one(t, New(2), &gpu.Batch{}, row, []float32{float32(math.Copysign(0, -1)), 0}).Tokens[0]; got != 0 {
		t.Errorf("−0 and 0 are equal, but token %d was taken", got)
	}
}

func TestPenaltiesAreVLLMs(t *testing.T) {
	// Tokens 1 and 2 in the prompt, 2 and 3 (twice) in the output; worked out by hand.
	b := &gpu.Batch{History: []int32{1, 2, 2, 3, 3}}
	logits := []float32{2, 2, -2, 4, -4}
	row := neutral()
	row.HistoryLen, row.HistoryPrompt = 5, 2
	for _, test := range []struct {
		repetition, presence, frequency float32
		want                            []float32
	}{
		{2, 0, 0, []float32{2, 1, -4, 2, -4}},
		{1, 0.5, 0, []float32{2, 2, -2.5, 3.5, -4}},
		{1, 0, 0.25, []float32{2, 2, -2.25, 3.5, -4}},
		{2, 1, 0.5, []float32{2, 1, -5.5, 0, -4}},
		{0.5, -1, 0, []float32{2, 4, 0, 9, -4}},
	} {
		row.RepetitionPenalty, row.PresencePenalty, row.FrequencyPenalty = test.repetition, test.presence, test.frequency
		s := New(5)
		if s.process(b, &row, logits); !slices.Equal(s.logits, test.want) {
			t.Errorf("penalties %v, %v, %v: %v, wanted %v", test.repetition, test.presence, test.frequency, s.logits, test.want)
		}
	}
}

func TestBiasesComeBeforePenalties(t *testing.T) {
	b := &gpu.Batch{History: []int32{0}, Bias: []gpu.Bias{{ID: 0, Value: 3}}}
	row := neutral()
	row.HistoryLen, row.BiasLen, row.RepetitionPenalty = 1, 1, 2
	s := New(2)
	if s.process(b, &row, []float32{-1, 0}); s.logits[0] != 1 {
		t.Errorf("(−1 + 3) / 2 is 1, not %v", s.logits[0])
	}
}

func TestThereIsAlwaysAToken(t *testing.T) {
	inf := float32(math.Inf(1))
	logits := []float32{1, 2, 3, 4}
	ban := func(ids ...int32) (b []gpu.Bias) {
		for _, id := range ids {
			b = append(b, gpu.Bias{ID: id, Value: -inf})
		}
		return b
	}
	for _, test := range []struct {
		name string
		bias []gpu.Bias
		mask []uint32
		want []int32
	}{
		{"biases ban all but one", ban(0, 2, 3), nil, []int32{1}},
		{"biases ban all: their bans are lifted", ban(0, 1, 2, 3), nil, []int32{0, 1, 2, 3}},
		{"the mask's only token is banned: the ban is lifted", ban(1), []uint32{1 << 1}, []int32{1}},
		{"an empty mask is lifted", nil, []uint32{0}, []int32{0, 1, 2, 3}},
		{"an empty mask and all banned: both are lifted", ban(0, 1, 2, 3), []uint32{0}, []int32{0, 1, 2, 3}},
		{"an empty mask is lifted, bans stay", ban(3), []uint32{0}, []int32{0, 1, 2}},
		{"a bias does not raise what the mask bans", []gpu.Bias{{ID: 0, Value: 1e30}}, []uint32{1 << 2}, []int32{2}},
	} {
		b := &gpu.Batch{Bias: test.bias, Masks: test.mask, MaskWords: 1}
		row := neutral()
		row.BiasLen = int32(len(test.bias))
		if test.mask != nil {
			row.Mask = 0
		}
		if got := support(t, b, row, logits); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, wanted %v", test.name, got, test.want)
		}
		row.Temperature = 0
		if got := one(t, New(4), b, row, logits).Tokens[0]; got != slices.Max(test.want) {
			t.Errorf("%s, greedy: %d, wanted %d", test.name, got, slices.Max(test.want))
		}
	}
}

func TestExtremeNumbersGiveATokenOfTheVocabulary(t *testing.T) {
	big := float32(math.MaxFloat32)
	rapid.Check(t, func(t *rapid.T) {
		value := func(name string) float32 {
			return rapid.SampledFrom([]float32{0, 1, -1, big, -big, 1e-45, -1e-45, 1e30, 88, -104}).Draw(t, name)
		}
		logits := make([]float32, 7)
		for i := range logits {
			logits[i] = value("logit")
		}
		row := neutral()
		row.Temperature = rapid.SampledFrom([]float32{0, 1e-5, 1, big}).Draw(t, "temperature")
		row.TopP = rapid.SampledFrom([]float32{0, 1e-45, 0.5, 1}).Draw(t, "top_p")
		row.MinP = rapid.SampledFrom([]float32{0, 1e-45, 1}).Draw(t, "min_p")
		row.TopK = rapid.Int32Range(0, 8).Draw(t, "top_k")
		row.RepetitionPenalty = rapid.SampledFrom([]float32{0, 1e-45, 1, big}).Draw(t, "repetition")
		row.PresencePenalty, row.FrequencyPenalty = value("presence"), value("frequency")
		row.Top, row.HistoryLen, row.HistoryPrompt, row.BiasLen = 3, 4, 1, 1
		b := &gpu.Batch{History: []int32{0, 1, 2, 1}, Bias: []gpu.Bias{{ID: 2, Value: value("bias")}}}
		r := one(t, New(7), b, row, logits)
		if r.Tokens[0] < 0 || r.Tokens[0] > 6 || !(r.Logprobs[0] <= 0) || r.Ranks[0] < 1 || r.Ranks[0] > 7 {
			t.Fatalf("token %d, log probability %v, rank %d", r.Tokens[0], r.Logprobs[0], r.Ranks[0])
		}
	})
}

func TestLogitsThatAreNotFiniteAreAnErrorThatNamesTheToken(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		logits := []float32{1, 2, float32(v), 4}
		b := &gpu.Batch{Rows: []gpu.Row{neutral()}}
		var r gpu.Result
		r.Reset(b)
		err := New(4).Row(b, 0, logits, &r)
		if want := fmt.Sprintf("the logit of token 2 is %v", v); err == nil || err.Error()[:len(want)] != want {
			t.Errorf("%v: %v", v, err)
		}
	}
}

func TestThePlaceOfARowInItsBatchChangesNothing(t *testing.T) {
	logits := log(0.1, 0.2, 0.3, 0.4)
	row := neutral()
	row.Seed, row.Draw, row.Top = 5, 9, 2
	want := one(t, New(4), &gpu.Batch{}, row, logits)
	b := &gpu.Batch{Rows: []gpu.Row{{Kind: gpu.Score, Top: 4, Mask: -1}, neutral(), row, neutral()}}
	var r gpu.Result
	r.Reset(b)
	s := New(4)
	for _, i := range []int{3, 0, 2, 1} {
		if err := s.Row(b, i, logits, &r); err != nil {
			t.Fatal(err)
		}
	}
	first := r.TopFirst[2]
	if r.Tokens[2] != want.Tokens[0] || r.Logprobs[2] != want.Logprobs[0] || !slices.Equal(r.TopIDs[first:first+2], want.TopIDs) {
		t.Errorf("token %d, %v, %v; alone %d, %v, %v", r.Tokens[2], r.Logprobs[2], r.TopIDs[first:first+2], want.Tokens[0], want.Logprobs[0], want.TopIDs)
	}
}

func TestPhiloxGivesThePublishedNumbers(t *testing.T) {
	// The known answers of philox4x32-10 in Random123's kat_vectors.
	for _, test := range []struct {
		key, even, odd uint64
		counter        [4]uint32
	}{
		{0, 0xe169c58d_6627e8d5, 0x9b00dbd8_bc57ac4c, [4]uint32{}},
		{math.MaxUint64, 0x41c83b0e_408f276d, 0x6d5451fd_a20bc7c6, [4]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}},
		{0x299f31d0_a4093822, 0x94fdcceb_d16cfe09, 0x24126ea1_5001e420, [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
	} {
		c := test.counter
		if even, odd := philox(test.key, c[0], c[1], c[2], c[3]); even != test.even || odd != test.odd {
			t.Errorf("key %#x, counter %#x: %#x, %#x; wanted %#x, %#x", test.key, c, even, odd, test.even, test.odd)
		}
	}
}

func TestNoiseIsFiniteAndRisesWithItsNumber(t *testing.T) {
	last := math.Inf(-1)
	for _, r := range []uint64{0, 1 << 12, 1 << 40, 1 << 62, 1 << 63, math.MaxUint64 - 1<<40, math.MaxUint64} {
		g := noise(r)
		if math.IsInf(g, 0) || math.IsNaN(g) || g <= last {
			t.Errorf("noise of %#x is %v after %v", r, g, last)
		}
		if bound := float64(bits.LeadingZeros64(^r)+1) * math.Ln2; g >= bound {
			t.Errorf("noise of %#x is %v, not below its bound %v", r, g, bound)
		}
		last = g
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		r := rng.Uint64() | rng.Uint64()<<rng.IntN(64) // many leading ones, too
		if g, bound := noise(r), float64(bits.LeadingZeros64(^r)+1)*math.Ln2; g >= bound {
			t.Fatalf("noise of %#x is %v, not below its bound %v", r, g, bound)
		}
	}
}

func TestExpIsThatOfTheMathPackage(t *testing.T) {
	for i := range 140_000 {
		x := -float64(i) / 200
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 2e-11*want {
			t.Fatalf("exp(%v) is %v, wanted %v", x, got, want)
		}
	}
	if exp(0) != 1 || exp(-701) != 0 || exp(math.Inf(-1)) != 0 {
		t.Error("0, −701 or −∞")
	}
}

func TestARowAllocatesNothing(t *testing.T) {
	const vocab = 5000
	logits := make([]float32, vocab)
	for i := range logits {
		logits[i] = float32(i*7919%vocab) / 500
	}
	row := neutral()
	row.TopP, row.TopK, row.MinP, row.Top, row.Temperature = 0.9, 100, 1e-6, 20, 0.8
	row.RepetitionPenalty, row.HistoryLen, row.BiasLen, row.Mask = 1.2, 50, 1, 0
	b := &gpu.Batch{History: make([]int32, 50), Bias: []gpu.Bias{{ID: 3, Value: 1}}, MaskWords: (vocab + 31) / 32, Rows: []gpu.Row{row}}
	for range b.MaskWords {
		b.Masks = append(b.Masks, math.MaxUint32)
	}
	var r gpu.Result
	r.Reset(b)
	s := New(vocab)
	run := func() {
		if err := s.Row(b, 0, logits, &r); err != nil {
			t.Fatal(err)
		}
	}
	run() // the list of alternatives grows once
	// In the best of several tries: what the runtime allocates meanwhile counts too.
	n := math.Inf(1)
	for try := 0; try < 5 && n > 0; try++ {
		n = min(n, testing.AllocsPerRun(20, run))
	}
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSample(b *testing.B) {
	const vocab = 49152
	logits := make([]float32, vocab)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 3)
	}
	rows := []struct {
		name string
		set  func(*gpu.Row)
	}{
		{"greedy", func(r *gpu.Row) { r.Temperature = 0 }},
		{"plain", func(r *gpu.Row) {}},
		{"top_p", func(r *gpu.Row) { r.TopP, r.Temperature = 0.9, 0.7 }},
		{"top_k", func(r *gpu.Row) { r.TopK = 50 }},
		{"min_p", func(r *gpu.Row) { r.MinP = 0.05 }},
		{"logprobs", func(r *gpu.Row) { r.Temperature, r.Top = 0, 5 }},
	}
	for _, test := range rows {
		b.Run(test.name, func(b *testing.B) {
			row := neutral()
			row.Top = -1
			test.set(&row)
			batch := &gpu.Batch{Rows: []gpu.Row{row}}
			var r gpu.Result
			r.Reset(batch)
			s := New(vocab)
			for b.Loop() {
				batch.Rows[0].Draw++
				if err := s.Row(batch, 0, logits, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
