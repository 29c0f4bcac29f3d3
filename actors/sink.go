package actors

import "github.com/troupe-llm/troupe/lifecycle"

// Sink is where a request's text goes: a stream of server-sent events, an unstreamed reply, or a
// benchmark's counters. Whoever wants the answer makes one per request. Except for Attach it is
// called from the request's actor alone, and must never block it. A Sink may have a method Abandon():
// see abandoner.
type Sink interface {
	// Attach comes first, on the goroutine that called Start. tell hands the request's actor a
	// lifecycle.Gone (at most once) when the client has left or is cut off, and must hand it one
	// lifecycle.Delivered after End, once all is written or never will be. tell is safe from any
	// goroutine, never blocks, and does nothing once the request is closed.
	Attach(tell func(any))
	// Delta is called once per Tokens message. It and what it points to are valid during the call.
	Delta(*lifecycle.Delta)
	// End comes last, exactly once, also when the request failed. The Response may be kept.
	End(*lifecycle.Response)
}
