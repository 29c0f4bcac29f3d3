package actors

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// ledger is what a router should know, kept the plain way.
type ledger struct {
	engines  int
	slack    int
	hope     []int // 2: it has its device, 1: it waits for it, 0: in vain
	computed []map[uint64]bool
	live     map[uint64]*entry
}

type entry struct {
	engine, prompt, work int
	chains               [][]uint64
}

const ledgerBlock = 16

func (l *ledger) load(e int, made []int) int {
	n := made[e]
	for _, r := range l.live {
		if r.engine == e {
			n += r.work
		}
	}
	return n
}

// found is how many first blocks of the chains an engine has computed.
func (l *ledger) found(e int, chains [][]uint64) (n int) {
	for _, c := range chains {
		for _, k := range c {
			if !l.computed[e][k] {
				break
			}
			n++
		}
	}
	return n
}

// choose says which engine a request should go to, and how much of it is known there.
func (l *ledger) choose(chains [][]uint64, made []int) (engine, found int) {
	var candidates []int
	for e := range l.engines {
		if l.hope[e] == slices.Max(l.hope) {
			candidates = append(candidates, e)
		}
	}
	least := l.load(candidates[0], made)
	for _, e := range candidates {
		least = min(least, l.load(e, made))
	}
	candidates = slices.DeleteFunc(candidates, func(e int) bool {
		more := l.load(e, made) - least
		return more > least/4+l.slack || more > 2*ledgerBlock*l.found(e, chains)
	})
	slices.SortStableFunc(candidates, func(a, b int) int {
		if d := l.found(b, chains) - l.found(a, chains); d != 0 {
			return d
		}
		return l.load(a, made) - l.load(b, made)
	})
	return candidates[0], l.found(candidates[0], chains)
}

func (l *ledger) put(r *entry, made []int) {
	engine, found := l.choose(r.chains, made)
	r.engine, r.work = engine, max(r.prompt-found*ledgerBlock, 1)
	for _, c := range r.chains {
		for _, k := range c {
			l.computed[engine][k] = true
		}
	}
}

// conversation makes prompts that share beginnings: a tree of blocks.
func conversation(rng *rand.Rand) (chains [][]uint64, prompt int) {
	for range 1 + rng.IntN(3)/2 {
		var c []uint64
		key := uint64(rng.IntN(3) + 1)
		for range rng.IntN(12) {
			c = append(c, key)
			key = key*5 + uint64(rng.IntN(3)*rng.IntN(2))
		}
		chains = append(chains, c)
		prompt += len(c)*ledgerBlock + 1 + rng.IntN(ledgerBlock)
	}
	return chains, prompt
}

func TestTheRouterDoesWhatItSaysWhateverHappens(t *testing.T) {
	moved, kept, left := 0, 0, 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 2 + rng.IntN(4)
		l := &ledger{engines: n, slack: rng.IntN(600), hope: make([]int, n), live: map[uint64]*entry{}}
		for e := range n {
			l.hope[e] = 2
			l.computed = append(l.computed, map[uint64]bool{})
		}
		r := newRouter(n, ledgerBlock, l.slack, 1<<16)
		made := make([]int, n)
		next := uint64(0)
		for range 300 {
			switch x := rng.IntN(20); {
			case x < 9:
				next++
				e := &entry{}
				e.chains, e.prompt = conversation(rng)
				if rng.IntN(9) == 0 {
					e.chains = nil // it may not use what others computed
				}
				if l.hope[0] < 2 {
					left++
				}
				l.put(e, made)
				l.live[next] = e
				if got := r.place(next, e.prompt, e.chains, made); got != e.engine {
					t.Fatalf("seed %d: request %d is on engine %d, wanted %d", seed, next, got, e.engine)
				}
				if e.work < e.prompt {
					kept++
				}
			case x < 15:
				if ids := slices.Sorted(maps.Keys(l.live)); len(ids) > 0 {
					id := ids[rng.IntN(len(ids))]
					delete(l.live, id)
					r.end(id)
				}
				r.end(next + 1000) // one that is unknown
			case x < 17:
				made[rng.IntN(n)] = rng.IntN(2000)
			case x < 19:
				e := rng.IntN(n)
				l.hope[e] = rng.IntN(2)
				clear(l.computed[e])
				r.leave(e, hope(l.hope[e]))
			default:
				e := rng.IntN(n)
				l.hope[e] = 2
				clear(l.computed[e])
				r.back(e)
			}
			var want []uint64
			for _, id := range slices.Sorted(maps.Keys(l.live)) {
				if l.hope[l.live[id].engine] < slices.Max(l.hope) {
					want = append(want, id)
				}
			}
			if got := r.stranded(); !slices.Equal(got, want) {
				t.Fatalf("seed %d: stranded are %v, wanted %v", seed, got, want)
			}
			for _, id := range want {
				e := l.live[id]
				delete(l.live, id)
				l.put(e, made)
				l.live[id] = e
				if got := r.move(id, made); got != e.engine || l.hope[got] < slices.Max(l.hope) {
					t.Fatalf("seed %d: request %d moves to engine %d, wanted %d of %v", seed, id, got, e.engine, l.hope)
				}
				moved++
			}
			// Each request is at one engine, and all that is counted there is theirs.
			if len(r.homes) != len(l.live) {
				t.Fatalf("seed %d: %d requests are known, and %d alive", seed, len(r.homes), len(l.live))
			}
			none := make([]int, n)
			for e := range n {
				if got, want := r.engines[e].work, l.load(e, none); got != want {
					t.Fatalf("seed %d: engine %d has %d tokens of work, wanted %d", seed, e, got, want)
				}
			}
		}
	}
	if moved < 1000 || kept < 1000 || left < 1000 {
		t.Errorf("too little was tried: %d moves, %d prefixes found, %d requests while an engine was away", moved, kept, left)
	}
}

func TestAHotPrefixStaysWhereItIsAsLongAsTheBoundAllows(t *testing.T) {
	const slack = 1000
	r := newRouter(3, ledgerBlock, slack, 1<<10)
	hot := make([]uint64, 50)
	for i := range hot {
		hot[i] = uint64(i + 1)
	}
	made := make([]int, 3)
	places := map[int]int{}
	const ask = 100 // tokens of each prompt that no other has
	for id := range uint64(60) {
		before := r.engines
		least := min(before[0].work, before[1].work, before[2].work)
		e := r.place(id, len(hot)*ledgerBlock+ask, [][]uint64{hot}, made)
		places[e]++
		// The first computes it all; those after it 100 tokens each, until the bound.
		if id < 3 && e != 0 {
			t.Fatalf("request %d went to engine %d", id, e)
		}
		if work := r.engines[e].work; work > r.bound(least, len(hot))+len(hot)*ledgerBlock+ask {
			t.Fatalf("request %d makes %d tokens of work at engine %d, the least being %d", id, work, e, least)
		}
	}
	for e := range 3 {
		if places[e] < 10 {
			t.Errorf("engines got %v of 60 requests of one prefix: one of them starves", places)
		}
	}
}

func TestTheRouterForgetsTheOldestBlocksAndNoMoreThanItMust(t *testing.T) {
	chain := func(from, n int) (c []uint64) {
		for i := range n {
			c = append(c, uint64(from+i))
		}
		return c
	}
	p := newPrefixes(10)
	find := func(c []uint64) (found [MaxEngines]int) {
		p.find(c, &found)
		return found
	}
	p.note(chain(100, 6), 0)
	p.note(chain(200, 4), 1)
	if a, b := find(chain(100, 6)), find(chain(200, 4)); a[0] != 6 || b[1] != 4 || a[1] != 0 {
		t.Fatalf("%v, %v", a[:2], b[:2])
	}
	p.note(chain(300, 3), 0) // takes the end of the oldest chain
	if a, b, c := find(chain(100, 6)), find(chain(200, 4)), find(chain(300, 3)); a[0] != 3 || b[1] != 4 || c[0] != 3 {
		t.Errorf("%v, %v, %v", a[:2], b[:2], c[:2])
	}
	p.note(chain(100, 3), 1) // known to two now, and the newest
	p.note(chain(400, 7), 0)
	if a, b := find(chain(100, 6)), find(chain(200, 4)); a[0] != 3 || a[1] != 3 || b[1] != 0 {
		t.Errorf("%v, %v", a[:2], b[:2])
	}
	p.forget(0)
	if a := find(chain(100, 6)); a[0] != 0 || a[1] != 3 {
		t.Errorf("%v", a[:2])
	}
	p.note(chain(500, 25), 1) // more than there is room for
	if a := find(chain(500, 25)); a[1] != 10 || len(p.at) != 10 || p.order.Len() != 10 {
		t.Errorf("%v, %d known", a[:2], len(p.at))
	}
}
