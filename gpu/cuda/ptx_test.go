package cuda

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

var (
	ptxShared = regexp.MustCompile(`^\s*\.shared \.align (\d+) \.\w+ (\w+)`)
	ptxVector = regexp.MustCompile(`\b(?:ld|st)(?:\.\w+)*?\.shared\.v([24])\.[bfu]32|\bcp\.async\.cg`)
)

// The stand-in runs on processors that read from any address; a GPU does not.
func TestSharedMemoryIsAlignedForItsWidestAccess(t *testing.T) {
	for name, least := range map[string]int{"kernels/troupe.ptx": 15, "kernels/troupe_80.ptx": 15} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		wide := 0
		for _, kernel := range strings.Split(string(text), ".entry ")[1:] {
			title, _, _ := strings.Cut(kernel, "(")
			widest := 0
			aligned := map[string]int{}
			for line := range strings.Lines(kernel) {
				if m := ptxShared.FindStringSubmatch(line); m != nil {
					aligned[m[2]], _ = strconv.Atoi(m[1])
				}
				if m := ptxVector.FindStringSubmatch(line); m != nil {
					bytes := 16
					if m[1] == "2" {
						bytes = 8
					}
					widest = max(widest, bytes)
				}
			}
			if widest > 8 && len(aligned) > 0 {
				wide++
			}
			for variable, at := range aligned {
				if at < widest {
					t.Errorf("%s: %s reads or writes %d bytes of shared memory at once, and %s begins at any multiple of %d", name, title, widest, variable, at)
				}
			}
		}
		if wide < least {
			t.Errorf("%s: only %d kernels with accesses of 16 bytes are found", name, wide)
		}
	}
}
