package host

// dot is the inner product of x and y, which have the same length: eight partial sums over every
// eighth element, added in a fixed order. Eight additions are in flight at once, which hides their
// latency.
func dot(x, y []float32) float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for len(x) >= 8 && len(y) >= 8 {
		a, b := (*[8]float32)(x), (*[8]float32)(y)
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		s4 += float32(a[4] * b[4])
		s5 += float32(a[5] * b[5])
		s6 += float32(a[6] * b[6])
		s7 += float32(a[7] * b[7])
		x, y = x[8:], y[8:]
	}
	y = y[:len(x)]
	for i := range x {
		s0 += float32(x[i] * y[i])
	}
	return ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7))
}
