// Package demo is the model inside the binary: troupe-demo, of a million parameters, trained from
// scratch on text that its own generator writes (train/), so that a fresh machine without a network
// has something to serve. docs/demo-model.md says what it can do and what it cannot.
package demo

import (
	_ "embed"

	"github.com/troupe-llm/troupe/model"
)

// Name is the model's name, as its file has it.
const Name = "troupe-demo"

//go:embed troupe-demo.gguf
var file []byte

// Golden is what PyTorch computes from the same weights, as train/export.py writes it:
// devicetest.ParseGoldens reads it.
//
//go:embed testdata/golden.json
var Golden []byte

// Size is the length of the embedded file in bytes.
func Size() int { return len(file) }

// Open opens the embedded model. It needs no Close, and can be opened any number of times: all share
// the weights.
func Open() (*model.Model, error) { return model.Parse(file, Name) }
