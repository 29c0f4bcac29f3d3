package bench

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/tidwall/gjson"
)

// chunk is what one event of an answer brought, as far as it matters here.
type chunk struct {
	at int64 // when, on the run's clock
	// tokens is how many tokens it brought; 0: not said.
	tokens int32
	// text is how many bytes of text.
	text int32
	// kind tells chunks that may be a token from others.
	kind chunkKind
}

type chunkKind uint8

const (
	textChunk   chunkKind = iota // has text, a tool call, log probabilities or token ids
	silentChunk                  // no text, no role, no end: a token that is not yet a character
	endChunk                     // no text, and the finish reason: the end token, or nothing
)

// answer is what a stream has said so far.
type answer struct {
	chunks   []chunk
	finished bool // a finish reason has come
	done     bool // the end mark has come
	usage    bool // a usage has come
	// From the usage: −1 where it doesn't say.
	prompt, completion, cached int
	server                     serverTimes
	keep                       bool // keep the text
	text                       strings.Builder
	data                       bool // any event has come
}

// serverTimes is what a server measured of a request, in milliseconds; −1: not told.
type serverTimes struct {
	source                  string // "metrics", "timings"; empty: nothing
	queue, ttft, generation float64
}

func (a *answer) reset(keep bool) {
	*a = answer{chunks: a.chunks[:0], prompt: -1, completion: -1, cached: -1, keep: keep,
		server: serverTimes{queue: -1, ttft: -1, generation: -1}}
}

// failure is why a request failed.
type failure struct {
	kind    string // a few words, the same for the same fault
	message string // what the server or the system said
}

func (f *failure) Error() string { return f.kind + ": " + f.message }

// Kinds of failures besides "HTTP <status>".
const (
	kindConnect   = "connecting"      // no connection could be made
	kindCut       = "cut off"         // the answer ended before its end
	kindTimeout   = "timeout"         // it took longer than the limit
	kindGarbage   = "garbage"         // what came was not what the protocol has
	kindStream    = "error in stream" // the server said so in the stream
	kindNoOutput  = "no output"       // an answer without a token
	kindNotStream = "not a stream"    // an answer that was none, or not streamed
	kindRequest   = "bad request"     // the load could not make the request
)

// clip shortens what others said to what fits in a report.
func clip(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\ufffd")), " ")
	const most = 300
	if len(s) <= most {
		return s
	}
	end := most
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// errDone ends the reading of a stream whose end mark has come.
var errDone = errors.New("done")

// event takes an event's data. It returns how many tokens it brought, as far as can be told at once,
// for the live view; errDone at the end mark, a *failure when the stream says or is something that is
// none.
func (a *answer) event(data []byte, at int64) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	a.data = true
	if string(data) == "[DONE]" {
		a.done = true
		return 0, errDone
	}
	// data outlives what is parsed of it here, and whatever is kept is copied.
	object := gjson.Parse(unsafe.String(unsafe.SliceData(data), len(data)))
	if !gjson.ValidBytes(data) || !object.IsObject() {
		return 0, &failure{kindGarbage, "an event that is no JSON object: " + clip(string(data[:min(len(data), 400)]))}
	}
	var (
		c       = chunk{at: at}
		some    bool // there was a choice
		role    bool
		end     bool
		content bool
		fail    error
	)
	before := a.completion
	object.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "choices":
			v.ForEach(func(_, choice gjson.Result) bool {
				some = true
				choice.ForEach(func(key, v gjson.Result) bool {
					switch key.Str {
					case "text":
						a.say(&c, v, &content)
					case "delta", "message":
						v.ForEach(func(key, v gjson.Result) bool {
							switch key.Str {
							case "content", "reasoning_content", "reasoning", "refusal":
								a.say(&c, v, &content)
							case "tool_calls", "function_call":
								if v.IsArray() && len(v.Raw) > 2 || v.IsObject() {
									content = true
									c.text += int32(len(v.Raw))
								}
							case "role":
								role = v.Type == gjson.String
							}
							return true
						})
					case "finish_reason":
						end = end || v.Type == gjson.String && v.Str != ""
					case "logprobs":
						if n := countLogprobs(v); n > 0 {
							c.tokens, content = max(c.tokens, n), true
						}
					case "token_ids":
						if n := countElements(v); n > 0 {
							c.tokens, content = max(c.tokens, n), true
						}
					}
					return true
				})
				return true
			})
		case "usage":
			a.takeUsage(v)
		case "metrics", "timings":
			a.server.take(key.Str, v)
		case "error":
			if v.Type != gjson.Null {
				message := v.Get("message").String()
				if message == "" {
					message = v.Raw
				}
				fail = &failure{kindStream, clip(message)}
			}
		}
		return true
	})
	if fail != nil {
		return 0, fail
	}
	if !some {
		return 0, nil
	}
	a.finished = a.finished || end
	switch {
	case content:
		c.kind = textChunk
	case end:
		c.kind = endChunk
	case role:
		return 0, nil // it only opens the answer
	default:
		c.kind = silentChunk
	}
	// With usage on every chunk it says how many tokens there have been.
	if c.tokens == 0 && a.completion > max(before, 0) && before >= 0 {
		c.tokens = int32(a.completion - before)
	} else if c.tokens == 0 && before < 0 && a.completion > 0 && len(a.chunks) == 0 {
		c.tokens = int32(a.completion)
	}
	a.chunks = append(a.chunks, c)
	if c.kind == endChunk {
		return 0, nil
	}
	return int(max(c.tokens, 1)), nil
}

// say takes text.
func (a *answer) say(c *chunk, v gjson.Result, content *bool) {
	if v.Type != gjson.String || v.Str == "" {
		return
	}
	*content = true
	c.text += int32(min(len(v.Str), 1<<24))
	if a.keep {
		a.text.WriteString(v.Str)
	}
}

// takeUsage takes the counts of a usage object; null is none.
func (a *answer) takeUsage(v gjson.Result) {
	if !v.IsObject() {
		return
	}
	count := func(path string, into *int) {
		if n := v.Get(path); n.Type == gjson.Number && n.Num >= 0 && n.Num < 1<<40 {
			*into = int(n.Num)
			a.usage = true
		}
	}
	count("prompt_tokens", &a.prompt)
	count("completion_tokens", &a.completion)
	count("prompt_tokens_details.cached_tokens", &a.cached)
}

// take takes a server's own measurements: vLLM's and Troupe's metrics, or llama.cpp's timings, which
// don't count if the former are there.
func (s *serverTimes) take(source string, v gjson.Result) {
	if !v.IsObject() || s.source == "metrics" {
		return
	}
	read := func(name string) float64 {
		if n := v.Get(name); n.Type == gjson.Number && n.Num >= 0 {
			return n.Num
		}
		return -1
	}
	t := serverTimes{source: source, queue: -1}
	if source == "metrics" {
		t.queue, t.ttft, t.generation = read("queue_time_ms"), read("time_to_first_token_ms"), read("generation_time_ms")
	} else {
		t.ttft, t.generation = read("prompt_ms"), read("predicted_ms")
	}
	if t.ttft >= 0 {
		*s = t
	}
}

func countLogprobs(v gjson.Result) int32 {
	if !v.IsObject() {
		return 0
	}
	if n := countElements(v.Get("content")); n > 0 {
		return n
	}
	return countElements(v.Get("tokens"))
}

func countElements(v gjson.Result) int32 {
	if !v.IsArray() {
		return 0
	}
	var n int32
	v.ForEach(func(gjson.Result, gjson.Result) bool {
		n++
		return true
	})
	return n
}

// settle decides how many tokens each chunk brought, drops the chunks that brought none, and returns
// the tokens of all. What the chunks themselves say counts (token ids, log probabilities, a usage on
// each). Chunks that came in one read are one. Where they don't say, each chunk is a token, if that agrees with the usage: of all chunks, or
// those without the closing one, or those with text. If none does, a chunk holds several, as with
// speculative decoding or servers that write seldom: then the usage's tokens are shared out in
// proportion to the text. counted is false when there was no usage to go by.
func (a *answer) settle() (tokens int, counted bool) {
	tokens, counted = a.divide()
	merged := a.chunks[:0]
	for _, c := range a.chunks {
		if n := len(merged); n > 0 && merged[n-1].at == c.at {
			merged[n-1].tokens += c.tokens
			continue
		}
		merged = append(merged, c)
	}
	a.chunks = merged
	return tokens, counted
}

func (a *answer) divide() (tokens int, counted bool) {
	said := 0
	all, texts, ends := len(a.chunks), 0, 0
	for _, c := range a.chunks {
		said += int(c.tokens)
		switch c.kind {
		case textChunk:
			texts++
		case endChunk:
			ends++
		}
	}
	total, counted := a.completion, a.completion >= 0
	every := func(is func(chunk) bool) {
		kept := a.chunks[:0]
		for _, c := range a.chunks {
			if is(c) {
				c.tokens = 1
				kept = append(kept, c)
			}
		}
		a.chunks = kept
	}
	switch {
	case said > 0 && (said == total || said+ends == total || !counted):
		kept := a.chunks[:0]
		for _, c := range a.chunks {
			if c.kind == endChunk && said != total && counted {
				c.tokens++ // the end token, of which nothing but the end is told
			}
			if c.tokens > 0 {
				kept = append(kept, c)
			}
		}
		a.chunks = kept
		return max(said, total), counted
	case !counted, total == all-ends:
		every(func(c chunk) bool { return c.kind != endChunk })
		return len(a.chunks), counted
	case total == all:
		every(func(chunk) bool { return true })
		return total, true
	case total == texts:
		every(func(c chunk) bool { return c.kind == textChunk })
		return total, true
	}
	a.share(total)
	return total, true
}

// share shares tokens out among the chunks, in proportion to their text: so that after each chunk the
// sum is the proportion, rounded. Without any text the chunks count alike.
func (a *answer) share(total int) {
	var bytes int64
	for _, c := range a.chunks {
		bytes += int64(c.text)
	}
	weight := func(c *chunk) int64 { return int64(c.text) }
	if bytes == 0 {
		bytes = int64(len(a.chunks))
		weight = func(*chunk) int64 { return 1 }
	}
	kept := a.chunks[:0]
	var seen, given int64
	for _, c := range a.chunks {
		seen += weight(&c)
		upTo := (seen*int64(total) + bytes/2) / bytes
		if len(kept) == 0 && total > 0 && c.text > 0 {
			upTo = max(upTo, 1) // the first text is the first token, however short
		}
		c.tokens = int32(upTo - given)
		if c.tokens > 0 {
			kept = append(kept, c)
			given = upTo
		}
	}
	a.chunks = kept
}

// whole says why an answer that has ended is none; nil when it is one.
func (a *answer) whole(how string) *failure {
	switch {
	case !a.data:
		return &failure{kindCut, "the stream ended before it brought anything" + how}
	case !a.done && !a.finished:
		return &failure{kindCut, fmt.Sprintf("the stream ended without a finish reason and without [DONE], after %d chunks%s", len(a.chunks), how)}
	}
	return nil
}
