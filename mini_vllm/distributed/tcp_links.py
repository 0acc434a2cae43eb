"""One socket between every two ranks, and arrays that go both ways over all of them at once.

    frame    number of the frame on this way (8 bytes) | bytes of the array (8 bytes) | the array

Nobody may send all before it receives: two ranks with arrays larger than the sockets' buffers would wait for ever.
So a transfer is one loop over everything that is to be sent and received. The number and the size tell ranks that are
not at the same call.

Upstream has no twin: gloo and NCCL do it there.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mini_vllm.distributed.shared_memory import num_cores
from mini_vllm.utils.arrays import Array

_HEADER = struct.Struct("<QQ")
_LOOK_MS = 20
_SPINS = 30
"""Looks at the sockets before the process sleeps: about 0.1 ms."""
_NOTICE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}


class PeerLostError(RuntimeError):
    """Another rank is gone, or silent for too long: nothing that the ranks do together can go on."""


def tune(sock: socket.socket) -> None:
    """Small frames go at once, and a machine that vanishes without a word is noticed: after 40 s, or after two minutes
    where something is on the way to it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _NOTICE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Way:
    """What is on its way to a rank, or from it: a header, then an array."""

    def __init__(self, number: int, data: memoryview) -> None:
        self.header = bytearray(_HEADER.pack(number, len(data)))
        self.rest = [memoryview(self.header), data]

    def advance(self, count: int) -> bool:
        """So many bytes have gone. True: there is nothing left."""
        while self.rest and count >= len(self.rest[0]):
            count -= len(self.rest.pop(0))
        if count:
            self.rest[0] = self.rest[0][count:]
        return not self.rest


class TcpLinks:
    """Args:
        rank: of this process. sockets: to the other ranks, by rank; connected. This object closes them.
        timeout: seconds in which a rank that is waited for sends nothing at all.
        where: what each rank is called in messages; by default "rank 1".

    Every method raises `PeerLostError` where a rank that it needs is gone or silent, and whatever `check` raises, which
    is called while it waits. After that the links are of no use: `broken` says why, and every call raises it.
    """

    def __init__(
        self, rank: int, sockets: Mapping[int, socket.socket], timeout: float = 300.0,
        where: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.timeout, self.sockets = rank, timeout, dict(sockets)
        self.where = dict(where or {})
        self.broken: str | None = None
        self._sent, self._received = dict.fromkeys(sockets, 0), dict.fromkeys(sockets, 0)
        self._spins = _SPINS if num_cores() > len(sockets) else 0
        for sock in sockets.values():
            sock.setblocking(False)
            tune(sock)

    def transfer(
        self, out: Mapping[int, Array], into: Mapping[int, Array], check: Callable[[], object] = lambda: None
    ) -> None:
        """Send to each rank of `out`, and receive from each of `into`; contiguous arrays, which may be empty."""
        if self.broken is not None:
            raise PeerLostError(self.broken)
        sending = {peer: self._way(self._sent, peer, array) for peer, array in out.items()}
        receiving = {peer: self._way(self._received, peer, array) for peer, array in into.items()}
        expected = {peer: bytes(way.header) for peer, way in receiving.items()}
        try:
            self._run(sending, receiving, expected, check)
        except BaseException as error:
            self.broken = str(error) or type(error).__name__
            raise

    @staticmethod
    def _way(numbers: dict[int, int], peer: int, array: Array) -> _Way:
        numbers[peer] += 1
        return _Way(numbers[peer], memoryview(array.reshape(-1).view(np.uint8).data))

    def _run(
        self, sending: dict[int, _Way], receiving: dict[int, _Way], expected: dict[int, bytes],
        check: Callable[[], object],
    ) -> None:  # fmt: skip
        spins, heard = self._spins, time.monotonic()
        while True:
            moved = False
            for peer in list(sending):
                moved |= self._send(peer, sending)
            for peer in list(receiving):
                moved |= self._receive(peer, receiving, expected)
            if not sending and not receiving:
                return
            if moved:
                spins, heard = self._spins, time.monotonic()
            elif spins:
                spins -= 1
            else:
                self._sleep(sending, receiving, heard, check)

    def _send(self, peer: int, sending: dict[int, _Way]) -> bool:
        try:
            count = self.sockets[peer].sendmsg(sending[peer].rest)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(peer, error) from None
        if sending[peer].advance(count):
            del sending[peer]
        return True

    def _receive(self, peer: int, receiving: dict[int, _Way], expected: dict[int, bytes]) -> bool:
        way = receiving[peer]
        try:
            count = self.sockets[peer].recv_into(way.rest[0])
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(peer, error) from None
        if not count:
            raise self._lost(peer, None)
        in_header = len(way.rest) == 2
        done = way.advance(count)
        if in_header and len(way.rest) < 2 and bytes(way.header) != expected[peer]:
            (number, size), (ours, wanted) = _HEADER.unpack(way.header), _HEADER.unpack(expected[peer])
            raise PeerLostError(
                f"{self.name(peer)} has sent array {number} of {size} bytes where array {ours} of {wanted} was "
                "expected: the ranks are not at the same call"
            )
        if done or not sum(map(len, way.rest)):
            del receiving[peer]
        return True

    def name(self, peer: int) -> str:
        """What a rank is called in messages."""
        return self.where.get(peer, f"rank {peer}")

    def _lost(self, peer: int, error: OSError | None) -> PeerLostError:
        why = "its process has ended" if error is None else (error.strerror or str(error))
        return PeerLostError(f"{self.name(peer)} has closed its connection to rank {self.rank}: {why}")

    def _sleep(
        self, sending: dict[int, _Way], receiving: dict[int, _Way], heard: float, check: Callable[[], object]
    ) -> None:
        poll = select.poll()
        for peer in {**sending, **receiving}:
            wanted = (select.POLLOUT if peer in sending else 0) | (select.POLLIN if peer in receiving else 0)
            poll.register(self.sockets[peer].fileno(), wanted)
        if poll.poll(_LOOK_MS):
            return
        check()
        if time.monotonic() > heard + self.timeout:
            silent = ", ".join(self.name(peer) for peer in sorted({**sending, **receiving}))
            raise PeerLostError(f"rank {self.rank} has waited {self.timeout:g} s for {silent}, and nothing came")

    def close(self) -> None:
        """Let the connections go. A second call does nothing."""
        self.broken = self.broken or "the connections between the ranks are closed"
        for sock in self.sockets.values():
            sock.close()


class SocketConnection:
    """A socket with the methods of a pipe's end, `multiprocessing.connection.Connection`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(True)
        tune(sock)

    def fileno(self) -> int:
        """For `select`; -1 after `close`."""
        return self._sock.fileno()

    def send_bytes(self, data: Any, check: Callable[[], object] = lambda: None) -> None:
        """A message. check: called while the other side does not read; may raise. Raises OSError: it is gone."""
        rest = memoryview(struct.pack("<Q", len(data)) + data)
        while rest:
            try:
                rest = rest[self._sock.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                select.select([], [self._sock], [], _LOOK_MS / 1e3)
                check()

    def recv_bytes(self) -> bytes:
        """The next message. Raises EOFError, OSError: the other side is gone."""
        (size,) = struct.unpack("<Q", self._recv(8))
        return bytes(self._recv(size))

    def _recv(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._sock.recv_into(view)
            if not count:
                raise EOFError("the other side has closed the connection")
            view = view[count:]
        return data

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether a message, or the end, comes within so many seconds."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout * 1e3))

    def close(self) -> None:
        """As the method of a file; whoever sleeps at the other side wakes up."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
