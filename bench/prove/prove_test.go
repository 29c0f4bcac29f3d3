package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/host"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/demo"
	"github.com/troupe-llm/troupe/model/gguf"
	"github.com/troupe-llm/troupe/model/tiny"
)

// subject is the CPU device whose limits are not worth measuring here.
func subject() Subject {
	s := CPU(2)
	s.Limits = func() (Limits, error) { return Limits{BytesPerSecond: 1e9, MultiplyAddsPerSecond: 1e9}, nil }
	return s
}

// wrong is a device that makes something wrong of a right result.
type wrong struct {
	gpu.Device
	spoil func(*gpu.Batch, *gpu.Result)
}

func (w *wrong) Run(b *gpu.Batch, r *gpu.Result) error {
	err := w.Device.Run(b, r)
	if err == nil {
		w.spoil(b, r)
	}
	return err
}

// spoilt is a subject whose results are spoilt.
func spoilt(spoil func(*gpu.Batch, *gpu.Result)) Subject {
	return wrapped(func(d gpu.Device) gpu.Device { return &wrong{d, spoil} })
}

// wrapped is a subject whose devices are within others.
func wrapped(wrap func(gpu.Device) gpu.Device) Subject {
	s := subject()
	open := s.Open
	s.Open = func(m *model.Model, c gpu.Config) (gpu.Device, error) {
		d, err := open(m, c)
		if err != nil {
			return nil, err
		}
		return wrap(d), nil
	}
	return s
}

// oneToken flips the token of a batch's first row that wants one.
func oneToken(b *gpu.Batch, r *gpu.Result) {
	for i := range b.Rows {
		if b.Rows[i].Kind == gpu.Sample {
			r.Tokens[i] ^= 1
			return
		}
	}
}

// oneLogit makes a single token likelier than it is, everywhere.
func oneLogit(_ *gpu.Batch, r *gpu.Result) {
	const token, by = 7, 0.02
	for i, id := range r.Tokens {
		if id == token {
			r.Logprobs[i] += by
		}
	}
	for i, id := range r.TopIDs {
		if id == token {
			r.TopLogprobs[i] += by
		}
	}
}

// proverOf is a proof of which the test runs parts.
func proverOf(s Subject) *prover {
	return &prover{Options: Options{Subject: s, Quick: true, Budget: time.Hour, Progress: func(string) {}}, ctx: context.Background(), began: time.Now(), report: &Report{}}
}

func demonstrationModel(t *testing.T) *model.Model {
	t.Helper()
	m, err := demo.Open()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func failedNames(p *Part) string {
	var names []string
	for _, c := range p.Checks {
		if c.Outcome == Failed {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, "; ")
}

func TestADeviceWithOneWrongTokenOrLogitFailsTheConformance(t *testing.T) {
	right := proverOf(subject())
	right.conformance()
	if c := &right.report.Conformance; !c.ok() || c.Passed < 15 {
		t.Fatalf("a right device: %d passed; failed: %s", c.Passed, failedNames(c))
	}
	for _, c := range []struct {
		name  string
		spoil func(*gpu.Batch, *gpu.Result)
		where []string // which checks must fail
	}{
		{"token", oneToken, []string{"does not depend on company", "greedy takes the likeliest"}},
		{"logit", oneLogit, []string{"architecture "}},
	} {
		p := proverOf(spoilt(c.spoil))
		p.conformance()
		names := failedNames(&p.report.Conformance)
		for _, where := range c.where {
			if !strings.Contains(names, where) {
				t.Errorf("one wrong %s: %q does not fail, but %s", c.name, where, names)
			}
		}
		if p.report.Conformance.ok() {
			t.Errorf("one wrong %s: the device is proved", c.name)
		}
	}
}

func TestWrongNumbersFailTheGoldens(t *testing.T) {
	right := proverOf(subject())
	right.goldens()
	if g := &right.report.Goldens; !g.ok() {
		t.Fatal(failedNames(g))
	}
	p := proverOf(spoilt(func(_ *gpu.Batch, r *gpu.Result) {
		for i := range r.Logprobs {
			r.Logprobs[i] -= 0.2
		}
	}))
	p.goldens()
	if g := &p.report.Goldens; g.ok() || g.Failed != 1 {
		t.Errorf("%+v", g)
	}
}

func TestTextsThatAreOthersAfterAFaultFailTheFaultTest(t *testing.T) {
	right := proverOf(subject())
	right.fault()
	if f := right.report.FaultTest; !right.report.Fault.ok() || f.Opened != 2 || f.Same != f.Requests || f.At < 2 || f.At > f.Steps {
		t.Fatalf("%+v: %s", f, failedNames(&right.report.Fault))
	}
	// The third device, which is opened after the fault, gives other tokens.
	opened := 0
	s := subject()
	open := s.Open
	s.Open = func(m *model.Model, c gpu.Config) (gpu.Device, error) {
		if opened++; opened < 3 {
			return open(m, c)
		}
		return spoilt(oneToken).Open(m, c)
	}
	s.Break = func(d gpu.Device) error { return d.Close() }
	p := proverOf(s)
	p.fault()
	if p.report.Fault.ok() || !strings.Contains(p.report.Fault.Checks[0].Found, "is another from token") {
		t.Errorf("%+v", p.report.Fault)
	}
	// A fault that nobody notices is none.
	s = subject()
	s.Break = func(gpu.Device) error { return nil }
	p = proverOf(s)
	p.fault()
	if p.report.Fault.ok() || !strings.Contains(p.report.Fault.Checks[0].Found, "no step failed after the fault") {
		t.Errorf("%+v", p.report.Fault)
	}
}

func TestAProofThatIsInterruptedProvesNothingAndSaysSo(t *testing.T) {
	m := demonstrationModel(t)
	ctx, cancel := context.WithCancel(context.Background())
	o := Options{Subject: subject(), Model: m, Name: "demo", Quick: true, Budget: time.Hour}
	told := 0
	o.Progress = func(string) {
		if told++; told == 2 { // within the conformance
			cancel()
		}
	}
	r, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.OK || !r.Interrupted || r.Conformance.Failed > 0 || len(r.LeftOut) < 4 {
		t.Errorf("%+v", r)
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "NOT proved") || !strings.Contains(b.String(), "NOT DONE") {
		t.Errorf("%v\n%s", err, &b)
	}
}

func TestPartsThatAreNotAskedForAreNotDoneAndNotMissed(t *testing.T) {
	m := demonstrationModel(t)
	s := subject()
	opened := 0
	open := s.Open
	s.Open = func(m *model.Model, c gpu.Config) (gpu.Device, error) { opened++; return open(m, c) }
	for parts, want := range map[string]int{"goldens": 1, "fault": 3} {
		opened = 0
		after := 0
		r, err := Run(context.Background(), Options{Subject: s, Model: m, Name: "demo", Quick: true, Budget: time.Hour, Parts: []string{parts},
			After: func(r *Report) {
				if after++; !r.OK || r.Seconds <= 0 || len(r.Targets) != 5 {
					t.Errorf("after the part: %+v", r)
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		if !r.OK || opened != want || r.Opened != want || len(r.LeftOut) != 4 || after != 1 || len(r.Targets) != 5 {
			t.Errorf("%s: ok %v, the device was opened %d times; left out: %q", parts, r.OK, opened, r.LeftOut)
		}
		var b strings.Builder
		if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "\nproved: "+parts+" (") {
			t.Errorf("%v\n%s", err, &b)
		}
	}
}

func TestSpeedsOfAModelAreMeasuredAndSharesAreOfTheLimits(t *testing.T) {
	m := demonstrationModel(t)
	s := subject()
	p := proverOf(s)
	p.report.Limits, _ = s.Limits()
	p.Model, p.Name = m, "demo"
	p.measure(m, "demo", time.Hour)
	if len(p.report.Speeds) != 1 {
		t.Fatal(p.report.LeftOut)
	}
	all := p.report.Speeds[0]
	if len(all.Decode) != 4 || len(all.Prefill) != 2 {
		t.Fatalf("%+v", all)
	}
	for i, v := range append(all.Decode, all.Prefill...) {
		if v.Tokens != []int{1, 2, 4, 8, 128, 256}[i] || v.Steps < 1 || v.HostShare != nil || v.BandwidthShare == nil || v.ArithmeticShare == nil {
			t.Errorf("%+v", v)
			continue
		}
		// With limits of 1e9 each, the shares are the rates: a step reads at least the weights once, and
		// multiplies by each for each token, but for the output's in prefill.
		steps := v.TokensPerSecond / float64(v.Tokens)
		if least := steps * float64(all.WeightBytes) / 1e9; *v.BandwidthShare < least || *v.BandwidthShare > 2*least && v.Tokens == 1 {
			t.Errorf("%d tokens: %v of the bandwidth, at least %v", v.Tokens, *v.BandwidthShare, least)
		}
		if *v.ArithmeticShare < 0.5*v.TokensPerSecond*float64(m.Parameters)/1e9 {
			t.Errorf("%d tokens: %v of the arithmetic", v.Tokens, *v.ArithmeticShare)
		}
	}
}

// choosy is a device that computes no step of so many sequences.
type choosy struct {
	gpu.Device
	sequences int
}

func (c *choosy) Run(b *gpu.Batch, r *gpu.Result) error {
	if len(b.Spans) == c.sequences {
		return errors.New("too choosy")
	}
	return c.Device.Run(b, r)
}

func TestAfterAnErrorTheSizesThatWereToComeAreNamed(t *testing.T) {
	p := proverOf(wrapped(func(d gpu.Device) gpu.Device { return &choosy{d, 8} }))
	p.measure(demonstrationModel(t), "demo", time.Hour)
	want := []string{"decode of 8, demo: too choosy", "decode of 2, 4, demo: not after that error", "prefill of 256, demo: not after that error"}
	if !slices.Equal(p.report.LeftOut, want) {
		t.Errorf("%q, want %q", p.report.LeftOut, want)
	}
	if all := p.report.Speeds; len(all) != 1 || len(all[0].Decode) != 1 || len(all[0].Prefill) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestTheCostOfAModelIsThatOfItsTensors(t *testing.T) {
	for _, o := range []tiny.Options{{Type: gguf.Q8_0}, {Tied: true}, {Layers: 3, Type: gguf.Q4_0, Tied: true}} {
		file, err := gguf.Parse(tiny.GGUF(o))
		if err != nil {
			t.Fatal(err)
		}
		bytes, adds, head := 0, 0, 0
		for _, x := range file.Tensors() {
			out := x.Name == "output.weight" || o.Tied && x.Name == "token_embd.weight"
			switch {
			case out:
				head = x.Values()
			case x.Name == "token_embd.weight":
				continue // a row of it is taken
			case len(x.Shape) == 2:
				adds += x.Values()
			}
			bytes += len(x.Data)
		}
		m := tiny.Model(o)
		k := costOf(m)
		if k.bytes != float64(bytes) || k.head != float64(head) {
			t.Errorf("%+v: %v bytes, wanted %d; %v in the head, wanted %d", o, k.bytes, bytes, k.head, head)
		}
		// Norms are counted, which are few.
		if norms := k.multiplyAdds - float64(adds); norms < 0 || norms > 0.01*float64(adds) {
			t.Errorf("%+v: %v multiply-adds, wanted %d", o, k.multiplyAdds, adds)
		}
		// Keys and values of halves.
		mc := &m.Config
		if got, want := k.read(1, []int{99}), float64(bytes)+100*float64(host.BlockBytes(m, 16, gpu.CacheF16))/16; math.Abs(got-want) > 1 {
			t.Errorf("%+v: %v bytes read, wanted %v (%d layers)", o, got, want, mc.Layers)
		}
	}
}

func TestTheMadeUpModelHasQwensShapeAndIsComputed(t *testing.T) {
	if bigParameters+bigLayers*(bigHeads+2*bigKVHeads)*bigHeadDim+(2*bigLayers+1)*bigWidth != 1_543_714_304 { // that of Qwen2.5-1.5B
		t.Errorf("%d weights in matrices", bigParameters)
	}
	if testing.Short() {
		t.Skip("-short: a layer of it has 47 million weights")
	}
	const vocab = 512
	m, err := randomQwen(1, vocab)
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(bigWidth*vocab + (bigParameters-bigWidth*bigVocab)/bigLayers + (bigHeads+2*bigKVHeads)*bigHeadDim + 3*bigWidth); m.Parameters != want || m.Quantization != gguf.Q8_0 || m.Architecture != "qwen2" {
		t.Errorf("%s: %d parameters of %v, wanted %d", m.Architecture, m.Parameters, m.Quantization, want)
	}
	s := subject()
	p := proverOf(s)
	p.measure(m, BigModel, time.Hour)
	if len(p.report.Speeds) != 1 || len(p.report.Speeds[0].Decode) == 0 {
		t.Errorf("%q", p.report.LeftOut)
	}
}

func TestWhatMustBeShownIsJudged(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	r := Report{
		Parts: Parts,
		Speeds: []Speeds{
			{Model: "small", smolLM2: true, Decode: []Speed{{Sequences: 1, TokensPerSecond: 1600, BandwidthShare: f(0.1)}}},
			{Model: BigModel, Decode: []Speed{{Sequences: 1, TokensPerSecond: 1000, BandwidthShare: f(0.41)}, {Sequences: 256, TokensPerSecond: 21000, HostShare: f(0.05)}}},
		},
		Serving: []Serving{{Concurrency: 256, Completed: 5, HostShare: 0.09}},
	}
	good := r
	good.judge()
	if !good.SpeedOK || len(good.Targets) != 5 || good.OK {
		t.Errorf("%+v", good.Targets)
	}
	for i, spoil := range []func(*Report){
		func(r *Report) { r.Speeds[1].Decode[0].BandwidthShare = f(0.39) },
		func(r *Report) { r.Speeds[0].Decode[0].TokensPerSecond = 1499 },
		func(r *Report) { r.Speeds[1].Decode[1].TokensPerSecond = 19999 },
		func(r *Report) { r.Speeds[1].Decode[1].HostShare = f(0.1) },
		func(r *Report) { r.Serving[0].HostShare = 0.2 },
	} {
		bad := r
		bad.Speeds = []Speeds{r.Speeds[0], r.Speeds[1]}
		for k := range bad.Speeds {
			bad.Speeds[k].Decode = append([]Speed{}, r.Speeds[k].Decode...)
		}
		bad.Serving = append([]Serving{}, r.Serving...)
		spoil(&bad)
		bad.judge()
		for k, target := range bad.Targets {
			if target.Met == (k == i) || target.Measured == nil {
				t.Errorf("with figure %d spoilt, %+v", i, target)
			}
		}
		if bad.SpeedOK {
			t.Errorf("figure %d is missed, and all is well", i)
		}
	}
	none := Report{}
	none.judge()
	for _, target := range none.Targets {
		if target.Met || target.Measured != nil || target.Why == "" {
			t.Errorf("nothing was measured: %+v", target)
		}
	}
}

func TestEveryFieldOfTheJSONIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/cuda.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "## Proof on a GPU")
	if !found {
		t.Fatal("docs/cuda.md has no section about it")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_0-9.]+)` \\|").FindAllStringSubmatch(section, -1) {
		documented[m[1]] = true
	}
	var b bytes.Buffer
	if err := (&Report{FaultTest: &FaultTest{}, Speeds: []Speeds{{Decode: []Speed{{}}, Prefill: []Speed{}}}, Serving: []Serving{{}}, Targets: []Target{{}},
		Conformance: Part{Checks: []Check{{}}}}).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var written map[string]any
	if err := json.Unmarshal(b.Bytes(), &written); err != nil {
		t.Fatal(err)
	}
	// The fields of the parts are documented once, as those of conformance; those of prefill as decode's.
	names := map[string]bool{}
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "" {
				continue
			}
			names[prefix+name] = true
			if full := prefix + name; full != "goldens" && full != "fault" && full != "speeds.prefill" {
				walk(full+".", typ.Field(i).Type)
			}
		}
	}
	walk("", reflect.TypeFor[Report]())
	for name := range names {
		if !documented[name] {
			t.Errorf("docs/cuda.md does not describe %s", name)
		}
	}
	for name := range documented {
		if !names[name] {
			t.Errorf("docs/cuda.md describes %s, which is not written", name)
		}
	}
	for name := range written {
		if !names[name] {
			t.Errorf("%s is written, and no field", name)
		}
	}
}
