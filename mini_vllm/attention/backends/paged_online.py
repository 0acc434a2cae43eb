"""Attention in one pass over the keys, tile by tile through the block table: FlashAttention's algorithm in numpy.

Nothing of the size of a context is ever made. Each query keeps a summary (m, denom, acc), and each tile of keys is
merged into it. The loop over tiles ends where the causal limit does, and starts where a sliding window does.

Upstream twin: upstream/vllm/v1/attention/ops/triton_unified_attention.py:179 — `kernel_unified_attention`, which is
also one kernel for prefill and decode; its grid has a program for each block of queries and KV head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadata,
    AttentionStep,
    tokens_to_write,
)
from mini_vllm.attention.ops.online_softmax import Summary, attend_tile, finalize, identity, merge_two
from mini_vllm.utils.arrays import Array

TILE_SIZE = 64
"""Keys of a tile, as whole blocks; a tile has at least one block."""
QUERY_BLOCK = 128
"""Queries of a prefill that go over the keys together."""
DECODE_ROWS = 64
"""Decode rows that go over their keys together."""


@dataclass(slots=True)
class QueryBlock:
    """Queries that share a loop over tiles: one each of R requests, or N of one request.

    tokens: which of the step's tokens, R * N of them. positions [R, N]; block_tables [R, blocks].
    """

    tokens: slice | Array
    positions: Array
    block_tables: Array


class PagedOnlineBackend(AttentionBackend):
    """Arguments as for every backend: see `attention/backend.py`."""

    name = "paged_online"
    cudagraph_support = AttentionCGSupport.ALWAYS
    has_sink_support = True

    def begin_step(self, metadata: AttentionMetadata) -> AttentionStep:
        """Which queries go together is decided here, once for all layers."""
        tokens, slots = tokens_to_write(metadata)
        blocks = self.query_blocks(metadata)

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            self.kv_cache.write(layer, slots, k[tokens], v[tokens])
            queries = q.reshape(len(q), self.num_kv_heads, self.group, self.head_dim)
            out = np.zeros_like(queries, order="C")
            for block in blocks:
                out[block.tokens] = self.attend(layer, block, queries[block.tokens])
            return out.reshape(len(q), -1)

        return attn

    def query_blocks(self, metadata: AttentionMetadata) -> list[QueryBlock]:
        """Decode rows in groups of like length, longer rows cut into blocks of queries; padding is in none of them."""
        lens, starts, tables = metadata.query_lens, metadata.query_start_loc, metadata.block_tables
        context = metadata.seq_lens - lens
        decode = np.flatnonzero(lens == 1)
        decode = decode[np.argsort(metadata.seq_lens[decode], kind="stable")]
        blocks = []
        for first in range(0, len(decode), DECODE_ROWS):
            rows = decode[first : first + DECODE_ROWS]
            blocks.append(QueryBlock(starts[rows], context[rows][:, None], tables[rows]))
        for row in np.flatnonzero(lens > 1).tolist():
            start, stop = int(starts[row]), int(starts[row + 1])
            for first in range(start, stop, QUERY_BLOCK):
                last = min(first + QUERY_BLOCK, stop)
                positions = context[row] + np.arange(first - start, last - start)
                blocks.append(QueryBlock(slice(first, last), positions[None], tables[row : row + 1]))
        return blocks

    def attend(self, layer: int, block: QueryBlock, queries: Array) -> Array:
        """queries [R * N, Hkv, G, D] -> the same shape."""
        num_rows, num_queries = block.positions.shape
        q = queries.reshape(num_rows, num_queries, self.num_kv_heads, self.group, self.head_dim)
        q = q.transpose(0, 2, 3, 1, 4).reshape(num_rows, self.num_kv_heads, -1, self.head_dim)  # [R, Hkv, G * N, D]
        window = self.sliding_windows[layer]
        summary = self.initial(layer, num_rows, num_queries, q.dtype)
        for first, last in self.tile_loop(block.positions, window):
            summary = merge_two(summary, self.tile(layer, q, block, first, last, window))
        out = finalize(summary).reshape(num_rows, self.num_kv_heads, self.group, num_queries, self.head_dim)
        return out.transpose(0, 3, 1, 2, 4).reshape(queries.shape)

    def initial(self, layer: int, num_rows: int, num_queries: int, dtype: Any) -> Summary:
        """The summary of no keys, [R, Hkv, G * N]; with sinks, that of the sink alone: score = sink, value = 0.

        Upstream: upstream/vllm/v1/attention/ops/triton_attention_helpers.py:110 — `init_softmax_M`.
        """
        start = identity((num_rows, self.num_kv_heads, self.group * num_queries), self.head_dim, dtype)
        its_sinks = self.sinks_of(layer)
        if its_sinks is None:
            return start
        sinks = np.repeat(its_sinks.reshape(self.num_kv_heads, self.group), num_queries, axis=1)
        return Summary(np.broadcast_to(sinks, start.m.shape).astype(dtype), np.ones_like(start.denom), start.acc)

    def tile_loop(self, positions: Array, window: int | None) -> list[tuple[int, int]]:
        """Logical blocks [first, last) of each tile: up to the last query's position, from the first that any sees.

        Upstream: upstream/vllm/v1/attention/ops/triton_attention_helpers.py:142 — `compute_tile_loop_bounds`.
        """
        size = self.kv_cache.block_size
        step = max(1, TILE_SIZE // size)
        stop = int(positions.max()) // size + 1
        start = 0 if window is None else max(int(positions.min()) - window + 1, 0) // size
        return [(first, min(first + step, stop)) for first in range(start, stop, step)]

    def tile(self, layer: int, q: Array, block: QueryBlock, first: int, last: int, window: int | None) -> Summary:
        """The summary of the queries [R, Hkv, G * N, D] over logical blocks first .. last - 1."""
        size, (num_rows, num_queries) = self.kv_cache.block_size, block.positions.shape
        key, value = self.gather(layer, block.block_tables[:, first:last], q.dtype)
        key_pos = np.arange(first * size, first * size + key.shape[2])
        visible = key_pos <= block.positions[..., None]  # [R, N, S]
        if window is not None:
            visible &= key_pos > block.positions[..., None] - window
        if visible.all():
            return attend_tile(q, key, value, self.scale, cap=self.cap)
        shape = (num_rows, 1, self.group, num_queries, len(key_pos))
        for_each_head = np.broadcast_to(visible[:, None, None], shape).reshape(num_rows, 1, -1, len(key_pos))
        return attend_tile(q, key, value, self.scale, for_each_head, self.cap)

    def gather(self, layer: int, block_ids: Array, dtype: Any) -> tuple[Array, Array]:
        """Keys and values of blocks [R, B], each [R, Hkv, B * block_size, D]."""
        cache = self.kv_cache
        rows, num_blocks = block_ids.shape
        flat = np.empty((rows * num_blocks, cache.block_size * 2 * self.num_kv_heads * self.head_dim), dtype)
        cache.gather(layer, block_ids.reshape(-1), flat)
        kv = flat.reshape(rows, num_blocks * cache.block_size, 2, self.num_kv_heads, self.head_dim)
        return kv[:, :, 0].transpose(0, 2, 1, 3), kv[:, :, 1].transpose(0, 2, 1, 3)
