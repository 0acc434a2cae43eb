"""Sends KV cache events over zmq: a PUB socket, and a ROUTER where batches that were missed can be asked for.

A batch goes out as three frames: the topic, its number as 8 bytes big-endian, and the msgpack of `to_wire`. A
subscriber that sees a number missing sends the first one that it lacks to the replay endpoint, and gets the batches
from there on, then the number -1. Needs `pyzmq` and `msgspec` (the extra `serve`).

Upstream twin: `vllm/distributed/kv_events.py`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from itertools import count
from typing import Any

from mini_vllm.config.kv_events import KVEventsConfig
from mini_vllm.distributed.kv_events import EventPublisher, KVEventBatch, to_wire

END_SEQ = (-1).to_bytes(8, "big", signed=True)
_SHUTDOWN_S = 5.0
_POLL_S = 0.1


class NullEventPublisher(EventPublisher):
    """Throws batches away. Upstream: upstream/vllm/distributed/kv_events.py:264 — `NullEventPublisher`."""

    def publish(self, events: KVEventBatch) -> None:
        """Nothing."""


class ZmqEventPublisher(EventPublisher):
    """Sends batches from a thread of its own, so that a step does not wait for the network.

    Upstream: upstream/vllm/distributed/kv_events.py:274 — `ZmqEventPublisher`.
    """

    def __init__(self, config: KVEventsConfig, data_parallel_rank: int = 0) -> None:
        try:
            import msgspec
            import zmq
        except ImportError as error:
            raise ImportError(
                f"kv_events_config with publisher='zmq' needs {error.name}: pip install 'mini-vllm[serve]'"
            ) from None
        self._rank = data_parallel_rank
        self._queue: queue.Queue[KVEventBatch | None] = queue.Queue(config.max_queue_size)
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._topic, self._numbers, self._encode = config.topic.encode(), count(), msgspec.msgpack.encode
        context: Any = zmq.Context.instance()
        self._pub = context.socket(zmq.PUB)
        self._pub.set_hwm(config.hwm)
        self._replay: Any = None
        endpoint = offset_endpoint_port(config.endpoint, data_parallel_rank)
        try:
            is_bound = "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
            (self._pub.bind if is_bound else self._pub.connect)(endpoint)
            if config.replay_endpoint is not None:
                self._replay = context.socket(zmq.ROUTER)
                self._replay.bind(offset_endpoint_port(config.replay_endpoint, data_parallel_rank))
        except zmq.ZMQError as error:
            self._close()
            raise ValueError(f"kv_events_config: no socket for {endpoint!r}: {error}") from None
        self._running = True
        self._thread = threading.Thread(target=self._serve, daemon=True, name="zmq-publisher")
        self._thread.start()

    def publish(self, events: KVEventBatch) -> None:
        """Queue a batch.

        Raises:
            RuntimeError: after `shutdown`.
        """
        if not self._running:
            raise RuntimeError("the publisher of KV cache events is closed")
        if events.data_parallel_rank is None:
            events.data_parallel_rank = self._rank
        self._queue.put(events)

    def shutdown(self) -> None:
        """Send what is queued, within a few seconds, and close the sockets."""
        if self._running:
            self._running = False
            self._queue.put(None)
            self._thread.join(_SHUTDOWN_S)

    def _serve(self) -> None:
        """In the thread: the sockets are used by nobody else."""
        while True:
            if self._replay is not None and self._replay.poll(0):
                self._answer_replay()
            try:
                batch = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if batch is None:
                break
            number, payload = next(self._numbers), self._encode(to_wire(batch))
            self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), payload))
            self._buffer.append((number, payload))
        time.sleep(_POLL_S)  # what was sent last is still on its way to the network
        self._close()

    def _answer_replay(self) -> None:
        frames = self._replay.recv_multipart()
        if len(frames) != 3:
            return
        client, _, first = frames
        for number, payload in self._buffer:
            if number >= int.from_bytes(first, "big"):
                self._replay.send_multipart((client, b"", number.to_bytes(8, "big"), payload))
        self._replay.send_multipart((client, b"", END_SEQ, b""))

    def _close(self) -> None:
        for socket in (self._pub, self._replay):
            if socket is not None:
                socket.close(linger=0)


def offset_endpoint_port(endpoint: str, data_parallel_rank: int) -> str:
    """The address of a rank: a port for each, counted from the one given; for `inproc` a name for each.

    Upstream: upstream/vllm/distributed/kv_events.py:468 — `ZmqEventPublisher.offset_endpoint_port`.
    """
    if not data_parallel_rank:
        return endpoint
    if "inproc" in endpoint:
        return f"{endpoint}_dp{data_parallel_rank}"
    address, _, port = endpoint.rpartition(":")
    if "tcp" not in endpoint or not port.isdigit():
        raise ValueError(f"endpoint must be tcp://host:port or inproc://name with several ranks, got {endpoint!r}")
    return f"{address}:{int(port) + data_parallel_rank}"


def make_event_publisher(config: KVEventsConfig, data_parallel_rank: int = 0) -> EventPublisher | None:
    """The publisher of these settings; None where events are not enabled.

    Upstream: upstream/vllm/distributed/kv_events.py:501 — `EventPublisherFactory`.
    """
    if not config.enable_kv_cache_events:
        return None
    return ZmqEventPublisher(config, data_parallel_rank) if config.publisher == "zmq" else NullEventPublisher()
