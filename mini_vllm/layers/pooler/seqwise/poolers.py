"""A method and a head. Upstream twin: `vllm/model_executor/layers/pooler/seqwise/poolers.py`."""

from __future__ import annotations

from typing import Any

from mini_vllm.layers.pooler.abstract import Pooler
from mini_vllm.layers.pooler.seqwise.methods import SequencePoolingMethod
from mini_vllm.pool.metadata import PoolingMetadata
from mini_vllm.utils.arrays import Array


class SequencePooler(Pooler):
    """One result for each prompt that ends in the step.

    Upstream: upstream/vllm/model_executor/layers/pooler/seqwise/poolers.py:44 — `SequencePooler`.
    """

    def __init__(self, pooling: SequencePoolingMethod, head: Any) -> None:
        self.pooling, self.head = pooling, head

    def get_supported_tasks(self) -> set[str]:
        return set(self.head.tasks) & {"embed", "classify"}

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> list[Array | None]:
        pooled = self.pooling.forward(hidden_states, pooling_metadata)
        results: list[Array | None] = [None] * len(pooling_metadata.tasks)
        done = pooling_metadata.get_pooling_cursor().is_finished().nonzero()[0]
        params = [pooling_metadata.pooling_params[i] for i in done]
        for i, row in zip(done, self.head.forward(pooled[done], params), strict=True):
            results[i] = row
            pooling_metadata.pooling_states[i].clean()
        return results
