package template

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// own begins the names of what this package gives the engine; templates cannot use such names.
const own = "troupe__"

// translate writes a template anew for the engine, such that
//
//   - literal text is an output of a string, so that the engine has no white space to control;
//   - outputs, assigned values, loops and macros pass through functions of a run, which count and
//     bound them;
//   - operators, attributes, methods, filters and tests are calls of this package's functions;
//   - names assigned in a loop's body begin each iteration as they were before the loop.
func translate(source string) (string, error) {
	parts, err := scan(source)
	if err != nil {
		return "", err
	}
	t := &translator{}
	for i := range parts {
		p := &parts[i]
		switch p.kind {
		case partText:
			t.write("{{" + ownCall("out", quote(p.text)) + "}}")
			continue
		case partOutput:
			var e string
			if e, err = expression(p.tokens); err == nil {
				t.write("{{" + ownCall("out", e) + "}}")
			}
		case partStatement:
			err = t.statement(p)
		}
		if err != nil {
			return "", fmt.Errorf("template: line %d: %w", p.line, err)
		}
	}
	if n := len(t.blocks); n > 0 {
		b := t.blocks[n-1]
		return "", fmt.Errorf("template: line %d: the %s block is not closed by {%% end%s %%}", b.line, b.kind, b.kind)
	}
	return strings.Join(t.out, ""), nil
}

type translator struct {
	out    []string
	blocks []block
	names  int // generated so far
}

// block is an open block.
type block struct {
	kind string // the statement that opened it
	line int
	end  string // what is written for its end
	// Of a for: where in out the text before the loop and the text at the beginning of its body
	// belong, the names that it sets itself, and those that its body assigns.
	before, inside int
	names, assigns []string
	elsed          bool
}

func (t *translator) write(s ...string) { t.out = append(t.out, s...) }

// name makes up a name that no template has.
func (t *translator) name() string {
	t.names++
	return own + strconv.Itoa(t.names)
}

func (t *translator) open(kind string, p *part, end string) *block {
	t.blocks = append(t.blocks, block{kind: kind, line: p.line, end: end})
	return &t.blocks[len(t.blocks)-1]
}

func (t *translator) statement(p *part) error {
	if len(p.tokens) == 0 || p.tokens[0].kind != tokenName {
		return fmt.Errorf("a statement must begin with a name")
	}
	if len(t.blocks) >= maxBlocks {
		return fmt.Errorf("blocks are nested more than %d deep", maxBlocks)
	}
	word, rest := p.tokens[0].text, p.tokens[1:]
	switch word {
	case "if":
		e, err := expression(rest)
		if err != nil {
			return err
		}
		t.write("{% if ", e, " %}")
		t.open(word, p, "{% endif %}")
		return nil
	case "elif":
		b, err := t.inside("if", word)
		if err != nil {
			return err
		}
		if b.elsed {
			return fmt.Errorf("elif after else")
		}
		e, err := expression(rest)
		if err != nil {
			return err
		}
		t.write("{% elif ", e, " %}")
		return nil
	case "else":
		if n := len(t.blocks); n > 0 && (t.blocks[n-1].kind == "if" || t.blocks[n-1].kind == "for") && !t.blocks[n-1].elsed {
			t.blocks[n-1].elsed = true
			t.write("{% else %}")
			return nothing(rest)
		}
		return fmt.Errorf("else without if or for")
	case "for":
		return t.forLoop(p, rest)
	case "set":
		return t.set(p, rest)
	case "macro":
		return t.macro(p, rest)
	case "call":
		return t.call(p, rest)
	case "filter":
		name := t.name()
		e, err := expression(append([]token{{tokenName, name}, {tokenOperator, "|"}}, rest...))
		if err != nil {
			return err
		}
		t.write("{% set ", name, " %}")
		t.open(word, p, "{% endset %}{{"+ownCall("out", e)+"}}")
		return nil
	case "generation": // marks what the model says, for training
		t.open(word, p, "")
		return nothing(rest)
	case "break", "continue":
		for i := len(t.blocks) - 1; i >= 0 && t.blocks[i].kind != "macro"; i-- {
			if t.blocks[i].kind == "for" {
				t.write("{% ", word, " %}")
				return nothing(rest)
			}
		}
		return fmt.Errorf("%s outside of a loop", word)
	}
	kind, isEnd := strings.CutPrefix(word, "end")
	if !isEnd || !slices.Contains([]string{"if", "for", "set", "macro", "call", "filter", "generation"}, kind) {
		return fmt.Errorf("the statement %q is not known or not allowed in a chat template", word)
	}
	b, err := t.inside(kind, word)
	if err != nil {
		return err
	}
	if kind == "for" {
		t.reset(b)
	}
	t.write(b.end)
	t.blocks = t.blocks[:len(t.blocks)-1]
	if kind == "macro" || kind == "call" {
		return nil // their names may be repeated
	}
	return nothing(rest)
}

func nothing(rest []token) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected %q", rest[0].text)
	}
	return nil
}

// inside returns the innermost block, which must be of a kind.
func (t *translator) inside(kind, word string) (*block, error) {
	if n := len(t.blocks); n > 0 {
		if b := &t.blocks[n-1]; b.kind == kind {
			return b, nil
		} else {
			return nil, fmt.Errorf("%s inside of the %s block of line %d", word, b.kind, b.line)
		}
	}
	return nil, fmt.Errorf("%s without %s", word, kind)
}

// at returns the index of the first token outside of brackets that is one of the words, −1 if there
// is none.
func at(tokens []token, words ...string) int {
	depth := 0
	for i, t := range tokens {
		if depth == 0 {
			for _, w := range words {
				if t.is(w) {
					return i
				}
			}
		}
		if t.kind == tokenOperator {
			switch t.text {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
			}
		}
	}
	return -1
}

// targets reads names separated by commas, with or without parentheses around them.
func targets(tokens []token) ([]string, error) {
	if n := len(tokens); n > 2 && tokens[0].is("(") && tokens[n-1].is(")") {
		tokens = tokens[1 : n-1]
	}
	var names []string
	for i, t := range tokens {
		switch {
		case i%2 == 0 && t.kind == tokenName:
			names = append(names, t.text)
		case i%2 == 1 && t.is(","):
		default:
			return nil, fmt.Errorf("expected names separated by commas, found %q", t.text)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("expected a name")
	}
	return names, nil
}

// forLoop: for TARGETS in ITERABLE [if CONDITION]
func (t *translator) forLoop(p *part, rest []token) error {
	in := at(rest, "in")
	if in < 0 {
		return fmt.Errorf("for without in")
	}
	names, err := targets(rest[:in])
	if err != nil {
		return err
	}
	rest = rest[in+1:]
	if i := at(rest, "recursive"); i >= 0 {
		return fmt.Errorf("recursive loops are not supported")
	}
	var condition []token
	if i := at(rest, "if"); i >= 0 {
		rest, condition = rest[:i], rest[i+1:]
	}
	over, err := expression(rest)
	if err != nil {
		return err
	}
	// The engine unpacks pairs only, and whatever they are; several names are set in the body.
	item, unpack := names[0], ""
	if len(names) > 1 {
		item = t.name()
		unpack = "{% set " + item + " = " + ownCall("unpack", item, strconv.Itoa(len(names))) + " %}"
		for i, name := range names {
			unpack += "{% set " + name + " = " + item + "[" + strconv.Itoa(i) + "] %}"
		}
	}
	before := len(t.out)
	t.write("", "{% for ", item, " in ", ownCall("iter", over))
	if condition != nil {
		if len(names) > 1 {
			// While it filters, there is only the item.
			condition = slices.Clone(condition)
			for i, tok := range condition {
				k := slices.Index(names, tok.text)
				if tok.kind == tokenName && k >= 0 && (i == 0 || !condition[i-1].is(".")) {
					condition[i].text = item + "[" + strconv.Itoa(k) + "]"
				}
			}
		}
		c, err := expression(condition)
		if err != nil {
			return err
		}
		t.write(" if ", c)
	}
	t.write(" %}{{", ownCall("tick"), "}}", unpack, "")
	b := t.open("for", p, "{% endfor %}")
	b.before, b.inside, b.names = before, len(t.out)-1, names
	return nil
}

// reset gives the names that a loop assigns their values from before the loop, at the beginning of
// each iteration: the engine has one scope for all iterations, Jinja2 one for each.
func (t *translator) reset(b *block) {
	for _, name := range b.assigns {
		saved := t.name()
		t.out[b.before] += "{% set " + saved + " = " + name + " %}"
		t.out[b.inside] += "{% set " + name + " = " + saved + " %}"
	}
}

// assign notes that a name is assigned here.
func (t *translator) assign(name string) {
	for i := len(t.blocks) - 1; i >= 0; i-- {
		b := &t.blocks[i]
		switch b.kind {
		case "macro", "call":
			return
		case "for":
			if !b.elsed && !slices.Contains(b.names, name) && !slices.Contains(b.assigns, name) {
				b.assigns = append(b.assigns, name)
			}
			return
		}
	}
}

// set: set TARGETS = VALUE, or set NAME [| FILTERS] … endset
func (t *translator) set(p *part, rest []token) error {
	eq := at(rest, "=")
	if eq < 0 {
		if len(rest) == 0 || rest[0].kind != tokenName || len(rest) > 1 && !rest[1].is("|") {
			return fmt.Errorf("set without =")
		}
		name, end := rest[0].text, "{% endset %}"
		t.assign(name)
		if len(rest) > 1 {
			e, err := expression(rest)
			if err != nil {
				return err
			}
			end += "{% set " + name + " = " + ownCall("keep", e) + " %}"
		}
		t.write("{% set ", name, " %}")
		t.open("set", p, end)
		return nil
	}
	value, err := expression(rest[eq+1:])
	if err != nil {
		return err
	}
	value = ownCall("keep", value)
	if eq == 3 && rest[0].kind == tokenName && rest[1].is(".") && rest[2].kind == tokenName {
		t.write("{% set ", rest[0].text, ".", rest[2].text, " = ", value, " %}")
		return nil
	}
	names, err := targets(rest[:eq])
	if err != nil {
		return err
	}
	for _, name := range names {
		t.assign(name)
	}
	if len(names) == 1 {
		t.write("{% set ", names[0], " = ", value, " %}")
		return nil
	}
	all := t.name()
	t.write("{% set ", all, " = ", ownCall("unpack", value, strconv.Itoa(len(names))), " %}")
	for i, name := range names {
		t.write("{% set ", name, " = ", all, "[", strconv.Itoa(i), "] %}")
	}
	return nil
}

// macro: macro NAME(PARAMETER [= DEFAULT], …)
func (t *translator) macro(p *part, rest []token) error {
	n := len(rest)
	if n < 3 || rest[0].kind != tokenName || !rest[1].is("(") || !rest[n-1].is(")") {
		return fmt.Errorf("expected macro name(parameters)")
	}
	var names []string
	defaults := ""
	for params := rest[2 : n-1]; len(params) > 0; {
		end := at(params, ",")
		one := params
		if end >= 0 {
			one, params = params[:end], params[end+1:]
		} else {
			params = nil
		}
		if len(one) == 0 || one[0].kind != tokenName || len(one) > 1 && !one[1].is("=") {
			return fmt.Errorf("expected a parameter's name")
		}
		names = append(names, one[0].text)
		if len(one) > 1 {
			e, err := expression(one[2:])
			if err != nil {
				return err
			}
			defaults += "{% if " + ownCall("is_undefined", one[0].text) + " %}{% set " + one[0].text + " = " + ownCall("keep", e) + " %}{% endif %}"
		}
	}
	t.write("{% macro ", rest[0].text, "(", strings.Join(names, ", "), ") %}{{", ownCall("enter"), "}}", defaults)
	t.open("macro", p, "{{"+ownCall("leave")+"}}{% endmacro %}")
	return nil
}

// call: call [(NAMES)] MACRO(ARGUMENTS)
func (t *translator) call(p *part, rest []token) error {
	params := ""
	if len(rest) > 0 && rest[0].is("(") {
		end := at(rest[1:], ")")
		names, err := targets(rest[1 : 1+end])
		if end > 0 && err != nil {
			return err
		}
		params = "(" + strings.Join(names, ", ") + ")"
		rest = rest[end+2:]
	}
	if n := len(rest); n < 3 || !rest[n-1].is(")") {
		return fmt.Errorf("call needs a macro's call")
	}
	e, err := expression(rest)
	if err != nil {
		return err
	}
	t.write("{% call", params, " ", e, " %}")
	t.open("call", p, "{% endcall %}")
	return nil
}
