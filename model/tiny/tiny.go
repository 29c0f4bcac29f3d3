// Package tiny makes tiny Llama models up in memory, for tests that need a real model file with
// weights, tokenizer and chat template but no particular language. The same Options always give
// the same bytes, on every machine.
package tiny

import (
	"fmt"
	"math"
	"strings"

	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tokenizer"
)

// The special tokens' ids. Bytes follow from FirstByte, in order: byte b is token FirstByte+b. Merged
// words come last.
const (
	EndOfText = 0 // <|endoftext|>
	IMStart   = 1 // <|im_start|>
	IMEnd     = 2 // <|im_end|>, the end of sequence
	FirstByte = 3
)

// Vocab is the number of tokens.
var Vocab = FirstByte + 256 + len(merges)

// Template is the chat template, plain ChatML.
const Template = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Options choose the model. Zero fields mean the default in brackets.
type Options struct {
	Seed    uint64
	Layers  int // [2]
	Width   int // [64] a multiple of Heads; of 32 for quantised types
	Heads   int // [4]
	KVHeads int // [2] divides Heads
	FFN     int // [128] a multiple of 32 for quantised types
	Context int // [2048]
	// Type stores the matrices: F32 (the zero value), F16, BF16, Q8_0, Q4_0 or Q4_1. Norms are F32.
	Type gguf.Type
	// Tied leaves output.weight out, as small models do. A tied model of random weights likes to
	// repeat its last token, which an untied one does not.
	Tied bool
	// Name is general.name ["tiny"].
	Name string
}

func (o Options) withDefaults() Options {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.Layers, 2)
	set(&o.Width, 64)
	set(&o.Heads, 4)
	set(&o.KVHeads, 2)
	set(&o.FFN, 128)
	set(&o.Context, 2048)
	if o.Name == "" {
		o.Name = "tiny"
	}
	return o
}

// GGUF is the model as a file: under half a megabyte with the default shape. It panics when the
// options contradict each other, which only a test's author can cause.
func GGUF(o Options) []byte {
	o = o.withDefaults()
	if o.Heads%o.KVHeads != 0 || o.Width%(2*o.Heads) != 0 {
		panic(fmt.Sprintf("tiny: %d KV heads must divide %d heads, which must divide width %d into even parts", o.KVHeads, o.Heads, o.Width))
	}
	var b gguf.Builder
	b.Set("general.architecture", "llama")
	b.Set("general.type", "model")
	b.Set("general.name", o.Name)
	b.Set("llama.vocab_size", uint32(Vocab))
	b.Set("llama.context_length", uint32(o.Context))
	b.Set("llama.embedding_length", uint32(o.Width))
	b.Set("llama.block_count", uint32(o.Layers))
	b.Set("llama.feed_forward_length", uint32(o.FFN))
	b.Set("llama.attention.head_count", uint32(o.Heads))
	b.Set("llama.attention.head_count_kv", uint32(o.KVHeads))
	b.Set("llama.attention.layer_norm_rms_epsilon", float32(1e-5))
	b.Set("llama.rope.dimension_count", uint32(o.Width/o.Heads))
	b.Set("llama.rope.freq_base", float32(10000))
	SetTokenizer(&b, Vocab)

	w := weights{builder: &b, state: o.Seed, typ: o.Type}
	kv := o.Width / o.Heads * o.KVHeads
	// The gains are chosen so that each layer changes the hidden state about as much as it holds,
	// attention looks at some positions more than at others, and logits spread over several units:
	// greedy text then wanders, and sampling has something to choose from. The test measures it.
	embd := w.draw(o.Width, Vocab, func(int) float64 { return 1 })
	w.add("token_embd", o.Type, []int{o.Width, Vocab}, embd)
	for i := range o.Layers {
		blk := fmt.Sprintf("blk.%d.", i)
		w.norm(blk+"attn_norm", o.Width)
		w.matrix(blk+"attn_q", o.Width, o.Width, w.gain(1.5, o.Width))
		w.matrix(blk+"attn_k", o.Width, kv, w.gain(1.5, o.Width))
		w.matrix(blk+"attn_v", o.Width, kv, w.gain(1, o.Width))
		w.matrix(blk+"attn_output", o.Width, o.Width, w.gain(2, o.Width))
		w.norm(blk+"ffn_norm", o.Width)
		w.matrix(blk+"ffn_gate", o.Width, o.FFN, w.gain(1.5, o.Width))
		w.matrix(blk+"ffn_up", o.Width, o.FFN, w.gain(1.5, o.Width))
		w.matrix(blk+"ffn_down", o.FFN, o.Width, w.gain(1.5, o.FFN))
	}
	w.norm("output_norm", o.Width)
	if !o.Tied {
		scale := func(id int) float64 { return 3 * likelihood(id) / math.Sqrt(float64(o.Width)) }
		out := w.draw(o.Width, Vocab, scale)
		for i := range out { // a token makes itself less likely to follow: no text gets stuck on one
			out[i] -= float32(scale(i/o.Width) * 0.5 * float64(embd[i]))
		}
		w.add("output", o.Type, []int{o.Width, Vocab}, out)
	}
	data, err := b.Bytes()
	if err != nil {
		panic("tiny: " + err.Error())
	}
	return data
}

// SetTokenizer gives a file in the making the tokenizer and the chat template, for models of other shapes. Of vocab
// tokens, those after the first Vocab are unused.
func SetTokenizer(b *gguf.Builder, vocab int) {
	tokens, types := vocabulary()
	for len(tokens) < vocab {
		tokens, types = append(tokens, fmt.Sprintf("<unused%d>", len(tokens))), append(types, int32(tokenizer.Unused))
	}
	b.Set("tokenizer.ggml.model", "gpt2")
	b.Set("tokenizer.ggml.pre", "smollm")
	b.Set("tokenizer.ggml.tokens", tokens)
	b.Set("tokenizer.ggml.token_type", types)
	b.Set("tokenizer.ggml.merges", spelledMerges())
	b.Set("tokenizer.ggml.bos_token_id", uint32(IMStart))
	b.Set("tokenizer.ggml.eos_token_id", uint32(IMEnd))
	b.Set("tokenizer.ggml.unknown_token_id", uint32(EndOfText))
	b.Set("tokenizer.ggml.padding_token_id", uint32(IMEnd))
	b.Set("tokenizer.ggml.add_bos_token", false)
	b.Set("tokenizer.ggml.add_space_prefix", false)
	b.Set("tokenizer.chat_template", Template)
}

// Model is the opened model. It needs no Close.
func Model(o Options) *model.Model {
	m, err := model.Parse(GGUF(o), "tiny")
	if err != nil {
		panic(err)
	}
	return m
}

// likelihood scales a token's row of the output matrix. Special tokens hardly ever come out, so that
// generations run to their limit unless a test wants otherwise, and bytes that are no text on their
// own come out seldom, so that text is mostly readable and yet tests of partial characters have some.
func likelihood(id int) float64 {
	switch b := id - FirstByte; {
	case id < FirstByte:
		return 0.05
	case b < 256 && b != '\n' && (b < ' ' || b >= 0x7f):
		return 0.3
	}
	return 1
}

// weights adds tensors of pseudo-random numbers to a file.
type weights struct {
	builder *gguf.Builder
	state   uint64
	typ     gguf.Type
}

// next draws from −√3 to √3, evenly: variance 1. It is splitmix64 (Steele, Lea and Flood 2014), and
// all arithmetic on the way to a float32 is exact or rounded once, so no machine differs.
func (w *weights) next() float64 {
	w.state += 0x9e3779b97f4a7c15
	z := w.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return float64(int64(z)>>11) * (0x1p-52 * 1.7320508075688772)
}

// gain is the deviation of weights that make outputs g times as large as their inputs.
func (w *weights) gain(g float64, inputs int) func(int) float64 {
	return func(int) float64 { return g / math.Sqrt(float64(inputs)) }
}

// draw makes outputs rows of inputs values whose deviation is scale of the row.
func (w *weights) draw(inputs, outputs int, scale func(row int) float64) []float32 {
	values := make([]float32, inputs*outputs)
	for row := range outputs {
		s := scale(row)
		for i := range inputs {
			values[row*inputs+i] = float32(w.next() * s)
		}
	}
	return values
}

// matrix adds what draw makes.
func (w *weights) matrix(name string, inputs, outputs int, scale func(row int) float64) {
	w.add(name, w.typ, []int{inputs, outputs}, w.draw(inputs, outputs, scale))
}

// norm adds a norm's weights, somewhat off 1 so that leaving them out shows.
func (w *weights) norm(name string, n int) {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(1 + float64(w.next()*0.2))
	}
	w.add(name, gguf.F32, []int{n}, values)
}

func (w *weights) add(name string, typ gguf.Type, shape []int, values []float32) {
	data, err := gguf.Encode(typ, values)
	if err != nil {
		panic("tiny: " + err.Error())
	}
	w.builder.Add(name+".weight", typ, shape, data)
}

// vocabulary spells the tokens as GGUF does, with their types.
func vocabulary() (tokens []string, types []int32) {
	const normal, control = 1, 3
	add := func(text string, typ int32) { tokens, types = append(tokens, text), append(types, typ) }
	add("<|endoftext|>", control)
	add("<|im_start|>", control)
	add("<|im_end|>", control)
	for b := range 256 {
		add(string(spell(byte(b))), normal)
	}
	for _, m := range spelledMerges() {
		add(strings.ReplaceAll(m, " ", ""), normal)
	}
	return tokens, types
}

// spelledMerges are the merges as GGUF spells them.
func spelledMerges() []string {
	out := make([]string, len(merges))
	for i, m := range merges {
		left, right, _ := strings.Cut(m, " ")
		out[i] = spellAll(left) + " " + spellAll(right)
	}
	return out
}

// spell is GPT-2's printable stand-in for a byte: Latin-1's printable characters stand for
// themselves, the other bytes, in order, for the characters from U+0100.
func spell(b byte) rune {
	printable := func(b byte) bool { return b > ' ' && b <= '~' || b >= 0xa1 && b != 0xad }
	if printable(b) {
		return rune(b)
	}
	r := rune(0x100)
	for c := range b {
		if !printable(c) {
			r++
		}
	}
	return r
}

func spellAll(text string) string {
	var out []rune
	for _, b := range []byte(strings.ReplaceAll(text, "_", " ")) {
		out = append(out, spell(b))
	}
	return string(out)
}

// merges are byte pairs in order of rank, with _ for a space: common English, so that tests' prompts
// have tokens of several lengths.
var merges = []string{
	"_ t", "h e", "_t he", "i n", "_ a", "r e", "o n", "e r", "_ s", "a t", "_ o", "n d", "_ w", "i s", "_ c",
	"o r", "e n", "_ b", "_o f", "_ p", "in g", "_a nd", "e s", "_t o", "_ f", "o u", "_ h", "e d", "_ in", "a l",
	"_ m", "_ d", "l l", "i t", "_ y", "_y ou", "_ is", "_f or", "h at", "_t hat", "_w e", "_b e", "l o", "l d",
	"_w or", "_wor ld", "H e", "He ll", "Hell o", "a n", "_ on", "s t", "_s t", "o m", "_c an", "T he",
	"\n \n", "_ I", "_w as", "a s", "_ it",
}
