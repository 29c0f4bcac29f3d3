package openai

import (
	"testing"

	"github.com/troupe-llm/troupe/lifecycle"
)

func benchmarkDelta(b *testing.B, endpoint, members string, d lifecycle.Delta) {
	j := parse(b, testEnv(), endpoint, with(endpoint, `"stream":true`+members))
	d.StopToken = -1
	buf := j.Encoder.Delta(make([]byte, 0, 4096), &d) // the opening is not what is measured
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		buf = j.Encoder.Delta(buf[:0], &d)
	}
	b.ReportMetric(float64(len(buf)), "bytes/frame")
}

func BenchmarkChatDelta(b *testing.B) {
	benchmarkDelta(b, "chat", "", lifecycle.Delta{Text: " world", IDs: []int32{7}})
}

func BenchmarkChatDeltaWithUsage(b *testing.B) {
	benchmarkDelta(b, "chat", `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
		lifecycle.Delta{Text: " world", IDs: []int32{7}, Usage: lifecycle.Usage{Prompt: 100, Cached: 64, Completion: 5}})
}

func BenchmarkChatDeltaWithLogprobs(b *testing.B) {
	l := lifecycle.TokenLogprob{ID: 100, Logprob: -0.5, Rank: 1}
	for k := range int32(5) {
		l.Top = append(l.Top, lifecycle.IDLogprob{ID: 100 + k, Logprob: -1.25 * float32(k)})
	}
	benchmarkDelta(b, "chat", `,"logprobs":true,"top_logprobs":5`, lifecycle.Delta{Text: " world", IDs: []int32{100}, Logprobs: []lifecycle.TokenLogprob{l}})
}

func BenchmarkCompletionDelta(b *testing.B) {
	benchmarkDelta(b, "completion", "", lifecycle.Delta{Text: " world", IDs: []int32{7}})
}

func BenchmarkResponseDelta(b *testing.B) {
	benchmarkDelta(b, "responses", "", lifecycle.Delta{Text: " world", IDs: []int32{7}})
}

func BenchmarkParseChat(b *testing.B) {
	e := testEnv()
	body := []byte(`{"model":"tiny","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"What is the capital of the world?"}],
		"max_tokens":128,"temperature":0.7,"top_p":0.95,"stream":true,"stream_options":{"include_usage":true}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.ParseChat(body); err != nil {
			b.Fatal(err)
		}
	}
}
