package host

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/troupe-llm/troupe/gpu"
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
