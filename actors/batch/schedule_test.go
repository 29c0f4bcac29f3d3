package batch

import (
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-llm/troupe/lifecycle"
)

// randomSchedule lives through a random life of a small scheduler: submits, cancels, steps that are
// or are not committed, a device that fails and comes back, a scheduler that is lost. pick makes the
// choices.
func randomSchedule(t tb, pick func(name string, lo, hi int) int) {
	ids := func(name string, lo, hi, least, most int) []int32 {
		out := make([]int32, pick(name, least, most))
		for i := range out {
			out[i] = int32(pick(name, lo, hi))
		}
		return out
	}
	set := func(name string, lo, hi, least, most int) []int32 {
		out := ids(name, lo, hi, least, most)
		slices.Sort(out)
		return slices.Compact(out)
	}
	odds := func(name string, of int) bool { return pick(name, 1, of) == of }
	c := Config{
		BlockSize:   pick("block size", 1, 5),
		NumBlocks:   pick("blocks", 1, 24),
		MaxSeqs:     pick("seqs", 1, 6),
		MaxTokens:   pick("tokens", 1, 12),
		MaxContext:  pick("context", 2, 40),
		PrefixCache: !odds("no cache", 4),
		EOS:         []int32{0},
		Vocab:       17,
	}
	w := newWorld(t, c)
	stems := [][]int32{}
	for range 3 {
		stems = append(stems, ids("stem", 2, 16, 20, 20))
	}
	request := uint64(0)
	submit := func() {
		request++
		stem := stems[pick("stem", 0, len(stems)-1)]
		prompt := slices.Concat(stem[:pick("shared", 0, 12)], stem[:pick("repeated", 0, 8)],
			ids("own", 0, 16, 0, 4))
		n := 1
		if odds("choices", 3) {
			n = pick("n", 2, 5)
		}
		p := &lifecycle.Params{
			Temperature: float32(pick("temperature", 0, 1)), TopP: 1, Seed: uint64(pick("seed", 0, 3)),
			Logprobs: -1, PromptLogprobs: -1, MaxTokens: pick("max tokens", 1, 12), IgnoreEOS: odds("ignore", 2),
		}
		if odds("params", 3) {
			p.MinTokens = pick("min tokens", 0, 4)
			p.StopTokenIDs = set("stops", 0, 5, 0, 2)
			p.Logprobs = pick("logprobs", -1, 2)
			p.PromptLogprobs = pick("prompt logprobs", -1, 2)
			p.MaxTokens = pick("max tokens", 0, 5)
			if odds("penalty", 2) {
				p.FrequencyPenalty = 1
			}
			if odds("bias", 2) {
				p.LogitBias = []lifecycle.Bias{{ID: int32(pick("banned", 0, 8)), Value: float32(math.Inf(-1))}, {ID: 9, Value: 1}}
			}
			if odds("allowed", 3) {
				p.Allowed = set("allowed", 0, 16, 1, 8)
				p.LogitBias = nil
			}
		}
		deadline := int64(0)
		if odds("deadline", 8) {
			deadline = w.now + int64(pick("time", 0, 30))
		}
		priority, salt := 0, uint64(0)
		if odds("priority", 4) {
			priority = pick("priority", -1, 1)
		}
		if odds("salt", 6) {
			salt = 1
		}
		for i := range n {
			w.submit(&lifecycle.Submit{
				ID: lifecycle.SeqID{Request: request, Index: int32(i)}, Prompt: prompt, Params: p,
				Priority: priority, Arrival: w.now, Deadline: deadline, Group: n, Salt: salt,
			})
		}
	}
	some := func() *client {
		if len(w.clients) == 0 {
			return nil
		}
		c := w.clients[pick("client", max(0, len(w.clients)-8), len(w.clients)-1)]
		return w.byID[c.sub.ID]
	}
	for range pick("ops", 5, 60) {
		switch pick("op", 0, 19) {
		case 0, 1, 2, 3, 4:
			submit()
		case 5:
			if c := some(); c != nil {
				w.s.Cancel(w.now, c.sub.ID, c.sub.Epoch)
				w.s.Cancel(w.now, c.sub.ID, c.sub.Epoch)
				w.s.Cancel(w.now, c.sub.ID, c.sub.Epoch+1)
			}
		case 6:
			if c := some(); c != nil && odds("gone", 2) {
				for _, x := range w.byID {
					x.silent = x.silent || x.sub.ID.Request == c.sub.ID.Request
				}
				w.hear()
				w.s.CancelOwner(w.now, c.sub.ID.Request)
			}
		case 7: // a plan that comes to nothing
			w.plan()
			if odds("ran all the same", 2) {
				_ = w.run()
			}
		case 8: // the device fails
			if odds("planned", 2) {
				w.plan()
			}
			w.s.Recompute(w.now, lifecycle.WhyDevice)
			w.wipe()
			w.planned = false
		case 9:
			if c := some(); c != nil && odds("fail", 3) {
				w.s.Fail(w.now, c.sub.ID, &lifecycle.Error{Status: 500, Message: "the device cannot"})
			}
		case 10: // only some may run
			if odds("restrict", 2) {
				n := uint64(pick("every", 1, 3))
				w.s.Restrict(w.now, func(id lifecycle.SeqID) bool { return id.Request%n == 0 })
				w.hear()
				w.invariants()
				for range 2 {
					if w.plan() > 0 {
						_ = w.commit()
					}
				}
				w.s.Restrict(w.now, nil)
			}
		case 11: // the scheduler is lost
			if odds("lost", 3) {
				w.lose()
			}
		default:
			if w.plan() > 0 {
				if odds("meanwhile", 6) {
					if c := some(); c != nil {
						w.s.Cancel(w.now, c.sub.ID, c.sub.Epoch)
						w.hear()
						w.invariants()
					}
				}
				_ = w.commit()
			}
		}
		w.hear()
		w.invariants()
		w.now += int64(pick("pause", 0, 2))
	}
	for _, c := range w.clients {
		c.sub.Deadline = 0
	}
	w.s.deadlines = nil
	for _, q := range w.s.live {
		q.deadlineIndex = -1
	}
	w.drain()
	if x := w.s; len(x.live)+len(x.owners)+len(x.groups)+len(x.samplings)+len(x.keeping)+len(x.deadlines) > 0 {
		t.Fatalf("something is left: %+v", x)
	}
}

// lose replaces the scheduler by a new one, to which all live sequences are submitted again.
func (w *world) lose() {
	s, err := New(w.c)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	w.s, w.planned = s, false
	for _, c := range w.clients {
		c = w.byID[c.sub.ID]
		if c.state == "ended" || c.silent {
			continue
		}
		again := *c.sub
		again.Output = slices.Clone(c.out)
		again.Epoch++
		w.submit(&again)
	}
}

func drawnSchedule(t *rapid.T) {
	randomSchedule(t, func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, name) })
}

// rapid prefers small numbers, and makes a failure small; a generator without preferences makes
// longer and fuller schedules.
func TestDrawnSchedulesGiveEachSequenceTheTokensOfAnUndisturbedRun(t *testing.T) {
	rapid.Check(t, drawnSchedule)
}

func TestLongSchedulesGiveEachSequenceTheTokensOfAnUndisturbedRun(t *testing.T) {
	n := uint64(1500)
	if testing.Short() {
		n = 200
	}
	for seed := *firstSeed; seed < *firstSeed+n; seed++ {
		r := rand.New(rand.NewPCG(seed, 0))
		randomSchedule(seeded{t, seed}, func(_ string, lo, hi int) int { return lo + r.IntN(hi-lo+1) })
	}
}

var firstSeed = flag.Uint64("batch.seed", 1, "first seed of the long schedules")

// seeded says in a failure which seed it was.
type seeded struct {
	*testing.T
	seed uint64
}

func (s seeded) Fatalf(format string, args ...any) {
	s.Helper()
	s.T.Fatalf("seed %d: "+format, append([]any{s.seed}, args...)...)
}

func FuzzSchedule(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte("a schedule is what these bytes make of it, and any bytes will do"))
	f.Fuzz(rapid.MakeFuzz(drawnSchedule))
}
