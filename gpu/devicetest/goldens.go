package devicetest

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"

	"github.com/troupe-llm/troupe/gpu"
)

//go:embed goldens/*.json
var goldens embed.FS

// Goldens are what another implementation computes of a real model: greedy continuations of some prompts,
// and log probabilities along their tokens.
type Goldens struct {
	Model  string // the file's name
	SHA256 string // of the file, in small hexadecimal digits; "" if it isn't known
	Source string // which implementation, and how
	Cases  []GoldenCase
}

// GoldenCase is a prompt and what follows it.
type GoldenCase struct {
	Question string // what was asked
	Rendered string // as the chat template has it; "" where there is none
	Text     string // that was generated
	IDs      []int32
	Prompt   int // how many of IDs are the prompt
	// Logprobs are of IDs[i+1] after IDs[:i+1]; NaN where it isn't known.
	Logprobs []float64
	// Top is the likeliest token in its place, −1 where it isn't known, and Margins how much likelier it is than
	// the second, as a difference of log probabilities.
	Top     []int32
	Margins []float64
}

// KnownGoldens are those that are in the program. It panics where a file of the package is broken.
func KnownGoldens() []*Goldens {
	return embedded(goldens, "goldens", func(_ string, data []byte) (*Goldens, error) { return ParseGoldens(data) })
}

// embedded reads each file of a folder of the package. It panics where one is broken.
func embedded[V any](files embed.FS, folder string, parse func(name string, data []byte) (V, error)) (all []V) {
	entries, err := files.ReadDir(folder)
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		data, err := files.ReadFile(path.Join(folder, e.Name()))
		if err != nil {
			panic(err)
		}
		v, err := parse(e.Name(), data)
		if err != nil {
			panic(fmt.Sprintf("devicetest: %s: %v", e.Name(), err))
		}
		all = append(all, v)
	}
	return all
}

// ParseGoldens reads a file of goldens: an object with model, source, sha256 and cases, or a bare list of
// cases. A case has prompt_ids, and either greedy_ids with steps, of which each has the likeliest tokens with
// their log probabilities (top), and prompt_logprobs if they are known; or ids, with the prompt's, logprobs
// of each but the first, and the likeliest in its place (top) with margins.
func ParseGoldens(data []byte) (*Goldens, error) {
	type stored struct {
		Prompt         string
		Messages       []struct{ Content string }
		Rendered       string
		PromptIDs      []int32    `json:"prompt_ids"`
		PromptLogprobs []*float64 `json:"prompt_logprobs"`
		GreedyIDs      []int32    `json:"greedy_ids"`
		GreedyText     string     `json:"greedy_text"`
		Steps          []struct {
			Token int32
			Top   [][2]float64
		}
		IDs      []int32
		Text     string
		Logprobs []float64
		Top      []int32
		Margins  []float64
	}
	var file struct {
		Model, SHA256, Source string
		Cases                 []stored
	}
	if err := json.Unmarshal(data, &file); err != nil {
		if json.Unmarshal(data, &file.Cases) != nil {
			return nil, fmt.Errorf("goldens: %w", err)
		}
	}
	g := &Goldens{Model: file.Model, SHA256: file.SHA256, Source: file.Source}
	for i, s := range file.Cases {
		c := GoldenCase{Question: s.Prompt, Rendered: s.Rendered, Text: s.Text, IDs: s.IDs, Prompt: len(s.PromptIDs), Logprobs: s.Logprobs, Top: s.Top, Margins: s.Margins}
		if n := len(s.Messages); n > 0 {
			c.Question = s.Messages[n-1].Content
		}
		if s.IDs == nil {
			if len(s.Steps) > len(s.GreedyIDs) || len(s.PromptIDs) == 0 {
				return nil, fmt.Errorf("goldens: case %d has %d steps for %d tokens after %d", i, len(s.Steps), len(s.GreedyIDs), len(s.PromptIDs))
			}
			c.Text = s.GreedyText
			c.IDs = append(append(c.IDs, s.PromptIDs...), s.GreedyIDs...)
			n := len(c.IDs) - 1
			c.Logprobs, c.Top, c.Margins = make([]float64, n), make([]int32, n), make([]float64, n)
			for at := range n {
				c.Logprobs[at], c.Top[at] = math.NaN(), -1
				if at+1 < len(s.PromptLogprobs) && s.PromptLogprobs[at+1] != nil {
					c.Logprobs[at] = *s.PromptLogprobs[at+1]
				}
			}
			for k, step := range s.Steps {
				if len(step.Top) < 2 {
					return nil, fmt.Errorf("goldens: case %d, step %d has fewer than two likeliest tokens", i, k)
				}
				at := c.Prompt - 1 + k
				c.Logprobs[at], c.Top[at], c.Margins[at] = step.Top[0][1], step.Token, step.Top[0][1]-step.Top[1][1]
			}
		}
		if n := len(c.IDs) - 1; n < 1 || c.Prompt < 1 || c.Prompt > n || len(c.Logprobs) != n || len(c.Top) != n || len(c.Margins) != n {
			return nil, fmt.Errorf("goldens: case %d has %d tokens, %d of them the prompt's, %d log probabilities, %d likeliest tokens and %d margins",
				i, len(c.IDs), c.Prompt, len(c.Logprobs), len(c.Top), len(c.Margins))
		}
		g.Cases = append(g.Cases, c)
	}
	if len(g.Cases) == 0 {
		return nil, errors.New("goldens: there are no cases")
	}
	return g, nil
}

// Agreement is how a device compares with goldens, along the reference's own tokens.
type Agreement struct {
	Cases     int
	Generated float64 // the mean absolute difference of generated tokens' log probabilities, of the case where it is largest
	Prompts   float64 // that of all prompts' tokens; 0 where the reference has none
	Worst     float64 // the largest difference
	// Clear counts the places where the reference's margin exceeds 0.5, Agree those of them where the same
	// token is likeliest here.
	Clear, Agree int
	// Wrong says where another token is likeliest though the margin exceeds 1.
	Wrong []string
}

// goldenBlock is how many tokens a block of the KV cache has.
const goldenBlock = 16

// Compare computes each case in one piece on a device of its own. open must give one with room for the
// sequence that the Config asks for.
func (g *Goldens) Compare(open func(gpu.Config) (gpu.Device, error)) (a Agreement, err error) {
	longest := 0
	for i := range g.Cases {
		longest = max(longest, len(g.Cases[i].IDs))
	}
	d, err := open(gpu.Config{BlockSize: goldenBlock, MaxSeqs: 1, MaxTokens: longest, MaxContext: longest})
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var b gpu.Batch
	var r gpu.Result
	prompts := 0
	for i := range g.Cases {
		c := &g.Cases[i]
		Sequence(&b, c.IDs[:len(c.IDs)-1], goldenBlock)
		for at := range b.Tokens {
			b.Rows = append(b.Rows, gpu.Row{Kind: gpu.Score, Token: int32(at), Target: c.IDs[at+1], Top: 1, Mask: -1})
		}
		if err := d.Run(&b, &r); err != nil {
			return a, fmt.Errorf("case %d: %w", i, err)
		}
		sum, n := 0.0, 0
		for at, want := range c.Logprobs {
			if !math.IsNaN(want) {
				off := math.Abs(float64(r.Logprobs[at]) - want)
				if at < c.Prompt-1 {
					a.Prompts += off
					prompts++
				} else {
					sum += off
					n++
				}
				a.Worst = max(a.Worst, off)
			}
			if c.Top[at] < 0 {
				continue
			}
			top := r.TopIDs[r.TopFirst[at]]
			if c.Margins[at] > 1 && top != c.Top[at] {
				a.Wrong = append(a.Wrong, fmt.Sprintf("case %d, token %d: %d is likeliest, wanted is %d with a margin of %.2f", i, at+1, top, c.Top[at], c.Margins[at]))
			}
			if c.Margins[at] > 0.5 {
				a.Clear++
				if top == c.Top[at] {
					a.Agree++
				}
			}
		}
		a.Cases++
		a.Generated = max(a.Generated, sum/float64(max(1, n)))
	}
	a.Prompts /= float64(max(1, prompts))
	return a, nil
}

// Within says what keeps a device from agreeing: log probabilities that differ by limit or more in the mean,
// other likeliest tokens where the reference is sure, or in more than a hundredth of the places where it is
// fairly sure.
func (a *Agreement) Within(limit float64) error {
	var errs []error
	// Written so that a NaN is none.
	if !(a.Generated < limit) {
		errs = append(errs, fmt.Errorf("log probabilities of generated tokens differ by %.4f in a case's mean; under %v is asked for", a.Generated, limit))
	}
	if !(a.Prompts < limit) {
		errs = append(errs, fmt.Errorf("log probabilities of prompts differ by %.4f in the mean; under %v is asked for", a.Prompts, limit))
	}
	for _, w := range a.Wrong {
		errs = append(errs, errors.New(w))
	}
	if float64(a.Agree) < 0.99*float64(a.Clear) {
		errs = append(errs, fmt.Errorf("the likeliest token agrees in %d of %d places where the reference's margin exceeds 0.5", a.Agree, a.Clear))
	}
	return errors.Join(errs...)
}

// Sequence makes b a batch of one sequence of tokens from its beginning on, in the first blocks. Its rows are
// the caller's to add.
func Sequence(b *gpu.Batch, tokens []int32, blockSize int) {
	b.Reset()
	b.Stride = (len(tokens) + blockSize - 1) / blockSize
	b.Spans = append(b.Spans, gpu.Span{Len: int32(len(tokens)), Adapter: -1})
	b.Tokens = append(b.Tokens, tokens...)
	for i := range tokens {
		b.Positions = append(b.Positions, int32(i))
	}
	for i := range b.Stride {
		b.Blocks = append(b.Blocks, int32(i))
	}
}
