package actors

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
	"github.com/troupe-llm/troupe/lifecycle"
)

// engines makes a stage one of several. Their steps wait until together has begun all its requests.
func engines(n int) func(*setting) { return func(s *setting) { s.cfg.Engines, s.gated = n, true } }

// together begins a request for each prompt, and lets the devices run when all are where they belong.
func (s *stage) together(prompts []string, p *lifecycle.Params) []*audience {
	s.t.Helper()
	s.admit(len(prompts))
	var as []*audience
	for _, prompt := range prompts {
		as = append(as, s.begin(s.ask(prompt, p)))
	}
	s.heard()
	s.release()
	return as
}

// crowded are n prompts that are much alike.
func crowded(n int) (prompts []string) {
	for i := range n {
		prompts = append(prompts, fmt.Sprintf("request number %d of a crowd", i))
	}
	return prompts
}

// dialogue is a prompt of a conversation, which begins like the others of the same.
func dialogue(conversation, turn int) string {
	return strings.Repeat(fmt.Sprintf("what was said in conversation %d; ", conversation), 6) + fmt.Sprint("and now turn ", turn)
}

// alone is what a single engine answers to prompts.
func alone(t *testing.T, prompts []string, p *lifecycle.Params) map[string]string {
	s := newStage(t, nil)
	texts := map[string]string{}
	for _, prompt := range prompts {
		texts[prompt] = s.run(s.ask(prompt, p)).wait(t).Choices[0].Text
	}
	return texts
}

func TestTextsAreTheSameWithSeveralEngines(t *testing.T) {
	var prompts []string
	for i := range 40 {
		prompts = append(prompts, dialogue(i%5, i))
	}
	want := alone(t, prompts, params(30))
	s := newStage(t, engines(3))
	for i, a := range s.together(prompts, params(30)) {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[prompts[i]] {
			t.Errorf("request %d: %v, %q, want %q", i, resp.Err, resp.Choices[0].Text, want[prompts[i]])
		}
	}
	s.record(len(prompts))
	sum, all := s.Stats(), s.Engines()
	var generated, hits uint64
	used := 0
	for _, e := range all {
		generated += e.Generated
		hits += e.PrefixHits
		if e.Generated > 0 {
			used++
		}
	}
	if generated != sum.Generated || hits != sum.PrefixHits || sum.BlocksTotal != 3*all[0].BlocksTotal || len(all) != 3 {
		t.Errorf("the sums are %+v of %+v", sum, all)
	}
	if used < 2 || sum.Output != 0 {
		t.Errorf("%d engines did anything; %d tokens of output are left", used, sum.Output)
	}
	on := map[int]int{}
	for _, r := range s.books.all() {
		on[r.Engine] += r.Usage.Completion
	}
	for i, e := range all {
		if on[i] != int(e.Generated) {
			t.Errorf("the records tell of %v tokens by engine, and engine %d made %d", on, i, e.Generated)
		}
	}
}

func TestTheChoicesOfARequestAreComputedByOneEngine(t *testing.T) {
	s := newStage(t, engines(3))
	s.release()
	for i := range 6 {
		p := *params(8)
		p.Temperature = 1
		req := s.ask(dialogue(i, 0), &p)
		req.N = 4
		req.Prompts = append(req.Prompts, req.Prompts[0][1:])
		if resp := s.run(req).wait(t); resp.Err != nil || resp.Usage.Completion != 64 {
			t.Fatalf("%+v", resp)
		}
		r := s.record(i + 1)
		for e, st := range s.Engines() {
			if made := st.Generated > 0; e == r.Engine && !made {
				t.Errorf("request %d says that engine %d computed it, which made nothing", i, e)
			}
		}
		if n := s.Engines()[r.Engine].Generated % 64; n != 0 {
			t.Errorf("engine %d made %d of 64 tokens of request %d", r.Engine, n, i)
		}
	}
}

func TestAPrefixGoesWhereItWasComputed(t *testing.T) {
	s := newStage(t, engines(2))
	var first []string
	for i := range 4 {
		first = append(first, dialogue(i, 0))
	}
	for _, a := range s.together(first, params(4)) {
		a.wait(t)
	}
	s.record(4)
	on := map[string]int{}
	used := map[int]bool{}
	for _, r := range s.books.all() {
		on[tok().Decode(r.Request.Prompts[0], true)[:100]] = r.Engine
		used[r.Engine] = true
	}
	if len(on) != 4 || len(used) != 2 {
		t.Fatalf("four conversations began on engines %v", on)
	}
	for i := range 20 {
		prompt := dialogue(i%4, 1+i/4)
		s.run(s.ask(prompt, params(4))).wait(t)
		if r := s.record(5 + i); r.Engine != on[prompt[:100]] || r.Usage.Cached < 96 {
			t.Errorf("turn %d of conversation %d is on engine %d with %d tokens found, the first was on %d", 1+i/4, i%4, r.Engine, r.Usage.Cached, on[prompt[:100]])
		}
	}
}

func TestAFaultOfOneEngineIsNothingToTheOthers(t *testing.T) {
	prompts := crowded(30)
	want := alone(t, prompts, params(40))
	for _, how := range []string{"comes back at once", "comes back later", "stays away"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t, engines(3))
			s.every[1].FailAt(9)
			switch how {
			case "comes back later":
				s.every[1].Away(2)
			case "stays away":
				s.every[1].Away(-1)
			}
			for i, a := range s.together(prompts, params(40)) {
				if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[prompts[i]] {
					t.Errorf("request %d: %v, %q, want %q", i, resp.Err, resp.Choices[0].Text, want[prompts[i]])
				}
			}
			s.record(len(prompts))
			if s.every[0].Opens() != 1 || s.every[2].Opens() != 1 || s.every[1].Opens() < 2 {
				t.Errorf("the engines were opened %d, %d and %d times", s.every[0].Opens(), s.every[1].Opens(), s.every[2].Opens())
			}
			disturbed := 0
			for _, r := range s.books.all() {
				if r.Detail.Preemptions > 0 {
					disturbed++
				}
				if how == "stays away" && r.Engine == 1 {
					t.Errorf("request %d ended on engine 1", r.Request.ID)
				}
			}
			if disturbed == 0 || disturbed > len(prompts)/2 {
				t.Errorf("%d of %d requests noticed", disturbed, len(prompts))
			}
			switch ok, why := s.Health(); {
			case !ok:
				t.Errorf("unhealthy: %s", why)
			case how == "stays away" && !strings.HasPrefix(why, "engine 1 of 3 has no device: sim: the device cannot be opened"):
				t.Errorf("health says %q", why)
			}
			if how != "stays away" {
				s.until("all is well", func() bool { _, why := s.Health(); return why == "" && !s.Engines()[1].Unhealthy })
				return
			}
			if u := s.Engines(); !u[1].Unhealthy || u[0].Unhealthy || u[2].Unhealthy || s.Stats().Unhealthy {
				t.Errorf("unhealthy are %v, %v and %v", u[0].Unhealthy, u[1].Unhealthy, u[2].Unhealthy)
			}
			s.every[1].Clear()
			s.until("engine 1 is back", func() bool { _, why := s.Health(); return why == "" })
			before := s.Engines()[1].Generated
			s.until("engine 1 has work", func() bool {
				s.run(s.ask("again", params(5))).wait(t)
				s.run(s.ask("and again", params(5))).wait(t)
				return s.Engines()[1].Generated > before
			})
		})
	}
}

// byEngine is an observer that counts tokens by the engine that they are told of.
type byEngine struct {
	*books
	tokens [2]int
}

func (b *byEngine) Progress(p *lifecycle.Progress) {
	b.books.Progress(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens[p.Engine] += p.Tokens
}

func TestWhatAnEngineGeneratedBeforeARequestMovesIsCountedThere(t *testing.T) {
	told := &byEngine{books: &books{}}
	s := newStage(t, func(s *setting) { engines(2)(s); s.observer = told })
	s.every[0].FailAt(9)
	s.every[0].Away(-1)
	for i, a := range s.together(crowded(6), params(40)) {
		if resp := a.wait(t); resp.Err != nil {
			t.Errorf("request %d: %v", i, resp.Err)
		}
	}
	s.until("all is over", func() bool { return s.Admitted() == 0 })
	for e, st := range s.Engines() {
		if told.tokens[e] != int(st.Generated) || st.Generated == 0 {
			t.Errorf("%d tokens were counted for engine %d, which generated %d", told.tokens[e], e, st.Generated)
		}
	}
}

func TestARequestThatHasEndedDoesNotMove(t *testing.T) {
	s := newStage(t, engines(2))
	s.admit(2)
	ended := s.begin(s.ask("this ends and is delivered later", params(2)), func(a *audience) { a.silent = true })
	s.heard()
	s.step(2)
	ended.wait(t)
	s.every[0].FailAt(1)
	s.every[0].Away(-1)
	// It begins like the first, so that it is where that was, and takes that one's device away.
	again := s.begin(s.ask("this ends and is delivered later, too", params(2)))
	s.heard()
	s.release()
	again.wait(t)
	s.until("engine 0 is away", func() bool { return s.Engines()[0].Unhealthy })
	s.heard()
	ended.tell(lifecycle.Delivered{At: s.Now(), Bytes: 1})
	s.record(2)
	for _, r := range s.books.all() {
		if want := int(r.Request.ID) - 1; r.Engine != want {
			t.Errorf("request %d is told of as of engine %d", r.Request.ID, r.Engine)
		}
	}
}

func TestWithoutAnyDeviceRequestsWaitAndThenFail(t *testing.T) {
	s := newStage(t, func(s *setting) { engines(2)(s); s.cfg.ReopenLimit = 60 * time.Millisecond })
	for _, f := range s.every {
		f.FailAt(3)
		f.Away(-1)
	}
	for i, a := range s.together(crowded(6), params(40)) {
		if e := a.wait(t).Err; e == nil || e.Status != 503 || e.Code != "no_device" {
			t.Errorf("request %d: %+v", i, e)
		}
	}
	s.until("unhealthy", func() bool { ok, _ := s.Health(); return !ok })
	if _, why := s.Health(); strings.Count(why, "has no device") != 2 {
		t.Errorf("health says %q", why)
	}
	if err := s.Admit(); err == nil || err.Status != 503 {
		t.Errorf("admitted without a device: %v", err)
	}
	s.every[1].Clear()
	s.until("healthy again", func() bool { ok, _ := s.Health(); return ok })
	for range 3 {
		if resp := s.run(s.ask("again", params(5))).wait(t); resp.Err != nil {
			t.Error(resp.Err)
		}
	}
	if n := s.Engines()[0].Generated; n > 12 {
		t.Errorf("engine 0 generated %d tokens without a device", n)
	}
}

func TestRequestsThatWaitForADeviceGoToTheFirstThatIsBack(t *testing.T) {
	s := newStage(t, func(s *setting) { engines(2)(s); s.cfg.ReopenLimit = patience })
	for _, f := range s.every {
		f.FailAt(2)
		f.Away(-1)
	}
	as := s.together(crowded(8), params(40))
	s.until("no engine has a device", func() bool { _, why := s.Health(); return strings.Count(why, "has no device") == 2 })
	s.every[1].Clear()
	for i, a := range as {
		if resp := a.wait(t); resp.Err != nil {
			t.Errorf("request %d: %v", i, resp.Err)
		}
	}
	s.record(len(as))
	for _, r := range s.books.all() {
		if r.Engine != 1 {
			t.Errorf("request %d ended on engine %d", r.Request.ID, r.Engine)
		}
	}
}

func TestTheSequenceThatBreaksOneDeviceOfSeveralFailsAlone(t *testing.T) {
	s := newStage(t, engines(2))
	s.release()
	want := s.texts(9)
	bad := tok().Encode("#", false, false)
	for _, f := range s.every {
		f.FailToken(bad[0])
	}
	culprit := s.run(s.ask("this one holds the token # that breaks it", params(40)))
	as := s.crowd(9)
	if e := culprit.wait(t).Err; e == nil || e.Status != 500 || !strings.Contains(e.Message, "injected") {
		t.Errorf("the culprit: %+v", e)
	}
	for i, a := range as {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[i] {
			t.Errorf("request %d: %v", i, resp.Err)
		}
	}
}

func TestASequenceThatBreaksEveryDeviceForGoodFailsInTheEnd(t *testing.T) {
	bad := tok().Encode("#", false, false)
	s := newStage(t, engines(2))
	s.release()
	for _, f := range s.every {
		f.FailToken(bad[0])
		f.Away(1) // so that it moves
	}
	stop := make(chan struct{})
	var again sync.WaitGroup
	again.Go(func() { // as each fault does
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				for i, f := range s.every {
					if u := s.Engines(); !u[i].Unhealthy {
						f.Away(1)
					}
				}
			}
		}
	})
	defer again.Wait()
	defer close(stop)
	if e := s.run(s.ask("this one holds the token # that breaks it", params(40))).wait(t).Err; e == nil || e.Status != 500 {
		t.Errorf("%+v", e)
	}
}

func TestAPanicInOneOfSeveralSchedulersIsSurvived(t *testing.T) {
	var lie atomic.Int32
	first := true
	s := newStage(t, func(s *setting) {
		engines(2)(s)
		var mu sync.Mutex
		s.wrap = func(d gpu.Device) gpu.Device {
			mu.Lock()
			defer mu.Unlock()
			if !first {
				return d
			}
			first = false
			return liar{d, &lie}
		}
	})
	prompts := crowded(8)
	want := alone(t, prompts, params(40))
	lie.Store(10)
	for i, a := range s.together(prompts, params(40)) {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[prompts[i]] {
			t.Errorf("request %d: %v, %q, want %q", i, resp.Err, resp.Choices[0].Text, want[prompts[i]])
		}
	}
	s.record(8)
	lost := 0
	for _, r := range s.books.all() {
		if r.Detail.Preemptions > 0 {
			lost++
		}
	}
	if lost == 0 || lost == 8 {
		t.Errorf("%d of 8 requests noticed", lost)
	}
}

func TestAPanicOfIntakeEndsItsRequestsAndItGoesOnWithWhatIsThere(t *testing.T) {
	s := newStage(t, engines(3))
	s.every[0].LoseAt(1, -1)
	s.admit(3)
	as := []*audience{s.begin(s.ask("the first", params(40))), s.begin(s.ask("and another", params(40))), s.begin(s.ask("and the last", params(40)))}
	s.heard()
	s.step(1)                                          // of any
	s.system.Root.Send(s.intake, back{len(s.engines)}) // an engine that there is not
	for i, a := range as {
		if e := a.wait(t).Err; e == nil || e.Status != 500 || e.Code != "intake_panic" {
			t.Errorf("request %d: %+v", i, e)
		}
	}
	s.release()
	s.until("all places are free", func() bool { return s.Admitted() == 0 })
	for i := range 9 { // the first of which may lose engine 0
		if resp := s.run(s.ask(fmt.Sprint("again ", i), params(5))).wait(t); resp.Err != nil {
			t.Errorf("after it, request %d: %v", i, resp.Err)
		}
	}
	<-s.Lost()
	in := newIntake(s.Runtime)
	for e, want := range []hope{none, present, present} {
		if got := in.router.engines[e].hope; got != want {
			t.Errorf("the next intake takes the hope at engine %d for %d, want %d", e, got, want)
		}
	}
}

// TestNoRequestIsLostWhenEnginesComeAndGo lets devices fail, stay away and come back while requests of all
// kinds run. Each must end once, with the text that it would have had.
func TestNoRequestIsLostWhenEnginesComeAndGo(t *testing.T) {
	const n = 150
	var prompts []string
	for i := range n {
		prompts = append(prompts, dialogue(i%7, i))
	}
	want := alone(t, prompts, params(25))
	for seed := range uint64(3) {
		s := newStage(t, engines(3))
		s.release()
		rng := rand.New(rand.NewPCG(seed, 2))
		stop := make(chan struct{})
		var trouble sync.WaitGroup
		trouble.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 3))
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rng.IntN(4)) * time.Millisecond):
				}
				f := s.every[rng.IntN(3)]
				switch rng.IntN(6) {
				case 0, 1:
					f.FailAt(1 + uint64(rng.IntN(40)))
				case 2:
					f.PanicAt(1 + uint64(rng.IntN(40)))
				case 3:
					f.Away(1 + rng.IntN(2))
				default:
					f.Clear()
				}
			}
		})
		left, failed := 0, 0
		for at := 0; at < n; at += 30 {
			var as []*audience
			for i := at; i < at+30; i++ {
				leaves := rng.IntN(8) == 0
				as = append(as, s.run(s.ask(prompts[i], params(25)), func(a *audience) {
					if leaves {
						a.onTok = func(n int) {
							if n == 5 {
								a.tell(lifecycle.Gone{At: s.Now()})
							}
						}
					}
				}))
			}
			for i, a := range as {
				resp := a.wait(t)
				text := resp.Choices[0].Text
				switch {
				case resp.Err != nil && (resp.Err.Code == "device_error" || resp.Err.Code == "batcher_lost"):
					failed++ // it was in two failed steps without a token between, or in more
				case resp.Err != nil:
					t.Errorf("seed %d: request %d: %+v", seed, at+i, resp.Err)
				case text != want[prompts[at+i]]:
					if a.onTok == nil || !strings.HasPrefix(want[prompts[at+i]], text) {
						t.Errorf("seed %d: request %d says %q, want %q", seed, at+i, text, want[prompts[at+i]])
					}
					left++
				}
			}
		}
		close(stop)
		trouble.Wait()
		for _, f := range s.every {
			f.Clear()
		}
		s.until("all is over", func() bool {
			st := s.Stats()
			_, why := s.Health()
			return s.Admitted() == 0 && st.Running+st.Waiting+st.BlocksUsed+st.Output == 0 && why == ""
		})
		if got := len(s.books.all()); got != n {
			t.Errorf("seed %d: %d records of %d requests", seed, got, n)
		}
		if failed > n/3 {
			t.Errorf("seed %d: %d of %d requests failed", seed, failed, n)
		}
	}
}

func TestPromptScoresOfARequestThatMovesAreToldOnce(t *testing.T) {
	prompt := strings.Repeat("to be scored in several chunks ", 20)
	p := params(3)
	p.PromptLogprobs = 0
	whole := newStage(t, nil)
	want := whole.run(whole.ask(prompt, p)).wait(t).Choices[0].PromptScores
	s := newStage(t, func(s *setting) { s.cfg.Engines = 2; s.device.MaxTokens = 64 })
	for _, f := range s.every {
		f.FailAt(4) // of ten
	}
	s.every[0].Away(-1)
	resp := s.run(s.ask(prompt, p)).wait(t)
	if got := resp.Choices[0].PromptScores; resp.Err != nil || len(got) != len(want) || len(want) == 0 {
		t.Fatalf("%v; %d scores, want %d", resp.Err, len(got), len(want))
	}
	for i, l := range resp.Choices[0].PromptScores {
		if l.ID != want[i].ID || l.Logprob != want[i].Logprob {
			t.Errorf("score %d is %+v, want %+v", i, l, want[i])
		}
	}
	if r := s.record(1); r.Engine != 1 || r.Detail.Preemptions == 0 {
		t.Errorf("it ended on engine %d after %d preemptions", r.Engine, r.Detail.Preemptions)
	}
}

func TestAnEngineThatCannotBeOpenedIsNamed(t *testing.T) {
	_, err := New(Config{Engines: 3, Tokenizer: tok(), MaxContext: 10, Open: func(engine int) (gpu.Device, error) {
		if engine == 2 {
			return nil, fmt.Errorf("there is no GPU %d", engine)
		}
		return sim.Open(sim.Options{Vocab: tok().Size()}, gpu.Config{BlockSize: 16, MaxSeqs: 1, MaxTokens: 16, MaxContext: 16})
	}})
	if err == nil || err.Error() != "opening device 2 of 3, counted from 0: there is no GPU 2" {
		t.Errorf("got %v", err)
	}
}

func TestAnEngineLostToTheProcessLeavesItsRequestsToTheOthers(t *testing.T) {
	prompts := crowded(12)
	want := alone(t, prompts, params(40))
	s := newStage(t, engines(2))
	s.every[1].LoseAt(5, -1)
	for i, a := range s.together(prompts, params(40)) {
		if resp := a.wait(t); resp.Err != nil || resp.Choices[0].Text != want[prompts[i]] {
			t.Errorf("request %d: %v, %q, want %q", i, resp.Err, resp.Choices[0].Text, want[prompts[i]])
		}
	}
	<-s.Lost()
	if ok, why := s.Health(); !ok || !strings.HasPrefix(why, "engine 1 of 2 has no device") {
		t.Errorf("healthy: %v, %q", ok, why)
	}
	// The last one takes all with it, also what still comes.
	s.admit(2)
	s.every[0].LoseAt(1, -1)
	for range 2 {
		if e := s.begin(s.ask("one more", params(5))).wait(t).Err; e == nil || e.Status != 503 {
			t.Errorf("%+v", e)
		}
	}
	if ok, why := s.Health(); ok || strings.Count(why, "has no device") != 2 {
		t.Errorf("healthy: %v, %q", ok, why)
	}
}
