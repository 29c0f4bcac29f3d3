//go:build !windows

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestAnInterruptedProofEndsWithWhatThereIs(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it computes for some seconds")
	}
	for _, c := range []struct {
		at   string // the line after which it is interrupted
		code int
	}{
		{"conformance: the suite of all devices", exitError}, // nothing is proved
		{"speeds: decode of 1:", exitOK},                     // all that must be is
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cmd := command(t, ctx, "prove", "--device", "cpu", "--json", "-")
		var out bytes.Buffer
		cmd.Stdout = &out
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var told strings.Builder
		sent := false
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			told.WriteString(lines.Text() + "\n")
			if !sent && strings.Contains(lines.Text(), c.at) {
				sent = true
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !sent {
			t.Errorf("at %q: exit %d, wanted %d\n%s", c.at, code, c.code, &told)
		}
		var r struct {
			OK          bool
			Interrupted bool
			Speeds      []struct{ Decode []any }
			LeftOut     []string `json:"left_out"`
		}
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatalf("at %q: %v\n%s\n%s", c.at, err, &out, &told)
		}
		if !r.Interrupted || r.OK != (c.code == exitOK) || len(r.LeftOut) == 0 || r.OK && (len(r.Speeds) != 1 || len(r.Speeds[0].Decode) == 0) {
			t.Errorf("at %q: %s", c.at, &out)
		}
		if !strings.Contains(told.String(), "what must be shown") {
			t.Errorf("at %q there is no table: %s", c.at, &told)
		}
	}
}
