"""The time below which the work of a batch cannot go here: its products, gather and attention, and nothing else.

Prefill: the matrix products of all prompt tokens. Decode: those of one token per request, the gather of keys and values
and the attention at the mean context, times the steps. No norms, no rotation, no activation, no sampling, no Python
between the products. Everything is laid out as suits it best, and of two ways to multiply the faster one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import median_time
from mini_vllm import AttentionMetadata, KVCache, PagedGatherBackend
from mini_vllm.platforms.cpu.products import project

PREFILL_TILE = 2048


class Bound:
    """For a loaded Llama-like model. Times are in seconds."""

    def __init__(self, model: Any, block_size: int = 16) -> None:
        self.model, self.block_size = model, block_size

    def products_time(self, num_tokens: int, num_logits: int, repeats: int) -> float:
        """All products of one step: every layer's four with `num_tokens`, the output embedding with `num_logits`."""
        rng = np.random.default_rng(0)
        dtype = self.model.dtype
        layers = [
            [w.weight for w in (x.self_attn.qkv_proj, x.self_attn.o_proj, x.mlp.gate_up_proj, x.mlp.down_proj)]
            for x in self.model.model.layers
        ]
        lm_head = self.model.lm_head.weight
        widths = {w.shape[1] for w in layers[0]} | {lm_head.shape[1]}
        inputs = {n: rng.standard_normal((n, num_tokens)).astype(dtype) for n in widths}
        outputs = {len(w): np.empty((len(w), num_tokens), dtype) for w in layers[0]}
        last = np.ascontiguousarray(inputs[lm_head.shape[1]][:, :num_logits])
        logits = np.empty((self.model.vocab_size, num_logits), dtype)

        def products(multiply: Callable[[Any, Any, Any], Any]) -> None:
            for weights in layers:
                for weight in weights:
                    multiply(weight, inputs[weight.shape[1]], outputs[len(weight)])
            multiply(lm_head, last, logits)

        return min(median_time(partial(products, way), repeats) for way in (np.matmul, project))

    def attention_time(self, batch: int, context: int, repeats: int) -> float:
        """Gather and attention of all layers for one decode step with `context` tokens in each request."""
        m, size = self.model, self.block_size
        blocks = -(-context // size)
        cache = KVCache(m.num_layers, batch * blocks + 1, size, m.num_kv_heads, m.head_dim, m.dtype)
        cache.data[:] = 0.5
        backend = PagedGatherBackend(cache, m.num_heads, m.sliding_windows)
        tables = np.arange(1, batch * blocks + 1).reshape(batch, blocks)
        slots = tables[:, -1] * size + (context - 1) % size
        step = backend.begin_step(AttentionMetadata(np.arange(batch + 1), np.full(batch, context), tables, slots))
        q, k, v = (np.full((batch, n, m.head_dim), 0.1, m.dtype) for n in (m.num_heads, m.num_kv_heads, m.num_kv_heads))

        def attention() -> None:
            for layer in range(m.num_layers):
                step(layer, q, k, v)

        return median_time(attention, repeats)

    def time(self, batch: int, prompt_len: int, output_len: int, repeats: int) -> dict[str, float]:
        """Seconds for `batch` requests; the first output token comes from the prefill, the rest from decode steps."""
        total = batch * prompt_len
        whole, rest = divmod(total, PREFILL_TILE)
        prefill = whole * self.products_time(PREFILL_TILE, batch, 3) if whole else 0.0
        prefill += self.products_time(rest, batch, 3) if rest else 0.0
        products = self.products_time(batch, batch, repeats)
        attention = self.attention_time(batch, prompt_len + output_len // 2, repeats)
        steps = output_len - 1
        return {
            "prefill_products": prefill, "decode_products_per_step": products, "attention_per_step": attention,
            "products_only": prefill + steps * products, "total": prefill + steps * (products + attention),
        }  # fmt: skip


def matvec_bandwidth(gib: float = 1.0, repeats: int = 5) -> float:
    """Bytes per second of a matrix-vector product over `gib` GiB of float32: what memory gives to a decode step."""
    columns = 16384
    rows = int(gib * 2**30) // (4 * columns)
    matrix = np.ones((rows, columns), np.float32)
    vector, out = np.ones(columns, np.float32), np.empty(rows, np.float32)
    return matrix.nbytes / median_time(lambda: np.dot(matrix, vector, out=out), repeats)
