// Command asm generates the assembly of the CPU device's kernels with avo: go generate ./gpu/host
// runs it. Each entry of files becomes NAME_amd64.s in the folder above or another of the repository, and
// NAME_amd64.go with the functions' declarations.
//
// It is a module of its own so that programs which use the device don't depend on the generator.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

// files says what each pair of files holds.
var files = map[string]func(*build.Context){
	"attention":              attention,
	"attention512":           attention512,
	"gemm":                   gemm,
	"gemm512":                gemm512,
	"../../model/gguf/codes": codes,
}

func main() {
	log.SetFlags(0)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		texts, err := generate(name)
		if err != nil {
			log.Fatal(err)
		}
		for file, text := range texts {
			if err := os.WriteFile(filepath.Join("..", file), text, 0o644); err != nil {
				log.Fatal(err)
			}
		}
	}
}

// generate returns the texts of a pair of files by their names.
func generate(name string) (map[string][]byte, error) {
	c := build.NewContext()
	files[name](c)
	f, err := c.Result()
	if err == nil {
		err = pass.Compile.Execute(f)
	}
	if all := (build.ErrorList)(nil); errors.As(err, &all) {
		err = all[0] // the text of an ErrorList says only how many there are
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	folder, err := filepath.Abs(filepath.Join("..", filepath.Dir(name)))
	if err != nil {
		return nil, err
	}
	config := printer.Config{Name: "gpu/host/asm", Pkg: filepath.Base(folder)}
	text, err := printer.NewGoAsm(config).Print(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	stubs, err := printer.NewStubs(config).Print(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if stubs, err = format.Source(stubs); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return map[string][]byte{name + "_amd64.s": append(bytes.TrimSpace(text), '\n'), name + "_amd64.go": stubs}, nil
}
