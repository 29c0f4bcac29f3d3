package model

import (
	"fmt"
	"strings"
)

// architecture is what all models of a general.architecture have in common: the differences from
// Llama that no metadata tells, because who wrote the file took them for known.
type architecture struct {
	name   string
	models string // which models have it, for people
	// config has the fields that are the same in every model, and Experts' for a mixture.
	config Config
	mixture
	// scaledEmbedding says that token embeddings are multiplied by √Width.
	scaledEmbedding bool
	// windows says that attention.sliding_window is heeded. Of every windowPeriod layers, all but the last
	// have the window; 0: all layers have it.
	windows      bool
	windowPeriod int
	window       int // where the file is silent
	// noPositionsEvery, if not 0: of so many layers, the last has no positions.
	noPositionsEvery int
	// wideScale is the number of layers of the one model whose attention scale is 1/√(Width/Heads) instead
	// of 1/√HeadDim; 0 for none.
	wideScale int
}

// mixture says whether feed-forwards are mixtures of experts.
type mixture uint8

const (
	noExperts    mixture = iota
	maybeExperts         // if there is an expert_count
	alwaysExperts
)

// The architectures, checked one by one against Hugging Face's implementations (gpu/host/testdata).
var architectures = []architecture{
	{
		name: "llama", models: "Llama 1, 2, 3; Mistral; SmolLM 1 and 2; Mixtral",
		mixture: maybeExperts, windows: true,
		config: Config{Experts: Experts{Normalise: true}},
	},
	{
		name: "qwen2", models: "Qwen 2 and 2.5",
		config: Config{RopeHalves: true, QKVBias: true},
	},
	{
		name: "qwen2moe", models: "Qwen 1.5 and 2 mixtures of experts",
		mixture: alwaysExperts,
		config:  Config{RopeHalves: true, QKVBias: true, Experts: Experts{SharedGate: true}},
	},
	{
		name: "qwen3", models: "Qwen 3",
		config: Config{RopeHalves: true, QKNorm: true},
	},
	{
		name: "qwen3moe", models: "Qwen 3 mixtures of experts",
		mixture: alwaysExperts,
		config:  Config{RopeHalves: true, QKNorm: true, Experts: Experts{Normalise: true}},
	},
	{
		name: "smollm3", models: "SmolLM 3",
		noPositionsEvery: 4,
	},
	{
		name: "phi3", models: "Phi 3, 3.5 and 4",
		windows: true,
		config:  Config{RopeHalves: true, FusedGateUp: true},
	},
	{
		name: "gemma", models: "Gemma 1",
		scaledEmbedding: true,
		config:          Config{RopeHalves: true, Gate: GELU},
	},
	{
		name: "gemma2", models: "Gemma 2",
		scaledEmbedding: true, windows: true, windowPeriod: 2, window: 4096, wideScale: 46,
		config: Config{RopeHalves: true, PostNorm: true, Gate: GELU},
	},
	{
		name: "gemma3", models: "Gemma 3 (text)",
		scaledEmbedding: true, windows: true, windowPeriod: 6, wideScale: 62,
		config: Config{RopeHalves: true, PostNorm: true, QKNorm: true, Gate: GELU, LocalRopeBase: 10000},
	},
}

// Architectures lists the architectures that can be opened, by the names that files have for them.
func Architectures() []string {
	names := make([]string, len(architectures))
	for i := range architectures {
		names[i] = architectures[i].name
	}
	return names
}

// ArchitectureModels says which models have an architecture; "" if it isn't known.
func ArchitectureModels(name string) string {
	if a := findArchitecture(name); a != nil {
		return a.models
	}
	return ""
}

func findArchitecture(name string) *architecture {
	for i := range architectures {
		if architectures[i].name == name {
			return &architectures[i]
		}
	}
	return nil
}

// unknownArchitecture is what an error says of a name that isn't known.
func unknownArchitecture(name string) string {
	return fmt.Sprintf("%q is not supported; supported: %s", name, strings.Join(Architectures(), ", "))
}
