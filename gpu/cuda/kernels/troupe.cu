// All kernels, which together are one module: troupe.ptx.
#include "attention.cuh"
#include "cache.cuh"
#include "experts.cuh"
#include "layer.cuh"
#include "linear.cuh"
#include "sample.cuh"
