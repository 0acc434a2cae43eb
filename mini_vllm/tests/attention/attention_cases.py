"""Random steps over a random pool for tests of attention backends, and the plainest attention to judge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.utils.arrays import Array

HEAD_DIM = 8
Lens = Sequence[tuple[int, int]]


@dataclass
class Case:
    """A step: (new tokens, tokens in all) of each request, their places in a pool, and q, k, v of every layer.

    `context` holds, for each request, the keys and values of all its tokens in logical order [layers, 2, S, Hkv, D];
    where they lie in the pool is the business of the block tables alone.
    """

    lens: Lens
    block_size: int
    heads: tuple[int, int]
    windows: Sequence[int | None]
    metadata: AttentionMetadata
    num_blocks: int
    context: list[Array]
    q: Array
    sinks: Array | None = None

    def cache(self, fill: float = np.nan, dtype: str = "float64") -> KVCache:
        """A pool with the past of every request in its slots, and `fill` in all others."""
        cache = KVCache(len(self.windows), self.num_blocks, self.block_size, self.heads[1], HEAD_DIM, dtype)
        cache.data[:] = fill
        cache.data[:, 0] = 0.0  # the null block
        for row, (new, total) in enumerate(self.lens):
            positions = np.arange(total - new)
            blocks = self.metadata.block_tables[row, positions // self.block_size]
            for layer in range(len(self.windows)):
                past = self.context[row][layer, :, : total - new]
                cache.key(layer)[blocks, positions % self.block_size] = past[0]
                cache.value(layer)[blocks, positions % self.block_size] = past[1]
        return cache

    def new_kv(self, layer: int) -> tuple[Array, Array]:
        """k and v of the step's tokens, [T, Hkv, D]."""
        parts = [kv[layer, :, total - new :] for kv, (new, total) in zip(self.context, self.lens, strict=True)]
        k, v = np.concatenate(parts, axis=1)
        return k, v

    def run(self, backend: Any, cache: KVCache | None = None, metadata: AttentionMetadata | None = None) -> list[Array]:
        """The outputs of all layers, [T, Hq * D] each."""
        cache = cache if cache is not None else self.cache(fill=0.0)
        args = () if self.sinks is None else (self.sinks,)
        attn = backend(cache, self.heads[0], self.windows, *args).begin_step(metadata or self.metadata)
        dtype = cache.dtype
        outputs = []
        for layer in range(len(self.windows)):
            k, v = self.new_kv(layer)
            outputs.append(attn(layer, self.q[layer].astype(dtype), k.astype(dtype), v.astype(dtype)).copy())
        return outputs

    def expected(self) -> list[Array]:
        """Per request, per head, per query: softmax over the keys that it may see, in float64."""
        group = self.heads[0] // self.heads[1]
        outputs = []
        for layer, window in enumerate(self.windows):
            rows, at = np.zeros((len(self.q[layer]), self.heads[0], HEAD_DIM)), 0
            for kv, (new, total) in zip(self.context, self.lens, strict=True):
                for position in range(total - new, total):
                    first = 0 if window is None else max(0, position - window + 1)
                    for head in range(self.heads[0]):
                        key, value = kv[layer, :, first : position + 1, head // group]
                        sink = None if self.sinks is None else float(self.sinks[head])
                        rows[at, head] = plain_attention(self.q[layer][at, head], key, value, sink)
                    at += 1
            outputs.append(rows.reshape(at, -1))
        return outputs


def plain_attention(q: Array, key: Array, value: Array, sink: float | None = None) -> Array:
    """q [D], key and value [S, D]. A sink is one more score that takes weight and gives nothing."""
    scores = key @ q / np.sqrt(len(q))
    largest = max(scores.max(), -np.inf if sink is None else sink)
    weights = np.exp(scores - largest)
    return weights @ value / (weights.sum() + (0.0 if sink is None else np.exp(sink - largest)))


def make_case(
    rng: np.random.Generator, lens: Lens, block_size: int = 4, heads: tuple[int, int] = (4, 2),
    windows: Sequence[int | None] = (None,), sinks: bool = False, spare_blocks: int = 3,
) -> Case:  # fmt: skip
    """Blocks in random order, keys and values of every request."""
    total_blocks = sum(-(-total // block_size) for _, total in lens)
    num_blocks = total_blocks + 1 + spare_blocks
    metadata = place(rng, lens, block_size, num_blocks)
    shape = (len(windows), 2)
    context = [rng.standard_normal((*shape, total, heads[1], HEAD_DIM)) for _, total in lens]
    q = rng.standard_normal((len(windows), sum(new for new, _ in lens), heads[0], HEAD_DIM)) * 2
    its_sinks = rng.standard_normal(heads[0]) if sinks else None
    return Case(lens, block_size, heads, windows, metadata, num_blocks, context, q, its_sinks)


def place(rng: np.random.Generator, lens: Lens, block_size: int, num_blocks: int) -> AttentionMetadata:
    """Give every request random blocks of the pool, block 0 excepted."""
    free = rng.permutation(np.arange(1, num_blocks)).tolist()
    widest = max(-(-total // block_size) for _, total in lens)
    tables, slots = np.zeros((len(lens), widest), np.int64), []
    for row, (new, total) in enumerate(lens):
        count = -(-total // block_size)
        tables[row, :count] = [free.pop() for _ in range(count)]
        positions = np.arange(total - new, total)
        slots.append(tables[row, positions // block_size] * block_size + positions % block_size)
    starts = np.cumsum([0, *(new for new, _ in lens)])
    return AttentionMetadata(starts, np.array([total for _, total in lens]), tables, np.concatenate(slots))


def padded(metadata: AttentionMetadata, num_tokens: int, num_reqs: int) -> AttentionMetadata:
    """The step as a full CUDA graph sees it: more tokens and more requests, all of them nothing."""
    more_tokens, more_reqs = num_tokens - metadata.num_tokens, num_reqs - metadata.num_reqs
    tables = np.zeros((num_reqs, metadata.block_tables.shape[1] + 5), np.int64)
    tables[: metadata.num_reqs, : metadata.block_tables.shape[1]] = metadata.block_tables
    return AttentionMetadata(
        np.concatenate([metadata.query_start_loc, np.full(more_reqs, metadata.num_tokens)]),
        np.concatenate([metadata.seq_lens, np.zeros(more_reqs, np.int64)]),
        tables,
        np.concatenate([metadata.slot_mapping, np.full(more_tokens, -1)]),
    )
