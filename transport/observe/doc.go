// Package observe holds what watches requests end: Prometheus, with the metric families of vLLM, and
// the request log, one line a request. Both are lifecycle.Observers: they learn of a request only
// from its Record and its Progress, so that they cannot disagree with what the client was told.
//
// Nothing here blocks a request. Prometheus takes a short uncontended lock; the log appends to
// memory, and a goroutine of its own writes.
package observe
