package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAServersLogIsReportedAndItsTokensAddUp(t *testing.T) {
	log := filepath.Join(t.TempDir(), "requests.jsonl")
	p := start(t, "--device=sim", "--request-log="+log, "--api-key=alice:a", "--api-key=bob:b")
	for _, body := range []string{chat, chat, `{"messages":[{"role":"user","content":"again"}],"max_tokens":7}`} {
		p.keyed(t, "a", body)
	}
	p.keyed(t, "b", chat)
	p.keyed(t, "b", `{"messages":[]}`)
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Skip("no signals here:", err)
	}
	p.wait(t)
	f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString("{broken\n")
	f.Close()

	code, stdout, stderr := invoke(t, "report", log, "--format=json", "--by=key", "--slo=ttft:1h")
	var r struct {
		Total  struct{ Requests, Refused int }
		Groups []struct {
			Values   []string
			Requests int
		}
		Usage struct {
			Lines []struct {
				Key       string
				Completed struct {
					Output int `json:"output_tokens"`
				}
			}
		}
		Read struct {
			Broken int `json:"broken_lines"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &r); code != 0 || err != nil {
		t.Fatalf("exit %d, %v: %s%s", code, err, stdout, stderr)
	}
	if r.Total.Requests != 5 || r.Total.Refused != 1 || r.Read.Broken != 1 || len(r.Groups) != 2 || r.Groups[0].Requests != 3 || r.Groups[0].Values[0] != "alice" {
		t.Errorf("%s", stdout)
	}
	if len(r.Usage.Lines) != 2 || r.Usage.Lines[0].Completed.Output != 47 || r.Usage.Lines[1].Completed.Output != 20 {
		t.Errorf("usage: %+v", r.Usage)
	}
	if !strings.Contains(stderr, log+":6") {
		t.Errorf("the broken line is not named: %q", stderr)
	}

	code, stdout, _ = invoke(t, "report", log, "--where", "key=bob")
	if code != 0 || !strings.Contains(stdout, "2 requests: 1 length, 1 refused") {
		t.Errorf("exit %d: %s", code, stdout)
	}
	for _, format := range []string{"--format=table", "--format=json", "--requests"} {
		args := []string{"report", log, "--where", "key=nobody", format}
		if format == "--requests" {
			args = append(args, "--format=parquet", "-o", filepath.Join(t.TempDir(), "none.parquet"))
		}
		if code, _, stderr := invoke(t, args...); code != 0 || !strings.Contains(stderr, "no line fits --where 'key=nobody': read 5 lines of 1 file") {
			t.Errorf("%s: exit %d: %s", format, code, stderr)
		}
	}
	out := filepath.Join(t.TempDir(), "rows.parquet")
	if code, _, stderr := invoke(t, "report", log, "--format=parquet", "--requests", "-o", out); code != 0 || strings.Contains(stderr, "no line fits") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if b, err := os.ReadFile(out); err != nil || !bytes.HasPrefix(b, []byte("PAR1")) {
		t.Errorf("%v, %.4q", err, b)
	}
	before, _ := os.ReadFile(log)
	code, _, stderr = invoke(t, "report", log, "-o", filepath.Dir(log)+"/./requests.jsonl")
	if after, _ := os.ReadFile(log); code != 1 || !strings.Contains(stderr, "is one of the logs") || !bytes.Equal(before, after) {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// keyed sends a chat request with an API key, and reads the answer.
func (p *process) keyed(t *testing.T, key, body string) {
	t.Helper()
	q, err := http.NewRequest(http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+key)
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
}

func TestReportsThatMakeNoSenseExitWithTwo(t *testing.T) {
	for _, args := range [][]string{
		{"x", "--by=colour"}, {"x", "--where=speed>1"}, {"x", "--where=model>5"}, {"x", "--slo=ttft"}, {"x", "--requests"}, {"--follow"}, {"x", "--slowest-by=model"},
		{"x", "--follow", "--format=csv"}, {"x", "--slowest=-1"}, {"x", "--slo=tpot:1ms", "--slo=itl:1ms"},
		{"x", "--format=csv", "--prices=p"}, {"x", "--format=parquet", "--requests", "--by=model"},
	} {
		if code, _, stderr := invoke(t, append([]string{"report"}, args...)...); code != 2 || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, stderr %q", args, code, stderr)
		}
	}
	if code, _, stderr := invoke(t, "report", filepath.Join(t.TempDir(), "none.jsonl")); code != 1 || !strings.Contains(stderr, "none.jsonl") {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}
