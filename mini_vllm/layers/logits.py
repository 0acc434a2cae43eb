"""From hidden rows to logits. Upstream twin: `vllm/model_executor/layers/logits_processor.py`."""

from __future__ import annotations

import numpy as np

from mini_vllm.layers.module import Module
from mini_vllm.layers.vocab_parallel_embedding import VocabParallelEmbedding
from mini_vllm.utils.arrays import Array


class LogitsProcessor(Module):
    """Hidden rows times the output embedding; where ranks share it, their parts side by side, without the padding.

    scale: logits are multiplied by it. soft_cap: then logits x become cap * tanh(x / cap); None: they stay.

    Upstream: upstream/vllm/model_executor/layers/logits_processor.py:19 — `LogitsProcessor`.
    """

    def __init__(self, scale: float = 1.0, soft_cap: float | None = None) -> None:
        self.scale, self.soft_cap = scale, soft_cap

    def forward(self, lm_head: VocabParallelEmbedding, hidden: Array) -> Array:
        """[R, features] -> [R, vocabulary]."""
        logits = lm_head.context.all_gather(lm_head.context.linear(hidden, lm_head.weight))
        return self.adjust(logits[:, : lm_head.num_embeddings])

    def adjust(self, logits: Array) -> Array:
        """Cap and scale, in place; the order is that of upstream/vllm/model_executor/layers/logits_processor.py:64 —
        "if self.soft_cap is not None"."""
        if self.soft_cap is not None:
            logits /= self.soft_cap
            np.tanh(logits, out=logits)
            logits *= self.soft_cap
        if self.scale != 1.0:
            logits *= self.scale
        return logits
