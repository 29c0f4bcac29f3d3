package openai

import (
	"bytes"
	"math"
	"strings"

	"github.com/troupe-llm/troupe/lifecycle"
)

// begin reads what every request has, and makes its Job.
func (e *Env) begin(body []byte, endpoint string, more []refusal) (*reader, *Job, *lifecycle.Error) {
	r, err := read(body)
	if err != nil {
		return nil, nil, err
	}
	e.checkModel(r)
	r.refuse(refused)
	r.refuse(more)
	j := &Job{}
	j.Request = lifecycle.Request{Endpoint: endpoint, Model: e.Served[0], N: 1, Params: e.sampling(r)}
	j.Request.Stream = r.flag("stream", false)
	j.Request.Salt = r.salt()
	if v, ok := r.integer("priority", math.MinInt64, math.MaxInt64); ok {
		j.Request.Priority = int(v)
	}
	j.requestID, _ = r.str("request_id")
	return r, j, r.err
}

// choices reads n and best_of.
func (r *reader) choices(req *lifecycle.Request) {
	if v, ok := r.integer("n", 1, maxChoices); ok {
		req.N = int(v)
	}
	if v, ok := r.integer("best_of", 1, math.MaxInt64); ok && v != int64(req.N) {
		r.fail(bad("best_of", "best_of is %d and n is %d: choosing the best of several is not supported, so they must be equal", v, req.N))
	}
}

// streaming reads stream_options, which only a stream may have.
func (e *Env) streaming(r *reader, a *answer) {
	options := r.typed("stream_options", kindObject)
	if options == nil {
		a.usage = a.job.Request.Stream && e.ForceUsage
		return
	}
	if !a.job.Request.Stream && !isEmpty(options) {
		r.fail(bad("stream_options", "stream_options is only allowed with stream: true"))
		return
	}
	o, err := object("stream_options", options)
	if err != nil {
		r.fail(err)
		return
	}
	a.usage = o.flag("include_usage", false) || e.ForceUsage
	a.continuous = o.flag("continuous_usage_stats", false) && a.usage
	r.fail(at("stream_options", o.err))
}

// promptLogprobs reads prompt_logprobs: −1 when there is none.
func (e *Env) promptLogprobs(r *reader, stream bool) int {
	v, ok := r.integer("prompt_logprobs", 0, e.maxLogprobs())
	if !ok {
		return -1
	}
	if stream {
		r.fail(bad("prompt_logprobs", "prompt_logprobs is not available with stream: true"))
	}
	return int(v)
}

// ParseChat parses and validates the body of a POST /v1/chat/completions, renders the chat template
// and tokenises. It keeps nothing of body.
func (e *Env) ParseChat(body []byte) (*Job, *lifecycle.Error) {
	r, j, err := e.begin(body, "chat", nil)
	if err != nil {
		return nil, err
	}
	req, p := &j.Request, j.Request.Params
	enc := &chatEncoder{}
	enc.init(e, j, "chatcmpl-")
	r.choices(req)
	e.streaming(r, &enc.answer)

	asked, askedParam := int64(-1), "max_tokens"
	for _, f := range []string{"max_tokens", "max_completion_tokens"} { // the latter wins
		if v, ok := r.integer(f, 1, math.MaxInt64); ok {
			asked, askedParam = v, f
		}
	}
	top, given := r.integer("top_logprobs", 0, e.maxLogprobs())
	if r.flag("logprobs", false) {
		p.Logprobs = int(top)
	} else if given && top > 0 {
		r.fail(bad("top_logprobs", "top_logprobs needs logprobs: true"))
	}
	if p.PromptLogprobs = e.promptLogprobs(r, req.Stream); p.PromptLogprobs >= 0 {
		enc.promptLogprobs = p.PromptLogprobs
	}
	enc.returning(r)
	enc.returnPromptText = r.flag("return_prompt_text", false)

	raw := r.typed("messages", kindArray)
	if raw == nil && r.err == nil {
		r.fail(bad("messages", "messages is missing"))
	}
	if r.err != nil {
		return nil, r.err
	}
	list, err := chatMessages(raw)
	if err != nil {
		return nil, err
	}
	text, err := e.conversation(r, "messages", list)
	if err != nil {
		return nil, err
	}
	enc.role = "assistant"
	if !r.flag("add_generation_prompt", true) {
		enc.role = list[len(list)-1].role
	}
	if last := list[len(list)-1]; r.flag("echo", false) && last.role == enc.role {
		enc.echo = last.content
	}
	c := e.cut(r)
	special := r.flag("add_special_tokens", false)
	if r.err != nil {
		return nil, r.err
	}
	ids, _, err := e.encode("messages", text, special, c)
	if err != nil {
		return nil, err
	}
	req.Prompts = [][]int32{ids}
	if enc.returnPromptText {
		enc.promptText = text
	}
	if err := e.room(p, req.Prompts, "messages", asked, askedParam); err != nil {
		return nil, err
	}
	w := weight{logprobs: "top_logprobs", promptLogprobs: "prompt_logprobs", maxTokens: askedParam,
		returnIDs: enc.returnIDs, text: len(enc.echo) + len(enc.promptText), textParam: "echo"}
	if enc.returnPromptText {
		w.textParam = "return_prompt_text"
	}
	if err := e.weigh(req, w); err != nil {
		return nil, err
	}
	j.Encoder, j.answer = enc, &enc.answer
	return j, nil
}

// ParseCompletion parses and validates the body of a POST /v1/completions, and tokenises. It keeps
// nothing of body.
func (e *Env) ParseCompletion(body []byte) (*Job, *lifecycle.Error) {
	r, j, err := e.begin(body, "completion", refusedCompletion)
	if err != nil {
		return nil, err
	}
	req, p := &j.Request, j.Request.Params
	enc := &completionEncoder{}
	enc.init(e, j, "cmpl-")
	r.choices(req)
	e.streaming(r, &enc.answer)

	req.Echo = r.flag("echo", false)
	asked := int64(min(16, e.MaxModelLen)) // OpenAI's default
	if v, ok := r.integer("max_tokens", 0, math.MaxInt64); ok {
		if asked = v; v == 0 && !req.Echo {
			r.fail(bad("max_tokens", "max_tokens must be at least 1, or 0 with echo: true"))
		}
	}
	p.PromptLogprobs = e.promptLogprobs(r, req.Stream)
	enc.promptLogprobs = p.PromptLogprobs
	enc.logprobs = -1
	if v, ok := r.integer("logprobs", 0, e.maxLogprobs()); ok {
		enc.logprobs, p.Logprobs = int(v), int(v)
		if req.Echo {
			p.PromptLogprobs = max(p.PromptLogprobs, int(v))
		}
	}
	enc.returning(r)
	c := e.cut(r)
	special := r.flag("add_special_tokens", true)
	if r.err != nil {
		return nil, r.err
	}
	if err := enc.prompts(e, r, special, c); err != nil {
		return nil, err
	}
	if n := req.Sequences(); n > maxSequences {
		return nil, bad("n", "%d prompts with n = %d are %d choices; at most %d are allowed in a request", len(req.Prompts), req.N, n, maxSequences)
	}
	if err := e.room(p, req.Prompts, "prompt", asked, "max_tokens"); err != nil {
		return nil, err
	}
	w := weight{logprobs: "logprobs", promptLogprobs: "logprobs", maxTokens: "max_tokens", returnIDs: enc.returnIDs, textParam: "echo"}
	if enc.promptLogprobs >= 0 {
		w.promptLogprobs = "prompt_logprobs"
	}
	for _, echo := range enc.echoes {
		w.text += len(echo)
	}
	if err := e.weigh(req, w); err != nil {
		return nil, err
	}
	j.Encoder, j.answer = enc, &enc.answer
	return j, nil
}

// prompts reads `prompt`: a string, a list of strings, a list of token ids, or a list of such
// lists.
func (c *completionEncoder) prompts(e *Env, r *reader, special bool, cut cut) *lifecycle.Error {
	raw := r.raw("prompt")
	if raw == nil {
		return bad("prompt", "prompt is missing")
	}
	const want = "a string, a list of strings, a list of token ids, or a list of lists of token ids"
	total := 0 // bytes of text that have been tokenised
	addText := func(param string, raw []byte) *lifecycle.Error {
		text := unquote(raw)
		if total += len(e.shorten(text, cut)); total > maxText && total > e.mostText() && len(c.job.Request.Prompts) > 0 {
			return bad("prompt", "the prompts up to %s have %d bytes of text; at most %d are accepted in a request: send several", param, total, max(maxText, e.mostText()))
		}
		ids, whole, err := e.encode(param, text, special, cut)
		if err != nil {
			err.Param = "prompt"
			return err
		}
		echo := text
		if c.job.Request.Echo && !whole {
			echo = e.Tokenizer.Decode(ids, false)
		}
		c.add(ids, echo, true)
		return nil
	}
	addIDs := func(param string, raw []byte) *lifecycle.Error {
		// A list of numbers has one more of them than commas; one that cannot fit is not read.
		if n := bytes.Count(raw, []byte{','}) + 1; n > e.MaxModelLen && (cut.keep == 0 || n > maxIDs) {
			return e.tooLong("prompt", n)
		}
		ids, err := tokenIDs(param, raw, e.Vocab)
		if err != nil {
			err.Param = "prompt"
			return err
		}
		if len(ids) == 0 {
			return bad("prompt", "%s is empty: it has no tokens to start from", param)
		}
		ids = cut.apply(ids)
		echo := ""
		if c.job.Request.Echo {
			echo = e.Tokenizer.Decode(ids, false)
		}
		c.add(ids, echo, false)
		return nil
	}
	switch kindOf(raw) {
	case kindString:
		return addText("prompt", raw)
	case kindArray:
	default:
		return mistyped("prompt", want, raw)
	}
	var first kind
	for _, el := range elements(raw) {
		first = kindOf(el)
		break
	}
	switch first {
	case kindNumber:
		return addIDs("prompt", raw)
	case kindString, kindArray:
	case "":
		return bad("prompt", "prompt is an empty list")
	default:
		return mistyped("prompt", want, raw)
	}
	for i, el := range elements(raw) {
		if i == maxPrompts {
			return bad("prompt", "prompt has more than %d prompts", maxPrompts)
		}
		param := "prompt[" + itoa(i) + "]"
		if kindOf(el) != first {
			err := mistyped(param, strings.Replace(string(first), "an array", "a list of token ids", 1), el)
			err.Param = "prompt"
			return err
		}
		add := addText
		if first == kindArray {
			add = addIDs
		}
		if err := add(param, el); err != nil {
			return err
		}
	}
	return nil
}
