package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/troupe-llm/troupe/model/fetch"
)

// progress shows how far something long has come: on a terminal one line that is drawn again and
// again, elsewhere a plain line now and then.
type progress struct {
	mu         sync.Mutex // devices load their weights on threads of their own
	converting bool       // weights are converted as they are loaded, and that is shown
	w          io.Writer
	terminal   bool
	now        func() time.Time

	what      string
	began     time.Time // when this what began, and
	from      int64     // how far it was then
	drawn     time.Time
	width     int // of the line on the terminal
	toldTenth int64
}

const (
	drawEvery = 100 * time.Millisecond
	tellEvery = 10 * time.Second
	barWidth  = 12
	lineWidth = 79 // of a terminal of the usual 80 columns: a longer line would wrap, and stay
)

func newProgress(w io.Writer, terminal bool) *progress {
	return &progress{w: w, terminal: terminal, now: time.Now}
}

// report is a fetch.Progress.
func (p *progress) report(done, total int64, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(done, total, what)
}

// convert shows how far the conversion of weights has come, which happens as a device loads them: it is an
// hf.Progress.
func (p *progress) convert(done, total int64, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.converting = true
	p.show(done, total, what)
}

// load shows how many weights a device has, unless they are converted meanwhile.
func (p *progress) load(done, total int64, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.converting {
		p.show(done, total, what)
	}
}

func (p *progress) show(done, total int64, what string) {
	now := p.now()
	first := what != p.what
	if first {
		p.erase()
		p.what, p.began, p.from, p.toldTenth = what, now, done, 0
	}
	complete := total > 0 && done >= total
	if p.terminal {
		if first || complete || now.Sub(p.drawn) >= drawEvery {
			p.draw(now, done, total)
		}
		return
	}
	tenth := int64(0)
	if total > 0 {
		tenth = 10 * done / total
	}
	if first || tenth > p.toldTenth || now.Sub(p.drawn) >= tellEvery {
		p.drawn, p.toldTenth = now, tenth
		fmt.Fprintln(p.w, p.line(now, done, total, ""))
	}
}

// draw replaces the line on the terminal.
func (p *progress) draw(now time.Time, done, total int64) {
	p.drawn = now
	bar := ""
	if total > 0 {
		n := int(min(done, total) * barWidth / total)
		bar = " [" + strings.Repeat("#", n) + strings.Repeat(".", barWidth-n) + "]"
	}
	line := []rune(p.line(now, done, total, bar))
	if over := len(line) - lineWidth; over > 0 {
		// What it is about gives way to how far it has come.
		what := []rune(p.what)
		kept := max(len(what)-over-1, 0)
		line = append(append(what[:kept:kept], '…'), line[len(what):]...)
	}
	fmt.Fprint(p.w, "\r", string(line), strings.Repeat(" ", max(p.width-len(line), 0)))
	p.width = len(line)
}

func (p *progress) line(now time.Time, done, total int64, bar string) string {
	var b strings.Builder
	b.WriteString(p.what)
	b.WriteString(bar)
	if total <= 0 {
		if done > 0 {
			fmt.Fprintf(&b, " %s", fetch.SizeText(done))
		}
		return b.String()
	}
	fmt.Fprintf(&b, " %d%% of %s", 100*min(done, total)/total, fetch.SizeText(total))
	elapsed := now.Sub(p.began).Seconds()
	if gained := done - p.from; gained > 0 && elapsed >= 0.5 {
		rate := float64(gained) / elapsed
		fmt.Fprintf(&b, ", %s/s", fetch.SizeText(int64(rate)))
		if done < total {
			left := time.Duration(float64(total-done) / rate * float64(time.Second))
			fmt.Fprintf(&b, ", %v left", max(left.Round(time.Second), time.Second))
		}
	}
	return b.String()
}

// clear removes the line from the terminal, so that something else can be written.
func (p *progress) clear() {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.erase()
	}
}

func (p *progress) erase() {
	if p.width > 0 {
		fmt.Fprint(p.w, "\r", strings.Repeat(" ", p.width), "\r")
		p.width = 0
	}
}
