package openai

import (
	"fmt"
	"math"
	"slices"

	"github.com/troupe-llm/troupe/lifecycle"
)

// checkModel accepts the served names and no name at all.
func (e *Env) checkModel(r *reader) {
	name, ok := r.str("model")
	if r.err != nil || !ok || name == "" || slices.Contains(e.Served, name) {
		return
	}
	r.fail(e.notServed(name))
}

func (e *Env) notServed(name string) *lifecycle.Error {
	return &lifecycle.Error{Status: 404, Type: "invalid_request_error", Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("the model %q is not served here; %q is", clip(name), e.Served[0])}
}

// tooLong is the error of a prompt that leaves no room. param is the field that held it.
func (e *Env) tooLong(param string, tokens int) *lifecycle.Error {
	err := bad(param, "This model's maximum context length is %d tokens, but the prompt has %d tokens: shorten it", e.MaxModelLen, tokens)
	err.Code = "context_length_exceeded"
	return err
}

// encode tokenises a prompt and cuts it as c says; whole is false when anything was cut off. Text
// that cannot fit, however well it compresses, is refused before it costs any time.
func (e *Env) encode(param, text string, addSpecial bool, c cut) (ids []int32, whole bool, err *lifecycle.Error) {
	if most := e.mostText(); len(text) > most && c.keep == 0 {
		err := bad(param, "This model's maximum context length is %d tokens, but the prompt has %d bytes, which are more tokens than that: shorten it", e.MaxModelLen, len(text))
		err.Code = "context_length_exceeded"
		return nil, false, err
	}
	part := e.shorten(text, c)
	all := e.Tokenizer.Encode(part, addSpecial, true)
	if len(all) == 0 {
		return nil, false, bad(param, "the prompt is empty: it has no tokens to start from")
	}
	ids = c.apply(all)
	if len(ids) < len(all) {
		ids = slices.Clone(ids) // not to keep what was cut off for as long as the request lives
	}
	return ids, len(part) == len(text) && len(ids) == len(all), nil
}

// cut says how to shorten a prompt that is too long: truncate_prompt_tokens and truncation_side.
type cut struct {
	keep  int // tokens; 0: don't cut
	right bool
}

func (e *Env) cut(r *reader) cut {
	var c cut
	if v, ok := r.integer("truncate_prompt_tokens", -1, int64(e.MaxModelLen)); ok {
		switch v {
		case 0:
			r.fail(bad("truncate_prompt_tokens", "truncate_prompt_tokens must be at least 1, or -1 for as many as fit"))
		case -1:
			c.keep = e.MaxModelLen - 1 // room for one token of output
		default:
			c.keep = int(v)
		}
	}
	// The end of a prompt matters more for what follows it: vLLM cuts generating models' prompts
	// on the left too, unless told otherwise.
	c.right = r.oneOf("truncation_side", "left", "right") == "right"
	return c
}

func (c cut) apply(ids []int32) []int32 {
	if c.keep == 0 || len(ids) <= c.keep {
		return ids
	}
	if c.right {
		return ids[:c.keep]
	}
	return ids[len(ids)-c.keep:]
}

// room settles how many tokens may be generated, given the prompts and what was asked for (−1:
// nothing). What is asked for beyond the context's end is cut off there, as in vLLM; a request that
// could never be met is refused. param names the field that asked. With several prompts MaxTokens
// is right for the shortest; the context ends the others.
func (e *Env) room(p *lifecycle.Params, prompts [][]int32, promptParam string, asked int64, askedParam string) *lifecycle.Error {
	shortest, longest := math.MaxInt, 0
	for _, ids := range prompts {
		shortest, longest = min(shortest, len(ids)), max(longest, len(ids))
	}
	if asked > int64(e.MaxModelLen) {
		return bad(askedParam, "%s is %d, but this model's maximum context length is %d tokens, prompt included", askedParam, asked, e.MaxModelLen)
	}
	if longest > e.MaxModelLen || longest == e.MaxModelLen && asked != 0 {
		return e.tooLong(promptParam, longest)
	}
	p.MaxTokens = e.MaxModelLen - shortest
	if asked >= 0 {
		p.MaxTokens = min(p.MaxTokens, int(asked))
	}
	if most := min(p.MaxTokens, e.MaxModelLen-longest); p.MinTokens > most {
		return bad("min_tokens", "min_tokens is %d, but at most %d tokens can be generated (%s, or what the context leaves)", p.MinTokens, most, askedParam)
	}
	return nil
}
