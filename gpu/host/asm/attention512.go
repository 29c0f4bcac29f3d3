package main

import (
	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand" //nolint:staticcheck // operands read as in assembly
)

// attention512 generates those of attention's kernels that gain by registers of 16 lanes: what waits for
// memory anyway, or is of few instructions, is left to AVX2. Lengths in values are multiples of 16.
func attention512(c *build.Context) {
	k := vectors{Context: c, lanes: 16, suffix: "AVX512", constants: map[uint32]Mem{}}
	for _, f := range cacheFormats {
		k.scores(f)
		k.weigh(f)
	}
	k.softmax()
	k.gates()
	k.softcap()
	k.widenKeys()
	k.widenCache()
}
