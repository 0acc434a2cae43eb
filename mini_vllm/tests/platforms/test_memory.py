"""Arrays on a cache line."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.platforms.cpu.memory import CACHE_LINE, aligned_empty, aligned_zeros
from mini_vllm.platforms.cpu.workspace import Workspace


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", np.float16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (1, 1 << 23)])
def test_they_start_on_a_cache_line(shape: tuple[int, ...], dtype: object) -> None:
    for array in (aligned_empty(shape, dtype), aligned_zeros(shape, dtype)):
        assert array.ctypes.data % CACHE_LINE == 0 or not array.size
        assert array.shape == shape and array.dtype == np.dtype(dtype) and array.flags.c_contiguous
        assert array.flags.writeable
    assert not array.any()


def test_scratch_memory_does_too() -> None:
    workspace = Workspace(np.dtype("float32"))
    for size in (5, 7, 100_000):
        assert workspace.get("x", size).ctypes.data % CACHE_LINE == 0
