package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/transport"
)

// chatCmd talks to a model in a terminal: one of this process, or a server's.
type chatCmd struct {
	URL    string `name:"url" placeholder:"URL" help:"Talk to the server there, of Troupe's or any other with OpenAI's API. Default: to a model in this process." group:"Chat"`
	Name   string `name:"model" placeholder:"NAME" help:"With --url, which of the server's models. Default: its first." group:"Chat"`
	APIKey string `name:"api-key" placeholder:"[NAME:]KEY" help:"With --url, the server's key; a name before a colon is left out. Default: the first one in the environment variable TROUPE_API_KEY, or else VLLM_API_KEY." group:"Chat"`

	Prompt      *string  `placeholder:"TEXT" help:"Ask this, print the answer, and end. Without it, what stdin holds is asked if that is no terminal." group:"Chat"`
	System      string   `placeholder:"TEXT" help:"The system message. Default: the model's, if it has one." group:"Chat"`
	Temperature *float64 `placeholder:"N" help:"Randomness of the answers: 0 for none. Default: the model's." group:"Chat"`
	MaxTokens   count    `placeholder:"N" help:"Most tokens of an answer. Default: as many as fit." group:"Chat"`
	Metrics     bool     `help:"Show each answer's time to first token, time in the queue, rates and cached tokens." group:"Chat"`
	History     string   `placeholder:"FILE" help:"Where what you send is kept for the arrow keys, the last 1000 messages; none for nowhere. Default: chat-history in your folder for program state." group:"Chat"`

	engineFlags
}

// Help implements kong.HelpProvider.
func (*chatCmd) Help() string {
	return `Without --url a model is loaded into this process, as troupe serve would, but nobody else can reach
it. Examples:

  troupe chat
  troupe chat model.gguf --metrics
  troupe chat --url http://127.0.0.1:8000
  troupe chat --prompt "Why is the sky blue?" --max-tokens 100
  echo "Why is the sky blue?" | troupe chat

In the chat, /help lists the commands. """ begins and ends a message of several lines. Ctrl-C stops an
answer; Ctrl-D leaves.

Exit status: 0 after a chat, or a whole answer; 1 when there was none; 2 when the flags make no sense.`
}

// engineGroups are the groups of flags that are about a model in this process.
var engineGroups = []string{"Model", "Device and scheduling", "Simulated device (--device sim)"}

// forServer refuses what is about a model in this process, where --url names a server: the model, and flags.
func forServer(given *kong.Context, model string) error {
	if model != "" {
		return fmt.Errorf("%s is for a model in this process, but --url names a server: remove one; --model NAME chooses among the server's", model)
	}
	for _, p := range given.Path {
		if f := p.Flag; f != nil && f.Group != nil && slices.Contains(engineGroups, f.Group.Key) && f.Name != "seed" {
			return fmt.Errorf("--%s is for a model in this process, but --url names a server: remove one", f.Name)
		}
	}
	return nil
}

// Validate implements kong's interface.
func (c *chatCmd) Validate(given *kong.Context) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.URL == "" {
		if c.Name != "" {
			return modelFlag(given, c.Name)
		}
		if c.APIKey != "" {
			return errors.New("--api-key is for a server: name it with --url, or remove --api-key")
		}
	} else {
		if _, err := newChatClient(c.URL, ""); err != nil {
			return fmt.Errorf("--url: %w", err)
		}
		if err := forServer(given, c.Model); err != nil {
			return err
		}
	}
	switch {
	case c.Prompt != nil && strings.TrimSpace(*c.Prompt) == "":
		return errors.New("--prompt is empty: give the text to ask")
	case c.Temperature != nil && !(*c.Temperature >= 0 && *c.Temperature <= 2):
		return fmt.Errorf("--temperature is %v, but must be between 0 and 2", *c.Temperature)
	}
	return nil
}

// maxPiped is the most that is asked from stdin, in bytes.
const maxPiped = 16 << 20

// Run implements the command.
func (c *chatCmd) Run(stdout io.Writer, stderr stderrWriter) error {
	interactive := c.Prompt == nil && terminal(os.Stdin)
	var question string
	switch {
	case c.Prompt != nil:
		question = *c.Prompt
	case !interactive:
		b, err := io.ReadAll(io.LimitReader(os.Stdin, maxPiped+1))
		if err != nil {
			return fmt.Errorf("reading the question from stdin: %w", err)
		}
		if len(b) > maxPiped {
			return fmt.Errorf("stdin holds more than %v, which is too long a question", byteSize(maxPiped))
		}
		if question = strings.TrimRight(strings.ToValidUTF8(string(b), "\ufffd"), "\r\n"); strings.TrimSpace(question) == "" {
			return usageError{errors.New("there is nothing to ask: stdin is empty; give a question there or with --prompt, or start in a terminal")}
		}
	}

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	opening, opened := signalContext(signals)
	client, model, end, err := c.connect(opening, stderr)
	interrupted := opened()
	if err != nil {
		return err
	}
	defer end()
	if interrupted != nil {
		return interrupted
	}

	colour := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	onScreen := func(w io.Writer) *screen {
		is := terminal(w)
		if is {
			enableEscapes(w)
		}
		return &screen{w: w, terminal: is, colour: is && colour}
	}
	s := &chatSession{
		client: client, model: model, system: c.System, params: c.params(), metrics: c.Metrics, once: !interactive,
		out: onScreen(stdout), notes: onScreen(stderr.Writer), signal: signals,
	}
	if !interactive {
		if err := s.say(question); errors.Is(err, errStopped) || errors.Is(err, errTerminated) {
			return fmt.Errorf("the answer was %w", err)
		} else if err != nil {
			return err
		}
		return s.out.failed
	}

	if s.out.terminal {
		s.notes = s.out // so that they stay in order
	}
	path := c.History
	switch path {
	case "":
		path = historyPath()
	case "none":
		path = ""
	}
	h, err := openHistory(path)
	if err != nil {
		s.complain(fmt.Errorf("the history of former chats: %w", err))
	}
	where := "in this process (--url: at a server)"
	if c.URL != "" {
		where = "at " + client.where
	}
	s.note("%s, %s. /help: commands; Ctrl-D: leave.", model, where)
	editor := newLineEditor(os.Stdin, s.notes.w, h, completeCommand)
	err = s.interactive(editor.readLine, h.remember)
	if errors.Is(err, errTerminated) {
		editor.restore()
		fmt.Fprintln(s.notes)
		return nil
	}
	return err
}

// left says whether a signal asks the program to end, and not just an answer.
func left(s os.Signal) bool { return s != os.Interrupt }

// params are the flags that are fields of each request.
func (c *chatCmd) params() map[string]any {
	p := map[string]any{}
	if c.Temperature != nil {
		p["temperature"] = *c.Temperature
	}
	if c.MaxTokens > 0 {
		p["max_tokens"] = int64(c.MaxTokens)
	}
	if c.Seed != nil {
		p["seed"] = int64(*c.Seed) // the API's seeds have a sign
	}
	return p
}

// connect makes a client of the server, or of one that it starts in this process. end ends that.
func (c *chatCmd) connect(ctx context.Context, stderr stderrWriter) (client *chatClient, model string, end func(), err error) {
	if c.URL == "" {
		return c.inProcess(ctx, stderr)
	}
	given, from := []string{c.APIKey}, "--api-key"
	if c.APIKey == "" {
		from = "the environment's API keys"
		if given, err = keysFromEnvironment(); err != nil {
			return nil, "", nil, usageError{err}
		}
	}
	// As for serve, a name and a colon may come before a key.
	keys, err := transport.ParseKeys(given)
	if err != nil {
		return nil, "", nil, usageError{fmt.Errorf("%s: %w", from, err)}
	}
	key := ""
	if len(keys) > 0 {
		key = keys[0].Secret
	}
	if client, err = newChatClient(c.URL, key); err != nil {
		return nil, "", nil, usageError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	names, err := client.models(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, "", nil, fmt.Errorf("%s did not answer within %v", client.where, listTime)
	case err != nil:
		return nil, "", nil, err
	case c.Name == "":
		model = names[0]
	case !slices.Contains(names, c.Name):
		for i, n := range names {
			names[i] = printable(n)
		}
		return nil, "", nil, fmt.Errorf("%s serves no model %s, but %s", client.where, c.Name, strings.Join(names, ", "))
	default:
		model = c.Name
	}
	return client, model, client.http.CloseIdleConnections, nil
}

// inProcess starts the server in this process, on connections that exist only within it: the client is
// the same as for any other server, while nobody else can reach this one.
func (c *chatCmd) inProcess(ctx context.Context, stderr stderrWriter) (client *chatClient, model string, end func(), err error) {
	e, err := c.open(ctx, stderr)
	if err != nil {
		return nil, "", nil, err
	}
	log := zerolog.New(zerolog.ConsoleWriter{Out: stderr.Writer, TimeFormat: time.TimeOnly, NoColor: true}).Level(zerolog.ErrorLevel).With().Timestamp().Logger()
	rt, err := e.start(actors.Config{Detail: true, Logger: slog.New(zerolog.NewSlogHandler(log))})
	if err != nil {
		e.Close()
		return nil, "", nil, err
	}
	env := e.env([]string{c.name()})
	env.Metrics, env.MetricsDetail = true, true
	server, err := transport.New(transport.Config{Runtime: rt, Env: env, Version: thisBuild().Version, Log: log})
	if err != nil {
		rt.Close()
		e.Close()
		return nil, "", nil, err
	}
	ln := newPipeListener()
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	client = &chatClient{
		base: &url.URL{Scheme: "http", Host: "troupe"}, where: "this process",
		http: &http.Client{Transport: &http.Transport{DialContext: ln.dial}},
	}
	return client, c.name(), func() {
		client.http.CloseIdleConnections()
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = server.Shutdown(now) // whoever has left waits for nothing
		if err := <-served; err != nil {
			fmt.Fprintln(stderr, "troupe:", err)
		}
		rt.Close()
		e.Close()
	}, nil
}

// pipeListener is a net.Listener whose connections are made by its own dial, in memory.
type pipeListener struct {
	made   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{made: make(chan net.Conn), closed: make(chan struct{})}
}

// dial has the signature of http.Transport.DialContext.
func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.made <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.made:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

// pipeAddr is the address of what has none.
type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "this process" }
