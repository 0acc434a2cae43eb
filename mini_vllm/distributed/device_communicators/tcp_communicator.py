"""A group over sockets: ranks may be on several machines.

Small arrays go whole from each rank to each, and every rank adds them up. Large ones go in two steps: each rank adds up
its own part of the array and then hands it to all, so that a link carries no more than in a ring, in two steps instead
of 2 (n - 1). Both add in the order of the ranks, so that all hold the same bits, those of shared memory too.

Upstream twin: none over sockets; the two ways are those of upstream/csrc/custom_all_reduce.cuh:323 —
`cross_device_reduce_2stage`, and of the kernel before it.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from mini_vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from mini_vllm.distributed.tcp_links import TcpLinks
from mini_vllm.utils.arrays import Array

ONE_SHOT_BYTES = 1 << 16
"""Up to here an array goes whole to all. With two ranks both ways carry the same, and one step is enough."""


class TcpCommunicator(DeviceCommunicatorBase):
    """Args:
        links: of this process, to all ranks of the engine or more. ranks: of them those of the group, in order.
        num_elements, dtype, mm_encoder_tp_mode: see `DeviceCommunicatorBase`.

    Every call raises as `TcpLinks.transfer`: a rank that dies is an error on all others.
    """

    def __init__(
        self, links: TcpLinks, ranks: tuple[int, ...], num_elements: int, dtype: Any,
        mm_encoder_tp_mode: str = "weights",
    ) -> None:  # fmt: skip
        self.links, self.ranks, self.num_elements, self.dtype = links, ranks, num_elements, np.dtype(dtype)
        self.mm_encoder_tp_mode, self.world_size = mm_encoder_tp_mode, len(ranks)
        self.rank = ranks.index(links.rank)
        self.check = _nothing
        self._step = self._count = 0
        self._parts = np.empty((2, self.world_size, num_elements), self.dtype)
        self._others = [(at, peer) for at, peer in enumerate(ranks) if peer != links.rank]

    @property
    def broken(self) -> str | None:  # type: ignore[override]
        """See `DeviceCommunicatorBase`."""
        return self.links.broken

    def begin_step(self, step: int) -> None:
        """See `DeviceCommunicatorBase.begin_step`."""
        self._step, self._count = step, 0

    def num_meetings(self, rank: int) -> tuple[int, int]:
        """This rank's own, whoever is asked for: what others do is known by what they send."""
        return self._step, self._count

    def _transfer(self, out: dict[int, Array], into: dict[int, Array]) -> None:
        """By rank in the group."""
        self._count += 1
        ranks = self.ranks
        self.links.transfer(
            {ranks[at]: array for at, array in out.items()}, {ranks[at]: array for at, array in into.items()},
            self.check,
        )  # fmt: skip

    def _to_all(self, arrays: Any) -> None:
        """From place `rank` of each rank's `arrays` into the same place of the others'."""
        mine = arrays[self.rank]
        self._transfer({at: mine for at, _ in self._others}, {at: arrays[at] for at, _ in self._others})

    def exchange(self, parts: list[list[Array]]) -> None:
        """See `DeviceCommunicatorBase.exchange`."""
        for of_all in parts:
            self._to_all(of_all)

    def barrier(self) -> None:
        """See `DeviceCommunicatorBase.barrier`: empty arrays."""
        self._to_all(np.empty((self.world_size, 0), np.uint8))

    def gather_parts(self, x: Array) -> Array:
        """See `DeviceCommunicatorBase.gather_parts`."""
        out = np.empty((self.world_size, *x.shape), x.dtype)
        out[self.rank] = x
        self._to_all(out)
        return out

    def all_reduce(self, x: Array) -> Array:
        """See the module."""
        if self.world_size <= 2 or x.nbytes <= ONE_SHOT_BYTES:
            return _add_up(self.gather_parts(x))
        flat, out = np.ascontiguousarray(x).reshape(-1), np.empty(x.shape, x.dtype)
        result = out.reshape(-1)
        bounds = [x.size * i // self.world_size for i in range(self.world_size + 1)]
        share = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        mine = share[self.rank]
        parts = np.empty((self.world_size, mine.stop - mine.start), x.dtype)
        parts[self.rank] = flat[mine]
        self._transfer({at: flat[share[at]] for at, _ in self._others}, {at: parts[at] for at, _ in self._others})
        result[mine] = _add_up(parts)
        self._to_all([result[each] for each in share])
        return out

    def broadcast(self, x: Array, src: int = 0) -> Array:
        """See `DeviceCommunicatorBase.broadcast`. The source sends to each; a tree would pay from eight ranks on."""
        if self.rank == src:
            data = np.ascontiguousarray(x)
            self._transfer({at: data for at, _ in self._others}, {})
            return data
        out = np.empty(x.shape, x.dtype)
        self._transfer({}, {src: out})
        return out

    def send(self, x: Array, dst: int) -> None:
        """See `DeviceCommunicatorBase.send`. Returns when the socket has taken it."""
        self._transfer({dst: np.ascontiguousarray(x)}, {})

    def recv(self, shape: tuple[int, ...], dtype: Any, src: int) -> Array:
        """See `DeviceCommunicatorBase.recv`."""
        out = np.empty(shape, dtype)
        self._transfer({}, {src: out})
        return out

    def close(self) -> None:
        """Closes the links of the process, those of its other groups too."""
        self.links.close()


def _add_up(parts: Array) -> Array:
    """In the order of the ranks."""
    total: Array = parts[0] + parts[1] if len(parts) > 1 else parts[0].copy()
    for part in parts[2:]:
        total += part
    return total


def _nothing() -> None:
    """Nobody waits for ever: `TcpLinks` has a time limit."""
