"""Writes testdata/reference.json: log probabilities of the small models of reference_test.go, computed
from their files in float64 with nothing but numpy and the gguf package's reader and dequantiser. Run it in
this folder's parent with

    pip install gguf==0.19.0
    go test . -run Numpy -write-models FOLDER
    python3 _generate/reference.py FOLDER
"""

import hashlib
import json
import sys

import numpy as np
from gguf import GGUFReader, quants


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def log_probabilities(path, tokens):
    reader = GGUFReader(path)
    get = lambda key, default=None: reader.fields["llama." + key].contents() if "llama." + key in reader.fields else default
    weights = {t.name: quants.dequantize(t.data, t.tensor_type).astype(np.float64).reshape(tuple(reversed(t.shape.tolist()))) for t in reader.tensors}
    heads, kv_heads = get("attention.head_count"), get("attention.head_count_kv")
    width, eps = get("embedding_length"), get("attention.layer_norm_rms_epsilon")
    dim = width // heads
    turned = get("rope.dimension_count", dim)
    n = len(tokens)

    # Angle of pair i at position p, and how neighbouring values turn by it.
    frequency = get("rope.freq_base") ** (-np.arange(0, turned, 2) / turned)
    if get("rope.scaling.type") == "linear":
        frequency = frequency / get("rope.scaling.factor")
    if "rope_freqs.weight" in weights:
        frequency = frequency / weights["rope_freqs.weight"]
    turn = np.exp(1j * np.arange(n)[:, None] * frequency)[:, None, :]

    def rope(x):  # position, head, dim
        pairs = (x[..., 0:turned:2] + 1j * x[..., 1:turned:2]) * turn
        out = x.copy()
        out[..., 0:turned:2], out[..., 1:turned:2] = pairs.real, pairs.imag
        return out

    x = weights["token_embd.weight"][tokens]
    for layer in range(get("block_count")):
        w = lambda name: weights[f"blk.{layer}.{name}.weight"]
        y = rms_norm(x, w("attn_norm"), eps)
        q = rope((y @ w("attn_q").T).reshape(n, heads, dim))
        k = rope((y @ w("attn_k").T).reshape(n, kv_heads, dim)).repeat(heads // kv_heads, axis=1)
        v = (y @ w("attn_v").T).reshape(n, kv_heads, dim).repeat(heads // kv_heads, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores = np.where(np.tril(np.ones((n, n), dtype=bool)), scores, -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", p, v).reshape(n, width) @ w("attn_output").T
        y = rms_norm(x, w("ffn_norm"), eps)
        gate = y @ w("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w("ffn_up").T)) @ w("ffn_down").T
    head = weights.get("output.weight", weights["token_embd.weight"])
    logits = rms_norm(x, weights["output_norm.weight"], eps) @ head.T
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


rng = np.random.default_rng(5)
cases = []
for name in ["plain", "tables", "tied", "bytes"]:
    path = f"{sys.argv[1]}/{name}.gguf"
    vocab = [t for t in GGUFReader(path).tensors if t.name == "token_embd.weight"][0].shape[1]
    tokens = rng.integers(0, vocab, 90).tolist()
    lp = log_probabilities(path, tokens)
    cases.append({
        "model": name,
        "sha256": hashlib.sha256(open(path, "rb").read()).hexdigest(),
        "tokens": tokens,
        "logprobs": [round(float(lp[i, tokens[i + 1]]), 7) for i in range(len(tokens) - 1)],
        "last": [round(float(v), 7) for v in lp[-1]],
    })
with open("testdata/reference.json", "w") as f:
    json.dump({"source": "_generate/reference.py: numpy, float64", "cases": cases}, f)
    f.write("\n")
