package batch

import (
	"slices"

	"github.com/troupe-llm/troupe/lifecycle"
)

// group is the sequences of one request that share a prompt. The first that starts, the leader,
// computes it; the others wait for that, then fork: they share its full blocks, get a copy of the
// last, partly filled one, and compute only the prompt's last token, whose logits they need.
// Whichever member has the prompt in its blocks will do as a source, so a leader that ends or is
// preempted needs no succession: the next to start leads.
type group struct {
	key     groupKey
	members []*sequence // alive, by id
	// cached is how many of the prompt's tokens came from the prefix cache when its first member
	// started; −1 before.
	cached int
	// kept are the blocks of the first keptLen prompt positions of a member that ended while others
	// still had to fork. They are given back as soon as anyone needs blocks.
	kept    []int32
	keptLen int
}

// groupKey names a prompt of a request.
type groupKey struct {
	request uint64
	prompt  int32
}

// join puts q in its group, if it has company.
func (s *Scheduler) join(q *sequence) {
	// Prompt log probabilities are wanted of each sequence, so each computes its own prompt.
	if q.sub.Group <= 1 || q.sub.Params.PromptLogprobs >= 0 {
		return
	}
	key := groupKey{q.sub.ID.Request, q.sub.ID.Index / int32(q.sub.Group)}
	g := s.groups[key]
	if g == nil {
		g = &group{key: key, cached: -1}
		s.groups[key] = g
	} else if first := g.members[0].sub; !samePrompt(first, q.sub) {
		return // the submitter's claim is wrong; sharing would give wrong text
	}
	q.group = g
	g.members = insert(g.members, q)
}

func samePrompt(a, b *lifecycle.Submit) bool {
	if a.Salt != b.Salt || len(a.Prompt) != len(b.Prompt) {
		return false
	}
	return &a.Prompt[0] == &b.Prompt[0] || slices.Equal(a.Prompt, b.Prompt)
}

// source finds blocks that hold the first n positions of the prompt. When there are none but a
// member is computing them, it says so.
func (g *group) source(n int) (table []int32, coming bool) {
	for _, m := range g.members {
		if !m.running {
			continue
		}
		// A member that awaits a copy has credit for positions that are not there yet.
		if m.copyFrom < 0 && m.computed >= n {
			return m.table, false
		}
		coming = true
	}
	if len(g.kept) > 0 && g.keptLen >= n {
		return g.kept, false
	}
	return nil, coming
}

// shared is how many positions q, about to start, could take from its group: all of the prompt, but
// not its own last token.
func (q *sequence) shared() int { return min(len(q.sub.Prompt), q.known()-1) }

// leave takes q, which has ended, out of its group; its blocks are still its own.
func (s *Scheduler) leave(q *sequence) {
	g := q.group
	if g == nil {
		return
	}
	q.group = nil
	g.members = remove(g.members, q)
	if len(g.members) == 0 {
		s.dropKept(g)
		delete(s.groups, g.key)
		return
	}
	n := min(q.computed, len(q.sub.Prompt))
	if q.running && q.copyFrom < 0 && n >= len(q.sub.Prompt)-1 && n > g.keptLen && g.waits() {
		if table, _ := g.source(n); table == nil {
			s.dropKept(g)
			g.kept = append(g.kept, q.table[:s.c.blocksFor(n)]...)
			g.keptLen = n
			for _, b := range g.kept {
				s.pool.share(b)
			}
			s.keeping = append(s.keeping, g)
		}
	}
	s.trimKept(g)
}

// waits says whether a member has still to start, or to start again.
func (g *group) waits() bool {
	return slices.ContainsFunc(g.members, func(m *sequence) bool { return !m.running })
}

// trimKept gives g's kept blocks back when nobody waits for them.
func (s *Scheduler) trimKept(g *group) {
	if len(g.kept) > 0 && !g.waits() {
		s.dropKept(g)
	}
}

// dropKept gives g's kept blocks back.
func (s *Scheduler) dropKept(g *group) {
	if len(g.kept) == 0 {
		return
	}
	s.pool.releaseAll(g.kept)
	g.kept, g.keptLen = g.kept[:0], 0
	i := slices.Index(s.keeping, g)
	s.keeping = slices.Delete(s.keeping, i, i+1)
}

// reclaim gives back the kept blocks of all groups but one (which may be nil), and says whether
// there were any.
func (s *Scheduler) reclaim(but *group) bool {
	any := false
	for i := len(s.keeping) - 1; i >= 0; i-- {
		if g := s.keeping[i]; g != but {
			s.dropKept(g)
			any = true
		}
	}
	return any
}
