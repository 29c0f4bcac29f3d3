package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// pre is a pre-tokenizer: how a text is cut into words that are never merged across. The reference
// implementations are regular expressions with look-ahead; these are scanners that cut at the same
// places.
type pre struct {
	family family
	// digits bounds how many numeric characters are one word; 0: any number. For familyGPT2 only 0
	// and 1 occur, and with 1 the text is first cut at each numeric character and the parts are then
	// scanned on their own.
	digits int
	// contractions (familyCase) keeps 's, 't … with the word before.
	contractions bool
	// slash (familyCase) lets / follow a run of symbols as a line break does.
	slash bool

	// wholeWords says that a word which is a token is that token, whatever the merges say.
	wholeWords bool
	// addBOS is the default for files that don't say.
	addBOS bool
}

// family is a shape of pattern. In what follows s, L, N, M and so on are Unicode's classes.
type family uint8

const (
	// familyGPT2:
	//   's|'t|'re|'ve|'m|'ll|'d| ?L+| ?N+| ?[^s L N]+|s+(?!S)|s+
	familyGPT2 family = iota
	// familyLlama3, which came with tiktoken's cl100k:
	//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n L N]?L+|N{1,k}| ?[^s L N]+[\r\n]*|s*[\r\n]+|s+(?!S)|s+
	familyLlama3
	// familyCase, which came with tiktoken's o200k and also cuts at changes of case, with
	// U = [Lu Lt Lm Lo M] and W = [Ll Lm Lo M]:
	//   [^\r\n L N]?U*W+(?i:'s|…)?|[^\r\n L N]?U+W*(?i:'s|…)?|N{1,k}| ?[^s L N]+[\r\n/]*|s*[\r\n]+|s+(?!S)|s+
	familyCase
)

var (
	preGPT2   = pre{family: familyGPT2}
	preDigits = pre{family: familyGPT2, digits: 1}
	preLlama3 = pre{family: familyLlama3, digits: 3}
	preQwen2  = pre{family: familyLlama3, digits: 1}
)

// preTokenizers are those known, by the names that GGUF files use. Several names share a pattern.
var preTokenizers = map[string]pre{
	"default": preGPT2, "gpt-2": preGPT2, "phi-2": preGPT2, "mpt": preGPT2, "olmo": preGPT2,
	"jais": preGPT2, "gigachat": preGPT2, "trillion": preGPT2, "granite-docling": preGPT2,

	"smollm": preDigits, "starcoder": preDigits, "refact": preDigits, "command-r": preDigits,
	"codeshell": preDigits, "exaone": preDigits, "minerva-7b": preDigits,

	"llama-bpe": llama3Strict, "llama3": llama3Strict, "llama-v3": llama3Strict,
	"falcon3": llama3Strict, "pixtral": llama3Strict, "lfm2": llama3Strict,
	"dbrx": preLlama3, "smaug-bpe": preLlama3,

	"qwen2": preQwen2, "deepseek-r1-qwen": preQwen2, "stablelm2": preQwen2, "megrez": preQwen2,

	"gpt-4o": preO200k, "llama4": preO200k,
	"tekken": {family: familyCase, digits: 1, slash: true, wholeWords: true, addBOS: true},
}

var (
	llama3Strict = pre{family: familyLlama3, digits: 3, wholeWords: true, addBOS: true}
	preO200k     = pre{family: familyCase, digits: 3, contractions: true, slash: true}
)

// PreTokenizers lists the names that Spec.Pre may have, sorted.
func PreTokenizers() []string {
	names := make([]string, 0, len(preTokenizers))
	for name := range preTokenizers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func preTokenizer(name string) (pre, error) {
	if name == "" {
		name = "default"
	}
	p, ok := preTokenizers[name]
	if !ok {
		return pre{}, fmt.Errorf("tokenizer: pre-tokenizer %q is not known; known are %s", name, strings.Join(PreTokenizers(), ", "))
	}
	return p, nil
}

// class is what the patterns distinguish of a character.
type class uint8

const (
	other  class = iota
	mark         // M
	upper        // Lu Lt
	lower        // Ll
	letter       // Lm Lo
	number       // N
	space        // White_Space
	end          // no character: the end of the text
)

func (c class) isLetter() bool { return c >= upper && c <= letter }

// isSymbol is [^s L N].
func (c class) isSymbol() bool { return c <= mark }

// classes holds the class of every character in pages of 256.
type classes struct {
	ascii [128]class
	page  [(unicode.MaxRune + 1) / 256]uint16
	pages [][256]class
}

// classTable is built for the first byte-level tokenizer, and immutable after that.
var classTable = sync.OnceValue(func() *classes {
	t := &classes{pages: make([][256]class, 1)}
	set := func(table *unicode.RangeTable, c class) {
		paint := func(lo, hi, stride uint32) {
			for r := lo; r <= hi; r += stride {
				p := &t.page[r>>8]
				if *p == 0 {
					*p = uint16(len(t.pages))
					t.pages = append(t.pages, [256]class{})
				}
				t.pages[*p][r&0xFF] = c
			}
		}
		for _, r := range table.R16 {
			paint(uint32(r.Lo), uint32(r.Hi), uint32(r.Stride))
		}
		for _, r := range table.R32 {
			paint(r.Lo, r.Hi, r.Stride)
		}
	}
	for _, n := range newer {
		set(n.table, n.class)
	}
	set(unicode.M, mark)
	set(unicode.Lu, upper)
	set(unicode.Lt, upper)
	set(unicode.Ll, lower)
	set(unicode.Lm, letter)
	set(unicode.Lo, letter)
	set(unicode.N, number)
	set(unicode.White_Space, space)
	copy(t.ascii[:], t.pages[t.page[0]][:128])
	return t
})

// at gives the class and the width in bytes of the character at s[i]; end and 0 at the end. A byte
// that is no part of a character is a symbol of its own.
func (t *classes) at(s string, i int) (class, int) {
	if i >= len(s) {
		return end, 0
	}
	if s[i] < utf8.RuneSelf {
		return t.ascii[s[i]], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return t.pages[t.page[r>>8]][r&0xFF], n
}

// next returns where the word that begins at s[i] ends; i must be less than len(s).
func (p *pre) next(t *classes, s string, i int) int {
	switch p.family {
	case familyGPT2:
		return p.nextGPT2(t, s, i)
	case familyLlama3:
		return p.nextLlama3(t, s, i)
	default:
		return p.nextCase(t, s, i)
	}
}

func (p *pre) nextGPT2(t *classes, s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i:], false); n > 0 {
			return i + n
		}
	}
	c, n := t.at(s, i)
	if c == number && p.digits == 1 {
		return i + n
	}
	if j := i + n; s[i] == ' ' {
		// A single space goes with the word after it, unless digits are words of their own.
		switch next, n := t.at(s, j); {
		case next.isLetter():
			return t.letters(s, j+n)
		case next.isSymbol():
			return t.symbols(s, j+n)
		case next == number && p.digits != 1:
			return t.numbers(s, j+n, -1)
		}
	}
	switch {
	case c.isLetter():
		return t.letters(s, i+n)
	case c == number:
		return t.numbers(s, i+n, -1)
	case c.isSymbol():
		return t.symbols(s, i+n)
	}
	return t.spaces(s, i, p.digits == 1)
}

func (p *pre) nextLlama3(t *classes, s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i:], true); n > 0 {
			return i + n
		}
	}
	c, n := t.at(s, i)
	if c.isLetter() {
		return t.letters(s, i+n)
	}
	if c != number && s[i] != '\r' && s[i] != '\n' {
		if next, m := t.at(s, i+n); next.isLetter() {
			return t.letters(s, i+n+m)
		}
	}
	return p.nextRest(t, s, i, c, n)
}

// nextRest is what the two younger families share: numbers, symbols and white space.
func (p *pre) nextRest(t *classes, s string, i int, c class, n int) int {
	if c == number {
		return t.numbers(s, i+n, p.digits-1)
	}
	j := -1
	if c.isSymbol() {
		j = i + n
	} else if s[i] == ' ' {
		if next, m := t.at(s, i+1); next.isSymbol() {
			j = i + 1 + m
		}
	}
	if j >= 0 {
		j = t.symbols(s, j)
		for j < len(s) && (s[j] == '\r' || s[j] == '\n' || p.slash && s[j] == '/') {
			j++
		}
		return j
	}
	// White space up to the last line break in it, if there is one.
	stop, broke := i, -1
	for {
		c, n := t.at(s, stop)
		if c != space {
			break
		}
		if s[stop] == '\r' || s[stop] == '\n' {
			broke = stop + 1
		}
		stop += n
	}
	if broke >= 0 {
		return broke
	}
	return t.spaces(s, i, false)
}

func (p *pre) nextCase(t *classes, s string, i int) int {
	c, n := t.at(s, i)
	prefix := -1
	if !c.isLetter() && c != number && s[i] != '\r' && s[i] != '\n' {
		prefix = i + n
	}
	// First alternative: any capitals, then at least one of W; second: capitals, then any of W. Each
	// is tried with the prefix character first.
	j := -1
	if prefix >= 0 {
		j = t.capitalised(s, prefix)
	}
	if j < 0 {
		j = t.capitalised(s, i)
	}
	if j < 0 && prefix >= 0 {
		j = t.capitals(s, prefix)
	}
	if j < 0 {
		j = t.capitals(s, i)
	}
	if j >= 0 {
		if p.contractions && j < len(s) && s[j] == '\'' {
			j += contraction(s[j:], true)
		}
		return j
	}
	return p.nextRest(t, s, i, c, n)
}

// isU and isW are the classes U and W of familyCase.
func (c class) isU() bool { return c == mark || c == upper || c == letter }
func (c class) isW() bool { return c == mark || c == lower || c == letter }

// capitalised matches U*W+ at s[i:] and returns its end, −1 if it does not match.
func (t *classes) capitalised(s string, i int) int {
	// lastW is the end of the last character of the U-run that could as well begin W+: where U* has
	// to be cut back to when no W follows the run.
	lastW := -1
	for {
		c, n := t.at(s, i)
		if !c.isU() {
			if c.isW() {
				return t.run(s, i+n, class.isW)
			}
			return lastW
		}
		i += n
		if c.isW() {
			lastW = i
		}
	}
}

// capitals matches U+W* at s[i:] and returns its end, −1 if it does not match.
func (t *classes) capitals(s string, i int) int {
	c, n := t.at(s, i)
	if !c.isU() {
		return -1
	}
	return t.run(s, t.run(s, i+n, class.isU), class.isW)
}

// run returns the end of the run of characters at s[i:] for which is holds.
func (t *classes) run(s string, i int, is func(class) bool) int {
	for {
		c, n := t.at(s, i)
		if c == end || !is(c) {
			return i
		}
		i += n
	}
}

func (t *classes) letters(s string, i int) int {
	for {
		c, n := t.at(s, i)
		if !c.isLetter() {
			return i
		}
		i += n
	}
}

func (t *classes) symbols(s string, i int) int {
	for {
		c, n := t.at(s, i)
		if !c.isSymbol() {
			return i
		}
		i += n
	}
}

// numbers returns the end of the run of numeric characters at s[i:], at most limit of them unless
// limit is negative.
func (t *classes) numbers(s string, i, limit int) int {
	for k := 0; k != limit; k++ {
		c, n := t.at(s, i)
		if c != number {
			break
		}
		i += n
	}
	return i
}

// spaces is s+(?!S)|s+: white space, but for its last character if something follows and it is not
// the only one. With numbersEnd a numeric character counts as the end of the text.
func (t *classes) spaces(s string, i int, numbersEnd bool) int {
	last := i
	for j := i; ; {
		c, n := t.at(s, j)
		if c != space {
			if c == end || numbersEnd && c == number || last == i {
				return j
			}
			return last
		}
		last = j
		j += n
	}
}

// contraction returns the length of the English contraction that s begins with: 's, 't, 're, 've,
// 'm, 'll or 'd; 0 if it does not. Case is folded as Unicode does, where ſ is an s.
func contraction(s string, fold bool) int {
	if len(s) < 2 {
		return 0
	}
	low := func(b byte) byte {
		if fold && b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		return b
	}
	switch low(s[1]) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && low(s[2]) == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && low(s[2]) == 'l' {
			return 3
		}
	case "ſ"[0]:
		if fold && strings.HasPrefix(s[1:], "ſ") {
			return 1 + len("ſ")
		}
	}
	return 0
}
