// Weight matrices as they lie in the GPU's memory. A matrix of rows × columns is cut into units of 8
// successive weights of a row; a row is filled up with zeros to a whole number of 32 weights, a block. What belongs
// to a unit lies in up to four planes, each an array over all units, so that neighbouring threads, which
// take neighbouring units or blocks, read neighbouring and aligned bytes. pack.go makes planes of a GGUF file's
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

template <int T> struct Has {
	static const bool scale = T != F32 && T != F16 && T != BF16;
	static const int scales = T == Q2_K || T == Q3_K || T == Q6_K ? 2 : 1; // of 32 weights
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

// Block is 32 weights of a type with scales: weight i is scale[i / 16] × byte i of words, a signed one, +
// minimum[i / 16]. Types without minima leave those.
struct Block {
	uint32_t words[8];
	float scale[2], minimum[2];
};

// lessened takes zero from each byte of a word; bytes are below 128, zero at most 127.
FUNCTION uint32_t lessened(uint32_t word, uint32_t zero) { return ((word | 0x80808080) - zero * 0x01010101) ^ 0x80808080; }

// spread_1 makes bytes of the lowest 4 bits, spread_2 of the lowest 4 pairs of bits.
FUNCTION uint32_t spread_1(uint32_t bits) { return (bits & 15) * 0x00204081 & 0x01010101; }
FUNCTION uint32_t spread_2(uint32_t bits) {
	bits = (bits & 255) | (bits & 255) << 12;
	bits &= 0x000f000f;
	return (bits | bits << 6) & 0x03030303;
}

// read_8 reads 8 successive numbers by two loads.
template <typename V, typename Four> FUNCTION void read_8(V to[8], const Four *from) {
	Four a = from[0], b = from[1];
	to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
	to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

// load reads a block, quants by as few and as wide loads as there can be.
template <int T> FUNCTION void load(Block &b, const Weights &w, int64_t block) {
	if (T == Q8_0) {
		read_8(b.words, (const uint4 *)w.quants + 2 * block);
	} else if (T == Q2_K || T == Q3_K) {
		uint2 q = ((const uint2 *)w.quants)[block];
		uint32_t high = T == Q3_K ? ((const uint32_t *)w.high)[block] : 0;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			b.words[i] = spread_2((i < 4 ? q.x : q.y) >> i % 4 * 8);
			if (T == Q3_K)
				b.words[i] = lessened(b.words[i] | spread_1(high >> 4 * i) << 2, 4);
		}
	} else {
		uint4 q = ((const uint4 *)w.quants)[block];
		uint32_t nibbles[4] = {q.x, q.y, q.z, q.w};
		uint32_t fifths = 0;
		uint2 high = {0, 0};
		if (T == Q5_0 || T == Q5_1 || T == Q5_K)
			fifths = ((const uint32_t *)w.high)[block];
		if (T == Q6_K)
			high = ((const uint2 *)w.high)[block];
		const int zero = T == Q4_0 ? 8 : T == Q5_0 ? 16 : T == Q6_K ? 32 : 0;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (Has<T>::code_book) {
				if (i % 2 == 0)
					code_book<T>(b.words + i, nibbles[i / 2]);
				continue;
			}
			uint32_t even = nibbles[i / 2] & 0x0f0f0f0f, odd = nibbles[i / 2] >> 4 & 0x0f0f0f0f;
			uint32_t word = __byte_perm(even, odd, i % 2 == 0 ? 0x5140 : 0x7362);
			if (T == Q5_0 || T == Q5_1 || T == Q5_K)
				word |= spread_1(fifths >> 4 * i) << 4;
			if (T == Q6_K)
				word |= spread_2((i < 4 ? high.x : high.y) >> i % 4 * 8) << 4;
			b.words[i] = zero == 0 ? word : lessened(word, zero);
		}
	}
	if (T == Q8_0 || T == Q4_0 || T == Q5_0 || T == IQ4_NL)
		b.scale[0] = b.scale[1] = half_to_float(((const uint16_t *)w.scales)[block]);
	if (T == Q4_1 || T == Q5_1) {
		uint32_t both = ((const uint32_t *)w.scales)[block];
		b.scale[0] = b.scale[1] = half_to_float((uint16_t)both);
		b.minimum[0] = b.minimum[1] = half_to_float((uint16_t)(both >> 16));
	}
	if (T == Q4_K || T == Q5_K) {
		uint16_t small = ((const uint16_t *)w.scales)[block];
		uint32_t both = ((const uint32_t *)w.supers)[block / 8];
		b.scale[0] = b.scale[1] = half_to_float((uint16_t)both) * (float)(small & 255);
		b.minimum[0] = b.minimum[1] = -(half_to_float((uint16_t)(both >> 16)) * (float)(small >> 8));
	}
	if (T == Q3_K || T == Q6_K) {
		uint16_t small = ((const uint16_t *)w.scales)[block];
		float super = half_to_float(((const uint16_t *)w.supers)[block / 8]);
		b.scale[0] = super * (float)(int8_t)small;
		b.scale[1] = super * (float)(int8_t)(small >> 8);
	}
	if (T == Q2_K) {
		uint16_t small = ((const uint16_t *)w.scales)[block];
		uint32_t both = ((const uint32_t *)w.supers)[block / 8];
#pragma unroll
		for (int i = 0; i < 2; i++) {
			b.scale[i] = half_to_float((uint16_t)both) * (float)(small >> 8 * i & 15);
			b.minimum[i] = -(half_to_float((uint16_t)(both >> 16)) * (float)(small >> (8 * i + 4) & 15));
		}
	}
	if (T == IQ4_XS)
		b.scale[0] = b.scale[1] = half_to_float(((const uint16_t *)w.supers)[block / 8]) * (float)((const int8_t *)w.scales)[block];
	if (T == MXFP4) { // half of 2^(e − 127), for the numbers are twice too large
		int e = ((const uint8_t *)w.scales)[block];
		b.scale[0] = b.scale[1] = __int_as_float(e < 2 ? 1 << (21 + e) : (e - 1) << 23);
	}
}

// Unit is 8 weights as floats: weight i is scale × numbers[i] + minimum. Types without one of these leave it.
struct Unit {
	float numbers[8];
	float scale, minimum;
};

// load reads a unit.
template <int T> FUNCTION void load(Unit &u, const Weights &w, int64_t unit) {
	if (T == F32) {
		read_8(u.numbers, (const float4 *)w.quants + 2 * unit);
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
	Block b;
	load<T>(b, w, unit / 4);
	int part = (int)(unit % 4);
	uint32_t words[2] = {b.words[0], b.words[1]};
#pragma unroll
	for (int i = 1; i < 4; i++)
		if (part == i)
			words[0] = b.words[2 * i], words[1] = b.words[2 * i + 1];
#pragma unroll
	for (int i = 0; i < 8; i++)
		u.numbers[i] = (float)(int8_t)(words[i / 4] >> 8 * (i % 4));
	u.scale = part < 2 ? b.scale[0] : b.scale[1];
	if (Has<T>::minimum)
		u.minimum = part < 2 ? b.minimum[0] : b.minimum[1];
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

// FOR_EACH_QUANTISED_TYPE writes KERNELS(type, suffix) for each type with scales, FOR_EACH_TYPE_OF_HALVES for all that
// are multiplied as halves, FOR_EACH_TYPE for all.
#define FOR_EACH_QUANTISED_TYPE(KERNELS) \
	KERNELS(Q8_0, q8_0) KERNELS(Q4_0, q4_0) KERNELS(Q4_1, q4_1) KERNELS(Q5_0, q5_0) KERNELS(Q5_1, q5_1) \
	KERNELS(Q2_K, q2_k) KERNELS(Q3_K, q3_k) KERNELS(Q4_K, q4_k) KERNELS(Q5_K, q5_k) KERNELS(Q6_K, q6_k) \
	KERNELS(IQ4_NL, iq4_nl) KERNELS(IQ4_XS, iq4_xs) KERNELS(MXFP4, mxfp4)
#define FOR_EACH_TYPE_OF_HALVES(KERNELS) KERNELS(F16, f16) KERNELS(BF16, bf16) FOR_EACH_QUANTISED_TYPE(KERNELS)
#define FOR_EACH_TYPE(KERNELS) KERNELS(F32, f32) FOR_EACH_TYPE_OF_HALVES(KERNELS)
