package lifecycle

// Request is one client request, validated and tokenised: what transport (or the bench) makes and
// the request actor carries out. It is immutable once started.
type Request struct {
	ID         uint64 // unique per process
	ExternalID string // the id that the client sees, such as "chatcmpl-…"
	Endpoint   string // "chat", "completion", "responses", "bench": a bounded set
	Model      string // as served
	KeyName    string // the name of the API key used, never the key; empty without keys
	ClientID   string // the client's own X-Request-Id; may be empty
	Peer       string // the client's address; may be empty
	// TraceParent and TraceState are W3C Trace Context's headers as the client sent them; empty when
	// it did not, or nobody traces.
	TraceParent, TraceState string

	Arrival  int64 // when the request's last byte was read
	Deadline int64 // 0: none
	Priority int

	// Prompts are the tokenised prompts, at least one; each yields N sequences. Sequence index is
	// prompt index × N + choice.
	Prompts [][]int32
	N       int
	Params  *Params
	Stream  bool
	Salt    uint64
	// Echo says that the text begins with the prompt's.
	Echo bool
}

// Sequences is the number of choices that the request yields.
func (r *Request) Sequences() int { return len(r.Prompts) * r.N }

// PromptTokens counts the prompt tokens, each prompt once, whatever N.
func (r *Request) PromptTokens() int {
	n := 0
	for _, p := range r.Prompts {
		n += len(p)
	}
	return n
}

// Delta is what one Tokens message added to one choice. It is valid during the call that brings it.
type Delta struct {
	Choice int
	// First says that it is the choice's first delta.
	First bool
	// Text is what became certain: whole characters, nothing that may still turn out to be part of
	// a stop string. It may be empty. Always valid UTF-8.
	Text string
	// IDs are the tokens, and Logprobs their log probabilities when asked for.
	IDs      []int32
	Logprobs []TokenLogprob
	// PromptScores are the prompt's log probabilities (Params.PromptLogprobs ≥ 0), on the first
	// delta: one for each prompt token but the first, which nothing precedes.
	PromptScores []TokenLogprob
	// Reason is not empty on the choice's last delta.
	Reason Reason
	// StopString or StopToken say which stop it was; "" and −1 otherwise.
	StopString string
	StopToken  int32
	// Usage is what the whole request has used so far.
	Usage Usage
	// Metrics and Detail are the choice's own, on its last delta, in a stream of several choices of which
	// details are asked for; nil otherwise. Choice has the same.
	Metrics *Metrics
	Detail  *Detail
}

// Usage counts tokens.
type Usage struct {
	Prompt     int // each prompt once, whatever n
	Cached     int // prompt tokens that came from the prefix cache
	Completion int // generated, over all choices
	Reasoning  int // generated within a reasoning section
}

// Choice is one finished sequence.
type Choice struct {
	Text         string
	IDs          []int32
	Logprobs     []TokenLogprob
	PromptScores []TokenLogprob
	Reason       Reason
	StopString   string
	StopToken    int32 // −1 unless a stop token id ended it
	Metrics      Metrics
	// Detail is this sequence's own; nil unless details are asked for.
	Detail *Detail
}

// Response ends a request. Exactly one is made per request that had an actor.
type Response struct {
	Choices []Choice
	Usage   Usage
	// Metrics are the request's; meaningful for a single sequence (see the contract for n > 1).
	Metrics Metrics
	// Detail is the request's; nil unless details are asked for.
	Detail *Detail
	// Err is not nil when the request failed or was refused; Choices then hold what there was.
	Err *Error
	// Wall is the wall clock, in nanoseconds since 1970, when the last sequence ended.
	Wall int64
}

// Delivered is what a sink tells the request actor, once: that all has been written, or that it
// never will be.
type Delivered struct {
	At    int64
	Bytes int64 // written to the client
	Err   error // nil: the client has it all
	// Slow says that it never will because the client did not read: it was cut off after the end.
	Slow bool
}

// Gone is what a sink tells the request actor when the client has left before the end.
type Gone struct {
	At int64
	// Slow says that the client was cut off because it did not read, and Since when it last did; 0
	// otherwise.
	Slow  bool
	Since int64
}
