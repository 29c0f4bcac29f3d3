package gguf

import "golang.org/x/sys/cpu"

var hasAVX2 = cpu.X86.HasAVX2 // which says that the operating system keeps the registers, too

func weigh(t *partTotals, values *partValues) {
	if hasAVX2 {
		weighAVX2(&t.least[0], &values[0].x[0])
		return
	}
	weighGo(t, values)
}

func sumCodes(sums *codeSums, values *partValues, inverse, zero *[kParts]float32) {
	if hasAVX2 {
		sumCodesAVX2(&sums.l[0], &values[0].x[0], &inverse[0], &zero[0])
		return
	}
	sumCodesGo(sums, values, inverse, zero)
}

// roundCodes is for codes that are all 0.
func roundCodes(codes *[kSize / 2]byte, x *[kSize]float32, least, step *[kParts]float32) {
	if hasAVX2 {
		roundCodesAVX2(&codes[0], &x[0], &least[0], &step[0])
		return
	}
	roundCodesGo(codes, x, least, step)
}
