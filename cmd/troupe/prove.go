package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-llm/troupe/bench/prove"
	"github.com/troupe-llm/troupe/gpu/devicetest"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/demo"
)

// proveCmd are the flags of prove.
type proveCmd struct {
	Model string `arg:"" optional:"" placeholder:"MODEL" help:"What speeds and the load are measured with, as for troupe serve: a GGUF file or a folder with one, a folder of safetensors, a short name, a model on the Hugging Face hub, or a URL. Default troupe-demo."`

	Device       string        `default:"auto" enum:"auto,cuda,cpu" placeholder:"auto|cuda|cpu" help:"The device to prove: an NVIDIA GPU, in a program built with it, or this machine's processor; auto is the GPU where there is one. Default: ${default}."`
	Threads      int           `placeholder:"N" help:"Threads of the CPU device. Default: one per core."`
	Goldens      string        `placeholder:"FILE" help:"What another implementation computes of MODEL, as JSON. Default: of SmolLM2-135M-Instruct in Q4_1 and Gemma 3 270M in Q4_K_M, known by their files' checksums, it is in the program."`
	Parts        list          `placeholder:"PART" help:"Do only these, of conformance, goldens, fault, speeds and serving. Repeatable. Default: all."`
	Quick        bool          `help:"Do less of everything: for a look, and for tests."`
	Budget       time.Duration `default:"8m" placeholder:"DURATION" help:"How long it may take: speeds and the load are shortened for it. Default: ${default}."`
	RequireSpeed bool          `help:"Fail, too, if a figure that must be shown was not measured or is missed."`
	JSON         string        `name:"json" placeholder:"FILE" help:"Write the report there as JSON; - is stdout, the table then goes to stderr."`
}

// Help implements kong.HelpProvider.
func (*proveCmd) Help() string {
	return `Proves a device on the machine at hand, in this order: that it passes the suite of all devices and computes
every architecture and type of weights as other implementations do; that real models' log probabilities are
those of other implementations (goldens); that a load survives a fault of the device, with the same texts; how
fast it decodes and prefills, beside what memory and arithmetic allow; and how it serves 1, 32 and 256 requests
at a time. At the end stands what must be shown on an H200 beside what was. It needs nothing but the program,
the model and, for a GPU, the driver. Examples:

  troupe prove model.gguf --device cuda --json proof.json
  troupe prove --quick
  troupe prove --device cpu --budget 3m
  troupe prove model.gguf --parts speeds,serving

Ctrl-C ends with what there is.

Exit status: 0 when conformance, goldens and fault test are passed, or those of them that --parts names (with
--require-speed, all figures too), 1 when not, 2 when the flags make no sense.`
}

// Validate implements kong's interface.
func (c *proveCmd) Validate() error {
	if err := numberWithin("--threads", c.Threads, 0, 4096); err != nil {
		return err
	}
	for _, part := range c.Parts {
		if !slices.Contains(prove.Parts, part) {
			return fmt.Errorf("--parts: %q is none of %s", part, strings.Join(prove.Parts, ", "))
		}
	}
	if c.Budget < time.Second || c.Budget > longest {
		return fmt.Errorf("--budget is %v, but must be at least 1s and at most %v", c.Budget, longest)
	}
	return nil
}

// Run implements the command.
func (c *proveCmd) Run(stdout io.Writer, stderr stderrWriter) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program as ever
	o := prove.Options{Parts: c.Parts, Quick: c.Quick, Budget: c.Budget, Version: thisBuild().Version}
	var err error
	if o.Subject, err = c.subject(); err != nil {
		return err
	}
	toFile := c.JSON != "" && c.JSON != "-"
	if toFile { // better now than after minutes
		if err := writableFile("--json", c.JSON); err != nil {
			return usageError{err}
		}
	}
	f := engineFlags{Model: c.Model, Device: "host"}
	if o.Model, _, err = f.find(ctx, stderr); err != nil {
		return err
	}
	defer o.Model.Close()
	o.Name = f.name()
	if o.Goldens, o.NoGoldens, err = c.goldens(o.Model); err != nil {
		return err
	}
	began := time.Now()
	o.Progress = func(text string) { fmt.Fprintf(stderr, "%6.1f s  %s\n", time.Since(began).Seconds(), text) }
	if toFile {
		o.After = func(r *prove.Report) {
			if err := save(c.JSON, r.WriteJSON); err != nil {
				o.Progress(fmt.Sprintf("writing the report: %v", err))
			}
		}
	}
	r, err := prove.Run(ctx, o)
	if err != nil {
		return err
	}
	table := stdout
	switch c.JSON {
	case "":
	case "-":
		table = stderr
		err = r.WriteJSON(stdout)
	default:
		err = save(c.JSON, r.WriteJSON)
	}
	if err := errors.Join(err, r.WriteTable(table)); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	switch {
	case r.Interrupted && !r.OK:
		return errors.New("interrupted: the device is not proved")
	case !r.OK:
		return errors.New("the device is not proved: see above what failed or was not done")
	case c.RequireSpeed && !r.SpeedOK:
		return errors.New("not all figures that must be shown were measured and met, which --require-speed asks for")
	}
	return nil
}

// subject chooses the device.
func (c *proveCmd) subject() (prove.Subject, error) {
	f := engineFlags{Device: c.Device}
	if f.computes() != "cuda" {
		return prove.CPU(c.Threads), nil
	}
	if c.Threads > 0 {
		return prove.Subject{}, usageError{errors.New("--threads is for the CPU device: add --device cpu, or remove it")}
	}
	s, err := prove.CUDA()
	if err != nil {
		err = fmt.Errorf("--device cuda: %w", err)
	}
	return s, err
}

// goldens finds those of a model, or says why there are none.
func (c *proveCmd) goldens(m *model.Model) (*devicetest.Goldens, string, error) {
	if c.Goldens != "" {
		data, err := os.ReadFile(c.Goldens)
		if err != nil {
			return nil, "", usageError{fmt.Errorf("--goldens: %w", err)}
		}
		g, err := devicetest.ParseGoldens(data)
		if err != nil {
			return nil, "", usageError{fmt.Errorf("--goldens %s: %w", c.Goldens, err)}
		}
		return g, "", nil
	}
	if c.Model == "" || c.Model == demo.Name {
		return nil, "", nil // it is always compared
	}
	if len(c.Parts) > 0 && !slices.Contains(c.Parts, "goldens") {
		return nil, "", nil // and all of a large file need not be read
	}
	const none = "the program has no goldens of this file: --goldens gives some"
	info, err := os.Stat(m.Path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, none, nil
	}
	file, err := os.Open(m.Path)
	if err != nil {
		return nil, "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return nil, "", fmt.Errorf("%s: %w", m.Path, err)
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	for _, g := range devicetest.KnownGoldens() {
		if g.SHA256 == digest {
			return g, "", nil
		}
	}
	return nil, none, nil
}
