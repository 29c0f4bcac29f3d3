package tokenizer

import (
	"strings"
	"testing"
)

// english is running text for the benchmarks.
const english = `Once upon a time, in a small village at the edge of a forest, there lived a clockmaker who had
never once been late. Every morning at 7:45 he opened the shutters, wound the twelve clocks in the window,
and waited for the first customer, who was usually somebody's grandmother with a watch that had stopped in
1974. "It isn't broken," he would say, "it's only tired." Nobody believed him, of course; but the watches
went home ticking, and what people don't understand they eventually stop asking about.
`

func BenchmarkEncodeEnglish(b *testing.B) {
	tok := realTokenizer(b)
	text := strings.Repeat(english, 40)
	dst := make([]int32, 0, len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		dst = tok.AppendEncode(dst[:0], text, false, true)
	}
}

func BenchmarkEncodeCode(b *testing.B) {
	tok := realTokenizer(b)
	text := strings.Repeat("func (s *Server) handle(w http.ResponseWriter, r *http.Request) {\n\tif err := s.check(r); err != nil {\n\t\thttp.Error(w, err.Error(), http.StatusBadRequest)\n\t\treturn\n\t}\n}\n\n", 100)
	dst := make([]int32, 0, len(text))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = tok.AppendEncode(dst[:0], text, false, true)
	}
}

func BenchmarkEncodeChinese(b *testing.B) {
	tok := realTokenizer(b)
	text := strings.Repeat("我能吞下玻璃而不傷身體。今天的天氣很好，我們去公園散步吧。", 200)
	dst := make([]int32, 0, len(text))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = tok.AppendEncode(dst[:0], text, false, true)
	}
}

func BenchmarkDecoderPush(b *testing.B) {
	tok := realTokenizer(b)
	ids := tok.Encode(english, false, true)
	dst := make([]byte, 0, 2*len(english))
	b.ReportAllocs()
	for b.Loop() {
		d := tok.NewDecoder(true)
		dst = dst[:0]
		for _, id := range ids {
			dst = d.Push(dst, id)
		}
		dst = d.Flush(dst)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/token")
}

func BenchmarkNew(b *testing.B) {
	s := realSpec(b)
	for b.Loop() {
		if _, err := New(s); err != nil {
			b.Fatal(err)
		}
	}
}
