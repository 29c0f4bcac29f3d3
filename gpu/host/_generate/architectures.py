"""Writes ../devicetest/architectures: log probabilities of small models of every architecture, computed by
Hugging Face's implementations in float64, with weights that this and devicetest.Drawn draw alike. A
case has the metadata and tensors that llama.cpp's converter gives such a model, whose transformations
(reordered rows, 1 added to Gemma's norms, stacked experts) are undone here. Run it in this folder's parent
with

    pip install torch==2.15.0 transformers==5.24.0 gguf==0.19.0
    python3 _generate/architectures.py [NAME ...]
"""

import json
import math
import os
import sys

import gguf
import numpy as np
import torch
import transformers

VOCAB = 320
torch.set_grad_enabled(False)
torch.set_num_threads(1)


def drawn(name, shape, scale, offset):
    """As devicetest.Drawn draws; shape is numpy's, the reverse of GGUF's."""
    state = 14695981039346656037
    for byte in name.encode():
        state = (state ^ byte) * 1099511628211 % 2**64
    n = math.prod(shape)
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    unit = (z.view(np.int64) >> 11).astype(np.float64) * (2.0**-52 * 1.7320508075688772)
    return (offset + unit * scale).astype(np.float32).reshape(shape)


class Case:
    def __init__(self, name, arch, config, metadata=None, tokens=60, values=None):
        self.name, self.arch, self.config, self.tokens = name, arch, config, tokens
        self.metadata, self.values = metadata or {}, values or {}

    def tensor(self, name, shape):
        """A tensor of the GGUF file, whose shape is given as numpy's, and how it is drawn."""
        if name in self.values:
            self.tensors.append({"name": name, "shape": list(reversed(shape)), "values": self.values[name]})
            return np.array(self.values[name], dtype=np.float32)
        scale, offset = 1.5 / math.sqrt(shape[-1]), 0.0
        if name.endswith("norm.weight"):
            scale, offset = 0.2, 1.0
        elif name.endswith(".bias"):
            scale = 0.3
        elif name == "token_embd.weight":
            scale = 1.0 / math.sqrt(shape[-1]) if "gemma" in self.arch else 0.5
        elif name == "output.weight":
            scale = 3.0 / math.sqrt(shape[-1])
        elif "gate_inp" in name:
            scale = 3.0 / math.sqrt(shape[-1])
        self.tensors.append({"name": name, "shape": list(reversed(shape)), "scale": scale, "offset": offset})
        return drawn(name, shape, scale, offset)

    def parameter(self, names, name, p):
        """What a parameter of the transformers model is, from the file's tensors."""
        shape = tuple(p.shape)
        layer = name.split(".")[2] if ".layers." in name else ""
        if name.endswith("experts.gate_up_proj"):  # {expert, gate then up, input}
            half = (shape[0], shape[1] // 2, shape[2])
            return np.concatenate([self.tensor(f"blk.{layer}.ffn_{w}_exps.weight", half) for w in ("gate", "up")], axis=1)
        if name.endswith("experts.down_proj"):
            return self.tensor(f"blk.{layer}.ffn_down_exps.weight", shape)
        if name.endswith("mlp.gate.weight") and len(shape) == 2:
            return self.tensor(f"blk.{layer}.ffn_gate_inp.weight", shape)
        if name.endswith("shared_expert_gate.weight"):
            return self.tensor(f"blk.{layer}.ffn_gate_inp_shexp.weight", shape[1:])[None]
        stem, _, ending = name.rpartition(".")
        found = names.get_name(stem)
        if found is None:
            raise KeyError(f"{self.name}: no tensor for {name}")
        w = self.tensor(f"{found}.{ending}", shape)
        heads = {"q_proj": self.config.num_attention_heads, "k_proj": self.config.num_key_value_heads}.get(stem.rpartition(".")[2])
        if self.arch in ("llama", "smollm3") and heads:  # neighbours become halves
            w = w.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        if self.arch.startswith("gemma") and name.endswith("norm.weight"):
            w = w.astype(np.float64) - 1
        return w

    def write(self):
        c = self.config
        self.tensors = []
        c.vocab_size = VOCAB
        c._experts_implementation = "eager"  # the others have no float64
        model = transformers.AutoModelForCausalLM.from_config(c, attn_implementation="eager").double().eval()
        kind = [k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == self.arch][0]
        names = gguf.get_tensor_name_map(kind, c.num_hidden_layers)
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(np.ascontiguousarray(self.parameter(names, name, p)).astype(np.float64)))
        for name in sorted(self.values):
            if name not in [t["name"] for t in self.tensors]:
                self.tensor(name, (len(self.values[name]),))
        tokens = np.random.default_rng(len(self.name)).integers(0, VOCAB, self.tokens).tolist()
        lp = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1).numpy()
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        p = self.arch + "."
        metadata = {
            "general.architecture": self.arch,
            p + "block_count": c.num_hidden_layers,
            p + "context_length": c.max_position_embeddings,
            p + "embedding_length": c.hidden_size,
            p + "feed_forward_length": c.intermediate_size,
            p + "attention.head_count": c.num_attention_heads,
            p + "attention.head_count_kv": c.num_key_value_heads,
            p + "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
            p + "attention.key_length": head_dim,
            p + "attention.value_length": head_dim,
        }
        metadata.update({k if k.startswith("general.") else p + k: v for k, v in self.metadata.items()})
        record = {
            "source": f"_generate/architectures.py: transformers {transformers.__version__}, {type(model).__name__}, float64",
            "metadata": metadata,
            "tensors": self.tensors,
            "tokens": tokens,
            "logprobs": [round(float(lp[i, tokens[i + 1]]), 6) for i in range(len(tokens) - 1)],
            "last": [round(float(v), 6) for v in lp[-1]],
        }
        with open(f"../devicetest/architectures/{self.name}.json", "w") as f:
            json.dump(record, f, separators=(",", ":"))
            f.write("\n")
        print(f"{self.name}: spread {lp[-1].std():.2f}, distinct {len(set(lp.argmax(-1)))} of {len(tokens)}")


# Sizes differ from each other, so that no two can be taken for each other.
size = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)
T = transformers
rope = lambda theta=10000.0, **more: dict(rope_parameters=dict({"rope_type": "default", "rope_theta": theta}, **more))


def llama3_factors(dim, base, factor, low, high, old):
    """rope_freqs.weight as the converter has it."""
    freqs = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    out = []
    for f in freqs.tolist():
        wavelength = 2 * math.pi / f
        if wavelength < old / high:
            out.append(1.0)
        elif wavelength > old / low:
            out.append(float(factor))
        else:
            smooth = (old / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return [float(np.float32(v)) for v in out]


long, short = [1.0, 1.25, 1.5, 2.0, 3.0, 5.0], [1.0, 1.0, 1.05, 1.1, 1.2, 1.3]
longrope = rope(rope_type="longrope", long_factor=long, short_factor=short, original_max_position_embeddings=64, partial_rotary_factor=0.75)
longrope_metadata = {
    "rope.dimension_count": 12, "rope.freq_base": 10000.0, "rope.scaling.original_context_length": 64, "attention.sliding_window": 0,
    "rope.scaling.attn_factor": math.sqrt(1 + math.log(512 / 64) / math.log(64)),
}
factors = {"rope_factors_long.weight": long, "rope_factors_short.weight": short}
experts = dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32)

cases = [
    Case("llama-linear", "llama", T.LlamaConfig(**size, **rope(rope_type="linear", factor=4.0)),
         {"rope.dimension_count": 16, "rope.freq_base": 10000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    Case("llama-factors", "llama", T.LlamaConfig(**size, **rope(500000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)),
         {"rope.dimension_count": 16, "rope.freq_base": 500000.0},
         values={"rope_freqs.weight": llama3_factors(16, 500000.0, 8.0, 1.0, 4.0, 64)}),
    Case("mistral", "llama", T.MistralConfig(**size, head_dim=32, sliding_window=24, **rope()),
         {"rope.dimension_count": 32, "rope.freq_base": 10000.0, "attention.sliding_window": 24}, tokens=150),
    Case("mixtral", "llama", T.MixtralConfig(**size, num_local_experts=5, num_experts_per_tok=2, sliding_window=None, **rope(1e6)),
         {"rope.dimension_count": 16, "rope.freq_base": 1e6, "expert_count": 5, "expert_used_count": 2}),
    Case("qwen2", "qwen2", T.Qwen2Config(**size, **rope(1e6)), {"rope.freq_base": 1e6}),
    Case("qwen2-yarn", "qwen2", T.Qwen2Config(**dict(size, tie_word_embeddings=True), **rope(1e6, rope_type="yarn", factor=4.0, original_max_position_embeddings=128)),
         {"rope.freq_base": 1e6, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}),
    Case("qwen2moe", "qwen2moe", T.Qwen2MoeConfig(**size, **experts, shared_expert_intermediate_size=64, norm_topk_prob=False, **rope(1e6)),
         {"rope.freq_base": 1e6, "expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64}),
    Case("qwen3", "qwen3", T.Qwen3Config(**size, head_dim=24, **rope(1e6)), {"rope.freq_base": 1e6}),
    Case("qwen3moe", "qwen3moe", T.Qwen3MoeConfig(**size, **experts, head_dim=32, norm_topk_prob=True, **rope(1e6)),
         {"rope.freq_base": 1e6, "expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 32}),
    Case("smollm3", "smollm3", T.SmolLM3Config(**dict(size, num_hidden_layers=5, tie_word_embeddings=True), no_rope_layer_interval=4, **rope(5e6)),
         {"rope.dimension_count": 16, "rope.freq_base": 5e6}),
    Case("phi3", "phi3", T.Phi3Config(**size, sliding_window=40, original_max_position_embeddings=512, **rope()),
         {"rope.dimension_count": 16, "rope.freq_base": 10000.0, "rope.scaling.original_context_length": 512, "attention.sliding_window": 40}, tokens=140),
    Case("phi3-long", "phi3", T.Phi3Config(**size, sliding_window=None, original_max_position_embeddings=64, partial_rotary_factor=0.75, **longrope), longrope_metadata, tokens=90, values=factors),
    Case("phi3-short", "phi3", T.Phi3Config(**size, sliding_window=None, original_max_position_embeddings=64, partial_rotary_factor=0.75, **longrope), longrope_metadata, tokens=60, values=factors),
    Case("gemma", "gemma", T.GemmaConfig(**dict(size, tie_word_embeddings=True), head_dim=32, **rope())),
    Case("gemma2", "gemma2", T.Gemma2Config(**dict(size, num_hidden_layers=3, tie_word_embeddings=True), head_dim=32, query_pre_attn_scalar=32, sliding_window=24,
                                            attn_logit_softcapping=5.0, final_logit_softcapping=3.0, **rope()),
         {"attention.sliding_window": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}, tokens=150),
    Case("gemma3", "gemma3", T.Gemma3TextConfig(**dict(size, num_hidden_layers=7, tie_word_embeddings=True), head_dim=32, query_pre_attn_scalar=32, sliding_window=24,
                                                rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
         {"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "attention.sliding_window": 24}, tokens=150),
]

os.makedirs("../devicetest/architectures", exist_ok=True)
for case in cases:
    if len(sys.argv) == 1 or case.name in sys.argv[1:]:
        case.write()
