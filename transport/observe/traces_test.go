package observe

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
)

// receiver is an OTLP collector, over HTTP and gRPC.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu       sync.Mutex
	spans    []*wire.Span
	resource map[string]string
	paths    []string
}

func (r *receiver) Export(_ context.Context, q *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range q.ResourceSpans {
		r.resource = map[string]string{}
		for _, a := range rs.Resource.Attributes {
			r.resource[a.Key] = a.Value.GetStringValue()
		}
		for _, ss := range rs.ScopeSpans {
			r.spans = append(r.spans, ss.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.paths = append(r.paths, q.URL.Path)
	r.mu.Unlock()
	_, _ = r.Export(q.Context(), &export)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// flat are a span's attributes as text.
func flat(list []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range list {
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			m[a.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			m[a.Key] = fmt.Sprint(v.IntValue)
		case *common.AnyValue_DoubleValue:
			m[a.Key] = fmt.Sprint(v.DoubleValue)
		case *common.AnyValue_BoolValue:
			m[a.Key] = fmt.Sprint(v.BoolValue)
		case *common.AnyValue_ArrayValue:
			for _, e := range v.ArrayValue.Values {
				m[a.Key] += "[" + e.GetStringValue() + "]"
			}
		}
	}
	return m
}

func TestARequestBecomesASpanWithItsTimesAndFiguresOverEitherProtocol(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			var got receiver
			var endpoint string
			if protocol == "http" {
				server := httptest.NewServer(&got)
				defer server.Close()
				endpoint = server.URL
			} else {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				server := grpc.NewServer()
				collector.RegisterTraceServiceServer(server, &got)
				go func() { _ = server.Serve(ln) }()
				defer server.Stop()
				endpoint = "grpc://" + ln.Addr().String()
			}
			traces, err := OpenTraces(TraceOptions{Endpoint: endpoint, Version: "v1.2.3"})
			if err != nil {
				t.Fatal(err)
			}
			r := finished()
			r.Request.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
			r.Request.TraceState = "vendor=x"
			r.Detail.Slowed.QueueCapacity = 12 * ms
			r.Request.Params.TopK, r.Request.Peer = 40, "[2001:db8::1]:4242"
			traces.Observe(r)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := traces.Close(ctx); err != nil {
				t.Fatal(err)
			}

			if len(got.spans) != 1 {
				t.Fatalf("%d spans came", len(got.spans))
			}
			if protocol == "http" && got.paths[0] != "/v1/traces" {
				t.Errorf("sent to %s", got.paths[0])
			}
			if got.resource["service.name"] != "troupe" || got.resource["service.version"] != "v1.2.3" {
				t.Errorf("resource: %v", got.resource)
			}
			s := got.spans[0]
			if s.Name != "chat tiny" || s.Kind != wire.Span_SPAN_KIND_SERVER || s.Status.GetCode() != wire.Status_STATUS_CODE_UNSET {
				t.Errorf("name %q, kind %v, status %v", s.Name, s.Kind, s.Status)
			}
			if id, parent := fmt.Sprintf("%x", s.TraceId), fmt.Sprintf("%x", s.ParentSpanId); id != "0af7651916cd43dd8448eb211c80319c" || parent != "b7ad6b7169203331" || s.TraceState != "vendor=x" {
				t.Errorf("trace %s, parent %s, state %s", id, parent, s.TraceState)
			}
			wall := func(stamp int64) uint64 { return uint64(r.Wall + stamp - r.Arrival) }
			if s.StartTimeUnixNano != wall(r.Arrival) || s.EndTimeUnixNano != wall(r.Delivered) {
				t.Errorf("from %d to %d", s.StartTimeUnixNano, s.EndTimeUnixNano)
			}
			events := map[string]uint64{}
			for _, e := range s.Events {
				events[e.Name] = e.TimeUnixNano
			}
			for name, stamp := range map[string]int64{"queued": r.Queued, "scheduled": r.Scheduled, "first_token": r.FirstToken, "last_token": r.LastToken, "finished": r.Finished} {
				if events[name] != wall(stamp) {
					t.Errorf("event %s at %d, want %d", name, events[name], wall(stamp))
				}
			}
			// The types are the conventions' (semconv v1.40): a backend may keep two that differ apart.
			for _, a := range s.Attributes {
				var want string
				switch a.Key {
				case "gen_ai.request.max_tokens", "gen_ai.request.seed", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
					"gen_ai.usage.cache_read.input_tokens", "client.port", "http.response.status_code":
					want = "*v1.AnyValue_IntValue"
				case "gen_ai.request.top_k", "gen_ai.request.top_p", "gen_ai.request.temperature", "gen_ai.request.frequency_penalty", "gen_ai.request.presence_penalty":
					want = "*v1.AnyValue_DoubleValue"
				case "gen_ai.request.choice.count":
					t.Errorf("the one choice is counted")
				}
				if got := fmt.Sprintf("%T", a.Value.Value); want != "" && got != want {
					t.Errorf("%s is of type %s, want %s", a.Key, got, want)
				}
			}
			a := flat(s.Attributes)
			for name, want := range map[string]string{
				"gen_ai.operation.name": "chat", "gen_ai.provider.name": "troupe", "gen_ai.request.model": "tiny", "gen_ai.response.id": "chatcmpl-7",
				"gen_ai.request.max_tokens": "128", "gen_ai.request.stop_sequences": "[\n\n][END]", "gen_ai.request.seed": "-1",
				"gen_ai.request.top_k": "40", "client.address": "2001:db8::1", "client.port": "4242",
				"gen_ai.usage.input_tokens": "40", "gen_ai.usage.output_tokens": "128", "gen_ai.usage.cache_read.input_tokens": "16",
				"gen_ai.response.finish_reasons": "[length]", "http.response.status_code": "200", "troupe.outcome": "length",
				"gen_ai.latency.time_in_queue": "0.0123", "gen_ai.latency.time_to_first_token": "0.098", "gen_ai.latency.time_in_model_prefill": "0.0852",
				"gen_ai.latency.time_in_model_decode": "1.2405", "gen_ai.latency.e2e": "1.3385", "troupe.slowed_by.queue_capacity": "0.012",
			} {
				if a[name] != want {
					t.Errorf("%s is %q, want %q", name, a[name], want)
				}
			}
		})
	}
}

func TestAFailureOfTheServerIsASpansErrorAndOneOfTheClientIsNot(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	traces, err := newTraces(sdktrace.WithSpanProcessor(recorder), "")
	if err != nil {
		t.Fatal(err)
	}
	failed, wrong, gone := finished(), refused(404, "model_not_found"), finished()
	failed.Outcome, failed.Status, failed.Err = lifecycle.OutcomeError, 500, &lifecycle.Error{Code: "device_error", Message: "it broke"}
	wrong.Request.Endpoint, wrong.Request.Model = "chat", "" // as long as it isn't one that is served
	gone.Request.N = 3
	gone.Outcome, gone.Status, gone.Delivered = lifecycle.OutcomeAbort, 499, 0
	traces.Observe(failed)
	traces.Observe(wrong)
	traces.Observe(gone)
	spans := recorder.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, want := range []struct{ status, kind string }{{"Error", "device_error"}, {"Unset", "model_not_found"}, {"Unset", ""}} {
		kind := ""
		for _, a := range spans[i].Attributes() {
			switch {
			case a.Key == "error.type":
				kind = a.Value.AsString()
			case a.Key == "gen_ai.request.model" && i == 1:
				t.Errorf("a model that is not known is %q", a.Value.AsString())
			case a.Key == "gen_ai.request.choice.count" && (i != 2 || a.Value.AsInt64() != 3):
				t.Errorf("span %d has %d choices", i, a.Value.AsInt64())
			}
		}
		if s := spans[i].Status().Code.String(); s != want.status || kind != want.kind {
			t.Errorf("span %d: status %s, error %q, want %v", i, s, kind, want)
		}
	}
}

func TestASpanTellsHowEachChoiceEnded(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	traces, err := newTraces(sdktrace.WithSpanProcessor(recorder), "")
	if err != nil {
		t.Fatal(err)
	}
	several, gone := finished(), finished()
	several.Outcome, several.Reasons = lifecycle.OutcomeLength, []lifecycle.Reason{lifecycle.ReasonStop, lifecycle.ReasonLength}
	gone.Outcome, gone.Reasons = lifecycle.OutcomeAbort, []lifecycle.Reason{lifecycle.ReasonStop, lifecycle.ReasonAbort}
	for _, r := range []*lifecycle.Record{finished(), several, gone} {
		traces.Observe(r)
	}
	var got []string
	for _, span := range recorder.Ended() {
		reasons := "none"
		for _, a := range span.Attributes() {
			if a.Key == "gen_ai.response.finish_reasons" {
				reasons = fmt.Sprint(a.Value.AsStringSlice())
			}
		}
		got = append(got, reasons)
	}
	if want := []string{"[length]", "[stop length]", "none"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWhatAClientSendsKeepsNoSpanFromBeingSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var got receiver
		server := httptest.NewServer(&got)
		defer server.Close()
		traces, err := OpenTraces(TraceOptions{Endpoint: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(1, 5).Draw(t, "records")
		for range n {
			r := drawRecord(t)
			r.Request.Endpoint = "chat"
			r.Request.TraceParent = rapid.String().Draw(t, "traceparent")
			r.Request.TraceState = rapid.String().Draw(t, "tracestate")
			traces.Observe(r)
		}
		if err := traces.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if len(got.spans) != n {
			t.Fatalf("%d of %d spans came", len(got.spans), n)
		}
	})
}

func TestACallerThatDoesNotSampleIsFollowed(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	traces, err := newTraces(sdktrace.WithSpanProcessor(recorder), "")
	if err != nil {
		t.Fatal(err)
	}
	r := finished()
	r.Request.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	traces.Observe(r)
	if n := len(recorder.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

func TestAnEndpointThatIsNoneIsAnErrorThatSaysHowToWriteOne(t *testing.T) {
	for _, endpoint := range []string{"", "localhost:4317", "ftp://localhost", "http://", "::"} {
		if traces, err := OpenTraces(TraceOptions{Endpoint: endpoint}); err == nil {
			t.Errorf("%q is taken", endpoint)
			_ = traces.Close(context.Background())
		}
	}
}
