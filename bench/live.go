package bench

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"
)

// Live shows how a load goes on: on a terminal a few lines that are drawn over and over, elsewhere a
// plain line every ten seconds.
type Live struct {
	w        io.Writer
	terminal bool
	now      func() time.Time

	mu    sync.Mutex
	title string // stands before the phase
	lines int    // on the terminal
	told  time.Time
	phase string
}

// liveWidth is what fits a terminal of the usual 80 columns; a longer line would wrap, and stay.
const liveWidth = 79

const tellEvery = 10 * time.Second

// NewLive returns a view that writes to w, which may be a terminal.
func NewLive(w io.Writer, terminal bool) *Live { return &Live{w: w, terminal: terminal, now: time.Now} }

// Title names what runs from now on; empty: nothing.
func (l *Live) Title(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.title, l.phase = s, ""
}

// Show shows p.
func (l *Live) Show(p Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.terminal {
		now := l.now()
		if p.Phase == l.phase && now.Sub(l.told) < tellEvery {
			return
		}
		l.told, l.phase = now, p.Phase
		fmt.Fprintln(l.w, strings.Join(l.view(p, 0), "; "))
		return
	}
	var b strings.Builder
	l.up(&b)
	view := l.view(p, 20)
	for _, line := range view {
		if r := []rune(line); len(r) > liveWidth {
			line = string(r[:liveWidth-1]) + "…"
		}
		b.WriteString("\x1b[2K" + line + "\n")
	}
	l.lines = len(view)
	_, _ = io.WriteString(l.w, b.String())
}

// up goes back to the beginning of what is drawn.
func (l *Live) up(b *strings.Builder) {
	if l.lines > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r", l.lines)
	}
}

// Say writes a line that stays, above the view.
func (l *Live) Say(format string, args ...any) {
	l.Clear()
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
}

// Clear removes the view from the terminal.
func (l *Live) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == 0 {
		return
	}
	var b strings.Builder
	l.up(&b)
	b.WriteString("\x1b[J")
	l.lines = 0
	_, _ = io.WriteString(l.w, b.String())
}

// view is p in lines; bar is the width of the progress bar, 0 for none.
func (l *Live) view(p Progress, bar int) []string {
	head := p.Phase
	if l.title != "" {
		head = l.title + ": " + head
	}
	part := 0.0
	if p.Total > 0 {
		part = float64(p.Completed+p.Failed) / float64(p.Total)
	}
	if p.Limit > 0 {
		part = max(part, p.Elapsed.Seconds()/p.Limit.Seconds())
	}
	part = min(part, 1)
	if bar > 0 && (p.Total > 0 || p.Limit > 0) {
		n := int(part * float64(bar))
		head += " [" + strings.Repeat("#", n) + strings.Repeat(".", bar-n) + "]"
	}
	head += " " + p.Elapsed.Truncate(time.Second).String()
	if p.Limit > 0 {
		head += " of " + p.Limit.String()
	}
	done := fmt.Sprintf("%d", p.Completed+p.Failed)
	if p.Total > 0 {
		done += fmt.Sprintf(" of %d", p.Total)
	}
	head += ", " + done + " requests done"
	if p.Failed > 0 {
		head += fmt.Sprintf(", %d failed", p.Failed)
	}
	rates := fmt.Sprintf("%d waiting, %d running; %s requests/s, %s tokens/s (mean %s)", p.Waiting, p.Running,
		figure(p.RequestRate), figure(p.OutputRate), figure(p.MeanRate))
	lines := []string{head, rates}
	if !math.IsNaN(p.TTFT50) {
		s := fmt.Sprintf("TTFT %s ms, p99 %s", figure(p.TTFT50), figure(p.TTFT99))
		if !math.IsNaN(p.TPOT50) {
			s += fmt.Sprintf("; TPOT %s ms, p99 %s", figure(p.TPOT50), figure(p.TPOT99))
		}
		lines = append(lines, s)
	}
	return lines
}
