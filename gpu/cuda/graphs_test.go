//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// decodeConfig has room for sequences long enough for their keys to be split among blocks.
var decodeConfig = gpu.Config{BlockSize: 16, MaxSeqs: 10, MaxTokens: 64, MaxContext: 420}

// openHearing opens a device and gives what it logs.
func openHearing(t testing.TB, m *model.Model, c gpu.Config) (*Device, *bytes.Buffer) {
	t.Helper()
	var said bytes.Buffer
	return openModel(t, m, c, Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}), &said
}

func TestStepsOfDecodesAreTheSameToTheBitWithGraphsAndWithout(t *testing.T) {
	useFake(t)
	for _, m := range []*model.Model{tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0, KVHeads: 1}), mixtureOfOneLayer(t)} {
		t.Run(m.Name, func(t *testing.T) { compareDecodes(t, m) })
	}
}

func compareDecodes(t *testing.T, m *model.Model) {
	with, said := openHearing(t, m, decodeConfig)
	defer with.Close()
	t.Setenv(GraphsVariable, "off")
	without, _ := openHearing(t, m, decodeConfig)
	defer without.Close()
	alone, _ := openHearing(t, m, decodeConfig)
	defer alone.Close()
	with.graphs.most = 3 // some give way to others

	lengths := []int{5, 200, 30, 390, 64, 1, 130, 16, 47, 99}
	devices := []*Device{with, without, alone}
	sequences := make([]*decodes, len(devices))
	for i, d := range devices {
		sequences[i] = newDecodes(t, d, decodeConfig, rand.New(rand.NewPCG(1, 2)), slices.Clone(lengths)...)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	before, launches, steps, most := ask(t, replayed), 0, 0, 0
	for range 16 {
		n := 1 + rng.IntN(len(lengths))
		if rng.IntN(2) == 0 {
			n = 1 + rng.IntN(2)
		}
		which := rng.Perm(len(lengths))[:n]
		seed := rng.Uint64()
		var results [2]gpu.Result
		var batch *gpu.Batch
		for i := range results {
			batch = sequences[i].batch(rand.New(rand.NewPCG(seed, 0)), which...)
			began := ask(t, launched)
			if err := devices[i].Run(batch, &results[i]); err != nil {
				t.Fatal(err)
			}
			if n := ask(t, launched) - began; i == 0 {
				launches += n
				most = max(most, n)
			}
		}
		if steps++; !reflect.DeepEqual(results[0], results[1]) {
			t.Fatalf("a step of %v, of lengths %v: %+v with graphs, %+v without", which, batch.Positions, results[0], results[1])
		}
		if len(with.graphs.made) > 3 {
			t.Fatalf("%d graphs are kept", len(with.graphs.made))
		}
		// One after the other, in steps that are not filled up.
		whole := sequences[2].batch(rand.New(rand.NewPCG(seed, 0)), which...)
		for k := range which {
			b := *whole
			b.Tokens, b.Positions, b.Spans, b.Blocks, b.Rows = b.Tokens[k:k+1], b.Positions[k:k+1], slices.Clone(b.Spans[k:k+1]), b.Blocks[k*b.Stride:][:b.Stride], slices.Clone(b.Rows[k:k+1])
			b.Spans[0].First, b.Rows[0].Token, b.Rows[0].Span = 0, 0, 0
			var r gpu.Result
			if err := alone.Run(&b, &r); err != nil {
				t.Fatal(err)
			}
			if r.Tokens[0] == results[0].Tokens[k] && math.Abs(float64(r.Logprobs[0]-results[0].Logprobs[k])) > 2e-2 {
				t.Errorf("sequence %d of %v has log probability %v in company, %v alone", which[k], which, results[0].Logprobs[k], r.Logprobs[0])
			} else if whole.Rows[k].Temperature == 0 && r.Tokens[0] != results[0].Tokens[k] {
				t.Logf("sequence %d of %v has another token alone", which[k], which)
			}
		}
	}
	if n := ask(t, replayed) - before; n != steps {
		t.Errorf("%d graphs were launched in %d steps", n, steps)
	}
	if launches == 0 || launches >= steps*most {
		t.Errorf("%d launches were captured in %d steps of %d", launches, steps, most)
	}
	if most > layerLaunches+2*chunkLaunches {
		t.Errorf("a step has %d launches; memory is set aside for %d", most, layerLaunches+2*chunkLaunches)
	}
	if said.Len() > 0 {
		t.Error(said.String())
	}
}

func TestStepsThatAreNotDecodesAloneAreLaunchedOneByOne(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1}, decodeConfig)
	defer d.Close()
	rng := rand.New(rand.NewPCG(5, 6))
	s := newDecodes(t, d, decodeConfig, rng, 5, 9)
	before := ask(t, replayed)
	for what, change := range map[string]func(*gpu.Batch){
		"many alternatives": func(b *gpu.Batch) {
			b.Rows[1] = gpu.Row{Kind: gpu.Score, Token: 1, Span: 1, Top: mostTop + 1, Mask: -1}
		},
		"a hidden state":    func(b *gpu.Batch) { b.Rows[0] = gpu.Row{Kind: gpu.Pool} },
		"a row too many":    func(b *gpu.Batch) { b.Rows = append(b.Rows, gpu.Row{Kind: gpu.Score, Token: 1, Span: 1, Mask: -1}) },
		"a row too few":     func(b *gpu.Batch) { b.Rows = b.Rows[:1] },
		"two rows and none": func(b *gpu.Batch) { b.Rows[1].Token, b.Rows[1].Span = 0, 0 },
	} {
		b := s.batch(rng, 0, 1)
		change(b)
		if err := d.Run(b, &gpu.Result{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := ask(t, replayed) - before; n != 0 {
		t.Errorf("%d graphs were launched", n)
	}
}

func TestStagesThatGrowTakeTheirGraphsWithThem(t *testing.T) {
	useFake(t)
	d, said := openHearing(t, tiny.Model(tiny.Options{Layers: 1}), decodeConfig)
	defer d.Close()
	rng := rand.New(rand.NewPCG(7, 8))
	s := newDecodes(t, d, decodeConfig, rng, 5, 9)
	run := func(b *gpu.Batch) gpu.Result {
		var r gpu.Result
		if err := d.Run(b, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	b := s.batch(rng, 0, 1)
	want := run(b)
	b.History = make([]int32, 1<<16) // which nobody asks for
	if got := run(b); !reflect.DeepEqual(got, want) || len(d.graphs.made) != 1 {
		t.Errorf("%+v, wanted %+v; %d graphs", got, want, len(d.graphs.made))
	}
	for i := range b.Rows {
		b.Rows[i] = gpu.Row{Kind: gpu.Score, Token: int32(i), Span: int32(i), Top: mostTop, Mask: -1}
	}
	run(b)
	if said.Len() > 0 {
		t.Error(said.String())
	}
}

func TestWhereAStepCannotBeCapturedItsKernelsAreLaunchedOneByOne(t *testing.T) {
	useFake(t)
	defer t.Setenv("FAKE_CUDA_FAIL", "")
	o := tiny.Options{Layers: 1, Type: gguf.Q8_0}
	first := func(fail string) (gpu.Result, *bytes.Buffer, int) {
		before := ask(t, liveObjects)
		d, said := openHearing(t, tiny.Model(o), decodeConfig)
		rng := rand.New(rand.NewPCG(9, 9))
		s := newDecodes(t, d, decodeConfig, rng, 5, 9)
		b := s.batch(rng, 0, 1)
		began := ask(t, calls)
		var r gpu.Result
		if fail != "" {
			t.Setenv("FAKE_CUDA_FAIL", fail)
		}
		for range 2 {
			if err := d.Run(b, &r); err != nil {
				t.Errorf("%s: %v", fail, err)
			}
		}
		n := ask(t, calls) - began
		t.Setenv("FAKE_CUDA_FAIL", "")
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		noneLeft(t, before)
		return r, said, n
	}
	want, said, n := first("")
	if said.Len() > 0 {
		t.Error(said.String())
	}
	capturing := n - 2*5 // of two steps
	for i := range capturing {
		// Before it are that of the context and that of the copy.
		got, said, _ := first(fmt.Sprintf("capture %d:%d:%d", i, 3+i, driver.OutOfMemory))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("call %d of capturing fails: %+v, wanted %+v", i, got, want)
		}
		if strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), "kernel by kernel") || !strings.Contains(said.String(), "out of memory") {
			t.Errorf("call %d of capturing fails, and the device says %q", i, said)
		}
	}
}

func TestTheStandInCapturesByTheDriversRules(t *testing.T) {
	useFake(t)
	d := open(t, tiny.Options{Layers: 1}, small)
	defer d.Close()
	defer inContext(t, d)()
	launch := func() error {
		return d.module.launch(d.copyBlock, shape{x: 1, threads: 32}, d.cache.numbers.at, 0, 0, 0, 0)
	}
	const unsupported, invalidated, illegalState = driver.Error(900), driver.Error(901), driver.Error(401)
	other, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Destroy()
	for what, c := range map[string]struct {
		do         func() error
		want, then error
	}{
		"waiting":             {func() error { return driver.Explain(d.stream.Synchronize()) }, unsupported, invalidated},
		"waiting for all":     {func() error { return driver.Explain(cu.Synchronize()) }, unsupported, invalidated},
		"allocating":          {func() error { _, err := cu.MemAlloc(16); return driver.Explain(err) }, unsupported, invalidated},
		"capturing once more": {func() error { _, err := driver.Capture(d.stream, launch); return err }, illegalState, nil},
		"another stream":      {func() error { return driver.Explain(other.Synchronize()) }, nil, nil},
	} {
		g, err := driver.Capture(d.stream, func() error {
			if err := launch(); err != nil {
				t.Errorf("%s: a launch: %v", what, err)
			}
			if err := c.do(); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, wanted %v", what, err, c.want)
			}
			if err := launch(); !errors.Is(err, c.then) {
				t.Errorf("%s: a launch afterwards: %v, wanted %v", what, err, c.then)
			}
			return nil
		})
		if !errors.Is(err, c.then) {
			t.Errorf("%s: the capture ends with %v, wanted %v", what, err, c.then)
		}
		if err == nil {
			if err := errors.Join(g.Launch(d.stream), d.wait("a graph"), g.Destroy()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := errors.Join(launch(), d.wait("a launch")); err != nil {
			t.Errorf("%s: after the capture: %v", what, err)
		}
	}
}

func TestMemoryThatGraphsMayTakeIsSetAside(t *testing.T) {
	useFake(t)
	t.Setenv("FAKE_CUDA_MEMORY", fmt.Sprint(24<<20))
	c := decodeConfig
	c.MaxSeqs, c.MaxTokens, c.MaxContext = 100, 100, 3000 // more than there is memory for
	m := tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0})
	var said bytes.Buffer
	blocks := 0
	for _, graphs := range []string{"on", "off"} {
		t.Setenv(GraphsVariable, graphs)
		d := openModel(t, m, c, Options{Utilization: 1, Logger: slog.New(slog.NewTextHandler(&said, nil))})
		rng := rand.New(rand.NewPCG(1, 1))
		s := newDecodes(t, d, c, rng, 2, 5, 9)
		for _, which := range [][]int{{0}, {0, 1}, {0, 1, 2}} {
			if err := d.Run(s.batch(rng, which...), &gpu.Result{}); err != nil {
				t.Error(err)
			}
		}
		if len(d.graphs.made) != 3 && graphs == "on" {
			t.Errorf("%d graphs", len(d.graphs.made))
		}
		if n := d.Info().NumBlocks; graphs == "on" {
			blocks = n
		} else if more := int64(n-blocks) * d.Info().BlockBytes; more <= 0 {
			t.Errorf("without graphs the cache is larger by %d bytes", more)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if said.Len() > 0 {
		t.Error(said.String())
	}
}
