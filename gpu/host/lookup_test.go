package host

import (
	"math/rand/v2"
	"testing"
)

func benchWeights(rows, cols, block int, scales ...int) []byte {
	w := make([]byte, rows*cols/32*block)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range w {
		w[i] = byte(rng.Uint32())
	}
	for i := 0; i < len(w); i += block {
		for _, s := range scales {
			w[i+s+1] = w[i+s+1]&0xa3 | 0x20 // a normal half
		}
	}
	return w
}

func BenchmarkLookup(b *testing.B) {
	const rows, cols = 1536, 576
	acc, acc2 := make([]float32, rows), make([]float32, rows)
	var f, f2 fixed
	for i := range f.values {
		f.values[i], f2.values[i] = int32(i)*1000, int32(i)*-1001
	}
	f.scale, f2.scale = 1e-3, 1e-3
	var t pairTable
	var t2 pairTables
	var t8 byteTable
	var t82 byteTables
	t.fill(&f, &codesQ4_1)
	t2.fill(&f, &f2, &codesQ4_1)
	t8.fill(&f)
	t82.fill(&f, &f2)
	w41 := benchWeights(rows, cols, 20, 0, 2)
	w40 := benchWeights(rows, cols, 18, 0)
	w80 := benchWeights(rows, cols, 34, 0)
	run := func(name string, n int, f func(k int)) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				for k := range cols / 32 {
					f(k)
				}
			}
			b.ReportMetric(float64(n*rows*cols)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
		})
	}
	run("Q4_0", 1, func(k int) { addQ4_0(acc, w40[k*18:], cols/32*18, &t, &f) })
	run("Q4_0x2", 2, func(k int) { addQ4_0x2(acc, acc2, w40[k*18:], cols/32*18, &t2, &f, &f2) })
	run("Q4_1", 1, func(k int) { addQ4_1(acc, w41[k*20:], cols/32*20, &t, &f) })
	run("Q4_1x2", 2, func(k int) { addQ4_1x2(acc, acc2, w41[k*20:], cols/32*20, &t2, &f, &f2) })
	run("Q8_0", 1, func(k int) { addQ8_0(acc, w80[k*34:], cols/32*34, &t8, &f) })
	run("Q8_0x2", 2, func(k int) { addQ8_0x2(acc, acc2, w80[k*34:], cols/32*34, &t82, &f, &f2) })
	run("fill pairs", 0, func(int) { t.fill(&f, &codesQ4_1) })
	run("fill pairs x2", 0, func(int) { t2.fill(&f, &f2, &codesQ4_1) })
	run("fill bytes", 0, func(int) { t8.fill(&f) })
	run("fill bytes x2", 0, func(int) { t82.fill(&f, &f2) })
	run("quantise", 0, func(int) {
		var x [32]float32
		f.quantise(&x, 22)
	})
}
