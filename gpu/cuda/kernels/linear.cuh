// Products of weight matrices and activations: y[c][r] = Σ_k weights[r][k] · x[c][k]. The matrix may be one of several
// of a shape that lie one behind the other, by columns. Where a block takes one column, weights with scales are
// multiplied as bytes, by activations of 16 bits; where it takes several, all but F32 by tensor cores, as halves; sums
// are float32.

#pragma once
#include "activations.cuh"
#include "tensor.cuh"
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

// A warp of a product of floats with few columns, N, computes R rows of them; a block has VECTOR_WARPS. Both are known
// to linear.go.
#define VECTOR_WARPS 4

// multiply_few: of weights without scales; block x takes the R × VECTOR_WARPS rows from there on, block y the columns of a part of N.
// Where a product is to be added to y, add is 1.
template <int T, int N, int R>
FUNCTION void multiply_few(const Weights &w, const float *RESTRICT x, float *RESTRICT y, int rows, int units, int x_stride, int y_stride, int columns, int add, const Share *shares) {
	Part part = part_of<N>(shares, columns, (int64_t)rows * units);
	int lane = threadIdx.x % WARP;
	int row = (blockIdx.x * VECTOR_WARPS + threadIdx.x / WARP) * R;
	if (row >= rows || part.first == part.end)
		return;
	float sums[R][N];
#pragma unroll
	for (int r = 0; r < R; r++)
#pragma unroll
		for (int c = 0; c < N; c++)
			sums[r][c] = 0;
	for (int k = lane; k < units; k += WARP) {
		float v[N][8];
#pragma unroll
		for (int c = 0; c < N; c++) // what is beyond the last is the last again, and not written
			read_8(v[c], (const float4 *)(x + (int64_t)smaller(part.first + c, part.end - 1) * x_stride) + 2 * k);
#pragma unroll
		for (int r = 0; r < R; r++) {
			Unit u;
			load<T>(u, w, part.unit + (int64_t)smaller(row + r, rows - 1) * units + k);
#pragma unroll
			for (int c = 0; c < N; c++) {
				float dot = 0;
#pragma unroll
				for (int i = 0; i < 8; i++)
					dot += u.numbers[i] * v[c][i];
				sums[r][c] += dot;
			}
		}
	}
#pragma unroll
	for (int r = 0; r < R; r++)
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

// multiply_many: of F32.
FUNCTION void multiply_many(const Weights &w, const float *RESTRICT x, float *RESTRICT y, int rows, int units, int x_stride, int y_stride, int columns, int add, const Share *shares) {
	Part all = part_of<TILE>(shares, columns, (int64_t)rows * units);
	if (all.first == all.end)
		return;
	alignas(16) __shared__ float a[DEPTH][TILE_STRIDE]; // weights, a column for each row of the matrix
	alignas(16) __shared__ float b[DEPTH][TILE_STRIDE]; // activations
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
		load<F32>(u, w, all.unit + (int64_t)row * units + k + part);
#pragma unroll
		for (int i = 0; i < 8; i++)
			a[part * 8 + i][from] = u.numbers[i];
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

#define BYTES_ROWS 2

// dots_of_bytes multiplies 32 signed bytes of weights by as many activations, of which h are the high and l the low
// bytes, and sums each 16: two products of bytes are one of 16 bits, exactly.
FUNCTION void dots_of_bytes(int dots[2], const uint32_t words[8], const uint32_t h[8], const uint32_t l[8]) {
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int high = 0, low = 0;
#pragma unroll
		for (int j = 4 * i; j < 4 * i + 4; j++) {
			high = dot_of_bytes((int)words[j], (int)h[j], high);
			low = dot_of_bytes((int)words[j], (int)l[j], low);
		}
		dots[i] = 256 * high + low;
	}
}

// multiply_bytes: of columns that are stored as BYTES; block y is one. A warp takes BYTES_ROWS × (32 / lanes) rows, each by as many
// lanes as the launch says, a power of two, so that short rows keep all lanes busy. A block has any number of
// warps. units is of a row, as in all products.
template <int T> FUNCTION void multiply_bytes(const Weights &w, const int8_t *RESTRICT x, float *RESTRICT y, int rows, int units, int y_stride, int columns, int lanes, int add, const Share *shares) {
	Part all = part_of<1>(shares, columns, (int64_t)rows * units);
	if (all.first == all.end)
		return;
	x += (int64_t)all.first * bytes_stride(units * 8);
	y += (int64_t)all.first * y_stride;
	int lane = threadIdx.x % WARP, part = lane & (lanes - 1), blocks = units / 4, at_once = WARP / lanes;
	int first = (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) * BYTES_ROWS * at_once + lane / lanes;
	const uint4 *low = (const uint4 *)(x + blocks * 32);
	const float *factors = (const float *)(low + blocks * 2);
	float sums[BYTES_ROWS] = {};
	for (int k = part; k < blocks; k += lanes) {
		Block b[BYTES_ROWS];
#pragma unroll
		for (int r = 0; r < BYTES_ROWS; r++) // what is beyond the last is the last again, and not written
			load<T>(b[r], w, all.unit / 4 + (int64_t)smaller(first + r * at_once, rows - 1) * blocks + k);
		uint32_t h[8], l[8];
		read_8(h, (const uint4 *)x + 2 * k);
		read_8(l, low + 2 * k);
		float factor = factors[k];
		int totals[2] = {0, 0};
		if (Has<T>::minimum) {
			const uint32_t ones[8] = {0x01010101, 0x01010101, 0x01010101, 0x01010101, 0x01010101, 0x01010101, 0x01010101, 0x01010101};
			dots_of_bytes(totals, ones, h, l);
		}
#pragma unroll
		for (int r = 0; r < BYTES_ROWS; r++) {
			int dots[2] = {0, 0};
			dots_of_bytes(dots, b[r].words, h, l);
			float sum = Has<T>::scales == 1 ? b[r].scale[0] * (float)(dots[0] + dots[1]) : b[r].scale[0] * (float)dots[0] + b[r].scale[1] * (float)dots[1];
			if (Has<T>::minimum && Has<T>::scales == 1)
				sum += b[r].minimum[0] * (float)(totals[0] + totals[1]);
			if (Has<T>::minimum && Has<T>::scales == 2)
				sum += b[r].minimum[0] * (float)totals[0] + b[r].minimum[1] * (float)totals[1];
			sums[r] += factor * sum;
		}
	}
#pragma unroll
	for (int r = 0; r < BYTES_ROWS; r++) {
		for (int distance = lanes / 2; distance > 0; distance /= 2)
			sums[r] += __shfl_xor_sync(ALL_LANES, sums[r], distance);
		if (part == 0 && first + r * at_once < rows)
			write_product(y + first + r * at_once, sums[r], add);
	}
}

// Raw is a block of 32 weights as it is loaded, of which quad makes halves, 8 at a time, as two registers of two
// halves for each of two multiply_adds. Weights with scales, and BF16, are 2ⁿ times as large as halves, so that the small
// ones among them lose nothing: those below 2⁻²⁰ are rounded to multiples of 2⁻³⁰. Weights must be below 1023 then,
// and those of F16 are as they are.
#define UP 64.0f
template <int T> struct Raw {
	Block block;
	FUNCTION_OF_STRUCT void fetch(const Weights &w, int64_t at) { load<T>(block, w, at); }
	FUNCTION_OF_STRUCT void quad(uint32_t to[4], int i) const {
		uint32_t scale = halves_of(block.scale[i / 2] * UP, block.scale[i / 2] * UP);
		halves_of_bytes(to, block.words[2 * i]);
		halves_of_bytes(to + 2, block.words[2 * i + 1]);
		uint32_t minimum = Has<T>::minimum ? halves_of(block.minimum[i / 2] * UP, block.minimum[i / 2] * UP) : 0;
#pragma unroll
		for (int j = 0; j < 4; j++)
			to[j] = Has<T>::minimum ? halves_times_plus(to[j], scale, minimum) : halves_times(to[j], scale);
	}
};

struct RawHalves {
	uint4 units[4];
	FUNCTION_OF_STRUCT void fetch(const Weights &w, int64_t at) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			units[i] = ((const uint4 *)w.quants)[4 * at + i];
	}
};

template <> struct Raw<F16> : RawHalves {
	FUNCTION_OF_STRUCT void quad(uint32_t to[4], int i) const { to[0] = units[i].x, to[1] = units[i].y, to[2] = units[i].z, to[3] = units[i].w; }
};

template <> struct Raw<BF16> : RawHalves {
	FUNCTION_OF_STRUCT void quad(uint32_t to[4], int i) const {
		uint32_t pairs[4] = {units[i].x, units[i].y, units[i].z, units[i].w};
#pragma unroll
		for (int j = 0; j < 4; j++)
			to[j] = halves_of(__int_as_float((int)(pairs[j] << 16)) * UP, __int_as_float((int)(pairs[j] & 0xffff0000u)) * UP);
	}
};

template <int T> FUNCTION float down() { return T == F16 ? 1 : 1 / UP; }

// A block of multiply_halves has BAND_WARPS warps, which take bands of 16 rows × COLUMNS columns, a multiple of 8.
#define BAND_WARPS 8

// multiply_halves: of columns that are stored as HALVES. split warps of a block, a divisor of BAND_WARPS, share a
// band: each takes every split-th step of 128 weights of its rows. Weights go from memory to the lanes that multiply
// them; the order of values within a step is that of HALVES. Block y is COLUMNS columns.
template <int T, int COLUMNS>
FUNCTION void multiply_halves(const Weights &w, const uint16_t *RESTRICT x, const float *RESTRICT factors, float *RESTRICT y, int rows, int units, int y_stride, int columns, int split, int add, const Share *shares) {
	__shared__ float parts[BAND_WARPS][COLUMNS][16];
	Part all = part_of<COLUMNS>(shares, columns, (int64_t)rows * units);
	if (all.first == all.end)
		return;
	int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
	int blocks = units / 4, steps = (blocks + 3) / 4, bands = BAND_WARPS / split;
	int first_row = (blockIdx.x * bands + warp / split) * 16;
	// Rows and columns beyond the last are the last again, and so are blocks of weights, whose activations are 0.
	int64_t upper = all.unit / 4 + (int64_t)smaller(first_row + g, rows - 1) * blocks;
	int64_t lower = all.unit / 4 + (int64_t)smaller(first_row + g + 8, rows - 1) * blocks;
	int from[COLUMNS / 8]; // in 16 bytes
#pragma unroll
	for (int n = 0; n < COLUMNS / 8; n++)
		from[n] = smaller(all.first + n * 8 + g, all.end - 1) * steps * 16 + t;
	float sums[COLUMNS / 8][4] = {};
	int step = warp % split;
	// The next weights are on their way while these are multiplied, unless they take too many registers.
	const bool ahead = Has<T>::scale;
	Raw<T> a, b, next_a, next_b;
	if (ahead) {
		next_a.fetch(w, upper + smaller(step * 4 + t, blocks - 1));
		next_b.fetch(w, lower + smaller(step * 4 + t, blocks - 1));
	}
	for (; step < steps; step += split) {
		if (ahead) {
			a = next_a;
			b = next_b;
		}
		int fetched = ahead ? step + split : step;
		next_a.fetch(w, upper + smaller(fetched * 4 + t, blocks - 1));
		next_b.fetch(w, lower + smaller(fetched * 4 + t, blocks - 1));
		if (!ahead) {
			a = next_a;
			b = next_b;
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t above[4], below[4];
			a.quad(above, i);
			b.quad(below, i);
			uint32_t first[4] = {above[0], below[0], above[1], below[1]}, second[4] = {above[2], below[2], above[3], below[3]};
#pragma unroll
			for (int n = 0; n < COLUMNS / 8; n++) {
				uint4 v = ((const uint4 *)x)[from[n] + step * 16 + i * 4];
				uint32_t v_first[2] = {v.x, v.y}, v_second[2] = {v.z, v.w};
				multiply_add(sums[n], first, v_first);
				multiply_add(sums[n], second, v_second);
			}
			if (COLUMNS > 8 && i == 1)
				__syncwarp(); // so that not all activations are loaded at once: registers would not suffice
		}
	}
#pragma unroll
	for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			parts[warp][n * 8 + 2 * t + i % 2][g + i / 2 * 8] = sums[n][i];
	__syncthreads();
	for (int i = threadIdx.x; i < bands * COLUMNS * 16; i += blockDim.x) {
		int r = i % 16, c = i / 16 % COLUMNS, band = i / 16 / COLUMNS;
		int row = (blockIdx.x * bands + band) * 16 + r, column = all.first + c;
		if (row >= rows || column >= all.end)
			continue;
		float sum = 0;
		for (int s = 0; s < split; s++)
			sum += parts[band * split + s][c][r];
		write_product(y + (int64_t)column * y_stride + row, sum * factors[column] * down<T>(), add);
	}
}

// A block of multiply_tile has TILE_WARPS warps of 32 rows × TILE_COLUMNS columns, whose activations lie in shared
// memory, 128 of each at a time, while the next are on their way. They lie COLUMN_CHUNKS × 16 bytes apart,
// so that the lanes of a warp, which read 16 bytes at a time, find all banks.
#define TILE_WARPS 4
#define TILE_COLUMNS 64
#define COLUMN_CHUNKS 20

template <int T>
FUNCTION void multiply_tile(const Weights &w, const uint16_t *RESTRICT x, const float *RESTRICT factors, float *RESTRICT y, int rows, int units, int y_stride, int columns, int add, const Share *shares) {
	__shared__ uint4 tiles[2][TILE_COLUMNS][COLUMN_CHUNKS];
	Part all = part_of<TILE_COLUMNS>(shares, columns, (int64_t)rows * units);
	if (all.first == all.end)
		return;
	int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
	int blocks = units / 4, steps = (blocks + 3) / 4;
	int first_row = (blockIdx.x * TILE_WARPS + warp) * 32;
	int64_t row[4];
#pragma unroll
	for (int m = 0; m < 4; m++)
		row[m] = all.unit / 4 + (int64_t)smaller(first_row + m * 8 + g, rows - 1) * blocks;
	auto fetch = [&](int step) {
#pragma unroll
		for (int i = 0; i < TILE_COLUMNS * 16 / (TILE_WARPS * WARP); i++) {
			int chunk = i * TILE_WARPS * WARP + threadIdx.x, c = chunk / 16, at = chunk % 16;
			copy_16(&tiles[step % 2][c][at], (const uint4 *)x + ((int64_t)smaller(all.first + c, all.end - 1) * steps + step) * 16 + at);
		}
		commit_copies();
	};
	float sums[2][TILE_COLUMNS / 8][4] = {};
	fetch(0);
	for (int step = 0; step < steps; step++) {
		Raw<T> a[4];
#pragma unroll
		for (int m = 0; m < 4; m++)
			a[m].fetch(w, row[m] + smaller(step * 4 + t, blocks - 1));
		if (step + 1 < steps)
			fetch(step + 1);
		else
			commit_copies(); // so that all but the latest group are this step's
		wait_for_copies<1>();
		__syncthreads();
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t first[2][4], second[2][4];
#pragma unroll
			for (int m = 0; m < 2; m++) {
				uint32_t above[4], below[4];
				a[2 * m].quad(above, i);
				a[2 * m + 1].quad(below, i);
#pragma unroll
				for (int j = 0; j < 2; j++) {
					first[m][2 * j] = above[j], first[m][2 * j + 1] = below[j];
					second[m][2 * j] = above[2 + j], second[m][2 * j + 1] = below[2 + j];
				}
			}
#pragma unroll
			for (int n = 0; n < TILE_COLUMNS / 8; n++) {
				uint4 v = tiles[step % 2][n * 8 + g][i * 4 + t];
				uint32_t v_first[2] = {v.x, v.y}, v_second[2] = {v.z, v.w};
#pragma unroll
				for (int m = 0; m < 2; m++) {
					multiply_add(sums[m][n], first[m], v_first);
					multiply_add(sums[m][n], second[m], v_second);
				}
			}
		}
		__syncthreads();
	}
#pragma unroll
	for (int n = 0; n < TILE_COLUMNS / 8; n++)
#pragma unroll
		for (int j = 0; j < 2; j++) {
			int column = all.first + n * 8 + 2 * t + j;
			if (column >= all.end)
				continue;
			float factor = factors[column] * down<T>();
#pragma unroll
			for (int m = 0; m < 2; m++)
#pragma unroll
				for (int i = 0; i < 2; i++) {
					int r = first_row + m * 16 + i * 8 + g;
					if (r < rows)
						write_product(y + (int64_t)column * y_stride + r, sums[m][n][2 * i + j] * factor, add);
				}
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

// Block y is as many columns as the kernel is named for, or where there are shares, a share of no more. Where products
// are to be added to y, add is 1.
#define WEIGHTS_PARAMETERS const void *quants, const void *high, const void *scales, const void *supers
#define WEIGHTS Weights{quants, high, scales, supers}
#define FLOATS_PARAMETERS WEIGHTS_PARAMETERS, const float *x, float *y, int rows, int units, int x_stride, int y_stride, int columns, int add, const Share *shares
#define FLOATS_ARGUMENTS WEIGHTS, x, y, rows, units, x_stride, y_stride, columns, add, shares
#define HALVES_PARAMETERS WEIGHTS_PARAMETERS, const uint16_t *x, const float *factors, float *y, int rows, int units, int y_stride, int columns, int split, int add, const Share *shares
#define HALVES_ARGUMENTS WEIGHTS, x, factors, y, rows, units, y_stride, columns, split, add, shares

#define EMBED_KERNEL(T, suffix) \
	KERNEL void embed_##suffix(WEIGHTS_PARAMETERS, const int *tokens, float *x, int units, int x_stride, float factor) { embed<T>(WEIGHTS, tokens, x, units, x_stride, factor); }
FOR_EACH_TYPE(EMBED_KERNEL)

KERNEL void THREADS(128) multiply_1_f32(FLOATS_PARAMETERS) { multiply_few<F32, 1, 4>(FLOATS_ARGUMENTS); }
KERNEL void THREADS(128) multiply_8_f32(FLOATS_PARAMETERS) { multiply_few<F32, 8, 2>(FLOATS_ARGUMENTS); }
KERNEL void THREADS(256) multiply_64_f32(FLOATS_PARAMETERS) { multiply_many(FLOATS_ARGUMENTS); }
KERNEL void THREADS(128) multiply_1_f16(FLOATS_PARAMETERS) { multiply_few<F16, 1, 4>(FLOATS_ARGUMENTS); }
KERNEL void THREADS(128) multiply_1_bf16(FLOATS_PARAMETERS) { multiply_few<BF16, 1, 4>(FLOATS_ARGUMENTS); }

#define BYTES_KERNEL(T, suffix) \
	KERNEL void THREADS(64) multiply_1_##suffix(WEIGHTS_PARAMETERS, const int8_t *x, float *y, int rows, int units, int y_stride, int columns, int lanes, int add, const Share *shares) { \
		multiply_bytes<T>(WEIGHTS, x, y, rows, units, y_stride, columns, lanes, add, shares); \
	}
FOR_EACH_QUANTISED_TYPE(BYTES_KERNEL)

#define HALVES_KERNELS(T, suffix) \
	KERNEL void THREADS_OF(32 * BAND_WARPS, 2) multiply_8_##suffix(HALVES_PARAMETERS) { multiply_halves<T, 8>(HALVES_ARGUMENTS); } \
	KERNEL void THREADS_OF(32 * BAND_WARPS, 2) multiply_32_##suffix(HALVES_PARAMETERS) { multiply_halves<T, 32>(HALVES_ARGUMENTS); } \
	KERNEL void THREADS(32 * TILE_WARPS) multiply_64_##suffix(HALVES_PARAMETERS) { multiply_tile<T>(WEIGHTS, x, factors, y, rows, units, y_stride, columns, add, shares); }
FOR_EACH_TYPE_OF_HALVES(HALVES_KERNELS)
