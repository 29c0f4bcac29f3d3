//go:build !amd64

package host

// vectorsOf are the kernels in the given instructions.
func vectorsOf(instructions) *vectors { return &portableVectors }
