package actors

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/actors/batch"
	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
)

// cluster is several engines without actors around them: each a scheduler and a simulated device, which take
// their steps in turn. It takes no time and no chances.
type cluster struct {
	t       testing.TB
	engines []*batch.Scheduler
	devices []gpu.Device
	made    []int
	ended   []uint64 // requests, since the last step
	in      gpu.Batch
	out     gpu.Result
	now     int64
}

const clusterBlock = 16

func newCluster(t testing.TB, engines, blocks int) *cluster {
	c := &cluster{t: t, made: make([]int, engines)}
	for range engines {
		d, err := sim.Open(sim.Options{}, gpu.Config{BlockSize: clusterBlock, CacheBytes: int64(blocks) * clusterBlock * sim.DefaultBytesPerToken, MaxSeqs: 64, MaxTokens: 512, MaxContext: 4096})
		if err != nil {
			t.Fatal(err)
		}
		s, err := batch.New(batch.Config{BlockSize: clusterBlock, NumBlocks: blocks, MaxSeqs: 64, MaxTokens: 512, MaxContext: 4096, PrefixCache: true})
		if err != nil {
			t.Fatal(err)
		}
		c.engines, c.devices = append(c.engines, s), append(c.devices, d)
	}
	return c
}

func (c *cluster) submit(engine int, id uint64, prompt []int32, tokens int) {
	c.engines[engine].Submit(c.now, &lifecycle.Submit{ID: lifecycle.SeqID{Request: id}, Epoch: 1, Prompt: prompt, Group: 1, Arrival: c.now, Params: params(tokens)}, id)
}

// step lets each engine take one.
func (c *cluster) step() {
	c.now++
	c.ended = c.ended[:0]
	for i, s := range c.engines {
		if s.Plan(c.now, &c.in) > 0 {
			c.out.Reset(&c.in)
			if err := c.devices[i].Run(&c.in, &c.out); err != nil {
				c.t.Fatal(err)
			}
			s.Commit(&lifecycle.Step{Start: c.now, End: c.now}, &c.out)
		}
		for _, e := range s.Events() {
			if e.Released {
				c.ended = append(c.ended, e.Owner.(uint64))
			}
		}
		c.made[i] = s.Stats().Output
	}
}

// talk is one conversation of many: each turn's prompt is all that was said before, and something new.
type talk struct {
	history []int32
	turns   int
	pause   int // steps until the next turn; −1 while one runs
}

// outcome is what became of a load.
type outcome struct {
	hits     float64 // share of the prompts' tokens that were found in prefix caches
	computed uint64  // prompt tokens
	steps    int     // until all was done
	busiest  float64 // the busiest engine's part of all tokens computed, times the number of engines
}

// converse runs conversations that all begin with the same instructions, on engines whose caches together
// hold them all, and one alone doesn't. choose says where a request goes; it is told when one has ended.
func converse(t testing.TB, engines, talks int, choose func(c *cluster, id uint64, prompt []int32) int, end func(id uint64)) outcome {
	c := newCluster(t, engines, 2048)
	rng := rand.New(rand.NewPCG(1, 2))
	say := func(n int) (tokens []int32) {
		for range n {
			tokens = append(tokens, int32(rng.IntN(30000)))
		}
		return tokens
	}
	instructions := say(400)
	all := make([]talk, talks)
	for i := range all {
		all[i] = talk{history: instructions[:len(instructions):len(instructions)], pause: rng.IntN(200)}
	}
	whose := map[uint64]int{}
	id := uint64(0)
	left := talks
	steps := 0
	for ; left > 0; steps++ {
		for i := range all {
			a := &all[i]
			if a.pause != 0 {
				if a.pause > 0 {
					a.pause--
				}
				continue
			}
			a.pause = -1
			a.history = append(a.history, say(40+rng.IntN(120))...)
			id++
			whose[id] = i
			c.submit(choose(c, id, a.history), id, a.history, 20+rng.IntN(60))
		}
		c.step()
		for _, id := range c.ended {
			end(id)
			a := &all[whose[id]]
			a.history = append(a.history, say(50)...) // as if it were the answer
			a.pause = 20 + rng.IntN(100)
			if a.turns++; a.turns == 8 {
				a.pause = -1
				left--
			}
		}
	}
	o := outcome{steps: steps}
	var hits, queries, tokens, most uint64
	for _, s := range c.engines {
		st := s.Stats()
		hits, queries, o.computed = hits+st.PrefixHits, queries+st.PrefixQueries, o.computed+st.PromptComputed
		tokens, most = tokens+st.PromptComputed+st.Generated, max(most, st.PromptComputed+st.Generated)
	}
	o.hits = float64(hits) / float64(queries)
	o.busiest = float64(most) * float64(engines) / float64(tokens)
	return o
}

// routedAndInTurn runs the same load with the router and by round robin.
func routedAndInTurn(t testing.TB, engines, talks int) (routed, inTurn outcome) {
	r := newRouter(engines, clusterBlock, routerSlack*512, 1<<16)
	routed = converse(t, engines, talks, func(c *cluster, id uint64, prompt []int32) int {
		return r.place(id, len(prompt), [][]uint64{batch.Keys(prompt, 0, clusterBlock)}, c.made)
	}, r.end)
	inTurn = converse(t, engines, talks, func(_ *cluster, id uint64, _ []int32) int { return int(id) % engines }, func(uint64) {})
	return routed, inTurn
}

func TestRoutingFindsMorePrefixesThanTakingTurnsAndKeepsAllBusy(t *testing.T) {
	routed, inTurn := routedAndInTurn(t, 4, 60)
	t.Logf("routed %+v, in turn %+v", routed, inTurn)
	if routed.hits < 0.8 || routed.hits < 1.3*inTurn.hits || 2*routed.computed > inTurn.computed {
		t.Errorf("routed, %.0f %% of the tokens are found, in turn %.0f %%; %d and %d are computed", 100*routed.hits, 100*inTurn.hits, routed.computed, inTurn.computed)
	}
	if routed.busiest > 1.3 {
		t.Errorf("the busiest engine does %.2f times its part", routed.busiest)
	}
}

// BenchmarkRouting compares the router with round robin in one run: which share of the prompts' tokens is found
// in prefix caches, how many are computed, and how evenly. The time is that of a whole load with both.
func BenchmarkRouting(b *testing.B) {
	for _, n := range []int{2, 4, 8} {
		b.Run(fmt.Sprintf("engines=%d", n), func(b *testing.B) {
			var routed, inTurn outcome
			for b.Loop() {
				routed, inTurn = routedAndInTurn(b, n, 15*n)
			}
			b.ReportMetric(100*routed.hits, "%-found-routed")
			b.ReportMetric(100*inTurn.hits, "%-found-in-turn")
			b.ReportMetric(routed.hits/inTurn.hits, "times-as-many-found")
			b.ReportMetric(float64(inTurn.computed)/float64(routed.computed), "times-as-many-computed-in-turn")
			b.ReportMetric(routed.busiest, "busiest-engine's-part")
		})
	}
}

// BenchmarkPlace is what the router takes of intake's time for a request, and what hashing its prompt takes of
// its own, with as many blocks known as are kept at most.
func BenchmarkPlace(b *testing.B) {
	const prompt = 2048
	r := newRouter(8, clusterBlock, 1<<14, routerBlocks)
	made := make([]int, 8)
	tokens := make([]int32, prompt)
	id := uint64(0)
	place := func() time.Duration {
		id++
		tokens[prompt/2] = int32(id) // half of it is known
		keys := [][]uint64{batch.Keys(tokens, 0, clusterBlock)}
		start := time.Now()
		r.place(id, prompt, keys, made)
		if id > 64 {
			r.end(id - 64)
		}
		return time.Since(start)
	}
	for r.prefixes.order.Len() < routerBlocks {
		place()
	}
	var placing time.Duration
	b.ReportAllocs()
	for b.Loop() {
		placing += place()
	}
	b.ReportMetric(float64(placing)/float64(b.N), "ns-of-intake/op")
}

// BenchmarkRequest is a whole request of one token on one engine and on two, in turn. On one engine there must
// be nothing to pay for the others.
func BenchmarkRequest(b *testing.B) {
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprintf("engines=%d", n), func(b *testing.B) {
			rt, err := New(Config{
				Engines: n, BlockSize: 16, MaxSeqs: 64, MaxTokens: 256, MaxContext: 2048, PrefixCaching: true, Tokenizer: tok(),
				Open: func(int) (gpu.Device, error) {
					return sim.Open(sim.Options{Vocab: tok().Size()}, gpu.Config{BlockSize: 16, MaxSeqs: 64, MaxTokens: 256, MaxContext: 2048})
				},
			})
			if err != nil {
				b.Fatal(err)
			}
			defer rt.Close()
			prompt, p := [][]int32{make([]int32, 200)}, params(1)
			b.ReportAllocs()
			for b.Loop() {
				if err := rt.Admit(); err != nil {
					b.Fatal(err)
				}
				a := newAudience(rt.Now)
				rt.Start(&lifecycle.Request{ID: rt.NextID(), Endpoint: "bench", Arrival: rt.Now(), N: 1, Params: p, Prompts: prompt}, a)
				<-a.done
			}
		})
	}
}
