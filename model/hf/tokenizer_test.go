package hf

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/troupe-llm/troupe/model/tokenizer"
)

func TestEveryKnownTokenizerGivesTheIDsOfTheLibraryTokenizers(t *testing.T) {
	var golden struct{ Cases []tokenizerCase }
	readJSON(t, filepath.Join("testdata", "tokenizers.json"), &golden)
	if len(golden.Cases) < 13 {
		t.Errorf("%d cases", len(golden.Cases))
	}
	for _, c := range golden.Cases {
		var doc map[string]any
		readJSON(t, filepath.Join("testdata", c.Base, tokenizerName), &doc)
		for key, value := range c.Patch {
			if key == "ignore_merges" {
				doc["model"].(map[string]any)[key] = value
			} else {
				doc[key] = value
			}
		}
		if c.Base == "mistral" {
			doc["added_tokens"].([]any)[3].(map[string]any)["lstrip"] = true
		}
		data, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := readTokenizer(data, 448)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		var reference struct{ Texts []struct{ Text string } }
		readJSON(t, filepath.Join("testdata", c.Base, "reference.json"), &reference)
		if len(reference.Texts) != len(c.IDs) {
			t.Fatalf("%s: %d texts, %d lists of ids", c.Name, len(reference.Texts), len(c.IDs))
		}
		var texts []string
		for _, x := range reference.Texts {
			texts = append(texts, x.Text)
		}
		c.check(t, spec, texts)
	}
}

// tokenizerCase is what a library makes of texts with a patched tokenizer.
type tokenizerCase struct {
	Name, Base string
	Patch      map[string]any
	IDs        [][]int32
	Decoded    []string
}

// check compares that with a tokenizer of Troupe's.
func (c *tokenizerCase) check(t *testing.T, spec tokenizer.Spec, texts []string) {
	t.Helper()
	tok, err := tokenizer.New(spec)
	if err != nil {
		t.Errorf("%s: %v", c.Name, err)
		return
	}
	for i, text := range texts {
		got := tok.Encode(text, true, true)
		if !slices.Equal(got, c.IDs[i]) {
			t.Errorf("%s: %q: %v, want %v", c.Name, text, got, c.IDs[i])
		} else if back := tok.Decode(got, true); back != c.Decoded[i] {
			t.Errorf("%s: %q: decoded %q, want %q", c.Name, text, back, c.Decoded[i])
		}
	}
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		t.Fatal(path, err)
	}
}
