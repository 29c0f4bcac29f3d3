package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// Count returns how many tokens a request's prompt has when its text is this: with the chat
// template or the beginning-of-sequence token of the endpoint, as the server will count it.
type Count func(text string) (int, error)

// Vocabulary makes prompts of given lengths in tokens out of plain words. It is immutable, and safe
// for concurrent use.
type Vocabulary struct {
	// Source says how the lengths are known, in words, for reports.
	Source string
	// Exact says that the lengths are right to the token; otherwise they are on average.
	Exact bool

	cost  []int // tokens of " " + words[i]; nil when only the average is known
	comma bool  // a comma behind a word is one token more
	least int   // cost of the cheapest word
	// base is what a prompt of opening alone has, in tokens, and perWord what a word adds on average.
	base, perWord float64
}

// opening begins every prompt, so that what follows it is always preceded by a word.
const opening = "The"

// words are what prompts are made of: short, common, in most vocabularies one token each.
var words = strings.Fields(`about above after again air all along also always and animal answer any around ask
away back because been before began being below between big book both boy but came can car change city close
come could country cut day did different does down each earth eat end enough even ever every eye face family
far father feet few find first follow food for form found four friend from gave get girl give good great group
grow had hand hard has head hear help her here high him his home house how idea into just keep kind know land
large last later learn leave left letter life light like line list little live long look made make man many may
mean men might mile more most mother mountain move much must name near need never new next night no not now
number of off often oil old on one only open or other our out over own page paper part people place plant play`)

// NewVocabulary measures what words cost by count. Calls of count cost what they cost: one for
// each of some 170 words.
func NewVocabulary(source string, count Count) (*Vocabulary, error) {
	v := &Vocabulary{Source: source, cost: make([]int, len(words)), least: math.MaxInt}
	base, err := count(opening)
	if err != nil {
		return nil, err
	}
	total := 0
	for i, w := range words {
		n, err := count(opening + " " + w)
		if err != nil {
			return nil, err
		}
		v.cost[i] = max(n-base, 1)
		v.least = min(v.least, v.cost[i])
		total += v.cost[i]
	}
	n, err := count(opening + ",")
	if err != nil {
		return nil, err
	}
	v.comma = n-base == 1
	v.base, v.perWord = float64(base), float64(total)/float64(len(words))

	// A vocabulary in which words merge with each other would make this wrong: see whether it is.
	v.Exact = true
	for i, want := range []int{base + 5, base + 64, base + 301} {
		got, err := count(v.text(want, []segment{{key: uint64(i), tokens: want}}))
		if err != nil {
			return nil, err
		}
		if got != want {
			v.Exact = false
			v.Source += " (approximately: its words merge)"
			break
		}
	}
	return v, nil
}

// AverageVocabulary makes prompts whose lengths are right on average: base tokens with the opening
// alone, perWord more for each word.
func AverageVocabulary(source string, base, perWord float64) *Vocabulary {
	return &Vocabulary{Source: source, base: base, perWord: max(perWord, 0.1)}
}

// segment is a part of a prompt that is the same wherever its key is, up to its length.
type segment struct {
	key    uint64
	tokens int
}

// Least is the shortest prompt that there is, in tokens.
func (v *Vocabulary) Least() int { return int(math.Ceil(v.base)) }

// text makes a prompt of n tokens: the opening, then the segments in order, the first one shortened
// by what the opening takes and the last one filling up. Segments must have n tokens together.
func (v *Vocabulary) text(n int, segments []segment) string {
	var b strings.Builder
	b.Grow(6 * n)
	b.WriteString(opening)
	taken := v.base
	want := 0.0
	for i, s := range segments {
		want += float64(s.tokens)
		if i == len(segments)-1 {
			want = float64(n)
		}
		taken += v.fill(&b, s.key, want-taken)
	}
	return b.String()
}

// fill appends words of this key's sequence that have so many tokens, and returns how many they have.
func (v *Vocabulary) fill(b *strings.Builder, key uint64, tokens float64) float64 {
	rng := rand.New(rand.NewPCG(key, 0x70ad))
	if v.cost == nil {
		n := int(math.Round(tokens / v.perWord))
		for range n {
			b.WriteByte(' ')
			b.WriteString(words[rng.IntN(len(words))])
		}
		return float64(max(n, 0)) * v.perWord
	}
	left := int(tokens)
	for left >= v.least {
		i := rng.IntN(len(words))
		for tries := 0; v.cost[i] > left || v.stuck(left-v.cost[i]) && tries < 64; tries++ {
			i = rng.IntN(len(words))
		}
		b.WriteByte(' ')
		b.WriteString(words[i])
		left -= v.cost[i]
		// What no word fits any more, a comma does.
		if left > 0 && left < v.least && v.comma {
			b.WriteByte(',')
			left--
		}
	}
	return float64(int(tokens) - left)
}

// stuck says that nothing could fill so many tokens.
func (v *Vocabulary) stuck(left int) bool {
	return left > 0 && left < v.least && !(left == 1 && v.comma)
}

// Describe says how lengths are known, in words.
func (v *Vocabulary) Describe() string {
	if v.Exact {
		return v.Source
	}
	return fmt.Sprintf("%s (right on average, %.3g tokens a word)", v.Source, v.perWord)
}
