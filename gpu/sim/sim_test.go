package sim

import (
	"errors"
	"flag"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/gpu"
)

// TestMain makes the property tests repeatable.
func TestMain(m *testing.M) {
	flag.Parse()
	for name, value := range map[string]string{"rapid.seed": "1", "rapid.nofailfile": "true"} {
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

var config = gpu.Config{BlockSize: 4, MaxSeqs: 4, MaxTokens: 16, MaxContext: 32}

func open(t testing.TB, o Options) *Sim {
	t.Helper()
	s, err := Open(o, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// prefill is a batch of one span with the given tokens from position 0 in blocks 0, 1, …, and a
// sample after the last.
func prefill(tokens ...int32) *gpu.Batch {
	b := &gpu.Batch{Tokens: tokens, Stride: (len(tokens) + 3) / 4}
	for i := range tokens {
		b.Positions = append(b.Positions, int32(i))
	}
	for i := range b.Stride {
		b.Blocks = append(b.Blocks, int32(i))
	}
	b.Spans = []gpu.Span{{Len: int32(len(tokens)), Adapter: -1}}
	b.Rows = []gpu.Row{{Token: int32(len(tokens) - 1), Top: -1, Mask: -1}}
	return b
}

// decode continues a sequence of n positions, in blocks 0, 1, …, with a token.
func decode(n int, token int32) *gpu.Batch {
	b := prefill(make([]int32, n+1)...)
	b.Tokens, b.Positions = []int32{token}, []int32{int32(n)}
	b.Spans[0] = gpu.Span{Len: 1, Start: int32(n), Adapter: -1}
	b.Rows[0].Token = 0
	return b
}

func run(t testing.TB, s *Sim, b *gpu.Batch) *gpu.Result {
	t.Helper()
	var r gpu.Result
	if err := s.Run(b, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

func TestOpenSaysWhatMakesNoSense(t *testing.T) {
	for name, x := range map[string]struct {
		o    Options
		c    gpu.Config
		says string
	}{
		"config":      {Options{}, gpu.Config{BlockSize: 4}, "MaxSeqs 0"},
		"vocabulary":  {Options{Vocab: -1}, config, "-1"},
		"bytes":       {Options{BytesPerToken: -1}, config, "BytesPerToken"},
		"token":       {Options{Vocab: 10, Tokens: []int32{10}}, config, "token id 10"},
		"end":         {Options{Vocab: 10, EOS: []int32{-1}}, config, "token id -1"},
		"no end":      {Options{EOSAfter: func(uint64, int32) int { return 1 }}, config, "EOSAfter"},
		"only ends":   {Options{Vocab: 1, EOS: []int32{0}}, config, "no token to draw"},
		"small cache": {Options{}, gpu.Config{BlockSize: 4, MaxSeqs: 1, MaxTokens: 1, MaxContext: 1, CacheBytes: 100}, "100 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Open(x.o, x.c); err == nil || !strings.Contains(err.Error(), x.says) {
				t.Fatalf("%v", err)
			}
		})
	}
}

func TestInfoTellsTheBlocksThatFit(t *testing.T) {
	c := config
	c.CacheBytes = 10*4*DefaultBytesPerToken + 5
	s, err := Open(Options{Vocab: 7}, c)
	if err != nil {
		t.Fatal(err)
	}
	if x := s.Info(); x != (gpu.Info{Kind: "sim", Name: "simulated", NumBlocks: 10, BlockBytes: 4 * DefaultBytesPerToken, Vocab: 7}) {
		t.Fatalf("%+v", x)
	}
	if x := open(t, Options{}).Info(); x.NumBlocks != 4*8 || x.Vocab != DefaultVocab {
		t.Fatalf("%+v", x)
	}
}

func TestAStepTakesWhatTheModelSays(t *testing.T) {
	var slept []time.Duration
	s := open(t, Options{
		Fixed: time.Second, PerPrefillToken: time.Millisecond, PerDecode: time.Microsecond, PerCachedToken: time.Nanosecond,
		Sleep: func(d time.Duration) { slept = append(slept, d) },
	})
	run(t, s, prefill(1, 2, 3))
	run(t, s, decode(3, 5))
	b := prefill(1, 2, 3, 4, 5)
	b.Tokens = append(b.Tokens, 9)
	b.Positions = append(b.Positions, 7)
	b.Blocks = append(b.Blocks, 2, 3)
	b.Spans = append(b.Spans, gpu.Span{First: 5, Len: 1, Start: 7, Slot: 1})
	run(t, s, b)
	want := []time.Duration{
		time.Second + 3*time.Millisecond,
		time.Second + time.Microsecond + 3*time.Nanosecond,
		time.Second + 5*time.Millisecond + time.Microsecond + 7*time.Nanosecond,
	}
	if !slices.Equal(slept, want) {
		t.Fatalf("%v", slept)
	}
	s = open(t, Options{Sleep: func(time.Duration) { t.Fatal("a device that takes no time sleeps") }})
	run(t, s, prefill(1))
}

func TestRealTimePassesAndIsNotPaidTwice(t *testing.T) {
	s := open(t, Options{Fixed: time.Millisecond})
	start := time.Now()
	for range 5 {
		run(t, s, prefill(1))
	}
	if d := time.Since(start); d < 3*time.Millisecond { // each is at least half
		t.Fatalf("5 steps of 1 ms took %v", d)
	}
	if s.owed < 0 || s.owed > time.Millisecond/2 {
		t.Fatalf("%v owed", s.owed)
	}
}

// The rank of each token is unique, the probabilities sum to 1, and lists are in order.
func TestLogProbabilitiesAreThoseOfADistribution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocab := rapid.IntRange(1, 60).Draw(t, "vocab")
		tokens := rapid.SliceOfN(rapid.Int32Range(0, int32(vocab-1)), 0, 20).Draw(t, "tokens")
		s, err := Open(Options{Vocab: vocab, Tokens: tokens}, config)
		if err != nil {
			t.Fatal(err)
		}
		last := rapid.Int32Range(0, int32(vocab-1)).Draw(t, "last")
		top := rapid.IntRange(0, vocab).Draw(t, "top")
		b := decode(rapid.IntRange(1, 20).Draw(t, "position"), last)
		b.Rows = []gpu.Row{{Top: int32(top), Mask: -1}}
		for id := range int32(vocab) {
			b.Rows = append(b.Rows, gpu.Row{Kind: gpu.Score, Target: id, Top: int32(top), Mask: -1})
		}
		var r gpu.Result
		if err := s.Run(b, &r); err != nil {
			t.Fatal(err)
		}
		if r.Ranks[0] != 1 {
			t.Fatalf("the greedy token has rank %d", r.Ranks[0])
		}
		sum, byRank := 0.0, make(map[int32]int)
		for i := 1; i <= vocab; i++ {
			sum += math.Exp(float64(r.Logprobs[i]))
			byRank[r.Ranks[i]] = i
			if r.Tokens[i] != int32(i-1) || r.Logprobs[i] > 0 || r.Ranks[i] < 1 || int(r.Ranks[i]) > vocab {
				t.Fatalf("token %d: %v, rank %d", r.Tokens[i], r.Logprobs[i], r.Ranks[i])
			}
		}
		if math.Abs(sum-1) > 1e-5 || len(byRank) != vocab {
			t.Fatalf("sum %v, %d ranks", sum, len(byRank))
		}
		for i := range b.Rows {
			for j := range top {
				at := int(r.TopFirst[i]) + j
				k := byRank[int32(j+1)]
				if r.TopIDs[at] != r.Tokens[k] || r.TopLogprobs[at] != r.Logprobs[k] {
					t.Fatalf("row %d: alternative %d is %d", i, j, r.TopIDs[at])
				}
			}
		}
	})
}

func TestATokenDependsOnItsRowAlone(t *testing.T) {
	s := open(t, Options{Vocab: 50, EOS: []int32{0}})
	alone := prefill(1, 2, 3)
	alone.Rows[0] = gpu.Row{Token: 2, Top: -1, Mask: -1, Temperature: 1, Seed: 5, Choice: 1, Draw: 2}
	want := run(t, s, alone).Tokens[0]
	b := decode(9, 8)
	b.Rows[0].Temperature = 1
	b.Tokens = append(b.Tokens, 3)
	b.Positions = append(b.Positions, 2)
	b.Blocks = append(b.Blocks, 5, -1, -1)
	b.Spans = append(b.Spans, gpu.Span{First: 1, Len: 1, Start: 2, Slot: 1})
	row := alone.Rows[0]
	row.Token, row.Span = 1, 1
	b.Rows = append(b.Rows, row)
	if got := run(t, s, b).Tokens[1]; got != want {
		t.Fatalf("%d, not %d", got, want)
	}
	greedy := prefill(1, 2, 3)
	want = run(t, s, greedy).Tokens[0]
	greedy.Rows[0].Seed, greedy.Rows[0].Choice = 77, 3
	if got := run(t, s, greedy).Tokens[0]; got != want {
		t.Fatalf("greedy depends on the seed: %d, not %d", got, want)
	}
}

func TestSeedsChoicesAndDrawsVaryTheToken(t *testing.T) {
	s := open(t, Options{Vocab: 1000})
	for name, vary := range map[string]func(*gpu.Row, int){
		"seed":   func(r *gpu.Row, i int) { r.Seed = uint64(i) },
		"choice": func(r *gpu.Row, i int) { r.Choice = int32(i) },
		"draw":   func(r *gpu.Row, i int) { r.Draw = int32(i) },
	} {
		b := prefill(1, 2, 3)
		b.Rows = nil
		for i := range 100 {
			r := gpu.Row{Token: 2, Top: -1, Mask: -1, Temperature: 0.7}
			vary(&r, i)
			b.Rows = append(b.Rows, r)
		}
		tokens := slices.Clone(run(t, s, b).Tokens)
		slices.Sort(tokens)
		if n := len(slices.Compact(tokens)); n < 30 {
			t.Errorf("%s: %d tokens in 100", name, n)
		}
	}
}

func TestOnlyTheGivenTokensAreDrawn(t *testing.T) {
	words := []int32{5, 9, 23, 7}
	s := open(t, Options{Vocab: 30, Tokens: append(words, 2), EOS: []int32{2}})
	b := prefill(1, 2, 3)
	b.Rows = nil
	for i := range 200 {
		b.Rows = append(b.Rows, gpu.Row{Token: int32(i * 3 / 200), Top: -1, Mask: -1, Temperature: float32(i % 2), Seed: uint64(i)})
	}
	seen := make(map[int32]bool)
	for _, id := range run(t, s, b).Tokens {
		seen[id] = true
		if !slices.Contains(words, id) {
			t.Fatalf("token %d", id)
		}
	}
	if len(seen) != len(words) {
		t.Fatalf("seen: %v", seen)
	}
}

func TestBiasesMasksAndEndsAreHonoured(t *testing.T) {
	inf := float32(math.Inf(-1))
	after := func(seed uint64, _ int32) int { return int(seed) }
	mask := func(ids ...int32) []uint32 {
		m := make([]uint32, 2)
		for _, id := range ids {
			m[id/32] |= 1 << (id % 32)
		}
		return m
	}
	all := func(v float32) []gpu.Bias {
		b := make([]gpu.Bias, 40)
		for i := range b {
			b[i] = gpu.Bias{ID: int32(i), Value: v}
		}
		return b
	}
	for name, x := range map[string]struct {
		bias []gpu.Bias
		mask []uint32
		seed uint64
		want []int32
	}{
		"forced":                     {[]gpu.Bias{{ID: 3, Value: 100}, {ID: 33, Value: 101}}, nil, 9, []int32{33}},
		"forced but masked":          {[]gpu.Bias{{ID: 3, Value: 100}, {ID: 33, Value: 101}}, mask(3, 4), 9, []int32{3}},
		"masked":                     {nil, mask(6, 39), 9, []int32{6, 39}},
		"masked and banned":          {[]gpu.Bias{{ID: 6, Value: inf}}, mask(6, 39), 9, []int32{39}},
		"all masked are banned":      {[]gpu.Bias{{ID: 6, Value: inf}}, mask(6), 9, []int32{6}},
		"outside what is drawn":      {nil, mask(1), 9, []int32{1}},
		"the end":                    {nil, nil, 0, []int32{1}},
		"the end banned":             {[]gpu.Bias{{ID: 1, Value: inf}}, nil, 0, []int32{6, 7, 39}},
		"the end masked":             {nil, mask(7), 0, []int32{7}},
		"nothing is left of biases":  {all(inf), nil, 9, []int32{6, 7, 39}},
		"nothing is left of a mask":  {nil, mask(), 9, []int32{6, 7, 39}},
		"a strong bias is not a ban": {[]gpu.Bias{{ID: 6, Value: -99}, {ID: 7, Value: inf}, {ID: 39, Value: -100}}, nil, 9, []int32{6}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{Vocab: 40, Tokens: []int32{6, 7, 39}, EOS: []int32{1}, EOSAfter: after})
			for last := range int32(40) {
				b := prefill(last)
				b.Bias, b.Masks, b.MaskWords = x.bias, x.mask, 2
				b.Rows[0].BiasLen, b.Rows[0].Seed = int32(len(x.bias)), x.seed
				if x.mask != nil {
					b.Rows[0].Mask = 0
				}
				for b.Rows[0].Temperature = 0; b.Rows[0].Temperature < 2; b.Rows[0].Temperature++ {
					if got := run(t, s, b).Tokens[0]; !slices.Contains(x.want, got) {
						t.Fatalf("%d, not of %v", got, x.want)
					}
				}
			}
		})
	}
}

func TestASequenceEndsAfterSoManyTokens(t *testing.T) {
	s := open(t, Options{Vocab: 40, EOS: []int32{1}, EOSAfter: func(_ uint64, choice int32) int { return int(choice) - 1 }})
	for draw := range int32(5) {
		b := prefill(3)
		b.Rows[0].Draw, b.Rows[0].Choice = draw, 3
		if got := run(t, s, b).Tokens[0]; (got == 1) != (draw >= 2) {
			t.Fatalf("token %d is %d", draw, got)
		}
		b.Rows[0].Choice = 0
		if run(t, s, b).Tokens[0] == 1 {
			t.Fatal("a negative number ends a sequence")
		}
	}
}

func TestTopKKeepsTheLikeliest(t *testing.T) {
	s := open(t, Options{Vocab: 500})
	b := prefill(3)
	b.Rows = []gpu.Row{{Top: 3, Mask: -1}}
	for i := range 200 {
		b.Rows = append(b.Rows, gpu.Row{Top: -1, Mask: -1, Temperature: 1, TopK: 3, Seed: uint64(i)})
	}
	r := run(t, s, b)
	seen := make(map[int32]bool)
	for _, id := range r.Tokens[1:] {
		seen[id] = true
		if !slices.Contains(r.TopIDs[:3], id) {
			t.Fatalf("token %d is not of %v", id, r.TopIDs[:3])
		}
	}
	if len(seen) < 2 {
		t.Fatal("always the same token")
	}
}

func TestMoreAlternativesThanTokensAreAnError(t *testing.T) {
	s := open(t, Options{Vocab: 10})
	b := prefill(3)
	b.Rows[0].Top = 11
	if err := s.Run(b, &gpu.Result{}); err == nil || !strings.Contains(err.Error(), "11 alternatives") {
		t.Fatalf("%v", err)
	}
}

func TestAPoolRowIsAnError(t *testing.T) {
	s := open(t, Options{})
	b := prefill(1)
	b.Rows[0].Kind = gpu.Pool
	if err := s.Run(b, &gpu.Result{}); err == nil || !strings.Contains(err.Error(), "pooled") {
		t.Fatalf("%v", err)
	}
	if err := s.Run(prefill(1), &gpu.Result{}); err == nil || !strings.Contains(err.Error(), "failed before") {
		t.Fatalf("%v", err)
	}
}

func TestAClosedDeviceRunsNothing(t *testing.T) {
	s := open(t, Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(prefill(1), &gpu.Result{}); !errors.Is(err, errClosed) {
		t.Fatalf("%v", err)
	}
}
