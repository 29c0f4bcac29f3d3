// Activations in the forms that products take them in. Whoever computes a row writes what the next product
// needs.

#pragma once
#include "device.cuh"

// The forms, as bits; linear.go knows them.
//   FLOATS  as they are
//   BYTES   a row, filled up to a multiple of 32 values: integers of 16 bits, first the high bytes of all, then the low
//           ones, signed as well, a value being 256 × high + low; and behind them a float for every 32, which they are
//           multiplied by, so that the largest of 32 is ±32512
//   HALVES  a row, filled up with zeros to a multiple of 128 values, in the order that half_at gives; and for every
//           row a float, which they are multiplied by: a power of two, so that the largest of a row, however large or
//           small, is a half from 2¹⁴ to 2¹⁵
enum Form { FLOATS = 1, BYTES = 2, HALVES = 4 };

// Forms is where to write.
struct Forms {
	int which;
	float *floats;
	int stride;     // of floats
	void *prepared; // bytes or halves
	float *factors; // of halves
};

#define HALVES_STEP 128

// half_at is the place of value i of a row. A lane of a quad, which multiplies by tensor cores, takes 32 successive
// values of 128, 8 at a time: so the first 8 of the four lanes lie together, then their second, and so on.
FUNCTION int half_at(int i) { return (i & ~127) | (i >> 3 & 3) << 5 | (i >> 5 & 3) << 3 | (i & 7); }

// bytes_stride is from one row of BYTES to the next, for rows that are filled up to padded values.
FUNCTION int64_t bytes_stride(int padded) { return whole(2 * padded + 4 * (padded / WARP), 16); }

// half_factor is 2ⁿ so that largest / 2ⁿ is from 2¹⁴ to 2¹⁵. inverse is 2⁻ⁿ.
FUNCTION float half_factor(float largest, float *inverse) {
	int exponent = larger(15, __float_as_int(largest) >> 23 & 255);
	*inverse = __int_as_float((268 - exponent) << 23);
	return __int_as_float((exponent - 14) << 23);
}

// needs_largest says whether the largest value of a row must be known to store it.
FUNCTION bool needs_largest(const Forms &f) { return f.which & HALVES; }

// store_row writes row r, whose values, width of them, the function value gives for their indices, in all forms that are
// asked for; blocks along x share the row. All threads of the block call it. largest is the largest absolute
// value, if it is needed.
template <typename V> FUNCTION void store_row(const Forms &f, int r, int width, float largest, const V &value) {
	float inverse = 0;
	if (f.which & HALVES) {
		float factor = half_factor(largest, &inverse);
		if (threadIdx.x == 0 && blockIdx.x == 0)
			f.factors[r] = factor;
	}
	int padded = whole(width, f.which & HALVES ? HALVES_STEP : WARP);
	float *floats = f.floats + (int64_t)r * f.stride;
	uint16_t *halves = (uint16_t *)f.prepared + (int64_t)r * padded;
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < padded; i += gridDim.x * blockDim.x) {
		float v = i < width ? value(i) : 0;
		if (f.which & FLOATS && i < width)
			floats[i] = v;
		if (f.which & HALVES)
			halves[half_at(i)] = float_to_half(v * inverse);
		if (f.which & BYTES) { // i's warp has 32 successive values
			// A NaN, whose bits are above all magnitudes', makes all 32 one.
			float most = __int_as_float(warp_most(__float_as_int(v) & 0x7fffffff)), up = most > 1e-30f ? 32512 / most : 0;
			int integer = (int)rintf(v * up), high = (integer + 128) >> 8;
			int8_t *row = (int8_t *)f.prepared + r * bytes_stride(padded), *bytes = row + i;
			bytes[0] = (int8_t)high;
			bytes[padded] = (int8_t)(integer - 256 * high);
			if (i % WARP == 0)
				((float *)(row + 2 * padded))[i / WARP] = most / 32512;
		}
	}
}

// A kernel that stores forms has these parameters.
#define FORMS_PARAMETERS int which, float *floats, int stride, void *prepared, float *factors
#define FORMS Forms{which, floats, stride, prepared, factors}

// This store_row finds the largest value itself, if it is needed.
template <typename V> FUNCTION void store_row(const Forms &f, int r, int width, const V &value) {
	__shared__ float place[WARP];
	float largest = 0;
	if (needs_largest(f)) {
		for (int i = threadIdx.x; i < width; i += blockDim.x)
			largest = fmaxf(largest, fabsf(value(i)));
		largest = block_max(largest, place);
	}
	store_row(f, r, width, largest, value);
}

// convert stores rows of x in other forms; block y is a row.
KERNEL void convert(const float *x, int width, int x_stride, FORMS_PARAMETERS) {
	x += (int64_t)blockIdx.y * x_stride;
	store_row(FORMS, blockIdx.y, width, [=](int i) { return x[i]; });
}
