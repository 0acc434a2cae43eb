"""Labs 00-03 and 02-06 in the engine: a sampler and an attention backend around a learner's functions.

A lab function is smaller than the engine's part: one row, one token. The loop and the checks are here."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from course.plugs.guards import Watch
from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.outputs import SamplerOutput
from mini_vllm.sample.logits_processor.builtin import apply_min_p
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.sampler import Sampler
from mini_vllm.utils.arrays import Array

QUERIES_AT_ONCE = 64
"""Tokens handed to `paged_attention_batch` in one call: it may gather all their keys at once."""


class LabSampler(Sampler):
    """Our sampler with the choice of each row taken from lab 00-03. Masks, bias and penalties come before, as ever.
    The subclass that `assemble` makes sets `choose` and `watch`."""

    choose: Callable[..., int]
    watch: Watch

    def forward(self, logits: np.ndarray, metadata: SamplingMetadata) -> SamplerOutput:
        """As `Sampler.forward`, without its short cut past `sample_batch`."""
        if metadata.all_greedy and metadata.leaves_logits_alone and not metadata.num_logprobs:
            return SamplerOutput(self.sample_batch(logits, metadata))
        return super().forward(logits, metadata)

    def sample_batch(self, logits: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
        """One call a row. Min-p, which the lab does not know, is applied between temperature and top-k as here."""
        chosen = np.empty(len(logits), dtype=np.int64)
        for row, scores in enumerate(logits):
            temperature = float(metadata.temperature[row])
            top_k = 0 if metadata.top_k is None else int(metadata.top_k[row])
            top_p = 1.0 if metadata.top_p is None else float(metadata.top_p[row])
            if temperature and metadata.min_p is not None and metadata.min_p[row]:
                scores, temperature = scores[None] / temperature, 1.0
                apply_min_p(scores, metadata.min_p[row : row + 1])
                scores = scores[0]
            token = self.watch.call(type(self).choose, scores, temperature, top_k, top_p, metadata.generators[row])
            self._check(token, scores, temperature, row)
            chosen[row] = token
        return chosen

    def _check(self, token: Any, scores: np.ndarray, temperature: float, row: int) -> None:
        whole = isinstance(token, int | np.integer) and not isinstance(token, bool)
        self.watch.require(whole, f"sample must return an int, got {type(token).__name__} for row {row}")
        inside = 0 <= token < len(scores)
        self.watch.require(inside, f"sample returned {token}, outside the vocabulary of {len(scores)} ids (row {row})")
        self.watch.require(scores[token] > -np.inf, f"sample returned {token}, which is masked (row {row})")
        best = int(scores.argmax())
        greedy = f"sample returned {token} at temperature 0, the largest logit is that of {best} (row {row})"
        self.watch.require(temperature != 0.0 or token == best, greedy)


class LabAttention:
    """An attention backend around lab 02-06: its two maps, and its attention of one token, for every token of a step.
    Each token of a prompt is a decode row of its own: at position p it looks at p + 1 tokens."""

    def __init__(
        self, module: ModuleType, watch: Watch, kv_cache: KVCache, num_heads: int, sliding_windows: Sequence[int | None]
    ) -> None:
        self.module, self.watch, self.kv_cache, self.num_heads = module, watch, kv_cache, num_heads

    def begin_step(self, metadata: AttentionMetadata) -> Callable[..., Array]:
        """The callable for this step; the write map is built here, once for all layers."""
        size, lens = self.kv_cache.block_size, metadata.query_lens
        slots = [
            self.watch.call(self.module.build_slot_mapping, table, size, int(seq_len - n), int(n))
            for table, seq_len, n in zip(metadata.block_tables, metadata.seq_lens, lens, strict=True)
        ]
        for row, mine in enumerate(slots):
            first, last = metadata.query_start_loc[row : row + 2]
            right = np.array_equal(mine, metadata.slot_mapping[first:last])
            other = f"build_slot_mapping: row {row} would write to other slots than its block table's"
            self.watch.require(right, other)
        mapping = np.concatenate(slots)
        tables = np.repeat(metadata.block_tables, lens, axis=0)
        context = np.repeat(metadata.seq_lens - lens - metadata.query_start_loc[:-1], lens)
        seq_lens = context + np.arange(len(mapping)) + 1

        def attn(layer: int, q: Array, k: Array, v: Array) -> Array:
            return self._layer(layer, q, k, v, mapping, tables, seq_lens)

        return attn

    def _layer(self, layer: int, q: Array, k: Array, v: Array, slots: Array, tables: Array, seq_lens: Array) -> Array:
        keys, values = self.kv_cache.slots(layer)
        self.watch.call(self.module.write_kv, keys, values, k, v, slots)
        for name, pool, new in (("keys", keys, k), ("values", values, v)):
            same = np.array_equal(pool[slots], new, equal_nan=True)
            self.watch.require(same, f"write_kv: the {name} of layer {layer} are not in their slots")
        out = np.empty(q.shape, q.dtype)
        for at in range(0, len(q), QUERIES_AT_ONCE):
            part = slice(at, at + QUERIES_AT_ONCE)
            rows = (q[part], keys, values, tables[part], seq_lens[part], self.kv_cache.block_size)
            result = self.watch.call(self.module.paged_attention_batch, *rows)
            shape, sizes = np.shape(result), f"{q[part].shape} ([tokens, heads, head size])"
            wanted = f"paged_attention_batch returned shape {shape}, wanted {sizes}"
            self.watch.require(shape == q[part].shape, wanted)
            out[part] = result
        finite = np.isfinite(out).all() or not np.isfinite(q).all()
        self.watch.require(finite, f"paged_attention_batch returned NaN or infinity in layer {layer}")
        return out.reshape(len(q), -1)
