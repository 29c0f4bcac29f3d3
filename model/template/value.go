package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// Object is a JSON object that keeps the order of its members, as templates print it. The zero
// value is empty and ready to use. It is not safe for concurrent changes.
type Object struct {
	keys   []string
	values map[string]any
}

// Len is the number of members.
func (o *Object) Len() int { return len(o.keys) }

// Get returns a member's value and whether there is such a member.
func (o *Object) Get(key string) (any, bool) {
	v, ok := o.values[key]
	return v, ok
}

// Set changes a member, or adds one at the end. Values are those that Decode makes, and Go's own
// of the same kinds: nil, bool, integers, floats, json.Number, string, []any, map[string]any,
// *Object.
func (o *Object) Set(key string, value any) {
	if _, ok := o.values[key]; !ok {
		if o.values == nil {
			o.values = make(map[string]any)
		}
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

// All ranges over the members in order.
func (o *Object) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, k := range o.keys {
			if !yield(k, o.values[k]) {
				return
			}
		}
	}
}

// MarshalJSON writes the members in order.
func (o *Object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, k := range o.keys {
		if i > 0 {
			b = append(b, ',')
		}
		key, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(o.values[k])
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, key...), ':'), value...)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON replaces the members by those of a JSON object.
func (o *Object) UnmarshalJSON(data []byte) error {
	v, err := Decode(data)
	if err != nil {
		return err
	}
	p, ok := v.(*Object)
	if !ok {
		return fmt.Errorf("template: expected a JSON object, got %.20q", data)
	}
	*o = *p
	return nil
}

// MaxDepth bounds how deep arrays and objects may be nested in what Decode reads and Render is
// given.
const MaxDepth = 100

// Decode reads one JSON value for a template: objects become *Object, in the order of the text (of
// members of the same name the last value counts), arrays []any, numbers json.Number, so that 1 and
// 1.0 stay different.
func Decode(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decode(d, 0)
	if err != nil {
		return nil, fmt.Errorf("template: JSON at byte %d: %w", d.InputOffset(), err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("template: JSON goes on after the value, at byte %d", d.InputOffset())
	}
	return v, nil
}

func decode(d *json.Decoder, depth int) (any, error) {
	t, err := d.Token()
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	open, nested := t.(json.Delim)
	if !nested {
		return t, nil
	}
	if depth >= MaxDepth {
		return nil, fmt.Errorf("arrays and objects are nested more than %d deep", MaxDepth)
	}
	if open == '[' {
		list := []any{}
		for d.More() {
			v, err := decode(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	}
	o := &Object{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		o.Set(key.(string), v)
	}
	_, err = d.Token()
	return o, err
}

// toValue makes the template engine's value of one of ours; at says where it is, for errors.
func toValue(v any, at string, depth int) (jinja.Value, error) {
	if depth > MaxDepth {
		return jinja.Value{}, fmt.Errorf("template: %s is nested more than %d deep", at, MaxDepth)
	}
	switch v := v.(type) {
	case nil:
		return jinja.None(), nil
	case jinja.Value:
		return v, nil
	case bool:
		return jinja.NewBool(v), nil
	case string:
		return jinja.NewString(v), nil
	case int:
		return jinja.NewInt(int64(v)), nil
	case int32:
		return jinja.NewInt(int64(v)), nil
	case int64:
		return jinja.NewInt(v), nil
	case float32:
		return jinja.NewFloat(float64(v)), nil
	case float64:
		return jinja.NewFloat(v), nil
	case json.Number:
		return numberValue(string(v), at)
	case []any:
		items := make([]jinja.Value, len(v))
		for i, x := range v {
			var err error
			if items[i], err = toValue(x, at, depth+1); err != nil {
				return jinja.Value{}, err
			}
		}
		return jinja.NewList(items), nil
	case []string:
		items := make([]jinja.Value, len(v))
		for i, x := range v {
			items[i] = jinja.NewString(x)
		}
		return jinja.NewList(items), nil
	case *Object:
		if v == nil {
			return jinja.None(), nil
		}
		out := jinja.NewDict()
		d := out.AsDict()
		d.Keys = make([]string, 0, v.Len())
		for k, x := range v.All() {
			item, err := toValue(x, at, depth+1)
			if err != nil {
				return jinja.Value{}, err
			}
			d.Set(k, item)
		}
		return out, nil
	case map[string]any:
		out := jinja.NewDict()
		d := out.AsDict()
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys) // a Go map has no order; let it at least be the same each time
		for _, k := range keys {
			item, err := toValue(v[k], at, depth+1)
			if err != nil {
				return jinja.Value{}, err
			}
			d.Set(k, item)
		}
		return out, nil
	}
	return jinja.Value{}, fmt.Errorf("template: %s has a value of type %T, which templates don't know", at, v)
}

// numberValue makes a value of a JSON number, as Python's json would: a float if it has a fraction
// or an exponent, otherwise an integer. Integers beyond 64 bits become floats.
func numberValue(s, at string) (jinja.Value, error) {
	if !strings.ContainsAny(s, ".eE") {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return jinja.NewInt(n), nil
		}
		if n, ok := new(big.Int).SetString(s, 10); ok {
			f, _ := new(big.Float).SetInt(n).Float64()
			return jinja.NewFloat(f), nil
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return jinja.Value{}, fmt.Errorf("template: %s has a malformed number %.40q", at, s)
	}
	return jinja.NewFloat(f), nil
}
