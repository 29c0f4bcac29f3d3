package openai

import "github.com/troupe-llm/troupe/lifecycle"

const (
	chatObject  = "chat.completion"
	chunkObject = "chat.completion.chunk"
)

// chatEncoder answers /v1/chat/completions.
type chatEncoder struct {
	answer
	role string // of the answer: "assistant", or that of the message that is continued
	// echo is the text of the message that is continued, when the request wants it repeated.
	echo             string
	returnPromptText bool
	promptText       string
}

// Delta implements Encoder: one chunk per delta, and before a choice's first one the chunk that
// names the role.
func (c *chatEncoder) Delta(dst []byte, d *lifecycle.Delta) []byte {
	s := c.state(d.Choice)
	if !s.started {
		s.started = true
		dst = c.opening(dst, d)
	}
	from := len(dst)
	dst = append(dst, c.chunkHead(chunkObject)...)
	dst = append(dst, `{"index":`...)
	dst = appendInt(dst, d.Choice)
	dst = append(dst, `,"delta":{"content":"`...)
	dst = appendText(dst, d.Text)
	dst = append(dst, `"},"logprobs":`...)
	dst = c.appendLogprobs(dst, d.Logprobs)
	dst = c.appendReason(dst, d.Reason, d.StopString, d.StopToken, false)
	return c.closeDelta(dst, from, s, d)
}

// opening appends the chunk with the role, and the one with the text that the request wants
// repeated.
func (c *chatEncoder) opening(dst []byte, d *lifecycle.Delta) []byte {
	u := d.Usage
	u.Completion = c.completion // nothing of this delta yet
	contents := [2]string{"", c.echo}
	for i, content := range contents {
		if i > 0 && content == "" {
			break
		}
		dst = append(dst, c.chunkHead(chunkObject)...)
		dst = append(dst, `{"index":`...)
		dst = appendInt(dst, d.Choice)
		dst = append(dst, `,"delta":{`...)
		if i == 0 {
			dst = append(dst, `"role":"`...)
			dst = append(dst, c.role...)
			dst = append(dst, `",`...)
		}
		dst = append(dst, `"content":`...)
		dst = appendString(dst, content)
		dst = append(dst, `},"logprobs":null,"finish_reason":null}`...)
		dst = c.closeChunk(dst, u)
		if i == 0 {
			dst = dst[:len(dst)-len("}\n\n")]
			if c.returnIDs {
				dst = append(dst, `,"prompt_token_ids":`...)
				dst = appendIDs(dst, c.job.Request.Prompts[0])
			}
			dst = c.appendPromptText(dst)
			dst = append(dst, "}\n\n"...)
		}
	}
	return dst
}

// appendPromptText appends vLLM's prompt_text as a member: the prompt as the template made it.
func (c *chatEncoder) appendPromptText(dst []byte) []byte {
	if !c.returnPromptText {
		return dst
	}
	dst = append(dst, `,"prompt_text":`...)
	return appendString(dst, c.promptText)
}

func (c *chatEncoder) appendLogprobs(dst []byte, logs []lifecycle.TokenLogprob) []byte {
	top := c.job.Request.Params.Logprobs
	if top < 0 {
		return append(dst, "null"...)
	}
	dst = append(dst, `{"content":`...)
	dst = c.appendContentLogprobs(dst, logs, top)
	return append(dst, `,"refusal":null}`...)
}

// End implements Encoder.
func (c *chatEncoder) End(dst []byte, r *lifecycle.Response) []byte {
	if r.Err == nil {
		for i := range c.job.Request.Sequences() {
			if d, ok := c.unsaid(i, r); ok {
				dst = c.Delta(dst, &d)
			}
		}
	}
	return c.close(dst, r, chunkObject)
}

// Body implements Encoder.
func (c *chatEncoder) Body(r *lifecycle.Response) []byte {
	dst := c.appendHead(make([]byte, 0, 1024), chatObject)
	for i := range r.Choices {
		choice := &r.Choices[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = appendInt(dst, i)
		dst = append(dst, `,"message":{"role":"`...)
		dst = append(dst, c.role...)
		dst = append(dst, `","content":"`...)
		dst = appendText(dst, c.echo)
		dst = appendText(dst, choice.Text)
		dst = append(dst, `","refusal":null,"annotations":[]},"logprobs":`...)
		dst = c.appendLogprobs(dst, choice.Logprobs)
		dst = c.appendReason(dst, choice.Reason, choice.StopString, choice.StopToken, true)
		if c.returnIDs {
			dst = append(dst, `,"token_ids":`...)
			dst = appendIDs(dst, choice.IDs)
		}
		dst = append(c.appendChoiceMetrics(dst, &choice.Metrics, choice.Detail), '}')
	}
	dst = append(dst, `],"service_tier":null,"system_fingerprint":null,"usage":`...)
	dst = appendUsage(dst, &r.Usage)
	var scores []lifecycle.TokenLogprob
	if len(r.Choices) > 0 {
		scores = r.Choices[0].PromptScores
	}
	dst = c.appendPromptLogprobs(dst, c.job.Request.Prompts[0], scores)
	if c.returnIDs {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = appendIDs(dst, c.job.Request.Prompts[0])
	}
	dst = c.appendPromptText(dst)
	dst = c.appendTopMetrics(dst, r)
	dst = c.appendTimings(dst, r)
	return append(dst, '}')
}
