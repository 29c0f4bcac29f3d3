// Command troupe serves language models. It is flags, wiring and exit codes; what it wires is in the
// folders beside cmd.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1 // the server could not run, or not end well
	exitUsage = 2 // the flags make no sense
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run parses the arguments, runs the command and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	zerolog.TimeFieldFormat = time.RFC3339Nano // the default drops what is below a second
	if len(args) == 0 {
		fmt.Fprint(stderr, overview)
		return exitUsage
	}
	if args[0] == "help" { // troupe help COMMAND is troupe COMMAND --help
		args = append(slices.Clone(args[1:]), "--help")
	}
	parser, err := newParser(&cli{}, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "troupe:", err)
		return exitError
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(stderr, "troupe:", unknownFlag(err, args))
		if unwritten := (*fs.PathError)(nil); errors.As(err, &unwritten) && unwritten.Op == "write" { // by --help or --version
			return exitError
		}
		return exitUsage
	}
	ctx.BindTo(stdout, (*io.Writer)(nil))
	ctx.Bind(stderrWriter{stderr})
	err = ctx.Run()
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "troupe:", err)
		return exitUsage
	}
	fmt.Fprintln(stderr, "troupe:", err)
	return exitError
}

// overview is for those who have typed the program's name to see what it is.
const overview = `Troupe serves language models over OpenAI's API, and tells where each answer's time went.

  troupe serve     serve a model at http://127.0.0.1:8000
  troupe chat      talk to one here, in the terminal
  troupe doctor    see whether this machine is ready

troupe --help lists all commands, troupe COMMAND --help their flags.
`

// newParser makes the parser of the command line.
func newParser(c *cli, stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("troupe"),
		kong.Description("An LLM serving runtime in which each request is an actor that measures itself."),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
		kong.Bind(&config{}),
	)
}
