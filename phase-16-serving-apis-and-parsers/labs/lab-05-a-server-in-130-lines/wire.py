"""Connections for lab 16-05: in memory for the tests, over TCP for `run.py`. Given; nothing to edit here.

A server gets a listener. `accept` waits for the next connection and gives None when the listener is closed. A
connection has `read_request`, `respond`, `start`, `send`, `gone` and `close`, which may be
called from any thread.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

MAX_BODY = 1 << 20
ROOM = 1 << 12  # bytes that a client may leave unread before `send` waits for her, as a TCP window does


@dataclass(frozen=True)
class Request:
    """A request of HTTP/1.1: `POST`, `/v1/completions`, its body."""

    method: str
    path: str
    body: bytes


class Connection:
    """The server's end. `wire` has `recv() -> bytes` (b"" where the client has left), `sendall`, `gone`, `close`."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire

    def read_request(self) -> Request:
        """Wait for the whole request.

        Raises:
            ValueError: "Content-Length must be a number of at most 1048576, got 'x'". ConnectionError: she has left.
        """
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        top, _, body = data.partition(b"\r\n\r\n")
        first, *lines = top.decode("latin-1").split("\r\n")
        method, path, _ = [*first.split(" "), "", ""][:3]
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        given = fields.get("content-length", "0")
        if not (given.isascii() and given.isdigit() and int(given) <= MAX_BODY):
            raise ValueError(f"Content-Length must be a number of at most {MAX_BODY}, got {given!r}")
        while len(body) < int(given):
            body += self._more()
        return Request(method, path, body)

    def _more(self) -> bytes:
        chunk = self._wire.recv()
        if not chunk:
            raise ConnectionError("the client has left")
        return bytes(chunk)

    def respond(self, status: int, content_type: str, body: bytes) -> None:
        """A whole response. Raises as `send`."""
        self.send(self._head(status, f"{content_type}\r\nContent-Length: {len(body)}") + body)

    def start(self, status: int, content_type: str) -> None:
        """The head of a response without a length: it ends where the connection is closed. Raises as `send`."""
        self.send(self._head(status, content_type))

    @staticmethod
    def _head(status: int, content_type: str) -> bytes:
        reason = {200: "OK", 400: "Bad Request", 404: "Not Found"}.get(status, "Status")
        return f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n".encode()

    def send(self, data: bytes) -> None:
        """Hand these bytes over; waits while the client has too much unread. Raises ConnectionError if she left."""
        self._wire.sendall(data)

    @property
    def gone(self) -> bool:
        """Whether the client has left. Never waits."""
        return bool(self._wire.gone)

    def close(self) -> None:
        """The response is complete, or shall not be completed: whoever waits in this connection wakes up."""
        self._wire.close()


class Pipe:
    """Bytes in one direction, with room for `ROOM` of them."""

    def __init__(self, room: int) -> None:
        self.data, self.room, self.ended, self.changed = bytearray(), room, False, threading.Condition()

    def put(self, data: bytes) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.ended or len(self.data) < self.room, 60)
            if self.ended:
                raise BrokenPipeError("the client has left")
            self.data += data
            self.changed.notify_all()

    def take(self, wait: float = 60) -> bytes:
        with self.changed:
            self.changed.wait_for(lambda: self.ended or self.data, wait)
            data = bytes(self.data)
            self.data.clear()
            self.changed.notify_all()
            return data

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class _MemoryWire:
    def __init__(self, up: Pipe, down: Pipe) -> None:
        self.up, self.down = up, down

    def recv(self) -> bytes:
        return self.up.take()

    def sendall(self, data: bytes) -> None:
        self.down.put(data)

    @property
    def gone(self) -> bool:
        return self.up.ended

    def close(self) -> None:
        self.up.end()
        self.down.end()


class Listener:
    """In memory: `connect` is the client's side."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Connection | None] = queue.Queue()

    def accept(self) -> Connection | None:
        """The next connection; None once the listener is closed."""
        connection = self._waiting.get()
        if connection is None:
            self._waiting.put(None)
        return connection

    def connect(self) -> Client:
        """A client with a connection of her own."""
        up, down = Pipe(MAX_BODY * 2), Pipe(ROOM)
        self._waiting.put(Connection(_MemoryWire(up, down)))
        return Client(up, down)

    def close(self) -> None:
        """`accept` gives None from now on, to whoever waits too."""
        self._waiting.put(None)


class Client:
    """A client of the tests. `patience`: seconds that she waits for a byte."""

    patience = 8.0

    def __init__(self, up: Pipe, down: Pipe) -> None:
        self.up, self.down, self.seen = up, down, b""

    def ask(self, body: Any, method: str = "POST", path: str = "/v1/completions", length: Any = None) -> Client:
        """Send a request; what is no bytes becomes JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.up.put(
            f"{method} {path} HTTP/1.1\r\nContent-Length: {len(data) if length is None else length}\r\n".encode()
        )
        self.up.put(b"Host: x\r\n\r\n" + data)
        return self

    def read_until(self, mark: bytes) -> bool:
        """Read until `mark` has come; False if the response ended before."""
        seconds = 2.5 * self.patience
        limit = time.monotonic() + seconds
        while mark not in self.seen:
            chunk = self.down.take(self.patience)
            if not chunk:
                return False
            self.seen += chunk
            assert time.monotonic() < limit, f"no {mark!r} within {seconds:g} s; so far {self.seen[-200:]!r}"
        return True

    def response(self) -> tuple[int, bytes]:
        """The whole response: its status and its body."""
        self.read_until(b"\0 never \0")
        top, _, body = self.seen.partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 "), f"no head of a response: {self.seen[:80]!r}"
        return int(top.split(b" ")[1]), body

    def leave(self) -> None:
        """Hang up."""
        self.up.end()
        self.down.end()


class _TcpWire:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def recv(self) -> bytes:
        return self.sock.recv(65536)

    def sendall(self, data: bytes) -> None:
        self.sock.sendall(data)

    @property
    def gone(self) -> bool:
        try:
            return self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class TcpListener:
    """The same on 127.0.0.1; port 0 takes a free one."""

    def __init__(self, port: int = 0) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self._server.settimeout(0.2)
        self.port, self._open = self._server.getsockname()[1], True

    def accept(self) -> Connection | None:
        """See `Listener.accept`."""
        while self._open:
            try:
                return Connection(_TcpWire(self._server.accept()[0]))
            except TimeoutError:
                continue
            except OSError:
                break
        return None

    def close(self) -> None:
        """See `Listener.close`."""
        self._open = False
        self._server.close()
