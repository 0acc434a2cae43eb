"""Products whose bits do not depend on the batch: `VLLM_BATCH_INVARIANT=1`.

A BLAS chooses its kernel by the shape of the product, and a kernel sums in its own order. So the same row times the
same weight has other last bits in a batch of 1 than in a batch of 8, and in some kernels at another place of the same
batch. With the switch on, every product with a weight is cut into tiles of one size, padded with zeros, so that there
is one shape; and where even in such a tile the place matters, which is tried out on the weight itself, rows go one by
one.

What else the switch does: the model runs as its file says (`enforce_eager`), and attention takes one query token at a
time (`attention/backends/per_token.py`). What it promises: a request's logits have the same bits whatever the batch,
its order, the chunks of its prompt and what the prefix cache held, on the same machine with the same number of threads
and ranks.

Upstream twin: `vllm/model_executor/layers/batch_invariant.py`, which replaces torch's matrix product, softmax, mean and
norm by Triton kernels with one tile size. Here norms and softmax are sums along rows, which numpy takes row by row.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array

TILE = 8
"""Rows of a product. Of 1 to 32 the best on the whole: `benchmarks/batch_invariance.py`."""
_safe: dict[tuple[Any, ...], bool] = {}


def vllm_is_batch_invariant() -> bool:
    """The environment variable VLLM_BATCH_INVARIANT, "0" (or unset) or "1".

    Raises ValueError for anything else. Upstream: upstream/vllm/envs.py:596 — "VLLM_BATCH_INVARIANT".
    """
    return _parse(os.environ.get("VLLM_BATCH_INVARIANT", "0"))


@lru_cache
def _parse(value: str) -> bool:
    if value not in ("0", "1", ""):
        raise ValueError(f"VLLM_BATCH_INVARIANT must be 0 or 1, got {value!r}")
    return value == "1"


def linear_batch_invariant(x: Array, weight: Array) -> Array:
    """x [T, in] times weight [out, in] -> [T, out]; the bits of a row depend on that row and the weight alone.

    Upstream: upstream/vllm/model_executor/layers/batch_invariant.py:892 — `linear_batch_invariant`.
    """
    key = weight.shape, weight.strides, weight.dtype.str
    if key not in _safe:
        _safe[key] = place_does_not_matter(weight)
    return _in_tiles(x, weight) if _safe[key] else _row_by_row(x, weight)


def _in_tiles(x: Array, weight: Array) -> Array:
    """x [T, in] in tiles of `TILE` rows, the last one padded with zeros, times weight [out, in] -> [T, out]."""
    num_tokens, num_tiles = len(x), -(-len(x) // TILE)
    if num_tokens % TILE or not x.flags.c_contiguous:
        padded = np.zeros((num_tiles * TILE, x.shape[1]), x.dtype)
        padded[:num_tokens] = x
        x = padded
    return np.matmul(x.reshape(num_tiles, TILE, -1), weight.T).reshape(num_tiles * TILE, -1)[:num_tokens]


def _row_by_row(x: Array, weight: Array) -> Array:
    out = np.empty((len(x), len(weight)), x.dtype)
    for row, values in zip(out, np.ascontiguousarray(x), strict=True):
        np.matmul(weight, values, out=row)
    return out


def place_does_not_matter(weight: Array) -> bool:
    """True where a tile's rows have the same bits at every place: a tile is multiplied as often as it can be turned."""
    rows = np.random.default_rng(0).standard_normal((TILE, weight.shape[1])).astype(weight.dtype)
    first = _in_tiles(rows, weight)
    return all(
        np.array_equal(np.roll(_in_tiles(np.roll(rows, shift, axis=0), weight), -shift, axis=0), first)
        for shift in range(1, TILE)
    )


def require_batch_invariant(model: Any) -> None:
    """Raise ValueError naming the first layer of a model that makes no such promise: experts, quantized weights.

    Embeddings only look up, or add what is the same for every picture; a convolution of patches is a product with a
    weight; and norms are sums along a row.
    """
    from mini_vllm.layers.conv import Conv2dLayer
    from mini_vllm.layers.layernorm import LayerNorm, RMSNorm
    from mini_vllm.layers.linear import LinearBase
    from mini_vllm.layers.utils import UnquantizedLinearMethod
    from mini_vllm.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for layer in getattr(getattr(model, "context", None), "layers", ()):
        plain = isinstance(layer, LinearBase) and isinstance(layer.quant_method, UnquantizedLinearMethod)
        looks_up = isinstance(layer, VocabParallelEmbedding) or "Embedding" in type(layer).__name__
        if not (plain or looks_up or isinstance(layer, RMSNorm | LayerNorm | Conv2dLayer)):
            name = getattr(layer, "prefix", type(layer).__name__)
            raise ValueError(
                f"VLLM_BATCH_INVARIANT=1 is for dense models with float weights: {name} ({type(layer).__name__}) "
                "makes no promise about its bits"
            )
