package batch

// Stats is what a scheduler can tell of itself. The counters only rise.
type Stats struct {
	Running int // sequences that hold a slot
	Waiting int // sequences that don't
	// WaitingCapacity and WaitingDeferred are the parts of Waiting that wait for a slot, token
	// budget or blocks, and for another sequence of their request to compute their prompt (or for a
	// restriction to be lifted). WaitingBlocks says that it is blocks that the former lack.
	WaitingCapacity, WaitingDeferred int
	WaitingBlocks                    bool
	Output                           int // tokens that sequences, running and waiting, have beyond their prompts

	BlocksUsed  int // KV cache blocks that sequences hold; free ones with cached content don't count
	BlocksTotal int

	Preemptions uint64 // places lost for want of blocks (vLLM's sense)
	// PrefixQueries and PrefixHits count tokens, as vLLM does: those of sequences that looked into
	// the prefix cache as they started for the first time, and those found there.
	PrefixQueries, PrefixHits uint64
	// PromptComputed and PromptCached count prompt tokens by where their keys and values came from
	// the first time: forks of a prompt add nothing, nor does recomputation.
	PromptComputed, PromptCached uint64
	Generated                    uint64 // tokens sampled
	Steps                        uint64 // committed
	IterationTokens              int    // positions computed by the last step
}

// Stats returns the figures as they are now.
func (s *Scheduler) Stats() Stats {
	t := s.stats
	t.Running, t.Waiting = len(s.running), len(s.waiting)
	t.WaitingDeferred = min(t.WaitingDeferred, t.Waiting)
	t.WaitingCapacity = t.Waiting - t.WaitingDeferred
	t.WaitingBlocks = s.waits.binding == bindBlocks && t.WaitingCapacity > 0
	t.BlocksTotal = s.c.NumBlocks
	t.BlocksUsed = s.c.NumBlocks - s.pool.free
	t.Steps = s.steps
	return t
}
