package template

import (
	"fmt"
	"math"
	"strings"

	"github.com/ardanlabs/jinja"
)

// operations are Python's operators, and access to the parts of a value.
var operations = map[string]function{
	"eq":    comparing(func(a, b jinja.Value) (bool, error) { return equal(a, b), nil }),
	"ne":    comparing(func(a, b jinja.Value) (bool, error) { return !equal(a, b), nil }),
	"lt":    comparing(func(a, b jinja.Value) (bool, error) { c, err := compare(a, b); return c < 0, err }),
	"gt":    comparing(func(a, b jinja.Value) (bool, error) { c, err := compare(a, b); return c > 0, err }),
	"le":    comparing(func(a, b jinja.Value) (bool, error) { c, err := compare(a, b); return c <= 0, err }),
	"ge":    comparing(func(a, b jinja.Value) (bool, error) { c, err := compare(a, b); return c >= 0, err }),
	"in":    comparing(func(a, b jinja.Value) (bool, error) { return contains(b, a) }),
	"notin": comparing(func(a, b jinja.Value) (bool, error) { ok, err := contains(b, a); return !ok, err }),
	"add":   operator(add), "sub": operator(sub), "mul": operator(mul), "div": operator(div),
	"floordiv": operator(floorDiv), "mod": operator(mod), "pow": operator(pow),
	"neg": func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		if args[0].IsFloat() {
			return jinja.NewFloat(-args[0].AsFloat()), nil
		}
		return sub(jinja.NewInt(0), args[0])
	},
	"cat":  func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) { return joinText(args, "") },
	"attr": operator(func(v, name jinja.Value) (jinja.Value, error) { return member(v, name.AsString()) }),
	"item": operator(item), "slice": slice, "unpack": operator(unpack),
	"method": func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
		return method(args[1].AsString(), args[0], args[2:], kwargs)
	},
}

func operator(f func(a, b jinja.Value) (jinja.Value, error)) function {
	return func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) { return f(args[0], args[1]) }
}

func comparing(f func(a, b jinja.Value) (bool, error)) function {
	return operator(func(a, b jinja.Value) (jinja.Value, error) {
		ok, err := f(a, b)
		return jinja.NewBool(ok), err
	})
}

// member is v.name.
func member(v jinja.Value, name string) (jinja.Value, error) {
	switch {
	case v.IsDict():
		x, _ := v.AsDict().Get(name)
		return x, nil
	case v.IsUndefined():
		return jinja.Value{}, fmt.Errorf("%q is asked of a value that is not defined", name)
	}
	return jinja.Undefined(), nil
}

// item is v[key].
func item(v, key jinja.Value) (jinja.Value, error) {
	n, isInt := integer(key)
	switch {
	case v.IsUndefined():
		s, err := text(key)
		if err != nil {
			return jinja.Value{}, err
		}
		return jinja.Value{}, fmt.Errorf("%.80q is asked of a value that is not defined", s)
	case v.IsDict():
		s, err := text(key)
		if err != nil {
			return jinja.Value{}, err
		}
		x, _ := v.AsDict().Get(s)
		return x, nil
	case v.IsList() && isInt:
		items := v.AsList().Items
		if n < 0 {
			n += int64(len(items))
		}
		if n >= 0 && n < int64(len(items)) {
			return items[n], nil
		}
	case v.IsString() && isInt:
		r := []rune(v.AsString())
		if n < 0 {
			n += int64(len(r))
		}
		if n >= 0 && n < int64(len(r)) {
			return jinja.NewString(string(r[n])), nil
		}
	}
	return jinja.Undefined(), nil
}

// slice is v[start:stop:step].
func slice(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	v := args[0]
	var bound [3]*int64
	for i, a := range args[1:] {
		if a.IsNone() {
			continue
		}
		n, ok := integer(a)
		if !ok {
			return jinja.Value{}, fmt.Errorf("a slice needs ints, not %s", typeName(a))
		}
		bound[i] = &n
	}
	var runes []rune
	var items []jinja.Value
	length := int64(0)
	switch {
	case v.IsString():
		runes = []rune(v.AsString())
		length = int64(len(runes))
	case v.IsList():
		items = v.AsList().Items
		length = int64(len(items))
	default:
		return jinja.Value{}, fmt.Errorf("%s cannot be sliced", typeName(v))
	}
	step := int64(1)
	if bound[2] != nil {
		step = *bound[2]
	}
	if step == 0 {
		return jinja.Value{}, fmt.Errorf("a slice with a step of 0")
	}
	// As CPython's PySlice_AdjustIndices does it.
	low, high := int64(0), length
	if step < 0 {
		low, high = -1, length-1
	}
	clip := func(b *int64, otherwise int64) int64 {
		if b == nil {
			return otherwise
		}
		n := *b
		if n < 0 {
			n += length
		}
		return min(max(n, low), high)
	}
	var start, stop int64
	if step > 0 {
		start, stop = clip(bound[0], low), clip(bound[1], high)
	} else {
		start, stop = clip(bound[0], high), clip(bound[1], low)
	}
	if step == 1 {
		stop = max(start, stop)
		if runes != nil {
			return jinja.NewString(string(runes[start:stop])), nil
		}
		return jinja.NewList(append([]jinja.Value(nil), items[start:stop]...)), nil
	}
	var outRunes []rune
	var outItems []jinja.Value
	step = min(max(step, -length-1), length+1) // a longer one takes the first only, too
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if runes != nil {
			outRunes = append(outRunes, runes[i])
		} else {
			outItems = append(outItems, items[i])
		}
	}
	if v.IsString() {
		return jinja.NewString(string(outRunes)), nil
	}
	return jinja.NewList(outItems), nil
}

// unpack gives the values that are assigned to n names.
func unpack(v, n jinja.Value) (jinja.Value, error) {
	items, err := iterate(v)
	if err != nil {
		return jinja.Value{}, err
	}
	if int64(len(items)) != n.AsInt() {
		return jinja.Value{}, fmt.Errorf("%d values for %d names", len(items), n.AsInt())
	}
	return jinja.NewList(items), nil
}

func cannot(op string, a, b jinja.Value) (jinja.Value, error) {
	return jinja.Value{}, fmt.Errorf("%s cannot be applied to %s and %s", op, typeName(a), typeName(b))
}

// arithmetic applies an operator to two ints or two floats. Ints that overflow become floats.
func arithmetic(op string, a, b jinja.Value, ints func(n, m int64) (int64, bool), floats func(x, y float64) float64) (jinja.Value, error) {
	n, ok1 := integer(a)
	m, ok2 := integer(b)
	if ok1 && ok2 {
		if r, fits := ints(n, m); fits {
			return jinja.NewInt(r), nil
		}
	}
	x, ok1 := number(a)
	y, ok2 := number(b)
	if !ok1 || !ok2 {
		return cannot(op, a, b)
	}
	return jinja.NewFloat(floats(x, y)), nil
}

func add(a, b jinja.Value) (jinja.Value, error) {
	switch {
	case a.IsString() && b.IsString():
		if len(a.AsString())+len(b.AsString()) > maxValue {
			return jinja.Value{}, tooLong
		}
		return jinja.NewString(a.AsString() + b.AsString()), nil
	case a.IsList() && b.IsList():
		x, y := a.AsList().Items, b.AsList().Items
		if len(x)+len(y) > maxValue/64 {
			return jinja.Value{}, tooLong
		}
		return jinja.NewList(append(append(make([]jinja.Value, 0, len(x)+len(y)), x...), y...)), nil
	}
	return arithmetic("+", a, b, func(n, m int64) (int64, bool) {
		r := n + m
		return r, (n^r)&(m^r) >= 0
	}, func(x, y float64) float64 { return x + y })
}

func sub(a, b jinja.Value) (jinja.Value, error) {
	return arithmetic("-", a, b, func(n, m int64) (int64, bool) {
		r := n - m
		return r, (n^m)&(n^r) >= 0
	}, func(x, y float64) float64 { return x - y })
}

func mul(a, b jinja.Value) (jinja.Value, error) {
	seq, times := a, b
	if !seq.IsString() && !seq.IsList() {
		seq, times = b, a
	}
	if n, ok := integer(times); ok && (seq.IsString() || seq.IsList()) {
		n = max(n, 0)
		if seq.IsString() {
			s := seq.AsString()
			if len(s) > 0 && n > maxValue/int64(len(s)) {
				return jinja.Value{}, tooLong
			}
			return jinja.NewString(strings.Repeat(s, int(n))), nil
		}
		items := seq.AsList().Items
		if len(items) == 0 {
			n = 0
		} else if n > maxValue/64/int64(len(items)) {
			return jinja.Value{}, tooLong
		}
		out := make([]jinja.Value, 0, len(items)*int(n))
		for range n {
			out = append(out, items...)
		}
		return jinja.NewList(out), nil
	}
	return arithmetic("*", a, b, mulInts, func(x, y float64) float64 { return x * y })
}

func mulInts(n, m int64) (int64, bool) {
	if n == 0 || m == 0 {
		return 0, true
	}
	r := n * m
	return r, r/m == n && !(n == -1 && m == math.MinInt64) && !(m == -1 && n == math.MinInt64)
}

// nonzero refuses a division by zero.
func nonzero(op string, b jinja.Value) error {
	if y, ok := number(b); ok && y == 0 {
		return fmt.Errorf("%s by zero", op)
	}
	return nil
}

func div(a, b jinja.Value) (jinja.Value, error) {
	if err := nonzero("/", b); err != nil {
		return jinja.Value{}, err
	}
	return arithmetic("/", a, b, func(n, m int64) (int64, bool) { return 0, false }, func(x, y float64) float64 { return x / y })
}

func floorDiv(a, b jinja.Value) (jinja.Value, error) {
	if err := nonzero("//", b); err != nil {
		return jinja.Value{}, err
	}
	return arithmetic("//", a, b, func(n, m int64) (int64, bool) {
		if n == math.MinInt64 && m == -1 {
			return 0, false
		}
		q := n / m
		if n%m != 0 && (n < 0) != (m < 0) {
			q--
		}
		return q, true
	}, func(x, y float64) float64 { return math.Floor(x / y) })
}

// mod has the sign of the divisor, as in Python.
func mod(a, b jinja.Value) (jinja.Value, error) {
	if err := nonzero("%", b); err != nil {
		return jinja.Value{}, err
	}
	return arithmetic("%", a, b, func(n, m int64) (int64, bool) {
		if m == -1 {
			return 0, true
		}
		r := n % m
		if r != 0 && (r < 0) != (m < 0) {
			r += m
		}
		return r, true
	}, func(x, y float64) float64 {
		r := math.Mod(x, y)
		if r != 0 && (r < 0) != (y < 0) {
			r += y
		}
		return r
	})
}

func pow(a, b jinja.Value) (jinja.Value, error) {
	return arithmetic("**", a, b, func(n, m int64) (int64, bool) {
		if m < 0 {
			return 0, false
		}
		r := int64(1)
		var ok bool
		for ; m > 0; m >>= 1 {
			if m&1 == 1 {
				if r, ok = mulInts(r, n); !ok {
					return 0, false
				}
			}
			if m > 1 {
				if n, ok = mulInts(n, n); !ok {
					return 0, false
				}
			}
		}
		return r, true
	}, math.Pow)
}
