"""A method and a head, for every token. Upstream twin: `vllm/model_executor/layers/pooler/tokwise/poolers.py`."""

from __future__ import annotations

from typing import Any

from mini_vllm.layers.pooler.abstract import Pooler
from mini_vllm.layers.pooler.tokwise.methods import AllPool
from mini_vllm.pool.metadata import PoolingMetadata
from mini_vllm.utils.arrays import Array


class TokenPooler(Pooler):
    """[rows, E] for each prompt that ends in the step. The heads are those of whole prompts, used row by row.

    Upstream: upstream/vllm/model_executor/layers/pooler/tokwise/poolers.py:48 — `TokenPooler`.
    """

    def __init__(self, pooling: AllPool, head: Any) -> None:
        self.pooling, self.head = pooling, head

    def get_supported_tasks(self) -> set[str]:
        return set(self.head.tasks) & {"token_embed", "token_classify"}

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> list[Array | None]:
        pooled = self.pooling.forward(hidden_states, pooling_metadata)
        return [
            None if rows is None else self.head.finish(self.head.project(rows), params)
            for rows, params in zip(pooled, pooling_metadata.pooling_params, strict=True)
        ]
