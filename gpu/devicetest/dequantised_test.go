package devicetest

import (
	"encoding/binary"
	"math"
	"testing"
)

func TestDequantisedValuesAreComparedToTheBit(t *testing.T) {
	of := func(values ...float32) (all []byte) {
		for _, v := range values {
			all = binary.LittleEndian.AppendUint32(all, math.Float32bits(v))
		}
		return all
	}
	nan := float32(math.NaN())
	d := Dequantised{Type: "F32", Values: of(1, 0, nan)}
	for _, c := range []struct {
		values []float32
		same   bool
	}{
		{[]float32{1, 0, nan}, true},
		{[]float32{1, float32(math.Copysign(0, -1)), nan}, true},
		{[]float32{math.Nextafter32(1, 2), 0, nan}, false},
		{[]float32{1, math.SmallestNonzeroFloat32, nan}, false},
		{[]float32{1, 0, 0}, false},
		{[]float32{1, 0, math.Float32frombits(math.Float32bits(nan) ^ 2)}, false},
		{[]float32{1, 0}, false},
		{[]float32{1, 0, nan, 0}, false},
	} {
		if err := d.Same(c.values); (err == nil) != c.same {
			t.Errorf("%v beside 1, 0 and a NaN: %v", c.values, err)
		}
	}
}
