package template

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/modeltest"
)

func TestSmolLM2sTemplateRendersAsTheReference(t *testing.T) {
	path := modeltest.SmolLM2(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	source, _ := f.Value("tokenizer.chat_template")
	tmpl, err := Parse(source.(string), Options{BOS: "<|im_start|>", EOS: "<|im_end|>"})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("../tokenizer/testdata/prompts.json")
	if err != nil {
		t.Fatal(err)
	}
	var goldens struct {
		Cases []struct {
			Messages json.RawMessage
			Rendered string
		}
	}
	if err := json.Unmarshal(raw, &goldens); err != nil {
		t.Fatal(err)
	}
	rendered := 0
	for _, c := range goldens.Cases {
		if string(c.Messages) == "null" {
			continue // a prompt without a template
		}
		rendered++
		messages, err := Decode(c.Messages)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Render(Input{Messages: messages.([]any), AddGenerationPrompt: true})
		if err != nil || got != c.Rendered {
			t.Errorf("got %q, %v; want %q", got, err, c.Rendered)
		}
	}
	if rendered == 0 {
		t.Error("no cases")
	}
}
