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

from mini_vllm.distributed.shared_memory import Counters, shared_zeros
from mini_vllm.utils.arrays import Array

_MAX_BARRIERS = 1 << 32  # in one step


class TensorParallelGroup:
    """`world_size` processes that compute one step together; made before they are forked.

    Args:
        world_size: how many, the parent (rank 0) included.
        num_elements: of the partial sums between two barriers.
        dtype: of the partial sums.

    Attributes:
        rank: of this process; a forked worker sets its own.
        check: called while waiting; raises where waiting has become senseless.
    """

    def __init__(self, world_size: int, num_elements: int, dtype: Any) -> None:
        self.world_size, self.rank = world_size, 0
        self.check: Callable[[], object] = lambda: None
        self._arrived = Counters(world_size)
        self._count = 0
        self._parts = shared_zeros((2, world_size, num_elements), dtype)

    def begin_step(self, step: int) -> None:
        """Barriers are numbered anew in each step, so that a step which one rank broke off does no harm."""
        self._count = step * _MAX_BARRIERS

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
