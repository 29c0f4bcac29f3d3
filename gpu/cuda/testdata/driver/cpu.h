// What the kernels need of CUDA, on a CPU. driver.cpp runs them: a block at a time, its threads as fibers.

#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define KERNEL extern "C" __attribute__((visibility("hidden")))
#define FUNCTION static inline
#define FUNCTION_OF_STRUCT
#define RESTRICT __restrict__
#define THREADS(n)
#define THREADS_OF(n, blocks)
#define __shared__ static // one block runs at a time
#define SHARED_BYTES shared_bytes

struct Index {
	unsigned x, y, z;
};

extern Index threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char *shared_bytes;

// synchronise waits for all threads of the block, exchange for all lanes of the warp: it gives what the lane
// at distance across gave.
void synchronise();
uint64_t exchange(uint64_t value, int across);

static inline void __syncthreads() { synchronise(); }
static inline void __syncwarp() {}

template <typename V> static inline V __shfl_xor_sync(unsigned mask, V v, int across) {
	static_assert(sizeof(V) <= 8, "shuffles move 4 or 8 bytes");
	if (mask != 0xffffffffu)
		__builtin_trap(); // the kernels shuffle whole warps
	uint64_t bits = 0;
	memcpy(&bits, &v, sizeof v);
	bits = exchange(bits, across);
	memcpy(&v, &bits, sizeof v);
	return v;
}

struct alignas(16) float4 {
	float x, y, z, w;
};
struct alignas(8) uint2 {
	uint32_t x, y;
};
struct alignas(16) uint4 {
	uint32_t x, y, z, w;
};

static inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }

static inline float __int_as_float(int i) {
	float f;
	memcpy(&f, &i, 4);
	return f;
}

static inline int __float_as_int(float f) {
	int i;
	memcpy(&i, &f, 4);
	return i;
}

// Byte i of the result is that of the eight of high and low which nibble i's lower three bits say.
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t which) {
	uint64_t all = (uint64_t)high << 32 | low;
	uint32_t bytes = 0;
	for (int i = 0; i < 4; i++)
		bytes |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
	return bytes;
}

static inline int __popc(uint32_t v) { return __builtin_popcount(v); }

// The sum of c and the products of the four signed bytes of a and b.
static inline int dot_of_bytes(int a, int b, int c) {
	for (int i = 0; i < 32; i += 8)
		c += (int8_t)(a >> i) * (int8_t)(b >> i);
	return c;
}

static inline int __clzll(int64_t v) { return v == 0 ? 64 : __builtin_clzll((uint64_t)v); }

// Fibers change at barriers alone, so that plain arithmetic is atomic.
static inline uint32_t atomicAdd(uint32_t *p, uint32_t v) { return (*p += v) - v; }
static inline uint32_t atomicOr(uint32_t *p, uint32_t v) {
	uint32_t before = *p;
	*p |= v;
	return before;
}
static inline uint32_t atomicExch(uint32_t *p, uint32_t v) {
	uint32_t before = *p;
	*p = v;
	return before;
}

// Halves, by their bits: rounding is to nearest, ties to even, as the GPU's.
static inline float half_to_float(uint16_t h) {
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
	if (rest >= 0x7c00)
		return __int_as_float((int)(sign | 0x7f800000 | (rest & 0x3ff) << 13));
	return __int_as_float((int)(sign | rest << 13)) * 0x1p112f;
}

static inline uint16_t float_to_half(float f) {
	uint32_t u = (uint32_t)__float_as_int(f), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
	if (rest > 0x7f800000)
		return 0x7fff;
	if (rest >= 0x477ff000) // from 65520 on
		return (uint16_t)(sign | 0x7c00);
	if (rest < 0x38800000) // below 2⁻¹⁴: a multiple of 2⁻²⁴
		return (uint16_t)(sign | (uint32_t)rintf(ldexpf(__int_as_float((int)rest), 24)));
	rest += 0xfff + (rest >> 13 & 1);
	return (uint16_t)(sign | ((rest - 0x38000000) >> 13));
}

// Words of two halves: each operation rounds once.
static inline uint32_t halves_times_plus(uint32_t a, uint32_t b, uint32_t c) {
	uint32_t d = 0;
	for (int i = 0; i < 32; i += 16) // products are exact as doubles, and so are all sums that matter
		d |= (uint32_t)float_to_half((float)((double)half_to_float((uint16_t)(a >> i)) * half_to_float((uint16_t)(b >> i)) + half_to_float((uint16_t)(c >> i)))) << i;
	return d;
}
static inline uint32_t halves_times(uint32_t a, uint32_t b) { return halves_times_plus(a, b, 0x80008000); }
static inline uint32_t halves_minus(uint32_t a, uint32_t b) { return halves_times_plus(a, 0x3c003c00, b ^ 0x80008000); }

// multiply_add waits for all lanes of the warp, whose parts of the matrices it then multiplies.
void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

// A copy to shared memory is made when its thread waits for it, and no sooner.
void copy_16(void *shared, const void *from);
void commit_copies();
void copy_all_but(int latest);
template <int latest> static inline void wait_for_copies() { copy_all_but(latest); }
