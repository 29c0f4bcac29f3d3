package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/troupe-llm/troupe/model/fetch"
)

// habit is a flag of vLLM's or llama.cpp's that Troupe does not have.
type habit struct {
	names []string
	// flags are Troupe's for the same, the nearest first; of these the command at hand has some, or none.
	flags []string
	// how is what to write with Troupe's flag, when the name alone does not say it.
	how string
	// why is what there is to know where the command has none of flags.
	why string
}

// habits are the flags that hands type which know vLLM (docs.vllm.ai, "Engine arguments") or llama.cpp
// (tools/server/README.md). A test keeps it from naming flags that Troupe has, or has not.
var habits = []habit{
	{names: []string{"--ctx-size", "-c", "--max-seq-len"}, flags: []string{"--max-model-len"}},
	{names: []string{"--kv-cache-memory"}, flags: []string{"--kv-cache-memory-bytes"}},
	{names: []string{"--cache-type-k", "-ctk", "--cache-type-v", "-ctv"}, flags: []string{"--kv-cache-dtype"}},
	{names: []string{"--parallel", "-np"}, flags: []string{"--max-num-seqs"}},
	{names: []string{"--batch-size", "-b", "--ubatch-size", "-ub"}, flags: []string{"--max-num-batched-tokens"}},
	{names: []string{"-t", "--threads-batch", "-tb"}, flags: []string{"--threads"}},
	{names: []string{"--alias", "-a"}, flags: []string{"--served-model-name"}},
	{names: []string{"--n-predict", "--predict", "-n"}, flags: []string{"--max-tokens"}, why: "each request sets max_tokens"},
	{names: []string{"--temp", "--temperature"}, flags: []string{"--temperature"}, why: "each request sets its temperature"},
	{names: []string{"--chat-template-file"}, flags: []string{"--chat-template"}},
	{names: []string{"--ssl-cert-file"}, flags: []string{"--ssl-certfile"}},
	{names: []string{"--ssl-key-file"}, flags: []string{"--ssl-keyfile"}},
	{names: []string{"--timeout", "-to"}, flags: []string{"--request-timeout"}},
	{names: []string{"--verbose", "-v"}, flags: []string{"--log-level"}, how: "as in --log-level debug"},
	{names: []string{"--disable-log-requests", "--no-enable-log-requests", "--log-disable"}, flags: []string{"--request-log"}, how: "as in --request-log none"},
	{names: []string{"--metrics"}, flags: []string{"--metrics"}, why: "/metrics is always there"},

	{names: []string{"-dp"}, flags: []string{"--data-parallel-size"}},
	{names: []string{"-tp", "-pp", "--tensor-split", "-ts", "--split-mode", "-sm"}, why: "a model is not divided among devices; --data-parallel-size N puts the whole model on each of N"},
	{names: []string{"--gpu-layers", "--n-gpu-layers", "-ngl"}, why: "all layers are on the device that --device names"},
	{names: []string{"--cpu-offload-gb", "--swap-space"}, why: "weights stay on the device, and a sequence that loses its place is computed again"},
	{names: []string{"--dtype"}, flags: []string{"--quantization"}, how: "of safetensors, which are computed with as they are without it; a GGUF file's type is chosen by the name, as in org/repo:Q8_0",
		why: "a model's weights are computed with as they are"},
	{names: []string{"--hf-repo", "-hf", "-hfr", "--hf-file", "-hff"}, why: "a model on the hub is named without a flag, as org/repo or org/repo/file.gguf"},
	{names: []string{"--revision"}, why: "it is part of the model's name, as in org/repo@REVISION"},
	{names: []string{"--tokenizer", "--trust-remote-code"}, why: "a GGUF file has its tokenizer in it, and no code of a model's is run"},
	{names: []string{"--download-dir"}, why: "HF_HOME and " + fetch.CacheVariable + " in the environment say where models are kept"},
	{names: []string{"--enable-chunked-prefill", "--cont-batching", "-cb", "--jinja"}, why: "it is always so"},
	{names: []string{"--enforce-eager", "--flash-attn", "-fa", "--mlock", "--no-mmap"}, why: "there is nothing to choose"},
	{names: []string{"--enable-lora", "--lora-modules", "--lora"}, why: "adapters are not served"},
	{names: []string{"--speculative-config", "--model-draft", "-md"}, why: "there is no speculative decoding from the command line"},
}

// unknownFlag adds to an error of parsing what to write instead of a flag of another program's. It
// returns err itself where there is nothing to say.
func unknownFlag(err error, args []string) error {
	var parsing *kong.ParseError
	text, isUnknown := strings.CutPrefix(err.Error(), "unknown flag ")
	if !isUnknown || !errors.As(err, &parsing) || parsing.Context == nil || parsing.Context.Selected() == nil {
		return err
	}
	unknown, _, _ := strings.Cut(text, ",") // what follows are guesses
	node := parsing.Context.Selected()
	for i, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		// Of -ngl a parser that knows none of its letters names the first.
		if name != unknown && (len(unknown) != 2 || strings.HasPrefix(name, "--") || !strings.HasPrefix(name, "-") || !strings.Contains(name[1:], unknown[1:])) {
			continue
		}
		if name == "-m" || name == "--model" {
			if !given && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				value = args[i+1]
			}
			if value == "" {
				value = "MODEL"
			}
			if takesModel(node) {
				return fmt.Errorf("unknown flag %s: the model is named without one: %s %s", name, node.FullPath(), value)
			}
		}
		if instead := insteadOf(name, node); instead != "" {
			return fmt.Errorf("unknown flag %s: %s", name, instead)
		}
	}
	return err
}

// insteadOf says what a command has in place of another program's flag; empty: it is not known.
func insteadOf(name string, node *kong.Node) string {
	for _, h := range habits {
		for _, n := range h.names {
			if n != name {
				continue
			}
			for _, f := range h.flags {
				if !hasFlag(node, f) {
					continue
				}
				if h.how != "" {
					return fmt.Sprintf("Troupe's is %s, %s", f, h.how)
				}
				return "Troupe's is " + f
			}
			if h.why != "" {
				return "Troupe has no such flag: " + h.why
			}
			return ""
		}
	}
	return ""
}

// modelFlag is the error of --model where there is no --url: there it means one of a server's.
func modelFlag(given *kong.Context, name string) error {
	return fmt.Errorf("--model is for a server, which --url names; a model in this process is named without a flag: %s %s", given.Selected().FullPath(), name)
}

func hasFlag(node *kong.Node, name string) bool {
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if "--"+f.Name == name {
				return true
			}
		}
	}
	return false
}

// takesModel says whether a command's argument is a model.
func takesModel(node *kong.Node) bool {
	for _, a := range node.Positional {
		if a.Name == "model" {
			return true
		}
	}
	return false
}
