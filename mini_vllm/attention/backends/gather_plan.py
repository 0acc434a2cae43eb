"""What `paged_gather` does in a step, planned once and used by every layer: which blocks, masks, views into scratch.

Requests with equally many new tokens (those that decode; short prompts of one length; draft tokens to be verified) are
computed together, as many at a time as leave what they gather and their scores in the processor's cache. Those whose
scores alone are too many, long prompts, go one after the other, in tiles of queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.platforms.cpu.workspace import Workspace
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.attention.backends.paged_gather import PagedGatherBackend

SORT_WASTE = 1.25
"""Rows are sorted by length when padding them all to the longest would gather this much too much."""


@dataclass(slots=True)
class Chunk:
    """N requests with Q new tokens each, S keys the longest; arrays are views into scratch memory."""

    tokens: slice | Array  # the N * Q tokens
    block_ids: Array  # [N * blocks]
    gathered: Array  # [N * blocks, block elements]
    key: Array  # [N, Hkv, S, D] view of gathered
    value: Array  # [N, Hkv, S, D] view of gathered
    queries_t: Array | None  # [N, Hkv, D, Q * G]; None where Q is 1
    scores: Array  # [N, Hkv, S, Q * G]; [N, Hkv, G, S] where Q is 1
    out: Array  # [N, Hkv, Q * G, D]: the result itself, or scratch where `is_copied`
    is_copied: bool
    bias: Array | None  # 0 or -inf, to be added to `scores`; one for all N where they have the same

    def by_head(self, by_token: Array) -> Array:
        """[N * Q, Hkv, G, D] -> [N, Hkv, Q * G, D]."""
        rows, heads, _, dim = self.out.shape
        return by_token.reshape(rows, -1, heads, by_token.shape[2], dim).swapaxes(1, 2).reshape(rows, heads, -1, dim)

    def by_token(self, group: int) -> Array:
        """`out` as [N * Q, Hkv, G, D]."""
        rows, heads, _, dim = self.out.shape
        return self.out.reshape(rows, heads, -1, group, dim).swapaxes(1, 2).reshape(-1, heads, group, dim)


@dataclass(slots=True)
class PrefillTile:
    """Consecutive queries of one request, all its keys up to the last of them."""

    first: int
    last: int
    num_keys: int
    bias: Array  # [queries, masked keys], 0 or -inf, for the last `bias.shape[1]` keys


@dataclass(slots=True)
class PrefillRow:
    """One request with many new tokens."""

    block_ids: Array
    gathered: Array
    key: Array  # [S, Hkv, D] view of gathered
    value: Array
    tiles: list[PrefillTile]


@dataclass(slots=True)
class Share:
    """What one thread does in every layer; the scratch memory behind its views is its own."""

    chunks: list[Chunk]
    rows: list[PrefillRow]
    workspace: Workspace


class GatherPlanner:
    """Plans a step. out: [T, Hkv, G, D], the result of each layer; workspaces: one for each share of the work."""

    def __init__(
        self, backend: PagedGatherBackend, metadata: AttentionMetadata, out: Array, workspaces: Sequence[Workspace]
    ) -> None:
        self.backend, self.metadata, self.out, self.workspaces = backend, metadata, out, workspaces
        self.cache, self.size = backend.kv_cache, backend.kv_cache.block_size
        self.together: list[tuple[int, Array]] = []  # (new tokens of each, requests)
        self.alone: list[int] = []  # requests
        for queries, rows in self._by_queries():
            longest = int(metadata.seq_lens[rows].max())
            if queries == 1 or self._most_rows(queries, longest) > 0:
                self.together.append((queries, rows))
            else:
                self.alone += rows.tolist()

    def _by_queries(self) -> Iterator[tuple[int, Array]]:
        """Requests by their number of new tokens."""
        if self.metadata.num_tokens == self.metadata.num_reqs:
            yield 1, np.arange(self.metadata.num_reqs)
            return
        lens = self.metadata.query_lens
        for queries in np.unique(lens[lens > 0]).tolist():
            yield queries, np.flatnonzero(lens == queries)

    def _most_rows(self, queries: int, num_keys: int) -> int:
        """How many requests with so many queries and keys have room in a chunk; 0 where one alone has not."""
        scores = self.backend.num_heads * queries * num_keys
        blocks = -(-num_keys // self.size)
        return min(self.backend.blocks_per_chunk // blocks, self.backend.max_scores // (2 * scores))

    def plan(self, window: int | None) -> list[Share]:
        """The work of a layer with this window, shared out."""
        shares = [Share([], [], workspace) for workspace in self.workspaces]
        for queries, rows in self.together:
            self._plan_chunks(rows, queries, window, shares)
        few = len(self.alone) < len(shares)
        for i, row in enumerate(self.alone):
            if few:  # a long prompt by itself: each thread takes every n-th tile of its queries
                for k, share in enumerate(shares):
                    share.rows.append(self._prefill_row(row, window, share.workspace, (k, len(shares))))
            else:
                share = shares[i % len(shares)]
                share.rows.append(self._prefill_row(row, window, share.workspace))
        return shares

    def _plan_chunks(self, rows: Array, queries: int, window: int | None, shares: list[Share]) -> None:
        """Cut these requests into chunks and deal them out."""
        size, limit = self.size, self.backend.blocks_per_chunk
        most_rows = -(-len(rows) // len(shares))
        lens = self.metadata.seq_lens[rows]
        first = None if window is None else np.maximum(lens - queries + 1 - window, 0) // size
        blocks = -(-lens // size) if first is None else -(-lens // size) - first
        longest = int(blocks.max())
        if queries > 1:
            most_rows = min(most_rows, self._most_rows(queries, int(lens.max())))
        if longest * len(rows) > SORT_WASTE * blocks.sum():
            order = np.argsort(blocks, kind="stable")
            rows, lens, blocks = rows[order], lens[order], blocks[order]
            first = None if first is None else first[order]
        start = number = 0
        while start < len(rows):
            stop = min(len(rows), start + max(1, limit // int(blocks[start])))
            if longest * (stop - start) > limit:
                stop = min(stop, start + max(1, limit // int(blocks[start:stop].max())))
            part = slice(start, min(stop, start + most_rows))
            share = shares[number % len(shares)]
            leave_out = None if first is None else first[part]
            share.chunks.append(self._chunk(rows[part], lens[part], queries, leave_out, window, share.workspace))
            start, number = part.stop, number + 1

    def _chunk(
        self, rows: Array, lens: Array, queries: int, first: Array | None, window: int | None, workspace: Workspace
    ) -> Chunk:
        """`first` [N]: the first logical block that the window leaves, None without a window."""
        cache, size, table, get = self.cache, self.size, self.metadata.block_tables, workspace.get
        _, heads, group, dim = self.out.shape
        num_rows = len(rows)
        begin: Any = 0
        if first is None:
            num_keys = int(lens.max())
            blocks = -(-num_keys // size)
            block_ids = table[rows, :blocks]
        else:
            begin = first[:, None] * size
            num_keys = int((lens - begin[:, 0]).max())
            blocks = -(-num_keys // size)
            block_ids = table[rows[:, None], np.minimum(first[:, None] + np.arange(blocks), table.shape[1] - 1)]
        starts = self.metadata.query_start_loc[rows]
        tokens: slice | Array = slice(int(starts[0]), int(starts[0]) + num_rows * queries)
        if num_rows > 1 and not (np.diff(starts) == queries).all():
            tokens = (starts[:, None] + np.arange(queries)).ravel()
        gathered, slots = self.backend.kv_views(workspace, num_rows * blocks)
        kv = slots.reshape(num_rows, blocks * size, 2, cache.num_kv_heads, cache.head_dim)[:, :num_keys]
        key, value = kv[:, :, 0].swapaxes(1, 2), kv[:, :, 1].swapaxes(1, 2)
        is_copied = not isinstance(tokens, slice) or (queries > 1 and heads > 1)
        shape = num_rows, heads, queries * group, dim
        out = get("chunk_out", *shape) if is_copied else self.out[tokens].reshape(shape)
        bias = self._bias(lens, queries, begin, num_keys, window)
        if queries == 1:
            queries_t, scores = None, get("scores", num_rows, heads, group, num_keys)
            bias = None if bias is None else bias.swapaxes(2, 3)
        else:
            queries_t = get("queries_t", num_rows, heads, dim, queries * group)
            scores = get("scores", num_rows, heads, num_keys, queries * group)
            bias = None if bias is None else np.repeat(bias, group, axis=3)
        return Chunk(tokens, block_ids.ravel(), gathered, key, value, queries_t, scores, out, is_copied, bias)

    def _bias(self, lens: Array, queries: int, begin: Any, num_keys: int, window: int | None) -> Array | None:
        """[N or 1, 1, S, Q], -inf where a query may not look; `begin` [N, 1]: the position of the first key."""
        if window is None and int(lens.min()) == num_keys:
            if queries == 1:
                return None
            lens = lens[:1]  # one mask serves all
        position = (begin + np.arange(num_keys))[..., :, None]
        query = (lens[:, None] - queries + np.arange(queries))[:, None, :]
        return self._mask(position, query, window)[:, None]

    def _mask(self, key: Array, query: Array, window: int | None) -> Array:
        """-inf where the query at one position may not look at the key at another, else 0."""
        hidden = key > query
        if window is not None:
            hidden |= key <= query - window
        return np.where(hidden, -np.inf, 0.0).astype(self.out.dtype)

    def _prefill_row(
        self, row: int, window: int | None, workspace: Workspace, part: tuple[int, int] = (0, 1)
    ) -> PrefillRow:
        """`part`: (k, n) for every n-th tile from the k-th on."""
        start, stop = (int(i) for i in self.metadata.query_start_loc[row : row + 2])
        seq_len = int(self.metadata.seq_lens[row])
        blocks = -(-seq_len // self.size)
        gathered, slots = self.backend.kv_views(workspace, blocks)
        most = self.backend.max_scores // (self.backend.num_heads * seq_len)
        step = max(16, min(256, most, -(-(stop - start) // part[1])))
        context = seq_len - (stop - start)
        tiles = []
        for first in range(start + part[0] * step, stop, part[1] * step):
            last = min(first + step, stop)
            query = np.arange(context + first - start, context + last - start)[:, None]
            num_keys = int(query[-1, 0]) + 1
            key = np.arange(0 if window is not None else int(query[0, 0]), num_keys)[None, :]
            tiles.append(PrefillTile(first, last, num_keys, self._mask(key, query, window)))
        table = self.metadata.block_tables[row, :blocks]
        return PrefillRow(table, gathered, slots[:, 0], slots[:, 1], tiles)
