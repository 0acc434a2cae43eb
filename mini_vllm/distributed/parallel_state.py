"""The ranks of tensor parallelism, and the sum over them that ends each half of a layer.

Every rank multiplies with its own columns of the output weights, which gives a partial sum of the right shape; the sum
over ranks is the layer's output. Each rank writes its part into shared memory, waits for the others, and adds all parts
in the same order, so that the hidden states stay equal to the bit on all ranks.

Upstream twin: upstream/vllm/distributed/parallel_state.py:290 — `GroupCoordinator` (`all_reduce`); its CPU build sums
through shared memory too: upstream/vllm/distributed/device_communicators/cpu_communicator.py:20 — `CpuCommunicator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.distributed.shared_memory import Counters, SharedMemory
from mini_vllm.utils.arrays import Array

TOKENS_BETWEEN_BARRIERS = 2048
"""So many hidden states the fast form of a model sums up at once."""
_MAX_BARRIERS = 1 << 32  # in one step


class TensorParallelGroup:
    """`world_size` processes that compute one step together. Made by the process that starts them, and handed to each.

    Args:
        world_size: how many.
        num_elements: of the partial sums between two barriers, at most; what is never used takes no memory.
        dtype: of the partial sums.

    Attributes:
        rank: of this process; each sets its own.
        check: called while waiting; raises where waiting has become senseless.
    """

    def __init__(self, world_size: int, num_elements: int, dtype: Any) -> None:
        self.world_size, self.num_elements, self.dtype = world_size, num_elements, np.dtype(dtype)
        self._arrived = Counters(world_size, world_size)
        self._memory = SharedMemory(2 * world_size * num_elements * self.dtype.itemsize)
        self._open()

    def _open(self) -> None:
        self.rank, self._count = 0, 0
        self.check: Callable[[], object] = lambda: None
        self._parts = self._memory.array((2, self.world_size, self.num_elements), self.dtype)

    def __getstate__(self) -> Any:
        return self.world_size, self.num_elements, self.dtype, self._arrived, self._memory

    def __setstate__(self, state: Any) -> None:
        self.world_size, self.num_elements, self.dtype, self._arrived, self._memory = state
        self._open()

    def begin_step(self, step: int) -> None:
        """Barriers are numbered anew in each step, so that a step which one rank broke off does no harm."""
        self._count = step * _MAX_BARRIERS

    def num_meetings(self, rank: int) -> tuple[int, int]:
        """The step in which a rank came to a barrier last, and the how-manieth barrier of that step it was."""
        return divmod(self._arrived[rank], _MAX_BARRIERS)

    def parts(self, side: int, start: int, *shape: int) -> list[Array]:
        """Views of every rank's partial sum, from element `start` on; the caller's own is at its rank.

        Sums use the sides 0 and 1 in turns: whoever writes to a side has passed the barrier of the other one, which
        all ranks reach only when they have read this side.
        """
        stop = start + math.prod(shape)
        return [part[start:stop].reshape(shape) for part in self._parts[side]]

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._count = count = self._count + 1
        self._arrived[self.rank] = count
        for rank in range(self.world_size):
            if rank != self.rank:
                self._arrived.wait(rank, count, self.check)

    def all_gather(self, x: Array) -> Array:
        """The arrays [R, n] of all ranks side by side, [R, n * world_size], on every rank; as many rows at a time as
        the shared memory holds."""
        rows, n = x.shape
        out = np.empty((rows, n * self.world_size), x.dtype)
        step = max(self.num_elements // max(n, 1), 1)
        for start in range(0, rows, step):
            piece = x[start : start + step]
            parts = self.parts(0, 0, *piece.shape)
            np.copyto(parts[self.rank], piece)
            self.barrier()
            for rank, part in enumerate(parts):
                out[start : start + step, rank * n : (rank + 1) * n] = part
            self.barrier()  # before anybody writes to this side again
        return out
