"""The default backend: gather the blocks of a request, then ordinary attention as batched matrix products.

What depends on the step alone (which blocks, masks, views into scratch memory) is planned once and used by every
layer. Requests with one new token (decode) are computed together, a few rows at a time, so that the gathered keys and
values stay in the processor's cache; longer ones (prefill) one after the other, in tiles of queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionStep,
    plan_without_padding,
    tokens_to_write,
)
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.attention.metadata import Array, AttentionMetadata
from mini_vllm.models.layers import Workspace
from mini_vllm.threads import num_shares, num_threads, run_shares

CHUNK_BYTES = 1 << 20
"""Keys and values gathered at a time for decode rows."""
MAX_SCORES = 1 << 19
"""Scores computed at a time for a prefill tile."""
SORT_WASTE = 1.25
"""Decode rows are sorted by length when padding them all to the longest would gather this much too much."""

_NONE: Array = np.empty(0, np.int64)


@dataclass(slots=True)
class DecodeChunk:
    """Some decode rows: which tokens, their blocks, and views into scratch memory for their shapes."""

    tokens: slice | Array
    block_ids: Array  # [rows * blocks]
    gathered: Array  # [rows * blocks, block elements]
    key_t: Array  # [rows, Hkv, D, S] view of gathered
    value: Array  # [rows, Hkv, S, D] view of gathered
    scores: Array  # [rows, Hkv, G, S]
    out: Array  # [rows, Hkv, G, D]: the result itself where `tokens` is a slice, else scratch
    bias: Array | None  # [rows, 1, 1, S], 0 or -inf


@dataclass(slots=True)
class PrefillTile:
    """Consecutive queries of one request, all its keys up to the last of them."""

    first: int
    last: int
    num_keys: int
    bias: Array  # [queries, masked keys], 0 or -inf, for the last `bias.shape[1]` keys


@dataclass(slots=True)
class PrefillRow:
    """One request with more than one new token."""

    block_ids: Array
    gathered: Array
    key: Array  # [S, Hkv, D] view of gathered
    value: Array
    tiles: list[PrefillTile]


@dataclass(slots=True)
class Share:
    """What one thread does in every layer; the scratch memory behind its views is its own."""

    chunks: list[DecodeChunk]
    rows: list[PrefillRow]
    workspace: Workspace


class PagedGatherBackend(AttentionBackend):
    """Arguments as for every backend: see `attention/backend.py`."""

    name = "paged_gather"
    cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(
        self, kv_cache: KVCache, num_heads: int, sliding_windows: Sequence[int | None], sinks: Array | None = None
    ) -> None:
        super().__init__(kv_cache, num_heads, sliding_windows, sinks)
        self.distinct_windows = tuple(dict.fromkeys(self.sliding_windows))
        self.workspaces = [Workspace(kv_cache.dtype) for _ in range(num_threads())]
        self.block_elements = kv_cache.data[0, 0].size
        self.blocks_per_chunk = max(1, CHUNK_BYTES // (self.block_elements * kv_cache.dtype.itemsize))

    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """Plan the step: one plan for each window size that the model's layers have."""
        return plan_without_padding(lambda real: PagedGatherStep(self, real), metadata)

    def kv_views(self, workspace: Workspace, num_blocks: int) -> tuple[Array, Array]:
        """Scratch for `num_blocks` gathered blocks: [num_blocks, block elements], and as [slots, 2, Hkv, D]."""
        gathered = workspace.get("gathered", num_blocks, self.block_elements)
        return gathered, gathered.reshape(-1, 2, self.kv_cache.num_kv_heads, self.kv_cache.head_dim)


class PagedGatherStep:
    """The attention of one step, called once per layer."""

    def __init__(self, backend: PagedGatherBackend, metadata: AttentionMetadata) -> None:
        self.backend, self.metadata, self.cache = backend, metadata, backend.kv_cache
        num_tokens = metadata.num_tokens
        self.grouped = (num_tokens, self.cache.num_kv_heads, backend.group, self.cache.head_dim)
        self.out = backend.workspaces[0].get("out", *self.grouped)
        self.flat_out = self.out.reshape(num_tokens, -1)
        self.slots: slice | Array
        self.tokens, self.slots = tokens_to_write(metadata)
        self.decode_rows, prefill_rows = _NONE, _NONE
        if num_tokens == metadata.num_reqs:
            self.decode_rows = np.arange(num_tokens)
        else:
            lens = metadata.query_lens
            self.decode_rows, prefill_rows = np.flatnonzero(lens == 1), np.flatnonzero(lens > 1)
        start = int(metadata.slot_mapping[0])
        if start >= 0 and (num_tokens == 1 or (len(prefill_rows) and (np.diff(metadata.slot_mapping) == 1).all())):
            self.slots = slice(start, start + num_tokens)  # a run of slots needs no index list
        workspaces = backend.workspaces[: num_shares(num_tokens)]
        most = metadata.block_tables.shape[1]
        for workspace in workspaces:  # grow the scratch before views into it are made
            backend.kv_views(workspace, max(most, backend.blocks_per_chunk))
            workspace.get("scores", max(MAX_SCORES, backend.num_heads * most * self.cache.block_size))
        self.plans = {window: self._plan(window, prefill_rows, workspaces) for window in backend.distinct_windows}

    def _plan(self, window: int | None, prefill_rows: Array, workspaces: Sequence[Workspace]) -> list[Share]:
        shares = [Share([], [], workspace) for workspace in workspaces]
        self._plan_decode(window, shares)
        few = len(prefill_rows) < len(shares)
        for i, row in enumerate(prefill_rows.tolist()):
            if few:  # a long prompt by itself: each thread takes every n-th tile of its queries
                for k, share in enumerate(shares):
                    share.rows.append(self._prefill_row(row, window, share.workspace, (k, len(shares))))
            else:
                share = shares[i % len(shares)]
                share.rows.append(self._prefill_row(row, window, share.workspace))
        return shares

    def __call__(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        """Write k and v, then attend. q [T, Hq, D], k and v [T, Hkv, D] -> [T, Hq * D], valid until the next call."""
        self.cache.write(layer, self.slots, k[self.tokens], v[self.tokens])
        queries = q.reshape(self.grouped)

        def attend(share: Share) -> None:
            for chunk in share.chunks:
                self._decode(layer, chunk, queries[chunk.tokens])
            for row in share.rows:
                if row.tiles:  # a short prompt may have fewer tiles than there are shares
                    self._prefill(layer, row, queries, share.workspace)

        run_shares(attend, self.plans[self.backend.sliding_windows[layer]])
        return self.flat_out

    def _plan_decode(self, window: int | None, shares: list[Share]) -> None:
        """Cut the decode rows into chunks and deal them out."""
        rows, size, limit = self.decode_rows, self.cache.block_size, self.backend.blocks_per_chunk
        if not len(rows):
            return
        most_rows = -(-len(rows) // len(shares))
        lens = self.metadata.seq_lens[rows]
        first = None if window is None else np.maximum(lens - window, 0) // size
        blocks = -(-lens // size) if first is None else -(-lens // size) - first
        longest = int(blocks.max())
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
            share.chunks.append(
                self._decode_chunk(
                    rows[part], lens[part], None if first is None else first[part], window, share.workspace
                )
            )
            start, number = part.stop, number + 1

    def _decode_chunk(
        self, rows: Array, lens: Array, first: Array | None, window: int | None, workspace: Workspace
    ) -> DecodeChunk:
        """`first` [rows]: the first logical block that the window leaves, None without a window."""
        cache, size, get = self.cache, self.cache.block_size, workspace.get
        num_rows, table = len(rows), self.metadata.block_tables
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
        bias = None
        if window is not None or int(lens.min()) < num_keys:
            position = begin + np.arange(num_keys)
            hidden = position >= lens[:, None]
            if window is not None:
                hidden |= position < (lens - window)[:, None]
            bias = np.where(hidden, -np.inf, 0.0).astype(self.out.dtype)[:, None, None, :]
        starts = self.metadata.query_start_loc[rows]
        tokens: slice | Array = starts
        if num_rows == 1 or (np.diff(starts) == 1).all():
            tokens = slice(int(starts[0]), int(starts[0]) + num_rows)
        gathered, slots = self.backend.kv_views(workspace, num_rows * blocks)
        kv = slots.reshape(num_rows, blocks * size, 2, cache.num_kv_heads, cache.head_dim)[:, :num_keys]
        key_t, value = kv[:, :, 0].transpose(0, 2, 3, 1), kv[:, :, 1].transpose(0, 2, 1, 3)
        scores = get("scores", num_rows, *self.grouped[1:3], num_keys)
        out = self.out[tokens] if isinstance(tokens, slice) else get("decode_out", num_rows, *self.grouped[1:])
        return DecodeChunk(tokens, block_ids.ravel(), gathered, key_t, value, scores, out, bias)

    def _decode(self, layer: int, chunk: DecodeChunk, queries: Array) -> None:
        """queries: [rows, Hkv, G, D]."""
        self.cache.gather(layer, chunk.block_ids, chunk.gathered)
        scores = chunk.scores
        np.matmul(queries, chunk.key_t, out=scores)
        scores *= self.backend.scale
        if chunk.bias is not None:
            scores += chunk.bias
        total = _softmax_numerator(scores)
        np.matmul(scores, chunk.value, out=chunk.out)
        chunk.out /= total
        if not isinstance(chunk.tokens, slice):
            self.out[chunk.tokens] = chunk.out

    def _prefill_row(
        self, row: int, window: int | None, workspace: Workspace, part: tuple[int, int] = (0, 1)
    ) -> PrefillRow:
        """`part`: (k, n) for every n-th tile from the k-th on."""
        start, stop = (int(i) for i in self.metadata.query_start_loc[row : row + 2])
        seq_len = int(self.metadata.seq_lens[row])
        blocks = -(-seq_len // self.cache.block_size)
        gathered, slots = self.backend.kv_views(workspace, blocks)
        step = max(16, min(256, MAX_SCORES // (self.backend.num_heads * seq_len), -(-(stop - start) // part[1])))
        context = seq_len - (stop - start)
        tiles = []
        for first in range(start + part[0] * step, stop, part[1] * step):
            last = min(first + step, stop)
            query = np.arange(context + first - start, context + last - start)[:, None]
            num_keys = int(query[-1, 0]) + 1
            key = np.arange(0 if window is not None else int(query[0, 0]), num_keys)[None, :]
            hidden = key > query
            if window is not None:
                hidden |= key <= query - window
            bias = np.where(hidden, -np.inf, 0.0).astype(gathered.dtype)
            tiles.append(PrefillTile(first, last, num_keys, bias))
        table = self.metadata.block_tables[row, :blocks]
        return PrefillRow(table, gathered, slots[:, 0], slots[:, 1], tiles)

    def _prefill(self, layer: int, row: PrefillRow, queries: Array, workspace: Workspace) -> None:
        """queries: [T, Hkv, G, D], of which the tiles take theirs."""
        self.cache.gather(layer, row.block_ids, row.gathered)
        for tile in row.tiles:
            q = queries[tile.first : tile.last].transpose(1, 2, 0, 3)  # [Hkv, G, queries, D]
            key_t = row.key[: tile.num_keys].transpose(1, 2, 0)[:, None]  # [Hkv, 1, D, S]
            value = row.value[: tile.num_keys].transpose(1, 0, 2)[:, None]  # [Hkv, 1, S, D]
            scores = workspace.get("scores", *q.shape[:3], tile.num_keys)
            np.matmul(q, key_t, out=scores)
            scores *= self.backend.scale
            scores[..., tile.num_keys - tile.bias.shape[1] :] += tile.bias
            total = _softmax_numerator(scores)
            target = self.out[tile.first : tile.last].transpose(1, 2, 0, 3)
            np.matmul(scores, value, out=target)
            target /= total


def _softmax_numerator(scores: Array) -> Any:
    """exp(scores - max) in place; returns the sums over the last axis, to divide the (smaller) result by."""
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return np.add.reduce(scores, axis=-1, keepdims=True)
