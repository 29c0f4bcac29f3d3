package observe

import (
	"math"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
)

const ms = int64(1e6)

// finished is a plain request: queued at 1 ms, scheduled at 13.3 ms, first token at 98.5 ms, last
// of 128 at 1,339 ms, as in the contract's worked example, having arrived at 0.5 ms.
func finished() *lifecycle.Record {
	r := &lifecycle.Record{
		Request: &lifecycle.Request{
			ID: 7, ExternalID: "chatcmpl-7", Endpoint: "chat", Model: "tiny", Peer: "127.0.0.1:4242",
			Arrival: 500_000, Prompts: [][]int32{make([]int32, 40)}, N: 1, Stream: true,
			Params: &lifecycle.Params{
				Temperature: 0.7, TopP: 0.95, Seed: math.MaxUint64, RepetitionPenalty: 1,
				Logprobs: -1, PromptLogprobs: -1, MaxTokens: 128, Stop: []string{"\n\n", "END"},
			},
		},
		Outcome: lifecycle.OutcomeLength, Status: 200, StopToken: -1,
		Usage:   lifecycle.Usage{Prompt: 40, Cached: 16, Completion: 128},
		Arrival: 500_000, Queued: 1 * ms, Scheduled: 13_300_000, FirstToken: 98_500_000, LastToken: 1339 * ms,
		Finished: 1339 * ms, Delivered: 1340 * ms, Wall: 1_790_000_000_123_456_789, BytesOut: 20480,
		Detail: lifecycle.Detail{
			ArrivalToFirstToken: 98 * ms, EndToEnd: 1338_500_000, Prefill: 85_200_000, PrefillTokens: 24,
			Cached: 16, Steps: 128, BatchSum: 256,
		},
		Sequences: 1, Longest: 128,
	}
	for range 127 {
		r.ITL.Observe(1240_500_000 / 127)
	}
	r.Metrics = timing(r).Metrics()
	return r
}

// refused is a request that never ran.
func refused(status int, code string) *lifecycle.Record {
	return &lifecycle.Record{
		Request: &lifecycle.Request{Model: "no-such-model", Arrival: 500_000}, Method: "POST", Path: "/v1/chat/completions",
		Outcome: lifecycle.OutcomeRefused, Status: status, StopToken: -1,
		Err:     &lifecycle.Error{Status: status, Type: "invalid_request_error", Code: code, Message: "no such model"},
		Arrival: 500_000, Finished: 600_000, Wall: 1_790_000_000_000_000_000,
	}
}

func timing(r *lifecycle.Record) lifecycle.Timing {
	return lifecycle.Timing{Queued: r.Queued, Scheduled: r.Scheduled, FirstToken: r.FirstToken, LastToken: r.LastToken, Tokens: r.Usage.Completion}
}

// progress is what a running request would have reported of r, in one piece.
func progress(r *lifecycle.Record) *lifecycle.Progress {
	return &lifecycle.Progress{Model: r.Request.Model, Prompt: r.Usage.Prompt, Cached: r.Usage.Cached, Tokens: r.Usage.Completion, ITL: r.ITL}
}

// drawRecord draws a Record of any ending, however odd: what it holds is not sane, only of the
// right type, because neither observer may break on what another part gets wrong.
func drawRecord(t *rapid.T) *lifecycle.Record {
	str := rapid.OneOf(rapid.Just(""), rapid.String(), rapid.SampledFrom([]string{
		"bad \xff\xfe bytes", "new\nline\x1b[31m", "quote\" and \\ and \u2028", string(make([]byte, 5000)),
	}))
	stamp := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1e13), rapid.SampledFrom([]int64{-1, math.MaxInt64, math.MinInt64}))
	num := rapid.OneOf(rapid.IntRange(0, 5000), rapid.SampledFrom([]int{0, 1, -1}))
	float := rapid.OneOf(rapid.Float32(), rapid.SampledFrom([]float32{0, 0.7, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}))
	r := &lifecycle.Record{
		Request: &lifecycle.Request{
			ID: rapid.Uint64().Draw(t, "id"), ExternalID: str.Draw(t, "external"), Endpoint: str.Draw(t, "endpoint"),
			Model: str.Draw(t, "model"), KeyName: str.Draw(t, "key"), ClientID: str.Draw(t, "client"), Peer: str.Draw(t, "peer"),
			Arrival: stamp.Draw(t, "arrival"), Deadline: stamp.Draw(t, "deadline"), Priority: num.Draw(t, "priority"),
			Prompts: make([][]int32, rapid.IntRange(0, 3).Draw(t, "prompts")), N: num.Draw(t, "n"), Stream: rapid.Bool().Draw(t, "stream"),
		},
		Method: str.Draw(t, "method"), Path: str.Draw(t, "path"),
		Outcome: rapid.SampledFrom([]lifecycle.Outcome{"stop", "length", "abort", "error", "refused"}).Draw(t, "outcome"),
		Status:  rapid.SampledFrom([]int{200, 400, 401, 404, 418, 429, 499, 500, 503, 504}).Draw(t, "status"),
		Usage: lifecycle.Usage{
			Prompt: rapid.IntRange(0, 4096).Draw(t, "prompt"), Cached: rapid.IntRange(0, 4096).Draw(t, "cached"),
			Completion: rapid.IntRange(0, 4096).Draw(t, "completion"), Reasoning: num.Draw(t, "reasoning"),
		},
		StopString: str.Draw(t, "stop"), StopToken: rapid.Int32Range(-1, 100).Draw(t, "stop token"),
		Discarded: num.Draw(t, "discarded"), Drafted: num.Draw(t, "drafted"), Accepted: num.Draw(t, "accepted"),
		Queued: stamp.Draw(t, "queued"), Scheduled: stamp.Draw(t, "scheduled"), FirstToken: stamp.Draw(t, "first"),
		LastToken: stamp.Draw(t, "last"), Finished: stamp.Draw(t, "finished"), Delivered: stamp.Draw(t, "delivered"),
		Wall: stamp.Draw(t, "wall"), BytesOut: stamp.Draw(t, "bytes"),
		Sequences: num.Draw(t, "sequences"), Engine: rapid.IntRange(0, 3).Draw(t, "engine"), Engines: rapid.SampledFrom([]int{1, 4}).Draw(t, "engines"), Longest: num.Draw(t, "longest"),
		Detail: lifecycle.Detail{
			ArrivalToFirstToken: stamp.Draw(t, "ttft"), EndToEnd: stamp.Draw(t, "e2e"), Prefill: stamp.Draw(t, "prefill"),
			PrefillTokens: num.Draw(t, "computed"), Preemptions: num.Draw(t, "preemptions"), Preempted: stamp.Draw(t, "preempted"),
			Steps: num.Draw(t, "steps"), BatchSum: num.Draw(t, "batch"), ITLP50: stamp.Draw(t, "p50"), ITLCount: num.Draw(t, "gaps"),
		},
	}
	r.Arrival = r.Request.Arrival
	if rapid.Bool().Draw(t, "failed") {
		r.Err = &lifecycle.Error{Type: str.Draw(t, "type"), Code: str.Draw(t, "code"), Message: str.Draw(t, "message")}
	}
	if rapid.Bool().Draw(t, "parsed") {
		r.Request.Params = &lifecycle.Params{
			Temperature: float.Draw(t, "temperature"), TopK: num.Draw(t, "top k"), TopP: float.Draw(t, "top p"), MinP: float.Draw(t, "min p"),
			Seed: rapid.Uint64().Draw(t, "seed"), Logprobs: rapid.IntRange(-1, 20).Draw(t, "logprobs"), MaxTokens: num.Draw(t, "max tokens"),
			Stop: rapid.SliceOfN(str, 0, 3).Draw(t, "stops"), StopTokenIDs: make([]int32, rapid.IntRange(0, 100).Draw(t, "stop ids")),
		}
	}
	if rapid.Bool().Draw(t, "timeline") {
		r.Timeline = &lifecycle.Timeline{}
		for range rapid.IntRange(0, 5).Draw(t, "events") {
			r.Timeline.Events = append(r.Timeline.Events, lifecycle.Event{
				Kind: lifecycle.EventKind(rapid.IntRange(1, 10).Draw(t, "kind")), Cause: lifecycle.Cause(rapid.IntRange(0, 13).Draw(t, "cause")),
				At: stamp.Draw(t, "at"), Dur: stamp.Draw(t, "duration"), Steps: 3, Sequences: stamp.Draw(t, "sequences"), Excess: stamp.Draw(t, "excess"),
			})
		}
	}
	for range rapid.IntRange(0, 5).Draw(t, "steps with tokens") {
		r.ITL.Observe(rapid.Int64Range(0, 100e9).Draw(t, "gap"))
	}
	r.Metrics = timing(r).Metrics()
	return r
}

// drawProgress splits what r used into what its request would have reported on the way.
func drawProgress(t *rapid.T, r *lifecycle.Record) []*lifecycle.Progress {
	rest := *progress(r)
	var parts []*lifecycle.Progress
	for range rapid.IntRange(0, 3).Draw(t, "parts") {
		p := &lifecycle.Progress{
			Prompt: rapid.IntRange(0, rest.Prompt).Draw(t, "prompt part"),
			Cached: rapid.IntRange(0, rest.Cached).Draw(t, "cached part"),
			Tokens: rapid.IntRange(0, rest.Tokens).Draw(t, "tokens part"),
		}
		rest.Prompt -= p.Prompt
		rest.Cached -= p.Cached
		rest.Tokens -= p.Tokens
		parts = append(parts, p)
	}
	return append(parts, &rest)
}
