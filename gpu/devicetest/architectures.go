package devicetest

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

//go:embed architectures/*.json
var architectures embed.FS

// Architecture is a small model of an architecture, and what transformers computes of it:
// gpu/host/_generate/architectures.py writes them. Its weights are not in the file but drawn, there and here.
type Architecture struct {
	Name     string `json:"-"` // the file's
	Metadata map[string]any
	Tensors  []struct {
		Name          string
		Shape         []int
		Scale, Offset float64
		Values        []float32 // instead of drawn ones
	}
	Tokens   []int32
	Logprobs []float64 // of token i+1 after the tokens to i
	Last     []float64 // of every token after the last
}

// Architectures are all that there are. It panics where a file of the package is broken.
func Architectures() []*Architecture {
	return embedded(architectures, "architectures", func(name string, data []byte) (*Architecture, error) {
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		a := &Architecture{Name: strings.TrimSuffix(name, path.Ext(name))}
		return a, d.Decode(a)
	})
}

// File is the model as GGUF, its matrices stored in type typ as far as their rows allow.
func (a *Architecture) File(typ gguf.Type) ([]byte, error) {
	var b gguf.Builder
	for key, v := range a.Metadata {
		switch x := v.(type) {
		case json.Number:
			if n, err := x.Int64(); err == nil {
				v = uint32(n)
			} else if f, err := x.Float64(); err == nil {
				v = float32(f)
			}
		case []any:
			list := make([]bool, len(x))
			for i := range x {
				list[i] = x[i].(bool)
			}
			v = list
		}
		b.Set(key, v)
	}
	tiny.SetTokenizer(&b, tiny.Vocab)
	for _, w := range a.Tensors {
		values := w.Values
		if values == nil {
			values = Drawn(w.Name, gguf.Tensor{Shape: w.Shape}.Values(), w.Scale, w.Offset)
		}
		stored := gguf.F32
		if len(w.Shape) > 1 && w.Shape[0]%typ.BlockSize() == 0 {
			stored = typ
		}
		data, err := gguf.Encode(stored, values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
		b.Add(w.Name, stored, w.Shape, data)
	}
	return b.Bytes()
}

// Model is the opened model of File. It needs no Close.
func (a *Architecture) Model(typ gguf.Type) (*model.Model, error) {
	file, err := a.File(typ)
	if err != nil {
		return nil, fmt.Errorf("%s of %v: %w", a.Name, typ, err)
	}
	return model.Parse(file, a.Name)
}

// Drawn are n numbers, evenly from offset−√3·scale to offset+√3·scale: splitmix64's (Steele, Lea and Flood
// 2014), from the FNV-1a hash of the name on.
func Drawn(name string, n int, scale, offset float64) []float32 {
	state := uint64(14695981039346656037)
	for _, b := range []byte(name) {
		state = (state ^ uint64(b)) * 1099511628211
	}
	values := make([]float32, n)
	for i := range values {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		unit := float64(float64(int64(z)>>11) * (0x1p-52 * 1.7320508075688772))
		values[i] = float32(offset + float64(unit*scale))
	}
	return values
}
