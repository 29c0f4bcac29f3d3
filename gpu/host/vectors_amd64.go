package host

import "unsafe"

// vectorsOf are the kernels in the given instructions.
func vectorsOf(i instructions) *vectors {
	switch i {
	case avx512:
		return &avx512Vectors
	case avx2:
		return &avx2Vectors
	}
	return &portableVectors
}

// The kernels in assembly take multiples of 8; what is over is computed by the portable ones, which give
// the same bits. Slices are cut first, so that a length that doesn't fit panics here.
var avx2Vectors = vectors{
	scores: func(dst, q, k []float32, at []int, queries, dim int) {
		if queries > 0 && len(at) > 0 {
			checkColumns(dst, q, k, at, queries, dim)
			scoresAVX2(&dst[0], &q[0], &k[0], &at[0], queries, len(at), dim)
		}
	},
	weigh: func(out, p, v []float32, queries, keys, dim int) {
		if queries > 0 && keys > 0 {
			_, _, _ = out[queries*dim-1], p[(queries-1)*keyTile+keys-1], v[keys*dim-1]
			weighAVX2(&out[0], &p[0], &v[0], queries, keys, dim)
		}
	},
	scoresHalves: func(dst, q []float32, k []uint16, at []int, queries, dim int) {
		if queries > 0 && len(at) > 0 {
			checkColumns(dst, q, k, at, queries, dim)
			scoresHalvesAVX2(&dst[0], &q[0], &k[0], &at[0], queries, len(at), dim)
		}
	},
	weighHalves: func(out, p []float32, v []uint16, queries, keys, dim int) {
		if queries > 0 && keys > 0 {
			_, _, _ = out[queries*dim-1], p[(queries-1)*keyTile+keys-1], v[keys*dim-1]
			weighHalvesAVX2(&out[0], &p[0], &v[0], queries, keys, dim)
		}
	},
	scoresCodes: func(dst, q []float32, k []int8, scales []uint16, at []int, queries, dim int) {
		if queries > 0 && len(at) > 0 {
			checkColumns(dst, q, k, at, queries, dim)
			for _, at := range at {
				_ = scales[(at+keyLanes*dim)/codeBlock-1]
			}
			scoresCodesAVX2(&dst[0], &q[0], &k[0], &scales[0], &at[0], queries, len(at), dim)
		}
	},
	weighCodes: func(out, p []float32, v []int8, scales []float32, queries, keys, dim int) {
		if queries > 0 && keys > 0 {
			_, _, _ = out[queries*dim-1], p[(queries-1)*keyTile+keys-1], v[keys*dim-1]
			_ = scales[(dim/codeBlock-1)*keyPiece+keys-1]
			weighCodesAVX2(&out[0], &p[0], &v[0], &scales[0], queries, keys, dim)
		}
	},
	quantiseCache: func(codes []int8, scales []uint16, x []float32, stride int) {
		if n := len(x) / codeBlock; n > 0 {
			_, _ = codes[n*codeBlock-1], scales[(n-1)*stride]
			quantiseCacheAVX2(&codes[0], &scales[0], &x[0], n, stride)
		}
	},
	widenKeys: func(y []float32, codes []int8, scales []uint16, dim int) {
		_, _, _ = y[keyLanes*dim-1], codes[keyLanes*dim-1], scales[keyLanes*dim/codeBlock-1]
		widenKeysAVX2(&y[0], &codes[0], &scales[0], dim)
	},
	widenCache: func(y []float32, codes []int8, scales []float32, keys, dim int) {
		if keys > 0 {
			_, _, _ = y[keys*dim-1], codes[keys*dim-1], scales[(dim/codeBlock-1)*keyPiece+keys-1]
			widenCacheAVX2(&y[0], &codes[0], &scales[0], keys, dim)
		}
	},
	softmax: func(p []float32, rows, n int, top, sum []float32) {
		if whole := wholeRows(p, rows, n, 8); whole > 0 {
			_, _ = top[rows-1], sum[rows-1]
			softmaxAVX2(&p[0], rows, whole, &top[0], &sum[0])
		}
	},
	mergeAttended: func(all, tile attended, queries, n int) {
		if queries > 0 {
			_, _, _ = all.out[queries*n-1], all.top[queries-1], all.sum[queries-1]
			_, _, _ = tile.out[queries*n-1], tile.top[queries-1], tile.sum[queries-1]
			mergeAttendedAVX2(&all.out[0], &all.top[0], &all.sum[0], &tile.out[0], &tile.top[0], &tile.sum[0], queries, n)
		}
	},
	merge: func(y, x []float32, f, e float32) {
		x = x[:len(y)]
		n := len(y) &^ 7
		if n > 0 {
			mergeAVX2(&y[0], &x[0], f, e, n)
		}
		mergeGo(y[n:], x[n:], f, e)
	},
	scale: func(y, x []float32, f float32) {
		x = x[:len(y)]
		n := len(y) &^ 7
		if n > 0 {
			scaleAVX2(&y[0], &x[0], f, n)
		}
		scaleGo(y[n:], x[n:], f)
	},
	add: func(y, x []float32) {
		x = x[:len(y)]
		n := len(y) &^ 7
		if n > 0 {
			addAVX2(&y[0], &x[0], n)
		}
		add(y[n:], x[n:])
	},
	rmsNorm: rmsNormAVX2,
	rotate: func(v, turns []float32) {
		v = v[:len(turns)]
		n := len(v) &^ 7
		if n > 0 {
			rotateAVX2(&v[0], &turns[0], n)
		}
		rotateGo(v[n:], turns[n:])
	},
	rotateHalves: func(v, turns []float32) {
		n := len(turns) / 2
		a, b, cos, sin := v[:n], v[n:2*n], turns[:n], turns[n:]
		if n &^= 7; n > 0 {
			rotatePairsAVX2(&a[0], &b[0], &cos[0], &sin[0], n)
		}
		rotatePairsGo(a[n:], b[n:], cos[n:], sin[n:])
	},
	swiGLU: func(y, gate, up []float32) {
		gate, up = gate[:len(y)], up[:len(y)]
		n := len(y) &^ 7
		if n > 0 {
			swiGLUAVX2(&y[0], &gate[0], &up[0], n)
		}
		swiGLUGo(y[n:], gate[n:], up[n:])
	},
	geGLU: func(y, gate, up []float32) {
		gate, up = gate[:len(y)], up[:len(y)]
		n := len(y) &^ 7
		if n > 0 {
			geGLUAVX2(&y[0], &gate[0], &up[0], n)
		}
		geGLUGo(y[n:], gate[n:], up[n:])
	},
	softcap: func(x []float32, c float32) {
		n := len(x) &^ 7
		if n > 0 {
			softcapAVX2(&x[0], c, -2/c, n)
		}
		softcapGo(x[n:], c)
	},
	prefetch:  func(p unsafe.Pointer, n int) { prefetchAVX2((*byte)(p), n) },
	gatePiece: 4096,
	widen: func(y []float32, x []uint16) {
		x = x[:len(y)]
		n := len(y) &^ 7
		if n > 0 {
			widenAVX2(&y[0], &x[0], n)
		}
		widenGo(y[n:], x[n:])
	},
	narrow: func(y []uint16, x []float32) {
		x = x[:len(y)]
		n := len(y) &^ 7
		if n > 0 {
			narrowAVX2(&y[0], &x[0], n)
		}
		narrowGo(y[n:], x[n:])
	},
}

// checkColumns panics unless there are all keys and queries that a kernel for scores reads, and room for what it
// writes.
func checkColumns[T any](dst, q []float32, k []T, at []int, queries, dim int) {
	_, _ = dst[(queries-1)*keyTile+keyLanes*len(at)-1], q[queries*dim-1]
	for _, at := range at {
		_ = k[at+keyLanes*dim-1]
	}
}

// wholeRows fills rows of n scores up to a multiple of lanes, which it returns, with what adds nothing to a sum.
func wholeRows(p []float32, rows, n, lanes int) int {
	whole := (n + lanes - 1) &^ (lanes - 1)
	for i := range rows {
		for j := n; j < whole; j++ {
			p[i*keyTile+j] = negativeInfinity
		}
	}
	if rows < 1 || whole < 1 {
		return 0
	}
	_ = p[(rows-1)*keyTile+whole-1]
	return whole
}

func rmsNormAVX2(y, x, weight []float32, eps float32) {
	y, weight = y[:len(x)], weight[:len(x)]
	n := len(x) &^ 7
	var sums [8]float64
	if n > 0 {
		squaresAVX2(&sums, &x[0], n)
	}
	squaresGo(&sums, x[n:])
	f := normScale(&sums, len(x), eps)
	if n > 0 {
		normaliseAVX2(&y[0], &x[0], &weight[0], f, n)
	}
	normaliseGo(y[n:], x[n:], weight[n:], f)
}
