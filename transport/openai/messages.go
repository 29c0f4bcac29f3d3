package openai

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/lifecycle"
)

// maxMessages bounds a conversation.
const maxMessages = 8192

// message is one message of a conversation. It keeps nothing of the request's body.
type message struct {
	role, content string
	// extra are further members for the template (name, tool_calls, tool_call_id, reasoning), in
	// order; the values are checked JSON text.
	extra []member
}

// roles are those that a chat message may have.
var roles = []string{"system", "developer", "user", "assistant", "tool"}

// object reads a member of a list that must be an object, as a reader of its own. Its errors name
// fields without path: see at.
func object(path string, raw []byte) (*reader, *lifecycle.Error) {
	if kindOf(raw) != kindObject {
		return nil, mistyped(path, string(kindObject), raw)
	}
	r := &reader{}
	for name, v := range members(raw) {
		if len(r.fields) == maxMembers {
			return nil, bad(path, "%s has more than %d members", path, maxMembers)
		}
		r.fields = append(r.fields, member{name, v})
	}
	return r, nil
}

// at prefixes an error of a nested object with where that is.
func at(path string, err *lifecycle.Error) *lifecycle.Error {
	if err == nil {
		return nil
	}
	e := *err
	if e.Param != "" {
		e.Message = strings.Replace(e.Message, e.Param, path+"."+e.Param, 1)
		path += "." + e.Param
	}
	e.Param = path
	return &e
}

// chatMessages reads the messages of a chat request.
func chatMessages(raw []byte) ([]message, *lifecycle.Error) {
	var list []message
	for i, e := range elements(raw) {
		if i == maxMessages {
			return nil, bad("messages", "messages has more than %d messages", maxMessages)
		}
		m, err := chatMessage(fmt.Sprintf("messages[%d]", i), e)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	if len(list) == 0 {
		return nil, bad("messages", "messages is empty: at least one message is needed")
	}
	return list, nil
}

func chatMessage(path string, raw []byte) (message, *lifecycle.Error) {
	r, err := object(path, raw)
	if err != nil {
		return message{}, err
	}
	var m message
	var given bool
	if m.role, given = r.str("role"); !given && r.err == nil {
		return m, bad(path+".role", "%s.role is missing: it must be one of %s", path, strings.Join(roles, ", "))
	}
	if r.err == nil && !slices.Contains(roles, m.role) {
		return m, bad(path+".role", "%s.role must be one of %s, got %q", path, strings.Join(roles, ", "), clip(m.role))
	}
	if content := r.raw("content"); content != nil {
		if m.content, err = contentText(path+".content", content); err != nil {
			return m, err
		}
	} else if m.role != "assistant" && m.role != "tool" {
		// An assistant's turn may be a tool call alone, and a tool may return nothing.
		return m, bad(path+".content", "%s.content is missing", path)
	}
	for _, f := range []string{"audio", "function_call"} {
		if r.raw(f) != nil {
			return m, bad(path+"."+f, "%s.%s is not supported", path, f)
		}
	}
	if m.role == "assistant" {
		m.assistant(path, r)
	}
	if m.role == "tool" {
		m.keep(r, "tool_call_id")
	}
	m.keep(r, "name")
	return m, at(path, r.err)
}

// assistant keeps what a template may want of an earlier turn of the model besides its text.
func (m *message) assistant(path string, r *reader) {
	reasoning, ok := r.str("reasoning")
	if !ok {
		reasoning, ok = r.str("reasoning_content")
	}
	if ok {
		// Templates know it by either name.
		quoted := appendString(nil, reasoning)
		m.extra = append(m.extra, member{"reasoning", quoted}, member{"reasoning_content", quoted})
	}
	calls := r.typed("tool_calls", kindArray)
	if calls == nil || isEmpty(calls) {
		return
	}
	out := []byte{'['}
	for i, e := range elements(calls) {
		call, err := object(fmt.Sprintf("tool_calls[%d]", i), e)
		if err == nil {
			out, err = appendToolCall(out, fmt.Sprintf("tool_calls[%d]", i), call)
		}
		if err != nil {
			r.fail(err)
			return
		}
		out = append(out, ',')
	}
	out[len(out)-1] = ']'
	m.extra = append(m.extra, member{"tool_calls", out})
}

// appendToolCall appends a tool call as templates expect it: with the arguments as an object,
// though the API has them as JSON text. Text that is no object becomes {}: a conversation must not
// die of a malformed call in its past.
func appendToolCall(dst []byte, path string, call *reader) ([]byte, *lifecycle.Error) {
	raw := call.raw("function")
	if t, ok := call.str("type"); ok && t != "function" || raw == nil || kindOf(raw) != kindObject {
		return dst, bad(path, `%s must have the type "function" and an object "function"`, path)
	}
	dst = append(dst, '{')
	for _, f := range call.fields {
		if f.name == "function" {
			continue
		}
		dst = appendString(dst, f.name)
		dst = append(dst, ':')
		dst = appendCompact(dst, f.raw)
		dst = append(dst, ',')
	}
	dst = append(dst, `"function":{`...)
	for name, v := range members(raw) {
		if name == "arguments" {
			continue
		}
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendCompact(dst, v)
		dst = append(dst, ',')
	}
	dst = append(dst, `"arguments":`...)
	return append(append(dst, toolArguments(raw)...), "}}"...), nil
}

func toolArguments(function []byte) []byte {
	for name, v := range members(function) {
		if name != "arguments" {
			continue
		}
		switch kindOf(v) {
		case kindObject:
			return appendCompact(nil, v)
		case kindString:
			text := []byte(unquote(v))
			s := scanner{data: text}
			if s.peek() == '{' && s.value(maxDepth/2) == nil && s.peek() == 0 && s.pos == len(text) {
				return appendCompact(nil, text)
			}
		}
	}
	return []byte("{}")
}

// keep passes a string member on to the template.
func (m *message) keep(r *reader, name string) {
	if s, ok := r.str(name); ok {
		m.extra = append(m.extra, member{name, appendString(nil, s)})
	}
}

// textParts are the content parts that hold text, and the member that holds it.
var textParts = map[string]string{"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}

// contentText reads a message's content: a string, or a list of parts whose texts are joined by
// newlines, as vLLM does for templates that take strings.
func contentText(path string, raw []byte) (string, *lifecycle.Error) {
	switch kindOf(raw) {
	case kindString:
		return unquote(raw), nil
	case kindArray:
	default:
		return "", mistyped(path, "a string or a list of content parts", raw)
	}
	var texts []string
	for i, e := range elements(raw) {
		if kindOf(e) == kindString {
			texts = append(texts, unquote(e))
			continue
		}
		part := fmt.Sprintf("%s[%d]", path, i)
		r, err := object(part, e)
		if err != nil {
			return "", err
		}
		t, ok := r.str("type")
		field, text := textParts[t]
		switch {
		case r.err != nil:
			return "", at(part, r.err)
		case !ok:
			return "", bad(part+".type", "%s.type is missing", part)
		case !text:
			return "", bad(part+".type", "%s has the type %q, which is not supported: this model reads text only", part, clip(t))
		}
		s, ok := r.str(field)
		if r.err != nil {
			return "", at(part, r.err)
		}
		if !ok {
			return "", bad(part+"."+field, "%s.%s is missing", part, field)
		}
		if s != "" {
			texts = append(texts, s)
		}
	}
	return strings.Join(texts, "\n"), nil
}
