package actors

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestNothingOfAnEndedRequestIsKeptInMemory(t *testing.T) {
	s := newStage(t, func(s *setting) { s.sim.Fixed = time.Millisecond })
	const n = 200
	var requests, sinks atomic.Int32
	func() {
		var as [n]*audience
		var begun sync.WaitGroup // all at once: what was the most at a time must not stay
		begun.Add(n)
		for i := range as {
			req := s.ask(fmt.Sprintf("request %d", i), params(40))
			runtime.AddCleanup(req, func(int) { requests.Add(1) }, 0)
			as[i] = s.run(req, func(a *audience) {
				a.onTok = func(n int) {
					if n == 1 {
						begun.Done()
					}
				}
			})
			runtime.AddCleanup(as[i], func(int) { sinks.Add(1) }, 0)
		}
		begun.Wait()
		for _, a := range as {
			a.wait(t)
		}
	}()
	s.until(fmt.Sprintf("all of %d requests and their sinks are collected", n), func() bool {
		s.books.mu.Lock()
		s.books.records = nil // the books are the test's own; a request's last entry may come late
		s.books.mu.Unlock()
		runtime.GC()
		return s.Admitted() == 0 && requests.Load() == n && sinks.Load() == n
	})
}
