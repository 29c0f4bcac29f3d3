// What a layer does between its products: norms, rotary positions, the KV cache, the gate.

#pragma once
#include "device.cuh"

// normalise writes x / √(mean(x²) + eps) × weight; block x is a row.
KERNEL void normalise(const float *x, const float *weight, float *y, int width, int stride, float eps) {
	__shared__ double place[WARP];
	x += (int64_t)blockIdx.x * stride;
	y += (int64_t)blockIdx.x * stride;
	double sum = 0;
	for (int i = threadIdx.x; i < width; i += blockDim.x)
		sum += (double)x[i] * (double)x[i];
	sum = block_sum(sum, place);
	float scale = (float)(1 / sqrt(sum / width + (double)eps));
	for (int i = threadIdx.x; i < width; i += blockDim.x)
		y[i] = x[i] * scale * weight[i];
}

// gate writes silu(gate) × up, where a row of x is the gate's values and then those of up; block y is a row.
KERNEL void gate(const float *x, float *y, int width, int x_stride, int y_stride) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= width)
		return;
	x += (int64_t)blockIdx.y * x_stride;
	float g = x[i], u = x[width + i];
	y[(int64_t)blockIdx.y * y_stride + i] = g / (1 + expf(-g)) * u;
}

// gather copies the rows of x that indices name; block x is a row of y.
KERNEL void gather(const float *x, const int *indices, float *y, int width, int x_stride, int y_stride) {
	x += (int64_t)indices[blockIdx.x] * x_stride;
	y += (int64_t)blockIdx.x * y_stride;
	for (int i = threadIdx.x; i < width; i += blockDim.x)
		y[i] = x[i];
}

// A layer's part of the KV cache is [block][keys, values][KV head][position in the block][head dim], of
// halves or floats.

FUNCTION void store_number(uint16_t *to, float v) { *to = float_to_half(v); }
FUNCTION void store_number(float *to, float v) { *to = v; }
FUNCTION float number(uint16_t v) { return half_to_float(v); }
FUNCTION float number(float v) { return v; }

// cache_at is where a position of a KV head has its keys, or with values = 1 its values.
FUNCTION int64_t cache_at(int block, int values, int head, int heads, int offset, int block_size, int dim) {
	return ((((int64_t)block * 2 + values) * heads + head) * block_size + offset) * dim;
}

// Row is what is known of a row of activations: its position in its sequence, and which of the block
// tables is the sequence's.
struct Row {
	int position, table;
};

// rotate turns a row's queries and keys to its position, queries in place, and writes keys and values to
// the cache. Block x is a row, block y a head: queries', then keys', then values'. Pair i of a head is its
// values 2i and 2i+1, and turns by frequencies[i] radians a position.
template <typename V>
FUNCTION void rotate(float *qkv, int stride, const Row *rows, const int *tables, int table_stride, const double *frequencies, int pairs, float magnitude, V *cache, int heads, int kv_heads, int dim, int block_size) {
	Row row = rows[blockIdx.x];
	int head = blockIdx.y;
	float *v = qkv + (int64_t)blockIdx.x * stride + (int64_t)head * dim;
	V *to = 0;
	bool turns = head < heads + kv_heads;
	if (head >= heads) {
		int block = tables[(int64_t)row.table * table_stride + row.position / block_size];
		int values = turns ? 0 : 1;
		to = cache + cache_at(block, values, head - heads - values * kv_heads, kv_heads, row.position % block_size, block_size, dim);
	}
	for (int i = threadIdx.x; i < dim; i += blockDim.x) {
		float w = v[i];
		if (turns && i / 2 < pairs) {
			if (i % 2 == 1)
				continue; // done with the value before
			// The angle may be thousands of turns: all but the last are taken off in float64.
			double angle = row.position * frequencies[i / 2];
			angle -= rint(angle * 0.15915494309189535) * 6.283185307179586;
			float s, c;
			sincosf((float)angle, &s, &c);
			s *= magnitude;
			c *= magnitude;
			float a = w, b = v[i + 1];
			w = a * c - b * s;
			float w2 = a * s + b * c;
			if (to == 0)
				v[i + 1] = w2;
			else
				store_number(to + i + 1, w2);
		}
		if (to == 0)
			v[i] = w;
		else
			store_number(to + i, w);
	}
}

#define ROTATE_PARAMETERS(V) \
	float *qkv, int stride, const Row *rows, const int *tables, int table_stride, const double *frequencies, int pairs, float magnitude, V *cache, int heads, int kv_heads, int dim, int block_size
KERNEL void rotate_f16(ROTATE_PARAMETERS(uint16_t)) {
	rotate(qkv, stride, rows, tables, table_stride, frequencies, pairs, magnitude, cache, heads, kv_heads, dim, block_size);
}
KERNEL void rotate_f32(ROTATE_PARAMETERS(float)) {
	rotate(qkv, stride, rows, tables, table_stride, frequencies, pairs, magnitude, cache, heads, kv_heads, dim, block_size);
}

// copy_block copies a block of the KV cache; block y is a layer. Lengths are in words of 4 bytes.
KERNEL void copy_block(uint32_t *cache, int64_t layer, int64_t block, int from, int to) {
	cache += blockIdx.y * layer;
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < block; i += (int64_t)gridDim.x * blockDim.x)
		cache[to * block + i] = cache[from * block + i];
}
