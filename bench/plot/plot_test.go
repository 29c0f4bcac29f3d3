package plot

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// wellFormed fails the test unless the picture is XML.
func wellFormed(t interface{ Fatalf(string, ...any) }, svg string) {
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
	}
}

func TestAnyValuesMakeAPictureWithoutNumbersThatAreNone(t *testing.T) {
	value := rapid.OneOf(rapid.Float64(), rapid.Float64Range(-10, 10), rapid.SampledFrom([]float64{0, math.NaN(), math.Inf(1), math.Inf(-1), 1e-300, 1e300}))
	rapid.Check(t, func(t *rapid.T) {
		c := Chart{Title: rapid.String().Draw(t, "title"), X: "x <b>", Y: `"y" & z`}
		c.LogX, c.LogY = rapid.Bool().Draw(t, "logx"), rapid.Bool().Draw(t, "logy")
		c.ZeroX, c.ZeroY = rapid.Bool().Draw(t, "zerox"), rapid.Bool().Draw(t, "zeroy")
		c.Title = strings.Map(func(r rune) rune { // XML has no place for these
			if r < ' ' || r >= 0xfffe && r <= 0xffff || r == 0xfffd {
				return '?'
			}
			return r
		}, c.Title)
		for range rapid.IntRange(0, 3).Draw(t, "series") {
			n := rapid.IntRange(0, 30).Draw(t, "n")
			s := Series{Name: "a<b", Kind: Kind(rapid.IntRange(0, 3).Draw(t, "kind")), Label: func(i int) string { return fmt.Sprint("<", i) }}
			for range n {
				s.X, s.Y = append(s.X, value.Draw(t, "x")), append(s.Y, value.Draw(t, "y"))
			}
			c.Series = append(c.Series, s)
		}
		c.Marks = []Mark{{Name: "m", At: value.Draw(t, "mark"), Vertical: rapid.Bool().Draw(t, "vertical")}}
		svg := string(c.SVG())
		wellFormed(t, svg)
		for _, bad := range []string{"NaN", "Inf"} {
			if strings.Contains(svg, bad) {
				t.Fatalf("%s in %s", bad, svg)
			}
		}
	})
}

func TestTheLegendNamesTheSeriesThatHaveNamesInTheirColours(t *testing.T) {
	c := &Chart{Series: []Series{{Name: "a<b", Color: 2, X: []float64{1}, Y: []float64{1}}, {X: []float64{1}, Y: []float64{1}}, {Name: "c", Color: 5}}}
	_, legend, _ := strings.Cut(string(c.SVG()), "</svg>")
	if want := `<p class="legend"><span><i class="k2"></i>a&lt;b</span><span><i class="k5"></i>c</span></p>`; legend != want {
		t.Errorf("%s, want %s", legend, want)
	}
	c.Series = c.Series[1:2]
	if _, legend, _ = strings.Cut(string(c.SVG()), "</svg>"); legend != "" {
		t.Errorf("%s for no names", legend)
	}
}

func TestTicksAreRoundAndWithinTheAxis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(-1e6, 1e6).Draw(t, "low")
		a := newAxis([]float64{low, low + rapid.Float64Range(1e-3, 1e6).Draw(t, "span")}, false, false, 0, 100)
		ticks := a.ticks(5)
		if len(ticks) < 2 || len(ticks) > 6 {
			t.Fatalf("%d ticks from %v to %v", len(ticks), a.low, a.high)
		}
		for _, v := range ticks {
			if p := a.at(v); p < -1e-6 || p > 100+1e-6 {
				t.Fatalf("tick %v at %v", v, p)
			}
		}
	})
}

func TestALineThatIsThinnedKeepsItsPeaks(t *testing.T) {
	s := Series{Kind: Line}
	for i := range 100_000 {
		s.X = append(s.X, float64(i))
		s.Y = append(s.Y, 1)
	}
	s.Y[77_777] = 500
	c := Chart{Series: []Series{s}}
	x, y := newAxis(s.X, false, false, 0, 640), newAxis(s.Y, false, false, 280, 0)
	runs := s.runs(&x, &y)
	if len(runs) != 1 || len(runs[0]) > 4*641 {
		t.Fatalf("%d runs", len(runs))
	}
	peak := false
	for _, p := range runs[0] {
		peak = peak || p.y == y.at(500)
	}
	if !peak {
		t.Error("the peak is gone")
	}
	if n := len(c.SVG()); n > 100_000 {
		t.Errorf("the picture has %d bytes", n)
	}
}

func TestADistributionEndsAtTheWholeAndRepeatsNoValue(t *testing.T) {
	s := Distribution("d", []float64{3, 1, math.NaN(), 1, 2}, 0)
	if fmt.Sprint(s.X) != "[1 2 3]" || fmt.Sprint(s.Y) != "[50 75 100]" {
		t.Errorf("%v, %v", s.X, s.Y)
	}
}

func TestNumbersAreWrittenShort(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 0.5: "0.5", 0.25: "0.25", 12.345: "12.3", 123.45: "123", 1234: "1234", 12345: "12.3k", 2e6: "2M", 3.5e9: "3.5G",
		-0.001: "-0.001", math.Inf(1): "–", 99.99: "100",
	} {
		if got := Number(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}

func TestNumbersOfAnAxisStandSideBySide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := rapid.Bool().Draw(t, "log")
		low := math.Pow(10, rapid.Float64Range(-4, 5).Draw(t, "low"))
		a := newAxis([]float64{low, low * math.Pow(10, rapid.Float64Range(0.01, 8).Draw(t, "span"))}, log, false, 56, 626)
		ticks := a.ticks(8)
		kept := a.roomFor(ticks)
		if len(kept) < min(len(ticks), 2) {
			t.Fatalf("%d numbers for %v", len(kept), ticks)
		}
		for i, v := range kept {
			for _, o := range kept[:i] {
				// A digit of 15 pixels' height is not wider than that.
				if width := float64(len(Number(v))+len(Number(o))) / 2 * 8.4; math.Abs(a.at(v)-a.at(o)) < width {
					t.Fatalf("%s and %s, %.1f pixels apart, need %.1f", Number(v), Number(o), math.Abs(a.at(v)-a.at(o)), width)
				}
			}
		}
		for _, v := range ticks {
			if log && power(v) && len(ticks) < 8 && !slices.Contains(kept, v) {
				t.Fatalf("%s is not among %v", Number(v), kept)
			}
		}
	})
}
