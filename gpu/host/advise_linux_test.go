package host

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"unsafe"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// pageFlags are those that the kernel has for the memory where b begins, in two letters each.
func pageFlags(t *testing.T, b []byte) []string {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	at, inside := uintptr(unsafe.Pointer(&b[0])), false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var begin, end uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &begin, &end); n == 2 {
			inside = begin <= at && at < end
		}
		if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && inside {
			return strings.Fields(flags)
		}
	}
	t.Skip("the kernel tells no flags of memory")
	return nil
}

func TestLargePagesAreAskedForWeightsAndCache(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil {
		t.Skip("the kernel has no large pages")
	}
	d, err := Open(tiny.Model(tiny.Options{Type: gguf.Q4_1}), gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for name, memory := range map[string][]byte{"packed weights": d.weights.memory, "KV cache": d.cache.memory} {
		if memory == nil { // nothing is packed for these instructions
			continue
		}
		// hg: large pages are asked for; sh: the memory may be shared.
		if flags := " " + strings.Join(pageFlags(t, memory), " ") + " "; !strings.Contains(flags, " hg ") || strings.Contains(flags, " sh ") {
			t.Errorf("%s: the kernel has %q", name, flags)
		}
	}
}

// resident is a figure of the kernel's about this process's memory, in bytes.
func resident(t *testing.T, figure string) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, figure+": %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Skipf("the kernel does not tell %s", figure)
	return 0
}

func TestALargeMatrixLeavesMemoryWhileItIsPacked(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a model of 80 MB")
	}
	path := filepath.Join(t.TempDir(), "large.gguf")
	if err := os.WriteFile(path, tiny.GGUF(tiny.Options{Layers: 1, Width: 512, FFN: 49152, Type: gguf.Q8_0}), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	debug.FreeOSMemory()
	before := resident(t, "VmRSS")
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // VmHWM begins anew
		t.Skip(err)
	}
	d, err := Open(m, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 64, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.weights.memory == nil {
		t.Skip("nothing is packed for these instructions")
	}
	matrix := gguf.Q8_0.RowBytes(512) * 49152
	if most := resident(t, "VmHWM") - before - len(d.weights.memory); most > matrix*2/3 {
		t.Errorf("beside packed weights up to %d MiB were in memory; the largest matrix has %d", most>>20, matrix>>20)
	}
}
