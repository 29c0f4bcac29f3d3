//go:build !windows

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAReportGoesThroughLinksAndIntoWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "requests.jsonl")
	if err := os.WriteFile(log, []byte(`{"version":1,"outcome":"stop"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := invoke(t, "report", log, "-o", link); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if b, err := os.ReadFile(target); err != nil || !strings.Contains(string(b), "1 request:") {
		t.Errorf("the link's target has %q, %v", b, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is one no more: %v, %v", info, err)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	if code, _, stderr := invoke(t, "report", log, "-o", "/dev/full"); code != 1 || !strings.Contains(stderr, "space") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if info, err := os.Stat("/dev/full"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Fatalf("/dev/full is a device no more: %v, %v", info, err)
	}
}

func TestWhatCannotBeWrittenIsNoGoodEnd(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full")
	}
	defer full.Close()
	cmd := command(t, t.Context(), "chat", "--device=sim", "--prompt=hi", "--max-tokens=3")
	cmd.Stdout = full
	if err := cmd.Run(); err == nil {
		t.Error("an answer that went nowhere is an exit of 0")
	}
	for _, flags := range [][]string{{"doctor"}, {"doctor", "--json"}} {
		cmd, errs := command(t, t.Context(), flags...), &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = full, errs
		if err := cmd.Run(); err == nil || !strings.Contains(errs.String(), "no space") {
			t.Errorf("%v whose findings went nowhere: %v, %s", flags, err, errs)
		}
	}
	for _, flags := range [][]string{{"--version"}, {"--help"}, {"serve", "--help"}, {"help", "prove"}} {
		cmd, errs := command(t, t.Context(), flags...), &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = full, errs
		if _ = cmd.Run(); cmd.ProcessState.ExitCode() != exitError || !strings.Contains(errs.String(), "no space") {
			t.Errorf("%v went nowhere: exit %d, %s", flags, cmd.ProcessState.ExitCode(), errs)
		}
	}
	p := start(t, "--device=sim", "--request-log=/dev/full")
	p.post(t, chat)
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != 1 || !strings.Contains(p.stderr.String(), "request log") {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
}
