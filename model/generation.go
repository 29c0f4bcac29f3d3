package model

import (
	"errors"
	"math"
	"slices"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tokenizer"
)

// Generation is how the file wants text to begin, to be sampled and to end.
type Generation struct {
	// EOS are the tokens that end a generation, sorted: the file's end of sequence, of turn (eot)
	// and of message (eom), and every token whose text is a well known end marker (see endTexts).
	EOS []int32
	BOS int32 // begins a sequence; −1 for none
	// AddBOS and AddEOS say what the tokenizer adds around a text that is to be encoded whole.
	AddBOS, AddEOS bool

	// Sampling defaults from general.sampling.*; nil where the file is silent, which most are.
	Temperature, TopP, MinP, RepetitionPenalty *float32
	TopK                                       *int
}

// endTexts are spellings of tokens that end a turn whatever else the metadata says, as llama.cpp has
// them for the families served here: chat models are often converted with an end of sequence that
// is not the end of a turn. Their tokens are made control tokens, since converters also often
// forget that, and they would then show up in the text. Unlike llama.cpp, the tokens that separate
// files for fill-in-the-middle are not among them: in chat they do not occur, and in code they are a
// matter for the request's stop_token_ids.
var endTexts = map[string]bool{
	"<|im_end|>": true, "<|eot_id|>": true, "<|eom_id|>": true, "<|end|>": true, "<end_of_turn>": true,
	"<|endoftext|>": true, "<|end_of_text|>": true, "<EOT>": true, "_<EOT>": true, "<end_of_utterance>": true,
	"<｜end▁of▁sentence｜>": true,
}

// isEnd says whether a token is spelled like a turn's end. All such begin in one of two ways, and few others do.
func isEnd(text string) bool {
	return text != "" && (text[0] == '<' || text[0] == '_') && endTexts[text]
}

// readTokenizer fills a tokenizer's specification from tokenizer.ggml.*, with llama.cpp's defaults
// for what is missing.
func readTokenizer(f *gguf.File) (tokenizer.Spec, error) {
	const p = "tokenizer.ggml."
	var s tokenizer.Spec
	var err error
	if s.Kind, err = f.String(p + "model"); err != nil {
		return s, err
	}
	if s.Kind != tokenizer.KindBPE && s.Kind != tokenizer.KindSentencePiece {
		return s, f.Errorf(p+"model", "tokenizer %q is not supported; supported: %s (byte-level BPE), %s (SentencePiece)",
			s.Kind, tokenizer.KindBPE, tokenizer.KindSentencePiece)
	}
	spm := s.Kind == tokenizer.KindSentencePiece
	if s.Tokens, err = f.Strings(p + "tokens"); err != nil {
		return s, err
	}
	if len(s.Tokens) == 0 || len(s.Tokens) > math.MaxInt32 {
		return s, f.Errorf(p+"tokens", "%d tokens", len(s.Tokens))
	}
	if s.Pre, err = f.String(p + "pre"); ignoreMissing(&err) != nil {
		return s, err
	}
	types, err := f.Int32s(p + "token_type")
	if ignoreMissing(&err) != nil {
		return s, err
	}
	if types != nil && len(types) != len(s.Tokens) {
		return s, f.Errorf(p+"token_type", "%d types for %d tokens", len(types), len(s.Tokens))
	}
	// A copy: some are corrected below.
	s.Types = make([]int32, len(s.Tokens))
	for i := range s.Types {
		s.Types[i] = int32(tokenizer.Normal)
		if types != nil && types[i] != 0 { // 0 is "undefined", which older converters wrote
			s.Types[i] = types[i]
		}
	}
	markEnds(&s)
	if s.Scores, err = f.Float32s(p + "scores"); err != nil && (spm || ignoreMissing(&err) != nil) {
		return s, err
	}
	if s.Scores != nil && len(s.Scores) != len(s.Tokens) {
		return s, f.Errorf(p+"scores", "%d scores for %d tokens", len(s.Scores), len(s.Tokens))
	}
	if s.Merges, err = f.Strings(p + "merges"); err != nil && (!spm || ignoreMissing(&err) != nil) {
		return s, err
	}
	none := tokenizer.Spec{BOS: -1, EOS: -1, UNK: -1, PAD: -1}
	if spm {
		none.BOS, none.EOS, none.UNK = 1, 2, 0
	}
	for _, id := range []struct {
		key     string
		to      *int32
		missing int32
	}{
		{"bos_token_id", &s.BOS, none.BOS},
		{"eos_token_id", &s.EOS, none.EOS},
		{"unknown_token_id", &s.UNK, none.UNK},
		{"padding_token_id", &s.PAD, none.PAD},
	} {
		if *id.to, err = tokenID(f, p+id.key, id.missing, len(s.Tokens)); err != nil {
			if id.to != &s.PAD {
				return s, err
			}
			s.PAD = -1 // nothing is ever padded here, and real files have it wrong
		}
	}
	for _, flag := range []struct {
		key     string
		to      *bool
		missing bool
	}{
		{"add_bos_token", &s.AddBOS, tokenizer.DefaultAddBOS(s.Kind, s.Pre)},
		{"add_eos_token", &s.AddEOS, false},
		{"add_space_prefix", &s.AddSpacePrefix, spm},
	} {
		if *flag.to, err = f.Bool(p + flag.key); errors.Is(err, gguf.ErrMissing) {
			*flag.to = flag.missing
		} else if err != nil {
			return s, err
		}
	}
	return s, nil
}

// markEnds makes control tokens of those that are spelled like a turn's end.
func markEnds(s *tokenizer.Spec) {
	for i, text := range s.Tokens {
		if isEnd(text) {
			s.Types[i] = int32(tokenizer.Control)
		}
	}
}

// ignoreMissing clears an error that says no more than that a key is missing, and returns what is left.
func ignoreMissing(err *error) error {
	if errors.Is(*err, gguf.ErrMissing) {
		*err = nil
	}
	return *err
}

// tokenID reads a token id below n. The all-ones value stands for none.
func tokenID(f *gguf.File, key string, missing int32, n int) (int32, error) {
	if !f.Has(key) {
		if int(missing) >= n {
			missing = -1
		}
		return missing, nil
	}
	id, err := f.Int(key)
	if err != nil {
		return -1, err
	}
	if id == -1 || id == math.MaxUint32 {
		return -1, nil
	}
	if id < 0 || id >= int64(n) {
		return -1, f.Errorf(key, "token id %d is outside the vocabulary of %d tokens", id, n)
	}
	return int32(id), nil
}

func readGeneration(f *gguf.File, s *tokenizer.Spec) (Generation, error) {
	g := Generation{BOS: s.BOS, AddBOS: s.AddBOS && s.BOS >= 0, AddEOS: s.AddEOS && s.EOS >= 0}
	eos := []int32{s.EOS}
	for _, key := range []string{"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"} {
		id, err := tokenID(f, key, -1, len(s.Tokens))
		if err != nil {
			return g, err
		}
		eos = append(eos, id)
	}
	for i, text := range s.Tokens {
		if isEnd(text) {
			eos = append(eos, int32(i))
		}
	}
	slices.Sort(eos)
	g.EOS = slices.DeleteFunc(slices.Compact(eos), func(id int32) bool { return id < 0 })

	const p = "general.sampling."
	for _, v := range []struct {
		key         string
		to          **float32
		least, most float64
	}{
		{"temp", &g.Temperature, 0, 100},
		{"top_p", &g.TopP, 0, 1},
		{"min_p", &g.MinP, 0, 1},
		{"penalty_repeat", &g.RepetitionPenalty, 0, 100},
	} {
		x, err := f.Float(p + v.key)
		if errors.Is(err, gguf.ErrMissing) {
			continue
		}
		if err != nil {
			return g, err
		}
		if !(x >= v.least && x <= v.most) {
			return g, f.Errorf(p+v.key, "%v is out of range: %v to %v make sense", x, v.least, v.most)
		}
		y := float32(x)
		*v.to = &y
	}
	k, err := f.Int(p + "top_k")
	switch {
	case errors.Is(err, gguf.ErrMissing):
	case err != nil:
		return g, err
	case k < -1 || k > math.MaxInt32:
		return g, f.Errorf(p+"top_k", "%d is out of range", k)
	default:
		n := max(0, int(k)) // -1 and 0 both keep all
		g.TopK = &n
	}
	return g, nil
}
