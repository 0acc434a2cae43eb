"""A model without weights, for exact traces: its logits are a function of (seed, token, position) and nothing else.

It obeys the contract of every model here (`forward`, `compute_logits`) and keeps (token, position) as its hidden
state. It never reads the KV cache, so equal outputs prove nothing about the cache; run it under the KV oracle
(`kv_oracle.py`) for that. Upstream has no twin.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache(maxsize=1 << 14)
def _logits_row(seed: int, token: int, position: int, vocab_size: int) -> np.ndarray:
    row = np.random.default_rng((seed, token, position)).standard_normal(vocab_size)
    row.flags.writeable = False
    return row


class ToyModel:
    """Deterministic logits in the shape of a language model.

    Args:
        vocab_size: 257 fits the byte tokenizer (256 bytes and the end-of-sequence token).
        seed: another seed is another model.
        max_model_len: context length in tokens.
        eos_token_ids: tokens that end a sequence.
    """

    num_layers = 0
    num_kv_heads = 1
    head_dim = 1
    sliding_window = None

    def __init__(
        self, vocab_size: int = 257, seed: int = 0, max_model_len: int = 2048, eos_token_ids: tuple[int, ...] = (256,)
    ) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.max_model_len = max_model_len
        self.eos_token_ids = list(eos_token_ids)
        self.dtype = np.dtype(np.float64)

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, attn: Any = None) -> np.ndarray:
        """`[T]` token ids and `[T]` positions -> hidden states `[T, 2]`, which are just these two numbers."""
        return np.stack([np.asarray(input_ids), np.asarray(positions)], axis=1)

    def compute_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Hidden states `[R, 2]` -> logits `[R, vocab_size]`, each row independent of the others."""
        if len(hidden) == 0:
            return np.empty((0, self.vocab_size))
        return np.stack(
            [_logits_row(self.seed, int(token), int(position), self.vocab_size) for token, position in hidden]
        )
