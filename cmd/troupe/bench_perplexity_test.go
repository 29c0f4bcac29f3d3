package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBenchPerplexityPrintsOneJSONObject(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("What is a KV cache? It keeps keys and values of tokens. ", 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	args := []string{"bench", "perplexity", "troupe-demo", "--text", text, "--context", "32", "--chunks", "2", "--threads", "1", "--json"}
	if code := run(args, &stdout, &stderr); code != exitOK {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	var got struct {
		Model, Text string
		Perplexity  float64
		Chunks      int
		Scored      int `json:"scored_tokens"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, stdout.String())
	}
	if got.Model != "troupe-demo" || got.Text != text || got.Chunks != 2 || got.Scored != 30 || !(got.Perplexity > 1) {
		t.Errorf("%+v", got)
	}
}

func TestBenchPerplexityTakesWeightsThatAreQuantisedAtLoad(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("The weights are numbers, and the numbers are many. ", 4)), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[float64]bool{}
	for _, more := range [][]string{nil, {"-q", "q4_0"}} {
		var stdout, stderr bytes.Buffer
		args := append([]string{"bench", "perplexity", filepath.Join("..", "..", "model", "hf", "testdata", "llama"), "--text", text, "--context", "32", "--chunks", "1", "--threads", "1", "--json"}, more...)
		if code := run(args, &stdout, &stderr); code != exitOK {
			t.Fatalf("%q: exit status %d: %s", more, code, stderr.String())
		}
		var got struct{ Perplexity float64 }
		if err := json.Unmarshal(stdout.Bytes(), &got); err != nil || !(got.Perplexity > 1) {
			t.Fatalf("%q: %v in %s", more, err, stdout.String())
		}
		seen[got.Perplexity] = true
	}
	if len(seen) != 2 {
		t.Errorf("the same figure with and without: %v", seen)
	}
}

func TestBenchPerplexityRefusesWhatCannotBeMeasured(t *testing.T) {
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("Too short."), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", exitUsage, "--text is missing"},
		{"--text " + filepath.Join(short, "nowhere"), exitUsage, "--text"},
		{"--text " + short, exitError, "smaller --context"},
		{"--text x --context 3", exitUsage, "--context"},
		{"--text x --threads -1", exitUsage, "--threads"},
		{"--text " + short + " --context 1M", exitUsage, "ask for no more"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"bench", "perplexity", "troupe-demo"}, strings.Fields(c.args)...), &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: exit status %d, %s", c.args, code, stderr.String())
		}
	}
}
