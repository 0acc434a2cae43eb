"""A decoder in plain torch, for one decode step: the shapes of OPT-125m and Qwen3-0.6B, random weights.

A step is written in pieces, as a piecewise graph wants it: `before(i)` ends in q, k and v of layer i, `attend(i)` reads
the cache, `after(i)` is the rest of the layer. All requests stand at the same position, in a dense cache: attention is
not the subject here, launches are.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.nn.functional import layer_norm, linear, relu, rms_norm, scaled_dot_product_attention, silu


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a model; `llama` means RMSNorm, rotary positions and a gated MLP, else OPT's layers."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    llama: bool
    dtype: torch.dtype


SHAPES = {
    "opt-125m": Shape(12, 768, 12, 12, 64, 3072, 50272, llama=False, dtype=torch.float16),
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 151936, llama=True, dtype=torch.bfloat16),
}


class Decoder(torch.nn.Module):
    """State of a batch of greedy requests, and one step of it. Buffers never move: a graph may hold their addresses."""

    def __init__(self, shape: Shape, batch: int, max_len: int = 256, device: str = "cuda"):
        super().__init__()
        self.shape, self.batch, self.device = shape, batch, device
        s, kv = shape, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        wide = 2 * s.inner if s.llama else s.inner
        sizes = {
            "qkv": (kv, s.hidden),
            "out": (s.hidden, s.heads * s.head_dim),
            "up": (wide, s.hidden),
            "down": (s.hidden, s.inner),
        }
        gen = torch.Generator(device=device).manual_seed(0)

        def weight(*size: int) -> torch.Tensor:
            values = torch.randn(size, generator=gen, device=device) / size[-1] ** 0.5
            return values.to(s.dtype)

        self.weights = [{name: weight(*size) for name, size in sizes.items()} for _ in range(s.layers)]
        self.embed = weight(s.vocab, s.hidden)
        self.learned = weight(max_len, s.hidden)
        ones = {"dtype": s.dtype, "device": device}
        self.ones, self.head_ones = (torch.ones(width, **ones) for width in (s.hidden, s.head_dim))
        self.zeros = torch.zeros(s.hidden, **ones)
        angles = torch.outer(torch.arange(max_len), 1e6 ** -(torch.arange(0, s.head_dim, 2) / s.head_dim)).to(device)
        self.cos, self.sin = (f(angles).repeat(1, 2).to(s.dtype) for f in (torch.cos, torch.sin))
        # a tensor of its own per layer: the compiler would copy one large cache as a whole at every write into a part
        size = (batch, s.kv_heads, max_len, s.head_dim)
        self.cache = [[torch.zeros(size, **ones) for _ in range(2)] for _ in range(s.layers)]
        self.slots = torch.arange(max_len, device=device)
        self.tokens = torch.zeros(batch, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)

    def reset(self, position: int = 16) -> None:
        """Back to the start: `position` tokens of made-up context in the cache."""
        gen = torch.Generator(self.device).manual_seed(1)
        for part in (part for layer in self.cache for part in layer):
            part.copy_(torch.randn(part.shape, device=self.device, generator=gen))
        self.tokens.copy_(torch.arange(self.batch, device=self.device) + 10)
        self.position.fill_(position)

    def start(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings [batch, hidden], the mask of seen slots, and this position's cos and sin."""
        x = self.embed[self.tokens]
        if not self.shape.llama:
            x = x + self.learned[self.position]
        return x, (self.slots <= self.position)[None, None, None], self.cos[self.position], self.sin[self.position]

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """RMSNorm or LayerNorm."""
        if self.shape.llama:
            return rms_norm(x, (x.shape[-1],), self.ones, 1e-6)
        return layer_norm(x, (x.shape[-1],), self.ones, self.zeros)

    def before(self, i: int, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q [batch, heads, 1, head_dim], k and v [batch, kv_heads, 1, head_dim] of layer i."""
        s = self.shape
        qkv = linear(self.norm(x), self.weights[i]["qkv"]).view(self.batch, -1, s.head_dim)
        q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        if s.llama:
            q, k = (rms_norm(y, (s.head_dim,), self.head_ones, 1e-6) for y in (q, k))
            q, k = (
                y * cos + torch.cat((-y[..., s.head_dim // 2 :], y[..., : s.head_dim // 2]), -1) * sin for y in (q, k)
            )
        return q[:, :, None], k[:, :, None], v[:, :, None]

    def attend(self, i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Write k and v at the position, attend over the cache: [batch, heads * head_dim]."""
        keys, values = self.cache[i]
        keys.index_copy_(2, self.position, k)
        values.index_copy_(2, self.position, v)
        gqa = self.shape.kv_heads != self.shape.heads
        return scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=gqa).flatten(1)

    def after(self, i: int, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection, residual, MLP, residual: [batch, hidden]."""
        w = self.weights[i]
        x = x + linear(attended, w["out"])
        inner = linear(self.norm(x), w["up"])
        if self.shape.llama:
            gate, up = inner.chunk(2, dim=-1)
            return x + linear(silu(gate) * up, w["down"])
        return x + linear(relu(inner), w["down"])

    def finish(self, x: torch.Tensor) -> None:
        """Greedy next tokens, and one position further."""
        self.tokens.copy_(linear(self.norm(x), self.embed).argmax(dim=-1))
        self.position.add_(1)

    def step(self) -> None:
        """One decode step of the whole batch."""
        x, mask, cos, sin = self.start()
        for i in range(self.shape.layers):
            x = self.after(i, x, self.attend(i, *self.before(i, x, cos, sin), mask))
        self.finish(x)
