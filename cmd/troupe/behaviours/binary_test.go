package behaviours

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

var built struct {
	sync.Once
	dir, path string
	err       error
}

// binary builds the command, once.
func binary(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "troupe-behaviours-"); built.err != nil {
			return
		}
		built.path = filepath.Join(built.dir, "troupe")
		if runtime.GOOS == "windows" {
			built.path += ".exe"
		}
		if out, err := exec.Command("go", "build", "-o", built.path, "github.com/troupe-llm/troupe/cmd/troupe").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("building the command: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

func removeBinary() {
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}

// alone runs the calling test in a process of its own, where the heap holds nothing of other tests, and
// says whether this is that process.
func alone(t *testing.T) bool {
	t.Helper()
	const key = "TROUPE_BEHAVIOURS_ALONE"
	if os.Getenv(key) != "" {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.timeout=10m"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), key+"=1")
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "===") {
			t.Log(line)
		}
	}
	if err != nil {
		t.Errorf("in a process of its own: %v", err)
	}
	return false
}
