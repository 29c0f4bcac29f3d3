// Package hf reads a model's folder as Hugging Face's transformers saves it: config.json,
// generation_config.json, tokenizer.json, tokenizer_config.json and weights in safetensors, in one file or
// in several.
//
// What it makes of them is what a GGUF file of the same model has: metadata and tensors by GGUF's names
// (gguf.File), and a tokenizer's specification. So all that comes after, from the checks to the devices,
// knows one description of a model. Weights stay where they are, in the mapped files, unless something is
// to be done to them: rows of queries and keys put in another order, experts stacked, norms widened to
// float32, or all quantised. That is done when a tensor is first asked for.
//
// Whatever is in the folder, errors name the file and, within it, the field. No code of the folder's is
// run, and weights in pickles (.bin, .pt) are not read, since a pickle is a program.
package hf
