// Package sim is a device that computes nothing: it keeps time from a small model and makes up
// tokens. It is for measuring and testing everything around a device: load, scheduling, transport,
// faults.
//
// What it samples is deterministic (see distribution in tokens.go): a greedy token depends on the
// token before it and its position, a drawn one on the row's seed, choice and draw as well, so a
// sequence has the same text however it was batched, preempted or resumed. TopK is honoured, and so
// are masks and biases that leave no choice; penalties, TopP, MinP and how high the temperature is
// change nothing. It never makes a logits row.
package sim

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/troupe-llm/troupe/gpu"
)

// Options says how the device behaves. The zero value is a device that takes no time.
type Options struct {
	// A step takes Fixed + PerPrefillToken × tokens of spans that are not decodes + PerDecode ×
	// decodes + PerCachedToken × the sum of all spans' contexts (the positions before their start).
	// A decode is a span of one token, drafts apart, that has a context.
	Fixed, PerPrefillToken, PerDecode, PerCachedToken time.Duration
	// Sleep waits that long; it is called once a step that takes any time. nil waits in real time,
	// counting from the beginning of Run, and takes off the next step what a wait was too long, so
	// that steps are right on average though a timer is always late.
	Sleep func(time.Duration)

	Vocab int // size of the vocabulary; 0 is DefaultVocab
	// Tokens are the ids to draw from, for text that can be read; nil is all but EOS. EOS are the
	// end tokens, never drawn: only EOSAfter, a bias or a mask brings them.
	Tokens, EOS []int32
	// EOSAfter says how many tokens a sequence of this seed and choice has before it ends by itself
	// with EOS[0]; nil and a negative number: never.
	EOSAfter func(seed uint64, choice int32) int

	// BytesPerToken is what a token is said to occupy in the KV cache; 0 is DefaultBytesPerToken.
	BytesPerToken int64

	// Check makes Run verify that the caller keeps to the protocol, most of all that what a span's
	// block table says is its context is what was computed there. It costs time and memory.
	Check bool
	// Faults, when not nil, makes the device fail on demand. It may be shared by a device and those
	// opened after it.
	Faults *Faults
	Name   string // Info.Name; "" is "simulated"
}

// Defaults of Options.
const (
	DefaultVocab         = 32000
	DefaultBytesPerToken = 1024
	// maxDefaultBlocks bounds the cache of a device that was given no CacheBytes.
	maxDefaultBlocks = 1 << 18
)

// Sim is the simulated device.
type Sim struct {
	o      Options
	c      gpu.Config
	info   gpu.Info
	dist   distribution
	cache  *cache // nil unless Options.Check
	broken error  // why Run will never work again
	owed   time.Duration
}

var _ gpu.Device = (*Sim)(nil)

// Open returns a simulated device. It fails when the options make no sense, when CacheBytes is too
// little for one block, or when Options.Faults says so.
func Open(o Options, c gpu.Config) (*Sim, error) {
	if err := o.Faults.open(); err != nil {
		return nil, err
	}
	if o.Vocab == 0 {
		o.Vocab = DefaultVocab
	}
	if o.BytesPerToken == 0 {
		o.BytesPerToken = DefaultBytesPerToken
	}
	if o.Name == "" {
		o.Name = "simulated"
	}
	switch {
	case c.BlockSize < 1 || c.MaxSeqs < 1 || c.MaxTokens < 1 || c.MaxContext < 1:
		return nil, fmt.Errorf("sim: BlockSize %d, MaxSeqs %d, MaxTokens %d and MaxContext %d must all be at least 1",
			c.BlockSize, c.MaxSeqs, c.MaxTokens, c.MaxContext)
	case o.Vocab < 1:
		return nil, fmt.Errorf("sim: the vocabulary's size is %d, but must be at least 1", o.Vocab)
	case o.BytesPerToken < 0:
		return nil, fmt.Errorf("sim: BytesPerToken is %d, but must not be negative", o.BytesPerToken)
	case o.EOSAfter != nil && len(o.EOS) == 0:
		return nil, errors.New("sim: EOSAfter needs an end token in EOS")
	}
	s := &Sim{o: o, c: c}
	s.info = gpu.Info{Kind: "sim", Name: o.Name, BlockBytes: o.BytesPerToken * int64(c.BlockSize), Vocab: o.Vocab}
	perSequence := (c.MaxContext + c.BlockSize - 1) / c.BlockSize
	switch {
	case c.CacheBytes == 0:
		s.info.NumBlocks = max(perSequence, min(perSequence*c.MaxSeqs, maxDefaultBlocks))
	case c.CacheBytes < s.info.BlockBytes:
		return nil, fmt.Errorf("sim: a KV cache of %d bytes holds no block of %d bytes (%d tokens)",
			c.CacheBytes, s.info.BlockBytes, c.BlockSize)
	default:
		s.info.NumBlocks = int(c.CacheBytes / s.info.BlockBytes)
	}
	var err error
	if s.dist, err = newDistribution(&s.o); err != nil {
		return nil, err
	}
	if o.Check {
		s.cache = newCache(s.info.NumBlocks, c.BlockSize)
	}
	return s, nil
}

// Info describes the device.
func (s *Sim) Info() gpu.Info { return s.info }

// Close makes the device unusable.
func (s *Sim) Close() error {
	s.broken, s.cache = errClosed, nil
	return nil
}

var (
	errClosed     = errors.New("sim: the device is closed")
	errUnfinished = errors.New("sim: the device has not finished the step before and must be opened anew")
)

// Run makes up b's results in r and waits as long as the model says. Its errors are ErrInjected
// (see Faults), a *ProtocolError (with Options.Check), those of a Pool row or a target that is not in
// the vocabulary, and that of a device that has failed before or is closed: as on a real one, nothing
// works after an error or a panic.
func (s *Sim) Run(b *gpu.Batch, r *gpu.Result) error {
	if s.broken != nil {
		return s.broken
	}
	start := time.Now()
	s.broken = errUnfinished // stays so when a fault panics
	hang, err := s.o.Faults.step(b)
	if err == nil && s.cache != nil {
		err = s.cache.run(b, &s.c, s.info.Vocab)
	}
	if err == nil {
		r.Reset(b)
		for i := 0; i < len(b.Rows) && err == nil; i++ {
			err = s.row(b, r, i)
		}
	}
	if err != nil {
		s.broken = fmt.Errorf("sim: the device has failed before and must be opened anew: %w", err)
		return err
	}
	s.broken = nil
	s.wait(start, s.duration(b)+hang)
	return nil
}

// duration is how long the model says that b takes.
func (s *Sim) duration(b *gpu.Batch) time.Duration {
	var prefill, decodes, cached int64
	for i := range b.Spans {
		p := &b.Spans[i]
		if p.Len-p.Drafts == 1 && p.Start > 0 {
			decodes++
		} else {
			prefill += int64(p.Len)
		}
		cached += int64(p.Start)
	}
	return s.o.Fixed + time.Duration(prefill)*s.o.PerPrefillToken +
		time.Duration(decodes)*s.o.PerDecode + time.Duration(cached)*s.o.PerCachedToken
}

// wait lets d pass since start.
func (s *Sim) wait(start time.Time, d time.Duration) {
	if d <= 0 {
		return
	}
	if s.o.Sleep != nil {
		s.o.Sleep(d)
		return
	}
	left := d - s.owed - time.Since(start)
	if left > 0 {
		time.Sleep(left)
	} else {
		runtime.Gosched()
	}
	// No step may become shorter than half because of those before it.
	s.owed = min(max(s.owed+time.Since(start)-d, 0), d/2)
}
