"""Arrays that start on a cache line.

numpy's own start 16 or 48 bytes into one, so that every vector of 64 bytes that is read or written touches two lines:
a sum of two arrays in the cache then takes up to twice as long, a product some percent more. Upstream has no twin:
torch's allocator aligns to 64 bytes.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array

CACHE_LINE = 64
"""Bytes; also the widest vector of AVX-512."""


_LARGE = 1 << 22
"""Bytes from which an array gets pages of its own. numpy would take them from malloc, which keeps some of what is given
back: 390 MiB of a model of 1,885 whose layers had been cut into shards one by one."""


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Like `np.empty`, on a cache line."""
    return _aligned(np.empty, shape, dtype)


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Like `np.zeros`, on a cache line; here too a page becomes resident when it is first written."""
    return _aligned(np.zeros, shape, dtype)


def _aligned(make: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes >= _LARGE and hasattr(mmap, "MAP_ANONYMOUS"):
        return np.frombuffer(_pages(nbytes), dtype).reshape(shape)
    memory = make(nbytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + nbytes].view(dtype).reshape(shape)


_SLAB_BYTES = 1 << 24


class WeightMemory:
    """Where the weights of a model lie: small arrays are cut from common slabs, which get large pages."""

    def __init__(self) -> None:
        self._slab = np.empty(0, np.uint8)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array to be filled, on a cache line."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes > _SLAB_BYTES // 4:
            return aligned_empty(shape, dtype)
        if len(self._slab) < nbytes:
            self._slab = aligned_empty((_SLAB_BYTES,), np.uint8)
        array = self._slab[:nbytes].view(dtype).reshape(shape)
        self._slab = self._slab[-(-nbytes // CACHE_LINE) * CACHE_LINE :]
        return array


def _pages(nbytes: int) -> mmap.mmap:
    """Pages of zeros, large ones where the system has them. A forked process gets a copy, as of any memory."""
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
