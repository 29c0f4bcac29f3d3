//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu/cuda/driver"
)

// The kernels for all GPUs, and those for compute capability 8.0 and later.
var (
	//go:embed kernels/troupe.ptx
	ptx string
	//go:embed kernels/troupe_80.ptx
	ptx80 string
)

// kernel is a function of the module.
type kernel struct {
	name       string
	function   cu.Function
	parameters int
}

// module is the kernels, as the driver has compiled them for a GPU.
type module struct {
	handle  cu.Module
	loaded  bool
	kernels map[string]*kernel // those that were asked for
	stream  cu.Stream
	// A launch's parameters: the values, and where they are.
	values [24]uint64
	at     [24]unsafe.Pointer
}

var entry = regexp.MustCompile(`\.entry (\w+)\(([^)]*)\)`)

// entries are the kernels in the module, and how many parameters they have.
var entries = sync.OnceValue(func() map[string]int {
	all := map[string]int{}
	for _, e := range entry.FindAllStringSubmatch(ptx, -1) {
		all[e[1]] = strings.Count(e[2], ".param")
	}
	return all
})

// load has the driver compile the kernels for a GPU whose compute capability is major and something. Launches go to
// stream.
func (m *module) load(stream cu.Stream, major int) error {
	text := ptx
	if major >= 8 {
		text = ptx80
	}
	handle, err := cu.LoadData(text)
	if err != nil {
		return fmt.Errorf("the driver does not take the kernels: %w", driver.Explain(err))
	}
	m.handle, m.loaded, m.stream, m.kernels = handle, true, stream, map[string]*kernel{}
	for i := range m.at {
		m.at[i] = unsafe.Pointer(&m.values[i])
	}
	return nil
}

// kernel finds a kernel.
func (m *module) kernel(name string) (*kernel, error) {
	if k := m.kernels[name]; k != nil {
		return k, nil
	}
	parameters, ok := entries()[name]
	if !ok {
		return nil, fmt.Errorf("there is no kernel %s", name)
	}
	f, err := m.handle.Function(name)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, driver.Explain(err))
	}
	k := &kernel{name, f, parameters}
	m.kernels[name] = k
	return k, nil
}

// namedKernel is a kernel to be found, and where it goes.
type namedKernel struct {
	to   **kernel
	name string
}

// find finds kernels.
func (m *module) find(all []namedKernel) error {
	for _, k := range all {
		var err error
		if *k.to, err = m.kernel(k.name); err != nil {
			return err
		}
	}
	return nil
}

// threadsFor is how many threads a block has for work on so many values: whole warps, and no more than most.
func threadsFor(values, most int) int { return min(most, max(32, whole(values, 32))) }

// shape is a launch's blocks, threads a block, and bytes of shared memory a block.
type shape struct{ x, y, z, threads, shared int }

// launchOn launches a kernel whose first parameters are the planes of s.
func (m *module) launchOn(s *stack, k *kernel, grid shape, parameters ...uint64) error {
	var all [24]uint64
	for plane, at := range s.planes {
		all[plane] = uint64(at)
	}
	used := planes + copy(all[planes:], parameters)
	return m.launch(k, grid, all[:used]...)
}

// launch puts a kernel on the stream. Its parameters are numbers and addresses; floats are their bits.
func (m *module) launch(k *kernel, s shape, parameters ...uint64) error {
	if len(parameters) != k.parameters {
		return fmt.Errorf("kernel %s has %d parameters, not %d", k.name, k.parameters, len(parameters))
	}
	copy(m.values[:], parameters)
	err := k.function.Launch(s.x, max(1, s.y), max(1, s.z), s.threads, 1, 1, s.shared, m.stream, m.at[:len(parameters)])
	if err != nil {
		return fmt.Errorf("kernel %s, %d × %d × %d blocks of %d: %w", k.name, s.x, max(1, s.y), max(1, s.z), s.threads, driver.Explain(err))
	}
	return nil
}
