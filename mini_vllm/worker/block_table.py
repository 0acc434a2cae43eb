"""The block tables of the persistent batch: one array for each KV cache group.

Upstream twin: `vllm/v1/worker/block_table.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.groups import GroupedAttentionMetadata
from mini_vllm.kv_cache_interface import KVCacheGroupSpec, SlidingWindowSpec
from mini_vllm.utils.arrays import Array


class BlockTable:
    """Rows of block ids, `table` [max_num_reqs, max_blocks] int64; past `num_blocks[row]` stands 0, the null block.

    `num_extra`: blocks behind those of all tokens, for states after drafts.
    `sliding_window`: tokens that a query of this group sees; None: all. A block that has left the window belongs to
    somebody else by now, and the scheduler does not say so: `metadata` leaves it out.

    Upstream: upstream/vllm/v1/worker/block_table.py:18 — `BlockTable`.
    """

    def __init__(
        self, max_num_reqs: int, max_model_len: int, block_size: int, sliding_window: int | None = None,
        num_extra: int = 0,
    ) -> None:  # fmt: skip
        self.block_size, self.sliding_window, self.num_extra = block_size, sliding_window, num_extra
        self.table = np.zeros((max_num_reqs, -(-max_model_len // block_size) + num_extra), np.int64)
        self.num_blocks = np.zeros(max_num_reqs, np.int64)

    def append_row(self, block_ids: Sequence[int], row: int) -> None:
        """Extend a row."""
        start = int(self.num_blocks[row])
        self.table[row, start : start + len(block_ids)] = block_ids
        self.num_blocks[row] = start + len(block_ids)

    def add_row(self, block_ids: Sequence[int], row: int) -> None:
        """Write a row anew."""
        self.table[row, : int(self.num_blocks[row])] = 0
        self.num_blocks[row] = 0
        self.append_row(block_ids, row)

    def move_row(self, source: int, target: int) -> None:
        """Copy a row to another place."""
        self.add_row(self.table[source, : int(self.num_blocks[source])], target)  # type: ignore[arg-type]

    def metadata(
        self, query_start_loc: Array, seq_lens: Array, token_rows: Array, positions: Array, computed: Array
    ) -> AttentionMetadata:
        """What the attention of this group has to know of a step: tables, and the slot of every token.

        The token at position p of row r has slot table[r, p // block_size] * block_size + p % block_size.

        Args:
            token_rows, positions [T]: of each token. computed [R]: tokens of each row that were computed before.
        """
        table = self.table[: len(seq_lens), : -(-int(seq_lens.max()) // self.block_size) + self.num_extra]
        if self.sliding_window is not None:
            first = np.maximum(computed - self.sliding_window + 1, 0) // self.block_size
            if first.any():
                table = np.where(np.arange(table.shape[1]) < first[:, None], 0, table)
        block, offset = np.divmod(positions, self.block_size)
        return AttentionMetadata(query_start_loc, seq_lens, table, table[token_rows, block] * self.block_size + offset)


class MultiGroupBlockTable:
    """A `BlockTable` for each KV cache group; `block_ids` have one list for each.

    Upstream: upstream/vllm/v1/worker/block_table.py:223 — `MultiGroupBlockTable`.
    """

    def __init__(
        self, max_num_reqs: int, max_model_len: int, block_size: int, groups: Sequence[KVCacheGroupSpec] = ()
    ) -> None:
        """Without `groups`: one of full attention, with blocks of `block_size` tokens."""
        shapes: list[tuple[int, int | None, int]] = [(block_size, None, 0)]
        if groups:
            specs = [group.kv_cache_spec for group in groups]
            windows = [spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None for spec in specs]
            extra = [getattr(spec, "num_speculative_blocks", 0) for spec in specs]
            shapes = list(zip([spec.block_size for spec in specs], windows, extra, strict=True))
        self.block_tables = [BlockTable(max_num_reqs, max_model_len, *shape) for shape in shapes]

    def __getitem__(self, group: int) -> BlockTable:
        return self.block_tables[group]

    def __len__(self) -> int:
        return len(self.block_tables)

    def append_row(self, block_ids: Sequence[Sequence[int]], row: int) -> None:
        """Extend a row in every group."""
        for table, ids in zip(self.block_tables, block_ids, strict=True):
            if ids:
                table.append_row(ids, row)

    def add_row(self, block_ids: Sequence[Sequence[int]], row: int) -> None:
        """Write a row anew in every group."""
        for table, ids in zip(self.block_tables, block_ids, strict=True):
            table.add_row(ids, row)

    def move_row(self, source: int, target: int) -> None:
        """Copy a row in every group."""
        for table in self.block_tables:
            table.move_row(source, target)

    def metadata(
        self, query_start_loc: Array, seq_lens: Array, token_rows: Array, positions: Array, computed: Array
    ) -> AttentionMetadata:
        """Of a step: that of the one group, or those of all of them."""
        step = query_start_loc, seq_lens, token_rows, positions, computed
        first, *others = [table.metadata(*step) for table in self.block_tables]
        if not others:
            return first
        return GroupedAttentionMetadata(
            query_start_loc, seq_lens, first.block_tables, first.slot_mapping, tuple(others)
        )

    def held_blocks(self, row: int) -> Array:
        """All blocks of a row, in whatever group (a copy)."""
        return np.concatenate([table.table[row, : int(table.num_blocks[row])] for table in self.block_tables])
