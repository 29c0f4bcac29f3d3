package prove

import (
	"fmt"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/demo"
)

// goldenLimit is how far log probabilities may be from another implementation's in the mean, activations of 8
// bits allowed for.
const goldenLimit = 0.15

// goldens compares real models with what other implementations computed of them.
func (p *prover) goldens() {
	to := &p.report.Goldens
	p.say("goldens: the demonstration model beside PyTorch")
	m, g, err := demonstration()
	found := ""
	if err == nil {
		found, err = p.golden(m, g)
	}
	p.check(to, demo.Name, found, err)
	switch {
	case p.ctx.Err() != nil:
		return
	case p.Goldens != nil:
		p.say("goldens: %s beside %s", p.Name, p.Goldens.Source)
		found, err := p.golden(p.Model, p.Goldens)
		p.check(to, p.Name, found, err)
	case p.NoGoldens != "":
		to.add(Check{p.Name, Skipped, p.NoGoldens})
	}
	to.Done = true
}

// demonstration is the model in the program, and its goldens.
func demonstration() (*model.Model, *devicetest.Goldens, error) {
	m, err := demo.Open()
	if err != nil {
		return nil, nil, err
	}
	g, err := devicetest.ParseGoldens(demo.Golden)
	return m, g, err
}

// golden compares a model with its goldens.
func (p *prover) golden(m *model.Model, g *devicetest.Goldens) (found string, err error) {
	a, err := g.Compare(func(c gpu.Config) (gpu.Device, error) { return p.Subject.Open(m, c) })
	if err != nil {
		return "", err
	}
	found = fmt.Sprintf("%d prompts; log probabilities differ by %.4f in the mean of what was generated, %.4f of prompts; the likeliest token agrees in %d of %d clear places",
		a.Cases, a.Generated, a.Prompts, a.Agree, a.Clear)
	return found, a.Within(goldenLimit)
}
