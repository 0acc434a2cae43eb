"""Penalties for tokens that are there already. Upstream twin: `vllm/v1/sample/ops/penalties.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.sampling_params import SamplingParams


class PenaltyState:
    """The distinct tokens of the rows that have a penalty, with their counts, brought up to date by the tokens that are
    new.

    Upstream counts everything again each step, in matrices of the size of the logits
    (vllm/model_executor/layers/utils.py — `apply_penalties`); the numbers are the same. Here a row's cost is that of
    the tokens that it has seen, whatever the vocabulary.

    Args:
        params: of each row of the batch. prompts: their token ids; rows without a penalty are passed over.

    Attributes:
        rows: the rows of the batch concerned.
    """

    def __init__(self, params: Sequence[SamplingParams], prompts: Sequence[Sequence[int]]) -> None:
        self.rows = [i for i, p in enumerate(params) if p.has_penalty]
        self.repetition = np.array([p.repetition_penalty for p in params], dtype=np.float32)
        self.frequency = np.array([p.frequency_penalty for p in params], dtype=np.float32)
        self.presence = np.array([p.presence_penalty for p in params], dtype=np.float32)
        self._num_counted = dict.fromkeys(self.rows, 0)
        self._slots: dict[tuple[int, int], int] = {}
        self._where = np.empty((2, 0), dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)
        for row in self.rows:
            self._add(row, dict.fromkeys(prompts[row], 0))

    def update(self, output_token_ids: Sequence[list[int]]) -> None:
        """Count what each row has produced since the last call."""
        for row, counted in self._num_counted.items():
            tokens = output_token_ids[row]
            if len(tokens) < counted:
                raise ValueError(f"row {row}: the output shrank from {counted} to {len(tokens)} tokens")
            if len(tokens) > counted:
                new: dict[int, int] = {}
                for token in tokens[counted:]:
                    new[token] = new.get(token, 0) + 1
                self._add(row, new)
                self._num_counted[row] = len(tokens)

    def _add(self, row: int, counts: dict[int, int]) -> None:
        """Take in tokens of a row, with how often each was produced: 0 for one of the prompt."""
        unknown = [token for token in counts if (row, token) not in self._slots]
        first = len(self._slots)
        if first + len(unknown) > len(self._counts):
            more = max(64, len(unknown), len(self._counts) // 2)
            self._where = np.concatenate([self._where, np.empty((2, more), dtype=np.int64)], axis=1)
            self._counts = np.concatenate([self._counts, np.empty(more, dtype=np.int64)])
        for slot, token in enumerate(unknown, start=first):
            self._slots[row, token] = slot
        end = first + len(unknown)
        self._where[0, first:end], self._where[1, first:end], self._counts[first:end] = row, unknown, 0
        for token, count in counts.items():
            if count:
                self._counts[self._slots[row, token]] += count

    def count(self, row: int, token: int) -> int:
        """How often a row has produced a token, as of the last `update`."""
        slot = self._slots.get((row, token))
        return 0 if slot is None else int(self._counts[slot])

    def seen(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, ids and counts of all tokens that stand in a prompt or an output, int64[n] each."""
        n = len(self._slots)
        return self._where[0, :n], self._where[1, :n], self._counts[:n]


def apply_penalties(logits: np.ndarray, state: PenaltyState) -> None:
    """Repetition (prompt and output), then frequency and presence (output only), in place.

    Repetition divides a positive logit and multiplies a negative one, so that a penalty > 1 always lowers it.
    Twin: upstream/vllm/model_executor/layers/utils.py:51 — `apply_penalties`.
    """
    rows, ids, counts = state.seen()
    values = logits[rows, ids]
    penalty = state.repetition[rows].astype(values.dtype)
    values = np.where(values > 0, values / penalty, values * penalty)
    values -= (state.frequency[rows] * counts).astype(values.dtype)
    values -= (state.presence[rows] * (counts > 0)).astype(values.dtype)
    logits[rows, ids] = values
