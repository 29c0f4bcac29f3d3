package openai

import (
	"unicode/utf8"

	"github.com/troupe-llm/troupe/lifecycle"
)

// What one request may ask for. A body of a few hundred kilobytes can ask for gigabytes of answer
// or minutes of work, so that the size of the body alone bounds too little. Besides these there are
// maxMessages, maxMembers and maxDepth for the body itself, maxKwargsBytes and maxListBytes for
// what is handed to the template, and transport's bound on the whole body.
const (
	maxChoices   = 128  // n; OpenAI's bound
	maxPrompts   = 1024 // prompts of one completion request
	maxSequences = 1024 // prompts × n
	maxStops     = 64   // stop strings; OpenAI allows 4, vLLM any number
	maxStopBytes = 256  // in one stop string: that much text may have to be held back
	maxSaltChars = 128  // vLLM's bound on cache_salt
	// maxClientID is in bytes; transport refuses longer ids.
	maxClientID = 256

	// maxEntries bounds what an answer can hold, over all choices: log probabilities (the chosen
	// token's and each alternative's count as one) and prompt token ids that are repeated. An entry
	// is some 50 bytes of the answer. Twenty alternatives for each token of a context of 128 Ki
	// tokens fit, for prompt and output together.
	maxEntries = 4 << 20
	// maxRepeated bounds the prompt text in an answer, in bytes: echo and return_prompt_text repeat
	// it for each choice.
	maxRepeated = 64 << 20
	// maxText bounds the text of all the prompts of a request, in bytes, and maxCounted that of
	// /tokenize and /detokenize. One prompt that could just fit the context is allowed by either.
	maxText    = 16 << 20
	maxCounted = 2 << 20
	// maxIDs bounds a prompt of token ids that is to be cut. (Others are bounded by the context, and
	// lists such as stop_token_ids and logit_bias by the vocabulary.)
	maxIDs = 1 << 20
)

// cutMargin is the number of tokens that are made of a text besides those that will be kept, when
// it is cut before it is tokenised: see shorten.
const cutMargin = 64

// longestToken is the length in bytes of the longest token's text.
func (e *Env) longestToken() int {
	e.once.Do(func() {
		var buf []byte
		for id := range int32(e.Tokenizer.Size()) {
			buf = e.Tokenizer.AppendBytes(buf[:0], id)
			e.longest = max(e.longest, len(buf))
		}
	})
	return max(e.longest, utf8.UTFMax) // a character that no token spells may become one token
}

// mostText is the number of bytes of text beyond which no prompt fits the context, however well it
// compresses.
func (e *Env) mostText() int { return e.MaxModelLen * e.longestToken() }

// shorten cuts off what cannot matter of a text whose tokens will be cut, so that tokenising costs
// what is kept and not what was sent. As no token is longer than the longest, what is left has the
// tokens that are kept and cutMargin more. Those within the margin may differ from the whole text's
// (the cut may be within a word); the kept ones begin beyond it and are the same, unless the text
// has no place at which words part for that long: a run of digits, say, which is cut into groups
// from its beginning.
func (e *Env) shorten(text string, c cut) string {
	most := (c.keep + cutMargin) * e.longestToken()
	switch {
	case c.keep == 0 || len(text) <= most:
		return text
	case c.right:
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		return text[:most]
	}
	from := len(text) - most
	for from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	return text[from:]
}

// countable refuses text that is too long for /tokenize and /detokenize.
func (e *Env) countable(param string, bytes int) *lifecycle.Error {
	if most := max(maxCounted, e.mostText()); bytes > most {
		return bad(param, "%s has or stands for at least %d bytes of text; at most %d are accepted here: split it", param, bytes, most)
	}
	return nil
}

// weight is what an answer repeats or tells besides the text, for weigh. The fields named are the
// endpoint's own.
type weight struct {
	logprobs, promptLogprobs string // names of the fields that ask for log probabilities
	maxTokens                string // and of the one that bounds the output
	returnIDs                bool   // the prompt's token ids are repeated
	text                     int    // bytes of prompt text that are repeated, per choice of each prompt
	textParam                string // the field that asks for it
}

// weigh refuses a request whose answer could become too large. Prompts, N and Params must be
// settled.
func (e *Env) weigh(req *lifecycle.Request, w weight) *lifecycle.Error {
	p := req.Params
	var prompt, output int64 // tokens, over all choices
	for _, ids := range req.Prompts {
		prompt += int64(len(ids))
		output += int64(min(p.MaxTokens, e.MaxModelLen-len(ids)))
	}
	n := int64(req.N)
	prompt, output = prompt*n, output*n
	perOutput, perPrompt, repeated := int64(p.Logprobs+1), int64(p.PromptLogprobs+1), int64(0)
	if w.returnIDs {
		repeated = 1
	}
	if sum := output*perOutput + prompt*(perPrompt+repeated); sum > maxEntries {
		param := w.logprobs
		switch {
		case prompt*(perPrompt+repeated) <= output*perOutput:
		case perPrompt > 0:
			param = w.promptLogprobs
		default:
			param = "return_token_ids"
		}
		return bad(param, "the answer could hold %d log probabilities and prompt token ids (%d choices with up to %d generated tokens of %d and %d prompt tokens of %d, n included); at most %d are allowed: ask for less by n, %s or %s, or send fewer prompts",
			sum, req.Sequences(), output, perOutput, prompt, perPrompt+repeated, maxEntries, w.maxTokens, param)
	}
	if sum := int64(w.text) * n; sum > maxRepeated {
		return bad(w.textParam, "the answer would repeat %d bytes of prompt text (n is %d); at most %d are allowed: lower n or the number of prompts, or leave out %s", sum, n, maxRepeated, w.textParam)
	}
	return nil
}
