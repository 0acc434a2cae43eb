"""What encoders of pictures have in common: which of their rows go to the language model.

Upstream twin: `vllm/model_executor/models/vision.py`.
"""

from __future__ import annotations

from mini_vllm.utils.arrays import Array

SELECT_STRATEGIES = ("default", "full", "class")
"""Of the rows: all but the class token's, all, or the class token's alone."""


def get_num_selected_vision_tokens(num_vision_tokens: int, strategy: str) -> int:
    """Rows that a strategy leaves.

    Upstream: upstream/vllm/model_executor/models/vision.py:177 — `get_num_selected_vision_tokens`.
    """
    return {"class": 1, "default": num_vision_tokens - 1, "full": num_vision_tokens}[strategy]


def select_vision_tokens(features: Array, strategy: str) -> Array:
    """[N, T, H] -> the rows of a strategy.

    Upstream: upstream/vllm/model_executor/models/vision.py:157 — `_get_vision_feature_selector`.
    """
    return {"class": features[:, :1], "default": features[:, 1:], "full": features}[strategy]
