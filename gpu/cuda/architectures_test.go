//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// golden is a small model of an architecture, and what transformers computes of it: the host device's
// testdata, which gpu/host/_generate/architectures.py writes. Weights are drawn, there and here.
type golden struct {
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

// open makes the model, all of it in float32.
func (g *golden) open(t testing.TB, name string) *model.Model {
	t.Helper()
	var b gguf.Builder
	for key, v := range g.Metadata {
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
	words, err := gguf.Parse(tiny.GGUF(tiny.Options{Layers: 1}))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range words.Keys() {
		if strings.HasPrefix(key, "tokenizer.") {
			v, _ := words.Value(key)
			b.Set(key, v)
		}
	}
	for _, w := range g.Tensors {
		values := w.Values
		if values == nil {
			values = drawn(w.Name, gguf.Tensor{Shape: w.Shape}.Values(), w.Scale, w.Offset)
		}
		data, err := gguf.Encode(gguf.F32, values)
		if err != nil {
			t.Fatal(err)
		}
		b.Add(w.Name, gguf.F32, w.Shape, data)
	}
	file, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Parse(file, name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// drawn are n numbers, evenly from offset−√3·scale to offset+√3·scale: splitmix64's, from the FNV-1a hash
// of the name on.
func drawn(name string, n int, scale, offset float64) []float32 {
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
		values[i] = float32(offset + float64(float64(int64(z)>>11)*(0x1p-52*1.7320508075688772))*scale)
	}
	return values
}

// off is by how much log probabilities differ at most, when the tokens come in pieces of the given
// lengths, and then what is left.
func (g *golden) off(t testing.TB, m *model.Model, pieces ...int) float64 {
	t.Helper()
	n := len(g.Tokens)
	d, err := Open(m, gpu.Config{BlockSize: 5, MaxSeqs: 1, MaxTokens: n, MaxContext: n, CacheType: gpu.CacheF32}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b := gpu.Batch{Stride: (n + 4) / 5}
	for i := range b.Stride {
		b.Blocks = append(b.Blocks, int32(b.Stride-1-i))
	}
	worst := 0.0
	for done := 0; done < n; {
		k := n - done
		if len(pieces) > 0 {
			k, pieces = min(k, pieces[0]), pieces[1:]
		}
		b.Spans, b.Tokens, b.Positions, b.Rows = []gpu.Span{{Len: int32(k), Start: int32(done), Adapter: -1}}, g.Tokens[done:done+k], nil, nil
		for i := range k {
			b.Positions = append(b.Positions, int32(done+i))
			row := gpu.Row{Kind: gpu.Score, Token: int32(i), Mask: -1}
			if done+i+1 < n {
				row.Target = g.Tokens[done+i+1]
			} else {
				row.Top = int32(len(g.Last))
			}
			b.Rows = append(b.Rows, row)
		}
		used := (done+k-1)/5 + 1
		table := append([]int32{}, b.Blocks...)
		for i := used; i < b.Stride; i++ {
			table[i] = -1
		}
		step := b
		step.Blocks = table
		var r gpu.Result
		if err := d.Run(&step, &r); err != nil {
			t.Fatal(err)
		}
		for i := range k {
			if done+i+1 < n {
				worst = max(worst, math.Abs(float64(r.Logprobs[i])-g.Logprobs[done+i]))
			}
		}
		for i, id := range r.TopIDs {
			worst = max(worst, math.Abs(float64(r.TopLogprobs[i])-g.Last[id]))
		}
		done += k
	}
	return worst
}

func TestArchitecturesAgreeWithTransformers(t *testing.T) {
	useFake(t)
	files, err := filepath.Glob("../host/testdata/architectures/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			g := &golden{}
			decoder := json.NewDecoder(bytes.NewReader(data))
			decoder.UseNumber()
			if err := decoder.Decode(g); err != nil {
				t.Fatal(err)
			}
			m := g.open(t, name)
			if m.Config.Experts.Count > 0 {
				if _, err := Open(m, small, Options{}); err == nil || !strings.Contains(err.Error(), "mixture of experts") {
					t.Error(err)
				}
				return
			}
			// In pieces, the last tokens see what is cached, and attention is split.
			if whole, pieces := g.off(t, m), g.off(t, m, len(g.Tokens)/2, 1, 1); !(whole < 1.5e-4) || !(pieces < 1.5e-4) {
				t.Errorf("a log probability is off by %g, in pieces by %g", whole, pieces)
			} else {
				t.Logf("off by %.1e at most, in pieces by %.1e", whole, pieces)
			}
		})
	}
}
