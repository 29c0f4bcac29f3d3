package template

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// function is what the engine calls.
type function = func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error)

// run is the state of one render: what it has used of its bounds.
type run struct {
	opt      Options
	deadline time.Time
	checks   int
	output   int
	steps    int
	depth    int
	made     int // bytes that functions returned
}

// maxMacros bounds how deep macros may call each other. The engine's own stack grows with it.
const maxMacros = 200

// maxValue bounds the bytes of a text and the elements of a list that any one operation makes.
const maxValue = 64 << 20

func newRun(opt Options) *run {
	return &run{opt: opt, deadline: time.Now().Add(opt.Timeout)}
}

// counted is a function that keeps account of the render that calls it.
type counted = func(r *run, args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error)

var counting = map[string]counted{
	own + "out": (*run).out, own + "keep": (*run).keep, own + "iter": (*run).iter, own + "tick": (*run).tick,
	own + "enter": (*run).enter, own + "leave": (*run).leave,
	"range": (*run).rangeOf, "strftime_now": (*run).strftimeNow,
}

// register gives the template the functions that it uses.
func (r *run) register(data map[string]jinja.Value, uses map[string]function, calls map[string]counted) {
	for name, f := range uses {
		data[name] = jinja.NewCallable(name, func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
			v, err := f(args, kwargs)
			if err == nil {
				err = r.account(v)
			}
			return v, err
		})
	}
	for name, f := range calls {
		data[name] = jinja.NewCallable(name, func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
			return f(r, args, kwargs)
		})
	}
}

// late reports that the render has taken too long. The clock is asked only now and then.
func (r *run) late() error {
	if r.checks++; r.checks%64 == 0 && time.Now().After(r.deadline) {
		return &LimitError{fmt.Sprintf("it took more than %v", r.opt.Timeout)}
	}
	return nil
}

// account counts what a function made. Each is bounded by itself; this bounds them together, for all
// could be kept.
func (r *run) account(v jinja.Value) error {
	switch {
	case v.IsString():
		r.made += len(v.AsString())
	case v.IsList():
		r.made += 32 * v.AsList().Len()
	}
	if most := 32 * r.opt.MaxOutput; r.made > most {
		return &LimitError{fmt.Sprintf("it makes more than %d bytes of values", most)}
	}
	return r.late()
}

// step counts n loop iterations.
func (r *run) step(n int) error {
	if r.steps += n; r.steps > r.opt.MaxSteps {
		return &LimitError{fmt.Sprintf("its loops have more than %d iterations", r.opt.MaxSteps)}
	}
	return r.late()
}

// out(value) is the text of an output.
func (r *run) out(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 {
		return jinja.Value{}, fmt.Errorf("an output of %d values", len(args))
	}
	s, err := text(args[0])
	if err != nil {
		return jinja.Value{}, err
	}
	if r.output += len(s); r.output > r.opt.MaxOutput {
		return jinja.Value{}, &LimitError{fmt.Sprintf("its output is longer than %d bytes", r.opt.MaxOutput)}
	}
	return jinja.NewString(s), r.late()
}

// keep(value) is the value, if it is small enough to be assigned to a name.
func (r *run) keep(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 {
		return jinja.Value{}, fmt.Errorf("an assignment of %d values", len(args))
	}
	left := r.opt.MaxOutput
	if !measure(args[0], 0, &left) {
		return jinja.Value{}, &LimitError{fmt.Sprintf("a value has more than %d bytes, or is nested more than %d deep", r.opt.MaxOutput, 2*MaxDepth)}
	}
	return args[0], r.late()
}

// measure takes a value's size from left, and says whether there was enough of it.
func measure(v jinja.Value, depth int, left *int) bool {
	if depth > 2*MaxDepth {
		return false
	}
	*left -= 8
	switch {
	case v.IsString():
		*left -= len(v.AsString())
	case v.IsList():
		for _, x := range v.AsList().Items {
			if *left < 0 || !measure(x, depth+1, left) {
				return false
			}
		}
	case v.IsDict():
		for _, x := range v.AsDict().Data {
			if *left < 0 || !measure(x, depth+1, left) {
				return false
			}
		}
	}
	return *left >= 0
}

// iter(value) is what a loop goes over.
func (r *run) iter(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 {
		return jinja.Value{}, fmt.Errorf("a loop over %d values", len(args))
	}
	items, err := iterate(args[0])
	if err != nil {
		return jinja.Value{}, err
	}
	return jinja.NewList(items), r.step(len(items))
}

// tick() stands at the beginning of each iteration.
func (r *run) tick([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	return jinja.NewString(""), r.late()
}

// enter() and leave() stand at the beginning and the end of each macro.
func (r *run) enter([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	if r.depth++; r.depth > maxMacros {
		return jinja.Value{}, &LimitError{fmt.Sprintf("its macros call each other more than %d deep", maxMacros)}
	}
	return jinja.NewString(""), r.step(1)
}

func (r *run) leave([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	r.depth--
	return jinja.NewString(""), nil
}

// range([start,] stop[, step])
func (r *run) rangeOf(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	n := [3]int64{0, 0, 1}
	if len(args) < 1 || len(args) > 3 {
		return jinja.Value{}, fmt.Errorf("range needs 1 to 3 numbers, got %d", len(args))
	}
	for i, a := range args {
		v, ok := integer(a)
		if !ok {
			return jinja.Value{}, fmt.Errorf("range needs integers, got %s", typeName(a))
		}
		if len(args) == 1 {
			i = 1
		}
		n[i] = v
	}
	start, stop, step := n[0], n[1], n[2]
	var items []jinja.Value
	switch {
	case step == 0:
		return jinja.Value{}, fmt.Errorf("range with a step of 0")
	case step > 0 && start < stop:
		// Unsigned differences don't overflow.
		if count := (uint64(stop)-uint64(start)-1)/uint64(step) + 1; count > uint64(r.opt.MaxSteps-r.steps) {
			return jinja.Value{}, r.step(r.opt.MaxSteps + 1)
		}
		for i := start; i < stop; i += step {
			items = append(items, jinja.NewInt(i))
			if i > stop-step {
				break // the next would be past it, or overflow
			}
		}
	case step < 0 && start > stop:
		if count := (uint64(start)-uint64(stop)-1)/uint64(-step) + 1; count > uint64(r.opt.MaxSteps-r.steps) {
			return jinja.Value{}, r.step(r.opt.MaxSteps + 1)
		}
		for i := start; i > stop; i += step {
			items = append(items, jinja.NewInt(i))
			if i < stop-step {
				break
			}
		}
	}
	return jinja.NewList(items), r.step(len(items))
}

// strftime_now(format)
func (r *run) strftimeNow(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsString() {
		return jinja.Value{}, fmt.Errorf("strftime_now needs a format")
	}
	return jinja.NewString(strftime(r.opt.Now(), args[0].AsString())), nil
}

// strftime formats a time by C's directives, in the C locale, with glibc's "-" for no padding.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 >= len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format)
		if bare {
			i++
		}
		num := func(v, width int, pad byte) {
			s := fmt.Sprint(v)
			if !bare && len(s) < width {
				b.WriteString(strings.Repeat(string(pad), width-len(s)))
			}
			b.WriteString(s)
		}
		hour12 := (t.Hour()+11)%12 + 1
		switch format[i] {
		case 'Y':
			num(t.Year(), 0, '0')
		case 'y':
			num(t.Year()%100, 2, '0')
		case 'm':
			num(int(t.Month()), 2, '0')
		case 'd':
			num(t.Day(), 2, '0')
		case 'e':
			num(t.Day(), 2, ' ')
		case 'H':
			num(t.Hour(), 2, '0')
		case 'I':
			num(hour12, 2, '0')
		case 'M':
			num(t.Minute(), 2, '0')
		case 'S':
			num(t.Second(), 2, '0')
		case 'f':
			num(t.Nanosecond()/1000, 6, '0')
		case 'j':
			num(t.YearDay(), 3, '0')
		case 'B':
			b.WriteString(t.Month().String())
		case 'b', 'h':
			b.WriteString(t.Month().String()[:3])
		case 'A':
			b.WriteString(t.Weekday().String())
		case 'a':
			b.WriteString(t.Weekday().String()[:3])
		case 'p':
			b.WriteString(t.Format("PM"))
		case 'w':
			num(int(t.Weekday()), 0, '0')
		case 'u':
			num((int(t.Weekday())+6)%7+1, 0, '0')
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'T', 'X':
			b.WriteString(t.Format("15:04:05"))
		case 'R':
			b.WriteString(t.Format("15:04"))
		case 'D', 'x':
			b.WriteString(t.Format("01/02/06"))
		case 'c':
			b.WriteString(t.Format("Mon Jan _2 15:04:05 2006"))
		case 's':
			fmt.Fprint(&b, t.Unix())
		case 'Z', 'z': // Python's clock here knows no zone
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '%':
			b.WriteByte('%')
		default:
			b.WriteString(format[i-1 : i+1])
		}
	}
	return b.String()
}

// pure are the functions that need nothing of a run, by the names that a translated template calls
// them by. They are set once, and shared by all renders.
var pure = make(map[string]function)

func init() {
	pure["raise_exception"], pure["namespace"], pure["dict"] = raiseException, namespace, dict
	for name, f := range operations {
		pure[own+name] = f
	}
	for name, f := range filters {
		pure[own+"f_"+name] = f
	}
	for name, test := range tests {
		pure[own+"is_"+name] = func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
			ok, err := test(args[0], args[1:])
			return jinja.NewBool(ok), err
		}
	}
}

func raiseException(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	message := ""
	if len(args) > 0 {
		message, _ = text(args[0])
	}
	return jinja.Value{}, &RaisedError{message}
}

// namespace([dict,] name=value, …)
func namespace(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	return dict(args, kwargs)
}

// dict([dict,] name=value, …): the engine gives keywords in no order; they are sorted.
func dict(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	out := jinja.NewDict()
	d := out.AsDict()
	if len(args) > 0 {
		if !args[0].IsDict() {
			return jinja.Value{}, fmt.Errorf("expected a mapping, got %s", typeName(args[0]))
		}
		for _, k := range args[0].AsDict().Keys {
			d.Set(k, args[0].AsDict().Data[k])
		}
	}
	names := make([]string, 0, len(kwargs))
	for k := range kwargs {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		d.Set(k, kwargs[k])
	}
	return out, nil
}
