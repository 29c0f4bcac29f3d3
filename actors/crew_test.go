package actors

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestTheCrewRunsEachMailboxOnceHoweverManyCome(t *testing.T) {
	c := newCrew()
	var ran atomic.Int64
	var wg sync.WaitGroup
	const senders, each = 8, 2000
	wg.Add(senders * each)
	for range senders {
		go func() {
			for range each {
				c.Schedule(func() { ran.Add(1); wg.Done() })
			}
		}()
	}
	wg.Wait()
	if n := ran.Load(); n != senders*each {
		t.Errorf("%d ran, want %d", n, senders*each)
	}
}

func TestMailboxesThatBlockHoldUpNoOthers(t *testing.T) {
	c := newCrew()
	c.limit = 2
	release, held := make(chan struct{}), make(chan struct{})
	for range 3 { // more than there are workers
		c.Schedule(func() { held <- struct{}{}; <-release })
	}
	done := make(chan struct{})
	for range 3 {
		<-held
	}
	c.Schedule(func() { close(done) })
	<-done
	close(release)
}

func TestACrewWithoutWorkHasNoWorkers(t *testing.T) {
	c := newCrew()
	var wg sync.WaitGroup
	wg.Add(1000)
	for range 1000 {
		c.Schedule(wg.Done)
	}
	wg.Wait()
	for {
		c.mu.Lock()
		workers, queued := c.workers, c.n
		c.mu.Unlock()
		if workers == 0 && queued == 0 {
			return
		}
		runtime.Gosched()
	}
}
