package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// settings is an object of a JSON file. Its getters keep the first error, which names file and key; null
// counts as missing, as it does in transformers.
type settings struct {
	where  string // the file, and the object in it
	values map[string]any
	err    error
}

// parseSettings reads a file that is one JSON object.
func parseSettings(name string, data []byte) (*settings, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	s := &settings{where: name}
	if err := d.Decode(&s.values); err != nil {
		return nil, jsonError(name, err)
	}
	if s.values == nil {
		return nil, fmt.Errorf("%s: it is null, not an object", name)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s at byte %d: something follows the object", name, d.InputOffset())
	}
	return s, nil
}

// jsonError says where in a file the JSON is wrong.
func jsonError(name string, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%s at byte %d: %w", name, syntax.Offset, err)
	case errors.As(err, &kind):
		return fmt.Errorf("%s at byte %d: %s is a JSON %s, which it should not be", name, kind.Offset, kind.Field, kind.Value)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s: %w (truncated?)", name, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (s *settings) fail(key, format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%s: %s: %s", s.where, key, fmt.Sprintf(format, args...))
	}
}

func (s *settings) has(key string) bool { return s.values[key] != nil }

// shown is a value as an error should show it.
func shown(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	const most = 200
	if len(b) > most {
		return strings.ToValidUTF8(string(b[:most]), "") + "…"
	}
	return string(b)
}

// int reads a number from least to most.
func (s *settings) int(key string, least, most int) int {
	v, ok := s.values[key]
	if !ok || v == nil {
		s.fail(key, "missing: a number is wanted")
		return least
	}
	number, _ := v.(json.Number)
	n, err := number.Int64()
	if err != nil {
		// Some writers write 2048.0.
		f, e := number.Float64()
		if n = int64(f); e != nil || float64(n) != f {
			s.fail(key, "a whole number is wanted, it is %s", shown(v))
			return least
		}
	}
	if n < int64(least) || n > int64(most) {
		s.fail(key, "%d is out of range: %d to %d make sense", n, least, most)
		return least
	}
	return int(n)
}

func (s *settings) intOr(key string, least, most, missing int) int {
	if !s.has(key) {
		return missing
	}
	return s.int(key, least, most)
}

// float reads a number from least to most.
func (s *settings) float(key string, least, most float64) float64 {
	v, ok := s.values[key]
	if !ok || v == nil {
		s.fail(key, "missing: a number is wanted")
		return most
	}
	number, _ := v.(json.Number)
	f, err := number.Float64()
	switch {
	case err != nil:
		s.fail(key, "a number is wanted, it is %s", shown(v))
		return most
	case !(f >= least && f <= most):
		s.fail(key, "%v is out of range: %v to %v make sense", f, least, most)
		return most
	}
	return f
}

func (s *settings) floatOr(key string, least, most, missing float64) float64 {
	if !s.has(key) {
		return missing
	}
	return s.float(key, least, most)
}

func (s *settings) boolOr(key string, missing bool) bool {
	if !s.has(key) {
		return missing
	}
	b, ok := s.values[key].(bool)
	if !ok {
		s.fail(key, "true or false is wanted, it is %s", shown(s.values[key]))
	}
	return b
}

func (s *settings) stringOr(key, missing string) string {
	if !s.has(key) {
		return missing
	}
	text, ok := s.values[key].(string)
	if !ok {
		s.fail(key, "a string is wanted, it is %s", shown(s.values[key]))
	}
	return text
}

// object reads an object within; nil if there is none.
func (s *settings) object(key string) *settings {
	if !s.has(key) {
		return nil
	}
	m, ok := s.values[key].(map[string]any)
	if !ok {
		s.fail(key, "an object is wanted, it is %s", shown(s.values[key]))
		return nil
	}
	return &settings{where: s.where + ": " + key, values: m}
}

// list reads an array; nil if there is none.
func (s *settings) list(key string) []any {
	if !s.has(key) {
		return nil
	}
	l, ok := s.values[key].([]any)
	if !ok {
		s.fail(key, "an array is wanted, it is %s", shown(s.values[key]))
	}
	return l
}

// floats reads an array of n numbers above 0.
func (s *settings) floats(key string, n int) []float32 {
	l := s.list(key)
	if s.err == nil && len(l) != n {
		s.fail(key, "%d numbers are wanted, it has %d", n, len(l))
	}
	if s.err != nil {
		return nil
	}
	out := make([]float32, n)
	for i, v := range l {
		number, _ := v.(json.Number)
		f, err := number.Float64()
		if err != nil || !(f > 0) || math.IsInf(f, 0) {
			s.fail(key, "element %d is %s; numbers above 0 are wanted", i, shown(v))
			return nil
		}
		out[i] = float32(f)
	}
	return out
}

// ids reads one token id or an array of them.
func (s *settings) ids(key string) []int32 {
	if !s.has(key) {
		return nil
	}
	l, ok := s.values[key].([]any)
	if !ok {
		l = []any{s.values[key]}
	}
	var out []int32
	for _, v := range l {
		number, _ := v.(json.Number)
		n, err := number.Int64()
		if err != nil || n < -1 || n > math.MaxInt32 {
			s.fail(key, "token ids are wanted, it is %s", shown(s.values[key]))
			return nil
		}
		if n >= 0 { // some write −1 for none
			out = append(out, int32(n))
		}
	}
	return out
}
