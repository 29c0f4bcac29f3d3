package host

import (
	"fmt"
	"os"
	"strings"
)

// instructions is a set of processor instructions that there are kernels for. All multiplications of a
// device use the same, so that a text does not depend on the shape of a batch.
type instructions int

const (
	portable instructions = iota // Go
	avx2                         // x86-64-v3: AVX2, FMA and F16C
	avx512                       // x86-64-v4 and VNNI: AVX-512 F, BW, DQ, VL and VNNI
)

var instructionNames = []string{portable: "portable", avx2: "avx2", avx512: "avx512"}

func (i instructions) String() string { return instructionNames[i] }

// CPUVariable is the environment variable that chooses the instructions by name, for tests and to
// compare: "portable", "avx2" or "avx512".
const CPUVariable = "TROUPE_CPU"

// instructionsHere is the set that this processor has, or the one that CPUVariable names.
func instructionsHere() (instructions, error) {
	return chooseInstructions(os.Getenv(CPUVariable), availableInstructions())
}

// chooseInstructions is the set that the processor has, or the one that is asked for by name.
func chooseInstructions(name string, available []instructions) (instructions, error) {
	if name == "" {
		return available[len(available)-1], nil
	}
	var names []string
	for _, i := range available {
		if i.String() == name {
			return i, nil
		}
		names = append(names, i.String())
	}
	return 0, fmt.Errorf("%s is %q; this processor has kernels for %s", CPUVariable, name, strings.Join(names, ", "))
}
