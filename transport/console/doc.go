// Package console is the live page at /console: what the server does now, and what became of the
// last few thousand requests.
//
// It has two halves. The ring keeps a small record of each finished request, whether anybody looks or
// not: that costs a request a fraction of a microsecond and no memory beyond the ring's (see
// BenchmarkKeepingAFinishedRequest). All else exists only while somebody watches: four times a second
// the running requests are asked how they are, what has changed since is encoded once, and every
// viewer is sent the same bytes. Requests know nothing of viewers, and viewers wait for nobody: one
// that reads too slowly is cut off.
//
// The page never gets a prompt or an answer: names, numbers, times and error messages only.
package console
