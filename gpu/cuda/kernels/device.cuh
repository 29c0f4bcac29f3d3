// What all kernels share. The same sources are compiled for a GPU by NVRTC, and for a CPU by any C++17
// compiler over cpu.h of the tests, which runs a block's threads as fibers.
//
// Shapes are written [rows][columns], row-major. A row of activations has a stride in floats that is a
// multiple of 32; what lies between its length and its stride is 0, always.

#pragma once

#ifdef __CUDACC__
#define KERNEL extern "C" __global__
#define FUNCTION static __device__ __forceinline__
#define FUNCTION_OF_STRUCT __device__ __forceinline__
#define RESTRICT __restrict__
// THREADS says how many threads a block has at most, so that the compiler leaves registers for them.
#define THREADS(n) __launch_bounds__(n)
// THREADS_OF says that besides how many blocks a multiprocessor should have at once.
#define THREADS_OF(n, blocks) __launch_bounds__(n, blocks)
// SHARED_BYTES is the shared memory that a launch asks for.
extern __shared__ __align__(16) unsigned char shared_bytes[];
#define SHARED_BYTES shared_bytes

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

FUNCTION float half_to_float(uint16_t h) {
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
	return f;
}

FUNCTION uint16_t float_to_half(float f) {
	uint16_t h;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return h;
}

// dot_of_bytes is c and the products of the four signed bytes of a and b.
FUNCTION int dot_of_bytes(int a, int b, int c) {
	int d;
	asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
	return d;
}
#else
#include "cpu.h"
#endif

#define WARP 32
#define ALL_LANES 0xffffffffu

FUNCTION float infinity() { return __int_as_float(0x7f800000); }

FUNCTION int smaller(int a, int b) { return a < b ? a : b; }
FUNCTION int larger(int a, int b) { return a > b ? a : b; }

// whole is n rounded up to a multiple of of.
FUNCTION int whole(int n, int of) { return (n + of - 1) / of * of; }

// order_key maps floats to integers of the same order. −0 and 0 are one.
FUNCTION uint32_t order_key(float v) {
	uint32_t u = (uint32_t)__float_as_int(v + 0.0f);
	return u ^ ((uint32_t)((int)u >> 31) | 0x80000000u);
}

// warp_sum adds up a value of each lane; all lanes get the sum.
template <typename V> FUNCTION V warp_sum(V v) {
#pragma unroll
	for (int distance = WARP / 2; distance > 0; distance /= 2)
		v += __shfl_xor_sync(ALL_LANES, v, distance);
	return v;
}

FUNCTION float warp_max(float v) {
#pragma unroll
	for (int distance = WARP / 2; distance > 0; distance /= 2)
		v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, distance));
	return v;
}

// quad_max is the largest of a quad's values, four lanes'; all of them get it.
FUNCTION float quad_max(float v) {
	v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 1));
	return fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 2));
}

// warp_most is the greatest of the lanes' integers; all lanes get it.
template <typename V> FUNCTION V warp_most(V v) {
#pragma unroll
	for (int distance = WARP / 2; distance > 0; distance /= 2) {
		V other = __shfl_xor_sync(ALL_LANES, v, distance);
		v = v > other ? v : other;
	}
	return v;
}

// block_fold folds the values of the block's warps into 0, in an order that never varies; all threads get the result.
// place is shared memory for a value per warp, free for other use when the call returns.
template <typename V, typename F> FUNCTION V block_fold(V of_warp, V *place, const F &fold) {
	if (threadIdx.x % WARP == 0)
		place[threadIdx.x / WARP] = of_warp;
	__syncthreads();
	V all = 0;
	for (int i = 0; i < (int)blockDim.x / WARP; i++)
		all = fold(all, place[i]);
	__syncthreads();
	return all;
}

// block_max is the largest value of the block's threads, and not below 0; place is as for block_fold.
FUNCTION float block_max(float v, float *place) {
	return block_fold(warp_max(v), place, [](float a, float b) { return fmaxf(a, b); });
}

// block_sum adds up a value of each thread; place is as for block_fold.
template <typename V> FUNCTION V block_sum(V v, V *place) {
	return block_fold(warp_sum(v), place, [](V a, V b) { return a + b; });
}
