//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
)

// mixtureOfOneLayer is a small mixture with all that there is about them, of one layer of Q8_0.
func mixtureOfOneLayer(t testing.TB) *model.Model {
	t.Helper()
	for _, a := range devicetest.Architectures() {
		if a.Name != "qwen2moe" {
			continue
		}
		a.Metadata["qwen2moe.block_count"] = json.Number("1")
		kept := a.Tensors[:0]
		for _, w := range a.Tensors {
			if !strings.HasPrefix(w.Name, "blk.1.") {
				kept = append(kept, w)
			}
		}
		a.Tensors = kept
		m, err := a.Model(gguf.Q8_0)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	t.Fatal("there is no such architecture")
	return nil
}

// retyped is devicetest's.
func retyped(t testing.TB, file []byte, kind func(name string) gguf.Type) *model.Model {
	t.Helper()
	m, err := devicetest.Retyped(file, kind)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMixturesOfExpertsGiveWhatTheHostGives(t *testing.T) {
	useFake(t)
	for _, a := range devicetest.Architectures() {
		if !slices.Contains([]string{"mixtral", "qwen2moe"}, a.Name) {
			continue
		}
		t.Run(a.Name, func(t *testing.T) {
			file, err := a.File(gguf.F32)
			if err != nil {
				t.Fatal(err)
			}
			// Gates and ups of one type lie in one stack, of several in two.
			compare(t, retyped(t, file, func(string) gguf.Type { return gguf.Q8_0 }), gpu.CacheF32, 1e-2)
			compare(t, retyped(t, file, func(name string) gguf.Type {
				switch {
				case strings.Contains(name, "ffn_gate_exps"):
					return gguf.Q4_0
				case strings.Contains(name, "ffn_up_exps") || strings.Contains(name, "ffn_gate_inp_shexp"):
					return gguf.F16
				case strings.Contains(name, "ffn_gate_inp"):
					return gguf.BF16
				}
				return gguf.Q4_1
			}), gpu.CacheF32, 1e-2)
		})
	}
}

// inContext makes the thread d's until what it returns is called.
func inContext(t testing.TB, d *Device) func() {
	t.Helper()
	runtime.LockOSThread()
	if err := cu.SetCurrentContext(d.context); err != nil {
		t.Fatal(driver.Explain(err))
	}
	return runtime.UnlockOSThread
}

// read copies numbers of the GPU's.
func read[T any](t testing.TB, d *Device, at uint64, n int) []T {
	t.Helper()
	to := make([]T, n)
	if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&to[0]), cu.DevicePtr(at), int64(n)*int64(unsafe.Sizeof(to[0])), d.stream); err != nil {
		t.Fatal(driver.Explain(err))
	}
	if err := d.wait("computing"); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestChoicesAreGroupedByExpert(t *testing.T) {
	useFake(t)
	d := openModel(t, mixtureOfOneLayer(t), small, Options{})
	defer d.Close()
	x := &d.experts
	rng := rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct{ n, count, used, columns int }{
		{1, 8, 2, 1}, {1, 128, 8, 1}, {2, 128, 8, 8}, {5, 3, 3, 8}, {9, 1, 1, 8}, {40, 33, 4, 8}, {300, 6, 3, 64}, {150, 6, 1, 32}, {70, 300, 40, 8},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			defer inContext(t, d)()
			config := &model.Config{Experts: model.Experts{Count: c.count, Used: c.used}}
			d.model = config
			if err := d.allocAll(x.numbers(config, c.n)); err != nil {
				t.Fatal(err)
			}
			scores := make([]float32, c.n*c.count)
			for i := range scores { // some are equal, or no numbers
				scores[i] = float32(rng.IntN(9)-4) / 2
				if rng.IntN(4) == 0 {
					scores[i] = float32(rng.NormFloat64())
				}
				if rng.IntN(50) == 0 {
					scores[i] = []float32{float32(math.NaN()), float32(math.Inf(-1)), float32(math.Copysign(0, -1))}[rng.IntN(3)]
				}
			}
			uploaded, err := uploadNumbers(d, "scores", scores)
			if err != nil {
				t.Fatal(err)
			}
			last := rng.IntN(c.n) // rows behind it only fill the step up
			places := slices.Repeat([]position{{nowhere, 0}}, c.n)
			for i := range last + 1 {
				places[i] = position{int32(i), 0}
			}
			positions, err := uploadNumbers(d, "positions", places)
			if err != nil {
				t.Fatal(err)
			}
			all, blocks := choices(config, c.n), shares(config, c.n, c.columns)
			real := choices(config, last+1)
			for _, normalise := range []bool{false, true} {
				err := d.module.launch(x.route, shape{x: c.n, threads: 32}, uploaded, uint64(c.count), positions, x.chosen, x.weights, uint64(c.count), uint64(c.used), one(normalise))
				if err != nil {
					t.Fatal(err)
				}
				chosen, weights := read[int32](t, d, x.chosen, all), read[float32](t, d, x.weights, all)
				for row := range last + 1 {
					of := scores[row*c.count:][:c.count]
					order := make([]int32, c.count)
					for e := range order {
						order[e] = int32(e)
					}
					slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(of[b], of[a]) }) // a NaN is last
					if got := chosen[row*c.used:][:c.used]; !slices.Equal(got, order[:c.used]) {
						t.Fatalf("scores %v choose %v, wanted %v", of, got, order[:c.used])
					}
					counted, sum := order, 0.0
					if normalise {
						counted = order[:c.used]
					}
					for _, e := range counted {
						sum += math.Exp(float64(of[e] - of[order[0]]))
					}
					for j, e := range order[:c.used] {
						want, got := math.Exp(float64(of[e]-of[order[0]]))/sum, float64(weights[row*c.used+j])
						if !(math.Abs(got-want) < 1e-6) && !(math.IsNaN(got) && math.IsNaN(want)) {
							t.Fatalf("scores %v: expert %d has weight %v, wanted %v", of, e, got, want)
						}
					}
				}
			}
			err = d.module.launch(x.group, shape{x: c.count, threads: threadsFor(all, groupThreads)}, x.chosen, uint64(all), uint64(c.used), x.places, x.grouped, x.shares, uint64(blocks), uint64(c.columns))
			if err != nil {
				t.Fatal(err)
			}
			chosen, at, rows := read[int32](t, d, x.chosen, real), read[int32](t, d, x.places, real), read[int32](t, d, x.grouped, real)
			order := make([]int, real)
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(chosen[a], chosen[b]) })
			for place, i := range order {
				if int(at[i]) != place || int(rows[place]) != i/c.used {
					t.Fatalf("choice %d of expert %d is at %d, wanted %d, where row %d is", i, chosen[i], at[i], place, rows[place])
				}
			}
			next := 0
			for _, s := range read[struct{ Expert, First, End int32 }](t, d, x.shares, blocks) {
				if s.First == s.End {
					continue
				}
				if int(s.First) != next || s.End < s.First || int(s.End-s.First) > c.columns {
					t.Fatalf("a share is of places %d to %d, wanted from %d on", s.First, s.End, next)
				}
				for ; next < int(s.End); next++ {
					if chosen[order[next]] != s.Expert {
						t.Fatalf("place %d is expert %d's, its share is expert %d's", next, chosen[order[next]], s.Expert)
					}
				}
			}
			if next != real {
				t.Fatalf("shares end at %d of %d", next, real)
			}
		})
	}
}
