"""Penalties for tokens that are there already. Upstream twin: `vllm/v1/sample/ops/penalties.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class PenaltyState:
    """Token counts of the rows that have a penalty, brought up to date by the tokens that are new.

    rows: int64[P], the rows of the batch concerned; repetition, frequency, presence: [P, 1].
    seen: bool[P, V], the token stands in the prompt or the output; counts: int32[P, V], times in the output.
    Upstream counts everything again each step (vllm/model_executor/layers/utils.py — `apply_penalties`); the numbers
    are the same.
    """

    rows: np.ndarray
    repetition: np.ndarray
    frequency: np.ndarray
    presence: np.ndarray
    seen: np.ndarray
    counts: np.ndarray
    num_counted: list[int] = field(default_factory=list)

    def update(self, output_token_ids: Sequence[list[int]]) -> None:
        """Count what each row has produced since the last call."""
        for i, row in enumerate(self.rows):
            tokens = output_token_ids[row]
            if len(tokens) < self.num_counted[i]:
                raise ValueError(f"row {row}: the output shrank from {self.num_counted[i]} to {len(tokens)} tokens")
            new = tokens[self.num_counted[i] :]
            np.add.at(self.counts[i], new, 1)
            self.seen[i, new] = True
            self.num_counted[i] = len(tokens)


def apply_penalties(logits: np.ndarray, state: PenaltyState) -> None:
    """Repetition (prompt and output), then frequency and presence (output only).

    Repetition divides a positive logit and multiplies a negative one, so that a penalty > 1 always lowers it.
    Twin: upstream/vllm/model_executor/layers/utils.py:51 — `apply_penalties`.
    """
    rows = logits[state.rows]
    penalty = np.where(state.seen, state.repetition, 1.0).astype(rows.dtype)
    rows = np.where(rows > 0, rows / penalty, rows * penalty)
    rows -= (state.frequency * state.counts).astype(rows.dtype)
    rows -= (state.presence * (state.counts > 0)).astype(rows.dtype)
    logits[state.rows] = rows
