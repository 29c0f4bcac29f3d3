package host

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

func TestATypeThatIsNotComputedWithIsNamedWithItsTensor(t *testing.T) {
	// A block of NVFP4 is as large as two of Q4_0.
	file := rebuild(t, tiny.GGUF(tiny.Options{Type: gguf.Q4_0}), nil, func(tensor gguf.Tensor) gguf.Tensor {
		if tensor.Name == "blk.1.ffn_up.weight" {
			tensor.Type = gguf.NVFP4
		}
		return tensor
	})
	m, err := model.Parse(file, "odd")
	if err == nil { // a file's types are known to package model before any device
		_, err = Open(m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 16})
	}
	for _, want := range []string{`tensor "blk.1.ffn_up.weight"`, "NVFP4", "Q4_K_M", "odd"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestTheCacheHasTheBlocksThatMemoryAllows(t *testing.T) {
	m := tiny.Model(tiny.Options{}) // 2 layers, 2 KV heads of 16: 512 bytes a token in float32
	const block = 16 * 512
	for kind, want := range map[gpu.CacheType]int64{gpu.CacheF32: block, gpu.CacheF16: block / 2, gpu.CacheAuto: block / 2} {
		if got := BlockBytes(m, 16, kind); got != want {
			t.Fatalf("a block of 16 tokens has %d bytes in %v, wanted %d", got, kind, want)
		}
	}
	c := gpu.Config{BlockSize: 16, MaxSeqs: 10, MaxTokens: 16, MaxContext: 100, CacheType: gpu.CacheF32} // 7 blocks a sequence
	for _, test := range []struct {
		name             string
		bytes, available int64
		blocks           int
		err              string
	}{
		{"plenty: as much as all sequences need", 0, 1 << 40, 70, ""},
		{"a quarter of what is available", 0, 80 * block, 20, ""},
		{"a quarter that is not enough for one sequence", 0, 24 * block, 0, "one sequence of 100 tokens needs 56.00 KiB of KV cache (7 blocks of 8.00 KiB), but the default KV cache, a quarter of the 192.00 KiB available, is 48.00 KiB"},
		{"unknown memory", 0, 0, 70, ""},
		{"what was given", 33*block + 5, 1 << 40, 33, ""},
		{"more than all sequences need, for cached prefixes", 500 * block, 1 << 40, 500, ""},
		{"given, and not enough for one sequence", 6 * block, 1 << 40, 0, "one sequence of 100 tokens needs 56.00 KiB of KV cache (7 blocks of 8.00 KiB), but the memory given for the KV cache is 48.00 KiB"},
		{"more than there is", 2 << 30, 1 << 30, 0, "a KV cache of 2.00 GiB is wanted, but only 1.00 GiB of memory are available"},
	} {
		c.CacheBytes = test.bytes
		n, err := numBlocks(m, c, test.available)
		switch {
		case test.err == "" && (err != nil || n != test.blocks):
			t.Errorf("%s: %d blocks and %v, wanted %d", test.name, n, err, test.blocks)
		case test.err != "" && (err == nil || !strings.HasPrefix(err.Error(), test.err)):
			t.Errorf("%s: %v, wanted %s", test.name, err, test.err)
		}
	}
	c.CacheBytes = 0
	h, err := Open(m, c)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if i := h.Info(); i.Kind != "host" || i.Name == "" || i.NumBlocks != 70 || i.BlockBytes != block || i.CacheType != "f32" || i.Vocab != tiny.Vocab {
		t.Errorf("%+v", i)
	}
}

func TestAConfigurationThatMakesNoSenseIsRefused(t *testing.T) {
	m := tiny.Model(tiny.Options{})
	good := gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 16}
	for name, set := range map[string]func(*gpu.Config){
		"BlockSize":  func(c *gpu.Config) { c.BlockSize = 0 },
		"MaxSeqs":    func(c *gpu.Config) { c.MaxSeqs = -1 },
		"MaxTokens":  func(c *gpu.Config) { c.MaxTokens = 0 },
		"MaxContext": func(c *gpu.Config) { c.MaxContext = 1 << 30 },
		"CacheBytes": func(c *gpu.Config) { c.CacheBytes = -1 },
		"Threads":    func(c *gpu.Config) { c.Threads = -1 },
		"KV cache":   func(c *gpu.Config) { c.CacheType = 77 },
	} {
		c := good
		set(&c)
		if h, err := Open(m, c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
			if h != nil {
				h.Close()
			}
		}
	}
}

func TestAClosedDeviceLeavesNoGoroutine(t *testing.T) {
	m := tiny.Model(tiny.Options{})
	before := runtime.NumGoroutine()
	for i := range 20 {
		h, err := Open(m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 16, Threads: 1 + i%8})
		if err != nil {
			t.Fatal(err)
		}
		d := &driver{t: t, device: h, config: h.config, free: []int32{0}}
		d.begin()
		d.span(&sequence{tokens: []int32{1, 2, 3}}, 3)
		d.score(2, 0, 0)
		d.run()
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A goroutine that has said that it is done may be counted a moment longer.
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if runtime.NumGoroutine() <= before {
			return
		}
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

func TestADecodeStepAllocatesNothing(t *testing.T) {
	m := tiny.Model(tiny.Options{Width: 288, Heads: 6, KVHeads: 2, FFN: 608, Type: gguf.Q4_1})
	d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 2, MaxTokens: 64, MaxContext: 64, Threads: 2})
	d.begin()
	seqs := []*sequence{{tokens: prompt(m, 30)}, {tokens: prompt(m, 20), slot: 1}}
	for _, s := range seqs {
		d.span(s, len(s.tokens)-1)
	}
	d.run()
	d.begin()
	for i, s := range seqs {
		token := d.span(s, 1)
		d.batch.Rows = append(d.batch.Rows, gpu.Row{Kind: gpu.Sample, Token: token, Span: int32(i), Top: 5, Temperature: 1, TopP: 0.9, Mask: -1})
	}
	d.run()
	// In the best of several tries: what goroutines of earlier tests still allocate counts too.
	n := math.Inf(1)
	for try := 0; try < 5 && n > 0; try++ {
		n = min(n, testing.AllocsPerRun(20, func() { d.run() }))
	}
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAPanicWhileComputingIsAnErrorAndTheEndOfTheDevice(t *testing.T) {
	for _, threads := range []int{1, 3} {
		m := tiny.Model(tiny.Options{})
		d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 64, MaxContext: 64, Threads: threads})
		d.device.weights.layers[1].ffnNorm = nil // breaks all rows of a phase
		d.begin()
		d.span(&sequence{tokens: prompt(m, 40)}, 40)
		d.score(39, 0, 0)
		err := d.device.Run(&d.batch, &d.result)
		if err == nil || !strings.Contains(err.Error(), "panic while computing") || !strings.Contains(err.Error(), "rmsNorm") {
			t.Fatalf("%d threads: %v", threads, err)
		}
		if again := d.device.Run(&d.batch, &d.result); again == nil {
			t.Errorf("%d threads: no error the second time", threads)
		}
	}
}

func TestLogitsThatAreNotFiniteAreAnErrorThatNamesRowAndPosition(t *testing.T) {
	m := tiny.Model(tiny.Options{Type: gguf.F32})
	embedding, err := m.Tensor("token_embd.weight")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 { // the first value of token 7 becomes NaN
		embedding.Data[7*4*m.Config.Width+i] = 0xff
	}
	d := newDriver(t, m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 64, MaxContext: 64, Threads: 2})
	d.begin()
	d.span(&sequence{tokens: []int32{1, 2, 3, 7, 5}}, 5)
	for i := range int32(5) {
		d.score(i, 0, 0)
	}
	err = d.device.Run(&d.batch, &d.result)
	if err == nil || !strings.Contains(err.Error(), "row 3, position 3: the logit of token 0 is NaN") {
		t.Fatal(err)
	}
	// The device computes on: what is broken is the sequence.
	d.begin()
	d.span(&sequence{tokens: []int32{1, 2, 3}}, 3)
	d.score(2, 0, 0)
	if r := d.run(); math.IsNaN(float64(r.Logprobs[0])) {
		t.Error("NaN")
	}
}

func TestAdaptersAreRefused(t *testing.T) {
	d := newDriver(t, tiny.Model(tiny.Options{}), gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 64, MaxContext: 64, Threads: 1})
	d.begin()
	d.span(&sequence{tokens: []int32{1}}, 1)
	d.batch.Spans[0].Adapter = 0
	if err := d.device.Run(&d.batch, &d.result); err == nil || !strings.Contains(err.Error(), "adapter") {
		t.Error(err)
	}
}

func TestAPoolRunsEveryTaskOnceWhateverTheWorkers(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 9} {
		p := newPool(workers)
		h := &Host{}
		for phase := range 300 {
			n := phase % 23
			h.logitOf = make([]int32, n)
			if phase%100 == 99 {
				time.Sleep(2 * time.Millisecond) // let the helpers fall asleep
			}
			if err := p.run(h, n, func(h *Host, worker, i int) {
				if worker < 0 || worker >= workers {
					panic(fmt.Sprint("worker ", worker))
				}
				h.logitOf[i]++
			}); err != nil {
				t.Fatal(err)
			}
			for i, times := range h.logitOf {
				if times != 1 {
					t.Fatalf("%d workers, phase %d: task %d ran %d times", workers, phase, i, times)
				}
			}
		}
		err := p.run(h, 50, func(_ *Host, _, i int) {
			if i == 20 {
				panic("twenty")
			}
		})
		if err == nil || !strings.Contains(err.Error(), "twenty") {
			t.Errorf("%d workers: %v", workers, err)
		}
		if err := p.run(h, 5, func(*Host, int, int) {}); err != nil {
			t.Errorf("%d workers: a phase after a panic: %v", workers, err)
		}
		p.close()
	}
}
