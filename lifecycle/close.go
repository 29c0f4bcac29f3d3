package lifecycle

// Ending is what closes a request's books besides its sequences.
type Ending struct {
	Outcome  Outcome
	Status   int
	Err      *Error
	Finished int64 // when the last sequence ended, or the request was refused
	// Delivered and Bytes are the sink's; Delivered is 0 when it never came to that.
	Delivered int64
	Bytes     int64
	Wall      int64 // wall clock at arrival, nanoseconds since 1970
	// StalledSince is when a client that was cut off for not reading last did read, 0 for others.
	StalledSince int64
	// Method and Path are for requests that were refused before they could be parsed.
	Method, Path string
}

// Close makes a request's Record. It is the one function by which every ending becomes a Record:
// done, cancelled, client gone, failed, timed out, and, with no sequences, refused. req must not
// be nil; seqs may be empty.
func Close(req *Request, seqs []Sequence, e Ending) *Record {
	r := &Record{
		Request: req, Method: e.Method, Path: e.Path,
		Outcome: e.Outcome, Status: e.Status, Err: e.Err, StopToken: -1,
		Arrival: req.Arrival, Finished: e.Finished, Delivered: e.Delivered, Wall: e.Wall,
		BytesOut: e.Bytes, Sequences: len(seqs),
	}
	if e.Outcome != OutcomeRefused {
		r.Usage = Total(req, seqs)
	}
	if len(seqs) > 1 {
		r.Reasons = make([]Reason, len(seqs))
	}
	for i := range seqs {
		s := &seqs[i]
		if r.Reasons != nil {
			r.Reasons[i] = s.Reason
		}
		r.Discarded += s.Discarded
		r.Drafted += s.Drafted
		r.Accepted += s.Accepted
		r.Longest = max(r.Longest, s.Tokens)
	}
	t := Whole(seqs)
	r.Queued, r.Scheduled, r.FirstToken, r.LastToken = t.Queued, t.Scheduled, t.FirstToken, t.LastToken
	r.Metrics = t.Metrics()
	r.Detail = Details(req, seqs, e.Finished)
	if e.Finished > 0 {
		r.Detail.Slowed.SlowClient = max(e.Delivered-e.Finished, 0)
	}
	if e.StalledSince > 0 {
		// The stall may overlap what else slowed the request: the parts never exceed the whole.
		sl := &r.Detail.Slowed
		rest := r.Detail.EndToEnd - sl.QueueCapacity - sl.QueueKV - sl.PrefillOfOthers - sl.Preemption - sl.DeviceRestart
		sl.SlowClient += min(max(e.Finished-e.StalledSince, 0), max(rest, 0))
	}
	r.Timeline = timeline(seqs, &e)
	if len(seqs) > 0 {
		r.StopToken = seqs[0].StopToken
	}
	return r
}

// Total counts a request's tokens: each prompt once whatever n, the completion over all choices.
func Total(req *Request, seqs []Sequence) Usage {
	u := Usage{Prompt: req.PromptTokens()}
	for i := range seqs {
		u.Completion += seqs[i].Tokens
		if req.N > 0 && i%req.N == 0 {
			u.Cached += seqs[i].Cached
		}
	}
	return u
}

// Whole returns the timing of a request as a whole: the earliest of the first three stamps over
// its sequences, the latest of the last, and all tokens.
func Whole(seqs []Sequence) Timing {
	var t Timing
	for i := range seqs {
		s := &seqs[i]
		t.Queued = earliest(t.Queued, s.Queued)
		t.Scheduled = earliest(t.Scheduled, s.Scheduled)
		t.FirstToken = earliest(t.FirstToken, s.FirstToken)
		t.LastToken = max(t.LastToken, s.LastToken)
		t.Tokens += s.Tokens
	}
	return t
}

func earliest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Details computes what the mean hides, at the time now (the request's end, or the response's).
// Sums over sequences count each sequence; what slowed the request is that of the sequence that
// ended last, since the others did not hold it up.
func Details(req *Request, seqs []Sequence, now int64) Detail {
	t := Whole(seqs)
	d := Detail{ArrivalToFirstToken: -1, Prefill: -1, EndToEnd: max(now-req.Arrival, 0)}
	if t.FirstToken != 0 {
		d.ArrivalToFirstToken = max(t.FirstToken-req.Arrival, 0)
		d.Prefill = t.FirstToken - t.Scheduled
	}
	d.Cached = Total(req, seqs).Cached
	slowest := -1
	for i := range seqs {
		s := &seqs[i]
		d.PrefillTokens += s.PrefillTokens
		d.Preemptions += s.Preemptions
		d.Preempted += s.Preempted
		d.Steps += s.Steps
		d.BatchSum += s.BatchSum
		if slowest < 0 || s.Ended > seqs[slowest].Ended {
			slowest = i
		}
	}
	q, n := Quantiles(seqs, 0.5, 0.9, 0.99, 1)
	d.ITLP50, d.ITLP90, d.ITLP99, d.ITLMax, d.ITLCount = q[0], q[1], q[2], q[3], n
	if slowest >= 0 {
		s := &seqs[slowest]
		d.Slowed = Slowed{QueueCapacity: s.QueueCapacity, QueueKV: s.QueueKV, PrefillOfOthers: s.PrefillOfOthers,
			Preemption: s.PreemptedBlocks, DeviceRestart: s.PreemptedDevice}
	}
	return d
}
