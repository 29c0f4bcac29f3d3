package observe

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/lifecycle"
)

// appendConsole appends the line for people, what is asked most first, so that on a terminal of 80
// columns an ordinary request is one row:
//
//	15:04:05 200 length 40+128 tok ttft 98ms 97 tok/s e2e 1.34s queue 12ms 9f2c1d3a, 16 cached
//
// Of an id it has the beginning, which names a request well enough. How it ended is said unless it came to its
// own end, the endpoint unless it is chat's. What came from the client is stripped of control
// characters: it goes to a terminal.
func appendConsole(b []byte, r *lifecycle.Record) []byte {
	q := r.Request
	b = time.Unix(0, r.Wall).AppendFormat(b, "15:04:05 ")
	b = strconv.AppendInt(b, int64(r.Status), 10)
	b = append(b, ' ')
	if q.Endpoint == "" {
		b = appendPlain(b, r.Method, maxText)
		b = append(b, ' ')
		b = appendPlain(b, r.Path, maxText)
		b = append(b, ' ')
	}
	if r.Outcome != lifecycle.OutcomeStop {
		b = append(append(b, r.Outcome...), ' ')
	}
	b = b[:len(b)-1]
	if r.Outcome != lifecycle.OutcomeRefused {
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(r.Usage.Prompt), 10)
		b = append(b, '+')
		b = strconv.AppendInt(b, int64(r.Usage.Completion), 10)
		b = append(b, " tok"...)
		if r.FirstToken != 0 {
			b = appendSpan(append(b, " ttft "...), r.FirstToken-r.Arrival)
		}
		if v, ok := r.Metrics.TokensPerSecond.Get(); ok {
			digits := 0
			if v < 10 {
				digits = 1
			}
			b = append(b, ' ')
			b = strconv.AppendFloat(b, v, 'f', digits, 64)
			b = append(b, " tok/s"...)
		}
		b = appendSpan(append(b, " e2e "...), r.Finished-r.Arrival)
		if r.Scheduled != 0 {
			b = appendSpan(append(b, " queue "...), r.Scheduled-r.Queued)
		}
	}
	if q.ExternalID != "" {
		b = appendPlain(append(b, ' '), shortID(q.ExternalID), maxText)
	}
	if q.Endpoint != "" && q.Endpoint != "chat" {
		b = appendPlain(append(b, ", "...), q.Endpoint, maxText)
	}
	if r.Usage.Cached > 0 {
		b = append(b, ", "...)
		b = strconv.AppendInt(b, int64(r.Usage.Cached), 10)
		b = append(b, " cached"...)
	}
	if r.Detail.Preemptions > 0 {
		b = append(b, ", preempted "...)
		b = strconv.AppendInt(b, int64(r.Detail.Preemptions), 10)
		b = append(b, "×"...)
	}
	if q.KeyName != "" {
		b = appendPlain(append(b, ", key "...), q.KeyName, maxText)
	}
	if r.Err != nil {
		b = appendPlain(append(b, ": "...), r.Err.Message, maxMessage)
	}
	return append(b, '\n')
}

// shortID is the beginning of an id, without what says of which kind it is (chatcmpl-, cmpl-, resp_).
func shortID(id string) string {
	const enough = 8
	if i := strings.IndexAny(id, "-_"); i >= 0 && len(id)-i-1 >= enough {
		id = id[i+1:]
	}
	for n := range id {
		if n >= enough {
			return id[:n]
		}
	}
	return id
}

// appendSpan appends a duration in nanoseconds, short: 850µs, 8.5ms, 85ms, 1.34s, 13.4s.
func appendSpan(b []byte, d int64) []byte {
	d = max(d, 0)
	v, unit, digits := float64(d)/1e9, "s", 2
	switch {
	case d < 1e6:
		v, unit, digits = float64(d)/1e3, "µs", 0
	case d < 10e6:
		v, unit, digits = float64(d)/1e6, "ms", 1
	case d < 1e9:
		v, unit, digits = float64(d)/1e6, "ms", 0
	case d >= 100e9:
		digits = 0
	case d >= 10e9:
		digits = 1
	}
	return append(strconv.AppendFloat(b, v, 'f', digits, 64), unit...)
}

// appendPlain appends s, of at most limit bytes, with a space for what a terminal would act upon.
func appendPlain(b []byte, s string, limit int) []byte {
	for _, c := range cut(s, limit) {
		if unicode.IsControl(c) || c == utf8.RuneError || !unicode.IsPrint(c) {
			c = ' '
		}
		b = utf8.AppendRune(b, c)
	}
	return b
}
