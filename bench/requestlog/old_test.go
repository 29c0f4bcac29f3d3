package requestlog

import (
	"bytes"
	"os"
	"testing"
)

// The file was written when means and rates still had all the digits of a float64.
func TestLinesOfAnEarlierReleaseReadAsEncodingJSONReadsThem(t *testing.T) {
	b, err := os.ReadFile("../testdata/requests-2026-12.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	n, events := 0, 0
	for line := range bytes.Lines(b) {
		var e Entry
		if err := Scan(bytes.TrimSpace(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		same(t, e, entry(t, line))
		life, err := e.Events()
		if err != nil {
			t.Fatal(err)
		}
		n, events = n+1, events+len(life)
	}
	if n != 10 || events != 47 {
		t.Fatalf("%d lines with %d events, want 10 with 47", n, events)
	}
}
