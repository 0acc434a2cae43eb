"""What ranks of a group do together, whatever carries their arrays from one to the other.

| class | carries by | where |
|---|---|---|
| `TensorParallelGroup` | shared memory | `parallel_state.py`: one machine |
| `TcpCommunicator` | sockets of its own | `tcp_communicator.py`: several machines |
| `CpuCommunicator` | gloo of torch.distributed | `cpu_communicator.py`: where torch is installed |
| `CountingCommunicator` | another one, and counts | `counting_communicator.py`: for teaching |

Upstream twin: `vllm/distributed/device_communicators/base_device_communicator.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array


class DeviceCommunicatorBase(ABC):
    """A group as one of its ranks holds it. All ranks make the same calls in the same order, with arrays of the same
    shape and dtype; `send` and `recv` are between two of them.

    Attributes:
        rank: of this process, in the group. world_size: how many. num_elements, dtype: of a partial sum that `parts`
            holds, at most. mm_encoder_tp_mode: "data" where each rank has an encoder of media of its own.
        steps_overlap: whether ranks may be at different steps.
        broken: why nothing goes any more, where a call has ended half-way.
        check: called while waiting; raises where waiting has become senseless.

    Upstream: upstream/vllm/distributed/device_communicators/base_device_communicator.py:118 —
    `DeviceCommunicatorBase`.
    """

    steps_overlap = False
    broken: str | None = None
    rank: int
    world_size: int
    num_elements: int
    dtype: Any
    mm_encoder_tp_mode: str
    check: Callable[[], object]
    _parts: Array

    @abstractmethod
    def begin_step(self, step: int) -> None:
        """A call of the engine begins; what the ranks do together is counted anew."""

    @abstractmethod
    def num_meetings(self, rank: int) -> tuple[int, int]:
        """The step in which a rank was heard of last, and the how-manieth meeting of that step it was."""

    def parts(self, side: int, start: int, *shape: int) -> list[Array]:
        """Views of every rank's partial sum, from element `start` on; the caller's own is at its rank. Two sides, 0 and
        1, are used in turns. They are filled by `exchange`."""
        stop = start + math.prod(shape)
        return [part[start:stop].reshape(shape) for part in self._parts[side]]

    @abstractmethod
    def exchange(self, parts: list[list[Array]]) -> None:
        """Return when every rank's partial sums are in `parts`: some results of the method of that name, into which
        each rank has written its own."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when all ranks have come here."""

    @abstractmethod
    def all_reduce(self, x: Array) -> Array:
        """The sum of every rank's `x`, of any shape: the same bits everywhere.

        Upstream: upstream/vllm/distributed/parallel_state.py:514 — `GroupCoordinator.all_reduce`.
        """

    @abstractmethod
    def gather_parts(self, x: Array) -> Array:
        """Every rank's `x`, by rank: [world_size, *x.shape]."""

    def all_gather(self, x: Array) -> Array:
        """Every rank's `x` [..., n], side by side in the order of the ranks: [..., world_size * n].

        Upstream: upstream/vllm/distributed/parallel_state.py:543 — `GroupCoordinator.all_gather`.
        """
        gathered = np.moveaxis(self.gather_parts(x), 0, -2)
        return gathered.reshape(*x.shape[:-1], self.world_size * x.shape[-1])

    @abstractmethod
    def broadcast(self, x: Array, src: int = 0) -> Array:
        """What rank `src` has; the others give an array of the same shape and dtype.

        Upstream: upstream/vllm/distributed/parallel_state.py:618 — `GroupCoordinator.broadcast`.
        """

    @abstractmethod
    def send(self, x: Array, dst: int) -> None:
        """Hand an array to rank `dst`, which calls `recv`.

        Upstream: upstream/vllm/distributed/parallel_state.py:1061 — `GroupCoordinator.send`.
        """

    @abstractmethod
    def recv(self, shape: tuple[int, ...], dtype: Any, src: int) -> Array:
        """What rank `src` has handed over.

        Upstream: upstream/vllm/distributed/parallel_state.py:1068 — `GroupCoordinator.recv`.
        """

    def close(self) -> None:  # noqa: B027  # shared memory has none
        """Let the connections go. A second call does nothing."""
