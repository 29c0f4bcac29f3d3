package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/troupe-llm/troupe/bench"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/host"
)

// benchPerplexityCmd are the flags of bench perplexity.
type benchPerplexityCmd struct {
	Model string `arg:"" optional:"" placeholder:"MODEL" help:"As for troupe serve: a GGUF file or a folder with one, a folder of safetensors, a short name, a model on the Hugging Face hub, or a URL. Default troupe-demo."`

	Text         string `placeholder:"FILE" help:"The text; - is stdin. Required."`
	Context      count  `aliases:"ctx-size" default:"512" placeholder:"TOKENS" help:"Tokens of a chunk, each of which is a sequence of its own. Default: ${default}."`
	Chunks       count  `placeholder:"N" help:"Most chunks. Default: all of the text."`
	Quantization string `short:"q" placeholder:"q8_0|q4_0|q4_k" help:"As for troupe serve: quantise the weights of a model in safetensors as they are loaded."`
	Threads      int    `placeholder:"N" help:"Threads. Default: one per core."`
	KVCacheDtype string `name:"kv-cache-dtype" default:"auto" enum:"auto,f32,f16,q8_0" placeholder:"auto|f32|f16|q8_0" help:"Type of the numbers in the KV cache. auto is f16. Default: ${default}."`
	JSON         bool   `name:"json" help:"Print a JSON object instead of the table."`
}

// Help implements kong.HelpProvider.
func (*benchPerplexityCmd) Help() string {
	return `Says how well a model foretells a text: e to the mean of the tokens' negative log probabilities. Lower is
better; it tells two quantisations of one model apart, or two programs that compute the same one. Figures of
models with different tokenizers, and on different texts, say nothing of each other.

It is defined as by llama.cpp's llama-perplexity, with the same figure for the same file, text and --context
(there --ctx-size): the text is cut into chunks, and of each the tokens after its first half are scored. After
± stands the standard error. What is left at the end of the text, less than a chunk, isn't used.

Examples:

  troupe bench perplexity model.gguf --text book.txt
  troupe bench perplexity model.gguf --text book.txt --chunks 20 --json
  troupe bench perplexity Qwen/Qwen3-0.6B -q q8_0 --kv-cache-dtype q8_0 --text book.txt

Ctrl-C ends with the chunks that are done.

Exit status: 0 when a chunk was measured, 1 when not, 2 when the flags make no sense.`
}

// Validate implements kong's interface.
func (c *benchPerplexityCmd) Validate() error {
	if c.Text == "" {
		return errors.New("--text is missing: name a file with a text, or - for stdin")
	}
	if err := numberWithin("--context", int(c.Context), bench.MinPerplexityContext, 1<<20); err != nil {
		return err
	}
	if err := knownQuantization(&c.Quantization); err != nil {
		return err
	}
	return numberWithin("--threads", c.Threads, 0, 4096)
}

// perplexityBlock is how many tokens a block of the KV cache has; it changes nothing.
const perplexityBlock = 32

// Run implements the command.
func (c *benchPerplexityCmd) Run(stdout io.Writer, stderr stderrWriter) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cacheType, err := gpu.ParseCacheType(c.KVCacheDtype)
	if err != nil {
		return err
	}
	text, err := readText(c.Text)
	if err != nil {
		return err
	}
	f := engineFlags{Model: c.Model, Device: "host", Quantization: c.Quantization}
	m, _, err := f.find(ctx, stderr)
	if err != nil {
		return err
	}
	defer m.Close()
	n := int(c.Context)
	if n > m.Config.Context {
		return usageError{fmt.Errorf("--context is %d, but %s was made for sequences of up to %d tokens: ask for no more", n, m.Name, m.Config.Context)}
	}
	tokens := m.Tokenizer.Encode(string(text), true, false)
	if len(tokens) < n { // before the weights are packed
		return fmt.Errorf("%s has %d tokens, but --context is %d: take a longer text, or a smaller --context", c.Text, len(tokens), n)
	}
	d, err := host.Open(m, gpu.Config{BlockSize: perplexityBlock, MaxSeqs: 1, MaxTokens: n, MaxContext: n, Threads: c.Threads, CacheType: cacheType})
	f.bar.clear() // it may have had weights quantised
	if err != nil {
		return err
	}
	o := bench.PerplexityOptions{Context: n, Chunks: int(c.Chunks), BOS: -1}
	if m.Tokenizer.AddsBOS() {
		o.BOS = m.Tokenizer.BOS()
	}
	onTerminal, told := terminal(stderr), time.Now()
	o.Progress = func(done, chunks int, perplexity float64) {
		if onTerminal {
			fmt.Fprintf(stderr, "\r\x1b[Kchunk %d of %d: %.4f", done, chunks, perplexity)
		} else if now := time.Now(); now.Sub(told) >= tellEvery {
			told = now
			fmt.Fprintf(stderr, "chunk %d of %d: %.4f\n", done, chunks, perplexity)
		}
	}
	p, err := bench.MeasurePerplexity(ctx, d, perplexityBlock, tokens, o)
	if onTerminal {
		fmt.Fprint(stderr, "\r\x1b[K")
	}
	if err = errors.Join(err, d.Close()); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted before a chunk was measured: %w", err)
		}
		return err
	}
	if c.JSON {
		return p.WriteJSON(stdout, f.name(), c.Text)
	}
	return p.WriteTable(stdout, f.name(), c.Text)
}

// readText reads a file or stdin.
func readText(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, usageError{fmt.Errorf("--text: %w", err)}
	}
	return b, nil
}
