package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/term"

	"github.com/troupe-llm/troupe/bench/explain"
)

// explainCmd tells one request's life.
type explainCmd struct {
	ID   string   `arg:"" placeholder:"ID" help:"The request: its request_id (the id in its response), the X-Request-Id that the client sent, or its number in the log. The beginning is enough where only one request's begins so."`
	Logs []string `arg:"" name:"log" placeholder:"LOG" help:"Request logs: files, patterns such as 'logs/*.gz', or - for standard input. Packed with gzip or zstd, too."`

	JSON  bool   `name:"json" help:"Print JSON: the log's line, the phases, and each event in words."`
	Color string `default:"auto" enum:"auto,always,never" placeholder:"auto|always|never" help:"Colours; auto has them on a terminal, unless NO_COLOR is set. Default: ${default}."`
}

// Help implements kong.HelpProvider.
func (*explainCmd) Help() string {
	return `Shows where a request's time went: what it waited for, each piece of its prompt, its tokens with the
stalls among them and their causes, when it lost its place, and the delivery. Examples:

  troupe serve model.gguf --request-log requests.log
  troupe explain chatcmpl-4f1c requests.log
  troupe explain 17 requests.log --json
  zcat old/*.gz | troupe explain chatcmpl-4f1c -

When several requests have the id, each is told: a client may send an X-Request-Id again, and the numbers
begin anew with each server.

The log must be JSON (--log-format json, the default for files). Lines without a timeline, of older
versions or of a server with --request-log-timeline=false, are told from their stamps alone.

Exit status: 0 when the request was found; 1 when it was not, or a log cannot be read; 2 when the flags
make no sense.`
}

// Run implements the command.
func (c *explainCmd) Run(stdout io.Writer, stderr stderrWriter) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	found, err := explain.Find(ctx, c.ID, c.Logs, os.Stdin)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted: the logs were not read to their end")
	}
	for _, p := range found.Summary.Problems {
		fmt.Fprintln(stderr, "troupe: explain:", p)
	}
	warnOfCuts(stderr, &found.Summary)
	if err != nil {
		return err
	}
	if c.JSON {
		return found.JSON(stdout)
	}
	o := explain.Options{Width: 100, Color: c.Color == "always"}
	if f, ok := stdout.(*os.File); ok && terminal(f) {
		o.Color = o.Color || c.Color == "auto" && os.Getenv("NO_COLOR") == ""
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			o.Width = min(columns, 120)
		}
	} else if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil {
		o.Width = min(columns, 120)
	}
	return found.Text(stdout, o)
}
