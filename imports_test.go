package troupe

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/troupe-llm/troupe/"

// rank orders the top-level folders: one may import itself and what ranks below it.
var rank = map[string]int{"lifecycle": 0, "model": 1, "gpu": 2, "actors": 3, "transport": 4, "bench": 5, "cmd": 6}

// forbidden lists, for folders that must stay ignorant of something, the imports that would break
// that.
var forbidden = map[string][]string{
	"lifecycle":    {"time", "os", "io", "net", "sync", "context", "math/rand", "log", "github.com/", "go.yaml.in/"},
	"actors/batch": {"time", "os", "io", "net", "sync", "context", "math/rand", "log", "github.com/asynkron", "github.com/valyala"},
	"model":        {"github.com/asynkron", "github.com/valyala"},
	"gpu":          {"github.com/asynkron", "github.com/valyala", "net"},
	"actors":       {"github.com/valyala", "net"},
}

func TestImportsPointOneWay(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		path = filepath.ToSlash(path)
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || !strings.Contains(path, "/") {
			return nil
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		top, _, _ := strings.Cut(path, "/")
		mine, known := rank[top]
		if !known {
			t.Errorf("%s: the folder %s has no place in the order of imports: see rank", path, top)
		}
		for _, spec := range f.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			if rest, ours := strings.CutPrefix(imp, module); ours {
				other, _, _ := strings.Cut(rest, "/")
				if theirs, known := rank[other]; !known || theirs > mine {
					t.Errorf("%s imports %s: imports point from %s only to what lies below it", path, rest, top)
				}
				continue
			}
			for folder, bad := range forbidden {
				if path != folder && !strings.HasPrefix(path, folder+"/") {
					continue
				}
				// model/fetch is where models come from: the one place below transport that talks to a network.
				if strings.HasPrefix(path, "model/fetch/") {
					continue
				}
				for _, b := range bad {
					if imp == b || strings.HasPrefix(imp, strings.TrimSuffix(b, "/")+"/") {
						t.Errorf("%s imports %s: %s must not know of it", path, imp, folder)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Errorf("only %d files were looked at", files)
	}
}
