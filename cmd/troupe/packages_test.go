package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// What runs the program elsewhere, each as its file has it, is parsed here as the program would: a flag
// that was renamed or a value out of bounds is found before a container does not start.

// root is the top of the tree.
const root = "../.."

func readFile(t *testing.T, elements ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{root}, elements...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// commandLine parses arguments of the program and returns what they say.
func commandLine(t *testing.T, where string, args []string) *cli {
	t.Helper()
	var c cli
	p, err := kong.New(&c, kong.Bind(&config{}), kong.Exit(func(int) { t.Errorf("%s: %q ends the program", where, args) }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(args); err != nil {
		t.Errorf("%s: troupe %s: %v", where, strings.Join(args, " "), err)
	}
	return &c
}

// stopsAfter complains unless the server may drain within the time that it is given to end.
func stopsAfter(t *testing.T, where string, c *cli, patience time.Duration) {
	t.Helper()
	if patience <= c.Serve.DrainTimeout {
		t.Errorf("%s: ended after %v, within --drain-timeout %v", where, patience, c.Serve.DrainTimeout)
	}
}

// arguments are the JSON list after a Dockerfile's instruction.
func arguments(t *testing.T, dockerfile, instruction string) (args []string) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ *`+instruction+` (\[.*\])$`).FindAllStringSubmatch(dockerfile, -1)
	if len(m) != 1 {
		t.Fatalf("the Dockerfile has %d lines of %s with a list", len(m), instruction)
	}
	if err := json.Unmarshal([]byte(m[0][1]), &args); err != nil {
		t.Fatalf("%s: %v", instruction, err)
	}
	return args
}

func TestTheImageRunsWhatTheProgramUnderstands(t *testing.T) {
	// A continued line is one.
	dockerfile := strings.ReplaceAll(readFile(t, "Dockerfile"), "\\\n", "\n")
	entry := arguments(t, dockerfile, "ENTRYPOINT")
	installed := regexp.MustCompile(`(?m)^COPY --from=build /out/troupe (\S+)$`).FindStringSubmatch(dockerfile)
	if len(entry) != 1 || installed == nil || entry[0] != installed[1] {
		t.Fatalf("ENTRYPOINT %q; the program is copied to %q", entry, installed)
	}
	c := commandLine(t, "CMD", arguments(t, dockerfile[strings.Index(dockerfile, "ENTRYPOINT"):], "CMD"))
	if c.Serve.Host != "0.0.0.0" {
		t.Errorf("a container's server listens on %s, where nothing outside reaches it", c.Serve.Host)
	}
	if want := fmt.Sprintf("\nEXPOSE %d\n", c.Serve.Port); !strings.Contains(dockerfile, want) {
		t.Errorf("the port is not exposed: want %q", want)
	}
	health := arguments(t, dockerfile[:strings.Index(dockerfile, "ENTRYPOINT")], "CMD")
	if health[0] != entry[0] {
		t.Errorf("the health check runs %s, the image %s", health[0], entry[0])
	}
	if h := commandLine(t, "HEALTHCHECK", health[1:]); h.Health.URL != fmt.Sprintf("http://127.0.0.1:%d", c.Serve.Port) {
		t.Errorf("the health check asks %s", h.Health.URL)
	}
	for _, want := range []string{"\nSTOPSIGNAL SIGTERM\n", "\nUSER 65532:65532\n"} {
		if !strings.Contains(dockerfile, want) {
			t.Errorf("the Dockerfile lacks %q", want)
		}
	}
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readFile(t, "go.mod"))[1]
	if !strings.Contains(dockerfile, "golang:"+goVersion+"-") {
		t.Errorf("the Dockerfile does not build with go.mod's Go %s", goVersion)
	}
}

func TestTheComposeFileRunsWhatTheProgramUnderstands(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Image, Command any
			StopGrace      string   `yaml:"stop_grace_period"`
			CapDrop        []string `yaml:"cap_drop"`
			User           string
			Volumes        []string
		}
	}
	if err := yaml.Unmarshal([]byte(readFile(t, "deploy", "compose", "compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	command, ok := file.Services["troupe"].Command.(string)
	if !ok {
		t.Fatalf("the command is %v, want one string", file.Services["troupe"].Command)
	}
	variable := regexp.MustCompile(`\$\{TROUPE_MODEL:-\}`)
	for _, model := range []string{"", "org/repo:Q4_K_M"} {
		c := commandLine(t, "compose", strings.Fields(variable.ReplaceAllString(command, model)))
		patience, err := time.ParseDuration(file.Services["troupe"].StopGrace)
		if err != nil {
			t.Fatal(err)
		}
		stopsAfter(t, "compose", c, patience)
		if c.Serve.Model != model || c.Serve.Host != "0.0.0.0" {
			t.Errorf("model %q on %s", c.Serve.Model, c.Serve.Host)
		}
	}
	for name, s := range file.Services {
		image := fmt.Sprint(s.Image)
		if _, tag, ok := strings.Cut(image, ":"); name != "troupe" && (!ok || !regexp.MustCompile(`^v?\d+\.\d+\.\d+$`).MatchString(tag)) {
			t.Errorf("%s: the image %s has no version", name, image)
		}
		if len(s.CapDrop) != 1 || s.CapDrop[0] != "ALL" || s.User == "" || strings.HasPrefix(s.User, "0") {
			t.Errorf("%s runs as user %q without %v", name, s.User, s.CapDrop)
		}
		for _, v := range s.Volumes {
			host, _, _ := strings.Cut(v, ":")
			if !strings.HasPrefix(host, ".") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, "deploy", "compose", host)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestTheUnitRunsWhatTheProgramUnderstands(t *testing.T) {
	unit := readFile(t, "deploy", "systemd", "troupe.service")
	setting := func(name string) string {
		m := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(unit, -1)
		if len(m) != 1 {
			t.Fatalf("the unit has %d lines of %s", len(m), name)
		}
		return m[0][1]
	}
	args := strings.Fields(setting("ExecStart"))
	if args[0] != "/usr/bin/troupe" {
		t.Errorf("the unit runs %s", args[0])
	}
	// The file that the package installs at the place that the unit names.
	installed := false
	for i, a := range args {
		if a == "/etc/troupe/troupe.yaml" {
			args[i], installed = filepath.Join(root, "deploy", "systemd", "troupe.yaml"), true
		}
	}
	if !installed || !strings.Contains(readFile(t, ".goreleaser.yaml"), "src: deploy/systemd/troupe.yaml, dst: /etc/troupe/troupe.yaml") {
		t.Errorf("the unit reads no configuration that the package installs: %q", args)
	}
	c := commandLine(t, "ExecStart", args[1:])
	seconds, err := strconv.Atoi(setting("TimeoutStopSec"))
	if err != nil {
		t.Fatal(err)
	}
	stopsAfter(t, "the unit", c, time.Duration(seconds)*time.Second)
	if setting("RestartPreventExitStatus") != strconv.Itoa(exitUsage) {
		t.Error("the unit is restarted although its flags make no sense")
	}
	logs := "/var/log/" + setting("LogsDirectory") + "/"
	if !strings.HasPrefix(c.Serve.RequestLog, logs) {
		t.Errorf("the request log %s is not below the unit's %s", c.Serve.RequestLog, logs)
	}
	if rotated := readFile(t, "deploy", "systemd", "troupe.logrotate"); !strings.HasPrefix(rotated, c.Serve.RequestLog+" {") {
		t.Errorf("logrotate does not rotate %s", c.Serve.RequestLog)
	}
}

func TestTheChartRunsWhatTheProgramUnderstands(t *testing.T) {
	values := readFile(t, "deploy", "helm", "troupe", "values.yaml")
	var v struct {
		Config              map[string]any
		DrainTimeoutSeconds int `yaml:"drainTimeoutSeconds"`
		PreStopSeconds      int `yaml:"preStopSeconds"`
	}
	if err := yaml.Unmarshal([]byte(values), &v); err != nil {
		t.Fatal(err)
	}
	flags, err := yaml.Marshal(v.Config)
	if err != nil {
		t.Fatal(err)
	}
	file := writeConfig(t, string(flags))

	template := readFile(t, "deploy", "helm", "troupe", "templates", "statefulset.yaml")
	args := listAfter(t, template, "args:")
	for i := range args {
		args[i] = strings.NewReplacer("/etc/troupe/troupe.yaml", file, "{{ .Values.drainTimeoutSeconds }}", strconv.Itoa(v.DrainTimeoutSeconds), "{{ . | quote }}", "org/repo").Replace(args[i])
	}
	c := commandLine(t, "the chart", args)
	if c.Serve.Model != "org/repo" || c.Serve.Host != "0.0.0.0" || c.Serve.DrainTimeout != time.Duration(v.DrainTimeoutSeconds)*time.Second {
		t.Errorf("%+v", c.Serve)
	}
	m := regexp.MustCompile(`terminationGracePeriodSeconds: \{\{ add \.Values\.preStopSeconds \.Values\.drainTimeoutSeconds (\d+) \}\}`).FindStringSubmatch(template)
	if m == nil {
		t.Fatal("the grace period is not the sum of what ending takes")
	}
	margin, _ := strconv.Atoi(m[1])
	stopsAfter(t, "the chart", c, time.Duration(v.DrainTimeoutSeconds+margin)*time.Second)
	if !strings.Contains(template, fmt.Sprintf("containerPort: %d\n", c.Serve.Port)) {
		t.Errorf("the container's port is not %d", c.Serve.Port)
	}

	args = listAfter(t, readFile(t, "deploy", "helm", "troupe", "templates", "tests", "health.yaml"), "args:")
	for i := range args {
		args[i] = regexp.MustCompile(`\{\{.*?\}\}`).ReplaceAllString(strings.Replace(args[i], "{{ .Values.service.port }}", "8000", 1), "")
		args[i] = strings.Replace(args[i], "://", "://host", 1)
	}
	args[1] = strings.Replace(args[1], "https", "http", 1)
	commandLine(t, "the chart's test", args)
}

// listAfter are the plain items of the list below a key of a chart's template; lines that are nothing
// but template are left out.
func listAfter(t *testing.T, template, key string) (items []string) {
	t.Helper()
	_, rest, ok := strings.Cut(template, key+"\n")
	if !ok {
		t.Fatalf("no %s in the template", key)
	}
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if item, ok := strings.CutPrefix(line, "- "); ok {
			items = append(items, item)
		} else if !strings.HasPrefix(line, "{{") {
			break
		}
	}
	return items
}

// shellWords splits a command line at spaces that are not within quotes.
func shellWords(line string) (words []string) {
	var word strings.Builder
	var quote rune
	open := false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, open = r, true
		case quote == 0 && r == ' ':
			if open {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
			open = true
		}
	}
	if open {
		words = append(words, word.String())
	}
	return words
}

func TestTheCommandsOfTheDocumentationAreUnderstood(t *testing.T) {
	found := 0
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		if filepath.Base(page) == "flags.md" {
			continue // made from the flags, with lines that only begin like commands
		}
		text := strings.ReplaceAll(readFile(t, strings.TrimPrefix(page, root)), "\\\n", " ")
		code := false
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
			line, _, _ = strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, " >")
			args, ok := strings.CutPrefix(line, "troupe ")
			if !ok {
				args, ok = strings.CutPrefix(line, "go run ./cmd/troupe ")
			}
			if code && ok && args != "version" && !strings.Contains(args, "…") {
				found++
				commandLine(t, page, shellWords(args))
			}
		}
	}
	if found == 0 {
		t.Error("no command was found")
	}
}
