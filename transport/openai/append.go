package openai

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/lifecycle"
)

// The appenders write JSON by hand: a frame is written for every token of every stream, and must
// cost neither reflection nor garbage.

const hexDigits = "0123456789abcdef"

// plain holds the ASCII characters that a JSON string holds as they are.
var plain = func() (t [utf8.RuneSelf]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return t
}()

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte {
	return append(appendText(append(dst, '"'), s), '"')
}

// appendText appends what stands between the quotes of a JSON string. Bytes that are not UTF-8
// become U+FFFD. The line ends that only Unicode knows (U+0085, U+2028, U+2029) are escaped, since
// some SSE readers break lines at them.
func appendText(dst []byte, s string) []byte {
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if plain[c] {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == 0x85 || r == 0x2028 || r == 0x2029 {
			dst = append(dst, s[from:i]...)
			dst = append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			from = i + n
		}
		i += n
	}
	return append(dst, s[from:]...)
}

func itoa(v int) string { return strconv.Itoa(v) }

func appendInt(dst []byte, v int) []byte { return strconv.AppendInt(dst, int64(v), 10) }

// appendIDs appends a list of token ids.
func appendIDs(dst []byte, ids []int32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	return append(dst, ']')
}

// appendLogprob appends a log probability. JSON has no infinity: like OpenAI and vLLM, −9999 stands
// for a token that cannot be.
func appendLogprob(dst []byte, v float32) []byte {
	if !(v >= -9999) || v > math.MaxFloat32 {
		v = -9999
	}
	v += 0 // no −0
	return strconv.AppendFloat(dst, float64(v), 'g', -1, 32)
}

// appendNumber appends a finite float32 with the fewest digits that read back the same.
func appendNumber(dst []byte, v float32) []byte {
	return strconv.AppendFloat(dst, float64(v), 'g', -1, 32)
}

// appendMillis appends a duration in nanoseconds as milliseconds, and null when it is negative.
func appendMillis(dst []byte, d int64) []byte {
	if d < 0 {
		return append(dst, "null"...)
	}
	return lifecycle.Num(float64(d) / 1e6).AppendJSON(dst)
}

// AppendError appends the body of an error answer, in OpenAI's shape:
// {"error":{"message","type","param","code"}}. Like vLLM's, code is the HTTP status.
func AppendError(dst []byte, e *lifecycle.Error) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	switch {
	case e.Type != "":
		dst = appendString(dst, e.Type)
	case e.Status < 500:
		dst = append(dst, `"invalid_request_error"`...)
	default:
		dst = append(dst, `"server_error"`...)
	}
	dst = append(dst, `,"param":`...)
	if e.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, e.Param)
	}
	dst = append(dst, `,"code":`...)
	return append(appendInt(dst, e.Status), "}}"...)
}

// appendUsage appends the usage object of chat and completions.
func appendUsage(dst []byte, u *lifecycle.Usage) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = appendInt(dst, u.Prompt)
	dst = append(dst, `,"total_tokens":`...)
	dst = appendInt(dst, u.Prompt+u.Completion)
	dst = append(dst, `,"completion_tokens":`...)
	dst = appendInt(dst, u.Completion)
	dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
	dst = appendInt(dst, u.Cached)
	dst = append(dst, `},"completion_tokens_details":{"reasoning_tokens":`...)
	return append(appendInt(dst, u.Reasoning), "}}"...)
}

// appendMetrics appends a metrics object; with detail it has the key `detail` too.
func appendMetrics(dst []byte, m *lifecycle.Metrics, d *lifecycle.Detail, detail bool) []byte {
	dst = m.AppendJSON(dst, nil)
	if !detail {
		return dst
	}
	dst = append(dst[:len(dst)-1], `,"detail":`...)
	return append(appendDetail(dst, d, m), '}')
}

// appendDetail appends the contract's metrics.detail, with every key; null when there is none.
func appendDetail(dst []byte, d *lifecycle.Detail, m *lifecycle.Metrics) []byte {
	if d == nil {
		return append(dst, "null"...)
	}
	quantile := func(name string, v int64) {
		dst = append(dst, name...)
		if d.ITLCount == 0 {
			v = -1
		}
		dst = appendMillis(dst, v)
	}
	quantile(`{"itl_ms":{"p50":`, d.ITLP50)
	quantile(`,"p90":`, d.ITLP90)
	quantile(`,"p99":`, d.ITLP99)
	quantile(`,"max":`, d.ITLMax)
	dst = append(dst, `,"count":`...)
	dst = appendInt(dst, d.ITLCount)
	dst = append(dst, `},"arrival_to_first_token_ms":`...)
	dst = appendMillis(dst, d.ArrivalToFirstToken)
	dst = append(dst, `,"e2e_ms":`...)
	dst = appendMillis(dst, d.EndToEnd)
	dst = append(dst, `,"prefill_ms":`...)
	dst = appendMillis(dst, d.Prefill)
	dst = append(dst, `,"prefill_tokens":`...)
	dst = appendInt(dst, d.PrefillTokens)
	dst = append(dst, `,"cached_tokens":`...)
	dst = appendInt(dst, d.Cached)
	dst = append(dst, `,"prefill_tokens_per_second":`...)
	dst = perSecond(d.PrefillTokens, float64(d.Prefill)/1e6).AppendJSON(dst)
	dst = append(dst, `,"decode_tokens_per_second":`...)
	var decode lifecycle.Number
	if itl, ok := m.MeanITL.Get(); ok && itl > 0 {
		decode = lifecycle.Num(1000 / itl) // (n − 1) / generation time
	}
	dst = decode.AppendJSON(dst)
	dst = append(dst, `,"preemptions":`...)
	dst = appendInt(dst, d.Preemptions)
	dst = append(dst, `,"preempted_ms":`...)
	dst = appendMillis(dst, d.Preempted)
	dst = append(dst, `,"steps":`...)
	dst = appendInt(dst, d.Steps)
	dst = append(dst, `,"mean_batch_size":`...)
	var batch lifecycle.Number
	if d.Steps > 0 {
		batch = lifecycle.Num(float64(d.BatchSum) / float64(d.Steps))
	}
	dst = batch.AppendJSON(dst)
	part := func(name string, v int64) { dst = appendMillis(append(dst, name...), max(v, 0)) }
	part(`,"slowed_by_ms":{"queue_capacity":`, d.Slowed.QueueCapacity)
	part(`,"queue_kv":`, d.Slowed.QueueKV)
	part(`,"prefill_of_others":`, d.Slowed.PrefillOfOthers)
	part(`,"preemption":`, d.Slowed.Preemption)
	part(`,"device_restart":`, d.Slowed.DeviceRestart)
	part(`,"slow_client":`, d.Slowed.SlowClient)
	return append(dst, "}}"...)
}

// perSecond is a rate of n in a time, null without a time.
func perSecond(n int, millis float64) lifecycle.Number {
	if millis <= 0 {
		return lifecycle.Number{}
	}
	return lifecycle.Num(float64(n) / (millis / 1000))
}

// appendTimings appends llama-server's `timings`: milliseconds, prompt tokens computed (not those
// from the cache), and rates over all predicted tokens, as it computes them; 0 where there is
// nothing to divide by.
func appendTimings(dst []byte, u *lifecycle.Usage, m *lifecycle.Metrics) []byte {
	prompt, _ := m.TimeToFirstToken.Get()
	predicted, _ := m.GenerationTime.Get()
	field := func(name string, v float64) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			v = 0
		}
		dst = strconv.AppendFloat(append(dst, name...), v, 'f', -1, 64)
	}
	n, p := float64(u.Prompt-u.Cached), float64(u.Completion)
	field(`{"cache_n":`, float64(u.Cached))
	field(`,"prompt_n":`, n)
	field(`,"prompt_ms":`, prompt)
	field(`,"prompt_per_token_ms":`, prompt/n)
	field(`,"prompt_per_second":`, n/prompt*1000)
	field(`,"predicted_n":`, p)
	field(`,"predicted_ms":`, predicted)
	field(`,"predicted_per_token_ms":`, predicted/p)
	field(`,"predicted_per_second":`, p/predicted*1000)
	return append(dst, '}')
}
