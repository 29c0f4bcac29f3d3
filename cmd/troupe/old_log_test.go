package main

import (
	"os"
	"strings"
	"testing"
)

// The log, and what is wanted of it, were written before lines were rounded to six decimals and put
// together in one piece; nothing of it may read otherwise since.
func TestALogOfAnEarlierReleaseIsReportedAndExplainedAsItWasThen(t *testing.T) {
	const log = "../../bench/testdata/requests-2026-12"
	golden := func(kind string) string {
		b, err := os.ReadFile(log + "." + kind + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(b), "\r\n", "\n")
	}
	if code, got, stderr := invoke(t, "report", log+".jsonl"); code != 0 || got != golden("report") {
		t.Errorf("exit %d: %s\ngot\n%s\nwant\n%s", code, stderr, got, golden("report"))
	}
	var lives strings.Builder
	for _, id := range []string{"chatcmpl-7", "chatcmpl-8", "chatcmpl-9", "chatcmpl-10", "chatcmpl-03e01f5f10eb29f010a57af9d658c9bd"} {
		code, got, stderr := invoke(t, "explain", id, log+".jsonl")
		if code != 0 {
			t.Fatalf("%s: exit %d: %s", id, code, stderr)
		}
		lives.WriteString(got + "\n")
	}
	if got := lives.String(); got != golden("explain") {
		t.Errorf("got\n%s\nwant\n%s", got, golden("explain"))
	}
}
