package host

// avx512Vectors are the kernels for AVX-512, and those for AVX2 where registers of 16 lanes gain nothing.
// They have the bits of AVX2's.
var avx512Vectors = func() vectors {
	v := avx2Vectors
	v.scores = func(dst, q, k []float32, at []int, queries, dim int) {
		if queries > 0 && len(at) > 0 {
			checkColumns(dst, q, k, at, queries, dim)
			scoresAVX512(&dst[0], &q[0], &k[0], &at[0], queries, len(at), dim)
		}
	}
	v.weigh = func(out, p, v []float32, queries, keys, dim int) {
		if queries > 0 && keys > 0 {
			_, _, _ = out[queries*dim-1], p[(queries-1)*keyTile+keys-1], v[keys*dim-1]
			weighAVX512(&out[0], &p[0], &v[0], queries, keys, dim)
		}
	}
	v.scoresHalves = func(dst, q []float32, k []uint16, at []int, queries, dim int) {
		if queries > 0 && len(at) > 0 {
			checkColumns(dst, q, k, at, queries, dim)
			scoresHalvesAVX512(&dst[0], &q[0], &k[0], &at[0], queries, len(at), dim)
		}
	}
	v.weighHalves = func(out, p []float32, v []uint16, queries, keys, dim int) {
		if queries > 0 && keys > 0 {
			_, _, _ = out[queries*dim-1], p[(queries-1)*keyTile+keys-1], v[keys*dim-1]
			weighHalvesAVX512(&out[0], &p[0], &v[0], queries, keys, dim)
		}
	}
	v.scoresCodes = func(dst, q []float32, k []int8, scales []uint16, at []int, queries, dim int) {
		if queries > 0 && len(at) > 0 {
			checkColumns(dst, q, k, at, queries, dim)
			for _, at := range at {
				_ = scales[(at+keyLanes*dim)/codeBlock-1]
			}
			scoresCodesAVX512(&dst[0], &q[0], &k[0], &scales[0], &at[0], queries, len(at), dim)
		}
	}
	v.weighCodes = func(out, p []float32, v []int8, scales []float32, queries, keys, dim int) {
		if queries > 0 && keys > 0 {
			_, _, _ = out[queries*dim-1], p[(queries-1)*keyTile+keys-1], v[keys*dim-1]
			_ = scales[(dim/codeBlock-1)*keyPiece+keys-1]
			weighCodesAVX512(&out[0], &p[0], &v[0], &scales[0], queries, keys, dim)
		}
	}
	v.softmax = func(p []float32, rows, n int, top, sum []float32) {
		if whole := wholeRows(p, rows, n, 16); whole > 0 {
			_, _ = top[rows-1], sum[rows-1]
			softmaxAVX512(&p[0], rows, whole, &top[0], &sum[0])
		}
	}
	v.swiGLU = func(y, gate, up []float32) {
		gate, up = gate[:len(y)], up[:len(y)]
		n := len(y) &^ 15
		if n > 0 {
			swiGLUAVX512(&y[0], &gate[0], &up[0], n)
		}
		avx2Vectors.swiGLU(y[n:], gate[n:], up[n:])
	}
	v.geGLU = func(y, gate, up []float32) {
		gate, up = gate[:len(y)], up[:len(y)]
		n := len(y) &^ 15
		if n > 0 {
			geGLUAVX512(&y[0], &gate[0], &up[0], n)
		}
		avx2Vectors.geGLU(y[n:], gate[n:], up[n:])
	}
	v.softcap = func(x []float32, c float32) {
		n := len(x) &^ 15
		if n > 0 {
			softcapAVX512(&x[0], c, -2/c, n)
		}
		avx2Vectors.softcap(x[n:], c)
	}
	v.widenKeys = func(y []float32, codes []int8, scales []uint16, dim int) {
		_, _, _ = y[keyLanes*dim-1], codes[keyLanes*dim-1], scales[keyLanes*dim/codeBlock-1]
		widenKeysAVX512(&y[0], &codes[0], &scales[0], dim)
	}
	v.widenCache = func(y []float32, codes []int8, scales []float32, keys, dim int) {
		if keys > 0 {
			_, _, _ = y[keys*dim-1], codes[keys*dim-1], scales[(dim/codeBlock-1)*keyPiece+keys-1]
			widenCacheAVX512(&y[0], &codes[0], &scales[0], keys, dim)
		}
	}
	return v
}()
