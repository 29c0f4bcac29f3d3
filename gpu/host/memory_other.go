//go:build !linux

package host

// availableMemory is unknown here.
func availableMemory() int64 { return 0 }

// processorName is unknown here.
func processorName() string { return "" }
