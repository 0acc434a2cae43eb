"""A group that counts what it carries: how often the ranks of a model meet in a step, and with how many bytes.

Upstream has no twin; a profiler's trace shows the kernels there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from mini_vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from mini_vllm.utils.arrays import Array


class CountingCommunicator(DeviceCommunicatorBase):
    """Args:
        group: carries the arrays.

    Attributes:
        calls: by name: "all_reduce", "all_gather", "broadcast", "send", "recv", "barrier". A meeting of the compiled
            form, `exchange`, is an all-reduce. num_bytes: by name, of what this rank has put in, or got by "recv".
    """

    def __init__(self, group: DeviceCommunicatorBase) -> None:
        self.group = group
        self.calls: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        """Rank, sizes and `check` are the other's."""
        return getattr(self.__dict__["group"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Whoever sets the rank or `check` sets the other's."""
        if name in ("group", "calls", "num_bytes"):
            super().__setattr__(name, value)
        else:
            setattr(self.group, name, value)

    def _count(self, name: str, num_bytes: int) -> None:
        self.calls[name] += 1
        self.num_bytes[name] += num_bytes

    def begin_step(self, step: int) -> None:
        """See `DeviceCommunicatorBase.begin_step`."""
        self.group.begin_step(step)

    def num_meetings(self, rank: int) -> tuple[int, int]:
        """See `DeviceCommunicatorBase.num_meetings`."""
        return self.group.num_meetings(rank)

    def parts(self, side: int, start: int, *shape: int) -> list[Array]:
        """See `DeviceCommunicatorBase.parts`."""
        return self.group.parts(side, start, *shape)

    def exchange(self, parts: list[list[Array]]) -> None:
        """An all-reduce: whoever calls this adds the parts up itself."""
        self._count("all_reduce", sum(of_all[self.group.rank].nbytes for of_all in parts))
        self.group.exchange(parts)

    def barrier(self) -> None:
        """See `DeviceCommunicatorBase.barrier`."""
        self._count("barrier", 0)
        self.group.barrier()

    def all_reduce(self, x: Array) -> Array:
        """See `DeviceCommunicatorBase.all_reduce`."""
        self._count("all_reduce", x.nbytes)
        return self.group.all_reduce(x)

    def gather_parts(self, x: Array) -> Array:
        """See `DeviceCommunicatorBase.gather_parts`; counted as the gather that it is."""
        self._count("all_gather", x.nbytes)
        return self.group.gather_parts(x)

    def broadcast(self, x: Array, src: int = 0) -> Array:
        """See `DeviceCommunicatorBase.broadcast`."""
        self._count("broadcast", x.nbytes if self.group.rank == src else 0)
        return self.group.broadcast(x, src)

    def send(self, x: Array, dst: int) -> None:
        """See `DeviceCommunicatorBase.send`."""
        self._count("send", x.nbytes)
        self.group.send(x, dst)

    def recv(self, shape: tuple[int, ...], dtype: Any, src: int) -> Array:
        """See `DeviceCommunicatorBase.recv`."""
        out = self.group.recv(shape, dtype, src)
        self._count("recv", out.nbytes)
        return out

    def close(self) -> None:
        """See `DeviceCommunicatorBase.close`."""
        self.group.close()
