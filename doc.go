// Package troupe is the root of an LLM serving runtime in which each request is an actor that
// measures itself. It holds no code: see the folders, from the bottom up: lifecycle (the language),
// model (what a model file brings), gpu (what computes), actors (the cast), transport (HTTP), bench
// (measuring) and cmd/troupe (the command line).
package troupe
