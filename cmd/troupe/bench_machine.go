package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/troupe-llm/troupe/gpu/host"
)

// benchMachineCmd are the flags of bench machine.
type benchMachineCmd struct {
	Threads  int           `placeholder:"N" help:"Threads. Default: one per core."`
	Duration time.Duration `default:"2s" placeholder:"DURATION" help:"About how long to measure. Default: ${default}."`
	JSON     bool          `name:"json" help:"Print a JSON object instead of the table."`
}

// Help implements kong.HelpProvider.
func (*benchMachineCmd) Help() string {
	return `Measures what limits the CPU device: how fast all threads together read memory, and how fast they multiply
bytes and add the products up, out of registers, with the instructions that the kernels use. Decoding one
sequence reads all weights for each token, and is at most as fast as memory; prefill multiplies by each weight
for each token, and is at most as fast as the arithmetic. An operation is a multiplication or an addition: two
for each weight and token.

Figures are the best of many short measurements, since other programs on the machine make them smaller.

Examples:

  troupe bench machine
  troupe bench machine --threads 1 --json

Exit status: 0 when it was measured, 1 when not, 2 when the flags make no sense.`
}

// Validate implements kong's interface.
func (c *benchMachineCmd) Validate() error {
	if err := numberWithin("--threads", c.Threads, 0, 4096); err != nil {
		return err
	}
	if c.Duration <= 0 || c.Duration > longest {
		return fmt.Errorf("--duration is %v, but must be above 0 and at most %v", c.Duration, longest)
	}
	return nil
}

// Run implements the command.
func (c *benchMachineCmd) Run(stdout io.Writer) error {
	l, err := host.MeasureLimits(c.Threads, c.Duration)
	if err != nil {
		return err
	}
	operations := 2 * l.Multiply
	if c.JSON {
		out := struct {
			Processor    string   `json:"processor"`
			Threads      int      `json:"threads"`
			Instructions string   `json:"instructions"`
			Read         float64  `json:"read_bytes_per_second"`
			Operations   *float64 `json:"int8_operations_per_second"`
		}{host.ProcessorName(), l.Threads, l.Instructions, l.Read, nil}
		if operations > 0 {
			out.Operations = &operations
		}
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(out)
	}
	arithmetic := "not measured: portable kernels have no instruction for it"
	if operations > 0 {
		arithmetic = fmt.Sprintf("%.0f billion operations a second", operations/1e9)
	}
	_, err = fmt.Fprintf(stdout, "threads       %d (%s)\nread memory   %.1f GB/s\nint8          %s\n", l.Threads, l.Instructions, l.Read/1e9, arithmetic)
	return err
}
