package lifecycle

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWholeNumbersAreWrittenAsStrconvWritesThem(t *testing.T) {
	check := func(v uint64) {
		t.Helper()
		if got, want := string(AppendUint([]byte("x"), v)), "x"+strconv.FormatUint(v, 10); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		if got, want := string(AppendInt(nil, int64(v))), strconv.FormatInt(int64(v), 10); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	for v := range uint64(200_000) { // all of four digits, before and behind others
		check(v)
		check(v * 10_000)
		check(v + 99_900_000)
	}
	for p := uint64(1); p < 1e19; p *= 10 {
		check(p - 1)
		check(p)
		check(p + 1)
	}
	check(math.MaxUint64)
	check(math.MaxInt64)
	check(1 << 63)
	rapid.Check(t, func(t *rapid.T) { check(rapid.Uint64().Draw(t, "v")) })
}

func TestDecimalsAreRoundedAndSmallAndLargeOnesAreExact(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 0.7: "0.7", 9.76771653543307: "9.767717", 96.5527645772045: "96.552765", 171.875: "171.875",
		1e-6: "0.000001", 4e-7: "0.0000004", 1e9: "1000000000", 1.5e12: "1500000000000", 999999999.9999999: "1000000000", 12.0000004: "12",
		281474977.0128965: "281474977.012896", // that is …0128964781…
	} {
		if got := string(AppendDecimal(nil, v)); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(0, 1e12).Draw(t, "v")
		text := string(AppendDecimal(nil, v))
		got, err := strconv.ParseFloat(text, 64)
		if err != nil || strings.ContainsAny(text, "eE") || math.Abs(got-v) > max(5.1e-7, v*1e-15) || (v > 0) != (got > 0) {
			t.Fatalf("%v is written %s", v, text)
		}
	})
}
