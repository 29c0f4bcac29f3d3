// Package gpu defines what computes: a Device runs one step at a time over flat data that a CPU
// and a GPU read alike. Its sub-packages are the devices (host, sim, cuda) and sample, which turns
// logits into tokens. It knows nothing of actors or HTTP.
package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Device computes one step at a time. It is called from one goroutine, pinned to one OS thread.
type Device interface {
	// Info describes the opened device; it does not change while the device is open.
	Info() Info
	// Run executes one ragged batch: block copies first, then prefill chunks and decodes together,
	// and the sampling. It reads b, fills r (see Result.Reset), and keeps neither. After an error
	// the device's KV cache is undefined, and the caller must Close it and open a new one.
	Run(b *Batch, r *Result) error
	// Close frees everything. The device is unusable afterwards.
	Close() error
}

// StickyError wraps an error that has broken what this process had to do with a device: by its driver's
// account nothing of it may work any more, not even in a device opened anew. A device's Run and its opening
// return it. Who gets one tries to open the device again; when that fails too, only another process can.
type StickyError struct{ Err error }

// Error is the wrapped error's text.
func (e *StickyError) Error() string { return e.Err.Error() }

// Unwrap is the wrapped error.
func (e *StickyError) Unwrap() error { return e.Err }

// Sticky says whether err is or wraps a StickyError.
func Sticky(err error) bool {
	var s *StickyError
	return errors.As(err, &s)
}

// UnsupportedError wraps the error of opening a device that does not compute such a model: its architecture, or
// a type of its weights.
type UnsupportedError struct{ Err error }

// Error is the wrapped error's text.
func (e *UnsupportedError) Error() string { return e.Err.Error() }

// Unwrap is the wrapped error.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// Unsupported says whether err is or wraps an UnsupportedError.
func Unsupported(err error) bool {
	var u *UnsupportedError
	return errors.As(err, &u)
}

// Config is what a device needs to know when it is opened.
type Config struct {
	BlockSize  int   // tokens per KV cache block
	CacheBytes int64 // memory for the KV cache; 0 lets the device choose its default share
	MaxSeqs    int   // most sequences in one batch; slots are 0 … MaxSeqs−1
	MaxTokens  int   // most tokens in one batch
	MaxContext int   // longest sequence, prompt and output, in tokens
	Threads    int   // worker threads of a CPU device; 0 is one per core
	// CacheType is how keys and values are stored.
	CacheType CacheType
}

// CacheType is a type of numbers in a KV cache.
type CacheType uint8

// The types of KV caches.
const (
	CacheAuto CacheType = iota // the device's choice
	CacheF32                   // IEEE 754 single precision
	CacheF16                   // IEEE 754 half precision: half the memory; magnitudes from 65520 on overflow
	CacheQ8_0                  // signed bytes with a half-precision scale for every 32 of a head's numbers
)

// cacheTypes are the types' names.
var cacheTypes = []string{CacheAuto: "auto", CacheF32: "f32", CacheF16: "f16", CacheQ8_0: "q8_0"}

// String is the type's name, as ParseCacheType reads it.
func (t CacheType) String() string {
	if int(t) < len(cacheTypes) {
		return cacheTypes[t]
	}
	return "CacheType(" + strconv.Itoa(int(t)) + ")"
}

// ParseCacheType reads a type's name: auto, f32, f16 or q8_0.
func ParseCacheType(name string) (CacheType, error) {
	if i := slices.Index(cacheTypes, name); i >= 0 {
		return CacheType(i), nil
	}
	if strings.HasPrefix(name, "fp8") || strings.HasPrefix(name, "int8") {
		return 0, fmt.Errorf("KV cache type %q: the one of 8 bits is %v", name, CacheQ8_0)
	}
	return 0, fmt.Errorf("KV cache type %q: it must be one of %s", name, strings.Join(cacheTypes, ", "))
}

// Info describes an opened device.
type Info struct {
	Kind       string // "host", "sim", "cuda"
	Name       string // what a person would call it, such as the processor's name
	NumBlocks  int    // KV cache blocks that fit; block numbers are 0 … NumBlocks−1
	BlockBytes int64  // memory of one block over all layers
	CacheType  string // type of the numbers in the KV cache; empty where it stores none
	Vocab      int    // size of a logits row
}

// Batch is one step's work. Its slices are the caller's, reused from step to step; a device reads
// them during Run only.
type Batch struct {
	// Tokens and Positions have one entry per position to compute, span after span. A position is
	// a token's index within its sequence, from 0.
	Tokens    []int32
	Positions []int32
	// Spans are the runs of consecutive tokens, one per sequence in the batch.
	Spans []Span
	// Blocks holds the block table of span i at Blocks[i*Stride : (i+1)*Stride]: entry j is the
	// block of positions j×BlockSize … Entries past the span's last position are −1.
	Blocks []int32
	Stride int
	// Copies are done, in order, before anything is computed.
	Copies []Copy
	// Rows are what is wanted of which position, in the order of their tokens.
	Rows []Row
	// History, Bias and Masks are pools that rows point into.
	History []int32
	Bias    []Bias
	// Masks are bit sets over the vocabulary of MaskWords words each: token t is allowed when bit
	// t%32 of word t/32 is set.
	Masks     []uint32
	MaskWords int
}

// Span is a run of consecutive tokens of one sequence. Keys and values of positions before Start
// are already in the sequence's blocks; those of the span's own positions are written by the step.
type Span struct {
	First   int32 // index of the first token in Batch.Tokens
	Len     int32 // number of tokens, at least 1
	Start   int32 // position of the first token: the length of the context before it
	Slot    int32 // the sequence's slot, stable while it runs
	Adapter int32 // adapter slot; −1 for none
	Drafts  int32 // how many of the last tokens are drafts to be verified
}

// Copy copies a whole KV cache block.
type Copy struct{ From, To int32 }

// RowKind says what a row asks for.
type RowKind uint8

// The kinds of rows.
const (
	Sample RowKind = iota // a token drawn from the position's distribution
	Score                 // the log probability of the given Target at this position
	Pool                  // the position's hidden state after the last norm
)

// Row asks for something of one position.
type Row struct {
	Kind  RowKind
	Token int32 // index into Batch.Tokens of the position whose output is used
	Span  int32 // index into Batch.Spans

	// Top is how many of the likeliest tokens to return with the log probability: −1 no log
	// probability at all (Sample only), 0 only the chosen one's.
	Top    int32
	Target int32 // Score: the token to score

	// What follows is for Sample alone, with the meaning and ranges of lifecycle.Params.
	Temperature, TopP, MinP                              float32
	TopK                                                 int32
	RepetitionPenalty, PresencePenalty, FrequencyPenalty float32
	// Seed, Choice and Draw key the random numbers: Draw is the index of the wanted token within
	// the output.
	Seed   uint64
	Choice int32
	Draw   int32
	// HistoryFirst and HistoryLen say where in Batch.History the tokens so far lie (only filled when
	// a penalty is on); the first HistoryPrompt of them are the prompt.
	HistoryFirst, HistoryLen, HistoryPrompt int32
	// BiasFirst and BiasLen say where in Batch.Bias the biases lie, sorted by ID. A value of −Inf
	// bans the token.
	BiasFirst, BiasLen int32
	Mask               int32 // which mask of Batch.Masks; −1 for none
}

// Bias is added to a token's logit.
type Bias struct {
	ID    int32
	Value float32
}

// Result is what a step produced, row by row. It is the caller's and reused; the device fills it.
type Result struct {
	Tokens   []int32   // per row: Sample: the token; Score: the target; Pool: −1
	Logprobs []float32 // per row: of that token (natural log, unmodified logits); 0 where Top is −1
	Ranks    []int32   // per row: 1 + the number of likelier tokens; 0 where Top is −1
	// The alternatives of row i are TopIDs and TopLogprobs[TopFirst[i]:TopFirst[i+1]], likeliest
	// first, ties to the lowest id.
	TopFirst    []int32
	TopIDs      []int32
	TopLogprobs []float32
	Pooled      []float32 // the Pool rows' vectors, one after another
}

// Reset makes r fit for the rows of b: every per-row slice gets its length, TopFirst the offsets
// that the rows' Top asks for, and the alternatives their space.
func (r *Result) Reset(b *Batch) {
	n := len(b.Rows)
	r.Tokens = grow(r.Tokens, n)
	r.Logprobs = grow(r.Logprobs, n)
	r.Ranks = grow(r.Ranks, n)
	r.TopFirst = grow(r.TopFirst, n+1)
	total := int32(0)
	for i := range b.Rows {
		r.Tokens[i], r.Logprobs[i], r.Ranks[i] = -1, 0, 0
		r.TopFirst[i] = total
		total += max(b.Rows[i].Top, 0)
	}
	r.TopFirst[n] = total
	r.TopIDs = grow(r.TopIDs, int(total))
	r.TopLogprobs = grow(r.TopLogprobs, int(total))
	r.Pooled = r.Pooled[:0]
}

// Reset empties b and keeps its memory.
func (b *Batch) Reset() {
	b.Tokens, b.Positions, b.Spans = b.Tokens[:0], b.Positions[:0], b.Spans[:0]
	b.Blocks, b.Copies, b.Rows = b.Blocks[:0], b.Copies[:0], b.Rows[:0]
	b.History, b.Bias, b.Masks = b.History[:0], b.Bias[:0], b.Masks[:0]
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}
