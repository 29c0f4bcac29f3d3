package host

import (
	"maps"
	"unsafe"

	"github.com/troupe-llm/troupe/model/gguf"
)

// packingsFor are the packings of the types that cpu has kernels for. Kernels of another set of
// instructions need an entry in instructions, a generator in asm and a table here.
func packingsFor(cpu instructions) map[gguf.Type]packing {
	var kernels map[gguf.Type][]kernel
	set := packing{rows: 8, quantise: quantiseRowAVX2}
	switch cpu {
	case avx2:
		kernels = kernelsAVX2
	case avx512:
		kernels = kernelsAVX512
		set = packing{rows: 16, quantise: quantiseRowAVX512, panels: true}
	default:
		return nil
	}
	all := maps.Clone(packings)
	for kind := range all {
		if kernels[kind] == nil {
			delete(all, kind)
			continue
		}
		p := all[kind]
		p.rows, p.quantise, p.panels, p.kernels = set.rows, set.quantise, set.panels, kernels[kind]
		all[kind] = p
	}
	return all
}

func quantiseRowAVX2(q []octets, x []float32, _ int) {
	q = q[:len(x)/32] // one after another
	quantiseAVX2(&q[0].values[0], &x[0], len(q))
}

func quantiseRowAVX512(q []octets, x []float32, step int) {
	blocks := len(x) / 32
	_ = q[(blocks-1)*step]
	quantiseAVX512(&q[0].values[0], &x[0], blocks, step*int(unsafe.Sizeof(q[0])))
}

var kernelsAVX2 = map[gguf.Type][]kernel{
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
}

var kernelsAVX512 = map[gguf.Type][]kernel{
	gguf.F32:  {multiplyF32x1AVX512, multiplyF32x2AVX512, multiplyF32x4AVX512, multiplyF32x8AVX512, multiplyF32x12AVX512},
	gguf.F16:  {multiplyF16x1AVX512, multiplyF16x2AVX512, multiplyF16x4AVX512, multiplyF16x8AVX512, multiplyF16x12AVX512},
	gguf.BF16: {multiplyBF16x1AVX512, multiplyBF16x2AVX512, multiplyBF16x4AVX512, multiplyBF16x8AVX512, multiplyBF16x12AVX512},
	gguf.Q4_0: {multiplyQ4_0x1AVX512, multiplyQ4_0x2AVX512, multiplyQ4_0x4AVX512, multiplyQ4_0x8AVX512, multiplyQ4_0x12AVX512},
	gguf.Q4_1: {multiplyQ4_1x1AVX512, multiplyQ4_1x2AVX512, multiplyQ4_1x4AVX512, multiplyQ4_1x8AVX512, multiplyQ4_1x12AVX512},
	gguf.Q5_0: {multiplyQ5_0x1AVX512, multiplyQ5_0x2AVX512, multiplyQ5_0x4AVX512, multiplyQ5_0x8AVX512, multiplyQ5_0x12AVX512},
	gguf.Q5_1: {multiplyQ5_1x1AVX512, multiplyQ5_1x2AVX512, multiplyQ5_1x4AVX512, multiplyQ5_1x8AVX512, multiplyQ5_1x12AVX512},
	gguf.Q8_0: {multiplyQ8_0x1AVX512, multiplyQ8_0x2AVX512, multiplyQ8_0x4AVX512, multiplyQ8_0x8AVX512, multiplyQ8_0x12AVX512},
	gguf.Q2_K: {multiplyQ2_Kx1AVX512, multiplyQ2_Kx2AVX512, multiplyQ2_Kx4AVX512, multiplyQ2_Kx8AVX512, multiplyQ2_Kx12AVX512},
	gguf.Q3_K: {multiplyQ3_Kx1AVX512, multiplyQ3_Kx2AVX512, multiplyQ3_Kx4AVX512, multiplyQ3_Kx8AVX512, multiplyQ3_Kx12AVX512},
	gguf.Q4_K: {multiplyQ4_Kx1AVX512, multiplyQ4_Kx2AVX512, multiplyQ4_Kx4AVX512, multiplyQ4_Kx8AVX512, multiplyQ4_Kx12AVX512},
	gguf.Q5_K: {multiplyQ5_Kx1AVX512, multiplyQ5_Kx2AVX512, multiplyQ5_Kx4AVX512, multiplyQ5_Kx8AVX512, multiplyQ5_Kx12AVX512},
	gguf.Q6_K: {multiplyQ6_Kx1AVX512, multiplyQ6_Kx2AVX512, multiplyQ6_Kx4AVX512, multiplyQ6_Kx8AVX512, multiplyQ6_Kx12AVX512},

	gguf.IQ4_NL: {multiplyIQ4_NLx1AVX512, multiplyIQ4_NLx2AVX512, multiplyIQ4_NLx4AVX512, multiplyIQ4_NLx8AVX512, multiplyIQ4_NLx12AVX512},
	gguf.IQ4_XS: {multiplyIQ4_XSx1AVX512, multiplyIQ4_XSx2AVX512, multiplyIQ4_XSx4AVX512, multiplyIQ4_XSx8AVX512, multiplyIQ4_XSx12AVX512},
	gguf.MXFP4:  {multiplyMXFP4x1AVX512, multiplyMXFP4x2AVX512, multiplyMXFP4x4AVX512, multiplyMXFP4x8AVX512, multiplyMXFP4x12AVX512},
}
