package bench

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

type stamped struct {
	data string
	at   int64
}

// feedAll feeds pieces, the i-th at time i+1, and ends the stream.
func feedAll(pieces [][]byte) (events []stamped, err error) {
	var s Events
	event := func(data []byte, at int64) error {
		events = append(events, stamped{string(data), at})
		return nil
	}
	for i, p := range pieces {
		if err := s.Feed(p, int64(i+1), event); err != nil {
			return events, err
		}
	}
	return events, s.End(event)
}

func TestEventsAreTakenApartAsTheStandardSays(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		want         []string
	}{
		{"plain", "data: a\n\ndata: b\n\n", []string{"a", "b"}},
		{"no space", "data:a\n\n", []string{"a"}},
		{"one space only", "data:  a\n\n", []string{" a"}},
		{"several lines", "data: a\ndata: b\n\n", []string{"a\nb"}},
		{"carriage returns", "data: a\r\rdata: b\r\r", []string{"a", "b"}},
		{"both", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"comments and other fields", ": hi\nevent: x\nid: 1\ndata: a\nretry: 5\n\n:\n\n", []string{"a"}},
		{"field without colon", "data\n\ndata\ndata\n\n", []string{"", "\n"}},
		{"a field that begins alike", "database: a\n\n", nil},
		{"byte order mark", "\ufeffdata: a\n\n", []string{"a"}},
		{"no end", "data: a\n\ndata: b", []string{"a"}},
		{"no blank line at the end", "data: a\n\ndata: b\n", []string{"a", "b"}},
		{"many blank lines", "\n\n\ndata: a\n\n\n\n", []string{"a"}},
	} {
		events, err := feedAll([][]byte{[]byte(c.stream)})
		var got []string
		for _, e := range events {
			got = append(got, e.data)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestAnEventHasTheTimeAtWhichItsLastLineCame(t *testing.T) {
	events, err := feedAll([][]byte{[]byte("data: a\n\ndata: b\n\nda"), []byte("ta: c\n"), []byte("\n")})
	if want := []stamped{{"a", 1}, {"b", 1}, {"c", 2}}; err != nil || !slices.Equal(events, want) {
		t.Errorf("%v, %v, want %v", events, err, want)
	}
}

func TestAnEventWithoutEndIsRefused(t *testing.T) {
	var s Events
	piece := bytes.Repeat([]byte("x"), 1<<20)
	var err error
	for range 20 {
		if err = s.Feed(piece, 0, func([]byte, int64) error { return nil }); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrLongEvent) {
		t.Error(err)
	}
}

// eventsByLines is the standard's algorithm on the whole text at once.
func eventsByLines(text string) (events []string) {
	text = strings.TrimPrefix(text, "\ufeff")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	lines := strings.Split(text, "\n")
	var data []string
	for _, l := range lines[:len(lines)-1] { // the last has no end
		name, value, _ := strings.Cut(l, ":")
		switch {
		case l == "":
			if data != nil {
				events = append(events, strings.Join(data, "\n"))
			}
			data = nil
		case name == "data":
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	if data != nil {
		events = append(events, strings.Join(data, "\n"))
	}
	return events
}

func FuzzEventsDoNotDependOnThePieces(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\ndata: b\n\n:c\rdata:\n\r"), uint8(3))
	f.Add([]byte("\ufeffdata: {\"choices\":[]}\n\ndata: [DONE]\n\n"), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		var pieces [][]byte
		for p := range slices.Chunk(stream, int(size)+1) {
			pieces = append(pieces, p)
		}
		events, err := feedAll(pieces)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range events {
			got = append(got, e.data)
		}
		if want := eventsByLines(string(stream)); !slices.Equal(got, want) {
			t.Errorf("%q in pieces of %d gives %q, want %q", stream, size+1, got, want)
		}
	})
}
