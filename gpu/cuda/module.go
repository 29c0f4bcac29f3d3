//go:build cuda && cgo && linux && (amd64 || arm64)

package cuda

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/troupe-llm/troupe/gpu/cuda/driver"
)

//go:embed kernels/troupe.ptx
var ptx string

// kernel is a function of the module.
type kernel struct {
	name       string
	function   cu.Function
	parameters int
}

// module is the kernels, as the driver has compiled them for a GPU.
type module struct {
	handle  cu.Module
	kernels map[string]*kernel
	stream  cu.Stream
	// A launch's parameters: the values, and where they are.
	values [24]uint64
	at     [24]unsafe.Pointer
}

var entry = regexp.MustCompile(`\.entry (\w+)\(([^)]*)\)`)

// load has the driver compile the kernels. Launches go to stream.
func (m *module) load(stream cu.Stream) error {
	handle, err := cu.LoadData(ptx)
	if err != nil {
		return fmt.Errorf("the driver does not take the kernels: %w", driver.Explain(err))
	}
	m.handle, m.stream, m.kernels = handle, stream, map[string]*kernel{}
	for i := range m.at {
		m.at[i] = unsafe.Pointer(&m.values[i])
	}
	for _, e := range entry.FindAllStringSubmatch(ptx, -1) {
		f, err := handle.Function(e[1])
		if err != nil {
			return fmt.Errorf("kernel %s: %w", e[1], driver.Explain(err))
		}
		m.kernels[e[1]] = &kernel{e[1], f, strings.Count(e[2], ".param")}
	}
	return nil
}

// kernel finds a kernel.
func (m *module) kernel(name string) (*kernel, error) {
	k := m.kernels[name]
	if k == nil {
		return nil, fmt.Errorf("there is no kernel %s", name)
	}
	return k, nil
}

// shape is a launch's blocks, threads a block, and bytes of shared memory a block.
type shape struct{ x, y, z, threads, shared int }

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
