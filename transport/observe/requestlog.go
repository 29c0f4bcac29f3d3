package observe

import (
	"fmt"
	"io"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/troupe-llm/troupe/lifecycle"
)

// Format is how the request log writes a request.
type Format string

// The formats.
const (
	// JSON is one object a line, with the same keys in every line: docs/request-log.md.
	JSON Format = "json"
	// Console is one short line for people. It is not meant to be parsed.
	Console Format = "console"
)

// RequestLog is a lifecycle.Observer that writes one line for each request. Observe appends the
// line to memory and returns; a goroutine writes what has gathered a few times a second, so that a
// slow disk holds up no request. All methods are safe for concurrent use.
type RequestLog struct {
	lines  *lineWriter
	format Format
}

// OpenRequestLog opens the log at path, which is appended to, or at "stdout" or "stderr". That it cannot
// be written is said on complaints (os.Stderr when nil) at the first write that fails and not again until
// one succeeds, which is said too; each is one line and one Write. It is counted as well: see Failures
// and Lost.
func OpenRequestLog(path string, format Format, complaints io.Writer) (*RequestLog, error) {
	if complaints == nil {
		complaints = os.Stderr
	}
	switch path {
	case "stdout":
		return NewRequestLog(os.Stdout, format, complaints), nil
	case "stderr":
		return NewRequestLog(os.Stderr, format, complaints), nil
	}
	f, err := openLogFile(path)
	if err != nil {
		return nil, fmt.Errorf("request log: %w", err)
	}
	w := newLineWriter(f, path, complaints)
	w.reopen = func() (io.Writer, error) { return openLogFile(path) }
	return newRequestLog(w, format), nil
}

// NewRequestLog returns a log that writes to w. Close does not close w.
func NewRequestLog(w io.Writer, format Format, complaints io.Writer) *RequestLog {
	name := "request log"
	if f, ok := w.(*os.File); ok {
		name = f.Name()
	}
	// Hides w's Close, which is the caller's.
	return newRequestLog(newLineWriter(struct{ io.Writer }{w}, name, complaints), format)
}

func newRequestLog(w *lineWriter, format Format) *RequestLog {
	return &RequestLog{lines: w, format: format}
}

// Format is how the log writes.
func (l *RequestLog) Format() Format { return l.format }

// Reopen closes the log's file and opens its path anew, as after a rotation. Lines observed before
// go to the old file. When the path cannot be opened the old file stays in use. It does nothing for
// a log that is not a file.
func (l *RequestLog) Reopen() error { return l.lines.Reopen() }

// Flush writes what waits in memory, and waits until it is written. Nothing needs it but who wants to
// read the file at once, or to know what writing costs.
func (l *RequestLog) Flush() error { return l.lines.Flush() }

// Close writes what is left and closes the file. It gives up after a few seconds when the writer
// hangs, and says how many lines were lost. Later observations are counted as lost.
func (l *RequestLog) Close() error { return l.lines.Close() }

// Lost is the number of lines that were given up. What waits in memory for a disk that is full is
// not among them yet.
func (l *RequestLog) Lost() uint64 { return l.lines.lost.Load() }

// Failures is the number of writes that failed. While there is something to write, it is tried anew a
// few times a second.
func (l *RequestLog) Failures() uint64 { return l.lines.failures.Load() }

var (
	failuresDesc = prometheus.NewDesc("troupe:request_log_write_errors_total",
		"Writes to the request log that failed; their lines wait in memory and are tried again.", nil, nil)
	lostDesc = prometheus.NewDesc("troupe:request_log_lines_lost_total",
		"Lines of the request log that were given up, since too many waited to be written.", nil, nil)
)

// Describe implements prometheus.Collector.
func (l *RequestLog) Describe(ch chan<- *prometheus.Desc) {
	ch <- failuresDesc
	ch <- lostDesc
}

// Collect implements prometheus.Collector.
func (l *RequestLog) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, float64(l.Failures()))
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(l.Lost()))
}

// Progress implements lifecycle.Observer; the log waits for the Record.
func (l *RequestLog) Progress(*lifecycle.Progress) {}

// Observe implements lifecycle.Observer.
func (l *RequestLog) Observe(r *lifecycle.Record) {
	l.lines.add(func(b []byte) []byte {
		if l.format == Console {
			return appendConsole(b, r)
		}
		return appendLine(b, r)
	})
}
