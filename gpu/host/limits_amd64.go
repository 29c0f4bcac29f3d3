package host

// probesOf are what measures the given instructions.
func probesOf(i instructions) probes {
	p := probes{read: func(x []uint64) uint64 {
		if len(x) == 0 {
			return 0
		}
		return readAVX2(&x[0], len(x))
	}}
	switch i {
	case avx512:
		p.multiply, p.products = peakAVX512, 64
	case avx2:
		p.multiply, p.products = peakAVX2, 32
	default:
		p.read = readGo
	}
	return p
}
