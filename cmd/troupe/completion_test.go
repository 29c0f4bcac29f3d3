package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// completionFile writes a shell's script to a file.
func completionFile(t *testing.T, shell string) string {
	t.Helper()
	code, out, errs := invoke(t, "completion", shell)
	if code != 0 || out == "" {
		t.Fatalf("exit %d, %q", code, errs)
	}
	path := filepath.Join(t.TempDir(), "_troupe")
	if err := os.WriteFile(path, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// shell returns the path of a shell, and skips the test when there is none.
func shell(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip("there is no " + name + " here")
	}
	return path
}

func TestBashCompletesCommandsFlagsAndValues(t *testing.T) {
	bash, file := shell(t, "bash"), completionFile(t, "bash")
	if out, err := exec.Command(bash, "-n", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a model.gguf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		words  []string // the last one is being typed
		has    []string
		hasNot []string
	}{
		{[]string{""}, []string{"serve", "chat", "completion"}, []string{"--help", "bash"}},
		{[]string{"ser"}, []string{"serve"}, []string{"chat"}},
		{[]string{"--"}, []string{"--help", "--version"}, []string{"--port"}},
		{[]string{"serve", "--max-"}, []string{"--max-model-len", "--max-num-seqs"}, []string{"--port", "--metrics"}},
		{[]string{"serve", "--no"}, []string{"--no-enable-prefix-caching"}, nil},
		{[]string{"serve", "--device", ""}, []string{"host", "sim"}, []string{"serve", "a model.gguf"}},
		{[]string{"serve", "--device", "=", ""}, []string{"host", "sim"}, nil},
		{[]string{"serve", "--device", "="}, []string{"host", "sim"}, nil},
		{[]string{"serve", "--device", "=", "s"}, []string{"sim"}, []string{"host"}},
		{[]string{"serve", "--port", ""}, nil, []string{"serve", "a model.gguf", "--help"}},
		{[]string{"serve", "--config", "a"}, []string{"a model.gguf"}, nil},
		{[]string{"serve", "a"}, []string{"a model.gguf"}, nil},
		{[]string{"serve", "--served-model-name", "chat", "--ssl-"}, []string{"--ssl-certfile"}, nil},
		{[]string{"chat", "--sy"}, []string{"--system"}, nil},
		{[]string{"completion", ""}, []string{"bash", "zsh", "fish", "powershell"}, []string{"a model.gguf"}},
	} {
		script := `source "$1"; shift; COMP_WORDS=(troupe "$@"); COMP_CWORD=$#; _troupe; printf '%s\n' "${COMPREPLY[@]}"`
		cmd := exec.Command(bash, append([]string{"--norc", "-c", script, "bash", file}, c.words...)...)
		cmd.Dir = dir
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || strings.Contains(errs.String(), "syntax") {
			t.Fatalf("%q: %v: %s", c.words, err, &errs)
		}
		got := strings.Split(strings.TrimSpace(string(out)), "\n")
		for _, w := range c.has {
			if !slices.Contains(got, w) {
				t.Errorf("%q is completed by %q, not by %s", c.words, got, w)
			}
		}
		for _, w := range c.hasNot {
			if slices.Contains(got, w) {
				t.Errorf("%q is completed by %s", c.words, w)
			}
		}
	}
}

// withModel is an environment for a shell: the program is on its path, and org/tiny:Q8_0 in the cache.
func withModel(t *testing.T) []string {
	t.Helper()
	environment := tinyHub(t)
	if code, _, errs := invokeIn(t, environment, "pull", "org/tiny"); code != 0 {
		t.Fatal(errs)
	}
	return append(append(command(t, t.Context()).Env, environment...), "PATH="+filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+t.TempDir())
}

func TestBashCompletesModels(t *testing.T) {
	bash, file, environment := shell(t, "bash"), completionFile(t, "bash"), withModel(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "smol.gguf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ words, want []string }{
		{[]string{"serve", "smollm2-"}, []string{"smollm2-360m", "smollm2-1.7b"}},
		{[]string{"serve", "smol"}, []string{"smollm2", "smollm2-360m", "smollm2-1.7b", "smol.gguf"}},
		{[]string{"serve", "tr"}, []string{"troupe-demo"}},
		{[]string{"pull", "tr"}, nil},
		{[]string{"chat", "org"}, []string{"org/tiny:Q8_0"}},
		{[]string{"pull", "org/t"}, []string{"org/tiny:Q8_0"}},
		{[]string{"rm", ""}, []string{"org/tiny:Q8_0"}},
		{[]string{"rm", "org/tiny", ":"}, []string{"Q8_0"}}, // as bash takes the word apart
		{[]string{"rm", "org/tiny", ":", "Q8"}, []string{"Q8_0"}},
		{[]string{"bench", "latency", "org/"}, []string{"org/tiny:Q8_0"}},
	} {
		script := `source "$1"; shift; COMP_WORDS=(troupe "$@"); COMP_CWORD=$#; _troupe; printf '%s\n' "${COMPREPLY[@]}"`
		cmd := exec.Command(bash, append([]string{"--norc", "-c", script, "bash", file}, c.words...)...)
		cmd.Dir, cmd.Env = dir, environment
		out, err := cmd.Output()
		if got := strings.Fields(string(out)); err != nil || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(c.want))) {
			t.Errorf("%q is completed by %q, want %q (%v)", c.words, got, c.want, err)
		}
	}
}

// Zsh completes only in its line editor: what its function offers is what compadd is called with.
func TestZshOffersModels(t *testing.T) {
	zsh, file := shell(t, "zsh"), completionFile(t, "zsh")
	script := `autoload -Uz compinit && compinit -D -u; source "$1"; _alternative() { print -rl -- $models }; compadd() { print -rl -- $models }; _troupe_models smollm2; _troupe_models`
	cmd := exec.Command(zsh, "-f", "-c", script, "zsh", file)
	cmd.Env = withModel(t)
	if out, err := cmd.Output(); err != nil || string(out) != "smollm2\norg/tiny:Q8_0\norg/tiny:Q8_0\n" {
		t.Errorf("%v: %q", err, out)
	}
	b, err := os.ReadFile(file)
	if err != nil || strings.Count(string(b), "'*:MODEL:{_troupe_models troupe-demo smollm2 ") < 2 || !strings.Contains(string(b), "'*:MODEL:{_troupe_models }'") {
		t.Errorf("%v: the script does not offer models:\n%s", err, b)
	}
}

func TestFishCompletesModels(t *testing.T) {
	fish, file, environment := shell(t, "fish"), completionFile(t, "fish"), withModel(t)
	for line, want := range map[string]string{
		"troupe serve smollm2-3": "smollm2-360m", "troupe chat org/": "org/tiny:Q8_0", "troupe rm org/tiny:": "org/tiny:Q8_0", "troupe pull ti": "tinyllama",
	} {
		cmd := exec.Command(fish, "--no-config", "-c", fmt.Sprintf("source %s; complete -C %s", fishQuote(file), fishQuote(line)))
		cmd.Env = environment
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains("\n"+string(out), "\n"+want) {
			t.Errorf("%q: %v: %s, want %q", line, err, out, want)
		}
	}
}

func TestZshTakesItsScript(t *testing.T) {
	zsh, file := shell(t, "zsh"), completionFile(t, "zsh")
	if out, err := exec.Command(zsh, "-n", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	script := `autoload -Uz compinit && compinit -D -u; source "$1" && print ${_comps[troupe]}`
	if out, err := exec.Command(zsh, "-f", "-c", script, "zsh", file).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "_troupe" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestFishCompletesCommandsFlagsAndValues(t *testing.T) {
	fish, file := shell(t, "fish"), completionFile(t, "fish")
	for line, want := range map[string]string{
		"troupe ser":               "serve\t",
		"troupe serve --max-model": "--max-model-len\t",
		"troupe serve --device ":   "sim",
		"troupe serve --device=s":  "--device=sim",
		"troupe completion ":       "powershell",
		"troupe chat --sys":        "--system\t",
	} {
		cmd := exec.Command(fish, "--no-config", "-c", fmt.Sprintf("source %s; complete -C %s", fishQuote(file), fishQuote(line)))
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains("\n"+string(out), "\n"+want) {
			t.Errorf("%q: %v: %s, want %q", line, err, out, want)
		}
	}
}

func TestPowerShellTakesItsScript(t *testing.T) {
	pwsh, file := shell(t, "pwsh"), completionFile(t, "powershell")
	script := fmt.Sprintf(". ([scriptblock]::Create((Get-Content -Raw '%s'))); (TabExpansion2 'troupe serve --device s' 23).CompletionMatches.CompletionText", file)
	if out, err := exec.Command(pwsh, "-NoProfile", "-Command", script).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "sim" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestEveryShellsScriptKnowsEveryFlag(t *testing.T) {
	app := parsedModel(t)
	for name, write := range completionScripts {
		var b bytes.Buffer
		write(&b, app)
		for _, n := range commandsOf(app) {
			for _, f := range n.Flags {
				if want := strings.TrimPrefix(f.Name, "--"); !f.Hidden && !strings.Contains(b.String(), want) {
					t.Errorf("%s: %s is missing", name, want)
				}
			}
		}
	}
	if code, _, errs := invoke(t, "completion", "tcsh"); code != 2 || !strings.Contains(errs, "bash") {
		t.Errorf("exit %d, %q", code, errs)
	}
}
