//go:build !cuda || !cgo || !linux || !(amd64 || arm64)

package cuda

import (
	"errors"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
)

// Built says whether this program has the device in it.
const Built = false

// errNotBuilt says how to get a program that has.
var errNotBuilt = errors.New("this program was built without CUDA: build it on Linux by task build:cuda (the tag cuda, cgo, and CUDA's headers)")

// Find says why there are not so many GPUs to compute on, or nil where there are.
func Find(int) error { return errNotBuilt }

// Open makes a device of m's weights. This program was built without, and it always fails.
func Open(*model.Model, gpu.Config, Options) (gpu.Device, error) { return nil, errNotBuilt }

// Describe says what the driver says of a GPU. This program was built without, and it always fails.
func Describe(Options) (*Properties, error) { return nil, errNotBuilt }

// Reset destroys the context under a device. This program was built without, and it always fails.
func Reset(gpu.Device) error { return errNotBuilt }
