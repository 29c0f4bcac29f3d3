//go:build !amd64

package gguf

func weigh(t *partTotals, values *partValues) { weighGo(t, values) }

func sumCodes(sums *codeSums, values *partValues, inverse, zero *[kParts]float32) {
	sumCodesGo(sums, values, inverse, zero)
}

func roundCodes(codes *[kSize / 2]byte, x *[kSize]float32, least, step *[kParts]float32) {
	roundCodesGo(codes, x, least, step)
}
