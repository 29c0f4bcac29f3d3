// Package cuda is the GPU device: all architectures on an NVIDIA GPU, by CUDA's driver and kernels of our
// own. It is built with the tag cuda, on Linux, and needs nothing at run time but the driver; without the
// tag, Open says how to get it.
//
// The kernels (kernels/*.cuh) are compiled to PTX ahead of time, which the driver compiles for the GPU at
// hand. The tests compile the same sources for the CPU, into a stand-in for the driver that runs them
// (testdata/driver), so that the whole device is tested where there is no GPU.
//
// Weights stay quantised as they are in the file, reordered once at load so that neighbouring threads read
// neighbouring bytes (pack.go). Products of one row take bytes, those of several go by tensor cores, as halves
// (linear.go, kernels/linear.cuh); sums are float32. The KV cache is paged, of halves, float32
// or bytes with scales. Sampling is done on the GPU, so that only chosen tokens cross the bus.
//
// A step is one upload of everything that the batch says, the kernels, one download and one wait; the kernels of a
// step of decodes are launched as one CUDA graph (graphs.go). There is one stream: a step's kernels need all of its
// upload, and its download all of them, so that there is nothing to do beside. Bits depend on company: products of
// few columns are rounded and summed in other ways than those of many, and long contexts are split among
// multiprocessors where there is little else to do.
package cuda

import "log/slog"

// DefaultUtilization is the share of a GPU's memory that a device takes by default.
const DefaultUtilization = 0.9

// Options are what a GPU needs to know beyond gpu.Config.
type Options struct {
	// Ordinal is which of the GPUs that the driver counts; CUDA_VISIBLE_DEVICES can hide some.
	Ordinal int
	// Utilization is the share of the GPU's memory to take, for weights, activations and the KV cache
	// together; 0 is DefaultUtilization. It matters where Config.CacheBytes is 0.
	Utilization float64
	// Progress hears how far the weights have come to the GPU, in bytes of them; nil is allowed.
	Progress func(done, total int64, what string)
	// Logger hears what a person should know of an open device; nil is slog.Default().
	Logger *slog.Logger
}
