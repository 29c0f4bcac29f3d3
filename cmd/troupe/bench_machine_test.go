package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu/host"
)

func TestBenchMachineSaysWhatWasMeasured(t *testing.T) {
	for _, set := range []string{"", "portable"} {
		t.Setenv(host.CPUVariable, set)
		var stdout, stderr bytes.Buffer
		if code := run([]string{"bench", "machine", "--json", "--threads=1", "--duration=1ms"}, &stdout, &stderr); code != exitOK {
			t.Fatalf("exit status %d: %s", code, stderr.String())
		}
		var got struct {
			Threads      int      `json:"threads"`
			Instructions string   `json:"instructions"`
			Read         float64  `json:"read_bytes_per_second"`
			Operations   *float64 `json:"int8_operations_per_second"`
		}
		if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
			t.Fatalf("%v in %s", err, stdout.String())
		}
		if want, _ := host.Instructions(); got.Threads != 1 || got.Instructions != want || got.Read <= 0 || (got.Operations == nil) != (want == "portable") {
			t.Errorf("%s", stdout.String())
		}
	}
}

func TestBenchMachineRefusesWhatCannotBeMeasured(t *testing.T) {
	for flag, value := range map[string]string{"--threads": "-1", "--duration": "0s"} {
		var stdout, stderr bytes.Buffer
		if code := run([]string{"bench", "machine", flag + "=" + value}, &stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), flag) {
			t.Errorf("%s %s: exit status %d, %s", flag, value, code, stderr.String())
		}
	}
}
