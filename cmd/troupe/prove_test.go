package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu/cuda"
)

func TestTheCPUDeviceIsProvedByAProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it computes for some seconds")
	}
	file := filepath.Join(t.TempDir(), "proof.json")
	code, out, errs := invoke(t, "prove", "../../model/demo/troupe-demo.gguf", "--quick", "--device", "cpu", "--json", file)
	if code != exitOK {
		t.Fatalf("exit %d\n%s\n%s", code, out, errs)
	}
	for _, want := range []string{"conformance", "goldens", "fault", "decode 8", "prefill 256", "serving", "H200", "proved: "} {
		if !strings.Contains(out, want) {
			t.Errorf("the table does not have %q:\n%s", want, out)
		}
	}
	if !strings.Contains(errs, "the suite of all devices") {
		t.Errorf("nothing tells how it goes on: %s", errs)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		OK          bool `json:"ok"`
		SpeedOK     bool `json:"speed_ok"`
		Version     string
		Device      string
		Model       string
		Limits      map[string]any
		Conformance struct{ Passed, Failed int }
		Goldens     struct{ Passed, Skipped int }
		Fault       struct{ Passed int }
		Speeds      []struct{ Decode, Prefill []map[string]any }
		Serving     []map[string]any
		Targets     []map[string]any
		LeftOut     []string `json:"left_out"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if !r.OK || r.SpeedOK || r.Version == "" || r.Device != "cpu" || r.Model != "troupe-demo" || r.Conformance.Passed < 15 || r.Conformance.Failed > 0 || r.Goldens.Passed != 1 ||
		r.Goldens.Skipped != 1 || r.Fault.Passed != 1 || len(r.Speeds) != 1 || len(r.Speeds[0].Decode) != 4 || len(r.Speeds[0].Prefill) != 2 || len(r.Serving) != 2 ||
		len(r.Targets) != 5 || len(r.LeftOut) < 2 || r.Limits["bytes_per_second"] == 0 {
		t.Errorf("%s", b)
	}
}

func TestAProofThatCannotBeginSaysWhy(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--budget", "10ms"}, exitUsage, "--budget"},
		{[]string{"--parts", "goldens,luck"}, exitUsage, `"luck"`},
		{[]string{"--parts", ""}, exitUsage, "--parts"},
		{[]string{"--device", "sim"}, exitUsage, "--device"},
		{[]string{"--goldens", "there-is-none.json"}, exitUsage, "--goldens"},
		{[]string{"--goldens", "prove_test.go"}, exitUsage, "--goldens"},
		{[]string{"--json", "no/such/folder/proof.json"}, exitUsage, "--json"},
		{[]string{"no-such-model.gguf"}, exitError, "no-such-model"},
	} {
		code, out, errs := invoke(t, append([]string{"prove", "--quick"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%q: exit %d\n%s\n%s", c.args, code, out, errs)
		}
	}
	if !cuda.Built {
		if code, _, errs := invoke(t, "prove", "--device", "cuda"); code != exitError || !strings.Contains(errs, "built without CUDA") {
			t.Errorf("exit %d: %s", code, errs)
		}
	}
}
