package template

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// call is the arguments of a filter or method.
type call struct {
	args   []jinja.Value // without what the filter is applied to
	kwargs map[string]jinja.Value
}

// arg is the argument at a place or of a name.
func (c call) arg(i int, name string) (jinja.Value, bool) {
	if i >= 0 && i < len(c.args) {
		return c.args[i], true
	}
	v, ok := c.kwargs[name]
	return v, ok
}

func (c call) text(i int, name, otherwise string) (string, error) {
	v, ok := c.arg(i, name)
	if !ok {
		return otherwise, nil
	}
	return text(v)
}

func (c call) int(i int, name string, otherwise int64) (int64, error) {
	v, ok := c.arg(i, name)
	if !ok || v.IsNone() {
		return otherwise, nil
	}
	if n, ok := integer(v); ok {
		return n, nil
	}
	return 0, fmt.Errorf("%s must be an int, not %s", name, typeName(v))
}

func (c call) truth(i int, name string) bool {
	v, ok := c.arg(i, name)
	return ok && v.IsTruthy()
}

// filter makes a function of one over a value and its arguments.
func filter(f func(v jinja.Value, c call) (jinja.Value, error)) function {
	return func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
		if len(args) == 0 {
			return jinja.Value{}, fmt.Errorf("a filter of nothing")
		}
		return f(args[0], call{args[1:], kwargs})
	}
}

// textFilter makes a filter of a function over text.
func textFilter(f func(string) string) function {
	return filter(func(v jinja.Value, _ call) (jinja.Value, error) {
		s, err := text(v)
		return jinja.NewString(f(s)), err
	})
}

// listFilter makes a filter of one over what a value iterates to.
func listFilter(f func(items []jinja.Value, c call) (jinja.Value, error)) function {
	return filter(func(v jinja.Value, c call) (jinja.Value, error) {
		items, err := iterate(v)
		if err != nil {
			return jinja.Value{}, err
		}
		return f(items, c)
	})
}

// filters are Jinja2's, as far as chat templates use them.
var filters map[string]function

func init() { // not a literal, since map applies filters by name
	filters = map[string]function{
		"tojson": filter(toJSON), "fromjson": filter(fromJSON), "from_json": filter(fromJSON),
		"string": textFilter(func(s string) string { return s }),
		"safe":   textFilter(func(s string) string { return s }),
		"upper":  textFilter(strings.ToUpper), "lower": textFilter(strings.ToLower),
		"capitalize": textFilter(capitalize), "title": textFilter(titleFilter),
		"escape": textFilter(htmlEscapes.Replace), "e": textFilter(htmlEscapes.Replace),
		"wordcount": filter(wordCount), "trim": filter(trim), "replace": filter(replace), "indent": filter(indent),
		"default": filter(defaultTo), "d": filter(defaultTo),
		"int": filter(toInt), "float": filter(toFloat), "round": filter(round), "abs": filter(abs),
		"length": filter(length), "count": filter(length), "items": filter(items), "attr": filter(attr),
		"first": listFilter(first), "last": listFilter(last), "list": listFilter(newList), "reverse": filter(reverse),
		"join": listFilter(join), "map": listFilter(mapTo), "sum": listFilter(sum), "batch": listFilter(batch),
		"sort": listFilter(sortFilter), "unique": listFilter(unique), "dictsort": filter(dictSort),
		"max": listFilter(extreme(1)), "min": listFilter(extreme(-1)),
		"select": listFilter(choose(true, false)), "reject": listFilter(choose(false, false)),
		"selectattr": listFilter(choose(true, true)), "rejectattr": listFilter(choose(false, true)),
	}
}

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

// toJSON is transformers' tojson: json.dumps(x, ensure_ascii=False, indent=None, separators=None,
// sort_keys=False).
func toJSON(v jinja.Value, c call) (jinja.Value, error) {
	s := jsonStyle{item: ", ", key: ": ", ascii: c.truth(0, "ensure_ascii"), sort: c.truth(3, "sort_keys")}
	if in, ok := c.arg(1, "indent"); ok && !in.IsNone() {
		s.pretty, s.item = true, ","
		if n, ok := integer(in); ok {
			s.indent = strings.Repeat(" ", int(min(max(n, 0), 64)))
		} else if in.IsString() {
			s.indent = in.AsString()
		} else {
			return jinja.Value{}, fmt.Errorf("indent must be an int or a str, not %s", typeName(in))
		}
	}
	if sep, ok := c.arg(2, "separators"); ok && !sep.IsNone() {
		if !sep.IsList() || sep.AsList().Len() != 2 || !sep.AsList().Get(0).IsString() || !sep.AsList().Get(1).IsString() {
			return jinja.Value{}, fmt.Errorf("separators must be two texts")
		}
		s.item, s.key = sep.AsList().Get(0).AsString(), sep.AsList().Get(1).AsString()
	}
	var b strings.Builder
	err := s.appendJSON(&b, v, 0)
	return jinja.NewString(b.String()), err
}

func fromJSON(v jinja.Value, _ call) (jinja.Value, error) {
	if !v.IsString() {
		return jinja.Value{}, fmt.Errorf("JSON must be a str, not %s", typeName(v))
	}
	x, err := Decode([]byte(v.AsString()))
	if err != nil {
		return jinja.Value{}, err
	}
	return toValue(x, "the JSON text", 0)
}

func capitalize(s string) string {
	r := []rune(s)
	if len(r) == 0 {
		return s
	}
	return string(unicode.ToTitle(r[0])) + strings.ToLower(string(r[1:]))
}

// titleFilter is Jinja2's title, which only begins a word after white space and these.
func titleFilter(s string) string {
	var b strings.Builder
	begin := true
	for _, r := range s {
		if begin {
			b.WriteRune(unicode.ToUpper(r))
		} else {
			b.WriteRune(unicode.ToLower(r))
		}
		begin = isSpace(r) || strings.ContainsRune("-({[<", r)
	}
	return b.String()
}

func wordCount(v jinja.Value, _ call) (jinja.Value, error) {
	s, err := text(v)
	words := strings.FieldsFunc(s, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r) })
	return jinja.NewInt(int64(len(words))), err
}

func trim(v jinja.Value, c call) (jinja.Value, error) {
	s, err := text(v)
	if err != nil {
		return jinja.Value{}, err
	}
	return strip(s, c, true, true)
}

// strip is str.strip, lstrip and rstrip.
func strip(s string, c call, left, right bool) (jinja.Value, error) {
	in := isSpace
	if v, ok := c.arg(0, "chars"); ok && !v.IsNone() {
		if !v.IsString() {
			return jinja.Value{}, fmt.Errorf("the characters to strip must be a str, not %s", typeName(v))
		}
		chars := v.AsString()
		in = func(r rune) bool { return strings.ContainsRune(chars, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	return jinja.NewString(s), nil
}

func replace(v jinja.Value, c call) (jinja.Value, error) {
	s, err := text(v)
	if err != nil {
		return jinja.Value{}, err
	}
	_, ok1 := c.arg(0, "old")
	_, ok2 := c.arg(1, "new")
	if !ok1 || !ok2 {
		return jinja.Value{}, fmt.Errorf("replace needs what to replace and by what")
	}
	from, err := c.text(0, "old", "")
	if err != nil {
		return jinja.Value{}, err
	}
	to, err := c.text(1, "new", "")
	if err != nil {
		return jinja.Value{}, err
	}
	n, err := c.int(2, "count", -1)
	if err != nil {
		return jinja.Value{}, err
	}
	return replaceText(s, from, to, n)
}

func replaceText(s, from, to string, n int64) (jinja.Value, error) {
	count := int64(strings.Count(s, from))
	if n < 0 || n > count {
		n = count
	}
	if grow := int64(len(to) - len(from)); grow > 0 && n > (maxValue-int64(len(s)))/grow {
		return jinja.Value{}, tooLong
	}
	return jinja.NewString(strings.Replace(s, from, to, int(n))), nil
}

var tooLong = &LimitError{fmt.Sprintf("a text is longer than %d bytes", maxValue)}

func indent(v jinja.Value, c call) (jinja.Value, error) {
	s, err := text(v)
	if err != nil {
		return jinja.Value{}, err
	}
	var by string
	if w, ok := c.arg(0, "width"); ok && w.IsString() {
		by = w.AsString()
	} else {
		n, err := c.int(0, "width", 4)
		if err != nil {
			return jinja.Value{}, err
		}
		by = strings.Repeat(" ", int(min(max(n, 0), 4096)))
	}
	lines := splitLines(s+"\n", false)
	if len(by)*len(lines)+len(s) > maxValue {
		return jinja.Value{}, tooLong
	}
	blank := c.truth(2, "blank")
	for i, line := range lines {
		if i > 0 && (line != "" || blank) || i == 0 && c.truth(1, "first") {
			lines[i] = by + line
		}
	}
	return jinja.NewString(strings.Join(lines, "\n")), nil
}

func defaultTo(v jinja.Value, c call) (jinja.Value, error) {
	if v.IsUndefined() || c.truth(1, "boolean") && !v.IsTruthy() {
		if d, ok := c.arg(0, "default_value"); ok {
			return d, nil
		}
		return jinja.NewString(""), nil
	}
	return v, nil
}

func toInt(v jinja.Value, c call) (jinja.Value, error) {
	otherwise, ok := c.arg(0, "default")
	if !ok {
		otherwise = jinja.NewInt(0)
	}
	if n, ok := integer(v); ok {
		return jinja.NewInt(n), nil
	}
	f := math.NaN()
	if v.IsFloat() {
		f = v.AsFloat()
	} else if v.IsString() {
		base, err := c.int(1, "base", 10)
		if err != nil || base < 2 || base > 36 {
			return otherwise, err
		}
		s := strings.TrimFunc(v.AsString(), isSpace)
		if n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), int(base), 64); err == nil {
			return jinja.NewInt(n), nil
		}
		if x, err := strconv.ParseFloat(s, 64); err == nil {
			f = x
		}
	}
	if math.IsNaN(f) || math.Abs(f) >= 1<<63 {
		return otherwise, nil
	}
	return jinja.NewInt(int64(f)), nil
}

func toFloat(v jinja.Value, c call) (jinja.Value, error) {
	if f, ok := number(v); ok {
		return jinja.NewFloat(f), nil
	}
	if v.IsString() {
		if f, err := strconv.ParseFloat(strings.TrimFunc(v.AsString(), isSpace), 64); err == nil {
			return jinja.NewFloat(f), nil
		}
	}
	if d, ok := c.arg(0, "default"); ok {
		return d, nil
	}
	return jinja.NewFloat(0), nil
}

func round(v jinja.Value, c call) (jinja.Value, error) {
	f, ok := number(v)
	if !ok {
		return jinja.Value{}, fmt.Errorf("cannot round %s", typeName(v))
	}
	digits, err := c.int(0, "precision", 0)
	if err != nil {
		return jinja.Value{}, err
	}
	how, err := c.text(1, "method", "common")
	if err != nil {
		return jinja.Value{}, err
	}
	digits = min(max(digits, -300), 300)
	scale := math.Pow(10, float64(digits))
	switch how {
	case "common":
		if _, whole := integer(v); whole && digits >= 0 {
			return v, nil
		}
		if digits >= 0 {
			// Decimal rounding of the exact value, half to even, as Python does it.
			f, err = strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
		} else {
			f = math.RoundToEven(f*scale) / scale
		}
	case "ceil":
		f = math.Ceil(f*scale) / scale
	case "floor":
		f = math.Floor(f*scale) / scale
	default:
		err = fmt.Errorf("the rounding method %q is not known", how)
	}
	return jinja.NewFloat(f), err
}

func abs(v jinja.Value, _ call) (jinja.Value, error) {
	if n, ok := integer(v); ok {
		return jinja.NewInt(max(n, -n)), nil
	}
	if f, ok := number(v); ok {
		return jinja.NewFloat(math.Abs(f)), nil
	}
	return jinja.Value{}, fmt.Errorf("%s has no absolute value", typeName(v))
}

func length(v jinja.Value, _ call) (jinja.Value, error) {
	items, err := iterate(v)
	if err != nil {
		err = fmt.Errorf("%s has no length", typeName(v))
	}
	return jinja.NewInt(int64(len(items))), err
}

func pairs(d *jinja.Dict) []jinja.Value {
	out := make([]jinja.Value, 0, d.Len())
	for _, k := range d.Keys {
		out = append(out, jinja.NewList([]jinja.Value{jinja.NewString(k), d.Data[k]}))
	}
	return out
}

func items(v jinja.Value, _ call) (jinja.Value, error) {
	switch {
	case v.IsUndefined():
		return jinja.NewList(nil), nil
	case v.IsDict():
		return jinja.NewList(pairs(v.AsDict())), nil
	}
	return jinja.Value{}, fmt.Errorf("items needs a mapping, not %s", typeName(v))
}

// follow goes along a path of names and indexes, such as function.name, from a value.
func follow(v jinja.Value, path string) (jinja.Value, error) {
	for _, step := range strings.Split(path, ".") {
		key := jinja.NewString(step)
		if i, err := strconv.Atoi(step); err == nil && i >= 0 {
			key = jinja.NewInt(int64(i))
		}
		var err error
		if v, err = item(v, key); err != nil {
			return jinja.Value{}, err
		}
	}
	return v, nil
}

func attr(v jinja.Value, c call) (jinja.Value, error) {
	name, err := c.text(0, "name", "")
	if err != nil {
		return jinja.Value{}, err
	}
	return member(v, name)
}

func first(items []jinja.Value, _ call) (jinja.Value, error) {
	if len(items) == 0 {
		return jinja.Undefined(), nil
	}
	return items[0], nil
}

func last(items []jinja.Value, _ call) (jinja.Value, error) {
	if len(items) == 0 {
		return jinja.Undefined(), nil
	}
	return items[len(items)-1], nil
}

func newList(items []jinja.Value, _ call) (jinja.Value, error) {
	return jinja.NewList(slices.Clone(items)), nil
}

func reverse(v jinja.Value, _ call) (jinja.Value, error) {
	if v.IsString() {
		r := []rune(v.AsString())
		slices.Reverse(r)
		return jinja.NewString(string(r)), nil
	}
	items, err := iterate(v)
	items = slices.Clone(items)
	slices.Reverse(items)
	return jinja.NewList(items), err
}

// by maps items to what the attribute argument names of them.
func by(items []jinja.Value, c call, i int) ([]jinja.Value, error) {
	a, ok := c.arg(i, "attribute")
	if !ok || a.IsNone() {
		return items, nil
	}
	path, err := text(a)
	if err != nil {
		return nil, err
	}
	out := make([]jinja.Value, len(items))
	for k, x := range items {
		if out[k], err = follow(x, path); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func join(items []jinja.Value, c call) (jinja.Value, error) {
	sep, err := c.text(0, "d", "")
	if err != nil {
		return jinja.Value{}, err
	}
	if items, err = by(items, c, 1); err != nil {
		return jinja.Value{}, err
	}
	return joinText(items, sep)
}

func joinText(items []jinja.Value, sep string) (jinja.Value, error) {
	var b strings.Builder
	for i, x := range items {
		if i > 0 {
			b.WriteString(sep)
		}
		s, err := text(x)
		if err != nil {
			return jinja.Value{}, err
		}
		b.WriteString(s)
		if b.Len() > maxValue {
			return jinja.Value{}, tooLong
		}
	}
	return jinja.NewString(b.String()), nil
}

// mapTo: map(attribute=…, default=…) or map(filter, …)
func mapTo(items []jinja.Value, c call) (jinja.Value, error) {
	out := make([]jinja.Value, len(items))
	if len(c.args) == 0 {
		values, err := by(items, c, -1)
		if err != nil {
			return jinja.Value{}, err
		}
		copy(out, values)
		if d, ok := c.kwargs["default"]; ok {
			for i := range out {
				if out[i].IsUndefined() {
					out[i] = d
				}
			}
		}
		return jinja.NewList(out), nil
	}
	name, err := text(c.args[0])
	if err != nil {
		return jinja.Value{}, err
	}
	f := filters[name]
	if f == nil {
		return jinja.Value{}, fmt.Errorf("the filter %q is not known", name)
	}
	for i, x := range items {
		if out[i], err = f(append([]jinja.Value{x}, c.args[1:]...), c.kwargs); err != nil {
			return jinja.Value{}, err
		}
	}
	return jinja.NewList(out), nil
}

// choose is select, reject, selectattr and rejectattr.
func choose(keep, attribute bool) func(items []jinja.Value, c call) (jinja.Value, error) {
	return func(items []jinja.Value, c call) (jinja.Value, error) {
		args := c.args
		path := ""
		if attribute {
			if len(args) == 0 {
				return jinja.Value{}, fmt.Errorf("the attribute's name is missing")
			}
			var err error
			if path, err = text(args[0]); err != nil {
				return jinja.Value{}, err
			}
			args = args[1:]
		}
		test := func(v jinja.Value, _ []jinja.Value) (bool, error) { return v.IsTruthy(), nil }
		if len(args) > 0 {
			name, err := text(args[0])
			if err != nil {
				return jinja.Value{}, err
			}
			if test = tests[name]; test == nil {
				return jinja.Value{}, fmt.Errorf("the test %q is not known", name)
			}
			args = args[1:]
		}
		out := []jinja.Value{}
		for _, x := range items {
			v := x
			var err error
			if attribute {
				if v, err = follow(x, path); err != nil {
					return jinja.Value{}, err
				}
			}
			ok, err := test(v, args)
			if err != nil {
				return jinja.Value{}, err
			}
			if ok == keep {
				out = append(out, x)
			}
		}
		return jinja.NewList(out), nil
	}
}

func sum(items []jinja.Value, c call) (jinja.Value, error) {
	items, err := by(items, c, 0)
	if err != nil {
		return jinja.Value{}, err
	}
	total, ok := c.arg(1, "start")
	if !ok {
		total = jinja.NewInt(0)
	}
	for _, x := range items {
		n, ok1 := integer(total)
		m, ok2 := integer(x)
		if ok1 && ok2 {
			total = jinja.NewInt(n + m)
			continue
		}
		f, ok1 := number(total)
		g, ok2 := number(x)
		if !ok1 || !ok2 {
			return jinja.Value{}, fmt.Errorf("cannot add %s to %s", typeName(x), typeName(total))
		}
		total = jinja.NewFloat(f + g)
	}
	return total, nil
}

func batch(items []jinja.Value, c call) (jinja.Value, error) {
	n, err := c.int(0, "linecount", 0)
	if err != nil || n <= 0 {
		return jinja.Value{}, fmt.Errorf("batch needs the number of items in each")
	}
	fill, filled := c.arg(1, "fill_with")
	var out []jinja.Value
	for len(items) > 0 {
		k := int(min(n, int64(len(items))))
		part := slices.Clone(items[:k])
		items = items[k:]
		for filled && !fill.IsNone() && int64(len(part)) < n && len(part) < maxTagTokens {
			part = append(part, fill)
		}
		out = append(out, jinja.NewList(part))
	}
	return jinja.NewList(out), nil
}

// folded is the value without case, for sorting, unless case counts.
func folded(v jinja.Value, caseCounts bool) jinja.Value {
	if v.IsString() && !caseCounts {
		return jinja.NewString(strings.ToLower(v.AsString()))
	}
	return v
}

// order sorts items by keys, stably.
func order(items, keys []jinja.Value, reverse bool) error {
	place := make([]int, len(items))
	for i := range place {
		place[i] = i
	}
	var failed error
	slices.SortStableFunc(place, func(i, j int) int {
		c, err := compare(keys[i], keys[j])
		if err != nil && failed == nil {
			failed = err
		}
		if reverse {
			return -c
		}
		return c
	})
	out := make([]jinja.Value, len(items))
	for i, p := range place {
		out[i] = items[p]
	}
	copy(items, out)
	return failed
}

func sortFilter(items []jinja.Value, c call) (jinja.Value, error) {
	keys, err := by(items, c, 2)
	if err != nil {
		return jinja.Value{}, err
	}
	items, keys = slices.Clone(items), slices.Clone(keys)
	for i := range keys {
		keys[i] = folded(keys[i], c.truth(1, "case_sensitive"))
	}
	return jinja.NewList(items), order(items, keys, c.truth(0, "reverse"))
}

func sorted(keys []string) []string {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	return keys
}

func unique(items []jinja.Value, c call) (jinja.Value, error) {
	keys, err := by(items, c, 1)
	if err != nil {
		return jinja.Value{}, err
	}
	seen := make(map[string]bool)
	out := []jinja.Value{}
	for i, x := range items {
		var b strings.Builder
		if err := appendRepr(&b, folded(keys[i], c.truth(0, "case_sensitive")), 0); err != nil {
			return jinja.Value{}, err
		}
		if !seen[b.String()] {
			seen[b.String()] = true
			out = append(out, x)
		}
	}
	return jinja.NewList(out), nil
}

func dictSort(v jinja.Value, c call) (jinja.Value, error) {
	if !v.IsDict() {
		return jinja.Value{}, fmt.Errorf("dictsort needs a mapping, not %s", typeName(v))
	}
	which, err := c.text(1, "by", "key")
	if err != nil {
		return jinja.Value{}, err
	}
	at, ok := map[string]int{"key": 0, "value": 1}[which]
	if !ok {
		return jinja.Value{}, fmt.Errorf("dictsort is by key or value, not by %q", which)
	}
	items := pairs(v.AsDict())
	keys := make([]jinja.Value, len(items))
	for i, x := range items {
		keys[i] = folded(x.AsList().Get(at), c.truth(0, "case_sensitive"))
	}
	return jinja.NewList(items), order(items, keys, c.truth(2, "reverse"))
}

// extreme is max and min.
func extreme(sign int) func(items []jinja.Value, c call) (jinja.Value, error) {
	return func(items []jinja.Value, c call) (jinja.Value, error) {
		keys, err := by(items, c, 1)
		if err != nil || len(items) == 0 {
			return jinja.Undefined(), err
		}
		best := 0
		for i := range items {
			d, err := compare(folded(keys[i], c.truth(0, "case_sensitive")), folded(keys[best], c.truth(0, "case_sensitive")))
			if err != nil {
				return jinja.Value{}, err
			}
			if d*sign > 0 {
				best = i
			}
		}
		return items[best], nil
	}
}
