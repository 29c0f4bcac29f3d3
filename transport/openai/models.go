package openai

import (
	"bytes"
	"slices"

	"github.com/troupe-llm/troupe/lifecycle"
)

// AppendModels appends the answer to GET /v1/models: one card per served name.
func (e *Env) AppendModels(dst []byte) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, name := range e.Served {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = e.appendCard(dst, name)
	}
	return append(dst, "]}"...)
}

// AppendModel appends the answer to GET /v1/models/{id}; a 404 error when id is not served.
func (e *Env) AppendModel(dst []byte, id string) ([]byte, *lifecycle.Error) {
	if !slices.Contains(e.Served, id) {
		return dst, e.notServed(id)
	}
	return e.appendCard(dst, id), nil
}

// appendCard appends a model's card, as vLLM has it, and the description of one that has one.
func (e *Env) appendCard(dst []byte, name string) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, name)
	dst = append(dst, `,"object":"model","created":`...)
	dst = appendInt(dst, int(e.Created))
	dst = append(dst, `,"owned_by":"troupe","root":`...)
	dst = appendString(dst, e.Root)
	dst = append(dst, `,"parent":null,"max_model_len":`...)
	dst = appendInt(dst, e.MaxModelLen)
	if e.Description != "" {
		dst = append(dst, `,"description":`...)
		dst = appendString(dst, e.Description)
	}
	return append(dst, `,"permission":[]}`...)
}

// Tokenize answers a POST /tokenize: a prompt, or messages as the chat template renders them. The
// text is bounded by maxCounted, or by what could fit the context if that is more.
func (e *Env) Tokenize(body []byte) ([]byte, *lifecycle.Error) {
	r, err := read(body)
	if err != nil {
		return nil, err
	}
	e.checkModel(r)
	strs := r.flag("return_token_strs", false)
	var text string
	var special bool
	if raw := r.typed("messages", kindArray); raw != nil {
		r.refuse([]refusal{{"chat_template", nil, "is not accepted in a request"}})
		special = r.flag("add_special_tokens", false)
		if r.err != nil {
			return nil, r.err
		}
		list, err := chatMessages(raw)
		if err != nil {
			return nil, err
		}
		// Counting calls no tool: what a chat would refuse is rendered here.
		r.fields = append(r.fields, member{"tool_choice", []byte(`"none"`)})
		if text, err = e.conversation(r, "messages", list); err != nil {
			return nil, err
		}
	} else {
		var given bool
		if text, given = r.str("prompt"); !given {
			r.fail(bad("prompt", "prompt or messages is missing"))
		}
		special = r.flag("add_special_tokens", true)
	}
	if r.err != nil {
		return nil, r.err
	}
	param := "prompt"
	if r.raw("messages") != nil {
		param = "messages"
	}
	if err := e.countable(param, len(text)); err != nil {
		return nil, err
	}
	ids := e.Tokenizer.Encode(text, special, true)
	dst := append(make([]byte, 0, 128+8*len(ids)), `{"count":`...)
	dst = appendInt(dst, len(ids))
	dst = append(dst, `,"max_model_len":`...)
	dst = appendInt(dst, e.MaxModelLen)
	dst = append(dst, `,"tokens":`...)
	dst = appendIDs(dst, ids)
	dst = append(dst, `,"token_strs":`...)
	if !strs {
		return append(dst, "null}"...), nil
	}
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, e.Tokenizer.Piece(id))
	}
	return append(dst, "]}"...), nil
}

// Detokenize answers a POST /detokenize. The text is bounded as in Tokenize.
func (e *Env) Detokenize(body []byte) ([]byte, *lifecycle.Error) {
	r, err := read(body)
	if err != nil {
		return nil, err
	}
	e.checkModel(r)
	raw := r.typed("tokens", kindArray)
	if raw == nil {
		r.fail(bad("tokens", "tokens is missing"))
	}
	if r.err != nil {
		return nil, r.err
	}
	// Nearly every token stands for a byte or more: a longer list need not be read.
	if err := e.countable("tokens", bytes.Count(raw, []byte{','})); err != nil {
		return nil, err
	}
	ids, err := tokenIDs("tokens", raw, e.Vocab)
	if err != nil {
		return nil, err
	}
	size, buf := 0, []byte(nil)
	for _, id := range ids {
		buf = e.Tokenizer.AppendBytes(buf[:0], id)
		size += len(buf)
	}
	if err := e.countable("tokens", size); err != nil {
		return nil, err
	}
	dst := append([]byte(nil), `{"prompt":`...)
	return append(appendString(dst, e.Tokenizer.Decode(ids, false)), '}'), nil
}
