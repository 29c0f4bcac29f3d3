package behaviours

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// readAnswer reads one response whole.
func readAnswer(r io.Reader, req *http.Request) (answer, error) {
	resp, err := http.ReadResponse(bufio.NewReader(r), req)
	if err != nil {
		return answer{}, fmt.Errorf("no response: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, fmt.Errorf("the response broke off: %w after %q", err, b)
	}
	return answer{resp, string(b)}, nil
}

// stream reads an event stream frame by frame.
type stream struct {
	t    testing.TB
	conn net.Conn
	sent time.Time
	http *http.Response
	r    *bufio.Reader
}

// frame is one event, or a comment.
type frame struct {
	data    string
	comment bool
	at      time.Time // when it had been read
	chunk   chunk
}

// chunk is a frame of a chat stream.
type chunk struct {
	ID      string
	Choices []struct {
		Index int
		Delta struct {
			Role    string
			Content *string
		}
		Reason  *string `json:"finish_reason"`
		Metrics *metrics
	}
	Usage   *usage
	Metrics *metrics
	Error   *struct{ Message, Type string }
}

// text is the content of all choices; told says whether there is any.
func (f *frame) text() string {
	s := ""
	for _, c := range f.chunk.Choices {
		if c.Delta.Content != nil {
			s += *c.Delta.Content
		}
	}
	return s
}

// request sends a chat request and reads the response's head.
func (h *house) request(body string, headers ...string) *stream {
	h.t.Helper()
	s := h.send(body, headers...)
	s.head()
	if s.http.StatusCode != 200 || !strings.HasPrefix(s.http.Header.Get("Content-Type"), "text/event-stream") {
		b, _ := io.ReadAll(s.http.Body)
		h.t.Fatalf("no stream: %s %s", s.http.Status, b)
	}
	return s
}

// send sends a chat request, and reads nothing.
func (h *house) send(body string, headers ...string) *stream {
	h.t.Helper()
	s := &stream{t: h.t, conn: h.dial(), sent: time.Now()}
	if err := post(s.conn, chatPath, body, headers...); err != nil {
		h.t.Fatal(err)
	}
	return s
}

// head reads the response's head.
func (s *stream) head() {
	s.t.Helper()
	var err error
	if s.http, err = http.ReadResponse(bufio.NewReader(s.conn), nil); err != nil {
		s.t.Fatalf("no response: %v", err)
	}
	s.r = bufio.NewReader(s.http.Body)
}

// next reads a frame. At the end of the body it returns io.EOF.
func (s *stream) next() (frame, error) {
	line, err := s.r.ReadString('\n')
	if err != nil {
		return frame{}, err
	}
	f := frame{at: time.Now()}
	if blank, err := s.r.ReadString('\n'); err != nil || blank != "\n" {
		return f, fmt.Errorf("after %q comes %q, %w", line, blank, err)
	}
	line = strings.TrimSuffix(line, "\n")
	switch data, ok := strings.CutPrefix(line, "data: "); {
	case ok:
		f.data = data
		if !utf8.ValidString(data) {
			return f, fmt.Errorf("not UTF-8: %q", data)
		}
		if data != "[DONE]" {
			if err := json.Unmarshal([]byte(data), &f.chunk); err != nil {
				return f, fmt.Errorf("%w in %s", err, data)
			}
		}
	case strings.HasPrefix(line, ":"):
		f.comment = true
	default:
		return f, fmt.Errorf("no line of an event stream: %q", line)
	}
	return f, nil
}

// frame reads a frame that must come.
func (s *stream) frame() frame {
	s.t.Helper()
	f, err := s.next()
	if err != nil {
		s.t.Fatalf("the stream broke off: %v", err)
	}
	return f
}

// rest reads all frames up to the end, comments left out. The last must be [DONE], which is left out
// too.
func (s *stream) rest() []frame {
	s.t.Helper()
	var fs []frame
	for {
		f, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			s.t.Fatalf("the stream broke off: %v", err)
		}
		if !f.comment {
			fs = append(fs, f)
		}
	}
	if len(fs) == 0 || fs[len(fs)-1].data != "[DONE]" {
		s.t.Fatalf("the stream did not end with [DONE] but as %v", datas(fs))
	}
	return fs[:len(fs)-1]
}

func datas(fs []frame) (all []string) {
	for _, f := range fs {
		all = append(all, f.data)
	}
	return all
}

// content reads on until n frames with content have come.
func (s *stream) content(n int) {
	s.t.Helper()
	for n > 0 {
		if f := s.frame(); f.text() != "" {
			n--
		}
	}
}

// told is what the frames say of choice i together.
func told(fs []frame, i int) (text, reason string) {
	for _, f := range fs {
		for _, c := range f.chunk.Choices {
			if c.Index != i {
				continue
			}
			if c.Delta.Content != nil {
				text += *c.Delta.Content
			}
			if c.Reason != nil {
				reason = *c.Reason
			}
		}
	}
	return text, reason
}

// final is the usage chunk that ends a stream.
func final(t testing.TB, fs []frame) chunk {
	t.Helper()
	last := fs[len(fs)-1].chunk
	if len(last.Choices) != 0 || last.Usage == nil {
		t.Fatalf("the last frame is no usage chunk: %s", fs[len(fs)-1].data)
	}
	return last
}
