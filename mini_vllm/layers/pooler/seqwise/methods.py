"""Which rows of a prompt count: the first, the last, or the mean of all.

A prompt that is cut into chunks carries one row from step to step: the first row, or the sum so far. Upstream refuses
chunks for CLS and MEAN, and starts such an engine without them: `ModelConfig.is_chunked_prefill_supported`.
Upstream twin: `vllm/model_executor/layers/pooler/seqwise/methods.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.pool.metadata import PoolingMetadata
from mini_vllm.utils.arrays import Array


class SequencePoolingMethod:
    """Hidden states [T, H] -> [n, H] floats, a row for each request; rows of unfinished prompts mean nothing.

    Upstream: upstream/vllm/model_executor/layers/pooler/seqwise/methods.py:20 — `SequencePoolingMethod`.
    """

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> Array:
        """See the class."""
        raise NotImplementedError


class CLSPool(SequencePoolingMethod):
    """The first row. Upstream: upstream/vllm/model_executor/layers/pooler/seqwise/methods.py:36 — `CLSPool`."""

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> Array:
        cursor = pooling_metadata.get_pooling_cursor()
        rows = hidden_states[cursor.first_token_indices]
        if not cursor.is_partial_prefill():
            return rows
        for i, state in enumerate(pooling_metadata.pooling_states):
            if cursor.seq_lens[i] == cursor.num_scheduled_tokens[i]:
                state.running = rows[i].copy()
            rows[i] = state.running
        return rows


class LastPool(SequencePoolingMethod):
    """The last row. Upstream: upstream/vllm/model_executor/layers/pooler/seqwise/methods.py:50 — `LastPool`."""

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> Array:
        return hidden_states[pooling_metadata.get_pooling_cursor().last_token_indices]


class MeanPool(SequencePoolingMethod):
    """The mean of all rows, added up in float32 or wider.

    Upstream: upstream/vllm/model_executor/layers/pooler/seqwise/methods.py:60 — `MeanPool`.
    """

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> Array:
        cursor = pooling_metadata.get_pooling_cursor()
        wide = np.promote_types(hidden_states.dtype, np.float32)
        if not len(cursor.prompt_lens):
            return np.empty((0, hidden_states.shape[-1]), wide)
        sums = np.add.reduceat(hidden_states.astype(wide, copy=False), cursor.first_token_indices, axis=0)
        if cursor.is_partial_prefill():
            for i, state in enumerate(pooling_metadata.pooling_states):
                if cursor.seq_lens[i] != cursor.num_scheduled_tokens[i]:
                    sums[i] += state.running
                state.running = sums[i].copy()
        return sums / cursor.seq_lens[:, None].astype(wide)


_METHODS = {"CLS": CLSPool, "LAST": LastPool, "MEAN": MeanPool}


def get_seq_pooling_method(pooling_type: str) -> SequencePoolingMethod:
    """Upstream: upstream/vllm/model_executor/layers/pooler/seqwise/methods.py:111 — `get_seq_pooling_method`."""
    return _METHODS[pooling_type]()
