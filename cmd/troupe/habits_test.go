package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestFlagsOfOtherProgramsAreAnsweredWithTroupes(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"serve --model org/repo", "unknown flag --model: the model is named without one: troupe serve org/repo"},
		{"serve --model=org/repo", "troupe serve org/repo"},
		{"serve -m a.gguf --port 1", "unknown flag -m: the model is named without one: troupe serve a.gguf"},
		{"serve -m", "troupe serve MODEL"},
		{"chat -m a.gguf", "troupe chat a.gguf"},
		{"pull --model smollm2", "troupe pull smollm2"},
		{"bench latency -m a.gguf", "troupe bench latency a.gguf"},
		{"serve a.gguf -c 4096", "unknown flag -c: Troupe's is --max-model-len"},
		{"serve --ctx-size=4096", "Troupe's is --max-model-len"},
		{"serve -ngl 99", "unknown flag -ngl: Troupe has no such flag: all layers are on"},
		{"serve -hf org/repo", "unknown flag -hf: Troupe has no such flag: a model on the hub is named without a flag"},
		{"serve --kv-cache-memory 1G", "Troupe's is --kv-cache-memory-bytes"},
		{"serve --tensor-parallel-size 2", "--tensor-parallel-size is 2, but a model is not divided among devices: it must be 1. --data-parallel-size N puts"},
		{"serve --pipeline-parallel-size=4", "--pipeline-parallel-size is 4, but a model is not divided among devices: it must be 1. --data-parallel-size N puts"},
		{"chat --tensor-parallel-size 0", "--tensor-parallel-size is 0, but"},
		{"serve -tp 2", "no such flag: a model is not divided among devices; --data-parallel-size N"},
		{"serve -dp 2", "Troupe's is --data-parallel-size"},
		{"serve --data-parallel-size 0", "--data-parallel-size is 0, but must be at least 1"},
		{"serve --data-parallel-size 65", "--data-parallel-size is 65, but must be at most 64"},
		{"serve --device cpu --threads 2 --data-parallel-size 3", "--data-parallel-size 3 leaves some CPU devices without a thread, as the number of threads is 2"},
		{"serve --n-predict 9", "no such flag: each request sets max_tokens"},
		{"chat --n-predict 9", "Troupe's is --max-tokens"},
		{"serve --metrics", "no such flag: /metrics is always there"},
		{"serve --verbose", "Troupe's is --log-level, as in --log-level debug"},
		{"serve --prt 9", `did you mean "--port"?`},
		{"serve --no-such-flag --served-model-name=-c", "unknown flag --no-such-flag"},
		{"serve --no-such-flag", "unknown flag --no-such-flag"},
		{"chat --model x", "troupe chat x"}, // a flag of its own, but for servers
		{"bench serve --model x", "troupe bench serve x"},
	} {
		var errs strings.Builder
		code := run(strings.Fields(c.line), io.Discard, &errs)
		if got := errs.String(); code != exitUsage || !strings.Contains(got, c.want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: exit %d, %q; want %q", c.line, code, got, c.want)
		}
	}
}

func TestTheTableOfHabitsNamesNoFlagThatIsThere(t *testing.T) {
	var serve, any []string
	for _, n := range commandsOf(parsedModel(t)) {
		for _, f := range n.Flags {
			any = append(any, "--"+f.Name)
			if n.FullPath() == "troupe serve" {
				serve = append(serve, "--"+f.Name)
				if f.Short != 0 {
					serve = append(serve, "-"+string(f.Short))
				}
				for _, a := range f.Aliases {
					serve = append(serve, "--"+a)
				}
			}
		}
	}
	if !slices.Contains(serve, "--max-model-len") {
		t.Fatalf("the flags of serve are %q", serve)
	}
	for _, h := range habits {
		for _, name := range h.names {
			if slices.Contains(serve, name) {
				t.Errorf("%s is a flag of troupe serve: take it out of the table", name)
			}
		}
		for _, f := range h.flags {
			if !slices.Contains(any, f) {
				t.Errorf("%s is answered with %s, which no command has", h.names[0], f)
			}
		}
		if len(h.flags) == 0 && h.why == "" {
			t.Errorf("there is no answer to %s", h.names[0])
		}
	}
}
