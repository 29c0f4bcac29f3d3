package gguf

import (
	"encoding/binary"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestEveryFloat16SurvivesTheRoundTrip(t *testing.T) {
	for h := range 1 << 16 {
		h := uint16(h)
		f := float32of16(h)
		if f != f {
			if g := float16(f); g&0x7c00 != 0x7c00 || g&0x3ff == 0 {
				t.Fatalf("%#x: NaN became %#x", h, g)
			}
			continue
		}
		if got := float16(f); got != h {
			t.Fatalf("%#x is %g, which became %#x", h, f, got)
		}
	}
}

func TestFloat16RoundsToTheNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := float32(rapid.Float64Range(-70000, 70000).Draw(t, "f") * math.Pow(2, float64(rapid.IntRange(-40, 0).Draw(t, "scale"))))
		h := float16(f)
		got := float64(float32of16(h))
		if math.Abs(float64(f)) >= 65520 { // halfway to what would be the next number
			if !math.IsInf(got, 0) {
				t.Fatalf("%g became %g", f, got)
			}
			return
		}
		for _, n := range []uint16{h - 1, h + 1} {
			other := float64(float32of16(n))
			if n&0x7fff < 0x7c00 && n>>15 == h>>15 && math.Abs(other-float64(f)) < math.Abs(got-float64(f)) {
				t.Fatalf("%g became %g though %g is nearer", f, got, other)
			}
		}
	})
	if float16(1+0x1p-11) != 0x3c00 || float16(1+3*0x1p-11) != 0x3c02 {
		t.Error("a tie does not go to the even neighbour")
	}
}

func TestBfloat16RoundsToNearestEven(t *testing.T) {
	for in, want := range map[float32]uint16{1: 0x3f80, 1 + 0x1p-8: 0x3f80, 1 + 3*0x1p-8: 0x3f82, -2: 0xc000, float32(math.Inf(1)): 0x7f80} {
		if got := bfloat16(in); got != want {
			t.Errorf("%g: %#x, want %#x", in, got, want)
		}
	}
	if got := bfloat16(float32(math.NaN())); got&0x7f80 != 0x7f80 || got&0x7f == 0 {
		t.Errorf("NaN: %#x", got)
	}
}

// What is decoded lies within half a code's step of what was encoded, plus what float16 costs the
// scale: up to 2^-11 of it, times the code, which in Q8_0 adds 127×2^-11 = 0.06 of a step. In Q4_0,
// whose codes are not symmetric, it is a whole step at one end.
func TestEncodedValuesAreNearTheOriginals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(rapid.Float32Range(-100, 100), 64, 64).Draw(t, "x")
		for _, typ := range []Type{F32, F16, BF16, Q8_0, Q4_0, Q4_1} {
			data, err := Encode(typ, x)
			if err != nil || len(data) != typ.RowBytes(64) {
				t.Fatal(typ, len(data), err)
			}
			y, err := Decode(typ, data)
			if err != nil || len(y) != 64 {
				t.Fatal(typ, len(y), err)
			}
			for i := range x {
				block := x[i/32*32 : i/32*32+32]
				least, most, far := block[0], block[0], 0.0
				for _, v := range block {
					least, most, far = min(least, v), max(most, v), max(far, math.Abs(float64(v)))
				}
				var bound float64
				switch typ {
				case F16:
					bound = far * 0x1p-11
				case BF16:
					bound = far * 0x1p-8
				case Q8_0:
					bound = far / 127 * 0.57
				case Q4_0:
					bound = far / 8 * 1.01
				case Q4_1:
					bound = float64(most-least)/15*0.51 + far*0x1p-11
				}
				// Below 6e-5 float16 loses bits: 2^-25 each for a scale and a minimum, times the code.
				bound = bound*1.001 + 128*0x1p-25
				if typ == F32 {
					bound = 0
				}
				if d := math.Abs(float64(x[i] - y[i])); d > bound {
					t.Fatalf("%s: %g became %g, further than %g", typ, x[i], y[i], bound)
				}
			}
		}
	})
}

// The layout by hand: code i of the first half is a low nibble, of the second half a high one.
func TestQ4BlocksAreLaidOutAsInGgml(t *testing.T) {
	x := make([]float32, 32)
	for i := range x {
		x[i] = float32(i % 16)
	}
	x[16] = 15
	data, err := Encode(Q4_1, x)
	if err != nil {
		t.Fatal(err)
	}
	if binary.LittleEndian.Uint16(data) != 0x3c00 || binary.LittleEndian.Uint16(data[2:]) != 0 {
		t.Errorf("scale and minimum: % x", data[:4])
	}
	if data[4] != 0xf0 || data[5] != 0x11 || data[19] != 0xff {
		t.Errorf("codes: % x", data[4:])
	}
	for i := range x {
		x[i] = float32(i%16) - 8
	}
	if data, err = Encode(Q4_0, x); err != nil {
		t.Fatal(err)
	}
	if binary.LittleEndian.Uint16(data) != 0x3c00 || data[2] != 0x00 || data[3] != 0x11 || data[17] != 0xff {
		t.Errorf("Q4_0: % x", data)
	}
}

func TestEncodeAndDecodeRefuseWhatTheyCannotDo(t *testing.T) {
	for _, typ := range []Type{Q6_K, Type(99)} {
		if _, err := Encode(typ, make([]float32, 256)); err == nil {
			t.Errorf("%s encoded", typ)
		}
		if _, err := Decode(typ, make([]byte, 210)); err == nil {
			t.Errorf("%s decoded", typ)
		}
	}
	if _, err := Encode(Q8_0, make([]float32, 33)); err == nil {
		t.Error("33 values in blocks of 32")
	}
	if _, err := Decode(Q8_0, make([]byte, 33)); err == nil {
		t.Error("33 bytes in blocks of 34")
	}
}
