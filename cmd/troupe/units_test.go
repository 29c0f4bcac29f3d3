package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// parse parses a serve command line.
func parse(t *testing.T, args ...string) (*serveCmd, error) {
	t.Helper()
	for _, name := range keyVariables {
		t.Setenv(name, "") // so that it is set again after the test
		os.Unsetenv(name)
	}
	var c cli
	p, err := kong.New(&c, kong.Bind(&config{}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Parse(append([]string{"serve"}, args...))
	return &c.Serve, err
}

func TestSizesAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1048576": 1 << 20, "512MiB": 512 << 20, "2G": 2 << 30, "2g": 2e9, "1.5GiB": 3 << 29, "10 MB": 10e6, "7B": 7, "1k": 1000, "1K": 1024,
	} {
		if got, err := parseBytes(text); err != nil || int64(got) != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "G", "-1", "2Q", "1e30", "NaN", "Inf", "1 2", "9999999T"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
}

func TestNumbersOfTokensMayBeWrittenShort(t *testing.T) {
	for text, want := range map[string]count{"4096": 4096, "4k": 4000, "4K": 4096, "1m": 1_000_000, "2.5k": 2500} {
		c, err := parse(t, "--max-model-len", text)
		if err != nil || c.MaxModelLen != want {
			t.Errorf("%q is %d, %v; want %d", text, c.MaxModelLen, err, want)
		}
	}
	for _, text := range []string{"0", "-1", "k", "1.5", "x", "1e99", "3000m"} {
		if c, err := parse(t, "--max-model-len", text); err == nil {
			t.Errorf("%q is taken for %d", text, c.MaxModelLen)
		}
	}
}

func TestListsMayBeRepeatedOrCommaSeparatedOrJSON(t *testing.T) {
	for _, args := range [][]string{
		{"--allowed-origins", "a", "--allowed-origins", "b"}, {"--allowed-origins", "a,b"}, {"--allowed-origins", `["a","b"]`},
	} {
		c, err := parse(t, args...)
		if err != nil || !slices.Equal(c.AllowedOrigins, list{"a", "b"}) {
			t.Errorf("%q: %q, %v", args, c.AllowedOrigins, err)
		}
	}
	if _, err := parse(t, "--allowed-origins", `["a"`); err == nil {
		t.Error("half a JSON list is taken")
	}
	c, err := parse(t, "--allowed-methods", "GET")
	if err != nil || !slices.Equal(c.AllowedMethods, list{"GET"}) {
		t.Errorf("a given list is %q, %v; want it to replace the default", c.AllowedMethods, err)
	}
}

func TestAnEmptyKeyIsRefusedWhereverItComesFrom(t *testing.T) {
	for _, args := range [][]string{
		{"--api-key="}, {"--api-key", ""}, {"--api-key", ","}, {"--api-key", " "}, {"--api-key", "[]"}, {"--api-key", `[""]`},
		{"--api-key", "good", "--api-key", ""},
		{"--config", writeConfig(t, "api-key: \"\"\n")}, {"--config", writeConfig(t, "api-key: []\n")},
		{"--config", writeConfig(t, "api-key: [good, \"\"]\n")},
	} {
		if c, err := parse(t, args...); err == nil || !strings.Contains(err.Error(), "an empty API key") {
			t.Errorf("%q: keys %q, %v", args, c.APIKey, err)
		}
	}
	for _, text := range []string{"api-key:\n", "api-key: null\n", "api-key: ~\n", "api-key: [~]\n", "port: 1\nssl-certfile:\n"} {
		if c, err := parse(t, "--config", writeConfig(t, text)); err == nil {
			t.Errorf("%q: keys %q", text, c.APIKey)
		}
	}
	for _, value := range []string{"", ",", "a,", " ", "a, ,b"} {
		for _, name := range keyVariables {
			c, err := parse(t)
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv(name, value)
			if keys, err := c.keys(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "an empty API key") {
				t.Errorf("%s=%q: keys %v, %v", name, value, keys, err)
			}
		}
	}
}

func TestACommaIsPartOfAKey(t *testing.T) {
	c, err := parse(t, "--api-key", "abc,def", "--api-key", "carol:x")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := c.keys()
	if err != nil || len(keys) != 2 || keys[0].Secret != "abc,def" || keys[1].Name != "carol" || keys[1].Secret != "x" {
		t.Errorf("%v, %v", keys, err)
	}
	c, err = parse(t, "--config", writeConfig(t, "api-key: abc,def\n"))
	if err != nil || !slices.Equal(c.APIKey, keyList{"abc,def"}) {
		t.Errorf("%q, %v", c.APIKey, err)
	}
	c, err = parse(t, "--api-key", `["a","b"]`)
	if err != nil || !slices.Equal(c.APIKey, keyList{"a", "b"}) {
		t.Errorf("a JSON list gives %q, %v", c.APIKey, err)
	}
}

func TestAnEmptyValueOfAListOrAFileIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--ssl-certfile="}, {"--ssl-certfile", " "}, {"--ssl-certfile=c.pem", "--ssl-keyfile="},
		{"--config", writeConfig(t, "ssl-certfile: \"\"\n")},
		{"--served-model-name="}, {"--served-model-name", "a,,b"}, {"--served-model-name", "[]"},
		{"--config", writeConfig(t, "served-model-name: []\n")},
		{"--allowed-methods="},
	} {
		if _, err := parse(t, args...); err == nil || !strings.Contains(err.Error(), "empty") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
