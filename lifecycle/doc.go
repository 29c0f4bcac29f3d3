// Package lifecycle is the language of Troupe: the messages that a request hears about its
// tokens, the sampling parameters it carries, the state machine that turns messages into stamps,
// the arithmetic that turns stamps into metrics, and the Record that every ending leaves.
//
// It is pure: no actors, no I/O, no clock, no goroutines. Everything else imports it; it imports
// nothing of Troupe.
//
// All times are int64 nanoseconds of one monotonic clock whose zero is the process's start; 0
// means "not yet". Durations are int64 nanoseconds too. Only JSON has milliseconds.
package lifecycle
