"""Writes the folder architectures beside this file: for each kind of model config.json as transformers saves it, the
names and shapes of the tensors that it saves, and log probabilities along some tokens, computed by
transformers in float64. The weights are not there but drawn, here and in a test of gpu/host.

    pip install torch transformers
    python architectures.py [NAME ...]
"""
import json
import math
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers as T
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent / "architectures"
VOCAB = 416  # the tokenizer is that of the folder llama
torch.set_grad_enabled(False)
torch.set_num_threads(1)


def drawn(name, shape, scale, offset):
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


def write(name, config, tokens=60):
    config.vocab_size = VOCAB
    gemma = "gemma" in config.model_type
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        T.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        record = {"source": f"testdata/architectures.py: transformers {T.__version__}, float64", "config": json.loads((folder / "config.json").read_text()), "tensors": []}
        tensors = {}
        for key, t in sorted(load_file(folder / "model.safetensors").items()):
            shape = list(t.shape)
            scale, offset = 1.5 / math.sqrt(shape[-1]), 0.0
            if "norm" in key:
                scale, offset = 0.2, 0.0 if gemma else 1.0
            elif key.endswith(".bias"):
                scale = 0.3
            elif "embed_tokens" in key:
                scale = 1 / math.sqrt(shape[-1]) if gemma else 0.5
            elif "lm_head" in key or key.endswith(("mlp.gate.weight", "moe.gate.weight", "shared_expert_gate.weight")):
                scale = 3 / math.sqrt(shape[-1])
            record["tensors"].append({"name": key, "shape": shape, "scale": scale, "offset": offset})
            tensors[key] = torch.from_numpy(drawn(key, shape, scale, offset))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config._experts_implementation = "eager"  # the others have no float64
        model = T.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").double().eval()
    ids = np.random.default_rng(len(name)).integers(0, VOCAB, tokens).tolist()
    lp = model(torch.tensor([ids])).logits[0].double().log_softmax(-1).numpy()
    record |= {
        "tokens": ids,
        "logprobs": [round(float(lp[i, ids[i + 1]]), 5) for i in range(len(ids) - 1)],
        "last": [round(float(v), 5) for v in lp[-1]],
    }
    (HERE / f"{name}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    print(f"{name}: spread {lp[-1].std():.2f}, distinct {len(set(lp.argmax(-1)))} of {len(ids)}", flush=True)


# Sizes differ from each other, so that no two can be taken for each other.
size = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)
tied = dict(size, tie_word_embeddings=True)
rope = lambda theta=10000.0, **more: dict(rope_parameters=dict({"rope_type": "default", "rope_theta": theta}, **more))
long, short = [1.0, 1.25, 1.5, 2.0, 3.0, 5.0], [1.0, 1.0, 1.05, 1.1, 1.2, 1.3]
longrope = rope(rope_type="longrope", long_factor=long, short_factor=short, original_max_position_embeddings=64, partial_rotary_factor=0.75)
experts = dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32)
both = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}

cases = {
    "llama-linear": lambda: (T.LlamaConfig(**size, **rope(rope_type="linear", factor=4.0)),),
    "llama-yarn": lambda: (T.LlamaConfig(**tied, **rope(1e6, rope_type="yarn", factor=4.0, original_max_position_embeddings=128)),),
    "mistral": lambda: (T.MistralConfig(**size, head_dim=32, sliding_window=24, **rope()), 150),
    "mixtral": lambda: (T.MixtralConfig(**size, num_local_experts=5, num_experts_per_tok=2, sliding_window=None, **rope(1e6)),),
    "qwen2": lambda: (T.Qwen2Config(**size, **rope(1e6)),),
    "qwen2_moe": lambda: (T.Qwen2MoeConfig(**size, **experts, shared_expert_intermediate_size=64, norm_topk_prob=False, **rope(1e6)),),
    "qwen3": lambda: (T.Qwen3Config(**size, head_dim=24, **rope(1e6)),),
    "qwen3_moe": lambda: (T.Qwen3MoeConfig(**size, **experts, head_dim=32, norm_topk_prob=True, **rope(1e6)),),
    "smollm3": lambda: (T.SmolLM3Config(**dict(tied, num_hidden_layers=5), no_rope_layer_interval=4, **rope(5e6)),),
    "phi3": lambda: (T.Phi3Config(**size, sliding_window=40, original_max_position_embeddings=512, **rope()), 140),
    "phi3-long": lambda: (T.Phi3Config(**size, sliding_window=None, original_max_position_embeddings=64, partial_rotary_factor=0.75, **longrope), 90),
    "gemma": lambda: (T.GemmaConfig(**tied, head_dim=32, **rope()),),
    "gemma2": lambda: (T.Gemma2Config(**dict(tied, num_hidden_layers=3), head_dim=32, query_pre_attn_scalar=24, sliding_window=24,
                                      attn_logit_softcapping=5.0, final_logit_softcapping=3.0, **rope()), 100),
    "gemma3_text": lambda: (T.Gemma3TextConfig(**dict(tied, num_hidden_layers=7), head_dim=32, query_pre_attn_scalar=32, sliding_window=24, rope_parameters=both), 100),
}
HERE.mkdir(exist_ok=True)
for name, case in cases.items():
    if len(sys.argv) == 1 or name in sys.argv[1:]:
        write(name, *case())
