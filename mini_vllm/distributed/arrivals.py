"""Who comes to a socket and says hello, before anybody is believed. Used by `rendezvous.py` alone.

A message is JSON with its size before it. Upstream has no twin: the TCPStore of torch.distributed does it there.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from mini_vllm.logger import init_logger

logger = init_logger(__name__)
MAGIC = "mini_vllm rendezvous 1"
LOOK_S = 0.05
_MAX_HELLO = 1 << 16
_MAX_STRANGERS = 64


class RendezvousError(RuntimeError):
    """The ranks have not found each other: which is missing, or why one was refused."""


class Refusals(list[str]):
    """What rank 0 has told those whom it did not take in."""

    def note(self, refusal: str | None) -> None:
        """None: it was taken in."""
        if refusal is not None and refusal not in self:
            logger.warning("a rank is refused: %s", refusal)
            self.append(refusal)

    def __str__(self) -> str:
        return f"; refused: {'; '.join(self[:4])}" if self else ""


class Arrivals:
    """Who has come to a socket, and said hello. Somebody who says nothing holds up nobody."""

    def __init__(self, listener: socket.socket, settings: dict[str, Any], world_size: int) -> None:
        self.listener, self.settings, self.world_size = listener, settings, world_size
        self.sockets: dict[int, socket.socket] = {}
        self.hellos: dict[int, dict[str, Any]] = {}
        self._silent: dict[socket.socket, bytearray] = {}

    def take(self, check: Callable[[], object]) -> list[tuple[socket.socket, Any]]:
        """Those whose first message is complete; None instead of it where it is no JSON, or they are gone."""
        check()
        complete = []
        ready, _, _ = select.select([self.listener, *self._silent], [], [], LOOK_S)
        for sock in ready:
            if sock is self.listener:
                self._silent[sock.accept()[0]] = bytearray()
                continue
            data = self._silent[sock]
            more = _read_some(sock, data)
            if not more or len(data) >= _size(data):
                del self._silent[sock]
                sock.setblocking(True)
                complete.append((sock, _parse(data)))
        while len(self._silent) > _MAX_STRANGERS:  # who has said nothing for the longest time makes room
            (longest := next(iter(self._silent))).close()
            del self._silent[longest]
        return complete

    def welcome(self, sock: socket.socket, hello: Any) -> str | None:
        """Take a rank in, or tell it why not; the reason."""
        refusal = self._refusal(hello)
        if refusal is None:
            self.sockets[hello["rank"]], self.hellos[hello["rank"]] = sock, hello
            return None
        try:
            name = f"{sock.getpeername()[0]}: "
            send(sock, {"refused": refusal})
        except OSError:
            name = ""
        sock.close()
        return name + refusal

    def _refusal(self, hello: Any) -> str | None:
        port = hello.get("port") if isinstance(hello, dict) and hello.get("magic") == MAGIC else None
        if type(port) is not int or not 0 < port < 1 << 16:
            return f"this is no {MAGIC!r}"
        rank, size, theirs = hello.get("rank"), hello.get("world_size"), hello.get("settings")
        if size != self.world_size:
            return f"it has {size} ranks, rank 0 has {self.world_size}"
        if type(rank) is not int or not 0 < rank < self.world_size:
            return f"there is no rank {rank!r} to come, of {self.world_size}"
        if rank in self.hellos:
            return f"rank {rank} is there already"
        theirs = theirs if isinstance(theirs, dict) else {}
        for name in self.settings | theirs:
            if theirs.get(name) != self.settings.get(name):
                return f"rank {rank} has {name}={theirs.get(name)!r}, rank 0 has {self.settings.get(name)!r}"
        return None

    def refuse_all(self, why: str) -> None:
        """Rank 0 gives up."""
        for sock in [*self.sockets.values(), *self._silent]:
            with contextlib.suppress(OSError):
                send(sock, {"refused": why})
            sock.close()


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """A message."""
    data = json.dumps(message).encode()
    sock.sendall(struct.pack("<I", len(data)) + data)


def receive(sock: socket.socket, deadline: float, check: Callable[[], object]) -> dict[str, Any]:
    """Rank 0's answer, which comes when all ranks are there."""
    data = bytearray()
    while len(data) < _size(data):
        check()
        if time.monotonic() > deadline:
            raise RendezvousError("rank 0 does not answer")
        if select.select([sock], [], [], LOOK_S)[0] and not _read_some(sock, data):
            raise RendezvousError("rank 0 has closed the connection before all ranks were there")
    sock.setblocking(True)
    answer: dict[str, Any] = _parse(data)
    return answer


def _read_some(sock: socket.socket, data: bytearray) -> bool:
    """No more than the message, since arrays may follow. False: the other side is gone."""
    sock.setblocking(False)
    try:
        more = sock.recv(_size(data) - len(data))
    except BlockingIOError:
        return True
    except OSError:
        return False
    data += more
    return bool(more)


def _size(data: bytearray) -> int:
    """Of the whole message, as far as it is known."""
    return 4 + min(struct.unpack_from("<I", data)[0], _MAX_HELLO) if len(data) >= 4 else 4


def _parse(data: bytearray) -> Any:
    try:
        return json.loads(data[4:])
    except (ValueError, RecursionError):
        return None
