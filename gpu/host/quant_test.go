package host

import (
	"encoding/binary"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model/gguf"
)

// computed is every type that the device computes with.
var computed = []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0,
	gguf.Q2_K, gguf.Q3_K, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.IQ4_NL, gguf.IQ4_XS, gguf.MXFP4}

func TestEveryTypeIsDequantisedToTheBitAsByTheGGUFPackage(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range devicetest.DequantisedBlocks() {
		seen[c.Type] = true
		for _, typ := range computed {
			if typ.String() != c.Type {
				continue
			}
			got := make([]float32, c.Len())
			dequantiser(typ)(got, c.Data)
			if err := c.Same(got); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, typ := range computed {
		if !seen[typ.String()] {
			t.Errorf("no golden for %s", typ)
		}
	}
}

func TestHalvesAreConvertedExactly(t *testing.T) {
	for h := range 1 << 16 {
		// By the definition of IEEE 754's binary16.
		sign, exponent, fraction := 1.0, h>>10&31, float64(h&0x3ff)
		if h>>15 == 1 {
			sign = -1
		}
		want := sign * math.Ldexp(1+fraction/1024, exponent-15)
		switch {
		case exponent == 0:
			want = sign * math.Ldexp(fraction/1024, -14)
		case exponent == 31 && fraction == 0:
			want = math.Inf(int(sign))
		case exponent == 31:
			want = math.NaN()
		}
		got := float64(float16([]byte{byte(h), byte(h >> 8)}))
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) || math.Signbit(got) != math.Signbit(want) && !math.IsNaN(want) {
			t.Fatalf("%#04x is %v, wanted %v", h, got, want)
		}
	}
}

// randomBlocks draws blocks of a type whose scales are ordinary numbers.
func randomBlocks(t *rapid.T, typ gguf.Type, values int) []byte {
	if typ.BlockSize() == 1 {
		data := make([]byte, typ.RowBytes(values))
		for i := range values {
			v := rapid.Float32Range(-2, 2).Draw(t, "weight")
			switch typ {
			case gguf.F32:
				binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
			case gguf.BF16:
				binary.LittleEndian.PutUint16(data[2*i:], uint16(math.Float32bits(v)>>16))
			case gguf.F16: // sign, an exponent from −8 to 0, any fraction
				e := rapid.IntRange(7, 15).Draw(t, "exponent")
				binary.LittleEndian.PutUint16(data[2*i:], uint16(math.Float32bits(v)>>16&0x8000|uint32(e)<<10|math.Float32bits(v)&0x3ff))
			}
		}
		return data
	}
	seed := rapid.Uint64().Draw(t, "seed")
	return fillBlocks(typ, values, seed)
}

// scalesAt is where the halves of a block are.
var scalesAt = map[gguf.Type][]int{gguf.Q4_0: {0}, gguf.Q4_1: {0, 2}, gguf.Q5_0: {0}, gguf.Q5_1: {0, 2}, gguf.Q8_0: {0},
	gguf.Q2_K: {80, 82}, gguf.Q3_K: {108}, gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208},
	gguf.IQ4_NL: {0}, gguf.IQ4_XS: {0}}

// fillBlocks makes blocks of a type up: any quants, scales of 2⁻⁷ to 2⁻⁵, or in MXFP4 2⁻¹⁰ to 2⁻⁷.
func fillBlocks(typ gguf.Type, values int, seed uint64) []byte {
	data := make([]byte, typ.RowBytes(values))
	next := func() byte {
		seed = seed*6364136223846793005 + 1442695040888963407
		return byte(seed >> 56)
	}
	for i := range data {
		data[i] = next()
	}
	for b := 0; b < len(data); b += typ.BlockBytes() {
		for _, s := range scalesAt[typ] {
			data[b+s+1] = 0x20 | next()&0x87 // exponent 8 or 9 of 15
		}
		if typ == gguf.MXFP4 {
			data[b] = 118 + next()%4
		}
	}
	return data
}
