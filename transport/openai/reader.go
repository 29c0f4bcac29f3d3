package openai

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/troupe-llm/troupe/lifecycle"
)

// bad is the error of a request that cannot be carried out as it is.
func bad(param, format string, args ...any) *lifecycle.Error {
	return &lifecycle.Error{Status: 400, Type: "invalid_request_error", Code: "invalid_value",
		Param: param, Message: fmt.Sprintf(format, args...)}
}

// mistyped is the error of a value that is not what its field holds.
func mistyped(param, want string, raw []byte) *lifecycle.Error {
	return bad(param, "%s must be %s, got %s", param, want, describe(raw))
}

// reader reads the fields of a body. It keeps the first error; after one, what it returns means
// nothing. A null member counts as absent; of equal names the last one counts.
type reader struct {
	fields []member
	err    *lifecycle.Error
}

// read begins to read a body.
func read(body []byte) (*reader, *lifecycle.Error) {
	fields, err := parseBody(body)
	if err == nil {
		return &reader{fields: fields}, nil
	}
	var syntax *syntaxError
	if errors.As(err, &syntax) {
		e := bad("", "the request body is not valid JSON: %s", syntax)
		if len(body) == 0 {
			e.Message = "the request body is empty: send a JSON object"
		}
		return nil, e
	}
	return nil, bad("", "%s", err)
}

// fail keeps e unless there is an error already; e may be nil.
func (r *reader) fail(e *lifecycle.Error) {
	if r.err == nil {
		r.err = e
	}
}

// raw returns the text of a field, and nil when it is absent or null.
func (r *reader) raw(name string) []byte {
	for i := len(r.fields) - 1; i >= 0; i-- {
		if r.fields[i].name == name {
			if kindOf(r.fields[i].raw) == kindNull {
				return nil
			}
			return r.fields[i].raw
		}
	}
	return nil
}

// typed returns the text of a field that must be of a kind, and nil when there is none.
func (r *reader) typed(name string, k kind) []byte {
	raw := r.raw(name)
	if raw != nil && kindOf(raw) != k {
		r.fail(mistyped(name, string(k), raw))
		return nil
	}
	return raw
}

// str returns a string field, and false when it is absent.
func (r *reader) str(name string) (string, bool) {
	raw := r.typed(name, kindString)
	if raw == nil {
		return "", false
	}
	return unquote(raw), true
}

// flag returns a boolean field, or otherwise.
func (r *reader) flag(name string, otherwise bool) bool {
	if raw := r.typed(name, kindBoolean); raw != nil {
		return raw[0] == 't'
	}
	return otherwise
}

// integer returns an integer field within [lo, hi], and false when it is absent.
func (r *reader) integer(name string, lo, hi int64) (int64, bool) {
	raw := r.raw(name)
	if raw == nil {
		return 0, false
	}
	v, ok := parseInt(raw)
	switch {
	case !ok:
		r.fail(mistyped(name, "an integer", raw))
	case v < lo && hi == math.MaxInt64:
		r.fail(bad(name, "%s must be at least %d, got %d", name, lo, v))
	case v < lo || v > hi:
		r.fail(bad(name, "%s must be between %d and %d, got %d", name, lo, hi, v))
	}
	return v, true
}

// number returns a finite number, and false when it is absent. A number outside what ok accepts is
// an error that says it must be in rng.
func (r *reader) number(name, rng string, ok func(float64) bool) (float64, bool) {
	raw := r.raw(name)
	if raw == nil {
		return 0, false
	}
	v, finite := parseFloat(raw)
	if !finite {
		want := "a number"
		if kindOf(raw) == kindNumber {
			want = "a finite number"
		}
		r.fail(mistyped(name, want, raw))
		return 0, false
	}
	if !ok(v) {
		r.fail(bad(name, "%s must be %s, got %s", name, rng, describe(raw)))
	}
	return v, true
}

// ids returns a field that is a list of token ids, sorted or in order; nil when absent or empty.
func (r *reader) ids(name string, vocab int) []int32 {
	raw := r.typed(name, kindArray)
	if raw == nil || r.err != nil {
		return nil
	}
	if n := bytes.Count(raw, []byte{','}) + 1; n > vocab {
		r.fail(bad(name, "%s has %d entries, but the vocabulary has %d tokens", name, n, vocab))
		return nil
	}
	ids, err := tokenIDs(name, raw, vocab)
	if err != nil {
		r.fail(err)
		return nil
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// tokenIDs reads an array of token ids of a vocabulary, in order.
func tokenIDs(param string, raw []byte, vocab int) ([]int32, *lifecycle.Error) {
	var ids []int32
	for i, e := range elements(raw) {
		v, ok := parseInt(e)
		if !ok {
			return nil, mistyped(fmt.Sprintf("%s[%d]", param, i), "a token id (an integer)", e)
		}
		if v < 0 || v >= int64(vocab) {
			return nil, bad(param, "%s[%d] is %d, which is not a token id: the vocabulary has %d tokens, numbered from 0", param, i, v, vocab)
		}
		ids = append(ids, int32(v))
	}
	return ids, nil
}

// oneOf returns a string field that must be one of some words, or "" when it is absent.
func (r *reader) oneOf(name string, words ...string) string {
	s, ok := r.str(name)
	if ok && !slices.Contains(words, s) {
		r.fail(bad(name, "%s must be one of %s", name, strings.Join(words, ", ")))
	}
	return s
}
