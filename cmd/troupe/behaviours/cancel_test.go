package behaviours

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
	"github.com/troupe-llm/troupe/gpu/sim"
)

// leftPerRequest is what a cancelled request may leave on the heap, in bytes, in the best of several
// rounds. Where no actor is ever stopped it is 7 KiB, the refused requests among them that have none.
const leftPerRequest = 1 << 10

// Behaviour 10.
func TestNothingIsLeftOfFiveHundredCancelsAtRandomPoints(t *testing.T) {
	if !alone(t) {
		return
	}
	h := open(t, layout{
		sim: sim.Options{Fixed: 20 * time.Microsecond, Check: true},
		// Few slots and little cache, so that some are cancelled while they wait or have lost their place.
		device: gpu.Config{MaxSeqs: 8, MaxTokens: 64, MaxContext: 512, CacheBytes: 40 << 14},
		log:    io.Discard,
	})
	cancels := func(n int) {
		var wg sync.WaitGroup
		for part := range 20 {
			wg.Go(func() {
				for i := part; i < n; i += 20 {
					cancelled(t, h.addr, rand.New(rand.NewPCG(uint64(n), uint64(i))))
				}
			})
		}
		wg.Wait()
	}
	settled := func() {
		t.Helper()
		h.until("all connections are closed", func() bool { return h.srv.Connections() == 0 })
		h.idle()
	}
	h.ask(say("the first", 3).String()) // what is started once is started
	settled()
	goroutines := len(busy())
	before := h.scrape()
	// Pools and maps grow in a round in which more is under way at a time than in any before; the actor
	// runtime's registry has 32,768 little maps besides, and makes each when it first holds an actor. That
	// comes to an end, while what leaks grows with every round. So the least growth of all is what counts.
	const n, rounds = 500, 6
	grown := int64(math.MaxInt64)
	for round := 1; round <= rounds; round++ {
		heap := liveHeap()
		cancels(n)
		settled()
		h.until("goroutines are down to what they were before", func() bool { return len(busy()) <= goroutines })
		now := liveHeap() - heap
		t.Logf("round %d: %d goroutines; the heap grew by %d bytes", round, goroutines, now)
		if grown = min(grown, now); grown <= n*leftPerRequest {
			break
		}
	}
	if grown > n*leftPerRequest && !raceEnabled {
		t.Errorf("the heap grew by %d bytes at least in each of %d rounds of %d cancels", grown, rounds, n)
	}
	m := h.scrape().since(before)
	e := m.ended()
	t.Logf("ended: %+v; refused: %d; preempted: %d", e, m.count("troupe:requests_refused_total"), m.count("vllm:num_preemptions_total"))
	if e.Abort == 0 || e.Error != 0 {
		t.Errorf("ended: %+v", e)
	}
	// The house works as before.
	if r := h.ask(say("afterwards", 30).String()); r.Usage.Completion != 30 {
		t.Errorf("afterwards: %+v", r)
	}
}

// liveHeap is what the heap holds that is in use, once what was let go is gone: pools give theirs back
// at the second collection, and goroutines of an earlier house may still be ending.
func liveHeap() int64 {
	var m runtime.MemStats
	least := uint64(math.MaxUint64)
	for same := 0; same < 5; same++ {
		runtime.GC()
		runtime.ReadMemStats(&m)
		if m.HeapAlloc < least-min(least, 64<<10) {
			same = 0
		}
		least = min(least, m.HeapAlloc)
		time.Sleep(time.Millisecond)
	}
	return int64(least)
}

// busy are the stacks of all goroutines but the idle workers that the HTTP server keeps for a while.
func busy() (stacks []string) {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	for s := range strings.SplitSeq(string(buf), "\n\n") {
		if worker := strings.Contains(s, "(*workerPool).workerFunc"); !worker || strings.Contains(s, "serveConn") {
			stacks = append(stacks, s)
		}
	}
	return stacks
}

// cancelled begins a request and leaves at a point that r draws.
func cancelled(t *testing.T, addr string, r *rand.Rand) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	if r.IntN(3) == 0 {
		_ = c.(*net.TCPConn).SetLinger(0) // a reset in place of an end of file
	}
	body := say(fmt.Sprintf("request of a length %0*d", r.IntN(200), 0), 1+r.IntN(300)).
		with(fields{"stream": r.IntN(2) == 0, "n": 1 + r.IntN(3), "seed": r.IntN(5), "temperature": 1})
	request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
	switch r.IntN(4) {
	case 0: // while it is being sent
		_, _ = io.WriteString(c, request[:r.IntN(len(request))])
	case 1: // as soon as it is sent
		_, _ = io.WriteString(c, request)
	case 2: // a little later
		_, _ = io.WriteString(c, request)
		time.Sleep(time.Duration(r.IntN(10000)) * time.Microsecond)
	case 3: // when some of the answer is there
		_, _ = io.WriteString(c, request)
		_, _ = io.ReadFull(c, make([]byte, 1+r.IntN(3000)))
	}
}
