package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/modeltest"
)

// foreteller is a device that knows the log probability of each target by heart.
type foreteller struct {
	gpu.Device
	batches []gpu.Batch
	logprob func(target int32) float32
	err     error
}

func (f *foreteller) Run(b *gpu.Batch, r *gpu.Result) error {
	f.batches = append(f.batches, gpu.Batch{Tokens: slices.Clone(b.Tokens), Positions: slices.Clone(b.Positions), Spans: slices.Clone(b.Spans),
		Blocks: slices.Clone(b.Blocks), Stride: b.Stride, Rows: slices.Clone(b.Rows)})
	r.Reset(b)
	for i, row := range b.Rows {
		r.Logprobs[i] = f.logprob(row.Target)
	}
	return f.err
}

func numbered(n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	return tokens
}

func TestOfEachChunkTheTokensAfterTheMiddleAreScoredEachAfterThoseBeforeIt(t *testing.T) {
	f := &foreteller{logprob: func(target int32) float32 { return -float32(target) / 16 }}
	var told []int
	p, err := MeasurePerplexity(context.Background(), f, 3, numbered(27), PerplexityOptions{Context: 8, BOS: 99,
		Progress: func(done, chunks int, _ float64) { told = append(told, done, chunks) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(f.batches) != 3 || p.Chunks != 3 || p.Scored != 9 || p.Tokens != 27 || !slices.Equal(told, []int{1, 3, 2, 3, 3, 3}) {
		t.Fatalf("%d batches, %+v, told %v", len(f.batches), p, told)
	}
	var scored []float64
	for c, b := range f.batches {
		for i, token := range b.Tokens {
			want := int32(8*c + i)
			if i == 0 {
				want = 99
			}
			if token != want || b.Positions[i] != int32(i) {
				t.Errorf("chunk %d: token %d is %d at %d", c, i, token, b.Positions[i])
			}
		}
		if len(b.Tokens) != 8 || len(b.Spans) != 1 || b.Spans[0] != (gpu.Span{Len: 8, Adapter: -1}) || b.Stride != 3 || !slices.Equal(b.Blocks, []int32{0, 1, 2}) {
			t.Errorf("chunk %d: %+v", c, b)
		}
		for i, row := range b.Rows {
			// The second half is tokens 4 to 7, of which 5 to 7 follow one of it.
			if row.Kind != gpu.Score || row.Token != int32(4+i) || row.Target != int32(8*c+5+i) {
				t.Errorf("chunk %d, row %d: %+v", c, i, row)
			}
			scored = append(scored, float64(row.Target)/16)
		}
	}
	mean, squares := 0.0, 0.0
	for _, v := range scored {
		mean += v / 9
	}
	for _, v := range scored {
		squares += (v - mean) * (v - mean)
	}
	// The deviation of the mean, with the spread taken over n and the mean over n−1, as in llama.cpp.
	deviation := math.Sqrt(squares/9) / math.Sqrt(8)
	if math.Abs(p.Value-math.Exp(mean)) > 1e-9 || math.Abs(p.Error-math.Exp(mean)*deviation) > 1e-9 {
		t.Errorf("%v ± %v, wanted %v ± %v", p.Value, p.Error, math.Exp(mean), math.Exp(mean)*deviation)
	}
}

func TestAModelThatGuessesHasThePerplexityOfItsVocabulary(t *testing.T) {
	f := &foreteller{logprob: func(int32) float32 { return float32(-math.Log(1000)) }}
	p, err := MeasurePerplexity(context.Background(), f, 16, numbered(64), PerplexityOptions{Context: 16, Chunks: 2, BOS: -1})
	if err != nil || math.Abs(p.Value-1000) > 1e-3 || p.Error > 1e-3 || p.Chunks != 2 || p.Scored != 14 {
		t.Errorf("%+v, %v", p, err)
	}
	if f.batches[1].Tokens[0] != 16 {
		t.Errorf("chunk 2 begins with %d, though the model wants no token at the beginning", f.batches[1].Tokens[0])
	}
	var table, object bytes.Buffer
	if err := errors.Join(p.WriteTable(&table, "m", "book.txt"), p.WriteJSON(&object, "m", "book.txt")); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Model, Text string
		Perplexity  float64
		Error       *float64 `json:"perplexity_error"`
		Scored      int      `json:"scored_tokens"`
	}
	if err := json.Unmarshal(object.Bytes(), &got); err != nil || got.Model != "m" || got.Text != "book.txt" || got.Perplexity != p.Value || got.Error == nil || got.Scored != 14 {
		t.Errorf("%+v, %v", got, err)
	}
	if !strings.Contains(table.String(), "1000.00") || !strings.Contains(table.String(), "2 chunks of 16") {
		t.Error(table.String())
	}
}

func TestNoPerplexityIsMadeUpWhereThereIsNone(t *testing.T) {
	one := func(int32) float32 { return -1 }
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		tokens int
		o      PerplexityOptions
		f      foreteller
		want   string
	}{
		"short text":  {context.Background(), 15, PerplexityOptions{Context: 16, BOS: -1}, foreteller{logprob: one}, "15 tokens"},
		"short chunk": {context.Background(), 64, PerplexityOptions{Context: 3, BOS: -1}, foreteller{logprob: one}, "at least 4"},
		"not a number": {context.Background(), 64, PerplexityOptions{Context: 16, BOS: -1}, foreteller{logprob: func(n int32) float32 {
			if n == 28 {
				return float32(math.NaN())
			}
			return -1
		}}, "token 28 of the text is not a number"},
		"broken device": {context.Background(), 64, PerplexityOptions{Context: 16, BOS: -1}, foreteller{logprob: one, err: errors.New("on fire")}, "chunk 1 of 4: on fire"},
		"interrupted":   {ended, 64, PerplexityOptions{Context: 16, BOS: -1}, foreteller{logprob: one}, context.Canceled.Error()},
	} {
		if p, err := MeasurePerplexity(c.ctx, &c.f, 16, numbered(c.tokens), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; wanted %s", name, p, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o := PerplexityOptions{Context: 16, BOS: -1, Progress: func(done, _ int, _ float64) {
		if done == 2 {
			cancel()
		}
	}}
	if p, err := MeasurePerplexity(ctx, &foreteller{logprob: one}, 16, numbered(64), o); err != nil || p.Chunks != 2 || !p.Interrupted {
		t.Errorf("interrupted after two chunks: %+v, %v", p, err)
	}
}

// The text is of this project's documentation. llama.cpp's figure is that of its library in xllamacpp
// 2026.10.11549, computed as llama-perplexity does with a context of 256; activations are bytes there too.
func TestThePerplexityOfSmolLM2IsThatOfLlamaCpp(t *testing.T) {
	const ofLlamaCpp = 118.98086
	m, err := model.Open(modeltest.SmolLM2(t))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	text, err := os.ReadFile("testdata/perplexity.txt")
	if err != nil {
		t.Fatal(err)
	}
	d, err := host.Open(m, gpu.Config{BlockSize: 32, MaxSeqs: 1, MaxTokens: 256, MaxContext: 256})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p, err := MeasurePerplexity(context.Background(), d, 32, m.Tokenizer.Encode(string(text), true, false), PerplexityOptions{Context: 256, BOS: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.4f ± %.4f on %d tokens; llama.cpp: %.4f", p.Value, p.Error, p.Scored, ofLlamaCpp)
	if math.Abs(p.Value/ofLlamaCpp-1) > 0.005 {
		t.Errorf("%.4f on %d tokens, more than 0.5 %% from llama.cpp's %.4f", p.Value, p.Scored, ofLlamaCpp)
	}
}
