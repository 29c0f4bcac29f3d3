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
	m, err := demo.Open()
	if err == nil {
		var g *devicetest.Goldens
		if g, err = devicetest.ParseGoldens(demo.Golden); err == nil {
			err = p.golden(to, demo.Name, m, g)
		}
	}
	if err != nil {
		p.check(to, demo.Name, "", err)
	}
	switch {
	case p.ctx.Err() != nil:
		return
	case p.Goldens != nil:
		p.say("goldens: %s beside %s", p.Name, p.Goldens.Source)
		if err := p.golden(to, p.Name, p.Model, p.Goldens); err != nil {
			p.check(to, p.Name, "", err)
		}
	case p.NoGoldens != "":
		to.add(Check{p.Name, Skipped, p.NoGoldens})
	}
	to.Done = true
}

// golden adds one comparison. What it returns has not been added.
func (p *prover) golden(to *Part, name string, m *model.Model, g *devicetest.Goldens) error {
	a, err := g.Compare(func(c gpu.Config) (gpu.Device, error) { return p.Subject.Open(m, c) })
	if err != nil {
		return err
	}
	found := fmt.Sprintf("%d prompts; log probabilities differ by %.4f in the mean of what was generated, %.4f of prompts; the likeliest token agrees in %d of %d clear places",
		a.Cases, a.Generated, a.Prompts, a.Agree, a.Clear)
	p.check(to, name, found, a.Within(goldenLimit))
	return nil
}
