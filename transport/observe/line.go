package observe

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/troupe-llm/troupe/lifecycle"
)

// Bounds on what a client can make a line hold. Whatever is longer is cut, and ends in "…".
const (
	maxText    = 256 // bytes of an id, a path, a model name, a stop string
	maxMessage = 1024
	maxList    = 32 // stop strings, stop token ids
)

// lineStart is what every line begins with.
var lineStart = fmt.Sprintf(`{"version":%d,"time":`, lifecycle.RecordVersion)

// appendLine appends the line, with its line feed. docs/request-log.md describes it, and a test compares the two.
//
// A line has some eighty values, and a server writes one for each request, so it should cost next to
// nothing beside the request's tokens. It is therefore made in one go where it will be written from: to tell
// zerolog of each value by itself costs five times as much. What most requests leave as it is goes into the
// line as one text.
func appendLine(b []byte, r *lifecycle.Record) []byte {
	b = append(b, lineStart...)
	q := r.Request
	b = appendTime(b, r.Wall)
	b = lifecycle.AppendUint(append(b, `,"id":`...), q.ID)
	b = quoted(b, `,"request_id":`, q.ExternalID, maxText)
	b = quoted(b, `,"client_request_id":`, q.ClientID, maxText)
	b = quoted(b, `,"endpoint":`, q.Endpoint, maxText)
	if r.Method == "" && r.Path == "" {
		b = append(b, `,"method":null,"path":null`...)
	} else {
		b = quoted(b, `,"method":`, r.Method, maxText)
		b = quoted(b, `,"path":`, r.Path, maxText)
	}
	b = quoted(b, `,"model":`, q.Model, maxText)
	b = quoted(b, `,"key":`, q.KeyName, maxText)
	b = quoted(b, `,"peer":`, q.Peer, maxText)
	b = boolean(b, `,"stream":`, q.Stream)
	if q.Priority == 0 && len(q.Prompts) == 1 && q.N == 1 && !q.Echo {
		b = append(b, `,"priority":0,"prompts":1,"n":1,"echo":false`...)
	} else {
		b = integer(b, `,"priority":`, q.Priority)
		b = integer(b, `,"prompts":`, len(q.Prompts))
		b = integer(b, `,"n":`, q.N)
		b = boolean(b, `,"echo":`, q.Echo)
	}
	b = span(b, `,"deadline_ms":`, q.Deadline != 0, q.Deadline-r.Arrival)
	b = appendParams(append(b, `,"params":`...), q.Params)

	b = integer(b, `,"tokens":{"prompt":`, r.Usage.Prompt)
	b = integer(b, `,"cached":`, r.Usage.Cached)
	b = integer(b, `,"computed":`, r.Detail.PrefillTokens)
	b = integer(b, `,"output":`, r.Usage.Completion)
	b = integer(b, `,"longest":`, r.Longest)
	if r.Usage.Reasoning|r.Discarded|r.Drafted|r.Accepted == 0 {
		b = append(b, `,"reasoning":0,"discarded":0,"drafted":0,"accepted":0`...)
	} else {
		b = integer(b, `,"reasoning":`, r.Usage.Reasoning)
		b = integer(b, `,"discarded":`, r.Discarded)
		b = integer(b, `,"drafted":`, r.Drafted)
		b = integer(b, `,"accepted":`, r.Accepted)
	}

	b = stamp(b, `},"at_ms":{"queued":`, r, r.Queued)
	b = stamp(b, `,"scheduled":`, r, r.Scheduled)
	b = stamp(b, `,"first_token":`, r, r.FirstToken)
	b = stamp(b, `,"last_token":`, r, r.LastToken)
	b = stamp(b, `,"finished":`, r, r.Finished)
	b = stamp(b, `,"delivered":`, r, r.Delivered)

	m := &r.Metrics
	b = m.TimeToFirstToken.AppendRounded(append(b, `},"metrics":{"time_to_first_token_ms":`...))
	b = m.GenerationTime.AppendRounded(append(b, `,"generation_time_ms":`...))
	b = m.QueueTime.AppendRounded(append(b, `,"queue_time_ms":`...))
	b = m.MeanITL.AppendRounded(append(b, `,"mean_itl_ms":`...))
	b = m.TokensPerSecond.AppendRounded(append(b, `,"tokens_per_second":`...))
	b = appendDetail(append(b, `,"speculative_decoding":null},"detail":`...), r)

	if s := &r.Detail.Slowed; *s == (lifecycle.Slowed{}) {
		b = append(b, `,"slowed_by_ms":{"queue_capacity":0,"queue_kv":0,"prefill_of_others":0,"preemption":0,"device_restart":0,"slow_client":0},"timeline":`...)
	} else {
		b = span(b, `,"slowed_by_ms":{"queue_capacity":`, true, s.QueueCapacity)
		b = span(b, `,"queue_kv":`, true, s.QueueKV)
		b = span(b, `,"prefill_of_others":`, true, s.PrefillOfOthers)
		b = span(b, `,"preemption":`, true, s.Preemption)
		b = span(b, `,"device_restart":`, true, s.DeviceRestart)
		b = span(b, `,"slow_client":`, true, s.SlowClient)
		b = append(b, `},"timeline":`...)
	}
	b = r.Timeline.AppendJSON(b, r.Arrival)

	b = integer(b, `,"sequences":`, r.Sequences)
	b = quoted(b, `,"outcome":`, string(r.Outcome), maxText)
	if r.StopString == "" && r.StopToken < 0 {
		b = append(b, `,"stop":{"string":null,"token":null},"status":`...)
	} else {
		b = quoted(b, `,"stop":{"string":`, r.StopString, maxText)
		b = known(b, `,"token":`, r.StopToken >= 0, int(r.StopToken))
		b = append(b, `},"status":`...)
	}
	b = lifecycle.AppendInt(b, int64(r.Status))

	if f := r.Err; f == nil {
		b = append(b, `,"error":{"type":null,"code":null,"param":null,"message":null},"bytes":`...)
	} else {
		b = quoted(b, `,"error":{"type":`, f.Type, maxText)
		b = quoted(b, `,"code":`, f.Code, maxText)
		b = quoted(b, `,"param":`, f.Param, maxText)
		b = quoted(b, `,"message":`, f.Message, maxMessage)
		b = append(b, `},"bytes":`...)
	}
	b = lifecycle.AppendInt(b, r.BytesOut)
	engine, ok := r.ComputedBy()
	return append(known(b, `,"engine":`, ok, engine), '}', '\n')
}

// unknownParams is what there is to say of a request that was refused before it had any.
const unknownParams = `{"temperature":null,"top_k":null,"top_p":null,"min_p":null,"seed":null,"repetition_penalty":null,` +
	`"presence_penalty":null,"frequency_penalty":null,"max_tokens":null,"min_tokens":null,"logprobs":null,"prompt_logprobs":null,` +
	`"logit_bias":null,"allowed_tokens":null,"ignore_eos":null,"stop":null,"stop_token_ids":null,"include_stop":null,"skip_special_tokens":null}`

// appendParams appends the object of the sampling parameters.
func appendParams(b []byte, p *lifecycle.Params) []byte {
	if p == nil {
		return append(b, unknownParams...)
	}
	b = single(b, `{"temperature":`, p.Temperature)
	if p.TopK == 0 && p.TopP == 1 && p.MinP == 0 {
		b = append(b, `,"top_k":0,"top_p":1,"min_p":0`...)
	} else {
		b = integer(b, `,"top_k":`, p.TopK)
		b = single(b, `,"top_p":`, p.TopP)
		b = single(b, `,"min_p":`, p.MinP)
	}
	b = lifecycle.AppendUint(append(b, `,"seed":`...), p.Seed)
	if p.RepetitionPenalty == 1 && p.PresencePenalty == 0 && p.FrequencyPenalty == 0 {
		b = append(b, `,"repetition_penalty":1,"presence_penalty":0,"frequency_penalty":0`...)
	} else {
		b = single(b, `,"repetition_penalty":`, p.RepetitionPenalty)
		b = single(b, `,"presence_penalty":`, p.PresencePenalty)
		b = single(b, `,"frequency_penalty":`, p.FrequencyPenalty)
	}
	b = integer(b, `,"max_tokens":`, p.MaxTokens)
	b = integer(b, `,"min_tokens":`, p.MinTokens)
	if p.Logprobs < 0 && p.PromptLogprobs < 0 && len(p.LogitBias) == 0 && p.Allowed == nil {
		b = append(b, `,"logprobs":null,"prompt_logprobs":null,"logit_bias":0,"allowed_tokens":null`...)
	} else {
		b = known(b, `,"logprobs":`, p.Logprobs >= 0, p.Logprobs)
		b = known(b, `,"prompt_logprobs":`, p.PromptLogprobs >= 0, p.PromptLogprobs)
		b = integer(b, `,"logit_bias":`, len(p.LogitBias))
		b = known(b, `,"allowed_tokens":`, p.Allowed != nil, len(p.Allowed))
	}
	b = boolean(b, `,"ignore_eos":`, p.IgnoreEOS)
	if len(p.Stop) == 0 && len(p.StopTokenIDs) == 0 && !p.IncludeStop && p.SkipSpecialTokens {
		return append(b, `,"stop":[],"stop_token_ids":[],"include_stop":false,"skip_special_tokens":true}`...)
	}
	b = append(b, `,"stop":[`...)
	for i, s := range p.Stop[:min(len(p.Stop), maxList)] {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, cut(s, maxText))
	}
	b = append(b, `],"stop_token_ids":[`...)
	for i, id := range p.StopTokenIDs[:min(len(p.StopTokenIDs), maxList)] {
		if i > 0 {
			b = append(b, ',')
		}
		b = lifecycle.AppendInt(b, int64(id))
	}
	b = boolean(b, `],"include_stop":`, p.IncludeStop)
	b = boolean(b, `,"skip_special_tokens":`, p.SkipSpecialTokens)
	return append(b, '}')
}

// appendDetail appends the object of what the means hide.
func appendDetail(b []byte, r *lifecycle.Record) []byte {
	t := &r.Detail
	ran := r.FirstToken != 0
	b = span(b, `{"arrival_to_first_token_ms":`, ran, t.ArrivalToFirstToken)
	b = span(b, `,"e2e_ms":`, r.Finished != 0, t.EndToEnd)
	b = span(b, `,"prefill_ms":`, ran, t.Prefill)
	b = number(b, `,"prefill_tokens_per_second":`, ran && t.Prefill > 0, rate(t.PrefillTokens, t.Prefill))
	b = number(b, `,"decode_tokens_per_second":`, r.LastToken > r.FirstToken && r.Usage.Completion > 1,
		rate(r.Usage.Completion-1, r.LastToken-r.FirstToken))
	if t.Preemptions == 0 && t.Preempted == 0 {
		b = append(b, `,"preemptions":0,"preempted_ms":0`...)
	} else {
		b = integer(b, `,"preemptions":`, t.Preemptions)
		b = span(b, `,"preempted_ms":`, true, t.Preempted)
	}
	b = integer(b, `,"steps":`, t.Steps)
	b = number(b, `,"mean_batch_size":`, t.Steps > 0, float64(t.BatchSum)/float64(max(t.Steps, 1)))

	if t.ITLCount <= 0 {
		return append(b, `,"itl_ms":{"p50":null,"p90":null,"p99":null,"max":null,"count":null}}`...)
	}
	b = span(b, `,"itl_ms":{"p50":`, true, t.ITLP50)
	b = span(b, `,"p90":`, true, t.ITLP90)
	b = span(b, `,"p99":`, true, t.ITLP99)
	b = span(b, `,"max":`, true, t.ITLMax)
	b = integer(b, `,"count":`, t.ITLCount)
	return append(b, '}', '}')
}

// What follows appends what comes before a value, key and all, and the value, or null when there is
// none: integer a count, number a float with six decimals, single one that is printed with its own
// precision (0.7, not 0.699999988), span a duration of d nanoseconds in milliseconds, stamp a time from
// the request's arrival, quoted a string of at most limit bytes, null when it is empty.
func integer(b []byte, key string, v int) []byte {
	return lifecycle.AppendInt(append(b, key...), int64(v))
}

func known(b []byte, key string, ok bool, v int) []byte {
	if !ok {
		return append(append(b, key...), "null"...)
	}
	return integer(b, key, v)
}

func boolean(b []byte, key string, v bool) []byte {
	if b = append(b, key...); v {
		return append(b, "true"...)
	}
	return append(b, "false"...)
}

func number(b []byte, key string, ok bool, v float64) []byte {
	b = append(b, key...)
	if !ok {
		return append(b, "null"...)
	}
	return lifecycle.Num(v).AppendRounded(b)
}

func single(b []byte, key string, v float32) []byte {
	b = append(b, key...)
	switch {
	case v == 0:
		return append(b, '0')
	case v == 1:
		return append(b, '1')
	case v > 0 && v < 1000:
		// Most have two decimals, which are then the fewest digits that read back the same: no two numbers
		// of so few digits are the same float32.
		if n := int64(float64(v)*100 + 0.5); float32(n)/100 == v {
			return lifecycle.AppendMillis(b, n*1e4)
		}
	case math.IsNaN(float64(v)) || math.IsInf(float64(v), 0):
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, float64(v), 'g', -1, 32)
}

func span(b []byte, key string, ok bool, d int64) []byte {
	b = append(b, key...)
	if !ok {
		return append(b, "null"...)
	}
	return lifecycle.AppendMillis(b, d)
}

func stamp(b []byte, key string, r *lifecycle.Record, at int64) []byte {
	return span(b, key, at != 0, at-r.Arrival)
}

func quoted(b []byte, key, s string, limit int) []byte {
	b = append(b, key...)
	if s == "" {
		return append(b, "null"...)
	}
	return appendQuoted(b, cut(s, limit))
}

// rate is n per second over d nanoseconds; d must not be 0.
func rate(n int, d int64) float64 { return float64(max(n, 0)) / (float64(d) / 1e9) }

// appendTime appends the wall clock of ns nanoseconds since 1970, in UTC and with all nine decimals,
// or null when it was not taken.
func appendTime(b []byte, ns int64) []byte {
	if ns == 0 {
		return append(b, "null"...)
	}
	t := time.Unix(0, ns).UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	b = pair(pair(append(b, '"'), year/100), year%100)
	b = pair(append(b, '-'), int(month))
	b = pair(append(b, '-'), day)
	b = pair(append(b, 'T'), hour)
	b = pair(append(b, ':'), minute)
	b = pair(append(b, ':'), second)
	rest := t.Nanosecond()
	b = pair(pair(append(b, '.'), rest/1e7), rest/1e5%100)
	b = pair(pair(b, rest/1e3%100), rest/10%100)
	return append(b, '0'+byte(rest%10), 'Z', '"')
}

// pair appends v, from 0 to 99, as two digits.
func pair(b []byte, v int) []byte { return append(b, '0'+byte(v/10), '0'+byte(v%10)) }
