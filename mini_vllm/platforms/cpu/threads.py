"""Sharing out the work of a step among threads: each takes some of the rows through norms, products and attention.

BLAS alone would put only its products on several cores, and its threads, which wait for each other by spinning, get in
the way of anything else that wants a core. So while a large step (a prefill) is shared out, BLAS is told to use one
thread, and threads of ours, which numpy lets run outside of Python's lock, each do everything for their rows. Steps
with few rows are left to BLAS.

Upstream has no twin: a GPU kernel shares out its rows among thousands of threads by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
MAX_THREADS = 16
MIN_ROWS = 768
"""Rows that a thread must have. With few, a step is some hundred calls of ten microseconds each, and two threads lose
more by handing Python's lock to and fro than they gain over BLAS's own: measured on two cores, 64 decode rows run 5 %
slower, a prompt of 512 tokens 30 % slower, one of 2,000 tokens 18 % faster."""


@lru_cache
def _blas() -> list[Any]:
    """Handles of the BLAS libraries in this process; empty where they cannot be told how many threads to use."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@lru_cache
def num_threads() -> int:
    """Threads to use, the calling one included: as many as BLAS was going to (`OMP_NUM_THREADS`, or the cores)."""
    counts = [library.get_num_threads() for library in _blas()]
    return min(max(counts, default=1), MAX_THREADS)


@lru_cache
def multiplies_small_unpacked() -> bool:
    """Whether BLAS has kernels for small products, which read the factors where they lie: OpenBLAS for AVX-512 has."""
    kernels = {getattr(library, "architecture", None) for library in _blas()}
    return not kernels or bool(kernels & {"SkylakeX", "Cooperlake", "SapphireRapids"})


_unshared = False


def num_shares(num_rows: int) -> int:
    """Into how many shares a step of this many rows is worth cutting."""
    return 1 if _unshared else max(1, min(num_threads(), num_rows // MIN_ROWS))


def one_core() -> bool:
    """True where this process has one core for itself, and BLAS one thread."""
    return _unshared or num_threads() == 1


@contextmanager
def unshared() -> Iterator[None]:
    """While inside, nothing is shared out among threads: the cores have been given to processes."""
    global _unshared
    before, _unshared = _unshared, True
    try:
        yield
    finally:
        _unshared = before


@lru_cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads() - 1, thread_name_prefix="mini_vllm")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def run_shares(function: Callable[[T], object], shares: Sequence[T]) -> None:
    """Call `function` on every share, the first in this thread, and wait for all; an error of any is raised."""
    futures = [_pool().submit(_quietly, function, share) for share in shares[1:]]
    try:
        function(shares[0])
    finally:
        for future in futures:
            future.result()


def _quietly(function: Callable[[T], object], share: T) -> None:
    """Warnings about NaN and overflow are switched off for each thread by itself."""
    with np.errstate(invalid="ignore", over="ignore"):
        function(share)


@contextmanager
def one_blas_thread(wanted: bool = True) -> Iterator[None]:
    """While inside, a product stays on the thread that asked for it (nothing changes where not `wanted`)."""
    libraries = _blas() if wanted else []
    before = [library.get_num_threads() for library in libraries]
    for library in libraries:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, count in zip(libraries, before, strict=True):
            library.set_num_threads(count)
