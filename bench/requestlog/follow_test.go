package requestlog

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALogIsFollowedThroughRotationAndTruncation(t *testing.T) {
	name := filepath.Join(t.TempDir(), "requests.jsonl")
	write := func(flags int, text string) {
		t.Helper()
		f, err := os.OpenFile(name, flags|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(0, "one\n")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := Follow(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	lines := bufio.NewReader(r)
	want := func(text string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); err != nil || line != text+"\n" {
			t.Fatalf("got %q, %v; want %q", line, err, text)
		}
	}
	want("one")
	write(os.O_APPEND, "two\nthr")
	want("two")
	write(os.O_APPEND, "ee\nfour, cut o")
	want("three")
	if err := os.Rename(name, name+".1"); err != nil {
		t.Skip("this system does not rename a file that is open:", err)
	}
	write(os.O_EXCL, "five\n")
	want("four, cut o")
	want("five")
	write(os.O_TRUNC, "six\n")
	want("six")
	cancel()
	if _, err := lines.ReadString('\n'); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}

func TestWhatDoesNotGrowIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	packed := filepath.Join(dir, "requests.gz")
	if err := os.WriteFile(packed, []byte("\x1f\x8b\x08\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{dir: "is no file", packed: "is packed with gzip", filepath.Join(dir, "none"): "none"} {
		if _, err := Follow(context.Background(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
