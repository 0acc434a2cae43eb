"""Rotary positions of several parts: time, height and width of a token, row and column of a patch.

Upstream twin: `vllm/model_executor/layers/rotary_embedding/mrope.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.rotary_embedding import RotaryEmbedding
from mini_vllm.transformers_utils.config_rope import RopeConfig
from mini_vllm.utils.arrays import Array


class MRotaryEmbedding(RotaryEmbedding):
    """Of a head's pairs of features the first are turned by the time, the next by the height, the last by the width.

    Attributes:
        part: [rotary_dim / 2], which of the three turns each pair.

    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/mrope.py:201 — `MRotaryEmbedding`.
    """

    def __init__(self, head_dim: int, rope: RopeConfig, mrope_section: Sequence[int], context: ModelContext) -> None:
        super().__init__(head_dim, rope, context.dtype)
        self.part = np.repeat(np.arange(len(mrope_section)), mrope_section)

    def cos_sin(self, positions: Array) -> Array:
        """positions: [3, T], or [T] of text, whose three parts are one. Returns [T, 2, rotary_dim / 2].

        Upstream: upstream/vllm/model_executor/layers/rotary_embedding/mrope.py:263 — `MRotaryEmbedding.forward_native`.
        """
        picked = super().cos_sin(positions)
        if positions.ndim == 1:
            return picked
        return picked[self.part, :, :, np.arange(len(self.part))].transpose(1, 2, 0)


def get_mrope(head_dim: int, rope: RopeConfig, mrope_section: Sequence[int], context: ModelContext) -> MRotaryEmbedding:
    """One for all layers of a model. mrope_section: pairs of features for each part.

    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/__init__.py:33 — `get_rope`.
    """
    key = head_dim, rope, tuple(mrope_section)
    if key not in context.ropes:
        context.ropes[key] = MRotaryEmbedding(head_dim, rope, mrope_section, context)
    return context.ropes[key]


class GridRotaryEmbedding(RotaryEmbedding):
    """Of a head's pairs of features the first half is turned by the row of a patch, the second by its column, with the
    same angles.

    Upstream: upstream/vllm/model_executor/models/qwen2_vl.py:602 — `Qwen2VisionTransformer.rot_pos_emb`.
    """

    def __init__(self, head_dim: int, context: ModelContext) -> None:
        super().__init__(head_dim, RopeConfig(partial=0.5), context.dtype)
        self.rotary_dim, self.is_partial = head_dim, False

    def cos_sin(self, positions: Array) -> Array:
        """positions: [T, 2], row and column. Returns [T, 2, head_dim / 2]."""
        return super().cos_sin(positions).transpose(0, 2, 1, 3).reshape(len(positions), 2, -1)
