//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu/cuda/driver"
)

// fake is the stand-in for the driver that all tests of this package use, or why there is none.
var fake struct {
	folder string
	err    error
}

func TestMain(m *testing.M) {
	if os.Getenv(findOnly) != "" {
		fmt.Println(Find(1))
		return
	}
	os.Exit(func() int {
		folder, err := os.MkdirTemp("", "troupe-cuda")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(folder)
		fake.folder = folder
		driver.Library = filepath.Join(folder, "libcuda.so.1")
		fake.err = buildFake(driver.Library)
		return m.Run()
	}())
}

// buildFake compiles testdata/driver. CUDA's headers are where cgo finds them.
func buildFake(to string) error {
	compiler := os.Getenv("CXX")
	if compiler == "" {
		compiler = "g++"
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return err
	}
	args := []string{"-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Wno-unknown-pragmas",
		"-Itestdata/driver", "-Ikernels"}
	args = append(args, strings.Fields(os.Getenv("CGO_CFLAGS"))...)
	args = append(args, "-o", to, "testdata/driver/driver.cpp")
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// useFake skips where there is no compiler for the stand-in, outside CI.
func useFake(t testing.TB) {
	t.Helper()
	if errors.Is(fake.err, exec.ErrNotFound) && os.Getenv("CI") == "" {
		t.Skipf("no compiler for the stand-in for CUDA's driver: %v", fake.err)
	}
	if fake.err != nil {
		t.Fatalf("the stand-in for CUDA's driver does not build: %v", fake.err)
	}
	if err := driver.Load(); err != nil {
		t.Fatal(err)
	}
}

// The stand-in's own attributes.
const (
	liveObjects cu.DeviceAttribute = 1000001
	calls       cu.DeviceAttribute = 1000002
	launched    cu.DeviceAttribute = 1000003 // kernels, one by one or into a graph
	replayed    cu.DeviceAttribute = 1000004 // graphs
)

// ask reads one of them.
func ask(t testing.TB, a cu.DeviceAttribute) int {
	t.Helper()
	n, err := cu.Device(0).Attribute(a)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// noneLeft fails if the driver has more objects than before.
func noneLeft(t testing.TB, before int) {
	t.Helper()
	if n := ask(t, liveObjects); n > before {
		t.Errorf("%d of the driver's objects are left", n-before)
	}
}
