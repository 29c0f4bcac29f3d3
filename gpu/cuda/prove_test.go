//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/bench/prove"
	"github.com/troupe-llm/troupe/gpu/cuda"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// What a machine with a GPU will be asked, the stand-in is asked here.
func TestTheDeviceIsProvedOnTheStandIn(t *testing.T) {
	cuda.UseFake(t)
	if testing.Short() {
		t.Skip("-short: the stand-in computes for a minute")
	}
	s, err := prove.CUDA()
	if err != nil {
		t.Fatal(err)
	}
	m := tiny.Model(tiny.Options{Layers: 1, Type: gguf.Q8_0})
	r, err := prove.Run(context.Background(), prove.Options{Subject: s, Model: m, Name: "tiny", Quick: true, Budget: time.Hour, Progress: func(text string) { t.Log(text) }})
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	t.Log(table.String())
	if !r.OK || r.Device != "cuda" || r.FaultTest.Opened != 2 || r.Limits.BytesPerSecond != 64e9 {
		t.Errorf("%+v", r)
	}
	if len(r.Speeds) != 1 || len(r.Speeds[0].Decode) != 4 || len(r.Speeds[0].Prefill) != 2 {
		t.Fatalf("%+v; left out: %q", r.Speeds, r.LeftOut)
	}
	for _, v := range append(r.Speeds[0].Decode, r.Speeds[0].Prefill...) {
		if v.HostShare == nil || *v.HostShare <= 0 || *v.HostShare > 1 {
			t.Errorf("%d tokens: the processor's part is %v", v.Tokens, v.HostShare)
		}
	}
}
