package openai

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/troupe-llm/troupe/lifecycle"
)

// Stored is a finished response as GET /v1/responses/{id} answers it and as previous_response_id
// continues it. It is immutable.
type Stored struct {
	ID   string
	Body []byte // the response object, as it was returned
	// conversation is what came before and the answer, without instructions: those are a
	// request's own and don't carry over.
	conversation []message
}

// Stored returns what to keep of a finished response when Job.Store is set, and nil otherwise. It
// may be called once the request has ended, after End or Body.
func (j *Job) Stored(r *lifecycle.Response) *Stored {
	c, ok := j.Encoder.(*responseEncoder)
	if !ok || !j.Store {
		return nil
	}
	s := &Stored{ID: j.Request.ExternalID, Body: c.appendFinal(nil, r)}
	s.conversation = append(slices.Clip(c.conversation), message{role: "assistant", content: c.text(r)})
	return s
}

// responseEncoder answers /v1/responses. Its request has one prompt and one choice.
type responseEncoder struct {
	answer
	conversation []message // without instructions

	// What the response object repeats of the request: before output and after it.
	before, after []byte
	logprobs      bool // message.output_text.logprobs is included

	itemID   string
	sequence int // number of the next event
	opened   bool
	delta    []byte // constant beginning of a delta event
	logs     []byte // the stream's log probabilities so far, separated by commas
}

// ParseResponse parses and validates the body of a POST /v1/responses, renders the chat template
// and tokenises. previous finds a stored response by its id; it is nil when the server stores none,
// and then nothing is stored, whatever the request says: most clients leave `store` at its default,
// true, without meaning it. ParseResponse keeps nothing of body.
func (e *Env) ParseResponse(body []byte, previous func(id string) (*Stored, bool)) (*Job, *lifecycle.Error) {
	r, j, err := e.begin(body, "responses", refusedResponse)
	if err != nil {
		return nil, err
	}
	req, p := &j.Request, j.Request.Params
	c := &responseEncoder{}
	c.init(e, j, "resp_")
	c.asIDs = r.flag("return_tokens_as_token_ids", false)
	j.Store = r.flag("store", true) && previous != nil
	j.Encoder, j.answer = c, &c.answer

	asked := int64(-1)
	if v, ok := r.integer("max_output_tokens", 1, math.MaxInt64); ok {
		asked = v
	}
	top, _ := r.integer("top_logprobs", 0, e.maxLogprobs())
	if c.logprobs = r.included("message.output_text.logprobs"); c.logprobs {
		p.Logprobs = int(top)
	}
	c.repeat(r, asked, int(top))

	instructions, _ := r.str("instructions")
	previousID, _ := r.str("previous_response_id")
	truncate := r.oneOf("truncation", "auto", "disabled") == "auto"
	if r.err != nil {
		return nil, r.err
	}
	if previousID != "" {
		var s *Stored
		if previous != nil {
			s, _ = previous(previousID)
		}
		if s == nil {
			return nil, &lifecycle.Error{Status: 404, Type: "invalid_request_error", Code: "previous_response_not_found",
				Param: "previous_response_id", Message: fmt.Sprintf("there is no stored response with the id %q", clip(previousID))}
		}
		c.conversation = slices.Clip(s.conversation)
	}
	continued, err := c.input(r)
	if err != nil {
		return nil, err
	}

	render := func(skip int) ([]int32, *lifecycle.Error) {
		list := make([]message, 0, len(c.conversation)+1)
		if instructions != "" {
			list = append(list, message{role: "system", content: instructions})
		}
		list = append(list, c.conversation[skip:]...)
		text, err := e.render(r, "input", list, !continued, continued)
		if err != nil {
			return nil, err
		}
		ids, _, err := e.encode("input", text, false, cut{})
		return ids, err
	}
	ids, err := render(0)
	if tooLong := func() bool {
		return err != nil && err.Code == "context_length_exceeded" || err == nil && len(ids) >= e.MaxModelLen
	}; truncate && len(c.conversation) > 1 && tooLong() {
		// Drop messages from the conversation's beginning, as few as will do. Each one dropped
		// shortens the prompt, so that halving finds how many.
		most := len(c.conversation) - 1
		fewest := 1 + sort.Search(most-1, func(k int) bool {
			ids, err = render(k + 1)
			return !tooLong()
		})
		ids, err = render(fewest)
	}
	if err != nil {
		return nil, err
	}
	req.Prompts = [][]int32{ids}
	if err := e.room(p, req.Prompts, "input", asked, "max_output_tokens"); err != nil {
		return nil, err
	}
	return j, e.weigh(req, weight{logprobs: "top_logprobs", promptLogprobs: "top_logprobs", maxTokens: "max_output_tokens"})
}

// included says whether `include` has an entry. All others concern items that never occur here.
func (r *reader) included(want string) bool {
	raw := r.typed("include", kindArray)
	if raw == nil {
		return false
	}
	found := false
	for i, e := range elements(raw) {
		if kindOf(e) != kindString {
			r.fail(mistyped(fmt.Sprintf("include[%d]", i), string(kindString), e))
			break
		}
		found = found || unquote(e) == want
	}
	return found
}

// input adds the request's input to the conversation. It returns whether the last message is an
// unfinished one of the assistant, which is then continued.
func (c *responseEncoder) input(r *reader) (continued bool, err *lifecycle.Error) {
	raw := r.raw("input")
	if raw == nil {
		return false, bad("input", "input is missing")
	}
	switch kindOf(raw) {
	case kindString:
		c.conversation = append(c.conversation, message{role: "user", content: unquote(raw)})
		return false, nil
	case kindArray:
	default:
		return false, mistyped("input", "a string or a list of messages", raw)
	}
	n := 0
	for i, e := range elements(raw) {
		if n++; n > maxMessages {
			return false, bad("input", "input has more than %d items", maxMessages)
		}
		path := fmt.Sprintf("input[%d]", i)
		m, status, err := inputItem(path, e)
		if err != nil {
			return false, err
		}
		c.conversation = append(c.conversation, m)
		continued = m.role == "assistant" && (status == "incomplete" || status == "in_progress")
	}
	if n == 0 {
		return false, bad("input", "input is empty: at least one message is needed")
	}
	return continued, nil
}

func inputItem(path string, raw []byte) (m message, status string, err *lifecycle.Error) {
	r, err := object(path, raw)
	if err != nil {
		return m, "", err
	}
	if t, ok := r.str("type"); ok && t != "message" {
		return m, "", bad(path+".type", "%s has the type %q, which is not supported: only messages are, since this server calls no tools", path, clip(t))
	}
	m.role, _ = r.str("role")
	status, _ = r.str("status")
	if r.err != nil {
		return m, "", at(path, r.err)
	}
	if known := roles[:4]; !slices.Contains(known, m.role) {
		return m, "", bad(path+".role", "%s.role must be one of %s", path, strings.Join(known, ", "))
	}
	content := r.raw("content")
	if content == nil {
		return m, "", bad(path+".content", "%s.content is missing", path)
	}
	m.content, err = contentText(path+".content", content)
	return m, status, err
}

// repeat reads what the response object repeats of the request, and writes those members.
func (c *responseEncoder) repeat(r *reader, asked int64, top int) {
	p := c.job.Request.Params
	b := []byte(`,"instructions":`)
	text := func(name string) {
		if s, ok := r.str(name); ok {
			b = appendString(b, s)
		} else {
			b = append(b, "null"...)
		}
	}
	text("instructions")
	b = append(b, `,"max_output_tokens":`...)
	if asked >= 0 {
		b = appendInt(b, int(asked))
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"max_tool_calls":`...)
	if v, ok := r.integer("max_tool_calls", math.MinInt64, math.MaxInt64); ok {
		b = appendInt(b, int(v))
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"metadata":`...)
	if raw := r.typed("metadata", kindObject); raw != nil && r.err == nil {
		for name, v := range members(raw) {
			if kindOf(v) != kindString {
				r.fail(mistyped("metadata."+clip(name), string(kindString), v))
			}
		}
		b = appendCompact(b, raw)
	} else {
		b = append(b, "{}"...)
	}
	b = append(b, `,"model":`...)
	b = appendString(b, c.job.Request.Model)
	c.before = b

	b = []byte(`,"parallel_tool_calls":`)
	b = appendBool(b, r.flag("parallel_tool_calls", true))
	b = append(b, `,"frequency_penalty":`...)
	b = appendNumber(b, p.FrequencyPenalty)
	b = append(b, `,"presence_penalty":`...)
	b = appendNumber(b, p.PresencePenalty)
	b = append(b, `,"previous_response_id":`...)
	text("previous_response_id")
	b = append(b, `,"prompt":null,"prompt_cache_key":`...)
	text("prompt_cache_key")
	b = append(b, `,"prompt_cache_retention":null,"reasoning":{"effort":`...)
	reasoning := &reader{}
	if raw := r.typed("reasoning", kindObject); raw != nil && r.err == nil {
		reasoning, _ = object("reasoning", raw)
	}
	outer := r
	r = reasoning
	text("effort")
	b = append(b, `,"summary":`...)
	text("summary")
	outer.fail(at("reasoning", r.err))
	r = outer
	b = append(b, `},"safety_identifier":`...)
	text("safety_identifier")
	b = append(b, `,"service_tier":"default","store":`...)
	b = appendBool(b, c.job.Store)
	b = append(b, `,"temperature":`...)
	b = appendNumber(b, p.Temperature)
	b = append(b, `,"text":{"format":{"type":"text"}`...)
	if raw := r.typed("text", kindObject); raw != nil && r.err == nil {
		t, _ := object("text", raw)
		if f := t.raw("format"); f != nil && !isTextFormat(f) {
			r.fail(bad("text.format", `text.format is not supported beyond {"type": "text"}: this server does not constrain the output's form`))
		}
		if v, ok := t.str("verbosity"); ok {
			b = append(b, `,"verbosity":`...)
			b = appendString(b, v)
		}
		r.fail(at("text", t.err))
	}
	b = append(b, `},"tool_choice":`...)
	if raw := r.raw("tool_choice"); raw != nil {
		b = appendCompact(b, raw)
	} else {
		b = append(b, `"auto"`...)
	}
	b = append(b, `,"tools":`...)
	if raw := r.typed("tools", kindArray); raw != nil && r.err == nil {
		b = appendCompact(b, raw)
	} else {
		b = append(b, "[]"...)
	}
	b = append(b, `,"top_logprobs":`...)
	b = appendInt(b, top)
	b = append(b, `,"top_p":`...)
	b = appendNumber(b, p.TopP)
	b = append(b, `,"truncation":`...)
	if s, ok := r.str("truncation"); ok {
		b = appendString(b, s)
	} else {
		b = append(b, `"disabled"`...)
	}
	b = append(b, `,"user":`...)
	text("user")
	c.after = b
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// text returns the answer's text.
func (c *responseEncoder) text(r *lifecycle.Response) string {
	if len(r.Choices) == 0 {
		return ""
	}
	return r.Choices[0].Text
}

// status is the response's status once it is over.
func (c *responseEncoder) status(r *lifecycle.Response) string {
	switch {
	case r.Err != nil:
		return "failed"
	case len(r.Choices) == 0:
		return "completed"
	}
	switch r.Choices[0].Reason {
	case lifecycle.ReasonLength:
		return "incomplete"
	case lifecycle.ReasonCancelled, lifecycle.ReasonAbort, lifecycle.ReasonTimeout:
		return "cancelled"
	}
	return "completed"
}

// appendObject appends the response object, but for what only a finished one has. reason is why it
// is incomplete, or empty; completed is the wall clock at its end, in nanoseconds; output appends the items; usage is nil while it is not known.
func (c *responseEncoder) appendObject(dst []byte, status, reason string, err *lifecycle.Error, completed int64, output func([]byte) []byte, usage *lifecycle.Usage) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, c.job.Request.ExternalID)
	dst = append(dst, `,"object":"response","created_at":`...)
	dst = appendInt(dst, int(c.job.Created))
	dst = append(dst, `,"completed_at":`...)
	if status == "completed" && completed > 0 {
		dst = appendInt(dst, int(completed/1e9))
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"status":"`...)
	dst = append(dst, status...)
	// access_programs is a required field of newer SDKs; "standard" is none in particular.
	dst = append(dst, `","access_programs":{"cyber":"standard"},"background":false,"conversation":null,"error":`...)
	if err == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, `{"code":"`...)
		dst = append(dst, failure(err)...)
		dst = append(dst, `","message":`...)
		dst = append(appendString(dst, err.Message), '}')
	}
	dst = append(dst, `,"incomplete_details":`...)
	if reason == "" {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, `{"reason":"`...)
		dst = append(append(dst, reason...), `"}`...)
	}
	dst = append(dst, c.before...)
	dst = append(dst, `,"output":[`...)
	dst = output(dst)
	dst = append(dst, ']')
	dst = append(dst, c.after...)
	dst = append(dst, `,"usage":`...)
	if usage == nil {
		return append(dst, "null}"...)
	}
	dst = append(dst, `{"input_tokens":`...)
	dst = appendInt(dst, usage.Prompt)
	dst = append(dst, `,"input_tokens_details":{"cached_tokens":`...)
	dst = appendInt(dst, usage.Cached)
	dst = append(dst, `,"cache_write_tokens":0},"output_tokens":`...)
	dst = appendInt(dst, usage.Completion)
	dst = append(dst, `,"output_tokens_details":{"reasoning_tokens":`...)
	dst = appendInt(dst, usage.Reasoning)
	dst = append(dst, `},"total_tokens":`...)
	return append(appendInt(dst, usage.Prompt+usage.Completion), "}}"...)
}

// failure is the Responses API's word for a kind of error.
func failure(err *lifecycle.Error) string {
	switch {
	case err.Status == 429:
		return "rate_limit_exceeded"
	case err.Status >= 400 && err.Status < 500:
		return "invalid_prompt"
	}
	return "server_error"
}

// appendFinal appends the response object of a request that is over.
func (c *responseEncoder) appendFinal(dst []byte, r *lifecycle.Response) []byte {
	status, reason := c.status(r), ""
	if status == "incomplete" {
		reason = "max_output_tokens"
	}
	dst = c.appendObject(dst, status, reason, r.Err, r.Wall, func(dst []byte) []byte {
		if r.Err != nil && c.text(r) == "" {
			return dst
		}
		return c.appendItem(dst, status, r)
	}, &r.Usage)
	if r.Err != nil {
		return dst
	}
	dst = c.appendTopMetrics(dst[:len(dst)-1], r)
	return append(c.appendTimings(dst, r), '}')
}

// appendItem appends the output message of a request that is over.
func (c *responseEncoder) appendItem(dst []byte, status string, r *lifecycle.Response) []byte {
	if status != "completed" {
		status = "incomplete"
	}
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, c.item())
	dst = append(dst, `,"type":"message","status":"`...)
	dst = append(dst, status...)
	dst = append(dst, `","role":"assistant","content":[`...)
	return append(c.appendPart(dst, r), "]}"...)
}

// appendPart appends the content part with the whole text.
func (c *responseEncoder) appendPart(dst []byte, r *lifecycle.Response) []byte {
	dst = append(dst, `{"type":"output_text","text":`...)
	dst = appendString(dst, c.text(r))
	dst = append(dst, `,"annotations":[],"logprobs":`...)
	return append(c.appendAllLogprobs(dst, r), '}')
}

// appendAllLogprobs appends the answer's log probabilities: those that were streamed, or those of
// an answer that is not streamed.
func (c *responseEncoder) appendAllLogprobs(dst []byte, r *lifecycle.Response) []byte {
	if !c.logprobs || c.logs != nil || len(r.Choices) == 0 {
		dst = append(dst, '[')
		return append(append(dst, c.logs...), ']')
	}
	return c.appendContentLogprobs(dst, r.Choices[0].Logprobs, c.job.Request.Params.Logprobs)
}

// item is the output message's id.
func (c *responseEncoder) item() string {
	if c.itemID == "" {
		c.itemID = "msg_" + strings.TrimPrefix(c.job.Request.ExternalID, c.prefix)
	}
	return c.itemID
}

// event begins an event of a type, up to where its own members follow.
func (c *responseEncoder) event(dst []byte, name string) []byte {
	dst = append(append(dst, "event: "...), name...)
	dst = append(append(dst, "\ndata: {\"type\":\""...), name...)
	dst = append(dst, `","sequence_number":`...)
	dst = appendInt(dst, c.sequence)
	c.sequence++
	return dst
}

// within begins an event about the output message's only part.
func (c *responseEncoder) within(dst []byte, name string) []byte {
	dst = append(c.event(dst, name), `,"item_id":`...)
	dst = appendString(dst, c.item())
	return append(dst, `,"output_index":0,"content_index":0`...)
}

// begin appends the events that begin every stream.
func (c *responseEncoder) begin(dst []byte) []byte {
	for _, name := range []string{"response.created", "response.in_progress"} {
		dst = append(c.event(dst, name), `,"response":`...)
		dst = c.appendObject(dst, "in_progress", "", nil, 0, func(b []byte) []byte { return b }, nil)
		dst = append(dst, "}\n\n"...)
	}
	return dst
}

// open appends the events before the first delta.
func (c *responseEncoder) open(dst []byte) []byte {
	c.opened = true
	dst = c.begin(dst)
	dst = append(c.event(dst, "response.output_item.added"), `,"output_index":0,"item":{"id":`...)
	dst = appendString(dst, c.item())
	dst = append(dst, `,"type":"message","status":"in_progress","role":"assistant","content":[]}}`+"\n\n"...)
	dst = c.within(dst, "response.content_part.added")
	return append(dst, `,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}}`+"\n\n"...)
}

// Delta implements Encoder: one output_text.delta event per delta.
func (c *responseEncoder) Delta(dst []byte, d *lifecycle.Delta) []byte {
	if !c.opened {
		dst = c.open(dst)
	}
	if c.delta == nil {
		const name = "response.output_text.delta"
		c.delta = append(c.delta, "event: "+name+"\ndata: {\"type\":\""+name+`","item_id":`...)
		c.delta = appendString(c.delta, c.item())
		c.delta = append(c.delta, `,"output_index":0,"content_index":0,"sequence_number":`...)
	}
	dst = append(dst, c.delta...)
	dst = appendInt(dst, c.sequence)
	c.sequence++
	dst = append(dst, `,"delta":"`...)
	dst = appendText(dst, d.Text)
	dst = append(dst, `","logprobs":`...)
	if !c.logprobs {
		return append(dst, "[]}\n\n"...)
	}
	from := len(dst)
	dst = c.appendContentLogprobs(dst, d.Logprobs, c.job.Request.Params.Logprobs)
	if list := dst[from+1 : len(dst)-1]; len(list) > 0 {
		if len(c.logs) > 0 {
			c.logs = append(c.logs, ',')
		}
		c.logs = append(c.logs, list...)
	}
	return append(dst, "}\n\n"...)
}

// End implements Encoder. Whatever the status, a stream that did not fail closes with
// response.completed, and none has [DONE].
func (c *responseEncoder) End(dst []byte, r *lifecycle.Response) []byte {
	if r.Err != nil {
		if !c.opened {
			dst = c.begin(dst)
		}
		return c.last(dst, "response.failed", r)
	}
	if d, ok := c.unsaid(0, r); ok && !c.opened {
		dst = c.Delta(dst, &d)
	}
	dst = c.within(dst, "response.output_text.done")
	dst = append(dst, `,"text":`...)
	dst = appendString(dst, c.text(r))
	dst = append(dst, `,"logprobs":`...)
	dst = append(c.appendAllLogprobs(dst, r), "}\n\n"...)
	dst = c.within(dst, "response.content_part.done")
	dst = append(dst, `,"part":`...)
	dst = append(c.appendPart(dst, r), "}\n\n"...)
	dst = append(c.event(dst, "response.output_item.done"), `,"output_index":0,"item":`...)
	dst = append(c.appendItem(dst, c.status(r), r), "}\n\n"...)
	return c.last(dst, "response.completed", r)
}

func (c *responseEncoder) last(dst []byte, name string, r *lifecycle.Response) []byte {
	dst = append(c.event(dst, name), `,"response":`...)
	return append(c.appendFinal(dst, r), "}\n\n"...)
}

// Body implements Encoder.
func (c *responseEncoder) Body(r *lifecycle.Response) []byte { return c.appendFinal(nil, r) }
