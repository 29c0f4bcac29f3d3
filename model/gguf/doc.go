// Package gguf reads GGUF, the file format of llama.cpp: typed metadata followed by tensors. It
// works over bytes that someone else holds, usually a memory-mapped file, and trusts none of them:
// whatever the bytes, Parse returns an error that names the field and its offset rather than panic
// or allocate beyond a small multiple of the file's own size.
//
// Versions 2 and 3 in little-endian order are read, as described in docs/gguf.md of
// ggml-org/ggml. Builder writes the same, for tests and for models made up in memory.
package gguf
