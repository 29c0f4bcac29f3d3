package main

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"

	"github.com/rs/zerolog"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/fetch"
)

// facts are what is said of a server as it begins to serve.
type facts struct {
	cmd      *serveCmd
	model    *model.Model
	named    bool // a model was named or fetched, so that there is something to say of it
	device   gpu.Info
	threads  int
	context  int
	step     int // tokens
	served   []string
	keys     int
	url      string
	template bool
	logTo    string // where the line of each request goes
	report   bool   // it is a file that troupe report reads
}

// banner writes for people what runs where, a command to try, and how to end it. Rows fit 80 columns,
// but for those with long names and paths in them.
func (f *facts) banner(w io.Writer) {
	row := func(what, format string, args ...any) {
		fmt.Fprintf(w, "%-9s %s\n", what, fmt.Sprintf(format, args...))
	}
	if m := f.model; f.named {
		row("model", "%s: %s, %s parameters, %s, %s", m.Name, m.Architecture, thousands(m.Parameters), m.Quantization, fetch.SizeText(m.WeightBytes))
		if m.Path != "" {
			row("", "%s", m.Path)
		} else {
			row("", "inside this program, to try it with; for real answers name a model:")
			row("", "troupe serve smollm2")
		}
	} else {
		row("model", "none: tokens are made up")
	}
	threads := ""
	if f.device.Kind == "host" {
		threads = fmt.Sprintf(", %d threads", f.threads)
	}
	each, several := "", ""
	if n := f.cmd.DataParallelSize; n > 1 {
		each, several = " on each", fmt.Sprintf("%d × ", n)
	}
	row("device", "%s%s (%s)%s", several, f.device.Name, f.device.Kind, threads)
	if f.cmd.noGPU != nil {
		row("", "no GPU: %v", f.cmd.noGPU)
	}
	row("steps", "up to %d sequences and %d tokens%s, of up to %d tokens each", f.cmd.sequences(), f.step, each, f.context)
	caching := "off"
	if f.cmd.EnablePrefixCaching {
		caching = "on"
	}
	numbers := ""
	if f.device.CacheType != "" {
		numbers = " of " + f.device.CacheType
	}
	row("KV cache", "%d blocks of %d tokens, %s%s%s; prefix caching %s", f.device.NumBlocks, f.cmd.BlockSize,
		fetch.SizeText(int64(f.device.NumBlocks)*f.device.BlockBytes), numbers, each, caching)
	row("serving", "%s as %s", f.url, strings.Join(f.served, ", "))
	if s := f.switches(); s != "" {
		row("", "%s", s)
	}
	if f.cmd.consoleOn() {
		row("console", "%s/console", f.url)
	}
	switch {
	case f.logTo == "none":
		row("log", "no lines of requests; --request-log FILE keeps them")
	case f.report:
		row("log", "one line a request, to %s", f.logTo)
		row("", "troupe report reads it")
	default:
		row("log", "one line a request, to %s; --request-log FILE keeps them", f.logTo)
	}
	what, command := "try", f.curl()
	for i, part := range command {
		if i < len(command)-1 {
			part += ` \`
		}
		row(what, "%s", part)
		what = ""
	}
	row("stop", "Ctrl-C; requests in flight may go on for %v, a second one ends them", f.cmd.DrainTimeout)
}

// switches names the flags that change what a client sees.
func (f *facts) switches() string {
	var s []string
	if f.cmd.EnablePerRequestMetrics {
		s = append(s, "per-request metrics ("+f.cmd.PerRequestMetricsDetail+")")
	}
	if f.cmd.DisableLogStats {
		s = append(s, "no statistics")
	}
	switch f.keys {
	case 0:
	case 1:
		s = append(s, "1 API key")
	default:
		s = append(s, fmt.Sprintf("%d API keys", f.keys))
	}
	return strings.Join(s, ", ")
}

// curl is a command for a shell that asks for a short answer, in parts that are rows of their own.
func (f *facts) curl() []string {
	path, body := "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hello!"}],"max_tokens":50}`
	if !f.template {
		path, body = "/v1/completions", `{"prompt":"Hello!","max_tokens":50}`
	}
	insecure := ""
	if f.cmd.SSLCertfile != "" {
		insecure = "-k "
	}
	parts := []string{"curl " + insecure + f.url + path}
	if f.keys > 0 {
		parts = append(parts, `-H 'Authorization: Bearer KEY'`)
	}
	return append(parts, `-H 'Content-Type: application/json'`, `-d '`+body+`'`)
}

// log says the same for machines.
func (f *facts) log(log zerolog.Logger) {
	e := log.Info().Str("url", f.url).Strs("served", f.served).Str("device", f.device.Kind).Str("device_name", f.device.Name)
	if f.named {
		e = e.Str("model", f.model.Name).Str("path", f.model.Path).Str("architecture", f.model.Architecture).
			Int64("parameters", f.model.Parameters).Stringer("quantization", f.model.Quantization).Int64("weight_bytes", f.model.WeightBytes)
	}
	if f.cmd.noGPU != nil {
		e = e.AnErr("no_gpu", f.cmd.noGPU)
	}
	e.Int("data_parallel_size", f.cmd.DataParallelSize).Int("threads", f.threads).Int("max_model_len", f.context).Int("max_num_seqs", f.cmd.sequences()).Int("max_num_batched_tokens", f.step).
		Int("kv_blocks", f.device.NumBlocks).Int("block_size", f.cmd.BlockSize).Int64("kv_bytes", int64(f.device.NumBlocks)*f.device.BlockBytes).Str("kv_type", f.device.CacheType).
		Bool("prefix_caching", f.cmd.EnablePrefixCaching).Bool("per_request_metrics", f.cmd.EnablePerRequestMetrics).
		Int("api_keys", f.keys).Str("request_log", f.logTo).Msg("serving")
}

// serverURL is where a client on this machine reaches a listener.
func serverURL(addr net.Addr, secure bool) string {
	u := url.URL{Scheme: "http", Host: addr.String()}
	if secure {
		u.Scheme = "https"
	}
	if host, port, err := net.SplitHostPort(u.Host); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			u.Host = net.JoinHostPort("127.0.0.1", port)
		}
	}
	return u.String()
}

// thousands writes a number of parameters as models are spoken of: 135M, 1.2B.
func thousands(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1fB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.0fM", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.0fk", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}
