"""The groups that ranks form, and the sum over those of tensor parallelism that ends each half of a layer.

Every rank multiplies with its own columns of the output weights, which gives a partial sum of the right shape; the sum
over ranks is the layer's output. Each rank writes its part into shared memory, waits for the others, and adds all parts
in the same order, so that the hidden states stay equal to the bit on all ranks.

Upstream twin: upstream/vllm/distributed/parallel_state.py:290 — `GroupCoordinator` (`all_reduce`); its CPU build sums
through shared memory too: upstream/vllm/distributed/device_communicators/cpu_communicator.py:20 — `CpuCommunicator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from mini_vllm.distributed.shared_memory import Counters, SharedMemory
from mini_vllm.utils.arrays import Array

_MAX_BARRIERS = 1 << 32  # in one step


@dataclass(frozen=True)
class RankGroup:
    """Ranks that do something together, and which of them this process is.

    Attributes:
        ranks: in the order of the group. rank: one of them.

    Upstream: upstream/vllm/distributed/parallel_state.py:290 — `GroupCoordinator`, `:437` — `first_rank`, `:457` —
    `next_rank`.
    """

    ranks: tuple[int, ...]
    rank: int

    @property
    def world_size(self) -> int:
        """How many."""
        return len(self.ranks)

    @property
    def rank_in_group(self) -> int:
        """The place of this process."""
        return self.ranks.index(self.rank)

    @property
    def is_first_rank(self) -> bool:
        """Nobody comes before this process."""
        return self.rank == self.ranks[0]

    @property
    def is_last_rank(self) -> bool:
        """Nobody comes after it."""
        return self.rank == self.ranks[-1]

    @property
    def next_rank(self) -> int:
        """Who comes after it; after the last, the first."""
        return self.ranks[(self.rank_in_group + 1) % self.world_size]

    @property
    def prev_rank(self) -> int:
        """Who comes before it; before the first, the last."""
        return self.ranks[self.rank_in_group - 1]


@dataclass(frozen=True)
class ParallelState:
    """The groups of one rank.

    Attributes:
        tp: share every layer. pp: have a stage each. dp: have the same weights, and other requests. ep: share the
            experts of a stage, over all replicas.
    """

    tp: RankGroup
    pp: RankGroup
    dp: RankGroup
    ep: RankGroup


def initialize_model_parallel(
    rank: int, tensor_model_parallel_size: int = 1, pipeline_model_parallel_size: int = 1, data_parallel_size: int = 1
) -> ParallelState:
    """The groups of a rank, where ranks are numbered replica by replica, in it stage by stage.

    Of 2 replicas of 2 stages of 2 ranks, rank 5 has tp (4, 5), pp (5, 7), dp (1, 5) and ep (0, 1, 4, 5).

    Raises:
        ValueError: a rank that is not there.

    Upstream: upstream/vllm/distributed/parallel_state.py:1506 — `initialize_model_parallel`.
    """
    sizes = data_parallel_size, pipeline_model_parallel_size, tensor_model_parallel_size
    if not 0 <= rank < math.prod(sizes):
        raise ValueError(f"rank must be from 0 to {math.prod(sizes) - 1}, got {rank}")
    ranks = np.arange(math.prod(sizes)).reshape(sizes)
    dp, pp, tp = (int(at) for at in np.unravel_index(rank, sizes))

    def group(members: Array) -> RankGroup:
        return RankGroup(tuple(members.reshape(-1).tolist()), rank)

    return ParallelState(group(ranks[dp, pp]), group(ranks[dp, :, tp]), group(ranks[:, pp, tp]), group(ranks[:, pp]))


class TensorParallelGroup(DeviceCommunicatorBase):
    """`world_size` processes that compute one step together. Made by the process that starts them, and handed to each.

    Args:
        world_size: how many.
        num_elements: of the partial sums between two barriers, at most; what is never used takes no memory.
        dtype: of the partial sums.
        mm_encoder_tp_mode: "data" where each rank has an encoder of media of its own, and takes whole items.

    Attributes:
        rank: of this process; each sets its own. The others: see `DeviceCommunicatorBase`.
    """

    def __init__(self, world_size: int, num_elements: int, dtype: Any, mm_encoder_tp_mode: str = "weights") -> None:
        self.world_size, self.num_elements, self.dtype = world_size, num_elements, np.dtype(dtype)
        self.mm_encoder_tp_mode = mm_encoder_tp_mode
        self._arrived = Counters(world_size, world_size)
        self._handed = Counters(2 * world_size**2, world_size)
        self._memory = SharedMemory(2 * world_size * num_elements * self.dtype.itemsize)
        self._open()

    def _open(self) -> None:
        self.rank, self._count = 0, 0
        self.check: Callable[[], object] = lambda: None
        self._parts = self._memory.array((2, self.world_size, self.num_elements), self.dtype)

    def __getstate__(self) -> Any:
        sizes = self.world_size, self.num_elements, self.dtype
        return *sizes, self.mm_encoder_tp_mode, self._arrived, self._handed, self._memory

    def __setstate__(self, state: Any) -> None:
        self.world_size, self.num_elements, self.dtype, self.mm_encoder_tp_mode, *shared = state
        self._arrived, self._handed, self._memory = shared
        self._open()

    def begin_step(self, step: int) -> None:
        """Barriers are numbered anew in each step, so that a step which one rank broke off does no harm."""
        self._count = step * _MAX_BARRIERS

    def num_meetings(self, rank: int) -> tuple[int, int]:
        """The step in which a rank came to a barrier last, and the how-manieth barrier of that step it was."""
        return divmod(self._arrived[rank], _MAX_BARRIERS)

    def exchange(self, parts: list[list[Array]]) -> None:
        """A barrier: all ranks look at the same memory.

        Sums use the sides 0 and 1 in turns: whoever writes to a side has passed the barrier of the other one, which
        all ranks reach only when they have read this side.
        """
        self.barrier()

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._count = count = self._count + 1
        self._arrived[self.rank] = count
        for rank in range(self.world_size):
            if rank != self.rank:
                self._arrived.wait(rank, count, self.check)

    def all_reduce(self, x: Array) -> Array:
        """The sum of every rank's `x`, added up in the order of the ranks: the same bits everywhere.

        Any shape; what the shared memory does not hold goes in pieces.
        Upstream: upstream/vllm/distributed/parallel_state.py:514 — `GroupCoordinator.all_reduce`.
        """
        out = np.empty(x.shape, x.dtype)
        flat = out.reshape(-1)
        for first, parts in self._exchange(np.ascontiguousarray(x).reshape(-1)):
            target = flat[first : first + len(parts[0])]
            np.copyto(target, parts[0])
            for part in parts[1:]:
                target += part
        return out

    def gather_parts(self, x: Array) -> Array:
        """See `DeviceCommunicatorBase.gather_parts`."""
        out = np.empty((self.world_size, x.size), x.dtype)
        for first, parts in self._exchange(np.ascontiguousarray(x).reshape(-1)):
            for rank, part in enumerate(parts):
                out[rank, first : first + len(part)] = part
        return out.reshape(self.world_size, *x.shape)

    def broadcast(self, x: Array, src: int = 0) -> Array:
        """See `DeviceCommunicatorBase.broadcast`."""
        out: Array = self.gather_parts(x)[src]
        return out

    def send(self, x: Array, dst: int) -> None:
        """See `DeviceCommunicatorBase.send`. Returns when it has been read: a piece lies in the sender's place of side
        0, which nobody reads between two calls."""
        data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        place, sent, read = self._bytes_of(self.rank), *self._between(self.rank, dst)
        for first in range(0, len(data), len(place)):
            piece = data[first : first + len(place)]
            place[: len(piece)] = piece
            self._handed[sent] = number = self._handed[sent] + 1
            self._handed.wait(read, number, self.check)

    def recv(self, shape: tuple[int, ...], dtype: Any, src: int) -> Array:
        """See `DeviceCommunicatorBase.recv`."""
        out = np.empty(shape, dtype)
        data = out.reshape(-1).view(np.uint8)
        place, sent, read = self._bytes_of(src), *self._between(src, self.rank)
        for first in range(0, len(data), len(place)):
            self._handed.wait(sent, number := self._handed[read] + 1, self.check)
            piece = data[first : first + len(place)]
            piece[...] = place[: len(piece)]
            self._handed[read] = number
        return out

    def _bytes_of(self, rank: int) -> Array:
        return self._parts[0, rank].view(np.uint8)

    def _between(self, src: int, dst: int) -> tuple[int, int]:
        """The counters of pieces sent, and of those read."""
        place = 2 * (src * self.world_size + dst)
        return place, place + 1

    def _exchange(self, flat: Array) -> Iterator[tuple[int, list[Array]]]:
        """Piece by piece: where it starts, and every rank's. The first wait is for those who still read side 1."""
        for first in range(0, flat.size, self.num_elements):
            piece = flat[first : first + self.num_elements]
            self.barrier()
            parts = self.parts(1, 0, len(piece))
            parts[self.rank][...] = piece
            self.barrier()
            yield first, parts
