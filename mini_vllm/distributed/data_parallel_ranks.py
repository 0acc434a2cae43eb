"""The ranks of all replicas, as their processes share memory: what they tell each other in the middle of a step.

    replica 0    rank (0, 0)   rank (0, 1)    ranks of tensor parallelism: they have the same rows
                     ||            ||         exchanges go along a column, from replica to replica
    replica 1    rank (1, 0)   rank (1, 1)

Made once by the process that starts the replicas, and handed to each of their ranks. All ranks of a column come to
every exchange, in the same order: a replica without work computes a dummy batch. So a rank that failed, left or died
would be waited for in vain, and everybody else raises an error that names it.

Upstream twin: `vllm/distributed/parallel_state.py` (`get_dp_group`, over torch.distributed).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from mini_vllm.distributed.replica_patience import Patience, ReplicaGoneError
from mini_vllm.distributed.shared_memory import Counters, SharedMemory, attach
from mini_vllm.utils.arrays import Array

_ARRIVED, _PID, _FAILED = 0, 1, 2
_NUM_WORDS = 3
_REASON_BYTES = 512


@dataclass(frozen=True)
class InheritedGroup:
    """A `DataParallelGroup` on its way to a program that is started with `pass_fds=fds`, by pickle.

    Attributes:
        dp_rank: the replica of that program. fds: file descriptors of the memory, the same numbers there.
    """

    sizes: tuple[int, int, int, float]
    dp_rank: int
    fds: tuple[int, int]
    num_bytes: tuple[int, int]

    def open(self) -> DataParallelGroup:
        """The group, in that program. Once."""
        words, memory = (attach(fd, size) for fd, size in zip(self.fds, self.num_bytes, strict=True))
        counters = Counters.__new__(Counters)
        counters.__setstate__((self.sizes[0] * self.sizes[1], words))
        group = DataParallelGroup.__new__(DataParallelGroup)
        group.__setstate__((*self.sizes, self.dp_rank, counters, memory))
        return group


class DataParallelGroup:
    """`data_parallel_size` replicas of `tensor_parallel_size` ranks each.

    Args:
        num_bytes: that a rank puts down between two meetings, at most; what is more goes in pieces, and what is never
            used takes no memory.
        timeout: seconds that a rank which lives is waited for.

    Attributes:
        dp_rank: the replica of this process; `join` sets it. tp_rank: its rank there.
        num_exchanges, num_bytes_sent: of this rank so far; bytes for other ranks.
        check: called while waiting; raises where waiting has become senseless. parent: pid of who started this process.

    Upstream: upstream/vllm/distributed/parallel_state.py:290 — `GroupCoordinator`.
    """

    def __init__(
        self, data_parallel_size: int, tensor_parallel_size: int = 1, num_bytes: int = 1 << 22, timeout: float = 60.0
    ) -> None:
        self.dp_size, self.tp_size, self.num_bytes, self.timeout = (
            data_parallel_size, tensor_parallel_size, num_bytes, timeout,
        )  # fmt: skip
        self.world_size = data_parallel_size * tensor_parallel_size
        self.dp_rank = 0
        self._words = Counters(_NUM_WORDS * self.world_size, self.world_size)
        self._memory = SharedMemory(self.world_size * (_REASON_BYTES + 2 * (self._header_bytes + num_bytes)))
        self._open()

    @property
    def _header_bytes(self) -> int:
        return 8 * (2 * self.dp_size + 2)

    def _open(self) -> None:
        self.tp_rank = self._count = self.num_exchanges = self.num_bytes_sent = 0
        self.parent = os.getppid()
        self.check: Callable[[], object] = _nothing
        whole = self._memory.array((self._memory.num_bytes,), np.uint8)
        at = self.world_size * _REASON_BYTES
        self._reasons = whole[:at].reshape(self.world_size, _REASON_BYTES)
        sides = whole[at:].reshape(2, self.world_size, self._header_bytes + self.num_bytes)
        self._headers, self._slots = sides[:, :, : self._header_bytes], sides[:, :, self._header_bytes :]

    def __getstate__(self) -> Any:
        return self.dp_size, self.tp_size, self.num_bytes, self.timeout, self.dp_rank, self._words, self._memory

    def __setstate__(self, state: Any) -> None:
        self.dp_size, self.tp_size, self.num_bytes, self.timeout, self.dp_rank, self._words, self._memory = state
        self.world_size = self.dp_size * self.tp_size
        self._open()

    @property
    def ep_rank(self) -> int:
        """This process among all that share the experts.

        Upstream: upstream/vllm/model_executor/layers/fused_moe/config.py:1086 — `flatten_tp_across_dp_and_pcp`.
        """
        return self.dp_rank * self.tp_size + self.tp_rank

    def failure_of(self, rank: int) -> str | None:
        """Why a rank comes to no exchange any more: it failed or left. None as long as all is well."""
        if not self._words[_NUM_WORDS * rank + _FAILED]:
            return None
        reason = bytes(self._reasons[rank]).rstrip(b"\0").decode(errors="ignore")
        return f"{self.name(rank)} {reason}"

    def name(self, rank: int) -> str:
        """Who a rank of `world_size` is, for messages."""
        dp, tp = divmod(rank, self.tp_size)
        within = f", tensor-parallel rank {tp}" if self.tp_size > 1 else ""
        return f"data-parallel rank {dp}{within} (pid {self.pid(rank) or 'unknown'})"

    def num_meetings(self, rank: int) -> int:
        """How often a rank has come to meet its column."""
        return self._words[_NUM_WORDS * rank + _ARRIVED]

    def pid(self, rank: int) -> int:
        """Of a rank's process; 0 before it has joined."""
        return self._words[_NUM_WORDS * rank + _PID]

    def of_replica(self, dp_rank: int) -> DataParallelGroup:
        """Say which replica this process, and those that it starts, belong to. Returns the group itself.

        Raises ValueError: there is no such replica.
        """
        if not 0 <= dp_rank < self.dp_size:
            raise ValueError(f"data_parallel_rank must be from 0 to {self.dp_size - 1}, got {dp_rank}")
        self.dp_rank = dp_rank
        return self

    def inherited(self, dp_rank: int) -> InheritedGroup:
        """For a program that is started here, and is that replica. Keep this group until it has been started."""
        _, words = self._words.__getstate__()
        memories = (words, self._memory)
        fds, sizes = [m.fileno() for m in memories], [m.num_bytes for m in memories]
        return InheritedGroup(
            (self.dp_size, self.tp_size, self.num_bytes, self.timeout), dp_rank, (fds[0], fds[1]), (sizes[0], sizes[1])
        )

    def join(self, tp_rank: int = 0, check: Callable[[], object] | None = None) -> None:
        """This process is that rank of its replica from now on. check: see the class.

        Raises ValueError: a replica has not so many ranks.
        """
        if not 0 <= tp_rank < self.tp_size:
            raise ValueError(f"tensor_parallel_size of the replicas is {self.tp_size}, got a rank {tp_rank}")
        self.tp_rank, self.check, self.parent = tp_rank, check or _nothing, os.getppid()
        self._words[_NUM_WORDS * self.ep_rank + _PID] = os.getpid()

    def abort(self, reason: str) -> None:
        """This rank comes to no exchange any more: whoever waits for it raises. The first reason stays."""
        at = _NUM_WORDS * self.ep_rank + _FAILED
        if not self._words[at]:
            text = reason.encode()[:_REASON_BYTES]
            self._reasons[self.ep_rank, : len(text)] = np.frombuffer(text, np.uint8)
            self._words[at] = 1

    def all_gatherv(self, arrays: Sequence[Array]) -> tuple[list[Array], list[int]]:
        """Rows of all replicas, one after the other; and how many are whose.

        Args:
            arrays: [n, ...] each, of this replica's n rows.

        Upstream: upstream/vllm/distributed/device_communicators/cuda_communicator.py:413 — `all_gatherv`.
        """
        found = self.all_to_allv([arrays] * self.dp_size)
        return [np.concatenate(each) for each in zip(*found, strict=True)], [len(of_rank[0]) for of_rank in found]

    def reduce_scatterv(self, x: Array, sizes: Sequence[int]) -> Array:
        """The sum of every replica's rows for this one, added in the order of the replicas.

        Args:
            x: [sum(sizes), ...]: rows for replica 0, then for replica 1, ….

        Upstream: upstream/vllm/distributed/device_communicators/cuda_communicator.py:325 — `reduce_scatterv`.
        """
        parts = self.all_to_allv([[part] for part in np.split(x, np.cumsum(sizes)[:-1])])
        out = np.zeros((sizes[self.dp_rank], *x.shape[1:]), x.dtype)
        for (part,) in parts:
            out += part
        return out

    def all_reduce(self, values: Array) -> Array:
        """The sum over replicas of some whole numbers [n]."""
        return np.sum([part for (part,) in self.all_to_allv([[values]] * self.dp_size)], axis=0, dtype=values.dtype)

    def all_to_allv(self, parts: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """To every replica its own rows.

        Args:
            parts: for each replica, arrays [n, ...]; n may differ, and be 0. The same list for all is put down once.

        Returns:
            from each replica, arrays of the same kinds.
        """
        me, first, same = self.dp_rank, parts[0], all(part is parts[0] for part in parts)
        streams = [_bytes_of(first)] if same else [_bytes_of(p) for p in parts if p is not parts[me]]
        spans, at = np.zeros((self.dp_size, 2), np.int64), 0
        for dst in range(self.dp_size):
            if not same and dst != me:
                size = len(streams[dst - (dst > me)])
                spans[dst], at = (at, at + size), at + size
        if same:
            spans[:] = 0, len(streams[0])
        self.num_exchanges += 1
        sizes = spans[:, 1] - spans[:, 0]
        self.num_bytes_sent += int(sizes.sum() - sizes[me])
        kinds = [(array.dtype, array.shape[1:]) for array in first]
        kind = crc32(repr(kinds).encode())
        found = self._exchange(np.concatenate(streams) if streams else np.empty(0, np.uint8), spans, kind)
        return [list(parts[me]) if src == me else _arrays_of(found[src], kinds) for src in range(self.dp_size)]

    def _exchange(self, stream: Array, spans: Array, kind: int) -> list[Array]:
        """Put down `stream`, of which `spans` [replicas, 2] says which bytes are whose; take what is for this one.

        Raises RuntimeError: another replica is at an exchange of another kind.
        """
        me, column = self.dp_rank, [dp * self.tp_size + self.tp_rank for dp in range(self.dp_size)]
        found: list[Array] = []
        mine, total, first = np.zeros((self.dp_size, 2), np.int64), len(stream), 0
        while not found or first < total:
            side = self._count & 1
            if not found:
                header = np.append(spans.reshape(-1), [len(stream), kind])
                self._headers[side, self.ep_rank] = header.view(np.uint8)
            piece = stream[first : first + self.num_bytes]
            self._slots[side, self.ep_rank, : len(piece)] = piece
            self._meet(column)
            if not found:
                headers = [self._headers[side, rank].copy().view(np.int64) for rank in column]
                if strays := [r for r, each in zip(column, headers, strict=True) if each[-1] != kind]:
                    raise RuntimeError(f"{self.name(strays[0])} is at another exchange than {self.name(self.ep_rank)}")
                total = max(int(each[-2]) for each in headers)
                mine = np.stack([each[2 * me : 2 * me + 2] for each in headers])
                found = [np.empty(stop - start, np.uint8) for start, stop in mine.tolist()]
            for src, (start, stop) in enumerate(mine.tolist()):
                low, high = max(start, first), min(stop, first + self.num_bytes)
                if src != me and low < high:
                    slot = self._slots[side, column[src]]
                    found[src][low - start : high - start] = slot[low - first : high - first]
            first += self.num_bytes
        return found

    def _meet(self, column: list[int]) -> None:
        """Return when the whole column has come here. Sides are used in turns: whoever writes to one has met all others
        after they read it."""
        if (failure := self.failure_of(self.ep_rank)) is not None:
            raise ReplicaGoneError(failure)
        self._count = count = self._count + 1
        self._words[_NUM_WORDS * self.ep_rank + _ARRIVED] = count
        for rank in column:
            if rank != self.ep_rank:
                self._words.wait(_NUM_WORDS * rank + _ARRIVED, count, Patience(self, column, count))


def _bytes_of(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])


def _arrays_of(stream: Array, kinds: Sequence[tuple[Any, tuple[int, ...]]]) -> list[Array]:
    """`_bytes_of` backwards."""
    sizes = [dtype.itemsize * int(np.prod(shape)) for dtype, shape in kinds]
    rows, at, found = len(stream) // max(sum(sizes), 1), 0, []
    for (dtype, shape), size in zip(kinds, sizes, strict=True):
        found.append(stream[at : at + rows * size].view(dtype).reshape(rows, *shape))
        at += rows * size
    return found


def _nothing() -> None:
    """Nobody else has to be looked after."""
