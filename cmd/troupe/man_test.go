package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// parsedModel is the model of the command line.
func parsedModel(t *testing.T) *kong.Application {
	t.Helper()
	p, err := newParser(&cli{}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return p.Model
}

func TestThePageOfFlagsIsUpToDate(t *testing.T) {
	var want bytes.Buffer
	writeMarkdown(&want, parsedModel(t))
	path := filepath.Join("..", "..", "docs", "flags.md")
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n")), want.Bytes()) {
		t.Errorf("docs/flags.md is not what the flags are (%v): run go run ./cmd/troupe man --markdown > docs/flags.md", err)
	}
}

func TestTheManualNamesEveryCommandAndFlag(t *testing.T) {
	app := parsedModel(t)
	var man, page bytes.Buffer
	writeMan(&man, app, "v1.2.3", "2026-01-02")
	writeMarkdown(&page, app)
	if !strings.Contains(man.String(), `.TH "TROUPE" "1" "2026\-01\-02" "troupe v1.2.3" "Troupe"`) {
		t.Errorf("%.200s", &man)
	}
	for _, n := range commandsOf(app) {
		for text, want := range map[*bytes.Buffer]string{&man: `.SH "` + roff(strings.ToUpper(n.FullPath())) + `"`, &page: "## " + n.FullPath() + "\n"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("no %q", want)
			}
		}
		for _, f := range n.Flags {
			name := flagName(f)
			if f.Hidden {
				continue
			}
			if !strings.Contains(man.String(), `.B "`+roff(name)+`"`) || !strings.Contains(page.String(), "| `"+strings.ReplaceAll(name, "|", `\|`)+"` |") {
				t.Errorf("%s: %s is missing", n.FullPath(), name)
			}
		}
	}
	for line := range strings.Lines(man.String()) {
		if strings.HasPrefix(line, ".") && !regexp.MustCompile(`^\.(\\"|TH |SH |SS |TP\n|B |PP\n|RS 4\n|RE\n|nf\n|fi\n|br\n)`).MatchString(line) {
			t.Errorf("%q is no macro", line)
		}
	}
}

func TestTheManualIsWellFormed(t *testing.T) {
	if _, err := exec.LookPath("mandoc"); err != nil {
		t.Skip("there is no mandoc here to check it")
	}
	_, page, _ := invoke(t, "man")
	cmd := exec.Command("mandoc", "-Tlint", "-Wwarning")
	cmd.Stdin = strings.NewReader(page)
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "missing date") { // outside a repository there is none
			t.Errorf("%v: %s", err, line)
		}
	}
}
