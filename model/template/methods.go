package template

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// method calls a method of a value.
func method(name string, v jinja.Value, args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	c := call{args, kwargs}
	switch {
	case v.IsString():
		if out, ok, err := stringMethod(name, v.AsString(), c); ok || err != nil {
			return out, err
		}
	case v.IsDict():
		d := v.AsDict()
		switch name {
		case "get":
			if len(args) == 0 {
				return jinja.Value{}, fmt.Errorf("get needs a key")
			}
			key, err := text(args[0])
			if err != nil {
				return jinja.Value{}, err
			}
			if x, ok := d.Get(key); ok {
				return x, nil
			}
			if len(args) > 1 {
				return args[1], nil
			}
			return jinja.None(), nil
		case "items":
			return jinja.NewList(pairs(d)), nil
		case "keys":
			items, err := iterate(v)
			return jinja.NewList(items), err
		case "values":
			items := make([]jinja.Value, 0, d.Len())
			for _, k := range d.Keys {
				items = append(items, d.Data[k])
			}
			return jinja.NewList(items), nil
		case "copy":
			return dict([]jinja.Value{v}, nil)
		case "clear", "pop", "popitem", "setdefault", "update":
			return jinja.Value{}, fmt.Errorf("%s would change a value, which a chat template may not", name)
		}
		if f, ok := d.Get(name); ok && f.IsCallable() {
			return f.AsCallable().Fn(args, kwargs)
		}
	case v.IsList():
		items := v.AsList().Items
		switch name {
		case "copy":
			return newList(items, c)
		case "index", "count":
			if len(args) != 1 {
				return jinja.Value{}, fmt.Errorf("%s needs a value", name)
			}
			n := int64(0)
			for i, x := range items {
				if equal(x, args[0]) {
					if name == "index" {
						return jinja.NewInt(int64(i)), nil
					}
					n++
				}
			}
			if name == "index" {
				return jinja.Value{}, fmt.Errorf("the value is not in the list")
			}
			return jinja.NewInt(n), nil
		case "append", "extend", "insert", "remove", "clear", "pop", "sort", "reverse":
			return jinja.Value{}, fmt.Errorf("%s would change a value, which a chat template may not", name)
		}
	}
	return jinja.Value{}, fmt.Errorf("%s has no method %s", typeName(v), name)
}

// stringMethod calls a method of Python's str; ok is false if there is none of the name.
func stringMethod(name, s string, c call) (out jinja.Value, ok bool, err error) {
	str := func(i int, what string) string {
		v, given := c.arg(i, what)
		if err == nil && (!given || !v.IsString()) {
			err = fmt.Errorf("%s needs a str for %s", name, what)
		}
		if err != nil {
			return ""
		}
		return v.AsString()
	}
	num := func(i int, what string, otherwise int64) int64 {
		if err != nil {
			return 0
		}
		var n int64
		n, err = c.int(i, what, otherwise)
		return n
	}
	done := func(v jinja.Value) (jinja.Value, bool, error) { return v, true, err }
	truth := func(some bool, f func(rune) bool) (jinja.Value, bool, error) {
		for _, r := range s {
			some = some && f(r)
		}
		return jinja.NewBool(some && s != ""), true, nil
	}
	switch name {
	case "strip", "lstrip", "rstrip":
		out, err = strip(s, c, name != "rstrip", name != "lstrip")
		return out, true, err
	case "upper":
		return done(jinja.NewString(strings.ToUpper(s)))
	case "lower", "casefold":
		return done(jinja.NewString(strings.ToLower(s)))
	case "capitalize":
		return done(jinja.NewString(capitalize(s)))
	case "swapcase":
		return done(jinja.NewString(strings.Map(func(r rune) rune {
			if unicode.IsUpper(r) {
				return unicode.ToLower(r)
			}
			return unicode.ToUpper(r)
		}, s)))
	case "title":
		begin := true
		return done(jinja.NewString(strings.Map(func(r rune) rune {
			first := begin
			begin = !unicode.IsLetter(r)
			if first {
				return unicode.ToTitle(r)
			}
			return unicode.ToLower(r)
		}, s)))
	case "startswith", "endswith":
		return affix(name, s, c)
	case "removeprefix":
		return done(jinja.NewString(strings.TrimPrefix(s, str(0, "prefix"))))
	case "removesuffix":
		return done(jinja.NewString(strings.TrimSuffix(s, str(0, "suffix"))))
	case "split", "rsplit":
		limit := num(1, "maxsplit", -1)
		sep, given := c.arg(0, "sep")
		if !given || sep.IsNone() {
			return done(texts(splitSpace(s, limit, name == "rsplit")))
		}
		if str(0, "sep") == "" && err == nil {
			err = fmt.Errorf("%s by an empty text", name)
		}
		if err != nil {
			return jinja.Value{}, true, err
		}
		return done(texts(splitBy(s, sep.AsString(), limit, name == "rsplit")))
	case "splitlines":
		return done(texts(splitLines(s, c.truth(0, "keepends"))))
	case "partition", "rpartition":
		sep := str(0, "sep")
		i, none := strings.Index(s, sep), []string{s, "", ""}
		if name == "rpartition" {
			i, none = strings.LastIndex(s, sep), []string{"", "", s}
		}
		if i < 0 || err != nil {
			return done(texts(none))
		}
		return done(texts([]string{s[:i], sep, s[i+len(sep):]}))
	case "replace":
		from, to, n := str(0, "old"), str(1, "new"), num(2, "count", -1)
		if err != nil {
			return jinja.Value{}, true, err
		}
		out, err = replaceText(s, from, to, n)
		return out, true, err
	case "find", "rfind", "index":
		sub := str(0, "sub")
		i := strings.Index(s, sub)
		if name == "rfind" {
			i = strings.LastIndex(s, sub)
		}
		if i < 0 && name == "index" && err == nil {
			err = fmt.Errorf("the text is not found")
		}
		if i > 0 {
			i = utf8.RuneCountInString(s[:i])
		}
		return done(jinja.NewInt(int64(i)))
	case "count":
		return done(jinja.NewInt(int64(strings.Count(s, str(0, "sub")))))
	case "join":
		if len(c.args) != 1 {
			return jinja.Value{}, true, fmt.Errorf("join needs what to join")
		}
		items, err := iterate(c.args[0])
		if err != nil {
			return jinja.Value{}, true, err
		}
		for _, x := range items {
			if !x.IsString() {
				return jinja.Value{}, true, fmt.Errorf("join needs texts, found %s", typeName(x))
			}
		}
		out, err = joinText(items, s)
		return out, true, err
	case "format":
		out, err = format(s, c)
		return out, true, err
	case "isdigit":
		return truth(true, unicode.IsDigit)
	case "isalpha":
		return truth(true, unicode.IsLetter)
	case "isalnum":
		return truth(true, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
	case "isspace":
		return truth(true, isSpace)
	case "isupper":
		return done(jinja.NewBool(isUpper(s)))
	case "islower":
		return done(jinja.NewBool(isLower(s)))
	case "zfill", "ljust", "rjust", "center":
		width, fill := num(0, "width", 0), " "
		if _, given := c.arg(1, "fillchar"); given && name != "zfill" {
			if fill = str(1, "fillchar"); utf8.RuneCountInString(fill) != 1 && err == nil {
				err = fmt.Errorf("%s fills with one character", name)
			}
		}
		n := max(width-int64(utf8.RuneCountInString(s)), 0)
		if n > maxValue/4 && err == nil {
			err = tooLong
		}
		if err != nil {
			return jinja.Value{}, true, err
		}
		pad := func(n int64) string { return strings.Repeat(fill, int(n)) }
		switch name {
		case "ljust":
			s += pad(n)
		case "rjust":
			s = pad(n) + s
		case "center":
			left := n/2 + n&width&1 // as CPython divides it
			s = pad(left) + s + pad(n-left)
		case "zfill":
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign, s = s[:1], s[1:]
			}
			s = sign + strings.Repeat("0", int(n)) + s
		}
		return done(jinja.NewString(s))
	}
	return jinja.Value{}, false, nil
}

// affix is startswith and endswith, of one text or any of a tuple.
func affix(name, s string, c call) (jinja.Value, bool, error) {
	if len(c.args) == 0 {
		return jinja.Value{}, true, fmt.Errorf("%s needs a text", name)
	}
	any := []jinja.Value{c.args[0]}
	if any[0].IsList() {
		any = any[0].AsList().Items
	}
	for _, x := range any {
		if !x.IsString() {
			return jinja.Value{}, true, fmt.Errorf("%s needs a str, not %s", name, typeName(x))
		}
		if name == "startswith" && strings.HasPrefix(s, x.AsString()) || name == "endswith" && strings.HasSuffix(s, x.AsString()) {
			return jinja.NewBool(true), true, nil
		}
	}
	return jinja.NewBool(false), true, nil
}

func texts(parts []string) jinja.Value {
	items := make([]jinja.Value, len(parts))
	for i, p := range parts {
		items[i] = jinja.NewString(p)
	}
	return jinja.NewList(items)
}

// splitSpace splits at runs of white space, at most limit times unless it is negative, counted from
// the right if so asked.
func splitSpace(s string, limit int64, right bool) []string {
	parts := []string{}
	if limit < 0 {
		return append(parts, strings.FieldsFunc(s, isSpace)...)
	}
	if right {
		for s = strings.TrimRightFunc(s, isSpace); s != ""; s = strings.TrimRightFunc(s, isSpace) {
			i := strings.LastIndexFunc(s, isSpace)
			if i < 0 || int64(len(parts)) == limit {
				parts = append(parts, strings.TrimLeftFunc(s, isSpace))
				break
			}
			_, n := utf8.DecodeRuneInString(s[i:])
			parts = append(parts, s[i+n:])
			s = s[:i]
		}
		for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
			parts[i], parts[j] = parts[j], parts[i]
		}
		return parts
	}
	for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
		i := strings.IndexFunc(s, isSpace)
		if i < 0 || int64(len(parts)) == limit {
			// What is left keeps its trailing white space.
			parts = append(parts, s)
			break
		}
		parts = append(parts, s[:i])
		s = s[i:]
	}
	return parts
}

// splitBy splits at a separator, at most limit times unless it is negative.
func splitBy(s, sep string, limit int64, right bool) []string {
	parts := strings.Split(s, sep)
	if limit < 0 || int64(len(parts)) <= limit+1 {
		return parts
	}
	n := int(limit)
	if right {
		k := len(parts) - n
		return append([]string{strings.Join(parts[:k], sep)}, parts[k:]...)
	}
	return append(parts[:n:n], strings.Join(parts[n:], sep))
}

// splitLines is str.splitlines: lines end at \n, \r, \r\n and Unicode's other line boundaries.
func splitLines(s string, keep bool) []string {
	lines := []string{}
	from := 0
	for i, r := range s {
		switch r {
		case '\n', '\r', '\v', '\f', 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029:
			if r == '\n' && i > 0 && s[i-1] == '\r' {
				if keep {
					lines[len(lines)-1] += "\n"
				}
				from = i + 1
				continue
			}
			end := i
			if keep {
				end += utf8.RuneLen(r)
			}
			lines = append(lines, s[from:end])
			from = i + utf8.RuneLen(r)
		}
	}
	if from < len(s) {
		lines = append(lines, s[from:])
	}
	return lines
}

// format is str.format with {}, {0} and {name}; without format specifications.
func format(s string, c call) (jinja.Value, error) {
	var b strings.Builder
	next := 0
	for {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		if i+1 < len(s) && s[i+1] == s[i] {
			b.WriteByte(s[i])
			s = s[i+2:]
			continue
		}
		end := strings.IndexByte(s[i:], '}')
		if s[i] == '}' || end < 0 {
			return jinja.Value{}, fmt.Errorf("a single brace in a format")
		}
		field := s[i+1 : i+end]
		s = s[i+end+1:]
		v, ok := c.kwargs[field]
		if field == "" {
			v, ok = c.arg(next, "")
			next++
		} else if !ok {
			n := 0
			if _, err := fmt.Sscanf(field, "%d", &n); err == nil && fmt.Sprint(n) == field {
				v, ok = c.arg(n, "")
			}
		}
		if !ok {
			return jinja.Value{}, fmt.Errorf("the format's field {%s} has no value, or is of a kind that is not supported", field)
		}
		t, err := text(v)
		if err != nil {
			return jinja.Value{}, err
		}
		if b.WriteString(t); b.Len() > maxValue {
			return jinja.Value{}, tooLong
		}
	}
	b.WriteString(s)
	return jinja.NewString(b.String()), nil
}

func isUpper(s string) bool {
	return strings.ContainsFunc(s, unicode.IsUpper) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsLower(r) || unicode.IsTitle(r) })
}

func isLower(s string) bool {
	return strings.ContainsFunc(s, unicode.IsLower) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsUpper(r) || unicode.IsTitle(r) })
}

// tests are Jinja2's, by name.
var tests = map[string]func(v jinja.Value, args []jinja.Value) (bool, error){
	"defined":   is(func(v jinja.Value) bool { return !v.IsUndefined() }),
	"undefined": is(jinja.Value.IsUndefined),
	"none":      is(jinja.Value.IsNone),
	"boolean":   is(jinja.Value.IsBool),
	"true":      is(func(v jinja.Value) bool { return v.IsBool() && v.AsBool() }),
	"false":     is(func(v jinja.Value) bool { return v.IsBool() && !v.AsBool() }),
	"integer":   is(jinja.Value.IsInt),
	"float":     is(jinja.Value.IsFloat),
	"number":    is(func(v jinja.Value) bool { return v.IsNumber() || v.IsBool() }),
	"string":    is(jinja.Value.IsString),
	"mapping":   is(jinja.Value.IsDict),
	"iterable":  is(func(v jinja.Value) bool { return v.IsString() || v.IsList() || v.IsDict() || v.IsUndefined() }),
	"sequence":  is(func(v jinja.Value) bool { return v.IsString() || v.IsList() || v.IsDict() }),
	"callable":  is(jinja.Value.IsCallable),
	"escaped":   is(func(jinja.Value) bool { return false }),
	"upper":     is(func(v jinja.Value) bool { s, err := text(v); return err == nil && isUpper(s) }),
	"lower":     is(func(v jinja.Value) bool { s, err := text(v); return err == nil && isLower(s) }),
	"odd":       is(func(v jinja.Value) bool { n, ok := integer(v); return ok && n%2 != 0 }),
	"even":      is(func(v jinja.Value) bool { n, ok := integer(v); return ok && n%2 == 0 }),
	"divisibleby": with(func(v, n jinja.Value) (bool, error) {
		x, ok1 := integer(v)
		y, ok2 := integer(n)
		if !ok1 || !ok2 || y == 0 {
			return false, fmt.Errorf("divisibleby needs integers, and no 0")
		}
		return x%y == 0, nil
	}),
	"sameas": with(func(a, b jinja.Value) (bool, error) {
		return a.IsBool() == b.IsBool() && a.IsFloat() == b.IsFloat() && equal(a, b), nil
	}),
	"in": with(func(v, in jinja.Value) (bool, error) { return contains(in, v) }),
	"eq": with(isEqual), "equalto": with(isEqual), "==": with(isEqual),
	"ne": with(isNotEqual), "!=": with(isNotEqual),
	"lt": ordered(func(c int) bool { return c < 0 }), "lessthan": ordered(func(c int) bool { return c < 0 }), "<": ordered(func(c int) bool { return c < 0 }),
	"gt": ordered(func(c int) bool { return c > 0 }), "greaterthan": ordered(func(c int) bool { return c > 0 }), ">": ordered(func(c int) bool { return c > 0 }),
	"le": ordered(func(c int) bool { return c <= 0 }), "<=": ordered(func(c int) bool { return c <= 0 }),
	"ge": ordered(func(c int) bool { return c >= 0 }), ">=": ordered(func(c int) bool { return c >= 0 }),
}

func isEqual(a, b jinja.Value) (bool, error)    { return equal(a, b), nil }
func isNotEqual(a, b jinja.Value) (bool, error) { return !equal(a, b), nil }

func is(f func(jinja.Value) bool) func(jinja.Value, []jinja.Value) (bool, error) {
	return func(v jinja.Value, _ []jinja.Value) (bool, error) { return f(v), nil }
}

// with makes a test that has an argument.
func with(f func(a, b jinja.Value) (bool, error)) func(jinja.Value, []jinja.Value) (bool, error) {
	return func(v jinja.Value, args []jinja.Value) (bool, error) {
		if len(args) != 1 {
			return false, fmt.Errorf("a test has %d arguments, and needs one", len(args))
		}
		return f(v, args[0])
	}
}

func ordered(ok func(int) bool) func(jinja.Value, []jinja.Value) (bool, error) {
	return with(func(a, b jinja.Value) (bool, error) {
		c, err := compare(a, b)
		return err == nil && ok(c), err
	})
}
