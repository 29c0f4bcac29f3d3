// The paged KV cache. A layer's part is [block][keys, values][KV head][position in the block][numbers of a
// head], of floats, halves or codes. Codes are signed bytes, of which every CODES have a scale, a half, and
// code × scale is about the number. A head's codes are filled up with zeros to a whole number of CODES; the
// scales lie apart, in the codes' order.

#pragma once
#include "device.cuh"

#define CODES 32

// head_numbers is how many numbers a head of dim values takes at a position.
template <typename V> FUNCTION int head_numbers(int dim) {
	return sizeof(V) == sizeof(int8_t) ? whole(dim, CODES) : dim;
}

// cache_at is the first number of a position's keys of a KV head, or with values = 1 of its values.
template <typename V> FUNCTION int64_t cache_at(int block, int values, int head, int heads, int offset, int block_size, int dim) {
	return ((((int64_t)block * 2 + values) * heads + head) * block_size + offset) * head_numbers<V>(dim);
}

// cached reads a number.
FUNCTION float cached(const float *cache, const uint16_t *, int64_t at) { return cache[at]; }
FUNCTION float cached(const uint16_t *cache, const uint16_t *, int64_t at) { return half_to_float(cache[at]); }
FUNCTION float cached(const int8_t *cache, const uint16_t *scales, int64_t at) { return (float)cache[at] * half_to_float(scales[at / CODES]); }

// store writes the dim values of a head from at on, by all threads of the block.
FUNCTION void store(float *cache, uint16_t *, int64_t at, const float *x, int dim) {
	for (int i = threadIdx.x; i < dim; i += blockDim.x)
		cache[at + i] = x[i];
}
FUNCTION void store(uint16_t *cache, uint16_t *, int64_t at, const float *x, int dim) {
	for (int i = threadIdx.x; i < dim; i += blockDim.x)
		cache[at + i] = float_to_half(x[i]);
}

// Codes are rounded as the host device rounds them: the scale is the greatest magnitude / 127, as a half. A NaN,
// whose bits are above all magnitudes', makes the scale one.
FUNCTION void store(int8_t *cache, uint16_t *scales, int64_t at, const float *x, int dim) {
	int lane = threadIdx.x % WARP;
	for (int first = threadIdx.x - lane; first < dim; first += blockDim.x) {
		float v = first + lane < dim ? x[first + lane] : 0;
		uint16_t half = float_to_half(__int_as_float(warp_most(__float_as_int(v) & 0x7fffffff)) / 127);
		float scale = half_to_float(half);
		v *= scale == 0 ? 0 : 1 / scale;
		if (!(v < 127))
			v = 127;
		cache[at + first + lane] = (int8_t)rintf(fmaxf(v, -127));
		if (lane == 0)
			scales[(at + first) / CODES] = half;
	}
}

// copy_block copies a block of the KV cache; block y is a layer. Lengths are in words of 4 bytes.
KERNEL void copy_block(uint32_t *cache, int64_t layer, int64_t block, int from, int to) {
	cache += blockIdx.y * layer;
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < block; i += (int64_t)gridDim.x * blockDim.x)
		cache[to * block + i] = cache[from * block + i];
}
