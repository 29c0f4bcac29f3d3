// Products of weight matrices and activations: y[c][r] = Σ_k weights[r][k] · x[c][k], in float32. The matrix may be
// one of several of a shape that lie one behind the other, by columns.

#pragma once
#include "weights.cuh"

// Share is columns that are multiplied by one of several matrices, from first to before end.
struct Share {
	int matrix, first, end;
};

// Part is what a block does of a product: columns from first to before end, by a matrix that begins at a unit.
struct Part {
	int64_t unit;
	int first, end;
};

// part_of is block y's: the N columns from there on of all, or where there are shares, a share, which has N columns
// at most. The block has nothing to do where first is end.
template <int N> FUNCTION Part part_of(const Share *shares, int columns, int64_t units) {
	if (shares == 0)
		return Part{0, (int)blockIdx.y * N, smaller(columns, (int)(blockIdx.y + 1) * N)};
	Share s = shares[blockIdx.y];
	return Part{s.matrix * units, s.first, s.end};
}

// write_product writes a product, or where add is 1, adds it to what is there.
FUNCTION void write_product(float *to, float sum, int add) { *to = add ? *to + sum : sum; }

// A warp of a product with few columns computes VECTOR_ROWS rows × as many columns as the kernel is named
// for; a block has VECTOR_WARPS of them. Both are known to linear.go.
#define VECTOR_ROWS 2
#define VECTOR_WARPS 4

// multiply_few: block x takes the VECTOR_ROWS × VECTOR_WARPS rows from there on, block y the columns of a part of N.
// Where a product is to be added to y, add is 1.
template <int T, int N>
FUNCTION void multiply_few(const Weights &w, const float *RESTRICT x, float *RESTRICT y, int rows, int units, int x_stride, int y_stride, int columns, int add, const Share *shares) {
	Part part = part_of<N>(shares, columns, (int64_t)rows * units);
	int lane = threadIdx.x % WARP;
	int row = (blockIdx.x * VECTOR_WARPS + threadIdx.x / WARP) * VECTOR_ROWS;
	if (row >= rows || part.first == part.end)
		return;
	float sums[VECTOR_ROWS][N];
#pragma unroll
	for (int r = 0; r < VECTOR_ROWS; r++)
#pragma unroll
		for (int c = 0; c < N; c++)
			sums[r][c] = 0;
	for (int k = lane; k < units; k += WARP) {
		float v[N][8];
		float total[N];
#pragma unroll
		for (int c = 0; c < N; c++) { // what is beyond the last is the last again, and not written
			const float4 *p = (const float4 *)(x + (int64_t)smaller(part.first + c, part.end - 1) * x_stride) + 2 * k;
			float4 a = p[0], b = p[1];
			v[c][0] = a.x, v[c][1] = a.y, v[c][2] = a.z, v[c][3] = a.w;
			v[c][4] = b.x, v[c][5] = b.y, v[c][6] = b.z, v[c][7] = b.w;
			total[c] = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
		}
#pragma unroll
		for (int r = 0; r < VECTOR_ROWS; r++) {
			Unit u;
			load<T>(u, w, part.unit + (int64_t)smaller(row + r, rows - 1) * units + k);
#pragma unroll
			for (int c = 0; c < N; c++) {
				float dot = 0;
#pragma unroll
				for (int i = 0; i < 8; i++)
					dot += u.numbers[i] * v[c][i];
				if (Has<T>::scale)
					dot *= u.scale;
				if (Has<T>::minimum)
					dot += u.minimum * total[c];
				sums[r][c] += dot;
			}
		}
	}
#pragma unroll
	for (int r = 0; r < VECTOR_ROWS; r++)
#pragma unroll
		for (int c = 0; c < N; c++) {
			float sum = warp_sum(sums[r][c]);
			if (lane == 0 && row + r < rows && part.first + c < part.end)
				write_product(y + (int64_t)(part.first + c) * y_stride + row + r, sum, add);
		}
}

// A block of a product with many columns has TILE × TILE threads' worth of results: 256 threads, each of
// them 4 rows × 4 columns of TILE rows × TILE columns, over DEPTH weights of a row at a time.
#define TILE 64
#define DEPTH 32
#define TILE_STRIDE (TILE + 4)

template <int T>
FUNCTION void multiply_many(const Weights &w, const float *RESTRICT x, float *RESTRICT y, int rows, int units, int x_stride, int y_stride, int columns, int add, const Share *shares) {
	Part all = part_of<TILE>(shares, columns, (int64_t)rows * units);
	if (all.first == all.end)
		return;
	__shared__ float a[DEPTH][TILE_STRIDE]; // weights, a column for each row of the matrix
	__shared__ float b[DEPTH][TILE_STRIDE]; // activations
	int first_row = blockIdx.x * TILE;
	int from = threadIdx.x / 4, part = threadIdx.x % 4; // this thread loads unit part of row or column from
	int r = threadIdx.x / 16 * 4, c = threadIdx.x % 16 * 4;
	int row = smaller(first_row + from, rows - 1), column = smaller(all.first + from, all.end - 1);
	float sums[4][4];
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			sums[i][j] = 0;
	for (int k = 0; k < units; k += DEPTH / 8) {
		Unit u;
		float v[8];
		load<T>(u, w, all.unit + (int64_t)row * units + k + part);
		values<T>(v, u);
#pragma unroll
		for (int i = 0; i < 8; i++)
			a[part * 8 + i][from] = v[i];
		const float *p = x + (int64_t)column * x_stride + (k + part) * 8;
#pragma unroll
		for (int i = 0; i < 8; i++)
			b[part * 8 + i][from] = p[i];
		__syncthreads();
#pragma unroll 8
		for (int d = 0; d < DEPTH; d++) {
			float4 m = *(const float4 *)&a[d][r], n = *(const float4 *)&b[d][c];
			float left[4] = {m.x, m.y, m.z, m.w}, right[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int j = 0; j < 4; j++)
					sums[i][j] += left[i] * right[j];
		}
		__syncthreads();
	}
#pragma unroll
	for (int j = 0; j < 4; j++) {
		if (all.first + c + j >= all.end)
			break;
		float *to = y + (int64_t)(all.first + c + j) * y_stride + first_row + r;
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (first_row + r + i < rows)
				write_product(to + i, sums[i][j], add);
	}
}

// embed writes the rows of a matrix that tokens name, times factor, to the rows of x; block x is a token.
template <int T> FUNCTION void embed(const Weights &w, const int *RESTRICT tokens, float *RESTRICT x, int units, int x_stride, float factor) {
	for (int k = threadIdx.x; k < units; k += blockDim.x) {
		Unit u;
		float v[8];
		load<T>(u, w, (int64_t)tokens[blockIdx.x] * units + k);
		values<T>(v, u);
		float4 *to = (float4 *)(x + (int64_t)blockIdx.x * x_stride) + 2 * k;
		to[0] = make_float4(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor);
		to[1] = make_float4(v[4] * factor, v[5] * factor, v[6] * factor, v[7] * factor);
	}
}

#define LINEAR_PARAMETERS \
	const void *quants, const void *high, const void *scales, const void *supers, const float *x, float *y, int rows, int units, int x_stride, int y_stride, int columns, int add, const Share *shares
#define LINEAR_KERNELS(T, suffix) \
	KERNEL void multiply_1_##suffix(LINEAR_PARAMETERS) { \
		multiply_few<T, 1>(Weights{quants, high, scales, supers}, x, y, rows, units, x_stride, y_stride, columns, add, shares); \
	} \
	KERNEL void multiply_4_##suffix(LINEAR_PARAMETERS) { \
		multiply_few<T, 4>(Weights{quants, high, scales, supers}, x, y, rows, units, x_stride, y_stride, columns, add, shares); \
	} \
	KERNEL void THREADS(256) multiply_many_##suffix(LINEAR_PARAMETERS) { \
		multiply_many<T>(Weights{quants, high, scales, supers}, x, y, rows, units, x_stride, y_stride, columns, add, shares); \
	} \
	KERNEL void embed_##suffix(const void *quants, const void *high, const void *scales, const void *supers, const int *tokens, float *x, int units, int x_stride, float factor) { \
		embed<T>(Weights{quants, high, scales, supers}, tokens, x, units, x_stride, factor); \
	}
FOR_EACH_TYPE(LINEAR_KERNELS)
