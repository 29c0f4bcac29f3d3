//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/cuda/driver"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

var small = gpu.Config{BlockSize: 16, MaxSeqs: 2, MaxTokens: 32, MaxContext: 32}

// life opens a device, computes a step of everything and one of decodes, and closes it. said is what the device
// logs.
func life(m *model.Model) (said string, err error) {
	var log bytes.Buffer
	d, err := Open(m, small, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		return "", err
	}
	b := gpu.Batch{Tokens: []int32{1, 2, 3}, Positions: []int32{0, 1, 2}, Spans: []gpu.Span{{Len: 3, Adapter: -1}}, Blocks: []int32{1, -1}, Stride: 2,
		Copies: []gpu.Copy{{From: 0, To: 1}}, Rows: []gpu.Row{
			{Kind: gpu.Pool, Token: 0}, {Kind: gpu.Score, Token: 1, Top: int32(m.Config.Vocab), Mask: -1}, {Kind: gpu.Sample, Token: 2, TopP: 1, Temperature: 1, Mask: -1}}}
	var r gpu.Result
	err = d.Run(&b, &r)
	if err == nil {
		b = gpu.Batch{Tokens: []int32{4}, Positions: []int32{3}, Spans: []gpu.Span{{Len: 1, Start: 3, Adapter: -1}}, Blocks: []int32{1, -1}, Stride: 2,
			Rows: []gpu.Row{{Kind: gpu.Sample, TopP: 1, Mask: -1}}}
		err = d.Run(&b, &r)
	}
	if err != nil {
		if again := d.Run(&b, &r); again == nil {
			err = errors.Join(err, errors.New("the device computes on after an error"))
		}
	}
	return log.String(), errors.Join(err, d.Close())
}

func TestAnErrorOfAnyCallIsReportedAndNothingLeaks(t *testing.T) {
	useFake(t)
	for _, m := range []*model.Model{tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0}), mixtureOfOneLayer(t)} {
		t.Run(m.Name, func(t *testing.T) { failEachCall(t, m) })
	}
}

func failEachCall(t *testing.T, m *model.Model) {
	for _, code := range []driver.Error{719, driver.OutOfMemory} {
		t.Setenv("FAKE_CUDA_FAIL", fmt.Sprintf("%s, all %d:0:0", m.Name, code))
		if _, err := life(m); err != nil {
			t.Fatal(err)
		}
		n := ask(t, calls)
		if n < 100 {
			t.Fatalf("only %d calls", n)
		}
		without := 0 // lives in which steps could not be captured, and were computed all the same
		for i := 1; i <= n; i++ {
			before := ask(t, liveObjects)
			t.Setenv("FAKE_CUDA_FAIL", fmt.Sprintf("%s, %d of %d:%d:%d", m.Name, i, code, i, code))
			said, err := life(m)
			if err == nil && strings.Contains(said, code.Error()) && strings.Count(said, "\n") == 1 {
				without++
			} else if err == nil || !errors.Is(err, code) || !strings.Contains(err.Error(), "cuda: ") || strings.Contains(err.Error(), "computes on") {
				t.Errorf("call %d of %d fails with %v: %v", i, n, code, err)
			}
			left := 0
			if i == n { // the context itself could not be destroyed
				left = 1
			}
			if live := ask(t, liveObjects) - before; live > left {
				t.Fatalf("call %d of %d fails with %v: %d of the driver's objects are left", i, n, code, live)
			}
		}
		if recovers := !code.Sticky(); recovers != (without > 0) {
			t.Errorf("with %v, %d lives went on without graphs", code, without)
		}
	}
	t.Setenv("FAKE_CUDA_FAIL", "")
	if _, err := life(m); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestAnErrorOfAKernelSticksAndAnyOtherDoesNot(t *testing.T) {
	useFake(t)
	t.Cleanup(func() { // the stand-in forgets its error
		t.Setenv("FAKE_CUDA_FAIL", "over:0:0")
		if _, err := life(tiny.Model(tiny.Options{Layers: 1})); err != nil {
			t.Error(err)
		}
	})
	m := tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0})
	before := ask(t, liveObjects)
	for code, want := range map[driver.Error]struct{ sticky, lost bool }{driver.OutOfMemory: {}, 719: {sticky: true}, 700: {true, true}} {
		d, err := Open(m, small, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("FAKE_CUDA_FAIL", fmt.Sprintf("sticky %d:2:%d", code, code))
		b := gpu.Batch{Tokens: []int32{1}, Positions: []int32{0}, Spans: []gpu.Span{{Len: 1, Adapter: -1}}, Blocks: []int32{1, -1}, Stride: 2,
			Rows: []gpu.Row{{Kind: gpu.Sample, TopP: 1, Mask: -1}}}
		if err := d.Run(&b, &gpu.Result{}); !errors.Is(err, code) || gpu.Sticky(err) != want.sticky {
			t.Errorf("a step with %v: %v, which is sticky: %v", code, err, gpu.Sticky(err))
		}
		if err := d.Close(); (err != nil) != want.lost {
			t.Errorf("closing after %v: %v", code, err)
		}
		d, err = Open(m, small, Options{})
		if gpu.Sticky(err) != want.lost || (err != nil) != want.lost || err != nil && !strings.Contains(err.Error(), "opening the GPU") {
			t.Errorf("opening after %v: %v", code, err)
		}
		if d != nil {
			if err := d.Run(&b, &gpu.Result{}); err != nil {
				t.Errorf("a step after %v: %v", code, err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		t.Setenv("FAKE_CUDA_FAIL", "another:0:0")
		if _, err := life(m); err != nil {
			t.Fatal(err)
		}
	}
	noneLeft(t, before)
}

func TestADriverWithoutAGPUSaysSo(t *testing.T) {
	useFake(t)
	for _, c := range []struct{ variable, value, want string }{
		{"FAKE_CUDA_DEVICES", "0", "finds no GPU"},
		{"FAKE_CUDA_INIT", "100", "there is no GPU"},
		{"FAKE_CUDA_INIT", "803", "reboot"},
		{"FAKE_CUDA_INIT", "46", "CUDA error 46"},
		{"FAKE_CUDA_CAPABILITY", "60", "compute capability 6.0; 7.5 is needed"},
	} {
		t.Run(c.variable+c.value, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			if err := Find(1); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Error(err)
			}
			if _, err := Open(tiny.Model(tiny.Options{}), small, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
	if err := Find(1); err != nil {
		t.Errorf("with a GPU: %v", err)
	}
	if err := Find(2); err == nil || err.Error() != "there is no GPU 1: CUDA's driver finds 1, counted from 0" {
		t.Errorf("two where there is one: %v", err)
	}
	if _, err := Open(tiny.Model(tiny.Options{}), small, Options{Ordinal: 3}); err == nil || !strings.Contains(err.Error(), "there is no GPU 3") {
		t.Error(err)
	}
}

// findOnly makes the test program print what Find says of the machine's own driver.
const findOnly = "TROUPE_TEST_FIND"

func TestAProgramStartsWhereThereIsNoDriver(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), findOnly+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if text := string(out); !strings.Contains(text, "driver is not here") && !strings.Contains(text, "GPU") {
		t.Error(text)
	}
}

func TestAGPUGetsTheKernelsThatItCanRun(t *testing.T) {
	useFake(t) // which refuses those for a later generation
	m := tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0})
	for _, capability := range []string{"75", "80", "90"} {
		t.Setenv("FAKE_CUDA_CAPABILITY", capability)
		if _, err := life(m); err != nil {
			t.Errorf("compute capability %s: %v", capability, err)
		}
	}
	if !strings.Contains(ptx80, ".target sm_80") || !strings.Contains(ptx, ".target sm_75") {
		t.Error("the kernels are for other generations")
	}
}

func TestMemoryDecidesTheNumberOfBlocks(t *testing.T) {
	useFake(t)
	m := tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0})
	for _, kind := range []gpu.CacheType{gpu.CacheAuto, gpu.CacheF32, gpu.CacheQ8_0} {
		if got, want := BlockBytes(m, 7, kind), host.BlockBytes(m, 7, kind); got != want {
			t.Errorf("a block of %v takes %d bytes, on the host %d", kind, got, want)
		}
	}
	before := ask(t, liveObjects)
	c := small
	c.MaxSeqs, c.MaxContext = 1000, 2000
	blocks := func(o Options) (int, error) {
		d, err := Open(m, c, o)
		if err != nil {
			return 0, err
		}
		return d.Info().NumBlocks, d.Close()
	}
	t.Setenv("FAKE_CUDA_MEMORY", fmt.Sprint(64<<20))
	half, err := blocks(Options{Utilization: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := blocks(Options{Utilization: 1})
	if err != nil {
		t.Fatal(err)
	}
	// All that is more with 32 MiB more is blocks.
	if want := 32 << 20 / int(BlockBytes(m, c.BlockSize, c.CacheType)); whole-half < want-1 || whole-half > want+1 {
		t.Errorf("%d blocks with half of 64 MiB, %d with all: %d more, wanted %d", half, whole, whole-half, want)
	}
	c.CacheBytes = 1 << 20
	if n, err := blocks(Options{}); err != nil || n != 1<<20/int(BlockBytes(m, c.BlockSize, c.CacheType)) {
		t.Error(n, err)
	}
	c.CacheBytes = 1 << 10
	if _, err := blocks(Options{}); err == nil || !strings.Contains(err.Error(), "one sequence of 2000 tokens needs") {
		t.Error(err)
	}
	c.CacheBytes = 1 << 30
	if _, err := blocks(Options{}); err == nil || !strings.Contains(err.Error(), "needed are 1.0") || !strings.Contains(err.Error(), "free are 64.00 MiB of 64.00 MiB") {
		t.Error(err)
	}
	c.CacheBytes = 0
	t.Setenv("FAKE_CUDA_MEMORY", fmt.Sprint(1<<18))
	if _, err := blocks(Options{}); err == nil || !strings.Contains(err.Error(), "out of GPU memory: needed are at least") || !strings.Contains(err.Error(), "0.25 MiB") {
		t.Error(err)
	}
	if _, err := blocks(Options{Utilization: 1.5}); err == nil {
		t.Error("a share of 1.5 is taken")
	}
	noneLeft(t, before)
}

func TestADeviceWhoseContextIsResetFailsAndCanBeClosedAndOpenedAgain(t *testing.T) {
	useFake(t)
	before := ask(t, liveObjects)
	m := tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0})
	d := openModel(t, m, small, Options{})
	b := gpu.Batch{Tokens: []int32{1}, Positions: []int32{0}, Spans: []gpu.Span{{Len: 1, Adapter: -1}}, Blocks: []int32{0, -1}, Stride: 2,
		Rows: []gpu.Row{{Kind: gpu.Score, Mask: -1}}}
	var r gpu.Result
	if err := d.Run(&b, &r); err != nil {
		t.Fatal(err)
	}
	if d.Waited() <= 0 {
		t.Error("the device has not waited for the GPU")
	}
	if err := Reset(d); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Run(&b, &r); !errors.Is(err, driver.Error(201)) {
			t.Errorf("after a reset: %v", err)
		}
	}
	if err := Reset(d); err == nil {
		t.Error("a broken device is reset once more")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	noneLeft(t, before)
	if _, err := life(m); err != nil {
		t.Errorf("opened again: %v", err)
	}
}

func TestAGPUIsDescribedByItsAttributes(t *testing.T) {
	useFake(t)
	p, err := Describe(Options{})
	if err != nil {
		t.Fatal(err)
	}
	rate, how := p.MultiplyAdds()
	if p.Name == "" || p.MemoryBytes <= 0 || p.Bandwidth() != 64e9 || rate != 4*1.5e9*2048 || !strings.Contains(how, "9.0") {
		t.Errorf("%+v: %v bytes/s, %v multiply-adds/s (%s)", p, p.Bandwidth(), rate, how)
	}
	if _, err := Describe(Options{Ordinal: 3}); err == nil || !strings.Contains(err.Error(), "there is no GPU 3") {
		t.Error(err)
	}
}

func TestDevicesOnTwoGPUsComputeSideBySide(t *testing.T) {
	useFake(t)
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	if err := Find(2); err != nil {
		t.Fatal(err)
	}
	before := ask(t, liveObjects)
	m := tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0})
	var devices [2]gpu.Device
	for i := range devices {
		devices[i] = openModel(t, m, small, Options{Ordinal: i})
	}
	b := gpu.Batch{Tokens: []int32{1, 2, 3}, Positions: []int32{0, 1, 2}, Spans: []gpu.Span{{Len: 3, Adapter: -1}}, Blocks: []int32{1, -1}, Stride: 2,
		Rows: []gpu.Row{{Kind: gpu.Score, Token: 2, Target: 5, Mask: -1}}}
	var results [2]gpu.Result
	for range 2 {
		for i, d := range devices { // on one thread: each step makes its own context the thread's
			if err := d.Run(&b, &results[i]); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := results[0].Logprobs[0], results[1].Logprobs[0]; a != b || a == 0 {
			t.Errorf("one GPU computes %v, the other %v", a, b)
		}
	}
	if err := devices[0].Close(); err != nil {
		t.Error(err)
	}
	if err := devices[1].Run(&b, &results[1]); err != nil || results[1].Logprobs[0] != results[0].Logprobs[0] {
		t.Errorf("when the other is closed: %v, %v", err, results[1].Logprobs)
	}
	if err := devices[1].Close(); err != nil {
		t.Error(err)
	}
	noneLeft(t, before)
}
