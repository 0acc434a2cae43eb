"""Positions of three parts: those of a prompt come from the model, those of generated tokens go on from there.

Upstream twin: `vllm/v1/worker/gpu/mm/rope.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.multimodal.inputs import MultiModalFeatureSpec
from mini_vllm.utils.arrays import Array


class RopeState:
    """What the runner keeps of each request's positions.

    Attributes:
        positions: request id -> its prompt's [3, tokens].
        deltas: request id -> what is added to the number of a generated token.

    Upstream: upstream/vllm/v1/worker/gpu/mm/rope.py:14 — `RopeState`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.positions: dict[str, Array] = {}
        self.deltas: dict[str, int] = {}

    def init_prefill_positions(self, req_id: str, token_ids: list[int], features: list[MultiModalFeatureSpec]) -> None:
        """Ask the model, once a request.

        Raises:
            ValueError: it gives no [3, tokens].

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:1579 — `_init_mrope_positions`.
        """
        positions, delta = self.model.get_mrope_input_positions(token_ids, features)
        positions = np.asarray(positions, np.int64)
        if positions.shape != (3, len(token_ids)):
            raise ValueError(
                f"get_mrope_input_positions of {type(self.model).__name__} must give positions of shape "
                f"(3, {len(token_ids)}), got {positions.shape}"
            )
        self.positions[req_id], self.deltas[req_id] = positions, int(delta)

    def forget(self, req_id: str) -> None:
        """The request has ended."""
        self.positions.pop(req_id, None)
        self.deltas.pop(req_id, None)

    def prepare_positions(self, req_ids: Sequence[str], starts: Array, positions: Array) -> Array:
        """[3, T] for the T tokens of a step.

        Args:
            starts: [rows + 1], where each request's tokens begin. positions: [T], their numbers within their request.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:2617 — `_calc_mrope_positions`.
        """
        found = np.empty((3, len(positions)), np.int64)
        for row, req_id in enumerate(req_ids):
            tokens = slice(int(starts[row]), int(starts[row + 1]))
            numbers, prompt = positions[tokens], self.positions[req_id]
            in_prompt = numbers < prompt.shape[1]
            found[:, tokens] = np.where(
                in_prompt, prompt[:, np.where(in_prompt, numbers, 0)], numbers + self.deltas[req_id]
            )
        return found
