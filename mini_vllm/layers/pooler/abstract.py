"""What every pooler is. Upstream twin: `vllm/model_executor/layers/pooler/abstract.py`."""

from __future__ import annotations

from mini_vllm.pool.metadata import PoolingMetadata
from mini_vllm.utils.arrays import Array


class Pooler:
    """Hidden states [T, H] of a step -> for each of its requests an array, or None while its prompt is not done.

    Upstream: upstream/vllm/model_executor/layers/pooler/abstract.py:16 — `Pooler`.
    """

    def get_supported_tasks(self) -> set[str]:
        """Of `POOLING_TASKS`, those that it can do."""
        raise NotImplementedError

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> list[Array | None]:
        """One entry for each request of `pooling_metadata`."""
        raise NotImplementedError

    def __call__(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> list[Array | None]:
        return self.forward(hidden_states, pooling_metadata)
