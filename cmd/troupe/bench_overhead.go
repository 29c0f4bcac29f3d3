package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/troupe-llm/troupe/bench"
)

// benchOverheadCmd are the flags of bench overhead.
type benchOverheadCmd struct {
	Concurrency int           `default:"256" placeholder:"N" help:"Requests in flight. Default: ${default}."`
	Tokens      int           `default:"128" placeholder:"N" help:"Tokens that each request generates. Default: ${default}."`
	Pairs       int           `placeholder:"N" help:"Measure each part with and without so many times. Default: as often as --duration allows."`
	Duration    time.Duration `default:"50s" placeholder:"DURATION" help:"About how long to measure at most. Default: ${default}."`
	JSON        bool          `name:"json" help:"Print a JSON object instead of the table."`
}

// Help implements kong.HelpProvider.
func (*benchOverheadCmd) Help() string {
	return `Tells what each part around the model costs: the actors, the API, the metrics object, the statistics, the
request log (its timeline and its line apart), HTTP. The device is simulated and takes no time, so that these
parts are all there is.

The parts are added one after the other: the scheduler and the device in a bare loop; the actors, from a
tokenised request's submit to its text; the API, which parses JSON, renders the template, tokenises and
encodes event-stream frames; the metrics object in each response; Prometheus statistics; the timeline of each
request; its line of the request log, in a temporary file; HTTP over sockets on this machine. In each round all of
them are measured once, in an order that is drawn anew. A part's cost is the median of the rounds' ratios of
its CPU time and that of the line above, and beside it stands the 95 % confidence interval of that median, which
assumes nothing about how the noise is distributed. The CPU time is of this whole process: HTTP includes its
clients, plain sockets that only count frames.

A cost in percent is of a token that no model was run for. A model takes a CPU a thousand times as long
or longer, and the parts then cost so much less of it.

The JSON's tokens_per_second, tokens_per_cpu_second and allocs_per_token are those of the actors: everything
from submit to text.
tokens_per_second is by the clock, and falls when other programs use the cores; tokens_per_cpu_second
times the number of cores is what the machine can do by itself.

Examples:

  troupe bench overhead
  troupe bench overhead --concurrency 64 --tokens 512 --duration 2m
  troupe bench overhead --json | jq .metrics_overhead_percent

Ctrl-C ends with what has been measured so far.

Exit status: 0 when something was measured, 1 when not, 2 when the flags make no sense.`
}

// Validate implements kong's interface.
func (c *benchOverheadCmd) Validate() error {
	for _, n := range []struct {
		name        string
		v, min, max int
	}{{"--concurrency", c.Concurrency, 1, 4096}, {"--tokens", c.Tokens, 1, 1 << 16}, {"--pairs", c.Pairs, 0, 1 << 20}} {
		if err := numberWithin(n.name, n.v, n.min, n.max); err != nil {
			return err
		}
	}
	if c.Duration <= 0 || c.Duration > longest {
		return fmt.Errorf("--duration is %v, but must be above 0 and at most %v", c.Duration, longest)
	}
	return nil
}

// Run implements the command.
func (c *benchOverheadCmd) Run(stdout io.Writer, stderr stderrWriter) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	raiseHeapFloor() // as serve does
	onTerminal := terminal(stderr)
	start, told := time.Now(), time.Time{}
	o, err := bench.MeasureOverhead(ctx, bench.OverheadOptions{Concurrency: c.Concurrency, Tokens: c.Tokens, Pairs: c.Pairs, Duration: c.Duration,
		Progress: func(rounds int, part string) {
			if now := time.Now(); onTerminal {
				fmt.Fprintf(stderr, "\r\x1b[K%v of %v, %d pairs: %s", now.Sub(start).Round(time.Second), c.Duration, rounds, part)
			} else if now.Sub(told) >= tellEvery {
				told = now
				fmt.Fprintf(stderr, "%v of at most %v, %d pairs\n", now.Sub(start).Round(time.Second), c.Duration, rounds)
			}
		}})
	if onTerminal {
		fmt.Fprint(stderr, "\r\x1b[K")
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted before each part was measured once: %w", err)
		}
		return err
	}
	if c.JSON {
		return o.WriteJSON(stdout)
	}
	return o.WriteTable(stdout)
}
