package template

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// typeName names a value's type as Python does.
func typeName(v jinja.Value) string {
	switch {
	case v.IsUndefined():
		return "an undefined value"
	case v.IsNone():
		return "None"
	case v.IsBool():
		return "a bool"
	case v.IsInt():
		return "an int"
	case v.IsFloat():
		return "a float"
	case v.IsString():
		return "a str"
	case v.IsList():
		return "a list"
	case v.IsDict():
		return "a dict"
	}
	return "a function"
}

// integer is the value as an integer, if it is one; True and False are 1 and 0, as in Python.
func integer(v jinja.Value) (int64, bool) {
	switch {
	case v.IsInt():
		return v.AsInt(), true
	case v.IsBool():
		if v.AsBool() {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// number is the value as a float, if it is a number.
func number(v jinja.Value) (float64, bool) {
	if n, ok := integer(v); ok {
		return float64(n), true
	}
	if v.IsFloat() {
		return v.AsFloat(), true
	}
	return 0, false
}

// text is Python's str, except that an undefined value is empty.
func text(v jinja.Value) (string, error) {
	switch {
	case v.IsString():
		return v.AsString(), nil
	case v.IsUndefined():
		return "", nil
	}
	var b strings.Builder
	err := appendRepr(&b, v, 0)
	return b.String(), err
}

// appendRepr writes Python's repr.
func appendRepr(b *strings.Builder, v jinja.Value, depth int) error {
	if depth > 2*MaxDepth || b.Len() > maxValue {
		return &LimitError{"a value is too large or too deep to be printed"}
	}
	switch {
	case v.IsUndefined():
		b.WriteString("Undefined")
	case v.IsNone():
		b.WriteString("None")
	case v.IsBool():
		if v.AsBool() {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case v.IsInt():
		b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		b.WriteString(floatRepr(v.AsFloat()))
	case v.IsString():
		stringRepr(b, v.AsString())
	case v.IsList():
		b.WriteByte('[')
		for i, x := range v.AsList().Items {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := appendRepr(b, x, depth+1); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case v.IsDict():
		d := v.AsDict()
		b.WriteByte('{')
		for i, k := range d.Keys {
			if i > 0 {
				b.WriteString(", ")
			}
			stringRepr(b, k)
			b.WriteString(": ")
			if err := appendRepr(b, d.Data[k], depth+1); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	default:
		b.WriteString("<function>")
	}
	return nil
}

// floatRepr is Python's repr of a float: the shortest digits that give it back, with an exponent
// below 1e-4 and from 1e16 on.
func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// stringRepr is Python's repr of a str.
func stringRepr(b *strings.Builder, s string) {
	q := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	b.WriteRune(q)
	for _, r := range s {
		switch {
		case r == q || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteRune(q)
}

// iterate is what Python's iter goes over.
func iterate(v jinja.Value) ([]jinja.Value, error) {
	switch {
	case v.IsList():
		return v.AsList().Items, nil
	case v.IsDict():
		items := make([]jinja.Value, 0, v.AsDict().Len())
		for _, k := range v.AsDict().Keys {
			items = append(items, jinja.NewString(k))
		}
		return items, nil
	case v.IsString():
		items := make([]jinja.Value, 0, utf8.RuneCountInString(v.AsString()))
		for _, r := range v.AsString() {
			items = append(items, jinja.NewString(string(r)))
		}
		return items, nil
	case v.IsUndefined():
		return nil, nil
	}
	return nil, fmt.Errorf("%s cannot be iterated", typeName(v))
}

// equal is Python's ==.
func equal(a, b jinja.Value) bool {
	if x, ok := number(a); ok {
		y, ok := number(b)
		if !ok {
			return false
		}
		if a.IsFloat() || b.IsFloat() {
			return x == y
		}
		n, _ := integer(a)
		m, _ := integer(b)
		return n == m
	}
	switch {
	case a.IsString():
		return b.IsString() && a.AsString() == b.AsString()
	case a.IsList():
		if !b.IsList() || a.AsList().Len() != b.AsList().Len() {
			return false
		}
		for i, x := range a.AsList().Items {
			if !equal(x, b.AsList().Items[i]) {
				return false
			}
		}
		return true
	case a.IsDict():
		if !b.IsDict() || a.AsDict().Len() != b.AsDict().Len() {
			return false
		}
		for k, x := range a.AsDict().Data {
			if y, ok := b.AsDict().Get(k); !ok || !equal(x, y) {
				return false
			}
		}
		return true
	}
	return a.IsNone() && b.IsNone() || a.IsUndefined() && b.IsUndefined()
}

// compare orders two values as Python's < does: numbers, texts, and lists of such.
func compare(a, b jinja.Value) (int, error) {
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			switch {
			case x < y:
				return -1, nil
			case x > y:
				return 1, nil
			}
			return 0, nil
		}
	}
	if a.IsString() && b.IsString() {
		return strings.Compare(a.AsString(), b.AsString()), nil
	}
	if a.IsList() && b.IsList() {
		x, y := a.AsList().Items, b.AsList().Items
		for i := range min(len(x), len(y)) {
			if c, err := compare(x[i], y[i]); c != 0 || err != nil {
				return c, err
			}
		}
		return len(x) - len(y), nil
	}
	return 0, fmt.Errorf("%s and %s cannot be ordered", typeName(a), typeName(b))
}

// contains is Python's in.
func contains(container, item jinja.Value) (bool, error) {
	switch {
	case container.IsString():
		if !item.IsString() {
			return false, fmt.Errorf("a str cannot contain %s", typeName(item))
		}
		return strings.Contains(container.AsString(), item.AsString()), nil
	case container.IsDict():
		return item.IsString() && container.AsDict().Has(item.AsString()), nil
	case container.IsList():
		for _, x := range container.AsList().Items {
			if equal(x, item) {
				return true, nil
			}
		}
		return false, nil
	case container.IsUndefined():
		return false, nil
	}
	return false, fmt.Errorf("%s cannot contain anything", typeName(container))
}

// jsonStyle is how Python's json.dumps is to print.
type jsonStyle struct {
	item, key string // separators
	indent    string
	pretty    bool // a line for each value
	ascii     bool
	sort      bool
}

// appendJSON writes a value as json.dumps does.
func (s *jsonStyle) appendJSON(b *strings.Builder, v jinja.Value, depth int) error {
	if depth > 2*MaxDepth || b.Len() > maxValue {
		return &LimitError{"a value is too large or too deep for JSON"}
	}
	line := func(depth int) {
		if s.pretty {
			b.WriteByte('\n')
			for range depth {
				b.WriteString(s.indent)
			}
		}
	}
	switch {
	case v.IsNone():
		b.WriteString("null")
	case v.IsBool():
		b.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		switch f := v.AsFloat(); {
		case math.IsNaN(f):
			b.WriteString("NaN")
		case math.IsInf(f, 1):
			b.WriteString("Infinity")
		case math.IsInf(f, -1):
			b.WriteString("-Infinity")
		default:
			b.WriteString(floatRepr(f))
		}
	case v.IsString():
		s.appendString(b, v.AsString())
	case v.IsList():
		items := v.AsList().Items
		if len(items) == 0 {
			b.WriteString("[]")
			return nil
		}
		b.WriteByte('[')
		for i, x := range items {
			if i > 0 {
				b.WriteString(s.item)
			}
			line(depth + 1)
			if err := s.appendJSON(b, x, depth+1); err != nil {
				return err
			}
		}
		line(depth)
		b.WriteByte(']')
	case v.IsDict():
		d := v.AsDict()
		if d.Len() == 0 {
			b.WriteString("{}")
			return nil
		}
		keys := d.Keys
		if s.sort {
			keys = sorted(keys)
		}
		b.WriteByte('{')
		for i, k := range keys {
			if i > 0 {
				b.WriteString(s.item)
			}
			line(depth + 1)
			s.appendString(b, k)
			b.WriteString(s.key)
			if err := s.appendJSON(b, d.Data[k], depth+1); err != nil {
				return err
			}
		}
		line(depth)
		b.WriteByte('}')
	default:
		return fmt.Errorf("%s cannot be written as JSON", typeName(v))
	}
	return nil
}

func (s *jsonStyle) appendString(b *strings.Builder, text string) {
	b.WriteByte('"')
	for _, r := range text {
		switch r {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case '\t':
			b.WriteString(`\t`)
		case '\b':
			b.WriteString(`\b`)
		case '\f':
			b.WriteString(`\f`)
		default:
			switch {
			case r < 0x20 || s.ascii && r >= 0x7F && r < 0x10000:
				fmt.Fprintf(b, `\u%04x`, r)
			case s.ascii && r >= 0x10000:
				r -= 0x10000
				fmt.Fprintf(b, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
			default:
				b.WriteRune(r)
			}
		}
	}
	b.WriteByte('"')
}
