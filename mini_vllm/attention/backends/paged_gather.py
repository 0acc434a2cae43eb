"""The default backend: gather the blocks of a request, then ordinary attention as batched matrix products.

What depends on the step alone is planned once (`gather_plan.py`); here is what every layer does with the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadata,
    AttentionStep,
    plan_without_padding,
    tokens_to_write,
)
from mini_vllm.attention.backends.gather_plan import Chunk, GatherPlanner, PrefillRow, Share
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.platforms.cpu.threads import num_shares, num_threads, run_shares
from mini_vllm.platforms.cpu.workspace import Workspace
from mini_vllm.utils.arrays import Array

CHUNK_BYTES = 1 << 20
"""Keys and values gathered at a time for requests that are computed together."""
MAX_SCORES = 1 << 19
"""Scores computed at a time for a prefill tile; half as many for requests that are computed together."""


class PagedGatherBackend(AttentionBackend):
    """Arguments as for every backend: see `attention/backend.py`."""

    name = "paged_gather"
    cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache: KVCache, num_heads: int, sliding_windows: Sequence[int | None], *args: Any) -> None:
        super().__init__(kv_cache, num_heads, sliding_windows, *args)
        self.distinct_windows = tuple(dict.fromkeys(self.sliding_windows))
        self.workspaces = [Workspace(kv_cache.dtype) for _ in range(num_threads())]
        self.block_elements = kv_cache.data[0, 0].size
        self.max_scores = MAX_SCORES
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
        start = int(metadata.slot_mapping[0])
        in_one_run = num_tokens == 1 or (num_tokens > metadata.num_reqs and (np.diff(metadata.slot_mapping) == 1).all())
        if start >= 0 and in_one_run:
            self.slots = slice(start, start + num_tokens)  # a run of slots needs no index list
        workspaces = backend.workspaces[: num_shares(num_tokens)]
        most = metadata.block_tables.shape[1]
        for workspace in workspaces:  # grow the scratch before views into it are made
            backend.kv_views(workspace, max(most, backend.blocks_per_chunk))
            workspace.get("scores", max(backend.max_scores, backend.num_heads * most * self.cache.block_size))
        planner = GatherPlanner(backend, metadata, self.out, workspaces)
        self.plans = {window: planner.plan(window) for window in backend.distinct_windows}

    def __call__(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        """Write k and v, then attend. q [T, Hq, D], k and v [T, Hkv, D] -> [T, Hq * D], valid until the next call."""
        self.cache.write(layer, self.slots, k[self.tokens], v[self.tokens])
        queries = q.reshape(self.grouped)

        def attend(share: Share) -> None:
            for chunk in share.chunks:
                self._attend_chunk(layer, chunk, queries[chunk.tokens])
            for row in share.rows:
                if row.tiles:  # a short prompt may have fewer tiles than there are shares
                    self._prefill(layer, row, queries, share.workspace)

        run_shares(attend, self.plans[self.backend.sliding_windows[layer]])
        return self.flat_out

    def _attend_chunk(self, layer: int, chunk: Chunk, queries: Array) -> None:
        """queries: [N * Q, Hkv, G, D], those of the chunk."""
        self.cache.gather(layer, chunk.block_ids, chunk.gathered)
        if chunk.queries_t is None:
            self._decode(chunk, queries)
        else:
            self._short_prefill(chunk, chunk.queries_t, queries)
        if chunk.is_copied:
            self.out[chunk.tokens] = chunk.by_token(queries.shape[2])

    def _decode(self, chunk: Chunk, queries: Array) -> None:
        """One query each: a row of scores has all keys."""
        np.matmul(queries, chunk.key.swapaxes(2, 3), out=chunk.scores)
        chunk.scores *= self.backend.scale
        self.backend.cap(chunk.scores)
        if chunk.bias is not None:
            chunk.scores += chunk.bias
        total = _softmax_numerator(chunk.scores)
        np.matmul(chunk.scores, chunk.value, out=chunk.out)
        chunk.out /= total

    def _short_prefill(self, chunk: Chunk, queries_t: Array, queries: Array) -> None:
        """Several queries each: a row of scores has all queries, as a maximum over many short rows is slow, and a
        product with a transposed factor too."""
        np.multiply(chunk.by_head(queries).swapaxes(2, 3), self.backend.scale, out=queries_t)
        np.matmul(chunk.key, queries_t, out=chunk.scores)
        self.backend.cap(chunk.scores)
        chunk.scores += chunk.bias
        total = _softmax_numerator(chunk.scores, axis=2)
        np.matmul(chunk.scores.swapaxes(2, 3), chunk.value, out=chunk.out)
        chunk.out /= total.swapaxes(2, 3)

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
            self.backend.cap(scores)
            scores[..., tile.num_keys - tile.bias.shape[1] :] += tile.bias
            total = _softmax_numerator(scores)
            target = self.out[tile.first : tile.last].transpose(1, 2, 0, 3)
            np.matmul(scores, value, out=target)
            target /= total


def _softmax_numerator(scores: Array, axis: int = -1) -> Any:
    """exp(scores - max) in place; returns the sums over the axis, to divide the (smaller) result by."""
    scores -= np.maximum.reduce(scores, axis=axis, keepdims=True)
    np.exp(scores, out=scores)
    return np.add.reduce(scores, axis=axis, keepdims=True)
