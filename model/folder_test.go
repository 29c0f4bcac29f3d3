package model_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
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
			if !slices.Equal(got, c.IDs) {
				t.Errorf("%s: %q: %v, want %v", name, c.Text, got, c.IDs)
				continue
			}
			if text := m.Tokenizer.Decode(got, true); text != c.Decoded {
				t.Errorf("%s: %q: decoded %q, want %q", name, c.Text, text, c.Decoded)
			}
		}
	}
}

func TestAFolderBringsItsChatTemplateAndItsDefaults(t *testing.T) {
	for _, name := range folders {
		m, r := openFolder(t, name)
		x, err := template.Parse(m.Template, template.Options{BOS: m.Tokenizer.Piece(m.Tokenizer.BOS()), EOS: m.Tokenizer.Piece(m.Tokenizer.EOS())})
		if err != nil {
			t.Fatal(err)
		}
		chat := []any{map[string]any{"role": "user", "content": "Hi there"}} // make.py's
		if text, err := x.Render(template.Input{Messages: chat, AddGenerationPrompt: true}); err != nil || text != r.Chat || r.Chat == "" {
			t.Errorf("%s: %q, %v; transformers gives %q", name, text, err, r.Chat)
		}
		g := m.Generation
		if !slices.Contains(g.EOS, m.Tokenizer.EOS()) || g.BOS != m.Tokenizer.BOS() || !g.AddBOS || g.AddEOS {
			t.Errorf("%s: %+v", name, g)
		}
		// Of the two only llama's generation_config.json says how to sample.
		if said := name == "llama"; (g.Temperature != nil) != said || (g.TopP != nil) != said || said && (*g.Temperature != 0.6 || *g.TopP != 0.9) {
			t.Errorf("%s: %v, %v", name, g.Temperature, g.TopP)
		}
	}
}
