"""The persistent batch: per request one row of preallocated arrays, changed only where the plan of a step says so.

Upstream twin: `vllm/v1/worker/gpu_input_batch.py` (`InputBatch`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.kv_cache_interface import KVCacheGroupSpec
from mini_vllm.worker.block_table import MultiGroupBlockTable
from mini_vllm.worker.states import CachedRequestState


class InputBatch:
    """Rows 0 .. num_reqs - 1 are in use, without holes after `condense`.

    token_ids [max_num_seqs, max_model_len] int64; block_table: see `block_table.py`. `version` changes whenever a row
    comes, goes or moves.
    Upstream: upstream/vllm/v1/worker/gpu_input_batch.py:91 — `InputBatch`.
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, groups: Sequence[KVCacheGroupSpec] = ()
    ) -> None:
        self.max_num_seqs, self.block_size = max_num_seqs, block_size
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int64)
        self.block_table = MultiGroupBlockTable(max_num_seqs, max_model_len, block_size, groups)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int64)
        self.req_ids: list[str] = []
        self.states: list[CachedRequestState] = []
        self.req_id_to_index: dict[str, int] = {}
        self.version = 0
        self._removed: list[int] = []

    @property
    def num_reqs(self) -> int:
        """Rows in use."""
        return len(self.req_ids)

    def add_request(self, state: CachedRequestState) -> None:
        """Give the request a row, where a removed one was if possible."""
        row = self._removed.pop() if self._removed else self.num_reqs
        if row >= self.max_num_seqs:
            raise RuntimeError(f"no row for request {state.req_id!r}: max_num_seqs is {self.max_num_seqs}")
        if row == self.num_reqs:
            self.req_ids.append(state.req_id)
            self.states.append(state)
        else:
            self.req_ids[row], self.states[row] = state.req_id, state
        self.req_id_to_index[state.req_id] = row
        num_prompt = len(state.prompt_token_ids)
        total = num_prompt + len(state.output_token_ids)
        self.token_ids[row, :num_prompt] = state.prompt_token_ids
        self.token_ids[row, num_prompt:total] = state.output_token_ids
        self.num_tokens[row] = total
        self.num_computed_tokens[row] = state.num_computed_tokens
        self.block_table.add_row(state.block_ids, row)
        self.version += 1

    def remove_request(self, req_id: str) -> None:
        """Take the row away; the hole is filled by `add_request` or closed by `condense`."""
        row = self.req_id_to_index.pop(req_id, None)
        if row is not None:
            self._removed.append(row)
            self._removed.sort(reverse=True)
            self.version += 1

    def condense(self) -> None:
        """Move the last rows into the holes.

        Upstream: upstream/vllm/v1/worker/gpu_input_batch.py:683 — `InputBatch.condense`.
        """
        holes = set(self._removed)
        while self._removed:
            last = self.num_reqs - 1
            if last in holes:
                holes.discard(last)
                self._removed.remove(last)
            else:
                hole = self._removed.pop()
                holes.discard(hole)
                self._move(last, hole)
            self.req_ids.pop()
            self.states.pop()

    def _move(self, source: int, target: int) -> None:
        total = int(self.num_tokens[source])
        self.token_ids[target, :total] = self.token_ids[source, :total]
        self.block_table.move_row(source, target)
        for array in (self.num_tokens, self.num_computed_tokens):
            array[target] = array[source]
        req_id = self.req_ids[source]
        self.req_ids[target], self.states[target] = req_id, self.states[source]
        self.req_id_to_index[req_id] = target
        self.version += 1
