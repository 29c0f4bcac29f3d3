package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

// drawn is a report with something in every part of it.
func drawn() *Report {
	rng := rand.New(rand.NewPCG(1, 2))
	r := &Report{
		Kind: "serve", Started: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
		Config: Config{
			Target: "http://127.0.0.1:8000", Endpoint: "chat", Model: "<script>alert(1)</script>", Arrival: "poisson", Rate: 20, Requests: 500,
			Prompts: "log-normal, 512 tokens", Outputs: "128 tokens", Tokenizer: "the server", Percentiles: []float64{50, 90, 99},
			SLO: &SLO{TTFT: 200, ITL: 50, Share: 0.95},
		},
		Env:   Environment{Version: "v1", Go: "go1.26", OS: "linux", Arch: "amd64", CPUs: 2, Server: "troupe"},
		Notes: []string{"Prompt lengths are estimates."},
	}
	var ttft, itl, e2e distribution
	for i := range 500 {
		in := rng.IntN(2000)
		s := Sample{Index: i, Outcome: Completed, Status: 200, Sent: float64(i) * 50, TTFT: 20 + float64(in)/10 + 10*rng.ExpFloat64(), Input: in, Output: 128}
		s.TPOT = 15 + 3*rng.NormFloat64()
		s.E2E = s.TTFT + s.TPOT*127
		if i%3 == 0 {
			s.Cached = in
		}
		if i%50 == 7 {
			s = Sample{Index: i, Outcome: Failed, TTFT: math.NaN(), E2E: math.NaN(), TPOT: math.NaN(), Input: -1, Output: -1}
		} else {
			ttft.add(s.TTFT)
			e2e.add(s.E2E)
		}
		r.Samples = append(r.Samples, s)
		for range 10 {
			g := Gap{At: s.Sent + rng.Float64()*2000, Value: math.Abs(15+5*rng.NormFloat64()) + 0.1}
			r.Gaps = append(r.Gaps, g)
			itl.add(g.Value)
		}
	}
	r.Completed, r.Failed, r.Duration = 490, 10, 27
	r.TTFT, r.ITL, r.E2E = ttft.summary(r.Config.Percentiles), itl.summary(r.Config.Percentiles), e2e.summary(r.Config.Percentiles)
	r.RequestRate, r.OutputRate, r.PeakOutputRate = 18.1, 2300, 2900
	r.Good = &Goodput{Requests: 470, Share: 0.94, Rate: 17.2}
	r.Errors = []ErrorGroup{{"http 500", 10, "<b>internal</b> error"}}
	r.Server = &ServerSide{Source: "metrics", Requests: 490, TTFT: r.TTFT, ClientTTFT: r.TTFT, TTFTDelivery: r.TTFT}
	for i := range 60 {
		r.Timeline = append(r.Timeline, Tick{At: float64(i+1) / 2, Waiting: rng.IntN(5), Running: 10 + rng.IntN(10), Completed: 9, OutputTokens: int64(1000 + rng.IntN(300))})
	}
	r.Sweep = &Sweep{Of: "rate", Best: 20, Limit: 25, Shown: 20}
	for i, load := range []float64{5, 10, 20, 25, 40} {
		m := r.Measured
		atLoad(&m, load, i)
		m.GaveUp = load == 40
		r.Sweep.Points = append(r.Sweep.Points, SweepPoint{Load: load, Met: load <= 20, Measured: m})
	}
	return r
}

// atLoad makes m what a load of so many requests a second might have measured.
func atLoad(m *Measured, load float64, i int) {
	m.RequestRate, m.OutputRate = min(load, 27), 128*min(load, 27)
	m.TTFT.Median *= 1 + load/20
	m.TTFT.Percentiles = append([]Percentile(nil), m.TTFT.Percentiles...)
	for k := range m.TTFT.Percentiles {
		m.TTFT.Percentiles[k].Value *= 1 + load/10
	}
	m.Failed = i
}

func TestAReportIsOnePageWithEveryPartAndNothingFromOutside(t *testing.T) {
	var b bytes.Buffer
	if err := WriteHTML(&b, drawn()); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if path := os.Getenv("TROUPE_WRITE_REPORT"); path != "" { // to look at it
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"Latency distributions", "Inter-token latency distribution", "Requests in flight", "Output over time", "TTFT against prompt length",
		"Inter-token latency over time", "TTFT at each throughput", "The highest load that met the objective was 20 requests/s; 25 did not.",
		"The run at 20 requests/s</h2>", `<td>40</td><td><span class="bad">no</span>, ended early</td>`, `<td>25</td><td><span class="bad">no</span></td>`,
		"Server and client", "http 500", "TPOT", "94.0 % met", "10 failed", "Prompt lengths are estimates.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	for _, bad := range []string{"NaN", "+Inf", "src=", "href=", "@import", "url(", "<script>alert", "<b>internal"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if n := strings.Count(page, "<svg"); n != 8 {
		t.Errorf("%d pictures", n)
	}
	// The report itself can be read back from the page.
	_, data, _ := strings.Cut(page, `id="report">`)
	data, _, _ = strings.Cut(data, "</script>")
	var back Report
	if err := json.Unmarshal([]byte(data), &back); err != nil || back.Completed != 490 || len(back.Sweep.Points) != 5 {
		t.Errorf("%v, %+v", err, back.Completed)
	}
}

func TestAReportOfNothingIsAPageToo(t *testing.T) {
	for _, kind := range []string{"serve", "latency", "throughput"} {
		var b bytes.Buffer
		if err := WriteHTML(&b, &Report{Kind: kind, Config: Config{Percentiles: []float64{99}}}); err != nil {
			t.Fatal(err)
		}
		if page := b.String(); strings.Contains(page, "<svg") || strings.Contains(page, "NaN") {
			t.Errorf("%s", page)
		}
	}
}
