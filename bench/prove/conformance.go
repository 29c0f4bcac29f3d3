package prove

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// How far a device's log probabilities may be from another implementation's.
const (
	// exactLimit is for weights of float32 and a KV cache of float32: every single one.
	exactLimit = 1e-3
	// roundedLimit is for all others, in the mean: activations may be rounded to 8 bits.
	roundedLimit = 0.1
)

// conformance runs the suite of all devices, and compares architectures and types of weights.
func (p *prover) conformance() {
	to := &p.report.Conformance
	suites := []tiny.Options{{Layers: 1, Type: gguf.Q8_0, Tied: true}, {Layers: 2, Type: gguf.F32}}
	if p.Quick {
		suites = suites[:1]
	}
	for _, o := range suites {
		m := tiny.Model(o)
		p.say("conformance: the suite of all devices, weights of %v", o.Type)
		open := func(c gpu.Config) (gpu.Device, error) { return p.Subject.Open(m, c) }
		tests := devicetest.Tests(open, devicetest.Options{Logits: true, Refuses: true, Width: m.Config.Width, Tolerance: p.Subject.Tolerance})
		for _, t := range tests {
			if p.ctx.Err() != nil {
				return
			}
			r := runTest(t.Run)
			name := fmt.Sprintf("%v: %s", o.Type, t.Name)
			if r.skipped != "" && len(r.failures) == 0 {
				to.add(Check{name, Skipped, r.skipped})
				continue
			}
			p.check(to, name, "", errors.Join(r.failures...))
		}
	}
	all := devicetest.Architectures()
	p.say("conformance: %d architectures beside what transformers computes", len(all))
	for i, a := range all {
		if p.ctx.Err() != nil {
			return
		}
		if p.Quick && i%4 != 0 {
			continue
		}
		found, err := p.architecture(a)
		p.check(to, "architecture "+a.Name, found, err)
	}
	types := model.WeightTypes()
	p.say("conformance: %d types of weights, and KV caches, beside the portable CPU device", len(types))
	for i, k := range types {
		if p.ctx.Err() != nil {
			return
		}
		if p.Quick && i%4 != 0 {
			continue
		}
		found, err := p.besidePortable(k, gpu.CacheF32)
		p.check(to, "weights of "+k.String(), found, err)
	}
	for _, cache := range []gpu.CacheType{gpu.CacheF16, gpu.CacheQ8_0} {
		if p.ctx.Err() != nil {
			return
		}
		found, err := p.besidePortable(gguf.F32, cache)
		p.check(to, "KV cache of "+cache.String(), found, err)
	}
	if p.Quick {
		p.leaveOut("conformance: --quick runs one suite, and every fourth architecture and type of weights")
	}
	to.Done = true
}

// architecture compares a model of an architecture with what transformers computes of it.
func (p *prover) architecture(a *devicetest.Architecture) (found string, err error) {
	m, err := a.Model(gguf.F32)
	if err != nil {
		return "", err
	}
	const block = 16
	n := len(a.Tokens)
	d, err := p.Subject.Open(m, gpu.Config{BlockSize: block, MaxSeqs: 1, MaxTokens: n, MaxContext: n, CacheType: gpu.CacheF32})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var b gpu.Batch
	var r gpu.Result
	devicetest.Sequence(&b, a.Tokens, block)
	for i := range n - 1 {
		b.Rows = append(b.Rows, gpu.Row{Kind: gpu.Score, Token: int32(i), Target: a.Tokens[i+1], Mask: -1})
	}
	b.Rows = append(b.Rows, gpu.Row{Kind: gpu.Score, Token: int32(n - 1), Top: int32(len(a.Last)), Mask: -1})
	if err := d.Run(&b, &r); err != nil {
		return "", err
	}
	worst := 0.0
	for i, want := range a.Logprobs {
		worst = farther(worst, float64(r.Logprobs[i])-want)
	}
	for i, id := range r.TopIDs {
		worst = farther(worst, float64(r.TopLogprobs[i])-a.Last[id])
	}
	if err := exact(worst); err != nil {
		return "", err
	}
	return fmt.Sprintf("off by %.1e at most", worst), nil
}

// exact is the error of a largest distance that is not below exactLimit, a NaN among them.
func exact(worst float64) error {
	if !(worst < exactLimit) {
		return fmt.Errorf("a log probability is off by %.2g; under %v is asked for", worst, exactLimit)
	}
	return nil
}

// farther is the larger distance, and a NaN once there is one.
func farther(worst, off float64) float64 {
	if off = math.Abs(off); off > worst || math.IsNaN(off) {
		return off
	}
	return worst
}

// besidePortable compares a model whose matrices are of a type with the portable CPU device, both with such a KV
// cache.
func (p *prover) besidePortable(k gguf.Type, cache gpu.CacheType) (string, error) {
	m, err := devicetest.TypedModel(tiny.Options{Layers: 1, Width: 256, Heads: 4, KVHeads: 2, FFN: 256}, func(string) gguf.Type { return k })
	if err != nil {
		return "", err
	}
	c := devicetest.StepsConfig
	c.CacheType = cache
	steps := func(open func() (gpu.Device, error)) ([]float32, error) {
		d, err := open()
		if err != nil {
			return nil, err
		}
		all, err := devicetest.Steps(d, c)
		return all, errors.Join(err, d.Close())
	}
	want, err := steps(func() (gpu.Device, error) { return host.OpenPortable(m, c) })
	if err != nil {
		return "", fmt.Errorf("the portable CPU device: %w", err)
	}
	got, err := steps(func() (gpu.Device, error) { return p.Subject.Open(m, c) })
	if err != nil {
		return "", err
	}
	if len(got) != len(want) {
		return "", fmt.Errorf("%d log probabilities, wanted are %d", len(got), len(want))
	}
	worst, sum := 0.0, 0.0
	for i := range want {
		off := float64(got[i]) - float64(want[i])
		worst = farther(worst, off)
		sum += math.Abs(off)
	}
	mean := sum / float64(len(want))
	if k == gguf.F32 && cache == gpu.CacheF32 {
		if err := exact(worst); err != nil {
			return "", err
		}
	}
	if !(mean < roundedLimit) {
		return "", fmt.Errorf("log probabilities are off by %.3g in the mean; under %v is asked for", mean, roundedLimit)
	}
	return fmt.Sprintf("off by %.1e in the mean, %.1e at most", mean, worst), nil
}

// recorder is a devicetest.T that keeps what it is told.
type recorder struct {
	failures []error
	skipped  string
	cleanups []func()
}

// runTest runs a test to its end. A panic in it is a failure.
func runTest(test func(devicetest.T)) *recorder {
	r := &recorder{}
	done := make(chan struct{})
	// Fatal and Skip end the goroutine, as those of package testing do.
	go func() {
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(r.cleanups) {
				f()
			}
		}()
		defer func() {
			if p := recover(); p != nil {
				r.failures = append(r.failures, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
			}
		}()
		test(r)
	}()
	<-done
	return r
}

func (r *recorder) Helper() {}

func (r *recorder) Error(args ...any) {
	r.failures = append(r.failures, errors.New(strings.TrimSpace(fmt.Sprintln(args...))))
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Errorf(format, args...))
}

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) {
	r.skipped = strings.TrimSpace(fmt.Sprintln(args...))
	runtime.Goexit()
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
