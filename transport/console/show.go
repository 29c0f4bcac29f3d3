package console

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/troupe-llm/troupe/actors"
	"github.com/troupe-llm/troupe/lifecycle"
)

const (
	// frameInterval and frameSettle are a Console's interval and settle.
	frameInterval = 250 * time.Millisecond
	frameSettle   = 25 * time.Millisecond
	// idleEvery is how many intervals make a frame due even though nothing has changed: a second.
	idleEvery = 4
	// silentFor is after how many intervals without an answer a request that was told of is taken for
	// one whose end was missed: more ended in between than the ring holds.
	silentFor = 40
	// maxRunning bounds the requests that a frame may tell of, maxDone those that end within one
	// interval, and maxPast those of the past in one frame.
	maxRunning = 2048
	maxDone    = 256
	maxPast    = 512
)

// show is what viewers watch. It lives as long as there are any; all viewers see the same one.
type show struct {
	console *Console
	rt      *actors.Runtime

	mu      sync.Mutex
	answers []actors.Glance

	running map[uint64]*followed
	round   uint64
	seen    uint64 // the ring's number of the next request to tell of
	quiet   int    // intervals since the last frame
	last    gauges
	spare   []actors.Glance
	ended   []finished
}

// followed is a request that viewers were told of.
type followed struct {
	asked
	progress
	round uint64 // when it last answered
}

func newShow(c *Console, rt *actors.Runtime) *show {
	return &show{console: c, rt: rt, running: map[uint64]*followed{}, seen: c.ring.count()}
}

func (s *show) run(stop <-chan struct{}) {
	tick := time.NewTicker(s.console.interval)
	defer tick.Stop()
	pause := time.NewTimer(s.console.settle)
	defer pause.Stop()
	for {
		s.rt.Survey(s.told)
		pause.Reset(s.console.settle)
		select {
		case <-stop:
			return
		case <-pause.C:
		}
		s.frame()
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// told takes a request's answer, on the request's own time.
func (s *show) told(g actors.Glance) {
	s.mu.Lock()
	if len(s.answers) < 4*maxRunning { // whoever takes them may be late
		s.answers = append(s.answers, g)
	}
	s.mu.Unlock()
}

// frame tells the viewers what is new.
func (s *show) frame() {
	s.round++
	f := frame{At: micros(s.rt.Now()), Gauges: look(s.rt)}
	// What has ended is read first and applied last: a request answers before it ends, so whatever is
	// known to have ended has said its last, and is not taken for running afterwards.
	s.ended = s.ended[:0]
	from, to := s.seen, s.console.ring.count()
	s.ended = s.console.ring.read(s.ended, from, to)
	s.seen = to
	s.mu.Lock()
	answers := s.answers
	s.answers, s.spare = s.spare[:0], nil
	s.mu.Unlock()

	for i := range answers {
		s.follow(&f, &answers[i])
	}
	clear(answers) // their requests may go
	s.spare = answers
	s.end(&f, to-from)
	for id, r := range s.running {
		if s.round-r.round > silentFor {
			delete(s.running, id)
			f.Gone = append(f.Gone, id)
		}
	}
	if len(s.running) >= maxRunning {
		f.Hidden = max(f.Gauges.Requests-len(s.running), 0)
	}
	s.tell(&f)
}

// follow takes a request's answer into the frame.
func (s *show) follow(f *frame, g *actors.Glance) {
	p := progressOf(g)
	r := s.running[g.Request.ID]
	switch {
	case r == nil:
		if len(s.running) >= maxRunning {
			return
		}
		r = &followed{asked: askedOf(g), progress: p}
		s.running[r.ID] = r
		f.New = append(f.New, running{r.asked, p.array()})
	case p != r.progress:
		old := r.progress
		old.tokens, old.last = p.tokens, p.last
		if old == p {
			f.Changed = append(f.Changed, []int64{int64(r.ID), p.tokens, p.last})
		} else {
			f.Changed = append(f.Changed, p.array(int64(r.ID)))
		}
		r.progress = p
	}
	r.round = s.round
}

// end takes those that have ended, of which there were n, out of the running and into the frame.
func (s *show) end(f *frame, n uint64) {
	var gone map[uint64]struct{}
	for i := range s.ended {
		id := s.ended[i].id
		if _, told := s.running[id]; !told {
			continue
		}
		delete(s.running, id)
		if len(s.ended)-i > maxDone {
			f.Gone = append(f.Gone, id) // it is not among the Done
		}
		if gone == nil {
			gone = make(map[uint64]struct{}, len(s.ended)-i)
		}
		gone[id] = struct{}{}
	}
	if gone != nil {
		// It answered and ended within one interval.
		f.New = slices.DeleteFunc(f.New, func(r running) bool { _, ok := gone[r.ID]; return ok })
		f.Changed = slices.DeleteFunc(f.Changed, func(c []int64) bool { _, ok := gone[uint64(c[0])]; return ok })
	}
	told := s.ended[max(len(s.ended)-maxDone, 0):]
	for i := range told {
		f.Done = append(f.Done, told[i].done())
	}
	f.Missed = n - uint64(len(told))
}

// tell sends the frame to the viewers: to those that are new a picture of everything instead, and
// to those that have yet to hear of the past some more of it.
func (s *show) tell(f *frame) {
	c := s.console
	c.mu.Lock()
	viewers := make([]*Viewer, 0, len(c.viewers))
	for v := range c.viewers {
		viewers = append(viewers, v)
	}
	c.mu.Unlock()
	changed := !reflect.DeepEqual(*f.Gauges, s.last) || len(s.running)+len(f.Gone)+len(f.Done) > 0 // what runs grows older
	if s.quiet++; changed || s.quiet >= idleEvery {
		s.quiet = 0
		s.last = *f.Gauges
	}
	var delta, whole []byte
	for _, v := range viewers {
		switch {
		case !v.greeted:
			if whole == nil {
				whole = s.whole(f).event()
			}
			v.greeted, v.past = true, s.seen
			v.send(whole)
		case s.quiet == 0:
			if delta == nil {
				delta = f.event()
			}
			v.send(delta)
		}
		if v.past > 0 {
			from := max(v.past, maxPast) - maxPast
			past := s.console.ring.read(nil, from, v.past)
			if v.past = from; len(past) == 0 {
				v.past = 0 // the ring has nothing older
				continue
			}
			older := frame{At: f.At, Past: make([]done, len(past))}
			for i := range past {
				older.Past[i] = past[i].done()
			}
			v.send(older.event())
		}
	}
}

// whole is the frame for one who comes now.
func (s *show) whole(f *frame) *frame {
	o := &s.console.options
	info := s.rt.Stats().Device
	if n := len(s.rt.Engines()); n > 1 {
		info.Name = fmt.Sprintf("%d × %s", n, info.Name)
	}
	h := &hello{
		Version: o.Version, Model: o.Model, Device: info.Name, Kind: info.Kind, MaxSeqs: o.MaxSeqs,
		Wall: time.Now().UnixMilli(), Kept: Kept, Bounds: make([]int64, len(lifecycle.ITLBounds)),
	}
	for i, b := range lifecycle.ITLBounds {
		h.Bounds[i] = micros(b)
	}
	w := &frame{Hello: h, At: f.At, Gauges: f.Gauges, Hidden: f.Hidden, New: make([]running, 0, len(s.running))}
	for _, r := range s.running {
		w.New = append(w.New, running{r.asked, r.array()})
	}
	slices.SortFunc(w.New, func(a, b running) int { return int(a.Arrival - b.Arrival) })
	return w
}
