package logreport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/bench/requestlog"
)

// drawEntry draws a line as a server might have written it.
func drawEntry(t *rapid.T) requestlog.Entry {
	pick := func(name string, from ...string) string { return rapid.SampledFrom(from).Draw(t, name) }
	e := requestlog.Entry{
		Version: 1, RequestID: rapid.StringMatching(`chatcmpl-[a-f0-9]{6}`).Draw(t, "id"), StopToken: -1,
		Time:  time.Unix(1_790_000_000+rapid.Int64Range(0, 20_000).Draw(t, "time"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC().Format(time.RFC3339Nano),
		Model: pick("model", "a", "b"), Key: pick("key", "", "alice", "bob"), Endpoint: pick("endpoint", "chat", "completion"),
		Outcome: pick("outcome", "stop", "stop", "length", "abort", "error", "refused"), N: 1,
		At:      requestlog.At{Queued: 1, Scheduled: 2, FirstToken: 3, LastToken: 4, Finished: 5, Delivered: 6},
		Metrics: requestlog.Metrics{TokensPerSecond: math.NaN()}, Detail: requestlog.Detail{MeanBatch: math.NaN()},
	}
	if rapid.IntRange(0, 9).Draw(t, "clock") == 0 {
		e.Time = "" // it was not taken
	}
	e.Status = map[string]int{"stop": 200, "length": 200, "abort": 499, "error": 500, "refused": 429}[e.Outcome]
	ns := rapid.OneOf(rapid.Just(requestlog.Null), rapid.Custom(func(t *rapid.T) requestlog.Span {
		return requestlog.Span(rapid.Int64Range(0, 60e9).Draw(t, "ns"))
	}))
	e.Detail.ArrivalToFirstToken, e.Detail.EndToEnd = ns.Draw(t, "ttft"), ns.Draw(t, "e2e")
	e.Metrics.MeanITL, e.Metrics.QueueTime, e.Metrics.TimeToFirstToken, e.Metrics.GenerationTime = ns.Draw(t, "itl"), ns.Draw(t, "queue"), ns.Draw(t, "prefill"), ns.Draw(t, "decode")
	e.Detail.ITLP99 = requestlog.Null
	e.Tokens.Prompt = rapid.IntRange(0, 9000).Draw(t, "prompt")
	e.Tokens.Cached = rapid.IntRange(0, e.Tokens.Prompt).Draw(t, "cached")
	e.Tokens.Output = rapid.IntRange(0, 3000).Draw(t, "output")
	e.SlowedBy.QueueKV = max(ns.Draw(t, "kv"), 0)
	return e
}

func collect(t interface{ Fatal(...any) }, o Options, entries []requestlog.Entry) *Collector {
	c, err := NewCollector(o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range entries {
		c.Add(&entries[i])
	}
	return c
}

func TestAReportIsWhatItsLinesAddUpToHoweverTheyAreShared(t *testing.T) {
	prices, err := ReadPrices(strings.NewReader(`{"a": {"input": 0.1, "output": 0.3, "cached_input": 0.025}, "*": {input: 1, output: 3}}`))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfN(rapid.Custom(drawEntry), 0, 60).Draw(t, "entries")
		o := Options{By: []string{"model", "hour"}, Slowest: 5, Prices: prices, SLO: SLO{TTFT: 20_000}, Hours: true}
		cut := rapid.IntRange(0, len(entries)).Draw(t, "cut")
		whole, shared := collect(t, o, entries), collect(t, o, entries[:cut])
		shared.Merge(collect(t, o, entries[cut:]))
		r, again := whole.Report(Read{}), shared.Report(Read{})
		var a, b bytes.Buffer
		if r.WriteJSON(&a) != nil || again.WriteJSON(&b) != nil || a.String() != b.String() {
			t.Fatalf("in one: %s\nin two: %s", &a, &b)
		}

		if r.Total.Requests != int64(len(entries)) || r.Total.Stop+r.Total.Length+r.Total.Aborted+r.Total.Failed+r.Total.Refused != r.Total.Requests {
			t.Fatalf("%+v", r.Total)
		}
		sum := int64(0)
		for _, g := range r.Groups {
			sum += g.Requests
		}
		if sum != r.Total.Requests {
			t.Fatalf("the groups have %d requests of %d", sum, r.Total.Requests)
		}
		// The first and the last arrival by the clock, and the slowest by sorting them all.
		var first, last time.Time
		for i := range entries {
			if at, err := time.Parse(time.RFC3339Nano, entries[i].Time); err == nil {
				if first.IsZero() || at.Before(first) {
					first = at
				}
				if at.After(last) {
					last = at
				}
			}
		}
		if !first.IsZero() && (r.Total.First != first.Format(time.RFC3339Nano) || r.Total.Last != last.Format(time.RFC3339Nano)) || first.IsZero() && r.Total.First+r.Total.Last != "" {
			t.Fatalf("from %s to %s, want %v to %v", r.Total.First, r.Total.Last, first, last)
		}
		var slow []float64
		for i := range entries {
			if v := endToEnd(&entries[i]); v.Known() && entries[i].Outcome != "refused" {
				slow = append(slow, v.Millis())
			}
		}
		slices.Sort(slow)
		slices.Reverse(slow)
		slow = slow[:min(len(slow), 5)]
		for i, v := range slow {
			if len(r.Slowest) != len(slow) || r.Slowest[i].Value != v {
				t.Fatalf("the slowest are %+v, want %v", r.Slowest, slow)
			}
		}
		// Percentiles against sorting, and the bill against adding line by line.
		var ttft []float64
		cost, met, out := new(big.Rat), 0, map[string]int64{}
		for i := range entries {
			e := &entries[i]
			if e.Outcome == "refused" {
				continue
			}
			out[map[string]string{"stop": "completed", "length": "completed", "abort": "cancelled", "error": "failed"}[e.Outcome]] += int64(e.Tokens.Output)
			if e.Outcome != "stop" && e.Outcome != "length" {
				continue
			}
			in, cached, output := "1", "1", "3"
			if e.Model == "a" {
				in, cached, output = "0.1", "0.025", "0.3"
			}
			for tokens, price := range map[string]int{in + " input": e.Tokens.Prompt - e.Tokens.Cached, cached + " cached": e.Tokens.Cached, output + " output": e.Tokens.Output} {
				p, _ := new(big.Rat).SetString(strings.Fields(tokens)[0])
				cost.Add(cost, p.Mul(p, big.NewRat(int64(price), 1e6)))
			}
			if s := e.Detail.ArrivalToFirstToken; s.Known() {
				ttft = append(ttft, s.Millis())
				if s.Millis() <= 20_000 {
					met++
				}
			}
		}
		if int(r.Total.TTFT.Count) != len(ttft) || int(r.Total.Met) != met {
			t.Fatalf("%d first tokens, %v within the objective; want %d and %d", r.Total.TTFT.Count, r.Total.Met, len(ttft), met)
		}
		if len(ttft) > 0 {
			slices.Sort(ttft)
			exact := ttft[max(int(math.Ceil(0.9*float64(len(ttft))))-1, 0)]
			if got := float64(r.Total.TTFT.P90); math.Abs(got-exact) > 0.01*exact {
				t.Fatalf("p90 is %v, want %v", got, exact)
			}
		}
		u := &r.Usage.Total
		if u.Completed.Output != out["completed"] || u.Cancelled.Output != out["cancelled"] || u.Failed.Output != out["failed"] {
			t.Fatalf("%+v, want %v", u, out)
		}
		if got := u.Completed.Cost; len(ttft) > 0 && got != cost.FloatString(9) {
			t.Fatalf("cost %s, want %s", got, cost.FloatString(9))
		}
	})
}

// pieces reads a text in pieces of some lengths, as a pipe gives it: each ends a block where a line ends.
type pieces struct {
	text    string
	lengths []int
	n       int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.lengths[p.n%len(p.lengths)])], p.text)
	p.text = p.text[n:]
	p.n++
	return n, nil
}

// logLine is an entry as a line of a log.
func logLine(e *requestlog.Entry) string {
	ms := func(s requestlog.Span) any {
		if !s.Known() {
			return nil
		}
		return json.Number(fmt.Sprintf("%d.%06d", s/1e6, s%1e6))
	}
	b, _ := json.Marshal(map[string]any{
		"version": e.Version, "request_id": e.RequestID, "time": e.Time, "model": e.Model, "key": e.Key, "endpoint": e.Endpoint, "outcome": e.Outcome, "status": e.Status, "n": e.N,
		"metrics": map[string]any{"mean_itl_ms": ms(e.Metrics.MeanITL), "queue_time_ms": ms(e.Metrics.QueueTime), "time_to_first_token_ms": ms(e.Metrics.TimeToFirstToken), "generation_time_ms": ms(e.Metrics.GenerationTime)},
		"detail":  map[string]any{"arrival_to_first_token_ms": ms(e.Detail.ArrivalToFirstToken), "e2e_ms": ms(e.Detail.EndToEnd)},
		"tokens":  map[string]any{"prompt": e.Tokens.Prompt, "cached": e.Tokens.Cached, "output": e.Tokens.Output}, "slowed_by_ms": map[string]any{"queue_kv": ms(e.SlowedBy.QueueKV)},
	})
	return string(b) + "\n"
}

func TestAReportIsTheSameHoweverManyReadTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		for range rapid.IntRange(0, 80).Draw(t, "lines") {
			switch rapid.IntRange(0, 12).Draw(t, "kind") {
			case 0:
				text.WriteString("broken\n")
			case 1:
				text.WriteString(`{"version":2}` + "\n")
			case 2:
				text.WriteString("\n")
			default:
				e := drawEntry(t)
				if rapid.Bool().Draw(t, "tie") { // as slow as others
					e.Detail.EndToEnd = 5e9
				}
				text.WriteString(logLine(&e))
			}
		}
		log := text.String()
		if rapid.Bool().Draw(t, "no end") {
			log = strings.TrimSuffix(log, "\n")
		}
		lengths := rapid.SliceOfN(rapid.IntRange(1, 3000), 1, 20).Draw(t, "lengths")
		first := ""
		for _, workers := range []int{1, 2, 7} {
			all := make([]*Collector, workers)
			takers := make([]requestlog.Func, workers)
			for i := range all {
				all[i] = collect(t, Options{By: []string{"model", "hour"}, Slowest: 5, SLO: SLO{TTFT: 20_000}, Hours: true}, nil)
				takers[i] = func(e *requestlog.Entry, _ requestlog.Place) error { all[i].Add(e); return nil }
			}
			sum, err := requestlog.Share(context.Background(), []string{"-"}, &pieces{text: log, lengths: lengths}, takers, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range all[1:] {
				all[0].Merge(c)
			}
			var b bytes.Buffer
			r := all[0].Report(Read{Lines: int64(sum.Lines), Broken: int64(sum.Broken), Newer: int64(sum.Newer), Examples: sum.Problems})
			if err := r.WriteJSON(&b); err != nil {
				t.Fatal(err)
			}
			if first == "" {
				first = b.String()
			}
			if b.String() != first {
				t.Fatalf("one: %s\n%d: %s", first, workers, &b)
			}
		}
	})
}

func TestWhichGroupsAreToldApartDoesNotDependOnTheOrderOfTheLines(t *testing.T) {
	var entries []requestlog.Entry
	for i := range 2*maxGroups + 500 {
		entries = append(entries, requestlog.Entry{Model: fmt.Sprint("m", i%(maxGroups+300)), Key: fmt.Sprint("k", i), Outcome: "stop", Tokens: requestlog.Tokens{Output: i}})
	}
	o := Options{By: []string{"model"}}
	var want bytes.Buffer
	if err := collect(t, o, entries).Report(Read{}).WriteJSON(&want); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 3 {
		rng.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		parts := [3]*Collector{}
		at := []int{0, rng.IntN(len(entries)), len(entries)}
		at = []int{0, min(at[1], len(entries)/2), max(at[1], len(entries)/2), len(entries)}
		for i := range parts {
			parts[i] = collect(t, o, entries[at[i]:at[i+1]])
		}
		parts[2].Merge(parts[0])
		parts[2].Merge(parts[1])
		var got bytes.Buffer
		if err := parts[2].Report(Read{}).WriteJSON(&got); err != nil || got.String() != want.String() {
			t.Fatal("another order gives another report", err)
		}
	}
}

func TestEveryFormatCarriesTheSameFigures(t *testing.T) {
	var entries []requestlog.Entry
	for i := range 200 {
		entries = append(entries, rapid.Custom(drawEntry).Example(i))
	}
	entries[0].Model = "<script>\x1b[31m\t</script>"
	r := collect(t, Options{By: []string{"model"}, Slowest: 3, Hours: true, SLO: SLO{TTFT: 1e-6}}, entries).Report(Read{Lines: 200, Broken: 1, Examples: []string{"a.log:7: not JSON"}})

	var table, page, text, file bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if s := table.String(); strings.ContainsAny(s, "\x1b\t") || !strings.Contains(s, "By model") || !strings.Contains(s, "a.log:7") {
		t.Errorf("%s", s)
	}
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if s := page.String(); strings.Contains(s, "<script>\x1b") || strings.Count(s, "<svg") != 4 || strings.Contains(s, "NaN") {
		t.Errorf("%s", s)
	}
	if path := os.Getenv("TROUPE_WRITE_REPORT"); path != "" { // to look at it
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.WriteCSV(&text); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&text).ReadAll()
	if err != nil || len(rows) != len(r.Groups)+1 || rows[0][0] != "model" || rows[0][1] != "requests" {
		t.Fatalf("%v, %v", rows, err)
	}
	if err := r.WriteParquet(&file); err != nil {
		t.Fatal(err)
	}
	opened, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		t.Fatal(err)
	}
	reader := parquet.NewGenericReader[map[string]any](opened, opened.Schema())
	defer reader.Close()
	back := make([]map[string]any, len(r.Groups))
	for i := range back {
		back[i] = map[string]any{}
	}
	if n, err := reader.Read(back); n != len(back) || opened.NumRows() != int64(n) {
		t.Fatalf("%d rows of %d, %v", n, opened.NumRows(), err)
	}
	missed, idle := 0, 0
	for i, g := range r.Groups {
		if back[i]["requests"] != g.Requests || back[i]["model"] != strings.TrimSpace(g.Values[0]) || g.TTFT.Count > 0 && back[i]["ttft_ms_p99"] != float64(g.TTFT.P99) {
			t.Errorf("row %d: %v, want %+v", i, back[i], g)
		}
		for k, c := range g.columns(r.By)[1:] {
			got := back[i][c.name]
			switch {
			case c.isText && got != c.text, c.whole && got != int64(c.number), !c.isText && !c.whole && c.text != "" && got != c.number, !c.isText && !c.whole && c.text == "" && got != nil:
				t.Errorf("row %d: %s is %v, want %q", i, c.name, got, c.text)
			}
			if rows[i+1][k+1] != c.text || rows[0][k+1] != c.name {
				t.Errorf("row %d: %s is %s, want %s", i, rows[0][k+1], rows[i+1][k+1], c.text)
			}
		}
		if g.Attainment == 0 {
			missed++
		}
		if cut := g.Cancelled.Output + g.FailedUse.Output; cut == 0 || g.Tokens.Output <= cut {
			idle++
		}
	}
	if missed == 0 || idle == len(r.Groups) {
		t.Error("no group without a request that kept the objective, or none of which some were cancelled and others not")
	}
	var parsed Report
	var text2 bytes.Buffer
	if err := r.WriteJSON(&text2); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text2.Bytes(), &parsed); err != nil || parsed.Total.Requests != 200 || parsed.Read.Broken != 1 {
		t.Errorf("%v, %+v", err, parsed.Total)
	}
}

// DuckDB is the independent reader.
func TestDuckDBReadsTheParquetFileOfRequestsAsTheLogHasThem(t *testing.T) {
	python := os.Getenv("TROUPE_TEST_PYTHON")
	if python == "" {
		if os.Getenv("CI") == "true" && !testing.Short() {
			t.Fatal("TROUPE_TEST_PYTHON is not set")
		}
		t.Skip("TROUPE_TEST_PYTHON names no Python with duckdb")
	}
	var file bytes.Buffer
	table := NewTable(&file)
	var output, known int64
	for i := range 500 {
		e := rapid.Custom(drawEntry).Example(i)
		if e.Detail.ArrivalToFirstToken.Known() {
			known++
		}
		output += int64(e.Tokens.Output)
		if err := table.Add(&e); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "requests.parquet")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(python, "-c", `
import duckdb, sys
print(*duckdb.sql(f"select count(*), sum(output_tokens)::bigint, count(ttft_ms), count(key), count(distinct model) from '{sys.argv[1]}'").fetchall()[0])`, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%s%v", out, err)
	}
	var rows, sum, first, keys, models int64
	if _, err := fmt.Sscan(string(out), &rows, &sum, &first, &keys, &models); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if rows != 500 || sum != output || first != known || keys == 0 || keys == 500 || models != 2 {
		t.Errorf("DuckDB finds %s", out)
	}
}

func TestTextsOfClientsAreNoFormulasAndNoCommandsOfTerminals(t *testing.T) {
	var entries []requestlog.Entry
	for _, model := range []string{"=1+1", "+1", "-1", "@x", "\t=1", "a=b\x1b[2J\u0085", "x\u202ey\u200bz", ""} {
		entries = append(entries, requestlog.Entry{Model: model, Outcome: "stop"})
	}
	r := collect(t, Options{By: []string{"model"}, Slowest: 10}, entries).Report(Read{Cut: 2, Cuts: []string{"a.gz, after line 7: unexpected EOF"}})
	var text, page, table, object bytes.Buffer
	if err := cmp.Or(r.WriteCSV(&text), r.WriteHTML(&page), r.WriteTable(&table), r.WriteJSON(&object)); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&text).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, row := range rows[1:] {
		got[row[0]] = true
	}
	for _, want := range []string{"'=1+1", "'+1", "'-1", "'@x", "'?=1", "a=b?[2J?", "x?y?z", none} {
		if !got[want] {
			t.Errorf("no %q in %v", want, got)
		}
	}
	visible, _, _ := strings.Cut(page.String(), `<script type="application/json"`) // JSON has texts as they are
	for _, s := range []string{visible, table.String()} {
		if strings.ContainsAny(s, "\x1b\u0085\u202e") || !strings.Contains(s, "Data is missing: 2 files could not be read to the end") || !strings.Contains(s, "a.gz, after line 7: unexpected EOF") {
			t.Errorf("%q", s)
		}
	}
	if !strings.Contains(object.String(), `"cut_files": 2`) {
		t.Errorf("%s", &object)
	}
}

func TestSumsOfManyLongTimesDoNotRunOver(t *testing.T) {
	const long = requestlog.Span(3000 * 24 * time.Hour)
	e := requestlog.Entry{Outcome: "stop", Detail: requestlog.Detail{EndToEnd: long}, SlowedBy: requestlog.SlowedBy{QueueKV: long}}
	r := collect(t, Options{}, slices.Repeat([]requestlog.Entry{e}, 1000)).Report(Read{})
	if s := r.Slowed[0]; math.Abs(float64(s.MS)/(1000*long.Millis())-1) > 1e-9 || math.Abs(float64(s.Share)-1) > 1e-9 {
		t.Errorf("%+v", s)
	}
}

func TestTheTableOfTheSlowestHasEachColumnOnceAndNamesDeliveryWhatItIs(t *testing.T) {
	e := requestlog.Entry{RequestID: "r1", Outcome: "stop", Detail: requestlog.Detail{ArrivalToFirstToken: 1e9, EndToEnd: 9e9, Prefill: 7e9}, Metrics: requestlog.Metrics{QueueTime: 3e9}}
	for by, want := range map[string]string{
		"":         "request time model E2E ms TTFT ms prompt output outcome slowed most by",
		"ttft_ms":  "request time model E2E ms TTFT ms prompt output outcome slowed most by",
		"queue_ms": "request time model queue_ms E2E ms TTFT ms prompt output outcome slowed most by",
	} {
		for delivery, cause := range map[requestlog.Span]string{1e6: none, 2e9: "delivery, 2000 ms"} {
			e.SlowedBy.SlowClient = delivery
			tables := collect(t, Options{Slowest: 3, SlowestBy: by}, []requestlog.Entry{e}).Report(Read{}).tables()
			rows := tables[len(tables)-1].Rows
			if head := strings.Join(rows[0], " "); head != want || len(rows[1]) != len(rows[0]) {
				t.Errorf("by %q: %q: %q", by, head, rows[1])
			}
			if got := rows[1][len(rows[1])-1]; got != cause {
				t.Errorf("slowed most by %q, want %q", got, cause)
			}
			if slowed := tables[len(tables)-2].Rows; !strings.HasPrefix(slowed[1][0], "delivery (from the end until the answer was delivered, to a slow client or not") {
				t.Errorf("%q", slowed)
			}
		}
	}
}

func TestManyGroupsAreCountedTogetherBeyondABound(t *testing.T) {
	var entries []requestlog.Entry
	for i := range maxGroups + 100 {
		entries = append(entries, requestlog.Entry{Model: fmt.Sprint("m", i), Outcome: "stop"})
	}
	r := collect(t, Options{By: []string{"model"}}, entries).Report(Read{})
	if len(r.Groups) != maxGroups+1 || r.Groups[maxGroups].Values[0] != other || r.Groups[maxGroups].Requests != 100 {
		t.Errorf("%d groups, the last: %+v", len(r.Groups), r.Groups[len(r.Groups)-1])
	}
}

func TestWrongPricesAreRefusedWithTheirLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "empty",
		"a: {input: 1}":                  "output",
		"a: {input: x, output: 1}":       "line 1",
		"a: {input: -1, output: 1}":      "at least 0",
		"a: {input: 1, output: 1, x: 2}": "columns",
		"a: {input: 1e9999, output: 1}":  "number",
		"a: {input: 1p10, output: 1}":    "number",
		"a: {input: 0x10, output: 1}":    "number",
		"a: {input: 1_0, output: 1}":     "number",
		"a: {input: ., output: 1}":       "number",
		"a: {input: [1], output: 1}":     "number",
		"{}\n---\na: {}":                 "follows",
		"- a":                            "line 1",
	} {
		if _, err := ReadPrices(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestGroupsHaveTheirValuesAsTheyAreInTheOrderOfPromptLengths(t *testing.T) {
	var entries []requestlog.Entry
	for _, n := range []int{0, 1, 3, 9_000_000, 100_000_000} {
		entries = append(entries, requestlog.Entry{Model: " x ", Outcome: "stop", Tokens: requestlog.Tokens{Prompt: n}})
	}
	c := collect(t, Options{By: []string{"prompt", "model"}}, entries)
	for range 2 { // a report changes nothing
		var got []string
		for _, g := range c.Report(Read{}).Groups {
			got = append(got, strings.Join(g.Values, "|"))
		}
		if s := strings.Join(got, " "); s != "0| x  1| x  2–3| x  8388608–16777215| x  67108864–134217727| x " {
			t.Errorf("%q", s)
		}
	}
}

func TestAPriceThatStandsForAnotherIsThatPrice(t *testing.T) {
	p, err := ReadPrices(strings.NewReader("a: {input: &5 .1, output: *5}"))
	if err != nil || p["a"].Output.FloatString(3) != "0.100" {
		t.Errorf("%v, %v", p, err)
	}
}

func TestTheBillIsRightHoweverManyKeysThereAre(t *testing.T) {
	prices, err := ReadPrices(strings.NewReader(`{a: {input: 0, output: 1000000}, "*": {input: 0, output: 5}}`))
	if err != nil {
		t.Fatal(err)
	}
	var entries []requestlog.Entry
	for i := range 2*maxGroups + 200 {
		entries = append(entries, requestlog.Entry{Key: fmt.Sprintf("k%05d", i/2), Model: []string{"a", "b"}[i%2], Outcome: "stop", Tokens: requestlog.Tokens{Output: 1}})
	}
	slices.Reverse(entries)
	u := collect(t, Options{Prices: prices}, entries).Report(Read{}).Usage
	if want := fmt.Sprintf("%d.%06d000", maxGroups+100, 5*(maxGroups+100)); u.Total.Completed.Cost != want || len(u.Unpriced) > 0 {
		t.Errorf("cost %s, want %s; without a price: %q", u.Total.Completed.Cost, want, u.Unpriced)
	}
	if l := u.Lines[0]; len(u.Lines) != maxGroups+2 || l.Key != other || l.Model != "a" || l.Completed.Output != maxGroups/2+100 {
		t.Errorf("%d lines, the first: %+v", len(u.Lines), l)
	}
	entries = nil
	for i := range 2 * maxGroups {
		entries = append(entries, requestlog.Entry{Key: "k", Model: fmt.Sprintf("m%05d", i), Outcome: "stop", Tokens: requestlog.Tokens{Output: 1}})
	}
	// With more models than are told apart twice over, what the rest costs is not known, and said so.
	entries = append(entries, slices.Repeat([]requestlog.Entry{{Key: "l", Model: "x", Outcome: "stop"}}, 2)...)
	if u := collect(t, Options{Prices: prices}, entries).Report(Read{}).Usage; !slices.Equal(u.Unpriced, []string{other}) {
		t.Errorf("without a price: %q", u.Unpriced)
	}
}

func TestAnEmptyReportHasListsAndNoShareOfNothing(t *testing.T) {
	var text, table strings.Builder
	if err := collect(t, Options{}, nil).Report(Read{}).WriteJSON(&text); err != nil || !strings.Contains(text.String(), `"lines": []`) {
		t.Errorf("%v: %s", err, &text)
	}
	// A request that took no time, of which the log yet says what slowed it, and one of which it says nothing.
	unknown := requestlog.Entry{Outcome: "error", At: requestlog.At{Finished: requestlog.Null}, Detail: requestlog.Detail{ArrivalToFirstToken: requestlog.Null, EndToEnd: requestlog.Null}}
	r := collect(t, Options{Slowest: 2, SlowestBy: "output_tokens"}, []requestlog.Entry{{Outcome: "stop", SlowedBy: requestlog.SlowedBy{QueueKV: 1e6}}, unknown}).Report(Read{})
	if err := r.WriteTable(&table); err != nil || strings.Contains(table.String(), "Inf") {
		t.Errorf("%v: %s", err, &table)
	}
	tables := r.tables()
	if row := tables[len(tables)-1].Rows[1]; row[4] != none || row[5] != none {
		t.Errorf("of what is not known: %q", row)
	}
}

func TestHoursInWhichNobodyCameAreDrawnAsSuch(t *testing.T) {
	var entries []requestlog.Entry
	for _, hour := range []string{"00", "01", "03", "09"} {
		entries = append(entries, requestlog.Entry{Outcome: "stop", Time: "2026-11-30T" + hour + ":10:00Z", Detail: requestlog.Detail{ArrivalToFirstToken: 1e6}})
	}
	r := collect(t, Options{Hours: true}, entries).Report(Read{})
	s := r.overTime("Requests over time", "").Series[0]
	if fmt.Sprint(s.X, s.Y) != "[0 1 2 3 4 8 9] [1 1 0 1 0 0 1]" {
		t.Error(s.X, s.Y)
	}
	if s := r.overTime("TTFT over time", "").Series[0]; fmt.Sprint(s.Y) != "[1 1 NaN 1 NaN NaN 1]" {
		t.Error(s.X, s.Y)
	}
}

func TestFiltersMeanWhatTheySay(t *testing.T) {
	e := requestlog.Entry{Model: "Tiny", Key: "alice", Status: 200, Outcome: "stop", Time: "2026-11-30T12:34:56Z", Stream: true,
		Detail: requestlog.Detail{ArrivalToFirstToken: 600e6, EndToEnd: requestlog.Null}, Metrics: requestlog.Metrics{MeanITL: requestlog.Null}}
	e.Tokens.Output = 7
	e.At.Finished = requestlog.Null
	e.SlowedBy.QueueKV = 3e6
	for text, want := range map[string]bool{
		"": true, "status=200 and ttft_ms>500": true, "status = 200 AND ttft_ms > 600": false, "ttft_ms>=600": true,
		"model=Tiny": true, "model=tiny": false, "model ~ INY": true, "model in (a, 'Tiny')": true, "model in (a)": false,
		"not model=Tiny": false, "not not model=Tiny": true, "key=bob or key=alice and status=500": false, "(key=bob or key=alice) and status=200": true,
		"error=null": true, "error != null": false, "error=x": false, "error!=x": true, "itl_ms=null": true, "itl_ms>0": false, "itl_ms<1e9": false, "e2e_ms != null": false,
		"time>=2026-11-30T12 and time<2026-11-30T13": true, "stream=true": true, "slowed_by.queue_kv=3": true, "slowed_ms=3": true,
		"key != '5'": true, "model~5": false,
		"time=2026-11-30": true, "time<=2026-11-30": true, "time>2026-11-30": false, "time!=2026-11-30": false, "time<=2026-11-29": false, "time in (2026-11-29, 2026-11-30T12:3)": true,
		"time=2026-11-30T12:34:56.000Z": true, "time>='2026-11-30T12:34:56.000000001Z'": false, "time<2026-11-30T12:34:56.5": true, "time=2026-11-30T12:34:56": true, "time ~ :34:": true,
		"time=null": false, "time=2026": true, "time>2026-1": false,
		"tokens.output==7": true, `key="alice"`: true, "peer=null": true, "peer<z": false,
	} {
		f, err := ParseFilter(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := f.Match(&e); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"speed>1": `no field "speed": there are id, client_id, model,`, "model>5": "model is a text, but 5 is a number", "key in (alice, 5)": "put it in quotes",
		"stream=yes": "true or false", "status": "comparison", "status=": "value", "status=x": "number", "status~2": "number", "model<null": "null",
		"(status=1": ")", "status=1 status=2": "not expected", "model='x": "no end", "status=1 and": "name", "$": "quotes", "model in x": "parentheses",
		"model in (a": ", or )", strings.Repeat("not ", 200) + "status=1": "deeply", "model=,": "value", "time>=30.11.2026": "is no time", "time>='2026-11-30 12:00'": "is no time", "time<2026-13": "is no time", "time<2026-11-30T12:00:00.": "is no time",
		"time<2026-11-30T12:00:00+01:00": "is no time", "'model'=x": "name",
	} {
		if _, err := ParseFilter(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseFilter(f *testing.F) {
	f.Add("status=200 and ttft_ms>500")
	f.Add("not (key in (a,'b') or model ~ \"x\")")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseFilter(text)
		if err == nil {
			c.Match(&requestlog.Entry{})
		}
	})
}

func TestEachFieldIsOfOneKindAndItsOtherNamesLeadToIt(t *testing.T) {
	e := &requestlog.Entry{}
	for _, f := range fields {
		if (f.number == nil) == (f.text == nil) {
			t.Errorf("%s is a number and a text, or neither", f.name)
		}
		if f.number != nil {
			f.number(e)
		} else {
			f.text(e)
		}
		if lookup(f.name) == nil {
			t.Errorf("%s is not found", f.name)
		}
	}
	for name := range aliases {
		if lookup(name) == nil {
			t.Errorf("%s leads nowhere", name)
		}
	}
}
