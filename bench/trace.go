package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/troupe-llm/troupe/bench/requestlog"
)

// Trace is a workload that was recorded: it becomes due as it came, with prompts of the lengths that
// it had, and outputs of the lengths that they had.
type Trace struct {
	Shape      Shape
	Name       string // of the file
	Lines      []TraceLine
	Vocabulary *Vocabulary
	Seed       uint64
	// Speed is how much faster than it was recorded the trace is played; 0 is 1.
	Speed float64
	// Room bounds input and output together, in tokens; 0: no bound is known.
	Room int
}

// TraceLine is one recorded request.
type TraceLine struct {
	At            time.Duration // from the first request
	Input, Output int           // tokens
	// Cached of the input's tokens came from the prefix cache: as many begin with what all share.
	Cached int
	// Blocks are the keys of the prompt's parts of traceBlock tokens each, as Mooncake's traces have
	// them: equal keys, equal text. Nil: unknown.
	Blocks []uint64
	// Params are sampling parameters, as members of the body.
	Params map[string]json.RawMessage
	// LeftAfter is how long after its arrival the client left; 0: it stayed.
	LeftAfter time.Duration
	// Limit is the max_tokens that the client had asked for, where that is known and not the
	// output's length; only of requests whose client left.
	Limit int
}

// traceBlock is the number of tokens that a key of hash_ids stands for.
const traceBlock = 512

// Skipped counts the lines of a trace that are not replayed, by why.
type Skipped struct {
	Refused int // they never ran: no length is known
	Empty   int // nothing was generated, and nobody left
}

// Request implements Workload. Warm-up requests have the trace's lengths, and of its prompts only what
// all share.
func (t *Trace) Request(i int) (*Request, error) {
	line, seed := i, t.Seed
	switch {
	case i >= warmupIndex:
		line, seed = (i-warmupIndex)%len(t.Lines), ^t.Seed
	case i >= len(t.Lines):
		return nil, io.EOF
	}
	l := &t.Lines[line]
	speed := t.Speed
	if speed == 0 {
		speed = 1
	}
	input, output := max(l.Input, t.Vocabulary.Least()), l.Output
	if l.Limit > 0 {
		output = l.Limit
	}
	if t.Room > 0 {
		output = max(min(output, t.Room-t.Vocabulary.Least()), 1)
		input = max(min(input, t.Room-output), t.Vocabulary.Least())
	}
	var parts []segment
	left := input
	take := func(key uint64, n int) {
		n = min(n, left)
		parts = append(parts, segment{key: key, tokens: n})
		left -= n
	}
	if l.Cached > 0 && l.Blocks == nil {
		take(sharedKey(t.Seed), l.Cached)
	}
	for _, key := range l.Blocks {
		if left > 0 {
			take(uniqueKey(seed^0xb10c, int(key)), traceBlock)
		}
	}
	if left > 0 || len(parts) == 0 {
		take(uniqueKey(seed, i), left)
	}
	return &Request{
		Index: i, Due: time.Duration(float64(l.At) / speed), Input: input, CancelAfter: l.LeftAfter,
		Body: t.Shape.body(t.Vocabulary.text(input, parts), nil, output, true, l.Params),
	}, nil
}

// Describe implements Workload.
func (t *Trace) Describe() (prompts, outputs string) {
	return fmt.Sprintf("made up, as long as those of the %d requests of %s", len(t.Lines), t.Name), "as long as theirs"
}

// maxTraceLine bounds a line of a trace.
const maxTraceLine = 1 << 20

// ReadTrace reads a trace, one JSON object a line: Troupe's request log (see docs/request-log.md), or
// {"timestamp":…,"input_length":…,"output_length":…} as Mooncake publishes them, with hash_ids or
// without; a timestamp is milliseconds, or a text as of RFC 3339. The lines are returned in the order
// of their arrival. name is for messages.
func ReadTrace(name string, r io.Reader) ([]TraceLine, Skipped, error) {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 64<<10), maxTraceLine)
	var lines []TraceLine
	var skipped Skipped
	var entry requestlog.Entry
	n := 0
	for in.Scan() {
		n++
		text := bytes.TrimSpace(bytes.TrimPrefix(in.Bytes(), []byte("\ufeff")))
		if len(text) == 0 {
			continue
		}
		l, err := traceLine(text, &entry)
		switch {
		case errors.Is(err, errRefused):
			skipped.Refused++
		case errors.Is(err, errNothing):
			skipped.Empty++
		case err != nil:
			return nil, skipped, fmt.Errorf("%s: line %d: %w", name, n, err)
		default:
			lines = append(lines, l)
		}
	}
	if err := in.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, skipped, fmt.Errorf("%s: line %d is longer than %d bytes: that is no trace", name, n+1, maxTraceLine)
	} else if err != nil {
		return nil, skipped, fmt.Errorf("%s: %w", name, err)
	}
	if len(lines) == 0 {
		return nil, skipped, fmt.Errorf("%s has no requests to replay in it", name)
	}
	slices.SortStableFunc(lines, func(a, b TraceLine) int { return int(min(max(a.At-b.At, -1), 1)) })
	first := lines[0].At
	for i := range lines {
		lines[i].At -= first
	}
	return lines, skipped, nil
}

// Why a line is not replayed.
var (
	errRefused = errors.New("refused before it ran")
	errNothing = errors.New("nothing was generated")
)

// clientLeft is the status in Troupe's log of a request whose client left.
const clientLeft = 499

// traceLine reads a line of either kind: only Troupe's has a version. e is memory for it.
func traceLine(text []byte, e *requestlog.Entry) (TraceLine, error) {
	if err := requestlog.Scan(text, e); err != nil {
		return TraceLine{}, err
	}
	switch e.Version {
	case 0:
		return plainLine(text)
	case requestlog.Version:
		return logLine(e)
	}
	return TraceLine{}, fmt.Errorf("a request log of version %d, while this program knows version %d", e.Version, requestlog.Version)
}

// plainLine reads a line of a trace as Mooncake's.
func plainLine(text []byte) (TraceLine, error) {
	var l struct {
		Timestamp json.RawMessage `json:"timestamp"`
		Input     *int            `json:"input_length"`
		Output    *int            `json:"output_length"`
		HashIDs   []uint64        `json:"hash_ids"`
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return TraceLine{}, err
	}
	if l.Timestamp == nil || l.Input == nil || l.Output == nil {
		return TraceLine{}, errors.New("neither Troupe's request log, which has a version, nor a trace with timestamp, input_length and output_length")
	}
	if *l.Output == 0 {
		return TraceLine{}, errNothing
	}
	for _, n := range []int{*l.Input, *l.Output} {
		if n < 0 || n > maxLength {
			return TraceLine{}, fmt.Errorf("a length of %d tokens, but it must be within 0 and %d", n, maxLength)
		}
	}
	t := TraceLine{Input: *l.Input, Output: *l.Output, Blocks: l.HashIDs}
	if l.Timestamp[0] == '"' {
		var at time.Time
		if err := json.Unmarshal(l.Timestamp, &at); err != nil {
			return TraceLine{}, fmt.Errorf("timestamp: %w", err)
		}
		t.At = time.Duration(at.UnixNano())
		return t, nil
	}
	var ms float64
	if err := json.Unmarshal(l.Timestamp, &ms); err != nil || math.Abs(ms) > 9e12 {
		return TraceLine{}, fmt.Errorf("timestamp is %.40s, but must be milliseconds or a time of RFC 3339", l.Timestamp)
	}
	t.At = time.Duration(math.Round(ms * 1e6))
	return t, nil
}

// logLine reads a line of Troupe's request log.
func logLine(e *requestlog.Entry) (TraceLine, error) {
	at, known := e.Wall()
	k := &e.Tokens
	left := e.Status == clientLeft && e.At.Finished.Known()
	switch {
	case e.Refused() || !known:
		return TraceLine{}, errRefused
	case k.Longest == 0 && !left:
		return TraceLine{}, errNothing
	case k.Prompt > maxLength || k.Longest > maxLength:
		return TraceLine{}, fmt.Errorf("lengths of %d and %d tokens, but they must be within 0 and %d", k.Prompt, k.Longest, maxLength)
	}
	var params map[string]json.RawMessage
	if e.Params != nil {
		if err := json.Unmarshal(e.Params, &params); err != nil {
			return TraceLine{}, fmt.Errorf("params: %w", err)
		}
	}
	t := TraceLine{At: time.Duration(at.UnixNano()), Input: k.Prompt, Output: k.Longest, Cached: min(k.Cached, k.Prompt), Params: sampling(params)}
	if e.N > 1 {
		t.Params["n"] = strconv.AppendInt(nil, int64(e.N), 10)
	}
	if left {
		t.LeftAfter = max(time.Duration(e.At.Finished), 1)
		var limit int
		if json.Unmarshal(params["max_tokens"], &limit) == nil && limit > 0 && limit <= maxLength {
			t.Limit = limit
		}
		t.Output = max(t.Output, 1)
	}
	return t, nil
}

// sampling are the members of a request that repeat what the log says of its sampling. What changes
// nothing is left out, since not every server knows every member. Stop strings are left out too:
// lengths are given, and the text is another.
func sampling(logged map[string]json.RawMessage) map[string]json.RawMessage {
	neutral := map[string]string{
		"temperature": "", "top_k": "0", "top_p": "1", "min_p": "0",
		"repetition_penalty": "1", "presence_penalty": "0", "frequency_penalty": "0",
	}
	params := map[string]json.RawMessage{}
	for name, nothing := range neutral {
		var v float64
		raw := logged[name]
		if raw != nil && string(raw) != "null" && string(raw) != nothing && json.Unmarshal(raw, &v) == nil {
			params[name] = raw
		}
	}
	var seed uint64
	if raw := logged["seed"]; raw != nil && json.Unmarshal(raw, &seed) == nil {
		// The API's seed is signed.
		params["seed"] = strconv.AppendInt(nil, int64(seed), 10)
	}
	return params
}
