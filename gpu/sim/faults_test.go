package sim

import (
	"errors"
	"testing"
	"time"

	"github.com/troupe-llm/troupe/gpu"
)

func TestAStepFailsWhenToldAndTheDeviceWithIt(t *testing.T) {
	f := &Faults{}
	s := open(t, Options{Faults: f})
	f.FailAt(2)
	run(t, s, prefill(1))
	if err := s.Run(prefill(1), &gpu.Result{}); !errors.Is(err, ErrInjected) {
		t.Fatalf("%v", err)
	}
	if err := s.Run(prefill(1), &gpu.Result{}); err == nil {
		t.Fatal("a failed device runs on")
	}
	s = open(t, Options{Faults: f})
	run(t, s, prefill(1))
	if f.Steps() != 3 || f.Opens() != 2 {
		t.Fatalf("%d steps, %d opens", f.Steps(), f.Opens())
	}
}

func TestAPanicLeavesTheDeviceUnusable(t *testing.T) {
	f := &Faults{}
	s := open(t, Options{Faults: f})
	f.PanicAt(1)
	func() {
		defer func() {
			if err, ok := recover().(error); !ok || !errors.Is(err, ErrInjected) {
				t.Errorf("recovered %v", err)
			}
		}()
		_ = s.Run(prefill(1), &gpu.Result{})
	}()
	if err := s.Run(prefill(1), &gpu.Result{}); err == nil {
		t.Fatal("the device runs on")
	}
}

func TestACulpritFailsEveryBatchThatItIsIn(t *testing.T) {
	f := &Faults{}
	f.FailToken(66)
	for range 3 {
		s := open(t, Options{Faults: f})
		run(t, s, prefill(1, 2))
		if err := s.Run(prefill(1, 66), &gpu.Result{}); !errors.Is(err, ErrInjected) {
			t.Fatalf("%v", err)
		}
	}
	f.Clear()
	run(t, open(t, Options{Faults: f}), prefill(66))
	f.PanicToken(67)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_ = open(t, Options{Faults: f}).Run(prefill(67), &gpu.Result{})
}

func TestADeviceStaysAwayForSoManyOpensOrSoLong(t *testing.T) {
	f := &Faults{}
	f.Away(2)
	for i := range 3 {
		_, err := Open(Options{Faults: f}, config)
		if errors.Is(err, ErrInjected) != (i < 2) {
			t.Fatalf("open %d: %v", i+1, err)
		}
	}
	f.Away(-1)
	for range 5 {
		if _, err := Open(Options{Faults: f}, config); err == nil {
			t.Fatal("opened")
		}
	}
	f.Clear()
	f.AwayFor(time.Hour)
	if _, err := Open(Options{Faults: f}, config); err == nil {
		t.Fatal("opened")
	}
	f.Clear()
	open(t, Options{Faults: f})
}

func TestAHangMakesItsStepLonger(t *testing.T) {
	f := &Faults{}
	var slept []time.Duration
	s := open(t, Options{Faults: f, Fixed: 1, Sleep: func(d time.Duration) { slept = append(slept, d) }})
	f.HangAt(2, time.Minute)
	for range 3 {
		run(t, s, prefill(1))
	}
	if len(slept) != 3 || slept[0] != 1 || slept[1] != time.Minute+1 || slept[2] != 1 {
		t.Fatalf("%v", slept)
	}
}

func TestAStickyErrorOutlastsTheDeviceForSoManyOpensOrForGood(t *testing.T) {
	f := &Faults{}
	for _, away := range []int{0, 2, -1} {
		s := open(t, Options{Faults: f})
		f.LoseAt(2, away)
		run(t, s, prefill(1))
		if err := s.Run(prefill(1), &gpu.Result{}); !gpu.Sticky(err) || !errors.Is(err, ErrInjected) {
			t.Fatalf("%v", err)
		}
		for i := range 4 {
			_, err := Open(Options{Faults: f}, config)
			if lost := away < 0 || i < away; gpu.Sticky(err) != lost || (err != nil) != lost {
				t.Errorf("lost for %d: open %d: %v", away, i+1, err)
			}
		}
	}
	f.Clear()
	run(t, open(t, Options{Faults: f}), prefill(1))
}
