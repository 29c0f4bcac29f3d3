package openai

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/lifecycle"
)

// answer is what the encoders have in common: the request that they answer and what it asked to
// have told.
type answer struct {
	env *Env
	job *Job
	// prefix begins the ids of this API.
	prefix string
	// head is the constant beginning of a chunk, up to the choices; built when first needed.
	head    []byte
	choices []choiceState
	buf     []byte // a token's bytes

	usage      bool // a usage chunk ends the stream
	continuous bool // and usage is on every chunk
	returnIDs  bool // return_token_ids
	asIDs      bool // return_tokens_as_token_ids
	// promptLogprobs is the request's prompt_logprobs; −1 when it asked for none.
	promptLogprobs int
	// completion is the last completion count sent with continuous usage, so that none falls.
	completion int
	// held is the last chunk of a stream, waiting for the timings that End brings.
	held []byte
}

// choiceState is what has been streamed of one choice.
type choiceState struct {
	started, ended bool
	offset         int // in characters, of the next token in the text (completions' text_offset)
}

func (a *answer) init(e *Env, j *Job, prefix string) {
	*a = answer{env: e, job: j, prefix: prefix, promptLogprobs: -1}
}

// returning reads what the answer should tell besides the text.
func (a *answer) returning(r *reader) {
	a.returnIDs = r.flag("return_token_ids", false)
	a.asIDs = r.flag("return_tokens_as_token_ids", false)
}

// ContentType implements Encoder.
func (a *answer) ContentType() string {
	if a.job.Request.Stream {
		return "text/event-stream; charset=utf-8"
	}
	return "application/json"
}

// state returns what has been streamed of choice i.
func (a *answer) state(i int) *choiceState {
	if a.choices == nil {
		a.choices = make([]choiceState, a.job.Request.Sequences())
	}
	return &a.choices[i]
}

func (a *answer) single() bool { return a.job.Request.Sequences() == 1 }

// measured says whether metrics objects are wanted at all.
func (a *answer) measured() bool { return a.env.Metrics && !a.env.DisableStats }

// appendHead appends the members that begin every object of chat and completions.
func (a *answer) appendHead(dst []byte, object string) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, a.job.Request.ExternalID)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = appendInt(dst, int(a.job.Created))
	dst = append(dst, `,"model":`...)
	dst = appendString(dst, a.job.Request.Model)
	return append(dst, `,"choices":[`...)
}

// chunkHead returns the constant beginning of a chunk.
func (a *answer) chunkHead(object string) []byte {
	if a.head == nil {
		a.head = a.appendHead([]byte("data: "), object)
	}
	return a.head
}

// finish is the API's word for how a choice ended.
func finish(r lifecycle.Reason) string {
	switch r {
	case lifecycle.ReasonStop, lifecycle.ReasonLength, lifecycle.ReasonError:
		return string(r)
	}
	return "abort" // vLLM's word for what was ended from outside
}

// appendReason appends a choice's finish_reason and, when it ended or always is set, vLLM's
// stop_reason: the stop string or stop token, null when the model itself came to an end.
func (a *answer) appendReason(dst []byte, r lifecycle.Reason, stop string, token int32, always bool) []byte {
	dst = append(dst, `,"finish_reason":`...)
	if r == "" {
		dst = append(dst, "null"...)
		if !always {
			return dst
		}
	} else {
		dst = append(append(append(dst, '"'), finish(r)...), '"')
	}
	dst = append(dst, `,"stop_reason":`...)
	switch {
	case r == lifecycle.ReasonStop && stop != "":
		return appendString(dst, stop)
	case r == lifecycle.ReasonStop && token >= 0 && (a.job.Request.Params.IgnoreEOS || !slices.Contains(a.env.EOS, token)):
		return appendInt(dst, int(token))
	}
	return append(dst, "null"...)
}

// closeChunk ends a chunk after its choices: with the usage so far when that is wanted.
func (a *answer) closeChunk(dst []byte, u lifecycle.Usage) []byte {
	dst = append(dst, ']')
	if a.continuous {
		a.completion = max(a.completion, u.Completion)
		u.Completion = a.completion
		dst = append(dst, `,"usage":`...)
		dst = appendUsage(dst, &u)
	}
	return append(dst, "}\n\n"...)
}

// holding says whether the chunk that ends the only choice must wait for the timings: they belong
// on the stream's last chunk, and without a usage chunk that is this one.
func (a *answer) holding(r lifecycle.Reason) bool {
	return r != "" && a.env.LlamaTimings && !a.usage && a.single()
}

// closeDelta ends the chunk of a delta, which began at from, and notes its choice's end. A chunk that
// must wait for the timings is held back.
func (a *answer) closeDelta(dst []byte, from int, s *choiceState, d *lifecycle.Delta) []byte {
	if a.returnIDs {
		dst = append(dst, `,"token_ids":`...)
		dst = appendIDs(dst, d.IDs)
	}
	if d.Metrics != nil && !a.single() {
		dst = a.appendChoiceMetrics(dst, d.Metrics, d.Detail)
	}
	dst = a.closeChunk(append(dst, '}'), d.Usage)
	if d.Reason == "" {
		return dst
	}
	s.ended = true
	if a.holding(d.Reason) {
		a.held = append([]byte(nil), dst[from:]...)
		return dst[:from]
	}
	return dst
}

// close appends what ends a stream of chat or completions.
func (a *answer) close(dst []byte, r *lifecycle.Response, object string) []byte {
	if a.held != nil {
		if r.Err == nil {
			a.held = append(a.held[:len(a.held)-len("}\n\n")], `,"timings":`...)
			a.held = appendTimings(a.held, &r.Usage, &r.Metrics)
			a.held = append(a.held, "}\n\n"...)
		}
		dst = append(dst, a.held...)
	}
	switch {
	case r.Err != nil:
		dst = append(dst, "data: "...)
		dst = AppendError(dst, r.Err)
		dst = append(dst, "\n\n"...)
	case a.usage:
		dst = append(dst, a.chunkHead(object)...)
		dst = append(dst, `],"usage":`...)
		dst = appendUsage(dst, &r.Usage)
		if a.measured() && a.single() {
			dst = append(dst, `,"metrics":`...)
			dst = appendMetrics(dst, &r.Metrics, r.Detail, a.env.MetricsDetail)
		}
		dst = a.appendTimings(dst, r)
		dst = append(dst, "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

// appendTimings appends llama-server's timings as a member, when they are wanted.
func (a *answer) appendTimings(dst []byte, r *lifecycle.Response) []byte {
	if !a.env.LlamaTimings || !a.single() {
		return dst
	}
	dst = append(dst, `,"timings":`...)
	return appendTimings(dst, &r.Usage, &r.Metrics)
}

// appendTopMetrics appends the metrics of an unstreamed answer: null where they cannot be
// attributed to one sequence, or are switched off. The key is always there.
func (a *answer) appendTopMetrics(dst []byte, r *lifecycle.Response) []byte {
	dst = append(dst, `,"metrics":`...)
	if !a.measured() || !a.single() {
		return append(dst, "null"...)
	}
	return appendMetrics(dst, &r.Metrics, r.Detail, a.env.MetricsDetail)
}

// appendChoiceMetrics appends a choice's own metrics, when details are wanted.
func (a *answer) appendChoiceMetrics(dst []byte, m *lifecycle.Metrics, d *lifecycle.Detail) []byte {
	if !a.measured() || !a.env.MetricsDetail {
		return dst
	}
	dst = append(dst, `,"metrics":`...)
	return appendMetrics(dst, m, d, true)
}

// unsaid returns what the stream has not said of choice i though the request is over, as a delta:
// all of a choice without a delta, or the end of one whose last delta had no reason. False when
// there is nothing.
func (a *answer) unsaid(i int, r *lifecycle.Response) (lifecycle.Delta, bool) {
	s := a.state(i)
	if s.ended || i >= len(r.Choices) {
		return lifecycle.Delta{}, false
	}
	c := &r.Choices[i]
	d := lifecycle.Delta{Choice: i, Reason: c.Reason, StopString: c.StopString, StopToken: c.StopToken, Usage: r.Usage,
		Metrics: &c.Metrics, Detail: c.Detail}
	if !s.started {
		d.First, d.Text, d.IDs, d.Logprobs, d.PromptScores = true, c.Text, c.IDs, c.Logprobs, c.PromptScores
	}
	return d, true
}

// tokenBytes returns the token's text as bytes, valid until the next call.
func (a *answer) tokenBytes(id int32) []byte {
	a.buf = a.env.Tokenizer.AppendBytes(a.buf[:0], id)
	return a.buf
}

// appendToken appends a token as the API shows it within log probabilities: its text, or
// "token_id:N" when the request wants that (some tokens are no whole characters).
func (a *answer) appendToken(dst []byte, id int32) []byte {
	if a.asIDs {
		dst = append(dst, `"token_id:`...)
		return append(appendInt(dst, int(id)), '"')
	}
	return appendString(dst, string(a.tokenBytes(id)))
}

// appendTokenLogprob appends the members token, logprob and bytes, without braces.
func (a *answer) appendTokenLogprob(dst []byte, id int32, v float32) []byte {
	dst = append(dst, `"token":`...)
	dst = a.appendToken(dst, id)
	dst = append(dst, `,"logprob":`...)
	dst = appendLogprob(dst, v)
	dst = append(dst, `,"bytes":[`...)
	for i, b := range a.tokenBytes(id) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(dst, int(b))
	}
	return append(dst, ']')
}

// appendContentLogprobs appends the list of log probabilities that chat and responses have, each
// with the most likely alternatives.
func (a *answer) appendContentLogprobs(dst []byte, logs []lifecycle.TokenLogprob, top int) []byte {
	dst = append(dst, '[')
	for i := range logs {
		l := &logs[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		dst = a.appendTokenLogprob(dst, l.ID, l.Logprob)
		dst = append(dst, `,"top_logprobs":[`...)
		for k, t := range l.Top[:min(len(l.Top), top)] {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, '{')
			dst = a.appendTokenLogprob(dst, t.ID, t.Logprob)
			dst = append(dst, '}')
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, ']')
}

// appendPromptLogprobs appends vLLM's prompt_logprobs as a member: for each prompt token but the
// first an object from token id to log probability, rank and text.
func (a *answer) appendPromptLogprobs(dst []byte, prompt []int32, scores []lifecycle.TokenLogprob) []byte {
	dst = append(dst, `,"prompt_logprobs":`...)
	if a.promptLogprobs < 0 {
		return append(dst, "null"...)
	}
	entry := func(id int32, v float32, rank int) {
		dst = append(dst, '"')
		dst = appendInt(dst, int(id))
		dst = append(dst, `":{"logprob":`...)
		dst = appendLogprob(dst, v)
		dst = append(dst, `,"rank":`...)
		dst = appendInt(dst, rank)
		dst = append(dst, `,"decoded_token":`...)
		dst = append(appendString(dst, string(a.tokenBytes(id))), '}')
	}
	dst = append(dst, '[')
	for i := range prompt {
		if i > 0 {
			dst = append(dst, ',')
		}
		s := scoreOf(i, prompt, scores)
		if s == nil {
			dst = append(dst, "null"...)
			continue
		}
		dst = append(dst, '{')
		entry(s.ID, s.Logprob, int(s.Rank))
		for k, t := range s.Top[:min(len(s.Top), a.promptLogprobs)] {
			if t.ID != s.ID {
				dst = append(dst, ',')
				entry(t.ID, t.Logprob, k+1)
			}
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// scoreOf returns the log probability of prompt token i, and nil when there is none. The scores are
// those of the prompt's last tokens, whether or not they begin with a place for the first token,
// which nothing predicts.
func scoreOf(i int, prompt []int32, scores []lifecycle.TokenLogprob) *lifecycle.TokenLogprob {
	k := i - (len(prompt) - len(scores))
	if i == 0 || k < 0 || scores[k].ID != prompt[i] {
		return nil
	}
	return &scores[k]
}

// characters counts the characters that begin in b. A character split over two tokens begins in
// the first.
func characters(b []byte) int {
	n := 0
	for _, c := range b {
		if utf8.RuneStart(c) {
			n++
		}
	}
	return n
}

// SetID sets Request.ExternalID and Request.ClientID from the client's X-Request-Id, which may be
// empty, and readies the Encoder. It must be called before the Encoder is used; the last call before that counts. ClientID is
// what the client sent, up to maxClientID bytes of it. In ExternalID an id that is too long or has
// odd characters is not used; the body's request_id or a random one takes its place.
func (j *Job) SetID(clientID string) {
	id := clientID
	if !saneID(id) {
		id = j.requestID
	}
	if !saneID(id) {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		id = hex.EncodeToString(b[:])
	}
	j.Request.ClientID = clientID[:min(len(clientID), maxClientID)]
	j.Request.ExternalID = j.answer.prefix + id
	if j.Created == 0 {
		j.Created = j.answer.env.Created
	}
}

// saneID accepts ids of 1 to 128 letters, digits and a few marks that need no escaping in JSON, in
// a log line or in a URL.
func saneID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '-', c == '_', c == '.', c == ':', c == '~', c == '@', c == '=', c == '+':
		default:
			return false
		}
	}
	return true
}
