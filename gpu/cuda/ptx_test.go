package cuda

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTheCommittedPTXIsOfTheseSources(t *testing.T) {
	// As kernels/build.py does.
	files, err := filepath.Glob("kernels/*.cu*")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	slices.Sort(files)
	sum := sha256.New()
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "\r\n", "\n")
		fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(name), len(text), text)
	}
	for _, name := range []string{"kernels/troupe.ptx", "kernels/troupe_80.ptx"} {
		ptx, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(ptx), "\n")
		if want := fmt.Sprintf("// sources: sha256 %x", sum.Sum(nil)); strings.TrimSpace(first) != want {
			t.Errorf("%s says %q, the sources give %q: run task ptx and commit it", name, first, want)
		}
	}
}
