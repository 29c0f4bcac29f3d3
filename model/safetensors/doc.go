// Package safetensors reads the weights of a model in Hugging Face's safetensors format: a header in
// JSON that names tensors, and their bytes. It works over bytes that someone else holds, usually a
// memory-mapped file, and trusts none of them: whatever the bytes, Parse returns an error that names the
// field and its offset rather than panic or allocate beyond a small multiple of the header's own size.
//
// The format is described in README.md of huggingface/safetensors: eight bytes with the header's length,
// the header, and the tensors' bytes, little-endian, in rows, without gaps. A model may lie in several
// such files, which an index names: see ParseIndex.
package safetensors
