// Package batch decides what goes into the next step of a device: continuous batching with
// chunked prefill, a paged KV cache with prefix caching, and preemption by recompute.
//
// A Scheduler is a pure state machine in the manner of etcd's raft: it has no clock (now is passed
// in), no goroutines and no I/O, and is used from one goroutine. The owner's loop is
//
//	for s.Plan(now(), &b) > 0 {
//		send(s.Events())                        // Scheduled, Resumed, Preempted, Finished{timeout}
//		step := &lifecycle.Step{Start: now()}
//		if err := device.Run(&b, &r); err != nil {
//			…reopen the device…
//			s.Recompute(now(), lifecycle.WhyDevice)
//			continue
//		}
//		step.End = now()
//		s.Commit(step, &r)
//		send(s.Events())                        // Prefilled, Tokens
//	}
//
// with Submit and Cancel in between. A plan takes effect only by its Commit: one that is never
// committed costs nothing but its blocks, which the next plan uses.
//
// # Order
//
// Sequences are ordered by priority, then arrival, then id, and keep that place all their life. The
// first in order that waits is the first to start; when blocks lack for it, it holds back all
// behind it, so that a long prompt is not overtaken for ever. The last in order that runs is the
// first to be preempted. The first of all is therefore never preempted, and every sequence ends
// unless more urgent ones keep coming.
//
// # Blocks
//
// A sequence gets the blocks for all its tokens so far when it starts, and one more whenever
// decoding fills the last. It starts only when, beyond its own, one block is left for each running
// sequence that may still grow: starting it would otherwise soon mean preempting it. Waiting
// sequences hold no blocks. A sequence whose longest possible form does not fit the whole cache is
// refused at Submit; so one that runs alone can always go on.
//
// # Prefix cache
//
// A full block's name is the SHA-256 of its predecessor's name and its own token ids; the first
// block's predecessor is the salt. Equal names are taken to mean equal content: nobody can make two
// contents of one name, not even on purpose, so that ids need not be compared. A block is named
// once a committed step has filled it, be it with prompt or output. A block that no sequence uses
// keeps its name and content and is reused last, the least recently used first.
package batch
