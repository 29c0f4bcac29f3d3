package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// longest is the longest time that a flag may give, ten years: far from where 64 bits of nanoseconds
// run over.
const longest = 10 * 365 * 24 * time.Hour

// cli is the command line.
type cli struct {
	Serve      serveCmd      `cmd:"" help:"Serve a model over HTTP, in OpenAI's API."`
	Chat       chatCmd       `cmd:"" help:"Talk to a model in the terminal."`
	Bench      benchCmd      `cmd:"" help:"Measure a model, in this process or on a server."`
	Explain    explainCmd    `cmd:"" help:"Tell one request's life from a request log: what happened when, and why."`
	Report     reportCmd     `cmd:"" help:"Say what request logs tell: percentiles, objectives, usage and costs, what slowed requests."`
	Health     healthCmd     `cmd:"" help:"Ask a running server whether it is well."`
	Doctor     doctorCmd     `cmd:"" help:"Look at this machine: what it has, and what to set."`
	Prove      proveCmd      `cmd:"" help:"Prove that the device computes what it should here, and how fast: conformance, goldens, a fault, speeds, a load."`
	Pull       pullCmd       `cmd:"" help:"Download models, or show which there are to begin with."`
	List       listCmd       `cmd:"" help:"List the models in the cache."`
	Rm         rmCmd         `cmd:"" help:"Remove models from the cache."`
	Completion completionCmd `cmd:"" help:"Print a script for a shell to complete commands and flags."`
	Man        manCmd        `cmd:"" help:"Print the manual page."`
	Version    versionCmd    `cmd:"" help:"Say which version this is."`

	VersionFlag versionFlag `name:"version" help:"Say which version this is, and end."`
}

// serveCmd are the flags of serve. Where vLLM has a flag, it has vLLM's name and meaning. The keys of
// --config's file are the flags' names.
type serveCmd struct {
	engineFlags

	Config configFile `placeholder:"FILE" help:"Read flags from a YAML file, with their names as keys (and model for MODEL). The command line wins." group:"Model"`

	ServedModelName list `placeholder:"NAME" help:"The model's name in the API, the first one also in answers and metrics. Repeatable. Default: MODEL's own." group:"Model"`

	Host             string        `default:"127.0.0.1" placeholder:"ADDRESS" help:"Address to listen on; 0.0.0.0 for all. Default: ${default}." group:"HTTP"`
	Port             int           `default:"8000" placeholder:"N" help:"Port to listen on; 0 takes a free one. Default: ${default}." group:"HTTP"`
	APIKey           keyList       `name:"api-key" placeholder:"[NAME:]KEY" help:"Require one of these keys. The name stands for the key in logs. Repeatable; a comma is part of the key. Default: the keys in the environment variable TROUPE_API_KEY, or else VLLM_API_KEY, there with commas between them." group:"HTTP"`
	AllowedOrigins   list          `placeholder:"ORIGIN" help:"Origins whose pages browsers let call the server; * for all. Repeatable. Default: none." group:"HTTP"`
	AllowedMethods   list          `default:"*" placeholder:"METHOD" help:"Methods that such pages may use. Default: ${default}." group:"HTTP"`
	AllowedHeaders   list          `default:"*" placeholder:"HEADER" help:"Headers that such pages may send. Default: ${default}." group:"HTTP"`
	AllowCredentials bool          `help:"Let such pages send credentials." group:"HTTP"`
	SSLCertfile      filePath      `name:"ssl-certfile" placeholder:"FILE" help:"Serve HTTPS with this certificate chain (PEM)." group:"HTTP"`
	SSLKeyfile       filePath      `name:"ssl-keyfile" placeholder:"FILE" help:"The certificate's private key (PEM). Default: in the certificate's file." group:"HTTP"`
	RequestTimeout   time.Duration `placeholder:"DURATION" help:"Most time a request may take, waiting included, as in 90s or 10m. Default: no limit." group:"HTTP"`
	DeliveryTimeout  time.Duration `default:"60s" placeholder:"DURATION" help:"How long a finished answer may take to reach its client. Default: ${default}." group:"HTTP"`
	DrainTimeout     time.Duration `default:"30s" placeholder:"DURATION" help:"How long requests in flight may go on after the first Ctrl-C or SIGTERM; a second one ends them at once. Default: ${default}." group:"HTTP"`
	MaxRequestBody   byteSize      `default:"32MiB" placeholder:"SIZE" help:"Largest request body. Default: ${default}." group:"HTTP"`
	DisableConsole   bool          `help:"Do not serve the live page at /console." group:"HTTP"`

	EnablePerRequestMetrics     bool   `help:"Put a metrics object with the request's timings into each response." group:"Metrics"`
	PerRequestMetricsDetail     string `default:"basic" enum:"basic,detailed" placeholder:"basic|detailed" help:"detailed adds what the means hide: percentiles, steps, what slowed the request; and gives each of several choices metrics of its own. Default: ${default}." group:"Metrics"`
	PerRequestSpecDecodeMetrics string `default:"none" enum:"none,summary,detailed" placeholder:"none|summary|detailed" help:"Add speculative decoding's figures to the metrics object; needs speculative decoding. Default: ${default}." group:"Metrics"`
	EnableForceIncludeUsage     bool   `help:"End every stream with the usage chunk, asked for or not." group:"Metrics"`
	EnableLlamaTimings          bool   `help:"Put llama.cpp's timings object into each response." group:"Metrics"`
	DisableLogStats             bool   `help:"Keep no statistics: no metrics in responses, none of the server's at /metrics, no live page, and no request log unless --request-log names one." group:"Metrics"`

	OTLPTracesEndpoint string `name:"otlp-traces-endpoint" placeholder:"URL" help:"Send a span for each request to this OpenTelemetry collector: http://host:4318 (OTLP over HTTP) or grpc://host:4317. OpenTelemetry's environment variables set the rest." group:"Metrics"`

	RequestLog         string `placeholder:"FILE" help:"Where the line of each request goes: a file (appended to, reopened on SIGHUP), stdout, stderr or none. Default: stdout." group:"Logs"`
	RequestLogTimeline bool   `default:"true" negatable:"" help:"Keep what happened to each request when and why, for its line in a JSON log and for the live page: troupe explain shows it. On by default." group:"Logs"`
	LogFormat          string `default:"auto" enum:"auto,console,json" placeholder:"console|json" help:"console is for people, json for machines. Default: console on a terminal, else json." group:"Logs"`
	LogLevel           string `default:"info" enum:"debug,info,warn,error" placeholder:"LEVEL" help:"Least severe of the server's own messages, which go to stderr: debug, info, warn or error. Default: ${default}." group:"Logs"`
}

// Help implements kong.HelpProvider.
func (*serveCmd) Help() string {
	return `Examples:

  troupe serve
  troupe serve model.gguf --port 9000 --enable-per-request-metrics
  troupe serve bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  troupe serve model.gguf --max-model-len 8K --kv-cache-memory-bytes 2GiB --api-key alice:secret
  troupe serve --device sim --sim-step 20ms --max-num-seqs 1000
  troupe serve --config troupe.yaml

Durations are written 500ms, 30s, 5m; sizes 512MiB, 2G.

Exit status: 0 after Ctrl-C or SIGTERM, 1 when the server cannot run, its device is
lost to the process, or lines of the request log could not be written, 2 when the flags make no sense.`
}

// Validate implements kong's interface: it refuses what makes no sense together.
func (c *serveCmd) Validate() error {
	if c.DisableLogStats {
		for _, f := range []struct {
			name string
			on   bool
		}{
			{"--enable-per-request-metrics", c.EnablePerRequestMetrics},
			{"--per-request-metrics-detail detailed", c.PerRequestMetricsDetail == "detailed"},
			{"--enable-llama-timings", c.EnableLlamaTimings},
		} {
			if f.on {
				return fmt.Errorf("%s needs the statistics that --disable-log-stats turns off: remove --disable-log-stats, or %s", f.name, f.name)
			}
		}
	}
	if c.PerRequestMetricsDetail == "detailed" && !c.EnablePerRequestMetrics {
		return errors.New("--per-request-metrics-detail detailed adds to the metrics object, which --enable-per-request-metrics turns on: add that flag")
	}
	if c.PerRequestSpecDecodeMetrics != "none" {
		return fmt.Errorf("--per-request-spec-decode-metrics %s needs speculative decoding, which is not configured: remove it", c.PerRequestSpecDecodeMetrics)
	}
	if c.SSLKeyfile != "" && c.SSLCertfile == "" {
		return errors.New("--ssl-keyfile needs --ssl-certfile: give the certificate too")
	}
	if err := c.validate(); err != nil {
		return err
	}
	if err := numberWithin("--port", c.Port, 0, 65535); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"--request-timeout", c.RequestTimeout}, {"--delivery-timeout", c.DeliveryTimeout}, {"--drain-timeout", c.DrainTimeout},
	} {
		if err := durationWithin(f.name, f.d, longest); err != nil {
			return err
		}
	}
	switch {
	case c.MaxRequestBody < 1:
		return errors.New("--max-request-body is 0, but must be at least 1 byte")
	case c.MaxRequestBody > 1<<40 || int64(c.MaxRequestBody) > math.MaxInt:
		return fmt.Errorf("--max-request-body is %v, but must be at most 1 TiB", c.MaxRequestBody)
	}
	for _, name := range c.ServedModelName {
		if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("--served-model-name %q: a name must be UTF-8 without control characters", name)
		}
	}
	return nil
}

// numberWithin refuses a flag's number beyond its bounds.
func numberWithin(name string, v, low, high int) error {
	switch {
	case v > high:
		return fmt.Errorf("%s is %d, but must be at most %d", name, v, high)
	case v < low:
		return fmt.Errorf("%s is %d, but must be at least %d", name, v, low)
	}
	return nil
}

// durationWithin refuses a flag's time that is negative or too long.
func durationWithin(name string, d, most time.Duration) error {
	switch {
	case d < 0:
		return fmt.Errorf("%s is %v, but must not be negative", name, d)
	case d > most:
		return fmt.Errorf("%s is %v, but must be at most %v", name, d, most)
	}
	return nil
}
