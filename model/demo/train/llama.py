"""The Llama architecture in PyTorch, as small as it gets."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Shape:
    vocab: int = 2048
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 384
    context: int = 2048
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def head_dim(self):
        return self.width // self.heads


def rope(x, cos, sin):
    """Turns the neighbouring values 2i and 2i+1 of each head: GGUF's order, so no row is permuted on export."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.shape = s
        self.attn_norm = nn.RMSNorm(s.width, eps=s.eps)
        self.attn_q = linear(s.width, s.heads * s.head_dim)
        self.attn_k = linear(s.width, s.kv_heads * s.head_dim)
        self.attn_v = linear(s.width, s.kv_heads * s.head_dim)
        self.attn_output = linear(s.heads * s.head_dim, s.width)
        self.ffn_norm = nn.RMSNorm(s.width, eps=s.eps)
        self.ffn_gate = linear(s.width, s.ffn)
        self.ffn_up = linear(s.width, s.ffn)
        self.ffn_down = linear(s.ffn, s.width)

    def forward(self, x, cos, sin):
        s, (b, n, _) = self.shape, x.shape
        h = self.attn_norm(x)
        heads = lambda y, count: y.view(b, n, count, s.head_dim).transpose(1, 2)
        q = rope(heads(self.attn_q(h), s.heads), cos, sin)
        k = rope(heads(self.attn_k(h), s.kv_heads), cos, sin)
        v = heads(self.attn_v(h), s.kv_heads)
        k, v = (y.repeat_interleave(s.heads // s.kv_heads, dim=1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(y.transpose(1, 2).reshape(b, n, -1))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    """Its parameters have the names of the GGUF file's tensors. The output matrix is the embedding's."""

    def __init__(self, s):
        super().__init__()
        self.shape = s
        self.token_embd = nn.Embedding(s.vocab, s.width)
        self.blk = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.output_norm = nn.RMSNorm(s.width, eps=s.eps)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = (2 * s.layers) ** -0.5 if "attn_output" in name or "ffn_down" in name else 1
                nn.init.normal_(p, std=0.02 if name.startswith("token_embd") else scale * p.shape[1] ** -0.5)

    def forward(self, tokens, wanted=None):
        """Logits after every token, or, where wanted (booleans) is given, after those alone."""
        s = self.shape
        turns = torch.arange(tokens.shape[1], dtype=torch.float32)[:, None] * \
            s.rope_base ** (-torch.arange(0, s.head_dim, 2, dtype=torch.float32) / s.head_dim)
        cos, sin = turns.cos(), turns.sin()
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, cos, sin)
        x = self.output_norm(x if wanted is None else x[wanted])
        return x @ self.token_embd.weight.T
