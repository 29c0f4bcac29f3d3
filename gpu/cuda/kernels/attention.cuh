// Attention over a paged KV cache: softmax(scale × q·K)·V, over the positions up to each row's own, by
// online softmax (Milakov and Gimelshein, 2018, arXiv:1805.02867) over tiles of keys, as FlashAttention
// does (Dao et al., 2022, arXiv:2205.14135), and with a sequence's keys split among blocks where there are
// few queries (Flash-Decoding).

#pragma once
#include "layer.cuh"
#include "tensor.cuh"

// KEYS is the keys of a tile: one a lane.
#define KEYS 32

// Group is successive rows of one sequence, which a block attends from, by all the query heads that
// share a KV head. One of no rows is passed over.
struct Group {
	int first, rows; // rows of activations
	int position;    // of the first
	int table;       // where among the tables its sequence's begins
};

// Keys are those that a block takes, from first to before end.
struct Keys {
	int first, end;
};

// keys_of are those of a group: all that one of its rows sees, or what of these is in block z's span.
FUNCTION Keys keys_of(const Group &g, int span, int window) {
	Keys k = {0, g.position + g.rows};
	if (gridDim.z > 1) {
		k.first = blockIdx.z * span;
		k.end = smaller(k.end, k.first + span);
	}
	if (window > 0)
		k.first = larger(k.first, g.position - window + 1);
	return k;
}

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
FUNCTION void attend(const float *qkv, int stride, float *out, int out_stride, float *partial, const Group *groups, const int *tables, const V *cache, const uint16_t *cache_scales, int heads, int kv_heads, int dim, int block_size, int span, float scale, float softcap, int window) {
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
	const int *table = tables + g.table;

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
	Keys all = keys_of(g, span, window);
	for (int first = all.first; first < all.end; first += KEYS) {
		int keys = smaller(KEYS, all.end - first);
		auto fetch = [&](int values) {
			for (int i = threadIdx.x; i < keys * dim; i += blockDim.x) {
				int j = i / dim, d = i % dim, at = first + j;
				tile[j * (dim + 1) + d] = cached(cache, cache_scales, cache_at<V>(table[at / block_size], values, kv_head, kv_heads, at % block_size, block_size, dim) + d);
			}
		};
		fetch(0);
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
		fetch(1);
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
	const float *qkv, int stride, float *out, int out_stride, float *partial, const Group *groups, const int *tables, const V *cache, const uint16_t *cache_scales, int heads, int kv_heads, int dim, int block_size, int span, float scale, float softcap, int window
#define ATTEND_ARGUMENTS \
	qkv, stride, out, out_stride, partial, groups, tables, cache, cache_scales, heads, kv_heads, dim, block_size, span, scale, softcap, window
KERNEL void THREADS(128) attend_f16(ATTEND_PARAMETERS(uint16_t)) { attend(ATTEND_ARGUMENTS); }
KERNEL void THREADS(128) attend_f32(ATTEND_PARAMETERS(float)) { attend(ATTEND_ARGUMENTS); }
KERNEL void THREADS(128) attend_q8_0(ATTEND_PARAMETERS(int8_t)) { attend(ATTEND_ARGUMENTS); }

// Queries of a block of attend_halves: 16 a warp.
#define HALVES_WARPS 4

// attend_halves is attend by tensor cores, for a cache of halves and heads of dim ≤ DIM values, a multiple of 16, and
// groups with at most 16 × HALVES_WARPS queries. A warp multiplies 16 queries by the keys of a tile, and the weights
// that come of it by their values, both as halves; a query's values have a factor, a power of two, as activations have.
// Keys and values lie in shared memory, those of the next tile on their way, [key][DIM + 16], so that lanes find all
// banks. Of 16 values of a head lane t of a quad takes 4t … 4t + 3, of 8 keys t and t + 4. Rows of a group see no
// keys beyond the group's last row, and weigh those of its later rows 0.
template <int DIM>
FUNCTION void attend_halves(const float *qkv, int stride, float *out, int out_stride, float *partial, const Group *groups, const int *tables, const uint16_t *cache, const uint16_t *, int heads, int kv_heads, int dim, int block_size, int span, float scale, float softcap, int window) {
	alignas(16) __shared__ uint16_t tiles[2][2][KEYS][DIM + 16]; // of keys and of values
	Group group = groups[blockIdx.x];
	int kv_head = blockIdx.y, shared = heads / kv_heads, n = group.rows * shared;
	int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
	const int *table = tables + group.table;
	Keys all = keys_of(group, span, window);
	auto fetch = [&](int first, int stage) {
		int chunks = dim / 8;
		for (int i = threadIdx.x; i < 2 * KEYS * chunks; i += HALVES_WARPS * WARP) {
			int values = i / (KEYS * chunks), j = i / chunks % KEYS, c = i % chunks, at = first + j;
			uint16_t *to = &tiles[stage][values][j][8 * c];
			if (at < all.end)
				copy_16(to, cache + cache_at<uint16_t>(table[at / block_size], values, kv_head, kv_heads, at % block_size, block_size, dim) + 8 * c);
			else
				*(uint4 *)to = uint4{0, 0, 0, 0};
		}
		commit_copies();
	};
	if (all.first < all.end)
		fetch(all.first, 0);

	// Queries g and g + 8 of the warp.
	bool busy = warp * 16 < n;
	int64_t at[2];
	int position[2], head[2];
	float factors[2];
	uint32_t queries[DIM / 16][4];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int q = smaller(warp * 16 + g + 8 * i, n - 1);
		at[i] = group.first + q / shared;
		position[i] = group.position + q / shared;
		head[i] = kv_head * shared + q % shared;
		const float *from_query = qkv + at[i] * stride + head[i] * dim;
		float largest = 0, inverse;
		for (int d = 4 * t; busy && d < dim; d += 16)
#pragma unroll
			for (int k = 0; k < 4; k++)
				largest = fmaxf(largest, fabsf(from_query[d + k] * scale));
		factors[i] = half_factor(quad_max(largest), &inverse);
#pragma unroll
		for (int k = 0; k < DIM / 16; k++) {
			float v[4] = {0, 0, 0, 0};
			if (busy && 16 * k < dim)
#pragma unroll
				for (int m = 0; m < 4; m++)
					v[m] = from_query[16 * k + 4 * t + m] * scale * inverse;
			queries[k][i] = halves_of(v[0], v[1]);
			queries[k][i + 2] = halves_of(v[2], v[3]);
		}
	}
	float results[DIM / 16][2][4] = {}; // of 16 values the even ones, and the odd ones
	float highest[2] = {-infinity(), -infinity()}, sums[2] = {0, 0};
	int stage = 0;
	for (int first = all.first; first < all.end; first += KEYS) {
		if (first + KEYS < all.end)
			fetch(first + KEYS, 1 - stage);
		else
			commit_copies(); // so that all but the latest group are this tile's
		wait_for_copies<1>();
		__syncthreads();
		if (busy) {
			float scores[KEYS / 8][4] = {};
#pragma unroll
			for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
				for (int k = 0; k < DIM / 16; k++)
					if (16 * k < dim) {
						uint2 v = *(const uint2 *)&tiles[stage][0][8 * j + g / 2 + g % 2 * 4][16 * k + 4 * t];
						uint32_t keys[2] = {v.x, v.y};
						multiply_add(scores[j], queries[k], keys);
					}
			float tops[2] = {highest[0], highest[1]};
#pragma unroll
			for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
				for (int m = 0; m < 4; m++) {
					int i = m / 2, key = first + 8 * j + t + m % 2 * 4, behind = position[i] - key;
					float s = scores[j][m] * factors[i];
					if (softcap != 0)
						s = capped(s, softcap);
					if (key >= all.end || behind < 0 || (window != 0 && behind >= window))
						s = -infinity();
					scores[j][m] = s;
					tops[i] = fmaxf(tops[i], s);
				}
#pragma unroll
			for (int i = 0; i < 2; i++) {
				tops[i] = quad_max(tops[i]);
				// A row that sees none of these keys, nor any before, has no highest score yet.
				float f = tops[i] > -infinity() ? expf(highest[i] - tops[i]) : 1;
				highest[i] = tops[i];
				sums[i] *= f;
#pragma unroll
				for (int k = 0; k < DIM / 16; k++)
#pragma unroll
					for (int m = 0; m < 2; m++)
						results[k][m][2 * i] *= f, results[k][m][2 * i + 1] *= f;
			}
#pragma unroll
			for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
				for (int m = 0; m < 4; m++) {
					float p = highest[m / 2] > -infinity() ? expf(scores[j][m] - highest[m / 2]) : 0;
					scores[j][m] = p;
					sums[m / 2] += p;
				}
#pragma unroll
			for (int j = 0; j < KEYS / 8; j += 2) {
				uint32_t weights[4] = {halves_of(scores[j][0], scores[j][1]), halves_of(scores[j][2], scores[j][3]),
				                       halves_of(scores[j + 1][0], scores[j + 1][1]), halves_of(scores[j + 1][2], scores[j + 1][3])};
#pragma unroll
				for (int k = 0; k < DIM / 16; k++)
					if (16 * k < dim) {
						uint32_t even[2], odd[2];
#pragma unroll
						for (int m = 0; m < 2; m++) {
							uint32_t one = *(const uint32_t *)&tiles[stage][1][8 * (j + m) + t][16 * k + 2 * g];
							uint32_t other = *(const uint32_t *)&tiles[stage][1][8 * (j + m) + t + 4][16 * k + 2 * g];
							even[m] = __byte_perm(one, other, 0x5410);
							odd[m] = __byte_perm(one, other, 0x7632);
						}
						multiply_add(results[k][0], weights, even);
						multiply_add(results[k][1], weights, odd);
					}
			}
		}
		__syncthreads();
		stage = 1 - stage;
	}
	if (!busy)
		return;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], 1);
		sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], 2);
		if (warp * 16 + g + 8 * i >= n)
			continue;
		float *to = gridDim.z == 1 ? out + at[i] * out_stride + head[i] * dim : partial + ((at[i] * heads + head[i]) * gridDim.z + blockIdx.z) * (dim + 2) + 2;
		float over = gridDim.z == 1 ? 1 / sums[i] : 1;
		if (gridDim.z > 1 && t == 0) {
			to[-2] = highest[i];
			to[-1] = sums[i];
		}
#pragma unroll
		for (int k = 0; k < DIM / 16; k++)
			if (16 * k < dim)
#pragma unroll
				for (int m = 0; m < 4; m++) // columns 2t and 2t + 1 of the even ones, then of the odd
					to[16 * k + 4 * t + 2 * (m % 2) + m / 2] = results[k][m / 2][2 * i + m % 2] * over;
	}
}

KERNEL void THREADS(32 * HALVES_WARPS) attend_64(ATTEND_PARAMETERS(uint16_t)) { attend_halves<64>(ATTEND_ARGUMENTS); }
KERNEL void THREADS(32 * HALVES_WARPS) attend_128(ATTEND_PARAMETERS(uint16_t)) { attend_halves<128>(ATTEND_ARGUMENTS); }

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
