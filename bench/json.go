package bench

import (
	"encoding/json"
	"io"
	"math"
	"strconv"
)

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		v, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b = append(strconv.AppendQuote(b, m.name), ':')
		b = append(b, v...)
	}
	return append(b, '}'), nil
}

// number is v, or null when there is none.
func number(v float64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return v
}

// WriteJSON writes the report as one indented JSON object. Its members have the names and units that
// those of `vllm bench serve --save-result` have (of latency and throughput: those of `vllm bench
// latency` and `throughput`, too), and what has no such name is in the member "report": the
// configuration, the environment, the definitions' other measures, the timeline, the sweep. detailed
// adds vLLM's lists with an entry for each request. A value that does not exist is null.
func (r *Report) WriteJSON(w io.Writer, detailed bool) error {
	m := &r.Measured
	orNull := func(v float64, ok bool) any {
		if !ok {
			return nil
		}
		return v
	}
	kind := map[string]string{"chat": "openai-chat", "completions": "openai"}[r.Config.Endpoint]
	o := object{
		{"date", r.Started.Format("20060102-150405")},
		{"endpoint_type", kind}, {"backend", kind}, {"label", r.Kind}, {"model_id", r.Config.Model}, {"tokenizer_id", r.Config.Tokenizer},
		{"num_prompts", m.Begun()}, {"request_rate", "inf"}, {"burstiness", 1.0}, {"max_concurrency", nil},
		{"duration", m.Duration}, {"completed", m.Completed}, {"failed", m.Failed},
		{"total_input_tokens", m.InputTokens}, {"total_output_tokens", m.OutputTokens},
		{"request_throughput", m.RequestRate}, {"request_goodput", nil},
		{"output_throughput", m.OutputRate}, {"total_token_throughput", m.TotalRate},
		{"max_output_tokens_per_s", m.PeakOutputRate}, {"max_concurrent_requests", m.PeakInFlight},
	}
	set := func(name string, v any) {
		for i := range o {
			if o[i].name == name {
				o[i].value = v
			}
		}
	}
	if r.Config.Rate > 0 {
		set("request_rate", r.Config.Rate)
	}
	if r.Config.Burstiness > 0 {
		set("burstiness", r.Config.Burstiness)
	}
	if r.Config.Concurrency > 0 {
		set("max_concurrency", r.Config.Concurrency)
	}
	if m.Good != nil {
		set("request_goodput", m.Good.Rate)
	}
	for _, e := range []struct {
		name string
		s    *Summary
	}{{"ttft", &m.TTFT}, {"tpot", &m.TPOT}, {"itl", &m.ITL}, {"e2el", &m.E2E}} {
		some := e.s.Count > 0
		o = append(o, member{"mean_" + e.name + "_ms", orNull(e.s.Mean, some)}, member{"median_" + e.name + "_ms", orNull(e.s.Median, some)},
			member{"std_" + e.name + "_ms", orNull(e.s.Std, some)})
		for _, p := range r.Config.Percentiles {
			v, ok := e.s.At(p)
			o = append(o, member{"p" + strconv.FormatFloat(p, 'f', -1, 64) + "_" + e.name + "_ms", orNull(v, ok)})
		}
	}
	switch r.Kind {
	case "latency":
		o = append(o, latencyMembers(r.Batches)...)
	case "throughput":
		o = append(o, member{"elapsed_time", m.Duration}, member{"num_requests", m.Begun()}, member{"total_num_tokens", m.InputTokens + m.OutputTokens},
			member{"requests_per_second", m.RequestRate}, member{"tokens_per_second", m.TotalRate})
	}
	if detailed {
		o = append(o, r.detailMembers()...)
	}
	o = append(o, member{"report", r})
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(o)
}

// latencyMembers are those of vLLM's latency benchmark, in seconds.
func latencyMembers(batches []float64) []member {
	var d distribution
	latencies := make([]float64, len(batches))
	for i, ms := range batches {
		latencies[i] = ms / 1e3
		d.add(latencies[i])
	}
	percentiles := object{}
	s := d.summary([]float64{10, 25, 50, 75, 90, 99})
	for _, p := range s.Percentiles {
		percentiles = append(percentiles, member{strconv.FormatFloat(p.P, 'f', -1, 64), p.Value})
	}
	var mean any
	if s.Count > 0 {
		mean = s.Mean
	}
	return []member{{"avg_latency", mean}, {"latencies", latencies}, {"percentiles", percentiles}}
}

// detailMembers are lists with an entry for each sample; times in seconds, as vLLM has them.
func (r *Report) detailMembers() []member {
	n := len(r.Samples)
	var (
		inputs, outputs            = make([]int, n), make([]int, n)
		ttfts, e2els               = make([]any, n), make([]any, n)
		starts, queues             = make([]float64, n), make([]float64, n)
		itls                       = make([][]float64, n)
		texts, errs, outcomes, ids = make([]string, n), make([]string, n), make([]Outcome, n), make([]int, n)
	)
	for i := range r.Samples {
		s := &r.Samples[i]
		inputs[i], outputs[i], ids[i] = max(s.Input, 0), s.Output, s.Index
		ttfts[i], e2els[i] = number(s.TTFT/1e3), number(s.E2E/1e3)
		starts[i], queues[i] = s.Sent/1e3, (s.Sent-s.Due)/1e3
		itls[i] = make([]float64, len(s.Gaps))
		for k, g := range s.Gaps {
			itls[i][k] = g / 1e3
		}
		texts[i], outcomes[i] = s.Text, s.Outcome
		if s.Error != "" {
			errs[i] = s.Error + ": " + s.Message
		}
	}
	return []member{{"input_lens", inputs}, {"output_lens", outputs}, {"ttfts", ttfts}, {"itls", itls}, {"e2els", e2els},
		{"start_times", starts}, {"queue_times", queues}, {"generated_texts", texts}, {"errors", errs}, {"outcomes", outcomes}, {"indices", ids}}
}
