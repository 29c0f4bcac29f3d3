//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sample"
	"github.com/troupe-llm/troupe/model/tiny"
)

// chooseFrom has the GPU answer a batch's rows from given logits, one row of them for each token.
func chooseFrom(t testing.TB, d *Device, b *gpu.Batch, logits []float32) (*gpu.Result, error) {
	t.Helper()
	defer inContext(t, d)()
	var r gpu.Result
	r.Reset(b)
	b.Spans = []gpu.Span{{Len: int32(len(b.Tokens))}}
	if err := d.say(b, &r); err != nil {
		t.Fatal(err)
	}
	a := &d.answers
	if err := cu.MemcpyHtoDAsync(d.in.device, unsafe.Pointer(&d.in.host[0]), int64(d.in.used), d.stream); err != nil {
		t.Fatal(err)
	}
	padded := make([]float32, len(b.Tokens)*d.logits.stride)
	for i := range b.Tokens {
		copy(padded[i*d.logits.stride:], logits[i*tiny.Vocab:][:tiny.Vocab])
	}
	if err := cu.MemcpyHtoDAsync(cu.DevicePtr(d.logits.at), unsafe.Pointer(&padded[0]), int64(4*len(padded)), d.stream); err != nil {
		t.Fatal(err)
	}
	for i := range a.chunks {
		if err := a.chooseRows(&a.chunks[i]); err != nil {
			t.Fatal(err)
		}
	}
	return &r, a.finish()
}

// randomRow makes a row up that uses whatever there is, and what it points to.
func randomRow(rng *rand.Rand, b *gpu.Batch) gpu.Row {
	pick := func(v ...float32) float32 { return v[rng.IntN(len(v))] }
	row := gpu.Row{Kind: gpu.Sample, Top: int32(rng.IntN(5)) - 1, Mask: -1, RepetitionPenalty: pick(1, 1, 1.3, 0), TopP: pick(1, 1, 0.9, 0.3, 0),
		MinP: pick(0, 0, 0.05, 1), TopK: int32(pick(0, 0, 1, 5, 40, 1000)), Temperature: pick(0, 0.5, 1, 3), PresencePenalty: pick(0, 0, 0.5), FrequencyPenalty: pick(0, 0, -0.7),
		Seed: rng.Uint64(), Choice: int32(rng.IntN(3)), Draw: int32(rng.IntN(100))}
	if rng.IntN(3) == 0 {
		row.HistoryFirst, row.HistoryLen = int32(len(b.History)), int32(1+rng.IntN(60))
		row.HistoryPrompt = int32(rng.IntN(int(row.HistoryLen) + 1))
		for range row.HistoryLen {
			b.History = append(b.History, int32(rng.IntN(30)))
		}
	}
	if rng.IntN(3) == 0 {
		row.BiasFirst = int32(len(b.Bias))
		for id := range tiny.Vocab {
			if rng.IntN(4) == 0 {
				b.Bias = append(b.Bias, gpu.Bias{ID: int32(id), Value: pick(2, -3, float32(math.Inf(-1)))})
			}
		}
		row.BiasLen = int32(len(b.Bias)) - row.BiasFirst
	}
	switch rng.IntN(6) {
	case 0: // a mask of which biases ban all
		row.Mask = int32(len(b.Masks) / b.MaskWords)
		id := rng.IntN(tiny.Vocab)
		mask := make([]uint32, b.MaskWords)
		mask[id/32] = 1 << (id % 32)
		b.Masks = append(b.Masks, mask...)
		row.BiasFirst, row.BiasLen = int32(len(b.Bias)), 1
		b.Bias = append(b.Bias, gpu.Bias{ID: int32(id), Value: float32(math.Inf(-1))})
	case 1:
		row.Mask = int32(len(b.Masks) / b.MaskWords)
		for range b.MaskWords {
			b.Masks = append(b.Masks, rng.Uint32()&rng.Uint32())
		}
	case 2: // an empty one
		row.Mask = int32(len(b.Masks) / b.MaskWords)
		b.Masks = append(b.Masks, make([]uint32, b.MaskWords)...)
	}
	return row
}

func TestTheGPUSamplesWhatPackageSampleSamples(t *testing.T) {
	useFake(t)
	rng := rand.New(rand.NewPCG(9, 9))
	d := open(t, tiny.Options{Layers: 1}, gpu.Config{BlockSize: 16, MaxSeqs: 4, MaxTokens: 16, MaxContext: 32})
	defer d.Close()
	sampler := sample.New(tiny.Vocab)
	differ, rows := 0, 0
	for trial := range 12 {
		b := &gpu.Batch{MaskWords: (tiny.Vocab + 31) / 32, Positions: make([]int32, 4), Tokens: make([]int32, 4)}
		logits := make([]float32, 4*tiny.Vocab)
		for i := range logits {
			if logits[i] = float32(4 * rng.NormFloat64()); trial%3 == 0 { // many equals
				logits[i] = float32(math.Round(float64(logits[i])))
			}
		}
		for i := range 4 {
			for range 4 {
				row := randomRow(rng, b)
				if row.Token = int32(i); rng.IntN(8) == 0 {
					row = gpu.Row{Kind: gpu.Score, Token: int32(i), Target: int32(rng.IntN(tiny.Vocab)), Top: 20, Mask: -1}
				}
				b.Rows = append(b.Rows, row)
			}
		}
		var want gpu.Result
		want.Reset(b)
		for i := range b.Rows {
			if err := sample.Check(b, i, tiny.Vocab); err != nil {
				t.Fatal(err)
			}
			if err := sampler.Row(b, i, logits[int(b.Rows[i].Token)*tiny.Vocab:], &want); err != nil {
				t.Fatal(err)
			}
		}
		got, err := chooseFrom(t, d, b, logits)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.TopIDs, want.TopIDs) {
			t.Errorf("trial %d: alternatives %v, wanted %v", trial, got.TopIDs, want.TopIDs)
		}
		for i := range want.TopLogprobs {
			if math.Abs(float64(got.TopLogprobs[i]-want.TopLogprobs[i])) > 1e-5 {
				t.Errorf("trial %d: alternative %d has log probability %v, wanted %v", trial, i, got.TopLogprobs[i], want.TopLogprobs[i])
			}
		}
		for i := range b.Rows {
			rows++
			if got.Tokens[i] != want.Tokens[i] {
				differ++
				t.Logf("trial %d, row %+v: token %d, wanted %d", trial, b.Rows[i], got.Tokens[i], want.Tokens[i])
				continue
			}
			if got.Ranks[i] != want.Ranks[i] || math.Abs(float64(got.Logprobs[i]-want.Logprobs[i])) > 1e-5 {
				t.Errorf("trial %d, row %+v: log probability %v, rank %d, wanted %v and %d", trial, b.Rows[i], got.Logprobs[i], got.Ranks[i], want.Logprobs[i], want.Ranks[i])
			}
		}
	}
	// Weights are float32 on the GPU, so that a filter may decide otherwise within 10⁻⁶; hardly ever here.
	if differ > 1 {
		t.Errorf("%d tokens of %d differ", differ, rows)
	}
}

func TestALogitThatIsNoNumberNamesItsRow(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1}, gpu.Config{BlockSize: 16, MaxSeqs: 4, MaxTokens: 16, MaxContext: 32})
	defer d.Close()
	logits := make([]float32, 2*tiny.Vocab)
	logits[tiny.Vocab+17] = float32(math.NaN())
	b := &gpu.Batch{Tokens: make([]int32, 2), Positions: []int32{4, 5}, Rows: []gpu.Row{
		{Kind: gpu.Score, Mask: -1}, {Kind: gpu.Sample, Token: 1, TopP: 1, Mask: -1},
	}}
	if _, err := chooseFrom(t, d, b, logits); err == nil || !strings.Contains(err.Error(), "row 1, position 5: the logit of token 17") {
		t.Error(err)
	}
}
