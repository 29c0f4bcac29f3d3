package openai

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/lifecycle"
)

// minTemperature is what a smaller temperature above 0 is raised to, as in vLLM: below it the
// logits overflow.
const minTemperature = 0.01

// sampling reads the fields that all endpoints have in common. MaxTokens and the log probabilities
// are the caller's: each endpoint has its own names for them.
func (e *Env) sampling(r *reader) *lifecycle.Params {
	p := &lifecycle.Params{Logprobs: -1, PromptLogprobs: -1}
	p.Temperature = pick(r, "temperature", "between 0 and 2", within(0, 2), e.Defaults.Temperature, 1)
	if p.Temperature > 0 && p.Temperature < minTemperature {
		p.Temperature = minTemperature
	}
	p.TopP = pick(r, "top_p", "above 0 and at most 1", func(v float64) bool { return v > 0 && v <= 1 }, e.Defaults.TopP, 1)
	p.MinP = pick(r, "min_p", "between 0 and 1", within(0, 1), e.Defaults.MinP, 0)
	p.RepetitionPenalty = pick(r, "repetition_penalty", "above 0", func(v float64) bool { return v > 0 && v <= math.MaxFloat32 }, e.Defaults.RepetitionPenalty, 1)
	p.PresencePenalty = pick(r, "presence_penalty", "between -2 and 2", within(-2, 2), nil, 0)
	p.FrequencyPenalty = pick(r, "frequency_penalty", "between -2 and 2", within(-2, 2), nil, 0)
	if e.Defaults.TopK != nil {
		p.TopK = max(*e.Defaults.TopK, 0)
	}
	if v, ok := r.integer("top_k", -1, math.MaxInt64); ok {
		p.TopK = int(min(max(v, 0), int64(e.Vocab)))
	}
	if p.Temperature == 0 {
		p.TopP, p.TopK, p.MinP = 1, 0, 0 // greedy: nothing to filter
	}
	p.Seed = e.seed(r)
	p.LogitBias = e.logitBias(r)
	if raw := r.typed("allowed_token_ids", kindArray); raw != nil {
		if p.Allowed = r.ids("allowed_token_ids", e.Vocab); p.Allowed == nil {
			r.fail(bad("allowed_token_ids", "allowed_token_ids is empty: no token could be chosen"))
		}
	}
	if v, ok := r.integer("min_tokens", 0, math.MaxInt64); ok {
		p.MinTokens = int(min(v, math.MaxInt32))
	}
	p.IgnoreEOS = r.flag("ignore_eos", false)
	p.StopTokenIDs = r.ids("stop_token_ids", e.Vocab)
	p.Stop = r.stop()
	p.IncludeStop = r.flag("include_stop_str_in_output", false)
	p.SkipSpecialTokens = r.flag("skip_special_tokens", true)
	return p
}

func within(lo, hi float64) func(float64) bool {
	return func(v float64) bool { return v >= lo && v <= hi }
}

// pick returns the request's value of a field, else the model's, else the API's.
func pick(r *reader, name, rng string, ok func(float64) bool, model *float32, api float32) float32 {
	if v, given := r.number(name, rng, ok); given {
		return float32(v)
	}
	if model != nil {
		return *model
	}
	return api
}

// seed returns the request's seed; −1 means none, as in vLLM.
func (e *Env) seed(r *reader) uint64 {
	if v, ok := r.integer("seed", math.MinInt64, math.MaxInt64); ok && v != -1 {
		return uint64(v)
	}
	if e.Seed != nil {
		return e.Seed()
	}
	return rand.Uint64()
}

func (e *Env) logitBias(r *reader) []lifecycle.Bias {
	raw := r.typed("logit_bias", kindObject)
	if raw == nil {
		return nil
	}
	var biases []lifecycle.Bias
	for name, v := range members(raw) {
		id, err := strconv.Atoi(strings.TrimSpace(name))
		if err != nil {
			r.fail(bad("logit_bias", "logit_bias has the key %q, which is not a token id", clip(name)))
			return nil
		}
		if id < 0 || id >= e.Vocab {
			r.fail(bad("logit_bias", "logit_bias has the token id %d: the vocabulary has %d tokens, numbered from 0", id, e.Vocab))
			return nil
		}
		f, ok := parseFloat(v)
		if !ok {
			r.fail(mistyped("logit_bias."+name, "a number", v))
			return nil
		}
		if len(biases) == e.Vocab {
			r.fail(bad("logit_bias", "logit_bias has more than %d entries, which is as many as the vocabulary has tokens", e.Vocab))
			return nil
		}
		biases = append(biases, lifecycle.Bias{ID: int32(id), Value: float32(min(max(f, -100), 100))})
	}
	slices.SortStableFunc(biases, func(a, b lifecycle.Bias) int { return cmp.Compare(a.ID, b.ID) })
	// The last of equal ids counts.
	kept := biases[:0]
	for i, b := range biases {
		if i+1 == len(biases) || biases[i+1].ID != b.ID {
			kept = append(kept, b)
		}
	}
	return kept
}

// stop reads `stop`: a string or a list of strings.
func (r *reader) stop() []string {
	raw := r.raw("stop")
	if raw == nil {
		return nil
	}
	var stops []string
	add := func(param string, raw []byte) {
		if kindOf(raw) != kindString {
			r.fail(mistyped(param, "a string", raw))
			return
		}
		s := unquote(raw)
		switch {
		case s == "":
			r.fail(bad("stop", "%s is an empty string, before which every text would stop", param))
		case len(s) > maxStopBytes:
			r.fail(bad("stop", "%s has %d bytes; at most %d are allowed", param, len(s), maxStopBytes))
		}
		stops = append(stops, s)
	}
	switch kindOf(raw) {
	case kindString:
		add("stop", raw)
	case kindArray:
		for i, e := range elements(raw) {
			if i == maxStops {
				r.fail(bad("stop", "stop has more than %d strings", maxStops))
				break
			}
			add(fmt.Sprintf("stop[%d]", i), e)
		}
	default:
		r.fail(mistyped("stop", "a string or a list of strings", raw))
	}
	return stops
}

// salt reads cache_salt, which keeps clients that don't share it from seeing by their timing what
// others asked. The bounds are vLLM's.
func (r *reader) salt() uint64 {
	s, ok := r.str("cache_salt")
	if !ok {
		return 0
	}
	if s == "" || utf8.RuneCountInString(s) > maxSaltChars || strings.ContainsAny(s, "@/\\\x00") {
		r.fail(bad("cache_salt", "cache_salt must have 1 to %d characters, none of them @, /, \\ or NUL", maxSaltChars))
		return 0
	}
	sum := sha256.Sum256([]byte(s))
	return max(binary.LittleEndian.Uint64(sum[:8]), 1)
}

func (e *Env) maxLogprobs() int64 {
	if e.MaxLogprobs > 0 {
		return int64(e.MaxLogprobs)
	}
	return 20
}

// clip shortens a client's text for a message.
func clip(s string) string {
	if len(s) <= 64 {
		return s
	}
	return strings.ToValidUTF8(s[:64], "") + "…"
}
