//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// lend is a borrowing of what is in memory anyway.
func lend(string) (func(), error) { return func() {}, nil }

// The stand-in copies when it must and no sooner, so that a buffer that is filled too early has other bytes then.
func TestWeightsComeThroughTwoBuffersInTurnAsTheyArePacked(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1}, small)
	defer d.Close()
	defer inContext(t, d)()
	rng := rand.New(rand.NewPCG(2, 3))
	for _, kind := range []gguf.Type{gguf.F32, gguf.Q8_0, gguf.Q5_1, gguf.Q6_K} {
		before := ask(t, liveObjects)
		const in, rows, matrices = 256, 37, 2
		l := linear{in: in, matrices: matrices, stacks: []stack{{kind: kind, rows: rows + 3}}}
		s := &l.stacks[0]
		var all []byte // matrix by matrix, part by part
		parts := [][]byte{}
		for i, n := range []int{rows, 3} {
			data := make([]byte, kind.RowBytes(in)*n*matrices)
			for j := range data {
				data[j] = byte(rng.Uint32())
			}
			parts = append(parts, data)
			s.parts = append(s.parts, gguf.Tensor{Name: fmt.Sprint(i), Type: kind, Shape: []int{in, n}, Data: data})
		}
		for i := range matrices {
			for _, p := range parts {
				all = append(all, p[len(p)/matrices*i:][:len(p)/matrices]...)
			}
		}
		p := packings[kind]
		var want [planes][]byte
		for plane := range planes {
			want[plane] = make([]byte, p.size(plane, rowUnits(in))*(rows+3)*matrices)
		}
		packRows(kind, want, all, (rows+3)*matrices, in)

		var told []int64
		u, err := d.newUpload([]*linear{&l}, func(done, total int64, what string) {
			if told = append(told, done); total != l.bytes() || !strings.Contains(what, "GPU") {
				t.Errorf("%d of %d bytes of %q", done, total, what)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range u.buffers { // five rows at a time
			b := &u.buffers[i]
			b.memory = b.memory[:5*p.rowBytes(rowUnits(in))+planes*stageAlign]
		}
		if err := errors.Join(u.linear(&l, lend), u.close()); err != nil {
			t.Fatal(err)
		}
		for plane := range planes {
			if n := len(want[plane]); n > 0 && !bytes.Equal(read[byte](t, d, uint64(s.planes[plane]), n), want[plane]) {
				t.Errorf("%v: plane %d differs", kind, plane)
			}
			if s.planes[plane] != 0 {
				if err := d.release(s.planes[plane]); err != nil {
					t.Error(err)
				}
			}
		}
		if !slices.IsSorted(told) || len(told) != 2*(8+1) || told[len(told)-1] != l.bytes() {
			t.Errorf("%v: progress is %v of %d bytes", kind, told, l.bytes())
		}
		noneLeft(t, before)
	}
}

func TestAWeightThatCannotBeReadIsNamedAndNothingLeaks(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1}, small)
	defer d.Close()
	defer inContext(t, d)()
	before := ask(t, liveObjects)
	l := linear{in: 32, matrices: 1, stacks: []stack{{kind: gguf.F32, rows: 1, parts: []gguf.Tensor{{Name: "lost", Type: gguf.F32, Shape: []int{32, 1}, Data: make([]byte, 128)}}}}}
	gone := errors.New("the file is gone")
	err := d.uploadWeights([]*linear{&l}, func(name string) (func(), error) { return nil, fmt.Errorf("%s: %w", name, gone) }, nil)
	if !errors.Is(err, gone) || !strings.Contains(err.Error(), "lost") {
		t.Error(err)
	}
	if code := driver.Error(0); errors.As(err, &code) {
		t.Error(err)
	}
	noneLeft(t, before+1) // the memory that was for it is the device's
}
