package console

import (
	"encoding/json"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
)

// frame is one message of the stream, an event of text/event-stream with JSON in it. Times are
// microseconds of the runtime's clock, which Hello relates to the wall's; 0 stands for not yet, or
// never. What is zero or empty is left out.
type frame struct {
	// Hello comes first, and once.
	Hello *hello `json:"hello,omitempty"`
	At    int64  `json:"at"`
	// Gauges are as of At.
	Gauges *gauges `json:"gauges,omitempty"`
	// New are requests that run and were not told of before; Changed what is new of those that were:
	// [id, tokens, last], or, where more than that has changed, [id] and the fields of progress in
	// their order. Gone are ids that no longer run and of whose end nothing is known.
	New     []running `json:"new,omitempty"`
	Changed [][]int64 `json:"changed,omitempty"`
	Gone    []uint64  `json:"gone,omitempty"`
	// Done are requests that have ended since the last frame, oldest first, and Missed how many more
	// there were: too many to tell. Past are those that had ended before the viewer came.
	Done   []done `json:"done,omitempty"`
	Missed uint64 `json:"missed,omitempty"`
	Past   []done `json:"past,omitempty"`
	// Hidden is how many requests run that are too many to be told of.
	Hidden int `json:"hidden,omitempty"`
	// Bye ends the stream, and says why.
	Bye string `json:"bye,omitempty"`
}

// event makes the frame an event.
func (f *frame) event() []byte {
	body, err := json.Marshal(f)
	if err != nil { // there is nothing in it that could fail
		panic(err)
	}
	b := make([]byte, 0, len(body)+8)
	b = append(b, "data: "...)
	b = append(b, body...)
	return append(b, "\n\n"...)
}

type hello struct {
	Version string  `json:"version"`
	Model   string  `json:"model"`
	Device  string  `json:"device"`
	Kind    string  `json:"kind"` // the device's
	Wall    int64   `json:"wall"` // milliseconds since 1970 at At
	Kept    int     `json:"kept"`
	MaxSeqs int     `json:"max_seqs"`
	Bounds  []int64 `json:"itl_bounds"` // microseconds
}

// gauges are the scheduler's figures; those from Generated to Preemptions only rise.
type gauges struct {
	Running     int    `json:"running"` // sequences
	Waiting     int    `json:"waiting"` // sequences
	NoBlocks    bool   `json:"no_blocks,omitempty"`
	BlocksUsed  int    `json:"blocks_used"`
	BlocksTotal int    `json:"blocks_total"`
	Requests    int    `json:"requests"` // that hold a place
	Generated   uint64 `json:"generated"`
	Computed    uint64 `json:"computed"` // prompt tokens
	Cached      uint64 `json:"cached"`   // prompt tokens
	Steps       uint64 `json:"steps"`
	StepTime    int64  `json:"step_time"` // microseconds, the sum over all steps
	Preemptions uint64 `json:"preemptions"`
	Iteration   int    `json:"iteration"` // tokens of the last step
	Draining    bool   `json:"draining,omitempty"`
	Unhealthy   string `json:"unhealthy,omitempty"` // why
	// Of several engines: what each does, and why some have no device.
	Engines []engine `json:"engines,omitempty"`
	Ailing  string   `json:"ailing,omitempty"`
}

// engine is what one of several does. The gauges are the sums.
type engine struct {
	Running    int  `json:"running"` // sequences
	Waiting    int  `json:"waiting"` // sequences
	BlocksUsed int  `json:"blocks_used"`
	Away       bool `json:"away,omitempty"` // it has no device
}

func look(rt *actors.Runtime) *gauges {
	s := rt.Stats()
	g := &gauges{
		Running: s.Running, Waiting: s.Waiting, NoBlocks: s.WaitingBlocks, BlocksUsed: s.BlocksUsed, BlocksTotal: s.BlocksTotal,
		Requests: rt.Admitted(), Generated: s.Generated, Computed: s.PromptComputed, Cached: s.PromptCached,
		Steps: s.Steps, StepTime: micros(s.StepTime), Preemptions: s.Preemptions, Iteration: s.IterationTokens, Draining: rt.Draining(),
	}
	if all := rt.Engines(); len(all) > 1 {
		for i := range all {
			e := &all[i]
			g.Engines = append(g.Engines, engine{e.Running, e.Waiting, e.BlocksUsed, e.Unhealthy})
		}
	}
	switch ok, why := rt.Health(); {
	case !ok:
		g.Unhealthy = short(why, maxMessage)
	case why != "":
		g.Ailing = short(why, maxMessage)
	}
	return g
}

// asked is what is known of a request from the beginning.
type asked struct {
	ID        uint64 `json:"id"`
	External  string `json:"ext,omitempty"`
	Client    string `json:"client,omitempty"`
	Model     string `json:"model,omitempty"`
	Key       string `json:"key,omitempty"`
	Endpoint  string `json:"endpoint,omitempty"`
	Peer      string `json:"peer,omitempty"`
	Wall      int64  `json:"wall"` // milliseconds since 1970 at arrival
	Arrival   int64  `json:"arrival"`
	Prompt    int    `json:"prompt"`
	Sequences int    `json:"seqs,omitempty"`
	Max       int    `json:"max,omitempty"` // tokens a sequence
	Stream    bool   `json:"stream,omitempty"`
}

// running is a request that runs.
type running struct {
	asked
	Progress []int64 `json:"progress"`
}

// progress is how far a request is. As an array it has these fields in this order: the page relies on
// it.
type progress struct {
	state, tokens, prefilled, queued, scheduled, first, last, preemptions, cached int64
	engine                                                                        int64 // −1: there is one
}

func (p *progress) array(before ...int64) []int64 {
	return append(before, p.state, p.tokens, p.prefilled, p.queued, p.scheduled, p.first, p.last, p.preemptions, p.cached, p.engine)
}

func progressOf(g *actors.Glance) progress {
	p := progress{
		state: int64(g.State), tokens: int64(g.Tokens), prefilled: int64(g.Prefilled),
		queued: micros(g.Queued), scheduled: micros(g.Scheduled), first: micros(g.FirstToken), last: micros(g.LastToken),
		preemptions: int64(g.Preemptions), cached: int64(g.Cached), engine: -1,
	}
	if g.Engines > 1 {
		p.engine = int64(g.Engine)
	}
	return p
}

func askedOf(g *actors.Glance) asked {
	q := g.Request
	a := asked{
		ID: q.ID, External: short(q.ExternalID, maxText), Client: short(q.ClientID, maxText), Model: short(q.Model, maxText),
		Key: short(q.KeyName, maxText), Endpoint: short(q.Endpoint, maxText), Peer: short(q.Peer, maxText),
		Wall: g.Wall / 1e6, Arrival: micros(q.Arrival), Prompt: q.PromptTokens(), Sequences: q.Sequences(), Stream: q.Stream,
	}
	if q.Params != nil {
		a.Max = q.Params.MaxTokens
	}
	return a
}

// done is a finished request.
type done struct {
	asked
	Method      string            `json:"method,omitempty"`
	Path        string            `json:"path,omitempty"`
	Outcome     lifecycle.Outcome `json:"outcome"`
	Status      int               `json:"status"`
	Code        string            `json:"code,omitempty"`
	Message     string            `json:"message,omitempty"`
	Queued      int64             `json:"queued,omitempty"`
	Scheduled   int64             `json:"scheduled,omitempty"`
	First       int64             `json:"first,omitempty"`
	Last        int64             `json:"last,omitempty"`
	Finished    int64             `json:"finished,omitempty"`
	Delivered   int64             `json:"delivered,omitempty"`
	Cached      int               `json:"cached,omitempty"`
	Tokens      int               `json:"tokens,omitempty"`
	Preemptions int               `json:"preemptions,omitempty"`
	Steps       int               `json:"steps,omitempty"`
	BatchSum    int               `json:"batch_sum,omitempty"`
	Bytes       int64             `json:"bytes,omitempty"`
	Slowed      *slowed           `json:"slowed,omitempty"`
	// ITL has pairs: a bucket of hello.Bounds, and how many gaps it holds. ITLSum is microseconds.
	ITL    []uint32 `json:"itl,omitempty"`
	ITLSum int64    `json:"itl_sum,omitempty"`
	// Engine is the one of several that computed it.
	Engine *int `json:"engine,omitempty"`
}

// slowed is lifecycle.Slowed in microseconds.
type slowed struct {
	QueueCapacity   int64 `json:"queue_capacity,omitempty"`
	QueueKV         int64 `json:"queue_kv,omitempty"`
	PrefillOfOthers int64 `json:"prefill_of_others,omitempty"`
	Preemption      int64 `json:"preemption,omitempty"`
	DeviceRestart   int64 `json:"device_restart,omitempty"`
	SlowClient      int64 `json:"slow_client,omitempty"`
}

func (f *finished) done() done {
	d := done{
		asked: asked{
			ID: f.id, External: f.external, Client: f.client, Model: f.model, Key: f.key, Endpoint: f.endpoint, Peer: f.peer,
			Wall: f.wall / 1e6, Arrival: micros(f.arrival), Prompt: f.prompt, Sequences: f.sequences, Max: f.max, Stream: f.stream,
		},
		Method: f.method, Path: f.path, Outcome: f.outcome, Status: f.status, Code: f.code, Message: f.message,
		Queued: micros(f.queued), Scheduled: micros(f.scheduled), First: micros(f.first), Last: micros(f.last),
		Finished: micros(f.finished), Delivered: micros(f.delivered),
		Cached: f.cached, Tokens: f.completion, Preemptions: f.preemptions, Steps: f.steps, BatchSum: f.batchSum,
		Bytes: f.bytes, ITLSum: micros(f.itl.Sum),
	}
	s := slowed{
		QueueCapacity: micros(f.slowed.QueueCapacity), QueueKV: micros(f.slowed.QueueKV), PrefillOfOthers: micros(f.slowed.PrefillOfOthers),
		Preemption: micros(f.slowed.Preemption), DeviceRestart: micros(f.slowed.DeviceRestart), SlowClient: micros(f.slowed.SlowClient),
	}
	if s != (slowed{}) {
		d.Slowed = &s
	}
	if f.engine >= 0 {
		d.Engine = &f.engine
	}
	for i, n := range f.itl.Counts {
		if n > 0 {
			d.ITL = append(d.ITL, uint32(i), n)
		}
	}
	return d
}

// micros converts nanoseconds. What is not 0 stays so.
func micros(ns int64) int64 {
	if ns > 0 && ns < 1000 {
		return 1
	}
	return ns / 1000
}
