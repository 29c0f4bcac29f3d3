package actors

import (
	"io"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
	"github.com/troupe-llm/troupe/model/tiny"
	"github.com/troupe-llm/troupe/model/tokenizer"
)

// patience bounds what a test waits for; it says nothing about how long anything takes.
const patience = 4 * time.Minute

var tok = sync.OnceValue(func() *tokenizer.Tokenizer { return tiny.Model(tiny.Options{}).Tokenizer })

// stage is a Runtime on a simulated device that checks how its cache is used, and what a test needs
// around it.
type stage struct {
	*Runtime
	t      *testing.T
	faults *sim.Faults   // of the first engine
	every  []*sim.Faults // of each engine
	books  *books
	gate   chan struct{} // each step of the device takes a value, until it is closed; nil: steps run freely
	opened sync.Once
}

// books is an observer that keeps everything.
type books struct {
	mu       sync.Mutex
	records  []*lifecycle.Record
	progress lifecycle.Progress
}

func (b *books) Progress(p *lifecycle.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress.Prompt += p.Prompt
	b.progress.Cached += p.Cached
	b.progress.Tokens += p.Tokens
	b.progress.ITL.Add(&p.ITL)
}

func (b *books) Observe(r *lifecycle.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
}

func (b *books) all() []*lifecycle.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*lifecycle.Record(nil), b.records...)
}

type setting struct {
	sim    sim.Options
	device gpu.Config
	cfg    Config
	wrap   func(gpu.Device) gpu.Device
	gated  bool // the device's steps wait until the test lets them through
	// observer takes the place of the stage's books.
	observer lifecycle.Observer
}

func newStage(t *testing.T, adjust func(*setting)) *stage {
	t.Helper()
	s := setting{
		sim:    sim.Options{Vocab: tok().Size(), EOS: []int32{tok().EOS()}, Check: true, Faults: &sim.Faults{}, Tokens: letters()},
		device: gpu.Config{BlockSize: 16, MaxSeqs: 64, MaxTokens: 256, MaxContext: 2048},
		cfg:    Config{EOS: []int32{tok().EOS()}, Tokenizer: tok(), PrefixCaching: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))},
	}
	if adjust != nil {
		adjust(&s)
	}
	st := &stage{t: t, faults: s.sim.Faults, every: []*sim.Faults{s.sim.Faults}, books: &books{}}
	for len(st.every) < s.cfg.Engines {
		st.every = append(st.every, &sim.Faults{})
	}
	if s.gated {
		st.gate = make(chan struct{})
		inner := s.wrap
		s.wrap = func(d gpu.Device) gpu.Device {
			if inner != nil {
				d = inner(d)
			}
			return gated{d, st.gate}
		}
	}
	s.cfg.BlockSize, s.cfg.MaxSeqs, s.cfg.MaxTokens, s.cfg.MaxContext = s.device.BlockSize, s.device.MaxSeqs, s.device.MaxTokens, s.device.MaxContext
	s.cfg.Observer = st.books
	if s.observer != nil {
		s.cfg.Observer = s.observer
	}
	s.cfg.Open = func(engine int) (gpu.Device, error) {
		o := s.sim
		o.Faults = st.every[engine]
		d, err := sim.Open(o, s.device)
		if err != nil || s.wrap == nil {
			return d, err
		}
		return s.wrap(d), nil
	}
	rt, err := New(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	st.Runtime = rt
	t.Cleanup(func() {
		st.release()
		rt.Close()
		if n := rt.Admitted(); n != 0 {
			t.Errorf("%d places are still taken after Close", n)
		}
	})
	return st
}

// gated is a device whose steps a test lets through.
type gated struct {
	gpu.Device
	gate chan struct{}
}

func (d gated) Run(b *gpu.Batch, r *gpu.Result) error {
	<-d.gate
	return d.Device.Run(b, r)
}

// step lets n steps through, one after the other, and returns when the last has begun.
func (s *stage) step(n int) {
	s.t.Helper()
	for range n {
		select {
		case s.gate <- struct{}{}:
		case <-time.After(patience):
			s.t.Fatalf("no step comes: %+v", s.Stats())
		}
	}
}

// release lets all further steps run freely.
func (s *stage) release() {
	s.opened.Do(func() {
		if s.gate != nil {
			close(s.gate)
		}
	})
}

// heard returns when every request that was started before has heard what it was told before. What
// that made it say to the batcher is said by then.
func (s *stage) heard() {
	s.t.Helper()
	for end := time.Now().Add(patience); ; {
		all := make(chan struct{})
		s.Inquire(math.MaxUint64, func(int64, *lifecycle.Timeline) {}, func() { close(all) })
		select {
		case <-all:
			return
		case <-time.After(time.Second): // one of them ended before it had heard the question
		}
		if time.Now().After(end) {
			s.t.Fatalf("the requests never heard: %+v", s.Stats())
		}
	}
}

// letters are the tokens of a to z and the space, so that simulated text is text.
func letters() []int32 {
	var ids []int32
	for c := 'a'; c <= 'z'; c++ {
		ids = append(ids, tok().Encode(string(c), false, false)...)
	}
	return append(ids, tok().Encode(" ", false, false)...)
}

// audience is a sink that keeps what it was told and reports delivery at once.
type audience struct {
	mu     sync.Mutex
	tell   func(any)
	deltas []lifecycle.Delta
	text   []string // per choice
	resp   *lifecycle.Response
	done   chan struct{}
	onTok  func(n int) // called with the number of deltas so far
	silent bool        // never reports delivery
	now    func() int64
}

func newAudience(now func() int64) *audience { return &audience{done: make(chan struct{}), now: now} }

func (a *audience) Attach(tell func(any)) { a.tell = tell }

func (a *audience) Delta(d *lifecycle.Delta) {
	a.mu.Lock()
	kept := *d
	kept.IDs = append([]int32(nil), d.IDs...)
	a.deltas = append(a.deltas, kept)
	for len(a.text) <= d.Choice {
		a.text = append(a.text, "")
	}
	a.text[d.Choice] += d.Text
	n := len(a.deltas)
	a.mu.Unlock()
	if a.onTok != nil {
		a.onTok(n)
	}
}

func (a *audience) End(r *lifecycle.Response) {
	a.mu.Lock()
	a.resp = r
	a.mu.Unlock()
	if !a.silent {
		a.tell(lifecycle.Delivered{At: a.now(), Bytes: 1})
	}
	close(a.done)
}

func (a *audience) wait(t *testing.T) *lifecycle.Response {
	t.Helper()
	select {
	case <-a.done:
		return a.resp
	case <-time.After(patience):
		t.Fatal("the request never ended")
		return nil
	}
}

func params(max int) *lifecycle.Params {
	return &lifecycle.Params{MaxTokens: max, TopP: 1, RepetitionPenalty: 1, Logprobs: -1, PromptLogprobs: -1, SkipSpecialTokens: true, Seed: 11}
}

// ask makes a request for prompt.
func (s *stage) ask(prompt string, p *lifecycle.Params) *lifecycle.Request {
	return &lifecycle.Request{ID: s.NextID(), Endpoint: "bench", Arrival: s.Now(), N: 1, Params: p,
		Prompts: [][]int32{tok().Encode(prompt, false, false)}}
}

// run starts a request and returns its audience.
func (s *stage) run(req *lifecycle.Request, adjust ...func(*audience)) *audience {
	s.t.Helper()
	s.admit(1)
	return s.begin(req, adjust...)
}

// admit takes places for requests to begin.
func (s *stage) admit(n int) {
	s.t.Helper()
	for range n {
		if err := s.Admit(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// begin is run for a request that has a place.
func (s *stage) begin(req *lifecycle.Request, adjust ...func(*audience)) *audience {
	a := newAudience(s.Now)
	for _, f := range adjust {
		f(a)
	}
	s.Start(req, a)
	return a
}

// record waits for the n-th Record.
func (s *stage) record(n int) *lifecycle.Record {
	s.t.Helper()
	s.until("there are enough records", func() bool { return len(s.books.all()) >= n })
	return s.books.all()[n-1]
}

func (s *stage) until(what string, f func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			s.t.Fatalf("it never came to this: %s\n%+v\n%s", what, s.Stats(), buf[:runtime.Stack(buf, true)])
		}
	}
}
