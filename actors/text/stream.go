// Package text turns a sequence's tokens into its text as they come: whole characters only, and
// nothing that may still turn out to be part of a stop string. It is a request's own text: pure,
// driven by the request actor.
package text

import "github.com/troupe-llm/troupe/model/tokenizer"

// Stops are a request's stop strings, made ready for matching; its streams share them.
type Stops struct {
	strings []string
	// next is the failure function of Knuth, Morris and Pratt for each string: next[i][n] is how
	// much of string i the text ends with when n bytes of it matched, but not a byte more, n at
	// least 1. Matching so costs one step a byte and string, whatever the strings are.
	next [][]int32
}

// NewStops prepares stop strings, none of which may be empty.
func NewStops(stops []string) *Stops {
	s := &Stops{strings: stops, next: make([][]int32, len(stops))}
	for i, p := range stops {
		f := make([]int32, len(p)+1)
		for n, k := 1, int32(0); n < len(p); n++ {
			for k > 0 && p[n] != p[k] {
				k = f[k]
			}
			if p[n] == p[k] {
				k++
			}
			f[n+1] = k
		}
		s.next[i] = f
	}
	return s
}

// Stream is one sequence's text. Make it with New; not safe for concurrent use.
type Stream struct {
	dec   tokenizer.Decoder
	stops *Stops
	keep  bool // leave the stop string in the text
	// matched is, for each stop string, how much of it the text ends with; hold is the text's end
	// of the length of the largest of them.
	matched []int32
	hold    []byte
	done    bool
}

// New returns a stream for a sequence that ends at any of the stop strings.
func New(t *tokenizer.Tokenizer, stops *Stops, includeStop, skipSpecial bool) Stream {
	return Stream{dec: t.NewDecoder(skipSpecial), stops: stops, keep: includeStop, matched: make([]int32, len(stops.strings))}
}

// Push takes the next token and appends to dst the text that became certain. When the token
// completes a stop string, stop is that string (of several that end together the longest), and the
// stream is over: the text before it (with it, if asked for) has been appended and what follows in
// the token is dropped. While active is false, stop strings are not looked for: the sequence has
// not reached its minimum length.
func (s *Stream) Push(dst []byte, id int32, active bool) (out []byte, stop string) {
	if s.done {
		return dst, ""
	}
	if len(s.matched) == 0 {
		return s.dec.Push(dst, id), ""
	}
	from := len(s.hold)
	s.hold = s.dec.Push(s.hold, id)
	for at := from; at < len(s.hold); at++ {
		if stop = s.step(s.hold[at], active); stop != "" {
			end := at + 1
			if !s.keep {
				end -= len(stop)
			}
			dst = append(dst, s.hold[:end]...)
			s.done, s.hold = true, nil
			return dst, stop
		}
	}
	longest := 0
	for _, n := range s.matched {
		longest = max(longest, int(n))
	}
	certain := len(s.hold) - longest
	dst = append(dst, s.hold[:certain]...)
	s.hold = append(s.hold[:0], s.hold[certain:]...)
	return dst, ""
}

// step takes the text's next byte and returns the longest stop string that ends with it. When that
// doesn't count, a stop string may still begin within one that is complete.
func (s *Stream) step(c byte, active bool) (stop string) {
	for i, p := range s.stops.strings {
		n := s.matched[i]
		for n > 0 && p[n] != c {
			n = s.stops.next[i][n]
		}
		if p[n] == c {
			n++
		}
		if int(n) == len(p) {
			if active && len(p) > len(stop) {
				stop = p
			}
			n = s.stops.next[i][n]
		}
		s.matched[i] = n
	}
	return stop
}

// Flush ends the stream and appends what was held back: the beginning of a stop string that never
// came, and an incomplete character as the tokenizer renders it. Without effect after a stop.
func (s *Stream) Flush(dst []byte) []byte {
	if s.done {
		return dst
	}
	s.done = true
	dst = append(dst, s.hold...)
	s.hold = nil
	return s.dec.Flush(dst)
}
