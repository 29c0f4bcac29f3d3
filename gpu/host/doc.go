// Package host is the CPU device: every architecture of package model on a pool of worker goroutines, in
// AVX-512 or AVX2 where the processor has one and in portable Go elsewhere.
//
// Weights stay quantised as they are in the file. Portable Go reads them from there, usually a memory map;
// for the others they are copied once, in another order (pack.go). No float copy of a matrix ever exists.
// Activations are float32. The KV cache is paged, of halves, float32, or bytes with a scale for every 32
// of a head's numbers, and outside Go's heap, so that gigabytes of it don't stretch the garbage collector's
// pace.
//
// # Batch invariance
//
// The bits of a position's results depend on the tokens before it and on the model, and on nothing
// else: not on the other sequences of a batch, their order, where a prompt was cut into chunks,
// what came from cached blocks, which blocks they are, or the number of threads. Load, preemption
// and restarts therefore never change a text. It holds because
//   - every sum over a matrix row is made in one order that depends on the matrix alone; kernels
//     for one and for several activation rows do the same operations;
//   - attention goes over keys in tiles of a fixed number of positions, whatever the cache's block
//     size, and puts their results together in order, whichever thread each comes from, beginning with
//     the tile where the position's window does;
//   - every product that is added to something is rounded first, by an explicit conversion, so
//     that no compiler fuses the two in one function and not in another. Assembly multiplies and adds
//     in one instruction in attention's two products, whatever the number of queries and keys, and with
//     AVX-512 in those of matrices.
//
// # Speed
//
// With AVX2, quantised matrices are multiplied as integers: activations are rounded to signed bytes, a
// scale for every 32 of them (octets.go), and one instruction multiplies 32 of them by 8 weight rows × 4
// columns. One activation row, as in decoding, is a matter of how fast weights come from memory; so they
// lie in the order in which they are read, one stream a task. Several share what is loaded, four at a time
// in registers: that is bound by the instructions, some 22 for 32 columns × 8 rows of 4-bit weights.
//
// AVX-512 with VNNI multiplies bytes four at a time into 32-bit sums (asm/gemm512.go), 16 weight rows × 4
// columns in an instruction that takes the activations from memory, so that 12 activation rows share what is
// loaded. What limits it there is the two vector units, which need some 11 operations for 32 columns of a row: 8 of
// them multiply. Attention and gates have kernels of 16 lanes too; all else uses AVX2.
//
// Attention's scores have a key in each lane, and its weighted sums a number of a value, so that neither adds up lanes:
// in both a product needs a load for several queries and one for several vectors, and sums stay in registers, of 6
// queries × 4 vectors with AVX-512. Therefore the cache keeps keys in columns of 16 positions (cache.go).
//
// In portable Go, matrices of Q4_0, Q4_1, Q8_0, IQ4_NL and MXFP4 are multiplied by looking up: for each byte of a block of weights
// all 256 values that it can contribute are tabulated, and then a weight row costs one load and one
// addition per byte (lookup.go). There activations are rounded to fixed point, block by block, nearly as
// finely as float32 sums are, so that sums are of integers. All other types are dequantised a few rows
// at a time and multiplied as floats (dot.go).
//
// # Assembly
//
// asm is a program that writes the files that end in _amd64.s, with avo. Each of their functions has a
// twin in Go that the tests hold it to, bit for bit. Attention's products have theirs in the tests, since
// Go has no fused float32 arithmetic; the portable ones (vectors.go) round once more.
package host

//go:generate go -C asm run .
