package batch

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/lifecycle"
)

// small is a configuration with room for everything.
func small() Config {
	return Config{
		BlockSize: 4, NumBlocks: 64, MaxSeqs: 8, MaxTokens: 32, MaxContext: 64, PrefixCache: true, EOS: []int32{0}, Vocab: 100,
	}
}

// greedy are parameters for n tokens, whatever they are.
func greedy(n int) *lifecycle.Params {
	return &lifecycle.Params{TopP: 1, Logprobs: -1, PromptLogprobs: -1, MaxTokens: n, IgnoreEOS: true}
}

// count returns n tokens that count upwards from first.
func count(first int32, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = first + int32(i)
	}
	return out
}

// add submits one sequence of its own request.
func (w *world) add(request uint64, prompt []int32, p *lifecycle.Params) *client {
	w.t.Helper()
	return w.submit(&lifecycle.Submit{
		ID: lifecycle.SeqID{Request: request}, Prompt: prompt, Params: p, Arrival: w.now, Group: 1,
	})
}

// choices submits n sequences of one prompt.
func (w *world) choices(request uint64, prompt []int32, p *lifecycle.Params, n int) []*client {
	w.t.Helper()
	var out []*client
	for i := range n {
		out = append(out, w.submit(&lifecycle.Submit{
			ID: lifecycle.SeqID{Request: request, Index: int32(i)}, Prompt: prompt, Params: p, Arrival: w.now, Group: n,
		}))
	}
	return out
}

// stepOnce plans and commits, and returns what the step held, as request: tokens.
func (w *world) stepOnce() map[lifecycle.SeqID]int {
	w.t.Helper()
	w.plan()
	held := make(map[lifecycle.SeqID]int)
	for i := range w.s.plan.entries {
		held[w.s.plan.entries[i].q.sub.ID] = w.s.plan.entries[i].tokens
	}
	if err := w.commit(); err != nil {
		w.t.Fatalf("%v", err)
	}
	return held
}

func seq(request uint64) lifecycle.SeqID { return lifecycle.SeqID{Request: request} }

func TestNewNamesTheFieldThatMakesNoSense(t *testing.T) {
	c := small()
	c.MaxSeqs, c.BlockSize = 0, -1
	_, err := New(c)
	if err == nil || !strings.Contains(err.Error(), "MaxSeqs") || !strings.Contains(err.Error(), "BlockSize") {
		t.Fatalf("%v", err)
	}
}

func TestDecodesAndPrefillShareAStepWithinTheBudget(t *testing.T) {
	c := small()
	c.MaxTokens = 8
	w := newWorld(t, c)
	w.add(1, count(1, 3), greedy(10))
	w.stepOnce()
	w.add(2, count(10, 10), greedy(4))
	if got := w.stepOnce(); got[seq(1)] != 1 || got[seq(2)] != 7 {
		t.Fatalf("%v", got)
	}
	if got := w.stepOnce(); got[seq(1)] != 1 || got[seq(2)] != 3 {
		t.Fatalf("%v", got)
	}
	if got := w.stepOnce(); got[seq(1)] != 1 || got[seq(2)] != 1 {
		t.Fatalf("%v", got)
	}
	w.drain()
}

func TestLowerPriorityValuesStartFirstThenEarlierArrivals(t *testing.T) {
	c := small()
	c.MaxSeqs = 1
	w := newWorld(t, c)
	for i, x := range []struct {
		priority int
		arrival  int64
	}{{1, 5}, {0, 9}, {0, 7}, {-1, 11}} {
		w.submit(&lifecycle.Submit{
			ID: seq(uint64(i + 1)), Prompt: count(1, 3), Params: greedy(1), Priority: x.priority, Arrival: x.arrival, Group: 1,
		})
	}
	var order []uint64
	for w.s.Len() > 0 {
		for id := range w.stepOnce() {
			order = append(order, id.Request)
		}
	}
	if !slices.Equal(order, []uint64{4, 3, 2, 1}) {
		t.Fatalf("%v", order)
	}
}

func TestAPromptThatLacksBlocksHoldsBackThoseBehindIt(t *testing.T) {
	c := small()
	c.NumBlocks = 10
	w := newWorld(t, c)
	w.add(1, count(1, 20), greedy(8)) // 5 blocks, 7 at the end
	w.stepOnce()
	w.add(2, count(30, 30), greedy(2)) // 8 blocks
	w.add(3, count(70, 2), greedy(2))  // 1 block, which there is
	for w.byID[seq(1)].state != "ended" {
		if got := w.stepOnce(); len(got) != 1 {
			t.Fatalf("%v", got)
		}
	}
	if x := w.s.Stats(); x.Waiting != 2 || x.WaitingCapacity != 2 || !x.WaitingBlocks {
		t.Fatalf("%+v", x)
	}
	w.drain()
	if a, b := w.byID[seq(2)].waits, w.byID[seq(3)].waits; a[1] == 0 || a[0] != 0 || b[1] < a[1] {
		t.Fatalf("waited %v and %v", a, b)
	}
}

func TestASequenceThatCanNeverRunIsRefused(t *testing.T) {
	c := small()
	c.NumBlocks = 4
	for name, x := range map[string]struct {
		prompt []int32
		params *lifecycle.Params
		says   string
	}{
		"too long for the cache":   {count(1, 10), greedy(8), "needs 5 blocks of the KV cache, which has 4"},
		"too long for the context": {make([]int32, 64), greedy(1), "context holds 64"},
		"empty":                    {nil, greedy(1), "no tokens"},
		"unknown token":            {[]int32{1, 100}, greedy(1), "token id 100"},
		"negative token":           {[]int32{-1}, greedy(1), "token id -1"},
		"negative max_tokens":      {count(1, 2), greedy(-1), "max_tokens is -1"},
		"unknown bias":             {count(1, 2), &lifecycle.Params{MaxTokens: 1, LogitBias: []lifecycle.Bias{{ID: 100}}}, "token id 100"},
		"too many alternatives":    {count(1, 2), &lifecycle.Params{MaxTokens: 1, Logprobs: 101}, "101 alternatives"},
		"no parameters":            {count(1, 2), nil, "no sampling parameters"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c)
			w.s.Submit(1, &lifecycle.Submit{ID: seq(1), Epoch: 3, Prompt: x.prompt, Params: x.params, Group: 1}, "me")
			events := w.s.Events()
			if len(events) != 1 || !events[0].Released || events[0].Owner != "me" || w.s.Len() != 0 {
				t.Fatalf("%+v", events)
			}
			m, ok := events[0].Msg.(*lifecycle.Failed)
			if !ok || m.Err.Status != 400 || !strings.Contains(m.Err.Message, x.says) || m.Num != 1 || m.Epoch != 3 {
				t.Fatalf("%+v", events[0].Msg)
			}
		})
	}
	w := newWorld(t, c)
	w.add(1, count(1, 10), greedy(7)) // 16 positions: the last token needs none
	w.drain()
	c = small()
	w = newWorld(t, c)
	if a := w.add(1, count(1, 10), greedy(math.MaxInt)); a.ended != "" {
		t.Fatalf("%+v", a)
	}
	w.drain()
}

func TestTheSamePromptAgainComesFromTheCacheButForItsLastBlock(t *testing.T) {
	w := newWorld(t, small())
	prompt := count(1, 12)
	first := w.add(1, prompt, greedy(3))
	w.drain()
	again := w.add(2, prompt, greedy(3))
	longer := w.add(3, slices.Concat(prompt, first.out, count(50, 5)), greedy(3))
	w.drain()
	// A prompt of whole blocks keeps one token to compute, and with it its last block.
	if first.cached != 0 || again.cached != 8 || again.computed != 4 {
		t.Fatalf("cached %d, then %d, computed %d", first.cached, again.cached, again.computed)
	}
	// Of the first's output two of three tokens are in the cache, which fill no block.
	if longer.cached != 12 {
		t.Fatalf("cached %d", longer.cached)
	}
	if x := w.s.Stats(); x.PrefixQueries != 12+12+20 || x.PrefixHits != 8+12 || x.PromptCached != 20 || x.PromptComputed != 12+4+8 {
		t.Fatalf("%+v", x)
	}
}

func TestDecodedTokensAreCachedToo(t *testing.T) {
	w := newWorld(t, small())
	first := w.add(1, count(1, 6), greedy(7)) // 12 of 13 positions are computed: 3 blocks
	w.drain()
	next := w.add(2, slices.Concat(first.sub.Prompt, first.out), greedy(1))
	w.drain()
	if next.cached != 12 {
		t.Fatalf("cached %d", next.cached)
	}
}

func TestSaltsSeparateCaches(t *testing.T) {
	w := newWorld(t, small())
	for i, salt := range []uint64{1, 2, 1} {
		c := w.submit(&lifecycle.Submit{ID: seq(uint64(i + 1)), Prompt: count(1, 9), Params: greedy(2), Group: 1, Salt: salt})
		w.drain()
		if want := []int{0, 0, 8}[i]; c.cached != want {
			t.Fatalf("submit %d: %d cached", i, c.cached)
		}
	}
}

func TestWithoutThePrefixCacheNothingIsRead(t *testing.T) {
	c := small()
	c.PrefixCache = false
	w := newWorld(t, c)
	for i := range 2 {
		c := w.add(uint64(i+1), count(1, 9), greedy(2))
		w.drain()
		if c.cached != 0 || c.computed != 9 {
			t.Fatalf("%d cached, %d computed", c.cached, c.computed)
		}
	}
	if x := w.s.Stats(); x.PrefixQueries != 0 || x.PrefixHits != 0 {
		t.Fatalf("%+v", x)
	}
}

func TestBlocksWithoutContentAreUsedBeforeThoseWithContent(t *testing.T) {
	c := small()
	c.NumBlocks = 3
	w := newWorld(t, c)
	for i, prompt := range [][]int32{count(1, 8), count(20, 3), count(30, 3)} {
		w.add(uint64(i+1), prompt, greedy(1))
		w.drain()
	}
	again := w.add(4, count(1, 9), greedy(1))
	w.drain()
	if again.cached != 8 {
		t.Fatalf("%d cached", again.cached)
	}
}

func TestTheEndOfAChainIsOverwrittenBeforeItsBeginning(t *testing.T) {
	c := small()
	c.NumBlocks = 3
	w := newWorld(t, c)
	w.add(1, count(1, 8), greedy(1))
	w.drain()
	w.add(2, count(20, 7), greedy(1)) // one that was never used, and one of the first's
	w.drain()
	again := w.add(3, count(1, 9), greedy(1))
	w.drain()
	if again.cached != 4 {
		t.Fatalf("%d cached", again.cached)
	}
}

func TestTheLeastRecentlyUsedContentIsOverwrittenFirst(t *testing.T) {
	c := small()
	c.NumBlocks = 3
	w := newWorld(t, c)
	for i, prompt := range [][]int32{count(1, 4), count(20, 4), count(1, 5), count(40, 4), count(60, 4)} {
		w.add(uint64(i+1), prompt, greedy(1))
		w.drain()
	}
	// The third used the first's block again, so the fourth and fifth took the others.
	first, second := w.add(6, count(1, 5), greedy(1)), w.add(7, count(20, 5), greedy(1))
	w.plan()
	if first.cached != 4 || second.cached != 0 {
		t.Fatalf("%d and %d cached", first.cached, second.cached)
	}
	w.drain()
}

func TestChoicesOfAPromptComputeItOnce(t *testing.T) {
	for name, cache := range map[string]bool{"with the prefix cache": true, "without it": false} {
		t.Run(name, func(t *testing.T) {
			c := small()
			c.PrefixCache = cache
			w := newWorld(t, c)
			p := greedy(6)
			p.Temperature, p.Seed = 1, 7
			all := w.choices(1, count(1, 11), p, 4)
			w.add(2, count(50, 5), greedy(6))
			if got := w.stepOnce(); got[all[0].sub.ID] != 11 || got[seq(2)] != 5 || len(got) != 2 {
				t.Fatalf("%v", got)
			}
			if x := w.s.Stats(); x.WaitingDeferred != 3 || x.WaitingCapacity != 0 {
				t.Fatalf("%+v", x)
			}
			w.plan()
			if len(w.b.Copies) != 3 || w.b.Copies[0].From != w.b.Copies[1].From {
				t.Fatalf("%v", w.b.Copies)
			}
			_ = w.commit()
			w.drain()
			for _, c := range all[1:] {
				if c.computed != 1 || c.cached != 0 || c.waits != [2]int64{} {
					t.Fatalf("%+v", c)
				}
			}
			if slices.Equal(all[0].out, all[1].out) {
				t.Fatalf("the choices are the same: %v", all[0].out)
			}
			if x := w.s.Stats(); x.PromptComputed != 11+5 {
				t.Fatalf("%+v", x)
			}
		})
	}
}

func TestAForkSaysWhatThePromptAsAWholeHadFromTheCache(t *testing.T) {
	w := newWorld(t, small())
	w.add(1, count(1, 8), greedy(1))
	w.drain()
	for _, c := range w.choices(2, count(1, 11), greedy(3), 3) {
		defer func() {
			if c.cached != 8 {
				t.Errorf("%v: %d cached", c.sub.ID, c.cached)
			}
		}()
	}
	w.drain()
}

func TestALeaderThatEndsLeavesItsPromptToTheOthers(t *testing.T) {
	for _, max := range []int{0, 1} {
		c := small()
		c.PrefixCache = false
		w := newWorld(t, c)
		all := w.choices(1, count(1, 11), greedy(max), 6)
		w.stepOnce()
		if got := w.stepOnce(); len(got) != 5 {
			t.Fatalf("%v", got)
		}
		w.drain()
		for _, c := range all[1:] {
			if c.computed != 1 {
				t.Fatalf("%v computed %d", c.sub.ID, c.computed)
			}
		}
	}
}

func TestALeaderThatIsCancelledInPrefillIsFollowedByTheNext(t *testing.T) {
	c := small()
	c.MaxTokens = 4
	w := newWorld(t, c)
	all := w.choices(1, count(1, 11), greedy(2), 3)
	w.stepOnce()
	w.s.Cancel(w.now, all[0].sub.ID, 0)
	w.hear()
	if got := w.stepOnce(); got[all[1].sub.ID] != 4 || len(got) != 1 {
		t.Fatalf("%v", got)
	}
	w.drain()
	if all[2].computed != 1 {
		t.Fatalf("%+v", all[2])
	}
}

func TestAForkThatWasNeverCommittedIsNoSource(t *testing.T) {
	c := small()
	c.PrefixCache = false
	c.MaxSeqs = 1
	w := newWorld(t, c)
	all := w.choices(1, count(1, 11), greedy(1), 3)
	w.stepOnce() // the first ends and leaves its blocks
	w.plan()     // the second forks, but the device never runs
	w.s.Cancel(w.now, all[1].sub.ID, 0)
	w.hear()
	w.invariants()
	w.drain()
}

func TestKeptBlocksAreGivenBackWhenOthersNeedThem(t *testing.T) {
	c := small()
	c.PrefixCache = false
	c.NumBlocks, c.MaxSeqs = 6, 2
	w := newWorld(t, c)
	w.add(1, count(50, 4), greedy(5)) // 1 block, then 2
	all := w.choices(2, count(1, 15), greedy(1), 2)
	w.stepOnce() // the leader ends at once, its 4 blocks are kept for the other
	if got := w.s.Stats().BlocksUsed; got != 5 {
		t.Fatalf("%d blocks used", got)
	}
	w.submit(&lifecycle.Submit{ID: seq(3), Prompt: count(70, 16), Params: greedy(1), Priority: -1, Group: 1})
	// The urgent one needs 4 blocks, and the last free one goes to the first.
	if got := w.stepOnce(); got[seq(3)] != 16 || all[1].state != "" {
		t.Fatalf("%v, and the second choice is %q", got, all[1].state)
	}
	w.drain()
}

func TestTheLastInOrderIsPreemptedAndComputedAgain(t *testing.T) {
	c := small()
	c.NumBlocks, c.PrefixCache = 6, false
	w := newWorld(t, c)
	a := w.add(1, count(1, 4), greedy(16))
	b := w.add(2, count(20, 4), greedy(16))
	w.stepOnce()
	for b.state != "preempted" {
		if a.state != "running" {
			t.Fatalf("the first is %q", a.state)
		}
		w.stepOnce()
	}
	lost := 4 + len(b.out) - 1
	w.drain()
	if b.computed <= 4+lost || w.s.Stats().Preemptions == 0 {
		t.Fatalf("computed %d, %+v", b.computed, w.s.Stats())
	}
}

func TestAPreemptedSequenceFindsItsOwnBlocksInTheCache(t *testing.T) {
	w := newWorld(t, small())
	a := w.add(1, count(1, 10), greedy(10))
	for range 5 {
		w.stepOnce()
	}
	w.s.Restrict(w.now, func(lifecycle.SeqID) bool { return false })
	if w.plan() != 0 || a.state != "preempted" {
		t.Fatalf("it is %q", a.state)
	}
	w.s.Restrict(w.now, nil)
	w.plan()
	// 10 + 5 tokens, of which 14 are computed: 3 blocks.
	if q := w.s.running[0]; q.computed != 12 {
		t.Fatalf("%d found", q.computed)
	}
	w.drain()
}

func TestAStartLeavesABlockForEachRunningSequenceThatMayGrow(t *testing.T) {
	c := small()
	c.NumBlocks, c.MaxTokens = 4, 7
	w := newWorld(t, c)
	w.add(1, count(1, 7), greedy(8)) // 2 blocks, 4 at the end
	w.stepOnce()
	w.add(2, count(20, 8), greedy(1)) // the 2 that are left, for two steps
	w.drain()
	if x := w.s.Stats(); x.Preemptions != 0 {
		t.Fatalf("%+v", x)
	}
}

func TestADeadlineEndsASequenceWhereverItIs(t *testing.T) {
	c := small()
	c.MaxSeqs = 1
	w := newWorld(t, c)
	for i, d := range []int64{50, 40, 0} {
		w.submit(&lifecycle.Submit{ID: seq(uint64(i + 1)), Prompt: count(1, 3), Params: greedy(9), Group: 1, Deadline: d})
	}
	w.stepOnce()
	if got := w.s.NextDeadline(); got != 40 {
		t.Fatalf("next deadline %d", got)
	}
	w.now = 50
	w.plan()
	for i, want := range []string{"timeout", "timeout", ""} {
		if got := w.byID[seq(uint64(i+1))].ended; got != want {
			t.Fatalf("%d ended by %q", i+1, got)
		}
	}
	if got := w.s.NextDeadline(); got != 0 {
		t.Fatalf("next deadline %d", got)
	}
	w.drain()
}

func TestWaitingTimeIsToldByWhatWasLacking(t *testing.T) {
	c := small()
	c.MaxSeqs = 1
	w := newWorld(t, c)
	w.add(1, count(1, 3), greedy(4))
	w.stepOnce()
	w.now += 100 // idle: nobody waits
	b := w.add(2, count(1, 3), greedy(1))
	at := w.now
	w.plan()
	_ = w.commit()
	w.now += 10
	w.drain()
	if b.waits[0] < 10 || b.waits[1] != 0 || b.waits[0] > w.now-at {
		t.Fatalf("waited %v", b.waits)
	}
}

func TestTimeWithoutADeviceIsNotWaitingForASlot(t *testing.T) {
	c := small()
	c.MaxSeqs = 1
	w := newWorld(t, c)
	w.add(1, count(1, 3), greedy(4))
	b := w.add(2, count(1, 3), greedy(1))
	w.plan()
	w.now += 3
	w.s.Recompute(w.now, lifecycle.WhyDevice)
	w.wipe()
	w.now += 1000
	w.drain()
	if b.waits[0] < 3 || b.waits[0] >= 1000 {
		t.Fatalf("waited %v", b.waits)
	}
}

func TestMinTokensBansEveryEndUntilThen(t *testing.T) {
	w := newWorld(t, small())
	p := greedy(5)
	inf := float32(math.Inf(-1))
	p.IgnoreEOS, p.MinTokens, p.StopTokenIDs = false, 2, []int32{9, 4}
	p.LogitBias = []lifecycle.Bias{{ID: 4, Value: 5}, {ID: 7, Value: 1}}
	w.add(1, count(1, 3), p)
	want := [][]gpu.Bias{
		{{ID: 0, Value: inf}, {ID: 4, Value: inf}, {ID: 7, Value: 1}, {ID: 9, Value: inf}},
		{{ID: 0, Value: inf}, {ID: 4, Value: inf}, {ID: 7, Value: 1}, {ID: 9, Value: inf}},
		{{ID: 4, Value: 5}, {ID: 7, Value: 1}},
	}
	for i := 0; w.s.Len() > 0; i++ {
		w.plan()
		r := w.b.Rows[0]
		if got := w.b.Bias[r.BiasFirst : r.BiasFirst+r.BiasLen]; !slices.Equal(got, want[min(i, 2)]) || int(r.Draw) != i {
			t.Fatalf("draw %d: %v", r.Draw, got)
		}
		_ = w.commit()
	}
}

func TestAMaskIsInTheBatchOnceHoweverManyShareIt(t *testing.T) {
	w := newWorld(t, small())
	p := greedy(2)
	p.Allowed = []int32{3, 64, 99}
	w.choices(1, count(1, 3), p, 3)
	w.add(2, count(1, 3), greedy(2))
	w.stepOnce()
	w.plan()
	if len(w.b.Rows) != 4 || len(w.b.Masks) != 4 || w.b.MaskWords != 4 {
		t.Fatalf("%d rows, %d mask words", len(w.b.Rows), len(w.b.Masks))
	}
	if !slices.Equal(w.b.Masks, []uint32{1 << 3, 0, 1, 1 << 3}) {
		t.Fatalf("%b", w.b.Masks)
	}
	_ = w.commit()
	w.drain()
}

func TestPromptScoresCrossChunksAndBypassTheCache(t *testing.T) {
	c := small()
	c.MaxTokens = 5
	w := newWorld(t, c)
	w.add(1, count(1, 12), greedy(2))
	w.drain()
	p := greedy(2)
	p.PromptLogprobs, p.Logprobs = 2, 3
	s := w.add(2, count(1, 12), p)
	w.drain()
	if s.cached != 0 || s.computed != 12 || len(s.scores) != 11 {
		t.Fatalf("%d cached, %d computed, %d scores", s.cached, s.computed, len(s.scores))
	}
}

func TestAnEchoAloneEndsAfterItsPrefill(t *testing.T) {
	w := newWorld(t, small())
	p := greedy(0)
	p.PromptLogprobs = 0
	a := w.add(1, count(1, 6), p)
	w.plan()
	if n := len(w.b.Rows); n != 5 || slices.ContainsFunc(w.b.Rows, func(r gpu.Row) bool { return r.Kind != gpu.Score }) {
		t.Fatalf("%d rows", n)
	}
	_ = w.commit()
	if a.ended != "length" || len(a.scores) != 5 {
		t.Fatalf("%+v", a)
	}
}

func TestPenaltiesSeeTheTokensSoFar(t *testing.T) {
	w := newWorld(t, small())
	p := greedy(3)
	p.RepetitionPenalty = 1.5
	a := w.add(1, count(1, 3), p)
	w.stepOnce()
	w.plan()
	r := w.b.Rows[0]
	if got := w.b.History[r.HistoryFirst : r.HistoryFirst+r.HistoryLen]; !slices.Equal(got, append(count(1, 3), a.out...)) || r.HistoryPrompt != 3 {
		t.Fatalf("%v", got)
	}
	_ = w.commit()
	w.drain()
}

func TestAnEndTokenEndsTheSequenceAndIsNamed(t *testing.T) {
	for name, x := range map[string]struct {
		params lifecycle.Params
		token  int32
		reason lifecycle.Reason
	}{
		"the model's end":     {lifecycle.Params{MaxTokens: 5}, 0, lifecycle.ReasonStop},
		"ignored":             {lifecycle.Params{MaxTokens: 5, IgnoreEOS: true}, 0, ""},
		"a stop token":        {lifecycle.Params{MaxTokens: 5, StopTokenIDs: []int32{8, 6}}, 6, lifecycle.ReasonStop},
		"a stop at the limit": {lifecycle.Params{MaxTokens: 1, StopTokenIDs: []int32{8, 6}}, 6, lifecycle.ReasonStop},
		"the limit":           {lifecycle.Params{MaxTokens: 1}, 6, lifecycle.ReasonLength},
		"too early":           {lifecycle.Params{MaxTokens: 5, MinTokens: 2}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := New(small())
			x.params.Logprobs, x.params.PromptLogprobs = -1, -1
			s.Submit(1, &lifecycle.Submit{ID: seq(1), Prompt: count(1, 2), Params: &x.params, Group: 1}, nil)
			var b gpu.Batch
			var r gpu.Result
			s.Plan(1, &b)
			r.Reset(&b)
			r.Tokens[0] = x.token
			s.Commit(&lifecycle.Step{Start: 1, End: 2}, &r)
			events := s.Events()
			m := events[len(events)-1].Msg.(*lifecycle.Tokens)
			stop := int32(-1)
			if x.reason == lifecycle.ReasonStop {
				stop = x.token
			}
			if m.Reason != x.reason || m.StopToken != stop || events[len(events)-1].Released != (x.reason != "") {
				t.Fatalf("%+v", m)
			}
		})
	}
}

func TestATokenOutsideTheVocabularyFailsItsSequenceAlone(t *testing.T) {
	w := newWorld(t, small())
	a := w.add(1, count(1, 3), greedy(2))
	b := w.add(2, count(1, 3), greedy(2))
	w.plan()
	_ = w.run()
	w.r.Tokens[0] = 100
	w.s.Commit(&lifecycle.Step{Start: w.now, End: w.now + 1}, &w.r)
	w.now++
	w.hear()
	w.invariants()
	w.drain()
	if a.ended != "failed" || b.ended != "length" {
		t.Fatalf("%q and %q", a.ended, b.ended)
	}
}

func TestASubmitOfANewerEpochReplacesTheOld(t *testing.T) {
	w := newWorld(t, small())
	a := w.add(1, count(1, 6), greedy(6))
	w.stepOnce()
	w.stepOnce()
	w.s.Submit(w.now, a.sub, seq(1).Request) // as old as the one that is there: ignored
	again := *a.sub
	again.Epoch, again.Output = 1, slices.Clone(a.out)
	b := w.submit(&again)
	w.drain()
	if a.ended != "" || b.ended != "length" || len(b.out) != 6 || len(b.scores) != 0 {
		t.Fatalf("%+v then %+v", a, b)
	}
}

func TestASequenceSubmittedWithAllItsTokensIsFinished(t *testing.T) {
	w := newWorld(t, small())
	a := w.add(1, count(1, 6), greedy(3))
	w.drain()
	again := *a.sub
	again.Epoch, again.Output = 1, slices.Clone(a.out)
	if b := w.submit(&again); b.ended != "length" {
		t.Fatalf("%+v", b)
	}
}

func TestACancelBetweenPlanAndCommitIsNotOvertakenByTheResult(t *testing.T) {
	w := newWorld(t, small())
	a := w.add(1, count(1, 6), greedy(6))
	b := w.add(2, count(1, 6), greedy(2))
	w.plan()
	w.s.Cancel(w.now, a.sub.ID, 0)
	w.hear()
	if got := w.s.Planned(nil); !slices.Equal(got, []lifecycle.SeqID{seq(2)}) {
		t.Fatalf("planned: %v", got)
	}
	_ = w.commit()
	w.drain()
	if a.ended != "cancelled" || len(a.out) != 0 || b.ended != "length" {
		t.Fatalf("%+v and %+v", a, b)
	}
}

func TestFailAllEndsEverySequence(t *testing.T) {
	c := small()
	c.MaxSeqs = 2
	w := newWorld(t, c)
	for i := range 5 {
		w.add(uint64(i+1), count(1, 6), greedy(6))
	}
	w.stepOnce()
	w.s.FailAll(w.now, &lifecycle.Error{Status: 503, Message: "the device is gone"})
	w.hear()
	w.invariants()
	if w.s.Len() != 0 || w.byID[seq(5)].ended != "failed" {
		t.Fatalf("%d left", w.s.Len())
	}
}

// A batcher finds a sequence that the device cannot compute by letting halves of the failed batch
// run alone.
func TestBisectionWithRestrictFindsTheCulpritAlone(t *testing.T) {
	w := newWorld(t, small())
	w.culprit = 77
	p := greedy(40)
	p.LogitBias = []lifecycle.Bias{{ID: w.culprit, Value: float32(math.Inf(-1))}} // only the prompt has it
	for i := range 7 {
		prompt := count(int32(i*5), 5)
		if i == 4 {
			prompt[2] = w.culprit
		}
		w.add(uint64(i+1), prompt, p)
	}
	w.plan()
	if w.commit() == nil {
		t.Fatal("the device did not fail")
	}
	suspects := w.s.Planned(nil)
	w.s.Recompute(w.now, lifecycle.WhyDevice)
	for steps := 0; len(suspects) > 1; steps++ {
		if steps > 3 {
			t.Fatalf("%v are still suspected", suspects)
		}
		half := suspects[:len(suspects)/2]
		w.s.Restrict(w.now, func(id lifecycle.SeqID) bool { return slices.Contains(half, id) })
		w.hear()
		if w.plan() != len(half) {
			t.Fatalf("%d of %d run", w.plan(), len(half))
		}
		if err := w.commit(); err != nil {
			w.s.Recompute(w.now, lifecycle.WhyDevice)
			suspects = half
		} else {
			suspects = suspects[len(half):]
		}
		w.hear()
	}
	w.s.Fail(w.now, suspects[0], &lifecycle.Error{Status: 500, Message: "the device cannot compute it"})
	w.s.Restrict(w.now, nil)
	w.hear()
	w.drain()
	for i := range 7 {
		if got, want := w.byID[seq(uint64(i+1))].ended, "length"; got != want && i != 4 || i == 4 && got != "failed" {
			t.Fatalf("%d ended by %q", i+1, got)
		}
	}
}

func TestTheBaselineIsTheMedianOfPureDecodeStepsOfSimilarSize(t *testing.T) {
	s, _ := New(small())
	var b gpu.Batch
	var r gpu.Result
	now := int64(1)
	step := func(d int64) *lifecycle.Step {
		s.Plan(now, &b)
		r.Reset(&b)
		for i := range r.Tokens {
			r.Tokens[i] = 5
		}
		x := &lifecycle.Step{Start: now, End: now + d}
		now += d
		s.Commit(x, &r)
		s.Events()
		return x
	}
	submit := func(id uint64) {
		s.Submit(now, &lifecycle.Submit{ID: seq(id), Prompt: count(1, 4), Params: greedy(50), Group: 1}, id)
	}
	submit(1)
	submit(2)
	if x := step(1000); x.Baseline != 0 || x.PrefillTokens != 8 || x.DecodeTokens != 0 || x.Sequences != 2 || x.Num != 1 {
		t.Fatalf("%+v", x)
	}
	for i := range 8 {
		if x := step(int64(10 + i)); x.Baseline != 0 || x.DecodeTokens != 2 || x.PrefillTokens != 0 {
			t.Fatalf("%+v", x)
		}
	}
	submit(3)
	if x := step(500); x.Baseline != 14 || x.PrefillTokens != 4 || x.DecodeTokens != 2 {
		t.Fatalf("%+v", x)
	}
	if x := step(12); x.Baseline != 14 { // three sequences are of the same class
		t.Fatalf("%+v", x)
	}
	submit(4)
	step(500)
	if x := step(12); x.Baseline != 0 { // four are not
		t.Fatalf("%+v", x)
	}
}

func TestTheBaselineRemembersTheLatestStepsOnly(t *testing.T) {
	var b baseline
	for i := range 1000 {
		b.add(1, int64(1000-i))
	}
	w := &b[class(1)]
	if len(w.came) != baselineWindow || len(w.sorted) != baselineWindow || !slices.IsSorted(w.sorted) || w.sorted[0] != 1 {
		t.Fatalf("%d remembered, from %d", len(w.came), w.sorted[0])
	}
	if got := b.median(1); got != 33 {
		t.Fatalf("median %d", got)
	}
}
