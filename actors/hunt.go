package actors

import "github.com/troupe-llm/troupe/lifecycle"

// maxCulprits is how many sequences in a row, without a step that worked in between, may seem to
// break the device before the device itself is blamed.
const maxCulprits = 3

// hunt finds out which sequence makes the device fail. A fault that follows another one without
// progress in between can be a sequence's doing: then the suspects are run in halves, each half
// until all of it has come further, and what fails is halved again until one is left. The zero hunt
// suspects nobody.
type hunt struct {
	// strikes counts, for each sequence, the failed steps it was in since it last got a token.
	strikes map[lifecycle.SeqID]int
	// suspects is who it can be; trial is the half of them that runs now, each with whether it has
	// come further. Both are empty when there is no hunt.
	suspects []lifecycle.SeqID
	trial    map[lifecycle.SeqID]bool
	changed  bool
	culprits int
}

// failed takes the sequences of a failed step. culprit is not nil when it is certain which one it
// was; broken says that it must be the device.
func (h *hunt) failed(planned []lifecycle.SeqID) (culprit *lifecycle.SeqID, broken bool) {
	if h.strikes == nil {
		h.strikes = map[lifecycle.SeqID]int{}
	}
	var again []lifecycle.SeqID
	for _, id := range planned {
		h.strikes[id]++
		if h.strikes[id] > 1 {
			again = append(again, id)
		}
	}
	if len(h.trial) > 0 {
		again = planned // only the tried ones were in the step
	}
	if len(again) == 0 {
		return nil, false
	}
	if len(planned) == 1 {
		id := planned[0]
		delete(h.strikes, id)
		h.culprits++
		h.try(nil)
		return &id, h.culprits > maxCulprits
	}
	h.try(again)
	return nil, false
}

// try makes a half of the given suspects, or the only one, the next trial; none ends the hunt.
func (h *hunt) try(suspects []lifecycle.SeqID) {
	h.suspects, h.changed = suspects, true
	h.trial = nil
	if len(suspects) == 0 {
		return
	}
	h.trial = make(map[lifecycle.SeqID]bool)
	for _, id := range suspects[:(len(suspects)+1)/2] {
		h.trial[id] = false
	}
}

// heard takes what the scheduler says: a token or an end acquits a sequence for now.
func (h *hunt) heard(m lifecycle.Message) {
	switch m.(type) {
	case *lifecycle.Tokens:
		h.culprits = 0
	case *lifecycle.Finished, *lifecycle.Failed:
	default:
		return
	}
	id := m.Header().ID
	if len(h.strikes) > 0 {
		delete(h.strikes, id)
	}
	if _, tried := h.trial[id]; !tried {
		return
	}
	h.trial[id] = true
	for _, further := range h.trial {
		if !further {
			return
		}
	}
	h.acquit()
}

// passed says that nothing of the trial is left to run; false when there was no trial.
func (h *hunt) passed() bool {
	if len(h.trial) == 0 {
		return false
	}
	h.acquit()
	return true
}

// acquit ends a trial without a fault and goes on to the other suspects.
func (h *hunt) acquit() {
	var rest []lifecycle.SeqID
	for _, id := range h.suspects {
		if _, tried := h.trial[id]; !tried {
			rest = append(rest, id)
		}
	}
	h.try(rest)
}

// moved says, once, that the restriction is another one.
func (h *hunt) moved() bool {
	m := h.changed
	h.changed = false
	return m
}

// restriction is who may run: nil for everybody.
func (h *hunt) restriction() func(lifecycle.SeqID) bool {
	if len(h.trial) == 0 {
		return nil
	}
	trial := h.trial
	return func(id lifecycle.SeqID) bool { _, ok := trial[id]; return ok }
}
