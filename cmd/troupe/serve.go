package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/transport"
	"github.com/troupe-llm/troupe/transport/observe"
)

// usageError is an error of the flags that only came out later.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Run serves until a signal ends it.
func (c *serveCmd) Run(conf *config, stderr stderrWriter) (failed error) {
	if c.Model == "" {
		c.Model = conf.model
	}
	survivePipes()
	log, console := c.logger(stderr)
	// From here on, since a signal that nobody takes ends the process; a log may never come.
	var rotated atomic.Pointer[observe.RequestLog]
	onHangup(func() {
		if requests := rotated.Load(); requests != nil {
			if err := requests.Reopen(); err != nil {
				log.Error().Err(err).Msg("reopening the request log")
			}
		}
	})
	keys, err := c.keys()
	if err != nil {
		return usageError{err}
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	// The port first: that it is taken should not come out after a long download.
	ln, err := transport.Bind(net.JoinHostPort(c.Host, strconv.Itoa(c.Port)))
	if err != nil {
		return err
	}
	defer ln.Close()

	// A signal ends a download.
	opening, opened := signalContext(signals)
	e, err := c.open(opening, stderr)
	interrupted := opened()
	if err != nil {
		return err
	}
	defer e.Close()
	if interrupted != nil {
		return interrupted
	}

	requests, err := c.requestLog(log)
	if err != nil {
		return err
	}
	if requests != nil {
		// Closed last, when everything that may observe has ended.
		defer func() {
			if err := requests.Close(); err != nil {
				log.Error().Err(err).Msg("closing the request log")
				failed = errors.Join(failed, fmt.Errorf("the request log is not complete: %w", err))
			}
		}()
		rotated.Store(requests)
	}

	// Those who watch, before what they watch.
	var rt *actors.Runtime
	registry := observe.NewRegistry()
	var observers []lifecycle.Observer
	served := c.names()
	if !c.DisableLogStats {
		p := observe.NewPrometheus(observe.PrometheusOptions{
			Model: served[0], MaxModelLen: e.maxLen, BlockSize: c.BlockSize, CacheType: c.KVCacheDtype, PrefixCaching: c.EnablePrefixCaching,
			Engines: c.DataParallelSize, Stats: func() []actors.Stats { return rt.Engines() },
		})
		registry.MustRegister(p)
		observers = append(observers, p)
	}
	if requests != nil {
		registry.MustRegister(requests)
		observers = append(observers, requests)
	}
	if c.OTLPTracesEndpoint != "" {
		traces, err := c.traces(log)
		if err != nil {
			return usageError{err}
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), tracesFlush)
			defer cancel()
			if err := traces.Close(ctx); err != nil {
				log.Error().Err(err).Msg("sending the last spans")
			}
		}()
		observers = append(observers, traces)
	}
	page := c.page(served[0])
	if page != nil {
		observers = append(observers, page)
	}
	var observer lifecycle.Observer // nil when nobody watches: then nobody need count
	if len(observers) > 0 {
		observer = observe.Tee(observers...)
	}

	rt, err = e.start(actors.Config{
		DeliveryTimeout: c.DeliveryTimeout, Observer: observer, Detail: c.PerRequestMetricsDetail == "detailed",
		Timeline: c.RequestLogTimeline && (page != nil || requests != nil && requests.Format() == observe.JSON),
		Logger:   slog.New(zerolog.NewSlogHandler(log)),
	})
	if err != nil {
		return err
	}
	defer rt.Close()
	if page != nil {
		page.Follow(rt)
	}

	env := e.env(served)
	env.Metrics, env.MetricsDetail = c.EnablePerRequestMetrics, c.PerRequestMetricsDetail == "detailed"
	env.ForceUsage, env.LlamaTimings, env.DisableStats = c.EnableForceIncludeUsage, c.EnableLlamaTimings, c.DisableLogStats
	keyFile := c.SSLKeyfile
	if keyFile == "" {
		keyFile = c.SSLCertfile
	}
	server, err := transport.New(transport.Config{
		Runtime: rt, Env: env, Observer: observer, Traced: c.OTLPTracesEndpoint != "", Metrics: observe.Handler(registry), Console: page, Keys: keys,
		CORS:     transport.CORS{Origins: c.AllowedOrigins, Methods: c.AllowedMethods, Headers: c.AllowedHeaders, Credentials: c.AllowCredentials},
		CertFile: string(c.SSLCertfile), KeyFile: string(keyFile),
		Limits:  transport.Limits{MaxBody: int(c.MaxRequestBody), RequestTimeout: c.RequestTimeout},
		Version: thisBuild().Version, Log: log,
	})
	if err != nil {
		return err
	}

	f := facts{
		cmd: c, model: e.model, named: c.Model != "", device: rt.Stats().Device, threads: c.allThreads(), context: e.maxLen, step: c.stepTokens(),
		served: served, keys: len(keys), url: serverURL(ln.Addr(), c.SSLCertfile != ""), template: e.template != nil,
		logTo: c.logPlace(), report: c.logIsFile() && requests.Format() == observe.JSON,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	if console {
		f.banner(stderr)
	} else {
		f.log(log)
	}

	select {
	case err := <-ended:
		return err
	case s := <-signals:
		log.Info().Stringer("signal", s).Int("in_flight", rt.Admitted()).Stringer("at_most", c.DrainTimeout).
			Msg("shutting down when the requests in flight have ended; once more ends them at once")
	case <-rt.Lost():
		log.Error().Int("in_flight", rt.Admitted()).Msg("shutting down: only another process can open the device again")
	}
	drain, cancel := context.WithTimeout(context.Background(), c.DrainTimeout)
	defer cancel()
	go func() {
		<-signals
		cancel()
		signal.Stop(signals) // a third one kills
	}()
	if err := server.Shutdown(drain); err != nil {
		log.Warn().Err(err).Msg("not all requests could end")
	}
	log.Info().Msg("stopped")
	select {
	case <-rt.Lost():
		_, why := rt.Health()
		return fmt.Errorf("the device is lost to this process, and the server must be started again: %s", why)
	default:
		return nil
	}
}

// stderrWriter is where the server's own messages go. It has a type of its own for kong to tell it
// from stdout.
type stderrWriter struct{ io.Writer }

// terminal says whether w is one.
func terminal(w io.Writer) bool {
	if s, ok := w.(stderrWriter); ok {
		w = s.Writer
	}
	f, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}

// logger makes the logger of the server's own messages, and says whether they are for people.
func (c *serveCmd) logger(stderr stderrWriter) (log zerolog.Logger, console bool) {
	level, err := zerolog.ParseLevel(c.LogLevel)
	if err != nil { // cannot be: kong has checked it
		level = zerolog.InfoLevel
	}
	console = c.LogFormat == "console" || c.LogFormat == "auto" && terminal(stderr)
	w := stderr.Writer
	if console {
		w = zerolog.ConsoleWriter{Out: stderr.Writer, TimeFormat: "15:04:05.000", NoColor: !terminal(stderr)}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), console
}

// requestLog opens the request log; nil when there is to be none. What goes wrong with it later is said in log.
func (c *serveCmd) requestLog(log zerolog.Logger) (*observe.RequestLog, error) {
	to := c.logPlace()
	if to == "none" {
		return nil, nil
	}
	format := observe.Format(c.LogFormat)
	if c.LogFormat == "auto" {
		format = observe.JSON
		if to == "stdout" && terminal(os.Stdout) || to == "stderr" && terminal(os.Stderr) {
			format = observe.Console
		}
	}
	return observe.OpenRequestLog(to, format, warnings{log})
}

// logPlace is where the line of each request goes: a file, stdout, stderr or none.
func (c *serveCmd) logPlace() string {
	switch {
	case c.RequestLog != "":
		return c.RequestLog
	case c.DisableLogStats:
		return "none"
	}
	return "stdout"
}

// logIsFile says whether that is a file.
func (c *serveCmd) logIsFile() bool {
	return !slices.Contains([]string{"stdout", "stderr", "none"}, c.logPlace())
}

// warnings is a writer each of whose lines is a warning of the server's.
type warnings struct{ log zerolog.Logger }

// Write implements io.Writer.
func (w warnings) Write(p []byte) (int, error) {
	w.log.Warn().Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}

// tracesFlush is how long the last spans may take to be sent.
const tracesFlush = 5 * time.Second

// traces starts sending spans. What cannot be sent is said at most every ten seconds.
func (c *serveCmd) traces(log zerolog.Logger) (*observe.Traces, error) {
	var last atomic.Int64
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		now := time.Now().UnixNano()
		if before := last.Load(); now-before >= int64(10*time.Second) && last.CompareAndSwap(before, now) {
			log.Warn().Err(err).Str("endpoint", c.OTLPTracesEndpoint).Msg("spans cannot be sent, and are dropped")
		}
	}))
	return observe.OpenTraces(observe.TraceOptions{Endpoint: c.OTLPTracesEndpoint, Version: thisBuild().Version})
}

// keys are the API keys of the flags, or else of the environment.
func (c *serveCmd) keys() ([]transport.Key, error) {
	given := []string(c.APIKey)
	if len(given) == 0 {
		var err error
		if given, err = keysFromEnvironment(); err != nil {
			return nil, err
		}
	}
	return transport.ParseKeys(given)
}

// names are the model's names in the API.
func (c *serveCmd) names() []string {
	if len(c.ServedModelName) > 0 {
		return c.ServedModelName
	}
	return []string{c.name()}
}

// signalContext is a context that the next signal cancels, with the signal in its cause. The caller
// calls done when signals are for somebody else again; its error is the signal, if there was one.
func signalContext(signals <-chan os.Signal) (ctx context.Context, done func() error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case s := <-signals:
			cancel(fmt.Errorf("got signal %v", s))
		case <-stop:
		}
	}()
	return ctx, func() error {
		close(stop)
		<-stopped
		err := context.Cause(ctx)
		cancel(nil)
		return err
	}
}
