// Package openai is the wire layer of Troupe's HTTP API: it turns the bodies of OpenAI's and vLLM's
// requests into lifecycle.Requests, and what the request actor says into the bytes that their
// clients read. It is pure: no sockets, no actors, no clock. Package transport moves the bytes.
//
// Names, defaults, limits and shapes follow OpenAI's API reference and, where that is silent, vLLM
// 0.32's server; the per-request metrics contract says where Troupe differs on purpose.
package openai

import (
	"sync"

	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model/template"
	"github.com/troupe-llm/troupe/model/tokenizer"
)

// Env is what parsing and encoding must know of the served model and of the server's switches. It
// is immutable once the first request is parsed, and shared by all goroutines.
type Env struct {
	// Served are the accepted model names, at least one; responses carry the first.
	Served []string
	// Root is the path or hub name from which a tokenizer of the model loads (vLLM's `root`).
	Root string
	// Description is what the model's makers say of it, for its card; empty: nothing.
	Description string
	// MaxModelLen bounds prompt and output together, in tokens; Vocab is the number of token ids.
	MaxModelLen, Vocab int
	Tokenizer          *tokenizer.Tokenizer
	// Template is the chat template; nil refuses chat and responses with a 400 that says why.
	Template *template.Template
	// EOS are the model's end-of-generation ids. stop_reason is null when one of them ended a
	// choice, as in vLLM.
	EOS      []int32
	Defaults Defaults
	// Seed gives the seeds of requests that name none; nil draws them at random. It is called from
	// many goroutines.
	Seed func() uint64
	// MaxLogprobs bounds logprobs, top_logprobs and prompt_logprobs; 0 means 20, vLLM's default.
	MaxLogprobs int
	// Metrics is --enable-per-request-metrics, MetricsDetail --per-request-metrics-detail detailed,
	// ForceUsage --enable-force-include-usage, LlamaTimings --enable-llama-timings, and
	// DisableStats --disable-log-stats (with which there is nothing to report: no metrics).
	Metrics, MetricsDetail, ForceUsage, LlamaTimings, DisableStats bool
	// Created is when the server started, in seconds since 1970: the models' `created`. A
	// response's own is Job.Created.
	Created int64

	once    sync.Once
	longest int // see longestToken
}

// Defaults are the sampling parameters of requests that don't name them, as the model's files
// recommend. Nil means that the API's own default holds (temperature 1, top_p 1, top_k 0, min_p 0,
// repetition_penalty 1).
type Defaults struct {
	Temperature, TopP, MinP, RepetitionPenalty *float32
	TopK                                       *int
}

// Job is one parsed request: what the runtime needs to carry it out, and how to answer it. The
// caller sets Created, then SetID, then the rest of Request (ID, Arrival, Deadline, KeyName, Peer),
// before the Encoder is first used.
type Job struct {
	Request lifecycle.Request
	Encoder Encoder
	// Created is the response's `created`, in seconds since 1970. When it is 0 as SetID is called,
	// Env.Created is used.
	Created int64
	// Store says that the answer is to be kept for GET /v1/responses/{id} and previous_response_id:
	// see Stored. False for all but the Responses API.
	Store bool

	requestID string // the body's request_id
	answer    *answer
}

// Encoder turns what the request actor says into the bytes of the answer. There is one per request;
// it is used from one goroutine at a time, and never after End or Body.
type Encoder interface {
	// Delta appends the SSE frames of one delta to dst. Nothing of d is kept.
	Delta(dst []byte, d *lifecycle.Delta) []byte
	// End appends what closes the stream: frames of choices that have had none, the usage chunk, or
	// an error frame when r.Err is not nil, and the end mark of the API.
	End(dst []byte, r *lifecycle.Response) []byte
	// Body returns the JSON body of an answer that is not streamed. r.Err must be nil: AppendError
	// encodes the others. The slice is the caller's.
	Body(r *lifecycle.Response) []byte
	// ContentType is the Content-Type of the answer: of an event stream when the request asked for
	// one, and otherwise of JSON.
	ContentType() string
}
