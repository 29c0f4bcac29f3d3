package host

import "golang.org/x/sys/cpu"

// availableInstructions lists what the processor has, the best last.
func availableInstructions() []instructions {
	list := []instructions{portable}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA { // F16C is older than both, and x/sys/cpu doesn't name it
		list = append(list, avx2)
	}
	return list
}
