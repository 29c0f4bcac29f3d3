// Package template renders chat templates: the Jinja templates that model files carry, which turn a
// list of messages into the text that the model was trained on.
//
// The engine is ardanlabs/jinja. Before it sees a template, this package translates it: white space
// control is done here, exactly as Jinja2 does it with trim_blocks and lstrip_blocks; filters, tests
// and methods where the engine differs from Python are replaced by own ones; and loops, macros,
// outputs and assignments are given checks, since the engine itself cannot be interrupted.
//
// The reference is Python's jinja2 as Hugging Face transformers sets it up for
// apply_chat_template. What remains different is listed at Template.
package template

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// ChatML is the template for files that have none, for callers that want one: each message between
// <|im_start|> and <|im_end|>, as Qwen, SmolLM and many fine-tunes have it. Whether it fits a model
// is the caller's to decide: one that has no such tokens will read them as plain text.
const ChatML = "{% for message in messages %}" +
	"{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}" +
	"{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

// Options are what a template needs to know besides its source.
type Options struct {
	BOS, EOS string // the spellings of the model's tokens: bos_token and eos_token in the template
	// Now is the clock behind strftime_now; nil means time.Now.
	Now func() time.Time
	// MaxOutput bounds what a render may produce, and hold in any one value, in bytes; 0 means 32
	// MiB.
	MaxOutput int
	// MaxSteps bounds the loop iterations of a render; 0 means a million.
	MaxSteps int
	// Timeout bounds a render's time; 0 means 5 s. It is checked at each loop iteration, output and
	// macro call.
	Timeout time.Duration
}

// Template is a parsed chat template. It is immutable and safe for concurrent use.
//
// It renders as Python's jinja2 does, but for this: tuples print as lists; integers beyond 64 bits
// are floats; letters change case one by one (ß stays ß); map, select and their like work at once,
// so that a fault in them shows even if nobody looks at the result; dict and namespace take their
// keywords in alphabetical order; a method is only known where it is called. Parse refuses include,
// import, extends, block, with and autoescape, recursive loops, * before an argument, and filters
// and tests that chat templates don't use; Render refuses % on text and format's specifications.
type Template struct {
	source string
	opt    Options
	parsed *jinja.Template
	uses   map[string]function // of pure, what the template calls
	calls  map[string]counted  // of counting
}

// MaxSource is the size in bytes up to which a template's source is accepted.
const MaxSource = 1 << 20

// Parse reads a template. Its errors name the line.
func Parse(source string, opt Options) (*Template, error) {
	if len(source) > MaxSource {
		return nil, fmt.Errorf("template: the source has %d bytes, more than the %d that are accepted", len(source), MaxSource)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.MaxOutput <= 0 {
		opt.MaxOutput = 32 << 20
	}
	if opt.MaxSteps <= 0 {
		opt.MaxSteps = 1e6
	}
	if opt.Timeout <= 0 {
		opt.Timeout = 5 * time.Second
	}
	core, err := translate(source)
	if err != nil {
		return nil, err
	}
	parsed, err := jinja.Compile(core)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	t := &Template{source: source, opt: opt, parsed: parsed, uses: make(map[string]function), calls: make(map[string]counted)}
	for name, f := range pure {
		if strings.Contains(core, name) {
			t.uses[name] = f
		}
	}
	for name, f := range counting {
		if strings.Contains(core, name) {
			t.calls[name] = f
		}
	}
	return t, nil
}

// Source is the template as it was given to Parse.
func (t *Template) Source() string { return t.source }

// Input is what a template is rendered with. Values are those that Decode makes and Go's own of the
// same kinds (see Object.Set); objects that a template prints, such as tools, should be *Object, for
// a Go map has no order.
type Input struct {
	Messages []any
	// Tools and Documents are None in the template when nil, as in transformers.
	Tools, Documents []any
	// AddGenerationPrompt ends the text with the beginning of an answer.
	AddGenerationPrompt bool
	// ContinueFinal ends the text where the last message's content ends, so that the model goes on
	// with it. It excludes AddGenerationPrompt.
	ContinueFinal bool
	// Extra are further variables, such as enable_thinking. They win over bos_token and eos_token,
	// but not over the fields above.
	Extra map[string]any
}

// RaisedError is what a template says by raise_exception: that it cannot express the messages. It
// is the client's mistake.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return "the chat template refuses: " + e.Message }

// LimitError says that a render was stopped at one of the bounds of Options.
type LimitError struct{ Limit string }

func (e *LimitError) Error() string { return "the chat template was stopped: " + e.Limit }

// Render renders the template. An error is a *RaisedError, a *LimitError, or says what the template
// could not do with the input; in every case the messages did not fit the template, or the template
// is broken.
func (t *Template) Render(in Input) (text string, err error) {
	if in.ContinueFinal && in.AddGenerationPrompt {
		return "", errors.New("template: continuing the last message and adding a generation prompt exclude each other")
	}
	data := make(map[string]jinja.Value, len(t.uses)+len(t.calls)+len(in.Extra)+6)
	put := func(name string, v any) {
		if err == nil {
			data[name], err = toValue(v, name, 0)
		}
	}
	put("bos_token", t.opt.BOS)
	put("eos_token", t.opt.EOS)
	for name, v := range in.Extra {
		if strings.HasPrefix(name, own) {
			return "", fmt.Errorf("template: the variable %q is reserved", name)
		}
		put(name, v)
	}
	messages := in.Messages
	if in.ContinueFinal {
		if messages, err = markFinal(messages); err != nil {
			return "", err
		}
	}
	put("messages", messages)
	put("tools", list(in.Tools))
	put("documents", list(in.Documents))
	put("add_generation_prompt", in.AddGenerationPrompt)
	if err != nil {
		return "", err
	}
	newRun(t.opt).register(data, t.uses, t.calls)
	defer func() {
		// The engine panics on some wrong arguments.
		if p := recover(); p != nil {
			text, err = "", fmt.Errorf("template: the template engine failed: %v", p)
		}
	}()
	if text, err = t.parsed.RenderValues(data); err != nil {
		var raised *RaisedError
		var limit *LimitError
		if errors.As(err, &raised) {
			return "", raised
		}
		if errors.As(err, &limit) {
			return "", limit
		}
		return "", fmt.Errorf("template: %w", err)
	}
	if in.ContinueFinal {
		return cutFinal(text)
	}
	return text, nil
}

// list keeps nil apart from empty.
func list(v []any) any {
	if v == nil {
		return nil
	}
	return v
}

// finalMark stands at the end of the last message's content when that is to be continued, as in
// transformers. Its last space shows whether the template strips contents.
const finalMark = "CONTINUE_FINAL_MESSAGE_TAG "

// markFinal returns the messages with the mark after the last one's content.
func markFinal(messages []any) ([]any, error) {
	mistake := errors.New("template: the last message cannot be continued: it has no text content")
	if len(messages) == 0 {
		return nil, mistake
	}
	message, ok := fields(messages[len(messages)-1])
	if !ok {
		return nil, mistake
	}
	switch content, _ := message.Get("content"); content := content.(type) {
	case string:
		message.Set("content", content+finalMark)
	case []any:
		// The last part that has a text.
		parts := slices.Clone(content)
		i := len(parts) - 1
		for ; i >= 0; i-- {
			if part, ok := fields(parts[i]); ok {
				if s, ok := part.values["text"].(string); ok {
					part.Set("text", s+finalMark)
					parts[i] = part
					break
				}
			}
		}
		if i < 0 {
			return nil, mistake
		}
		message.Set("content", parts)
	default:
		return nil, mistake
	}
	messages = slices.Clone(messages)
	messages[len(messages)-1] = message
	return messages, nil
}

// fields copies an object.
func fields(v any) (*Object, bool) {
	o := &Object{}
	switch v := v.(type) {
	case *Object:
		if v == nil {
			return nil, false
		}
		for k, x := range v.All() {
			o.Set(k, x)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			o.Set(k, v[k])
		}
	default:
		return nil, false
	}
	return o, true
}

// cutFinal cuts a rendered text at the mark.
func cutFinal(text string) (string, error) {
	at := strings.LastIndex(text, strings.TrimSpace(finalMark))
	if at < 0 {
		return "", errors.New("template: the last message cannot be continued: the template does not print its content")
	}
	if strings.HasPrefix(text[at:], finalMark) {
		return text[:at], nil
	}
	return strings.TrimRightFunc(text[:at], isSpace), nil
}
