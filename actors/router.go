package actors

import (
	"container/list"
	"math"
	"slices"
)

// MaxEngines is the most engines that a Runtime has: prefixes keeps a bit for each.
const MaxEngines = 64

// router decides which of several engines computes a request. Of those with a device (or, where none has, of
// those that may soon have one again) it takes the one that has computed the longest beginning of the
// request's prompts; of these the one with the least work; of these the first. But an engine that has more work than bound allows beside the one with the least is
// left out: what it has computed must be worth the difference, and requests that all begin alike must not
// gather at one engine while others have nothing to do. From there on the beginning is known to two.
//
// Work is counted in tokens: of the prompts of the engine's requests those that it had to compute, and
// what it has generated for requests that run (which is told from outside, as made).
//
// It is a pure state machine, intake's own. What it decides depends on nothing but the calls so far.
type router struct {
	block    int // tokens a block
	slack    int // see bound
	engines  []standing
	homes    map[uint64]*home // by request
	prefixes prefixes
}

// standing is what the router knows of an engine.
type standing struct {
	hope hope
	work int // prompt tokens to compute, of the requests that are there
}

// hope is how likely an engine is to compute anything, the least first.
type hope uint8

const (
	none    hope = iota // its device has been away too long, or is lost to this process
	waiting             // its device is away
	present             // it has its device
)

// home is where a request is, and what it takes to find it another.
type home struct {
	engine int
	work   int        // prompt tokens, without those that the engine had computed before
	prompt int        // prompt tokens
	chains [][]uint64 // keys of each prompt's blocks; see batch.Keys
}

// newRouter returns a router for n engines that all have their devices. slack is in tokens; remember says
// of how many blocks it remembers who has computed them.
func newRouter(n, block, slack, remember int) *router {
	r := &router{block: block, slack: slack, engines: make([]standing, n), homes: map[uint64]*home{}, prefixes: newPrefixes(remember)}
	for e := range r.engines {
		r.engines[e].hope = present
	}
	return r
}

// prefixWorth is how many tokens of work more a prefix is worth, for each of its tokens. It is more than 1
// since what an engine has to do is done side by side, and a request that joins waits for a part of it. In
// BenchmarkRouting more than 2 finds no more prefixes, and makes engines less evenly busy.
const prefixWorth = 2

// bound is the most work that an engine may have that has computed so many of a request's first blocks, where
// another has least. Differences grow with the number of requests by chance alone, so that slack is not all.
func (r *router) bound(least, found int) int {
	return least + min(prefixWorth*found*r.block, r.slack+least/4)
}

// place finds an engine for a new request with so many prompt tokens. made is what each engine has generated
// for the requests that it has.
func (r *router) place(id uint64, prompt int, chains [][]uint64, made []int) (engine int) {
	h := &home{prompt: prompt, chains: chains}
	r.homes[id] = h
	r.settle(h, made)
	return h.engine
}

// settle chooses the engine of a request that is nowhere.
func (r *router) settle(h *home, made []int) {
	hope := r.hope()
	least := math.MaxInt
	for e := range r.engines {
		if r.engines[e].hope == hope {
			least = min(least, r.engines[e].work+made[e])
		}
	}
	var found [MaxEngines]int
	for _, c := range h.chains {
		r.prefixes.find(c, &found)
	}
	best, bestWork := -1, 0
	for e := range r.engines {
		work := r.engines[e].work + made[e]
		if r.engines[e].hope < hope || work > r.bound(least, found[e]) {
			continue
		}
		if best < 0 || found[e] > found[best] || found[e] == found[best] && work < bestWork {
			best, bestWork = e, work
		}
	}
	h.engine = best
	h.work = max(h.prompt-found[best]*r.block, 1)
	r.engines[best].work += h.work
	for _, c := range h.chains {
		r.prefixes.note(c, best)
	}
}

// end takes a request out that is over.
func (r *router) end(id uint64) {
	if h := r.homes[id]; h != nil {
		r.engines[h.engine].work -= h.work
		delete(r.homes, id)
	}
}

// leave says that an engine has no device, and how much hope there is; what its cache held is lost.
func (r *router) leave(engine int, h hope) {
	r.engines[engine].hope = h
	r.prefixes.forget(engine)
}

// back says that an engine's device is open, with an empty cache.
func (r *router) back(engine int) {
	r.engines[engine].hope = present
	r.prefixes.forget(engine)
}

// hope is the most that there is at any engine.
func (r *router) hope() (most hope) {
	for _, e := range r.engines {
		most = max(most, e.hope)
	}
	return most
}

// stranded lists the requests for which there is more hope elsewhere, in the order of their ids.
func (r *router) stranded() []uint64 {
	hope := r.hope()
	var ids []uint64
	for id, h := range r.homes {
		if r.engines[h.engine].hope < hope {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// move finds another engine for a request.
func (r *router) move(id uint64, made []int) (engine int) {
	h := r.homes[id]
	r.engines[h.engine].work -= h.work
	r.settle(h, made)
	return h.engine
}

// prefixes remembers which engines have computed which blocks, up to a number of blocks: then it forgets
// the one that was not asked for longest. An engine may have given a block up since; that costs no more
// than computing it again.
type prefixes struct {
	limit   int
	at      map[uint64]*list.Element // of order, by key
	order   *list.List               // of *prefix, in the order of their use, newest first
	engines int                      // no bit from here on was ever set
}

// prefix is a block. Its key stands for all that comes before it, too.
type prefix struct {
	key     uint64
	engines uint64 // a bit for each that has computed it
}

func newPrefixes(limit int) prefixes {
	return prefixes{limit: max(limit, 1), at: map[uint64]*list.Element{}, order: list.New()}
}

// find adds to found, for each engine, how many of a chain's first blocks it has computed.
func (p *prefixes) find(chain []uint64, found *[MaxEngines]int) {
	have := ^uint64(0)
	for _, key := range chain {
		e, ok := p.at[key]
		if !ok {
			return
		}
		if have &= e.Value.(*prefix).engines; have == 0 {
			return
		}
		for e := range p.engines {
			found[e] += int(have >> e & 1)
		}
	}
}

// note says that an engine computes a chain's blocks. A chain is of use only from its start, so that is
// what is forgotten last.
func (p *prefixes) note(chain []uint64, engine int) {
	p.engines = max(p.engines, engine+1)
	chain = chain[:min(len(chain), p.limit)]
	for _, key := range slices.Backward(chain) {
		e, ok := p.at[key]
		if !ok {
			if p.order.Len() < p.limit {
				e = p.order.PushFront(&prefix{})
			} else {
				e = p.order.Back()
				delete(p.at, e.Value.(*prefix).key)
			}
			*e.Value.(*prefix) = prefix{key: key}
			p.at[key] = e
		}
		p.order.MoveToFront(e)
		e.Value.(*prefix).engines |= 1 << engine
	}
}

// forget says that an engine has none of the blocks any more.
func (p *prefixes) forget(engine int) {
	for e := p.order.Front(); e != nil; e = e.Next() {
		e.Value.(*prefix).engines &^= 1 << engine
	}
}
