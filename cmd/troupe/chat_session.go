package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// chatSession is a conversation and the person's side of it: what is typed, and what is shown.
type chatSession struct {
	client  *chatClient
	model   string
	system  string         // the system message; empty: none
	params  map[string]any // further fields of each request
	metrics bool           // show each answer's figures
	once    bool           // there is one question and nobody who types commands

	messages []chatMessage
	asked    string // the last message sent, for /retry

	out    *screen
	notes  *screen // what is said besides answers
	signal <-chan os.Signal

	toldOfMetrics bool // that the server sends none
}

// screen is where answers or notes go.
type screen struct {
	w        io.Writer
	terminal bool // what is no text is dropped
	colour   bool
	plain    plainText
	column   int   // characters since the last line feed, to know whether there are any
	failed   error // of the first Write that did
}

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	text := p
	if s.terminal {
		text = s.plain.appendPlain(nil, string(p))
	}
	if len(text) > 0 {
		if text[len(text)-1] == '\n' {
			s.column = 0
		} else {
			s.column++
		}
	}
	if _, err := s.w.Write(text); err != nil {
		if s.failed == nil {
			s.failed = err
		}
		return 0, err
	}
	return len(p), nil
}

// endLine ends a line that has been begun.
func (s *screen) endLine() {
	if s.column > 0 {
		fmt.Fprint(s, "\n")
	}
}

// Styles, as parameters of SGR (ECMA-48, 8.3.117).
const (
	faint = "2"
	bold  = "1"
	red   = "31"
)

// styled writes text in a style, where there are any.
func (s *screen) styled(style, format string, args ...any) {
	if s.colour {
		fmt.Fprintf(s.w, "\x1b[%sm", style)
	}
	fmt.Fprintf(s, format, args...)
	if s.colour {
		fmt.Fprint(s.w, "\x1b[m")
	}
}

// note says something besides the answers, on a line of its own.
func (s *chatSession) note(format string, args ...any) {
	s.notes.styled(faint, format, args...)
	fmt.Fprintln(s.notes)
}

// complain says what went wrong.
func (s *chatSession) complain(err error) {
	s.notes.styled(red, "%v", err)
	fmt.Fprintln(s.notes)
}

// What comes in place of the rest of an answer: after Ctrl-C, and after a signal to end the program.
var (
	errStopped    = errors.New("stopped")
	errTerminated = errors.New("terminated")
)

// say sends a message and shows the answer. Both are then part of the conversation; of an answer that
// was stopped or lost, what came of it; and nothing when none came.
func (s *chatSession) say(text string) error {
	s.asked = text
	var messages []chatMessage
	if s.system != "" {
		messages = append(messages, chatMessage{"system", s.system})
	}
	messages = append(append(messages, s.messages...), chatMessage{"user", text})
	request := map[string]any{
		"model": s.model, "messages": messages, "stream": true, "stream_options": map[string]any{"include_usage": true},
	}
	maps.Copy(request, s.params)

	for len(s.signal) > 0 { // one that came too late for the last answer
		if left(<-s.signal) {
			return errTerminated
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() {
		defer close(watched)
		select {
		case sig := <-s.signal:
			if left(sig) {
				cancel(errTerminated)
			}
			cancel(errStopped)
		case <-ctx.Done():
		}
	}()

	var thinking bool
	answer, err := s.client.ask(ctx, request, func(text string, thought bool) {
		switch {
		case thought && s.notes.terminal: // a pipe is for the answer alone
			thinking = true
			s.notes.styled(faint, "%s", text)
			return
		case thought:
			return
		case thinking:
			thinking = false
			s.notes.endLine()
		}
		fmt.Fprint(s.out, text)
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	s.notes.endLine()
	s.out.endLine()
	if err == nil || answer.Text != "" {
		s.messages = append(s.messages, chatMessage{"user", text}, chatMessage{"assistant", answer.Text})
	}
	if err == nil {
		switch answer.Reason {
		case "length":
			s.cutShort(answer)
		case "stop", "":
		default:
			s.note("(ended: %s)", answer.Reason)
		}
	}
	if s.metrics && answer.First >= 0 {
		s.figures(answer)
	}
	return err
}

// cutShort says why an answer has no end: the tokens that were asked for at most, or else the context.
func (s *chatSession) cutShort(a *chatAnswer) {
	if n, limited := s.params["max_tokens"]; limited && (a.Usage == nil || fmt.Sprint(a.Usage.Completion) == fmt.Sprint(n)) {
		if s.once {
			s.note("(cut short after %v tokens, as --max-tokens says)", n)
		} else {
			s.note("(cut short after max_tokens=%v: /params max_tokens= takes the limit away)", n)
		}
		return
	}
	total := ""
	if a.Usage != nil {
		total = fmt.Sprintf(" at %d tokens", a.Usage.Prompt+a.Usage.Completion)
	}
	s.note("(cut short: the context is full%s, conversation and answer together)", total)
	s.contextAdvice()
}

// contextAdvice says what to do when the context is full.
func (s *chatSession) contextAdvice() {
	if s.once {
		s.note("(a larger --max-model-len holds more, up to what the model was made for)")
		return
	}
	s.note("(/clear begins a new conversation; one started with a larger --max-model-len holds more, up to what the model was made for)")
}

// figures shows an answer's numbers: the server's own if it sends them.
func (s *chatSession) figures(a *chatAnswer) {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if m := a.Metrics; m != nil {
		if m.TTFT != nil {
			add("TTFT %s", milliseconds(*m.TTFT))
		}
		if m.Queue != nil {
			add("queue %s", milliseconds(*m.Queue))
		}
		if m.ITL != nil {
			itl := "ITL " + milliseconds(*m.ITL)
			if m.Detail != nil && m.Detail.ITL != nil && m.Detail.ITL.P99 != nil {
				itl += " (p99 " + milliseconds(*m.Detail.ITL.P99) + ")"
			}
			add("%s", itl)
		}
		if m.PerSecond != nil {
			add("%.1f tokens/s", *m.PerSecond)
		}
	} else {
		add("first text after %s", milliseconds(a.First.Seconds()*1000))
		if a.Usage != nil && a.Usage.Completion > 1 && a.Rest > 0 {
			add("then %.1f tokens/s", float64(a.Usage.Completion-1)/a.Rest.Seconds())
		}
	}
	s.note("[%s]", strings.Join(parts, ", "))
	if u := a.Usage; u != nil {
		s.note("[prompt %d tokens, %d cached; answer %d tokens]", u.Prompt, u.Details.Cached, u.Completion)
	}
	if a.Metrics == nil && a.Reason != "" && !s.toldOfMetrics {
		s.toldOfMetrics = true
		s.note("[by the clock here: a server sends its own with --enable-per-request-metrics]")
	}
}

// milliseconds writes a time in milliseconds for people, with three digits or so.
func milliseconds(ms float64) string {
	switch {
	case ms >= 10_000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 1000:
		return fmt.Sprintf("%.2f s", ms/1000)
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

// interactive reads messages and commands until the person leaves. A message that the server refuses,
// and a server that is gone, are told and do not end it.
func (s *chatSession) interactive(readLine func(prompt string) (string, error), remember func(string) error) error {
	ask, more := ">>> ", "... "
	if s.notes.colour {
		ask = "\x1b[" + bold + "m>>> \x1b[m"
	}
	type typed struct {
		line string
		err  error
	}
	lines := make(chan typed, 1)
	var c composer
	again := false // Ctrl-C in an empty line leaves
	for {
		prompt := ask
		if c.open() {
			prompt = more
		}
		go func() {
			line, err := readLine(prompt)
			lines <- typed{line, err}
		}()
		var got typed
		for waiting := true; waiting; {
			select {
			case got = <-lines:
				waiting = false
			case sig := <-s.signal:
				// While a line is edited Ctrl-C is a key: an interrupt is one that came a moment too late.
				if left(sig) {
					return errTerminated
				}
			}
		}
		if got.err != nil {
			open := c.open()
			c = composer{}
			switch {
			case open && (errors.Is(got.err, errInterrupted) || errors.Is(got.err, io.EOF)):
				s.note("(not sent)")
			case errors.Is(got.err, errNothing) && again, errors.Is(got.err, io.EOF):
				return nil
			case errors.Is(got.err, errNothing):
				s.note("(Ctrl-C once more, or Ctrl-D, leaves)")
				again = true
				continue
			case errors.Is(got.err, errInterrupted):
			default:
				return got.err
			}
			again = false
			continue
		}
		again = false
		text, verbatim, done := c.add(got.line)
		if !done || strings.TrimSpace(text) == "" {
			continue
		}
		entry := text
		if verbatim && strings.HasPrefix(strings.TrimLeft(text, " "), "/") {
			entry = quotes + text + quotes // not a command when it is recalled
		}
		if err := remember(entry); err != nil {
			s.complain(fmt.Errorf("the history is not kept: %w; --history none does without", err))
			remember = func(string) error { return nil }
		}
		leave, err := s.take(text, verbatim)
		switch {
		case errors.Is(err, errTerminated):
			return err
		case errors.Is(err, errStopped):
			s.note("(stopped)")
		case err != nil:
			s.complain(err)
			var refusal *serverError
			if errors.As(err, &refusal) && refusal.contextFull() {
				s.note("(the context is full: the conversation so far and this message are longer together, and it was not sent)")
				s.contextAdvice()
			}
		}
		if leave {
			return nil
		}
		fmt.Fprintln(s.notes)
	}
}

// take does what a message says: a command, or something to ask.
func (s *chatSession) take(text string, verbatim bool) (leave bool, err error) {
	text = strings.TrimRight(text, " \n")
	command, isCommand := strings.CutPrefix(strings.TrimLeft(text, " "), "/")
	switch {
	case verbatim || !isCommand:
		return false, s.say(text)
	case strings.HasPrefix(command, "/"):
		return false, s.say(command) // two slashes are one that is no command
	}
	name, argument, _ := strings.Cut(command, " ")
	argument = strings.TrimSpace(argument)
	if i := strings.IndexByte(name, '\n'); i >= 0 {
		name, argument = name[:i], strings.TrimSpace(name[i:]+" "+argument)
	}
	for _, c := range chatCommands {
		if c.name == name {
			return c.leave, c.do(s, argument)
		}
	}
	return false, fmt.Errorf("there is no command /%s: see /help; to send a text with a slash in front, write //", printable(name))
}

// chatCommand is something typed after a slash.
type chatCommand struct {
	name, argument, help string
	do                   func(s *chatSession, argument string) error
	leave                bool
}

var chatCommands []chatCommand

func init() { // since /help lists them
	chatCommands = []chatCommand{
		{name: "help", help: "this list", do: (*chatSession).help},
		{name: "metrics", help: "show each answer's figures, or no longer", do: (*chatSession).toggleMetrics},
		{name: "clear", help: "forget the conversation", do: (*chatSession).clear},
		{name: "system", argument: "TEXT", help: "set the system message; - removes it; alone: show", do: (*chatSession).setSystem},
		{name: "retry", help: "ask the last message again", do: (*chatSession).retry},
		{name: "save", argument: "FILE", help: "write the conversation as Markdown, or as .json", do: (*chatSession).save},
		{name: "model", argument: "NAME", help: "change to another model; alone: list them", do: (*chatSession).setModel},
		{name: "params", argument: "KEY=VALUE …", help: "set sampling; KEY= is the default; alone: show", do: (*chatSession).setParams},
		{name: "exit", help: "leave; so does Ctrl-D", do: func(*chatSession, string) error { return nil }, leave: true},
	}
}

// completeCommand is what the Tab key adds to a line that begins so.
func completeCommand(before string) string {
	typed, ok := strings.CutPrefix(before, "/")
	if !ok {
		return ""
	}
	for _, candidates := range []func(string) []string{commandsFrom, paramsFrom} {
		if found := candidates(typed); len(found) > 0 {
			common := found[0]
			for _, f := range found[1:] {
				for !strings.HasPrefix(f, common) {
					common = common[:len(common)-1]
				}
			}
			return common[len(typed):]
		}
	}
	return ""
}

func commandsFrom(typed string) (found []string) {
	for _, c := range chatCommands {
		name := c.name
		if c.argument != "" {
			name += " "
		}
		if strings.HasPrefix(name, typed) {
			found = append(found, name)
		}
	}
	return found
}

func paramsFrom(typed string) (found []string) {
	const command = "params "
	if !strings.HasPrefix(typed, command) {
		return nil
	}
	before, last := typed[:strings.LastIndexByte(typed, ' ')+1], typed[strings.LastIndexByte(typed, ' ')+1:]
	for _, name := range paramNames() {
		if strings.HasPrefix(name+"=", last) {
			found = append(found, before+name+"=")
		}
	}
	return found
}

func (s *chatSession) help(string) error {
	for _, c := range chatCommands {
		s.notes.styled(bold, "  %-20s", "/"+strings.TrimSpace(c.name+" "+c.argument))
		fmt.Fprintln(s.notes, " "+c.help)
	}
	fmt.Fprint(s.notes, `
  Keys of /params: temperature, top_p, top_k, min_p, max_tokens, seed, stop,
  presence_penalty, frequency_penalty, repetition_penalty.
  """ begins a message of several lines, and ends it; so does pasting, and \
  at the end of a line goes on in the next.
  Ctrl-C stops an answer. Arrow keys edit and recall; Tab completes commands.
`)
	return nil
}

func (s *chatSession) toggleMetrics(string) error {
	s.metrics = !s.metrics
	if s.metrics {
		s.note("(figures after each answer)")
	} else {
		s.note("(no figures)")
	}
	return nil
}

func (s *chatSession) clear(string) error {
	s.messages, s.asked = nil, ""
	s.note("(a new conversation)")
	return nil
}

func (s *chatSession) setSystem(text string) error {
	switch text {
	case "":
		if s.system == "" {
			s.note("(no system message)")
			return nil
		}
		fmt.Fprintln(s.notes, s.system)
		return nil
	case "-":
		s.system = ""
	default:
		s.system = text
	}
	s.note("(from the next message on; /clear forgets what was said before)")
	return nil
}

func (s *chatSession) retry(string) error {
	if s.asked == "" {
		return errors.New("nothing has been asked yet")
	}
	// What was asked is the last message but one, unless nothing came of it.
	if n := len(s.messages); n >= 2 && s.messages[n-2].Content == s.asked {
		s.messages = s.messages[:n-2]
	}
	return s.say(s.asked)
}

func (s *chatSession) save(path string) error {
	if path == "" {
		return errors.New("/save needs the name of a file: /save talk.md, or /save talk.json")
	}
	var all []chatMessage
	if s.system != "" {
		all = append(all, chatMessage{"system", s.system})
	}
	all = append(all, s.messages...)
	if len(s.messages) == 0 {
		return errors.New("there is nothing to save yet")
	}
	var text []byte
	if strings.HasSuffix(strings.ToLower(path), ".json") {
		var err error
		if text, err = json.MarshalIndent(map[string]any{"model": s.model, "messages": all}, "", "  "); err != nil {
			return err
		}
		text = append(text, '\n')
	} else {
		text = fmt.Appendf(text, "# A conversation with %s\n", s.model)
		for _, m := range all {
			text = fmt.Appendf(text, "\n## %s\n\n%s\n", m.Role, m.Content)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: give another name", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	s.note("(saved to %s)", path)
	return nil
}

// listTime is how long a server may take to list its models.
const listTime = 15 * time.Second

func (s *chatSession) setModel(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), listTime)
	defer cancel()
	names, err := s.client.models(ctx)
	if err != nil {
		return err
	}
	switch {
	case name == "":
		for _, n := range names {
			mark := " "
			if n == s.model {
				mark = "*"
			}
			fmt.Fprintln(s.notes, mark, n)
		}
		return nil
	case !slices.Contains(names, name):
		return fmt.Errorf("%s serves no model %s, but %s", s.client.where, printable(name), strings.Join(names, ", "))
	}
	s.model = name
	s.note("(from the next message on)")
	return nil
}

// chatParams are the fields of a request that /params sets, and how their values are read.
var chatParams = []struct {
	name string
	read func(string) (any, error)
}{
	{"temperature", decimal}, {"top_p", decimal}, {"top_k", whole}, {"min_p", decimal}, {"max_tokens", whole}, {"seed", whole},
	{"presence_penalty", decimal}, {"frequency_penalty", decimal}, {"repetition_penalty", decimal},
	{"stop", func(s string) (any, error) { return s, nil }},
}

func decimal(s string) (any, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v-v != 0 { // JSON has no infinity
		return nil, errors.New("want a number, as in 0.7")
	}
	return v, nil
}

func whole(s string) (any, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil, errors.New("want a whole number, as in 40")
	}
	return v, nil
}

func paramNames() (names []string) {
	for _, p := range chatParams {
		names = append(names, p.name)
	}
	return names
}

// setParams reads KEY=VALUE, several with spaces between them. What is out of range the server refuses,
// whose business it is.
func (s *chatSession) setParams(text string) error {
	if text == "" {
		if len(s.params) == 0 {
			s.note("(all at the server's defaults)")
		}
		for _, name := range slices.Sorted(maps.Keys(s.params)) {
			fmt.Fprintf(s.notes, "%s=%v\n", name, s.params[name])
		}
		return nil
	}
	next := maps.Clone(s.params)
	for _, pair := range strings.Fields(text) {
		name, value, ok := strings.Cut(pair, "=")
		name = strings.ReplaceAll(name, "-", "_")
		i := slices.IndexFunc(chatParams, func(p struct {
			name string
			read func(string) (any, error)
		}) bool {
			return p.name == name
		})
		switch {
		case !ok:
			return fmt.Errorf("%s: write KEY=VALUE, as in temperature=0.7", printable(pair))
		case i < 0:
			return fmt.Errorf("there is no parameter %s, but %s", printable(name), strings.Join(paramNames(), ", "))
		case value == "":
			delete(next, name)
		default:
			v, err := chatParams[i].read(value)
			if err != nil {
				return fmt.Errorf("%s=%s: %w", name, printable(value), err)
			}
			next[name] = v
		}
	}
	s.params = next
	return s.setParams("")
}
