"""A group over gloo, the collectives of torch.distributed for CPUs. Needs torch.

The ranks have met already (`rendezvous.py`); the first of the group opens gloo's store and tells the others its port.
Sums are added in gloo's order: the same bits on all ranks, and others than in the order of the ranks.

Upstream twin: `vllm/distributed/device_communicators/cpu_communicator.py`, and for the group that is no global state
upstream/vllm/distributed/utils.py:504 — `init_gloo_process_group`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np

from mini_vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from mini_vllm.distributed.tcp_links import PeerLostError, TcpLinks
from mini_vllm.utils.arrays import Array


class CpuCommunicator(DeviceCommunicatorBase):
    """Args:
        links, ranks, num_elements, dtype, mm_encoder_tp_mode: see `TcpCommunicator`.

    While gloo waits, `check` is not called: a rank that is gone, or silent for the links' timeout, is an error all the
    same.

    Raises:
        ImportError: torch is absent. PeerLostError, from every call: gloo has lost a rank.
    """

    def __init__(
        self, links: TcpLinks, ranks: tuple[int, ...], num_elements: int, dtype: Any,
        mm_encoder_tp_mode: str = "weights",
    ) -> None:  # fmt: skip
        self.links, self.ranks, self.num_elements, self.dtype = links, ranks, num_elements, np.dtype(dtype)
        self.mm_encoder_tp_mode, self.world_size = mm_encoder_tp_mode, len(ranks)
        self.rank = ranks.index(links.rank)
        self.check = bool
        self._step = self._count = 0
        self._parts = np.empty((2, self.world_size, num_elements), self.dtype)
        self._group = self._connect(timedelta(seconds=links.timeout))

    def _connect(self, timeout: timedelta) -> Any:
        try:
            from torch import distributed
        except ImportError as error:
            raise ImportError(f"collectives over gloo need torch ({error}): pip install 'mini-vllm[torch]'") from None
        gloo: Any = distributed.ProcessGroupGloo
        first, port = self.ranks[0], np.zeros(1, np.int64)
        others = [peer for peer in self.ranks if peer != self.links.rank]
        if self.rank == 0:
            host = self.links.sockets[others[0]].getsockname()[0]
            store = distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
            port[0] = store.port
            self.links.transfer(dict.fromkeys(others, port), {})
        else:
            sock = self.links.sockets[first]
            self.links.transfer({}, {first: port})
            host = sock.getsockname()[0]
            store = distributed.TCPStore(sock.getpeername()[0], int(port[0]), is_master=False, timeout=timeout)
        self._store = store
        options = gloo._Options()
        options._timeout = timeout
        options._devices = [gloo.create_device(hostname=host)]
        return gloo(distributed.PrefixStore("mini_vllm", store), self.rank, self.world_size, options)

    def _do(self, name: str, *args: Any) -> None:
        self._count += 1
        try:
            getattr(self._group, name)(*args).wait()
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            self.links.broken = f"gloo has lost a rank in {name} on rank {self.rank}: {first}"
            raise PeerLostError(self.links.broken) from None

    @property
    def broken(self) -> str | None:  # type: ignore[override]
        """See `DeviceCommunicatorBase`."""
        return self.links.broken

    def begin_step(self, step: int) -> None:
        """See `DeviceCommunicatorBase.begin_step`."""
        self._step, self._count = step, 0

    def num_meetings(self, rank: int) -> tuple[int, int]:
        """This rank's own, whoever is asked for."""
        return self._step, self._count

    def exchange(self, parts: list[list[Array]]) -> None:
        """See `DeviceCommunicatorBase.exchange`."""
        for of_all in parts:
            self._do("allgather", [list(map(_tensor, of_all))], [_tensor(of_all[self.rank])])

    def barrier(self) -> None:
        """See `DeviceCommunicatorBase.barrier`."""
        self._do("barrier")

    def gather_parts(self, x: Array) -> Array:
        """See `DeviceCommunicatorBase.gather_parts`."""
        out = np.empty((self.world_size, *x.shape), x.dtype)
        self._do("allgather", [list(map(_tensor, out))], [_tensor(np.ascontiguousarray(x))])
        return out

    def all_reduce(self, x: Array) -> Array:
        """See `DeviceCommunicatorBase.all_reduce`."""
        out = np.array(x, order="C")
        self._do("allreduce", [_tensor(out)])
        return out

    def broadcast(self, x: Array, src: int = 0) -> Array:
        """See `DeviceCommunicatorBase.broadcast`."""
        out = np.array(x, order="C")
        self._do("broadcast", _tensor(out), src)
        return out

    def send(self, x: Array, dst: int) -> None:
        """See `DeviceCommunicatorBase.send`."""
        self._do("send", [_tensor(np.ascontiguousarray(x))], dst, 0)

    def recv(self, shape: tuple[int, ...], dtype: Any, src: int) -> Array:
        """See `DeviceCommunicatorBase.recv`."""
        out = np.empty(shape, dtype)
        self._do("recv", [_tensor(out)], src, 0)
        return out

    def close(self) -> None:
        """See `DeviceCommunicatorBase.close`."""
        self.links.close()


def _tensor(array: Array) -> Any:
    import torch

    return torch.from_numpy(array)
