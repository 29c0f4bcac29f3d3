package observe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/troupe-llm/troupe/lifecycle"
)

// Traces sends a span for each request that is over to an OpenTelemetry collector. Like the other
// observers it knows of a request only what its Record says: the span is made when all its times
// are known, and nothing is done for it while the request runs.
//
// Attributes are those of OpenTelemetry's semantic conventions for generative AI (v1.40) and, for
// times, vLLM's names, in seconds; what Troupe alone knows is under troupe.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// TraceOptions say where spans go.
type TraceOptions struct {
	// Endpoint is the collector's URL, as vLLM's --otlp-traces-endpoint: http(s)://host:4318 speaks
	// OTLP over HTTP, to /v1/traces unless it has a path; grpc://host:4317 or grpcs:// over gRPC, as
	// does port 4317 with any scheme, unless OTEL_EXPORTER_OTLP_TRACES_PROTOCOL says otherwise.
	// Headers, certificates and timeouts come from OpenTelemetry's own environment variables, and so
	// does the sampler (default: all, or what the caller's trace has decided).
	Endpoint string
	Version  string // of this program
}

// OpenTraces starts sending spans. It does not wait for the collector: what cannot be sent is said
// by OpenTelemetry's error handler (otel.SetErrorHandler), and dropped.
func OpenTraces(o TraceOptions) (*Traces, error) {
	exporter, err := exporter(o.Endpoint)
	if err != nil {
		return nil, err
	}
	return newTraces(sdktrace.WithBatcher(exporter), o.Version)
}

func newTraces(to sdktrace.TracerProviderOption, version string) (*Traces, error) {
	// The later ones win: what the environment says goes before our own name.
	r, err := resource.New(context.Background(),
		resource.WithAttributes(attribute.String("service.name", "troupe"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("traces: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p := sdktrace.NewTracerProvider(to, sdktrace.WithResource(r))
	return &Traces{provider: p, tracer: p.Tracer("github.com/troupe-llm/troupe")}, nil
}

// exporter makes what sends spans. It connects when there are some.
func exporter(endpoint string) (*otlptrace.Exporter, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("--otlp-traces-endpoint %q: want the URL of a collector, such as http://localhost:4318 or grpc://localhost:4317", endpoint)
	}
	protocol := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	secure := u.Scheme == "https" || u.Scheme == "grpcs"
	grpc := protocol == "grpc" || protocol == "" && u.Port() == "4317"
	switch u.Scheme {
	case "http", "https":
	case "grpc", "grpcs":
		grpc = true
	default:
		return nil, fmt.Errorf("--otlp-traces-endpoint %q: its scheme is %q, but must be http, https, grpc or grpcs", endpoint, u.Scheme)
	}
	ctx := context.Background()
	if grpc {
		options := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(u.Host)}
		if u.Port() == "" {
			options[0] = otlptracegrpc.WithEndpoint(u.Host + ":4317")
		}
		if !secure {
			options = append(options, otlptracegrpc.WithInsecure())
		}
		return otlptracegrpc.New(ctx, options...)
	}
	if protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is %q, but must be grpc or http/protobuf", protocol)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()))
}

// Progress implements lifecycle.Observer: a span is of a request that is over.
func (*Traces) Progress(*lifecycle.Progress) {}

// operations are the conventions' names of what an endpoint does.
var operations = map[string]string{"chat": "chat", "responses": "chat", "completion": "text_completion"}

// Observe implements lifecycle.Observer. The exporter's queue takes the span, or drops it when it is
// full: it never waits.
func (t *Traces) Observe(r *lifecycle.Record) {
	q := r.Request
	operation := operations[q.Endpoint]
	if operation == "" {
		return // the in-process benchmark
	}
	name := operation
	// What a sampler may want to decide by is there from the beginning.
	first := []attribute.KeyValue{attribute.String("gen_ai.operation.name", operation), attribute.String("gen_ai.provider.name", "troupe")}
	if q.Model != "" {
		name += " " + sendable(q.Model)
		first = append(first, attribute.String("gen_ai.request.model", sendable(q.Model)))
	}
	at := func(stamp int64) time.Time { return time.Unix(0, r.Wall+stamp-r.Arrival) }
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{
		"traceparent": q.TraceParent, "tracestate": q.TraceState,
	})
	_, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at(r.Arrival)),
		trace.WithAttributes(first...))
	end := max(r.Delivered, r.Finished, r.Arrival)
	defer func() { span.End(trace.WithTimestamp(at(end))) }()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attributes(r)...)
	for _, e := range [...]struct {
		name  string
		stamp int64
	}{
		{"queued", r.Queued}, {"scheduled", r.Scheduled}, {"first_token", r.FirstToken},
		{"last_token", r.LastToken}, {"finished", r.Finished},
	} {
		if e.stamp != 0 {
			span.AddEvent(e.name, trace.WithTimestamp(at(e.stamp)))
		}
	}
	if r.Err != nil {
		kind := r.Err.Code
		if kind == "" {
			kind = r.Err.Type
		}
		span.SetAttributes(attribute.String("error.type", sendable(kind)))
		// A server's span is an error when the server is at fault.
		if r.Status >= 500 {
			span.SetStatus(codes.Error, sendable(r.Err.Message))
		}
	}
}

// attributes are what the conventions, vLLM and Troupe call a request's parameters and figures.
func attributes(r *lifecycle.Record) []attribute.KeyValue {
	q, d := r.Request, &r.Detail
	a := make([]attribute.KeyValue, 0, 40)
	text := func(name, v string) {
		if v != "" {
			a = append(a, attribute.String(name, sendable(v)))
		}
	}
	number := func(name string, v int) { a = append(a, attribute.Int(name, v)) }
	seconds := func(name string, from, to int64) {
		if from != 0 && to != 0 {
			a = append(a, attribute.Float64(name, float64(max(to-from, 0))/1e9))
		}
	}
	text("gen_ai.response.model", q.Model)
	text("gen_ai.response.id", q.ExternalID)
	text("gen_ai.request.id", q.ExternalID)
	text("troupe.client_request_id", q.ClientID)
	text("troupe.key", q.KeyName)
	host, port, err := net.SplitHostPort(q.Peer)
	if err != nil {
		host, port = q.Peer, ""
	}
	text("client.address", host)
	if n, err := strconv.Atoi(port); err == nil {
		number("client.port", n)
	}
	number("http.response.status_code", r.Status)
	text("troupe.outcome", string(r.Outcome))
	a = append(a, attribute.Bool("troupe.stream", q.Stream))
	if p := q.Params; p != nil {
		number("gen_ai.request.max_tokens", p.MaxTokens)
		if q.N > 1 {
			number("gen_ai.request.choice.count", q.N)
		}
		a = append(a,
			attribute.Float64("gen_ai.request.temperature", float64(p.Temperature)),
			attribute.Float64("gen_ai.request.top_p", float64(p.TopP)),
			attribute.Float64("gen_ai.request.frequency_penalty", float64(p.FrequencyPenalty)),
			attribute.Float64("gen_ai.request.presence_penalty", float64(p.PresencePenalty)),
			attribute.Int64("gen_ai.request.seed", int64(p.Seed)))
		if p.TopK > 0 {
			a = append(a, attribute.Float64("gen_ai.request.top_k", float64(p.TopK))) // a double, in the conventions
		}
		if len(p.Stop) > 0 {
			stops := make([]string, len(p.Stop))
			for i, s := range p.Stop {
				stops[i] = sendable(s)
			}
			a = append(a, attribute.StringSlice("gen_ai.request.stop_sequences", stops))
		}
	}
	if r.Outcome == lifecycle.OutcomeRefused {
		return a
	}
	if r.Outcome == lifecycle.OutcomeStop || r.Outcome == lifecycle.OutcomeLength {
		reasons := []string{string(r.Outcome)}
		if len(r.Reasons) > 0 {
			reasons = reasons[:0]
			for _, reason := range r.Reasons {
				reasons = append(reasons, string(reason))
			}
		}
		a = append(a, attribute.StringSlice("gen_ai.response.finish_reasons", reasons))
	}
	number("gen_ai.usage.input_tokens", r.Usage.Prompt)
	number("gen_ai.usage.output_tokens", r.Usage.Completion)
	number("gen_ai.usage.cache_read.input_tokens", r.Usage.Cached)
	number("gen_ai.usage.num_sequences", r.Sequences)
	seconds("gen_ai.latency.time_in_queue", r.Queued, r.Scheduled)
	seconds("gen_ai.latency.time_to_first_token", r.Arrival, r.FirstToken)
	seconds("gen_ai.latency.time_in_model_prefill", r.Scheduled, r.FirstToken)
	seconds("gen_ai.latency.time_in_model_decode", r.FirstToken, r.LastToken)
	seconds("gen_ai.latency.time_in_model_inference", r.Scheduled, r.LastToken)
	seconds("gen_ai.latency.e2e", r.Arrival, r.Finished)
	seconds("troupe.delivery", r.Finished, r.Delivered)
	if d.Preemptions > 0 {
		number("troupe.preemptions", d.Preemptions)
	}
	for _, s := range [...]struct {
		cause string
		ns    int64
	}{
		{"queue_capacity", d.Slowed.QueueCapacity}, {"queue_kv", d.Slowed.QueueKV}, {"prefill_of_others", d.Slowed.PrefillOfOthers},
		{"preemption", d.Slowed.Preemption}, {"device_restart", d.Slowed.DeviceRestart}, {"slow_client", d.Slowed.SlowClient},
	} {
		if s.ns > 0 {
			a = append(a, attribute.Float64("troupe.slowed_by."+s.cause, float64(s.ns)/1e9))
		}
	}
	return a
}

// sendable makes a client's text fit for a span: one string that is not UTF-8 would keep all that are
// sent with it from being encoded.
func sendable(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// Close sends what has not been sent, for as long as ctx allows.
func (t *Traces) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }
