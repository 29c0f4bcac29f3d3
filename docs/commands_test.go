// Package docs has no code: its tests run the commands that the documentation shows.
package docs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// A fenced block is one of these, by the word after its fence:
//
//	sh        every command is run, with a server at the address that the documentation uses
//	sh check  needs what a test cannot have (an engine for containers, root, a network, another
//	          server): the files of the tree that it names must be there, and cmd/troupe parses
//	          its commands
//	python    is run with OpenAI's client, where it is installed
//	json      just below an sh block whose last command is curl: the answer; … stands for what is left out
//
// Others are output, files and sketches.
type block struct {
	kind string
	line int
	text string
}

// patience bounds what a test waits for; it says nothing about how long anything takes.
const patience = 4 * time.Minute

// address is the server's in the documentation.
const address = "127.0.0.1:8000"

func TestEveryCommandInTheDocumentationWorks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the commands are for a POSIX shell")
	}
	if testing.Short() {
		t.Skip("runs without -short only: it starts many processes")
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, "troupe"), "../cmd/troupe").CombinedOutput(); err != nil {
		t.Fatalf("%s%v", out, err)
	}
	// The demonstration model's file is what the documentation calls model.gguf.
	b, err := os.ReadFile("../model/demo/troupe-demo.gguf")
	if err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(bin, "model.gguf")
	if err := os.WriteFile(model, b, 0o600); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("*.md")
	if err != nil || len(pages) < 5 {
		t.Fatalf("%v, %v", pages, err)
	}
	commands := 0
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			p := &site{t: t, page: page, bin: bin, dir: t.TempDir()}
			if err := os.Link(model, filepath.Join(p.dir, "model.gguf")); err != nil {
				t.Fatal(err)
			}
			for _, b := range blocks(string(text)) {
				commands += p.run(b)
			}
		})
	}
	if commands < 20 {
		t.Errorf("only %d commands were found in all the pages", commands)
	}
}

// blocks finds the fenced blocks with an info string.
func blocks(text string) []block {
	var all []block
	var open *block
	for i, line := range strings.Split(text, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open != nil:
			if open.kind != "" {
				all = append(all, *open)
			}
			open = nil
		case fence:
			open = &block{kind: strings.TrimSpace(info), line: i + 2}
		case open != nil:
			open.text += line + "\n"
		}
	}
	return all
}

// site is where one page's commands are run: in a folder of their own, with a server of their own.
type site struct {
	t              *testing.T
	page, bin, dir string
	server         sync.Once
	url            string
	answer         string // what the last command printed, if that was curl
	answered       int    // the line below that command's block
}

func (p *site) run(b block) (commands int) {
	at := fmt.Sprintf("%s:%d", p.page, b.line)
	switch b.kind {
	case "json":
		if p.answer != "" && b.line <= p.answered+3 { // a blank line and two fences lie between
			p.shown(at, b.text, p.answer)
		}
	case "sh":
		for _, c := range split(b.text) {
			commands++
			p.command(at, c)
		}
		p.answered = b.line + strings.Count(b.text, "\n")
	case "sh check":
		for _, c := range split(b.text) {
			commands++
			p.check(at, c)
		}
	case "python":
		p.python(at, b.text)
	}
	return commands
}

// split returns a block's commands: its lines, those joined that end in a backslash or belong to a
// here-document.
func split(text string) []string {
	var all []string
	var c, until string
	for line := range strings.Lines(text) {
		c += line
		line = strings.TrimSpace(line)
		if _, mark, here := strings.Cut(line, "<<'"); here && until == "" {
			until, _, _ = strings.Cut(mark, "'")
			continue
		}
		if strings.HasSuffix(line, "\\") || until != "" && line != until {
			continue
		}
		until = ""
		if c := strings.TrimSpace(c); c != "" && (!strings.HasPrefix(c, "#") || strings.Contains(c, "\n")) {
			all = append(all, c)
		}
		c = ""
	}
	return all
}

var (
	troupe  = regexp.MustCompile(`^(go run \./cmd/troupe|troupe) `)
	goTest  = regexp.MustCompile(`^(?:\w+=\S+ )*go test `)
	pattern = regexp.MustCompile(`-(?:run|bench|fuzz)[ =]'?([^' ]+)'?`)
	folder  = regexp.MustCompile(`\./\S*`)
)

func (p *site) command(at, c string) {
	p.t.Helper()
	c = troupe.ReplaceAllString(c, "troupe ")
	p.answer = ""
	switch {
	case goTest.MatchString(c):
		p.goTest(at, c)
	case strings.HasPrefix(c, "task "):
		p.task(at, c)
	case strings.HasPrefix(c, "troupe serve"):
		p.serve(at, c)
	case strings.HasPrefix(c, "troupe bench overhead"):
		p.shellOK(at, c+" --pairs 1 --concurrency 4 --tokens 8")
	default:
		for _, tool := range []string{"jq", "duckdb", "curl"} {
			if _, err := exec.LookPath(tool); err != nil && strings.HasPrefix(c, tool+" ") {
				p.t.Logf("%s: there is no %s here: %s", at, tool, c)
				return
			}
		}
		if rest, is := strings.CutPrefix(c, "curl "); is {
			p.answer = p.shellOK(at, "curl --fail-with-body "+rest)
		} else {
			p.shellOK(at, c)
		}
	}
}

// shellOK runs a command, which must succeed, and returns what it printed.
func (p *site) shellOK(at, c string) string {
	p.t.Helper()
	out, err := p.shell(c, patience)
	if err != nil {
		p.t.Errorf("%s: %s\n%s%v", at, c, out, err)
	}
	return out
}

// between is what is left out before further members, not at an object's end.
var between = regexp.MustCompile(`, …(\s*")`)

// shown compares the answer that a page shows with the one that came. Ids and times are others each time.
func (p *site) shown(at, page, answer string) {
	p.t.Helper()
	page = strings.ReplaceAll(between.ReplaceAllString(page, ",$1"), ", …", "")
	var want, got any
	if err := json.Unmarshal([]byte(page), &want); err != nil {
		p.t.Errorf("%s: no JSON: %v", at, err)
		return
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil {
		p.t.Errorf("%s: the answer is no JSON: %v: %s", at, err, answer)
		return
	}
	p.holds(at, "the answer", want, got, false)
}

// holds says where got lacks what want has. Of numbers that vary, only that they are numbers is compared.
func (p *site) holds(at, where string, want, got any, varies bool) {
	p.t.Helper()
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for key, member := range w {
			has, there := g[key]
			if !there {
				p.t.Errorf("%s: %s has no %s", at, where, key)
				continue
			}
			if key != "id" {
				p.holds(at, where+"."+key, member, has, varies || key == "metrics")
			}
		}
	case []any:
		g, _ := got.([]any)
		if len(g) != len(w) {
			p.t.Errorf("%s: %s is %v, and the page says %v", at, where, got, want)
			return
		}
		for i := range w {
			p.holds(at, fmt.Sprintf("%s[%d]", where, i), w[i], g[i], varies)
		}
	default:
		_, number := want.(float64)
		_, another := got.(float64)
		if got != want && !(varies && number && another) {
			p.t.Errorf("%s: %s is %v, and the page says %v", at, where, got, want)
		}
	}
}

// shell runs a command and returns what it printed.
func (p *site) shell(c string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", p.here(c))
	cmd.Dir, cmd.Env, cmd.WaitDelay = p.dir, p.env(), 5*time.Second
	cmd.Stdin = strings.NewReader("Hello!\n") // for what asks a question
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// anID stands in the documentation for the id of some request.
var anID = regexp.MustCompile(`\b(?:chat)?cmpl-[0-9a-f]+`)

// here puts the page's own server in place of the documentation's, and starts it.
func (p *site) here(c string) string {
	if !strings.Contains(c, address) && !strings.Contains(c, "requests.") {
		return c
	}
	p.server.Do(func() {
		_, p.url = p.start("troupe serve --enable-per-request-metrics --request-log requests.jsonl --log-format json")
		// What other commands read.
		load := "troupe bench serve --url http://" + p.url + " --num-requests 3 --concurrency 2 --output-len 8"
		if out, err := p.shell(load, patience); err != nil {
			p.t.Fatalf("%s: %s%v", load, out, err)
		}
		var log []byte
		for deadline := time.Now().Add(patience); bytes.Count(log, []byte("\n")) < 3; time.Sleep(20 * time.Millisecond) {
			var err error
			if log, err = os.ReadFile(filepath.Join(p.dir, "requests.jsonl")); err != nil || time.Now().After(deadline) {
				p.t.Fatalf("the log has no three lines (%v): %s", err, log)
			}
		}
		if err := os.WriteFile(filepath.Join(p.dir, "requests.log"), log, 0o600); err != nil {
			p.t.Fatal(err)
		}
	})
	if anID.MatchString(c) {
		log, err := os.ReadFile(filepath.Join(p.dir, "requests.jsonl"))
		if err != nil {
			p.t.Fatal(err)
		}
		c = anID.ReplaceAllString(c, string(anID.Find(log)))
	}
	return strings.ReplaceAll(c, address, p.url)
}

func (p *site) env() []string {
	return []string{
		"PATH=" + p.bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + p.dir,
		"TROUPE_CACHE=" + filepath.Join(p.dir, "cache"), "HF_HOME=" + filepath.Join(p.dir, "hub"), "HF_HUB_OFFLINE=1", "NO_COLOR=1",
	}
}

var serving = regexp.MustCompile(`"url":"https?://([^"]+)"`)

// start starts a server on a free port and waits until it serves. It is stopped after the test, if
// not before.
func (p *site) start(c string) (*exec.Cmd, string) {
	p.t.Helper()
	var stderr lockedBuffer
	cmd := exec.Command("bash", "-c", "exec "+c+" --port 0")
	cmd.Dir, cmd.Env, cmd.Stderr, cmd.WaitDelay = p.dir, p.env(), &stderr, 5*time.Second
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-exited:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			p.t.Errorf("%s does not end: %s", c, stderr.String())
		}
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if m := serving.FindStringSubmatch(stderr.String()); m != nil {
			return cmd, m[1]
		}
		select {
		case <-exited:
			p.t.Fatalf("%s: %s", c, stderr.String())
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s does not serve: %s", c, stderr.String())
		}
	}
}

// serve runs a server until it serves, and ends it.
func (p *site) serve(at, c string) {
	p.t.Helper()
	p.t.Run("serve", func(t *testing.T) {
		q := &site{t: t, page: p.page, bin: p.bin, dir: p.dir}
		c, _, _ := strings.Cut(c, " #")
		c = regexp.MustCompile(`--port[ =]\d+`).ReplaceAllString(c, "")
		cmd, _ := q.start(c + " --log-format json")
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Errorf("%s: %s: %v", at, c, err)
		}
	})
}

// goTest checks that the packages and the tests that a command names exist. Those tests run anyway,
// or take their time.
func (p *site) goTest(at, c string) {
	p.t.Helper()
	c, _, _ = strings.Cut(c, " #")
	for _, dir := range folder.FindAllString(c, -1) {
		dir = filepath.Join("..", strings.TrimSuffix(dir, "..."))
		if _, err := os.Stat(dir); err != nil {
			p.t.Errorf("%s: %s: %v", at, c, err)
			continue
		}
		names := testsIn(p.t, dir)
		for _, m := range pattern.FindAllStringSubmatch(c, -1) {
			if m[1] == "^$" || m[1] == "." {
				continue
			}
			if want, err := regexp.Compile(m[1]); err != nil || !want.MatchString(names) {
				p.t.Errorf("%s: %s: no test in %s matches %s (%v)", at, c, dir, m[1], err)
			}
		}
	}
}

var testName = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)

func testsIn(t *testing.T, dir string) string {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testName.FindAllSubmatch(text, -1) {
			names.Write(m[1])
			names.WriteByte('\n')
		}
	}
	return names.String()
}

// task checks that there is such a task.
func (p *site) task(at, c string) {
	p.t.Helper()
	text, err := os.ReadFile("../Taskfile.yml")
	if err != nil {
		p.t.Fatal(err)
	}
	var file struct{ Tasks map[string]any }
	if err := yaml.Unmarshal(text, &file); err != nil {
		p.t.Fatal(err)
	}
	for _, name := range strings.Fields(c)[1:] {
		if name == "--" || strings.HasPrefix(name, "#") {
			break
		}
		if _, ok := file.Tasks[name]; !ok && !strings.HasPrefix(name, "-") && !strings.Contains(name, "=") {
			p.t.Errorf("%s: %s: there is no task %s", at, c, name)
		}
	}
}

var treePath = regexp.MustCompile(`(?:^|[ =/])((?:deploy|cmd|docs|bench|model|gpu)/[\w./-]+)`)

// check checks that what a command names in the repository is there.
func (p *site) check(at, c string) {
	p.t.Helper()
	for _, m := range treePath.FindAllStringSubmatch(c, -1) {
		if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
			p.t.Errorf("%s: %s: %v", at, c, err)
		}
	}
}

// python runs a program with OpenAI's client against the page's server.
func (p *site) python(at, program string) {
	p.t.Helper()
	python := os.Getenv("TROUPE_TEST_PYTHON")
	if python == "" {
		if os.Getenv("CI") == "true" {
			p.t.Errorf("%s: TROUPE_TEST_PYTHON is not set", at)
		}
		p.t.Logf("%s: not run: TROUPE_TEST_PYTHON names no Python with OpenAI's client", at)
		return
	}
	p.here(address) // the server
	program = strings.ReplaceAll(program, address, p.url)

	if !strings.Contains(program, "OpenAI(") {
		program = fmt.Sprintf("from openai import OpenAI\nclient = OpenAI(base_url=%q, api_key='none')\n", "http://"+p.url+"/v1") + program
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", program)
	cmd.Dir = p.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Errorf("%s: %s\n%s%v", at, program, out, err)
	}
}

// links are those of Markdown to files beside the page.
var links = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)\s]*)?\)`)

func TestEveryLinkBetweenPagesLeadsSomewhere(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{"README.md": true}
	for _, page := range append(pages, "../README.md", "../CONTRIBUTING.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range links.FindAllSubmatch(text, -1) {
			target := filepath.Join(filepath.Dir(page), string(m[1]))
			if _, err := os.Stat(target); errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: there is no %s", page, m[1])
			}
			if page == "README.md" {
				linked[target] = true
			}
		}
	}
	for _, page := range pages {
		if !linked[page] {
			t.Errorf("docs/README.md, the list of pages, does not have %s", page)
		}
	}
}

// lockedBuffer is written by a process and read by the test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
