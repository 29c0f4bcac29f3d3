package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-llm/troupe/bench"
	"github.com/troupe-llm/troupe/bench/logreport"
	"github.com/troupe-llm/troupe/bench/requestlog"
)

// reportCmd makes a report of request logs.
type reportCmd struct {
	Logs []string `arg:"" optional:"" placeholder:"LOG" help:"Request logs: files, patterns such as 'logs/*.jsonl.gz', or - for stdin. gzip and zstd are known by their contents."`

	By        list     `placeholder:"DIMENSION" help:"Group by model, key, endpoint, outcome, status, error, stream, prompt (length), hour or day; several with commas."`
	Where     string   `placeholder:"CONDITION" help:"Only lines that fit, as in 'status=200 and ttft_ms>500'. The fields are listed above."`
	SLO       []string `name:"slo" placeholder:"OBJECTIVE" help:"Say how many requests kept an objective: ttft:500ms, itl:50ms (the request's mean), e2e:10s. Repeatable."`
	Prices    string   `placeholder:"FILE" help:"A YAML table of prices for a million tokens, for costs by key and model: with --format table, json or html."`
	Slowest   int      `default:"10" placeholder:"N" help:"List the N slowest requests. Default: ${default}."`
	SlowestBy string   `default:"e2e_ms" placeholder:"FIELD" help:"What they are slow in. Default: ${default}."`

	Format   string `default:"table" enum:"table,csv,json,parquet,html" placeholder:"table|csv|json|parquet|html" help:"csv and parquet have a row for each group, html is a page with plots. Default: ${default}."`
	Requests bool   `help:"With --format parquet, a row for each request instead."`
	Output   string `short:"o" placeholder:"FILE" help:"Write to a file instead of stdout."`
	Follow   bool   `short:"f" help:"Follow one log as it grows, through rotation, and show the table anew every few seconds until Ctrl-C."`
}

// Help implements kong.HelpProvider.
func (*reportCmd) Help() string {
	return `Examples:

  troupe report requests.jsonl
  troupe report 'logs/*.jsonl.gz' --by model,hour --slo ttft:500ms --slo itl:50ms
  troupe report requests.jsonl --where 'key=alice and outcome!=refused' --prices prices.yaml
  troupe report requests.jsonl --format parquet --requests -o requests.parquet
  troupe report -f requests.jsonl --by key

Latencies are of completed requests; TTFT counts from arrival. A line that is broken, or of a newer
version of the log, is counted and named, and is no error. Nor is a file that ends early, such as a
packed one that was cut short: the report is of what there was, and says that data is missing.

Fields for --where and --slowest-by:

` + indent(logreport.FieldHelp()) + `
A table of prices, for a million tokens; "*" is any other model:

  troupe-demo: {input: 0.10, cached_input: 0.02, output: 0.40}
  "*":         {input: 1, output: 4}

Exit status: 0, also when lines were broken or missing, or none fits --where, which is then said on
stderr; 1 when a log cannot be read; 2 when the flags make no sense.`
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ") + "\n"
}

// Validate implements kong's interface.
func (c *reportCmd) Validate() error {
	switch {
	case c.Requests && c.Format != "parquet":
		return errors.New("--requests needs --format parquet: a log is already a row for each request, in JSON")
	case c.Follow && len(c.Logs) != 1:
		return errors.New("--follow follows one log: name it")
	case c.Follow && (c.Format != "table" || c.Output != ""):
		return errors.New("--follow shows a table: leave out --format and --output")
	case c.Requests && (len(c.By) > 0 || len(c.SLO) > 0 || c.Prices != ""):
		return errors.New("--requests writes a row for each request: leave out --by, --slo and --prices")
	case c.Prices != "" && (c.Format == "csv" || c.Format == "parquet"):
		return errors.New("--prices is for --format table, json and html: costs are by key and model, and a row of csv or parquet may have several")
	case c.Slowest < 0 || c.Slowest > 10_000:
		return fmt.Errorf("--slowest is %d, but must be between 0 and 10000", c.Slowest)
	}
	_, err := c.options()
	return err
}

func (c *reportCmd) options() (logreport.Options, error) {
	o := logreport.Options{By: c.By, Slowest: c.Slowest, SlowestBy: c.SlowestBy, Hours: c.Format == "html"}
	slo, err := bench.ParseSLO(c.SLO)
	if err != nil {
		return o, fmt.Errorf("--slo: %w", err)
	}
	if slo.TPOT > 0 {
		if slo.ITL > 0 {
			return o, errors.New("--slo: tpot and itl are the same in a log, the request's mean: give one of them")
		}
		slo.ITL = slo.TPOT
	}
	o.SLO = logreport.SLO{TTFT: slo.TTFT, ITL: slo.ITL, E2E: slo.E2E}
	if o.Where, err = logreport.ParseFilter(c.Where); err != nil {
		return o, fmt.Errorf("--where: %w", err)
	}
	if _, err := logreport.NewCollector(o); err != nil {
		return o, err
	}
	return o, nil
}

// Run makes the report.
func (c *reportCmd) Run(stdout io.Writer, stderr stderrWriter) error {
	o, err := c.options()
	if err != nil {
		return usageError{err}
	}
	if c.Prices != "" {
		f, err := os.Open(c.Prices)
		if err != nil {
			return fmt.Errorf("--prices: %w", err)
		}
		o.Prices, err = logreport.ReadPrices(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("--prices: %s: %w", c.Prices, err)
		}
	}
	if len(c.Logs) == 0 {
		if terminal(stderrWriter{os.Stdin}) {
			return usageError{errors.New("no log is named: give files, or - for stdin")}
		}
		c.Logs = []string{"-"}
	}
	if f, ok := stdout.(*os.File); ok && c.Format == "parquet" && c.Output == "" && terminal(stderrWriter{f}) {
		return usageError{errors.New("a Parquet file is nothing for a terminal: write it to a file with --output, or pipe it")}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Follow {
		return c.follow(ctx, o, stdout)
	}
	if c.Output == "" {
		return c.write(ctx, o, stdout, stderr)
	}
	if err := c.spared(c.Output); err != nil {
		return err
	}
	path := c.Output
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // what a link stands for, not the link
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("--output: %w", err)
		}
		return errors.Join(c.write(ctx, o, f, stderr), f.Close())
	}
	// Under another name until it is whole.
	f, err := os.CreateTemp(filepath.Dir(path), ".troupe-report-")
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	defer os.Remove(f.Name())
	err = errors.Join(c.write(ctx, o, f, stderr), f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// spared says whether a file that is to be written is none of the logs.
func (c *reportCmd) spared(output string) error {
	out, _ := os.Stat(output)
	if out == nil || !out.Mode().IsRegular() {
		return nil
	}
	logs, err := requestlog.Files(c.Logs)
	if err != nil {
		return err
	}
	for _, name := range logs {
		if in, err := os.Stat(name); err == nil && os.SameFile(in, out) {
			return fmt.Errorf("--output: %s is one of the logs: give another name", output)
		}
	}
	return nil
}

// write reads the logs and writes the report in its format.
func (c *reportCmd) write(ctx context.Context, o logreport.Options, stdout io.Writer, stderr stderrWriter) error {
	out := bufio.NewWriterSize(stdout, 64<<10)
	var rows *logreport.Table
	var collectors []*logreport.Collector
	var takers []requestlog.Func
	var written int64
	if c.Requests {
		rows = logreport.NewTable(out)
		takers = append(takers, func(e *requestlog.Entry, _ requestlog.Place) error {
			if !o.Where.Match(e) {
				return nil
			}
			written++
			return rows.Add(e)
		})
	}
	for range min(runtime.GOMAXPROCS(0), maxCollectors) {
		collector, err := logreport.NewCollector(o)
		if err != nil {
			return usageError{err}
		}
		collectors = append(collectors, collector)
		if !c.Requests {
			takers = append(takers, func(e *requestlog.Entry, _ requestlog.Place) error {
				collector.Add(e)
				return nil
			})
		}
	}
	// Reading makes little garbage, but many groups are much memory: it need not be there nearly twice.
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	bar := newCount(stderr, terminal(stderr))
	sum, err := requestlog.Share(ctx, c.Logs, os.Stdin, takers, bar.show)
	bar.clear()
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted: no report of half a log")
	}
	if err != nil {
		return err
	}
	for _, other := range collectors[1:] {
		collectors[0].Merge(other)
	}
	report := collectors[0].Report(read(&sum))
	switch {
	case rows != nil:
		err = rows.Close()
	case c.Format == "csv":
		err = report.WriteCSV(out)
	case c.Format == "json":
		err = report.WriteJSON(out)
	case c.Format == "parquet":
		err = report.WriteParquet(out)
	case c.Format == "html":
		err = report.WriteHTML(out)
	default:
		err = report.WriteTable(out)
	}
	if err == nil {
		err = out.Flush()
	}
	if err == nil && c.Format != "table" { // which has them itself
		for _, p := range sum.Problems {
			fmt.Fprintln(stderr, "troupe: not counted:", p)
		}
	}
	if o.Where.Asked() && sum.Lines > 0 && report.Total.Requests+written == 0 {
		fmt.Fprintf(stderr, "troupe: no line fits --where '%s': read %v\n", c.Where, &sum)
	}
	warnOfCuts(stderr, &sum)
	return err
}

// maxCollectors bounds how many read a log side by side: each has sums for all groups, a few tens of
// kilobytes a group.
const maxCollectors = 4

func read(s *requestlog.Summary) logreport.Read {
	return logreport.Read{Lines: int64(s.Lines), Broken: int64(s.Broken), Newer: int64(s.Newer), Examples: s.Problems, Cut: int64(s.Cut), Cuts: s.Cuts}
}

// warnOfCuts names the files that ended early: what was made of them lacks nobody knows how much.
func warnOfCuts(stderr io.Writer, s *requestlog.Summary) {
	for _, c := range s.Cuts {
		fmt.Fprintln(stderr, "troupe: data is missing:", c)
	}
	if more := s.Cut - len(s.Cuts); more > 0 {
		fmt.Fprintf(stderr, "troupe: data is missing: from %d more files\n", more)
	}
}

// refresh is how often the table of a log that is followed is shown anew.
const refresh = 2 * time.Second

// follow shows the table again and again until ctx is done, and then once more.
func (c *reportCmd) follow(ctx context.Context, o logreport.Options, stdout io.Writer) error {
	collector, err := logreport.NewCollector(o)
	if err != nil {
		return usageError{err}
	}
	log, err := requestlog.Follow(ctx, c.Logs[0])
	if err != nil {
		return err
	}
	defer log.Close()
	var mu sync.Mutex // of the collector
	var lines int64
	done := make(chan error, 1)
	var sum requestlog.Summary
	go func() {
		var err error
		// It is ended by the end of the log, which comes with ctx.
		sum, err = requestlog.Each(context.WithoutCancel(ctx), []string{"-"}, log, func(e *requestlog.Entry, _ requestlog.Place) error {
			mu.Lock()
			defer mu.Unlock()
			collector.Add(e)
			lines++
			return nil
		})
		done <- err
	}()
	show := func(read logreport.Read, clear string) error {
		var b strings.Builder
		b.WriteString(clear)
		mu.Lock()
		err := collector.Report(read).WriteTable(&b)
		mu.Unlock()
		if err == nil {
			_, err = io.WriteString(stdout, b.String())
		}
		return err
	}
	clear := ""
	if f, ok := stdout.(*os.File); ok && terminal(stderrWriter{f}) {
		clear = "\x1b[H\x1b[2J"
	}
	shown := int64(-1)
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		mu.Lock()
		n := lines
		mu.Unlock()
		if clear != "" && n != shown { // elsewhere once, at the end
			if err := show(logreport.Read{Lines: n}, clear); err != nil {
				return err
			}
			shown = n
		}
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			return show(read(&sum), clear)
		case <-tick.C:
		}
	}
}

// lineCount shows how many lines have been read, on a terminal.
type lineCount struct {
	w        io.Writer
	terminal bool
	began    time.Time
	drawn    time.Time
	width    int
}

func newCount(w io.Writer, terminal bool) *lineCount {
	return &lineCount{w: w, terminal: terminal, began: time.Now()}
}

func (c *lineCount) show(file string, lines int) {
	if !c.terminal {
		return
	}
	now := time.Now()
	if now.Sub(c.began) < time.Second || now.Sub(c.drawn) < drawEvery {
		return
	}
	c.drawn = now
	text := fmt.Sprintf("%d lines, %.0f/s: %.40s", lines, float64(lines)/now.Sub(c.began).Seconds(), filepath.Base(file))
	fmt.Fprintf(c.w, "\r%s%s", text, strings.Repeat(" ", max(c.width-len(text), 0)))
	c.width = len(text)
}

func (c *lineCount) clear() {
	if c.width > 0 {
		fmt.Fprintf(c.w, "\r%s\r", strings.Repeat(" ", c.width))
	}
}
