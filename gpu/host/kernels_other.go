//go:build !amd64

package host

import "github.com/troupe-llm/troupe/model/gguf"

// packingsFor are the packings of the types that cpu has kernels for: none here.
func packingsFor(instructions) map[gguf.Type]packing { return nil }
