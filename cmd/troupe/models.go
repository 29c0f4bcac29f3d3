package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/troupe-llm/troupe/model/demo"
	"github.com/troupe-llm/troupe/model/fetch"
)

// pullCmd downloads models.
type pullCmd struct {
	Names []string `arg:"" optional:"" name:"model" placeholder:"MODEL" help:"What to download: a short name, org/repo, org/repo:Q4_K_M, org/repo/file.gguf, with @revision if need be, or a URL. None prints the catalogue of short names."`
}

// Help implements kong.HelpProvider.
func (*pullCmd) Help() string {
	return `Downloads models into the cache and prints their paths. Examples:

  troupe pull                                            the catalogue
  troupe pull smollm2-360m
  troupe pull bartowski/Llama-3.2-1B-Instruct-GGUF       the quantisation that suits most
  troupe pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0
  troupe pull https://example.com/model.gguf
  troupe pull HuggingFaceTB/SmolLM2-360M-Instruct        safetensors, where there is no GGUF file

A download that was interrupted goes on from where it was. Models of the hub lie in the cache that
Hugging Face's tools share; HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean there.

Exit status: 0 when all is there, 1 when something could not be downloaded, 2 when a name makes no sense.`
}

// Run implements the command.
func (c *pullCmd) Run(stdout io.Writer, stderr stderrWriter) error {
	if len(c.Names) == 0 {
		return printCatalogue(stdout)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, done := signalContext(signals)
	defer func() { _ = done() }()
	for _, name := range c.Names {
		if name == demo.Name {
			fmt.Fprintf(stderr, "troupe: %s is inside this program: nothing to download; troupe serve %[1]s serves it\n", name)
			continue
		}
		bar := newProgress(stderr, terminal(stderr))
		r, err := fetch.Resolve(ctx, name, bar.report)
		bar.clear()
		if err != nil {
			return nameIsUsage(err)
		}
		if !r.Cached {
			fmt.Fprintf(stderr, "troupe: %s is here already: nothing to download\n", name)
		}
		if _, err := fmt.Fprintln(stdout, r.Path); err != nil {
			return err
		}
	}
	return nil
}

// nameIsUsage makes a name that cannot be one a wrong use of the program.
func nameIsUsage(err error) error {
	var wrong *fetch.NameError
	if errors.As(err, &wrong) {
		return usageError{err}
	}
	return err
}

// listCmd shows what is in the cache.
type listCmd struct {
	Catalogue bool `help:"Show the catalogue of short names instead: what could be there."`
	JSON      bool `name:"json" xor:"form" help:"As a JSON array."`
	Names     bool `xor:"form" help:"The names alone, one a line."`
}

// Help implements kong.HelpProvider.
func (*listCmd) Help() string {
	return `Lists the models in the cache, GGUF files and safetensors, those too that other tools have downloaded from the Hugging Face
hub. The names are good for troupe serve and troupe rm.`
}

// Run implements the command.
func (c *listCmd) Run(stdout io.Writer) error {
	if c.Catalogue && c.Names {
		var names []string
		for _, k := range fetch.Catalogue() {
			names = append(names, k.Short)
		}
		return printLines(stdout, names)
	}
	if c.Catalogue && !c.JSON {
		return printCatalogue(stdout)
	}
	if c.Catalogue {
		type row struct {
			Name         string `json:"name"`
			Model        string `json:"model"`
			Quantization string `json:"quantization"`
			Size         int64  `json:"size"`
			Licence      string `json:"licence"`
			What         string `json:"description"`
		}
		rows := []row{}
		for _, k := range fetch.Catalogue() {
			rows = append(rows, row{k.Short, k.Name.String(), k.Quant, k.Size, k.Licence, k.What})
		}
		return printJSON(stdout, rows)
	}
	entries, err := fetch.List()
	if err != nil {
		return err
	}
	if c.Names {
		var names []string
		for _, e := range entries {
			names = append(names, e.Name)
		}
		return printLines(stdout, names)
	}
	if c.JSON {
		if entries == nil {
			entries = []fetch.Entry{} // an array, not null
		}
		return printJSON(stdout, entries)
	}
	if len(entries) == 0 {
		_, err := fmt.Fprintln(stdout, "No models in the cache yet. troupe pull shows some to begin with.")
		return err
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tQUANTISATION\tSIZE\tLAST USED")
	for _, e := range entries {
		size := fetch.SizeText(e.Size)
		if e.Whole > 0 {
			size += " of " + fetch.SizeText(e.Whole) + ", incomplete"
		}
		quant := e.Quant
		if quant == "" {
			quant = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", e.Name, quant, size, ago(time.Since(e.Used)))
	}
	return t.Flush()
}

func printLines(w io.Writer, lines []string) error {
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return err
		}
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func printCatalogue(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tQUANTISATION\tSIZE\tLICENCE\tWHAT IT IS")
	for _, k := range fetch.Catalogue() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", k.Short, k.Quant, fetch.SizeText(k.Size), k.Licence, k.What)
	}
	fmt.Fprintln(t, "\nServe one by its name: troupe serve smollm2. Other GGUF models (Llama, Qwen, Gemma, Phi, Mistral …) on the")
	fmt.Fprintln(t, "Hugging Face hub go by org/repo or org/repo:QUANTISATION.")
	return t.Flush()
}

// ago says roughly how long ago something was.
func ago(d time.Duration) string {
	for _, u := range []struct {
		one  time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		switch n := d / u.one; {
		case n == 1:
			return "1 " + u.name + " ago"
		case n > 1:
			return strconv.FormatInt(int64(n), 10) + " " + u.name + "s ago"
		}
	}
	return "just now"
}

// rmCmd removes models from the cache.
type rmCmd struct {
	Names []string `arg:"" name:"model" placeholder:"MODEL" help:"A name that troupe list shows."`
	All   bool     `help:"All files of a repository, if there are several."`
}

// Help implements kong.HelpProvider.
func (*rmCmd) Help() string {
	return `Removes models from the cache, at once, and says how much room that makes. Bytes that another name in
the cache refers to stay until that is removed too. Files that are in no cache are not touched.

  troupe rm smollm2
  troupe rm bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0
  troupe rm --all bartowski/Llama-3.2-1B-Instruct-GGUF`
}

// Run implements the command.
func (c *rmCmd) Run(stdout io.Writer) error {
	for _, name := range c.Names {
		if name == demo.Name {
			return usageError{fmt.Errorf("%s is inside this program, not in a cache: it cannot be removed", name)}
		}
		removed, err := fetch.Remove(name, c.All)
		for _, r := range removed {
			if r.Freed > 0 {
				fmt.Fprintf(stdout, "removed %s: %s freed\n", r.Name, fetch.SizeText(r.Freed))
			} else {
				fmt.Fprintf(stdout, "removed %s: nothing freed, since something else refers to the same bytes\n", r.Name)
			}
		}
		if err != nil {
			return nameIsUsage(err)
		}
	}
	return nil
}
