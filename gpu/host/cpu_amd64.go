package host

import "golang.org/x/sys/cpu"

// availableInstructions lists what the processor has, the best last.
func availableInstructions() []instructions {
	list := []instructions{portable}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA { // F16C is older than both, and x/sys/cpu doesn't name it
		list = append(list, avx2)
		// Each of these also says that the operating system keeps the registers.
		if x := &cpu.X86; x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VNNI {
			list = append(list, avx512)
		}
	}
	return list
}
