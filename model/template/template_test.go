package template

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// golden is testdata/goldens.json.
type golden struct {
	Now           string
	Templates     map[string]string
	Conversations []json.RawMessage
	Vars          json.RawMessage
	Renders       []struct {
		Template     string
		Conversation int
		result
	}
	Points []struct {
		Source string
		result
	}
}

// result is what the reference made of a template: a text, what the template raised, or an error
// of its own.
type result struct {
	Text   *string
	Raised *string
	Error  *string
}

func goldens(tb testing.TB) (golden, Options) {
	tb.Helper()
	data, err := os.ReadFile("testdata/goldens.json")
	if err != nil {
		tb.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(data, &g); err != nil {
		tb.Fatal(err)
	}
	now, err := time.Parse("2006-01-02T15:04:05", g.Now)
	if err != nil {
		tb.Fatal(err)
	}
	return g, Options{BOS: "<s>", EOS: "</s>", Now: func() time.Time { return now }}
}

// input makes an Input of the variables of a render.
func input(tb testing.TB, raw json.RawMessage) Input {
	tb.Helper()
	v, err := Decode(raw)
	if err != nil {
		tb.Fatal(err)
	}
	in := Input{Extra: make(map[string]any)}
	for k, x := range v.(*Object).All() {
		switch k {
		case "messages":
			in.Messages = x.([]any)
		case "tools":
			in.Tools = x.([]any)
		case "add_generation_prompt":
			in.AddGenerationPrompt = x.(bool)
		default:
			in.Extra[k] = x
		}
	}
	return in
}

// check compares a render with the reference's.
func check(t *testing.T, what string, text string, err error, want result) {
	t.Helper()
	var raised *RaisedError
	switch {
	case want.Text != nil && err != nil:
		t.Errorf("%s: %v", what, err)
	case want.Text != nil && text != *want.Text:
		i := 0
		for i < len(text) && i < len(*want.Text) && text[i] == (*want.Text)[i] {
			i++
		}
		from := max(i-40, 0)
		t.Errorf("%s: from byte %d:\n got %.160q\nwant %.160q", what, i, text[from:], (*want.Text)[from:])
	case want.Raised != nil && (!errors.As(err, &raised) || raised.Message != *want.Raised):
		t.Errorf("%s: got %q, %v; want to be refused with %q", what, text, err, *want.Raised)
	case want.Error != nil && err == nil:
		t.Errorf("%s: got %.80q; the reference fails: %s", what, text, *want.Error)
	}
}

func TestChatTemplatesRenderAsTheReference(t *testing.T) {
	g, opt := goldens(t)
	if len(g.Renders) < 100 {
		t.Fatalf("only %d renders", len(g.Renders))
	}
	for _, r := range g.Renders {
		tmpl, err := Parse(g.Templates[r.Template], opt)
		if err != nil {
			t.Fatalf("%s: %v", r.Template, err)
		}
		text, err := tmpl.Render(input(t, g.Conversations[r.Conversation]))
		check(t, r.Template, text, err, r.result)
	}
}

func TestPointsOfTheLanguageRenderAsTheReference(t *testing.T) {
	g, opt := goldens(t)
	in := input(t, g.Vars)
	for _, p := range g.Points {
		tmpl, err := Parse(p.Source, opt)
		if err != nil {
			t.Errorf("%q: %v", p.Source, err)
			continue
		}
		text, err := tmpl.Render(in)
		check(t, p.Source, text, err, p.result)
	}
}

func message(role, content string) any { return map[string]any{"role": role, "content": content} }

func render(tb testing.TB, source string, in Input) (string, error) {
	tb.Helper()
	tmpl, err := Parse(source, Options{MaxOutput: 1 << 20, MaxSteps: 10000})
	if err != nil {
		return "", err
	}
	return tmpl.Render(in)
}

func TestTheFallbackIsChatML(t *testing.T) {
	in := Input{Messages: []any{message("system", "S"), message("user", "U")}, AddGenerationPrompt: true}
	got, err := render(t, ChatML, in)
	if want := "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"; err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
}

var errShared = errors.New("renders differ")

func TestATemplateIsSharedByGoroutines(t *testing.T) {
	g, opt := goldens(t)
	tmpl, err := Parse(g.Templates["macros"], opt)
	if err != nil {
		t.Fatal(err)
	}
	in := input(t, g.Conversations[6])
	want, err := tmpl.Render(in)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if got, err := tmpl.Render(in); err != nil || got != want {
					t.Error(errShared, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestWhatRaiseExceptionSaysIsATypedError(t *testing.T) {
	_, err := render(t, "{% for m in messages %}{{ raise_exception('No ' ~ m.role ~ ' here') }}{% endfor %}", Input{Messages: []any{message("tool", "")}})
	var raised *RaisedError
	if !errors.As(err, &raised) || raised.Message != "No tool here" {
		t.Errorf("got %v", err)
	}
}

func TestHostileTemplatesAreStopped(t *testing.T) {
	double := "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
	for name, source := range map[string]string{
		"a huge range":                 "{% for i in range(10**12) %}{% endfor %}",
		"a huge range as a list":       "{{ range(1000000000)|list|length }}",
		"a range at the integers' end": "{{ range(9223372036854775807, -9223372036854775807, -1)|length }}",
		"nested loops":                 "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
		"endless recursion":            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"mutual recursion":             "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
		"recursion by a caller":        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
		"recursion by a default":       "{% macro f(a=f()) %}{% endmacro %}{{ f() }}",
		"doubling a text":              double,
		"doubling in a straight line":  "{% set x = 'ab' %}" + strings.Repeat("{% set x = x ~ x %}", 60),
		"doubling a list":              "{% set x = [1] %}" + strings.Repeat("{% set x = x + x %}", 60),
		"doubling through macros":      "{% macro f(x, n) %}{% if n %}{{ f(x ~ x, n - 1) }}{% endif %}{% endmacro %}{{ f('ab', 100) }}",
		"a long repetition":            "{{ 'x' * 10000000000 }}",
		"a long list":                  "{{ [1] * 10000000000 }}",
		"much output":                  "{% for i in range(9999) %}{{ 'x' * 1000 }}{% endfor %}",
		"much plain text":              "{% for i in range(9999) %}" + strings.Repeat("x", 1000) + "{% endfor %}",
		"a long replacement":           "{{ ('x' * 100000)|replace('x', 'y' * 100000) }}",
		"a long join":                  "{{ range(9999)|list|join('x' * 1000000) }}",
		"a long indent":                "{{ ('\\n' * 1000000)|indent(4000, blank=true) }}",
		"a wide centre":                "{{ 'x'.center(1000000000000) }}",
		"a deep list":                  "{% set ns = namespace(x=[]) %}{% for i in range(9000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
	} {
		text, err := render(t, source, Input{})
		if err == nil {
			t.Errorf("%s: not stopped; %d bytes", name, len(text))
		}
		var limit *LimitError
		if !errors.As(err, &limit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecursionIsBoundedByItsDepth(t *testing.T) {
	tmpl, err := Parse("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(depth) }}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tmpl.Render(Input{Extra: map[string]any{"depth": maxMacros - 1}}); err != nil {
		t.Errorf("at the bound: %v", err)
	}
	_, err = tmpl.Render(Input{Extra: map[string]any{"depth": maxMacros}})
	var limit *LimitError
	if !errors.As(err, &limit) || !strings.Contains(limit.Limit, "macros call each other") {
		t.Errorf("beyond it: %v", err)
	}
}

func TestARenderEndsAtItsDeadline(t *testing.T) {
	tmpl, err := Parse("{% for a in range(100000) %}{% for b in range(100000) %}{{ 'x' }}{% endfor %}{% endfor %}", Options{Timeout: time.Nanosecond, MaxSteps: 1 << 40, MaxOutput: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	_, err = tmpl.Render(Input{})
	var limit *LimitError
	if !errors.As(err, &limit) || !strings.Contains(limit.Limit, "took more than 1ns") {
		t.Errorf("got %v", err)
	}
}

func TestABrokenTemplateIsRefusedWithItsLine(t *testing.T) {
	for source, want := range map[string]string{
		"a\n{% if x %}":                  "line 2: the if block is not closed",
		"a\n\n{{ x":                      "line 3: a tag is not closed by }}",
		"{% for x in %}{% endfor %}":     "line 1: expected an expression",
		"{% for x %}{% endfor %}":        "for without in",
		"{% endif %}":                    "endif without if",
		"{% if a %}{% endfor %}":         "endfor inside of the if block of line 1",
		"{% else %}":                     "else without if or for",
		"{% include 'x' %}":              `"include" is not known or not allowed`,
		"{% extends 'x' %}":              `"extends" is not known or not allowed`,
		"{{ x | nosuch }}":               `the filter "nosuch" is not known`,
		"{{ x is nosuch }}":              `the test "nosuch" is not known`,
		"{# x":                           "a comment {# is not closed",
		"{% raw %}x":                     "the raw block is not closed",
		"{{ 'abc }}":                     "a string is not closed",
		"{{ a) }}":                       `unexpected ")"`,
		"{{ troupe__out(1) }}":           "are reserved",
		"{{ a ; b }}":                    "unexpected character ';'",
		"{{ }}":                          "expected an expression",
		"{% break %}":                    "break outside of a loop",
		"{% set x %}":                    "the set block is not closed",
		"{% set 1 = 2 %}":                "expected names",
		"{% macro %}{% endmacro %}":      "expected macro name",
		"{% call x %}{% endcall %}":      "call needs a macro's call",
		"{{ a b }}":                      `unexpected "b"`,
		"{{ 99999999999999999999999 }}":  "is not a number of 64 bits",
		"{{ " + strings.Repeat("(", 100): "brackets are nested more than 64 deep",
		strings.Repeat("{% if x %}", 99): "blocks are nested more than 64 deep",
		"{{ [" + strings.Repeat("1,", 9999) + "] }}": "more than 8192 words",
		strings.Repeat("x", MaxSource+1):             "more than the 1048576 that are accepted",
	} {
		if _, err := Parse(source, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: want an error with %q, got %v", source, want, err)
		}
	}
}

func TestATemplateMayNotChangeItsInput(t *testing.T) {
	messages := []any{message("user", "hi")}
	for _, source := range []string{"{{ messages.append(1) }}", "{{ messages.pop() }}", "{{ messages[0].update({'a': 1}) }}", "{{ messages[0].pop('role') }}", "{{ messages.clear() }}"} {
		if text, err := render(t, source, Input{Messages: messages}); err == nil {
			t.Errorf("%s gave %q", source, text)
		}
	}
}

func TestTheLastMessageCanBeContinued(t *testing.T) {
	strip := "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
	keep := strings.Replace(strip, " | trim", "", 1)
	parts := "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}<end>{% endfor %}"
	last := func(content any) []any {
		return []any{message("user", "Once"), map[string]any{"role": "assistant", "content": content}}
	}
	for _, c := range []struct {
		source   string
		messages []any
		want     string
	}{
		{strip, last("upon a time "), "[user]Once<end>[assistant]upon a time"},
		{keep, last("upon a time "), "[user]Once<end>[assistant]upon a time "},
		{keep, last(""), "[user]Once<end>[assistant]"},
		{keep, last("Once"), "[user]Once<end>[assistant]Once"},
		{parts, []any{map[string]any{"role": "assistant", "content": []any{map[string]any{"text": "a"}, map[string]any{"text": "b"}}}}, "[assistant]ab"},
	} {
		got, err := render(t, c.source, Input{Messages: c.messages, ContinueFinal: true})
		if err != nil || got != c.want {
			t.Errorf("got %q, %v; want %q", got, err, c.want)
		}
	}
	for source, messages := range map[string][]any{
		"{{ messages[0].role }}":    last("x"), // the content is not printed
		"{{ messages[0].content }}": nil,
		strip:                       {map[string]any{"role": "assistant", "content": nil}},
	} {
		if got, err := render(t, source, Input{Messages: messages, ContinueFinal: true}); err == nil {
			t.Errorf("%q: got %q", source, got)
		}
	}
	if _, err := render(t, strip, Input{Messages: last("x"), ContinueFinal: true, AddGenerationPrompt: true}); err == nil {
		t.Error("continued and began an answer at once")
	}
}

func TestJSONKeepsTheOrderOfItsMembers(t *testing.T) {
	const text = `{"z":1,"a":{"y":[1.0,2,{"c":null,"b":"<&>"}],"x":true},"m":1e2}`
	v, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if want := strings.NewReplacer("<", `\u003c`, "&", `\u0026`, ">", `\u003e`).Replace(text); err != nil || string(out) != want {
		t.Errorf("got %s, %v", out, err)
	}
	got, err := render(t, "{{ x | tojson }}", Input{Extra: map[string]any{"x": v}})
	if want := `{"z": 1, "a": {"y": [1.0, 2, {"c": null, "b": "<&>"}], "x": true}, "m": 100.0}`; err != nil || got != want {
		t.Errorf("got %s, %v", got, err)
	}
	var o Object
	if err := json.Unmarshal([]byte(`{"b":1,"a":2,"b":3}`), &o); err != nil || o.Len() != 2 {
		t.Errorf("%v: %d members", err, o.Len())
	}
	if v, ok := o.Get("b"); !ok || v != json.Number("3") {
		t.Errorf("b is %v", v)
	}
}

func TestBadJSONIsRefusedWithItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "unexpected EOF",
		"{":                          "EOF",
		`{"a" 1}`:                    "invalid character",
		`{"a":1}x`:                   "JSON goes on",
		`[1,]`:                       "invalid character",
		strings.Repeat("[", 10000):   "nested more than 100 deep",
		strings.Repeat(`{"a":`, 200): "nested more than 100 deep",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v", text, err)
		}
	}
	if err := new(Object).UnmarshalJSON([]byte("[1]")); err == nil {
		t.Error("an array became an object")
	}
}

func TestValuesThatTemplatesDontKnowAreRefused(t *testing.T) {
	deep := []any{}
	for range 150 {
		deep = []any{deep}
	}
	for want, v := range map[string]any{
		"x has a value of type chan int": make(chan int),
		"x is nested more than 100 deep": deep,
	} {
		if _, err := render(t, "{{ x }}", Input{Extra: map[string]any{"x": v}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := render(t, "x", Input{Extra: map[string]any{"troupe__out": 1}}); err == nil {
		t.Error("a reserved name was accepted")
	}
}

func FuzzParseRender(f *testing.F) {
	g, opt := goldens(f)
	for _, s := range g.Templates {
		f.Add(s)
	}
	for _, p := range g.Points {
		f.Add(p.Source)
	}
	in := input(f, g.Vars)
	opt.MaxOutput, opt.MaxSteps = 1<<20, 10000
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source, opt)
		if err != nil {
			return
		}
		if _, err := tmpl.Render(in); err != nil && strings.Contains(err.Error(), "the template engine failed") {
			t.Errorf("%q: %v", source, err)
		}
	})
}

func BenchmarkRender(b *testing.B) {
	g, opt := goldens(b)
	for _, name := range []string{"chatml", "qwen2.5", "llama3"} {
		tmpl, err := Parse(g.Templates[name], opt)
		if err != nil {
			b.Fatal(err)
		}
		in := input(b, g.Conversations[2])
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tmpl.Render(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
