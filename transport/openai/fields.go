package openai

import "github.com/troupe-llm/troupe/lifecycle"

// What becomes of each field of a request is said in one of three places: the parsers read the
// fields that are honoured; Ignored lists those that are accepted and change nothing; refused and
// its like below list those that would change the answer if they were honoured, and so get a 400
// unless they ask for nothing. All others are unknown, and ignored, as OpenAI's and vLLM's servers
// do.

// IgnoredField is a request field that is accepted and has no effect.
type IgnoredField struct {
	Name, Why string
}

// Ignored lists the fields that OpenAI's and vLLM's clients send and that need no honouring.
var Ignored = []IgnoredField{
	{"user", "identifies an end user to OpenAI's abuse detection; echoed by the Responses API"},
	{"safety_identifier", "as user"},
	{"prompt_cache_key", "a routing hint; the prefix cache finds equal prefixes without it"},
	{"prompt_cache_retention", "a retention hint; blocks stay cached until they are needed"},
	{"prompt_cache_options", "as prompt_cache_retention"},
	{"session_id", "a routing hint for several servers"},
	{"metadata", "kept by OpenAI with stored completions; echoed by the Responses API"},
	{"store", "chat and completions are never stored; the Responses API honours it"},
	{"service_tier", "there is one tier"},
	{"parallel_tool_calls", "tools are not called"},
	{"max_tool_calls", "as parallel_tool_calls; echoed by the Responses API"},
	{"tool_choice", "without tools, or \"none\": tools are not called"},
	{"prediction", "a hint for speed, not for the text"},
	{"verbosity", "a hint that only models trained for it understand"},
	{"include_reasoning", "there is no reasoning section to leave out"},
	{"moderation", "no moderation is applied"},
	{"length_penalty", "belongs to beam search, which is refused"},
	{"early_stopping", "as length_penalty"},
	{"spaces_between_special_tokens", "only concerns tokenizers that vLLM calls slow"},
	{"watermarking", "no watermark is configured"},
	{"stream_interval", "each step's tokens leave at once, in a frame of their own"},
	{"media_io_kwargs", "concerns images, audio and video, which are refused where they occur"},
	{"mm_processor_kwargs", "as media_io_kwargs"},
	{"mm_payload", "as media_io_kwargs"},
	{"return_mm_kwargs", "as media_io_kwargs"},
	{"return_token_offsets", "concerns vLLM's render endpoints alone"},
	{"routed_experts_prompt_start", "no routing of experts is returned"},
	{"vllm_xargs", "arguments of extensions, of which there are none"},
	{"guided_decoding_backend", "chooses how to constrain, constrains nothing by itself"},
	{"guided_whitespace_pattern", "as guided_decoding_backend"},
	{"enable_response_messages", "a debugging aid of vLLM's Responses API"},
}

// refusal is a field that is refused unless its value asks for nothing.
type refusal struct {
	name string
	// nothing says whether a value that is not null asks for nothing; nil: none does.
	nothing func(raw []byte) bool
	// say follows the field's name in the message.
	say string
}

const noConstraints = "is not supported: this server does not constrain the output's form"

// refused holds for all endpoints.
var refused = []refusal{
	{"response_format", isTextFormat, `is not supported beyond {"type": "text"}: this server does not constrain the output's form`},
	{"structured_outputs", nil, noConstraints},
	{"guided_json", nil, noConstraints},
	{"guided_regex", nil, noConstraints},
	{"guided_choice", nil, noConstraints},
	{"guided_grammar", nil, noConstraints},
	{"grammar", isEmpty, noConstraints},
	{"json_schema", nil, noConstraints},
	{"use_beam_search", isFalse, "is not supported: only sampling is"},
	{"logits_processors", isEmpty, "is not supported"},
	{"logprob_token_ids", isEmpty, "is not supported: use top_logprobs or logprobs"},
	{"bad_words", isEmpty, "is not supported: use logit_bias"},
	{"repetition_detection", nil, "is not supported"},
	{"thinking_token_budget", isMinusOne, "is not supported"},
	{"prompt_embeds", isEmpty, "is not supported: send text or token ids"},
	{"lora", isEmpty, "is not supported: no adapters are served"},
	{"lora_request", nil, "is not supported: no adapters are served"},
	{"kv_transfer_params", isEmpty, "is not supported"},
	{"ec_transfer_params", isEmpty, "is not supported"},
	{"chat_template", nil, "is not accepted in a request: a template is code; start the server with --chat-template"},
	{"functions", isEmpty, "is not supported: this server does not call functions"},
	{"function_call", isNone, "is not supported: this server does not call functions"},
	{"web_search_options", nil, "is not supported: this server does not search the web"},
	{"modalities", isTextOnly, `is not supported beyond ["text"]`},
	{"audio", nil, "is not supported: this server writes text"},
}

// refusedCompletion holds for /v1/completions besides.
var refusedCompletion = []refusal{
	{"suffix", isEmpty, "is not supported: this server does not fill in the middle"},
}

// refusedResponse holds for /v1/responses besides.
var refusedResponse = []refusal{
	{"background", isFalse, "is not supported: wait for the response, or stream it"},
	{"context_management", isEmpty, "is not supported: send what the model is to see, or set truncation"},
	{"image", nil, "is not supported: this server writes text"},
	{"conversation", nil, "is not supported: use previous_response_id, or send the whole input"},
	{"prompt", nil, "is not supported: there are no prompt templates to refer to"},
	{"previous_input_messages", nil, "is not supported: send the whole input"},
	// Fields of the other endpoints.
	{"n", isOne, "is not supported here: a response has one output; send several requests"},
	{"best_of", isOne, "is not supported here: a response has one output"},
	{"max_tokens", nil, "is not a field of this endpoint: use max_output_tokens"},
	{"max_completion_tokens", nil, "is not a field of this endpoint: use max_output_tokens"},
	{"logprobs", isFalse, `is not a field of this endpoint: send include: ["message.output_text.logprobs"], and top_logprobs`},
	{"prompt_logprobs", nil, "is not supported here: use /v1/completions or /v1/chat/completions"},
	{"echo", isFalse, "is not supported here: use /v1/completions or /v1/chat/completions"},
	{"suffix", isEmpty, "is not supported: this server does not fill in the middle"},
	{"messages", nil, "is not a field of this endpoint: use input"},
	{"truncate_prompt_tokens", nil, `is not a field of this endpoint: use truncation "auto", which leaves out whole messages`},
	{"add_generation_prompt", isTrue, "is not a field of this endpoint: the output is always a message of its own, or continues an unfinished one"},
	{"continue_final_message", isFalse, `is not a field of this endpoint: give the last message the status "incomplete"`},
	{"add_special_tokens", isFalse, "is not supported here: the chat template adds what the model expects"},
	{"return_token_ids", isFalse, "is not supported here: use /v1/completions or /v1/chat/completions"},
	{"return_prompt_text", isFalse, "is not supported here: use /v1/chat/completions"},
}

// refuse fails the request when one of the fields asks for something.
func (r *reader) refuse(fields []refusal) {
	for _, f := range fields {
		if raw := r.raw(f.name); raw != nil && (f.nothing == nil || !f.nothing(raw)) {
			r.fail(&lifecycle.Error{Status: 400, Type: "invalid_request_error", Code: "unsupported_parameter",
				Param: f.name, Message: f.name + " " + f.say})
			return
		}
	}
}

func isFalse(raw []byte) bool    { return raw[0] == 'f' }
func isTrue(raw []byte) bool     { return raw[0] == 't' }
func isOne(raw []byte) bool      { v, ok := parseInt(raw); return ok && v == 1 }
func isMinusOne(raw []byte) bool { v, ok := parseInt(raw); return ok && v == -1 }

// isEmpty accepts an empty string, array or object.
func isEmpty(raw []byte) bool {
	switch kindOf(raw) {
	case kindString:
		return len(raw) == 2
	case kindArray, kindObject:
		s := scanner{data: raw, pos: 1}
		return s.peek() == ']' || s.peek() == '}'
	}
	return false
}

func isNone(raw []byte) bool { return kindOf(raw) == kindString && unquote(raw) == "none" }

// isTextFormat accepts {"type": "text"}.
func isTextFormat(raw []byte) bool {
	if kindOf(raw) != kindObject {
		return false
	}
	format := reader{}
	for name, v := range members(raw) {
		format.fields = append(format.fields, member{name, v})
	}
	t, _ := format.str("type")
	return t == "text"
}

// isTextOnly accepts ["text"] and [].
func isTextOnly(raw []byte) bool {
	if kindOf(raw) != kindArray {
		return false
	}
	for _, e := range elements(raw) {
		if kindOf(e) != kindString || unquote(e) != "text" {
			return false
		}
	}
	return true
}
