//go:build race

package modeltest

// Race says whether the race detector is on.
const Race = true
