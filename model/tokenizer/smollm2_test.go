package tokenizer

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/modeltest"
)

// realSpec reads the tokenizer of the real model's file.
func realSpec(tb testing.TB) Spec {
	tb.Helper()
	path := modeltest.SmolLM2(tb)
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	f, err := gguf.Parse(data)
	if err != nil {
		tb.Fatal(err)
	}
	s := Spec{BOS: -1, EOS: -1, UNK: -1, PAD: -1}
	get := func(key string) any {
		v, ok := f.Value("tokenizer.ggml." + key)
		if !ok {
			tb.Fatalf("%s has no tokenizer.ggml.%s", path, key)
		}
		return v
	}
	s.Kind = get("model").(string)
	s.Pre = get("pre").(string)
	s.Tokens = get("tokens").([]string)
	s.Types = get("token_type").([]int32)
	s.Merges = get("merges").([]string)
	s.BOS = int32(get("bos_token_id").(uint32))
	s.EOS = int32(get("eos_token_id").(uint32))
	return s
}

func realTokenizer(tb testing.TB) *Tokenizer {
	tb.Helper()
	t, err := New(realSpec(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func readJSON(tb testing.TB, path string, v any) {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
}

func TestSmolLM2EncodesAndDecodesAsTheReference(t *testing.T) {
	tok := realTokenizer(t)
	var goldens struct {
		Cases []struct {
			Text     string
			IDs      []int32
			Ordinary *[]int32
			Decoded  *string
		}
	}
	readJSON(t, "testdata/smollm2.json", &goldens)
	if len(goldens.Cases) < 200 {
		t.Fatalf("only %d cases", len(goldens.Cases))
	}
	for _, c := range goldens.Cases {
		if got := tok.Encode(c.Text, false, true); !slices.Equal(got, c.IDs) {
			t.Errorf("%q: got %d, want %d", c.Text, got, c.IDs)
		}
		want := c.IDs
		if c.Ordinary != nil {
			want = *c.Ordinary
		}
		if got := tok.Encode(c.Text, false, false); !slices.Equal(got, want) {
			t.Errorf("%q without special tokens: got %d, want %d", c.Text, got, want)
		}
		text := c.Text
		if c.Decoded != nil {
			text = *c.Decoded
		}
		if got := tok.Decode(c.IDs, true); got != text {
			t.Errorf("decoding %d: got %q, want %q", c.IDs, got, text)
		}
	}
}

func TestSmolLM2PromptsHaveTheReferencesIDs(t *testing.T) {
	tok := realTokenizer(t)
	var goldens struct {
		Cases []struct {
			Rendered  string
			PromptIDs []int32 `json:"prompt_ids"`
		}
	}
	readJSON(t, "testdata/prompts.json", &goldens)
	if len(goldens.Cases) == 0 {
		t.Fatal("no cases")
	}
	for _, c := range goldens.Cases {
		if got := tok.Encode(c.Rendered, true, true); !slices.Equal(got, c.PromptIDs) {
			t.Errorf("%q: got %d, want %d", c.Rendered, got, c.PromptIDs)
		}
	}
}
