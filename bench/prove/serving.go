package prove

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupe-llm/troupe/bench"
	"github.com/troupe-llm/troupe/gpu"
)

// serving measures closed loops of requests in this process, as troupe bench serve does.
func (p *prover) serving() {
	levels := []int{1, 256, 32} // what matters most first
	if p.Quick {
		levels = []int{1, 8}
	}
	for _, n := range levels {
		if p.ctx.Err() != nil {
			return
		}
		if left := p.left(); left < p.serveTime()+2*time.Second {
			p.leaveOut("serving %d at a time: no time is left", n)
			continue
		}
		p.say("serving: %d requests at a time, each followed by the next", n)
		s, err := p.serve(n)
		if err != nil {
			if p.ctx.Err() == nil {
				p.leaveOut("serving %d at a time: %v", n, err)
			}
			continue
		}
		p.say("serving: %d at a time: %.1f tokens/s", n, s.TokensPerSecond)
		p.report.Serving = append(p.report.Serving, s)
	}
}

func (p *prover) serve(n int) (Serving, error) {
	s := Serving{Concurrency: n}
	m := p.Model
	const input, output = "128", "64"
	c := gpu.Config{BlockSize: 16, MaxSeqs: n, MaxTokens: max(p.Subject.StepTokens, n), MaxContext: min(512, m.Config.Context)}
	e, endpoint, err := env(m, p.Name, c.MaxContext)
	if err != nil {
		return s, err
	}
	l := &ledger{}
	rt, err := p.start(m, c, l)
	if err != nil {
		return s, err
	}
	defer rt.Close()
	v, err := bench.NewVocabulary("the model's tokenizer", bench.CountBy(e, endpoint))
	if err != nil {
		return s, err
	}
	in, err := bench.ParseLengths(input)
	if err != nil {
		return s, err
	}
	out, err := bench.ParseLengths(output)
	if err != nil {
		return s, err
	}
	r, err := bench.Run(p.ctx, bench.Options{
		Target:   &bench.Process{Runtime: rt, Env: e, Endpoint: endpoint},
		Workload: &bench.Synthetic{Shape: bench.Shape{Endpoint: endpoint, Model: p.Name, IgnoreEOS: true}, Vocabulary: v, Input: in, Output: out, Seed: uint64(n), Room: c.MaxContext},
		// Whoever waits for a slow device's first answers waits as long as that again, and no longer.
		Concurrency: n, Duration: p.serveTime(), Grace: p.serveTime(), Seed: uint64(n), Percentiles: []float64{50, 99},
	})
	if err != nil {
		return s, err
	}
	s.Seconds, s.Completed, s.Failed, s.OutputTokens, s.TokensPerSecond = r.Duration, r.Completed, r.Failed, r.OutputTokens, r.OutputRate
	figure := func(of *bench.Summary, percentile float64) *float64 {
		if v, ok := of.At(percentile); ok && of.Count > 0 {
			return &v
		}
		return nil
	}
	if r.Server != nil {
		s.TTFT50, s.TTFT99 = figure(&r.Server.TTFT, 50), figure(&r.Server.TTFT, 99)
	}
	s.TPOT50, s.TPOT99 = figure(&r.TPOT, 50), figure(&r.TPOT, 99)
	seen := l.look()
	s.HostShare = seen.hostShare()
	if r.Completed == 0 {
		p.leaveOut("serving %d at a time: no request ended in %.0f s", n, r.Duration)
	}
	if len(r.Errors) > 0 {
		p.leaveOut("serving %d at a time: %d requests failed, such as by %s", n, r.Failed, r.Errors[0].Example)
	}
	if len(seen.failed) > 0 {
		return s, fmt.Errorf("the device failed: %w", errors.Join(seen.failed...))
	}
	return s, nil
}
