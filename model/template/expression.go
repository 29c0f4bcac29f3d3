package template

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// expressions parses an expression by Jinja2's grammar and writes it for the engine, with its
// operators, attributes, filters, tests and methods as calls of this package's functions, where the
// engine differs from Python or has no bounds. What is left to the engine are names, calls,
// literals, and the connectives not, and, or, if.
type expressions struct {
	tokens []token
	i      int
	depth  int
}

// expression writes an expression, which may be a tuple without parentheses.
func expression(tokens []token) (string, error) {
	if len(tokens) == 0 {
		return "", fmt.Errorf("expected an expression")
	}
	p := &expressions{tokens: tokens}
	e, err := p.tuple("")
	if err != nil {
		return "", err
	}
	if p.i < len(tokens) {
		return "", fmt.Errorf("unexpected %q", tokens[p.i].text)
	}
	return e, nil
}

// call writes a call of one of this package's functions.
func ownCall(name string, args ...string) string {
	return own + name + "(" + strings.Join(args, ", ") + ")"
}

// peek is the next token; an operator without text at the end.
func (p *expressions) peek() token {
	if p.i < len(p.tokens) {
		return p.tokens[p.i]
	}
	return token{kind: tokenOperator}
}

// skip goes past the next token if it is one of the words, and says which.
func (p *expressions) skip(words ...string) (string, bool) {
	t := p.peek()
	for _, w := range words {
		if t.is(w) {
			p.i++
			return w, true
		}
	}
	return "", false
}

func (p *expressions) expect(word string) error {
	if _, ok := p.skip(word); ok {
		return nil
	}
	return p.unexpected(strconv.Quote(word))
}

func (p *expressions) unexpected(want string) error {
	if p.i >= len(p.tokens) {
		return fmt.Errorf("expected %s at the end of the tag", want)
	}
	return fmt.Errorf("expected %s, found %q", want, p.peek().text)
}

// tuple: EXPRESSION [, EXPRESSION …]; what is not a tuple stays what it is. It ends before closing.
func (p *expressions) tuple(closing string) (string, error) {
	var items []string
	comma := false
	for p.i < len(p.tokens) && !p.peek().is(closing) {
		e, err := p.condition()
		if err != nil {
			return "", err
		}
		items = append(items, e)
		if _, comma = p.skip(","); !comma {
			break
		}
	}
	if len(items) == 1 && !comma {
		return items[0], nil
	}
	if len(items) == 0 && closing == "" {
		return "", p.unexpected("an expression")
	}
	return "[" + strings.Join(items, ", ") + "]", nil
}

// condition: A [if B [else C]]
func (p *expressions) condition() (string, error) {
	if p.depth++; p.depth > 4*maxBrackets {
		return "", fmt.Errorf("an expression is nested too deep")
	}
	defer func() { p.depth-- }()
	e, err := p.or()
	if err != nil {
		return "", err
	}
	for {
		if _, ok := p.skip("if"); !ok {
			return e, nil
		}
		test, err := p.or()
		if err != nil {
			return "", err
		}
		e = "(" + e + " if " + test
		if _, ok := p.skip("else"); ok {
			other, err := p.condition()
			if err != nil {
				return "", err
			}
			e += " else " + other
		}
		e += ")"
	}
}

// left parses a row of operands with operators of one level between them, from the left.
func (p *expressions) left(operand func() (string, error), write func(op, a, b string) string, ops ...string) (string, error) {
	e, err := operand()
	if err != nil {
		return "", err
	}
	for {
		op, ok := p.skip(ops...)
		if !ok {
			return e, nil
		}
		b, err := operand()
		if err != nil {
			return "", err
		}
		e = write(op, e, b)
	}
}

func (p *expressions) or() (string, error) {
	return p.left(p.and, connective, "or")
}

func (p *expressions) and() (string, error) {
	return p.left(p.not, connective, "and")
}

func connective(op, a, b string) string { return "(" + a + " " + op + " " + b + ")" }

func (p *expressions) not() (string, error) {
	negations := 0
	for {
		if _, ok := p.skip("not"); !ok {
			break
		}
		negations++
	}
	e, err := p.comparison()
	if err != nil || negations == 0 {
		return e, err
	}
	if negations%2 == 0 {
		e = "(not " + e + ")"
	}
	return "(not " + e + ")", nil
}

// binary names the functions of the operators.
var binary = map[string]string{
	"==": "eq", "!=": "ne", "<": "lt", ">": "gt", "<=": "le", ">=": "ge", "in": "in", "not in": "notin",
	"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow",
}

func operation(op, a, b string) string { return ownCall(binary[op], a, b) }

// comparison: A < B < C is A < B and B < C.
func (p *expressions) comparison() (string, error) {
	a, err := p.sum()
	if err != nil {
		return "", err
	}
	e := ""
	for {
		op, ok := p.skip("==", "!=", "<", ">", "<=", ">=", "in")
		if !ok && p.peek().is("not") && p.i+1 < len(p.tokens) && p.tokens[p.i+1].is("in") {
			p.i += 2
			op, ok = "not in", true
		}
		if !ok {
			if e == "" {
				e = a
			}
			return e, nil
		}
		b, err := p.sum()
		if err != nil {
			return "", err
		}
		if one := operation(op, a, b); e == "" {
			e = one
		} else {
			e = connective("and", e, one)
		}
		a = b
	}
}

func (p *expressions) sum() (string, error) {
	return p.left(p.concatenation, operation, "+", "-")
}

func (p *expressions) concatenation() (string, error) {
	var parts []string
	for {
		e, err := p.product()
		if err != nil {
			return "", err
		}
		parts = append(parts, e)
		if _, ok := p.skip("~"); !ok {
			break
		}
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return ownCall("cat", parts...), nil
}

func (p *expressions) product() (string, error) {
	return p.left(p.power, operation, "*", "//", "/", "%")
}

func (p *expressions) power() (string, error) {
	return p.left(func() (string, error) { return p.unary(true) }, operation, "**")
}

// unary: a filter after -A belongs to -A, as in Jinja2.
func (p *expressions) unary(filters bool) (e string, err error) {
	if op, ok := p.skip("-", "+"); ok {
		if p.depth++; p.depth > 4*maxBrackets {
			return "", fmt.Errorf("an expression is nested too deep")
		}
		e, err = p.unary(false)
		p.depth--
		if op == "-" {
			e = ownCall("neg", e)
		}
	} else {
		e, err = p.primary()
	}
	for err == nil {
		switch t := p.peek(); {
		case t.is("."):
			p.i++
			e, err = p.member(e)
		case t.is("["):
			p.i++
			e, err = p.subscript(e)
		case t.is("("):
			p.i++
			var args []string
			args, err = p.arguments()
			e += "(" + strings.Join(args, ", ") + ")"
		case filters && t.is("|"):
			p.i++
			e, err = p.filter(e)
		case filters && t.is("is"):
			p.i++
			e, err = p.test(e)
		default:
			return e, nil
		}
	}
	return "", err
}

func (p *expressions) primary() (string, error) {
	t := p.peek()
	switch {
	case t.kind == tokenName:
		if slices.Contains([]string{"if", "else", "and", "or", "not", "in", "is"}, t.text) {
			return "", p.unexpected("a value")
		}
		p.i++
		return t.text, nil
	case t.kind == tokenNumber:
		p.i++
		return t.text, nil
	case t.kind == tokenString:
		p.i++
		return quote(t.text), nil
	case t.is("("):
		p.i++
		e, err := p.tuple(")")
		if err != nil {
			return "", err
		}
		return "(" + e + ")", p.expect(")")
	case t.is("["):
		p.i++
		var items []string
		for !p.peek().is("]") {
			e, err := p.condition()
			if err != nil {
				return "", err
			}
			items = append(items, e)
			if _, ok := p.skip(","); !ok {
				break
			}
		}
		return "[" + strings.Join(items, ", ") + "]", p.expect("]")
	case t.is("{"):
		p.i++
		var items []string
		for !p.peek().is("}") {
			key, err := p.condition()
			if err != nil {
				return "", err
			}
			if err := p.expect(":"); err != nil {
				return "", err
			}
			value, err := p.condition()
			if err != nil {
				return "", err
			}
			items = append(items, key+": "+value)
			if _, ok := p.skip(","); !ok {
				break
			}
		}
		// With spaces, since the engine takes any }} for the end of a tag.
		return "{ " + strings.Join(items, ", ") + " }", p.expect("}")
	}
	return "", p.unexpected("a value")
}

// member: E.NAME, E.NAME(ARGUMENTS) or E.NUMBER, after the dot.
func (p *expressions) member(e string) (string, error) {
	t := p.peek()
	p.i++
	switch {
	case t.kind == tokenNumber && !strings.Contains(t.text, "."):
		return ownCall("item", e, t.text), nil
	case t.kind != tokenName:
		p.i--
		return "", p.unexpected("a name after the dot")
	}
	name := quote(t.text)
	if _, ok := p.skip("("); !ok {
		return ownCall("attr", e, name), nil
	}
	args, err := p.arguments()
	if err != nil {
		return "", err
	}
	return ownCall("method", append([]string{e, name}, args...)...), nil
}

// subscript: E[KEY] or E[START:STOP:STEP], after the bracket.
func (p *expressions) subscript(e string) (string, error) {
	var parts []string
	slice := false
	part := "none"
	for !p.peek().is("]") {
		if _, ok := p.skip(":"); ok {
			parts = append(parts, part)
			slice, part = true, "none"
			continue
		}
		if part != "none" {
			break
		}
		var err error
		if part, err = p.condition(); err != nil {
			return "", err
		}
	}
	parts = append(parts, part)
	if err := p.expect("]"); err != nil {
		return "", err
	}
	switch {
	case !slice && part == "none":
		return "", fmt.Errorf("expected a key in the brackets")
	case !slice:
		return ownCall("item", e, part), nil
	case len(parts) > 3:
		return "", fmt.Errorf("a slice has more than three parts")
	}
	return ownCall("slice", append([]string{e}, parts...)...), nil
}

// arguments: [VALUE | NAME=VALUE], … ), after the parenthesis.
func (p *expressions) arguments() ([]string, error) {
	var args []string
	named := false
	for !p.peek().is(")") {
		name := ""
		if t := p.peek(); t.is("*") || t.is("**") {
			return nil, fmt.Errorf("%s before an argument is not supported", t.text)
		} else if t.kind == tokenName && p.i+1 < len(p.tokens) && p.tokens[p.i+1].is("=") {
			name, named = t.text+"=", true
			p.i += 2
		} else if named {
			return nil, fmt.Errorf("an argument without a name after one with a name")
		}
		e, err := p.condition()
		if err != nil {
			return nil, err
		}
		args = append(args, name+e)
		if _, ok := p.skip(","); !ok {
			break
		}
	}
	return args, p.expect(")")
}

// filter: E|NAME or E|NAME(ARGUMENTS), after the bar.
func (p *expressions) filter(e string) (string, error) {
	t := p.peek()
	if t.kind != tokenName {
		return "", p.unexpected("a filter's name")
	}
	p.i++
	if filters[t.text] == nil {
		return "", fmt.Errorf("the filter %q is not known", t.text)
	}
	args := []string{e}
	if _, ok := p.skip("("); ok {
		more, err := p.arguments()
		if err != nil {
			return "", err
		}
		args = append(args, more...)
	}
	return ownCall("f_"+t.text, args...), nil
}

// test: E is [not] NAME, E is NAME(ARGUMENTS) or E is NAME ARGUMENT, after is.
func (p *expressions) test(e string) (string, error) {
	_, negated := p.skip("not")
	t := p.peek()
	if t.kind != tokenName || tests[t.text] == nil {
		return "", fmt.Errorf("the test %q is not known", t.text)
	}
	p.i++
	args := []string{e}
	if _, ok := p.skip("("); ok {
		more, err := p.arguments()
		if err != nil {
			return "", err
		}
		args = append(args, more...)
	} else if next := p.peek(); next.kind == tokenNumber || next.kind == tokenString || next.is("[") || next.is("{") ||
		next.kind == tokenName && !slices.Contains([]string{"else", "or", "and", "if", "in", "not", "is"}, next.text) {
		arg, err := p.primary()
		for err == nil && (p.peek().is(".") || p.peek().is("[")) {
			p.i++
			if p.tokens[p.i-1].is(".") {
				arg, err = p.member(arg)
			} else {
				arg, err = p.subscript(arg)
			}
		}
		if err != nil {
			return "", err
		}
		args = append(args, arg)
	}
	e = ownCall("is_"+t.text, args...)
	if negated {
		e = "(not " + e + ")"
	}
	return e, nil
}

// quote writes a string as a literal of the engine's, which knows these escapes and no others.
func quote(s string) string {
	return "'" + escapes.Replace(s) + "'"
}

var escapes = strings.NewReplacer("\\", "\\\\", "'", "\\'", "\n", "\\n", "\t", "\\t")
