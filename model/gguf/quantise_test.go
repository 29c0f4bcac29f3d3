package gguf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// quantiserValues are weights as models have them, in 64 blocks of 256, and some odd ones; the same as
// those of testdata/quantise.py.
func quantiserValues() []float32 {
	out := make([]float32, 64*256)
	state := uint64(0)
	for i := range out {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		sum := -4 * 32768
		for k := range 4 {
			sum += int(z >> (16 * k) & 0xffff)
		}
		v, block := float64(sum)*0x1p-18, i/256
		if i%97 == 0 {
			v *= 8 // an outlier
		}
		switch block % 16 {
		case 3:
			v = 0
		case 5:
			v = 0.25
		case 7:
			v = math.Abs(v) + 1
		case 9:
			v = -math.Abs(v)
		}
		out[i] = float32(v * math.Pow(2, -float64(block%5)))
	}
	return out
}

// quantiserReference is testdata/quantise.json.
type quantiserReference struct {
	Values string
	SHA256 map[string]string
	Q4K    []float64 `json:"q4_k"`
}

func readQuantiserReference(t *testing.T) (r quantiserReference) {
	data, err := os.ReadFile("testdata/quantise.json")
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func TestQuantisersGiveTheBitsOfPythonsGguf(t *testing.T) {
	r, x := readQuantiserReference(t), quantiserValues()
	raw, _ := Encode(F32, x)
	if sumOf(raw) != r.Values {
		t.Fatal("the values are not those of testdata/quantise.py")
	}
	for _, typ := range []Type{Q4_0, Q5_0, Q8_0} {
		data, err := Encode(typ, x)
		if err != nil || sumOf(data) != r.SHA256[typ.String()] {
			t.Errorf("%s: other blocks; %v", typ, err)
		}
	}
}

// decodeQ4K reads blocks of Q4_K as ggml-quants.c describes them.
func decodeQ4K(data []byte) []float32 {
	var out []float32
	for ; len(data) > 0; data = data[144:] {
		d, dmin := float32of16(binary.LittleEndian.Uint16(data)), float32of16(binary.LittleEndian.Uint16(data[2:]))
		packed, codes := data[4:16], data[16:144]
		for part := range 8 {
			var scale, minimum byte
			if part < 4 {
				scale, minimum = packed[part]&63, packed[part+4]&63
			} else {
				scale = packed[part+4]&15 | packed[part-4]>>6<<4
				minimum = packed[part+4]>>4 | packed[part]>>6<<4
			}
			for i := range 32 {
				code := codes[part/2*32+i] >> (part % 2 * 4) & 15
				out = append(out, float32(d*float32(scale))*float32(code)-dmin*float32(minimum))
			}
		}
	}
	return out
}

// rootMeanSquare is that of the differences of two lists; nil stands for zeros.
func rootMeanSquare(x, y []float32) float64 {
	var sum float64
	for i, v := range x {
		d := float64(v)
		if y != nil {
			d -= float64(y[i])
		}
		sum += d * d
	}
	return math.Sqrt(sum / float64(len(x)))
}

func TestQ4KErrsNoMoreThanLlamaCpp(t *testing.T) {
	r, x := readQuantiserReference(t), quantiserValues()
	data, err := Encode(Q4_K, x)
	if err != nil {
		t.Fatal(err)
	}
	y := decodeQ4K(data)
	var ours, theirs float64
	for i, reference := range r.Q4K {
		block, back := x[256*i:256*(i+1)], y[256*i:256*(i+1)]
		e := rootMeanSquare(block, back)
		if size := rootMeanSquare(block, nil); size > 0 {
			e /= size
		}
		if e > 1.1*reference+1e-4 {
			t.Errorf("block %d: its error is %.5f of its size, llama.cpp's is %.5f", i, e, reference)
		}
		ours, theirs = ours+e, theirs+reference
	}
	if ours > 1.005*theirs {
		t.Errorf("errors are %.4f of llama.cpp's in the mean", ours/theirs)
	}
	t.Logf("errors are %.4f of llama.cpp's in the mean", ours/theirs)
}

// A step is at most a 15th of a part's range, but for what six bits cost the scales: up to a 126th of the largest
// in the block. The mean is held to about one and a half steps, and no value may leave the block's range by far.
func TestQ4KValuesAreNearTheOriginals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(rapid.Float32Range(-100, 100), 256, 256).Draw(t, "x")
		data, err := Encode(Q4_K, x)
		if err != nil || len(data) != 144 {
			t.Fatal(len(data), err)
		}
		y := decodeQ4K(data)
		least, most := float32(0), float32(0)
		for _, v := range x {
			least, most = min(least, v), max(most, v)
		}
		// The best fit may give an outlier more error than half a step, to the others' advantage.
		if bound := float64(most-least) / 15 * 1.6; rootMeanSquare(x, y) > bound {
			t.Fatalf("the error is %g; steps are up to %g", rootMeanSquare(x, y), float64(most-least)/15)
		}
		for i := range y {
			if math.IsNaN(float64(y[i])) || math.Abs(float64(y[i])) > 1.3*float64(max(most, -least))+1e-3 {
				t.Fatalf("%g became %g", x[i], y[i])
			}
		}
	})
}

func BenchmarkQuantisers(b *testing.B) {
	x := quantiserValues()
	for _, typ := range []Type{Q8_0, Q4_0, Q4_K, Q5_0} {
		b.Run(typ.String(), func(b *testing.B) {
			out := make([]byte, 0, typ.RowBytes(len(x)))
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				if _, err := AppendEncode(out, typ, x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
