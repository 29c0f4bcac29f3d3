package bench

import (
	"bytes"
	"errors"
)

// maxEvent bounds one event of a stream, in bytes.
const maxEvent = 16 << 20

// ErrLongEvent is Events' error of an event that is longer than any that could be meant.
var ErrLongEvent = errors.New("an event of more than 16 MiB")

// Events takes a stream of server-sent events apart, as the HTML standard has it
// (https://html.spec.whatwg.org/multipage/server-sent-events.html), from the pieces in which it comes.
// The zero Events is at a stream's beginning.
type Events struct {
	line  []byte // the beginning of a line whose end has not come
	data  []byte // of the event at hand, of several data lines
	any   bool   // the event has data
	at    int64  // when the end of its last data line came
	cr    bool   // the last piece ended in a carriage return: a line feed may follow
	begun bool   // the byte order mark, if any, has been passed
}

// Feed takes the next piece, which came at at, and calls event with each event's data that it
// completes and with the time at which that came. Data is valid during the call. An error of event
// ends it.
func (s *Events) Feed(piece []byte, at int64, event func(data []byte, at int64) error) error {
	for len(piece) > 0 {
		if s.cr {
			s.cr = false
			if piece[0] == '\n' {
				piece = piece[1:]
				continue
			}
		}
		end := bytes.IndexByte(piece, '\n')
		whole := piece
		if end >= 0 {
			whole = piece[:end]
		}
		if cr := bytes.IndexByte(whole, '\r'); cr >= 0 {
			end, s.cr = cr, true
		}
		if end < 0 {
			if len(s.line)+len(piece) > maxEvent {
				return ErrLongEvent
			}
			s.line = append(s.line, piece...)
			return nil
		}
		line := piece[:end]
		piece = piece[end+1:]
		if len(s.line) > 0 {
			s.line = append(s.line, line...)
			line, s.line = s.line, s.line[:0]
		}
		if err := s.take(line, at, event); err != nil {
			return err
		}
	}
	return nil
}

// End tells of a stream that is over: an event without the blank line that ought to end it counts,
// since some servers leave that out at the end.
func (s *Events) End(event func(data []byte, at int64) error) error {
	if !s.any {
		return nil
	}
	s.any = false
	return event(s.data, s.at)
}

// take takes a line without its end.
func (s *Events) take(line []byte, at int64, event func([]byte, int64) error) error {
	if !s.begun {
		s.begun = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if len(line) == 0 {
		if !s.any {
			return nil
		}
		s.any = false
		return event(s.data, s.at)
	}
	value, ok := bytes.CutPrefix(line, []byte("data"))
	if !ok || len(value) > 0 && value[0] != ':' {
		return nil // a comment, or a field that is not about us
	}
	if len(value) > 0 {
		value = value[1:]
	}
	value = bytes.TrimPrefix(value, []byte(" "))
	if !s.any {
		s.data = s.data[:0]
	} else {
		s.data = append(s.data, '\n')
	}
	if len(s.data)+len(value) > maxEvent {
		return ErrLongEvent
	}
	s.data = append(s.data, value...)
	s.any, s.at = true, at
	return nil
}
