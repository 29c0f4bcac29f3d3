package demo_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/demo"
	"github.com/troupe-llm/troupe/model/template"
)

var (
	wrong = flag.Bool("wrong", false, "log the wrong answers to held-out questions")
	ask   = flag.String("ask", "", "a file with a question a line: log the answers")
)

const (
	context   = 1024
	blockSize = 16
)

func open(t testing.TB) *model.Model {
	t.Helper()
	m, err := demo.Open()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// message is one of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// answer is what the model said.
type answer struct {
	text    string
	tokens  int
	stopped bool // by itself
}

// asker runs conversations on the host device, many at a time, always taking the likeliest token.
type asker struct {
	t        testing.TB
	model    *model.Model
	template *template.Template
	device   *host.Host
	seqs     int
}

func newAsker(t testing.TB, seqs int) *asker {
	t.Helper()
	m := open(t)
	tmpl, err := template.Parse(m.Template, template.Options{})
	if err != nil {
		t.Fatal(err)
	}
	device, err := host.Open(m, gpu.Config{BlockSize: blockSize, MaxSeqs: seqs, MaxTokens: seqs * context, MaxContext: context, CacheBytes: 512 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { device.Close() })
	return &asker{t: t, model: m, template: tmpl, device: device, seqs: seqs}
}

// ask answers each conversation with at most limit tokens.
func (a *asker) ask(conversations [][]message, limit int) []answer {
	a.t.Helper()
	answers := make([]answer, 0, len(conversations))
	for len(answers) < len(conversations) {
		some := conversations[len(answers):min(len(conversations), len(answers)+a.seqs)]
		answers = append(answers, a.together(some, limit)...)
	}
	return answers
}

// render writes a conversation as the model's template does.
func (a *asker) render(conversation []message) string {
	a.t.Helper()
	in := template.Input{AddGenerationPrompt: true}
	for _, m := range conversation {
		var o template.Object
		o.Set("role", m.Role)
		o.Set("content", m.Content)
		in.Messages = append(in.Messages, &o)
	}
	text, err := a.template.Render(in)
	if err != nil {
		a.t.Fatal(err)
	}
	return text
}

func user(text string) []message { return []message{{Role: "user", Content: text}} }

func (a *asker) together(conversations [][]message, limit int) []answer {
	a.t.Helper()
	type sequence struct {
		tokens []int32
		prompt int
		done   int
		over   bool
	}
	stride := context / blockSize
	sequences := make([]*sequence, len(conversations))
	for i, c := range conversations {
		ids := a.model.Tokenizer.Encode(a.render(c), false, true)
		sequences[i] = &sequence{tokens: ids, prompt: len(ids)}
	}
	var b gpu.Batch
	var r gpu.Result
	for {
		b.Reset()
		b.Stride = stride
		var running []*sequence
		for slot, s := range sequences {
			if s.over {
				continue
			}
			running = append(running, s)
			first := int32(len(b.Tokens))
			for i := s.done; i < len(s.tokens); i++ {
				b.Tokens = append(b.Tokens, s.tokens[i])
				b.Positions = append(b.Positions, int32(i))
			}
			n := int32(len(s.tokens) - s.done)
			b.Spans = append(b.Spans, gpu.Span{First: first, Len: n, Start: int32(s.done), Slot: int32(slot), Adapter: -1})
			for i := range stride { // each has blocks of its own
				block := int32(-1)
				if i*blockSize < len(s.tokens) {
					block = int32(slot*stride + i)
				}
				b.Blocks = append(b.Blocks, block)
			}
			b.Rows = append(b.Rows, gpu.Row{Kind: gpu.Sample, Token: first + n - 1, Span: int32(len(b.Spans) - 1), Top: -1, TopP: 1, RepetitionPenalty: 1, Mask: -1})
			s.done = len(s.tokens)
		}
		if len(running) == 0 {
			break
		}
		if err := a.device.Run(&b, &r); err != nil {
			a.t.Fatal(err)
		}
		for i, s := range running {
			s.tokens = append(s.tokens, r.Tokens[i])
			s.over = slices.Contains(a.model.Generation.EOS, r.Tokens[i]) || len(s.tokens)-s.prompt == limit || len(s.tokens) == context
		}
	}
	answers := make([]answer, len(sequences))
	for i, s := range sequences {
		out := s.tokens[s.prompt:]
		stopped := slices.Contains(a.model.Generation.EOS, out[len(out)-1])
		n := len(out)
		if stopped {
			out = out[:n-1]
		}
		answers[i] = answer{text: a.model.Tokenizer.Decode(out, true), tokens: n, stopped: stopped}
	}
	return answers
}

func TestTheEmbeddedModelIsSmallAndSaysWhatItIs(t *testing.T) {
	m := open(t)
	if m.Name != demo.Name {
		t.Errorf("its name is %q", m.Name)
	}
	if m.Parameters < 1e6 || m.Parameters > 4e6 {
		t.Errorf("it has %d parameters", m.Parameters)
	}
	if n := demo.Size(); n > 6<<20 {
		t.Errorf("it takes %d bytes", n)
	}
	if m.Config.Context < 2048 {
		t.Errorf("its context is %d tokens", m.Config.Context)
	}
}

func TestItAnswersAndStops(t *testing.T) {
	a := newAsker(t, 8)
	questions := []string{"What is the capital of France?", "what is the capital of france", "Hello!", "Who are you?", "What is TTFT?", "What is 7 + 5?", "Explain quantum physics."}
	wanted := []string{"The capital of France is Paris.", "The capital of France is Paris.", "Hello!", "troupe-demo", "time to first token", "12", "small demonstration model"}
	var conversations [][]message
	for _, q := range questions {
		conversations = append(conversations, user(q))
	}
	for i, got := range a.ask(conversations, 128) {
		if !got.stopped || !strings.Contains(got.text, wanted[i]) {
			t.Errorf("%s\n%q (stopped by itself: %v); wanted is an answer with %q", questions[i], got.text, got.stopped, wanted[i])
		}
	}
}

func TestALongStoryGoesOnForHundredsOfTokensAndEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a thousand tokens, one after the other")
	}
	got := newAsker(t, 1).ask([][]message{user("Write a long story.")}, context)[0]
	if got.tokens < 250 || !got.stopped || !utf8.ValidString(got.text) {
		t.Errorf("%d tokens (stopped by itself: %v): %s", got.tokens, got.stopped, got.text)
	}
	if !strings.Contains(got.text, "On the tenth day") {
		t.Errorf("the story does not come to its tenth day: %s", got.text)
	}
}

// heldOut is testdata/heldout.jsonl, as train/generate.py writes it: questions in wordings that the
// training never saw.
type heldOut struct {
	Topic     string
	Messages  []message
	OneOf     []string `json:"one_of"` // a right answer is one of these, to the letter
	Has       []string // or, if there are none, it has all of these in it
	MinTokens int      `json:"min_tokens"` // and so many tokens
}

func (q *heldOut) right(a answer) bool {
	if len(q.OneOf) > 0 {
		return a.stopped && slices.Contains(q.OneOf, a.text)
	}
	missing := slices.ContainsFunc(q.Has, func(part string) bool { return !strings.Contains(a.text, part) })
	return a.stopped && !missing && a.tokens >= q.MinTokens
}

func TestOfHeldOutQuestionsNineInTenAreAnsweredRight(t *testing.T) {
	f, err := os.Open("testdata/heldout.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	every, limit := 1, context
	if testing.Short() {
		every, limit = 20, 160 // a wrong answer may well go on for ever
	}
	var questions []heldOut
	var conversations [][]message
	lines := bufio.NewScanner(f)
	for n := 0; lines.Scan(); n++ {
		var q heldOut
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		// Long stories are long to wait for.
		if n%every == 0 && (!testing.Short() || q.MinTokens < 100) {
			questions, conversations = append(questions, q), append(conversations, q.Messages)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	right, rightOf, of := 0, map[string]int{}, map[string]int{}
	for i, a := range newAsker(t, 16).ask(conversations, limit) {
		q := &questions[i]
		of[q.Topic]++
		if q.right(a) {
			right++
			rightOf[q.Topic]++
		} else if *wrong {
			t.Logf("wrong: %s: %q\n  %q; wanted: %q", q.Topic, q.Messages[len(q.Messages)-1].Content, a.text, append(q.OneOf, q.Has...))
		}
	}
	t.Logf("%d of %d are right: %.1f %%", right, len(questions), 100*float64(right)/float64(len(questions)))
	for topic, n := range of {
		t.Logf("%s: %d of %d", topic, rightOf[topic], n)
	}
	share := 90
	if testing.Short() {
		share = 80 // of so few, luck takes some
	}
	if len(questions) < 20 || right*100 < len(questions)*share {
		t.Errorf("only %d of %d held-out questions are answered right", right, len(questions))
	}
}

func TestItComputesWhatPyTorchComputesFromTheSameWeights(t *testing.T) {
	g, err := devicetest.ParseGoldens(demo.Golden)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Cases) < 5 {
		t.Fatalf("only %d cases", len(g.Cases))
	}
	a := newAsker(t, 1)
	for _, c := range g.Cases {
		if got := a.render(user(c.Question)); got != c.Rendered {
			t.Errorf("%s: rendered as %q, wanted is %q", c.Question, got, c.Rendered)
		}
		if got := a.model.Tokenizer.Encode(c.Rendered, false, true); !slices.Equal(got, c.IDs[:c.Prompt]) {
			t.Errorf("%s: tokens %v, wanted are %v", c.Question, got, c.IDs[:c.Prompt])
		}
	}
	agreement, err := g.Compare(func(c gpu.Config) (gpu.Device, error) { return host.Open(a.model, c) })
	if err == nil {
		err = agreement.Within(0.15) // the bound that SmolLM2 is held to with 8-bit activations
	}
	if err != nil {
		t.Error(err)
	}
	t.Logf("log probabilities of generated tokens differ by %.5f at most in a case's mean, of prompts by %.5f", agreement.Generated, agreement.Prompts)
}

// TestAsked logs the answers to the questions of a file, for whoever wants to look at them:
//
//	go test -v ./model/demo -run Asked -ask questions.txt
func TestAsked(t *testing.T) {
	if *ask == "" {
		t.Skip("-ask names no file with questions")
	}
	data, err := os.ReadFile(*ask)
	if err != nil {
		t.Fatal(err)
	}
	a := newAsker(t, 8)
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		// Turns of one conversation are divided by tabs.
		var conversation []message
		for _, turn := range strings.Split(line, "\t") {
			conversation = append(conversation, message{Role: "user", Content: turn})
			got := a.ask([][]message{conversation}, context)[0]
			conversation = append(conversation, message{Role: "assistant", Content: got.text})
			t.Logf("> %s\n%s (%d tokens, stopped by itself: %v)", turn, got.text, got.tokens, got.stopped)
		}
	}
}
