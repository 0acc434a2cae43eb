"""Which rows of a prompt are returned: all, or those at a tag.

Upstream twin: `vllm/model_executor/layers/pooler/tokwise/methods.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.pool.metadata import PoolingMetadata
from mini_vllm.utils.arrays import Array


class AllPool:
    """All rows; those of earlier chunks are kept until the prompt ends.

    Upstream: upstream/vllm/model_executor/layers/pooler/tokwise/methods.py:35 — `AllPool`.
    """

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> list[Array | None]:
        """For each request [prompt_len, H], None while its prompt is not done."""
        cursor = pooling_metadata.get_pooling_cursor()
        parts = np.split(hidden_states, cursor.first_token_indices[1:]) if len(cursor.prompt_lens) else []
        outputs: list[Array | None] = []
        for part, state, finished in zip(parts, pooling_metadata.pooling_states, cursor.is_finished(), strict=True):
            state.hidden_states_cache.append(part.copy())
            outputs.append(np.concatenate(state.hidden_states_cache) if finished else None)
            if finished:
                state.clean()
        return outputs


class StepPool(AllPool):
    """Of these rows those at the token `step_tag_id`, and of their numbers those at `returned_token_ids`.

    Upstream: upstream/vllm/model_executor/layers/pooler/tokwise/methods.py:83 — `StepPool`.
    """

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> list[Array | None]:
        outputs = super().forward(hidden_states, pooling_metadata)
        for i, (rows, params) in enumerate(zip(outputs, pooling_metadata.pooling_params, strict=True)):
            if rows is None:
                continue
            if params.returned_token_ids:
                rows = rows[:, params.returned_token_ids]
            if params.step_tag_id is not None:
                rows = rows[np.asarray(pooling_metadata.prompt_token_ids[i]) == params.step_tag_id]
            outputs[i] = rows
        return outputs


def get_tok_pooling_method(pooling_type: str) -> AllPool:
    """Upstream: upstream/vllm/model_executor/layers/pooler/tokwise/methods.py:122 — `get_tok_pooling_method`."""
    return {"ALL": AllPool, "STEP": StepPool}[pooling_type]()
