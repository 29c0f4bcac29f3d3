package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFlagsThatMakeNoSenseTogetherAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--disable-log-stats", "--enable-per-request-metrics"}, "--enable-per-request-metrics needs the statistics that --disable-log-stats turns off: remove --disable-log-stats, or"},
		{[]string{"--disable-log-stats", "--per-request-metrics-detail=detailed"}, "--disable-log-stats"},
		{[]string{"--disable-log-stats", "--enable-llama-timings"}, "--disable-log-stats"},
		{[]string{"--per-request-metrics-detail=detailed"}, "--enable-per-request-metrics"},
		{[]string{"--max-num-seqs=8", "--max-num-batched-tokens=4"}, "--max-num-batched-tokens is 4"},
		{[]string{"--per-request-spec-decode-metrics=summary"}, "speculative decoding, which is not configured"},
		{[]string{"--ssl-keyfile", "key.pem"}, "needs --ssl-certfile"},
		{[]string{"--sim-step", "20ms"}, "add --device sim"},
		{[]string{"--port", "70000"}, "--port is 70000"},
		{[]string{"--block-size", "0"}, "--block-size is 0"},
		{[]string{"--drain-timeout=-1s"}, "must not be negative"},
		{[]string{"--device", "tpu"}, "--device must be one of"},
		{[]string{"--gpu-memory-utilization=1.1"}, "--gpu-memory-utilization is 1.1, but must be above 0 and at most 1"},
		{[]string{"--gpu-memory-utilization=0.5", "--device=cpu"}, "use --kv-cache-memory-bytes instead"},
		{[]string{"--max-request-body", "0"}, "--max-request-body"},
		{[]string{"--max-request-body", "9000000T"}, "--max-request-body"},
		{[]string{"--request-timeout=2562047h"}, "--request-timeout is 2562047h0m0s, but must be at most 87600h"},
		{[]string{"--delivery-timeout=87601h"}, "at most 87600h"},
		{[]string{"--drain-timeout=87601h"}, "at most 87600h"},
		{[]string{"--device=sim", "--sim-step=87601h"}, "at most 87600h"},
		{[]string{"--device=sim", "--sim-prefill-token=61s"}, "at most 1m"},
		{[]string{"--max-model-len=2147483647"}, "--max-model-len is 2147483647, but must be at most 16777216"},
		{[]string{"--max-num-seqs=2147483647"}, "--max-num-seqs is 2147483647, but must be at most 65536"},
		{[]string{"--max-num-batched-tokens=2147483647"}, "but must be at most 16777216"},
		{[]string{"--kv-cache-memory-bytes=1000000000000000000"}, "must be at most 64 TiB"},
		{[]string{"--served-model-name=a\xff"}, "UTF-8"},
		{[]string{"--served-model-name=a", "--served-model-name=b\nc"}, "control characters"},
	} {
		if _, err := parse(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want one line with %q", c.args, err, c.want)
		}
	}
}

func TestSensibleFlagsAreTaken(t *testing.T) {
	c, err := parse(t, "model.gguf", "--no-enable-prefix-caching", "--max-queued", "7", "--seed", "0", "--device=sim", "--sim-step=20ms")
	if err != nil {
		t.Fatal(err)
	}
	if c.Model != "model.gguf" || c.EnablePrefixCaching || c.MaxNumQueuedReqs != 7 || c.Seed == nil || *c.Seed != 0 || c.SimStep != 20*time.Millisecond {
		t.Errorf("%+v", c)
	}
	c, err = parse(t)
	if err != nil {
		t.Fatal(err)
	}
	if c.Model != "" || !c.EnablePrefixCaching || c.Seed != nil || c.EnablePerRequestMetrics || c.Port != 8000 || len(c.APIKey) != 0 || len(c.AllowedOrigins) != 0 {
		t.Errorf("%+v", c)
	}
}

func TestKeysComeFromTheEnvironmentToo(t *testing.T) {
	if _, err := parse(t); err != nil { // clears the variables
		t.Fatal(err)
	}
	for _, c := range []struct{ troupe, vllm, flag, want string }{
		{"a, b", "", "", "a,b"}, {"", "v", "", ""}, {"a", "v", "", "a"}, {"a", "", "f", "f"},
	} {
		t.Setenv("TROUPE_API_KEY", c.troupe)
		t.Setenv("VLLM_API_KEY", c.vllm)
		if c.troupe == "" {
			os.Unsetenv("TROUPE_API_KEY")
			c.want = c.vllm
		}
		var args []string
		if c.flag != "" {
			args = []string{"--api-key", c.flag}
		}
		got, err := parseAsIs(args...)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := got.keys()
		var secrets []string
		for _, k := range keys {
			secrets = append(secrets, k.Secret)
		}
		if err != nil || strings.Join(secrets, ",") != c.want {
			t.Errorf("%+v: %q, %v", c, secrets, err)
		}
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "troupe.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAConfigurationFileGivesFlagsAndTheCommandLineWins(t *testing.T) {
	path := writeConfig(t, `# a comment
port: 9000
max-num-seqs: 8
enable-prefix-caching: false
api-key: [alice:one, "two"]
served-model-name: tiny
request-timeout: 90s
kv-cache-memory-bytes: 512MiB
log-format: json
threads:
`)
	c, err := parse(t, "--config", path, "--max-num-seqs", "16")
	if err != nil {
		t.Fatal(err)
	}
	if c.Port != 9000 || c.MaxNumSeqs != 16 || c.EnablePrefixCaching || !slices.Equal(c.APIKey, keyList{"alice:one", "two"}) || c.LogFormat != "json" ||
		!slices.Equal(c.ServedModelName, list{"tiny"}) || c.RequestTimeout != 90*time.Second || c.KVCacheMemoryBytes != 512<<20 || c.Threads != 0 {
		t.Errorf("%+v", c)
	}
	if c, err := parse(t, "--config", path, "--enable-prefix-caching"); err != nil || !c.EnablePrefixCaching {
		t.Errorf("the command line does not win: %v", err)
	}
	if _, err := parse(t, "--config", writeConfig(t, "")); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}

func TestAConfigurationFilesErrorsNameKeyAndLine(t *testing.T) {
	for text, want := range map[string]string{
		"port: 9000\nmax-model-length: 4\n": "line 2: unknown key max-model-length",
		"max_model_len: 4\n":                "line 1: unknown key max_model_len: write max-model-len",
		"no-enable-prefix-caching: true\n":  "write enable-prefix-caching: false",
		"\n\nport: many\n":                  "line 3: port: expected",
		"port: 1\nport: 2\n":                "line 2: port is given twice",
		"port: [1, 2]\n":                    "line 1: port",
		"port: {a: b}\n":                    "line 1: port: want a value",
		"log-format: xml\n":                 "line 1: log-format must be one of",
		"- port\n":                          "line 1: want lines of the form key: value",
		"port: : 1\n":                       "mapping values",
		"config: other.yaml\n":              "unknown key config",
		"kv-cache-memory-bytes: lots\n":     "line 1: kv-cache-memory-bytes",
		"model: [a, b]\n":                   "line 1: model: want one value",
		"model: a\nport: 1\nmodel: b\n":     "line 3: model is given twice, before on line 1",
		"model: \"\"\n":                     "line 1: model: the name is empty",
		"port:\nport: 2\n":                  "line 2: port is given twice",
		"port: 1\n---\nport: 2\n":           "line 2: a second document",
		"port: 1\n---\n{\n":                 "did not find",
		"device: [sim]\n":                   "line 1: device: want one value, not a list",
		"port: 1\napi-key:\n":               "line 2: api-key has no value",
		"ssl-certfile: ~\n":                 "line 1: ssl-certfile has no value",
	} {
		path := writeConfig(t, text)
		if _, err := parse(t, "--config", path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v; want %q and the file's name", text, err, want)
		}
	}
	if _, err := parse(t, "--config", filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestEveryFlagIsExplainedInASentence(t *testing.T) {
	code, out, _ := invoke(t, "serve", "--help")
	if code != 0 {
		t.Fatalf("--help exits %d", code)
	}
	sentence := regexp.MustCompile(`\.$`)
	for _, f := range serveFlags(t) {
		if !strings.Contains(out, "--"+f.Name) && !strings.Contains(out, "--[no-]"+f.Name) {
			t.Errorf("--help does not list --%s", f.Name)
		}
		if !sentence.MatchString(f.Help) {
			t.Errorf("--%s: %q", f.Name, f.Help)
		}
	}
}

func TestTheLimitsOfAStepFollowTheDeviceAndEachOther(t *testing.T) {
	for _, c := range []struct {
		args              []string
		sequences, tokens int
	}{
		{nil, 64, 128},
		{[]string{"--device=cpu"}, 64, 128},
		{[]string{"--device=sim"}, 256, 2048},
		{[]string{"--max-num-seqs=300"}, 300, 300},
		{[]string{"--max-num-batched-tokens=16"}, 16, 16},
		{[]string{"--max-num-seqs=4", "--max-num-batched-tokens=1K"}, 4, 1024},
	} {
		got, err := parse(t, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		if got.sequences() != c.sequences || got.stepTokens() != c.tokens {
			t.Errorf("%v: %d sequences and %d tokens, want %d and %d", c.args, got.sequences(), got.stepTokens(), c.sequences, c.tokens)
		}
	}
}

func TestAModelsOwnNameIsMadeFitForJSONAndMetrics(t *testing.T) {
	for model, want := range map[string]string{"some.model": "some.model", "bad\xff": "bad\ufffd", "two\nlines": "two\ufffdlines", "org/repo": "org/repo"} {
		c := serveCmd{engineFlags: engineFlags{Model: "x", resolved: model}}
		if got := c.names(); !slices.Equal(got, []string{want}) {
			t.Errorf("%q is served as %q, want %q", model, got, want)
		}
	}
}
