"""From hidden rows to logits. Upstream twin: `vllm/model_executor/layers/logits_processor.py`."""

from __future__ import annotations

from mini_vllm.layers.module import Module
from mini_vllm.layers.vocab_parallel_embedding import VocabParallelEmbedding
from mini_vllm.utils.arrays import Array


class LogitsProcessor(Module):
    """Hidden rows times the output embedding; where ranks share it, their parts side by side, without the padding.

    Upstream: upstream/vllm/model_executor/layers/logits_processor.py:19 — `LogitsProcessor`.
    """

    def forward(self, lm_head: VocabParallelEmbedding, hidden: Array) -> Array:
        """[R, features] -> [R, vocabulary]."""
        logits = lm_head.context.all_gather(lm_head.context.linear(hidden, lm_head.weight))
        return logits[:, : lm_head.num_embeddings]
