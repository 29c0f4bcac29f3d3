package batch

import (
	"crypto/sha256"
	"encoding/binary"
)

// name identifies a full block's content together with all that comes before it in the sequence.
type name [sha256.Size]byte

// chain is a sequence's block names so far: entry i is the name of block i. It depends on tokens
// alone, so it outlives preemptions and device restarts.
type chain []name

// nameAfter names the block after the one of the given name; scratch is memory to do it in, which is returned.
func nameAfter(parent *name, tokens []int32, scratch []byte) (name, []byte) {
	scratch = append(scratch[:0], parent[:]...)
	for _, t := range tokens {
		scratch = binary.LittleEndian.AppendUint32(scratch, uint32(t))
	}
	return sha256.Sum256(scratch), scratch
}

// root is the predecessor of a first block.
func root(salt uint64) (n name) {
	binary.LittleEndian.PutUint64(n[:], salt)
	return n
}

// Keys tells the full blocks of a prompt apart by the first 64 bits of their names: what two prompts begin
// with in common has the same keys, and the prefix cache shares it.
func Keys(prompt []int32, salt uint64, blockSize int) []uint64 {
	keys := make([]uint64, 0, len(prompt)/blockSize)
	n := root(salt)
	var scratch []byte
	for ; len(prompt) >= blockSize; prompt = prompt[blockSize:] {
		n, scratch = nameAfter(&n, prompt[:blockSize], scratch)
		keys = append(keys, binary.LittleEndian.Uint64(n[:]))
	}
	return keys
}

// extend brings the names of q up to block n−1, all of whose tokens must be known.
func (s *Scheduler) extend(q *sequence, n int) {
	for i := len(q.chain); i < n; i++ {
		parent := root(q.sub.Salt)
		if i > 0 {
			parent = q.chain[i-1]
		}
		s.tokens = q.appendTokens(s.tokens[:0], i*s.c.BlockSize, (i+1)*s.c.BlockSize)
		var own name
		own, s.hashed = nameAfter(&parent, s.tokens, s.hashed)
		q.chain = append(q.chain, own)
	}
}

// hits finds how many of q's first blocks the cache holds, leaving at least one token to compute,
// and how many of those are free at the moment. Block j is then s.found[j].
func (s *Scheduler) hits(q *sequence) (n, free int) {
	s.found = s.found[:0]
	if !q.reads(&s.c) {
		return 0, 0
	}
	full := (q.known() - 1) / s.c.BlockSize
	for ; n < full; n++ {
		// One name at a time: where the cache ends, no more need hashing.
		s.extend(q, n+1)
		b, ok := s.pool.lookup(&q.chain[n])
		if !ok {
			break
		}
		s.found = append(s.found, b)
		if s.pool.blocks[b].refs == 0 {
			free++
		}
	}
	return n, free
}

// reads says whether q may take blocks from the prefix cache. Prompt log probabilities need every
// prompt position computed, until they have been delivered.
func (q *sequence) reads(c *Config) bool {
	return c.PrefixCache && (q.sub.Params.PromptLogprobs < 0 || q.scored >= len(q.sub.Prompt))
}

// storeFull names the blocks that q's computed tokens have filled.
func (s *Scheduler) storeFull(q *sequence) {
	if !s.c.PrefixCache {
		return
	}
	full := q.computed / s.c.BlockSize
	if q.stored >= full {
		return
	}
	s.extend(q, full)
	for ; q.stored < full; q.stored++ {
		s.pool.store(q.table[q.stored], &q.chain[q.stored])
	}
}
