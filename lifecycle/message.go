package lifecycle

// SeqID names one sequence (one choice of one prompt) of one request within a process.
type SeqID struct {
	Request uint64 // unique per process, never reused
	Index   int32  // prompt index × n + choice index
}

// Head begins every message about a sequence.
type Head struct {
	ID SeqID
	// Epoch is the Submit.Epoch that the message answers. A message of an older epoch is late.
	Epoch uint32
	// Num counts the messages of an epoch from 1 upwards without gaps.
	Num uint32
	// At is when the event happened, by the sender's clock.
	At int64
}

// Message is what the batcher tells a request about one of its sequences. The implementations
// are *Scheduled, *Prefilled, *Tokens, *Preempted, *Resumed, *Finished and *Failed. A message is
// immutable once sent, and plain data: it could go over a wire.
type Message interface{ Header() *Head }

// Header returns the message's head.
func (h *Head) Header() *Head { return h }

// Submit asks the batcher to run a sequence, from the beginning or from where Output ends. The
// slices belong to the sender and must not change while the sequence is alive.
type Submit struct {
	ID    SeqID
	Epoch uint32 // raised by one with each Submit of the same sequence
	// Prompt and Output are the tokens so far; Output is empty unless the sequence resumes.
	Prompt, Output []int32
	Params         *Params
	// Priority orders the queue before arrival does: a lower value runs earlier (vLLM's sense).
	Priority int
	Arrival  int64
	Deadline int64 // 0: none
	// Group is the number of sequences of this request that share this Prompt, at least 1, so that
	// the scheduler may prefill it once and fork.
	Group int
	// Salt separates prefix caches: blocks are shared only among sequences of equal Salt.
	Salt uint64
}

// Cancel ends a sequence early. The batcher answers with Finished{Reason: ReasonCancelled}, unless
// the sequence has already ended or was never known: then with nothing.
type Cancel struct {
	ID    SeqID
	Epoch uint32
}

// Scheduled says that a sequence is in a step for the first time (of its epoch). It is sent before
// the step runs.
type Scheduled struct {
	Head
	// Cached is how many prompt tokens came from the prefix cache, and so need no compute.
	Cached int
	// WaitedSlot and WaitedBlocks are the parts of the wait during which this sequence, though next
	// in line or behind the next, could not start for want of a sequence slot (or token budget), or
	// of KV cache blocks. Their sum is at most the wait.
	WaitedSlot, WaitedBlocks int64
	// WaitedBudget is the part of WaitedSlot during which there were slots, but no tokens left in
	// the steps' budget.
	WaitedBudget int64
	// Slots is how many sequences can run at a time, and Ahead how many waited before this one when
	// it was submitted.
	Slots, Ahead int
}

// Prefilled says that a chunk of the prompt (or, after a preemption, of prompt and output) has been
// computed.
type Prefilled struct {
	Head
	Step   *Step
	Tokens int  // computed in this chunk
	Last   bool // the next token was sampled in the same step
	// Scores holds the prompt's own log probabilities, for the chunk's tokens, when
	// Params.PromptLogprobs ≥ 0: the first entry is for prompt position ScoreFrom.
	ScoreFrom int
	Scores    []TokenLogprob
}

// Tokens brings the tokens that one step sampled for the sequence: one, or several with
// speculative decoding, all stamped At.
type Tokens struct {
	Head
	Step *Step
	IDs  []int32
	// Logprobs has an entry per ID when Params.Logprobs ≥ 0, else it is nil.
	Logprobs []TokenLogprob
	// Drafted and Accepted count draft tokens verified in the step; zero without speculation.
	Drafted, Accepted int
	// Reason is not empty on the message with the sequence's last token: the sequence has then
	// ended and no Finished follows.
	Reason Reason
	// StopToken is the id that ended the sequence when Reason is ReasonStop, and -1 otherwise.
	StopToken int32
}

// Preempted says that the sequence lost its place: it will be computed again.
type Preempted struct {
	Head
	Why Why
}

// Resumed says that a preempted sequence is in a step again.
type Resumed struct {
	Head
	Cached int // tokens found in the cache instead of being recomputed
}

// Finished ends a sequence without a token: cancelled, or out of time.
type Finished struct {
	Head
	Reason Reason
}

// Failed ends a sequence because the device could not compute it.
type Failed struct {
	Head
	Err *Error
}

// Why says what made a sequence lose its place.
type Why string

// The causes of Preempted.
const (
	WhyBlocks  Why = "kv_blocks"      // another sequence needed its cache blocks
	WhyDevice  Why = "device_restart" // the device failed and was reopened
	WhyBatcher Why = "batcher_lost"   // the batcher restarted; the request submitted again
)

// Reason says how a sequence ended.
type Reason string

// The reasons. Only stop, length, abort and error are Prometheus label values.
const (
	ReasonStop      Reason = "stop"      // end of sequence, stop token or stop string
	ReasonLength    Reason = "length"    // max_tokens, or the context is full
	ReasonCancelled Reason = "cancelled" // the request asked for it
	ReasonTimeout   Reason = "timeout"   // its deadline passed
	ReasonAbort     Reason = "abort"     // the client has gone
	ReasonError     Reason = "error"     // it failed
)

// Step is what one step of the device was. It is allocated once a step, shared by all messages of
// the step, and immutable once sent.
type Step struct {
	Num           uint64
	Start, End    int64
	Sequences     int // sequences in the step
	PrefillTokens int // prompt tokens computed
	DecodeTokens  int // positions computed for sequences past their prompt
	// Baseline is the running median duration of pure decode steps of similar size, in
	// nanoseconds; 0 while too few were seen.
	Baseline int64
}

// TokenLogprob is a token's log probability (natural log, of the model's unmodified distribution),
// its rank (1 is the most likely) and the most likely alternatives, best first.
type TokenLogprob struct {
	ID      int32
	Logprob float32
	Rank    int32
	Top     []IDLogprob
}

// IDLogprob is one alternative.
type IDLogprob struct {
	ID      int32
	Logprob float32
}

// Error is a failure as a client may see it.
type Error struct {
	Status  int    // the HTTP status that fits
	Type    string // OpenAI's error type, such as "invalid_request_error" or "server_error"
	Code    string // a short machine-readable word; may be empty
	Param   string // the request field at fault; may be empty
	Message string // what was wrong, where, and what to do
}

func (e *Error) Error() string { return e.Message }
