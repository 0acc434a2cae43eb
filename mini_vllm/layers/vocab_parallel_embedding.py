"""The embedding and the output embedding, whose rows (the vocabulary) ranks share.

Upstream twin: `vllm/model_executor/layers/vocab_parallel_embedding.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.module import Module
from mini_vllm.parameter import part_of
from mini_vllm.utils.arrays import Array

DEFAULT_VOCAB_PADDING_SIZE = 64
"""Where ranks share the vocabulary, each has a multiple of this many rows; one rank alone pads nothing."""


def pad_vocab_size(vocab_size: int, pad_to: int = DEFAULT_VOCAB_PADDING_SIZE) -> int:
    """The next multiple.

    Upstream: upstream/vllm/model_executor/layers/vocab_parallel_embedding.py:81 — `pad_vocab_size`.
    """
    return -(-vocab_size // pad_to) * pad_to


class VocabParallelEmbedding(Module):
    """Token ids to rows of `weight` [vocabulary here, embedding_dim].

    A rank looks up the ids that it holds, gives zeros for the others, and all add up.
    Upstream: upstream/vllm/model_executor/layers/vocab_parallel_embedding.py:192 — `VocabParallelEmbedding`; there the
    padded size must divide by the ranks, here it is made to.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, context: ModelContext, prefix: str) -> None:
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.context, self.prefix = context, prefix
        ranks = context.tp_size
        padded = num_embeddings if ranks == 1 else pad_vocab_size(num_embeddings, DEFAULT_VOCAB_PADDING_SIZE * ranks)
        count = padded // ranks
        first = min(context.tp_rank * count, num_embeddings)
        self.vocab = slice(first, min(first + count, num_embeddings))
        self.weight = context.new(count, embedding_dim)
        self.weight[self.vocab.stop - first :] = 0
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """The rows of this rank."""
        mine = self.weight[: self.vocab.stop - self.vocab.start]
        yield f"{self.prefix}.weight", part_of(mine, (self.num_embeddings, self.embedding_dim), (self.vocab,))

    def forward(self, input_ids: Array) -> Array:
        """[T] -> [T, embedding_dim]."""
        if self.context.group is None:
            return self.weight.take(input_ids, axis=0)
        held = (input_ids >= self.vocab.start) & (input_ids < self.vocab.stop)
        rows = self.weight.take(np.where(held, input_ids - self.vocab.start, 0), axis=0)
        return self.context.all_reduce(np.where(held[:, None], rows, 0))


class ParallelLMHead(VocabParallelEmbedding):
    """The output embedding; `layers/logits.py` multiplies with it.

    Upstream: upstream/vllm/model_executor/layers/vocab_parallel_embedding.py:503 — `ParallelLMHead`.
    """
