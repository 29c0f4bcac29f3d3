package model_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/template"
)

// folders are the tiny models of hf/testdata/make.py.
var folders = []string{"llama", "mistral"}

// transformersReference is what make.py has noted of a folder.
type transformersReference struct {
	Texts []struct {
		Text    string
		IDs     []int32
		Decoded string
	}
	Chat string
}

func openFolder(t *testing.T, name string) (*model.Model, transformersReference) {
	t.Helper()
	dir := filepath.Join("hf", "testdata", name)
	m, err := model.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	data, err := os.ReadFile(filepath.Join(dir, "reference.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r transformersReference
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return m, r
}

func TestTextsOfAFolderHaveTheTokensThatTransformersGivesThem(t *testing.T) {
	for _, name := range folders {
		m, r := openFolder(t, name)
		if len(r.Texts) < 30 {
			t.Errorf("%s: only %d texts", name, len(r.Texts))
		}
		for _, c := range r.Texts {
			got := m.Tokenizer.Encode(c.Text, true, true)
			if !equalIDs(got, c.IDs) {
				t.Errorf("%s: %q: %v, want %v", name, c.Text, got, c.IDs)
				continue
			}
			if text := m.Tokenizer.Decode(got, true); text != c.Decoded {
				t.Errorf("%s: %q: decoded %q, want %q", name, c.Text, text, c.Decoded)
			}
		}
	}
}

func equalIDs(a, b []int32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestAFolderBringsItsChatTemplateAndItsDefaults(t *testing.T) {
	for _, name := range folders {
		m, r := openFolder(t, name)
		x, err := template.Parse(m.Template, template.Options{BOS: m.Tokenizer.Piece(m.Tokenizer.BOS()), EOS: m.Tokenizer.Piece(m.Tokenizer.EOS())})
		if err != nil {
			t.Fatal(err)
		}
		_ = x
		_ = r
	}
}
