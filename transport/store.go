package transport

import (
	"container/list"
	"sync"

	"github.com/troupe-llm/troupe/transport/openai"
)

// store keeps finished responses for GET /v1/responses/{id}, in memory, within a number and a sum
// of bytes. What has not been used for longest goes first.
//
// Each response belongs to the API key that asked for it, and is not there for the others, not even as
// an id that is taken. Without keys all clients are one owner.
type store struct {
	maxCount int
	maxBytes int64

	mu    sync.Mutex
	bytes int64
	order list.List // of *kept, most recently used first
	byID  map[storedID]*list.Element
	// promised are the ids of responses being made.
	promised map[storedID]struct{}
}

// storedID is what a response is found by: clients choose ids, so one alone is not enough.
type storedID struct {
	owner string // the key's name
	id    string
}

// kept is a stored response and what it takes, roughly: the response, and the conversation up to it,
// which a later request may continue.
type kept struct {
	*openai.Stored
	owner string
	size  int64
}

// keptOverhead is what a stored response takes besides its text.
const keptOverhead = 512

func newStore(maxCount int, maxBytes int64) *store {
	return &store{maxCount: maxCount, maxBytes: maxBytes, byID: map[storedID]*list.Element{}, promised: map[storedID]struct{}{}}
}

// promise takes an id for a response of owner's that is about to be made. It is false when the owner
// has a response of that id, or is getting one. Who is promised an id calls release in the end.
func (st *store) promise(owner, id string) bool {
	at := storedID{owner, id}
	st.mu.Lock()
	defer st.mu.Unlock()
	if _, taken := st.promised[at]; taken || st.byID[at] != nil {
		return false
	}
	st.promised[at] = struct{}{}
	return true
}

// release gives a promised id back. What was put under it meanwhile stays.
func (st *store) release(owner, id string) {
	st.mu.Lock()
	delete(st.promised, storedID{owner, id})
	st.mu.Unlock()
}

// put keeps s for owner, unless s, whose conversation has so many bytes, is alone more than the store
// holds.
func (st *store) put(owner string, s *openai.Stored, conversation int64) {
	k := &kept{s, owner, int64(len(s.ID)+len(s.Body)) + conversation + keptOverhead}
	st.mu.Lock()
	defer st.mu.Unlock()
	at := storedID{owner, s.ID}
	if old := st.byID[at]; old != nil {
		st.remove(old)
	}
	if k.size > st.maxBytes || st.maxCount < 1 {
		return
	}
	st.byID[at] = st.order.PushFront(k)
	st.bytes += k.size
	for st.order.Len() > st.maxCount || st.bytes > st.maxBytes {
		st.remove(st.order.Back())
	}
}

// get returns owner's response with the id; nil when there is none.
func (st *store) get(owner, id string) *kept {
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.byID[storedID{owner, id}]
	if e == nil {
		return nil
	}
	st.order.MoveToFront(e)
	return e.Value.(*kept)
}

// delete forgets owner's response with the id and says whether there was one.
func (st *store) delete(owner, id string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.byID[storedID{owner, id}]
	if e != nil {
		st.remove(e)
	}
	return e != nil
}

func (st *store) remove(e *list.Element) {
	k := st.order.Remove(e).(*kept)
	st.bytes -= k.size
	delete(st.byID, storedID{k.owner, k.ID})
}
