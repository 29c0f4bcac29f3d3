package openai

import (
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/lifecycle"
)

const completionObject = "text_completion"

// completionEncoder answers /v1/completions.
type completionEncoder struct {
	answer
	logprobs int // the request's logprobs; −1 when it asked for none
	// Per prompt, when the request wants it echoed: its text, and whether its first token was
	// added by the tokenizer and so is no part of that text.
	echoes []string
	added  []bool
}

// add takes a prompt; text says that it was tokenised from the echo.
func (c *completionEncoder) add(ids []int32, echo string, text bool) {
	req := &c.job.Request
	req.Prompts = append(req.Prompts, ids)
	if !req.Echo {
		return
	}
	bos := c.env.Tokenizer.BOS()
	added := text && bos >= 0 && ids[0] == bos && !strings.HasPrefix(echo, string(c.tokenBytes(bos)))
	c.echoes = append(c.echoes, strings.ToValidUTF8(echo, "\ufffd"))
	c.added = append(c.added, added)
}

// prompt returns the prompt that choice i continues.
func (c *completionEncoder) prompt(i int) int { return i / c.job.Request.N }

// Delta implements Encoder: one chunk per delta; the first of a choice brings the echo too.
func (c *completionEncoder) Delta(dst []byte, d *lifecycle.Delta) []byte {
	from := len(dst)
	s := c.state(d.Choice)
	first := !s.started
	s.started = true
	dst = append(dst, c.chunkHead(completionObject)...)
	dst = append(dst, `{"index":`...)
	dst = appendInt(dst, d.Choice)
	dst = append(dst, `,"text":"`...)
	if first && c.echoes != nil {
		dst = appendText(dst, c.echoes[c.prompt(d.Choice)])
	}
	dst = appendText(dst, d.Text)
	dst = append(dst, `","logprobs":`...)
	dst = c.appendLogprobs(dst, d.Choice, first, d.PromptScores, d.Logprobs)
	dst = c.appendReason(dst, d.Reason, d.StopString, d.StopToken, true)
	if c.returnIDs && first {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = appendIDs(dst, c.job.Request.Prompts[c.prompt(d.Choice)])
	}
	return c.closeDelta(dst, from, s, d)
}

// End implements Encoder.
func (c *completionEncoder) End(dst []byte, r *lifecycle.Response) []byte {
	if r.Err == nil {
		for i := range c.job.Request.Sequences() {
			if d, ok := c.unsaid(i, r); ok {
				dst = c.Delta(dst, &d)
			}
		}
	}
	return c.close(dst, r, completionObject)
}

// Body implements Encoder.
func (c *completionEncoder) Body(r *lifecycle.Response) []byte {
	c.choices = nil // nothing of this answer has been said
	dst := c.appendHead(make([]byte, 0, 1024), completionObject)
	for i := range r.Choices {
		choice := &r.Choices[i]
		prompt := c.job.Request.Prompts[c.prompt(i)]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = appendInt(dst, i)
		dst = append(dst, `,"text":"`...)
		if c.echoes != nil {
			dst = appendText(dst, c.echoes[c.prompt(i)])
		}
		dst = appendText(dst, choice.Text)
		dst = append(dst, `","logprobs":`...)
		dst = c.appendLogprobs(dst, i, true, choice.PromptScores, choice.Logprobs)
		dst = c.appendReason(dst, choice.Reason, choice.StopString, choice.StopToken, true)
		dst = c.appendPromptLogprobs(dst, prompt, choice.PromptScores)
		if c.returnIDs {
			dst = append(dst, `,"prompt_token_ids":`...)
			dst = appendIDs(dst, prompt)
			dst = append(dst, `,"token_ids":`...)
			dst = appendIDs(dst, choice.IDs)
		}
		dst = append(c.appendChoiceMetrics(dst, &choice.Metrics, choice.Detail), '}')
	}
	dst = append(dst, `],"service_tier":null,"system_fingerprint":null,"usage":`...)
	dst = appendUsage(dst, &r.Usage)
	dst = c.appendTopMetrics(dst, r)
	dst = c.appendTimings(dst, r)
	return append(dst, '}')
}

// unscored is the rank of a token that has no log probability.
const unscored = -1

// appendLogprobs appends a logprobs object: four lists, an entry per token. With echo the prompt's
// tokens come first, the very first without a probability. text_offset is where a token's text
// begins in the choice's text, in characters; a token that is left out of the text has no width.
func (c *completionEncoder) appendLogprobs(dst []byte, choice int, first bool, scores, logs []lifecycle.TokenLogprob) []byte {
	if c.logprobs < 0 {
		return append(dst, "null"...)
	}
	var all []lifecycle.TokenLogprob
	p := c.prompt(choice)
	if first && c.echoes != nil {
		prompt := c.job.Request.Prompts[p]
		all = make([]lifecycle.TokenLogprob, 0, len(prompt)+len(logs))
		for i, id := range prompt {
			l := lifecycle.TokenLogprob{ID: id, Rank: unscored}
			if s := scoreOf(i, prompt, scores); s != nil {
				l = *s
			}
			all = append(all, l)
		}
	}
	echoed := len(all)
	all = append(all, logs...)
	scored := func(i int) bool { return all[i].Rank != unscored }

	comma := func(i int) {
		if i > 0 {
			dst = append(dst, ',')
		}
	}
	s := c.state(choice)
	dst = append(dst, `{"text_offset":[`...)
	for i := range all {
		comma(i)
		dst = appendInt(dst, s.offset)
		id := all[i].ID
		switch {
		case i == 0 && echoed > 0 && c.added[p]:
		case i >= echoed && c.job.Request.Params.SkipSpecialTokens && c.env.Tokenizer.IsSpecial(id):
		default:
			s.offset += characters(c.tokenBytes(id))
		}
	}
	dst = append(dst, `],"token_logprobs":[`...)
	for i := range all {
		comma(i)
		if scored(i) {
			dst = appendLogprob(dst, all[i].Logprob)
		} else {
			dst = append(dst, "null"...)
		}
	}
	dst = append(dst, `],"tokens":[`...)
	for i := range all {
		comma(i)
		dst = c.appendToken(dst, all[i].ID)
	}
	dst = append(dst, `],"top_logprobs":[`...)
	for i := range all {
		comma(i)
		if scored(i) {
			dst = c.appendTop(dst, &all[i])
		} else {
			dst = append(dst, "null"...)
		}
	}
	return append(dst, "]}"...)
}

// appendTop appends an object from token to log probability: the token itself and the most likely
// ones. Different tokens may show as the same text (parts of characters do); the first of them
// counts, since an object may not have a key twice.
func (c *completionEncoder) appendTop(dst []byte, l *lifecycle.TokenLogprob) []byte {
	type span struct{ from, to int }
	keys := make([]span, 0, 32)
	dst = append(dst, '{')
	entry := func(id int32, v float32) {
		start := len(dst)
		if start > 0 && dst[start-1] != '{' {
			dst = append(dst, ',')
		}
		key := span{from: len(dst)}
		dst = c.appendToken(dst, id)
		key.to = len(dst)
		if slices.ContainsFunc(keys, func(k span) bool { return string(dst[k.from:k.to]) == string(dst[key.from:key.to]) }) {
			dst = dst[:start]
			return
		}
		keys = append(keys, key)
		dst = append(dst, ':')
		dst = appendLogprob(dst, v)
	}
	entry(l.ID, l.Logprob)
	for _, t := range l.Top[:min(len(l.Top), c.logprobs)] {
		if t.ID != l.ID {
			entry(t.ID, t.Logprob)
		}
	}
	return append(dst, '}')
}
