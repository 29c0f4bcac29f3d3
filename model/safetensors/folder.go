package safetensors

import (
	"os"
	"path/filepath"
	"strings"
)

// The names of a model's files in safetensors.
const (
	SingleName = "model.safetensors"            // all of it
	IndexName  = "model.safetensors.index.json" // the list of its shards
)

// IsWeights says whether a file, by its name, holds weights in safetensors or lists the files that do.
func IsWeights(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".safetensors.index.json")
}

// IsPickle says whether a file, by its name, holds weights as a pickle. Pickles are not read: one is a program
// that runs when it is loaded.
func IsPickle(name string) bool {
	switch filepath.Ext(name) {
	case ".pt", ".pth", ".ckpt":
		return true
	case ".bin":
		return strings.HasPrefix(name, "pytorch_model") || strings.HasPrefix(name, "model")
	}
	return false
}

// IsFolder says whether a folder looks like a model's in safetensors: it has a config.json or weights.
func IsFolder(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Name() == "config.json" || IsWeights(e.Name()) {
			return true
		}
	}
	return false
}
