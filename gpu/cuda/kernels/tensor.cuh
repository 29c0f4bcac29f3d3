// Tensor cores, and copies to shared memory that run beside computation. What is known of them is NVIDIA's
// PTX ISA, version 7.8: "Matrix Fragments for mma.m16n8k16 with floating point type" (and m16n8k8) say which
// lane has which elements. The stand-in of the tests has a scalar path over the same fragments.

#pragma once
#include "device.cuh"

#ifdef __CUDACC__
// multiply_add adds a product of a 16 × 16 and a 16 × 8 matrix of halves to one of 16 × 8 floats, which a
// warp's lanes hold together. With g = lane / 4 and t = lane % 4, a lane has of the first a[0]: row g, columns
// 2t and 2t + 1; a[1]: row g + 8, the same columns; a[2] and a[3]: the same rows, columns 2t + 8 and 2t + 9. Of
// the second it has b[0]: rows 2t and 2t + 1 of column g; b[1]: rows 2t + 8 and 2t + 9. Of the sums it has d[0]
// and d[1]: row g, columns 2t and 2t + 1; d[2] and d[3]: row g + 8. The earlier one of two is in the lower half
// of a word.
FUNCTION void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
	// Turing has the product over 8 only: a lane's elements of both halves of the 16 are those of two such.
#pragma unroll
	for (int i = 0; i < 2; i++)
		asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
		             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		             : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#endif
}

// copy_16 copies 16 bytes to shared memory: where there is a copy that runs by itself, as part of the group that
// commit_copies ends. wait_for_copies waits for all of the thread's groups but the latest.
FUNCTION void copy_16(void *shared, const void *from) {
#if __CUDA_ARCH__ >= 800
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(from));
#else
	*(uint4 *)shared = *(const uint4 *)from;
#endif
}

FUNCTION void commit_copies() {
#if __CUDA_ARCH__ >= 800
	asm volatile("cp.async.commit_group;");
#endif
}

template <int latest> FUNCTION void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
	asm volatile("cp.async.wait_group %0;" : : "n"(latest) : "memory");
#endif
}

// Words of two halves.
FUNCTION uint32_t halves_minus(uint32_t a, uint32_t b) {
	uint32_t d;
	asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
	return d;
}

FUNCTION uint32_t halves_times(uint32_t a, uint32_t b) {
	uint32_t d;
	asm("mul.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
	return d;
}

FUNCTION uint32_t halves_times_plus(uint32_t a, uint32_t b, uint32_t c) {
	uint32_t d;
	asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
	return d;
}
#endif

// halves_of rounds two floats, low to the lower half.
FUNCTION uint32_t halves_of(float low, float high) {
#if __CUDA_ARCH__ >= 800
	uint32_t d;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
	return d;
#else
	return (uint32_t)float_to_half(low) | (uint32_t)float_to_half(high) << 16;
#endif
}

// halves_of_bytes makes halves of four signed bytes, exactly: a byte b + 128 behind 0x64 is the half 1024 + b +
// 128, since halves from 1024 to 2048 are whole numbers.
FUNCTION void halves_of_bytes(uint32_t to[2], uint32_t bytes) {
	bytes ^= 0x80808080;
	to[0] = halves_minus(__byte_perm(bytes, 0x64646464, 0x4140), 0x64806480); // 1152
	to[1] = halves_minus(__byte_perm(bytes, 0x64646464, 0x4342), 0x64806480);
}
