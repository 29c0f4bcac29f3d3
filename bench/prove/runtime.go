package prove

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model"
	"github.com/troupe-llm/troupe/model/template"
	"github.com/troupe-llm/troupe/transport/openai"
)

// start starts a runtime that serves m on the subject's devices. The ledger is told what they do.
func (p *prover) start(m *model.Model, c gpu.Config, l *ledger) (*actors.Runtime, error) {
	open := func() (gpu.Device, error) { return p.Subject.Open(m, c) }
	return actors.New(actors.Config{
		Open: func(int) (gpu.Device, error) { return l.open(open) }, BlockSize: c.BlockSize, MaxSeqs: c.MaxSeqs, MaxTokens: c.MaxTokens, MaxContext: c.MaxContext, PrefixCaching: true,
		EOS: m.Generation.EOS, Tokenizer: m.Tokenizer, Logger: slog.New(slog.DiscardHandler),
	})
}

// env is what the parsers of requests need to know of m, whose requests get metrics. The endpoint is "chat", or
// "completions" where there is no chat template.
func env(m *model.Model, name string, maxContext int) (e *openai.Env, endpoint string, err error) {
	t := m.Tokenizer
	e = &openai.Env{Served: []string{name}, Root: name, MaxModelLen: maxContext, Vocab: t.Size(), Tokenizer: t, EOS: m.Generation.EOS, Metrics: true}
	if m.Template == "" {
		return e, "completions", nil
	}
	piece := func(id int32) string {
		if id < 0 {
			return ""
		}
		return t.Piece(id)
	}
	e.Template, err = template.Parse(m.Template, template.Options{BOS: piece(t.BOS()), EOS: piece(t.EOS())})
	return e, "chat", err
}

// metered is a device whose steps are counted and timed. Before its step breakAt, counted over all devices of a
// ledger, it is broken.
type metered struct {
	gpu.Device
	ledger *ledger
}

// ledger is what devices that follow each other have done.
type ledger struct {
	breakAt int                    // the step, from 1; 0: none
	breaks  func(gpu.Device) error // by this

	mu sync.Mutex
	tally
}

// tally is what a ledger counts.
type tally struct {
	opened      int
	steps       int
	failed      []error
	first, last time.Time // beginning of the first step, end of the last
	waited      time.Duration
	fault       time.Time
	pause       time.Duration // from the fault to the end of the next step
}

// open opens a device of the ledger.
func (l *ledger) open(open func() (gpu.Device, error)) (gpu.Device, error) {
	l.mu.Lock()
	l.opened++
	l.mu.Unlock()
	d, err := open()
	if err != nil {
		return nil, err
	}
	return &metered{d, l}, nil
}

// Run implements gpu.Device.
func (m *metered) Run(b *gpu.Batch, r *gpu.Result) error {
	l := m.ledger
	l.mu.Lock()
	l.steps++
	if l.steps == l.breakAt {
		l.fault = time.Now()
		if err := l.breaks(m.Device); err != nil {
			l.failed = append(l.failed, err)
		}
	}
	l.mu.Unlock()
	before, began := waited(m.Device), time.Now()
	err := m.Device.Run(b, r)
	ended := time.Now()
	wait := ended.Sub(began)
	if before >= 0 {
		wait = waited(m.Device) - before
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first.IsZero() {
		l.first = began
	}
	l.last = ended
	l.waited += wait
	if err != nil {
		l.failed = append(l.failed, err)
	} else if l.pause == 0 && !l.fault.IsZero() {
		l.pause = ended.Sub(l.fault)
	}
	return err
}

// look returns a copy.
func (l *ledger) look() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tally
	t.failed = slices.Clone(t.failed)
	return t
}

// hostShare is the part of the time from the first step to the last in which nobody waited for the device.
func (t *tally) hostShare() float64 {
	total := t.last.Sub(t.first)
	if total <= 0 {
		return 0
	}
	return max(0, 1-float64(t.waited)/float64(total))
}

// waited is how long a device has waited for what it hands its work to, −1 where it computes by itself.
func waited(d gpu.Device) time.Duration {
	if w, ok := d.(interface{ Waited() time.Duration }); ok {
		return w.Waited()
	}
	return -1
}

// answer takes a request's answer. It is an actors.Sink.
type answer struct {
	rt   *actors.Runtime
	tell func(any)
	done chan *lifecycle.Response
}

// Attach implements actors.Sink.
func (a *answer) Attach(tell func(any)) { a.tell = tell }

// Delta implements actors.Sink.
func (a *answer) Delta(*lifecycle.Delta) {}

// End implements actors.Sink.
func (a *answer) End(r *lifecycle.Response) {
	a.tell(lifecycle.Delivered{At: a.rt.Now()})
	a.done <- r
}
