package lifecycle

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// The worked example of the metrics contract; all stamps in microseconds there.
func TestTheWorkedExampleComesOutToTheDigit(t *testing.T) {
	m := Timing{Queued: 1_000e3, Scheduled: 13_300e3, FirstToken: 98_500e3, LastToken: 1_339_000e3, Tokens: 128}.Metrics()
	for _, c := range []struct {
		name string
		got  Number
		want float64
	}{
		{"queue_time_ms", m.QueueTime, 12.3},
		{"time_to_first_token_ms", m.TimeToFirstToken, 85.2},
		{"generation_time_ms", m.GenerationTime, 1240.5},
		{"mean_itl_ms", m.MeanITL, 1240.5 / 127},
		{"tokens_per_second", m.TokensPerSecond, 128 / 1.3257},
	} {
		v, ok := c.got.Get()
		if !ok || math.Abs(v-c.want) > 1e-9*c.want {
			t.Errorf("%s is %v (present: %v), want %v", c.name, v, ok, c.want)
		}
	}
	// The figures as the contract prints them.
	if v, _ := m.MeanITL.Get(); math.Round(v*1000)/1000 != 9.768 {
		t.Errorf("mean ITL rounds to %v, want 9.768", v)
	}
	if v, _ := m.TokensPerSecond.Get(); math.Round(v*100)/100 != 96.55 {
		t.Errorf("tokens/s rounds to %v, want 96.55", v)
	}
}

func TestFieldsAreNullWhereTheContractSaysSo(t *testing.T) {
	null := func(n Number) bool { _, ok := n.Get(); return !ok }
	m := Timing{}.Metrics()
	if !null(m.QueueTime) || !null(m.TimeToFirstToken) || !null(m.GenerationTime) || !null(m.MeanITL) || !null(m.TokensPerSecond) {
		t.Errorf("never scheduled: %+v, want all null", m)
	}
	m = Timing{Queued: 5, Scheduled: 9}.Metrics()
	if null(m.QueueTime) || !null(m.TimeToFirstToken) || !null(m.GenerationTime) || !null(m.MeanITL) || !null(m.TokensPerSecond) {
		t.Errorf("no token: %+v, want only the queue time", m)
	}
	m = Timing{Queued: 5, Scheduled: 9, FirstToken: 20, LastToken: 20, Tokens: 1}.Metrics()
	if g, _ := m.GenerationTime.Get(); null(m.GenerationTime) || g != 0 || !null(m.MeanITL) || null(m.TokensPerSecond) {
		t.Errorf("one token: %+v, want generation 0, mean ITL null and a rate", m)
	}
	m = Timing{Queued: 5, Scheduled: 9, FirstToken: 9, LastToken: 9, Tokens: 3}.Metrics()
	if g, ok := m.MeanITL.Get(); !ok || g != 0 || !null(m.TokensPerSecond) {
		t.Errorf("no time at all: %+v, want mean ITL 0 and no rate", m)
	}
}

func TestJSONHasEveryKeyAndNoNaN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stamp := rapid.Int64Range(0, 1<<50)
		m := Timing{stamp.Draw(t, "queued"), stamp.Draw(t, "scheduled"), stamp.Draw(t, "first"), stamp.Draw(t, "last"),
			rapid.IntRange(0, 1000).Draw(t, "n")}.Metrics()
		var got map[string]*float64
		if err := json.Unmarshal(m.AppendJSON(nil, nil), &got); err != nil {
			t.Fatalf("%s: %v", m.AppendJSON(nil, nil), err)
		}
		for _, k := range []string{"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second", "speculative_decoding"} {
			v, ok := got[k]
			if !ok {
				t.Fatalf("no key %s", k)
			}
			if v != nil && !(*v >= 0 && !math.IsInf(*v, 0)) {
				t.Fatalf("%s is %v", k, *v)
			}
		}
		if len(got) != 6 {
			t.Fatalf("%d keys, want 6: %v", len(got), got)
		}
	})
}

func TestNumberRefusesWhatJSONCannotSay(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if s := string(Num(v).AppendJSON(nil)); s != "null" {
			t.Errorf("%v became %s", v, s)
		}
	}
	if s := string(Num(1e-7).AppendJSON(nil)); s != "0.0000001" {
		t.Errorf("1e-7 became %s", s)
	}
}

func TestDurationsAreWrittenExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Int64().Draw(t, "d")
		got := string(AppendMillis(nil, d))
		want, ok := new(big.Rat).SetString(got)
		if !ok || !json.Valid([]byte(got)) {
			t.Fatalf("%d ns became %q", d, got)
		}
		if want.Cmp(new(big.Rat).SetFrac64(max(d, 0), 1e6)) != 0 {
			t.Fatalf("%d ns became %q", d, got)
		}
	})
}

func TestANumberHasTheFewestDigitsThatReadBackTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.OneOf(
			rapid.Map(rapid.Int64Range(0, 1e16), func(d int64) float64 { return float64(d) / 1e6 }),
			rapid.Map(rapid.Int64Range(0, 1e10), func(d int64) float64 { return math.Nextafter(float64(d)/1e6, 0) }),
			rapid.Float64(),
		).Draw(t, "v")
		got := string(Num(v).AppendJSON(nil))
		if want := strconv.FormatFloat(v, 'f', -1, 64); got != want && !(v == 0 && got == "0") {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}
