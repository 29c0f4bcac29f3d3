package prove

import (
	"errors"
	"fmt"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/demo"
)

// nearTie is how much likelier a token may be than another that is drawn in its place, beside the device's
// tolerance: both texts round a little differently.
const nearTie = 0.05

// fault breaks the device in mid-load. The texts must be those of an undisturbed load.
func (p *prover) fault() {
	to := &p.report.Fault
	p.say("fault test: %s in mid-load", p.Subject.How)
	t, err := p.faultTest()
	p.report.FaultTest = t
	found := ""
	if t != nil {
		found = fmt.Sprintf("%s at step %d of %d; opened %d times; %d of %d texts are the same, %d part at a near tie; %.2f s of pause",
			t.How, t.At, t.Steps, t.Opened, t.Same, t.Requests, t.NearTies, t.PauseSeconds)
	}
	p.check(to, "the device breaks, is opened again, and the texts go on", found, err)
	to.Done = p.ctx.Err() == nil
}

func (p *prover) faultTest() (*FaultTest, error) {
	m, g, err := demonstration()
	if err != nil {
		return nil, err
	}
	t := &FaultTest{How: p.Subject.How, Requests: 16, Tokens: 48}
	if p.Quick {
		t.Requests, t.Tokens = 6, 16
	}
	whole := &ledger{}
	want, err := p.texts(m, g, t, whole)
	if err != nil {
		return t, fmt.Errorf("the undisturbed load: %w", err)
	}
	t.Steps = whole.look().steps
	t.At = t.Steps/2 + 1
	broken := &ledger{breakAt: t.At, breaks: p.Subject.Break}
	got, err := p.texts(m, g, t, broken)
	seen := broken.look()
	t.Opened, t.PauseSeconds = seen.opened, seen.pause.Seconds()
	switch {
	case err != nil:
		return t, fmt.Errorf("the load with a fault: %w", errors.Join(append([]error{err}, seen.failed...)...))
	case len(seen.failed) == 0:
		return t, errors.New("no step failed after the fault")
	case len(seen.failed) > 1:
		return t, fmt.Errorf("%d steps failed, wanted is the one after the fault: %w", len(seen.failed), errors.Join(seen.failed...))
	case seen.opened != 2:
		return t, fmt.Errorf("the device was opened %d times, wanted are 2", seen.opened)
	}
	var errs []error
	for i := range want {
		at, off := parts(&want[i], &got[i])
		switch {
		case at < 0:
			t.Same++
		case p.Subject.Tolerance > 0 && off <= p.Subject.Tolerance+nearTie:
			t.NearTies++
		default:
			errs = append(errs, fmt.Errorf("text %d is another from token %d on, where what came before was likelier by %.3g", i, at, off))
		}
	}
	return t, errors.Join(errs...)
}

// parts says where b's tokens are other than a's, and by how much likelier a's was there, by a's account; −1 where
// they are the same.
func parts(a, b *lifecycle.Choice) (at int, off float64) {
	for i, id := range a.IDs {
		if i < len(b.IDs) && b.IDs[i] == id {
			continue
		}
		if i < len(b.IDs) && i < len(a.Logprobs) {
			for _, other := range a.Logprobs[i].Top {
				if other.ID == b.IDs[i] {
					return i, float64(a.Logprobs[i].Logprob - other.Logprob)
				}
			}
		}
		return i, 1e9
	}
	return -1, 0
}

// texts runs requests at once, and returns their answers.
func (p *prover) texts(m *model.Model, g *devicetest.Goldens, t *FaultTest, l *ledger) ([]lifecycle.Choice, error) {
	c := gpu.Config{BlockSize: 16, MaxSeqs: t.Requests, MaxTokens: 256, MaxContext: 256}
	rt, err := p.start(m, c, l)
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	answers := make([]*answer, t.Requests)
	for i := range answers {
		a := &answer{rt: rt, done: make(chan *lifecycle.Response, 1)}
		answers[i] = a
		if err := rt.Admit(); err != nil {
			return nil, err
		}
		golden := &g.Cases[i%len(g.Cases)]
		rt.Start(&lifecycle.Request{
			ID: rt.NextID(), Endpoint: "bench", Model: demo.Name, Arrival: rt.Now(), Prompts: [][]int32{golden.IDs[:golden.Prompt]}, N: 1, Stream: true,
			Params: &lifecycle.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: 5, PromptLogprobs: -1, MaxTokens: t.Tokens, IgnoreEOS: true},
		}, a)
	}
	out := make([]lifecycle.Choice, 0, len(answers))
	for i, a := range answers {
		select {
		case r := <-a.done:
			switch {
			case r.Err != nil:
				return nil, fmt.Errorf("request %d: %w", i, r.Err)
			case len(r.Choices) != 1 || len(r.Choices[0].IDs) != t.Tokens:
				return nil, fmt.Errorf("request %d: not %d tokens came", i, t.Tokens)
			}
			out = append(out, r.Choices[0])
		case <-p.ctx.Done():
			return nil, p.ctx.Err()
		}
	}
	return out, nil
}
