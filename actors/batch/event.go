package batch

import "github.com/troupe-llm/troupe/lifecycle"

// Event is a message for a sequence's owner.
type Event struct {
	Owner any
	Msg   lifecycle.Message
	// Released says that the owner has no sequence left in the scheduler after this message.
	Released bool
}

// Events returns what has happened since the last call, in order, for the caller to send. The slice
// is valid until the next call; the scheduler may be used meanwhile. Messages are allocated anew
// each step, and are the receiver's for good.
func (s *Scheduler) Events() []Event {
	out := s.events
	clear(s.sent)
	s.events, s.sent = s.sent[:0], out
	return out
}

// head makes the head of q's next message.
func (q *sequence) head(at int64) lifecycle.Head {
	q.num++
	return lifecycle.Head{ID: q.sub.ID, Epoch: q.sub.Epoch, Num: q.num, At: at}
}

func (s *Scheduler) emit(q *sequence, m lifecycle.Message) {
	s.events = append(s.events, Event{Owner: q.owner, Msg: m})
}

// emitLast emits the message that ends q, which has been removed.
func (s *Scheduler) emitLast(q *sequence, m lifecycle.Message) {
	_, more := s.owners[q.owner]
	s.events = append(s.events, Event{Owner: q.owner, Msg: m, Released: !more})
}
