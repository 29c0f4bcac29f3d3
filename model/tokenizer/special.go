package tokenizer

// matcher finds the special tokens' spellings in a text: the leftmost, and of those that begin
// there the longest. It is a trie over bytes, so that the cost does not grow with the number of
// special tokens.
type matcher struct {
	first [256]bool // bytes that begin a spelling
	user  [256]bool // bytes that begin a user-defined token's
	nodes []matchNode
}

type matchNode struct {
	next map[byte]int32
	id   int32 // −1: no spelling ends here
	user bool  // matched also where control tokens are not parsed
}

func (m *matcher) add(text string, id int32, user bool) {
	if m.nodes == nil {
		m.nodes = append(m.nodes, matchNode{id: -1})
	}
	m.first[text[0]] = true
	if user {
		m.user[text[0]] = true
	}
	at := int32(0)
	for i := range len(text) {
		next, ok := m.nodes[at].next[text[i]]
		if !ok {
			next = int32(len(m.nodes))
			m.nodes = append(m.nodes, matchNode{id: -1})
			if m.nodes[at].next == nil {
				m.nodes[at].next = make(map[byte]int32)
			}
			m.nodes[at].next[text[i]] = next
		}
		at = next
	}
	if n := &m.nodes[at]; n.id < 0 || user && !n.user {
		n.id, n.user = id, user
	}
}

// find looks for the first special token in text, whose spelling is text[at:end]. Without one, at
// and end are len(text) and id is −1.
func (m *matcher) find(text string, control bool) (at, end int, id int32) {
	begins := &m.user
	if control {
		begins = &m.first
	}
	if m.nodes != nil {
		for i := range len(text) {
			if !begins[text[i]] {
				continue
			}
			end, id = 0, -1
			node := int32(0)
			for j := i; j < len(text); j++ {
				next, ok := m.nodes[node].next[text[j]]
				if !ok {
					break
				}
				node = next
				if n := &m.nodes[node]; n.id >= 0 && (control || n.user) {
					end, id = j+1, n.id
				}
			}
			if id >= 0 {
				return i, end, id
			}
		}
	}
	return len(text), len(text), -1
}
