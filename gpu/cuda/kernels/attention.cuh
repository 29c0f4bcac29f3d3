// Attention over a paged KV cache: softmax(scale × q·K)·V, over the positions up to each row's own, by
// online softmax (Milakov and Gimelshein, 2018, arXiv:1805.02867) over tiles of keys, as FlashAttention
// does (Dao et al., 2022, arXiv:2205.14135), and with a sequence's keys split among blocks where there are
// few queries (Flash-Decoding).

#pragma once
#include "layer.cuh"

// KEYS is the keys of a tile: one a lane.
#define KEYS 32

// Group is successive rows of one sequence, which a block attends from, by all the query heads that
// share a KV head. One of no rows is passed over.
struct Group {
	int first, rows; // rows of activations
	int position;    // of the first
	int table;
};

// Shared memory, in floats, for n queries: queries and results [n][dim], a tile of keys or values
// [KEYS][dim + 1], scores [n][KEYS], and of each query the highest score, the sum, and a factor.
// attention.go computes its size.

// Scores are capped at softcap, if it isn't 0, and a row sees window positions, its own the last, or all where
// that is 0.
//
// attend: block x is a group, block y a KV head, and block z the span × z … span × (z + 1) of the keys. With
// one block z, which takes all keys, results go to out; else partial gets them, as [row][head][z][dim + 2]: the
// highest score, the sum of exp(score − highest), and that of exp(score − highest) × value.
template <typename V>
FUNCTION void attend(const float *qkv, int stride, float *out, int out_stride, float *partial, const Group *groups, const int *tables, int table_stride, const V *cache, const uint16_t *cache_scales, int heads, int kv_heads, int dim, int block_size, int span, float scale, float softcap, int window) {
	Group g = groups[blockIdx.x];
	if (g.rows == 0)
		return;
	int kv_head = blockIdx.y, shared = heads / kv_heads, n = g.rows * shared;
	int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	float *queries = (float *)SHARED_BYTES;
	float *results = queries + n * dim;
	float *tile = results + n * dim;
	float *scores = tile + KEYS * (dim + 1);
	float *highest = scores + n * KEYS;
	float *sums = highest + n;
	float *factors = sums + n;
	const int *table = tables + (int64_t)g.table * table_stride;

	for (int i = threadIdx.x; i < n * dim; i += blockDim.x) {
		int q = i / dim, d = i % dim;
		int64_t row = g.first + q / shared;
		queries[i] = qkv[row * stride + (kv_head * shared + q % shared) * dim + d] * scale;
		results[i] = 0;
	}
	for (int q = threadIdx.x; q < n; q += blockDim.x) {
		highest[q] = -infinity();
		sums[q] = 0;
	}
	__syncthreads();
	int from = 0, end = g.position + g.rows;
	if (gridDim.z > 1) {
		from = blockIdx.z * span;
		end = smaller(end, from + span);
	}
	if (window > 0)
		from = larger(from, g.position - window + 1);
	for (int first = from; first < end; first += KEYS) {
		int keys = smaller(KEYS, end - first);
		for (int i = threadIdx.x; i < keys * dim; i += blockDim.x) {
			int j = i / dim, d = i % dim, at = first + j;
			tile[j * (dim + 1) + d] = cached(cache, cache_scales, cache_at<V>(table[at / block_size], 0, kv_head, kv_heads, at % block_size, block_size, dim) + d);
		}
		__syncthreads();
		for (int q = warp; q < n; q += blockDim.x / WARP) {
			float s = -infinity();
			int position = g.position + q / shared, behind = position - first - lane;
			if (lane < keys && behind >= 0 && (window == 0 || behind < window)) {
				s = 0;
				for (int d = 0; d < dim; d++)
					s += queries[q * dim + d] * tile[lane * (dim + 1) + d];
				if (softcap != 0)
					s = capped(s, softcap);
			}
			float before = highest[q], top = fmaxf(before, warp_max(s));
			// A row that sees none of these keys, nor any before, has no highest score yet.
			float p = top > -infinity() ? expf(s - top) : 0;
			float sum = warp_sum(p);
			scores[q * KEYS + lane] = p;
			if (lane == 0) {
				float f = top > -infinity() ? expf(before - top) : 1;
				factors[q] = f;
				sums[q] = sums[q] * f + sum;
				highest[q] = top;
			}
		}
		__syncthreads();
		for (int i = threadIdx.x; i < keys * dim; i += blockDim.x) {
			int j = i / dim, d = i % dim, at = first + j;
			tile[j * (dim + 1) + d] = cached(cache, cache_scales, cache_at<V>(table[at / block_size], 1, kv_head, kv_heads, at % block_size, block_size, dim) + d);
		}
		__syncthreads();
		for (int i = threadIdx.x; i < n * dim; i += blockDim.x) {
			int q = i / dim, d = i % dim;
			float sum = results[i] * factors[q];
			// No row's result depends on keys that it does not see, be they NaN.
			int position = g.position + q / shared;
			int unseen = window == 0 ? 0 : larger(0, position - window + 1 - first), seen = smaller(keys, position + 1 - first);
			for (int j = unseen; j < seen; j++)
				sum += scores[q * KEYS + j] * tile[j * (dim + 1) + d];
			results[i] = sum;
		}
		__syncthreads();
	}
	for (int i = threadIdx.x; i < n * dim; i += blockDim.x) {
		int q = i / dim, d = i % dim, head = kv_head * shared + q % shared;
		int64_t row = g.first + q / shared;
		if (gridDim.z == 1) {
			out[row * out_stride + head * dim + d] = results[i] / sums[q];
			continue;
		}
		float *to = partial + ((row * heads + head) * gridDim.z + blockIdx.z) * (dim + 2);
		to[2 + d] = results[i];
		if (d == 0) {
			to[0] = highest[q];
			to[1] = sums[q];
		}
	}
}

#define ATTEND_PARAMETERS(V) \
	const float *qkv, int stride, float *out, int out_stride, float *partial, const Group *groups, const int *tables, int table_stride, const V *cache, const uint16_t *cache_scales, int heads, int kv_heads, int dim, int block_size, int span, float scale, float softcap, int window
#define ATTEND_ARGUMENTS \
	qkv, stride, out, out_stride, partial, groups, tables, table_stride, cache, cache_scales, heads, kv_heads, dim, block_size, span, scale, softcap, window
KERNEL void THREADS(128) attend_f16(ATTEND_PARAMETERS(uint16_t)) { attend(ATTEND_ARGUMENTS); }
KERNEL void THREADS(128) attend_f32(ATTEND_PARAMETERS(float)) { attend(ATTEND_ARGUMENTS); }
KERNEL void THREADS(128) attend_q8_0(ATTEND_PARAMETERS(int8_t)) { attend(ATTEND_ARGUMENTS); }

// merge puts the parts of attention together that attend left; block x is a row, block y a head.
KERNEL void merge(const float *partial, float *out, int out_stride, int heads, int dim, int parts) {
	const float *from = partial + ((int64_t)blockIdx.x * heads + blockIdx.y) * parts * (dim + 2);
	float top = -infinity();
	for (int z = 0; z < parts; z++)
		top = fmaxf(top, from[z * (dim + 2)]);
	for (int d = threadIdx.x; d < dim; d += blockDim.x) {
		float sum = 0, total = 0;
		for (int z = 0; z < parts; z++) {
			const float *p = from + z * (dim + 2);
			float f = expf(p[0] - top); // 0 where the row sees nothing
			total += p[1] * f;
			sum += p[2 + d] * f;
		}
		out[(int64_t)blockIdx.x * out_stride + blockIdx.y * dim + d] = sum / total;
	}
}
