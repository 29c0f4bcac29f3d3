package batch

// binding is what kept the next waiting sequence from starting at the last plan.
type binding uint8

const (
	bindNothing binding = iota
	bindSlot            // no sequence slot
	bindBudget          // no token budget left
	bindBlocks          // no KV cache blocks
)

// waitClocks count the time during which sequences could not start, by what the plan before had
// said. A sequence's share is the difference between its start and its submit, so that a plan costs
// the same however many wait.
type waitClocks struct {
	binding binding
	at      int64 // all clocks are brought up to here
	// slot counts the time for want of a slot or of budget, which is also in budget.
	slot, budget, blocks int64
}

// advance brings the clocks up to now.
func (w *waitClocks) advance(now int64) {
	if now <= w.at {
		return
	}
	switch w.binding {
	case bindSlot:
		w.slot += now - w.at
	case bindBudget:
		w.slot += now - w.at
		w.budget += now - w.at
	case bindBlocks:
		w.blocks += now - w.at
	}
	w.at = now
}
