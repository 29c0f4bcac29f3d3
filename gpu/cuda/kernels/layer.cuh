// What a layer does between its products: norms, rotary positions, the gate.

#pragma once
#include "activations.cuh"
#include "cache.cuh"

// norm_scale is what a row is multiplied by whose squares' sum each thread has a part of.
FUNCTION float norm_scale(double sum, double *place, int width, float eps) {
	return (float)(1 / sqrt(block_sum(sum, place) / width + (double)eps));
}

// normalise stores x / √(mean(x²) + eps) × weight; block y is a row.
KERNEL void normalise(const float *x, const float *weight, int width, int x_stride, float eps, FORMS_PARAMETERS) {
	__shared__ double place[WARP];
	__shared__ float place_of_largest[WARP];
	Forms f = FORMS;
	x += (int64_t)blockIdx.y * x_stride;
	double sum = 0;
	float largest = 0; // before the scale
	for (int i = threadIdx.x; i < width; i += blockDim.x) {
		sum += (double)x[i] * (double)x[i];
		largest = fmaxf(largest, fabsf(x[i] * weight[i]));
	}
	float scale = norm_scale(sum, place, width, eps);
	if (needs_largest(f))
		largest = block_max(largest, place_of_largest) * scale;
	store_row(f, blockIdx.y, width, largest, [=](int i) { return x[i] * scale * weight[i]; });
}

// add_normalised adds to y what normalise would write; block x is a row.
KERNEL void add_normalised(const float *x, const float *weight, float *y, int width, int stride, float eps) {
	__shared__ double place[WARP];
	x += (int64_t)blockIdx.x * stride;
	y += (int64_t)blockIdx.x * stride;
	double sum = 0;
	for (int i = threadIdx.x; i < width; i += blockDim.x)
		sum += (double)x[i] * (double)x[i];
	float scale = norm_scale(sum, place, width, eps);
	for (int i = threadIdx.x; i < width; i += blockDim.x)
		y[i] += x[i] * scale * weight[i];
}

// gate stores f(gate) × up, where a row of x is the gate's values and then those of up; block y is a row, and blocks
// along x share it unless it is stored as HALVES. f is SiLU, or where gelu is 1, GELU by tanh.
KERNEL void gate(const float *x, int width, int x_stride, int gelu, FORMS_PARAMETERS) {
	x += (int64_t)blockIdx.y * x_stride;
	store_row(FORMS, blockIdx.y, width, [=](int i) {
		float g = x[i], u = x[width + i];
		return (gelu ? 0.5f * g * (1 + tanhf(0.7978845608f * (g + 0.044715f * g * g * g))) : g / (1 + expf(-g))) * u;
	});
}

// capped keeps x below c, gently.
FUNCTION float capped(float x, float c) { return c * tanhf(x / c); }

// cap caps rows of x at c; block y is a row.
KERNEL void cap(float *x, int width, int stride, float c) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < width)
		x[(int64_t)blockIdx.y * stride + i] = capped(x[(int64_t)blockIdx.y * stride + i], c);
}

// gather stores the rows of x that indices name; block y is a row of what is stored.
KERNEL void gather(const float *x, const int *indices, int width, int x_stride, FORMS_PARAMETERS) {
	x += (int64_t)indices[blockIdx.y] * x_stride;
	store_row(FORMS, blockIdx.y, width, [=](int i) { return x[i]; });
}

// Row is what is known of a row of activations: its position in its sequence, and where among the block
// tables the sequence's begins. A position of −1 is that of a row that only fills a step up, and is passed over.
struct Row {
	int position, table;
};

// rotate makes a row's queries and keys ready, queries in place, and writes keys and values to the cache: adds
// the bias, if there is one; norms queries and keys, if there are weights for that; and turns them to the row's
// position. Block x is a row, block y a head: queries', then keys', then values'. Pair i of a head is its
// values 2i and 2i+1, or with halves i and i + pairs, and turns by frequencies[i] radians a position. The launch
// has shared memory for a head.
template <typename V>
FUNCTION void rotate(float *qkv, int stride, const Row *rows, const int *tables, const float *bias, const float *query_norm, const float *key_norm, float eps, const double *frequencies, int pairs, int halves, float magnitude, V *cache, uint16_t *cache_scales, int heads, int kv_heads, int dim, int block_size) {
	__shared__ double place[WARP];
	float *x = (float *)SHARED_BYTES;
	Row row = rows[blockIdx.x];
	if (row.position < 0)
		return;
	int head = blockIdx.y;
	bool value = head >= heads + kv_heads;
	float *v = qkv + (int64_t)blockIdx.x * stride + (int64_t)head * dim;
	double sum = 0;
	for (int i = threadIdx.x; i < dim; i += blockDim.x) {
		x[i] = bias == 0 ? v[i] : v[i] + bias[head * dim + i];
		sum += (double)x[i] * (double)x[i];
	}
	const float *norm = head < heads ? query_norm : key_norm;
	if (norm != 0 && !value) {
		float scale = norm_scale(sum, place, dim, eps);
		for (int i = threadIdx.x; i < dim; i += blockDim.x)
			x[i] *= scale * norm[i];
	}
	__syncthreads();
	for (int i = threadIdx.x; i < pairs && !value; i += blockDim.x) {
		// The angle may be thousands of turns: all but the last are taken off in float64.
		double angle = row.position * frequencies[i];
		angle -= rint(angle * 0.15915494309189535) * 6.283185307179586;
		float s, c;
		sincosf((float)angle, &s, &c);
		s *= magnitude;
		c *= magnitude;
		int first = halves ? i : 2 * i, second = halves ? i + pairs : 2 * i + 1;
		float a = x[first], b = x[second];
		x[first] = a * c - b * s;
		x[second] = a * s + b * c;
	}
	__syncthreads();
	if (head < heads) {
		for (int i = threadIdx.x; i < dim; i += blockDim.x)
			v[i] = x[i];
		return;
	}
	int block = tables[row.table + row.position / block_size];
	int64_t at = cache_at<V>(block, value, head - heads - (value ? kv_heads : 0), kv_heads, row.position % block_size, block_size, dim);
	store(cache, cache_scales, at, x, dim);
}

#define ROTATE_PARAMETERS(V) \
	float *qkv, int stride, const Row *rows, const int *tables, const float *bias, const float *query_norm, const float *key_norm, float eps, const double *frequencies, int pairs, int halves, float magnitude, V *cache, uint16_t *cache_scales, int heads, int kv_heads, int dim, int block_size
#define ROTATE_ARGUMENTS \
	qkv, stride, rows, tables, bias, query_norm, key_norm, eps, frequencies, pairs, halves, magnitude, cache, cache_scales, heads, kv_heads, dim, block_size
KERNEL void rotate_f16(ROTATE_PARAMETERS(uint16_t)) { rotate(ROTATE_ARGUMENTS); }
KERNEL void rotate_f32(ROTATE_PARAMETERS(float)) { rotate(ROTATE_ARGUMENTS); }
KERNEL void rotate_q8_0(ROTATE_PARAMETERS(int8_t)) { rotate(ROTATE_ARGUMENTS); }
