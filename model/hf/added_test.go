package hf

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// withConfig is the folder llama's texts with a patch of its tokenizer_config.json.
func withConfig(t *testing.T, patch map[string]any) (*Folder, error) {
	t.Helper()
	dir := filepath.Join("testdata", "llama")
	data, err := read(dir, tokenizerName, maxLong)
	if err != nil {
		t.Fatal(err)
	}
	f := &Folder{}
	if f.Tokenizer, err = readTokenizer(data, 416); err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	readJSON(t, filepath.Join(dir, tokenizerRest), &doc)
	maps.Copy(doc, patch)
	if data, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	s, err := parseSettings(tokenizerRest, data)
	if err != nil {
		t.Fatal(err)
	}
	return f, f.tokenizerConfig(s, &config{settings: &settings{where: configName, values: map[string]any{}}})
}

func TestTokensOfTokenizerConfigAreTakenAsTransformersDoes(t *testing.T) {
	var golden struct {
		Texts []string
		Cases []tokenizerCase
	}
	readJSON(t, filepath.Join("testdata", "added.json"), &golden)
	if len(golden.Cases) < 14 {
		t.Errorf("%d cases", len(golden.Cases))
	}
	for _, c := range golden.Cases {
		f, err := withConfig(t, c.Patch)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		c.check(t, f.Tokenizer, golden.Texts)
	}
}

func TestTokensThatCannotBeTakenAreNamed(t *testing.T) {
	listed := func(id string, token any) map[string]any {
		return map[string]any{"added_tokens_decoder": map[string]any{id: token}}
	}
	object := func(content string, more ...string) map[string]any {
		m := map[string]any{"content": content}
		for _, key := range more {
			m[key] = true
		}
		return m
	}
	for _, c := range []struct {
		patch map[string]any
		want  string
	}{
		{listed("409", object("<new>")), `409: "<new>" is not a token of tokenizer.json, where the next id is 407`},
		{listed("407", object("<new>", "single_word")), `"<new>": single_word is not supported`},
		{listed("x", object("<new>")), `"x" is no token's id`},
		{listed("-1", object("<new>")), `"-1" is no token's id`},
		{listed("407", 3), "neither a string nor an object with content: 3"},
		{listed("407", map[string]any{"content": "<new>", "special": "yes"}), `special is "yes"`},
		{map[string]any{"added_tokens_decoder": []any{}}, "an object is wanted, it is []"},
	} {
		if _, err := withConfig(t, c.patch); err == nil || !strings.Contains(err.Error(), tokenizerRest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.patch, err, c.want)
		}
	}
}

// A model has rows for so many tokens, and what has none can neither be read nor written.
func TestTokensWithoutARowAreLeftOut(t *testing.T) {
	list := map[string]any{}
	for id, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"} {
		list[[]string{"407", "408", "409", "410", "411", "412", "413", "414", "415", "416", "417"}[id]] = map[string]any{"content": "<" + name + ">"}
	}
	if _, err := withConfig(t, map[string]any{"added_tokens_decoder": list}); err == nil {
		t.Fatal("a token whose id is beyond the next one was taken")
	}
	delete(list, "417")
	f, err := withConfig(t, map[string]any{"added_tokens_decoder": list})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.Tokenizer.Tokens); n != 416 || f.Tokenizer.Tokens[415] != "<i>" || slices.Contains(f.Tokenizer.Tokens, "<j>") {
		t.Errorf("%d tokens, the last %q", n, f.Tokenizer.Tokens[n-1])
	}
}
