package host

import (
	"slices"
	"sync"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

func TestDevicesThatShareWeightsComputeAsOneWithItsOwn(t *testing.T) {
	m := tiny.Model(tiny.Options{Width: 288, Heads: 6, KVHeads: 2, FFN: 608, Type: gguf.Q8_0})
	config := gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 16, Threads: 2}
	// scores are of three tokens, as a device computes them.
	scores := func(h *Host) []float32 {
		d := &driver{t: t, device: h, config: h.config, free: []int32{0}}
		d.begin()
		d.span(&sequence{tokens: []int32{1, 2, 3}}, 3)
		for i := range int32(3) {
			d.score(i, 5+i, 0)
		}
		return slices.Clone(d.run().Logprobs)
	}
	own, err := Open(m, config)
	if err != nil {
		t.Fatal(err)
	}
	want := scores(own)
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}

	s := Share(m, 3)
	open := func() *Host {
		h, err := s.Open(config)
		if err != nil {
			t.Error(err)
		}
		return h
	}
	var devices [3]*Host
	var all sync.WaitGroup
	for i := range devices {
		all.Go(func() {
			h := open()
			devices[i] = h
			for range 20 {
				if got := scores(h); !slices.Equal(got, want) {
					t.Errorf("device %d: %v, want %v", i, got, want)
				}
			}
		})
	}
	all.Wait()
	if devices[0].weights != devices[1].weights || devices[1].weights != devices[2].weights {
		t.Error("they have weights of their own")
	}
	for i, h := range devices[:2] {
		if err := h.Close(); err != nil {
			t.Errorf("device %d: %v", i, err)
		}
		if err := h.Close(); err != nil {
			t.Errorf("device %d, once more: %v", i, err)
		}
	}
	devices[0] = open() // as after a fault
	if devices[0].weights != devices[2].weights || !slices.Equal(scores(devices[0]), want) || !slices.Equal(scores(devices[2]), want) {
		t.Error("the weights are not those of before")
	}
	for _, i := range []int{0, 2} {
		if err := devices[i].Close(); err != nil {
			t.Errorf("device %d: %v", i, err)
		}
	}
	if s.weights != nil || s.users != 0 {
		t.Errorf("%d devices have weights when all are closed", s.users)
	}
	last := open()
	if !slices.Equal(scores(last), want) {
		t.Error("the weights are not the same when they are made again")
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
}
