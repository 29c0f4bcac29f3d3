package sim

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/troupe-llm/troupe/gpu"
)

// ErrInjected is wrapped by every error that Faults cause.
var ErrInjected = errors.New("injected fault")

// Faults makes simulated devices fail on demand. One controller serves a device and those opened
// after it, so that a fault can outlast a restart of the device. Its zero value lets everything
// pass. Its methods are safe for concurrent use.
type Faults struct {
	mu     sync.Mutex
	steps  uint64 // Runs begun, over all devices
	opens  uint64 // Opens tried
	at     map[uint64]fault
	tokens map[int32]fault
	away   int // so many Opens still fail; < 0: all
	until  time.Time
	lost   int // so many Opens still fail with a gpu.StickyError; < 0: all
}

// fault is what happens to a step.
type fault struct {
	kind kind
	hang time.Duration
	away int // of a sticky one: how many Opens after it fail
}

type kind uint8

const (
	none kind = iota
	failing
	panicking
	hanging
	sticking
)

// FailAt makes the n-th step from now fail: 1 is the next.
func (f *Faults) FailAt(n uint64) { f.set(n, fault{kind: failing}) }

// PanicAt makes Run panic in the n-th step from now.
func (f *Faults) PanicAt(n uint64) { f.set(n, fault{kind: panicking}) }

// HangAt makes the n-th step from now take d longer.
func (f *Faults) HangAt(n uint64, d time.Duration) { f.set(n, fault{kind: hanging, hang: d}) }

// LoseAt makes the n-th step from now fail with a gpu.StickyError, and with one also the next away Opens after
// it; with a negative away all, as where only another process can open the device.
func (f *Faults) LoseAt(n uint64, away int) { f.set(n, fault{kind: sticking, away: away}) }

func (f *Faults) set(n uint64, what fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at == nil {
		f.at = make(map[uint64]fault)
	}
	f.at[f.steps+n] = what
}

// FailToken makes every step fail that has the token in its batch, until Clear: a sequence with it
// is one that the device cannot compute.
func (f *Faults) FailToken(id int32) { f.setToken(id, fault{kind: failing}) }

// PanicToken is FailToken with a panic.
func (f *Faults) PanicToken(id int32) { f.setToken(id, fault{kind: panicking}) }

func (f *Faults) setToken(id int32, what fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tokens == nil {
		f.tokens = make(map[int32]fault)
	}
	f.tokens[id] = what
}

// Away makes the next n Opens fail; a negative n all, until Clear.
func (f *Faults) Away(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = n
}

// AwayFor makes every Open fail for d.
func (f *Faults) AwayFor(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until = time.Now().Add(d)
}

// Clear takes back every fault that has not happened yet.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.at)
	clear(f.tokens)
	f.away, f.until, f.lost = 0, time.Time{}, 0
}

// Steps is how many Runs have begun, over all devices; Opens how often a device was opened or that
// was tried.
func (f *Faults) Steps() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps
}

// Opens counts calls of Open, failed ones included.
func (f *Faults) Opens() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opens
}

// open is what Open asks first; f may be nil.
func (f *Faults) open() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opens++
	if f.lost != 0 {
		f.lost = max(f.lost-1, -1)
		return &gpu.StickyError{Err: fmt.Errorf("sim: this process cannot open the device: %w", ErrInjected)}
	}
	if f.away == 0 && !time.Now().Before(f.until) {
		return nil
	}
	if f.away > 0 {
		f.away--
	}
	return fmt.Errorf("sim: the device cannot be opened: %w", ErrInjected)
}

// step is what Run asks first; f may be nil. It panics when told to.
func (f *Faults) step(b *gpu.Batch) (hang time.Duration, err error) {
	if f == nil {
		return 0, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps++
	what, where := f.at[f.steps], ""
	delete(f.at, f.steps)
	if what.kind == none && len(f.tokens) > 0 {
		for _, t := range b.Tokens {
			if w, ok := f.tokens[t]; ok {
				what, where = w, fmt.Sprintf(" with token %d in it", t)
				break
			}
		}
	}
	switch what.kind {
	case failing:
		return 0, fmt.Errorf("sim: step %d%s: %w", f.steps, where, ErrInjected)
	case sticking:
		f.lost = what.away
		return 0, &gpu.StickyError{Err: fmt.Errorf("sim: step %d: %w", f.steps, ErrInjected)}
	case panicking:
		panic(fmt.Errorf("sim: step %d%s: %w", f.steps, where, ErrInjected))
	}
	return what.hang, nil
}
