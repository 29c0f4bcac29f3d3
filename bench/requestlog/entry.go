// Package requestlog reads request logs: lines as docs/request-log.md describes them, from files,
// compressed ones too, and standard input, millions of them at a few microseconds each.
package requestlog

import (
	"time"
)

// Version is the newest version of the lines that this package understands.
const Version = 1

// Span is a duration, or a time from the request's arrival, in nanoseconds; Null where the line has
// null.
type Span int64

// Null stands for null.
const Null Span = -1

// Known says whether there is a value.
func (s Span) Known() bool { return s >= 0 }

// Millis is the span in milliseconds, 0 when it is Null.
func (s Span) Millis() float64 { return float64(max(s, 0)) / 1e6 }

// Entry is one line. Strings that are null are empty, counts that are null are 0 unless the field
// says otherwise, rates that are null are NaN.
//
// The strings and raw values lie in the line that was scanned and in the Entry's own memory: they are
// valid until either is used again. Clone what is to stay.
type Entry struct {
	Version   int
	Time      string // RFC 3339; see Wall
	ID        uint64
	RequestID string

	ClientRequestID, Endpoint, Method, Path, Model, Key, Peer string

	Stream, Echo         bool
	Priority, Prompts, N int
	Deadline             Span
	Params               []byte // JSON, not looked into
	Tokens               Tokens
	At                   At
	Metrics              Metrics
	Detail               Detail
	SlowedBy             SlowedBy
	Timeline             []byte // JSON, not looked into: see Events
	Sequences            int
	Outcome              string
	StopString           string
	StopToken            int // −1: none
	Status               int
	Error                Error
	Bytes                int64
	Engine               int // −1: there was one, or none

	Raw []byte // the whole line

	text []byte // strings with escapes, without them
}

// Tokens counts tokens.
type Tokens struct{ Prompt, Cached, Computed, Output, Longest, Reasoning, Discarded, Drafted, Accepted int }

// At says when things happened, from the request's arrival.
//
// The scanner relies on its being nothing but Spans in this order, as it does of Tokens and SlowedBy.
type At struct{ Queued, Scheduled, FirstToken, LastToken, Finished, Delivered Span }

// Metrics is the response's metrics object.
type Metrics struct {
	TimeToFirstToken, GenerationTime, QueueTime, MeanITL Span
	TokensPerSecond                                      float64
	Speculative                                          []byte // JSON, not looked into
}

// Detail is what the means hide.
type Detail struct {
	ArrivalToFirstToken, EndToEnd, Prefill, Preempted Span
	MeanBatch                                         float64 // sequences
	Preemptions, Steps                                int
	ITLP50, ITLP90, ITLP99, ITLMax                    Span
	ITLCount                                          int
}

// SlowedBy says where time went beyond the request's own work.
type SlowedBy struct{ QueueCapacity, QueueKV, PrefillOfOthers, Preemption, DeviceRestart, SlowClient Span }

// Error is what went wrong.
type Error struct{ Type, Code, Param, Message string }

// Event is one entry of the timeline.
type Event struct {
	Kind, Why                             string
	Seq                                   int
	At, Dur                               Span
	Prompt, Output, Cached, Steps, Others int
	Busy, Excess, Slot, Budget, Blocks    Span // 0 where there is none
	Batch                                 float64
	Slots, Ahead, Merged, Sequences       int
}

// Wall is the wall clock at the request's arrival; false when the line does not say.
func (e *Entry) Wall() (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, e.Time)
	return t, err == nil
}

// Refused says whether the request was refused before it ran.
func (e *Entry) Refused() bool { return e.Outcome == "refused" }
