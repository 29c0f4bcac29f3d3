package openai

import (
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model/template"
)

// Bounds on the JSON that becomes values for the template, in bytes: a value takes many times the
// memory of its text.
const (
	maxKwargsBytes = 256 << 10 // chat_template_kwargs
	maxListBytes   = 4 << 20   // tools, documents
)

// reserved are the template's variables that have fields of their own in a request, or that a
// request may not set.
var reserved = []string{"messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"}

// conversation renders a chat as the request's fields want it.
func (e *Env) conversation(r *reader, param string, list []message) (string, *lifecycle.Error) {
	continued := r.flag("continue_final_message", false)
	// Continuing a message and opening a new one exclude each other. As in vLLM, the default of the
	// second stands, so that who wants the first must turn the second off.
	generate := r.flag("add_generation_prompt", true)
	if continued && generate {
		r.fail(bad("continue_final_message", "continue_final_message and add_generation_prompt cannot both be true, and the second is unless the request says otherwise: send add_generation_prompt: false"))
	}
	if r.err != nil {
		return "", r.err
	}
	return e.render(r, param, list, generate, continued)
}

// tools reads the tools that a template shows to the model. They are only allowed when the request
// says that none may be called: this server does not call tools.
func (e *Env) tools(r *reader) []byte {
	raw := r.typed("tools", kindArray)
	some := raw != nil && !isEmpty(raw)
	choice := r.raw("tool_choice")
	none := choice != nil && isNone(choice)
	unsupported := func(param, say string) {
		r.fail(&lifecycle.Error{Status: 400, Type: "invalid_request_error", Code: "unsupported_parameter", Param: param, Message: say})
	}
	switch {
	case some && !none:
		unsupported("tools", `tools is not supported: this server does not call tools yet. Leave it out, or send tool_choice "none"`)
	case choice != nil && !none && !(kindOf(choice) == kindString && unquote(choice) == "auto"):
		unsupported("tool_choice", `tool_choice asks for a tool, but this server does not call tools yet. Leave it out, or send "none"`)
	case some:
		return raw
	}
	return nil
}

// render turns messages into the prompt's text by the model's template.
func (e *Env) render(r *reader, param string, list []message, generate, continued bool) (string, *lifecycle.Error) {
	if e.Template == nil {
		return "", bad(param, "this model has no chat template: use /v1/completions, or start the server with --chat-template")
	}
	in := template.Input{AddGenerationPrompt: generate, ContinueFinal: continued, Extra: map[string]any{}}
	in.Tools = r.values("tools", e.tools(r), maxListBytes)
	if in.Tools != nil && param == "input" {
		in.Tools = nested(in.Tools)
	}
	in.Documents = r.values("documents", r.typed("documents", kindArray), maxListBytes)
	r.kwargs(in.Extra)
	if r.err != nil {
		return "", r.err
	}
	developer := strings.Contains(e.Template.Source(), "developer")
	for i := range list {
		in.Messages = append(in.Messages, list[i].object(developer))
	}
	text, err := e.Template.Render(in)
	if err != nil {
		return "", bad(param, "the messages do not fit the model's chat template: %s", err)
	}
	return text, nil
}

// object is the message as a template sees it. OpenAI's clients call "developer" what most models
// know as "system"; a template that has not heard of it gets the name that it knows.
func (m *message) object(developer bool) *template.Object {
	role := m.role
	if role == "developer" && !developer {
		role = "system"
	}
	o := &template.Object{}
	o.Set("role", role)
	o.Set("content", m.content)
	for _, x := range m.extra {
		if v, err := template.Decode(x.raw); err == nil { // checked JSON of bounded depth
			o.Set(x.name, v)
		}
	}
	return o
}

// values decodes an array for the template; nil when there is none.
func (r *reader) values(name string, raw []byte, most int) []any {
	if raw == nil {
		return nil
	}
	if len(raw) > most {
		r.fail(bad(name, "%s has %d bytes; at most %d are accepted", name, len(raw), most))
		return nil
	}
	v, err := template.Decode(raw)
	list, ok := v.([]any)
	if err != nil || !ok {
		r.fail(bad(name, "%s cannot be read: %v", name, err))
	}
	return list
}

// kwargs reads the further variables that a request sets for the template.
func (r *reader) kwargs(extra map[string]any) {
	effort, ok := r.str("reasoning_effort")
	if raw := r.raw("reasoning"); raw != nil && !ok && kindOf(raw) == kindObject {
		if o, err := object("reasoning", raw); err == nil {
			effort, ok = o.str("effort")
		}
	}
	if ok {
		// As in vLLM: templates that must be told to think are.
		extra["reasoning_effort"], extra["enable_thinking"] = effort, effort != "none"
	}
	const name = "chat_template_kwargs"
	raw := r.typed(name, kindObject)
	switch {
	case raw == nil:
		return
	case len(raw) > maxKwargsBytes:
		r.fail(bad(name, "%s has %d bytes; at most %d are accepted", name, len(raw), maxKwargsBytes))
		return
	}
	for key, v := range members(raw) {
		if slices.Contains(reserved, key) {
			r.fail(bad(name, "%s may not set %s", name, key))
			return
		}
		value, err := template.Decode(v)
		if err != nil {
			r.fail(bad(name, "%s.%s cannot be read: %v", name, clip(key), err))
			return
		}
		extra[key] = value
	}
}

// nested turns the Responses API's flat functions into those of chat, which templates expect:
// {"type": "function", "function": {…}}. Tools of other types are not for the model to see.
func nested(tools []any) []any {
	var out []any
	for _, t := range tools {
		flat, ok := t.(*template.Object)
		if !ok {
			continue
		}
		if kind, _ := flat.Get("type"); kind != "function" {
			continue
		}
		function, tool := &template.Object{}, &template.Object{}
		for name, v := range flat.All() {
			if name != "type" {
				function.Set(name, v)
			}
		}
		tool.Set("type", "function")
		tool.Set("function", function)
		out = append(out, tool)
	}
	return out
}
