package fetch

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNamesOfTheHubAreRead(t *testing.T) {
	for in, want := range map[string]Name{
		"org/repo":                             {Repo: "org/repo"},
		"Org_1/re.po-2":                        {Repo: "Org_1/re.po-2"},
		"org/repo:q4_k_m":                      {Repo: "org/repo", Quant: "Q4_K_M"},
		"org/repo:UD-Q4_K_XL":                  {Repo: "org/repo", Quant: "UD-Q4_K_XL"},
		"org/repo@v1.0":                        {Repo: "org/repo", Revision: "v1.0"},
		"org/repo:Q8_0@refs/pr/1":              {Repo: "org/repo", Quant: "Q8_0", Revision: "refs/pr/1"},
		"org/repo@v1:Q8_0":                     {Repo: "org/repo", Quant: "Q8_0", Revision: "v1"},
		"org/repo/f.gguf":                      {Repo: "org/repo", File: "f.gguf"},
		"org/repo/a b/f.GGUF@v1":               {Repo: "org/repo", File: "a b/f.GGUF", Revision: "v1"},
		"org/repo:sub/f.gguf":                  {Repo: "org/repo", File: "sub/f.gguf"},
		"org/repo/blob/main/f.gguf":            {Repo: "org/repo", File: "blob/main/f.gguf"},
		"hf.co/org/repo:Q4_0":                  {Repo: "org/repo", Quant: "Q4_0"},
		"HF.CO/org/repo":                       {Repo: "org/repo"},
		"hf://org/repo@v1":                     {Repo: "org/repo", Revision: "v1"},
		"huggingface.co/org/repo/":             {Repo: "org/repo"},
		"https://huggingface.co/org/repo":      {Repo: "org/repo"},
		"https://hf.co/org/repo:Q4_K_M":        {Repo: "org/repo", Quant: "Q4_K_M"},
		"https://huggingface.co/org/repo?x=1":  {Repo: "org/repo"},
		"https://hf.co/org/repo/resolve/v2":    {Repo: "org/repo", Revision: "v2"},
		"https://hf.co/org/repo/tree/v2":       {Repo: "org/repo", Revision: "v2"},
		"https://hf.co/org/repo/tree/v2/sub":   {Repo: "org/repo", Revision: "v2"},
		"https://hf.co/o/r/blob/v2/s/f.gguf#L": {Repo: "o/r", File: "s/f.gguf", Revision: "v2"},
		"https://hf.co/o/r/resolve/refs%2Fpr%2F1/f%20g.gguf?download=true": {Repo: "o/r", File: "f g.gguf", Revision: "refs/pr/1"},
	} {
		got, err := ParseName(in)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", in, got, err, want)
		}
	}
}

func TestNamesThatCannotBeAreRefusedWithAReason(t *testing.T) {
	long := strings.Repeat("x", 100)
	for in, want := range map[string]string{
		"repo": "org/repo", "": "org/repo", "org/": "letters", "/repo": "letters", "org/re po": "letters", "org/repo--x": "letters",
		"or..g/repo": "letters", "org/repo.git": "letters", "../../etc": "letters", "org/..": "letters", "org/.": "letters", long + "/x": "96",
		"org/repo:": "nothing behind", "org/repo@": "nothing behind", "org/repo:Q4@": "nothing behind", "org/repo::Q4": "nothing behind",
		"org/repo:Q4:Q5": "twice", "org/repo/f.gguf:Q4": "twice", "org/repo:f.gguf:g.gguf": "twice", "org/repo@a@b": "two revisions",
		"org/repo/README.md": "no .gguf file", "org/repo/sub": "no .gguf file", "org/repo/../f.gguf": "none on every system",
		"org/repo:../f.gguf": "none on every system", "org/repo//f.gguf": "none on every system", `org/repo/a\b.gguf`: "none on every system",
		"org/repo:a b": "quantisation", "org/repo:/": "quantisation", "org/repo@../x": "revision", "org/repo@a b\x00": "revision",
		"org/repo@v1/f.gguf": "org/repo/file.gguf@revision", "datasets/org/repo": "datasets", "https://hf.co/spaces/org/repo": "spaces",
		"https://huggingface.co/org": "org/repo", "https://hf.co/%zz/x": "not an address",
		"org/repo@main/con": "no branch",
	} {
		n, err := ParseName(in)
		var e *NameError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want %q", in, n, err, want)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"org/repo", "org/repo:Q4_K_M@v1", "hf.co/o/r/a/b.gguf", "https://huggingface.co/o/r/resolve/refs%2Fpr%2F1/f%20g.gguf?x=1#y", "hf://o/r@x", "o/r:a/b.gguf@c/d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseName(s)
		if err != nil {
			var e *NameError
			if !errors.As(err, &e) {
				t.Errorf("%q: %T", s, err)
			}
			return
		}
		if again, err := ParseName(n.String()); err != nil || again != n {
			t.Errorf("%q is %+v, which is written %q, which is %+v, %v", s, n, n.String(), again, err)
		}
		for _, p := range []string{n.Repo, n.revision(), n.File} {
			if p != "" && !filepath.IsLocal(filepath.FromSlash(p)) {
				t.Errorf("%q has the path %q, which leads away", s, p)
			}
		}
		if repo, ok := repoOf(filepath.Base((&hub{}).repoDir(n.Repo))); !ok || repo != n.Repo {
			t.Errorf("the folder of %q is one of %q", n.Repo, repo)
		}
	})
}

func TestQuantisationsAreReadFromFileNames(t *testing.T) {
	for in, want := range map[string]string{
		"SmolLM2-135M-Instruct.Q4_1.gguf": "Q4_1", "smollm2-360m-instruct-q8_0.gguf": "Q8_0", "Llama-3.2-1B-Instruct-Q4_K_M.gguf": "Q4_K_M",
		"ggml-model-f16.gguf": "F16", "x-fp16.gguf": "F16", "x-BF16.gguf": "BF16", "x.IQ4_XS.gguf": "IQ4_XS", "x-UD-Q4_K_XL.gguf": "UD-Q4_K_XL",
		"Q8_0/x-00001-of-00002.gguf": "Q8_0", "x-Q6_K-00001-of-00002.gguf": "Q6_K", "x-Q4_K_M-worthdoing.gguf": "Q4_K_M", "model_Q5_0.gguf": "Q5_0",
		"mxfp4.gguf": "MXFP4", "llama-3.2-1b.gguf": "", "Qwen2-7B.gguf": "", "x.i1-Q4_K_S.gguf": "Q4_K_S", "Q4_K_M.gguf": "Q4_K_M", "x-Q4_0_8_8.gguf": "Q4_0_8_8",
		"tq1-TQ1_0.gguf": "TQ1_0", "F16.gguf": "F16", "Q2-about-Q8_0.gguf": "Q8_0",
	} {
		if got := quantOf(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

func TestANamePicksOneFileOrTheErrorListsWhatIsThere(t *testing.T) {
	usual := "m-Q2_K.gguf m-Q8_0.gguf m-Q4_K_M.gguf m-F16.gguf mmproj-F16.gguf m.imatrix.gguf README.md"
	for _, c := range []struct{ name, files, want string }{
		{"o/r", usual, "m-Q4_K_M.gguf"},
		{"o/r:Q8_0", usual, "m-Q8_0.gguf"},
		{"o/r/m-F16.gguf", usual, "m-F16.gguf"},
		{"o/r", "m-Q8_0.gguf m-Q2_K.gguf m-F16.gguf", "m-Q8_0.gguf"},
		{"o/r", "m-IQ1_S.gguf", "m-IQ1_S.gguf"},
		{"o/r", "m-IQ2_XXS.gguf m-Q2_K.gguf m-IQ3_M.gguf", "m-Q2_K.gguf"},
		{"o/r", "m-Q2_K_L.gguf m-MXFP4_MOE.gguf m-Q3_K_M.gguf", "m-MXFP4_MOE.gguf"},
		{"o/r", "m-IQ1_S.gguf m-IQ2_XXS.gguf", "!none of the usual quantisations|m-IQ1_S.gguf"},
		{"o/r", "a-Q4_K_M.gguf b-Q4_K_M.gguf c-Q8_0.gguf", "!several models|a-Q4_K_M.gguf|b-Q4_K_M.gguf"},
		{"o/r:Q4_K_M", "a-Q4_K_M.gguf b-Q4_K_M.gguf", "!several files of Q4_K_M|o/r/FILE|a-Q4_K_M.gguf"},
		{"o/r:Q5_K_M", usual, "!no Q5_K_M in o/r|m-Q2_K.gguf|m-F16.gguf"},
		{"o/r:Q5_K_M@v1", usual, "!no Q5_K_M in o/r at v1"},
		{"o/r:IQ2_XXS", "m-IQ2_XXS.gguf m-Q2_K.gguf", "!IQ2_XXS has types that are not supported|o/r/FILE|m-Q2_K.gguf"},
		{"o/r:UD-IQ3_XXS", "m-UD-IQ3_XXS.gguf m-Q2_K.gguf", "!not supported"},
		{"o/r/m-IQ2_XXS.gguf", "m-IQ2_XXS.gguf m-Q2_K.gguf", "m-IQ2_XXS.gguf"},
		{"o/r:IQ4_XS", "m-IQ4_XS.gguf m-Q2_K.gguf", "m-IQ4_XS.gguf"},
		{"o/r:IMAT", "m-IMat-q4.gguf m.gguf", "m-IMat-q4.gguf"},
		{"o/r:Q4_K", usual, "!no Q4_K in o/r"},
		{"o/r/none.gguf", usual, "!no file none.gguf in o/r|m-Q8_0.gguf"},
		{"o/r", "README.md", "!no GGUF file in o/r"},
		{"o/r:Q8_0", "config.json model.safetensors", "!no GGUF file in o/r|give o/r --quantization q8_0"},
		{"o/r:Q6_K", "config.json model.safetensors", "!leave the quantisation out"},
		{"o/r", "config.json pytorch_model.bin", "!only as a pickle (pytorch_model.bin), which is not read: a pickle is a program"},
		{"o/r", "m-Q4_K_M-00001-of-00002.gguf m-Q4_K_M-00002-of-00002.gguf m-Q8_0.gguf", "m-Q8_0.gguf"},
		{"o/r/m-Q4_K_M-00002-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf m-Q4_K_M-00002-of-00002.gguf", "!split over 2 files|--merge"},
	} {
		n, err := ParseName(c.name)
		if err != nil {
			t.Fatal(err)
		}
		var files []file
		for name := range strings.FieldsSeq(c.files) {
			files = append(files, file{path: name, size: 1 << 20})
		}
		got, err := choose(n, files, "the hub")
		if parts, fails := strings.CutPrefix(c.want, "!"); fails {
			for part := range strings.SplitSeq(parts, "|") {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%s of %s: %v lacks %q", c.name, c.files, err, part)
				}
			}
		} else if err != nil || got.path != c.want {
			t.Errorf("%s of %s: %s, %v; want %s", c.name, c.files, got.path, err, c.want)
		}
	}
}

func TestWhatLiesHereWinsAndWhatLooksLikeAPathIsOne(t *testing.T) {
	ownCaches(t)
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1") // nothing here may ask it
	t.Chdir(t.TempDir())
	put := func(path string) {
		os.MkdirAll(filepath.Dir(path), 0o755)
		os.WriteFile(path, []byte("GGUF"), 0o644)
	}
	put("smollm2")
	put("org/repo/x.gguf")
	put("org/repo/README.md")
	put("many/a.gguf")
	put("many/b-Q8_0.gguf")
	put("parts/a-00001-of-00002.gguf")
	put("parts/a-00002-of-00002.gguf")
	put("weights/model-00001-of-00002.safetensors")
	put("pickled/pytorch_model.bin")
	put("empty/README.md")
	put("here.gguf/inner.gguf")
	for name, want := range map[string]Resolved{
		"smollm2":           {Path: "smollm2", Name: "smollm2"},
		"org/repo/x.gguf":   {Path: "org/repo/x.gguf", Name: "x"},
		"./org/repo/x.gguf": {Path: "./org/repo/x.gguf", Name: "x"},
		"org/repo":          {Path: filepath.FromSlash("org/repo/x.gguf"), Name: "x"},
		"here.gguf":         {Path: filepath.FromSlash("here.gguf/inner.gguf"), Name: "inner"},
		"weights":           {Path: "weights", Name: "weights"},
		"./weights/":        {Path: "./weights/", Name: "weights"},
		"weights/model-00001-of-00002.safetensors": {Path: "weights", Name: "weights"},
	} {
		want.Root, _ = filepath.Abs(want.Path)
		if got, err := Resolve(t.Context(), name, nil); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"many": "several GGUF files", "parts": "split over 2 files", "pickled": "a pickle is a program", "empty": "no GGUF file",
		"none.gguf": "file", "./none": "file", "/none/at/all.gguf": "file", "sub/none.gguf": "file", "org/none/at.gguf": "file",
		"../none/x.gguf": "file", "~/none.gguf": "file",
	} {
		_, err := Resolve(t.Context(), name, nil)
		if want == "file" && !errors.Is(err, os.ErrNotExist) || err == nil || want != "file" && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	for _, name := range []string{"", "smollm3", "nobody/re po", "hf.co/org"} {
		_, err := Resolve(t.Context(), name, nil)
		var e *NameError
		if !errors.As(err, &e) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := Resolve(t.Context(), "nobody/nothing", nil); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1 cannot be reached") {
		t.Error(err)
	}
}

func TestTheEnvironmentIsThatOfTheHubsOwnTools(t *testing.T) {
	ownCaches(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	t.Setenv("PLACE", "somewhere")
	for _, c := range []struct{ set, cache string }{
		{"HF_HOME=", filepath.Join(home, ".cache/huggingface/hub")},
		{"XDG_CACHE_HOME=" + home, filepath.Join(home, "huggingface/hub")},
		{"HF_HOME=~/hf", filepath.Join(home, "hf/hub")},
		{"HUGGINGFACE_HUB_CACHE=/old", "/old"},
		{"HF_HUB_CACHE=/x/$PLACE", "/x/somewhere"},
	} {
		if name, value, _ := strings.Cut(c.set, "="); true {
			if name == "HF_HOME" && value == "" {
				t.Setenv("XDG_CACHE_HOME", "")
			}
			t.Setenv(name, value)
		}
		h, err := openHub()
		want, _ := filepath.Abs(c.cache)
		if err != nil || h.cache != want {
			t.Errorf("%s: %+v %v, want %s", c.set, h, err, want)
		}
	}
	for _, v := range []string{"nonsense", "ftp://x", "http://"} {
		t.Setenv("HF_ENDPOINT", v)
		_, err := openHub()
		wantError(t, err, "HF_ENDPOINT")
	}
	t.Setenv("HF_ENDPOINT", "https://mirror.example/hf/")
	t.Setenv("HF_TOKEN", "with\nnewline")
	_, err := openHub()
	wantError(t, err, "HF_TOKEN", "characters")
	if strings.Contains(err.Error(), "newline") {
		t.Error(err)
	}
	path := filepath.Join(home, "t")
	os.WriteFile(path, []byte(" hf_x\n"), 0o600)
	t.Setenv("HF_TOKEN", "")
	t.Setenv("HF_TOKEN_PATH", path)
	h, err := openHub()
	if err != nil || h.token != "hf_x" || h.tokenFrom != path {
		t.Error(h, err)
	}
	if u := h.fileAddress("o/r", "refs/pr/1", "a b/c+#?.gguf"); u.String() != "https://mirror.example/hf/o/r/resolve/refs%2Fpr%2F1/a%20b/c+%23%3F.gguf" {
		t.Error(u)
	}
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "yes")
	if h, err = openHub(); err != nil || h.token != "" {
		t.Error(h, err)
	}
}

func TestTheCatalogueMakesSense(t *testing.T) {
	var shorts []string
	last := int64(0)
	for _, k := range Catalogue() {
		n, err := ParseName(k.Name.String())
		if err != nil || n != k.Name {
			t.Errorf("%s: %v", k.Short, err)
		}
		if k.Size < last || k.Licence == "" || k.What == "" || !validRepo(k.Root) || !slices.Contains(preferred, k.Quant) ||
			k.Name.Quant != "" && k.Name.Quant != k.Quant || k.Name.File != "" && quantOf(k.Name.File) != k.Quant {
			t.Errorf("%+v", k)
		}
		last = k.Size
		if got, ok := known(strings.ToUpper(k.Short)); !ok || got.Short != k.Short {
			t.Errorf("%s is not found", k.Short)
		}
		shorts = append(shorts, k.Short)
	}
	if slices.Sort(shorts); len(slices.Compact(shorts)) != len(Catalogue()) {
		t.Error("a short name is there twice")
	}
}
