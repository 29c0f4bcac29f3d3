package devicetest

import (
	"math"
	"strings"
	"testing"
)

func TestGoldensThatContradictThemselvesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{`:             "unexpected end",
		`{"cases": []}`: "no cases",
		`{"cases": [{"prompt_ids": [1], "greedy_ids": [2], "steps": [{"token": 2, "top": [[2, -0.1]]}]}]}`:                                    "fewer than two",
		`{"cases": [{"prompt_ids": [1], "greedy_ids": [], "steps": [{"token": 2, "top": [[2, -0.1], [3, -4]]}]}]}`:                            "1 steps for 0 tokens",
		`[{"prompt_ids": [1, 2], "ids": [1, 2, 3], "logprobs": [-1], "top": [2, 3], "margins": [1, 1]}]`:                                      "1 log probabilities",
		`[{"prompt_ids": [1, 2, 3], "ids": [1, 2, 3], "logprobs": [-1, -1], "top": [2, 3], "margins": [1, 1]}]`:                               "3 of them the prompt's",
		`{"cases": [{"prompt_ids": [], "greedy_ids": [2], "steps": [{"token": 2, "top": [[2, -0.1], [3, -4]]}], "prompt_logprobs": [null]}]}`: "after 0",
	} {
		if _, err := ParseGoldens([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestGoldensHaveWhatTheirFilesSay(t *testing.T) {
	g, err := ParseGoldens([]byte(`{"model": "m", "sha256": "ab", "source": "s", "cases": [{"messages": [{"content": "Why?"}], "prompt_ids": [5, 6], "prompt_logprobs": [null, -2],
		"greedy_ids": [7, 8], "greedy_text": "so", "steps": [{"token": 7, "top": [[7, -0.5], [9, -2]]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	c := g.Cases[0]
	if g.Model != "m" || g.SHA256 != "ab" || g.Source != "s" || c.Question != "Why?" || c.Text != "so" || c.Prompt != 2 || len(c.IDs) != 4 {
		t.Errorf("%+v", g)
	}
	// Of the last token nothing is known.
	if c.Logprobs[0] != -2 || c.Logprobs[1] != -0.5 || !math.IsNaN(c.Logprobs[2]) || c.Top[0] != -1 || c.Top[1] != 7 || c.Margins[1] != 1.5 {
		t.Errorf("%+v", c)
	}
	if known := KnownGoldens(); len(known) != 2 || len(known[0].SHA256) != 64 || len(known[1].SHA256) != 64 {
		t.Errorf("%d files of goldens", len(known))
	}
}

func TestAnAgreementIsWithinItsLimitOnlyIfAllIsNear(t *testing.T) {
	good := Agreement{Cases: 3, Generated: 0.1, Prompts: 0.1, Clear: 200, Agree: 199}
	if err := good.Within(0.15); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*Agreement){
		"generated": func(a *Agreement) { a.Generated = 0.15 },
		"prompts":   func(a *Agreement) { a.Prompts = math.NaN() },
		"wrong":     func(a *Agreement) { a.Wrong = []string{"wrong"} },
		"agrees":    func(a *Agreement) { a.Agree = 197 },
	} {
		bad := good
		spoil(&bad)
		if err := bad.Within(0.15); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
