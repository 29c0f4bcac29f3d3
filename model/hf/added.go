package hf

import (
	"slices"
	"strconv"

	"github.com/troupe-llm/troupe/model/tokenizer"
)

// namedTokens are the settings that name a special token: first those of texts' ends.
var namedTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// addedTokens takes in the tokens of tokenizer_config.json, as transformers does: what added_tokens_decoder says of a
// token comes before what tokenizer.json says, but for its id and that it is special; tokens that have a name are
// special; and tokens that tokenizer.json lacks take the ids that follow. Unlike there, one that begins or ends a
// text must be in either, and one must have the id that it is said to have.
func (f *Folder) addedTokens(s *settings) {
	a := adder{s: s, spec: &f.Tokenizer}
	listed, _ := s.values["added_tokens_decoder"].(map[string]any)
	if listed == nil && s.has("added_tokens_decoder") {
		s.fail("added_tokens_decoder", "an object is wanted, it is %s", shown(s.values["added_tokens_decoder"]))
	}
	tokens := make([]addedToken, 0, len(listed))
	for key, v := range listed {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 {
			s.fail("added_tokens_decoder", "%q is no token's id", key)
		}
		t := a.read("added_tokens_decoder", v)
		t.ID = id
		tokens = append(tokens, t)
	}
	slices.SortFunc(tokens, func(a, b addedToken) int { return int(a.ID - b.ID) })
	var named []addedToken
	ends := 0
	for i, key := range namedTokens {
		if s.has(key) {
			t := a.read(key, s.values[key])
			t.ID, t.Special = -1, true
			named = append(named, t)
		}
		if i < 2 {
			ends = len(named)
		}
	}
	for _, t := range tokens {
		t.Special = t.Special || slices.ContainsFunc(named, func(n addedToken) bool { return n.Content == t.Content })
		a.add("added_tokens_decoder", t)
	}
	for i, t := range named {
		switch id := a.find(t); {
		case a.added(id): // it keeps its properties
			a.special(id)
		case id >= 0 || i >= ends:
			a.add("tokens with a name", t)
		}
	}
	for _, key := range []string{"additional_special_tokens", "extra_special_tokens"} {
		list, _ := s.values[key].([]any)
		for _, v := range list {
			t := a.read(key, v)
			if t.ID, t.Special = -1, true; !a.added(a.find(t)) {
				a.add(key, t)
			}
		}
	}
}

// adder adds tokens to those of tokenizer.json.
type adder struct {
	s    *settings
	spec *tokenizer.Spec
	ids  map[string]int32 // by spelling; made when it is needed
}

// read reads a token, which is its spelling, or an object with that and its properties. Its ID is not set.
func (a *adder) read(key string, v any) (t addedToken) {
	if text, ok := v.(string); ok {
		t.Content = text
		return t
	}
	m, _ := v.(map[string]any)
	text, ok := m["content"].(string)
	if !ok {
		a.s.fail(key, "neither a string nor an object with content: %s", shown(v))
		return t
	}
	t.Content = text
	for _, x := range []struct {
		name string
		to   *bool
	}{{"special", &t.Special}, {"lstrip", &t.LStrip}, {"rstrip", &t.RStrip}, {"single_word", &t.SingleWord}} {
		b, ok := m[x.name].(bool)
		if *x.to = b; !ok && m[x.name] != nil {
			a.s.fail(key, "%q: %s is %s, not true or false", text, x.name, shown(m[x.name]))
		}
	}
	return t
}

// find is a token's id by its spelling, −1 if there is none. Most often it is the one that it is said to have.
func (a *adder) find(t addedToken) int32 {
	if t.ID >= 0 && t.ID < int64(len(a.spec.Tokens)) && a.spec.Tokens[t.ID] == t.Content && a.spec.Types[t.ID] != int32(tokenizer.Unused) {
		return int32(t.ID)
	}
	if a.ids == nil {
		a.ids = make(map[string]int32, len(a.spec.Tokens))
		for id, token := range a.spec.Tokens {
			if a.spec.Types[id] != int32(tokenizer.Unused) {
				a.ids[token] = int32(id)
			}
		}
	}
	if id, ok := a.ids[t.Content]; ok {
		return id
	}
	return -1
}

// added says whether a token is more than one of the vocabulary.
func (a *adder) added(id int32) bool { return id >= 0 && a.spec.Types[id] != int32(tokenizer.Normal) }

// special makes a token special. One that stands for a byte, or for what is unknown, remains so.
func (a *adder) special(id int32) {
	if t := &a.spec.Types[id]; *t == int32(tokenizer.Normal) || *t == int32(tokenizer.UserDefined) {
		*t = int32(tokenizer.Control)
	}
}

// add adds a token, or gives one that is there its properties. One for which the model has no row is left out:
// the model can neither read nor write it. Its ID is the one that it is said to have; −1 if none is.
func (a *adder) add(key string, t addedToken) {
	if t.Content == "" || a.s.err != nil {
		return
	}
	if t.SingleWord {
		a.s.fail(key, "%q: single_word is not supported", t.Content)
		return
	}
	id := a.find(t)
	if id < 0 {
		last := len(a.spec.Types) - 1
		for last >= 0 && a.spec.Types[last] == int32(tokenizer.Unused) {
			last--
		}
		switch id = int32(last + 1); {
		case t.ID >= 0 && t.ID != int64(id):
			a.s.fail(key, "%d: %q is not a token of %s, where the next id is %d: the two files are not of the same model", t.ID, t.Content, tokenizerName, id)
			return
		case int(id) == len(a.spec.Types):
			return
		}
		a.spec.Tokens[id], a.spec.Types[id] = t.Content, int32(tokenizer.Normal)
		a.ids[t.Content] = id
	}
	if t.Special {
		a.special(id)
	} else if a.spec.Types[id] == int32(tokenizer.Normal) {
		a.spec.Types[id] = int32(tokenizer.UserDefined)
	}
	for _, x := range []struct {
		strip bool
		ids   *[]int32
	}{{t.LStrip, &a.spec.LStrip}, {t.RStrip, &a.spec.RStrip}} {
		*x.ids = slices.DeleteFunc(*x.ids, func(other int32) bool { return other == id })
		if x.strip {
			*x.ids = append(*x.ids, id)
		}
	}
}
