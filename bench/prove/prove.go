// Package prove shows that a device computes what it should on the machine at hand, and how fast: the suite of
// all devices, every architecture and type of weights beside other implementations, goldens, a fault in
// mid-load, speeds beside what memory and arithmetic allow, and a serving load. It is what troupe prove runs.
package prove

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
)

// Subject is the device that is to be proved.
type Subject struct {
	Kind string // "cuda" or "cpu"
	Name string // the GPU's or the processor's
	// Open opens it for a model.
	Open func(*model.Model, gpu.Config) (gpu.Device, error)
	// Break makes an open device fail at its next step, and How says by what.
	Break func(gpu.Device) error
	How   string
	// Tolerance is how far log probabilities of the same position may differ in other company: 0 asks for the same
	// bits.
	Tolerance float64
	// StepTokens is how many tokens a step may have while it serves.
	StepTokens int
	// Limits finds out what the hardware can do at most.
	Limits func() (Limits, error)
	// Memory is what there is for weights and KV cache, in bytes; 0 is unknown.
	Memory int64
}

// Limits are what hardware can do at most. 0 is unknown, and then the text says why.
type Limits struct {
	BytesPerSecond        float64 `json:"bytes_per_second"` // from memory
	BytesHow              string  `json:"bytes_how"`
	MultiplyAddsPerSecond float64 `json:"multiply_adds_per_second"`
	MultiplyAddsHow       string  `json:"multiply_adds_how"`
}

// Options say what is proved.
type Options struct {
	Subject Subject
	// Model is what speeds and the load are measured with, and Name what it is called. It stays the caller's.
	Model   *model.Model
	Name    string
	Version string // the program's
	// Goldens of Model; nil if there are none, and NoGoldens says why.
	Goldens   *devicetest.Goldens
	NoGoldens string
	// Parts are those of Parts to do; empty is all of them.
	Parts []string
	// Quick does less of everything.
	Quick bool
	// Budget is how long all may take; speeds and the load are shortened for it.
	Budget time.Duration
	// After is given the report after each part, as far as it is: a driver may take the process down in the next one.
	// It must not keep it. Nil: nobody is.
	After func(*Report)
	// Progress is told what goes on, a line at a time; nil: nobody is.
	Progress func(string)
}

// Parts are what a proof is made of, in order.
var Parts = []string{"conformance", "goldens", "fault", "speeds", "serving"}

// Run proves a device. When ctx is done it ends with what there is. The error is of what keeps it from beginning;
// what the device does wrong is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	p := &prover{Options: o, ctx: ctx, began: time.Now()}
	p.report = &Report{Started: p.began.UTC().Truncate(time.Second), Device: o.Subject.Kind, DeviceName: o.Subject.Name, Model: o.Name, Version: o.Version,
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0), Quick: o.Quick, BudgetSeconds: o.Budget.Seconds()}
	var mu sync.Mutex // a batcher opens on its own thread
	p.Subject.Open = func(m *model.Model, c gpu.Config) (gpu.Device, error) {
		began := time.Now()
		d, err := o.Subject.Open(m, c)
		mu.Lock()
		defer mu.Unlock()
		p.report.Opened++
		p.report.OpenSeconds += time.Since(began).Seconds()
		return d, err
	}
	var err error
	p.report.Limits, err = o.Subject.Limits()
	if err != nil {
		return nil, err
	}
	p.report.Parts = o.Parts
	if len(o.Parts) == 0 {
		p.report.Parts = Parts
	}
	for i, run := range []func(){p.conformance, p.goldens, p.fault, p.speeds, p.serving} {
		switch name := Parts[i]; {
		case !slices.Contains(p.report.Parts, name):
			p.leaveOut("%s: not asked for", name)
		case ctx.Err() != nil:
			p.leaveOut("%s: interrupted", name)
		default:
			run()
			p.sumUp()
			if o.After != nil {
				o.After(p.report)
			}
		}
	}
	p.sumUp()
	return p.report, nil
}

// sumUp makes the report whole, as far as the proof has come.
func (p *prover) sumUp() {
	p.report.Interrupted = p.ctx.Err() != nil
	p.report.Seconds = time.Since(p.began).Seconds()
	p.report.judge()
}

// prover is a proof under way.
type prover struct {
	Options
	ctx    context.Context
	began  time.Time
	report *Report
}

// left is how much of the budget is.
func (p *prover) left() time.Duration { return p.Budget - time.Since(p.began) }

func (p *prover) say(format string, args ...any) { p.Progress(fmt.Sprintf(format, args...)) }

// leaveOut notes what is not in the report.
func (p *prover) leaveOut(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.report.LeftOut = append(p.report.LeftOut, text)
	p.say("left out: %s", text)
}

// check adds the outcome of a check, which err is, to those of a part.
func (p *prover) check(to *Part, name, found string, err error) {
	c := Check{Name: name, Found: found, Outcome: Passed}
	switch {
	case err == nil:
	case p.ctx.Err() != nil && errors.Is(err, context.Canceled):
		return
	case gpu.Unsupported(err):
		c.Outcome, c.Found = Refused, err.Error()
	default:
		c.Outcome, c.Found = Failed, err.Error()
		p.say("FAILED: %s: %s", name, c.Found)
	}
	to.add(c)
}
