package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// ticking is a progress whose clock is moved by hand.
func ticking(terminal bool) (p *progress, out *bytes.Buffer, clock *time.Time) {
	out, clock = &bytes.Buffer{}, &time.Time{}
	*clock = time.Unix(1000, 0)
	p = newProgress(out, terminal)
	p.now = func() time.Time { return *clock }
	return p, out, clock
}

func TestProgressOnATerminalIsOneLineWithRateAndTimeLeft(t *testing.T) {
	p, out, clock := ticking(true)
	const total = 100 << 20
	p.report(0, total, "downloading model.gguf")
	*clock = clock.Add(2 * time.Second)
	p.report(50<<20, total, "downloading model.gguf")
	if strings.Contains(out.String(), "\n") {
		t.Errorf("more than one line: %q", out)
	}
	last := out.String()[strings.LastIndexByte(out.String(), '\r')+1:]
	if want := "downloading model.gguf [######......] 50% of 100 MiB, 25.0 MiB/s, 2s left"; strings.TrimSpace(last) != want {
		t.Errorf("got  %q\nwant %q", last, want)
	}
	p.clear()
	if last := out.String(); !strings.HasSuffix(last, strings.Repeat(" ", p.width)+"\r") {
		t.Errorf("the line is not cleared: %q", last)
	}
}

func TestProgressOnATerminalIsNotDrawnMoreOftenThanSeen(t *testing.T) {
	p, out, clock := ticking(true)
	for i := range 1000 {
		p.report(int64(i), 1000, "reading")
		*clock = clock.Add(time.Millisecond)
	}
	if n := strings.Count(out.String(), "\r"); n > 11 {
		t.Errorf("drawn %d times in a second", n)
	}
}

func TestAShorterLineLeavesNothingOfALongerOne(t *testing.T) {
	p, out, _ := ticking(true)
	p.report(0, 0, "a long description of what is going on")
	p.report(0, 0, "short")
	screen := []byte(strings.Repeat(" ", 60))
	at := 0
	for _, c := range out.Bytes() {
		if c == '\r' {
			at = 0
			continue
		}
		screen[at] = c
		at++
	}
	if got := strings.TrimSpace(string(screen)); got != "short" {
		t.Errorf("the screen shows %q", got)
	}
}

func TestProgressElsewhereIsPlainLinesNowAndThen(t *testing.T) {
	p, out, clock := ticking(false)
	for i := range 1001 {
		p.report(int64(i)<<20, 1000<<20, "downloading")
		*clock = clock.Add(time.Millisecond)
	}
	p.report(0, -1, "unpacking")
	text := out.String()
	if strings.ContainsAny(text, "\r#") {
		t.Errorf("not plain: %q", text)
	}
	if n := strings.Count(text, "\n"); n != 12 { // 0 %, each tenth, and the next thing
		t.Errorf("%d lines:\n%s", n, text)
	}
}

func TestProgressOfUnknownSizeSaysHowMuch(t *testing.T) {
	p, out, _ := ticking(false)
	p.report(5<<20, -1, "downloading")
	if got := out.String(); got != "downloading 5.0 MiB\n" {
		t.Errorf("%q", got)
	}
}

func TestTheLineFitsATerminalOfEightyColumns(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, true)
	now := time.Now()
	p.now = func() time.Time { now = now.Add(time.Second); return now }
	for done := range int64(101) {
		p.report(done<<20, 100<<20, "downloading SmolLM2-135M-Instruct.Q4_1.gguf with pip")
	}
	lines := strings.Split(out.String(), "\r")
	for _, line := range lines {
		if n := utf8.RuneCountInString(strings.TrimRight(line, " ")); n > 79 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if middle := lines[50]; !strings.HasPrefix(middle, "downloading SmolLM2") || !strings.Contains(middle, "% of 100 MiB") || !strings.Contains(middle, "left") {
		t.Errorf("%q", middle)
	}
}

func TestWeightsThatAreConvertedAreShownOnceOnTheirWayToADevice(t *testing.T) {
	var b strings.Builder
	p := newProgress(&b, false)
	p.load(1, 4, "to the GPU")
	p.convert(1, 8, "converting")
	p.load(2, 4, "to the GPU")
	p.convert(8, 8, "converting")
	if said := b.String(); strings.Count(said, "to the GPU") != 1 || strings.Count(said, "converting") != 2 {
		t.Errorf("%q", said)
	}
}
