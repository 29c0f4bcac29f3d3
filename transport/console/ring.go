package console

import (
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/troupe-llm/troupe/lifecycle"
)

const (
	// Kept is how many finished requests the page can show. A request takes half a kilobyte here, and
	// its timeline, where one is kept, as a rule one more, and never more than ten.
	Kept = 4096
	// maxText bounds, in bytes, each text of a kept request; messages may have maxMessage.
	maxText    = 256
	maxMessage = 512
)

// finished is what is kept of a finished request. It holds on to nothing of the request but short
// strings: not its prompt, not its parameters.
type finished struct {
	id                                      uint64
	external, client, model, key, endpoint  string
	peer, method, path, code, message       string
	outcome                                 lifecycle.Outcome
	status                                  int
	stream                                  bool
	wall                                    int64
	arrival, queued, scheduled, first, last int64
	finished, delivered                     int64
	prompt, cached, completion, sequences   int
	max, preemptions, steps, batchSum       int
	engine                                  int // −1: there is one, or none computed it
	bytes                                   int64
	slowed                                  lifecycle.Slowed
	itl                                     lifecycle.ITLHistogram
	timeline                                *lifecycle.Timeline
}

func (f *finished) fill(r *lifecycle.Record) {
	q := r.Request
	*f = finished{
		id: q.ID, external: short(q.ExternalID, maxText), client: short(q.ClientID, maxText), model: short(q.Model, maxText),
		key: short(q.KeyName, maxText), endpoint: short(q.Endpoint, maxText), peer: short(q.Peer, maxText),
		method: short(r.Method, maxText), path: short(r.Path, maxText),
		outcome: r.Outcome, status: r.Status, stream: q.Stream, wall: r.Wall,
		arrival: r.Arrival, queued: r.Queued, scheduled: r.Scheduled, first: r.FirstToken, last: r.LastToken,
		finished: r.Finished, delivered: r.Delivered,
		prompt: r.Usage.Prompt, cached: r.Usage.Cached, completion: r.Usage.Completion, sequences: r.Sequences,
		preemptions: r.Detail.Preemptions, steps: r.Detail.Steps, batchSum: r.Detail.BatchSum,
		engine: -1, bytes: r.BytesOut, slowed: r.Detail.Slowed, itl: r.ITL, timeline: r.Timeline,
	}
	if engine, ok := r.ComputedBy(); ok {
		f.engine = engine
	}
	if q.Params != nil {
		f.max = q.Params.MaxTokens
	}
	if r.Err != nil {
		f.code, f.message = short(r.Err.Code, maxText), short(r.Err.Message, maxMessage)
	}
}

// short returns s, or a copy of its beginning, so that a long text is not kept for its beginning.
func short(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return strings.Clone(s[:limit]) + "…"
}

// ring keeps the last Kept finished requests, numbered from 0 in the order in which they came. Its
// memory is taken at once and written in place. It is safe for concurrent use.
type ring struct {
	mu    sync.Mutex
	total uint64 // how many have come: the number of the next
	slots []finished
}

func newRing() *ring { return &ring{slots: make([]finished, Kept)} }

func (r *ring) put(rec *lifecycle.Record) {
	r.mu.Lock()
	r.slots[r.total%Kept].fill(rec)
	r.total++
	r.mu.Unlock()
}

// count is how many have come.
func (r *ring) count() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// read appends to dst those of the requests numbered from to to−1 that are still kept, oldest first.
func (r *ring) read(dst []finished, from, to uint64) []finished {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total > Kept {
		from = max(from, r.total-Kept)
	}
	for ; from < min(to, r.total); from++ {
		dst = append(dst, r.slots[from%Kept])
	}
	return dst
}

// find returns the kept request of an id.
func (r *ring) find(id uint64) (f finished, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := r.total; n > 0 && n+Kept > r.total; n-- {
		if s := &r.slots[(n-1)%Kept]; s.id == id {
			return *s, true
		}
	}
	return finished{}, false
}
