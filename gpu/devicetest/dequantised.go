package devicetest

import (
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
)

//go:embed dequantised.json
var dequantised []byte

// Dequantised is blocks of a type of weights, and their values by the gguf package of llama.cpp's authors:
// gpu/host/_generate/dequantise.py writes them.
type Dequantised struct {
	Type   string
	Data   []byte
	Values []byte // float32s, little-endian
}

// Len is how many values there are.
func (d *Dequantised) Len() int { return len(d.Values) / 4 }

// Same says which value is the first that is not to the bit what it should be. 0 and −0 are the same.
func (d *Dequantised) Same(values []float32) error {
	if len(values) != d.Len() {
		return fmt.Errorf("%s: %d values, wanted %d", d.Type, len(values), d.Len())
	}
	for i, v := range values {
		want := binary.LittleEndian.Uint32(d.Values[4*i:])
		if f := math.Float32frombits(want); math.Float32bits(v) != want && v != f {
			return fmt.Errorf("%s: value %d is %v, wanted %v", d.Type, i, v, f)
		}
	}
	return nil
}

// DequantisedBlocks are those of all types. It panics where the file of the package is broken.
func DequantisedBlocks() []Dequantised {
	var file struct{ Cases []Dequantised }
	if err := json.Unmarshal(dequantised, &file); err != nil {
		panic(fmt.Sprintf("devicetest: dequantised.json: %v", err))
	}
	return file.Cases
}
