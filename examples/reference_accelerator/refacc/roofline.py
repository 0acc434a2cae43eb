"""What a step has to compute and to read, by the arithmetic of the course's phase 00: no device is asked.

operations   2 for each weight and token; 4 · heads · head size · layers for each query and key that it sees
bytes        each weight once a step; keys and values of every token of every request
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ITEMSIZE = 8


@dataclass(frozen=True)
class Shape:
    """A model, or a rank's part of it.

    Attributes:
        matrices: numbers in the layers' matrices. head: in the output embedding. norms: in the norms.
        layers, heads, kv_heads, head_dim: of attention.
    """

    matrices: int
    head: int
    norms: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def kv_per_token(self) -> int:
        """Bytes of keys and values of a token: 2 · layers · KV heads · head size · 8."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ITEMSIZE


def weight_flops(model: Shape, tokens: int, sampled: int) -> int:
    """2 for each weight and token; the output embedding is for the sampled rows alone."""
    return 2 * (model.matrices * tokens + model.head * sampled)


def attention_flops(model: Shape, query_lens: Sequence[int], seq_lens: Sequence[int]) -> int:
    """Scores and weighted sums, 2 · head size each, for every head, query and key that it sees; without a window.

    A request's last query sees all of its `seq_len` keys, the one before it one less.
    """
    pairs = sum(n * seq_len - n * (n - 1) // 2 for n, seq_len in zip(query_lens, seq_lens, strict=True))
    return 4 * model.heads * model.head_dim * model.layers * pairs


def weight_bytes(model: Shape, sampled: int) -> int:
    """Each weight once, however many tokens there are."""
    return (model.matrices + model.norms + (model.head if sampled else 0)) * ITEMSIZE


def kv_bytes(model: Shape, seq_lens: Sequence[int]) -> int:
    """Keys and values that a step reads: those of all tokens of all its requests."""
    return sum(seq_lens) * model.kv_per_token
