"""Checks the KV cache of a model that has none.

Equal outputs of the toy model say nothing about the cache: it never looks there. The oracle stands in for the
attention layer. For each physical slot it remembers a hash of *all* tokens up to the one written there, as real keys
and values would depend on them; before a request reads its context, every slot must hold exactly its own history. A
wrong block id, a block reused too early, a hash that forgot its parent: each is an error, at the step where it happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache
def _weights(size: int) -> np.ndarray:
    """`[size]` random odd uint64, one a position; a longer array begins with the shorter ones."""
    return np.random.default_rng(0).integers(0, 1 << 64, size, dtype=np.uint64) | np.uint64(1)


class KVMismatchError(RuntimeError):
    """A request would have read keys and values that are not its own."""


@dataclass(slots=True)
class OracleRow:
    """One scheduled request: its tokens, how many were computed before, how many are computed now, its block table.

    `first_position`: what stands before it has left the sliding window and is not read. `group`: the KV cache group
    of the table; each writes keys and values of its own.
    """

    request_id: str
    token_ids: Sequence[int]
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: Sequence[int]
    first_position: int = 0
    group: int = 0


def oracle_rows(batch: Any, num_scheduled_tokens: dict[str, int]) -> list[OracleRow]:
    """What a step is about to write and read: the rows of a persistent batch (`InputBatch`)."""
    rows = []
    for row, req_id in enumerate(batch.req_ids):
        computed = int(batch.num_computed_tokens[row])
        end = max(int(batch.num_tokens[row]), computed + num_scheduled_tokens[req_id])  # drafts stand behind the tokens
        tokens = batch.token_ids[row, :end].tolist()
        for group, table in enumerate(batch.block_table.block_tables):
            block_ids = table.table[row, : int(table.num_blocks[row])].tolist()
            first = 0 if table.sliding_window is None else max(0, computed - table.sliding_window + 1)
            rows.append(OracleRow(req_id, tokens, computed, num_scheduled_tokens[req_id], block_ids, first, group))
    return rows


def history_hashes(token_ids: Sequence[int]) -> np.ndarray:
    """`[n]` uint64: entry t is a hash of `token_ids[0..t]`, order included: a sum, mod 2**64, of each token and 1 times
    the random number of its position."""
    tokens = np.asarray(token_ids, dtype=np.int64).astype(np.uint64)
    return np.cumsum((tokens + np.uint64(1)) * _weights(1 << len(tokens).bit_length())[: len(tokens)])


class KVOracle:
    """Remembers what was written to each slot, and checks what is read.

    Args:
        num_blocks, block_size: as the pool's.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = np.zeros(num_blocks * block_size, dtype=np.uint64)
        self.num_reads_checked = 0

    def on_step(self, rows: Sequence[OracleRow]) -> None:
        """Write all new tokens of the step, as a layer does, then check all that is read.

        Raises:
            KVMismatchError: names the request, the position, the block and the slot.
        """
        seen = []
        for row in rows:
            end = row.num_computed_tokens + row.num_scheduled_tokens
            hashes = history_hashes(row.token_ids[:end]) + np.uint64(row.group)
            positions = np.arange(end)
            block_ids = np.asarray(row.block_ids)[positions // self.block_size]
            slots = block_ids * self.block_size + positions % self.block_size
            self.slots[slots[row.num_computed_tokens :]] = hashes[row.num_computed_tokens :]
            seen.append((row, hashes[row.first_position :], slots[row.first_position :]))
        for row, hashes, slots in seen:
            wrong = np.flatnonzero(self.slots[slots] != hashes)
            self.num_reads_checked += len(slots)
            if len(wrong):
                position, slot = int(wrong[0]) + row.first_position, int(slots[wrong[0]])
                raise KVMismatchError(
                    f"request {row.request_id!r} would read foreign keys and values at position {position}: "
                    f"block {slot // self.block_size}, slot {slot} holds another history"
                )
