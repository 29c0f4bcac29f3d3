package hf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/model/tokenizer"
)

// tokenizerFile is tokenizer.json, which the library tokenizers writes.
type tokenizerFile struct {
	Added         []addedToken    `json:"added_tokens"`
	Normalizer    *component      `json:"normalizer"`
	PreTokenizer  *component      `json:"pre_tokenizer"`
	PostProcessor *component      `json:"post_processor"`
	Decoder       *component      `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Special    bool   `json:"special"`
}

// bpeModel is the model of byte-pair encoding.
type bpeModel struct {
	Type                    string          `json:"type"`
	Vocab                   json.RawMessage `json:"vocab"` // ids by spelling; of other types, something else
	Merges                  json.RawMessage `json:"merges"`
	Dropout                 *float64        `json:"dropout"`
	UnkToken                *string         `json:"unk_token"`
	ContinuingSubwordPrefix *string         `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string         `json:"end_of_word_suffix"`
	ByteFallback            bool            `json:"byte_fallback"`
	IgnoreMerges            bool            `json:"ignore_merges"`

	vocab map[string]int64
}

// merges are pairs, spelled "left right", or as arrays of two in newer files.
func (m *bpeModel) merges() ([]string, error) {
	inner := bytes.TrimLeft(bytes.TrimPrefix(bytes.TrimLeft(m.Merges, " \t\r\n"), []byte("[")), " \t\r\n")
	if len(inner) == 0 || inner[0] != '[' {
		var out []string
		return out, json.Unmarshal(m.Merges, &out)
	}
	var pairs [][2]string
	if err := json.Unmarshal(m.Merges, &pairs); err != nil {
		return nil, err
	}
	out := make([]string, len(pairs))
	for i, pair := range pairs {
		if strings.Contains(pair[1], " ") || strings.Contains(strings.TrimPrefix(pair[0], " "), " ") {
			return nil, fmt.Errorf("the merge of %q and %q, in which there are spaces, is not supported", pair[0], pair[1])
		}
		out[i] = pair[0] + " " + pair[1]
	}
	return out, nil
}

// component is a normalizer, a pre-tokenizer, a post-processor or a decoder: what any of those known has.
type component struct {
	Type string `json:"type"`

	// Sequences, of each kind of component.
	Normalizers   []component `json:"normalizers"`
	Pretokenizers []component `json:"pretokenizers"`
	Processors    []component `json:"processors"`
	Decoders      []component `json:"decoders"`

	Pattern          *pattern            `json:"pattern"`     // Split, Replace
	Behavior         string              `json:"behavior"`    // Split
	Invert           bool                `json:"invert"`      // Split
	Content          string              `json:"content"`     // Replace
	Prepend          string              `json:"prepend"`     // Prepend
	Replacement      string              `json:"replacement"` // Metaspace
	PrependScheme    string              `json:"prepend_scheme"`
	AddPrefixSpace   *bool               `json:"add_prefix_space"` // ByteLevel, and Metaspace of older files
	Split            *bool               `json:"split"`
	UseRegex         *bool               `json:"use_regex"`         // ByteLevel
	IndividualDigits bool                `json:"individual_digits"` // Digits
	Single           []piece             `json:"single"`            // TemplateProcessing
	SpecialTokens    map[string]specials `json:"special_tokens"`

	raw json.RawMessage
}

type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// piece is a part of a template: a special token or the text.
type piece struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

type specials struct {
	IDs []int64 `json:"ids"`
}

// Bounds of a component, far above those of any tokenizer: each level of a sequence is read anew.
const (
	maxComponent = 4 << 20 // bytes
	maxNesting   = 32      // of brackets
)

// UnmarshalJSON also keeps the text, for errors.
func (c *component) UnmarshalJSON(data []byte) error {
	if len(data) > maxComponent || nesting(data) > maxNesting {
		return fmt.Errorf("a normalizer, pre_tokenizer, post_processor or decoder has more than %d bytes or %d levels of brackets", maxComponent, maxNesting)
	}
	type plain component
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	c.raw = slices.Clone(data)
	return nil
}

// nesting is how deep brackets are nested in valid JSON.
func nesting(data []byte) int {
	depth, deepest, text := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch b := data[i]; {
		case text && b == '\\':
			i++ // what is escaped ends nothing
		case b == '"':
			text = !text
		case text:
		case b == '{' || b == '[':
			depth++
			deepest = max(deepest, depth)
		case b == '}' || b == ']':
			depth--
		}
	}
	return deepest
}

// flat lists what a component consists of: itself, or the parts of a sequence.
func (c *component) flat() []component {
	if c == nil {
		return nil
	}
	if c.Type != "Sequence" {
		return []component{*c}
	}
	var out []component
	for _, list := range [][]component{c.Normalizers, c.Pretokenizers, c.Processors, c.Decoders} {
		for i := range list {
			out = append(out, list[i].flat()...)
		}
	}
	return out
}

// text is the component's JSON, for errors.
func (c *component) text() string {
	if c == nil {
		return "none"
	}
	var b bytes.Buffer
	if json.Compact(&b, c.raw) != nil {
		return c.Type
	}
	const most = 300
	if b.Len() > most {
		return strings.ToValidUTF8(b.String()[:most], "") + "…"
	}
	return b.String()
}

const (
	spaceMark = "▁"
	noToken   = -1
)

// readTokenizer makes a specification of tokenizer.json for a model whose logits have rows for vocab tokens.
func readTokenizer(data []byte, vocab int) (tokenizer.Spec, error) {
	spec := tokenizer.Spec{BOS: noToken, EOS: noToken, UNK: noToken, PAD: noToken}
	wrong := func(format string, args ...any) (tokenizer.Spec, error) {
		return spec, fmt.Errorf("%s: %s", tokenizerName, fmt.Sprintf(format, args...))
	}
	var f tokenizerFile
	if err := json.Unmarshal(data, &f); err != nil {
		return spec, jsonError(tokenizerName, err)
	}
	var m bpeModel
	if f.Model == nil {
		return wrong("model: it is missing")
	}
	if err := json.Unmarshal(f.Model, &m); err != nil {
		return spec, jsonError(tokenizerName+": model", err)
	}
	if m.Type != "BPE" && (m.Type != "" || m.Merges == nil) { // older files of this type don't name it
		return wrong("model: the type %q is not supported; supported: BPE, of bytes or with byte fallback", m.Type)
	}
	if err := json.Unmarshal(m.Vocab, &m.vocab); err != nil || m.Vocab == nil {
		return wrong("model: vocab: %v", err)
	}
	merges, err := m.merges()
	if err != nil || m.Merges == nil {
		return wrong("model: merges: %v", err)
	}
	spec.Merges = merges
	if m.Dropout != nil && *m.Dropout != 0 || m.ContinuingSubwordPrefix != nil && *m.ContinuingSubwordPrefix != "" || m.EndOfWordSuffix != nil && *m.EndOfWordSuffix != "" {
		return wrong("model: dropout, continuing_subword_prefix and end_of_word_suffix are not supported")
	}
	if err := addTokens(&spec, &f, &m, vocab); err != nil {
		return wrong("%v", err)
	}
	if pre := f.PreTokenizer.flat(); slices.ContainsFunc(pre, func(c component) bool { return c.Type == "ByteLevel" }) {
		err = byteLevel(&spec, &f, &m, pre)
	} else {
		err = byteFallback(&spec, &f, &m, pre)
	}
	if err == nil {
		err = postProcess(&spec, f.PostProcessor)
	}
	if err != nil {
		return wrong("%v", err)
	}
	return spec, nil
}

// addTokens fills in the tokens and their types. Ids that no token has are unused; models often have more
// rows of logits than tokens. An added token beyond the last row is left out: the model can neither read
// nor write it.
func addTokens(spec *tokenizer.Spec, f *tokenizerFile, m *bpeModel, vocab int) error {
	spec.Tokens, spec.Types = make([]string, vocab), make([]int32, vocab)
	for token, id := range m.vocab {
		if id < 0 || id >= int64(vocab) {
			if slices.ContainsFunc(f.Added, func(a addedToken) bool { return a.ID == id && a.Content == token }) {
				continue
			}
			return fmt.Errorf("model: vocab: token %q has the id %d, but the model has rows for %d", token, id, vocab)
		}
		if other := spec.Tokens[id]; spec.Types[id] != 0 {
			return fmt.Errorf("model: vocab: tokens %q and %q have the same id %d", min(token, other), max(token, other), id)
		}
		spec.Tokens[id], spec.Types[id] = token, int32(tokenizer.Normal)
	}
	for i, a := range f.Added {
		switch {
		case a.ID < 0:
			return fmt.Errorf("added_tokens: %d: the id is %d", i, a.ID)
		case a.ID >= int64(vocab):
			continue
		case a.SingleWord:
			return fmt.Errorf("added_tokens: %d (%q): single_word is not supported", i, a.Content)
		case a.Content == "":
			continue // never found in a text
		}
		if other := spec.Tokens[a.ID]; spec.Types[a.ID] != 0 && other != a.Content {
			return fmt.Errorf("added_tokens: %d (%q): the id %d is that of %q", i, a.Content, a.ID, other)
		}
		spec.Tokens[a.ID], spec.Types[a.ID] = a.Content, int32(tokenizer.UserDefined)
		if a.Special {
			spec.Types[a.ID] = int32(tokenizer.Control)
		}
		if a.LStrip {
			spec.LStrip = append(spec.LStrip, int32(a.ID))
		}
		if a.RStrip {
			spec.RStrip = append(spec.RStrip, int32(a.ID))
		}
	}
	for id := range spec.Tokens {
		if spec.Types[id] == 0 {
			spec.Tokens[id], spec.Types[id] = fmt.Sprintf("[PAD%d]", id), int32(tokenizer.Unused)
		}
	}
	if m.UnkToken != nil {
		if id, ok := m.vocab[*m.UnkToken]; ok && id >= 0 && id < int64(vocab) {
			spec.UNK = int32(id)
			spec.Types[id] = int32(tokenizer.Unknown)
		}
	}
	return nil
}

// splits are the regular expressions of Split that are known, with the name of the same pre-tokenizer in
// GGUF files.
var splits = map[string]string{
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`: "gpt-2",
	`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:    "gpt-2",
	llama3Words + `\p{N}{1,3}` + llama3Rest:                                      "dbrx", // Llama 3's, but for ignore_merges
	llama3Words + `\p{N}` + llama3Rest:                                           "qwen2",
	caseWords(`(?i:'s|'t|'re|'ve|'m|'ll|'d)?`) + `\p{N}{1,3}` + caseRest:         "gpt-4o",
	caseWords(``) + `\p{N}` + caseRest:                                           "tekken",
}

const (
	llama3Words = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|`
	llama3Rest  = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	caseRest    = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

func caseWords(contractions string) string {
	const upper, lower = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	return `[^\r\n\p{L}\p{N}]?` + upper + `*` + lower + `+` + contractions + `|[^\r\n\p{L}\p{N}]?` + upper + `+` + lower + `*` + contractions + `|`
}

// byteLevel reads a tokenizer of bytes: a pattern cuts the text into words.
func byteLevel(spec *tokenizer.Spec, f *tokenizerFile, m *bpeModel, pre []component) error {
	spec.Kind = tokenizer.KindBPE
	spec.IgnoreMerges = &m.IgnoreMerges
	for _, n := range f.Normalizer.flat() {
		if n.Type != "NFC" {
			return fmt.Errorf("normalizer: %s is not supported with a tokenizer of bytes; supported: NFC", n.text())
		}
		spec.NFC = true
	}
	last := pre[len(pre)-1]
	unknown := fmt.Errorf("pre_tokenizer: %s is not one that is known; known are those of GPT-2, Llama 3, Qwen 2, GPT-4o, Mistral's tekken and SmolLM", f.PreTokenizer.text())
	if last.Type != "ByteLevel" || last.AddPrefixSpace == nil || *last.AddPrefixSpace {
		return unknown
	}
	regex := last.UseRegex == nil || *last.UseRegex // GPT-2's own
	switch first := pre[:len(pre)-1]; {
	case len(first) == 0 && regex:
		spec.Pre = "gpt-2"
	case len(first) == 1 && regex && first[0].Type == "Digits" && first[0].IndividualDigits:
		spec.Pre = "smollm"
	case len(first) == 1 && !regex && first[0].Type == "Split" && first[0].Pattern != nil && first[0].Pattern.Regex != nil &&
		// The patterns leave nothing out, so keeping what they match, or removing what they don't, is the same.
		(first[0].Behavior == "Isolated" && !first[0].Invert || first[0].Behavior == "Removed" && first[0].Invert):
		name, ok := splits[*first[0].Pattern.Regex]
		if !ok {
			return unknown
		}
		spec.Pre = name
	default:
		return unknown
	}
	for _, d := range f.Decoder.flat() {
		if d.Type != "ByteLevel" {
			return fmt.Errorf("decoder: %s is not supported with a tokenizer of bytes", d.text())
		}
	}
	return nil
}

// byteFallback reads a tokenizer like SentencePiece's: of characters, with ▁ for spaces, and bytes for what the
// vocabulary lacks.
func byteFallback(spec *tokenizer.Spec, f *tokenizerFile, m *bpeModel, pre []component) error {
	spec.Kind, spec.ByRank = tokenizer.KindSentencePiece, true
	if !m.ByteFallback {
		return fmt.Errorf("pre_tokenizer: %s, without byte_fallback, is not supported; supported are tokenizers of bytes (ByteLevel) and those with byte_fallback", f.PreTokenizer.text())
	}
	if m.IgnoreMerges {
		return fmt.Errorf("model: ignore_merges is not supported with byte_fallback")
	}
	var bytesThere int
	for id, token := range spec.Tokens {
		if len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' && spec.Types[id] != int32(tokenizer.Control) {
			spec.Types[id] = int32(tokenizer.Byte)
			bytesThere++
		}
	}
	if bytesThere != 256 {
		return fmt.Errorf("model: byte_fallback is set, but the vocabulary has %d of the tokens <0x00> to <0xFF>", bytesThere)
	}
	replaced := false
	for _, n := range f.Normalizer.flat() {
		switch {
		case n.Type == "Replace" && n.Pattern != nil && n.Pattern.String != nil && *n.Pattern.String == " " && n.Content == spaceMark:
			replaced = true
		case n.Type == "Prepend" && n.Prepend == spaceMark:
			spec.AddSpacePrefix = true
		default:
			return fmt.Errorf("normalizer: %s is not supported with byte_fallback", n.text())
		}
	}
	for _, p := range pre {
		switch {
		case p.Type == "Metaspace" && p.Replacement == spaceMark && !replaced:
			replaced = true
			scheme := p.PrependScheme
			if scheme == "" { // as older files have it
				scheme = "always"
				if p.AddPrefixSpace != nil && !*p.AddPrefixSpace {
					scheme = "never"
				}
			}
			spec.AddSpacePrefix, spec.UnlessSpace = scheme != "never", true
			spec.FirstOnly = scheme == "first"
			spec.SplitSpaces = p.Split == nil || *p.Split
		case p.Type == "Split" && p.Pattern != nil && p.Pattern.String != nil && *p.Pattern.String == " " && replaced:
			// There are no spaces any more (Gemma).
		default:
			return fmt.Errorf("pre_tokenizer: %s is not supported with byte_fallback", f.PreTokenizer.text())
		}
	}
	if !replaced {
		return fmt.Errorf("normalizer: %s does not replace spaces by %s, which is not supported with byte_fallback", f.Normalizer.text(), spaceMark)
	}
	for _, d := range f.Decoder.flat() {
		switch d.Type {
		case "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace":
		default:
			return fmt.Errorf("decoder: %s is not supported with byte_fallback", d.text())
		}
	}
	return nil
}

// postProcess reads which tokens are put around a text.
func postProcess(spec *tokenizer.Spec, c *component) error {
	for _, p := range c.flat() {
		switch p.Type {
		case "ByteLevel": // is about offsets
		case "TemplateProcessing":
			var before, after []int64
			seen := false
			for _, x := range p.Single {
				switch {
				case x.Sequence != nil && !seen:
					seen = true
				case x.SpecialToken != nil:
					s, ok := p.SpecialTokens[x.SpecialToken.ID]
					if !ok {
						return fmt.Errorf("post_processor: the token %q has no ids", x.SpecialToken.ID)
					}
					if seen {
						after = append(after, s.IDs...)
					} else {
						before = append(before, s.IDs...)
					}
				default:
					return fmt.Errorf("post_processor: %s is not supported", p.text())
				}
			}
			if !seen || len(before) > 1 || len(after) > 1 {
				return fmt.Errorf("post_processor: %s is not supported: one token before a text and one after it are", p.text())
			}
			for _, x := range []struct {
				ids []int64
				id  *int32
				add *bool
			}{{before, &spec.BOS, &spec.AddBOS}, {after, &spec.EOS, &spec.AddEOS}} {
				if len(x.ids) == 0 {
					continue
				}
				if x.ids[0] < 0 || x.ids[0] >= int64(len(spec.Tokens)) {
					return fmt.Errorf("post_processor: the token id %d is outside the vocabulary of %d", x.ids[0], len(spec.Tokens))
				}
				*x.id, *x.add = int32(x.ids[0]), true
			}
		default:
			return fmt.Errorf("post_processor: %s is not supported; supported: TemplateProcessing, ByteLevel", p.text())
		}
	}
	return nil
}
