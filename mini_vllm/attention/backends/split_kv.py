"""Split-KV decode (flash-decoding): the keys of one query are cut into segments that are attended to independently.

A decode step with few requests has too few queries to fill a GPU, so the parallelism must come from the keys. Each
segment gives an unnormalised summary; one reduction merges them. Steps with a prefill, or with many requests, take the
ordinary loop of `paged_online`.

Upstream twin: the 3D grid of upstream/vllm/v1/attention/ops/triton_unified_attention.py:763 — `unified_attention`, and
upstream/vllm/v1/attention/ops/triton_unified_attention.py:646 — `reduce_segments`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.attention.backend import AttentionCGSupport, AttentionMetadata
from mini_vllm.attention.backends.paged_online import PagedOnlineBackend, QueryBlock
from mini_vllm.attention.ops.online_softmax import Summary, attend_tile, finalize, merge_axis, merge_two
from mini_vllm.utils.arrays import Array

NUM_PAR_SOFTMAX_SEGMENTS = 16
"""Upstream: upstream/vllm/v1/attention/backends/triton_attn.py:55 — "NUM_PAR_SOFTMAX_SEGMENTS = 16"."""
MIN_LAUNCH_GRID_SIZE_2D = 128
"""Upstream: upstream/vllm/v1/attention/backends/triton_attn.py:54 — "MIN_LAUNCH_GRID_SIZE_2D = 128"."""
MAX_KEYS = 1 << 14
"""Keys gathered at a time, all rows together; here memory, not the number of processors, sets the limit."""


class SplitKVBackend(PagedOnlineBackend):
    """Arguments as for every backend: see `attention/backend.py`."""

    name = "split_kv"
    cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    num_segments = NUM_PAR_SOFTMAX_SEGMENTS

    def query_blocks(self, metadata: AttentionMetadata) -> list[QueryBlock]:
        """As `paged_online`; it also settles for this step whether decode rows are split."""
        self.split = self.use_3d(int(metadata.query_lens.max(initial=0)), metadata.num_reqs)
        return super().query_blocks(metadata)

    def use_3d(self, max_query_len: int, num_seqs: int) -> bool:
        """Split only when no request has more than one query, and they are too few to make 128 programs by themselves.

        Upstream: upstream/vllm/v1/attention/ops/triton_unified_attention.py:923 — "use_3d = not (".
        """
        return max_query_len <= 1 and num_seqs <= MIN_LAUNCH_GRID_SIZE_2D // self.num_kv_heads

    def segments(self, positions: Array, window: int | None) -> tuple[int, int, int]:
        """(first logical block, segments, blocks of each) for queries at these positions.

        Never more segments than have blocks: 9 blocks are 9 segments of one, 20 are 10 of two.
        """
        size = self.kv_cache.block_size
        first = 0 if window is None else max(int(positions.min()) - window + 1, 0) // size
        num_blocks = int(positions.max()) // size + 1 - first
        blocks_per_segment = -(-num_blocks // self.num_segments)
        return first, -(-num_blocks // blocks_per_segment), blocks_per_segment

    def attend(self, layer: int, block: QueryBlock, queries: Array) -> Array:
        """queries [R, Hkv, G, D] -> the same shape."""
        if not self.split:
            return super().attend(layer, block, queries)
        _, num_segments, blocks = self.segments(block.positions, self.sliding_windows[layer])
        step = max(1, MAX_KEYS // (num_segments * blocks * self.kv_cache.block_size))
        rows = [slice(first, first + step) for first in range(0, len(queries), step)]
        return np.concatenate([self._split(layer, block.positions[r], block.block_tables[r], queries[r]) for r in rows])

    def _split(self, layer: int, positions: Array, block_tables: Array, q: Array) -> Array:
        """All segments at once. positions [R, 1], q [R, Hkv, G, D]."""
        size, window = self.kv_cache.block_size, self.sliding_windows[layer]
        first, num_segments, blocks_per_segment = self.segments(positions, window)
        logical = first + np.arange(num_segments * blocks_per_segment)
        padded = block_tables[:, np.minimum(logical, block_tables.shape[1] - 1)]
        key, value = self.gather(layer, padded, q.dtype)
        shape = (len(q), self.num_kv_heads, num_segments, blocks_per_segment * size, self.head_dim)
        key_pos = first * size + np.arange(key.shape[2])
        visible = key_pos <= positions
        if window is not None:
            visible &= key_pos > positions - window
        visible = visible.reshape(len(q), 1, num_segments, 1, -1)
        parts = attend_tile(q[:, :, None], key.reshape(shape), value.reshape(shape), self.scale, visible, self.cap)
        return finalize(merge_two(self.initial(layer, len(q), 1, q.dtype), self.reduce_segments(parts)))

    def reduce_segments(self, parts: Summary) -> Summary:
        """Summaries [R, Hkv, segments, G] -> [R, Hkv, G]."""
        return merge_axis(parts, axis=2)
