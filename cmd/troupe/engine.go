package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/demo"
	"github.com/troupe-llm/troupe/model/fetch"
	"github.com/troupe-llm/troupe/model/hf"
	"github.com/troupe-llm/troupe/model/template"
	"github.com/troupe-llm/troupe/model/tiny"
	"github.com/troupe-llm/troupe/model/tokenizer"
	"github.com/troupe-llm/troupe/transport/openai"
)

// engineFlags are the flags of what runs a model: those that serve has, and whichever command runs
// one in its own process.
type engineFlags struct {
	Model        string  `arg:"" optional:"" placeholder:"MODEL" help:"A GGUF file or a folder with one, a folder of safetensors as Hugging Face lays them out, a short name that troupe pull prints, a model on the Hugging Face hub (org/repo, org/repo:Q4_K_M), or the URL of a file. What is not here is fetched into the cache. Default troupe-demo, a small demonstration model inside the program; with --device sim, none."`
	MaxModelLen  count   `placeholder:"TOKENS" help:"Longest sequence, prompt and output, in tokens (8K is 8192). Default: the model's." group:"Model"`
	ChatTemplate string  `placeholder:"FILE|TEMPLATE" help:"A Jinja chat template, or a file with one, instead of the model's own." group:"Model"`
	Quantization string  `short:"q" placeholder:"q8_0|q4_0|q4_k" help:"Quantise the weights of a model in safetensors as they are loaded; norms stay as they are, and embedding and output become q8_0 in any case. Default: none, the weights are computed with as they are. A GGUF file's quantisation is chosen by its name." group:"Model"`
	MaxLogprobs  int     `default:"20" placeholder:"N" help:"Most log probabilities that a request may ask for per token. Default: ${default}." group:"Model"`
	Seed         *uint64 `placeholder:"N" help:"Seed of requests that name none, so that the same requests in the same order give the same texts. Default: random." group:"Model"`

	Device              string   `default:"auto" enum:"auto,cuda,cpu,host,sim" placeholder:"auto|cuda|cpu|sim" help:"What computes: cuda is an NVIDIA GPU, in a program built with it; cpu, or host, is this machine's processor; auto is the GPU where there is one, else the processor; sim computes nothing and keeps time, for load work. Default: ${default}." group:"Device and scheduling"`
	DataParallelSize    int      `default:"1" placeholder:"N" help:"Compute on N devices, each with the whole model and a KV cache of its own: on cuda the first N GPUs, on cpu devices that share the weights and divide the threads. A request goes to the one that has computed the longest beginning of its prompt, as long as that has not much more to do than the others. --max-num-seqs, --max-num-batched-tokens and the KV cache's memory are each device's. Default: ${default}." group:"Device and scheduling"`
	TensorParallelSize  int      `default:"1" placeholder:"1" help:"Only 1: a model is on one device as a whole. See --data-parallel-size." group:"Device and scheduling"`
	PipelineParallel    int      `name:"pipeline-parallel-size" default:"1" placeholder:"1" help:"Only 1, as --tensor-parallel-size." group:"Device and scheduling"`
	Threads             int      `placeholder:"N" help:"Threads of the CPU device, or of all CPU devices together. Default: one per core." group:"Device and scheduling"`
	MaxNumSeqs          count    `placeholder:"N" help:"Most sequences in one step. Default: 64 on cpu, 256 on cuda and sim." group:"Device and scheduling"`
	MaxNumBatchedTokens count    `placeholder:"N" help:"Most tokens in one step; longer prompts are computed in chunks of it, while others decode. At least --max-num-seqs. Default: 128 on cpu, 2048 on cuda and sim, or as many as sequences." group:"Device and scheduling"`
	BlockSize           int      `default:"16" placeholder:"TOKENS" help:"Tokens per block of the KV cache. Default: ${default}." group:"Device and scheduling"`
	KVCacheMemoryBytes  byteSize `name:"kv-cache-memory-bytes" placeholder:"SIZE" help:"Memory for the KV cache: 512MiB, 2G. Default: a quarter of the memory available, on a GPU what --gpu-memory-utilization leaves, or what --max-num-seqs sequences of full length need, if that is less." group:"Device and scheduling"`
	GPUMemory           *float64 `name:"gpu-memory-utilization" placeholder:"SHARE" help:"Share of the GPU's memory for weights, activations and KV cache together, above 0 and at most 1, where --kv-cache-memory-bytes doesn't say. Default: 0.9." group:"Device and scheduling"`
	KVCacheDtype        string   `name:"kv-cache-dtype" default:"auto" enum:"auto,f32,f16,q8_0" placeholder:"auto|f32|f16|q8_0" help:"Type of the numbers in the KV cache. f16 takes half the memory of f32, and q8_0, bytes with a scale for every 32, half that of f16 for less exact answers; f32 is for models whose keys or values exceed 65504. auto is f16. Default: ${default}." group:"Device and scheduling"`
	EnablePrefixCaching bool     `default:"true" negatable:"" help:"Share the KV cache of equal prompt beginnings among requests. On by default." group:"Device and scheduling"`
	MaxNumQueuedReqs    int      `name:"max-num-queued-reqs" aliases:"max-queued" default:"1024" placeholder:"N" help:"Most requests at a time, running and waiting; more get 429. Default: ${default}." group:"Device and scheduling"`

	SimStep           time.Duration `placeholder:"DURATION" help:"What a step takes at least, as in 20ms." group:"Simulated device (--device sim)"`
	SimPrefillToken   time.Duration `placeholder:"DURATION" help:"In addition, per prompt token computed, as in 50us." group:"Simulated device (--device sim)"`
	SimDecodeSequence time.Duration `placeholder:"DURATION" help:"In addition, per sequence that decodes." group:"Simulated device (--device sim)"`
	SimCachedToken    time.Duration `placeholder:"DURATION" help:"In addition, per token of context that is read from the KV cache." group:"Simulated device (--device sim)"`
	SimLostAtStep     uint64        `placeholder:"N" help:"The step at which the device, of several the first, is lost for good, as a GPU can be: its requests fail, or go on with the others, the server ends with status 1, and one can see what the service manager does." group:"Simulated device (--device sim)"`

	resolved string // what the model is called, once it is found
	bar      *progress
	kind     string // what computes, once that is decided; see computes
	noGPU    error  // why it isn't a GPU, where --device leaves it open
}

// computes decides what --device asks for: "cuda", "host" or "sim".
func (f *engineFlags) computes() string {
	if f.kind != "" {
		return f.kind
	}
	switch f.kind = f.Device; f.kind {
	case "cpu":
		f.kind = "host"
	case "auto", "":
		f.kind = "host"
		if !cuda.Built {
			break // there is nothing to say about GPUs
		}
		if f.noGPU = cuda.Find(1); f.noGPU == nil {
			f.kind = "cuda"
		}
	}
	return f.kind
}

// knownQuantization checks a --quantization, and spells it in small letters.
func knownQuantization(name *string) error {
	*name = strings.ToLower(*name)
	if *name != "" && !slices.Contains(hf.Quantizations(), *name) {
		return fmt.Errorf("--quantization is %s, but must be one of %s", *name, strings.Join(hf.Quantizations(), ", "))
	}
	return nil
}

// parallel refuses ways to use several devices that there are not.
func (f *engineFlags) parallel() error {
	for _, p := range []struct {
		name string
		n    int
	}{{"--tensor-parallel-size", f.TensorParallelSize}, {"--pipeline-parallel-size", f.PipelineParallel}} {
		if p.n != 1 {
			return fmt.Errorf("%s is %d, but a model is not divided among devices: it must be 1. --data-parallel-size N puts the whole model on each of N devices, which share the requests", p.name, p.n)
		}
	}
	return numberWithin("--data-parallel-size", f.DataParallelSize, 1, actors.MaxEngines)
}

// validate refuses what makes no sense together or is out of range.
func (f *engineFlags) validate() error {
	if err := f.parallel(); err != nil {
		return err
	}
	if f.MaxNumBatchedTokens > 0 && f.MaxNumSeqs > f.MaxNumBatchedTokens {
		return fmt.Errorf("--max-num-batched-tokens is %d, which leaves no token a step for some of --max-num-seqs %d sequences: raise the former or lower the latter",
			f.MaxNumBatchedTokens, f.MaxNumSeqs)
	}
	if err := knownQuantization(&f.Quantization); err != nil {
		return err
	}
	if u := f.GPUMemory; u != nil {
		if !(*u > 0 && *u <= 1) {
			return fmt.Errorf("--gpu-memory-utilization is %v, but must be above 0 and at most 1", *u)
		}
		if f.Device != "auto" && f.Device != "cuda" {
			return fmt.Errorf("--gpu-memory-utilization is for a GPU, and --device is %s: use --kv-cache-memory-bytes instead", f.Device)
		}
	}
	simulated := []struct {
		name string
		d    time.Duration
	}{
		{"--sim-step", f.SimStep}, {"--sim-prefill-token", f.SimPrefillToken},
		{"--sim-decode-sequence", f.SimDecodeSequence}, {"--sim-cached-token", f.SimCachedToken},
	}
	for i, s := range simulated {
		if s.d != 0 && f.Device != "sim" {
			return fmt.Errorf("%s is for the simulated device: add --device sim, or remove it", s.name)
		}
		most := time.Minute // multiplied by the tokens of a step
		if i == 0 {
			most = longest
		}
		if err := durationWithin(s.name, s.d, most); err != nil {
			return err
		}
	}
	if f.SimLostAtStep != 0 && f.Device != "sim" {
		return errors.New("--sim-lost-at-step is for the simulated device: add --device sim, or remove it")
	}
	for _, n := range []struct {
		name        string
		v, min, max int
	}{
		{"--block-size", f.BlockSize, 1, 1 << 20}, {"--threads", f.Threads, 0, 4096},
		{"--max-num-queued-reqs", f.MaxNumQueuedReqs, 1, 1 << 30}, {"--max-logprobs", f.MaxLogprobs, 1, 1 << 20},
		// What is allocated by these at the start must not be more than any machine has. 0: not given.
		{"--max-model-len", int(f.MaxModelLen), 0, 1 << 24}, {"--max-num-seqs", int(f.MaxNumSeqs), 0, 1 << 16},
		{"--max-num-batched-tokens", int(f.MaxNumBatchedTokens), 0, 1 << 24},
	} {
		if err := numberWithin(n.name, n.v, n.min, n.max); err != nil {
			return err
		}
	}
	if f.KVCacheMemoryBytes > 64<<40 {
		return fmt.Errorf("--kv-cache-memory-bytes is %v, but must be at most 64 TiB", f.KVCacheMemoryBytes)
	}
	return nil
}

// engine is a model that has been opened, and all that it takes to run it.
type engine struct {
	flags    *engineFlags
	model    *model.Model
	root     string             // the name under which others find its tokenizer
	template *template.Template // nil when it has none
	maxLen   int                // of a sequence, in tokens
}

// open finds the model, fetches it if need be, and opens it. What it fetches is shown on stderr; ctx
// ends that. The caller closes the engine.
func (f *engineFlags) open(ctx context.Context, stderr stderrWriter) (*engine, error) {
	raiseHeapFloor() // opening a model fills it more than once
	e := &engine{flags: f}
	if err := f.enough(); err != nil { // before a model is fetched for them
		return nil, err
	}
	var err error
	if e.model, e.root, err = f.find(ctx, stderr); err != nil {
		return nil, err
	}
	if e.template, err = f.template(e.model); err == nil {
		e.maxLen, err = f.maxModelLen(e.model)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// enough says why there are not as many devices as are asked for, or nil where there are.
func (f *engineFlags) enough() error {
	n := f.DataParallelSize
	switch f.computes() {
	case "cuda":
		if err := cuda.Find(1); err != nil {
			return fmt.Errorf("--device cuda: %w", err)
		}
		if n == 1 {
			break
		}
		if err := cuda.Find(n); err != nil {
			return fmt.Errorf("--data-parallel-size %d: %w: ask for no more GPUs than there are, and look whether CUDA_VISIBLE_DEVICES hides some", n, err)
		}
	case "host":
		if threads := f.allThreads(); n > threads {
			return usageError{fmt.Errorf("--data-parallel-size %d leaves some CPU devices without a thread, as the number of threads is %d: ask for no more devices than that, or raise --threads", n, threads)}
		}
	}
	return nil
}

// allThreads is how many threads CPU devices have together.
func (f *engineFlags) allThreads() int {
	if f.Threads > 0 {
		return f.Threads
	}
	return host.Threads()
}

// Close gives the model's memory back. What runs it must have ended.
func (e *engine) Close() { e.model.Close() }

// start makes the runtime that owns the device. Of c, the caller sets what is its own affair: who
// observes, timeouts, the logger.
func (e *engine) start(c actors.Config) (*actors.Runtime, error) {
	f := e.flags
	cacheType, err := gpu.ParseCacheType(f.KVCacheDtype)
	if err != nil {
		return nil, err
	}
	var started atomic.Bool // what a device that is opened anew later loads is shown nowhere
	report := func(done, total int64, what string) {
		if f.bar != nil && !started.Load() {
			f.bar.load(done, total, what)
		}
	}
	c.Engines = f.DataParallelSize
	c.BlockSize, c.MaxSeqs, c.MaxTokens, c.MaxContext = f.BlockSize, f.sequences(), f.stepTokens(), e.maxLen
	c.Open = f.device(e.model, gpu.Config{
		BlockSize: c.BlockSize, CacheBytes: int64(f.KVCacheMemoryBytes), MaxSeqs: c.MaxSeqs,
		MaxTokens: c.MaxTokens, MaxContext: c.MaxContext, Threads: f.Threads,
		CacheType: cacheType,
	}, c.Logger, report)
	c.PrefixCaching, c.EOS, c.Tokenizer = f.EnablePrefixCaching, e.model.Generation.EOS, e.model.Tokenizer
	c.MaxRequests = f.MaxNumQueuedReqs
	rt, err := actors.New(c)
	started.Store(true)
	f.bar.clear() // the device may have had weights quantised
	return rt, err
}

// env is what the API's parsers need to know of the model. served are its names there.
func (e *engine) env(served []string) *openai.Env {
	f, m, g := e.flags, e.model, &e.model.Generation
	return &openai.Env{
		Served: served, Root: e.root, Description: m.Description, MaxModelLen: e.maxLen, Vocab: m.Tokenizer.Size(), Tokenizer: m.Tokenizer,
		Template: e.template, EOS: g.EOS,
		Defaults: openai.Defaults{Temperature: g.Temperature, TopP: g.TopP, MinP: g.MinP, RepetitionPenalty: g.RepetitionPenalty, TopK: g.TopK},
		Seed:     f.seeds(), MaxLogprobs: f.MaxLogprobs, Created: time.Now().Unix(),
	}
}

// find finds, fetches and opens the model. root is the name under which others find its tokenizer.
func (f *engineFlags) find(ctx context.Context, stderr stderrWriter) (m *model.Model, root string, err error) {
	if f.Quantization != "" && (f.Model == "" || f.Model == demo.Name) {
		return nil, "", usageError{errors.New("--quantization is for a model in safetensors, and none is named")}
	}
	if f.Model == "" && f.Device == "sim" {
		return tiny.Model(tiny.Options{}), "sim", nil
	}
	if f.Model == "" {
		f.Model = demo.Name
	}
	if f.Model == demo.Name {
		f.resolved = demo.Name
		m, err = demo.Open()
		return m, demo.Name, err
	}
	f.bar = newProgress(stderr, terminal(stderr))
	resolve := fetch.Resolve
	if f.Quantization != "" {
		resolve = fetch.ResolveFolder // which downloads nothing that is not quantised
	}
	r, err := resolve(ctx, f.Model, f.bar.report)
	f.bar.clear()
	if gguf := (*fetch.GGUFError)(nil); errors.As(err, &gguf) {
		return nil, "", usageError{fmt.Errorf("--quantization is for models in safetensors, but %w: leave it out, since a GGUF file's weights are computed with as they are, and choose a quantisation by the name, as in org/repo:Q8_0", err)}
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx) // also when all was there already
	}
	if err != nil {
		return nil, "", nameIsUsage(err)
	}
	f.resolved = r.Name
	if m, err = model.OpenWith(r.Path, model.Options{Quantization: f.Quantization, Progress: f.bar.convert}); err != nil {
		if r.Cached { // it would be found there again
			err = fmt.Errorf("%w; if that was a bad download, remove it with troupe rm %s and start again to fetch it anew", err, r.Path)
		}
		return nil, "", err
	}
	return m, r.Root, nil
}

// template makes the chat template of --chat-template or of the model; nil when there is none.
func (f *engineFlags) template(m *model.Model) (*template.Template, error) {
	source, name := m.Template, "the chat template of "+m.Name
	if f.ChatTemplate != "" {
		source, name = f.ChatTemplate, "--chat-template"
		// What has no braces is no template, but the name of a file, be it there or not.
		if b, err := os.ReadFile(f.ChatTemplate); err == nil {
			source, name = string(b), "--chat-template "+f.ChatTemplate
		} else if !strings.Contains(f.ChatTemplate, "{") {
			return nil, fmt.Errorf("--chat-template: %w", err)
		}
	}
	if source == "" {
		return nil, nil
	}
	piece := func(id int32) string {
		if id < 0 {
			return ""
		}
		return m.Tokenizer.Piece(id)
	}
	t, err := template.Parse(source, template.Options{BOS: piece(m.Tokenizer.BOS()), EOS: piece(m.Tokenizer.EOS())})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

// simContext is the longest sequence of the simulated device when neither a flag nor a model says.
const simContext = 8192

// maxModelLen is the longest sequence.
func (f *engineFlags) maxModelLen(m *model.Model) (int, error) {
	switch {
	case f.Device == "sim" && f.MaxModelLen > 0:
		return int(f.MaxModelLen), nil
	case f.Model == "":
		return simContext, nil
	case f.MaxModelLen == 0:
		return m.Config.Context, nil
	case int(f.MaxModelLen) > m.Config.Context:
		return 0, usageError{fmt.Errorf("--max-model-len is %d, but %s was made for sequences of up to %d tokens: ask for no more", f.MaxModelLen, m.Name, m.Config.Context)}
	}
	return int(f.MaxModelLen), nil
}

// sequences and stepTokens are the limits of a step: sequences, and tokens. A CPU computes some
// hundred tokens a second: more of a prompt at a time would hold up those who decode, and whoever
// cancels.
func (f *engineFlags) sequences() int {
	n := 64
	if f.computes() != "host" {
		n = 256
	}
	switch {
	case f.MaxNumSeqs > 0:
		n = int(f.MaxNumSeqs)
	case f.MaxNumBatchedTokens > 0:
		n = min(n, int(f.MaxNumBatchedTokens))
	}
	return n
}

func (f *engineFlags) stepTokens() int {
	switch {
	case f.MaxNumBatchedTokens > 0:
		return int(f.MaxNumBatchedTokens)
	case f.computes() != "host":
		return max(2048, f.sequences())
	}
	return max(128, f.sequences())
}

// name is the model's own name in the API.
func (f *engineFlags) name() string {
	if f.Model == "" {
		return "sim"
	}
	name := f.resolved
	if name == "" { // not opened yet
		name = f.Model
	}
	// Names go into JSON and metrics, while a file's may be any bytes.
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(name, string(utf8.RuneError)))
}

// seeds gives requests without a seed theirs: with --seed a fixed series, else nil, for random ones.
func (f *engineFlags) seeds() func() uint64 {
	if f.Seed == nil {
		return nil
	}
	var n atomic.Uint64
	return func() uint64 { return rand.NewPCG(*f.Seed, n.Add(1)).Uint64() }
}

// maxBlocks bounds the KV cache's blocks, on each of which the scheduler keeps some 50 bytes of its
// own: the simulated device's cost it no other memory.
const maxBlocks = 1 << 24

// device returns how to open the device, of which log hears, and report of its weights.
func (f *engineFlags) device(m *model.Model, dc gpu.Config, log *slog.Logger, report fetch.Progress) func(engine int) (gpu.Device, error) {
	open := f.opener(m, dc, log, report)
	return func(engine int) (gpu.Device, error) {
		d, err := open(engine)
		if err != nil {
			return nil, err
		}
		if n := d.Info().NumBlocks; n < 1 || n > maxBlocks {
			return nil, errors.Join(usageError{fmt.Errorf("the KV cache would have %d blocks of %d tokens, but at most %d can be managed: lower --kv-cache-memory-bytes or raise --block-size",
				n, dc.BlockSize, maxBlocks)}, d.Close())
		}
		return d, nil
	}
}

func (f *engineFlags) opener(m *model.Model, dc gpu.Config, log *slog.Logger, report fetch.Progress) func(engine int) (gpu.Device, error) {
	if f.Device == "sim" {
		o := sim.Options{
			Fixed: f.SimStep, PerPrefillToken: f.SimPrefillToken, PerDecode: f.SimDecodeSequence, PerCachedToken: f.SimCachedToken,
			Vocab: m.Tokenizer.Size(), EOS: m.Generation.EOS, Tokens: readable(m.Tokenizer),
		}
		var faults *sim.Faults // of the first device alone
		if f.SimLostAtStep > 0 {
			faults = &sim.Faults{}
			faults.LoseAt(f.SimLostAtStep, -1)
		}
		return func(engine int) (gpu.Device, error) {
			o := o
			if engine == 0 {
				o.Faults = faults
			}
			return sim.Open(o, dc)
		}
	}
	if f.computes() == "cuda" {
		o := cuda.Options{Utilization: cuda.DefaultUtilization, Logger: log}
		if f.GPUMemory != nil {
			o.Utilization = *f.GPUMemory
		}
		return func(engine int) (gpu.Device, error) {
			o := o
			if o.Ordinal = engine; engine == 0 {
				o.Progress = report
			}
			if f.DataParallelSize > 1 {
				o.Logger = log.With(slog.Int("engine", engine))
			}
			return cuda.Open(m, dc, o)
		}
	}
	weights, threads, n := host.Share(m, f.DataParallelSize), f.allThreads(), f.DataParallelSize
	return func(engine int) (gpu.Device, error) {
		dc := dc
		dc.Threads = (threads + n - 1 - engine) / n // the first ones get those that are over
		d, err := weights.Open(dc)
		if err != nil {
			return nil, err // not a nil *host.Host in an interface
		}
		return d, nil
	}
}

// readable lists the tokens that are plain ASCII text, so that what the simulated device makes up can
// be looked at.
func readable(t *tokenizer.Tokenizer) []int32 {
	var ids []int32
	var b []byte
	for id := range int32(t.Size()) {
		b = t.AppendBytes(b[:0], id)
		plain := len(b) > 0 && t.Valid(id) && !t.IsSpecial(id)
		for _, c := range b {
			plain = plain && c >= ' ' && c <= '~'
		}
		if plain {
			ids = append(ids, id)
		}
	}
	return ids
}
