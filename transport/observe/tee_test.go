package observe

import (
	"testing"

	"github.com/troupe-llm/troupe/lifecycle"
)

type counting struct{ progress, observed int }

func (c *counting) Progress(*lifecycle.Progress) { c.progress++ }
func (c *counting) Observe(*lifecycle.Record)    { c.observed++ }

func TestATeeTellsEachObserverOnce(t *testing.T) {
	a, b, c := &counting{}, &counting{}, &counting{}
	o := Tee(nil, a, Tee(b, nil, c))
	o.Progress(&lifecycle.Progress{})
	o.Observe(&lifecycle.Record{})
	o.Observe(&lifecycle.Record{})
	for i, n := range []*counting{a, b, c} {
		if n.progress != 1 || n.observed != 2 {
			t.Errorf("observer %d was told %d times of progress and %d times of a record, want 1 and 2", i, n.progress, n.observed)
		}
	}
}

func TestATeeOfNothingDoesNothing(t *testing.T) {
	o := Tee(nil, nil)
	o.Progress(&lifecycle.Progress{})
	o.Observe(&lifecycle.Record{})
}

func TestATeeOfOneIsThatOne(t *testing.T) {
	a := &counting{}
	if o := Tee(nil, a); o != lifecycle.Observer(a) {
		t.Errorf("got %T", o)
	}
}
