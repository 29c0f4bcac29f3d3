package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestTheFilesAreWhatTheGeneratorWrites(t *testing.T) {
	for name := range files {
		texts, err := generate(name)
		if err != nil {
			t.Fatal(err)
		}
		for file, want := range texts {
			got, err := os.ReadFile(filepath.Join("..", file))
			if err != nil {
				t.Error(err)
				continue
			}
			// Windows may check files out with its own line endings.
			if got = bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n")); !bytes.Equal(got, want) {
				t.Errorf("%s is not what the generator writes: run go generate ./gpu/host", file)
			}
		}
	}
}
