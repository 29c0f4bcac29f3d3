package hf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/safetensors"
	"github.com/troupe-llm/troupe/model/tokenizer"
)

// copied is a copy of a folder of testdata, whose files a test may change.
func copied(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// change rewrites a file of JSON.
func change(t testing.TB, dir, name string, how func(doc map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	doc := map[string]any{}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	how(doc)
	if data, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func set(key string, value any) func(map[string]any) {
	return func(doc map[string]any) {
		if value == nil {
			delete(doc, key)
		} else {
			doc[key] = value
		}
	}
}

func TestErrorsSayWhatIsWrongWithAFolder(t *testing.T) {
	remove := func(name string) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(name, text string) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	both := func(a, b func(testing.TB, string)) func(testing.TB, string) {
		return func(t testing.TB, dir string) { a(t, dir); b(t, dir) }
	}
	config := func(how func(map[string]any)) func(testing.TB, string) {
		return func(t testing.TB, dir string) { change(t, dir, configName, how) }
	}
	tokens := func(how func(map[string]any)) func(testing.TB, string) {
		return func(t testing.TB, dir string) { change(t, dir, tokenizerName, how) }
	}
	const shard = "model-00002-of-00003.safetensors"
	for name, c := range map[string]struct {
		how  func(testing.TB, string)
		want string
	}{
		"no config":       {remove(configName), "config.json is missing: it says what kind of model this is"},
		"an adapter":      {both(remove(configName), write("adapter_config.json", "{}")), "this is an adapter, not a model"},
		"the maker's":     {both(remove(configName), write("params.json", "{}")), "the maker's own files"},
		"no JSON":         {write(configName, "{"), "config.json: unexpected EOF (truncated?)"},
		"bad JSON":        {write(configName, "{,}"), "config.json at byte 2: invalid character"},
		"null":            {write(configName, "null"), "config.json: it is null"},
		"two objects":     {write(configName, "{}\n{}"), "config.json at byte 4: something follows the object"},
		"a list":          {write(configName, "[]"), "config.json at byte 1"},
		"LFS":             {write(configName, "version https://git-lfs.github.com/spec/v1"), "config.json is a Git LFS pointer"},
		"no type":         {config(set("model_type", nil)), "model_type: missing"},
		"unknown type":    {config(set("model_type", "mamba")), `model_type: "mamba" is not supported; supported: gemma, gemma2, gemma3, gemma3_text, llama, mistral,`},
		"own code":        {config(func(d map[string]any) { d["model_type"], d["auto_map"] = "mine", map[string]any{} }), "no code of a model's is run"},
		"classifier":      {config(set("architectures", []string{"LlamaForSequenceClassification"})), "is not the language model of this type, which is LlamaForCausalLM"},
		"quantised":       {config(set("quantization_config", map[string]any{"quant_method": "awq"})), `quantised already, by "awq"`},
		"no layers":       {config(set("num_hidden_layers", nil)), "config.json: num_hidden_layers: missing"},
		"half a layer":    {config(set("num_hidden_layers", 1.5)), "num_hidden_layers: a whole number is wanted, it is 1.5"},
		"text for number": {config(set("hidden_size", "32")), `hidden_size: a whole number is wanted, it is "32"`},
		"too many layers": {config(set("num_hidden_layers", 1e6)), "num_hidden_layers: 1000000 is out of range: 1 to 4096"},
		"heads":           {config(set("num_key_value_heads", 3)), "num_key_value_heads: 3 do not divide 4 heads"},
		"activation":      {config(set("hidden_act", "relu")), `hidden_act: "relu" is not supported`},
		"rope":            {config(set("rope_parameters", map[string]any{"rope_type": "mine"})), `rope_type: "mine" is not supported`},
		"fewer layers":    {config(set("num_hidden_layers", 1)), `tensor "model.layers.1.`},
		"vocabulary":      {config(set("vocab_size", 400)), `tensor "model.embed_tokens.weight" has shape [416 32], but config.json has vocab_size 400`},
		"no shard":        {remove(shard), shard + " is missing, one of 3 files that model.safetensors.index.json lists"},
		"no index":        {remove(safetensors.IndexName), safetensors.IndexName + " is missing"},
		"bad index":       {write(safetensors.IndexName, "{}"), "model.safetensors.index.json: weight_map: missing or empty"},
		"cut shard":       {func(t testing.TB, dir string) { cut(t, filepath.Join(dir, shard)) }, shard + ": tensor "},
		"empty shard":     {write(shard, ""), shard + " is empty"},
		"LFS shard":       {write(shard, "version https://git-lfs.github.com/spec/v1\noid"), shard + " is a Git LFS pointer"},
		"other shard":     {func(t testing.TB, dir string) { swap(t, dir) }, "is one of the files of another version?"},
		"pickle":          {pickle, "a pickle is a program"},
		"no tokenizer":    {remove(tokenizerName), "tokenizer.json is missing"},
		"other tokenizer": {both(remove(tokenizerName), write("tokenizer.model", "x")), "tokenizer.model is not read: make it with transformers"},
		"unigram":         {tokens(set("model", map[string]any{"type": "Unigram", "vocab": []any{}})), `model: the type "Unigram" is not supported`},
		"no model":        {tokens(set("model", nil)), "tokenizer.json: model: it is missing"},
		"normalizer":      {tokens(set("normalizer", map[string]any{"type": "Lowercase"})), `normalizer: {"type":"Lowercase"} is not supported`},
		"pre-tokenizer":   {tokens(set("pre_tokenizer", map[string]any{"type": "Whitespace"})), `pre_tokenizer: {"type":"Whitespace"}, without byte_fallback, is not supported`},
		"pattern":         {tokens(func(d map[string]any) { newPattern(d, `\w+`) }), "is not one that is known; known are those of GPT-2, Llama 3"},
		"post-processor":  {tokens(set("post_processor", map[string]any{"type": "BertProcessing"})), `post_processor: {"type":"BertProcessing"} is not supported`},
		"added token":     {tokens(func(d map[string]any) { d["added_tokens"].([]any)[0].(map[string]any)["id"] = 3 }), "the id 3 is that of"},
		"single word":     {tokens(func(d map[string]any) { d["added_tokens"].([]any)[0].(map[string]any)["single_word"] = true }), "single_word is not supported"},
		"unknown EOS":     {func(t testing.TB, dir string) { change(t, dir, tokenizerRest, set("eos_token", "<nope>")) }, `tokenizer_config.json: eos_token: "<nope>" is not a token`},
		"temperature":     {func(t testing.TB, dir string) { change(t, dir, generationName, set("temperature", "hot")) }, `generation_config.json: temperature: a number is wanted, it is "hot"`},
		"another BOS":     {func(t testing.TB, dir string) { change(t, dir, tokenizerRest, set("bos_token", "<|user|>")) }, `"<|user|>" is not "<s>", which the post_processor`},
	} {
		dir := copied(t, "llama")
		c.how(t, dir)
		f, err := Open(dir, Options{})
		if err == nil {
			f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want … %s …", name, err, c.want)
		}
	}
	if _, err := Open("testdata/llama", Options{Quantization: "q3"}); err == nil || !strings.Contains(err.Error(), "q4_0, q4_k, q8_0") {
		t.Error(err)
	}
}

func cut(t testing.TB, path string) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, data[:len(data)-10], 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// swap says of a tensor that it is in another shard.
func swap(t testing.TB, dir string) {
	change(t, dir, safetensors.IndexName, func(doc map[string]any) {
		doc["weight_map"].(map[string]any)["model.norm.weight"] = "model-00001-of-00003.safetensors"
	})
}

// pickle leaves weights in a pickle only.
func pickle(t testing.TB, dir string) {
	found, _ := weightFiles(dir)
	for _, name := range found {
		os.Remove(filepath.Join(dir, name))
	}
	if err := os.WriteFile(filepath.Join(dir, "pytorch_model.bin"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func newPattern(doc map[string]any, regex string) {
	first := doc["pre_tokenizer"].(map[string]any)["pretokenizers"].([]any)[0]
	first.(map[string]any)["pattern"] = map[string]any{"Regex": regex}
}

// What quantisation does to each weight: the types, and values that are those of the files, rounded.
func TestWeightsAreQuantisedButForNormsAndWithMoreBitsForTheEmbedding(t *testing.T) {
	plain, err := Open("testdata/llama", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for kind, want := range map[string]gguf.Type{"q8_0": gguf.Q8_0, "q4_0": gguf.Q4_0, "q4_k": gguf.Q5_0} { // rows of 32 have no blocks of 256
		var last, total int64
		f, err := Open("testdata/llama", Options{Quantization: kind, Progress: func(done, of int64, what string) {
			if done < last || of <= 0 || !strings.HasPrefix(what, "quantising weights to") {
				t.Errorf("progress: %d after %d of %d, %s", done, last, of, what)
			}
			last, total = done, of
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, x := range f.File.Tensors() {
			y, err := plain.File.Tensor(x.Name)
			if err := errors.Join(err, f.Make(x.Name), plain.Make(x.Name)); err != nil {
				t.Fatal(err)
			}
			w := want
			switch {
			case len(x.Shape) == 1:
				w = gguf.F32
			case x.Name == "token_embd.weight" || x.Name == "output.weight":
				w = gguf.Q8_0
			}
			if x.Type != w {
				t.Errorf("%s: %s is %s, want %s", kind, x.Name, x.Type, w)
				continue
			}
			values, err := gguf.Decode(y.Type, y.Data)
			if err != nil {
				t.Fatal(err)
			}
			data, err := gguf.Encode(w, values)
			if err != nil || !bytes.Equal(x.Data, data) {
				t.Errorf("%s: %s has other bytes than its values encoded; %v", kind, x.Name, err)
			}
		}
		if last != total || total == 0 {
			t.Errorf("%s: progress ends at %d of %d", kind, last, total)
		}
	}
}

// The rows of queries and keys are in the order of GGUF's llama: of a head, the first of its first half, the
// first of its second half, and so on. All else has the bytes of the file, which are not copied.
func TestOnlyQueriesAndKeysAreReordered(t *testing.T) {
	f, err := Open("testdata/llama", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const headDim, width = 16, 32
	reordered := 0
	for _, w := range f.weights.made {
		if !strings.Contains(w.Name, "attn_q.") && !strings.Contains(w.Name, "attn_k.") {
			t.Errorf("%s is made anew", w.Name)
			continue
		}
		if err := f.Make(w.Name); err != nil {
			t.Fatal(err)
		}
		reordered++
		src := w.parts[0].Data
		for row := range w.Shape[1] {
			head, i := row/headDim, row%headDim
			from := head*headDim + i/2
			if i%2 == 1 {
				from += headDim / 2
			}
			if !bytes.Equal(w.Data[row*2*width:(row+1)*2*width], src[from*2*width:(from+1)*2*width]) {
				t.Errorf("%s: row %d is not row %d of the file", w.Name, row, from)
			}
		}
	}
	if reordered != 4 {
		t.Errorf("%d weights are reordered; there are two layers' queries and keys", reordered)
	}
}

func TestAWeightThatHasNoSensibleBlockIsNamed(t *testing.T) {
	const name = "model.layers.0.mlp.up_proj.weight"
	for _, c := range []struct {
		folder string
		bits   uint16
		want   string
	}{
		{"mistral", 0x7c00, "row 5 has a value that is not finite"}, // float16
		{"llama", 0xff80, "row 5 has a value that is not finite"},   // bfloat16
		{"llama", 0xc780, "row 5 has a value of size 65536, and those above 65504 are not quantised"},
	} {
		dir := copied(t, c.folder)
		files, _, err := weightNames(dir)
		if err != nil {
			t.Fatal(err)
		}
		changed := false
		for _, file := range files {
			path := filepath.Join(dir, file)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			st, err := safetensors.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			up, err := st.Tensor(name)
			if err != nil {
				continue
			}
			binary.LittleEndian.PutUint16(up.Data[2*(5*32+7):], c.bits)
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
			changed = true
		}
		f, err := Open(dir, Options{Quantization: "q8_0"})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Make("blk.0.ffn_up.weight"); !changed || err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want … %s …", err, c.want)
		}
	}
}

func TestGenerationAndTemplateComeFromTheirFiles(t *testing.T) {
	dir := copied(t, "llama")
	change(t, dir, generationName, func(doc map[string]any) {
		maps.Copy(doc, map[string]any{"eos_token_id": []int{401, 404, 9999}, "top_k": 20, "min_p": 0.05})
	})
	f, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for key, want := range map[string]float64{"temp": 0.6, "top_p": 0.9, "min_p": 0.05} {
		if v, err := f.File.Float("general.sampling." + key); err != nil || math.Abs(v-want) > 1e-6 {
			t.Errorf("%s: %v, %v", key, v, err)
		}
	}
	if k, err := f.File.Int("general.sampling.top_k"); err != nil || k != 20 {
		t.Error(k, err)
	}
	found := map[int32]bool{}
	for _, id := range f.EOS {
		found[id] = true
	}
	if !found[401] || !found[404] || found[9999] {
		t.Errorf("EOS: %v", f.EOS)
	}
	if !strings.Contains(f.Template, "bos_token") {
		t.Errorf("template %q", f.Template)
	}
	// The setting is used where there is no file of its own; of several, the one named default.
	if err := os.Remove(filepath.Join(dir, templateName)); err != nil {
		t.Fatal(err)
	}
	change(t, dir, tokenizerRest, set("chat_template", []any{
		map[string]string{"name": "tool_use", "template": "T"}, map[string]string{"name": "default", "template": "D"}}))
	g, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.Template != "D" {
		t.Errorf("template %q", g.Template)
	}
}

// readTokenizer takes whatever is given, and what it makes of it is a tokenizer or an error.
func FuzzTokenizer(f *testing.F) {
	for _, seed := range []string{
		`{"added_tokens":[{"id":3,"content":"<s>","special":true,"rstrip":true}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false}]},` +
			`"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[3]}}},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]],"ignore_merges":true}}`,
		`{"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false},"model":{"type":"BPE","byte_fallback":true,"unk_token":"u","vocab":{"u":0,"<0x00>":1,"▁":2},"merges":["▁ ▁"]}}`,
		`{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a"]]},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false}}`,
		`{"model":{"type":"BPE","vocab":{"a":-1},"merges":["a"]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := readTokenizer(data, 8)
		if err != nil {
			return
		}
		if tok, err := tokenizer.New(spec); err == nil {
			tok.Encode("Hello, wörld! 12 <s>", true, true)
		}
	})
}

// readConfig takes whatever is given.
func FuzzConfig(f *testing.F) {
	for _, name := range []string{"llama", "mistral"} {
		data, err := os.ReadFile(filepath.Join("testdata", name, configName))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"model_type":"gemma3","text_config":{"model_type":"gemma3_text"}}`))
	f.Add([]byte(`{"model_type":"phi3","num_hidden_layers":1,"hidden_size":8,"num_attention_heads":1,"intermediate_size":8,"vocab_size":8,"rope_scaling":{"type":"longrope","short_factor":[1,1,1,1],"long_factor":[1,1,1,1]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := readConfig(data)
		if err != nil {
			return
		}
		if _, err := c.meta.File(); err != nil {
			t.Fatalf("a configuration that is accepted cannot be described: %v", err)
		}
	})
}

// A weight that was borrowed gives its memory back, unless someone keeps it, and is made again when it is
// wanted again.
func TestABorrowedWeightIsMadeAgain(t *testing.T) {
	f, err := Open("testdata/llama", Options{Quantization: "q8_0"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const name = "blk.0.ffn_up.weight"
	x, err := f.File.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	borrow := func() func() {
		done, err := f.Borrow(name)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	first := borrow()
	want := bytes.Clone(x.Data)
	second := borrow()
	first()
	if !bytes.Equal(x.Data, want) {
		t.Error("the memory is gone though another has borrowed it")
	}
	second()
	if runtime.GOOS == "linux" && (f.weights.made[name].ready || bytes.Count(x.Data, []byte{0}) != len(x.Data)) {
		t.Error("the memory is still taken")
	}
	again := borrow()
	if !bytes.Equal(x.Data, want) || len(want) == 0 || bytes.Count(want, []byte{0}) == len(want) {
		t.Error("the weight is not what it was")
	}
	if err := f.Make(name); err != nil {
		t.Fatal(err)
	}
	again()
	if !bytes.Equal(x.Data, want) {
		t.Error("the memory is gone though it was to be kept")
	}
	if done, err := f.Borrow("token_embd"); err != nil || done == nil { // what is not made is there anyway
		t.Error(err)
	}
}

// Experts lie in tensors of their own, in any order, and become one. A gap is named, whatever its size.
func TestExpertsThatAreMissingAreNamed(t *testing.T) {
	c := &config{arch: architectures["mixtral"], layers: 1, headDim: 2}
	expert := func(n string) source {
		return source{file: "f", Tensor: safetensors.Tensor{Name: "model.layers.0.block_sparse_moe.experts." + n + ".w1.weight", Dtype: safetensors.F32, Shape: []int{1, 2}, Data: make([]byte, 8)}}
	}
	plan, err := c.plan([]source{expert("1"), expert("2"), expert("0")}, 0, false)
	if err != nil || len(plan) != 1 || len(plan[0].parts) != 3 || plan[0].parts[2].Name != expert("2").Name || !slices.Equal(plan[0].Shape, []int{2, 1, 3}) {
		t.Errorf("%+v, %v", plan, err)
	}
	for _, list := range [][]string{{"0", "999999"}, {"1"}, {"0", "0"}} {
		var tensors []source
		for _, n := range list {
			tensors = append(tensors, expert(n))
		}
		if _, err := c.plan(tensors, 0, false); err == nil || !strings.Contains(err.Error(), "f: tensor ") || !strings.Contains(err.Error(), "is missing, or there twice") {
			t.Errorf("%q: %v", list, err)
		}
	}
}
