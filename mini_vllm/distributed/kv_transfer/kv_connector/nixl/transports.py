"""How the bytes of blocks travel from P to D: through a TCP connection, or through memory that both can reach.

Both speak on a stream socket. "tcp" sends layer after layer on it. "shm" is for engines on one host: P copies layers
into memory without a name and hands D its file descriptor, so that nothing is left behind whoever is killed.
D reads from the descriptor and does not map it: a P that cuts its memory short could end D's process otherwise.

Upstream has NIXL's plug-ins for it: upstream/vllm/distributed/kv_transfer/kv_connector/v1/nixl/worker.py:216 —
"self.nixl_backends".
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.nixl import utils
from mini_vllm.distributed.shared_memory import SharedMemory
from mini_vllm.utils.arrays import Array

_SHM_SLOTS, _TURN = 2, b"t"
Visit = Callable[[int, Array], None]
"""Gets a layer's number and its memory, of the shape of `Freight`: to be filled on P, to be read on D."""


@dataclass(frozen=True)
class Freight:
    """What one read moves: `num_layers` arrays of this shape and type, [blocks, tokens of one, 2 or 1, heads, dim]."""

    num_layers: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def layer_bytes(self) -> int:
        """Bytes of one of the arrays."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.num_layers * self.layer_bytes

    def deadline(self) -> float:
        """When all of it has to be there, if it is sent now."""
        return time.monotonic() + utils.TRANSFER_TIMEOUT_S + self.nbytes / utils.SLOWEST_BYTES_PER_S


class Transport(ABC):
    """Connections of one kind, and bytes on them."""

    @abstractmethod
    def bind(self, host: str) -> tuple[socket.socket, Any]:
        """A socket to listen on, and its address, which JSON can hold. Raises OSError."""

    @abstractmethod
    def connect(self, address: Any) -> socket.socket:
        """A connection to such an address. Raises OSError, TypeError or ValueError: it is none."""

    @abstractmethod
    def send(self, sock: socket.socket, freight: Freight, fill: Visit) -> None:
        """Send the arrays, each filled by `fill`. Raises OSError."""

    @abstractmethod
    def receive(self, sock: socket.socket, freight: Freight, take: Visit) -> None:
        """Receive the arrays, and show each to `take`. Raises OSError, ValueError: the other side sends less."""


class TcpTransport(Transport):
    """Layer after layer on the connection."""

    def bind(self, host: str) -> tuple[socket.socket, Any]:
        """At any port."""
        sock = bound_tcp_socket(host, 0)
        return sock, [host, sock.getsockname()[1]]

    def connect(self, address: Any) -> socket.socket:
        """To [host, port]."""
        host, port = address
        return socket.create_connection((host, port), utils.HANDSHAKE_TIMEOUT_S)

    def send(self, sock: socket.socket, freight: Freight, fill: Visit) -> None:
        """One buffer serves all layers."""
        buffer, deadline = np.empty(freight.shape, freight.dtype), freight.deadline()
        for layer in range(freight.num_layers):
            fill(layer, buffer)
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            sock.sendall(_bytes_of(buffer))

    def receive(self, sock: socket.socket, freight: Freight, take: Visit) -> None:
        """Likewise."""
        buffer, deadline = np.empty(freight.shape, freight.dtype), freight.deadline()
        for layer in range(freight.num_layers):
            utils.receive_into(sock, _bytes_of(buffer), deadline)
            take(layer, buffer)


class ShmTransport(Transport):
    """Layer after layer in memory that P makes; a UNIX socket carries its descriptor, and a byte for each turn."""

    def bind(self, host: str) -> tuple[socket.socket, Any]:
        """At a name that is no file, which goes with the process; the host is this one."""
        name = f"mini_vllm_kv_{secrets.token_hex(8)}"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(f"\0{name}")
        return sock, name

    def connect(self, address: Any) -> socket.socket:
        """To the name."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(utils.HANDSHAKE_TIMEOUT_S)
        try:
            sock.connect(f"\0{address}")
        except BaseException:
            sock.close()
            raise
        return sock

    def send(self, sock: socket.socket, freight: Freight, fill: Visit) -> None:
        """Send the descriptor of memory for two layers. While D reads one, the other is filled."""
        memory, deadline = SharedMemory(_SHM_SLOTS * freight.layer_bytes), freight.deadline()
        slots = memory.array((_SHM_SLOTS, *freight.shape), freight.dtype)
        sock.settimeout(utils.TRANSFER_TIMEOUT_S)
        socket.send_fds(sock, [_TURN], [memory.fileno()])
        for layer in range(freight.num_layers):
            if layer >= _SHM_SLOTS:
                _take_turn(sock, deadline)
            fill(layer, slots[layer % _SHM_SLOTS])
            sock.sendall(_TURN)

    def receive(self, sock: socket.socket, freight: Freight, take: Visit) -> None:
        """Read what the descriptor names, if it is as large as it should be."""
        deadline = freight.deadline()
        sock.settimeout(utils.TRANSFER_TIMEOUT_S)
        data, fds, _, _ = socket.recv_fds(sock, 1, 1)
        try:
            if data != _TURN or len(fds) != 1:
                raise ValueError(f"a file descriptor must come, got {data!r} and {len(fds)} of them")
            size, expected = os.fstat(fds[0]).st_size, _SHM_SLOTS * freight.layer_bytes
            if size != expected:
                raise ValueError(f"the memory must have {expected} bytes, got {size}")
            buffer = np.empty(freight.shape, freight.dtype)
            for layer in range(freight.num_layers):
                _take_turn(sock, deadline)
                _read_at(fds[0], _bytes_of(buffer), layer % _SHM_SLOTS * freight.layer_bytes)
                if layer < freight.num_layers - _SHM_SLOTS:
                    sock.sendall(_TURN)
                take(layer, buffer)
        finally:
            for fd in fds:
                os.close(fd)


def _take_turn(sock: socket.socket, deadline: float) -> None:
    turn = bytearray(1)
    utils.receive_into(sock, memoryview(turn), deadline)
    if turn != _TURN:
        raise ValueError(f"{_TURN!r} must come, got {bytes(turn)!r}")


def _read_at(fd: int, view: memoryview, offset: int) -> None:
    while len(view):
        count = os.preadv(fd, [view], offset)
        if not count:
            raise ValueError("the memory has become shorter")
        view, offset = view[count:], offset + count


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).data.cast("B")


def bound_tcp_socket(host: str, port: int) -> socket.socket:
    """A socket at an address, not listening yet. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


TRANSPORTS: dict[str, Transport] = {"tcp": TcpTransport(), "shm": ShmTransport()}
