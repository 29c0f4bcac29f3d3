package logreport

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/troupe-llm/troupe/bench/requestlog"
)

// Filter says which lines are wanted.
type Filter struct {
	match func(*requestlog.Entry) bool
}

// Asked says whether there is a condition.
func (f *Filter) Asked() bool { return f.match != nil }

// Match says whether e is wanted. The zero Filter wants all.
func (f *Filter) Match(e *requestlog.Entry) bool { return f.match == nil || f.match(e) }

// ParseFilter reads a condition such as
//
//	status=200 and ttft_ms>500
//	key in (alice, bob) and not (outcome = stop or error != null)
//
// Comparisons are =, !=, <, <=, >, >=, ~ (contains, whatever the case) and in (…); a value is a number,
// a word or a quoted text, and a number only for fields that are numbers; null stands for a value that the line does not have, and compares with =
// and != alone. `and` binds more closely than `or`. An empty condition wants all lines.
func ParseFilter(text string) (Filter, error) {
	p := filterParser{text: text}
	p.next()
	if p.token == "" && p.err == nil {
		return Filter{}, nil
	}
	m := p.or()
	if p.err == nil && p.token != "" {
		p.fail("%q is not expected here: join conditions with and, or", p.token)
	}
	if p.err != nil {
		return Filter{}, p.err
	}
	return Filter{m}, nil
}

type matcher = func(*requestlog.Entry) bool

// filterParser is a recursive descent over tokens.
type filterParser struct {
	text   string
	at     int    // behind the token
	start  int    // of the token
	token  string // "" at the end
	quoted bool
	depth  int
	err    error
}

func (p *filterParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("condition, character %d: %s", p.start+1, fmt.Sprintf(format, args...))
	}
	p.token, p.at = "", len(p.text)
}

func wordByte(c byte) bool {
	return c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("_.-:/+@*", c) >= 0
}

// next reads the next token.
func (p *filterParser) next() {
	if p.err != nil {
		return
	}
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
	p.start, p.quoted, p.token = p.at, false, ""
	if p.at == len(p.text) {
		return
	}
	switch c := p.text[p.at]; {
	case c == '\'' || c == '"':
		end := strings.IndexByte(p.text[p.at+1:], c)
		if end < 0 {
			p.fail("the text that begins with %c has no end", c)
			return
		}
		p.token, p.quoted = p.text[p.at+1:p.at+1+end], true
		p.at += end + 2
	case strings.IndexByte("(),~", c) >= 0:
		p.token = p.text[p.at : p.at+1]
		p.at++
	case strings.IndexByte("=!<>", c) >= 0:
		n := 1
		if p.at+1 < len(p.text) && p.text[p.at+1] == '=' {
			n = 2
		}
		p.token = p.text[p.at : p.at+n]
		p.at += n
	case wordByte(c):
		from := p.at
		for p.at < len(p.text) && wordByte(p.text[p.at]) {
			p.at++
		}
		p.token = p.text[from:p.at]
	default:
		p.fail("%q means nothing here: put texts in quotes", c)
	}
}

// word says whether the token is this keyword, and takes it if so.
func (p *filterParser) word(w string) bool {
	if p.quoted || !strings.EqualFold(p.token, w) {
		return false
	}
	p.next()
	return true
}

func (p *filterParser) or() matcher {
	m := p.and()
	for p.word("or") {
		a, b := m, p.and()
		m = func(e *requestlog.Entry) bool { return a(e) || b(e) }
	}
	return m
}

func (p *filterParser) and() matcher {
	m := p.not()
	for p.word("and") {
		a, b := m, p.not()
		m = func(e *requestlog.Entry) bool { return a(e) && b(e) }
	}
	return m
}

func (p *filterParser) not() matcher {
	if p.depth++; p.depth > 100 {
		p.fail("nested too deeply")
	}
	defer func() { p.depth-- }()
	switch {
	case p.err != nil:
		return nil
	case p.word("not"):
		m := p.not()
		return func(e *requestlog.Entry) bool { return !m(e) }
	case p.word("("):
		m := p.or()
		if !p.word(")") {
			p.fail("a ) is missing")
		}
		return m
	}
	return p.comparison()
}

func (p *filterParser) comparison() matcher {
	if p.token == "" || p.quoted {
		p.fail("a field's name is missing")
		return nil
	}
	name := p.token
	f := lookup(name)
	if f == nil {
		p.fail("there is no field %q: there are %s", name, fieldNames())
		return nil
	}
	p.next()
	operator := p.token
	if p.quoted {
		operator = ""
	}
	switch {
	case strings.EqualFold(operator, "in"):
		return p.in(f)
	case operator == "==":
		operator = "="
	case operator != "=" && operator != "!=" && operator != "<" && operator != "<=" && operator != ">" && operator != ">=" && operator != "~":
		p.fail("a comparison is missing behind %s: =, !=, <, <=, >, >=, ~ or in", name)
		return nil
	}
	p.next()
	return p.compare(f, operator)
}

// in reads a list of values, any of which will do.
func (p *filterParser) in(f *field) matcher {
	p.next()
	if !p.word("(") {
		p.fail("want a list in parentheses behind in")
		return nil
	}
	var any []matcher
	for {
		m := p.compare(f, "=")
		if p.err != nil {
			return nil
		}
		any = append(any, m)
		if p.word(")") {
			break
		}
		if !p.word(",") {
			p.fail("want , or ) in the list")
			return nil
		}
	}
	return func(e *requestlog.Entry) bool {
		for _, m := range any {
			if m(e) {
				return true
			}
		}
		return false
	}
}

// compare reads the value and makes the comparison.
func (p *filterParser) compare(f *field, operator string) matcher {
	value, quoted := p.token, p.quoted
	if value == "" && !quoted || !quoted && strings.ContainsAny(value, "(),=<>~") {
		p.fail("a value is missing behind %s", operator)
		return nil
	}
	defer p.next()
	if !quoted && strings.EqualFold(value, "null") {
		if operator != "=" && operator != "!=" {
			p.fail("null is neither more nor less than anything: use = or !=")
			return nil
		}
		absent := func(e *requestlog.Entry) bool {
			if f.number != nil {
				return math.IsNaN(f.number(e))
			}
			return f.text(e) == ""
		}
		if operator == "!=" {
			return func(e *requestlog.Entry) bool { return !absent(e) }
		}
		return absent
	}
	if f.number != nil {
		if operator == "~" {
			p.fail("%s is a number, which ~ does not compare", f.name)
			return nil
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(v) {
			p.fail("%s is a number, but %q is none", f.name, value)
			return nil
		}
		return func(e *requestlog.Entry) bool { return ordered(operator, f.number(e), v) }
	}
	if f.name == "stream" && value != "true" && value != "false" && operator != "~" {
		p.fail("stream is true or false, not %q", value)
		return nil
	}
	if _, err := strconv.ParseFloat(value, 64); err == nil && !quoted && operator != "~" && f.name != "time" {
		p.fail("%s is a text, but %s is a number: put it in quotes if it is meant as one", f.name, value)
		return nil
	}
	if f.name == "time" && operator != "~" && value != "" {
		return p.moment(operator, value)
	}
	if operator == "~" {
		value = strings.ToLower(value)
		return func(e *requestlog.Entry) bool { return strings.Contains(strings.ToLower(f.text(e)), value) }
	}
	return func(e *requestlog.Entry) bool {
		x := f.text(e)
		if x == "" && value != "" && operator != "!=" {
			return false // null is like nothing
		}
		return ordered(operator, x, value)
	}
}

// moment compares a line's time with one of which the end may be missing: as much of the line's is compared.
func (p *filterParser) moment(operator, value string) matcher {
	const like = "2000-01-01T00:00:00Z"
	whole := value
	switch {
	case len(value) < len(like)-1:
		whole += like[len(value):]
	case !strings.HasSuffix(value, "Z"):
		whole += "Z"
	}
	if !requestlog.IsTime(whole) {
		p.fail("%q is no time, nor the beginning of one such as 2026-11-30T12:00:00Z", value)
		return nil
	}
	length := len(value)
	if whole == value { // to the nanosecond
		value, length = nanoseconds(value), len("2026-11-30T12:00:00.123456789")
	}
	return func(e *requestlog.Entry) bool {
		if e.Time == "" {
			return operator == "!=" // null is like nothing
		}
		return ordered(operator, nanoseconds(e.Time)[:length], value)
	}
}

// nanoseconds is a time with all nine digits of its fraction, without the Z.
func nanoseconds(t string) string {
	const all = "2026-11-30T12:00:00.123456789"
	t = moment(t)
	if len(t) == len(all) {
		return t
	}
	if len(t) == len("2026-11-30T12:00:00") {
		t += "."
	}
	return t + strings.Repeat("0", len(all)-len(t))
}

// ordered compares. NaN, which stands for null, is only unlike everything.
func ordered[T float64 | string](operator string, a, b T) bool {
	switch operator {
	case "=":
		return a == b
	case "!=":
		return a != b
	case "<":
		return a < b
	case "<=":
		return a <= b
	case ">":
		return a > b
	}
	return a >= b
}
