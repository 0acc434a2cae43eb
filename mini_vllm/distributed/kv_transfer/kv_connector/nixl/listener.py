"""A socket that answers: a thread that accepts, and one for each connection. Upstream has zmq and NIXL for it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

from mini_vllm.logger import init_logger

logger = init_logger(__name__)

MAX_CONNECTIONS = 64
_PAUSE_S = 0.2
_GOODBYE_S = 5.0


class Listener:
    """Accepts connections until `close`. What goes wrong in one of them ends that one alone.

    Args:
        sock: bound; it is closed here. handle: gets each connection, and may raise. name: of the threads.

    More than `MAX_CONNECTIONS` at the same time are turned away.
    """

    def __init__(self, sock: socket.socket, handle: Callable[[socket.socket], None], name: str) -> None:
        self._sock, self._handle, self._name = sock, handle, name
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._bell, self._rung = socket.socketpair()  # so that `close` ends a wait
        sock.listen(MAX_CONNECTIONS)
        sock.setblocking(False)
        self._thread = threading.Thread(target=self._accept, daemon=True, name=name)
        self._thread.start()

    @property
    def address(self) -> Any:
        """As `socket.getsockname`."""
        return self._sock.getsockname()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            for sock in (self._sock, self._rung):
                selector.register(sock, selectors.EVENT_READ)
            while not self._closed.is_set():
                if any(key.fileobj is self._sock for key, _ in selector.select()):
                    self._welcome()

    def _welcome(self) -> None:
        """Give a thread to the next connection."""
        try:
            connection, _ = self._sock.accept()
        except BlockingIOError:  # who called has gone again
            return
        except OSError as error:  # no more descriptors, which passes
            if not self._closed.wait(_PAUSE_S):
                logger.warning("%s: %s", self._name, error)
            return
        connection.setblocking(True)
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True, name=self._name)
        with self._lock:
            is_welcome = len(self._open) < MAX_CONNECTIONS and not self._closed.is_set()
            if is_welcome:
                self._open[connection] = thread
        if is_welcome:
            thread.start()
        else:
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._handle(connection)
        except (OSError, ValueError) as error:
            logger.debug("%s: a connection has ended: %s", self._name, error)
        except Exception:
            logger.exception("%s: a connection has failed", self._name)
        finally:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()

    def close(self) -> None:
        """End all connections and their threads; a second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._bell.send(b"\0")
        with self._lock:
            left = dict(self._open)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (self._thread, *left.values()):
            if thread is not threading.current_thread():
                thread.join(_GOODBYE_S)
        for sock in (self._sock, self._bell, self._rung):
            sock.close()
