package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/troupe-llm/troupe/gpu"
)

// PerplexityOptions say how a text is cut up.
type PerplexityOptions struct {
	Context int   // tokens of a chunk, at least MinPerplexityContext; no more than the device takes in a batch
	Chunks  int   // most chunks; 0: all that the text has
	BOS     int32 // stands for the first token of each chunk; −1: none does
	// Progress is called after each chunk with how many are done, of how many, and the figure so far; nil:
	// nobody is told.
	Progress func(done, chunks int, perplexity float64)
}

// MinPerplexityContext is the shortest chunk, of which one token is scored.
const MinPerplexityContext = 4

// Perplexity is how well a model foretells a text: e to the mean of the tokens' negative log
// probabilities. 1 is knowing the text by heart, the size of the vocabulary is guessing.
//
// It is measured as llama-perplexity of llama.cpp does it by default, so that figures can be compared: the
// text is cut into chunks of Context tokens, each is a sequence of its own, and of each the tokens
// after the first half are scored, but for the one after the middle itself: 255 of 512. What is left over at
// the end isn't used.
type Perplexity struct {
	Tokens  int // of the text
	Context int // of a chunk
	Chunks  int // that were measured
	Scored  int // tokens whose log probabilities are in the mean
	Value   float64
	// Error is the standard error of Value that the spread of the log probabilities gives. Of two models on
	// the same text the difference is known better than that: what is hard for one is hard for both.
	Error float64
	// Elapsed is how long the device took.
	Elapsed time.Duration
	// Interrupted says that chunks are missing since the context was done.
	Interrupted bool
}

// MeasurePerplexity measures on a device that was opened for one sequence of o.Context tokens in one batch,
// with blocks of blockSize. When ctx is done it returns what there is, or ctx's error if that is nothing.
func MeasurePerplexity(ctx context.Context, d gpu.Device, blockSize int, tokens []int32, o PerplexityOptions) (*Perplexity, error) {
	n := o.Context
	if n < MinPerplexityContext {
		return nil, fmt.Errorf("chunks of %d tokens are too short: they must have at least %d", n, MinPerplexityContext)
	}
	if len(tokens) < n {
		return nil, fmt.Errorf("the text has %d tokens, fewer than a chunk of %d: take a longer text, or shorter chunks", len(tokens), n)
	}
	chunks := len(tokens) / n
	if o.Chunks > 0 {
		chunks = min(chunks, o.Chunks)
	}
	runtime.LockOSThread() // as a device asks for
	defer runtime.UnlockOSThread()

	p := &Perplexity{Tokens: len(tokens), Context: n}
	var b gpu.Batch
	var r gpu.Result
	sum, squares := 0.0, 0.0
	for c := range chunks {
		if ctx.Err() != nil {
			p.Interrupted = true
			break
		}
		fillChunk(&b, tokens[c*n:][:n], blockSize, o.BOS)
		began := time.Now()
		if err := d.Run(&b, &r); err != nil {
			return nil, fmt.Errorf("chunk %d of %d: %w", c+1, chunks, err)
		}
		p.Elapsed += time.Since(began)
		for i, logprob := range r.Logprobs {
			v := float64(logprob)
			if math.IsNaN(v) {
				at := c*n + int(b.Rows[i].Token) + 1
				return nil, fmt.Errorf("the log probability of token %d of the text is not a number: the model's weights may be damaged", at)
			}
			sum -= v
			squares += v * v
		}
		p.Chunks++
		p.Scored += len(r.Logprobs)
		mean := sum / float64(p.Scored)
		p.Value = math.Exp(mean)
		if p.Scored > 1 {
			variance := max(0, squares/float64(p.Scored)-mean*mean)
			p.Error = p.Value * math.Sqrt(variance/float64(p.Scored-1))
		}
		if o.Progress != nil {
			o.Progress(p.Chunks, chunks, p.Value)
		}
	}
	if p.Chunks == 0 {
		return nil, ctx.Err()
	}
	return p, nil
}

// fillChunk makes a batch of a chunk: each token from the middle on but the last scores the next.
func fillChunk(b *gpu.Batch, chunk []int32, blockSize int, bos int32) {
	b.Reset()
	b.Tokens = append(b.Tokens, chunk...)
	if bos >= 0 {
		b.Tokens[0] = bos
	}
	for i := range chunk {
		b.Positions = append(b.Positions, int32(i))
	}
	b.Spans = append(b.Spans, gpu.Span{Len: int32(len(chunk)), Adapter: -1})
	b.Stride = (len(chunk) + blockSize - 1) / blockSize
	for i := range b.Stride {
		b.Blocks = append(b.Blocks, int32(i))
	}
	for i := len(chunk) / 2; i < len(chunk)-1; i++ {
		b.Rows = append(b.Rows, gpu.Row{Kind: gpu.Score, Token: int32(i), Target: chunk[i+1], Mask: -1})
	}
}

// rate is in tokens a second.
func (p *Perplexity) rate() float64 {
	if p.Elapsed <= 0 {
		return math.NaN()
	}
	return float64(p.Chunks*p.Context) / p.Elapsed.Seconds()
}

// WriteTable writes the figure for people.
func (p *Perplexity) WriteTable(w io.Writer, model, text string) error {
	t := &table{tw: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.line("perplexity of %s on %s", model, text)
	t.line("")
	t.row("perplexity", "%.4f ± %.4f", p.Value, p.Error)
	t.row("tokens", "%d in the text; %d chunks of %d, in whose second halves %d were scored", p.Tokens, p.Chunks, p.Context, p.Scored)
	t.row("duration", "%s s, %s tokens/s", figure(p.Elapsed.Seconds()), figure(p.rate()))
	if p.Interrupted {
		t.line("")
		t.line("It was interrupted: the rest of the text is not in it.")
	}
	return t.flush()
}

// WriteJSON writes the figure as an object.
func (p *Perplexity) WriteJSON(w io.Writer, model, text string) error {
	out := object{
		{"model", model}, {"text", text}, {"perplexity", number(p.Value)}, {"perplexity_error", number(p.Error)},
		{"text_tokens", p.Tokens}, {"context", p.Context}, {"chunks", p.Chunks}, {"scored_tokens", p.Scored},
		{"duration_seconds", p.Elapsed.Seconds()}, {"tokens_per_second", number(p.rate())}, {"interrupted", p.Interrupted},
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
