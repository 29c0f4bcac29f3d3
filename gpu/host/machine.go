package host

import "runtime"

// AvailableMemory is how many bytes this process may still use; 0 when that is not known.
func AvailableMemory() int64 { return availableMemory() }

// ProcessorName is what the processor calls itself; empty when that is not known.
func ProcessorName() string { return processorName() }

// Threads is how many threads a device takes whose gpu.Config names none: GOMAXPROCS, to which Go gives
// the cores of this process or, if that is less, what its control group allows.
func Threads() int { return min(runtime.GOMAXPROCS(0), maxThreads) }

// Instructions is the name of the instruction set that a device computes with here. The error is Open's,
// of a CPUVariable that names none of the processor's.
func Instructions() (string, error) {
	i, err := instructionsHere()
	if err != nil {
		return "", err
	}
	return i.String(), nil
}
