package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// Request is one request of a load, ready to be sent.
type Request struct {
	Index int
	// Due is when it is to be sent, from the run's beginning. Closed loops don't look at it.
	Due time.Duration
	// Body is the JSON body for the workload's endpoint; it always asks for a stream with usage.
	Body []byte
	// Input is the prompt's length in tokens, counted or estimated; −1: unknown.
	Input int
	// CancelAfter is how long after it was sent the client leaves; 0: never.
	CancelAfter time.Duration
}

// Shape is what all requests of a workload have in common.
type Shape struct {
	Endpoint string // "chat" or "completions"
	Model    string
	// IgnoreEOS asks the server to go on beyond the model's end, to max_tokens.
	IgnoreEOS bool
	// Extra are more members of the body, which win over those that it would have; one that is null
	// leaves the member of this name out.
	Extra map[string]json.RawMessage
}

// CheckExtra refuses members of the body that a load needs as they are.
func (s *Shape) CheckExtra() error {
	for _, name := range []string{"stream", "messages", "prompt"} {
		if _, ok := s.Extra[name]; ok {
			return fmt.Errorf("the extra body has %q, which the load itself sets: leave it out", name)
		}
	}
	return nil
}

// body makes a request's body. Exactly one of prompt and messages is given; maxTokens 0 leaves that
// member out. params are members that Extra wins over.
func (s *Shape) body(prompt string, messages json.RawMessage, maxTokens int, ignoreEOS bool, params map[string]json.RawMessage) []byte {
	var b bytes.Buffer
	b.Grow(len(prompt) + len(messages) + 256)
	b.WriteByte('{')
	member := func(name string, value []byte) {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		q, _ := json.Marshal(name) // a string always can be
		b.Write(q)
		b.WriteByte(':')
		b.Write(value)
	}
	own := func(name string, value []byte) {
		if _, given := s.Extra[name]; !given {
			member(name, value)
		}
	}
	quoted := func(v string) []byte {
		q, _ := json.Marshal(v)
		return q
	}
	own("model", quoted(s.Model))
	switch {
	case messages != nil:
		member("messages", messages)
	case s.Endpoint == "chat":
		member("messages", slices.Concat([]byte(`[{"role":"user","content":`), quoted(prompt), []byte(`}]`)))
	default:
		member("prompt", quoted(prompt))
	}
	if maxTokens > 0 {
		own("max_tokens", strconv.AppendInt(nil, int64(maxTokens), 10))
	}
	own("stream", []byte("true"))
	own("stream_options", []byte(`{"include_usage":true}`))
	if s.IgnoreEOS || ignoreEOS {
		own("ignore_eos", []byte("true"))
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		own(name, params[name])
	}
	for _, name := range slices.Sorted(maps.Keys(s.Extra)) {
		if v := s.Extra[name]; !bytes.Equal(v, []byte("null")) {
			member(name, v)
		}
	}
	b.WriteByte('}')
	return b.Bytes()
}

// Workload makes the requests of a load: the i-th is the same however often and by whichever
// goroutine it is asked for. It is immutable, and safe for concurrent use.
type Workload interface {
	// Request makes the i-th request, its Due left at 0 unless the workload has times of its own.
	// io.EOF ends the load.
	Request(i int) (*Request, error)
	// Describe says in words where prompts come from and how long outputs are.
	Describe() (prompts, outputs string)
}

// Synthetic are prompts made up of words.
type Synthetic struct {
	Shape      Shape
	Vocabulary *Vocabulary
	Input      Lengths // prompt tokens, with what the server adds to a prompt's text
	Output     Lengths // max_tokens
	// PrefixShare is the part of each prompt, 0 to 1, that is the same for all.
	PrefixShare float64
	Seed        uint64
	// Room bounds input and output together, in tokens; 0: no bound is known.
	Room int
}

// lengths draws the i-th request's lengths.
func (s *Synthetic) lengths(i int) (input, output int) {
	rng := rand.New(rand.NewPCG(s.Seed, uint64(i)<<1|1))
	input, output = max(s.Input.draw(rng), s.Vocabulary.Least()), s.Output.draw(rng)
	if s.Room > 0 {
		output = max(min(output, s.Room-s.Vocabulary.Least()), 1)
		input = max(min(input, s.Room-output), s.Vocabulary.Least())
	}
	return input, output
}

// Request implements Workload.
func (s *Synthetic) Request(i int) (*Request, error) {
	input, output := s.lengths(i)
	shared := int(s.PrefixShare * float64(input))
	text := s.Vocabulary.text(input, []segment{{key: sharedKey(s.Seed), tokens: shared}, {key: uniqueKey(s.Seed, i), tokens: input - shared}})
	return &Request{Index: i, Body: s.Shape.body(text, nil, output, false, nil), Input: input}, nil
}

// sharedKey and uniqueKey are the keys of what all prompts share and of what is one prompt's own.
func sharedKey(seed uint64) uint64 { return rand.NewPCG(seed, 0x5a).Uint64() }

func uniqueKey(seed uint64, i int) uint64 { return rand.NewPCG(seed, uint64(i)<<1).Uint64() }

// Describe implements Workload.
func (s *Synthetic) Describe() (prompts, outputs string) {
	prompts = "made up, " + s.Input.String()
	if s.PrefixShare > 0 {
		prompts += fmt.Sprintf(", of which all share the first %.3g %%", 100*s.PrefixShare)
	}
	return prompts, "at most " + s.Output.String()
}

// Dataset are prompts from a file, over and over again.
type Dataset struct {
	Shape   Shape
	Name    string  // of the file, for reports
	Entries []Entry // at least one; in the order in which they are used
	// Output is max_tokens of entries without one; nil leaves it to the server.
	Output *Lengths
	Seed   uint64
}

// Shuffle puts the entries into an order that the seed decides.
func (d *Dataset) Shuffle() {
	rand.New(rand.NewPCG(d.Seed, 0x5f1e)).Shuffle(len(d.Entries), func(i, j int) {
		d.Entries[i], d.Entries[j] = d.Entries[j], d.Entries[i]
	})
}

// Entry is one prompt of a dataset: text, or messages as a JSON array.
type Entry struct {
	Prompt    string
	Messages  json.RawMessage
	MaxTokens int // 0: not said
}

// Request implements Workload.
func (d *Dataset) Request(i int) (*Request, error) {
	e := &d.Entries[i%len(d.Entries)]
	limit := e.MaxTokens
	if limit == 0 && d.Output != nil {
		limit = d.Output.draw(rand.New(rand.NewPCG(d.Seed, uint64(i)<<1|1)))
	}
	r := &Request{Index: i, Input: -1}
	if e.Messages != nil && d.Shape.Endpoint != "chat" {
		return nil, errors.New("the dataset has messages, which only --endpoint chat takes")
	}
	r.Body = d.Shape.body(e.Prompt, e.Messages, limit, false, nil)
	return r, nil
}

// Describe implements Workload.
func (d *Dataset) Describe() (prompts, outputs string) {
	outputs = "as the file says, or else the server's limit"
	if d.Output != nil {
		outputs = "as the file says, or else at most " + d.Output.String()
	}
	return fmt.Sprintf("%d of %s", len(d.Entries), d.Name), outputs
}

// ReadDataset reads prompts: a JSON array of conversations as ShareGPT's dump has them
// ({"conversations":[{"from":"human","value":…},{"from":"gpt","value":…},…]}: the first turn is the
// prompt), or JSON lines {"prompt":…} or {"messages":[…]}, with max_tokens or without. name is for
// messages. skipped is how many conversations had no first turn to use.
func ReadDataset(name string, r io.Reader) (entries []Entry, skipped int, err error) {
	buffered := bufio.NewReader(r)
	array := beginsArray(buffered)
	in := json.NewDecoder(buffered)
	if array {
		if _, err := in.Token(); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	for i := 1; ; i++ {
		if array && !in.More() {
			if _, err := in.Token(); err != nil {
				return nil, 0, fmt.Errorf("%s: the JSON array does not end: %w", name, err)
			}
			break
		}
		var e struct {
			Prompt        json.RawMessage `json:"prompt"`
			Messages      json.RawMessage `json:"messages"`
			MaxTokens     *int            `json:"max_tokens"`
			OutputTokens  *int            `json:"output_tokens"`
			Conversations []struct {
				From  string `json:"from"`
				Value string `json:"value"`
			} `json:"conversations"`
		}
		if err := in.Decode(&e); err == io.EOF && !array {
			break
		} else if err != nil {
			return nil, 0, fmt.Errorf("%s: entry %d: %w", name, i, err)
		}
		entry := Entry{}
		switch {
		case e.Messages != nil && e.Messages[0] == '[' && len(e.Messages) > 2:
			entry.Messages = e.Messages
		case e.Prompt != nil:
			if err := json.Unmarshal(e.Prompt, &entry.Prompt); err != nil {
				return nil, 0, fmt.Errorf("%s: entry %d: prompt is not a string", name, i)
			}
			if entry.Prompt == "" {
				skipped++
				continue
			}
		case e.Conversations != nil:
			if len(e.Conversations) == 0 || e.Conversations[0].Value == "" || e.Conversations[0].From != "human" && e.Conversations[0].From != "user" {
				skipped++
				continue
			}
			entry.Prompt = e.Conversations[0].Value
		default:
			return nil, 0, fmt.Errorf(`%s: entry %d has neither "prompt" nor "messages" (a non-empty list) nor "conversations"`, name, i)
		}
		for _, limit := range []*int{e.OutputTokens, e.MaxTokens} {
			if limit == nil {
				continue
			}
			if *limit < 1 || *limit > maxLength {
				return nil, 0, fmt.Errorf("%s: entry %d: max_tokens is %d, but must be at least 1 and at most %d", name, i, *limit, maxLength)
			}
			entry.MaxTokens = *limit
		}
		entries = append(entries, entry)
	}
	if len(entries) == 0 {
		return nil, skipped, fmt.Errorf("%s has no prompts in it", name)
	}
	return entries, skipped, nil
}

// beginsArray says whether what is to be read is a JSON array rather than lines, after white space
// and a byte order mark, which it takes.
func beginsArray(r *bufio.Reader) bool {
	if b, err := r.Peek(3); err == nil && string(b) == "\ufeff" {
		_, _ = r.Discard(3)
	}
	for {
		b, err := r.Peek(1)
		if err != nil || !bytes.ContainsAny(b, " \t\r\n") {
			return err == nil && b[0] == '['
		}
		_, _ = r.Discard(1)
	}
}
