"""The host's memory for blocks as one piece that the ranks and the scheduler share: tiers below it copy from there.

    block 0   rank 0: memory 0, memory 1, …   rank 1: …
    block 1   …

Upstream twin: `vllm/v1/kv_offload/cpu/shared_offload_region.py`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

import numpy as np

from mini_vllm.utils.arrays import Array
from mini_vllm.utils.mem_utils import format_gib

_PATIENCE_S = 120.0


class SharedOffloadRegion:
    """Whoever comes first makes it; the scheduler's half, which comes last, takes its name away, so that nothing is
    left behind whoever is killed.

    Args:
        instance_id: of the engine; in the name of the file.
        num_blocks: rows. rank: whose part `create_next_view` gives; None: the scheduler's half.
        num_workers: ranks. cpu_page_size: bytes of a row that belong to one rank.

    Raises:
        ValueError: there is no room. TimeoutError: the one who makes it does not get on. FileNotFoundError: the
            scheduler's half comes before the ranks.

    Upstream: upstream/vllm/v1/kv_offload/cpu/shared_offload_region.py:27 — `SharedOffloadRegion`, where the name stays.
    """

    def __init__(
        self, instance_id: str, num_blocks: int, rank: int | None, num_workers: int, cpu_page_size: int
    ) -> None:  # fmt: skip
        self.num_blocks, self.rank, self._row_stride = num_blocks, rank, cpu_page_size * num_workers
        self._offset = (rank or 0) * cpu_page_size
        self._end = self._offset + cpu_page_size
        folder = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
        path = folder / f"mini_vllm_offload_{instance_id}.mmap"
        size = num_blocks * self._row_stride
        fd = _make_or_open(path, size) if rank is not None else os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._finalizer = weakref.finalize(self, _unlink, path)  # where the engine never gets so far
        if rank is None:
            self._finalizer()
        self._base = np.frombuffer(self._map, np.uint8).reshape(num_blocks, self._row_stride)

    def create_next_view(self, num_blocks: int, tensor_page_size: int) -> Array:
        """The next of this rank's memories, uint8[num_blocks, tensor_page_size]; rows lie apart."""
        assert num_blocks == self.num_blocks and self._offset + tensor_page_size <= self._end
        first, self._offset = self._offset, self._offset + tensor_page_size
        return self._base[:, first : self._offset]

    def create_kv_memoryview(self) -> Array:
        """All of it, uint8[num_blocks, bytes of a block on all ranks]."""
        return self._base


def _make_or_open(path: Path, size: int) -> int:
    """A file descriptor of `size` bytes that have their memory."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        fd = os.open(path, os.O_RDWR)
        deadline = time.monotonic() + _PATIENCE_S
        while os.fstat(fd).st_size < size:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} has not become {size} bytes long in {_PATIENCE_S:g} s") from None
            time.sleep(0.005)
        return fd
    try:
        free = shutil.disk_usage(path.parent).free
        if size > free:
            raise ValueError(
                f"cpu_bytes_to_use needs {format_gib(size)} in {path.parent}, which has {format_gib(free)} left"
            )
        os.posix_fallocate(fd, 0, size)
    except BaseException:
        os.close(fd)
        _unlink(path)
        raise
    return fd


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
