"""Matrix products as OpenBLAS likes them best. Upstream has no twin: there a GPU's library decides.

Activations are kept feature-major, [features, tokens]: `weight @ x` with the weight as checkpoints store it
([out, in]) is the fastest product that BLAS has for few tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from mini_vllm.platforms.cpu.threads import multiplies_small_unpacked, one_core
from mini_vllm.utils.arrays import Array

FEW_TOKENS, FEW_TOKENS_FOR_THREADS = 128, 4
"""Up to this many tokens a product is cut into small ones, where BLAS has one thread, and where it has more (the
small ones are then one thread's)."""
_ONE_BY_ONE = 7
"""Up to this many tokens are multiplied one by one where BLAS packs even small products: a vector is never packed.
Drafts and small batches have so few. 256 features, weights of 18 MiB, a Haswell kernel: 2 tokens in 0.9 ms instead of
2.3, 5 in 1.7 instead of 2.9, 8 in 2.5 either way."""
_WIDTH = 32
"""Tokens of a small product: two vectors of AVX-512."""
_SMALL_PRODUCT = 1_000_000
"""Multiplications up to which OpenBLAS does not pack its factors."""


@lru_cache(maxsize=1024)
def _block_rows(rows: int, columns: int, tokens: int) -> int:
    """The most rows of a weight that divide it evenly and keep rows * columns * tokens within `_SMALL_PRODUCT`."""
    most = max(1, _SMALL_PRODUCT // (columns * tokens))
    return next((n for n in range(min(most, rows), 7, -1) if rows % n == 0), rows)


def project(weight: Any, x: Array, out: Array) -> None:
    """`out = weight @ x`. weight: [out, in], or a quantized `Linear`; x: [in, tokens]; out: [out, tokens], contiguous.

    OpenBLAS first copies ("packs") both factors into the order that its kernel reads, which few tokens do not pay back.
    Products of up to a million multiplications it does without, a fifth to a half faster. So few tokens are multiplied
    in blocks of rows of the weight and of `_WIDTH` tokens (one numpy call, and one for the tokens that are left over),
    with x in C order, which that kernel likes best. Kernels for other processors pack every product; see `_ONE_BY_ONE`.
    """
    tokens = x.shape[1]
    if not isinstance(weight, np.ndarray):
        weight.project_into(x, out)
    elif not 1 < tokens <= (FEW_TOKENS if one_core() else FEW_TOKENS_FOR_THREADS):
        np.matmul(weight, x, out=out)
    elif tokens <= _ONE_BY_ONE and not multiplies_small_unpacked():
        np.matmul(weight, x.T[:, :, None], out=out.T[:, :, None])
    else:
        x = np.ascontiguousarray(x) if tokens >= 8 else x
        whole = tokens - tokens % _WIDTH
        if whole:
            _project_wide(weight, x[:, :whole], out[:, :whole])
        if whole < tokens:
            _project_narrow(weight, x[:, whole:], out[:, whole:])


def _project_narrow(weight: Array, x: Array, out: Array) -> None:
    """`project` for less than `_WIDTH` tokens."""
    rows = _block_rows(*weight.shape, x.shape[1])
    np.matmul(weight.reshape(-1, rows, weight.shape[1]), x, out=out.reshape(-1, rows, x.shape[1]))


def _project_wide(weight: Array, x: Array, out: Array) -> None:
    """`project` for a multiple of `_WIDTH` tokens. The arrays are cut into [blocks, rows, `_WIDTH`], none is copied."""
    columns, rows = weight.shape[1], _block_rows(*weight.shape, _WIDTH)
    np.matmul(
        weight.reshape(-1, 1, rows, columns),
        x.reshape(columns, -1, _WIDTH).transpose(1, 0, 2),
        out=out.reshape(len(weight) // rows, rows, -1, _WIDTH).transpose(0, 2, 1, 3),
    )
