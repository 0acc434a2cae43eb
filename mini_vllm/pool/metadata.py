"""Which rows of a step belong to which pooling request. Upstream twin: `vllm/v1/pool/metadata.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mini_vllm.pool.params import PoolingParams
from mini_vllm.utils.arrays import Array


@dataclass
class PoolingCursor:
    """Where each request's rows of this step stand, [n] each.

    `prompt_lens` counts all tokens of the prompt, `seq_lens` those computed after this step, `num_scheduled_tokens`
    those of this step.
    Upstream: upstream/vllm/v1/pool/metadata.py:16 — `PoolingCursor`.
    """

    first_token_indices: Array
    last_token_indices: Array
    prompt_lens: Array
    seq_lens: Array
    num_scheduled_tokens: Array

    def __getitem__(self, rows: slice) -> PoolingCursor:
        return PoolingCursor(
            self.first_token_indices[rows], self.last_token_indices[rows], self.prompt_lens[rows],
            self.seq_lens[rows], self.num_scheduled_tokens[rows],
        )  # fmt: skip

    def is_partial_prefill(self) -> bool:
        """True where some prompt is not computed whole in this step."""
        return not np.array_equal(self.prompt_lens, self.num_scheduled_tokens)

    def is_finished(self) -> Array:
        """[n] bool: the prompt ends in this step."""
        return self.prompt_lens == self.seq_lens


@dataclass
class PoolingStates:
    """What a request carries from chunk to chunk: hidden rows, where every row is wanted; for a mean their sum.

    Upstream: upstream/vllm/v1/pool/metadata.py:39 — `PoolingStates`, which has rows alone.
    """

    hidden_states_cache: list[Array] = field(default_factory=list)
    running: Any = None
    num_seen: int = 0

    def clean(self) -> None:
        """Forget all of it."""
        self.hidden_states_cache.clear()
        self.running, self.num_seen = None, 0


@dataclass
class PoolingMetadata:
    """The pooling requests of one step, in the order of their rows.

    `prompt_token_ids[i]`: [prompt_lens[i]].
    Upstream: upstream/vllm/v1/pool/metadata.py:49 — `PoolingMetadata`.
    """

    prompt_lens: Array
    prompt_token_ids: list[Array]
    pooling_params: list[PoolingParams]
    pooling_states: list[PoolingStates]
    pooling_cursor: PoolingCursor | None = None

    def __post_init__(self) -> None:
        tasks = [params.task for params in self.pooling_params if params.task is not None]
        if len(tasks) != len(self.pooling_params):
            raise ValueError(
                f"Every pooling param must have a task set, but got {len(tasks)} tasks for "
                f"{len(self.pooling_params)} pooling params"
            )
        self.tasks = tasks

    def __getitem__(self, rows: slice) -> PoolingMetadata:
        return PoolingMetadata(
            self.prompt_lens[rows], self.prompt_token_ids[rows], self.pooling_params[rows], self.pooling_states[rows],
            None if self.pooling_cursor is None else self.pooling_cursor[rows],
        )  # fmt: skip

    def get_pooling_cursor(self) -> PoolingCursor:
        """The cursor. Raises RuntimeError where `build_pooling_cursor` has not been called."""
        if self.pooling_cursor is None:
            raise RuntimeError(
                "pooling_cursor has not been initialized. Call `build_pooling_cursor` before accessing it"
            )
        return self.pooling_cursor

    def build_pooling_cursor(self, num_scheduled_tokens: Array, seq_lens: Array) -> None:
        """Upstream: upstream/vllm/v1/pool/metadata.py:118 — `PoolingMetadata.build_pooling_cursor`."""
        if len(self.prompt_lens) != len(num_scheduled_tokens):
            raise ValueError(
                f"prompt_lens length ({len(self.prompt_lens)}) does not match the number of sequences "
                f"({len(num_scheduled_tokens)})"
            )
        starts = np.concatenate([[0], np.cumsum(num_scheduled_tokens)]).astype(np.int64)
        self.pooling_cursor = PoolingCursor(
            starts[:-1], starts[1:] - 1, self.prompt_lens, np.asarray(seq_lens), np.asarray(num_scheduled_tokens)
        )
