"""A queue from one process to many through shared memory: a ring of chunks that every reader reads in its own time.

    writer    free chunk? -> bytes in -> written += 1 -> wake whoever sleeps
    reader    written > my read? -> bytes out -> read += 1

A message is one pickle for all readers, in as many chunks as it takes, so that none is too large. Nobody needs a lock,
as one process alone writes a counter. A reader looks for two milliseconds and then sleeps at its end of a pipe.

Upstream twin: `vllm/distributed/device_communicators/shm_broadcast.py`, where large messages go over zmq.
"""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from mini_vllm.distributed.shared_memory import Counters, SharedMemory

AWAKE_S = 2e-3
_NAP_S = 0.1
_HEADER = struct.Struct("<qq")
_MORE, _LAST, _DROP = 0, 1, 2
"""What a chunk says of its message: more follows, it is complete, it was broken off and is to be forgotten."""


class MessageQueue:
    """One writer, `num_readers` readers.

    Args:
        max_chunk_bytes, max_chunks: size of the ring; what is never used takes no memory.

    Upstream: upstream/vllm/distributed/device_communicators/shm_broadcast.py:358 — `MessageQueue`.
    """

    def __init__(self, num_readers: int, max_chunk_bytes: int = 1 << 20, max_chunks: int = 8) -> None:
        self.num_readers, self.max_chunk_bytes, self.max_chunks = num_readers, max_chunk_bytes, max_chunks
        self._memory = SharedMemory((_HEADER.size + max_chunk_bytes) * max_chunks)
        self._counters = Counters(1 + 2 * num_readers, num_readers + 1)
        self._bytes = memoryview(self._memory.map)

    def __getstate__(self) -> Any:
        return {name: value for name, value in vars(self).items() if name != "_bytes"}

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)
        self._bytes = memoryview(self._memory.map)

    def enqueue(self, message: Any, wakers: list[Connection], check: Callable[[], object]) -> None:
        """Send a message to every reader.

        Args:
            wakers: the writer's ends of the pipes at which the readers sleep.
            check: called while the ring is full; may raise.

        Raises:
            OSError: a reader's pipe is closed.
        """
        data = memoryview(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        sent = 0
        try:
            while True:
                chunk = data[sent : sent + self.max_chunk_bytes]
                last = sent + len(chunk) == len(data)
                self._put(chunk, _LAST if last else _MORE, wakers, check)
                sent += len(chunk)
                if last:
                    return
        except BaseException:
            if 0 < sent < len(data):
                self._put(data[:0], _DROP, wakers, check)
            raise

    def _put(self, chunk: memoryview, kind: int, wakers: list[Connection], check: Callable[[], object]) -> None:
        counters, number = self._counters, self._counters[0]
        for reader in range(self.num_readers):
            while counters[1 + reader] <= number - self.max_chunks:
                check()
                time.sleep(2e-4)
        at = number % self.max_chunks * (_HEADER.size + self.max_chunk_bytes)
        _HEADER.pack_into(self._bytes, at, len(chunk), kind)
        at += _HEADER.size
        self._bytes[at : at + len(chunk)] = chunk
        counters[0] = number + 1
        for reader, waker in enumerate(wakers):
            if counters[1 + self.num_readers + reader] == number + 1:
                waker.send_bytes(b"!")

    def dequeue(self, reader: int, bed: Connection, check: Callable[[], object]) -> Any:
        """The next message for this reader.

        Args:
            bed: its end of the pipe to the writer, to sleep at.
            check: called while it waits; may raise.

        Raises:
            EOFError, OSError: the writer's end of the pipe is closed.
        """
        counters = self._counters
        parts: list[bytes] = []
        while True:
            number = counters[1 + reader]
            self._wait(reader, number, bed, check)
            at = number % self.max_chunks * (_HEADER.size + self.max_chunk_bytes)
            size, kind = _HEADER.unpack_from(self._bytes, at)
            at += _HEADER.size
            if kind == _LAST and not parts:
                message = pickle.loads(self._bytes[at : at + size])
                counters[1 + reader] = number + 1
                return message
            parts.append(bytes(self._bytes[at : at + size]))
            counters[1 + reader] = number + 1
            if kind == _LAST:
                return pickle.loads(b"".join(parts))
            if kind == _DROP:
                parts.clear()

    def _wait(self, reader: int, number: int, bed: Connection, check: Callable[[], object]) -> None:
        """Until chunk `number` is there. A nap ends by itself, in case the writer looked just before the reader lay
        down."""
        counters, start = self._counters, time.monotonic()
        while counters[0] <= number:
            if time.monotonic() < start + AWAKE_S:
                for _ in range(counters.spins // 30):
                    if counters[0] > number:
                        return
                os.sched_yield()
                continue
            check()
            counters[1 + self.num_readers + reader] = number + 1
            if counters[0] <= number and bed.poll(_NAP_S):
                bed.recv_bytes()
