package host

import (
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model/tiny"
)

// onEach runs f for each of the processor's instruction sets, on devices that f opens.
func onEach(t *testing.T, f func(t *testing.T, cpu instructions)) {
	for _, cpu := range availableInstructions() {
		t.Run(cpu.String(), func(t *testing.T) {
			t.Setenv(CPUVariable, cpu.String())
			f(t, cpu)
		})
	}
}

func TestInstructionsAreTheBestUnlessOthersAreAskedFor(t *testing.T) {
	both := []instructions{portable, avx2}
	all := []instructions{portable, avx2, avx512}
	for _, test := range []struct {
		name      string
		available []instructions
		want      instructions
		err       string
	}{
		{"", both, avx2, ""},
		{"", both[:1], portable, ""},
		{"", all, avx512, ""},
		{"portable", both, portable, ""},
		{"avx2", all, avx2, ""},
		{"avx512", all, avx512, ""},
		{"avx2", both, avx2, ""},
		{"avx2", both[:1], 0, `TROUPE_CPU is "avx2"; this processor has kernels for portable`},
		{"AVX512", both, 0, `TROUPE_CPU is "AVX512"; this processor has kernels for portable, avx2`},
		{"avx512", both, 0, `TROUPE_CPU is "avx512"; this processor has kernels for portable, avx2`},
	} {
		got, err := chooseInstructions(test.name, test.available)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%q of %v: %v, %v", test.name, test.available, got, err)
		}
	}
	t.Setenv(CPUVariable, "z80")
	if _, err := Open(tiny.Model(tiny.Options{}), gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 16}); err == nil || !strings.Contains(err.Error(), "z80") {
		t.Error(err)
	}
}
