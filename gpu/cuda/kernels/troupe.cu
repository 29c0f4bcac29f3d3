// All kernels, which together are one module: troupe.ptx, and troupe_80.ptx for newer GPUs.
#include "activations.cuh"
#include "attention.cuh"
#include "cache.cuh"
#include "experts.cuh"
#include "layer.cuh"
#include "linear.cuh"
#include "sample.cuh"
