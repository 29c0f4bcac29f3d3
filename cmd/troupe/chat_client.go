package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-llm/troupe/bench"
)

// chatClient talks to a server of OpenAI's API: another process's, or the one in this process.
type chatClient struct {
	base  *url.URL // what /v1 comes after
	key   string   // empty: none is sent
	http  *http.Client
	where string // what messages call the server
}

// chatMessage is one message of a conversation.
type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatAnswer is what came of a request, as far as it came.
type chatAnswer struct {
	Text    string
	Reason  string       // finish_reason; empty when the answer was not ended by the server
	Usage   *chatUsage   // nil: the server told none
	Metrics *chatMetrics // nil: the server told none

	// By this process's clock: from the request to the first text, and from there to the last.
	// Negative when there was no text.
	First, Rest time.Duration
}

// chatUsage is OpenAI's usage object.
type chatUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// chatMetrics is the metrics object of Troupe and of vLLM. What is null is nil.
type chatMetrics struct {
	TTFT      *float64 `json:"time_to_first_token_ms"`
	Queue     *float64 `json:"queue_time_ms"`
	ITL       *float64 `json:"mean_itl_ms"`
	PerSecond *float64 `json:"tokens_per_second"`
	Detail    *struct {
		ITL *struct {
			P99 *float64 `json:"p99"`
		} `json:"itl_ms"`
	} `json:"detail"`
}

// serverError is a refusal in the server's own words.
type serverError struct {
	status  int // of HTTP; 0 when it came within a stream
	code    string
	message string
}

func (e *serverError) Error() string {
	switch e.status {
	case 0:
		return e.message
	case http.StatusUnauthorized:
		return e.message + " (HTTP 401: give the server's key with --api-key or in TROUPE_API_KEY)"
	}
	return fmt.Sprintf("%s (HTTP %d)", e.message, e.status)
}

// contextFull says whether the conversation was refused for its length. OpenAI has a code for that; vLLM
// and Troupe, whose codes are numbers, have OpenAI's words.
func (e *serverError) contextFull() bool {
	return e.code == "context_length_exceeded" || strings.Contains(e.message, "maximum context length")
}

// errLost is the end of a stream before its end; errWhole, the mark at its end.
var (
	errLost  = errors.New("the connection was lost before the answer's end")
	errWhole = errors.New("the answer's end")
)

// Most bytes that are read of a list of models, and of a refusal.
const (
	maxList    = 8 << 20
	maxRefusal = 64 << 10
)

// newChatClient makes a client of the server at a URL, with or without /v1 at its end.
func newChatClient(address, key string) (*chatClient, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%q is not a server's URL: write http://HOST:PORT or https://HOST:PORT", address)
	}
	u.RawQuery, u.Fragment = "", ""
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	return &chatClient{base: u, key: key, http: &http.Client{Transport: transport, CheckRedirect: noRedirect}, where: u.Redacted()}, nil
}

// noRedirect keeps a redirection as the answer: the key and the conversation are for the server that
// was named, and for no other.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// do sends a request and returns the response if it is one of success; the caller closes its body.
func (c *chatClient) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "text/event-stream")
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	// A kept connection may have been closed by a server that was restarted meanwhile. With this entry,
	// which is not sent, net/http tries such a request on a new one: asking again costs nothing but work.
	r.Header["Idempotency-Key"] = nil
	response, err := c.http.Do(r)
	if err != nil {
		return nil, c.unreached(ctx, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	e := readRefusal(b)
	e.status = response.StatusCode
	if location := response.Header.Get("Location"); location != "" && e.message == "" {
		e.message = "it points to " + printable(location) + ": if that is where the server is, give that as --url"
	}
	if e.message == "" {
		e.message = "the server gives no reason"
	}
	return nil, e
}

// unreached says in words why a request got no answer.
func (c *chatClient) unreached(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var wrapped *url.Error // its message repeats the URL
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	const winRefused = syscall.Errno(10061) // WSAECONNREFUSED
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, winRefused) {
		return fmt.Errorf("no server answers at %s: start one there with troupe serve, or give another --url", c.where)
	}
	return fmt.Errorf("%s cannot be reached: %w", c.where, err)
}

// models are the names of what the server serves.
func (c *chatClient) models(ctx context.Context) ([]string, error) {
	response, err := c.do(ctx, http.MethodGet, "v1/models", nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var list struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(io.LimitReader(response.Body, maxList)).Decode(&list); err != nil {
		return nil, fmt.Errorf("%s does not list its models as OpenAI's API does: is %s the right address?", c.where, c.base.JoinPath("v1/models"))
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s serves no model", c.where)
	}
	return names, nil
}

// ask sends a chat request and hands its text to emit as it comes; thought is text of the model's
// reasoning, which servers that tell it apart send before the answer. What came before an error is in
// the answer too, and before the context's end.
func (c *chatClient) ask(ctx context.Context, request map[string]any, emit func(text string, thought bool)) (answer *chatAnswer, err error) {
	answer = &chatAnswer{First: -1, Rest: -1}
	body, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	began := time.Now()
	response, err := c.do(ctx, http.MethodPost, "v1/chat/completions", body)
	if err != nil {
		return answer, err
	}
	// The server stops decoding as soon as it sees that nobody listens: close without reading on.
	defer response.Body.Close()
	var text strings.Builder
	defer func() { answer.Text = text.String() }()
	take := func(data []byte, _ int64) error {
		if string(data) == "[DONE]" {
			return errWhole
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content          string `json:"content"`
					Reasoning        string `json:"reasoning"`
					ReasoningContent string `json:"reasoning_content"`
				} `json:"delta"`
				Reason string `json:"finish_reason"`
			} `json:"choices"`
			Usage   *chatUsage      `json:"usage"`
			Metrics *chatMetrics    `json:"metrics"`
			Error   json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(data, &chunk); err != nil {
			return fmt.Errorf("the server sent what is no chunk of an answer: %s", printable(string(data[:min(len(data), 100)])))
		}
		if len(chunk.Error) > 0 && string(chunk.Error) != "null" {
			e := readRefusal(data)
			if e.message == "" {
				e.message = "the server gives no reason"
			}
			return e
		}
		if chunk.Usage != nil {
			answer.Usage = chunk.Usage
		}
		if chunk.Metrics != nil {
			answer.Metrics = chunk.Metrics
		}
		for _, choice := range chunk.Choices {
			delta := choice.Delta
			thought := delta.Reasoning
			if thought == "" {
				thought = delta.ReasoningContent // some servers send both, and the same
			}
			if thought != "" || delta.Content != "" {
				if answer.First < 0 {
					answer.First = time.Since(began)
				}
				answer.Rest = time.Since(began) - answer.First
			}
			if thought != "" {
				emit(thought, true)
			}
			if delta.Content != "" {
				text.WriteString(delta.Content)
				emit(delta.Content, false)
			}
			if choice.Reason != "" {
				answer.Reason = choice.Reason
			}
		}
		return nil
	}
	var events bench.Events
	var buf [16 << 10]byte
	for {
		n, err := response.Body.Read(buf[:])
		if ctx.Err() != nil {
			return answer, ctx.Err()
		}
		if taken := events.Feed(buf[:n], 0, take); errors.Is(taken, errWhole) {
			return answer, nil
		} else if taken != nil {
			return answer, taken
		}
		var wrapped net.Error
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.As(err, &wrapped):
			return answer, errLost
		default:
			return answer, fmt.Errorf("reading the answer: %w", err)
		}
	}
}

// readRefusal finds the reason in the body of a refusal: OpenAI's error object, or one of the shapes
// that other servers have. Without one the message is the beginning of the text, if it is text.
func readRefusal(body []byte) *serverError {
	var shapes struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	e := &serverError{}
	if json.Unmarshal(body, &shapes) != nil {
		if text := strings.TrimSpace(string(body)); !strings.HasPrefix(text, "<") { // a page says nothing here
			e.message = printable(text)
		}
		return e
	}
	var inner struct {
		Message string          `json:"message"`
		Code    json.RawMessage `json:"code"` // a string with OpenAI, a number with vLLM
	}
	_ = json.Unmarshal(shapes.Error, &inner)
	e.message = inner.Message
	_ = json.Unmarshal(inner.Code, &e.code)
	for _, other := range []json.RawMessage{shapes.Error, shapes.Detail} {
		if e.message == "" {
			_ = json.Unmarshal(other, &e.message)
		}
	}
	if e.message == "" {
		e.message = shapes.Message
	}
	e.message = printable(e.message)
	return e
}
