package lifecycle

// Params says how to choose tokens and when to stop. It is immutable once submitted and shared by
// the sequences of a request.
type Params struct {
	// Temperature divides the logits; 0 is greedy (argmax, ties to the lowest id).
	Temperature float32
	TopK        int     // keep the k likeliest; 0 keeps all
	TopP        float32 // keep the smallest set whose probability reaches TopP; 1 keeps all
	MinP        float32 // drop tokens less likely than MinP × the likeliest; 0 keeps all
	// Seed keys the random draws, with the choice index and the position: the same seed gives the
	// same tokens whatever else is in the batch. The parser fills it at random when the client
	// gave none.
	Seed uint64

	RepetitionPenalty float32 // 1 is off; over prompt and output
	PresencePenalty   float32 // 0 is off; over the output
	FrequencyPenalty  float32 // 0 is off; over the output

	LogitBias []Bias  // added to the logits, sorted by ID; −Inf bans
	Allowed   []int32 // when not nil, only these ids may be sampled; sorted

	// Logprobs is how many alternatives to return with each token's log probability: −1 none at
	// all, 0 the token's own.
	Logprobs int
	// PromptLogprobs is the same for the prompt's tokens; ≥ 0 bypasses reading the prefix cache.
	PromptLogprobs int

	MaxTokens    int // at least 1, except with an echo of the prompt alone (0)
	MinTokens    int // no end before this many
	IgnoreEOS    bool
	StopTokenIDs []int32 // end after one of these, besides the model's own end tokens

	// The rest concerns text and is the request actor's own business.
	Stop              []string // end before any of these strings
	IncludeStop       bool     // leave the stop string in the text
	SkipSpecialTokens bool     // leave special tokens out of the text
}

// Bias is added to one token's logit.
type Bias struct {
	ID    int32
	Value float32
}

// Penalised says whether sampling needs the tokens so far.
func (p *Params) Penalised() bool {
	return p.RepetitionPenalty != 1 && p.RepetitionPenalty != 0 || p.PresencePenalty != 0 || p.FrequencyPenalty != 0
}
