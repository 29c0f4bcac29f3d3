package hf

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
)

// text reads what a folder says of texts: the tokenizer, the template of chats, and how a text is to be
// sampled and to end.
func (f *Folder) text(dir string, c *config) error {
	data, err := read(dir, tokenizerName, maxLong)
	if errors.Is(err, os.ErrNotExist) {
		return noTokenizer(dir)
	}
	if err != nil {
		return err
	}
	if f.Tokenizer, err = readTokenizer(data, c.vocab); err != nil {
		return err
	}
	s, err := optional(dir, tokenizerRest)
	if err != nil {
		return err
	}
	if err := f.tokenizerConfig(s, c); err != nil {
		return err
	}
	// A file of its own comes before the setting.
	if data, err = read(dir, templateName, maxSettings); err == nil {
		f.Template = string(data)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if s, err = optional(dir, generationName); err != nil {
		return err
	}
	return f.generation(s, c)
}

// optional reads a file of settings, of which one that is missing has none.
func optional(dir, name string) (*settings, error) {
	data, err := read(dir, name, maxSettings)
	if errors.Is(err, os.ErrNotExist) {
		return &settings{where: name}, nil
	}
	if err != nil {
		return nil, err
	}
	return parseSettings(name, data)
}

// noTokenizer is the error of a folder without tokenizer.json.
func noTokenizer(dir string) error {
	_, all := weightFiles(dir)
	for _, other := range []string{"tokenizer.model", "vocab.json", "tekken.json"} {
		if slices.Contains(all, other) {
			return fmt.Errorf("%s is missing, and %s is not read: make it with transformers, by AutoTokenizer.from_pretrained and save_pretrained, or take it from another version of the model", tokenizerName, other)
		}
	}
	return fmt.Errorf("%s is missing: it comes with the weights from where they were downloaded", tokenizerName)
}

// token reads a token's spelling, which is a string, or an object with it; "" for none.
func (s *settings) token(key string) string {
	if m, ok := s.values[key].(map[string]any); ok {
		text, ok := m["content"].(string)
		if !ok {
			s.fail(key, "an object without content: %s", shown(m))
		}
		return text
	}
	return s.stringOr(key, "")
}

// tokenizerConfig takes from tokenizer_config.json more tokens, which of them begin and end a text, and the
// template.
func (f *Folder) tokenizerConfig(s *settings, c *config) error {
	if f.addedTokens(s); s.err != nil {
		return s.err
	}
	t := &f.Tokenizer
	for _, x := range []struct {
		key string
		id  *int32
	}{{"bos_token", &t.BOS}, {"eos_token", &t.EOS}, {"pad_token", &t.PAD}} {
		text := s.token(x.key)
		if text == "" || s.err != nil {
			continue
		}
		id := int32(slices.Index(t.Tokens, text))
		added := x.id == &t.BOS && t.AddBOS || x.id == &t.EOS && t.AddEOS
		switch {
		case id < 0 && x.id != &t.PAD:
			s.fail(x.key, "%q is not a token of %s", text, tokenizerName)
		case added && id != *x.id:
			s.fail(x.key, "%q is not %q, which the post_processor of %s puts there", text, t.Tokens[*x.id], tokenizerName)
		default:
			*x.id = id
		}
	}
	// Without the file, config.json says it.
	for _, x := range []struct {
		key string
		id  *int32
	}{{"bos_token_id", &t.BOS}, {"eos_token_id", &t.EOS}} {
		ids := c.ids(x.key)
		if *x.id < 0 && len(s.values) == 0 && len(ids) > 0 && int(ids[0]) < len(t.Tokens) {
			*x.id = ids[0]
		}
		if x.id == &t.EOS {
			f.EOS = append(f.EOS, ids...)
		}
	}
	if c.err != nil {
		return c.err
	}
	// These classes make the post-processor anew from two settings.
	switch strings.TrimSuffix(s.stringOr("tokenizer_class", ""), "Fast") {
	case "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer":
		t.AddBOS = s.boolOr("add_bos_token", t.AddBOS) && t.BOS >= 0
		t.AddEOS = s.boolOr("add_eos_token", t.AddEOS) && t.EOS >= 0
	}
	if s.err != nil {
		return s.err
	}
	// A template, or several with names, of which "default" is for chats without tools.
	list, several := s.values["chat_template"].([]any)
	if !several {
		f.Template = s.stringOr("chat_template", "")
		return s.err
	}
	for _, v := range list {
		m, _ := v.(map[string]any)
		name, _ := m["name"].(string)
		text, _ := m["template"].(string)
		if name == "default" || f.Template == "" {
			f.Template = text
		}
	}
	return nil
}

// generation takes from generation_config.json how a text is sampled, where the request does not say, and
// which tokens end it.
func (f *Folder) generation(s *settings, c *config) error {
	f.EOS = append(f.EOS, s.ids("eos_token_id")...)
	f.EOS = slices.DeleteFunc(f.EOS, func(id int32) bool { return int(id) >= len(f.Tokenizer.Tokens) })
	const p = "general.sampling."
	for _, v := range []struct {
		key, to     string
		least, most float64
	}{
		{"temperature", "temp", 0, 100},
		{"top_p", "top_p", 0, 1},
		{"min_p", "min_p", 0, 1},
		{"repetition_penalty", "penalty_repeat", 0, 100},
	} {
		if s.has(v.key) {
			c.meta.Set(p+v.to, float32(s.float(v.key, v.least, v.most)))
		}
	}
	if s.has("top_k") {
		c.meta.Set(p+"top_k", int32(s.int("top_k", -1, math.MaxInt32)))
	}
	return s.err
}
