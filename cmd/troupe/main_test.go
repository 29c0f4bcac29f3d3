package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// patience bounds what a test waits for; it says nothing about how long anything takes.
const patience = 4 * time.Minute

// program is the command, built once for all tests.
var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "troupe-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "troupe")
		if runtime.GOOS == "windows" {
			program += ".exe"
		}
		if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
			return 1
		}
		return m.Run()
	}())
}

// command makes a process of the program with nothing of this one's configuration.
func command(t *testing.T, ctx context.Context, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, program, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TROUPE_") && !strings.HasPrefix(v, "VLLM_") && !strings.HasPrefix(v, "HF_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "TROUPE_CACHE="+t.TempDir(), "HF_HOME="+t.TempDir(), "HF_ENDPOINT=http://127.0.0.1:1") // no hub there
	return cmd
}

// invoke runs the program to its end.
func invoke(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := command(t, ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// parseAsIs parses a serve command line in the environment as it is.
func parseAsIs(args ...string) (*serveCmd, error) {
	var c cli
	p, err := kong.New(&c, kong.Bind(&config{}))
	if err != nil {
		return nil, err
	}
	_, err = p.Parse(append([]string{"serve"}, args...))
	return &c.Serve, err
}

// serveFlags are the flags of serve.
func serveFlags(t *testing.T) []*kong.Flag {
	t.Helper()
	p, err := kong.New(&cli{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range p.Model.Children {
		if n.Name == "serve" {
			return n.Flags
		}
	}
	t.Fatal("no command serve")
	return nil
}

func TestFlagsThatContradictEachOtherExitWithTwoAndOneLine(t *testing.T) {
	code, stdout, stderr := invoke(t, "serve", "--enable-per-request-metrics", "--disable-log-stats")
	if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	for _, want := range []string{"--enable-per-request-metrics", "--disable-log-stats", "remove"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q does not say %q", stderr, want)
		}
	}
}

func TestWrongUseExitsWithTwoAndOneLine(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--no-such-flag"}, {"serve", "--port", "x"}, {"serve", "--api-key", ":"}, {"fly"},
		{"serve", "--config", writeConfig(t, "speed: 9\n")}, {"serve", "--api-key="}, {"serve", "--ssl-certfile="},
		{"serve", "--served-model-name=\xff"}, {"serve", "--device=sim", "--port=0", "--block-size=1", "--kv-cache-memory-bytes=1TiB"},
	} {
		if code, _, stderr := invoke(t, args...); code != 2 || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, stderr %q", args, code, stderr)
		}
	}
}

func TestAnUnknownConfigurationKeyIsNamedWithItsLine(t *testing.T) {
	code, _, stderr := invoke(t, "serve", "--config", writeConfig(t, "port: 1\n\nspeed: 9\n"))
	if code != 2 || !strings.Contains(stderr, "speed") || !strings.Contains(stderr, "line 3") {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

func TestTheProgramsNameAloneGetsAnOverview(t *testing.T) {
	code, stdout, stderr := invoke(t)
	if code != 2 || stdout != "" || !strings.Contains(stderr, "troupe serve") || !strings.Contains(stderr, "troupe chat") || strings.Count(stderr, "\n") > 10 {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestHelpIsACommandToo(t *testing.T) {
	for _, args := range [][2][]string{{{"help"}, {"--help"}}, {{"help", "serve"}, {"serve", "--help"}}} {
		code, got, _ := invoke(t, args[0]...)
		if _, want, _ := invoke(t, args[1]...); code != 0 || got != want || !strings.Contains(got, "Usage: troupe") {
			t.Errorf("%q: exit %d, %q; want %q", args[0], code, got, want)
		}
	}
	if code, _, stderr := invoke(t, "help", "fly"); code != 2 || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestVersionSaysWhichAndOnWhat(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"serve", "--version"}} {
		if code, stdout, _ := invoke(t, args...); code != 0 || !strings.HasPrefix(stdout, "troupe ") || !strings.Contains(stdout, runtime.Version()) {
			t.Errorf("%q: exit %d, %q", args, code, stdout)
		}
	}
	code, stdout, _ := invoke(t, "version")
	if code != 0 || !strings.HasPrefix(stdout, "troupe ") || !strings.Contains(stdout, runtime.Version()) {
		t.Errorf("exit %d, %q", code, stdout)
	}
	code, stdout, _ = invoke(t, "version", "--json")
	if code != 0 || !strings.Contains(stdout, `"go": "`+runtime.Version()+`"`) {
		t.Errorf("exit %d, %q", code, stdout)
	}
}
