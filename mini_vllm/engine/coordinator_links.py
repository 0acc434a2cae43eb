"""How replicas and front ends speak with the coordinator. In vLLM these sockets stand in `vllm/v1/engine/core.py` and
`vllm/v1/engine/core_client.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mini_vllm.serial_utils import MsgpackDecoder, MsgpackEncoder, require_library
from mini_vllm.utils.system_utils import Owner

COUNTS, WAVE_COMPLETE, START_WAVE, FIRST_REQ, STOP = "counts", "wave_complete", "start_wave", "first_req", "stop"
SCALE = "SCALE_ELASTIC_EP"
"""What a message to the coordinator is about."""


@dataclass(frozen=True)
class CoordinatorAddresses:
    """Where the coordinator is found, and the word by which it knows its own.

    Attributes:
        inputs: takes what replicas and front ends say. engines: replicas hear of waves there. front: front ends hear
            of counts there. key: first frame of each message; secret.
    """

    inputs: str
    engines: str
    front: str
    key: bytes


class ReplicaLink:
    """A replica's half. `tell` belongs to one thread, `hear` to another.

    Args:
        context: of the replica's other sockets; its end ends `hear`.
    """

    def __init__(self, context: Any, addresses: CoordinatorAddresses, engine_index: int) -> None:
        self._zmq, self._addresses, self._index = require_library("zmq"), addresses, engine_index
        self._encoder = MsgpackEncoder()
        self._said, self._heard = context.socket(self._zmq.PUSH), context.socket(self._zmq.DEALER)
        for option in (self._zmq.SNDHWM, self._zmq.RCVHWM):
            self._said.setsockopt(option, 0)
            self._heard.setsockopt(option, 0)
        self._said.connect(addresses.inputs)
        self._heard.connect(addresses.engines)
        self._heard.send_multipart((addresses.key, self._encoder.encode(engine_index)))

    def tell(self, kind: str, *content: int) -> None:
        """Send a message of one of the kinds above."""
        payload = self._encoder.encode([kind, self._index, *content])
        self._said.send_multipart((self._addresses.key, payload))

    def hear(self, put: Callable[[Any], None]) -> None:
        """Give [wave, who knows] of each wave that starts to `put`, until the context ends."""
        decoder = MsgpackDecoder()
        with contextlib.suppress(self._zmq.ContextTerminated):
            while True:
                put(decoder.decode(self._heard.recv_multipart()[1]))
        self._heard.close(0)

    def close(self) -> None:
        """End what tells, in its thread."""
        self._said.close(0)


class CoordinatorLink:
    """A front end's half: it reads what was published when it has to know, and says when a wave has to start.

    Attributes:
        counts: [waiting, running] of each replica, as last heard, and counted on by the router meanwhile. As many as
            there are replicas to choose from: more are heard of while some are being started.
        current_wave, engines_running: as last heard.

    Upstream: upstream/vllm/v1/engine/core_client.py:1169 — `DPAsyncMPClient`, whose task hears all the time. A router
    needs the counts when a request comes; until then they wait in the socket, the last of them alone.
    """

    def __init__(self, addresses: CoordinatorAddresses, engine_count: int) -> None:
        self._zmq, self._addresses, self._owner = require_library("zmq"), addresses, Owner()
        self._encoder, self._decoder = MsgpackEncoder(), MsgpackDecoder()
        self.counts = [[0, 0] for _ in range(engine_count)]
        self.current_wave, self.engines_running = 0, False
        zmq = self._zmq
        self._context = zmq.Context()
        self._heard, self._said = self._context.socket(zmq.SUB), self._context.socket(zmq.PUSH)
        self._heard.setsockopt(zmq.RCVHWM, 0)
        self._heard.setsockopt(zmq.SUBSCRIBE, b"")
        for socket in (self._heard, self._said):
            socket.setsockopt(zmq.LINGER, 0)
        self._heard.connect(addresses.front)
        self._said.connect(addresses.inputs)

    def update(self) -> None:
        """Take over what was published since the last call."""
        with contextlib.suppress(self._zmq.Again):
            while True:
                counts, wave, running = self._decoder.decode(self._heard.recv(self._zmq.NOBLOCK))
                self.current_wave, self.engines_running = wave, running
                if counts is not None:
                    self.counts = resized([list(each) for each in counts], len(self.counts))

    def first_request(self, engine: int) -> None:
        """Say that a request goes to a replica while all pause."""
        self.engines_running = True
        payload = self._encoder.encode([FIRST_REQ, engine, self.current_wave])
        self._said.send_multipart((self._addresses.key, payload))

    def scale(self, engine_count: int, new_engines: list[int]) -> None:
        """Say that there are so many replicas, and that the new ones have nothing to do.

        Upstream: upstream/vllm/v1/engine/core_client.py:1657 — "scale_up_marker =".
        """
        payload = self._encoder.encode([SCALE, 0, engine_count, new_engines])
        self._said.send_multipart((self._addresses.key, payload))

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        if self._owner.refusal is None:
            self._context.destroy(0)


def resized(counts: list[list[int]], engine_count: int) -> list[list[int]]:
    """The counts of so many replicas: of those that are not heard of yet, zeros."""
    return [*counts[:engine_count], *([0, 0] for _ in range(engine_count - len(counts)))]
