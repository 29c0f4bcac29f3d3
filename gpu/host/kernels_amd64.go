package host

import (
	"maps"

	"github.com/troupe-llm/troupe/model/gguf"
)

// packingsFor are the packings of the types that cpu has kernels for. Kernels of another set of
// instructions, such as AVX-512 with VNNI, need an entry in instructions, a generator beside
// asm/multiply.go and a table here; they can read the same packed weights.
func packingsFor(cpu instructions) map[gguf.Type]packing {
	if cpu != avx2 {
		return nil
	}
	all := maps.Clone(packings)
	for kind, kernels := range map[gguf.Type][]kernel{
		gguf.F32:  {multiplyF32x1AVX2, multiplyF32x2AVX2, multiplyF32x4AVX2},
		gguf.F16:  {multiplyF16x1AVX2, multiplyF16x2AVX2, multiplyF16x4AVX2},
		gguf.BF16: {multiplyBF16x1AVX2, multiplyBF16x2AVX2, multiplyBF16x4AVX2},
		gguf.Q4_0: {multiplyQ4_0x1AVX2, multiplyQ4_0x2AVX2, multiplyQ4_0x4AVX2},
		gguf.Q4_1: {multiplyQ4_1x1AVX2, multiplyQ4_1x2AVX2, multiplyQ4_1x4AVX2},
		gguf.Q5_0: {multiplyQ5_0x1AVX2, multiplyQ5_0x2AVX2, multiplyQ5_0x4AVX2},
		gguf.Q5_1: {multiplyQ5_1x1AVX2, multiplyQ5_1x2AVX2, multiplyQ5_1x4AVX2},
		gguf.Q8_0: {multiplyQ8_0x1AVX2, multiplyQ8_0x2AVX2, multiplyQ8_0x4AVX2},
		gguf.Q2_K: {multiplyQ2_Kx1AVX2, multiplyQ2_Kx2AVX2, multiplyQ2_Kx4AVX2},
		gguf.Q3_K: {multiplyQ3_Kx1AVX2, multiplyQ3_Kx2AVX2, multiplyQ3_Kx4AVX2},
		gguf.Q4_K: {multiplyQ4_Kx1AVX2, multiplyQ4_Kx2AVX2, multiplyQ4_Kx4AVX2},
		gguf.Q5_K: {multiplyQ5_Kx1AVX2, multiplyQ5_Kx2AVX2, multiplyQ5_Kx4AVX2},
		gguf.Q6_K: {multiplyQ6_Kx1AVX2, multiplyQ6_Kx2AVX2, multiplyQ6_Kx4AVX2},

		gguf.IQ4_NL: {multiplyIQ4_NLx1AVX2, multiplyIQ4_NLx2AVX2, multiplyIQ4_NLx4AVX2},
		gguf.IQ4_XS: {multiplyIQ4_XSx1AVX2, multiplyIQ4_XSx2AVX2, multiplyIQ4_XSx4AVX2},
		gguf.MXFP4:  {multiplyMXFP4x1AVX2, multiplyMXFP4x2AVX2, multiplyMXFP4x4AVX2},
	} {
		p := all[kind]
		p.rows, p.kernels = 8, kernels
		all[kind] = p
	}
	return all
}

// quantiseRow rounds a row of activations for the packed kernels of cpu.
func quantiseRow(q []octets, x []float32) { quantiseAVX2(&q[0].values[0], &x[0], len(q)) }
