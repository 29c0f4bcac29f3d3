package prove

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what came of a proof. docs/cuda.md describes its JSON.
type Report struct {
	Started       time.Time `json:"started"`
	Version       string    `json:"version"`
	Device        string    `json:"device"`
	DeviceName    string    `json:"device_name"`
	Model         string    `json:"model"`
	OS            string    `json:"os"`
	Arch          string    `json:"arch"`
	CPUs          int       `json:"cpus"`
	Quick         bool      `json:"quick"`
	BudgetSeconds float64   `json:"budget_seconds"`
	Seconds       float64   `json:"seconds"`
	Parts         []string  `json:"parts"` // that were asked for
	Limits        Limits    `json:"limits"`
	// Opened is how often the device was opened over all parts, and OpenSeconds what that took together.
	Opened      int     `json:"opened"`
	OpenSeconds float64 `json:"open_seconds"`

	// OK says that nothing of conformance, goldens and fault test failed, and that those of them that were asked for
	// were done.
	OK bool `json:"ok"`
	// SpeedOK says that every figure that must be shown was measured, and met.
	SpeedOK     bool `json:"speed_ok"`
	Interrupted bool `json:"interrupted"`

	Conformance Part       `json:"conformance"`
	Goldens     Part       `json:"goldens"`
	Fault       Part       `json:"fault"`
	FaultTest   *FaultTest `json:"fault_test"`
	Speeds      []Speeds   `json:"speeds"`
	Serving     []Serving  `json:"serving"`
	Targets     []Target   `json:"targets"`
	LeftOut     []string   `json:"left_out"`
}

// Part is some checks.
type Part struct {
	Done    bool    `json:"done"` // to its end
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
	Refused int     `json:"refused"` // models that the device says it does not compute
	Skipped int     `json:"skipped"` // what a device need not have
	Checks  []Check `json:"checks"`
}

// Outcome is what came of a check.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Refused Outcome = "refused"
	Skipped Outcome = "skipped"
)

// Check is one of a part.
type Check struct {
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Found   string  `json:"found"`
}

func (p *Part) add(c Check) {
	p.Checks = append(p.Checks, c)
	switch c.Outcome {
	case Passed:
		p.Passed++
	case Failed:
		p.Failed++
	case Refused:
		p.Refused++
	case Skipped:
		p.Skipped++
	}
}

// ok says whether it is proved.
func (p *Part) ok() bool { return p.Done && p.Failed == 0 && p.Passed > 0 }

// FaultTest is what the fault did.
type FaultTest struct {
	How      string `json:"how"`
	Requests int    `json:"requests"`
	Tokens   int    `json:"tokens"`
	// Steps is how many the undisturbed load took, At the one that failed, and Opened how often the device was.
	Steps  int `json:"steps"`
	At     int `json:"at"`
	Opened int `json:"opened"`
	// Same counts the texts that are those of the undisturbed load, NearTies those that part where two tokens were
	// as likely but for the tolerance.
	Same         int     `json:"same"`
	NearTies     int     `json:"near_ties"`
	PauseSeconds float64 `json:"pause_seconds"` // from the fault to the next step that worked
}

// Speeds are those of a model.
type Speeds struct {
	Model       string  `json:"model"`
	Parameters  int64   `json:"parameters"`
	WeightBytes int64   `json:"weight_bytes"` // that a step reads
	OpenSeconds float64 `json:"open_seconds"`
	Decode      []Speed `json:"decode"`
	Prefill     []Speed `json:"prefill"`
	smolLM2     bool    // of 135 million parameters, for which there is a target
}

// Speed is that of steps of one kind. A share is of what the Limits allow, 0 to 1, and null where these are not known.
type Speed struct {
	Sequences        int      `json:"sequences"` // that decode together
	Tokens           int      `json:"tokens"`    // of a step
	Context          int      `json:"context"`   // tokens that a sequence has before it, on average
	Steps            int      `json:"steps"`
	StepMilliseconds float64  `json:"step_ms"` // the median
	TokensPerSecond  float64  `json:"tokens_per_second"`
	BandwidthShare   *float64 `json:"bandwidth_share"`
	ArithmeticShare  *float64 `json:"arithmetic_share"`
	// HostShare is the part of a step in which the processor does not wait for the device; null where the
	// processor is the device.
	HostShare *float64 `json:"host_share"`
}

// Serving is a load of so many requests at a time, each followed by the next.
type Serving struct {
	Concurrency     int     `json:"concurrency"`
	Seconds         float64 `json:"seconds"`
	Completed       int     `json:"completed"`
	Failed          int     `json:"failed"`
	OutputTokens    int64   `json:"output_tokens"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	// The requests' own metrics, in milliseconds, of those that completed; null where none has them.
	TTFT50 *float64 `json:"ttft_ms_p50"`
	TTFT99 *float64 `json:"ttft_ms_p99"`
	TPOT50 *float64 `json:"tpot_ms_p50"`
	TPOT99 *float64 `json:"tpot_ms_p99"`
	// HostShare is the part of the time, from the first step to the last, in which nobody waits for the device.
	HostShare float64 `json:"host_share"`
}

// Target is a figure that must be shown, on an H200.
type Target struct {
	Name     string   `json:"name"`
	Wanted   float64  `json:"wanted"`
	AtMost   bool     `json:"at_most"`  // the figure must be below; without it, at least that
	Measured *float64 `json:"measured"` // null where it wasn't, and Why says why
	Met      bool     `json:"met"`
	Why      string   `json:"why"`
}

// checked are the parts with checks, by their names.
func (r *Report) checked() iter.Seq2[string, *Part] {
	return func(yield func(string, *Part) bool) {
		_ = yield(Parts[0], &r.Conformance) && yield(Parts[1], &r.Goldens) && yield(Parts[2], &r.Fault)
	}
}

// BigModel is the name of the model that is made up for speeds.
const BigModel = "random weights in the shape of Qwen2.5-1.5B, Q8_0"

// judge fills in the targets and the verdict.
func (r *Report) judge() {
	r.OK, r.Targets = true, nil
	for name, part := range r.checked() {
		r.OK = r.OK && (part.ok() || !slices.Contains(r.Parts, name))
	}
	decode := func(match func(*Speeds) bool, sequences int) *Speed {
		for i := range r.Speeds {
			if !match(&r.Speeds[i]) {
				continue
			}
			for k := range r.Speeds[i].Decode {
				if d := &r.Speeds[i].Decode[k]; d.Sequences == sequences {
					return d
				}
			}
		}
		return nil
	}
	big := func(s *Speeds) bool { return s.Model == BigModel }
	small := func(s *Speeds) bool { return s.smolLM2 }
	add := func(name string, wanted float64, atMost bool, v *float64, why string) {
		t := Target{Name: name, Wanted: wanted, AtMost: atMost, Measured: v}
		if v == nil {
			t.Why = why
		} else {
			t.Met = atMost && *v < wanted || !atMost && *v >= wanted
		}
		r.Targets = append(r.Targets, t)
	}
	var v *float64
	if d := decode(big, 1); d != nil {
		v = d.BandwidthShare
	}
	add("decode of one sequence, 1.5 billion of Q8_0: share of the memory's bandwidth", 0.4, false, v, "that model was not measured")
	v = nil
	if d := decode(small, 1); d != nil {
		v = &d.TokensPerSecond
	}
	add("decode of one sequence, SmolLM2-135M: tokens/s", 1500, false, v, "not measured, or the model is another")
	many, hosts := (*float64)(nil), (*float64)(nil)
	for _, which := range []func(*Speeds) bool{big, func(*Speeds) bool { return true }} {
		one, all := decode(which, 1), decode(which, 256)
		if one == nil || all == nil || many != nil {
			continue
		}
		ratio := all.TokensPerSecond / one.TokensPerSecond
		many = &ratio
		hosts = all.HostShare
	}
	add("256 sequences at once: times the tokens/s of one", 20, false, many, "steps of one and of 256 sequences were not both measured")
	add("decode of 256 sequences: the processor's part of a step", 0.1, true, hosts, "not measured, or the processor is the device")
	v = nil
	for i := range r.Serving {
		if s := &r.Serving[i]; s.Concurrency == 256 && s.Completed > 0 {
			v = &s.HostShare
		}
	}
	add("serving 256 requests at a time: the time in which nobody waits for the device", 0.1, true, v, "not measured")
	r.SpeedOK = true
	for _, t := range r.Targets {
		r.SpeedOK = r.SpeedOK && t.Met
	}
}

// WriteJSON writes the report as an indented object.
func (r *Report) WriteJSON(w io.Writer) error {
	out := *r
	// Lists are there, though empty.
	for _, p := range out.checked() {
		p.Checks = append([]Check{}, p.Checks...)
	}
	out.Speeds, out.Serving = append([]Speeds{}, r.Speeds...), append([]Serving{}, r.Serving...)
	out.LeftOut = append([]string{}, r.LeftOut...)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(&out)
}

// percent writes a share.
func percent(share *float64) string {
	if share == nil {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100**share)
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	section := func(name string) {
		_ = t.Flush() // to memory
		fmt.Fprintf(&b, "\n%s\n", name)
	}
	fmt.Fprintf(&b, "%s: %s, %d CPUs; %s\n", r.Device, r.DeviceName, r.CPUs, r.Model)
	fmt.Fprintf(&b, "memory         %s\n", limit(r.Limits.BytesPerSecond, "GB/s", r.Limits.BytesHow))
	fmt.Fprintf(&b, "multiply-adds  %s\n\n", limit(r.Limits.MultiplyAddsPerSecond, "billion/s", r.Limits.MultiplyAddsHow))
	asked := []string{}
	for name, part := range r.checked() {
		verdict := "ok"
		switch {
		case part.Failed > 0:
			verdict = "FAILED"
		case !slices.Contains(r.Parts, name):
			continue
		case !part.ok():
			verdict = "NOT DONE"
		}
		asked = append(asked, name)
		fmt.Fprintf(t, "%s\t%s\t%d passed, %d failed, %d refused, %d skipped\n", name, verdict, part.Passed, part.Failed, part.Refused, part.Skipped)
		for _, c := range part.Checks {
			if c.Outcome == Failed || part != &r.Conformance {
				fmt.Fprintf(t, "\t%s\t%s: %s\n", c.Outcome, c.Name, strings.ReplaceAll(c.Found, "\n", "; "))
			}
		}
	}
	for i := range r.Speeds {
		s := &r.Speeds[i]
		section(fmt.Sprintf("speeds: %s; %.0f MB of weights a step", s.Model, float64(s.WeightBytes)/1e6))
		fmt.Fprintln(t, "\ttokens/s\tstep ms\tof bandwidth\tof arithmetic\tprocessor's part\tsteps")
		for _, kind := range []struct {
			name string
			all  []Speed
		}{{"decode", s.Decode}, {"prefill", s.Prefill}} {
			for k := range kind.all {
				v := &kind.all[k]
				fmt.Fprintf(t, "%s %d\t%.1f\t%.3f\t%s\t%s\t%s\t%d\n", kind.name, v.Tokens, v.TokensPerSecond, v.StepMilliseconds,
					percent(v.BandwidthShare), percent(v.ArithmeticShare), percent(v.HostShare), v.Steps)
			}
		}
	}
	if len(r.Serving) > 0 {
		section("serving, prompts of 128 tokens and answers of 64, in this process")
		fmt.Fprintln(t, "at a time\toutput tokens/s\tTTFT ms p50, p99\tTPOT ms p50, p99\tprocessor's part\trequests")
		ms := func(v *float64) string {
			if v == nil {
				return "–"
			}
			return fmt.Sprintf("%.1f", *v)
		}
		for i := range r.Serving {
			s := &r.Serving[i]
			failed := ""
			if s.Failed > 0 {
				failed = fmt.Sprintf(", %d FAILED", s.Failed)
			}
			fmt.Fprintf(t, "%d\t%.1f\t%s, %s\t%s, %s\t%s\t%d%s\n", s.Concurrency, s.TokensPerSecond, ms(s.TTFT50), ms(s.TTFT99), ms(s.TPOT50), ms(s.TPOT99),
				percent(&s.HostShare), s.Completed, failed)
		}
	}
	targets := r.Targets
	if !slices.Contains(r.Parts, Parts[3]) && !slices.Contains(r.Parts, Parts[4]) {
		targets = nil
	} else {
		section("what must be shown on an H200")
	}
	for _, g := range targets {
		sign, met, measured := "≥", "no", g.Why
		if g.AtMost {
			sign = "<"
		}
		if g.Met {
			met = "yes"
		}
		if g.Measured != nil {
			measured = fmt.Sprintf("%.4g", *g.Measured)
		} else {
			met = "?"
		}
		fmt.Fprintf(t, "%s\t%s %g\t%s\t%s\n", met, sign, g.Wanted, measured, g.Name)
	}
	_ = t.Flush() // to memory
	for i, l := range r.LeftOut {
		if i == 0 {
			b.WriteString("\nleft out:\n")
		}
		fmt.Fprintf(&b, "  %s\n", l)
	}
	verdict := "proved: " + strings.Join(asked, ", ")
	switch {
	case !r.OK:
		verdict = "NOT proved"
	case len(asked) == 0:
		verdict = "nothing was to be proved"
	}
	fmt.Fprintf(&b, "\n%s (%.0f s, %.1f of them for opening the device %d times)\n", verdict, r.Seconds, r.OpenSeconds, r.Opened)
	_, err := io.WriteString(w, b.String())
	return err
}

// limit writes one of the Limits.
func limit(v float64, unit, how string) string {
	if v == 0 {
		return how
	}
	return fmt.Sprintf("%.1f %s: %s", v/1e9, unit, how)
}
