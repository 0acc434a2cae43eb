"""Attention while a drafter goes on from its own drafts. Upstream has no twin: its kernels read keys where they lie.

    pass 1      keys 0 .. n - 1, and its own at n
    pass 2      the same, and its own at n + 1
    ...

Each pass has one query a request and sees one key more than the pass before. So keys and values are gathered once for
the whole chain; what a pass adds goes into the cache, as ever, and beside what was gathered.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.attention.backends.paged_gather import PagedGatherBackend
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.platforms.cpu.threads import num_shares
from mini_vllm.utils.arrays import Array

MOST_BYTES = 16 << 20
"""Of keys and values that are kept for a chain, all layers together. More is gathered anew in each pass, in chunks."""


class ChainAttention:
    """The attention of `num_passes` passes; `advance` comes after each of them.

    Args:
        backend: the drafter's, for which `chain_attention` found that it may be left out.
        block_tables: [R, blocks]. positions: [R], of the first token that a pass adds. num_passes: at least 1.
    """

    def __init__(self, backend: Any, block_tables: Array, positions: Array, num_passes: int) -> None:
        self.cache, self.scale, size = backend.kv_cache, backend.scale, backend.kv_cache.block_size
        self._rows, self._index, self._positions = np.arange(len(positions)), 0, positions
        every = positions[:, None] + np.arange(num_passes)
        self._slots = np.take_along_axis(block_tables, every // size, axis=1) * size + every % size
        self._num_keys = int(positions.max()) + num_passes
        self._block_ids = block_tables[:, : -(-self._num_keys // size)]
        self._bias: Array | None = None
        if len(positions) > 1:
            hidden = np.arange(self._num_keys) >= positions[:, None]
            self._bias = np.where(hidden, -np.inf, 0.0).astype(self.cache.dtype)[:, None, None]
        self._gathered: dict[int, Array] = {}

    def advance(self) -> None:
        """The next pass: a token further."""
        self._index += 1
        self._positions = self._positions + 1

    def __call__(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        """q [R, Hq, D], k and v [R, Hkv, D] -> [R, Hq * D]."""
        kept = self._gathered.get(layer)
        if kept is None:
            kept = self._gathered[layer] = self._gather(layer)
        rows, here = self._rows, self._positions
        self.cache.write(layer, self._slots[:, self._index], k, v)
        kept[rows, here, 0], kept[rows, here, 1] = k, v
        if self._bias is None:
            kept = kept[:, : int(here[0]) + 1]
        key, value = kept[:, :, 0].swapaxes(1, 2), kept[:, :, 1].swapaxes(1, 2)
        scores = np.matmul(q.reshape(len(q), key.shape[1], -1, q.shape[2]), key.swapaxes(2, 3))
        scores *= self.scale
        if self._bias is not None:
            self._bias[rows, 0, 0, here] = 0.0
            scores += self._bias
        scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        out = np.matmul(scores, value)
        out /= np.add.reduce(scores, axis=-1, keepdims=True)
        return out.reshape(len(q), -1)

    def _gather(self, layer: int) -> Array:
        """Keys and values of all requests, [R, num_keys, 2, Hkv, D]."""
        cache, count = self.cache, self._block_ids.size
        blocks = np.empty((count, cache.data[0, 0].size), cache.dtype)
        cache.gather(layer, self._block_ids.ravel(), blocks)
        shape = len(self._rows), -1, 2, cache.num_kv_heads, cache.head_dim
        return blocks.reshape(shape)[:, : self._num_keys]


def chain_attention(backend: Any, block_tables: Array, positions: Array, num_passes: int) -> ChainAttention | None:
    """One for these requests; None where the backend's own is needed: it has windows, sinks or a cap, its cache is
    quantized, there are too many keys, or so many requests that threads share them. Arguments as `ChainAttention`."""
    cache = backend.kv_cache
    plain = type(backend) is PagedGatherBackend and type(cache) is KVCache
    plain = plain and backend.sinks is None and backend.logits_soft_cap is None
    if not plain or num_passes < 1 or any(backend.sliding_windows) or num_shares(len(positions)) > 1:
        return None
    num_keys = len(positions) * (int(positions.max()) + num_passes)
    if num_keys * 2 * cache.num_kv_heads * cache.head_dim * cache.num_layers * cache.dtype.itemsize > MOST_BYTES:
        return None
    return ChainAttention(backend, block_tables, positions, num_passes)
