// Weight matrices as they lie in the GPU's memory. A matrix of rows × columns is cut into units of 8
// successive weights of a row; a row is filled up with zeros to a whole number of 32 weights. What belongs
// to a unit lies in up to four planes, each an array over all units, so that neighbouring threads, which
// take neighbouring units, read neighbouring and aligned bytes. pack.go makes planes of a GGUF file's
// blocks; no number changes on the way.
//
//   type         quants, bytes a unit   high, a unit   scales                        supers, per 256 weights
//   F32          32: the weights
//   F16, BF16    16: the weights
//   Q8_0          8: signed bytes                      half d a 32
//   Q4_0          4: nibbles                           half d a 32
//   Q4_1          4: nibbles                           halves d, m a 32
//   Q5_0          4: nibbles             1: bit 4      half d a 32
//   Q5_1          4: nibbles             1: bit 4      halves d, m a 32
//   Q4_K          4: nibbles                           bytes scale, minimum a 32     halves d, dmin
//   Q5_K          4: nibbles             1: bit 4      bytes scale, minimum a 32     halves d, dmin
//   Q6_K          4: nibbles             2: bits 4, 5  signed byte a 16              half d
//   Q2_K          2: pairs of bits                     byte a 16: scale, minimum     halves d, dmin
//   Q3_K          2: pairs of bits       1: bit 2      signed byte a 16              half d
//   IQ4_NL        4: nibbles                           half d a 32
//   IQ4_XS        4: nibbles                           signed byte a 32              half d
//   MXFP4         4: nibbles                           byte, an exponent, a 32
//
// Weight i of a unit is nibble i, or pair of bits i, from the lowest bits on. A weight is scale × number +
// minimum; what the numbers mean is defined by ggml-common.h in ggml-org/llama.cpp, as for the host device.
// The last three types' nibbles say which of 16 numbers a weight is.

#pragma once
#include "device.cuh"

// The types' numbers are GGUF's.
enum Type { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39 };

struct Weights {
	const void *quants, *high, *scales, *supers;
};

// Unit is 8 weights: weight i is scale × numbers[i] + minimum. Types without one of these leave it.
struct Unit {
	float numbers[8];
	float scale, minimum;
};

template <int T> struct Has {
	static const bool scale = T != F32 && T != F16 && T != BF16;
	static const bool minimum = T == Q4_1 || T == Q5_1 || T == Q2_K || T == Q4_K || T == Q5_K;
	static const bool code_book = T == IQ4_NL || T == IQ4_XS || T == MXFP4;
};

// code_book writes the numbers that 8 nibbles stand for, as signed bytes: those of the lower four nibbles, and
// of the upper. IQ4_NL's and IQ4_XS's lie closer together near 0, as weights do; MXFP4's are those of a 4-bit
// float, E2M1, twice as large so that they are integers. A byte of 8 is chosen by three bits; the fourth says of
// which 8.
template <int T> FUNCTION void code_book(uint32_t to[2], uint32_t nibbles) {
	const uint32_t first = T == MXFP4 ? 0x03020100 : 0xbfad9881, second = T == MXFP4 ? 0x0c080604 : 0xf6eaddcf;
	const uint32_t third = T == MXFP4 ? 0xfdfeff00 : 0x26190d01, fourth = T == MXFP4 ? 0xf4f8fafc : 0x71594535;
	uint32_t which = 0x32103210 | (nibbles & 0x88888888) >> 1;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t three = nibbles >> 16 * i & 0x7777;
		to[i] = __byte_perm(__byte_perm(first, second, three), __byte_perm(third, fourth, three), which >> 16 * i & 0x7777);
	}
}

// load reads a unit.
template <int T> FUNCTION void load(Unit &u, const Weights &w, int64_t unit) {
	if (T == F32) {
		const float4 *p = (const float4 *)w.quants + 2 * unit;
		float4 a = p[0], b = p[1];
		u.numbers[0] = a.x, u.numbers[1] = a.y, u.numbers[2] = a.z, u.numbers[3] = a.w;
		u.numbers[4] = b.x, u.numbers[5] = b.y, u.numbers[6] = b.z, u.numbers[7] = b.w;
		return;
	}
	if (T == F16 || T == BF16) {
		uint4 q = ((const uint4 *)w.quants)[unit];
		uint32_t pairs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (T == F16) {
				u.numbers[2 * i] = half_to_float((uint16_t)pairs[i]);
				u.numbers[2 * i + 1] = half_to_float((uint16_t)(pairs[i] >> 16));
			} else {
				u.numbers[2 * i] = __int_as_float((int)(pairs[i] << 16));
				u.numbers[2 * i + 1] = __int_as_float((int)(pairs[i] & 0xffff0000u));
			}
		}
		return;
	}
	if (T == Q8_0) {
		uint2 q = ((const uint2 *)w.quants)[unit];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			u.numbers[i] = (float)(int8_t)(q.x >> 8 * i);
			u.numbers[i + 4] = (float)(int8_t)(q.y >> 8 * i);
		}
		u.scale = half_to_float(((const uint16_t *)w.scales)[unit / 4]);
		return;
	}
	if (Has<T>::code_book) {
		uint32_t codes[2];
		code_book<T>(codes, ((const uint32_t *)w.quants)[unit]);
#pragma unroll
		for (int i = 0; i < 8; i++)
			u.numbers[i] = (float)(int8_t)(codes[i / 4] >> 8 * (i % 4));
		if (T == IQ4_NL)
			u.scale = half_to_float(((const uint16_t *)w.scales)[unit / 4]);
		if (T == IQ4_XS)
			u.scale = half_to_float(((const uint16_t *)w.supers)[unit / 32]) * (float)((const int8_t *)w.scales)[unit / 4];
		if (T == MXFP4) { // half of 2^(e − 127), for the numbers are twice too large
			int e = ((const uint8_t *)w.scales)[unit / 4];
			u.scale = __int_as_float(e < 2 ? 1 << (21 + e) : (e - 1) << 23);
		}
		return;
	}
	if (T == Q2_K || T == Q3_K) {
		int q = ((const uint16_t *)w.quants)[unit], third = T == Q3_K ? ((const uint8_t *)w.high)[unit] : 0;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			int n = q >> 2 * i & 3;
			u.numbers[i] = (float)(T == Q3_K ? (n | (third >> i & 1) << 2) - 4 : n);
		}
		if (T == Q3_K) {
			u.scale = half_to_float(((const uint16_t *)w.supers)[unit / 32]) * (float)((const int8_t *)w.scales)[unit / 2];
			return;
		}
		uint8_t small = ((const uint8_t *)w.scales)[unit / 2];
		uint32_t both = ((const uint32_t *)w.supers)[unit / 32];
		u.scale = half_to_float((uint16_t)both) * (float)(small & 15);
		u.minimum = -(half_to_float((uint16_t)(both >> 16)) * (float)(small >> 4));
		return;
	}
	uint32_t q = ((const uint32_t *)w.quants)[unit];
	uint32_t high = 0;
	if (T == Q5_0 || T == Q5_1 || T == Q5_K)
		high = ((const uint8_t *)w.high)[unit];
	if (T == Q6_K)
		high = ((const uint16_t *)w.high)[unit];
	const int zero = T == Q4_0 ? 8 : T == Q5_0 ? 16 : T == Q6_K ? 32 : 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		int n = q >> 4 * i & 15;
		if (T == Q5_0 || T == Q5_1 || T == Q5_K)
			n |= (high >> i & 1) << 4;
		if (T == Q6_K)
			n |= (high >> 2 * i & 3) << 4;
		u.numbers[i] = (float)(n - zero);
	}
	if (T == Q4_0 || T == Q5_0)
		u.scale = half_to_float(((const uint16_t *)w.scales)[unit / 4]);
	if (T == Q4_1 || T == Q5_1) {
		uint32_t both = ((const uint32_t *)w.scales)[unit / 4];
		u.scale = half_to_float((uint16_t)both);
		u.minimum = half_to_float((uint16_t)(both >> 16));
	}
	if (T == Q4_K || T == Q5_K) {
		uint16_t small = ((const uint16_t *)w.scales)[unit / 4];
		uint32_t both = ((const uint32_t *)w.supers)[unit / 32];
		u.scale = half_to_float((uint16_t)both) * (float)(small & 255);
		u.minimum = -(half_to_float((uint16_t)(both >> 16)) * (float)(small >> 8));
	}
	if (T == Q6_K)
		u.scale = half_to_float(((const uint16_t *)w.supers)[unit / 32]) * (float)((const int8_t *)w.scales)[unit / 2];
}

// values are the weights of a unit.
template <int T> FUNCTION void values(float v[8], const Unit &u) {
#pragma unroll
	for (int i = 0; i < 8; i++) {
		v[i] = u.numbers[i];
		if (Has<T>::scale)
			v[i] *= u.scale;
		if (Has<T>::minimum)
			v[i] += u.minimum;
	}
}

// FOR_EACH_TYPE writes KERNELS(type, suffix) for each type that there are kernels for.
#define FOR_EACH_TYPE(KERNELS) \
	KERNELS(F32, f32) KERNELS(F16, f16) KERNELS(BF16, bf16) KERNELS(Q8_0, q8_0) KERNELS(Q4_0, q4_0) KERNELS(Q4_1, q4_1) \
	KERNELS(Q5_0, q5_0) KERNELS(Q5_1, q5_1) KERNELS(Q2_K, q2_k) KERNELS(Q3_K, q3_k) KERNELS(Q4_K, q4_k) KERNELS(Q5_K, q5_k) \
	KERNELS(Q6_K, q6_k) KERNELS(IQ4_NL, iq4_nl) KERNELS(IQ4_XS, iq4_xs) KERNELS(MXFP4, mxfp4)
